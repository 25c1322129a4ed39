import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from weft.errors import (
    ConcretizationError,
    LeakedTensorError,
    MutationError,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def arr(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def leaves(tree):
    return [np.asarray(x) for x in jax.tree_util.tree_leaves(tree, is_leaf=is_tensor)]


def is_tensor(x):
    return isinstance(x, wf.Tensor)


def numbers(tree):
    return [x.numpy() if is_tensor(x) else np.asarray(x) for x in wf.tree_leaves(tree)]


def same(ours, theirs, tolerance=1e-9, label=""):
    mine, other = numbers(ours), leaves(theirs)
    assert len(mine) == len(other), label
    for a, b in zip(mine, other, strict=True):
        assert a.shape == b.shape, label
        if b.dtype == jax.dtypes.float0:  # how JAX writes the tangent of an integer
            continue
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=label)


class Unrolled:
    """The oracle: the same control flow as plain Python over weft's ops."""

    @staticmethod
    def scan(f, init, xs=None, length=None, reverse=False):
        steps = range(length if xs is None else len(wf.tree_leaves(xs)[0]))
        carry = wf.tree_map(wf.asarray, init)
        ys = {}
        for i in reversed(steps) if reverse else steps:
            carry, ys[i] = f(carry, wf.tree_map(lambda x, i=i: x[i], xs))
        return carry, wf.tree_map(lambda *rows: wf.stack(rows), *(ys[i] for i in steps))

    @staticmethod
    def switch(index, branches, *operands):
        index = wf.asarray(index)
        result = branches[0](*operands)
        for k, branch in enumerate(branches[1:], 1):
            result = wf.tree_map(
                lambda x, y, k=k: wf.where(index >= k, x, y), branch(*operands), result
            )
        return result

    @staticmethod
    def cond(pred, true_fun, false_fun, *operands):
        return wf.tree_map(
            lambda x, y: wf.where(pred, x, y), true_fun(*operands), false_fun(*operands)
        )

    @staticmethod
    def fori_loop(lower, upper, body, state):
        for i in range(lower, upper):
            state = body(i, state)
        return state

    @staticmethod
    def map(f, xs):
        return wf.tree_map(lambda *rows: wf.stack(rows), *map(f, xs))


def compositions(function, points, moves, rows):
    """What every transform, alone and in pairs, makes of `function`."""
    places = tuple(range(len(points)))

    def loss(*args):
        found = wf.tree_leaves(function(*args))
        return sum(wf.sum(wf.sin(x)) for x in found if x.dtype.kind == "f")

    def squared(*args):
        return sum(wf.sum(g * g) for g in gradient(*args))

    gradient = wf.grad(loss, places)
    yield "value", function(*points)
    yield "jvp", wf.jvp(function, points, moves)
    yield "grad", gradient(*points)
    yield "grad of grad", wf.grad(squared, places)(*points)
    yield "jvp of grad", wf.jvp(gradient, points, moves)
    yield "grad of jvp", wf.grad(lambda *p: wf.jvp(loss, p, moves)[1], places)(*points)
    yield "vmap of grad", wf.vmap(gradient)(*rows)
    yield "grad of vmap", wf.grad(lambda *r: wf.sum(wf.vmap(loss)(*r)), places)(*rows)
    yield "jvp of vmap", wf.jvp(wf.vmap(function), rows, rows)
    yield "vmap of vmap", wf.vmap(wf.vmap(function))(*(wf.stack((r, r * 0.5)) for r in rows))
    for place in places:
        axes = tuple(0 if i == place else None for i in places)
        mixed = tuple(r if i == place else p for i, (r, p) in enumerate(zip(rows, points)))
        yield f"vmap over {place}", wf.vmap(function, in_axes=axes)(*mixed)
        yield f"vmap of grad over {place}", wf.vmap(gradient, in_axes=axes)(*mixed)


def rnn(m, c, w, h, xs):
    def step(h, x):
        new = m.tanh(w @ h + x)
        return new, m.sum(new * x)

    return c.scan(step, h, xs)


def reversed_trees(m, c, scale, xs):
    def step(carry, x):
        count, total = carry["n"], carry["t"]
        total = total * scale + x["a"] * x["b"]
        return {"n": count + 1, "t": total}, (total, count)

    init = {"n": 0, "t": m.zeros(3, dtype="float64")}
    return c.scan(step, init, {"a": xs, "b": m.sin(xs)}, reverse=True)


def branches(m, c, x, y):
    sign = m.sum(x) > 0.1
    return c.cond(sign, lambda a: (m.sin(a) * y, m.sum(a)), lambda a: (a * a, m.sum(a * y)), x)


def three_ways(m, c, x, y):
    index = m.sum(x) * 0 + 1
    fs = [lambda a, b: a + b, lambda a, b: a * b * m.sin(y), lambda a, b: a * 2.0 - m.exp(b)]
    first = c.switch(
        m.asarray(index, dtype="int32") if m is jnp else index.astype("int32"), fs, x, y
    )
    return first, c.switch(7, fs, x, y), c.switch(-3, fs, x, y)


def nested(m, c, w, xs):
    def inner(carry, v):
        return carry * v + w[0], carry

    def outer(carry, x):
        def deep(a):
            return c.scan(inner, a, w)[0]

        new = c.cond(x > 0, deep, lambda a: a * m.sin(w[1]), carry)
        return new, new * x

    return c.scan(outer, w[2], xs)


def counted(m, c, x, y):
    return c.fori_loop(1, 5, lambda i, s: m.sin(s) * y + i * x, x)


def mapped(m, c, x, y):
    return c.map(lambda row: (row @ y, m.tanh(row)), x)


def closes_over(m, c, x, y):
    """The body uses outer tensors twice, one of them only through a computed one."""
    z = m.exp(x)
    return c.scan(lambda s, _: (s * m.cos(y) + z * y, z), x, None, length=4)


def chained(m, c, x):
    """The last carry depends on `x` only after three steps."""
    zero = m.zeros((), dtype="float64")
    return c.scan(
        lambda s, v: ((s[1], s[2], s[2] * v + x, m.sin(s[0])), s[0]),
        (zero,) * 4,
        m.ones(5, dtype="float64"),
    )


PROGRAMS = [
    pytest.param(chained, (np.float64(0.7),), id="chained carries"),
    pytest.param(rnn, (arr(3, 3), arr(3, seed=1), arr(5, 3, seed=2)), id="rnn"),
    pytest.param(reversed_trees, (arr(3), arr(4, 3, seed=1)), id="reversed trees"),
    pytest.param(branches, (arr(3), arr(3, seed=1)), id="cond"),
    pytest.param(branches, (-np.abs(arr(3)), arr(3, seed=1)), id="cond, the other way"),
    pytest.param(three_ways, (arr(3), arr(3, seed=1)), id="switch"),
    pytest.param(nested, (arr(4), arr(5, seed=3)), id="scan in cond in scan"),
    pytest.param(counted, (arr(3), arr(3, seed=1)), id="fori_loop"),
    pytest.param(mapped, (arr(4, 3), arr(3, seed=1)), id="map"),
    pytest.param(closes_over, (arr(3), arr(3, seed=1)), id="captured tensors"),
]


def batch_of(x):
    return np.stack([x * (1 + 0.1 * i) for i in range(3)])


@pytest.mark.promise("S2.24")
@pytest.mark.parametrize(("program", "points"), PROGRAMS)
@pytest.mark.slow
def test_control_flow_is_the_unrolled_program_in_every_transform(program, points) -> None:
    tensors = tuple(map(wf.asarray, points))
    moves = tuple(wf.cos(1 + 3 * x) for x in tensors)
    rows = tuple(wf.asarray(batch_of(x)) for x in points)
    ours = compositions(lambda *p: program(wf, wf, *p), tensors, moves, rows)
    plain = compositions(lambda *p: program(wf, Unrolled, *p), tensors, moves, rows)
    for (name, got), (_, want) in zip(ours, plain, strict=True):
        same(got, [x.numpy() for x in wf.tree_leaves(want)], label=name)
    traced = wf.trace(lambda *p: program(wf, wf, *p), *tensors)
    same(traced.replay(*tensors), [x.numpy() for x in wf.tree_leaves(program(wf, wf, *tensors))])


@pytest.mark.promise("S2.24")
@pytest.mark.parametrize(("program", "points"), PROGRAMS)
@pytest.mark.slow
def test_control_flow_agrees_with_jax(program, points) -> None:
    places = tuple(range(len(points)))

    def results(m, c, leaves_of, grad, vmap):
        def loss(*p):
            found = [x for x in leaves_of(program(m, c, *p)) if x.dtype.kind == "f"]
            return sum(m.sum(m.sin(x)) for x in found)

        def everything(p, rows):
            return program(m, c, *p), grad(loss, places)(*p), vmap(grad(loss, places))(*rows)

        return everything

    rows = tuple(map(batch_of, points))
    theirs = jax.jit(results(jnp, jax.lax, jax.tree_util.tree_leaves, jax.grad, jax.vmap))
    ours = results(wf, wf, wf.tree_leaves, wf.grad, wf.vmap)
    given = tuple(map(wf.asarray, points)), tuple(map(wf.asarray, rows))
    same(ours(*given), theirs(points, rows))


@pytest.mark.promise("S2.24")
def test_a_while_loop_agrees_with_jax_forward_and_batched() -> None:
    def squares(m, c, a):
        return c.while_loop(lambda s: s[0] < 50.0, lambda s: (s[0] * s[0] + a, s[1] + 1), (a, 0))

    def theirs(a):
        return squares(jnp, jax.lax, a)

    def ours(a):
        return squares(wf, wf, a)

    rows = np.array([1.5, 3.0, 80.0, 2.0])
    x = wf.asarray(rows)
    same(ours(x[0]), theirs(rows[0]))
    same(wf.vmap(ours)(x), jax.vmap(theirs)(rows))
    slopes = jax.vmap(lambda a: jax.jvp(theirs, (a,), (a,)))(rows)
    same(wf.vmap(lambda a: wf.jvp(ours, (a,), (a,)))(x), slopes)
    same(wf.jvp(wf.vmap(ours), (x,), (x,)), slopes)
    same(wf.jvp(ours, (x[2],), (x[2],)), jax.jvp(theirs, (rows[2],), (rows[2],)))


def test_a_while_loop_whose_condition_is_not_mapped_carries_rows_that_do_not_vary_once() -> None:
    rows = np.arange(6.0).reshape(3, 2)

    def program(c, x):
        return c.while_loop(
            lambda s: s[0] < 4, lambda s: (s[0] + 1, s[1] + x, s[2] * 2.0), (0, x, 1.0)
        )

    same(
        wf.vmap(lambda x: program(wf, x))(wf.asarray(rows)),
        jax.vmap(lambda x: program(jax.lax, x))(rows),
    )
    traced = wf.trace(wf.vmap(lambda x: program(wf, x)), rows)
    (loop,) = [node for node in traced.nodes if node.name == "while_loop"]
    assert [kind.shape for kind in loop.types] == [(), (3, 2), ()]


def test_rows_that_have_ended_stay_as_they_are_even_where_going_on_gives_nan() -> None:
    def halve(x):
        return wf.while_loop(lambda s: s > 0.5, lambda s: wf.log(s), x)

    rows = np.array([0.3, 2.0, 20.0])
    got = wf.vmap(halve)(wf.asarray(rows)).numpy()
    np.testing.assert_allclose(
        got,
        [
            0.3,
            np.log(2.0) if np.log(2.0) <= 0.5 else np.log(np.log(2.0)),
            np.log(np.log(np.log(20.0))),
        ],
    )


def test_a_batch_of_no_rows_runs_no_step() -> None:
    out = wf.vmap(lambda x: wf.while_loop(lambda s: s < 3.0, lambda s: s + 1, x))(wf.zeros((0,)))
    assert out.shape == (0,)
    carry, ys = wf.vmap(lambda x: wf.scan(lambda c, v: (c + v, c), x, wf.ones(4)))(wf.zeros((0,)))
    assert carry.shape == (0,)
    assert ys.shape == (0, 4)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_of_no_steps_returns_init_and_empty_results(reverse) -> None:
    def run(m, c, h, xs):
        return c.scan(lambda s, x: (s * x, (s, x)), h, xs, reverse=reverse)

    points = (arr(3), np.zeros((0, 3)))
    tensors = tuple(map(wf.asarray, points))
    same(run(wf, wf, *tensors), run(jnp, jax.lax, *points))
    gradients = wf.grad(lambda *p: wf.sum(run(wf, wf, *p)[0]), (0, 1))(*tensors)
    same(gradients, (np.ones(3), np.zeros((0, 3))))


def test_integer_operands_and_carries_get_no_cotangent() -> None:
    steps = wf.asarray(np.arange(1, 5))

    def total(x):
        def step(carry, i):
            n, s = carry
            return (n + i, s * x + n), n

        (_, s), _ = wf.scan(step, (0, x), steps)
        return s

    def theirs(x):
        def step(carry, i):
            n, s = carry
            return (n + i, s * x + n), n

        (_, s), _ = jax.lax.scan(step, (0, x), np.arange(1, 5))
        return s

    same(wf.grad(total)(np.float64(0.7)), jax.grad(theirs)(0.7))
    same(wf.grad(wf.grad(total))(np.float64(0.7)), jax.grad(jax.grad(theirs))(0.7))


def test_a_path_through_integers_carries_no_tangent() -> None:
    def run(x):
        def step(carry, _):
            n, s = carry
            return (n + (s > 0).astype("int64"), s * x), None

        return wf.scan(step, (0, x), length=3)[0]

    (n, value), (still, slope) = wf.jvp(run, (wf.asarray(2.0),), (wf.asarray(1.0),))
    assert (n.item(), value.item(), still.item(), slope.item()) == (3, 16.0, 0, 32.0)
    traced = wf.trace(lambda x: wf.jvp(run, (x,), (x,)), wf.ones(()))
    pushed = [node for node in traced.nodes if node.name == "scan"][-1]
    assert [kind.dtype.kind for kind in pushed.types] == ["i", "f", "f"]


def test_the_backward_scan_computes_only_the_cotangents_that_are_needed() -> None:
    w, h, xs = wf.asarray(arr(3, 3)), wf.asarray(arr(3)), wf.asarray(arr(5, 3))

    def loss(w):
        return wf.sum(wf.scan(lambda h, x: (wf.tanh(w @ h + x) * 2.0, h), h, xs)[0])

    traced = wf.trace(wf.grad(loss), w)
    backward = [node for node in traced.nodes if node.name == "scan"][-1]
    assert [kind.shape for kind in backward.types] == [(3,), (5, 3)]


def test_a_program_in_three_dtypes_keeps_them() -> None:
    for dtype in ("bfloat16", "float32", "complex128"):
        x = wf.ones(4, dtype=dtype)
        carry, ys = wf.scan(lambda c, v: (c * 0.5 + v, c), x[0], x)
        assert carry.dtype == ys.dtype == x.dtype
        slow = x[0]
        for i in range(4):
            slow = slow * 0.5 + x[i]
        assert carry.item() == slow.item()


def test_complex_scans_follow_jax() -> None:
    z = arr(4) + 1j * arr(4, seed=1)

    def run(c, z):
        return c.scan(lambda s, v: (s * v + 1.0, s), z[0], z)[0]

    pull, theirs = (
        wf.vjp(lambda z: run(wf, z), wf.asarray(z))[1],
        jax.vjp(lambda z: run(jax.lax, z), z)[1],
    )
    same(pull(wf.asarray(np.complex128(1.0))), theirs(np.complex128(1.0)))


def test_python_in_a_body_runs_once_however_long_the_loop_is() -> None:
    seen = []

    def step(c, x):
        seen.append("scan")
        return c + x, c

    wf.scan(step, wf.zeros(()), wf.ones(50))[0].item()
    wf.grad(lambda x: wf.scan(step, x, wf.ones(50))[0])(1.0).item()
    assert seen == ["scan"] * 2
    seen.clear()
    wf.cond(True, lambda: seen.append("true") or 1, lambda: seen.append("false") or 2).item()
    assert sorted(seen) == ["false", "true"]


def test_reading_a_value_in_a_body_raises_and_names_the_line() -> None:
    def step(c, x):
        if c > 3:  # the line that reads
            return c, x
        return c + x, x

    with pytest.raises(ConcretizationError) as caught:
        wf.scan(step, wf.zeros(()), wf.ones(3))
    assert "the line that reads" in str(caught.value)
    assert "wf.cond" in str(caught.value)
    assert "wf.while_loop" in str(caught.value)


def test_assigning_to_an_outer_tensor_in_a_body_raises() -> None:
    outer = wf.zeros(3)

    def assign(c):
        outer[0] = c
        return c

    with pytest.raises(MutationError, match="return the new value"):
        wf.cond(True, assign, lambda c: c, wf.ones(()))

    def add(c, x):
        nonlocal outer
        outer += x
        return c, x

    with pytest.raises(MutationError):
        wf.scan(add, wf.zeros(()), wf.ones(3))
    assert outer.tolist() == [0.0, 0.0, 0.0]


def test_a_body_may_assign_to_its_own_carry() -> None:
    def step(c, x):
        c[1] = x
        c += 1
        return c, c

    init = wf.zeros(2)
    carry, _ = wf.scan(step, init, wf.asarray([5.0, 6.0]))
    assert carry.tolist() == [2.0, 7.0]
    assert init.tolist() == [0.0, 0.0]


def test_a_tensor_that_escapes_from_a_body_cannot_be_used() -> None:
    kept = []
    wf.scan(lambda c, x: (c, kept.append(c)), wf.zeros(()), wf.ones(3))
    with pytest.raises(LeakedTensorError):
        kept[0] + 1


def test_a_result_shares_no_memory_with_an_operand() -> None:
    source = np.zeros(4)
    x = wf.asarray(source)
    same_values = [
        wf.cond(True, lambda v: v, lambda v: v + 1, x),
        wf.scan(lambda c, _: (c, None), x, length=2)[0],
        wf.while_loop(lambda c: c[0] > 0, lambda c: c, x),
        wf.cond(False, lambda v: v + 1, lambda v: v[::-1], x),
    ]
    source[:] = 7
    assert all(y.numpy().max() == 0 for y in same_values)


def test_only_the_chosen_branch_runs() -> None:
    ran = []

    def note(name):
        def kernel(x):
            ran.append(name)
            return x

        return lambda x: wf.call_custom_kernel(kernel, x, result_type=((), "float32"))

    for pred in (True, False, 1, 0, wf.asarray(True), np.bool_(False), 2.5):
        wf.cond(pred, note("true"), note("false"), wf.ones(())).item()
    assert ran == ["true", "false", "true", "false", "true", "false", "true"]


def test_equal_loops_are_one_call_and_unused_ones_are_forgotten() -> None:
    x = wf.traced(wf.ones(4))

    def run():
        return wf.scan(lambda c, v: (c + v, c * v), wf.zeros(()), x)

    first, second = run(), run()
    assert first[0]._impl.node is second[0]._impl.node
    assert first[0].item() == 4.0


def test_a_body_does_not_outlive_its_loop_with_what_it_captured() -> None:
    held = [wf.ones(10)]
    alive = weakref.ref(held[0]._impl)
    out = wf.scan(lambda c, v: (c + wf.sum(held[0]) * v, None), wf.zeros(()), wf.ones(3))[0]
    assert out.item() == 30.0
    held.clear()
    gc.collect()
    assert alive() is None


def test_a_listing_shows_the_bodies_indented() -> None:
    text = str(wf.trace(lambda x: wf.scan(lambda c, v: (wf.sin(c) * v, c), 1.0, x), wf.ones(3)))
    scan_line = next(i for i, row in enumerate(text.split("\n")) if " scan(" in row)
    assert "sin(" in text.split("\n", scan_line + 1)[-1]
    assert "length=3" in text


def test_eval_shape_sees_loops_without_running_them() -> None:
    kinds = wf.eval_shape(
        lambda x: wf.while_loop(lambda s: s[0] < 1e9, lambda s: (s[0], s[1]), (0, x)), wf.ones(3)
    )
    assert [k.shape for k in kinds] == [(), (3,)]


def test_large_operands_are_recorded_and_run_when_read() -> None:
    x = wf.ones(40_000)
    y = wf.scan(lambda c, _: (c * 0.5 + 1, None), x, length=3)[0]
    assert not y.is_realized
    assert y[0].item() == 1.875


def test_a_long_scan_costs_no_recording() -> None:
    traced = wf.trace(lambda x: wf.scan(lambda c, _: (c + 1, None), x, length=10**9)[0], 0.0)
    assert len(traced.nodes) == 1


def test_costs_count_every_step() -> None:
    traced = wf.trace(
        lambda w, x: wf.scan(lambda h, _: (w @ h, None), x, length=7)[0],
        np.ones((4, 4)),
        np.ones(4),
    )
    (node,) = traced.nodes
    cost = node.op.cost(*(s.types[i] for s, i in node.inputs), **node.params)
    assert cost.flops == 7 * 2 * 16


def test_a_scan_may_have_neither_carry_nor_operands() -> None:
    carry, ys = wf.scan(lambda c, _: (c, wf.arange(3)), None, length=2)
    assert carry is None
    assert ys.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert wf.scan(lambda c, _: (None, None), None, length=2) == (None, None)
