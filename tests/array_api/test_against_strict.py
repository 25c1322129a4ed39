"""weft gives what array_api_strict gives: values, dtypes, shapes, containers; by random draws."""

from typing import Any

import array_api_strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from tests.array_api import draws as d
from tests.array_api.draws import ALL, BOOL, FLOATS, INEXACT, INTEGERS, NUMERIC, REAL

pytestmark = pytest.mark.slow

UNARY = {
    **dict.fromkeys("abs negative positive square sign".split(), NUMERIC),
    **dict.fromkeys("isfinite isinf isnan real".split(), NUMERIC),
    **dict.fromkeys("ceil floor trunc".split(), REAL),
    **dict.fromkeys("round conj".split(), NUMERIC),
    **dict.fromkeys("exp expm1 sin cos tan sinh cosh tanh asinh atan".split(), INEXACT),
    **dict.fromkeys("asin acos acosh atanh log log1p log2 log10 sqrt".split(), INEXACT),
    "reciprocal": INEXACT,
    "imag": d.COMPLEX,
    "signbit": FLOATS,
    "bitwise_invert": BOOL + INTEGERS,
    "logical_not": BOOL,
}
BINARY = {
    **dict.fromkeys("add subtract multiply".split(), NUMERIC),
    **dict.fromkeys("equal not_equal".split(), ALL),
    **dict.fromkeys("less less_equal greater greater_equal maximum minimum".split(), REAL),
    **dict.fromkeys("bitwise_and bitwise_or bitwise_xor".split(), BOOL + INTEGERS),
    **dict.fromkeys("logical_and logical_or logical_xor".split(), BOOL),
    **dict.fromkeys("atan2 copysign hypot logaddexp nextafter".split(), FLOATS),
    "divide": INEXACT,
}
POSITIVE = {
    **dict.fromkeys("floor_divide remainder".split(), REAL),
    **dict.fromkeys("bitwise_left_shift bitwise_right_shift".split(), INTEGERS),
    "pow": NUMERIC,
}
REDUCTIONS = {
    **dict.fromkeys("all any count_nonzero".split(), ALL),
    **dict.fromkeys("sum prod".split(), NUMERIC),
    **dict.fromkeys("max min".split(), REAL),
    "mean": INEXACT,
    **dict.fromkeys("std var".split(), FLOATS),
}


def check(name: str, *args: Any, part: str = "", values: bool = True, **keywords: Any) -> None:
    found, expected = d.results(name, args, keywords, part)
    d.assert_same(found, expected, values=values)


@pytest.mark.parametrize("name", UNARY)
@given(data=st.data())
def test_functions_of_one_operand_agree(name, data):
    with np.errstate(all="ignore"):
        check(name, data.draw(d.arrays(UNARY[name])))


@pytest.mark.parametrize("name", BINARY)
@given(data=st.data())
def test_functions_of_two_operands_agree(name, data):
    with np.errstate(all="ignore"):
        check(name, *data.draw(d.partners(BINARY[name])))


@pytest.mark.parametrize("name", POSITIVE)
@given(data=st.data())
def test_functions_of_two_operands_agree_on_positive_numbers(name, data):
    with np.errstate(all="ignore"):
        check(name, *data.draw(d.partners(POSITIVE[name], positive=True)))


@given(data=st.data())
def test_where_agrees(data):
    condition, first, second = data.draw(d.partners(BOOL, 3))
    dtypes = data.draw(d.partners(ALL))
    first, second = first.astype(dtypes[0].dtype), second.astype(dtypes[1].dtype)
    check("where", condition, first, second)


@given(data=st.data())
def test_clip_agrees(data):
    x = data.draw(d.arrays(REAL, d.shapes(max_dims=2)))
    low, high = data.draw(st.none() | st.integers(0, 3)), data.draw(st.none() | st.integers(3, 9))
    if data.draw(st.booleans()):
        low = None if low is None else np.full(x.shape, low, x.dtype)
        high = None if high is None else np.asarray(high, x.dtype)
    check("clip", x, low, high)


