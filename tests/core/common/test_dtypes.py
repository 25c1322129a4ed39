import enum
import itertools
import math

import array_api_strict
import ml_dtypes
import numpy as np
import pytest

from weft.core.common import dtypes as dt
from weft.errors import ArgumentError, CastError, DTypeError, UnsupportedDTypeError

STANDARD = [d for d in dt.ALL_DTYPES if d not in dt.NARROW]
DEFAULT_FLOATS = (dt.bfloat16, dt.float32, dt.float64)


def pairs_that_meet():
    for a, b in itertools.product(dt.ALL_DTYPES, repeat=2):
        if {a, b} & {dt.uint64} and {a, b} & set(dt.SIGNED):
            continue
        yield a, b


def outcome(*dtypes):
    """The common dtype, or the class of the error: so that failures can be compared too."""
    try:
        return dt.promote_all(*dtypes)
    except DTypeError as error:
        return type(error)


class Carrier:
    """Anything with a dtype is an array to the functions that ask for one."""

    def __init__(self, dtype):
        self.dtype = np.dtype(dtype)

    def __repr__(self):
        raise AssertionError("showing an array would compute its values")


@pytest.mark.promise("S4.38")
@pytest.mark.promise("S4.39")
@pytest.mark.promise("S4.40")
def test_every_promised_dtype_exists_under_its_name():
    names = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 "
    names += "float64 float8_e4m3 float8_e5m2 complex64 complex128"
    found = {name: dt.as_dtype(name) for name in names.split()}
    assert set(found.values()) == set(dt.ALL_DTYPES)
    assert len(dt.ALL_DTYPES) == 17
    for name, dtype in found.items():
        assert isinstance(dtype, np.dtype)
        assert getattr(dt, "bool_" if name == "bool" else name) is dtype
        assert dt.name_of(dtype) == name
        assert np.zeros(2, dtype).dtype == dtype


def test_float8_names_mean_the_formats_of_accelerators():
    assert dt.float8_e4m3.type is ml_dtypes.float8_e4m3fn
    assert dt.float8_e5m2.type is ml_dtypes.float8_e5m2
    assert dt.as_dtype("float8_e4m3fn") is dt.float8_e4m3


def test_each_dtype_has_exactly_one_kind():
    groups = ((dt.bool_,), dt.SIGNED, dt.UNSIGNED, dt.FLOATING, dt.COMPLEX)
    assert sorted(map(str, itertools.chain(*groups))) == sorted(map(str, dt.ALL_DTYPES))
    for dtype in dt.ALL_DTYPES:
        assert dt.is_bool(dtype) == (dtype == np.bool_)
        assert dt.is_integer(dtype) == (dtype in dt.INTEGERS)
        assert dt.is_floating(dtype) == (dtype in dt.FLOATING)
        assert dt.is_complex(dtype) == (dtype in dt.COMPLEX)
        assert dt.is_inexact(dtype) == (dt.is_floating(dtype) or dt.is_complex(dtype))
        assert dt.is_narrow(dtype) == (dt.is_floating(dtype) and dtype.itemsize < 4)
        assert dt.isdtype(dtype, dt.kind_name(dtype))


@pytest.mark.parametrize("dtype", dt.ALL_DTYPES, ids=dt.name_of)
def test_a_dtype_is_read_from_its_object_type_and_name(dtype):
    for spec in (dtype, dtype.type, dtype.name, dt.name_of(dtype)):
        assert dt.as_dtype(spec) is dtype


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("f4", dt.float32),
        ("<f8", dt.float64),
        ("=i2", dt.int16),
        ("?", dt.bool_),
        ("c8", dt.complex64),
        (bool, dt.bool_),
        ("bool", dt.bool_),
        (int, dt.int64),
        ("int", dt.int64),
        (np.longlong, dt.int64),
        (np.dtype("f4", metadata={"unit": "m"}), dt.float32),
    ],
    ids=str,
)
def test_numpy_spellings_and_aliases_become_one_object(spec, expected):
    assert dt.as_dtype(spec) is expected


