"""The dtypes of weft, how they mix, and what can be asked of them.

A dtype is a plain `numpy.dtype`; bfloat16 and the float8s come from ml_dtypes. Mixing follows the
Python array API, extended to mixed kinds: bool < integers < floats < complex, and the higher kind
keeps its width. Python scalars are weak: they adapt to the tensor they meet. The default float is
a parameter here; whoever calls knows the context it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, reduce
from reprlib import repr as short_repr
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from weft.core.common.types import DType
from weft.errors import ArgumentError, CastError, DTypeError, UnsupportedDTypeError

DTypeLike: TypeAlias = DType | type[Any] | str
PythonScalar: TypeAlias = bool | int | float | complex

bool_: Final[DType] = np.dtype(np.bool_)
int8: Final[DType] = np.dtype(np.int8)
int16: Final[DType] = np.dtype(np.int16)
int32: Final[DType] = np.dtype(np.int32)
int64: Final[DType] = np.dtype(np.int64)
uint8: Final[DType] = np.dtype(np.uint8)
uint16: Final[DType] = np.dtype(np.uint16)
uint32: Final[DType] = np.dtype(np.uint32)
uint64: Final[DType] = np.dtype(np.uint64)
float8_e4m3: Final[DType] = np.dtype(ml_dtypes.float8_e4m3fn)
float8_e5m2: Final[DType] = np.dtype(ml_dtypes.float8_e5m2)
float16: Final[DType] = np.dtype(np.float16)
bfloat16: Final[DType] = np.dtype(ml_dtypes.bfloat16)
float32: Final[DType] = np.dtype(np.float32)
float64: Final[DType] = np.dtype(np.float64)
complex64: Final[DType] = np.dtype(np.complex64)
complex128: Final[DType] = np.dtype(np.complex128)

SIGNED: Final = (int8, int16, int32, int64)
UNSIGNED: Final = (uint8, uint16, uint32, uint64)
INTEGERS: Final = SIGNED + UNSIGNED
NARROW: Final = (float8_e4m3, float8_e5m2, float16, bfloat16)
FLOATING: Final = (*NARROW, float32, float64)
COMPLEX: Final = (complex64, complex128)
# From the lowest kind to the highest, and by width within a kind: `promote_all` relies on it.
ALL_DTYPES: Final = (bool_, *INTEGERS, *FLOATING, *COMPLEX)

_KIND_MEMBERS: Final[dict[str, tuple[DType, ...]]] = {
    "bool": (bool_,),
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "real floating": FLOATING,
    "complex floating": COMPLEX,
}
_KIND: Final = {dt: kind for kind, members in _KIND_MEMBERS.items() for dt in members}
_KIND_SETS: Final[dict[str, frozenset[DType]]] = {
    **{kind: frozenset(members) for kind, members in _KIND_MEMBERS.items()},
    "integral": frozenset(INTEGERS),
    "numeric": frozenset(ALL_DTYPES) - {bool_},
}
_INTEGER_SET: Final = frozenset(INTEGERS)
_FLOATING_SET: Final = frozenset(FLOATING)
_COMPLEX_SET: Final = frozenset(COMPLEX)
_INEXACT_SET: Final = _FLOATING_SET | _COMPLEX_SET
_NARROW_SET: Final = frozenset(NARROW)
_RANK: Final = {dt: rank for rank, dt in enumerate(ALL_DTYPES)}

_NAMES: Final = {dt: "float8_e4m3" if dt == float8_e4m3 else dt.name for dt in ALL_DTYPES}
_LEGAL: Final = ", ".join(_NAMES.values())
# Every spec that needs no parsing. Values are the objects above, so that aliases of one dtype
# (NumPy has two 64-bit integers on most systems) become a single object.
_SPECS: Final[dict[Any, DType]] = {
    **{dt: dt for dt in ALL_DTYPES},
    **{dt.type: dt for dt in ALL_DTYPES},
    **{dt.name: dt for dt in ALL_DTYPES},
    **{name: dt for dt, name in _NAMES.items()},
    bool: bool_,
    int: int64,
    "int": int64,
}
# Bool before int: isinstance(True, int) holds, and the first match names the weak type.
_SCALAR_TYPES: Final[tuple[type[PythonScalar], ...]] = (bool, int, float, complex)
_EXACT_SCALARS: Final[dict[type[Any], type[PythonScalar]]] = {kind: kind for kind in _SCALAR_TYPES}
_SCALAR_RANK: Final = {kind: rank for rank, kind in enumerate(_SCALAR_TYPES)}


def is_bool(dtype: DType) -> bool:
    """Tell whether a dtype is bool."""
    return dtype == bool_


def is_integer(dtype: DType) -> bool:
    """Tell whether a dtype is a signed or unsigned integer (bool is neither)."""
    return dtype in _INTEGER_SET


def is_floating(dtype: DType) -> bool:
    """Tell whether a dtype is a real float of any width."""
    return dtype in _FLOATING_SET


def is_complex(dtype: DType) -> bool:
    """Tell whether a dtype is complex."""
    return dtype in _COMPLEX_SET


def is_inexact(dtype: DType) -> bool:
    """Tell whether a dtype is a real float or complex, so that a gradient can have it."""
    return dtype in _INEXACT_SET


def is_narrow(dtype: DType) -> bool:
    """Tell whether a dtype is a float of 8 or 16 bits, which sums in float32."""
    return dtype in _NARROW_SET


def name_of(dtype: DType) -> str:
    """Give the name weft exports a dtype under.

    >>> name_of(float8_e4m3), name_of(bool_)
    ('float8_e4m3', 'bool')
    """
    return _NAMES[as_dtype(dtype, op="name_of")]


def kind_name(dtype: DType) -> str:
    """Name the kind of a dtype in the words that `isdtype` takes.

    >>> kind_name(uint8), kind_name(bfloat16)
    ('unsigned integer', 'real floating')
    """
    return _KIND[as_dtype(dtype, op="kind_name")]


def as_dtype(spec: DTypeLike, *, op: str = "dtype", default_float: DType = float32) -> DType:
    """Turn what a user writes for a dtype into the dtype, or raise `UnsupportedDTypeError`.

    Dtypes, NumPy and ml_dtypes scalar types, strings, and Python's `bool`, `int`, `float` and
    `complex` are accepted; the last two follow `default_float`.

    >>> as_dtype("bfloat16"), as_dtype(float), as_dtype("f8")
    (dtype(bfloat16), dtype('float32'), dtype('float64'))
    """
    try:
        return _SPECS[spec]
    except (KeyError, TypeError):  # TypeError: a spec that cannot be hashed, such as a list
        pass
    parsed = _parse(spec, op)
    if spec is float or spec == "float":
        return default_float
    if spec is complex or spec == "complex":
        return complex_of(default_float)
    known = _SPECS.get(parsed)
    if known is None:
        raise _unsupported(spec, parsed, op)
    return known


def _parse(spec: object, op: str) -> DType:
    """Let NumPy read a spec; arrays, None and lists are refused before NumPy guesses at them."""
    if isinstance(spec, np.dtype):
        return spec
    if not isinstance(spec, type | str):
        # The repr of a tensor would compute its values: an array is named by its type alone.
        is_array = hasattr(spec, "dtype")
        shown = type(spec).__name__ if is_array else f"{type(spec).__name__} ({short_repr(spec)})"
        hint = "pass x.dtype" if is_array else f"the dtypes are {_LEGAL}"
        if type(spec) is int:
            hint = f"several sizes are one argument, a tuple such as (3, 4); {hint}"
        raise UnsupportedDTypeError(
            f"{op}: expected a dtype, a scalar type or a string, got {shown}\nhint: {hint}"
        )
    try:
        return np.dtype(spec)
    except (TypeError, ValueError, SyntaxError) as error:
        raise UnsupportedDTypeError(
            f"{op}: {spec!r} names no dtype\nhint: the dtypes are {_LEGAL}"
        ) from error


def _unsupported(spec: DTypeLike, parsed: DType, op: str) -> UnsupportedDTypeError:
    """Say why a dtype that NumPy has is not one of weft's."""
    native = parsed.newbyteorder("=")
    if native in _SPECS:
        return UnsupportedDTypeError(
            f"{op}: dtype {parsed.str!r} is {native.name} in the byte order of another machine\n"
            f"hint: convert the array first: x.astype({native.str!r}), "
            f"or x.astype(x.dtype.newbyteorder('='))"
        )
    shown = f"{parsed} ({spec!r})" if isinstance(spec, type) else str(parsed)
    hint = f"the dtypes are {_LEGAL}"
    if parsed.type is ml_dtypes.float8_e4m3:
        hint = f"float8_e4m3 of weft is ml_dtypes.float8_e4m3fn; {hint}"
    return UnsupportedDTypeError(f"{op}: dtype {shown} is not supported\nhint: {hint}")