@pytest.mark.parametrize("name", REDUCTIONS)
@given(data=st.data())
def test_reductions_agree(name, data):
    least = 1 if name in ("max", "min", "mean", "std", "var") else 0
    x = data.draw(d.arrays(REDUCTIONS[name], d.shapes(min_side=least)))
    keywords = {"axis": data.draw(d.axes(x.ndim)), "keepdims": data.draw(st.booleans())}
    if name in ("std", "var"):
        keywords["correction"] = data.draw(st.sampled_from([0, 0.5]))
    if name in ("sum", "prod") and x.dtype.kind in "iu" and data.draw(st.booleans()):
        keywords["dtype"] = np.dtype(data.draw(st.sampled_from(["int64", "float64"])))
    if name in ("sum", "prod") and x.dtype == np.uint64:
        keywords.pop("dtype", None)
    check(name, x, **keywords)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@given(data=st.data())
def test_positions_of_extremes_agree(name, data):
    x = data.draw(d.arrays(REAL, d.shapes(min_side=1)))
    axis = data.draw(d.axes(x.ndim, several=False))
    check(name, x, axis=axis, keepdims=data.draw(st.booleans()))


@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
@given(data=st.data())
def test_running_reductions_agree(name, data):
    x = data.draw(d.arrays(NUMERIC, d.shapes(min_dims=1)))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    check(name, x, axis=axis, include_initial=data.draw(st.booleans()))


@pytest.mark.parametrize("name", ["sort", "argsort"])
@given(data=st.data())
def test_sorting_agrees(name, data):
    x = data.draw(d.arrays(REAL, d.shapes(min_dims=1, min_side=1)))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    check(name, x, axis=axis, descending=data.draw(st.booleans()), stable=True)


@given(data=st.data())
def test_nonzero_agrees(data):
    check("nonzero", data.draw(d.arrays(ALL, d.shapes(min_dims=1))))


@given(data=st.data())
def test_searchsorted_agrees(data):
    x = data.draw(d.arrays(REAL, d.shapes(min_dims=1, max_dims=1, min_side=1)))
    wanted = data.draw(d.arrays((x.dtype.name,)))
    side = data.draw(st.sampled_from(["left", "right"]))
    check("searchsorted", np.sort(x), wanted, side=side)
    check("searchsorted", x, wanted, side=side, sorter=np.argsort(x))


@given(data=st.data())
def test_taking_elements_agrees(data):
    x = data.draw(d.arrays(ALL, d.shapes(min_dims=1, min_side=1)))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    side = x.shape[axis]
    places = np.asarray(data.draw(st.lists(st.integers(-side, side - 1), max_size=5)), np.int64)
    check("take", x, places, axis=axis)
    along = np.argsort(x.real, axis=axis)
    check("take_along_axis", x, along, axis=axis)


@pytest.mark.parametrize("name", ["unique_all", "unique_counts", "unique_inverse", "unique_values"])
@given(data=st.data())
def test_sets_agree(name, data):
    x = data.draw(d.arrays(ALL))
    check(name, x)


@given(data=st.data())
def test_isin_agrees(data):
    first, second = data.draw(d.partners(INTEGERS))
    check("isin", first, second)
    found = wf.isin(wf.asarray(first), wf.asarray(second), invert=True)
    np.testing.assert_array_equal(found.numpy(), np.isin(first, second, invert=True))


@pytest.mark.parametrize("dtype", INEXACT)
def test_every_nan_is_a_value_of_its_own_in_a_set(dtype):
    x = wf.asarray([1.0, wf.nan, 0.0, wf.nan, -0.0, 1.0], dtype=getattr(wf, dtype))
    assert wf.unique_values(x).shape == (4,)
    values, counts = wf.unique_counts(x)
    nans = wf.isnan(values)
    assert counts[nans].tolist() == [1, 1]
    assert counts[~nans].tolist() == [2, 2]
    inverse = wf.unique_inverse(x)
    np.testing.assert_array_equal(inverse.values[inverse.inverse_indices].numpy(), x.numpy())


@given(data=st.data())
def test_diff_agrees(data):
    x = data.draw(d.arrays(NUMERIC, d.shapes(min_dims=1, min_side=1)))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    check("diff", x, axis=axis, n=data.draw(st.integers(0, 3)))
    check("diff", x, axis=axis, prepend=x, append=x)


@given(data=st.data())
def test_broadcasting_agrees(data):
    first, second = data.draw(d.partners(ALL))
    check("broadcast_arrays", first, second)
    check("broadcast_shapes", first.shape, second.shape)
    whole = np.broadcast_shapes(first.shape, second.shape)
    check("broadcast_to", first, whole)


