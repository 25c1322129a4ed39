"""Order along an axis: sorting, positions, and running combinations (cumulative ops).

Running products, running log-sums and their derivatives of any order rest on one linear op, the
recurrence `y[i] = a[i]·y[i-1] + b[i]`, whose own derivatives are recurrences again; nothing is ever
divided, so zeros are no special case.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.factors import Factors
from weft.core.common.parameters import as_choice, as_flag, as_integer, as_integers
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.core.tensor.convert import scalar, to_tensor, to_tensors
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops.axes import normalize_axis
from weft.ops.base import Example, Linear, Tangents, call
from weft.ops.exact import orders_zeros
from weft.ops.families import LogicalAxisOperation, broadcast, cast
from weft.ops.gather import checked_mode, gather_op
from weft.ops.often import often
from weft.ops.sorting import Ordering, argsort_op, put_back, sort_op, top_positions_op
from weft.ops.view.join import concat, pad_op

_PICK = {"indexed": 1, "rest": 0, "picks": 1}
_KINDS = ("quicksort", "mergesort", "heapsort", "stable")  # NumPy's; here all are one
_BOTH = (Example({"axis": -1}), Example({"axis": -2}))


class AxisOrder(LogicalAxisOperation):
    """An op along one whole axis (negative) that keeps the shape."""

    widen = False

    def index(self, *types: TensorType, axis: int, **params: Any) -> Factors:
        term = " ".join(["...", "n", *(f"i{k}" for k in range(-axis - 1))])
        text = f"{', '.join([term] * len(types))} -> {term}"
        return Factors.parse(text, [t.rank for t in types], whole="n")


class Recurrence(AxisOrder):
    """`y[i] = a[i]·y[i-1] + b[i]` along an axis, from y[-1] = 0 (so a[0] plays no part)."""

    widen = True
    work = 2
    examples = _BOTH
    reasons: ClassVar[dict[str, str]] = {
        "kernel": "the running value meets two operands at each step, not one combination"
    }

    def eval(self, a: Array, b: Array, *, axis: int) -> Array:
        factors, terms = (np.moveaxis(v, axis, 0) for v in np.broadcast_arrays(a, b))
        out = np.array(terms)
        for i in range(1, len(out)):
            out[i] += factors[i] * out[i - 1]
        return np.moveaxis(out, 0, axis)

    def jvp(self, primals: Any, tangents: Any, out: Any, *, axis: int) -> Any:
        (a, _), (da, db) = primals, tangents
        moved = db if da is None else da * delayed(out, axis)
        if da is not None and db is not None:
            moved = moved + db
        return call(self, (a, moved), {"axis": axis})

    def vjp(self, primals: Any, out: Any, ct: Any, *, axis: int) -> Tangents:
        pulled = recurrence_back(primals[0], ct, axis)
        return pulled * delayed(out, axis), pulled


class Cumulative(AxisOrder):
    """A running combination along an axis: `combine` of all elements up to each one."""

    widen = True
    kernel_from = 1 << 16  # NumPy takes columns one by one
    ordered: ClassVar[str] = "n"  # the factor whose points are visited in order, carrying a value
    examples = _BOTH

    def body(self, s: Any, x: Any, **params: Any) -> Any:
        return x


class Cumsum(Cumulative):
    """Running sum along an axis."""

    linear = Linear.JOINTLY

    def eval(self, x: Array, *, axis: int) -> Array:
        return np.cumsum(x, axis=axis, dtype=x.dtype)

    def vjp(self, primals: Any, out: Any, ct: Any, *, axis: int) -> Tangents:
        flip = FUNCTIONS["flip"]
        return (flip(call(self, (flip(ct, axis=axis),), {"axis": axis}), axis=axis),)


class Cumprod(Cumulative):
    """Running product along an axis; its derivative is right at zeros too."""

    combine = "mul"

    def eval(self, x: Array, *, axis: int) -> Array:
        return np.cumprod(x, axis=axis, dtype=x.dtype)

    def jvp(self, primals: Any, tangents: Any, out: Any, *, axis: int) -> Any:
        moved = tangents[0] * delayed(out, axis, 1)
        return call(recurrence_op, (primals[0], moved), {"axis": axis})

    def vjp(self, primals: Any, out: Any, ct: Any, *, axis: int) -> Tangents:
        return (recurrence_back(primals[0], ct, axis) * delayed(out, axis, 1),)


class CumulativeExtremum(Cumulative):
    """A running extremum; of equal elements the latest one carries the derivative."""

    apply: ClassVar[Any] = None

    def eval(self, x: Array, *, axis: int) -> Array:
        return np.asarray(self.apply.accumulate(x, axis=axis))

    def is_exact(self, *found: DType, **params: Any) -> bool:
        return not dtypes.is_floating(found[0]) or orders_zeros(found[0])

    def jvp(self, primals: Any, tangents: Any, out: Any, *, axis: int) -> Any:
        return take_along_axis(tangents[0], _holders(primals[0], out, axis), axis=axis)

    def vjp(self, primals: Any, out: Any, ct: Any, *, axis: int) -> Tangents:
        return (_add_along_axis(ct, _holders(primals[0], out, axis), axis),)


class Cummax(CumulativeExtremum):
    """Running maximum along an axis; NaN from the first NaN on."""

    combine = "max"
    apply = np.maximum


class Cummin(CumulativeExtremum):
    """Running minimum along an axis; NaN from the first NaN on."""

    combine = "min"
    apply = np.minimum


class Logcumsumexp(AxisOrder):
    """Logarithm of the running sum of exponentials along an axis."""

    widen = True
    work = 4
    examples = _BOTH
    reasons: ClassVar[dict[str, str]] = {
        "kernel": "the running value is combined by exp and log, not by one instruction"
    }

    def eval(self, x: Array, *, axis: int) -> Array:
        return np.logaddexp.accumulate(x, axis=axis)

    def _parts(self, x: Tensor, out: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """∂y[i]/∂y[i-1] and ∂y[i]/∂x[i]; both are 0 while everything is -inf."""
        where, exp = FUNCTIONS["where"], FUNCTIONS["exp"]
        empty = out == -np.inf
        base = where(empty, 0, out)
        return exp(delayed(out, axis, -np.inf) - base), exp(x - base)

    def jvp(self, primals: Any, tangents: Any, out: Any, *, axis: int) -> Any:
        before, own = self._parts(primals[0], out, axis)
        return call(recurrence_op, (before, own * tangents[0]), {"axis": axis})

    def vjp(self, primals: Any, out: Any, ct: Any, *, axis: int) -> Tangents:
        before, own = self._parts(primals[0], out, axis)
        return (recurrence_back(before, ct, axis) * own,)


recurrence_op, cumsum_op, cumprod_op = Recurrence(), Cumsum(), Cumprod()
cummax_op, cummin_op, logcumsumexp_op = Cummax(), Cummin(), Logcumsumexp()


def delayed(x: Tensor, axis: int, first: Any = 0, steps: int = 1) -> Tensor:
    """`x` moved `steps` later along a negative axis (earlier if below 0); `first` comes in."""
    rest = (0,) * (-axis - 1)
    if x.shape[axis] == 0:
        return x
    fill = scalar(first, x.dtype, x.device)
    params = {"low": (steps, *rest), "high": (-steps, *rest), "interior": (0, *rest)}
    result: Tensor = call(pad_op, (x, fill), params)
    return result


def recurrence_back(a: Tensor, ct: Tensor, axis: int) -> Tensor:
    """The recurrence run from the end: `h[i] = a[i+1]·h[i+1] + ct[i]`, its own transpose."""
    flip = FUNCTIONS["flip"]
    turned = flip(delayed(a, axis, steps=-1), axis=axis), flip(ct, axis=axis)
    result: Tensor = flip(call(recurrence_op, turned, {"axis": axis}), axis=axis)
    return result


def _holders(x: Tensor, out: Tensor, axis: int) -> Tensor:
    """Where each running extremum was taken from."""
    where = FUNCTIONS["where"]
    places = FUNCTIONS["arange"](x.shape[axis], device=x.device)
    places = FUNCTIONS["reshape"](places, (-1, *(1,) * (-axis - 1)))
    hit = where(x == out, places, where(x != x, places, 0))
    result: Tensor = call(cummax_op, (hit,), {"axis": axis})
    return result


@public
def sort(
    x: Any,
    /,
    axis: int | None = -1,
    kind: str | None = None,
    *,
    descending: bool = False,
    stable: bool = True,
) -> Tensor:
    """Elements in order along an axis, or with `axis=None` all; NaN comes last.

    weft's sort is always stable, whatever `stable` or `kind` say.
    """
    return _in_order(sort_op, "sort", x, axis, descending, kind)


@public
def argsort(
    x: Any,
    /,
    axis: int | None = -1,
    kind: str | None = None,
    *,
    descending: bool = False,
    stable: bool = True,
) -> Tensor:
    """Positions that sort an axis, or with `axis=None` all elements; always stable, NaN last."""
    return _in_order(argsort_op, "argsort", x, axis, descending, kind)


def _in_order(
    op: Ordering, name: str, x: Any, axis: int | None, descending: bool, kind: str | None
) -> Tensor:
    tensor = to_tensor(x, op=name)
    if kind is not None:
        as_choice(name, "kind", kind, _KINDS)
    if axis is None:
        tensor, axis = FUNCTIONS["ravel"](tensor), -1
    if dtypes.is_complex(tensor.dtype):
        raise DTypeError(f"{name}: complex numbers have no order")
    params = {"descending": as_flag(name, "descending", descending)}
    if tensor.ndim == 0:
        normalize_axis(name, axis, 1)
        single = FUNCTIONS["reshape"](tensor, (1,))
        found: Tensor = FUNCTIONS["reshape"](call(op, (single,), params), ())
        return found
    return _last(op, tensor, normalize_axis(name, axis, tensor.ndim), params)


def _last(op: Ordering, x: Tensor, axis: int, params: dict[str, Any]) -> Tensor:
    """An op along the last axis, along another one."""
    if axis == x.ndim - 1:
        return call(op, (x,), params)
    moveaxis = FUNCTIONS["moveaxis"]
    result: Tensor = moveaxis(call(op, (moveaxis(x, axis, -1),), params), -1, axis)
    return result


@public
def partition(x: Any, /, kth: Any, axis: int | None = -1) -> Tensor:
    """The axis with element `kth` where sorting puts it, smaller ones before, larger ones after.

    weft sorts the whole axis, so every element is in its place; None flattens first.
    """
    _check_kth("partition", x, kth, axis)
    return sort(x, axis=axis)


@public
def argpartition(x: Any, /, kth: Any, axis: int | None = -1) -> Tensor:
    """Positions that partition the axis (flattened if None); weft gives those that sort it."""
    _check_kth("argpartition", x, kth, axis)
    return argsort(x, axis=axis)


def _check_kth(name: str, x: Any, kth: Any, axis: int | None) -> None:
    tensor = to_tensor(x, op=name)
    whole = axis is None
    size = tensor.size if whole else tensor.shape[normalize_axis(name, axis, tensor.ndim)]
    for k in as_integers(name, "kth", kth):
        if not -size <= k < size:
            raise ArgumentError(f"{name}: kth {k} is out of range for an axis of size {size}")


@public
def top_k(
    x: Any, /, k: int, axis: int = -1, *, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) elements along an axis and their positions, most extreme first.

    NaN counts as larger than every number, as for `max`; of equal elements the first comes first.
    """
    tensor = to_tensor(x, op="top_k")
    if dtypes.is_complex(tensor.dtype):
        raise DTypeError("top_k: complex numbers have no order")
    i = normalize_axis("top_k", axis, tensor.ndim)
    k = as_integer("top_k", "k", k)
    if not 0 <= k <= tensor.shape[i]:
        raise ArgumentError(f"top_k: k is {k}, but axis {i} has {tensor.shape[i]} elements")
    params = {"k": k, "largest": as_flag("top_k", "largest", largest)}
    positions = _last(top_positions_op, tensor, i, params)
    return take_along_axis(tensor, positions, axis=i), positions


