"""Statistics of axes: means, spread, and versions that skip NaN.

All are compositions of reductions and sorts. Integers become the default float; narrow floats are
computed in float32 and rounded once, so that a mean of many float16 numbers does not overflow.
"""

from __future__ import annotations

from math import nan, prod
from typing import Any, Literal, overload

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.parameters import as_flag, as_real, shown
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import DType, Shape
from weft.core.tensor.convert import as_number, known, to_tensor, to_tensors
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops import reduction
from weft.ops.axes import normalize_axes, reduced_axes
from weft.ops.contraction import matmul
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.comparison import equal
from weft.ops.families import as_tensors, cast
from weft.ops.naming import named
from weft.ops.often import often
from weft.ops.order import cumprod, cumsum, take_along_axis
from weft.ops.reduction import check_ordered, with_axes
from weft.ops.view.join import concat
from weft.ops.view.reshape import reshape
from weft.ops.view.transpose import moveaxis


def float_of(name: str, x: Any, dtype: Any = None) -> tuple[Tensor, DType]:
    """`x` as a float (or complex) tensor wide enough to compute in, and the result's dtype."""
    tensor = to_tensor(x, op=name)
    if dtype is not None:
        target = dtypes.as_dtype(dtype, op=name, default_float=default_float())
        if not dtypes.is_inexact(target):
            raise DTypeError(f"{name}: the result is a float, not {dtypes.name_of(target)}")
    else:
        target = tensor.dtype if dtypes.is_inexact(tensor.dtype) else default_float()
    return cast(tensor, dtypes.float32 if dtypes.is_narrow(target) else target, name), target


def _count(name: str, x: Tensor, axis: Any) -> int:
    return prod(x.shape[i] for i in reduced_axes(name, axis, x.ndim))


@public
@often
def mean(
    x: Any,
    /,
    axis: Any = None,
    keepdims: bool = False,
    *,
    dtype: Any = None,
    where: Any = None,
) -> Tensor:
    """Arithmetic mean over axes (and in a mask); NaN where there is nothing to average.

    >>> mean(to_tensor([1.0, 2.0, 6.0])).item()
    3.0
    """
    tensor, target = float_of("mean", x, dtype)
    total = reduction.sum(tensor, axis, keepdims, where=where)
    if where is None:
        return cast(total / float(_count("mean", tensor, axis)), target)
    return cast(total / _counted(tensor, axis, keepdims, where), target)


def _counted(x: Tensor, axis: Any, keepdims: bool, where: Any) -> Any:
    """How many elements a mask has over axes, in the float that `x` is of."""
    ones = FUNCTIONS["ones_like"](x, dtype=dtypes.real_of(x.dtype))
    return reduction.sum(ones, axis, keepdims, where=where)


@public
@often
def var(
    x: Any,
    /,
    axis: Any = None,
    keepdims: bool = False,
    *,
    correction: float = 0.0,
    ddof: float | None = None,
    dtype: Any = None,
    where: Any = None,
) -> Tensor:
    """Variance over axes (and in a mask); the divisor is the count minus `correction` (`ddof`)."""
    tensor, target = float_of("var", x, dtype)
    tensor = reduction.selected("var", tensor, where, 0)
    centred = _squares(tensor - mean(tensor, axis, True, where=where))
    less = _correction("var", correction, ddof)
    less = less if isinstance(less, Tensor) else as_real("var", "correction", less)
    divisor: Any
    if where is None and not isinstance(less, Tensor):
        left = _count("var", tensor, axis) - less
        divisor = left if left > 0 else nan  # with nothing left there is no variance
    else:
        rest: Any = _counted(tensor, axis, keepdims, where) - less
        divisor = FUNCTIONS["where"](rest > 0, rest, nan)
    total = reduction.sum(centred, axis, keepdims, where=where)
    return cast(total / divisor, dtypes.real_of(target))


@public
@often
def std(
    x: Any,
    /,
    axis: Any = None,
    keepdims: bool = False,
    *,
    correction: float = 0.0,
    ddof: float | None = None,
    dtype: Any = None,
    where: Any = None,
) -> Tensor:
    """Standard deviation over axes (and in a mask): the root of `var`.

    Where all elements are equal its derivative is 0, as torch has it.
    """
    tensor, target = float_of("std", x, dtype)
    less = _correction("std", correction, ddof)
    found = _root(var(tensor, axis, keepdims, correction=less, where=where))
    return cast(found, dtypes.real_of(target))


def _root(variance: Tensor) -> Tensor:
    """The root of a variance, with derivative 0 where that is 0, as norms have it."""
    zero = equal(variance, 0)
    return where(zero, 0, FUNCTIONS["sqrt"](where(zero, 1, variance)))


