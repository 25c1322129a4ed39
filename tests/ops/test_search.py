"""Searching and sets agree with NumPy and array-api-strict."""

from __future__ import annotations

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import weft as wf
from weft.core.common import dtypes
from weft.core.common.slots import OPS
from weft.errors import ArgumentError, ConcretizationError, DTypeError, ShapeError
from weft.ops.search import FEW_MEMBERS
from weft.testing.loops import run_loops

RNG = np.random.default_rng(17)
VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, np.nan, np.inf, -np.inf])


def sample(dtype, shape=(3, 5)):
    if dtypes.is_complex(dtype):
        return (RNG.integers(0, 3, shape) + 1j * RNG.integers(0, 2, shape)).astype(dtype)
    return RNG.integers(0, 4, shape).astype(np.float32).astype(dtype)


def wide(x):
    return x.astype(np.float32) if dtypes.is_narrow(x.dtype) else x


@pytest.mark.parametrize(
    "dtype", [d for d in dtypes.ALL_DTYPES if not dtypes.is_complex(d)], ids=str
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_is_numpys(side, dtype):
    row, values = np.sort(wide(sample(dtype, 7))), sample(dtype)
    got = wf.searchsorted(wf.asarray(row.astype(dtype)), wf.asarray(values), side=side)
    assert got.dtype == dtypes.int64
    np.testing.assert_array_equal(got.numpy(), np.searchsorted(row, wide(values), side))


@given(
    hnp.arrays(np.float64, st.integers(0, 6), elements=VALUES),
    hnp.arrays(np.float64, st.integers(0, 4), elements=VALUES),
)
def test_searchsorted_puts_nan_last_as_sort_does(row, values):
    row = np.sort(row)
    for side in ("left", "right"):
        got = wf.searchsorted(row, values, side=side).numpy()
        np.testing.assert_array_equal(got, np.searchsorted(row, values, side))
        steps = run_loops(OPS["searchsorted"], [row, values], {"side": side})
        np.testing.assert_array_equal(steps, got)


def test_searchsorted_takes_scalars_sorters_and_rows():
    row = RNG.normal(size=6)
    order = np.argsort(row)
    assert wf.searchsorted(np.sort(row), 0.1).item() == np.searchsorted(np.sort(row), 0.1)
    got = wf.searchsorted(row, 0.1, sorter=order)
    assert got.item() == np.searchsorted(row, 0.1, sorter=order)
    rows, values = np.sort(RNG.normal(size=(3, 6))), RNG.normal(size=(3, 2))
    want = np.stack([np.searchsorted(r, v) for r, v in zip(rows, values, strict=True)])
    np.testing.assert_array_equal(wf.searchsorted(rows, values).numpy(), want)
    mapped = wf.vmap(wf.searchsorted)(rows, values)
    np.testing.assert_array_equal(mapped.numpy(), want)
    half = wf.vmap(wf.searchsorted, in_axes=(None, 0))(rows[0], values)
    np.testing.assert_array_equal(half.numpy(), np.searchsorted(rows[0], values))


def test_searchsorted_mistakes_are_named():
    with pytest.raises(ArgumentError, match="searchsorted: side must be one of 'left', 'right'"):
        wf.searchsorted([1.0], [1.0], side="middle")
    with pytest.raises(DTypeError, match="searchsorted: complex"):
        wf.searchsorted([1j], [1.0])
    with pytest.raises(ShapeError, match="searchsorted: rows of x1 and x2 differ"):
        wf.searchsorted(np.ones((2, 3)), np.ones((3, 3)))
    with pytest.raises(ShapeError, match="x1 has no axis"):
        wf.searchsorted(1.0, [1.0])


@pytest.mark.parametrize("right", [False, True])
def test_digitize_takes_rising_and_falling_edges(right):
    x, edges = np.array([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0]), np.array([0.0, 1.0, 2.0])
    for bins in (edges, edges[::-1], edges[:1], edges[:0]):
        want = np.digitize(x, bins, right)
        np.testing.assert_array_equal(wf.digitize(x, bins, right).numpy(), want)


def test_digitize_refuses_edges_that_neither_rise_nor_fall():
    for bins in ([0, 2, 1], wf.tensor([1.0, 0.0, 1.0])):
        with pytest.raises(ArgumentError, match="digitize: bins must rise or fall"):
            wf.digitize([0.5], bins)


@pytest.mark.parametrize("dtype", dtypes.ALL_DTYPES, ids=str)
def test_isin_is_numpys_on_every_dtype(dtype):
    x, members = sample(dtype), sample(dtype, 2)
    for invert in (False, True):
        got = wf.isin(wf.asarray(x), wf.asarray(members), invert=invert)
        assert got.dtype == dtypes.bool_
        want = np.isin(wide(x), wide(members), invert=invert)
        np.testing.assert_array_equal(got.numpy(), want)


def test_isin_takes_numbers_and_nothing_and_never_finds_nan():
    x = np.array([1.0, np.nan, 2.0, 9.0])
    assert wf.isin(x, [2.0, np.nan]).tolist() == [False, False, True, False]
    assert wf.isin(x, 1).tolist() == [True, False, False, False]
    assert wf.isin(3, [1, 2, 3]).item() is True
    assert wf.isin(x, np.zeros(0)).tolist() == [False] * 4
    assert wf.isin(x, np.zeros(0), invert=True).tolist() == [True] * 4
    rows = np.arange(6).reshape(2, 3)
    mapped = wf.vmap(wf.isin)(rows, np.array([[0, 2], [9, 4]]))
    assert mapped.tolist() == [[True, False, True], [False, True, False]]


@pytest.mark.parametrize("dtype", dtypes.ALL_DTYPES, ids=str)
def test_unique_elements_are_numpys_on_every_dtype(dtype):
    x = sample(dtype)
    found = wf.unique_all(wf.asarray(x))
    values, first, inverse, counts = np.unique(wide(x), True, True, True)
    assert found.values.dtype == dtype
    for got, want in (
        (found.values, values),
        (found.indices, first),
        (found.inverse_indices, inverse.reshape(x.shape)),
        (found.counts, counts),
        (wf.unique_values(x), values),
        (wf.unique_counts(x).counts, counts),
        (wf.unique_inverse(x).inverse_indices, inverse.reshape(x.shape)),
        (wf.unique(x), values),
    ):
        np.testing.assert_array_equal(wide(got.numpy()), want)
    assert found._fields == ("values", "indices", "inverse_indices", "counts")
    assert found.indices.dtype == found.inverse_indices.dtype == found.counts.dtype == dtypes.int64


@given(hnp.arrays(np.float64, st.integers(0, 8), elements=VALUES))
def test_every_nan_is_distinct_in_the_standards_functions(x):
    found = wf.unique_all(wf.asarray(x))
    want = strict.unique_all(strict.asarray(x))
    for got, field in zip(found, want, strict=True):
        np.testing.assert_array_equal(got.numpy(), np.asarray(field))
    np.testing.assert_array_equal(wf.unique(x).numpy(), np.unique(x))


def test_unique_works_along_an_axis_and_to_a_size():
    x = np.array([[3, 1, 3], [2, 1, 2]])
    values, first, counts = wf.unique(x, True, False, True, axis=1)
    np.testing.assert_array_equal(values.numpy(), np.unique(x, axis=1))
    assert first.tolist() == [1, 0]
    assert counts.tolist() == [1, 2]
    assert wf.unique(x, size=2).tolist() == [1, 2]
    assert wf.unique(x, size=5).tolist() == [1, 2, 3, 1, 1]
    values, counts = wf.unique(x, return_counts=True, size=4, fill_value=-1)
    assert values.tolist() == [1, 2, 3, -1]
    assert counts.tolist() == [2, 2, 2, 0]
    with pytest.raises(ArgumentError, match="unique: nothing to fill size 2 with"):
        wf.unique(np.zeros(0), size=2)


@pytest.mark.parametrize(
    ("function", "places"),
    [
        (wf.unique, [1, 2, 0]),
        (lambda x: wf.unique(x, return_counts=True)[0], [1, 2, 0]),
        (lambda x: wf.unique(x, axis=0), [1, 2, 0]),
        (lambda x: wf.unique(x, size=5, axis=0), [1, 2, 0, 1, 1]),
        (lambda x: wf.unique(x, size=2, axis=0), [1, 2]),
        (wf.unique_values, [1, 2, 0]),
        (lambda x: wf.unique_all(x).values, [1, 2, 0]),
        (lambda x: wf.union1d(x, x[:1]), [1, 2, 0]),
        (lambda x: wf.intersect1d(x, x[:2]), [1, 0]),
        (lambda x: wf.setdiff1d(x, x[:1]), [1, 2]),
        (lambda x: wf.setxor1d(x[:2], x[1:]), [2, 0]),
    ],
)
def test_distinct_elements_carry_the_derivatives_of_those_they_are(function, places):
    x = wf.tensor([3.0, 1.0, 2.0], dtype="float64")
    rows = np.eye(3)[places]
    np.testing.assert_array_equal(function(x).numpy(), x.numpy()[places])
    np.testing.assert_array_equal(wf.jacrev(function)(x).numpy(), rows)
    np.testing.assert_array_equal(wf.jvp(function, (x,), (x * x,))[1].numpy(), rows @ [9, 1, 4])


def test_what_fills_distinct_elements_up_carries_a_derivative():
    f = lambda x, fill: wf.sum(wf.unique(x, size=3, fill_value=fill, axis=0) ** 2)  # noqa: E731
    slopes = wf.grad(f, argnums=(0, 1))(wf.tensor([[2.0, 1.0], [2.0, 1.0]]), wf.tensor([5.0, 7.0]))
    assert slopes[0].tolist() == [[4, 2], [0, 0]]
    assert slopes[1].tolist() == [20, 28]


def test_set_operations_are_numpys():
    x, y = RNG.integers(0, 8, (2, 5)), RNG.integers(0, 8, 6)
    for name in ("union1d", "intersect1d", "setdiff1d", "setxor1d"):
        got = getattr(wf, name)(x, y)
        np.testing.assert_array_equal(got.numpy(), getattr(np, name)(x.ravel(), y))


@pytest.mark.parametrize("dtype", dtypes.ALL_DTYPES, ids=str)
def test_positions_of_nonzero_elements_are_numpys(dtype):
    x = sample(dtype)
    for got, want in zip(wf.nonzero(wf.asarray(x)), np.nonzero(wide(x)), strict=True):
        assert got.dtype == dtypes.int64
        np.testing.assert_array_equal(got.numpy(), want)
    np.testing.assert_array_equal(wf.flatnonzero(x).numpy(), np.flatnonzero(wide(x)))
    np.testing.assert_array_equal(wf.argwhere(x).numpy(), np.argwhere(wide(x)))


@pytest.mark.parametrize("equal_nan", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.bool_])
def test_a_size_makes_unique_static_so_that_it_compiles_and_maps(dtype, equal_nan):
    x = RNG.integers(-3, 4, (5, 60)).astype(dtype)
    if x.dtype.kind == "f":
        x[:, ::7] = np.nan
        x[x == 0] = -0.0
    asked = {"return_index": True, "return_inverse": True, "return_counts": True}
    asked["equal_nan"] = equal_nan
    f = lambda v: wf.unique(v, size=40, fill_value=1, **asked)  # noqa: E731
    for g in (f, wf.compile(f)):
        values, first, inverse, counts = (each.numpy() for each in g(wf.asarray(x[0])))
        expected = np.unique(x[0], True, True, True, equal_nan=equal_nan)
        count = len(expected[0])
        np.testing.assert_array_equal(values[:count], expected[0])
        np.testing.assert_array_equal(first[:count], expected[1])
        np.testing.assert_array_equal(inverse, expected[2])
        np.testing.assert_array_equal(counts[:count], expected[3])
        assert (values[count:] == 1).all() and not counts[count:].any()
    mapped = wf.vmap(lambda v: wf.unique(v, size=3))(wf.asarray(x)).numpy()
    for row, ours in zip(x, mapped, strict=True):
        found = np.unique(row)
        np.testing.assert_array_equal(ours, np.resize(np.append(found, found[:1]), 3)[:3])


