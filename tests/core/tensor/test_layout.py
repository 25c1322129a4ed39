"""Layouts give the addresses that NumPy's views give."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.tensor.layout import Layout
from weft.errors import AxisError, IndexingError, NotContiguousError, ShapeError

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def address(array):
    return array.__array_interface__["data"][0]


def root_of(shape):
    return np.arange(max(int(np.prod(shape)), 1), dtype=np.int32)[: int(np.prod(shape))].reshape(
        shape
    )


@st.composite
def views(draw):
    """A view of an array and its layout, after a few random steps on the NumPy side."""
    root = root_of(draw(SHAPES))
    view = root
    for _ in range(draw(st.integers(0, 3))):
        if view.ndim == 0:
            break
        axis = draw(st.integers(0, view.ndim - 1))
        step = draw(st.sampled_from(["flip", "swap", "stride", "broadcast", "new"]))
        if step == "flip":
            view = np.flip(view, axis)
        elif step == "swap":
            view = np.swapaxes(view, axis, draw(st.integers(0, view.ndim - 1)))
        elif step == "stride":
            index = [slice(None)] * view.ndim
            index[axis] = slice(draw(st.integers(0, 2)), None, draw(st.sampled_from([-2, 1, 2])))
            view = view[tuple(index)]
        elif step == "new":
            view = np.expand_dims(view, axis)
        else:
            view = np.broadcast_to(view, (2, *view.shape))
    return view, Layout.of_array(view, address(root)), address(root)


def assert_same_elements(layout, expected, root):
    """Shape, contiguity, the strides that matter and every address are NumPy's."""
    assert layout.shape == expected.shape
    assert layout.size == expected.size
    assert layout.is_contiguous == expected.flags.c_contiguous
    if expected.size == 0:
        return
    assert layout.offset * expected.itemsize == address(expected) - root
    for size, stride, bytes_ in zip(layout.shape, layout.strides, expected.strides, strict=True):
        if size != 1:
            assert stride * expected.itemsize == bytes_


@pytest.mark.promise("S4.9")
def test_a_layout_is_a_shape_strides_in_elements_and_an_offset():
    layout = Layout.contiguous_of([2, 3, 4])
    assert (layout.shape, layout.strides, layout.offset) == ((2, 3, 4), (12, 4, 1), 0)
    assert layout == Layout((2, 3, 4), (12, 4, 1), 0)
    assert hash(layout) == hash(Layout.contiguous_of((2, 3, 4)))
    assert Layout.contiguous_of(()).size == 1


@given(SHAPES)
def test_contiguous_layouts_are_numpys(shape):
    root = root_of(shape)
    assert_same_elements(Layout.contiguous_of(shape), root, address(root))


@given(views())
def test_the_layout_of_an_array_has_its_addresses(case):
    view, layout, root = case
    assert_same_elements(layout, view, root)


def test_an_array_off_the_grid_of_its_elements_has_no_layout():
    record = np.zeros(3, np.dtype([("tag", "i1"), ("value", "f4")]))
    with pytest.raises(NotContiguousError, match=r"strides \(5,\) bytes"):
        Layout.of_array(record["value"], address(record))


@pytest.mark.promise("S4.14")
@given(views(), st.data())
def test_transpose_swaps_two_axes(case, data):
    view, layout, root = case
    if view.ndim:
        axes = st.integers(-view.ndim, view.ndim - 1)
        first, second = data.draw(axes), data.draw(axes)
        expected = np.swapaxes(view, first, second)
        assert_same_elements(layout.transpose(first, second), expected, root)


@pytest.mark.promise("S4.15")
@given(views(), st.data())
def test_permute_reorders_axes(case, data):
    view, layout, root = case
    axes = data.draw(st.permutations(range(view.ndim)))
    assert_same_elements(layout.permute(axes), np.transpose(view, axes), root)