@public
def cumsum(
    x: Any, /, axis: int | None = None, dtype: Any = None, *, reverse: bool = False
) -> Tensor:
    """Running sum along an axis (of the flattened tensor when none is given).

    With `reverse` it runs from the end: each result is the sum of an element and all after it.

    >>> cumsum([1, 2, 3], reverse=True).tolist()
    [6, 5, 3]
    """
    return _running(cumsum_op, "cumsum", x, axis, _accumulated("cumsum", x, dtype), reverse)


@public
def cumprod(
    x: Any, /, axis: int | None = None, dtype: Any = None, *, reverse: bool = False
) -> Tensor:
    """Running product along an axis, or with `reverse` from its end; see `cumsum`."""
    return _running(cumprod_op, "cumprod", x, axis, _accumulated("cumprod", x, dtype), reverse)


@public
def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Running sum along an axis; `include_initial` puts the empty sum, 0, first."""
    target = _accumulated("cumulative_sum", x, dtype)
    return _standard(cumsum_op, "cumulative_sum", x, axis, target, 0, include_initial)


@public
def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Running product along an axis; `include_initial` puts the empty product, 1, first."""
    target = _accumulated("cumulative_prod", x, dtype)
    return _standard(cumprod_op, "cumulative_prod", x, axis, target, 1, include_initial)


