"""vmap: axes, levels, names, and the per-slice mode."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.errors import (
    ArgumentError,
    AxisError,
    ConcretizationError,
    MutationError,
    ShapeError,
    TreeError,
)
from weft.transforms.vmap import Vmap, incr_batch_dims, move_axis_to_batch_dims

X = np.arange(12.0).reshape(3, 4)


@pytest.mark.promise("S1.12")
def test_chosen_in_and_out_axes() -> None:
    got = wf.vmap(lambda x: x * 2, in_axes=1, out_axes=0)(wf.asarray(X))
    np.testing.assert_array_equal(got.numpy(), X.T * 2)
    got = wf.vmap(lambda x: x * 2, in_axes=-1, out_axes=-1)(wf.asarray(X))
    np.testing.assert_array_equal(got.numpy(), X * 2)


@pytest.mark.promise("S1.13")
def test_ops_inside_see_unbatched_shapes() -> None:
    shapes = []
    wf.vmap(lambda x: shapes.append(x.shape) or x.sum())(wf.asarray(X))
    assert shapes == [(4,)]


@pytest.mark.promise("S1.14")
def test_mapping_equals_stacking_the_slices() -> None:
    f = lambda x, w: wf.tanh(x @ w)  # noqa: E731
    w = wf.asarray(np.linspace(-1, 1, 8).reshape(4, 2))
    got = wf.vmap(f, in_axes=(0, None))(wf.asarray(X), w)
    want = np.stack([f(wf.asarray(r), w).numpy() for r in X])
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)


@pytest.mark.promise("S3.11")
def test_vmap_is_a_decorator_with_or_without_arguments() -> None:
    @wf.vmap
    def double(x):
        return x * 2

    @wf.vmap(in_axes=1)
    def triple(x):
        return x * 3

    assert double(wf.asarray(X)).shape == (3, 4)
    assert triple(wf.asarray(X)).shape == (4, 3)


@pytest.mark.promise("S3.12")
def test_batch_axes_lead_the_physical_shape() -> None:
    def f(x):
        assert x.shape == (3,)
        physical = x._impl.payload
        assert physical.shape == (4, 3)
        return x

    wf.vmap(f, in_axes=1)(wf.asarray(X))


@pytest.mark.promise("S3.13")
def test_batch_dims_count_the_levels() -> None:
    seen = []

    def inner(y):
        seen.append((y._impl.batch_dims, y.batch_dims))
        return y

    wf.vmap(lambda x: wf.vmap(inner)(x))(wf.asarray(X))
    assert seen == [(2, 2)]
    assert wf.ones(3).batch_dims == 0


@pytest.mark.promise("S3.14")
def test_levels_are_tracked_not_counted() -> None:
    a, b = wf.arange(3.0), wf.arange(5.0)
    got = wf.vmap(lambda x: wf.vmap(lambda w: x * w)(b))(a)
    np.testing.assert_array_equal(got.numpy(), np.outer(a.numpy(), b.numpy()))


@pytest.mark.promise("S3.15")
def test_batch_dims_are_raised_and_axes_moved_into_them() -> None:
    level = Vmap(3)
    assert incr_batch_dims(wf.asarray(X), level).shape == (4,)
    level = Vmap(4)
    assert move_axis_to_batch_dims(wf.asarray(X), 1, level).shape == (3,)


@pytest.mark.promise("S3.16")
def test_axes_may_be_prefix_trees() -> None:
    tree = {"a": wf.asarray(X), "b": (wf.asarray(X.T), wf.tensor(2.0))}
    got = wf.vmap(lambda t: t["a"] + t["b"][0] * t["b"][1], in_axes=({"a": 0, "b": (1, None)},))(
        tree
    )
    np.testing.assert_array_equal(got.numpy(), X + X * 2)


@pytest.mark.promise("S3.17")
def test_axis_size_names_and_keyword_arguments() -> None:
    assert wf.vmap(lambda: wf.ones(2), axis_size=3)().shape == (3, 2)
    got = wf.vmap(lambda x, *, y: x + y)(wf.arange(3.0), y=wf.arange(3.0))
    assert got.tolist() == [0.0, 2.0, 4.0]
    got = wf.vmap(lambda x: x, spmd_axis_name="data")(wf.arange(3.0))
    assert got.tolist() == [0.0, 1.0, 2.0]


def test_named_axes_reduce_over_the_batch() -> None:
    x = wf.tensor([1.0, 2.0, 5.0])
    run = lambda f: wf.vmap(f, axis_name="i")(x)  # noqa: E731
    assert run(lambda v: wf.psum(v, "i")).tolist() == [8.0] * 3
    assert run(lambda v: v - wf.pmean(v, "i")).numpy().sum() == pytest.approx(0, abs=1e-6)
    assert run(lambda v: wf.pmax(v, "i")).tolist() == [5.0] * 3
    assert run(lambda v: wf.axis_index("i")).tolist() == [0, 1, 2]
    with pytest.raises(ArgumentError, match="no axis is called 'j'"):
        run(lambda v: wf.psum(v, "j"))


def test_named_axes_differentiate_inside_and_outside() -> None:
    x = wf.tensor([1.0, 2.0, 5.0])
    outside = wf.grad(lambda x: (wf.vmap(lambda v: v * wf.psum(v, "i"), axis_name="i")(x)).sum())(x)
    np.testing.assert_allclose(outside.numpy(), 2 * 8.0 * np.ones(3))
    inside = wf.vmap(wf.grad(lambda v: wf.psum(v * v, "i")), axis_name="i")(x)
    np.testing.assert_allclose(inside.numpy(), 3 * 2 * x.numpy())


def test_named_axes_of_nested_levels() -> None:
    x = wf.asarray(X)
    got = wf.vmap(wf.vmap(lambda v: wf.psum(v, "rows"), axis_name="cols"), axis_name="rows")(x)
    np.testing.assert_array_equal(got.numpy(), np.broadcast_to(X.sum(0), X.shape))
    got = wf.vmap(wf.vmap(lambda v: wf.psum(v, "cols"), axis_name="cols"), axis_name="rows")(x)
    np.testing.assert_array_equal(got.numpy(), np.broadcast_to(X.sum(1)[:, None], X.shape))


def test_named_axes_reach_into_loops_branches_and_checkpoints() -> None:
    x = wf.tensor([1.0, 3.0])
    total = lambda v: wf.psum(v, "i")  # noqa: E731
    forms = [
        lambda v: wf.scan(lambda c, _: (total(c), c), v, length=2)[0] / 2,
        lambda v: wf.cond(v > 0, total, lambda u: u, v),
        lambda v: wf.checkpoint(total)(v),
    ]
    for form in forms:
        assert wf.vmap(form, axis_name="i")(x).tolist() == [4.0, 4.0]


def _own_rule(function):
    made = wf.custom_jvp(function)
    made.defjvp(lambda primals, tangents: (made(*primals), wf.axis_index("i") * tangents[0]))
    return made


@pytest.mark.parametrize(
    "form",
    [
        lambda f, c: wf.scan(lambda s, _: (f(c), s), c, None, length=2)[0],
        lambda f, c: wf.scan(lambda s, _: (s, f(c)), c, None, length=2)[1][1],
        lambda f, c: wf.cond(c > 0, f, lambda u: u, c),
        lambda f, c: wf.while_loop(lambda s: s[0] < 1, lambda s: (s[0] + 1, f(c)), (0, c))[1],
        lambda f, c: wf.map(f, wf.stack([c, c]))[0],
        lambda f, c: wf.checkpoint(f)(c),
        lambda f, c: wf.compile(f)(c),
        lambda f, c: _own_rule(f)(c),
    ],
    ids="carry result cond while map checkpoint compile custom_jvp".split(),
)
@pytest.mark.parametrize("wrap", [lambda f: f, wf.compile], ids=["plain", "compiled"])
def test_functions_inside_know_their_place_though_nothing_they_take_is_mapped(form, wrap) -> None:
    x, c = wf.tensor([1.0, 2.0, 5.0]), wf.tensor(3.0)
    place = wrap(wf.vmap(lambda v: form(lambda u: u * wf.axis_index("i"), c) + v, axis_name="i"))
    assert place(x).tolist() == [1.0, 5.0, 11.0]

    def total(c):
        return wf.vmap(lambda v: form(lambda u: u * wf.axis_index("i"), c) * v, axis_name="i")(x)

    assert wrap(lambda c: wf.jvp(total, (c,), (c,))[1])(c).tolist() == [0.0, 6.0, 30.0]


def test_sums_over_a_named_axis_in_functions_that_take_nothing_mapped() -> None:
    x, c = wf.tensor([1.0, 2.0, 5.0]), wf.tensor(3.0)
    total = lambda u: wf.psum(u, "i")  # noqa: E731
    for form in (
        lambda: wf.scan(lambda s, _: (s + total(c), s), 0.0, None, length=1)[0],
        lambda: wf.cond(c > 0, lambda u: wf.cond(u > 0, total, wf.sin, u), wf.cos, c),
        lambda: wf.checkpoint(total)(c),
    ):
        assert wf.vmap(lambda v, f=form: f() + v, axis_name="i")(x).tolist() == [10.0, 11.0, 14.0]


def test_reading_a_value_names_the_line_and_the_remedy() -> None:
    with pytest.raises(ConcretizationError, match=r"test_vmap.py:\d+[\s\S]*loop=True"):
        wf.vmap(lambda x: x if x > 0 else -x)(wf.arange(3.0))


def test_the_per_slice_mode_lets_python_read_values() -> None:
    calls = []

    def f(x):
        calls.append(1)
        return x if x > 1 else -x

    assert wf.vmap(f, loop=True)(wf.arange(3.0)).tolist() == [0.0, -1.0, 2.0]
    assert len(calls) == 3


def test_in_place_syntax_works_on_tensors_made_inside() -> None:
    def f(x):
        y = wf.zeros(3)
        y[1] = x
        y += 1
        return y

    got = wf.vmap(f)(wf.arange(2.0))
    np.testing.assert_array_equal(got.numpy(), [[1, 1, 1], [1, 2, 1]])


def test_an_outside_tensor_cannot_be_assigned_inside() -> None:
    outside = wf.zeros(3)

    def f(x):
        outside[0] = x
        return x

    with pytest.raises(MutationError, match="outside vmap"):
        wf.vmap(f)(wf.arange(2.0))
    assert outside.tolist() == [0.0, 0.0, 0.0]


def test_indexing_with_batched_indices() -> None:
    table = wf.asarray(X)
    ids = wf.tensor([2, 0])
    np.testing.assert_array_equal(wf.vmap(lambda i: table[i])(ids).numpy(), X[[2, 0]])
    got = wf.vmap(lambda r, i: r[i])(table, wf.tensor([1, 2, 3]))
    np.testing.assert_array_equal(got.numpy(), X[[0, 1, 2], [1, 2, 3]])


def test_results_that_do_not_vary_are_repeated_or_left_out() -> None:
    a, b = wf.vmap(lambda x: (x, wf.tensor(7.0)), out_axes=(0, None))(wf.arange(3.0))
    assert a.shape == (3,)
    assert b.shape == ()
    assert wf.vmap(lambda x: wf.tensor(7.0))(wf.arange(3.0)).tolist() == [7.0] * 3


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize(("dtype", "number"), [("float64", 0.1), ("bfloat16", 0.1), ("int8", 3)])
def test_numbers_that_are_not_mapped_stay_numbers(dtype, number, loop) -> None:
    x = wf.tensor([1, 2], dtype=dtype)
    function = wf.vmap(lambda x, k: x * k, in_axes=(0, None), loop=loop)
    for got in (function(x, number), wf.compile(function)(x, number)):
        assert got.dtype == x.dtype
        assert got.tolist() == (x * number).tolist()


def test_compiled_functions_with_static_arguments_map() -> None:
    def power(x, n, way):
        return x**n if way == "up" else x

    function = wf.vmap(wf.compile(power, static_argnums=(1, 2)), in_axes=(0, None, None))
    assert function(wf.arange(3.0), 2, "up").tolist() == [0.0, 1.0, 4.0]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: wf.vmap(lambda x: x)(wf.tensor(1.0)), AxisError, "axis 0"),
        (lambda: wf.vmap(lambda x, y: x)(wf.ones(2), wf.ones(3)), ShapeError, "differ in size"),
        (lambda: wf.vmap(lambda x: x, in_axes=None)(wf.ones(2)), AxisError, "no argument"),
        (lambda: wf.vmap(lambda x: x, in_axes=(0, 0))(wf.ones(2)), TreeError, "2 entries"),
        (lambda: wf.vmap(lambda x: x, out_axes=None)(wf.ones(2)), AxisError, "varies"),
        (lambda: wf.vmap(lambda x: x, out_axes=5)(wf.ones(2)), AxisError, "out_axes 5"),
        (lambda: wf.vmap(lambda x: x, axis_size=4)(wf.ones(2)), ShapeError, "axis_size: 4"),
    ],
)
def test_bad_axes_are_refused(call, error, text) -> None:
    with pytest.raises(error, match=text):
        call()
    assert wf.vmap(lambda x: x + 1)(wf.zeros(2)).tolist() == [1.0, 1.0]