@pytest.mark.promise("S4.16")
@given(views(), st.data())
def test_unsqueeze_gives_the_next_stride_times_its_size(case, data):
    view, layout, root = case
    axis = data.draw(st.integers(-view.ndim - 1, view.ndim))
    result = layout.unsqueeze(axis)
    assert_same_elements(result, np.expand_dims(view, axis), root)
    place = axis % (view.ndim + 1)
    if place < view.ndim:
        assert result.strides[place] == layout.strides[place] * layout.shape[place]
    else:
        assert result.strides[place] == 1


@pytest.mark.promise("S4.17")
@given(views(), st.data())
def test_squeeze_undoes_unsqueeze(case, data):
    view, layout, _ = case
    axis = data.draw(st.integers(0, view.ndim))
    assert layout.unsqueeze(axis).squeeze(axis) == layout


def test_squeezing_a_longer_axis_raises():
    with pytest.raises(ShapeError, match=r"squeeze: axis 1: size is 3, not 1 \(shape \(1, 3\)\)"):
        Layout.contiguous_of((1, 3)).squeeze(-1)


@pytest.mark.promise("S4.18")
@given(views(), st.data())
def test_narrow_keeps_a_range(case, data):
    view, layout, root = case
    if view.ndim:
        axis = data.draw(st.integers(-view.ndim, view.ndim - 1))
        start = data.draw(st.integers(0, view.shape[axis]))
        length = data.draw(st.integers(0, view.shape[axis] - start))
        expected = np.moveaxis(np.moveaxis(view, axis, 0)[start : start + length], 0, axis)
        assert_same_elements(layout.narrow(axis, start, length), expected, root)


@given(views(), st.data())
def test_slice_follows_numpys_slices(case, data):
    view, layout, root = case
    if view.ndim:
        axis = data.draw(st.integers(0, view.ndim - 1))
        bounds = st.none() | st.integers(-5, 5)
        step = st.sampled_from([-3, -2, -1, 1, 2, 3])
        piece = slice(data.draw(bounds), data.draw(bounds), data.draw(step))
        indices = range(view.shape[axis])[piece]
        start = indices.start if len(indices) else 0
        result = layout.slice(axis, start, len(indices), indices.step)
        expected = view[(slice(None),) * axis + (piece,)]
        assert_same_elements(result, expected, root)


@pytest.mark.promise("S4.19")
@given(views(), st.data())
def test_broadcast_to_repeats_with_stride_0(case, data):
    view, layout, root = case
    leading = data.draw(st.lists(st.integers(0, 3), max_size=2))
    sizes = [data.draw(st.integers(0, 3)) if size == 1 else size for size in view.shape]
    target = (*leading, *sizes)
    result = layout.broadcast_to(target)
    assert_same_elements(result, np.broadcast_to(view, target), root)
    assert result.strides[: len(leading)] == (0,) * len(leading)


@pytest.mark.parametrize("target", [(3,), (2, 4), (2, -3), ()])
def test_broadcasting_to_a_shape_that_does_not_fit_raises(target):
    with pytest.raises(ShapeError, match="broadcast_to"):
        Layout.contiguous_of((2, 3)).broadcast_to(target)


@pytest.mark.promise("S4.20")
@given(views(), st.data())
def test_flip_negates_the_stride_and_moves_the_offset(case, data):
    view, layout, root = case
    if view.ndim:
        axis = data.draw(st.integers(-view.ndim, view.ndim - 1))
        result = layout.flip(axis)
        assert_same_elements(result, np.flip(view, axis), root)
        assert result.strides[axis] == -layout.strides[axis]
        assert result.flip(axis) == layout