@public
def cummax(x: Any, /, axis: int | None = None, *, reverse: bool = False) -> Tensor:
    """Running maximum along an axis, or from its end: the values alone, without their positions."""
    return _running(cummax_op, "cummax", x, axis, _ordered("cummax", x), reverse)


@public
def cummin(x: Any, /, axis: int | None = None, *, reverse: bool = False) -> Tensor:
    """Running minimum along an axis, or from its end: the values alone, without their positions."""
    return _running(cummin_op, "cummin", x, axis, _ordered("cummin", x), reverse)


@public
def logcumsumexp(x: Any, /, axis: int | None = None, *, reverse: bool = False) -> Tensor:
    """Logarithm of the running sum of exponentials along an axis, or from its end.

    No exponential overflows.
    """
    found = _ordered("logcumsumexp", x)
    target = found if dtypes.is_floating(found) else default_float()
    return _running(logcumsumexp_op, "logcumsumexp", x, axis, target, reverse)


def _accumulated(name: str, x: Any, dtype: Any) -> DType:
    if dtype is not None:
        return dtypes.as_dtype(dtype, op=name, default_float=default_float())
    return dtypes.accumulation_dtype(to_tensor(x, op=name).dtype)


def _ordered(name: str, x: Any) -> DType:
    found = to_tensor(x, op=name).dtype
    if dtypes.is_complex(found):
        raise DTypeError(f"{name}: complex numbers have no order")
    return found


