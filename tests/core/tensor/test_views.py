"""Assignment through handles: views reach their base, bases reach their views, as in NumPy."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.errors import DTypeError, MutationError, ShapeError


def matrix():
    return wf.tensor(np.arange(12, dtype=np.float32).reshape(3, 4))


def test_assigning_to_a_view_reaches_its_base():
    x = matrix()
    y = x[0]
    y[1] = 5
    assert x[0, 1].item() == 5


def test_assigning_to_a_base_reaches_its_views():
    x = matrix()
    y = x[0]
    x[0] = 7
    assert y.tolist() == [7, 7, 7, 7]
    x += 1
    assert y.tolist() == [8, 8, 8, 8]


def test_siblings_see_each_other_even_when_the_base_is_gone():
    x = matrix()
    top, left = x[0], x[:, 0]
    del x
    gc.collect()
    top[0] = -1
    assert left.tolist() == [-1, 4, 8]


def test_views_of_views_reach_all_the_way_though_nobody_holds_the_middle():
    x = matrix()
    inner = x[1:][0][1:3]
    gc.collect()
    inner[0] = 50
    inner += 1
    assert x.tolist()[1] == [4, 51, 7, 7]
    x[1] = 0
    assert inner.tolist() == [0, 0]


def test_a_view_may_be_the_view_of_as_many_as_you_like():
    x = wf.zeros(3000)
    rest = x
    for _ in range(2999):
        rest = rest[1:]
    rest[0] = 5.0
    assert (x[2999].item(), x[2998].item()) == (5.0, 0.0)
    x[2999] = 6.0
    assert rest.tolist() == [6.0]


def test_a_single_view_does_not_keep_its_base_alive():
    x = matrix()
    y = x[0]
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None
    y[0] = 3
    assert y.tolist() == [3, 1, 2, 3]


def test_the_whole_of_a_tensor_is_a_view_too():
    x = matrix()
    for whole in (x[:], x[...], x[:, :], x[None][0]):
        assert whole is not x
        whole[0, 0] = 9
        assert x[0, 0].item() == 9
        x[0, 0] = 0
        assert whole[0, 0].item() == 0


def test_a_view_stays_where_it_was_when_what_it_was_indexed_by_changes():
    x, start, stop = wf.arange(6.0), wf.tensor(1), np.array(4)
    view = x[start:stop]
    start += 1
    stop += 1
    x[3] = 10.0
    assert view.tolist() == [1.0, 2.0, 10.0]
    view[0] = 7.0
    assert x.tolist() == [0.0, 7.0, 2.0, 10.0, 4.0, 5.0]


def test_rows_of_an_iteration_are_views():
    x = matrix()
    for row in x:
        row += 100
    np.testing.assert_array_equal(x.numpy(), matrix().numpy() + 100)


def test_advanced_indices_give_copies():
    x = matrix()
    y = x[[0, 1]]
    y[0, 0] = 99
    assert x[0, 0].item() == 0
    z = x[wf.tensor(0)]
    z[0] = 99
    assert x[0, 0].item() == 0


WITHOUT_EFFECT = [
    *(getattr(wf, name) for name in ("floor", "ceil", "trunc", "round", "rint", "conj", "clip")),
    *(wf.nan_to_num, wf.stop_gradient, lambda x: wf.round(x, 2), lambda x: wf.pad(x, 0)),
    *(lambda x: wf.pad(x, 0, mode="edge"), lambda x: wf.broadcast_arrays(x, x)[0]),
    *(lambda x: wf.roll(x, 0), lambda x: wf.linalg.matrix_power(x, 1), wf.Tensor.conj),
]
WITHOUT_EFFECT_ON_FLOATS = [
    *(lambda x: wf.dropout(x, 0.0, wf.random.key(0)), lambda x: wf.adaptive_max_pool1d(x, None)),
    *(lambda x: wf.fft.fftn(x, axes=()), lambda x: wf.fft.fftshift(x, axes=())),
]


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        *((function, "int64") for function in WITHOUT_EFFECT),
        *((function, "complex64") for function in WITHOUT_EFFECT_ON_FLOATS),
    ],
)
def test_a_function_with_nothing_to_do_gives_a_value_of_its_own_all_the_same(function, dtype):
    x = wf.zeros((2, 2), dtype=dtype)
    y = function(x)
    y += 1
    assert not x.any() and y.all()


def test_many_views_cost_no_more_each_than_few():
    x = wf.zeros((3000, 2))
    rows = [x[i] for i in range(3000)]
    assert len(x._views) == 3000
    x[7] = 1
    assert rows[7].tolist() == [1, 1]
    del rows
    for _ in range(10):
        _ = x[0]
    for _ in range(5000):
        _ = x[0]
    assert len(x._views) < 5000


def test_assignment_never_changes_a_value_that_others_hold():
    x = matrix()
    before = x + 0
    array = x.numpy()
    copy = wf.asarray(x, copy=True)
    x[0] = 1
    assert before[0].tolist() == array[0].tolist() == copy[0].tolist() == [0, 1, 2, 3]


def test_dtype_and_shape_stay():
    x = wf.tensor([1, 2])
    with pytest.raises(
        DTypeError, match="in-place add: result of dtype float32 cannot be assigned"
    ):
        x += 1.5
    with pytest.raises(DTypeError, match=r"setitem: a value of dtype float32 does not fit"):
        x[0] = 1.5
    with pytest.raises(ShapeError, match="cannot be assigned to shape"):
        x += wf.ones((3, 2), dtype="int64")
    x += True
    x[0] = True
    assert x.tolist() == [1, 3]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(0, 2**32 - 1))
def test_any_sequence_of_assignments_agrees_with_numpy(actions, seed):
    rng = np.random.default_rng(seed)
    array = np.arange(24.0, dtype=np.float32).reshape(4, 6)
    arrays, tensors = [array], [wf.tensor(array)]
    for step, action in enumerate(actions):
        which = int(rng.integers(len(arrays)))
        a, t = arrays[which], tensors[which]
        if action <= 1 and a.ndim:
            index = _random_index(rng, a.shape)
            arrays.append(a[index])
            tensors.append(t[index])
        elif action == 2:
            a[...] = step
            t[...] = step
        elif action == 3 and a.ndim and a.shape[0]:
            a[-1] = -step
            t[-1] = -step
        else:
            a += step
            t += step
    for a, t in zip(arrays, tensors, strict=True):
        np.testing.assert_array_equal(t.numpy(), a)


def _random_index(rng, shape):
    entries = []
    for size in shape[: int(rng.integers(1, len(shape) + 1))]:
        if size and rng.integers(4) == 0 and len(shape) > 1:
            entries.append(slice(int(rng.integers(size)), None, None))
        elif rng.integers(2):
            entries.append(slice(None, None, -1 if rng.integers(2) else 2))
        else:
            entries.append(slice(0, size))
    if rng.integers(3) == 0:
        entries.append(None)
    return tuple(entries)


def test_assignments_inside_a_function_are_differentiated():
    def f(x):
        x[0] = x[1] * 2
        row = x[1:]
        row *= x[2]
        return (x * x).sum()

    # x becomes (2b, bc, c²): f = 4b² + b²c² + c⁴
    a, b, c = 1.0, 2.0, 3.0
    want = [0, 8 * b + 2 * b * c * c, 2 * b * b * c + 4 * c**3]
    np.testing.assert_allclose(wf.grad(f)(wf.tensor([a, b, c])).numpy(), want)
    _, tangent = wf.jvp(f, (wf.tensor([a, b, c]),), (wf.tensor([1.0, 1.0, 1.0]),))
    np.testing.assert_allclose(tangent.item(), sum(want))


@pytest.mark.parametrize(
    "run",
    [
        lambda f, x, y: f(wf.copy(x), wf.copy(y)),
        lambda f, x, y: wf.jvp(f, (x, y), (x, y))[0],
        lambda f, x, y: wf.vjp(f, x, y)[0],
        lambda f, x, y: wf.vmap(f)(x[None], y[None])[0],
        lambda f, x, y: wf.vmap(f, in_axes=(0, None))(x[None], y)[0],
        lambda f, x, y: wf.vmap(f, in_axes=(0, None), loop=True)(wf.stack([x, x]), y)[1],
        lambda f, x, y: wf.compile(f)(x, y),
        lambda f, x, y: wf.cond(True, f, f, x, y),
    ],
)
def test_a_function_may_assign_to_its_arguments_again_and_again(run):
    def f(x, y):
        x[...] = 2.0
        x *= x
        y += x
        y[0] = x[1] + y[1]
        return x * y

    x, y = wf.tensor([1.0, 2.0]), wf.tensor([3.0, 4.0])
    assert run(f, x, y).tolist() == [48.0, 32.0]
    assert x.tolist() == [1, 2] and y.tolist() == [3, 4]


def test_a_buffer_made_inside_may_be_filled():
    def f(x):
        made = [wf.zeros(3), wf.tensor([0.0, 0.0, 0.0]), wf.asarray(np.zeros(3, np.float32))]
        for buffer in made:
            buffer[1] = x * x
        return sum(buffer.sum() for buffer in made)

    assert wf.grad(f)(2.0).item() == 12
    assert wf.vmap(f)(wf.tensor([1.0, 2.0])).tolist() == [3, 12]


def test_the_caller_does_not_see_assignments_to_arguments():
    x = wf.tensor([1.0, 2.0])

    def f(t):
        t[0] = 0.0
        return t.sum()

    wf.grad(f)(x)
    assert x.tolist() == [1, 2]


CHANGES = {
    "a whole value": lambda c: c.__setitem__(..., wf.tensor([7.0, 8.0, 9.0])),
    "a number": lambda c: c.__setitem__(..., 7.0),
    "an element": lambda c: c.__setitem__(1, 50.0),
    "a view": lambda c: c[1:].__setitem__(..., 9.0),
    "a sum": lambda c: c.__iadd__(1.0),
}
RECORDED = {
    "compile": lambda function, x: wf.compile(function)(x),
    "checkpoint": lambda function, x: wf.checkpoint(function)(x),
    "trace": lambda function, x: wf.trace(function, x).replay(x),
}


@pytest.mark.parametrize("recorded", RECORDED.values(), ids=RECORDED)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_constant_that_is_assigned_to_later_was_recorded_as_it_was(change, recorded):
    def function(x):
        c = wf.tensor([1.0, 2.0, 3.0])
        before = x * c
        change(c)
        return before, x * c

    x = wf.ones(3)
    found, expected = recorded(function, x), function(x)
    assert [y.tolist() for y in found] == [y.tolist() for y in expected]


def test_a_trace_keeps_what_it_captured_as_it_was():
    c = wf.tensor([1.0, 2.0])
    trace = wf.trace(lambda x: x * c, wf.ones(2))
    c[0] = 5.0
    assert trace.replay(wf.ones(2))[0].tolist() == [1, 2]


def test_batched_values_and_positions_are_assigned():
    def f(x, i, v):
        x[i] = v
        return x

    x, i, v = np.zeros((2, 3), np.float32), np.array([0, 2]), np.array([5, 6], np.float32)
    got = wf.vmap(f)(x, i, v)
    assert got.tolist() == [[5, 0, 0], [0, 0, 6]]
    assert wf.vmap(f, in_axes=(0, None, 0))(x, 1, v).tolist() == [[0, 5, 0], [0, 6, 0]]


@pytest.mark.parametrize("transform", [wf.grad, wf.vmap, lambda f: lambda x: wf.eval_shape(f, x)])
def test_a_handle_from_outside_may_not_be_assigned_inside_a_transform(transform):
    outside = wf.zeros(2)
    part = outside[:1]

    def set_value(x):
        outside[0] = x
        return x.sum()

    def set_constant(x):
        outside.__iadd__(1.0)
        return x.sum()

    def set_view(x):
        part[0] = 1.0
        return x.sum()

    argument = wf.tensor([1.0, 2.0]) if transform is wf.vmap else wf.tensor(1.0)
    for function in (set_value, set_constant, set_view):
        with pytest.raises(MutationError, match=r"made outside .* cannot be assigned to inside"):
            transform(function)(argument)
    assert outside.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("scan", lambda f: wf.scan(lambda c, x: (f(x), x), 0.0, wf.ones(2))),
        ("cond", lambda f: wf.cond(True, f, f, 1.0)),
        ("checkpoint", lambda f: wf.checkpoint(f)(1.0)),
        ("grad", lambda f: wf.grad(f)(1.0)),
    ],
)
def test_the_message_names_the_transform_as_users_do(name, run):
    outside = wf.zeros(2)

    def assigns(x):
        outside[0] = 1.0
        return x

    with pytest.raises(MutationError, match=f"made outside {name} cannot"):
        run(assigns)


def test_results_of_an_inner_transform_may_be_assigned_outside_it():
    def f(x):
        inner = wf.vmap(lambda row: row * 2)(x)
        inner[0] = 0.0
        value, _ = wf.vjp(lambda t: t * 1.0, inner)
        value[1] = x[0]
        constant = wf.vmap(lambda row: wf.ones(2), out_axes=None)(x)
        constant[0] = 3.0
        return value.sum() + constant.sum()

    assert wf.grad(f)(wf.ones((3, 2))).tolist() == [[1, 1], [0, 0], [2, 2]]


def test_a_derivative_uses_the_values_of_its_time():
    scale, x = wf.tensor([2.0, 3.0]), wf.tensor([1.0, 1.0])

    def f(t):
        inside = wf.ones(2)
        y = t * inside * scale
        inside += 5.0
        return wf.exp(y)

    value, pull = wf.vjp(f, x)
    want = (np.exp([2, 3]) * [2, 3]).astype(np.float32)
    value += 1.0
    scale += 1.0
    x[0] = 100.0
    np.testing.assert_allclose(pull(wf.ones(2))[0].numpy(), want, rtol=1e-6)


def test_an_element_is_a_value_and_an_ellipsis_makes_it_a_view():
    x = wf.tensor([3.0, 1.0, 2.0])
    x[0], x[1] = x[1], x[0]
    total = x[0]
    for other in list(x)[1:]:
        total += other
    assert total.item() == 6
    assert x.tolist() == [1, 3, 2]
    last = x[-1, ...]
    last += 5
    assert x.tolist() == [1, 3, 7]