@st.composite
def factorisations(draw, size):
    """A shape with `size` elements."""
    if size == 0:
        shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
        shape[draw(st.integers(0, len(shape) - 1))] = 0
        return tuple(shape)
    shape = []
    while size > 1:
        factor = draw(st.sampled_from([n for n in range(2, size + 1) if size % n == 0]))
        shape.append(factor)
        size //= factor
    for _ in range(draw(st.integers(0, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


@pytest.mark.promise("S4.13")
@given(views(), st.data())
def test_reshape_is_a_view_exactly_where_numpys_is(case, data):
    view, layout, root = case
    target = data.draw(factorisations(view.size))
    result = layout.reshape(target)
    try:
        expected = np.reshape(view, target, copy=False)
    except ValueError:
        assert result is None
        with pytest.raises(NotContiguousError):
            layout.view(target)
    else:
        assert result is not None
        assert_same_elements(result, expected, root)
        assert layout.view(target) == result


def test_reshape_splits_and_joins_within_evenly_stepping_axes():
    layout = Layout.contiguous_of((4, 6)).narrow(1, 0, 4)
    assert layout.reshape((2, 2, 2, 2)) == Layout((2, 2, 2, 2), (12, 6, 2, 1), 0)
    assert layout.reshape((16,)) is None
    scattered_ones = Layout((1, 2, 1, 3), (50, 3, 0, 1), 0)
    assert scattered_ones.view((3, 2)) == Layout((3, 2), (2, 1), 0)
    flipped = Layout.contiguous_of((2, 3)).flip(0).flip(1)
    assert flipped.reshape((6,)) == Layout((6,), (-1,), 5)


def test_reshape_to_another_number_of_elements_raises():
    with pytest.raises(ShapeError, match=r"reshape: shape \(2, 3\) has 6 elements, \(4,\)"):
        Layout.contiguous_of((2, 3)).reshape((4,))
    with pytest.raises(ShapeError, match="reshape"):
        Layout.contiguous_of((2, 3)).reshape((-2, -3))


def test_view_of_scattered_elements_names_shape_and_strides_and_the_way_out():
    layout = Layout.contiguous_of((2, 3)).transpose(0, 1)
    with pytest.raises(NotContiguousError) as caught:
        layout.view((6,))
    assert str(caught.value) == (
        "view: shape (3, 2) with strides (1, 3) cannot be viewed as (6,) without a copy\n"
        "hint: use reshape, which copies where it must"
    )


@pytest.mark.promise("S4.21")
@pytest.mark.parametrize(
    ("shape", "strides", "contiguous"),
    [
        ((), (), True),
        ((3,), (1,), True),
        ((3,), (2,), False),
        ((3,), (-1,), False),
        ((1,), (99,), True),
        ((2, 1, 3), (3, -7, 1), True),
        ((2, 0), (5, 5), True),
        ((2, 3), (1, 2), False),
        ((2,), (0,), False),
    ],
)
def test_contiguity_ignores_axes_of_size_1_and_empty_tensors(shape, strides, contiguous):
    assert Layout(shape, strides).is_contiguous is contiguous


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (AxisError, lambda layout: layout.transpose(0, 2)),
        (AxisError, lambda layout: layout.permute((0, 0))),
        (AxisError, lambda layout: layout.permute((0,))),
        (AxisError, lambda layout: layout.unsqueeze(3)),
        (AxisError, lambda layout: layout.unsqueeze(-4)),
        (AxisError, lambda layout: layout.flip(2)),
        (IndexingError, lambda layout: layout.narrow(1, 2, 2)),
        (IndexingError, lambda layout: layout.narrow(1, -1, 1)),
        (IndexingError, lambda layout: layout.narrow(1, 0, -1)),
        (IndexingError, lambda layout: layout.slice(1, 1, 3, -1)),
        (IndexingError, lambda layout: layout.slice(1, 0, 2, 0)),
        (ShapeError, lambda layout: Layout((2,), (1, 1))),
        (ShapeError, lambda layout: Layout((-1,), (1,))),
    ],
)
def test_a_view_that_leaves_the_tensor_raises(error, action):
    with pytest.raises(error):
        action(Layout.contiguous_of((2, 3)))