def test_a_size_makes_nonzero_static_so_that_it_maps():
    x = np.array([[0, 3, 0, 5], [1, 1, 1, 1], [0, 0, 0, 0]])
    got = wf.vmap(lambda v: wf.flatnonzero(v, size=3, fill_value=-1))(x)
    assert got.tolist() == [[1, 3, -1], [0, 1, 2], [-1, -1, -1]]
    rows, columns = wf.nonzero(x, size=8, fill_value=9)
    assert rows.tolist() == [0, 0, 1, 1, 1, 1, 9, 9]
    assert columns.tolist() == [1, 3, 0, 1, 2, 3, 9, 9]
    assert wf.argwhere(x[:2, :2], size=5).shape == (5, 2)
    assert wf.flatnonzero(np.array([0, 1]), size=4).tolist() == [1, 0, 0, 0]


def test_shapes_that_depend_on_values_cannot_be_mapped():
    x = np.ones((2, 3))
    for function in (wf.nonzero, wf.unique_values, lambda v: wf.bincount(v.astype("int64"))):
        with pytest.raises(ConcretizationError):
            wf.vmap(function)(x)
    with pytest.raises(ShapeError, match="nonzero: a tensor with no axes"):
        wf.nonzero(1.0)
    assert wf.argwhere(np.array(5.0)).shape == (1, 0)


