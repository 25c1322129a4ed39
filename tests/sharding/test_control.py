"""Loops, branches, checkpoints and functions with own rules, on tensors over a mesh."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.sharding.layouts import MESHES, close, random_spec

ROWS = np.random.default_rng(0).uniform(-1, 1, (5, 6))


@wf.custom_vjp
def doubled_slope(x):
    return wf.sin(x)


doubled_slope.defvjp(lambda x: (wf.sin(x), x), lambda x, ct: (2 * ct * wf.cos(x),))


@wf.custom_jvp
def tripled_slope(x):
    return wf.tanh(x)


@tripled_slope.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return wf.tanh(x), 3 * t * (1 - wf.tanh(x) ** 2)


FUNCTIONS = {
    "cond": lambda x: wf.cond(x.sum() > 0, lambda v: wf.sin(v) * 2, lambda v: v + x, x),
    "switch": lambda x: wf.switch(wf.asarray(1), [wf.sin, wf.cos, wf.tanh], x),
    "while_loop": lambda x: wf.while_loop(lambda c: (c * c).sum() < 100, lambda c: 2 * c + 1, x),
    "fori_loop": lambda x: wf.fori_loop(0, 3, lambda i, c: wf.sin(c) * x + i, x),
    "scan": lambda x: wf.scan(lambda c, r: (wf.sin(c + r), c * r), wf.zeros_like(x[0]), x),
    "scan backward": lambda x: wf.scan(
        lambda c, r: (c * 0.5 + r, c), wf.zeros_like(x[0]), x, reverse=True
    ),
    "checkpoint": wf.checkpoint(lambda x: wf.exp(wf.sin(x)).sum(axis=0)),
    "custom_vjp": doubled_slope,
    "custom_jvp": tripled_slope,
    "stop_gradient": lambda x: wf.stop_gradient(x) * x,
}
REVERSIBLE = [name for name in FUNCTIONS if name != "while_loop"]


def layouts(seed):
    rng = np.random.default_rng(seed)
    for mesh in MESHES:
        yield wf.asarray(ROWS).shard(mesh, random_spec(rng, mesh, 2))


def total(function):
    return lambda x: sum(wf.sum(wf.cos(y)) for y in wf.tree_leaves(function(x)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_control_flow_gives_what_it_gives_on_one_device(name) -> None:
    expected = FUNCTIONS[name](wf.asarray(ROWS))
    for x in layouts(1):
        close(FUNCTIONS[name](x), expected)


@pytest.mark.parametrize("name", REVERSIBLE)
def test_gradients_through_control_flow_are_those_of_one_device(name) -> None:
    expected = wf.grad(total(FUNCTIONS[name]))(wf.asarray(ROWS))
    for x in layouts(2):
        close(wf.grad(total(FUNCTIONS[name]))(x), expected)


@pytest.mark.parametrize("name", REVERSIBLE)
def test_control_flow_can_be_mapped_and_compiled_over_a_mesh(name) -> None:
    expected = wf.vmap(FUNCTIONS[name])(wf.asarray(np.stack([ROWS, ROWS + 1])))
    for x in list(layouts(3))[::2]:
        close(wf.vmap(FUNCTIONS[name])(wf.stack([x, x + 1])), expected)
        close(wf.compile(FUNCTIONS[name])(x), FUNCTIONS[name](wf.asarray(ROWS)))


INSIDE = {
    "cond": lambda f, x: wf.cond(x.sum() < 100, f, wf.zeros_like, x),
    "switch": lambda f, x: wf.switch(wf.asarray(1), [wf.cos, f], x),
    "while_loop": lambda f, x: wf.while_loop(lambda c: c.sum() < 50, lambda c: f(c) + 2, x),
    "fori_loop": lambda f, x: wf.fori_loop(0, 2, lambda i, c: f(c) * 0.5, x),
    "map": lambda f, x: wf.map(f, wf.stack([x, 2 * x])),
    "nested": lambda f, x: wf.map(lambda v: wf.cond(True, f, wf.cos, v), wf.stack([x, 2 * x])),
    "checkpoint": lambda f, x: wf.checkpoint(f)(x),
}


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("name", INSIDE)
def test_control_flow_on_one_device_may_lay_its_values_out_inside(name, manual) -> None:
    mesh = wf.DeviceMesh("pair", (2,), ("i",))
    halves = wf.P(None, "i")
    inner = wf.shard_map(wf.sin, mesh, in_specs=halves, out_specs=halves, manual=manual)
    plain, laid_out = (lambda x, f=f: INSIDE[name](f, x) for f in (wf.sin, inner))
    x = wf.asarray(ROWS)
    close(laid_out(x), plain(x))
    close(wf.compile(laid_out)(x), plain(x))
    if name != "while_loop":
        close(wf.grad(total(laid_out))(x), wf.grad(total(plain))(x))


OWN_WAYS = {
    "cond": lambda v, i: wf.cond(v.sum() > 0, lambda a: 2 * wf.sin(a), lambda a: a + v + i, v),
    "switch": lambda v, i: wf.switch(i, [wf.sin, wf.cos, lambda a: a * i], v),
    "while_loop": lambda v, i: wf.while_loop(
        lambda c: (c * c).sum() < 20, lambda c: 2 * c + i + 1, v
    ),
    "fori_loop": lambda v, i: wf.fori_loop(0, i + 1, lambda k, c: wf.sin(c) + k, v),
    "scan": lambda v, i: wf.scan(
        lambda c, r: (wf.cond(c.sum() > 0, wf.sin, lambda a: a + r, c), c), v[0], v
    )[1],
    "nested": lambda v, i: wf.cond(
        i > 0, lambda a: wf.cond(a.sum() > 0, wf.sin, wf.cos, a), lambda a: a / 2, v
    ),
}


@pytest.mark.parametrize("name", OWN_WAYS)
def test_each_device_goes_its_own_way_where_a_choice_differs_by_hand(name) -> None:
    mesh = wf.DeviceMesh("grid", (3, 2), ("i", "j"))
    way, x = OWN_WAYS[name], wf.asarray(np.stack([ROWS, 1 - ROWS, ROWS - 2]))

    def piece(v):
        return way(v[0], wf.axis_index("i"))[None]

    spread = wf.shard_map(piece, mesh, wf.P("i"), wf.P("i"), manual=True)

    def alone(x):
        return wf.stack([way(v, wf.asarray(i)) for i, v in enumerate(x)])

    close(spread(x), alone(x))
    close(wf.compile(spread)(x), alone(x))
    if name not in ("while_loop", "fori_loop"):
        close(wf.grad(total(spread))(x), wf.grad(total(alone))(x))


def test_a_collective_needs_devices_that_made_the_same_choice() -> None:
    mesh = wf.DeviceMesh("grid", (2, 2), ("i", "j"))

    def summed(axis):
        def body(v):
            return wf.cond(v.sum() > 0, lambda a: wf.psum(a, axis), lambda a: 2 * a, v)

        return wf.shard_map(body, mesh, wf.P("i"), wf.P("i"), manual=True)

    x = wf.tensor([1.0, -1.0])
    assert summed("j")(x).tolist() == [2.0, -2.0]
    with pytest.raises(wf.errors.ShardingError, match="along 'i' do not all come here"):
        summed("i")(x)


@wf.custom_vjp
def summed_with_own_slope(x):
    return wf.psum(x, "i")


summed_with_own_slope.defvjp(lambda x: (wf.psum(x, "i"), None), lambda _, ct: (5 * ct,))


@pytest.mark.parametrize("function", [doubled_slope, tripled_slope])
def test_derivatives_of_your_own_are_used_by_hand_too(function) -> None:
    mesh, x = wf.DeviceMesh("pair", (2,), ("i",)), wf.asarray(ROWS)
    halves = wf.P(None, "i")
    spread = wf.shard_map(function, mesh, halves, halves, manual=True)
    inside = wf.shard_map(wf.grad(total(function)), mesh, halves, halves, manual=True)
    expected = wf.grad(total(function))(x)
    for slope in (wf.grad(total(spread)), wf.compile(wf.grad(total(spread))), inside):
        close(slope(x), expected)


def test_a_derivative_of_your_own_that_speaks_of_one_piece_is_used_inside() -> None:
    mesh, x = wf.DeviceMesh("pair", (2,), ("i",)), wf.tensor([1.0, 2.0])
    spread = wf.shard_map(summed_with_own_slope, mesh, wf.P("i"), wf.P(), manual=True)
    assert spread(x).tolist() == wf.compile(spread)(x).tolist() == [3.0]
    assert wf.vmap(spread)(wf.stack([x, 2 * x])).tolist() == [[3.0], [6.0]]
    inside = wf.grad(lambda v: wf.sum(summed_with_own_slope(v)))
    assert wf.shard_map(inside, mesh, wf.P("i"), wf.P("i"), manual=True)(x).tolist() == [5.0] * 2
    with pytest.raises(wf.errors.MissingRuleError, match=r"custom_vjp.*no vjp rule outside"):
        wf.grad(lambda x: wf.sum(spread(x)))(x)