@given(data=st.data())
def test_joining_agrees(data):
    x = data.draw(d.arrays(ALL, d.shapes(min_dims=1)))
    others = [n for n in ALL if d.mix(n, x.dtype.name)]
    y = np.ones_like(x, dtype=data.draw(st.sampled_from(others)))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    check("concat", [x, y, x], axis=axis)
    check("concat", (x, y), axis=None)
    check("stack", [x, y], axis=data.draw(st.integers(-x.ndim - 1, x.ndim)))
    check("unstack", x, axis=axis)


@given(data=st.data())
def test_moving_axes_agrees(data):
    x = data.draw(d.arrays(ALL, d.shapes(min_dims=1)))
    order = tuple(data.draw(st.permutations(range(x.ndim))))
    check("permute_dims", x, order)
    check("moveaxis", x, tuple(range(x.ndim)), order)
    check("moveaxis", x, 0, -1)
    check("expand_dims", x, axis=data.draw(st.integers(-x.ndim - 1, x.ndim)))
    padded = x[:, np.newaxis]
    check("squeeze", padded, axis=1)
    check("squeeze", padded[np.newaxis], axis=(0, 2))
    if x.ndim >= 2:
        check("matrix_transpose", x)


@given(data=st.data())
def test_rearranging_elements_agrees(data):
    x = data.draw(d.arrays(ALL, d.shapes(min_dims=1)))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    check("flip", x, axis=data.draw(d.axes(x.ndim)))
    check("roll", x, data.draw(st.integers(-5, 5)), axis=data.draw(st.sampled_from([None, axis])))
    check("roll", x, (1, -2), axis=(axis, 0))
    check("repeat", x, data.draw(st.integers(0, 3)), axis=axis)
    check("repeat", x, np.arange(x.shape[axis]), axis=axis)
    check("tile", x, data.draw(st.lists(st.integers(0, 2), max_size=3).map(tuple)))
    check("reshape", x, (-1,) if x.size else (0,))
    check("reshape", x, x.shape[::-1], copy=True)


@given(data=st.data())
def test_creation_from_shapes_agrees(data):
    shape = data.draw(d.shapes())
    dtype = np.dtype(data.draw(st.sampled_from(ALL)))
    x = data.draw(d.arrays(ALL))
    for name in ("zeros", "ones"):
        check(name, shape, dtype=dtype)
        check(f"{name}_like", x)
        check(f"{name}_like", x, dtype=dtype)
    check("empty", shape, dtype=dtype, values=False)
    check("empty_like", x, dtype=dtype, values=False)
    value = {"b": True, "i": -3, "u": 3, "f": 0.5, "c": 1 - 2j}[dtype.kind]
    check("full", shape, value, dtype=dtype)
    check("full_like", x, value, dtype=dtype)


@given(data=st.data())
def test_ranges_agree(data):
    dtype = np.dtype(data.draw(st.sampled_from(INTEGERS + FLOATS)))
    start, stop = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 30))
    step = data.draw(st.integers(1, 4))
    check("arange", start, stop, step, dtype=dtype)
    check("arange", stop, dtype=dtype)
    if dtype.kind in "if":
        check("arange", stop, start, -step, dtype=dtype)
    dtype = np.dtype(data.draw(st.sampled_from(FLOATS)))
    check("arange", start, stop, step / 2, dtype=dtype)
    ends = data.draw(st.booleans())
    check("linspace", start, stop, data.draw(st.integers(0, 9)), dtype=dtype, endpoint=ends)
    check("eye", start, stop, k=data.draw(st.integers(-4, 4)), dtype=dtype)
    check("eye", start, dtype=dtype)


@given(data=st.data())
def test_grids_and_triangles_agree(data):
    lines = data.draw(st.lists(d.arrays(FLOATS[:1], d.shapes(1, 1)), min_size=1, max_size=3))
    check("meshgrid", *lines, indexing=data.draw(st.sampled_from(["xy", "ij"])))
    x = data.draw(d.arrays(ALL, d.shapes(min_dims=2)))
    check("tril", x, k=data.draw(st.integers(-4, 4)))
    check("triu", x, k=data.draw(st.integers(-4, 4)))