def test_lexsort_is_numpys():
    keys = RNG.integers(0, 3, (3, 8))
    np.testing.assert_array_equal(wf.lexsort(keys).numpy(), np.lexsort(keys))
    table = RNG.integers(0, 3, (2, 4, 5))
    np.testing.assert_array_equal(wf.lexsort(table, axis=0).numpy(), np.lexsort(table, axis=0))


@pytest.mark.parametrize("count", [0, 1, 2, FEW_MEMBERS, FEW_MEMBERS + 1, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, np.complex64, bool])
def test_few_and_many_members_are_found_alike(count, dtype):
    random = np.random.default_rng(count)
    members = random.integers(0, 60, count).astype(dtype)
    values = random.integers(0, 80, (40, 7)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        values[0], members[:1] = np.nan, np.nan
    for invert in (False, True):
        found = wf.isin(wf.tensor(values), wf.tensor(members), invert=invert)
        run = wf.compile(lambda x, y, invert=invert: wf.isin(x, y, invert=invert))
        expected = np.isin(values, members, invert=invert)
        assert np.array_equal(found.numpy(), expected)
        assert np.array_equal(run(wf.tensor(values), wf.tensor(members)).numpy(), expected)


@pytest.mark.parametrize("dtype", ["int64", "float32", "complex64"])
def test_common_elements_come_with_the_places_where_they_are_first(dtype):
    a, b = np.array([[3, 1, 3], [7, 5, 1]], dtype), np.array([9, 3, 5, 3, 0], dtype)
    for left, right in ((a, b), (b, a), (a, a), (a, b[:0]), (a[0, 0], b)):
        made = wf.intersect1d(left, right, return_indices=True)
        for got, want in zip(made, np.intersect1d(left, right, return_indices=True), strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