def _running(
    op: AxisOrder, name: str, x: Any, axis: int | None, dtype: DType, reverse: bool
) -> Tensor:
    tensor = to_tensor(x, op=name)
    if axis is None:
        tensor, axis = FUNCTIONS["reshape"](tensor, (-1,)), 0
    if not as_flag(name, "reverse", reverse) or tensor.ndim == 0:
        return _along(op, name, cast(tensor, dtype, name), axis)
    i, flip = normalize_axis(name, axis, tensor.ndim), FUNCTIONS["flip"]
    found: Tensor = flip(_along(op, name, cast(flip(tensor, axis=i), dtype, name), i), axis=i)
    return found


def _standard(
    op: AxisOrder, name: str, x: Any, axis: int | None, dtype: DType, initial: int, included: bool
) -> Tensor:
    """A cumulative op by the array API: only a tensor of one axis may leave the axis out."""
    tensor = to_tensor(x, op=name)
    if axis is None and tensor.ndim > 1:
        raise ShapeError(
            f"{name}: axis must be given for a tensor of {tensor.ndim} axes"
            f"\nhint: wf.{op.name} flattens when it is given no axis"
        )
    if tensor.ndim == 0:
        tensor = FUNCTIONS["reshape"](tensor, (1,))
    i = normalize_axis(name, 0 if axis is None else axis, tensor.ndim)
    result = _along(op, name, cast(tensor, dtype, name), i)
    if not as_flag(name, "include_initial", included):
        return result
    first = FUNCTIONS["full"](
        (*tensor.shape[:i], 1, *tensor.shape[i + 1 :]), initial, dtype=dtype, device=result.device
    )
    return concat([first, result], axis=i)