@given(data=st.data())
def test_arrays_from_nested_lists_agree(data):
    x = data.draw(d.arrays(ALL))
    check("asarray", x.tolist(), dtype=x.dtype)
    found = wf.asarray(x.tolist())
    natural = {"b": wf.bool, "i": wf.int64, "u": wf.int64, "f": wf.float32, "c": wf.complex64}
    assert found.dtype == (natural[x.dtype.kind] if x.size else wf.float32)


@given(data=st.data())
def test_casts_agree(data):
    x = data.draw(d.arrays(ALL, positive=True))
    targets = [n for n in ALL if x.dtype.kind != "c" or n in d.COMPLEX]
    check("astype", x, np.dtype(data.draw(st.sampled_from(targets))))


@given(data=st.data())
def test_products_agree(data):
    x, y = data.draw(d.partners(NUMERIC))
    if x.ndim and y.ndim:
        rows = np.ones((*x.shape, 3), x.dtype) * x[..., np.newaxis]
        columns = np.ones((*y.shape, 3), y.dtype) * y[..., np.newaxis]
        check("vecdot", rows, columns)
        check("matmul", rows, np.swapaxes(columns[:1], -1, -2) if columns.ndim > 1 else columns)
        check("tensordot", rows, columns, axes=((-1,), (-1,)))
        check("tensordot", rows, columns.T, axes=1)
    check("tensordot", x, y, axes=0)


@pytest.mark.parametrize("name", ["result_type", "can_cast"])
def test_promotion_agrees_wherever_the_standard_defines_it(name):
    for first in ALL:
        for second in ALL:
            if d.mix(first, second):
                found, expected = d.results(name, (np.dtype(first), np.dtype(second)), {})
                assert str(found) == str(expected).rpartition(".")[2], (first, second)


@given(data=st.data())
def test_indexing_agrees(data):
    x = data.draw(d.arrays(ALL, d.shapes(min_dims=1, min_side=1)))
    entries = data.draw(
        st.tuples(
            *(
                st.integers(-n, n - 1)
                | st.builds(slice, st.none() | st.integers(-n, n), st.none() | st.integers(-n, n))
                for n in x.shape
            )
        )
    )
    others = [(*entries[:1], ...), (None, *entries), (..., None), ..., x.real > 1]
    ours, theirs = wf.asarray(x, copy=True), array_api_strict.asarray(x, copy=True)
    for index in (entries, *others):
        if isinstance(index, np.ndarray):
            found, expected = ours[wf.asarray(index)], theirs[array_api_strict.asarray(index)]
        else:
            found, expected = ours[index], theirs[index]
        d.assert_same(found, expected)
    value = True if x.dtype.kind == "b" else 3
    ours[entries] = value
    theirs[entries] = value
    d.assert_same(ours, theirs)


@given(data=st.data())
def test_indexing_with_integer_arrays_agrees(data):
    x = data.draw(d.arrays(ALL, d.shapes(min_dims=2, min_side=1)))
    places = [
        np.asarray(data.draw(st.lists(st.integers(-n, n - 1), min_size=3, max_size=3)), np.int64)
        for n in x.shape
    ]
    ours = wf.asarray(x)[tuple(map(wf.asarray, places))]
    theirs = array_api_strict.asarray(x)[tuple(map(array_api_strict.asarray, places))]
    d.assert_same(ours, theirs)
    mixed = wf.asarray(x)[wf.asarray(places[0]), 0]
    np.testing.assert_array_equal(mixed.numpy(), x[places[0], 0])


@pytest.mark.parametrize("shape", [(2, 3), (0,), (4,)], ids=str)
@pytest.mark.parametrize("mask", [(), (0,), (2,), (4,), (2, 0), (2, 3), (3, 2), (2, 3, 1)], ids=str)
def test_a_mask_fits_if_its_sides_are_the_leading_ones_of_the_array_or_zero(shape, mask):
    x, key = wf.ones(shape), wf.ones(mask, dtype=wf.bool)
    fits = len(mask) <= len(shape) and all(k in (0, n) for k, n in zip(mask, shape, strict=False))
    if not fits:
        with pytest.raises(IndexError):
            x[key]
        return
    rest = shape[len(mask) :]
    assert x[key].shape == (key.size, *rest)
    x[key] = 2.0
    assert wf.sum(x) == x.size + key.size * np.prod(rest)