def _join(a: DType, b: DType) -> DType | None:
    """Find the dtype in which two meet, or None where every choice would lose values."""
    if a == b or b == bool_:
        return a
    if a == bool_:
        return b
    if a in _INTEGER_SET and b in _INTEGER_SET:
        # NumPy answers float64 for uint64 and a signed integer, which drops bits past 2**53.
        return None if uint64 in (a, b) and _KIND[a] != _KIND[b] else np.promote_types(a, b)
    if a in _INTEGER_SET or b in _INTEGER_SET:
        return b if a in _INTEGER_SET else a
    if a in _COMPLEX_SET or b in _COMPLEX_SET:
        return complex128 if {a, b} & {float64, complex128} else complex64
    if a.itemsize != b.itemsize:
        return a if a.itemsize > b.itemsize else b
    # Equal widths of different formats: only the next one up holds both exponents and mantissas.
    return float32 if a.itemsize == 2 else bfloat16


_PROMOTED: Final[dict[tuple[DType, DType], DType]] = {
    (a, b): joined for a in ALL_DTYPES for b in ALL_DTYPES if (joined := _join(a, b)) is not None
}


def promote(a: DType, b: DType, *, op: str = "promote") -> DType:
    """Give the dtype of a result whose operands have dtypes `a` and `b`.

    uint64 with a signed integer raises `DTypeError`: no integer dtype holds both.

    >>> promote(int64, float16), promote(float16, bfloat16), promote(uint8, int8)
    (dtype('float16'), dtype('float32'), dtype('int16'))
    """
    try:
        return _PROMOTED[a, b]
    except (KeyError, TypeError):  # TypeError: an operand that cannot be hashed
        pass
    first, second = as_dtype(a, op=op), as_dtype(b, op=op)
    joined = _PROMOTED.get((first, second))
    if joined is None:
        raise DTypeError(
            f"{op}: no integer dtype holds both {first} and {second}\n"
            f"hint: cast one operand: to int64 if the values stay below 2**63, to uint64 if none "
            f"is negative, to float64 if rounding past 2**53 is acceptable"
        )
    return joined