@pytest.mark.parametrize("default", DEFAULT_FLOATS, ids=str)
def test_python_float_and_complex_follow_the_default_float(default):
    for spec in (float, "float"):
        assert dt.as_dtype(spec, default_float=default) is default
    expected = dt.complex128 if default == dt.float64 else dt.complex64
    for spec in (complex, "complex"):
        assert dt.as_dtype(spec, default_float=default) is expected
    assert dt.as_dtype(np.float64, default_float=default) is dt.float64


@pytest.mark.parametrize(
    "spec",
    [
        object,
        str,
        bytes,
        list,
        np.longdouble,
        np.clongdouble,
        np.datetime64,
        "timedelta64[s]",
        "U5",
        "V4",
        "i4,f4",
        "3f4",
        np.dtype([("x", "f4")]),
        np.dtype((np.float32, (2,))),
        np.floating,
        np.generic,
        ml_dtypes.int4,
        ml_dtypes.float8_e4m3fnuz,
        "no_such_dtype",
        "",
        None,
        3,
        ["f4"],
        {"names": ["x"], "formats": ["f4"]},
    ],
    ids=str,
)
def test_what_is_no_dtype_of_weft_is_refused_with_the_legal_ones(spec):
    with pytest.raises(UnsupportedDTypeError) as caught:
        dt.as_dtype(spec, op="zeros")
    message = str(caught.value)
    assert message.startswith("zeros: ")
    assert "\nhint: " in message
    for name in ("bool", "uint64", "bfloat16", "float8_e4m3,", "complex128"):
        assert name in message


def test_a_refused_dtype_is_named():
    with pytest.raises(UnsupportedDTypeError, match=r"^dtype: dtype object is not supported"):
        dt.as_dtype(np.dtype(object))
    with pytest.raises(UnsupportedDTypeError, match=r"dtype datetime64\[s\] is not supported"):
        dt.as_dtype("datetime64[s]")
    with pytest.raises(UnsupportedDTypeError, match=r"'flaot32' names no dtype"):
        dt.as_dtype("flaot32")
    with pytest.raises(
        UnsupportedDTypeError, match=r"float8_e4m3 of weft is ml_dtypes.float8_e4m3fn"
    ):
        dt.as_dtype(ml_dtypes.float8_e4m3)


def test_an_array_is_no_dtype_and_is_not_shown():
    with pytest.raises(UnsupportedDTypeError, match=r"got Carrier\nhint: pass x.dtype"):
        dt.as_dtype(Carrier("f4"))
    with pytest.raises(UnsupportedDTypeError, match=r"got ndarray\nhint: pass x.dtype"):
        dt.as_dtype(np.zeros(3))


def test_the_other_byte_order_is_refused_with_the_way_out():
    other = np.dtype("f4").newbyteorder()
    with pytest.raises(UnsupportedDTypeError) as caught:
        dt.as_dtype(other, op="asarray")
    message = str(caught.value)
    assert message.startswith(f"asarray: dtype {other.str!r} is float32 in the byte order")
    assert ".astype('<f4')" in message or ".astype('>f4')" in message
    assert "newbyteorder" in message


def test_promotion_agrees_with_the_array_api_wherever_it_speaks():
    checked = 0
    for a, b in itertools.product(STANDARD, repeat=2):
        strict_a = getattr(array_api_strict, dt.name_of(a))
        strict_b = getattr(array_api_strict, dt.name_of(b))
        try:
            expected = array_api_strict.result_type(strict_a, strict_b)
        except TypeError:
            continue
        assert dt.name_of(dt.promote(a, b)) == str(expected).rsplit(".", maxsplit=1)[-1]
        checked += 1
    # bool; 8 x 8 integers less uint64 with 4 signed, twice; 4 x 4 inexact.
    assert checked == 1 + (64 - 8) + 16


