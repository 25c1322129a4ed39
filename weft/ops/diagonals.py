"""Diagonals and triangles: eye, diag, diagonal, tril, triu, their positions, and trace of a matrix.

Diagonals are strided slices of the flattened matrix, so they are views and need no op of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.config import settings
from weft.core.common import dtypes
from weft.core.common.context import defaults
from weft.core.common.device import CPU
from weft.core.common.handler import current
from weft.core.common.parameters import as_flag, as_integer
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array
from weft.core.tensor.convert import scalar, to_tensor, wrap
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, AxisError, ShapeError
from weft.ops.axes import normalize_axis
from weft.ops.base import call
from weft.ops.creation import arange, asarray, check_memory, shape_tuple
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.complex_parts import conj
from weft.ops.families import as_tensors, broadcast, broadcast_shape, cast
from weft.ops.index_update import changed, updated
from weft.ops.indexing import value_like
from weft.ops.naming import named
from weft.ops.often import often
from weft.ops.placement import copy_of
from weft.ops.view.join import concat, pad_op
from weft.ops.view.reshape import expand_dims, ravel, reshape
from weft.ops.view.slice import flip, narrow, slice_axes
from weft.ops.view.transpose import moveaxis

MAX_RANK = 64  # of a NumPy array


@public
def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    k: int = 0,
    dtype: Any = None,
    *,
    device: Any = None,
) -> Tensor:
    """A matrix with ones on the k-th diagonal and zeros elsewhere."""
    rows, columns = shape_tuple("eye", (n_rows, n_rows if n_cols is None else n_cols))
    target, place = defaults(dtype, device)
    number = _diagonal_number("eye", k)
    if rows * columns <= settings.small_elements and current() is None and place is CPU:
        return wrap(np.eye(rows, columns, number, target), place)
    return cast(_offsets(rows, columns, place) == number, target)


def _diagonal_number(op: str, k: Any, name: str = "k") -> int:
    """The number of a diagonal; one far outside of every matrix is as good as any other."""
    return max(-(2**48), min(as_integer(op, name, k), 2**48))


def _offsets(rows: int, columns: int, device: Any) -> Tensor:
    """On which diagonal each element of a matrix lies."""
    down = expand_dims(arange(rows, device=device), 1)
    return arange(columns, device=device) - down


@public
def identity(n: int, /, dtype: Any = None, *, device: Any = None) -> Tensor:
    """The square matrix with ones on its diagonal."""
    return eye(n, dtype=dtype, device=device)


@public
def tri(
    n_rows: int,
    n_cols: int | None = None,
    /,
    k: int = 0,
    dtype: Any = None,
    *,
    device: Any = None,
) -> Tensor:
    """A matrix with ones at and below the k-th diagonal and zeros elsewhere."""
    rows, columns = shape_tuple("tri", (n_rows, n_rows if n_cols is None else n_cols))
    target, place = defaults(dtype, device)
    return cast(_offsets(rows, columns, place) <= _diagonal_number("tri", k), target)


@public
@often
def tril(x: Any, /, k: int = 0) -> Tensor:
    """Matrices (the last two axes) with zeros above the k-th diagonal."""
    tensor = _matrices("tril", x)
    k = _diagonal_number("tril", k)
    return where(_offsets(*_plane(tensor), tensor.device) <= k, tensor, _zero(tensor))


@public
@often
def triu(x: Any, /, k: int = 0) -> Tensor:
    """Matrices (the last two axes) with zeros below the k-th diagonal."""
    tensor = _matrices("triu", x)
    k = _diagonal_number("triu", k)
    return where(_offsets(*_plane(tensor), tensor.device) >= k, tensor, _zero(tensor))


def _plane(x: Tensor) -> tuple[int, int]:
    return x.shape[-2], x.shape[-1]


def _zero(x: Tensor) -> Tensor:
    return scalar(0, x.dtype, x.device)


def _matrices(op: str, x: Any) -> Tensor:
    tensor = to_tensor(x, op=op)
    if tensor.ndim < 2:
        raise ShapeError(f"{op}: needs at least 2 axes, got shape {tensor.shape}")
    return tensor


@public
def diagonal(x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The diagonal of two axes, as a new last axis; a view where memory order allows."""
    tensor = _matrices("diagonal", x)
    i, j = (normalize_axis("diagonal", axis, tensor.ndim) for axis in (axis1, axis2))
    if i == j:
        raise AxisError(f"diagonal: both axes are {i}")
    offset = _diagonal_number("diagonal", offset, "offset")
    moved = moveaxis(tensor, (i, j), (-2, -1))
    rows, columns = moved.shape[-2:]
    first = max(-offset, 0) * columns + max(offset, 0)
    length = max(0, min(rows - max(-offset, 0), columns - max(offset, 0)))
    flat = reshape(moved, (*moved.shape[:-2], rows * columns))
    return slice_axes(flat, (first if length else 0,), (length,), (columns + 1,))


