"""Functions with rules of their own that draw random numbers without a key."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.errors import UnsupportedError


def noisy_by_itself():
    f = wf.custom_vjp(lambda x: x + wf.uniform(x.shape))
    f.defvjp(lambda x: (f(x), None), lambda _, ct: (ct,))
    return f, lambda x: f(x) ** 2, lambda y: 2 * y


def noisy_forward():
    def forward(x):
        mask = wf.uniform(x.shape)
        return x * mask, mask

    f = wf.custom_vjp(lambda x: x * wf.uniform(x.shape))
    f.defvjp(forward, lambda mask, ct: (ct * mask,))
    return f, f, lambda y: y  # at x = 1


def noisy_rule():
    def rule(primals, tangents):
        mask = wf.uniform(primals[0].shape)
        return primals[0] * mask, tangents[0] * mask

    f = wf.custom_jvp(lambda x: x * wf.uniform(x.shape))
    f.defjvp(rule)
    return f, f, lambda y: y


def inside(kind, step, x):
    """What `step` gives for each of three rows equal to x, in several ways."""
    rows = wf.stack([x, x, x])
    if kind == "fori_loop":
        put = lambda i, ys: ys.at[i].set(step(x))  # noqa: E731
        return wf.fori_loop(0, 3, put, wf.zeros_like(rows))
    if kind == "checkpoint in scan":
        return wf.scan(wf.checkpoint(lambda c, _: (c, step(x))), 0.0, None, 3)[1]
    if kind == "cond in scan":
        return wf.scan(lambda c, _: (c, wf.cond(c == 0, step, step, x)), 0.0, None, 3)[1]
    if kind in ("map", "vmap"):
        return wf.map(step, rows) if kind == "map" else wf.vmap(step)(rows)
    each = {"call": step, "checkpoint": wf.checkpoint(step)}
    each["cond"] = lambda x: wf.cond(wf.sum(x) > 0, step, step, x)
    return wf.stack([each[kind](x) for _ in range(3)])


WAYS = ["call", "vmap", "cond", "checkpoint", "map", "fori_loop"]
WAYS += ["checkpoint in scan", "cond in scan"]


@pytest.mark.parametrize("make", [noisy_by_itself, noisy_forward, noisy_rule])
@pytest.mark.parametrize("kind", WAYS)
def test_rules_draw_what_their_function_drew(make, kind) -> None:
    f, step, slope = make()

    def both(x):
        total, pull = wf.vjp(lambda x: inside(kind, step, x), x)
        return total, pull(wf.ones_like(total))[0]

    wf.random.seed(4)
    alone = inside(kind, step, wf.ones(2)).numpy()
    assert len(np.unique(alone)) == 6  # rows have numbers of their own
    wf.random.seed(4)
    value, gradient = both(wf.ones(2))
    np.testing.assert_array_equal(value.numpy(), alone)
    drawn = alone if step is f else np.sqrt(alone)
    np.testing.assert_allclose(gradient.numpy(), slope(drawn).sum(0), rtol=1e-6)
    if make is noisy_forward:
        wf.random.seed(4)
        assert wf.compile(both)(wf.ones(2))[1].tolist() == gradient.tolist()


def test_numbers_that_only_a_rule_draws_are_refused_in_a_loop() -> None:
    f = wf.custom_vjp(lambda x: x * 1)
    f.defvjp(lambda x: (x * 1, None), lambda _, ct: (ct * wf.uniform(ct.shape),))
    x = wf.ones(3)
    assert len(set(wf.grad(lambda x: f(x).sum())(x).tolist())) == 3
    with pytest.raises(UnsupportedError, match=r"rule .* draws without a key in a loop[^$]*hint"):
        wf.grad(lambda x: wf.map(f, x).sum())(x)


def test_a_compiled_function_draws_in_rules_what_it_drew_before() -> None:
    noise = wf.compile(lambda x: x + wf.uniform(x.shape))
    f = wf.custom_vjp(lambda x: noise(x) + wf.uniform())
    f.defvjp(lambda x: (f(x), None), lambda _, ct: (ct,))
    wf.random.seed(1)
    alone = f(wf.zeros(2)).tolist()
    wf.random.seed(1)
    assert wf.vjp(f, wf.zeros(2))[0].tolist() == alone