def test_promotion_agrees_with_numpy_within_a_kind_and_with_bool():
    for a, b in itertools.product(STANDARD, repeat=2):
        both_exact = not (dt.is_inexact(a) or dt.is_inexact(b))
        both_inexact = dt.is_inexact(a) and dt.is_inexact(b)
        if (a, b) in set(pairs_that_meet()) and (both_exact or both_inexact):
            assert dt.promote(a, b) == np.result_type(a, b)


@pytest.mark.parametrize("exact", (dt.bool_, *dt.INTEGERS), ids=str)
def test_an_integer_or_bool_takes_the_inexact_dtype_it_meets(exact):
    for inexact in (*dt.FLOATING, *dt.COMPLEX):
        assert dt.promote(exact, inexact) is inexact


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (dt.float16, dt.bfloat16, dt.float32),
        (dt.float8_e4m3, dt.float8_e5m2, dt.bfloat16),
        (dt.float8_e4m3, dt.float16, dt.float16),
        (dt.float8_e4m3, dt.bfloat16, dt.bfloat16),
        (dt.float8_e5m2, dt.float16, dt.float16),
        (dt.float8_e5m2, dt.bfloat16, dt.bfloat16),
        (dt.float8_e5m2, dt.float32, dt.float32),
        (dt.bfloat16, dt.float32, dt.float32),
        (dt.float16, dt.float64, dt.float64),
        (dt.bfloat16, dt.complex64, dt.complex64),
        (dt.float16, dt.complex128, dt.complex128),
        (dt.float64, dt.complex64, dt.complex128),
        (dt.float32, dt.complex64, dt.complex64),
    ],
    ids=str,
)
def test_narrow_floats_and_complex_promote_as_documented(a, b, expected):
    assert dt.promote(a, b) is expected


def test_promotion_is_symmetric_idempotent_and_an_upper_bound():
    for a, b in pairs_that_meet():
        meeting = dt.promote(a, b)
        assert meeting is dt.promote(b, a)
        assert dt.promote(a, meeting) is meeting
        assert dt.promote(b, meeting) is meeting
    for a in dt.ALL_DTYPES:
        assert dt.promote(a, a) is a
        assert dt.promote(a, dt.bool_) is a


def test_promotion_of_floats_loses_no_value():
    for a, b in itertools.product(dt.FLOATING, repeat=2):
        meeting = dt.finfo(dt.promote(a, b))
        for part in (dt.finfo(a), dt.finfo(b)):
            assert meeting.eps <= part.eps
            assert meeting.max >= part.max
            # Counting subnormals: e4m3 has normals down to 2**-6 and subnormals down to 2**-9.
            assert meeting.smallest_normal * meeting.eps <= part.smallest_normal * part.eps


def test_promotion_is_associative_but_for_both_float8s_with_float16():
    exception = {dt.float8_e4m3, dt.float8_e5m2, dt.float16}
    broken = set()
    for a, b, c in itertools.product(dt.ALL_DTYPES, repeat=3):
        try:
            left = dt.promote(dt.promote(a, b), c)
            right = dt.promote(a, dt.promote(b, c))
        except DTypeError:
            continue
        if left != right:
            broken.add(frozenset((a, b, c)))
    assert broken == {frozenset(exception)}


def test_promote_all_does_not_depend_on_order():
    for triple in itertools.combinations(dt.ALL_DTYPES, 3):
        outcomes = {outcome(*order) for order in itertools.permutations(triple)}
        assert len(outcomes) == 1, triple
    assert dt.promote_all(dt.uint64, dt.int64, dt.float32) is dt.float32
    assert dt.promote_all(dt.float8_e4m3, dt.float8_e5m2, dt.float16) is dt.float16


def test_promote_all_of_one_or_two_is_plain_promotion():
    for a, b in pairs_that_meet():
        assert dt.promote_all(a) is a
        assert dt.promote_all(a, b) is dt.promote(a, b)
    with pytest.raises(DTypeError, match=r"^promote_all: at least one dtype is needed"):
        dt.promote_all()