def promote_all(*dtypes: DType, op: str = "promote_all") -> DType:
    """Give the dtype in which all of one or more dtypes meet, whatever their order.

    Highest kinds are joined first. So uint64, int64 and float32 meet in float32 although the first
    two alone do not meet, and both float8s with float16 give float16.
    """
    if not dtypes:
        raise DTypeError(f"{op}: at least one dtype is needed (got none)")
    if len(dtypes) == 2:
        return promote(*dtypes, op=op)
    distinct = {as_dtype(dt, op=op) for dt in dtypes}
    ordered = sorted(distinct, key=_RANK.__getitem__, reverse=True)
    return reduce(lambda a, b: promote(a, b, op=op), ordered)


def weak_dtype(
    scalar_type: type[PythonScalar], dtype: DType, default_float: DType = float32
) -> DType:
    """Give the dtype of a result where a Python scalar of `scalar_type` meets a tensor of `dtype`.

    The scalar only lifts the kind (bool to int to float to complex), never the width.

    >>> weak_dtype(float, bfloat16), weak_dtype(float, int32), weak_dtype(int, bool_)
    (dtype(bfloat16), dtype('float32'), dtype('int64'))
    """
    if scalar_type is bool:
        return dtype
    if scalar_type is int:
        return int64 if dtype == bool_ else dtype
    if scalar_type is float:
        return dtype if dtype in _INEXACT_SET else default_float
    if scalar_type is complex:
        return complex_of(dtype if dtype in _INEXACT_SET else default_float)
    raise DTypeError(
        f"weak_dtype: {scalar_type!r} is not a Python scalar type\n"
        f"hint: the weak types are bool, int, float and complex"
    )


def check_scalar_fits(value: PythonScalar, dtype: DType, op: str) -> None:
    """Raise `CastError` if a Python integer cannot be stored in `dtype`.

    Floats, complex numbers and bools pass: converting them is a cast, with the rules of casts.
    An integer may be rounded by a float dtype, but must lie in the range of float64.
    """
    if not isinstance(value, int) or dtype == bool_:
        return
    info = _INT_INFO.get(dtype)
    if info is None:
        try:
            float(value)
        except OverflowError:
            raise CastError(
                f"{op}: a Python int of {value.bit_length()} bits is past the range of every float "
                f"(dtype {name_of(dtype)})\nhint: scale the value before it meets the tensor"
            ) from None
    elif not info.min <= value <= info.max:
        holders = [name_of(dt) for dt, i in _INT_INFO.items() if i.min <= value <= i.max]
        remedy = f"cast the tensor to {' or '.join(holders)}" if holders else "use a float dtype"
        raise CastError(
            f"{op}: Python int {_shorten(value)} does not fit {dtype} "
            f"(range {info.min} to {info.max})\nhint: {remedy}"
        )


