"""Python's operators: forward, reflected and in place; promotion; numbers beside arrays; errors."""

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from tests.array_api import draws as d
from tests.array_api.draws import ALL, BOOL, FLOATS, INEXACT, INTEGERS, NUMERIC, REAL

ARITHMETIC = {
    "add": NUMERIC,
    "sub": NUMERIC,
    "mul": NUMERIC,
    "truediv": INEXACT,
    "floordiv": REAL,
    "mod": REAL,
    "pow": NUMERIC,
    "and_": BOOL + INTEGERS,
    "or_": BOOL + INTEGERS,
    "xor": BOOL + INTEGERS,
    "lshift": INTEGERS,
    "rshift": INTEGERS,
}
COMPARISONS = {"eq": ALL, "ne": ALL, "lt": REAL, "le": REAL, "gt": REAL, "ge": REAL}
FUNCTION_OF = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "pow", "and_": "bitwise_and",
    "or_": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift", "eq": "equal", "ne": "not_equal", "lt": "less",
    "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}  # fmt: skip
NUMBERS = {"b": True, "i": 2, "u": 2, "f": 1.5, "c": 1 + 2j}

WITH_NUMBERS = {
    **{name: NUMERIC for name in ("add", "subtract", "multiply", "pow")},
    **{name: ALL for name in ("equal", "not_equal")},
    **{name: REAL for name in ("less", "less_equal", "greater", "greater_equal")},
    **{name: REAL for name in ("maximum", "minimum", "floor_divide", "remainder")},
    **{name: BOOL + INTEGERS for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{name: INTEGERS for name in ("bitwise_left_shift", "bitwise_right_shift")},
    **{name: BOOL for name in ("logical_and", "logical_or", "logical_xor")},
    **{name: FLOATS for name in ("atan2", "copysign", "hypot", "logaddexp", "nextafter")},
    "divide": INEXACT,
}
LOWER_KINDS = {"b": "b", "i": "i", "u": "i", "f": "if", "c": "ifc"}

# The standard's table of promotions, row by row; mixed kinds are left to the library.
PROMOTIONS = """
    int8 int16 int16      int8 int32 int32      int8 int64 int64     int16 int32 int32
    int16 int64 int64     int32 int64 int64     uint8 uint16 uint16  uint8 uint32 uint32
    uint8 uint64 uint64   uint16 uint32 uint32  uint16 uint64 uint64 uint32 uint64 uint64
    int8 uint8 int16      int8 uint16 int32     int8 uint32 int64    int16 uint8 int16
    int16 uint16 int32    int16 uint32 int64    int32 uint8 int32    int32 uint16 int32
    int32 uint32 int64    int64 uint8 int64     int64 uint16 int64   int64 uint32 int64
    float32 float64 float64                     complex64 complex128 complex128
    float32 complex64 complex64                 float32 complex128 complex128
    float64 complex64 complex128                float64 complex128 complex128
""".split()
ROWS = [tuple(PROMOTIONS[i : i + 3]) for i in range(0, len(PROMOTIONS), 3)]
ROWS += [(name, name, name) for name in ALL]


def dtype(name: str) -> np.dtype:
    return getattr(wf, name)


def same(found: object, expected: wf.Tensor) -> bool:
    assert type(found) is wf.Tensor
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
    return True


@pytest.mark.parametrize("name", {**ARITHMETIC, **COMPARISONS})
@given(data=st.data())
def test_an_operator_is_its_function(name, data):
    names = {**ARITHMETIC, **COMPARISONS}[name]
    first, second = map(wf.asarray, data.draw(d.partners(names, positive=True)))
    expected = getattr(wf, FUNCTION_OF[name])(first, second)
    assert same(getattr(operator, name)(first, second), expected)
    method = f"__{name.strip('_')}__"
    assert same(getattr(first, method)(second), expected)
    if name in ARITHMETIC:
        assert same(getattr(second, f"__r{method[2:]}")(first), expected)


@pytest.mark.parametrize("name", ARITHMETIC)
@given(data=st.data())
def test_an_operator_in_place_rebinds_the_same_tensor(name, data):
    x = wf.asarray(data.draw(d.arrays(ARITHMETIC[name], positive=True)), copy=True)
    other = wf.asarray(data.draw(d.arrays((x.dtype.name,), x.shape, positive=True)))
    expected = getattr(operator, name)(x, other)
    updated = getattr(operator, f"i{name.strip('_')}")(x, other)
    assert updated is x
    assert same(x, expected)


@pytest.mark.parametrize("name", {**ARITHMETIC, **COMPARISONS})
@given(data=st.data())
def test_a_python_number_takes_the_dtype_of_the_tensor_on_either_side(name, data):
    names = {**ARITHMETIC, **COMPARISONS}[name]
    x = wf.asarray(data.draw(d.arrays(names, positive=True)), copy=True)
    number = NUMBERS[x.dtype.kind]
    beside = wf.asarray(number, dtype=x.dtype)
    function = getattr(operator, name)
    assert same(function(x, number), function(x, beside))
    assert same(function(number, x), function(beside, x))
    if name in ARITHMETIC:
        expected = function(x, beside)
        assert same(getattr(operator, f"i{name.strip('_')}")(x, number), expected)


@pytest.mark.promise("S0.4")
@pytest.mark.parametrize("names", ROWS, ids="-".join)
def test_dtypes_promote_by_the_table_of_the_standard(names):
    first, second, expected = map(dtype, names)
    x, y = wf.ones(2, dtype=first), wf.ones(2, dtype=second)
    assert wf.result_type(first, second) == wf.result_type(second, first) == expected
    assert wf.result_type(x, second) == expected
    function = wf.bitwise_or if names[0] == "bool" else wf.add
    assert function(x, y).dtype == function(y, x).dtype == expected
    assert wf.concat([x, y]).dtype == wf.where(x == x, x, y).dtype == expected


@pytest.mark.parametrize("signed", d.SIGNED)
def test_uint64_beside_a_signed_integer_raises_because_no_integer_holds_both(signed):
    x, y = wf.ones(2, dtype=dtype(signed)), wf.ones(2, dtype=wf.uint64)
    for call in (lambda: x + y, lambda: y * x, lambda: x < y, lambda: wf.result_type(x, y)):
        with pytest.raises(TypeError, match="no integer dtype holds both"):
            call()


@pytest.mark.parametrize("kind", ["b", "i", "u", "f"])
@pytest.mark.parametrize("name", ALL)
def test_a_number_of_a_higher_kind_lifts_the_kind_and_never_the_width(name, kind):
    x = wf.ones(2, dtype=dtype(name))
    found = wf.result_type(x, NUMBERS[kind])
    if x.dtype.kind in "fc" or kind == "b" or (kind in "iu" and name != "bool"):
        assert found == x.dtype
    else:
        assert found == (wf.int64 if kind in "iu" else wf.float32)


@pytest.mark.parametrize("name", INTEGERS)
def test_a_python_integer_out_of_range_raises(name):
    info = wf.iinfo(dtype(name))
    x = wf.ones(2, dtype=dtype(name))
    for number in (info.max + 1, info.min - 1):
        with pytest.raises(OverflowError, match="does not fit"):
            x + number
    assert (x * info.max).tolist() == [info.max] * 2


@pytest.mark.parametrize("symbol", ["add", "sub", "mul", "truediv", "mod", "pow"])
def test_arithmetic_on_bool_raises(symbol):
    x = wf.ones(2, dtype=wf.bool)
    with pytest.raises(TypeError, match="bool is not a number"):
        getattr(operator, symbol)(x, x)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("symbol", ["and_", "or_", "xor", "lshift", "rshift"])
def test_bits_of_floats_raise(symbol, name):
    x = wf.ones(2, dtype=dtype(name))
    with pytest.raises(TypeError, match="no meaning for float"):
        getattr(operator, symbol)(x, x)


def test_order_of_complex_numbers_raises():
    x = wf.ones(2, dtype=wf.complex64)
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        with pytest.raises(TypeError, match="complex64"):
            compare(x, x)


def test_matmul_is_an_operator_in_every_position():
    x, y = wf.asarray([[1.0, 2.0], [3.0, 4.0]]), wf.eye(2) * 2
    expected = wf.matmul(x, y)
    assert same(x @ y, expected)
    assert same(y.__rmatmul__(x), expected)
    held = x
    x @= y
    assert x is held
    assert same(x, expected)


def test_unary_operators_are_their_functions():
    x = wf.asarray([1, -2, 3])
    assert same(-x, wf.negative(x))
    assert same(+x, x)
    assert same(abs(x), wf.abs(x))
    assert same(~x, wf.bitwise_invert(x))
    assert same(~(x > 0), wf.logical_not(x > 0))


def test_in_place_operators_never_change_shape():
    x = wf.zeros((2, 1))
    with pytest.raises(ValueError, match="shape"):
        x += wf.ones((2, 3))


def test_in_place_operators_never_change_the_dtype():
    x = wf.zeros(2, dtype=wf.float32)
    with pytest.raises(TypeError, match="float64"):
        x += wf.ones(2, dtype=wf.float64)


@pytest.mark.parametrize("name", INTEGERS)
def test_a_tensor_without_axes_is_an_index(name):
    x = wf.asarray(2, dtype=dtype(name))
    assert [10, 20, 30][x] == 30
    assert (type(int(x)), int(x)) == (int, 2)
    assert operator.index(x) == 2


@pytest.mark.parametrize("name", ALL)
def test_a_tensor_without_axes_converts_to_python_numbers(name):
    x = wf.ones((), dtype=dtype(name))
    assert bool(x) is True
    assert complex(x) == 1 + 0j
    if x.dtype.kind != "c":
        assert (type(float(x)), float(x)) == (float, 1.0)
        assert (type(int(x)), int(x)) == (int, 1)
    else:
        for convert in (int, float):
            with pytest.raises(TypeError):
                convert(x)


@pytest.mark.parametrize("value", [wf.nan, wf.inf, -wf.inf])
def test_an_integer_of_nan_or_infinity_raises(value):
    with pytest.raises(ValueError):
        int(wf.asarray(value))


def test_a_tensor_of_several_elements_has_no_truth():
    with pytest.raises(ValueError, match="ambiguous"):
        bool(wf.ones(2))


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_a_function_of_two_operands_takes_a_python_number_on_either_side(name):
    function = getattr(wf, name)
    for type_name in WITH_NUMBERS[name]:
        x = wf.asarray([1, 2, 3], dtype=dtype(type_name))
        for kind in LOWER_KINDS[x.dtype.kind]:
            number = NUMBERS[kind]
            beside = wf.asarray(number, dtype=x.dtype)
            assert same(function(x, number), function(x, beside))
            assert same(function(number, x), function(beside, x))


def test_functions_of_three_operands_take_python_numbers():
    x = wf.asarray([1.0, 5.0, 9.0])
    assert same(wf.clip(x, 2, 6.5), wf.asarray([2.0, 5.0, 6.5]))
    assert same(wf.clip(x, max=6), wf.asarray([1.0, 5.0, 6.0]))
    assert same(wf.where(x > 2, x, 0), wf.asarray([0.0, 5.0, 9.0]))
    assert same(wf.where(x > 2, 1, x), wf.asarray([1.0, 1.0, 1.0]))
    assert wf.where(x > 2, 1, 0).dtype == wf.int64
    assert same(wf.isin(wf.asarray([1, 2]), 2), wf.asarray([False, True]))
    assert same(wf.searchsorted(x, 5.0), wf.asarray(1))