@pytest.mark.parametrize("signed", dt.SIGNED, ids=str)
def test_uint64_with_a_signed_integer_raises_instead_of_losing_bits(signed):
    for a, b in ((dt.uint64, signed), (signed, dt.uint64)):
        with pytest.raises(DTypeError) as caught:
            dt.promote(a, b, op="add")
        message = str(caught.value)
        assert message.startswith(f"add: no integer dtype holds both {a} and {b}\nhint: cast")
        with pytest.raises(DTypeError):
            dt.promote_all(a, b, dt.uint8)


def test_promote_takes_aliases_and_refuses_foreign_dtypes():
    assert dt.promote(np.dtype(np.longlong), dt.int8) is dt.int64
    with pytest.raises(UnsupportedDTypeError, match=r"^add: dtype object is not supported"):
        dt.promote(np.dtype(object), dt.float32, op="add")
    with pytest.raises(UnsupportedDTypeError, match="got list"):
        dt.promote([], dt.float32)


@pytest.mark.parametrize("default", DEFAULT_FLOATS, ids=str)
@pytest.mark.parametrize("dtype", dt.ALL_DTYPES, ids=dt.name_of)
def test_a_python_scalar_lifts_the_kind_but_not_the_width(dtype, default):
    assert dt.weak_dtype(bool, dtype, default) is dtype
    assert dt.weak_dtype(int, dtype, default) is (dt.int64 if dt.is_bool(dtype) else dtype)
    assert dt.weak_dtype(float, dtype, default) is (dtype if dt.is_inexact(dtype) else default)
    source = dtype if dt.is_inexact(dtype) else default
    expected = dt.complex128 if source in (dt.float64, dt.complex128) else dt.complex64
    assert dt.weak_dtype(complex, dtype, default) is expected


def test_weak_scalars_agree_with_numpy_on_inexact_tensors():
    for dtype in (dt.float32, dt.float64, dt.complex64, dt.complex128):
        for value in (True, 1, 1.0, 1j):
            expected = (np.ones(1, dtype) * value).dtype
            assert dt.weak_dtype(type(value), dtype) == expected


def test_only_python_scalar_types_are_weak():
    with pytest.raises(DTypeError, match=r"weak_dtype: <class 'str'> is not a Python scalar type"):
        dt.weak_dtype(str, dt.float32)


@pytest.mark.parametrize("dtype", dt.INTEGERS, ids=str)
def test_an_integer_fits_exactly_up_to_the_limits_of_its_dtype(dtype):
    info = np.iinfo(dtype)
    for value in (int(info.min), 0, 1, int(info.max)):
        dt.check_scalar_fits(value, dtype, "add")
    for value in (int(info.min) - 1, int(info.max) + 1):
        with pytest.raises(CastError) as caught:
            dt.check_scalar_fits(value, dtype, "add")
        message = str(caught.value)
        assert message.startswith(f"add: Python int {value} does not fit {dtype} ")
        assert f"(range {info.min} to {info.max})\nhint: " in message


def test_the_hint_names_the_integers_that_hold_the_value():
    with pytest.raises(CastError, match=r"hint: cast the tensor to int64 or uint64$"):
        dt.check_scalar_fits(2**40, dt.int8, "add")
    with pytest.raises(CastError, match=r"hint: use a float dtype$"):
        dt.check_scalar_fits(2**64, dt.int8, "add")


def test_an_integer_past_every_float_is_refused_without_printing_its_digits():
    dt.check_scalar_fits(2**1000, dt.float32, "mul")
    for dtype in (dt.float16, dt.float64, dt.complex64):
        with pytest.raises(CastError, match=r"^mul: a Python int of 20001 bits"):
            dt.check_scalar_fits(2**20000, dtype, "mul")
    with pytest.raises(CastError, match=r"^mul: Python int of 20001 bits does not fit int8"):
        dt.check_scalar_fits(-(2**20000), dt.int8, "mul")


