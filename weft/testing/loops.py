"""A naive interpreter of kernels: runs `body`, `at` or `into` one scalar at a time.

It is the meaning of an op's loop form, slow and plain, and is compared with the op's NumPy
reference; `Reference` spells the scalar instructions with NumPy scalars.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from weft.core.common.types import Array, TensorType
from weft.ops.base import Operation
from weft.ops.elementwise.special_functions import tanh_share
from weft.ops.functions.fused import fma
from weft.ops.functions.numpy_scalars import larger, smaller

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "max": larger,
    "min": smaller,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "last": lambda x, y: y,
}
_CALLS: dict[str, str] = {
    "short_exp2": "exp2",
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
    "atan2": "arctan2",
    "pow": "power",
    "lgamma": "gammaln",
    "sigmoid": "expit",
    "normal_share": "ndtr",
}


def _floor_like(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return staticmethod(lambda x: x if np.asarray(x).dtype.kind in "biu" else function(x))


class Reference:
    """Scalar instructions as NumPy scalars: each result has the dtype of its operands."""

    const = staticmethod(lambda value, dtype: np.asarray(value).astype(dtype)[()])
    cast = staticmethod(lambda x, dtype: _cast(x, dtype))
    bitcast = staticmethod(lambda x, dtype: np.asarray(x).view(dtype)[()])
    add, sub, mul, neg = np.add, np.subtract, np.multiply, np.negative
    div, floordiv, rem = np.divide, np.floor_divide, np.fmod
    abs, sqrt = np.abs, np.sqrt
    floor, ceil = _floor_like(np.floor), _floor_like(np.ceil)
    trunc, round = _floor_like(np.trunc), _floor_like(np.round)
    min, max = staticmethod(smaller), staticmethod(larger)
    fma = staticmethod(fma)
    bit_and, bit_or, bit_xor = np.bitwise_and, np.bitwise_or, np.bitwise_xor
    bit_not = np.bitwise_not
    shift_left, shift_right = np.left_shift, np.right_shift
    less, less_equal, equal, not_equal = np.less, np.less_equal, np.equal, np.not_equal
    complex = staticmethod(lambda x, y: x + 1j * y)
    real, imag = np.real, np.imag

    @staticmethod
    def select(condition: Any, x: Any, y: Any) -> Any:
        """`x` where the condition holds, else `y`."""
        return x if condition else y

    @staticmethod
    def call(function: str, *args: Any) -> Any:
        """A named function, from NumPy or SciPy, or what stands for one."""
        if function == "tanh_share":
            return tanh_share.eval(*args)
        if function == "short_power":
            x, factor, top = args
            return x * factor - top
        name = _CALLS.get(function, function)
        found = getattr(np, name, None) or getattr(special, name)
        return found(*args)

    @staticmethod
    def reduce(combine: str, extents: tuple[int, ...], term: Callable[..., Any]) -> Any:
        """`term` combined over all points, in row-major order."""
        points = (term(*point) for point in itertools.product(*map(range, extents)))
        if combine in ("argmax", "argmin"):
            values, places = zip(*points, strict=True)
            return places[int(getattr(np, combine)(np.asarray(values)))]
        total = next(points)
        for value in points:
            total = _COMBINE[combine](total, value)
        return total


def _cast(x: Any, dtype: Any) -> Any:
    return np.asarray(x).astype(dtype)[()]


def run_loops(op: Operation, arrays: list[Array], params: dict[str, Any]) -> Any:
    """Compute `op` from its loop form alone."""
    types = tuple(TensorType(a.shape, a.dtype) for a in arrays)
    kind = op.infer(*types, **params)
    assert isinstance(kind, TensorType), "ops with several results have no loop form"
    with np.errstate(all="ignore"):
        if op.has("into"):
            return _run_into(op, arrays, types, params)
        if op.has("at"):
            return _run_at(op, arrays, types, kind, params)
        return _run_body(op, arrays, types, kind, params)


def _reader(arrays: list[Array]) -> Callable[[int, Any], Any]:
    def read(operand: int, index: Any) -> Any:
        array = arrays[operand]
        return array[tuple(int(i) for i in index[len(index) - array.ndim :])]

    return read


def _run_at(op: Any, arrays: Any, types: Any, kind: TensorType, params: Any) -> Array:
    out = np.zeros(kind.shape, kind.dtype)
    for index in np.ndindex(*kind.shape):
        out[index] = op.at(Reference, index, _reader(arrays), *types, **params)
    return out


def _run_into(op: Any, arrays: Any, types: Any, params: Any) -> Array:
    factors = op.index(*types, **params)
    sizes = factors.sizes([a.shape for a in arrays])
    lead = tuple(sizes[n] for (n,) in factors.outputs[0] if n.startswith("b"))
    core = arrays[0].shape[arrays[0].ndim - (len(factors.outputs[0]) - len(lead)) :]
    out = np.array(np.broadcast_to(arrays[0], lead + core))
    updates = tuple(sizes[n] for (n,) in factors.inputs[2] if not n.startswith("b"))
    for index in np.ndindex(*lead, *updates):
        target, value = op.into(Reference, index, _reader(arrays), *types, **params)
        place = tuple(map(int, target))
        out[place] = _COMBINE[op.combine](out[place], value)
    return out


def _run_body(op: Any, arrays: Any, types: Any, kind: TensorType, params: Any) -> Array:
    factors = op.index(*types, **params)
    sizes = factors.sizes([a.shape for a in arrays])
    (result,) = factors.outputs
    ordered = getattr(op, "ordered", "")
    out = np.zeros(kind.shape, kind.dtype)
    seen: set[Any] = set()
    for point in itertools.product(*(range(sizes[n]) for n in factors.names)):
        at = dict(zip(factors.names, point, strict=True))
        scalars = [
            a[tuple(at[n] for (n,) in term)] for a, term in zip(arrays, factors.inputs, strict=True)
        ]
        value = op.body(Reference, *scalars, **params)
        place = tuple(at[n] for (n,) in result)
        before = place
        if ordered and at[ordered]:
            before = tuple(at[n] - (n == ordered) for (n,) in result)
        if before in seen:
            value = _COMBINE[op.combine](out[before], value)
        seen.add(place)
        out[place] = value
    return out