@public
def diag(x: Any, /, k: int = 0) -> Tensor:
    """The k-th diagonal of a matrix, or the matrix with a vector on its k-th diagonal."""
    tensor, k = to_tensor(x, op="diag"), as_integer("diag", "k", k)
    if tensor.ndim == 2:
        return diagonal(tensor, k)
    if tensor.ndim != 1:
        raise ShapeError(f"diag: needs one or two axes, got shape {tensor.shape}")
    shape_tuple("diag", (tensor.shape[0] + abs(k),) * 2)
    return _diagonal_matrix(tensor, k)


@often
def _diagonal_matrix(x: Tensor, k: int) -> Tensor:
    if k:  # each element above or below its column
        widths = {"low": (max(k, 0),), "high": (max(-k, 0),), "interior": (0,)}
        x = call(pad_op, (x, _zero(x)), widths)
    return where(_offsets(x.shape[0], x.shape[0], x.device) == k, x, _zero(x))


@public
@named
def diagflat(x: Any, /, k: int = 0) -> Tensor:
    """A matrix with all elements of `x` on its k-th diagonal."""
    return diag(ravel(x), k)


@public
@named
def matrix_trace(x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The sum of a diagonal."""
    result: Tensor = FUNCTIONS["sum"](diagonal(x, offset, axis1, axis2), axis=-1)
    return result


@public
@often
def vander(x: Any, /, n: int | None = None, increasing: bool = False) -> Tensor:
    """Powers of a vector as columns, the highest first unless `increasing`.

    Those of small integers are 64-bit ones.
    """
    tensor = to_tensor(x, op="vander")
    if tensor.ndim != 1:
        raise ShapeError(f"vander: needs one axis, got shape {tensor.shape}")
    count = tensor.shape[0] if n is None else as_integer("vander", "n", n, low=0)
    shape_tuple("vander", (tensor.shape[0], count))
    column = cast(expand_dims(tensor, 1), dtypes.accumulation_dtype(tensor.dtype))
    columns = [FUNCTIONS["ones_like"](column)]
    while len(columns) < count:
        columns.append(columns[-1] * column)
    powers = columns if as_flag("vander", "increasing", increasing) else columns[::-1]
    result: Tensor = FUNCTIONS["concat"](powers, axis=1)[:, :count]
    return result


def toeplitz(c: Any, r: Any = None, /) -> Tensor:
    """Matrices with constant diagonals: `c` is the first column, `r` the first row.

    Without `r` it is the conjugate of `c`: the matrix is Hermitian. r[0] is not read; leading axes
    are batch.

    >>> toeplitz([1, 2, 3], [0, 8, 9]).tolist()
    [[1, 8, 9], [2, 1, 8], [3, 2, 1]]
    """
    first, second = as_tensors("toeplitz", c, conj(to_tensor(c)) if r is None else r)
    if not first.ndim or not second.ndim:
        raise ShapeError(f"toeplitz: c and r need an axis (shapes {first.shape}, {second.shape})")
    lead = broadcast_shape("toeplitz", first.shape[:-1], second.shape[:-1])
    rows, columns = first.shape[-1], second.shape[-1]
    check_memory("toeplitz", (*lead, rows, columns), first.dtype)
    down, right = (broadcast(x, (*lead, n)) for x, n in ((first, rows), (second, columns)))
    line = concat(
        [flip(down, axis=-1), narrow(right, -1, min(1, columns), max(columns - 1, 0))], axis=-1
    )
    places = np.arange(rows)[::-1, None] + np.arange(columns)
    made: Tensor = FUNCTIONS["take"](line, wrap(places, line.device), axis=-1)
    return made


def block_diag(*arrays: Any) -> Tensor:
    """A matrix with the given matrices along its diagonal and zeros elsewhere.

    Vectors count as rows; axes before the last two are batch.

    >>> block_diag([[1, 2]], [[3], [4]]).tolist()
    [[1, 2, 0], [0, 0, 3], [0, 0, 4]]
    """
    if not arrays:
        raise ArgumentError("block_diag: at least one matrix is needed, got none")
    blocks = [FUNCTIONS["atleast_2d"](x) for x in as_tensors("block_diag", *arrays)]
    lead: Any = ()
    for block in blocks:
        lead = broadcast_shape("block_diag", lead, block.shape[:-2])
    width, before, rows = sum(block.shape[-1] for block in blocks), 0, []
    for block in blocks:
        whole = broadcast(block, (*lead, *block.shape[-2:]))
        after = width - before - block.shape[-1]
        widths = [(0, 0)] * (len(lead) + 1) + [(before, after)]
        rows.append(FUNCTIONS["pad"](whole, widths))
        before += block.shape[-1]
    return concat(rows, axis=-2)


def _places(found: tuple[Array, ...], device: Any) -> tuple[Tensor, ...]:
    return tuple(asarray(place.astype(np.int64), device=device, copy=True) for place in found)


@public
def tril_indices(
    n: int, k: int = 0, m: int | None = None, *, device: Any = None
) -> tuple[Tensor, ...]:
    """Rows and columns of the elements at and below the k-th diagonal."""
    rows, columns = shape_tuple("tril_indices", (n, n if m is None else m))
    check_memory("tril_indices", (max(rows, 1), max(columns, 1)), dtypes.int64)
    return _places(np.tril_indices(rows, _diagonal_number("tril_indices", k), columns), device)


@public
def triu_indices(
    n: int, k: int = 0, m: int | None = None, *, device: Any = None
) -> tuple[Tensor, ...]:
    """Rows and columns of the elements at and above the k-th diagonal."""
    rows, columns = shape_tuple("triu_indices", (n, n if m is None else m))
    check_memory("triu_indices", (max(rows, 1), max(columns, 1)), dtypes.int64)
    return _places(np.triu_indices(rows, _diagonal_number("triu_indices", k), columns), device)


@public
def diag_indices(n: int, ndim: int = 2, *, device: Any = None) -> tuple[Tensor, ...]:
    """Positions of the main diagonal of a tensor with `ndim` axes of size n."""
    rank = as_integer("diag_indices", "ndim", ndim, 0, MAX_RANK)
    size = as_integer("diag_indices", "n", n, low=0)
    return (arange(size, device=device),) * rank


def _square(op: str, x: Any) -> Tensor:
    """A tensor of two or more axes of one size."""
    tensor = _matrices(op, x)
    if len(set(tensor.shape)) != 1:
        raise ShapeError(f"{op}: all axes must have one size, got shape {tensor.shape}")
    return tensor


@public
def diag_indices_from(x: Any, /) -> tuple[Tensor, ...]:
    """Positions of the main diagonal of a tensor, whose axes all have one size."""
    tensor = _square("diag_indices_from", x)
    return diag_indices(tensor.shape[0], tensor.ndim, device=tensor.device)


def _matrix(op: str, x: Any) -> Tensor:
    tensor = to_tensor(x, op=op)
    if tensor.ndim != 2:
        raise ShapeError(f"{op}: needs two axes, got shape {tensor.shape}")
    return tensor


@public
def tril_indices_from(x: Any, /, k: int = 0) -> tuple[Tensor, ...]:
    """Rows and columns of the elements of a matrix at and below its k-th diagonal."""
    tensor = _matrix("tril_indices_from", x)
    return tril_indices(tensor.shape[0], k, tensor.shape[1], device=tensor.device)


@public
def triu_indices_from(x: Any, /, k: int = 0) -> tuple[Tensor, ...]:
    """Rows and columns of the elements of a matrix at and above its k-th diagonal."""
    tensor = _matrix("triu_indices_from", x)
    return triu_indices(tensor.shape[0], k, tensor.shape[1], device=tensor.device)


@public
def fill_diagonal(x: Any, /, val: Any, wrap: bool = False, *, inplace: bool = True) -> Tensor:
    """Put `val` on the main diagonal of `x`.

    Values are taken in order, and again from the first if they are too few. In a matrix of more
    rows than columns, `wrap` goes on with a new diagonal one row below the end of the last. It
    gives the tensor that it changes, or, if not `inplace`, a changed copy.

    >>> fill_diagonal(to_tensor([[1, 2], [3, 4]]), 0).tolist()
    [[0, 2], [3, 0]]
    """
    tensor = _matrices("fill_diagonal", x)
    step, end = tensor.shape[-1] + 1, tensor.size
    goes_on = as_flag("fill_diagonal", "wrap", wrap)
    if tensor.ndim > 2:
        size = _square("fill_diagonal", tensor).shape[0]
        step = sum(size**i for i in range(tensor.ndim))
    elif not goes_on:
        end = min(end, tensor.shape[-1] ** 2)
    values = ravel(value_like("fill_diagonal", tensor, val))
    count = len(range(0, end, step))
    made = copy_of(tensor)
    if values.size and count:
        filling = FUNCTIONS["resize"](values, (count,))
        filled = updated("fill_diagonal", ravel(tensor), slice(0, end, step), filling, "set")
        made = reshape(filled, tensor.shape)
    return changed("fill_diagonal", x, made, inplace)


__all__ = [
    "diag",
    "diag_indices",
    "diag_indices_from",
    "diagflat",
    "diagonal",
    "eye",
    "fill_diagonal",
    "identity",
    "matrix_trace",
    "tri",
    "tril",
    "tril_indices",
    "tril_indices_from",
    "triu",
    "triu_indices",
    "triu_indices_from",
    "vander",
]