def test_floats_and_bools_are_casts_and_always_pass():
    for value in (True, 1.5, math.inf, 300.0, 1j):
        dt.check_scalar_fits(value, dt.int8, "full")
    dt.check_scalar_fits(7, dt.bool_, "full")


class Size(enum.IntEnum):
    SMALL = 1


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        ((dt.int8, 3), dt.int8),
        ((3, dt.int8), dt.int8),
        ((dt.int8, 3.0), dt.float32),
        ((dt.int8, 3.0, dt.float16), dt.float16),
        ((dt.bool_, True), dt.bool_),
        ((dt.bool_, 1), dt.int64),
        ((dt.bool_, 1, 1j), dt.complex64),
        ((dt.float64, 1j), dt.complex128),
        ((dt.bfloat16, 2, 0.5), dt.bfloat16),
        ((Size.SMALL, dt.int8), dt.int8),
        ((np.float64(1), dt.float32), dt.float64),
        ((np.int8(1), np.zeros(2, "i4")), dt.int32),
        ((Carrier("u1"), Carrier("i1")), dt.int16),
        ((np.float16, "float32"), dt.float32),
        ((ml_dtypes.bfloat16, np.zeros(1, "f2")), dt.float32),
        ((True,), dt.bool_),
        ((1,), dt.int64),
        ((1, 2.0), dt.float32),
        ((1j,), dt.complex64),
    ],
)
def test_result_type_mixes_arrays_dtypes_and_weak_scalars(operands, expected):
    assert dt.result_type(*operands) is expected
    assert dt.result_type(*reversed(operands)) is expected


def test_result_type_follows_the_default_float():
    assert dt.result_type(dt.int8, 1.0, default_float=dt.float64) is dt.float64
    assert dt.result_type(1j, default_float=dt.float64) is dt.complex128
    assert dt.result_type(dt.int8, float, default_float=dt.float64) is dt.float64


def test_result_type_refuses_nothing_and_what_has_no_dtype():
    with pytest.raises(DTypeError, match="result_type: at least one operand"):
        dt.result_type()
    with pytest.raises(UnsupportedDTypeError, match=r"^add: expected a dtype.*got NoneType"):
        dt.result_type(dt.int8, None, op="add")
    with pytest.raises(UnsupportedDTypeError, match=r"^result_type: dtype object"):
        dt.result_type(np.array([None]))


def test_can_cast_holds_exactly_where_promotion_reaches_the_target():
    for a, b in itertools.product(dt.ALL_DTYPES, repeat=2):
        assert dt.can_cast(a, b) == (outcome(a, b) == b)
        assert dt.can_cast(Carrier(a), b) == dt.can_cast(a, b)


def test_can_cast_agrees_with_numpy_within_a_kind():
    for kind in (dt.INTEGERS, (dt.float32, dt.float64), dt.COMPLEX):
        for a, b in itertools.product(kind, repeat=2):
            assert dt.can_cast(a, b) == np.can_cast(a, b)


KINDS = (
    "bool",
    "signed integer",
    "unsigned integer",
    "integral",
    "real floating",
    "complex floating",
    "numeric",
)


def test_isdtype_agrees_with_numpy_on_every_kind():
    for dtype, kind in itertools.product(STANDARD, KINDS):
        assert dt.isdtype(dtype, kind) == np.isdtype(dtype, kind), (dtype, kind)
    for a, b in itertools.product(dt.ALL_DTYPES, repeat=2):
        assert dt.isdtype(a, b) == (a == b)
        assert dt.isdtype(a, (b, "bool")) == (a in (b, dt.bool_))


def test_narrow_floats_are_real_floating_and_numeric():
    for dtype in dt.NARROW:
        assert dt.isdtype(dtype, "real floating")
        assert dt.isdtype(dtype, ("bool", "numeric"))
        assert not dt.isdtype(dtype, ("integral", "complex floating", "bool"))
    assert not dt.isdtype(dt.float32, ())