def _shorten(value: int) -> str:
    """Write an integer, or its size where the digits would fill a screen (or be refused)."""
    return str(value) if value.bit_length() <= 256 else f"of {value.bit_length()} bits"


def _scalar_type(value: object) -> type[PythonScalar] | None:
    """Give the weak type of a Python scalar; None for anything that carries a dtype of its own."""
    exact = _EXACT_SCALARS.get(type(value))
    if exact is not None:
        return exact
    if isinstance(value, (np.dtype, np.generic)):  # np.float64 is a float too, but a strong one
        return None
    return next((kind for kind in _SCALAR_TYPES if isinstance(value, kind)), None)


def _dtype_of(thing: Any, op: str, default_float: DType = float32) -> DType:
    """Give the dtype of an array, or of a spec that `as_dtype` reads."""
    # Scalar types such as np.float32 have an attribute `dtype` too: a descriptor, not a dtype.
    if not isinstance(thing, (np.dtype, type, str)) and hasattr(thing, "dtype"):
        return as_dtype(thing.dtype, op=op, default_float=default_float)
    return as_dtype(thing, op=op, default_float=default_float)


def result_type(*operands: Any, default_float: DType = float32, op: str = "result_type") -> DType:
    """Give the dtype that tensors, dtypes and Python scalars have together.

    >>> result_type(int8, 3), result_type(int8, 3.0), result_type(float16, float32, 1j)
    (dtype('int8'), dtype('float32'), dtype('complex64'))
    """
    if not operands:
        raise DTypeError(f"{op}: at least one operand is needed (got none)")
    weak: list[type[PythonScalar]] = []
    strong: list[DType] = []
    for operand in operands:
        scalar_type = _scalar_type(operand)
        if scalar_type is None:
            strong.append(_dtype_of(operand, op, default_float))
        else:
            weak.append(scalar_type)
    dtype = promote_all(*strong, op=op) if strong else bool_
    if not weak:
        return dtype
    return weak_dtype(max(weak, key=_SCALAR_RANK.__getitem__), dtype, default_float)


def promote_types(type1: DTypeLike, type2: DTypeLike) -> DType:
    """Give the dtype in which two dtypes meet, by the rules of tensors.

    >>> promote_types("int64", "float32"), promote_types(uint8, int8)
    (dtype('float32'), dtype('int16'))
    """
    op = "promote_types"
    return promote(as_dtype(type1, op=op), as_dtype(type2, op=op), op=op)


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Tell whether a dtype is another one, or of a kind that NumPy has a class for.

    Every float of weft is an `np.floating`, also those that NumPy does not have.

    >>> issubdtype(bfloat16, np.floating), issubdtype("int32", np.floating), issubdtype(int8, int8)
    (True, False, True)
    """
    first, second = _scalar_class(arg1), _scalar_class(arg2)
    is_foreign_float = any(first is dt.type for dt in NARROW)
    return issubclass(first, second) or (is_foreign_float and issubclass(np.floating, second))


def _scalar_class(spec: Any) -> type[Any]:
    """Give NumPy's class for the scalars of a dtype; a class of it stands for itself."""
    if isinstance(spec, type) and issubclass(spec, np.generic):
        return spec
    found: type[Any] = as_dtype(spec, op="issubdtype").type
    return found


def can_cast(from_: Any, to: DTypeLike) -> bool:
    """Tell whether promotion alone takes `from_`, a dtype or an array, to the dtype `to`.

    >>> can_cast(int8, int16), can_cast(int16, int8), can_cast(float32, int32)
    (True, False, False)
    """
    source, target = _dtype_of(from_, "can_cast"), as_dtype(to, op="can_cast")
    return _PROMOTED.get((source, target)) == target


def isdtype(dtype: DTypeLike, kind: DTypeLike | tuple[DTypeLike, ...]) -> bool:
    """Tell whether a dtype is of a kind: a dtype, a kind's name, or a tuple of these.

    >>> isdtype(uint8, "integral"), isdtype(float32, ("bool", float64))
    (True, False)
    """
    candidate = as_dtype(dtype, op="isdtype")
    # Every entry is looked at, so that a misspelt kind is found even behind one that matches.
    entries: Iterable[DTypeLike] = kind if isinstance(kind, tuple) else (kind,)
    return any([candidate in _members(entry) for entry in entries])


