"""Views: shapes and values against NumPy, and the memory they share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.core.tensor.layout import Layout
from weft.errors import AxisError, IndexingError, NotContiguousError, ShapeError

ARRAY = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def base():
    return wf.tensor(ARRAY)


def shares(x, y):
    return x.storage == y.storage and np.shares_memory(x.numpy(), y.numpy())


@pytest.mark.promise("S4.13")
def test_reshape_of_contiguous_memory_is_a_view_and_of_other_memory_a_copy():
    x = base()
    y = x.reshape(6, 4)
    assert shares(x, y)
    assert y.strides == (4, 1)
    turned = x.mT
    z = turned.reshape(2, 12)
    assert not shares(x, z)
    np.testing.assert_array_equal(z.numpy(), ARRAY.mT.reshape(2, 12))


@pytest.mark.promise("S4.13")
def test_view_raises_where_only_a_copy_has_that_shape():
    x = base()
    assert shares(x, x.view(4, 6))
    assert shares(x, x.mT.view(2, 2, 2, 3))
    with pytest.raises(NotContiguousError, match=r"(?s)view: shape \(2, 4, 3\).*hint: use reshape"):
        x.mT.view(2, 12)
    with pytest.raises(NotContiguousError):
        wf.reshape(x.mT, (24,), copy=False)
    assert not shares(x, wf.reshape(x, (24,), copy=True))


@pytest.mark.promise("S4.13")
def test_view_of_something_not_computed_yet_computes_it_first():
    large = wf.ones((200, 300)) + 1
    pending = wf.permute_dims(large, (1, 0))
    with pytest.raises(NotContiguousError):
        wf.view(pending, (60000,))
    assert wf.view(large, (60000,)).shape == (60000,)


@pytest.mark.promise("S4.14")
def test_transpose_swaps_strides_without_copying():
    x = base()
    y = x.transpose(0, 2)
    assert shares(x, y)
    assert (y.shape, y.strides) == ((4, 3, 2), (1, 4, 12))
    assert y.layout == x.layout.transpose(0, 2)
    np.testing.assert_array_equal(y.numpy(), ARRAY.transpose(2, 1, 0))


@pytest.mark.promise("S4.15")
def test_permute_reorders_strides_without_copying():
    x = base()
    y = x.permute(2, 0, 1)
    assert shares(x, y)
    assert (y.shape, y.strides) == ((4, 2, 3), (1, 12, 4))
    np.testing.assert_array_equal(y.numpy(), ARRAY.transpose(2, 0, 1))


@pytest.mark.promise("S4.16")
@pytest.mark.parametrize("axis", range(4))
def test_unsqueeze_gives_the_new_axis_the_next_stride_times_its_size(axis):
    x = base()
    y = wf.unsqueeze(x, axis)
    assert shares(x, y)
    assert y.layout == x.layout.unsqueeze(axis)
    assert wf.expand_dims(x, axis).strides == y.strides


@pytest.mark.promise("S4.17")
def test_squeeze_removes_axes_of_size_one_without_copying():
    x = wf.tensor(ARRAY[:, None])
    y = x.squeeze(1)
    assert shares(x, y)
    assert (y.shape, y.strides) == ((2, 3, 4), (12, 4, 1))
    assert wf.squeeze(wf.ones((1, 2, 1))).shape == (2,)
    with pytest.raises(ShapeError, match="squeeze: axis 0 has size 2, not 1"):
        wf.squeeze(y, 0)


@pytest.mark.promise("S4.18")
def test_narrow_moves_the_offset_without_copying():
    x = base()
    y = x.narrow(1, 1, 2)
    assert shares(x, y)
    assert y.layout == Layout((2, 2, 4), (12, 4, 1), 4)
    assert x.narrow(-1, -2, 2).layout.offset == 2
    with pytest.raises(IndexingError, match="narrow: axis 1: 3 elements from 1 exceed its size 3"):
        x.narrow(1, 1, 3)


@pytest.mark.promise("S4.19")
def test_broadcast_to_has_stride_zero():
    x = wf.tensor(np.arange(3.0, dtype=np.float32).reshape(3, 1))
    y = wf.broadcast_to(x, (2, 3, 4))
    assert shares(x, y)
    assert y.strides == (0, 1, 0)
    assert x.expand(2, -1, 4).shape == (2, 3, 4)
    with pytest.raises(ShapeError, match="broadcast_to: axis 0: size 3 cannot be stretched to 2"):
        wf.broadcast_to(x, (2, 4))


@pytest.mark.promise("S4.20")
def test_flip_negates_strides_and_moves_the_offset():
    x = base()
    y = wf.flip(x, axis=1)
    assert shares(x, y)
    assert y.layout == Layout((2, 3, 4), (12, -4, 1), 8)
    np.testing.assert_array_equal(wf.flip(x).numpy(), ARRAY[::-1, ::-1, ::-1])


@pytest.mark.promise("S4.21")
def test_contiguous_returns_itself_or_a_row_major_copy():
    x = base()
    assert x.contiguous() is x
    y = x.mT.contiguous()
    assert not shares(x, y)
    assert y.layout.is_contiguous
    np.testing.assert_array_equal(y.numpy(), ARRAY.mT)


@pytest.mark.promise("S4.21")
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.mT,
        lambda x: wf.flip(x, axis=(0, 2)),
        lambda x: x[:, ::-2, 1::2],
        lambda x: wf.broadcast_to(x[:1], (5, 3, 4)),
        lambda x: x.permute(1, 2, 0),
    ],
)
def test_kernels_accept_any_strides(make):
    x = base()
    y = make(x)
    want = y.numpy().copy()
    np.testing.assert_array_equal((y + y).numpy(), want + want)
    np.testing.assert_allclose(y.sum().item(), want.sum())
    np.testing.assert_array_equal(wf.concat([y, y], axis=0).numpy(), np.concatenate([want, want]))
    np.testing.assert_allclose(
        wf.grad(lambda t: (make(t) * make(t)).sum())(x).numpy(), _twice(make)
    )


def _twice(make):
    """Gradient of Σ make(x)²: 2·x·(how often each element is seen), counted with NumPy."""
    places = make(wf.tensor(np.arange(24).reshape(2, 3, 4))).numpy()
    counts = np.bincount(places.ravel(), minlength=24).reshape(2, 3, 4)
    return 2 * ARRAY * counts


@pytest.mark.promise("S2.18")
def test_the_view_functions_are_public_under_their_names():
    for name in [
        "reshape",
        "transpose",
        "squeeze",
        "unsqueeze",
        "broadcast_to",
        "gather",
        "scatter",
    ]:
        assert callable(getattr(wf, name))
        assert getattr(wf, name).__doc__


SHAPES = st.lists(st.integers(0, 4), min_size=0, max_size=4).map(tuple)


@given(SHAPES, st.randoms())
def test_axis_moves_agree_with_numpy(shape, random):
    array = np.arange(int(np.prod(shape))).reshape(shape)
    x = wf.tensor(array)
    order = list(range(len(shape)))
    random.shuffle(order)
    np.testing.assert_array_equal(wf.permute_dims(x, order).numpy(), array.transpose(order))
    np.testing.assert_array_equal(wf.transpose(x).numpy(), array.T)
    some = order[: len(order) // 2]
    targets = random.sample(range(len(shape)), len(some))
    np.testing.assert_array_equal(
        wf.moveaxis(x, tuple(some), tuple(targets)).numpy(), np.moveaxis(array, some, targets)
    )
    np.testing.assert_array_equal(wf.flip(x, axis=tuple(some)).numpy(), np.flip(array, tuple(some)))
    np.testing.assert_array_equal(wf.flatten(x).numpy(), array.ravel())


def test_a_view_that_changes_nothing_is_still_another_handle():
    x = base()
    for same in (
        x.reshape(2, 3, 4),
        x.permute(0, 1, 2),
        wf.flip(x, axis=()),
        wf.broadcast_to(x, x.shape),
        x.narrow(0, 0, 2),
        wf.squeeze(x),
    ):
        same += 1
        np.testing.assert_array_equal(x.numpy(), ARRAY)


def test_wrong_shapes_and_axes_are_named():
    x = base()
    with pytest.raises(ShapeError, match=r"reshape: 24 elements of shape \(2, 3, 4\) do not fit"):
        x.reshape(5, 5)
    with pytest.raises(ShapeError, match="only one size may be -1"):
        x.reshape(-1, -1)
    with pytest.raises(ShapeError, match="sizes must be integers"):
        wf.reshape(x, (2.5,))
    with pytest.raises(ShapeError):
        wf.reshape(wf.ones((0, 3)), (0, -1))
    assert wf.reshape(wf.ones((0, 3)), (-1, 3)).shape == (0, 3)
    with pytest.raises(AxisError, match="permute_dims: an axis is given twice"):
        x.permute(0, 0, 1)
    with pytest.raises(AxisError, match="axis 3 is out of range for 3 axes"):
        wf.flip(x, axis=3)
    with pytest.raises(ShapeError, match="T: is for two axes"):
        _ = x.T
    with pytest.raises(AxisError):
        wf.expand_dims(x, 5)


def test_broadcast_arrays_and_shapes_agree_with_numpy():
    a, b = np.ones((3, 1)), np.ones((2, 1, 4))
    for got, want in zip(wf.broadcast_arrays(a, b), np.broadcast_arrays(a, b), strict=True):
        assert got.shape == want.shape
    assert wf.broadcast_shapes((3, 1), (4,), 1) == (3, 4)
    with pytest.raises(ShapeError, match="broadcast_shapes: operand 1, axis -1: size 3"):
        wf.broadcast_shapes((2,), (3,))


def test_flatten_and_unflatten_undo_each_other():
    x = base()
    merged = wf.flatten(x, 1, 2)
    assert merged.shape == (2, 12)
    assert wf.unflatten(merged, 1, (3, -1)).shape == (2, 3, 4)
    assert shares(x, merged)