@pytest.mark.parametrize("kind", ["float", "float32", "integer", "", ("integral", "flaot")])
def test_a_misspelt_kind_is_refused_with_the_legal_ones(kind):
    with pytest.raises(
        ArgumentError, match=r"^isdtype: .* is not a kind of dtype\nhint: "
    ) as caught:
        dt.isdtype(dt.int8, kind)
    assert isinstance(caught.value, ValueError)
    assert all(repr(name) in str(caught.value) for name in KINDS)


@pytest.mark.parametrize("kind", [None, 3, ["bool"], (("bool",),)], ids=str)
def test_a_kind_of_a_wrong_type_is_refused(kind):
    with pytest.raises(ArgumentError, match=r"^isdtype: a kind is a string, a dtype, or a flat"):
        dt.isdtype(dt.int8, kind)


@pytest.mark.parametrize("dtype", (*dt.FLOATING, *dt.COMPLEX), ids=dt.name_of)
def test_finfo_agrees_with_numpy_and_ml_dtypes(dtype):
    part = dt.real_of(dtype)
    expected = ml_dtypes.finfo(part) if part in dt.NARROW else np.finfo(part)
    for argument in (dtype, dtype.type, dt.name_of(dtype), np.zeros(2, dtype), Carrier(dtype)):
        info = dt.finfo(argument)
        assert info.bits == expected.bits == part.itemsize * 8
        assert info.dtype is part
        for field in ("eps", "max", "min", "smallest_normal"):
            value = getattr(info, field)
            assert type(value) is float
            assert value == float(getattr(expected, field))
    one = np.ones((), part)
    assert float(one + np.asarray(info.eps, part)) == 1.0 + info.eps
    assert np.isfinite(np.asarray(info.max, part)) and info.min == -info.max


@pytest.mark.parametrize("dtype", dt.INTEGERS, ids=str)
def test_iinfo_agrees_with_numpy(dtype):
    expected = np.iinfo(dtype)
    for argument in (dtype, dtype.type, dtype.name, np.zeros(2, dtype), Carrier(dtype)):
        info = dt.iinfo(argument)
        assert (info.bits, info.max, info.min) == (expected.bits, expected.max, expected.min)
        assert type(info.max) is type(info.min) is int
        assert info.dtype is dtype


def test_finfo_and_iinfo_refuse_the_other_kinds():
    with pytest.raises(DTypeError, match=r"^finfo: int8 is not a float or complex dtype"):
        dt.finfo(dt.int8)
    with pytest.raises(DTypeError, match=r"^iinfo: float32 is not an integer dtype\nhint: use"):
        dt.iinfo(dt.float32)
    with pytest.raises(DTypeError, match=r"^iinfo: bool is not an integer dtype$"):
        dt.iinfo(dt.bool_)
    with pytest.raises(UnsupportedDTypeError, match=r"^finfo: dtype .* is not supported"):
        dt.finfo(np.longdouble)


@pytest.mark.parametrize("dtype", STANDARD, ids=str)
def test_sums_accumulate_in_the_dtype_the_array_api_asks_for(dtype):
    # NumPy follows the same rule where its default integer has 64 bits.
    assert dt.accumulation_dtype(dtype) == np.sum(np.zeros(1, dtype)).dtype


def test_narrow_sums_keep_their_dtype():
    for dtype in dt.NARROW:
        assert dt.accumulation_dtype(dtype) is dtype


def test_real_and_complex_counterparts():
    assert dt.real_of(dt.complex64) is dt.float32
    assert dt.real_of(dt.complex128) is dt.float64
    for dtype in set(dt.ALL_DTYPES) - set(dt.COMPLEX):
        assert dt.real_of(dtype) is dtype
    for dtype in dt.COMPLEX:
        assert dt.complex_of(dtype) is dtype
        assert dt.complex_of(dt.real_of(dtype)) is dtype
    for dtype in dt.NARROW:
        assert dt.complex_of(dtype) is dt.complex64
    with pytest.raises(DTypeError, match=r"^complex_of: int8 has no complex counterpart"):
        dt.complex_of(dt.int8)
