"""`vectorize`: what NumPy's gives, in one batched call."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.errors import ArgumentError, ConcretizationError, ShapeError

RNG = np.random.default_rng(0)
CASES = [
    (None, lambda x, y: x - y * 2, [(3, 1), (4,)]),
    (None, lambda x, y: x - y * 2, [(), (2, 3)]),
    (None, lambda x: x * x, [(2, 1, 0)]),
    ("(n,k),(k)->(n)", lambda a, b: a @ b, [(5, 1, 2, 3), (4, 3)]),
    ("(n,k),(k)->(n)", lambda a, b: a @ b, [(2, 3), (3,)]),
    ("( n ), (n) -> ()", lambda a, b: a @ b, [(2, 1, 3), (1, 4, 3)]),
    ("(n)->(n),()", lambda a: (a * 2, a.sum()), [(2, 3)]),
    ("(2),(2)->()", lambda a, b: a[0] * b[1] - a[1] * b[0], [(5, 2), (2,)]),
]


@pytest.mark.parametrize(("signature", "function", "shapes"), CASES)
def test_vectorized_functions_broadcast_as_numpys_do(signature, function, shapes):
    arrays = [RNG.normal(size=shape) for shape in shapes]
    plain = None if signature is None else signature.replace("2", "two")
    with np.errstate(all="ignore"):
        want = np.vectorize(function, signature=plain, otypes=None if signature else "d")(*arrays)
    ours = wf.vectorize(function, signature=signature)
    for run in (ours, wf.compile(ours)):
        for found, wanted in zip(
            wf.tree_leaves(run(*map(wf.asarray, arrays))),
            want if isinstance(want, tuple) else (want,),
            strict=True,
        ):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12, atol=1e-12)


def test_excluded_arguments_and_keywords_are_handed_on():
    power = wf.vectorize(lambda x, n, *, shift: x**n + shift, excluded=(1,))
    assert power([1.0, 2.0], 3, shift=1).tolist() == [2, 9]
    assert wf.grad(lambda x: wf.sum(power(x, 3, shift=0)))(wf.tensor([1.0, 2.0])).tolist() == [
        3,
        12,
    ]


@pytest.mark.parametrize(
    ("signature", "args", "error", "text"),
    [
        ("n->n", (), ArgumentError, r"signature: expected axes such as '\(n,k\)"),
        (3, (), ArgumentError, "signature: expected axes"),
        ("(n),(n)->(n)", ([1.0],), ArgumentError, "has 2 arguments, got 1"),
        ("(n),(n)->(n)", ([1.0], [1.0, 2.0]), ShapeError, "argument 1: axis 'n' is 2 here but 1"),
        ("(n,m)->(n)", ([1.0],), ShapeError, r"argument 0: axes \(n, m\), got \(1,\)"),
        ("(n)->()", ([1.0],), ShapeError, r"result 0: axes \(\), got \(1,\)"),
        ("(n)->(),()", ([1.0],), ArgumentError, "has 2 results, got 1"),
        (None, ([1.0, 2.0], [1.0, 2.0, 3.0]), ShapeError, "vectorize: operand 1, axis -1: size 3"),
    ],
)
def test_what_does_not_fit_the_signature_is_told(signature, args, error, text):
    with pytest.raises(error, match=f"vectorize: .*{text}|{text}"):
        wf.vectorize(lambda *args: args[0], signature=signature)(*args)


def test_a_vectorized_function_reads_no_values():
    with pytest.raises(ConcretizationError, match="vmap: a value was read"):
        wf.vectorize(lambda x: 1 if x > 0 else 0)([1.0, -1.0])
