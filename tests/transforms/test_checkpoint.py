"""`checkpoint(policy=…)`: what is kept is not computed again, and no derivative changes."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name as their_name

import weft as wf
from weft.compiler.rewrite import rewrite
from weft.errors import ArgumentError, DTypeError
from weft.ops.base import call
from weft.transforms.checkpoint import kept_op

OURS, THEIRS = wf.checkpoint_policies, jax.checkpoint_policies
RNG = np.random.default_rng(3)
X, W = RNG.normal(size=(4, 6)), RNG.normal(size=(6, 6)) / 3
POLICIES = {
    "none": (None, None),
    "nothing": (OURS.nothing_saveable, THEIRS.nothing_saveable),
    "everything": (OURS.everything_saveable, THEIRS.everything_saveable),
    "dots": (OURS.dots_saveable, THEIRS.dots_saveable),
    "names": (OURS.save_only_these_names("h"), THEIRS.save_only_these_names("h")),
    "both": (
        OURS.save_from_both_policies(OURS.dots_saveable, OURS.save_only_these_names("h")),
        THEIRS.save_from_both_policies(THEIRS.dots_saveable, THEIRS.save_only_these_names("h")),
    ),
    "own": (lambda op, params: op in ("exp", "sin"), None),
}


def layer(x, w):
    h = wf.checkpoint_name(wf.sin(x @ w), "h")
    return wf.sum(wf.cos(h @ w) * wf.exp(h))


def their_layer(x, w):
    h = their_name(jnp.sin(x @ w), "h")
    return jnp.sum(jnp.cos(h @ w) * jnp.exp(h))


def close(found, wanted):
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-10, atol=1e-10)


def computed(policy) -> Counter[str]:
    """The calls of a compiled step, without those of the function itself."""
    step = wf.value_and_grad(wf.checkpoint(layer, policy=policy), (0, 1))
    return Counter(node.name for node in rewrite(wf.trace(step, X, W))[0].nodes)


@pytest.mark.parametrize("name", POLICIES)
def test_derivatives_are_jaxs_whatever_is_kept(name):
    ours, theirs = POLICIES[name]
    f = wf.checkpoint(layer, policy=ours)
    with jax.enable_x64(True):
        g = jax.checkpoint(their_layer, policy=theirs)
        wanted = jax.jit(jax.grad(g, (0, 1)))(X, W)
        twice = jax.jit(jax.hessian(g))(X, W)
    for gradient in (wf.grad(f, (0, 1)), wf.compile(wf.grad(f, (0, 1)))):
        for mine, other in zip(gradient(X, W), wanted, strict=True):
            close(mine, other)
    close(wf.hessian(f)(X, W), twice)
    close(wf.jacrev(wf.grad(f))(X, W), twice)


@pytest.mark.parametrize("name", POLICIES)
def test_kept_results_go_through_maps_loops_and_forward_mode(name):
    f = wf.checkpoint(layer, policy=POLICIES[name][0])
    xs = np.stack([X, 2 * X])
    wanted = wf.vmap(wf.grad(layer), (0, None))(xs, W)
    close(wf.vmap(wf.grad(f), (0, None))(xs, W), wanted)
    close(wf.grad(lambda xs: wf.sum(wf.vmap(f, (0, None))(xs, W)))(xs), wanted)
    close(wf.jvp(lambda x: f(x, W), (X,), (X,))[1], wf.jvp(lambda x: layer(x, W), (X,), (X,))[1])

    def steps(f):
        def body(x, _):
            return x + 0.01 * f(x, W), None

        return wf.grad(lambda x: wf.sum(wf.scan(body, x, None, length=3)[0]))(X)

    close(steps(f), steps(layer))


def test_what_is_kept_is_not_computed_again_in_compiled_functions():
    again = {name: computed(policy) for name, (policy, _) in POLICIES.items()}
    assert again["none"] == again["nothing"]
    assert not any(calls["kept"] for calls in again.values())
    products = {name: calls["matmul"] for name, calls in again.items()}
    assert products == {
        "none": 6,  # two of the function, and four of its derivatives
        "nothing": 6,
        "everything": 4,
        "dots": 4,
        "names": 6,
        "both": 4,
        "own": 6,
    }
    assert again["none"]["sin"] == again["dots"]["sin"] == 2
    assert again["names"]["sin"] == again["own"]["sin"] == 1  # that of cosine's derivative
    assert again["none"]["exp"] == 1 and again["own"]["exp"] == again["everything"]["exp"] == 0


def test_what_is_kept_is_not_computed_again_call_by_call():
    x = wf.realize(wf.arange(90_000.0).reshape(300, 300) + 1)
    value, made = wf.realize(x + 1), x @ x
    assert not made.is_realized
    found = call(kept_op, (value, made), {})
    np.testing.assert_array_equal(found.numpy(), value.numpy())
    assert not made.is_realized


def test_the_derivatives_of_what_is_kept_are_those_of_what_makes_it():
    def square(value, x):
        return call(kept_op, (value, x * x), {})

    value, x, step = (wf.asarray(RNG.normal(size=3)) for _ in range(3))
    close(square(value, x), value)
    by_value, by_x = wf.grad(lambda *v: wf.sum(square(*v)), (0, 1))(value, x)
    close(by_value, np.zeros(3))
    close(by_x, 2 * x)
    close(wf.jvp(square, (value, x), (step, step * 0))[1], np.zeros(3))
    close(wf.jvp(square, (value, x), (step * 0, step))[1], 2 * x * step)
    close(wf.vmap(square, (None, 0))(value, wf.stack([x, x])), np.stack([value, value]))


def test_a_policy_sees_calls_by_name_and_parameters():
    seen = {}

    def policy(op, params):
        seen[op] = dict(params)
        return False

    wf.checkpoint(layer, policy=policy)(X, W)
    assert seen["checkpoint_name"] == {"label": "h"} and {"matmul", "sin", "exp"} < set(seen)
    assert "broadcast_to" not in seen  # views cost nothing


def test_a_policy_may_be_given_before_the_function():
    @wf.remat(policy=OURS.everything_saveable)
    def both(x, *, scale):
        """Two results."""
        return {"a": wf.exp(x) * scale}, wf.sin(x)

    found = both(wf.asarray(X), scale=2.0)
    assert both.__doc__ == "Two results."
    close(found[0]["a"], 2 * np.exp(X))
    close(found[1], np.sin(X))
    slope = wf.grad(lambda x: wf.sum(both(x, scale=2.0)[0]["a"]) + wf.sum(both(x, scale=1.0)[1]))(X)
    close(slope, 2 * np.exp(X) + np.cos(X))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_numbers_among_the_arguments_stay_numbers(dtype):
    x = wf.tensor([1.0, 2.0], dtype=dtype)
    function = wf.checkpoint(lambda x, k: x * k)
    for found in (function(x, 0.1), wf.compile(function)(x, 0.1)):
        assert found.dtype == x.dtype
        assert found.tolist() == (x * 0.1).tolist()


def test_mistakes_in_policies_and_names_are_named():
    with pytest.raises(ArgumentError, match="checkpoint: policy must be a function, got 'dots'"):
        wf.checkpoint(layer, policy="dots")
    with pytest.raises(DTypeError, match="checkpoint_name: name must be text, got 3"):
        wf.checkpoint_name(X, 3)
    with pytest.raises(DTypeError, match="save_only_these_names: a name must be text, got 3"):
        OURS.save_only_these_names("h", 3)
    with pytest.raises(ArgumentError, match="save_from_both_policies: second must be a function"):
        OURS.save_from_both_policies(OURS.dots_saveable, None)


def test_kept_results_over_a_mesh():
    mesh = wf.DeviceMesh("m", (2,), ("d",))
    x = wf.asarray(X).shard(mesh, wf.P("d"))
    wanted = wf.grad(layer, (0, 1))(X, W)
    for name in ("dots", "everything", "names"):
        f = wf.checkpoint(layer, policy=POLICIES[name][0])
        for gradient in (wf.grad(f, (0, 1)), wf.compile(wf.grad(f, (0, 1)))):
            for mine, other in zip(gradient(x, W), wanted, strict=True):
                close(mine.numpy(), other)
