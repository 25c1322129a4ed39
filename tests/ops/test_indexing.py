"""Indexing: every kind of index, read and written, against NumPy; derivatives; batches; errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.errors import (
    ArgumentError,
    ConcretizationError,
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
        if kind == "." and axis == ellipsis_at and Ellipsis not in [
            e for e in entries if e is Ellipsis
        ]:
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


@settings(max_examples=400)
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


@settings(max_examples=300)
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


@settings(max_examples=150)
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
