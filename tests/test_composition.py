"""Transforms compose: every ordered pair, and triples in a longer run, against a closed form.

On scalars each transform is d/dx (once or twice) or the identity, so a composition of any length
applied to a function with known derivatives has a known answer.
"""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf

POINT = 0.3


def custom_vjp_of(f):
    wrapped = wf.custom_vjp(f)

    def forward(x):
        return f(x), wf.grad(f)(x)

    wrapped.defvjp(forward, lambda slope, ct: (ct * slope,))
    return wrapped


def custom_jvp_of(f):
    wrapped = wf.custom_jvp(f)
    wrapped.defjvp(lambda p, t: wf.jvp(f, p, t))
    return wrapped


def scanned(f):
    """One step of a scan applies f; a second carry shows that several work."""

    def run(x):
        def step(carry, _):
            y, count = carry
            return (f(y), count + 1), y

        (y, _), _ = wf.scan(step, (x, 0), length=1)
        return y

    return run


TRANSFORMS = {
    "grad": (lambda f: wf.grad(f), 1),
    "jvp": (lambda f: lambda x: wf.jvp(f, (x,), (wf.ones_like(x),))[1], 1),
    "vmap": (lambda f: lambda x: wf.vmap(f)(wf.reshape(x, (1,)))[0], 0),
    "jacfwd": (lambda f: wf.jacfwd(f), 1),
    "jacrev": (lambda f: wf.jacrev(f), 1),
    "hessian": (lambda f: wf.hessian(f), 2),
    "checkpoint": (lambda f: wf.checkpoint(f), 0),
    "custom_vjp": (custom_vjp_of, 0),
    "custom_jvp": (custom_jvp_of, 0),
    "scan": (scanned, 0),
    "cond": (lambda f: lambda x: wf.cond(x > -10, f, lambda y: y * 0, x), 0),
    "debug": (lambda f: wf.debug(f, sink=[]), 0),
}


def derivative_of_sin(order: int) -> float:
    return [math.sin, math.cos, lambda x: -math.sin(x), lambda x: -math.cos(x)][order % 4](POINT)


def check(names) -> None:
    f, order = wf.sin, 0
    for name in reversed(names):
        transform, raises = TRANSFORMS[name]
        f, order = transform(f), order + raises
    x = wf.tensor(POINT, dtype=wf.float64)
    assert f(x).item() == pytest.approx(derivative_of_sin(order), rel=1e-9)


@pytest.mark.parametrize("names", list(itertools.product(TRANSFORMS, repeat=2)), ids="-".join)
def test_every_ordered_pair_of_transforms_composes(names) -> None:
    check(names)


def _triples():
    every = list(itertools.product(TRANSFORMS, repeat=3))
    return [every[i] for i in np.random.default_rng(7).permutation(len(every))[:150]]


@pytest.mark.slow
@pytest.mark.parametrize("names", _triples(), ids="-".join)
def test_triples_of_transforms_compose(names) -> None:
    check(names)


def f_weft(w, x):
    return wf.sum(wf.tanh(x @ w) * wf.exp(-x[:1]))


def f_jax(w, x):
    return jnp.sum(jnp.tanh(x @ w) * jnp.exp(-x[:1]))


@pytest.mark.parametrize(
    "build",
    [
        lambda m: m.grad(lambda w, x: f(m)(w, x)),
        lambda m: lambda w, x: m.vmap(m.grad(f(m)), in_axes=(None, 0))(w, m.stack([x, 2 * x])),
        lambda m: m.grad(lambda w, x: m.vmap(lambda r: f(m)(w, r))(m.stack([x, 2 * x])).sum()),
        lambda m: m.hessian(f(m), argnums=1),
        lambda m: m.jacfwd(m.grad(f(m)), argnums=1),
        lambda m: m.jacrev(m.jacfwd(f(m), argnums=1)),
        lambda m: lambda w, x: m.jvp(m.grad(f(m)), (w, x), (w * 0.5, x * 0.1))[1],
        lambda m: lambda w, x: m.grad(lambda v: m.jvp(lambda u: f(m)(u, x), (v,), (w,))[1])(w),
        lambda m: (
            lambda w, x: m.vmap(lambda a: m.vmap(lambda b: f(m)(b, a))(m.stack([w, w * 2])))(
                m.stack([x, x + 1])
            )
        ),
    ],
)
@pytest.mark.slow
def test_compositions_agree_with_jax(build) -> None:
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(3, 2)), rng.normal(size=3)
    with jax.enable_x64(True):
        expected = build(Jax)(jnp.asarray(w), jnp.asarray(x))
        expected = jax.tree.map(np.asarray, expected)
    found = build(wf)(wf.asarray(w), wf.asarray(x))
    for a, b in zip(wf.tree_leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-9, atol=1e-12)


class Jax:
    grad, vmap, hessian, jacfwd, jacrev = jax.grad, jax.vmap, jax.hessian, jax.jacfwd, jax.jacrev
    jvp, stack = jax.jvp, jnp.stack


def f(m):
    return f_jax if m is Jax else f_weft