def _members(kind: DTypeLike) -> frozenset[DType]:
    """Give the dtypes of one kind; a string is always the name of a kind, never of a dtype."""
    if isinstance(kind, str):
        members = _KIND_SETS.get(kind)
        if members is None:
            raise ArgumentError(
                f"isdtype: {kind!r} is not a kind of dtype\n"
                f"hint: the kinds are {', '.join(map(repr, _KIND_SETS))}; "
                f"to compare with one dtype, pass the dtype itself"
            )
        return members
    if isinstance(kind, np.dtype | type):
        return frozenset((as_dtype(kind, op="isdtype"),))
    raise ArgumentError(
        f"isdtype: a kind is a string, a dtype, or a flat tuple of these, not {kind!r}"
    )


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """Limits of a float dtype, as Python floats."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True, slots=True)
class IntInfo:
    """Limits of an integer dtype, as Python integers."""

    bits: int
    max: int
    min: int
    dtype: DType


# ml_dtypes is typed, except for this class; it answers for NumPy's own floats too.
_read_limits: Final[Callable[[DType], Any]] = ml_dtypes.finfo


@cache
def _float_info(dtype: DType) -> FloatInfo:
    """Read the limits of a real float dtype."""
    info = _read_limits(dtype)
    return FloatInfo(
        bits=info.bits,
        eps=float(info.eps),
        max=float(info.max),
        min=float(info.min),
        smallest_normal=float(info.smallest_normal),
        dtype=dtype,
    )


def _int_info(dtype: DType) -> IntInfo:
    """Read the limits of an integer dtype."""
    info = np.iinfo(dtype)
    return IntInfo(bits=info.bits, max=int(info.max), min=int(info.min), dtype=dtype)


_INT_INFO: Final = {dt: _int_info(dt) for dt in INTEGERS}


def finfo(type_: Any) -> FloatInfo:
    """Give the limits of a float dtype, or of the parts of a complex one; arrays are accepted.

    >>> finfo(bfloat16).eps, finfo(complex64).dtype
    (0.0078125, dtype('float32'))
    """
    dtype = _dtype_of(type_, "finfo")
    if dtype not in _INEXACT_SET:
        raise DTypeError(f"finfo: {dtype} is not a float or complex dtype\nhint: use iinfo")
    return _float_info(real_of(dtype))


def iinfo(type_: Any) -> IntInfo:
    """Give the limits of an integer dtype; arrays are accepted.

    >>> iinfo(int8).min, iinfo(uint8).max
    (-128, 255)
    """
    dtype = _dtype_of(type_, "iinfo")
    if dtype not in _INTEGER_SET:
        hint = "\nhint: use finfo" if dtype in _INEXACT_SET else ""
        raise DTypeError(f"iinfo: {name_of(dtype)} is not an integer dtype{hint}")
    return _INT_INFO[dtype]


def accumulation_dtype(dtype: DType) -> DType:
    """Give the dtype of a sum or product when the caller names none: integers become 64 bits wide.

    >>> accumulation_dtype(uint8), accumulation_dtype(bool_), accumulation_dtype(float16)
    (dtype('uint64'), dtype('int64'), dtype('float16'))
    """
    kind = _KIND[as_dtype(dtype, op="accumulation_dtype")]
    if kind == "unsigned integer":
        return uint64
    return int64 if kind in ("bool", "signed integer") else dtype


def real_of(dtype: DType) -> DType:
    """Give the dtype of the parts of a complex dtype; a real dtype is its own part."""
    if dtype in _COMPLEX_SET:
        return float32 if dtype == complex64 else float64
    return as_dtype(dtype, op="real_of")


def complex_of(dtype: DType) -> DType:
    """Give the narrowest complex dtype that holds a float dtype; complex dtypes stay as they are.

    >>> complex_of(bfloat16), complex_of(float64)
    (dtype('complex64'), dtype('complex128'))
    """
    if dtype in _COMPLEX_SET:
        return dtype
    if dtype not in _FLOATING_SET:
        raise DTypeError(
            f"complex_of: {as_dtype(dtype, op='complex_of')} has no complex counterpart\n"
            f"hint: cast to a float dtype first"
        )
    return complex128 if dtype == float64 else complex64


__all__ = [
    "bfloat16",
    "bool_",
    "can_cast",
    "complex64",
    "complex128",
    "finfo",
    "float8_e4m3",
    "float8_e5m2",
    "float16",
    "float32",
    "float64",
    "iinfo",
    "int8",
    "int16",
    "int32",
    "int64",
    "isdtype",
    "issubdtype",
    "promote_types",
    "result_type",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
