"""Indexing: every kind of index, read and written, against NumPy; derivatives; batches; errors."""

from array import array
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.errors import (
    ArgumentError,
    ConcretizationError,
    ConversionError,
    DTypeError,
    IndexingError,
    ShapeError,
)


def grid(*shape, dtype=np.float32):
    return np.arange(1, 1 + int(np.prod(shape)), dtype=dtype).reshape(shape)


def bounds(size):
    return st.one_of(st.none(), st.integers(-size - 3, size + 3))


def slices(size):
    steps = st.integers(-3, 3).filter(bool) | st.none()
    return st.builds(slice, bounds(size), bounds(size), steps)


@st.composite
def integer_arrays(draw, size, shape):
    # Only shapes that broadcast with each other are drawn: () , (3,), (2, 3) and parts of them.
    lengths = draw(st.sampled_from(shape))
    low, high = -size, size - 1
    if size == 0:
        lengths, low, high = (0,), 0, 0
    flat = draw(st.lists(st.integers(low, high), min_size=int(np.prod(lengths)), max_size=50))
    found = np.resize(np.array(flat or [0] * int(np.prod(lengths)), np.int64), lengths)
    return found.tolist() if lengths and draw(st.booleans()) else found


PICKS = ((), (1,), (3,), (2, 1), (2, 3))