def _correction(name: str, correction: Any, ddof: Any) -> Any:
    """What is taken off a count: `ddof` is NumPy's older word for it."""
    if ddof is None:
        return correction
    if correction:
        raise ArgumentError(f"{name}: correction={correction} and ddof={ddof} mean the same")
    return ddof


def _squares(x: Tensor) -> Tensor:
    """|x|², a real tensor."""
    if dtypes.is_complex(x.dtype):
        real, imag = FUNCTIONS["real"](x), FUNCTIONS["imag"](x)
        result: Tensor = real * real + imag * imag
        return result
    return x * x


@public
@named
def ptp(x: Any, /, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The largest minus the smallest element over axes."""
    low, high = reduction.minmax(x, axis, keepdims)
    return high - low


@overload
def average(
    x: Any,
    /,
    axis: Any = ...,
    weights: Any = ...,
    returned: Literal[False] = ...,
    *,
    keepdims: bool = ...,
) -> Tensor: ...


@overload
def average(
    x: Any, /, axis: Any = ..., weights: Any = ..., *, returned: Literal[True], keepdims: bool = ...
) -> tuple[Tensor, Tensor]: ...


@public
@often
def average(
    x: Any,
    /,
    axis: Any = None,
    weights: Any = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
) -> Any:
    """Mean over axes with weights; weights of one axis belong to the one axis given.

    With `returned` the result is a pair: the mean, and the sum of the weights it was divided by.

    >>> average([1.0, 4.0], weights=[1, 2]).item()
    3.0
    """
    made, total = _average(x, axis, weights, keepdims)
    return (made, total) if as_flag("average", "returned", returned) else made


def _average(x: Any, axis: Any, weights: Any, keepdims: bool) -> tuple[Tensor, Tensor]:
    """A mean with weights, and the sum of the weights."""
    if weights is None:
        plain = to_tensor(x, op="average")
        made = mean(plain, axis, keepdims)
        return made, FUNCTIONS["full_like"](made, _count("average", plain, axis))
    given, factors = to_tensors("average", x, weights)
    tensor, target = float_of("average", given)
    weight, wide = float_of("average", factors)
    weight = weights_of_elements("average", weight, tensor.shape, axis)
    total, divisor = (reduction.sum(t, axis, keepdims) for t in (tensor * weight, weight))
    kind = dtypes.promote(target, wide, op="average")
    return cast(total / divisor, kind), cast(divisor, kind)


def weights_of_elements(name: str, weight: Tensor, shape: Shape, axis: Any) -> Tensor:
    """Weights of all elements: given so, or for the axes `axis`, in the order it names them."""
    if weight.shape == shape:
        return weight
    rank = len(shape)
    named_axes = range(rank) if axis is None else normalize_axes(name, axis, rank)
    if weight.shape != tuple(shape[i] for i in named_axes):
        raise ShapeError(
            f"{name}: weights of shape {weight.shape} fit neither the tensor {shape}"
            f" nor its axes {axis}"
        )
    turned = FUNCTIONS["permute_dims"](
        weight, sorted(range(weight.ndim), key=named_axes.__getitem__)
    )
    found = with_axes(turned, shape, others(tuple(i - rank for i in named_axes), rank))
    result: Tensor = FUNCTIONS["broadcast_to"](found, shape)
    return result


def others(axes: Shape, rank: int) -> Shape:
    """The axes that are not among these (all negative)."""
    return tuple(i for i in range(-rank, 0) if i not in axes)


@public
@often
def cov(
    x: Any,
    /,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: float | None = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    correction: float | None = None,
) -> Tensor:
    """Covariance matrix of variables in rows (in columns with `rowvar=False`).

    The divisor is the count minus `correction` (`ddof`): 1, or with `bias` 0, if none is given.
    `fweights` says how often each observation was made, `aweights` how much it counts; whether
    those of a tensor are whole or negative is not looked at.
    """
    table, target = _observations("cov", x, y, rowvar)
    times, shares = (
        None if given is None else _observation_weights(name, given, table)
        for name, given in (("fweights", fweights), ("aweights", aweights))
    )
    weight = times if shares is None else shares if times is None else times * shares
    scaled = table if weight is None else table * weight
    total = float(table.shape[1]) if weight is None else reduction.sum(weight)
    centred = table - reduction.sum(scaled, 1, True) / total
    less = _correction("cov", correction, ddof)
    if less is None:
        less = 0 if as_flag("cov", "bias", bias) else 1
    less = as_number("cov", "correction", less, beside=(table,))
    divisor = total - less
    if shares is not None:
        squares = reduction.sum(weight * shares)
        divisor = total - less * squares / total
    right = centred if weight is None else centred * weight
    if dtypes.is_complex(table.dtype):
        right = FUNCTIONS["conj"](right)
    left = max(divisor, 0.0) if isinstance(divisor, float) else FUNCTIONS["maximum"](divisor, 0)
    product = matmul(centred, moveaxis(right, 0, 1)) / left
    return cast(reshape(product, ()) if len(product) == 1 else product, target)


def _observations(name: str, x: Any, y: Any, rowvar: bool) -> tuple[Tensor, DType]:
    """Variables in rows, observations in columns."""
    rowvar = as_flag(name, "rowvar", rowvar)
    parts = []
    for given in as_tensors(name, x) if y is None else as_tensors(name, x, y):
        part, _ = float_of(name, given)
        if part.ndim > 2:
            raise ShapeError(f"{name}: expected at most 2 axes, got shape {part.shape}")
        if part.ndim < 2:
            part = reshape(part, (1, -1))
        elif not rowvar:
            part = moveaxis(part, 0, 1)
        parts.append(part)
    table = parts[0] if y is None else concat(parts, axis=0)
    found = dtypes.promote_all(*(to_tensor(v).dtype for v in ((x,) if y is None else (x, y))))
    return table, found if dtypes.is_inexact(found) else table.dtype


def _observation_weights(name: str, given: Any, table: Tensor) -> Tensor:
    """Weights of the columns of a table; values of a tensor are not looked at."""
    weights = to_tensor(given, beside=(table,), op="cov")
    values = None if isinstance(given, Tensor) else known(given)
    if weights.shape != table.shape[1:]:
        raise ShapeError(f"cov: weights of shape {weights.shape} for {table.shape[1]} observations")
    if values is not None and (values < 0).any():
        raise ArgumentError(f"cov: {name} must not be negative, got {shown(given)}")
    if values is not None and name == "fweights" and (values != np.round(values)).any():
        raise ArgumentError(f"cov: {name} must be whole numbers, got {shown(given)}")
    return cast(weights, dtypes.real_of(table.dtype))


@public
@often
def corrcoef(x: Any, /, y: Any = None, rowvar: bool = True) -> Tensor:
    """Correlation coefficients of variables in rows (in columns with `rowvar=False`)."""
    table, target = _observations("corrcoef", x, y, rowvar)
    found = cov(table)
    if found.ndim == 0:
        return cast(found / found, target)
    sqrt, real = FUNCTIONS["sqrt"], FUNCTIONS["real"]
    variances = _diagonal(found)
    spread = sqrt(real(variances) if dtypes.is_complex(found.dtype) else variances)
    return cast(found / reshape(spread, (-1, 1)) / spread, target)


def _diagonal(x: Tensor) -> Tensor:
    places = reshape(FUNCTIONS["arange"](len(x), device=x.device), (-1, 1))
    return reshape(take_along_axis(x, places, axis=1), (-1,))


def is_missing(x: Tensor) -> Tensor:
    result: Tensor = x != x
    return result


def _filled(name: str, x: Any, value: Any) -> Tensor:
    """NaN replaced; dtypes that have no NaN pass as they are."""
    tensor = to_tensor(x, op=name)
    return where(is_missing(tensor), value, tensor) if dtypes.is_inexact(tensor.dtype) else tensor


@public
@often
def nansum(
    x: Any,
    /,
    axis: Any = None,
    keepdims: bool = False,
    *,
    dtype: Any = None,
    initial: Any = None,
    where: Any = None,
) -> Tensor:
    """Sum over axes (and in a mask); NaN counts as 0."""
    kept = _filled("nansum", x, 0)
    return reduction.sum(kept, axis, keepdims, dtype=dtype, initial=initial, where=where)


@public
@named
def nanprod(
    x: Any,
    /,
    axis: Any = None,
    keepdims: bool = False,
    *,
    dtype: Any = None,
    initial: Any = None,
    where: Any = None,
) -> Tensor:
    """Product over axes (and in a mask); NaN counts as 1."""
    kept = _filled("nanprod", x, 1)
    return reduction.prod(kept, axis, keepdims, dtype=dtype, initial=initial, where=where)


@public
@named
def nancumsum(x: Any, /, axis: int | None = None, dtype: Any = None) -> Tensor:
    """Running sums along an axis; NaN counts as 0."""
    return cumsum(_filled("nancumsum", x, 0), axis, dtype=dtype)


@public
@named
def nancumprod(x: Any, /, axis: int | None = None, dtype: Any = None) -> Tensor:
    """Running products along an axis; NaN counts as 1."""
    return cumprod(_filled("nancumprod", x, 1), axis, dtype=dtype)


@public
@named
def nanargmax(x: Any, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where the largest element that is not NaN lies; -1 where all are NaN."""
    return _nan_place("nanargmax", x, axis, keepdims)


@public
@named
def nanargmin(x: Any, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Where the smallest element that is not NaN lies; -1 where all are NaN."""
    return _nan_place("nanargmin", x, axis, keepdims)


def _nan_place(name: str, x: Any, axis: Any, keepdims: bool) -> Tensor:
    tensor = to_tensor(x, op=name)
    best = _nan_extremum(name.replace("arg", ""), tensor, axis, True)
    hits = cast(tensor == best, dtypes.int8)
    none = reduction.max(hits, axis, keepdims) == 0
    return where(none, -1, reduction.argmax(hits, axis, keepdims))


@public
@often
def nanmax(
    x: Any,
    /,
    axis: Any = None,
    keepdims: bool = False,
    *,
    initial: Any = None,
    where: Any = None,
) -> Tensor:
    """The largest element over axes that is not NaN (or `initial`); NaN where all are."""
    return _nan_extremum("nanmax", x, axis, keepdims, initial, where)


@public
@often
def nanmin(
    x: Any,
    /,
    axis: Any = None,
    keepdims: bool = False,
    *,
    initial: Any = None,
    where: Any = None,
) -> Tensor:
    """The smallest element over axes that is not NaN (or `initial`); NaN where all are."""
    return _nan_extremum("nanmin", x, axis, keepdims, initial, where)


def _nan_extremum(
    name: str, x: Any, axis: Any, keepdims: bool, initial: Any = None, mask: Any = None
) -> Tensor:
    function, fill = (reduction.max, -np.inf) if name == "nanmax" else (reduction.min, np.inf)
    tensor = to_tensor(x, op=name)
    check_ordered(name, tensor)
    if not dtypes.is_floating(tensor.dtype):
        return function(tensor, axis, keepdims, initial=initial, where=mask)
    wide, target = float_of(name, tensor)  # float8_e4m3 has no infinity to fill with
    lost = is_missing(wide)
    found = function(where(lost, fill, wide), axis, keepdims, initial=initial, where=mask)
    if initial is not None:
        return cast(found, target)
    return cast(where(reduction.all(lost, axis, keepdims), np.nan, found), target)


@public
@often
def nanmean(
    x: Any, /, axis: Any = None, keepdims: bool = False, *, dtype: Any = None, where: Any = None
) -> Tensor:
    """Mean over axes of the elements (in a mask) that are not NaN; NaN where there is none."""
    tensor, target = float_of("nanmean", x, dtype)
    tensor = reduction.selected("nanmean", tensor, where, np.nan)
    total = reduction.sum(_filled("nanmean", tensor, 0), axis, keepdims)
    return cast(total / _present(tensor, axis, keepdims), target)


def _present(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    """How many elements are not NaN, as a float."""
    counted = cast(x == x, dtypes.int64)
    return cast(reduction.sum(counted, axis, keepdims), dtypes.real_of(x.dtype))


@public
@often
def nanvar(
    x: Any,
    /,
    axis: Any = None,
    keepdims: bool = False,
    *,
    correction: float = 0.0,
    ddof: float | None = None,
    dtype: Any = None,
    where: Any = None,
) -> Tensor:
    """Variance over axes of the elements (in a mask) that are not NaN."""
    tensor, target = float_of("nanvar", x, dtype)
    kept = reduction.selected("nanvar", tensor, where, np.nan)
    less = _correction("nanvar", correction, ddof)
    less = as_number("nanvar", "correction", less, beside=(kept,))
    return cast(_nanvar(kept, axis, keepdims, less), dtypes.real_of(target))


def _nanvar(x: Tensor, axis: Any, keepdims: bool, less: Any) -> Tensor:
    lost = is_missing(x)
    centred = where(lost, 0, x) - nanmean(x, axis, True)
    total = reduction.sum(_squares(where(lost, 0, centred)), axis, keepdims)
    divisor = _present(x, axis, keepdims) - less
    return where(divisor <= 0, np.nan, total / where(divisor <= 0, 1, divisor))


@public
@often
def nanstd(
    x: Any,
    /,
    axis: Any = None,
    keepdims: bool = False,
    *,
    correction: float = 0.0,
    ddof: float | None = None,
    dtype: Any = None,
    where: Any = None,
) -> Tensor:
    """Standard deviation over axes of the elements (in a mask) that are not NaN."""
    tensor, target = float_of("nanstd", x, dtype)
    kept = reduction.selected("nanstd", tensor, where, np.nan)
    less = _correction("nanstd", correction, ddof)
    found = _root(nanvar(kept, axis, keepdims, correction=less))
    return cast(found, dtypes.real_of(target))


__all__ = [
    "average",
    "corrcoef",
    "cov",
    "mean",
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
    "ptp",
    "std",
    "var",
]
