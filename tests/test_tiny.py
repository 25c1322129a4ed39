"""Twenty lines a newcomer reads first: what weft is, as assertions."""

from __future__ import annotations

import numpy as np

import weft as wf


def test_weft_in_twenty_lines() -> None:
    x = wf.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert (x @ x.T + 1).tolist() == [[6.0, 12.0], [12.0, 26.0]]  # NumPy's feel
    assert np.asarray(x).sum() == x.sum().item() == 10.0

    f = lambda w: wf.sum(wf.tanh(x @ w) ** 2)  # noqa: E731
    w = wf.ones(2)
    gradient = wf.grad(f)(w)  # reverse mode
    _, slope = wf.jvp(f, w, w)  # forward mode
    assert wf.allclose(slope, gradient @ w)
    assert wf.hessian(f)(w).shape == (2, 2)  # one over the other

    rows = wf.vmap(lambda r: r / r.sum())(x)  # one function, every row
    assert wf.allclose(rows.sum(axis=1), wf.ones(2))

    last, _ = wf.scan(lambda c, r: (c + r, c), wf.zeros(2), x)  # loops are ops
    assert last.tolist() == [4.0, 6.0]

    x[0, 1] = 7.0  # in-place syntax
    assert x[0].tolist() == [1.0, 7.0]