@st.composite
def shapes_and_indices(draw):
    """A shape and an index for it that NumPy may or may not accept."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    entries, axis = [], 0
    ellipsis_at = draw(st.integers(0, len(shape)))
    while axis < len(shape):
        size = shape[axis]
        kind = draw(st.sampled_from("isssnamo."))
        if (
            kind == "."
            and axis == ellipsis_at
            and Ellipsis not in [e for e in entries if e is Ellipsis]
        ):
            entries.append(Ellipsis)
            axis += draw(st.integers(0, len(shape) - axis))
        elif kind == "n":
            entries.append(None)
        elif kind == "i" and size:
            entries.append(draw(st.integers(-size, size - 1)))
            axis += 1
        elif kind == "a":
            entries.append(draw(integer_arrays(size, PICKS)))
            axis += 1
        elif kind == "m":
            rank = draw(st.integers(1, min(2, len(shape) - axis)))
            sizes = shape[axis : axis + rank]
            seed = draw(st.integers(0, 100))
            entries.append(np.random.default_rng(seed).random(sizes) < 0.5)
            axis += rank
        elif kind == "o":
            entries.append(draw(st.booleans()))
        else:
            entries.append(draw(slices(size)))
            axis += 1
        if len(entries) > 6:
            break
    if draw(st.booleans()) and entries:
        entries = entries[: draw(st.integers(1, len(entries)))]
    index = tuple(entries)
    if len(index) == 1 and draw(st.booleans()) and not isinstance(index[0], tuple):
        index = index[0]
    return shape, index


def numpy_or_error(function):
    try:
        return function(), None
    except (IndexError, ValueError) as error:
        return None, error


def as_given(index, tensors):
    """The index as it is, or with its arrays as tensors."""
    if not tensors:
        return index
    entries = index if isinstance(index, tuple) else (index,)
    made = tuple(wf.asarray(e) if isinstance(e, np.ndarray) else e for e in entries)
    return made if isinstance(index, tuple) else made[0]


@settings(max_examples=250)
@given(shapes_and_indices(), st.booleans())
def test_reading_agrees_with_numpy(case, tensors):
    shape, index = case
    array = grid(*shape)
    want, error = numpy_or_error(lambda: array[index])
    x = wf.asarray(array, copy=True)
    for tensor in (x, wf.traced(x)):  # by NumPy itself where that is enough, and by recorded ops
        if error is not None:
            with pytest.raises(IndexingError):
                tensor[as_given(index, tensors)].numpy()
            continue
        got = tensor[as_given(index, tensors)]
        assert got.shape == np.shape(want)
        np.testing.assert_array_equal(got.numpy(), want)


@settings(max_examples=200)
@given(shapes_and_indices(), st.booleans(), st.sampled_from(["full", "scalar", "row", "ones"]))
def test_writing_agrees_with_numpy(case, tensors, kind):
    shape, index = case
    array = grid(*shape)
    want, error = numpy_or_error(lambda: array[index])
    if error is not None:
        with pytest.raises((IndexingError, ShapeError)):
            wf.asarray(array, copy=True)[as_given(index, tensors)] = 0.0
        return
    place = np.shape(want)
    value = {
        "full": lambda: -grid(*place),
        "scalar": lambda: -1.0,
        "row": lambda: -grid(*place[-1:]),
        "ones": lambda: -grid(*(1,) * len(place)),
    }[kind]()
    x = wf.asarray(array, copy=True)
    x[as_given(index, tensors)] = value
    array[index] = value
    np.testing.assert_array_equal(x.numpy(), array)


UFUNCS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


@settings(max_examples=100)
@given(shapes_and_indices(), st.sampled_from(sorted(UFUNCS)))
def test_updates_combine_repeated_positions_like_ufunc_at(case, name):
    shape, index = case
    array = grid(*shape, dtype=np.float64)
    want, error = numpy_or_error(lambda: array[index])
    if error is not None:
        return
    value = 2 - grid(*np.shape(want), dtype=np.float64) / 3
    x = wf.asarray(array, copy=True)
    got = getattr(x.at[index], name)(value)
    np.testing.assert_array_equal(x.numpy(), array)
    UFUNCS[name].at(array, index, value)
    np.testing.assert_allclose(got.numpy(), array, rtol=1e-14)


def test_updates_leave_the_tensor_as_it_is_and_apply_calls_a_function():
    x = wf.tensor([1.0, 2.0, 3.0])
    assert x.at[0].set(5.0).tolist() == [5, 2, 3]
    assert x.at[1:].apply(lambda t: t * t).tolist() == [1, 4, 9]
    assert x.at[[0, 0]].add(1.0).tolist() == [3, 2, 3]
    assert x.at[[0, 0]].mul(3.0).tolist() == [9, 2, 3]
    assert x.at[[0, 0]].subtract(1.5).tolist() == [-2, 2, 3]
    assert x.at[[2, 2]].divide(2.0).tolist() == [1, 2, 0.75]
    assert x.at[1:].power([2.0, 3.0]).tolist() == [1, 4, 27]
    slope = wf.grad(lambda t: (x.at[[2, 2]].divide(t) * x).sum())(wf.tensor(2.0))
    assert slope.item() == -2.25
    assert x.tolist() == [1, 2, 3]
    for dtype in ("uint8", "int32", "float16", "bfloat16", "complex128"):
        assert x.astype(dtype).at[1].subtract(1).tolist() == [1, 1, 3]


@pytest.mark.parametrize("factors", [[0, 1], [0, 0], [2, 0, 3], [2, 0, 0], [0, 0, 0], [1, 0, 2, 0]])
def test_products_at_one_place_have_the_second_derivatives_of_products(factors):
    def collected(v):
        return v[:1].at[np.zeros(len(factors) - 1, int)].mul(v[1:])[0]

    given = np.array(factors, float)
    want = wf.hessian(wf.prod)(given).tolist()
    assert wf.hessian(collected)(given).tolist() == want
    assert wf.jacfwd(wf.jacfwd(collected))(given).tolist() == want


def test_modes_say_what_a_position_out_of_range_means():
    x = wf.tensor([1.0, 2.0, 3.0])
    assert x.at[[5, -9]].get(mode="clip").tolist() == [3, 1]
    assert x.at[[4, -1]].get(mode="wrap").tolist() == [2, 3]
    assert x.at[[4, -1]].get(mode="fill", fill_value=0.5).tolist() == [0.5, 3]
    assert np.isnan(x.at[[4]].get(mode="fill").item())
    assert x.at[[4, -1, -4]].set(9.0, mode="drop").tolist() == [1, 2, 9]
    assert x.at[[4, 0]].add(1.0, mode="wrap").tolist() == [2, 3, 3]
    grid2 = wf.zeros((2, 3))
    assert grid2.at[[0, 5], [1, 1]].add(1.0, mode="drop").tolist() == [[0, 1, 0], [0, 0, 0]]
    with pytest.raises(ArgumentError, match="mode must be one of 'raise', 'clip', 'wrap', 'fill'"):
        x.at[0].get(mode="nearest")
    with pytest.raises(ArgumentError, match="mode must be one of 'raise', 'clip', 'wrap', 'drop'"):
        x.at[0].set(1.0, mode="fill")


@pytest.mark.parametrize("mode", ["clip", "wrap", "fill"])
def test_reading_outside_is_differentiable(mode):
    x = wf.tensor([1.0, 2.0, 3.0])
    gradient = wf.grad(lambda t: t.at[[0, 4]].get(mode=mode, fill_value=0.0).sum())(x)
    assert gradient.tolist() == {"clip": [1, 0, 1], "wrap": [1, 1, 0], "fill": [1, 0, 0]}[mode]


BAD = [
    (1.5, "axis 0: 1.5 is not an index"),
    ("a", "axis 0: 'a' is not an index"),
    ((0, 0, 0), "3 indices for a tensor with 2 axes"),
    (5, "index 5 is out of range for axis 0 of size 3"),
    ((0, -5), "index -5 is out of range for axis 1 of size 4"),
    ([5], "index 5 is out of range for an axis of size 3"),
    ([0.5], "an array of float32 is no index"),
    (slice(None, None, 0), "bad slice"),
    ((..., ...), "more than one ellipsis"),
    (([0, 1], [0, 1, 2]), "index arrays must broadcast"),
    (np.array([True, False]), "the mask has size 2, the tensor 3"),
    (np.ones((3, 4, 2), bool), "3 indices for a tensor with 2 axes"),
]


@pytest.mark.parametrize(("index", "text"), BAD, ids=[text for _, text in BAD])
def test_a_wrong_index_is_named(index, text):
    x = wf.tensor(grid(3, 4))
    with pytest.raises(IndexingError, match=text):
        x[index].numpy()
    with pytest.raises(IndexingError, match=text):
        x[index] = 0.0


def test_a_value_must_fit_its_place():
    x = wf.tensor(grid(3, 4))
    with pytest.raises(ShapeError, match=r"setitem: .*does not (fit|broadcast)"):
        x[0] = [1.0, 2.0]
    with pytest.raises(ShapeError, match=r"a value of shape \(3, 4\) does not fit"):
        x[0] = wf.ones((3, 4))
    with pytest.raises(DTypeError, match="complex64 does not fit a tensor of float32"):
        x[0] = 1j
    with pytest.raises(DTypeError, match="add has no meaning for bool"):
        wf.tensor([True]).at[0].add(True)
    x[0] = [[9, 8, 7, 6]]
    assert x[0].tolist() == [9, 8, 7, 6]


def test_lists_of_python_numbers_take_the_dtype_of_the_tensor():
    x = wf.zeros(2, dtype="float64")
    x[:] = [0.1, 0.2]
    assert x.tolist() == [0.1, 0.2]
    y = wf.zeros(2, dtype="bfloat16")
    y[:] = [1, 2.5]
    assert y.tolist() == [1, 2.5]


def test_tensors_lists_ranges_and_numpy_integers_are_indices():
    x = wf.tensor(grid(4, 3))
    i = wf.tensor(2)
    assert x[i].tolist() == x[2].tolist() == x[np.int64(2)].tolist()
    assert x[i, i].item() == 9
    assert x[range(2)].tolist() == x[:2].tolist()
    assert x[[i, 0]].tolist() == [x[2].tolist(), x[0].tolist()]
    assert x[[]].shape == (0, 3)
    assert x[(0, 1), (1, 2)].tolist() == [2, 6]
    assert x[i:].shape == (2, 3)


BATCHES = {
    "x": (0, None),
    "index": (None, 0),
    "both": (0, 0),
}
READS = [
    lambda x, i: x[i],
    lambda x, i: x[:, i],
    lambda x, i: x[i, ..., i],
    lambda x, i: x[1, :, i],
    lambda x, i: x[i[0]],
    lambda x, i: x[::-1, None, i],
    lambda x, i: x.at[i, 0].get(mode="fill", fill_value=0.0),
]
WRITES = [
    lambda x, i: x.at[i].set(7.0),
    lambda x, i: x.at[:, i].add(wf.ones((2,)) * 3),
    lambda x, i: x.at[i, :, i].mul(2.0),
    lambda x, i: x.at[i[0], 1:].min(0.0),
    lambda x, i: x.at[i + 1].max(9.0, mode="drop"),
    lambda x, i: x.at[x > 3].set(-1.0),
]


@pytest.mark.parametrize("axes", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("function", READS + WRITES)
def test_tensor_and_positions_may_be_batched(function, axes):
    xs = np.stack([grid(2, 2, 2), -grid(2, 2, 2), 2 * grid(2, 2, 2)])
    indices = np.array([[0, 1], [1, 1], [-1, 0]])
    args = [a if axis == 0 else a[0] for a, axis in zip((xs, indices), axes, strict=True)]
    got = wf.vmap(function, in_axes=axes)(*args).numpy()
    for row in range(3):
        one = [a[row] if axis == 0 else a for a, axis in zip(args, axes, strict=True)]
        np.testing.assert_array_equal(got[row], function(*map(wf.tensor, one)).numpy())


@pytest.mark.parametrize("function", READS + WRITES)
def test_indexing_is_differentiable_twice(function):
    i = wf.tensor([1, 0])
    x = grid(2, 2, 2, dtype=np.float64) / 3
    t = np.cos(grid(2, 2, 2, dtype=np.float64))

    def loss(a):
        y = function(a, i) if a.dtype == np.float64 else None
        return (y * y * y).sum()

    _, slope = wf.jvp(loss, (x,), (t,))
    gradient = wf.grad(loss)(wf.tensor(x)).numpy()
    np.testing.assert_allclose((gradient * t).sum(), slope.item())
    step = 1e-5
    want = (wf.grad(loss)(wf.tensor(x + step * t)) - wf.grad(loss)(wf.tensor(x - step * t))).numpy()
    _, second = wf.jvp(wf.grad(loss), (x,), (t,))
    np.testing.assert_allclose(second.numpy(), want / (2 * step), rtol=1e-5, atol=1e-6)


def test_a_mask_may_be_batched_where_no_shape_depends_on_it():
    xs = wf.tensor(grid(2, 3))
    masks = wf.tensor([[True, False, False], [False, True, True]])
    got = wf.vmap(lambda x, m: x.at[m].add(100.0))(xs, masks)
    assert got.tolist() == [[101, 2, 3], [4, 105, 106]]
    with pytest.raises(ConcretizationError, match="vmap: a value was read"):
        wf.vmap(lambda x, m: x[m])(xs, masks)


def test_a_mask_writes_without_touching_other_elements():
    x = wf.tensor([-0.0, np.inf, 1.0])
    y = x.at[wf.tensor([False, False, True])].add(1.0)
    assert np.signbit(y[0].item())
    assert y.tolist()[1:] == [np.inf, 2]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "bfloat16", "complex128"])
def test_every_dtype_is_read_and_written(dtype):
    x = wf.asarray([[1, 0], [0, 1]]).astype(dtype)
    assert x[[1, 0]].dtype == x.dtype
    assert x[[1, 0], [1, 1]].numpy().astype(np.complex64).tolist() == [1, 0]
    y = x.at[[0, 1]].set(x[0])
    assert y.dtype == x.dtype
    assert y.numpy().astype(np.complex64).tolist() == [[1, 0], [1, 0]]
    x[0] = True
    assert x[0].numpy().astype(np.complex64).tolist() == [1, 1]


def test_picked_elements_lie_in_row_major_order():
    x = wf.tensor(grid(3, 4))
    assert x[:, wf.tensor([1, 0])].layout.is_contiguous
    assert wf.traced(x)[:, wf.tensor([1, 0])].layout.is_contiguous


class Foreign:
    """An array of another library."""

    def __array__(self, dtype=None, copy=None):
        return np.array([2, 0])


@pytest.mark.parametrize("size", [4, 100_000])
@pytest.mark.parametrize("index", [array("q", [2, 0]), memoryview(array("i", [2, 0])), Foreign()])
def test_arrays_of_others_pick_like_those_of_numpy(index, size):
    x = wf.tensor(grid(size)) + 0
    picked = x[index]
    picked[0] = 9.0  # a copy, not a view
    assert picked.tolist() == [9, 1]
    x[index] = wf.tensor([7.0, 8.0])
    assert x[:3].tolist() == [8, 2, 7]


@pytest.mark.parametrize("size", [4, 100_000])
def test_what_is_no_index_or_has_a_mask_is_told(size):
    x = wf.tensor(grid(size)) + 0
    masked = np.ma.array([1, 2], mask=[0, 1])
    for _ in range(2):
        with pytest.raises(ConversionError, match="lose its mask"):
            x[masked]
        with pytest.raises(ConversionError, match="lose its mask"):
            x[masked] = 1.0
        with pytest.raises(IndexingError, match="is not an index"):
            x[deque([0, 1])]
        with pytest.raises(IndexingError, match="is not an index"):
            x[deque([0, 1])] = 1.0
        wf.realize(x)
    assert x[:3].tolist() == [1, 2, 3]


def test_a_position_out_of_range_is_told_where_it_is_assigned_to_and_changes_nothing():
    x = wf.zeros((500, 400)) + 1.0  # recorded, and too large for NumPy to assign to
    for index in ([3, 500], (slice(2), [-401]), ([0, 1], [1, 400])):
        with pytest.raises(IndexingError, match=r"setitem: index -?[0-9]+ is out of range"):
            x[index] = 2.0
    x[[-500], [399]] = 3.0
    x[[500], []] = 4.0  # nowhere, as in NumPy
    assert x.numpy().sum() == 500 * 400 + 2


@pytest.mark.parametrize("mode", ["raise", "clip", "wrap"])
def test_an_axis_without_elements_has_no_position_in_compiled_functions_either(mode):
    for function in (
        lambda x, i: wf.take(x, i, mode=mode, axis=0),
        lambda x, i: x.at[i, i].get(mode=mode),
        lambda x, i: x.at[i].add(1.0, mode=mode),
    ):
        with pytest.raises(IndexingError, match="index 0 into an axis of size 0"):
            wf.compile(function)(wf.zeros((0, 5)), wf.tensor([0, 1])).numpy()
        assert wf.compile(function)(wf.zeros((0, 5)), wf.arange(0)).size == 0


@pytest.mark.parametrize("index", [5, [5], np.array([0, 5]), wf.tensor(5), wf.tensor([[5]])])
def test_positions_out_of_range_are_told_by_the_name_of_indexing(index):
    for x in (wf.ones(3), wf.ones(3) * 2):
        with pytest.raises(IndexingError, match=r"^getitem: index 5 is out of range"):
            x[index].numpy()