def _along(op: AxisOrder, name: str, x: Any, axis: int, **params: Any) -> Tensor:
    tensor = to_tensor(x, op=name)
    if tensor.ndim == 0:
        normalize_axis(name, axis, 1)
        single = FUNCTIONS["reshape"](tensor, (1,))
        result = call(op, (single,), {"axis": -1, **params})
        found: Tensor = FUNCTIONS["reshape"](result, ())
        return found
    i = normalize_axis(name, axis, tensor.ndim)
    return call(op, (tensor,), {"axis": i - tensor.ndim, **params})


@public
@often
def diff(x: Any, /, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Tensor:
    """Differences of neighbours along an axis, taken `n` times; bools differ by `!=`.

    `prepend` and `append` are joined to `x` first; a number, or a tensor with no axes, stands for
    one more element.
    """
    tensor = to_tensor(x, op="diff")
    i = normalize_axis("diff", axis, tensor.ndim)
    n = as_integer("diff", "n", n, low=0)
    if prepend is not None or append is not None:
        ends = (_end(tensor, prepend, i), tensor, _end(tensor, append, i))
        tensor = concat([e for e in ends if e is not None], axis=i)
    lead = (slice(None),) * i
    for _ in range(min(n, tensor.shape[i])):  # after so many steps nothing is left
        later, earlier = tensor[(*lead, slice(1, None))], tensor[(*lead, slice(None, -1))]
        tensor = later != earlier if dtypes.is_bool(tensor.dtype) else later - earlier
    return tensor if n else FUNCTIONS["copy_of"](tensor)


def _end(x: Tensor, end: Any, axis: int) -> Tensor | None:
    if end is None:
        return None
    if isinstance(end, bool | int | float | complex | np.generic):
        dtype = dtypes.result_type(x.dtype, end, default_float=default_float(), op="diff")
        end = scalar(end, dtype, x.device, "diff")
    found = to_tensor(end, beside=(x,), op="diff")
    if found.ndim:
        return found
    return broadcast(found, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))


@public
def take_along_axis(x: Any, /, indices: Any, axis: int = -1, *, mode: str = "raise") -> Tensor:
    """Elements at given positions along one axis; the other axes broadcast."""
    tensor, places = to_tensors("take_along_axis", x, indices)
    if tensor.ndim != places.ndim:
        raise ShapeError(
            f"take_along_axis: indices have {places.ndim} axes, x has {tensor.ndim}"
            f" (shapes {tensor.shape}, {places.shape})"
        )
    if not dtypes.is_integer(places.dtype):
        raise DTypeError(
            f"take_along_axis: indices must be integers, not {dtypes.name_of(places.dtype)}"
        )
    i = normalize_axis("take_along_axis", axis, tensor.ndim)
    moveaxis = FUNCTIONS["moveaxis"]
    shape = FUNCTIONS["broadcast_shapes"](_without(tensor.shape, i), _without(places.shape, i))
    full = broadcast(tensor, (*shape[:i], tensor.shape[i], *shape[i + 1 :]))
    at = broadcast(places, (*shape[:i], places.shape[i], *shape[i + 1 :]))
    at = FUNCTIONS["expand_dims"](moveaxis(at, i, -1), -1)
    operands = (moveaxis(full, i, -1), cast(at, dtypes.int64))
    params = {**_PICK, "mode": checked_mode("take_along_axis", mode)}
    found: Tensor = moveaxis(call(gather_op, operands, params), -1, i)
    return found


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], 1, *shape[axis + 1 :])


def _add_along_axis(ct: Tensor, places: Tensor, axis: int) -> Tensor:
    """The transpose of `take_along_axis` with as many positions as elements."""
    moveaxis = FUNCTIONS["moveaxis"]
    made = put_back(moveaxis(ct, axis, -1), moveaxis(places, axis, -1))
    result: Tensor = moveaxis(made, -1, axis)
    return result


__all__ = [
    "argpartition",
    "argsort",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "logcumsumexp",
    "partition",
    "sort",
    "take_along_axis",
    "top_k",
]
