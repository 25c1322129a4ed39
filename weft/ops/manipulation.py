"""Rearrange tensors: repeat, tile, roll, stack in columns and blocks, insert and delete.

Everything here is spelled with views, joins and gathers, so it is differentiable and batchable.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.parameters import as_choice, as_integer, as_integers
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.trees import tree_flatten, tree_unflatten
from weft.core.common.types import Array, Shape
from weft.core.tensor.convert import to_tensor, to_tensors
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import read_for_size
from weft.core.tensor.views import alias
from weft.errors import ArgumentError, AxisError, DTypeError, IndexingError, ShapeError
from weft.ops.axes import normalize_axes, normalize_axis
from weft.ops.contraction import numbers
from weft.ops.creation import arange, asarray, check_memory, shape_tuple
from weft.ops.families import as_tensors, broadcast, cast
from weft.ops.indexing import value_like
from weft.ops.naming import named
from weft.ops.often import often
from weft.ops.selection import take
from weft.ops.view.broadcast import broadcast_to
from weft.ops.view.join import concat, joined_tensors
from weft.ops.view.reshape import expand_dims, ravel, reshape
from weft.ops.view.slice import flip, narrow
from weft.ops.view.transpose import moveaxis, swapaxes
from weft.ops.view.window import sliding_windows


@public
def expand(x: Any, /, shape: Any) -> Tensor:
    """`x` stretched to `shape` as a view; -1 keeps an axis as it is."""
    return broadcast_to(x, shape)


@public
def rollaxis(x: Any, /, axis: int, start: int = 0) -> Tensor:
    """Move an axis until it stands before axis `start`."""
    tensor = to_tensor(x, op="rollaxis")
    i = normalize_axis("rollaxis", axis, tensor.ndim)
    first = as_integer("rollaxis", "start", start)
    target = first + tensor.ndim if first < 0 else first
    if not 0 <= target <= tensor.ndim:
        raise AxisError(f"rollaxis: start {first} is out of range for {tensor.ndim} axes")
    return moveaxis(tensor, i, target - 1 if i < target else target)


@public
@often
def repeat(
    x: Any, /, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None
) -> Tensor:
    """Each element several times in a row: `repeats` is one number, or one for each position.

    Numbers for each position are read, since they decide the result's shape, unless
    `total_repeat_length` does: what is longer is cut off, and the last element fills what is left.
    """
    tensor = to_tensor(x, beside=(repeats,), op="repeat")
    if axis is None:
        tensor, axis = ravel(tensor), 0
    i = normalize_axis("repeat", axis, tensor.ndim)
    if total_repeat_length is not None:
        total = as_integer("repeat", "total_repeat_length", total_repeat_length, low=0)
        return take(tensor, _repeated_places(repeats, tensor, i, total), axis=i)
    counts = _counts(repeats, tensor.shape[i], i)
    if isinstance(counts, np.ndarray):
        return take(tensor, np.repeat(np.arange(tensor.shape[i]), counts), axis=i)
    before, after = tensor.shape[: i + 1], tensor.shape[i + 1 :]
    shape_tuple("repeat", (*before, counts, *after))
    stretched = broadcast(expand_dims(tensor, i + 1), (*before, counts, *after))
    return reshape(stretched, (*before[:-1], before[-1] * counts, *after))


def _repeated_places(repeats: Any, x: Tensor, axis: int, total: int) -> Tensor:
    """Which element stands at each place of a result of a known length."""
    size = x.shape[axis]
    counts = to_tensor(repeats, like=x.device, op="repeat")
    if not dtypes.is_integer(counts.dtype):
        raise DTypeError(f"repeat: repeats must be integers, got {dtypes.name_of(counts.dtype)}")
    if (counts.size != 1 and counts.shape != (size,)) or counts.ndim > 1:
        raise ShapeError(f"repeat: repeats {counts.shape} for axis {axis} of size {size}")
    if total and not size:
        raise ShapeError(f"repeat: no element of axis {axis} fills a length of {total}")
    check_memory("repeat", (total,), dtypes.int64)
    ends = cast(FUNCTIONS["cumsum"](broadcast(counts, (size,))), dtypes.int64)
    order = arange(total, device=x.device)
    found = FUNCTIONS["searchsorted"](ends, order, side="right")
    return cast(FUNCTIONS["minimum"](found, max(size - 1, 0)), dtypes.int64)


def _counts(repeats: Any, size: int, axis: int) -> int | Array:
    if isinstance(repeats, int | np.integer):
        return as_integer("repeat", "repeats", repeats, low=0)
    else:
        tensor = to_tensor(repeats, op="repeat")
        instead = "say how long the result is: wf.repeat(x, repeats, total_repeat_length=…)"
        empty = np.zeros(tensor.shape, np.int64)
        found = read_for_size(tensor, instead) if tensor.size else empty
    if found.dtype.kind not in "iu":
        raise DTypeError(f"repeat: repeats must be integers, got {found.dtype}")
    if found.size and found.min() < 0:
        raise ArgumentError(f"repeat: repeats are negative ({int(found.min())})")
    if found.size == 1 and found.ndim <= 1:
        return int(found.reshape(())[()])
    if found.shape != (size,):
        raise ShapeError(f"repeat: repeats {found.shape} for axis {axis} of size {size}")
    check_memory("repeat", (sum(found.tolist()),), dtypes.int64)
    return found.astype(np.int64)


@public
@often
def tile(x: Any, repetitions: Any, /) -> Tensor:
    """The whole tensor several times along each axis."""
    tensor = to_tensor(x, op="tile")
    times = shape_tuple("tile", repetitions)
    rank = max(len(times), tensor.ndim)
    times = (1,) * (rank - len(times)) + times
    sizes = (1,) * (rank - tensor.ndim) + tensor.shape
    opened = reshape(tensor, tuple(n for size in sizes for n in (1, size)))
    pairs = tuple(n for pair in zip(times, sizes, strict=True) for n in pair)
    full = tuple(a * b for a, b in zip(times, sizes, strict=True))
    shape_tuple("tile", full)
    return reshape(broadcast(opened, pairs), full)


@public
@often
def roll(x: Any, /, shift: Any, axis: Any = None) -> Tensor:
    """Shift elements along axes; what leaves at one end enters at the other."""
    tensor = to_tensor(x, op="roll")
    if any(map(_is_computed, shift if isinstance(shift, list | tuple) else (shift,))):
        return _rolled(tensor, shift, axis)
    if axis is None:
        return reshape(roll(ravel(tensor), _total(shift), axis=0), tensor.shape)
    shifts, axes = as_integers("roll", "shift", shift), as_integers("roll", "axis", axis)
    if not (shifts and axes):
        return alias(tensor)
    if len(shifts) != len(axes) and 1 not in (len(shifts), len(axes)):
        raise ArgumentError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    count = max(len(shifts), len(axes))
    shifts, axes = shifts * (count // len(shifts)), axes * (count // len(axes))
    for step, which in zip(shifts, axes, strict=True):
        i = normalize_axis("roll", which, tensor.ndim)
        size = tensor.shape[i]
        moved = step % size if size else 0
        if moved:
            parts = narrow(tensor, i, size - moved, moved), narrow(tensor, i, 0, size - moved)
            tensor = concat(parts, axis=i)
    return alias(tensor) if tensor is x else tensor


def _is_computed(shift: Any) -> bool:
    """Whether reading a shift would cost something, or is not allowed."""
    return isinstance(shift, Tensor) and not (shift.owner is None and shift.is_realized)


def _rolled(tensor: Tensor, shift: Any, axis: Any) -> Tensor:
    """The same by shifts whose values are not known: elements are picked."""
    steps = _steps(shift)
    if axis is None:
        return reshape(_picked(ravel(tensor), sum(steps), 0), tensor.shape)
    axes = as_integers("roll", "axis", axis)
    if len(steps) != len(axes) and 1 not in (len(steps), len(axes)):
        raise ArgumentError(f"roll: {len(steps)} shifts for {len(axes)} axes")
    count = max(len(steps), len(axes)) if steps and axes else 0
    for number in range(count):
        which = axes[number % len(axes)]
        i = normalize_axis("roll", which, tensor.ndim)
        tensor = _picked(tensor, steps[number % len(steps)], i)
    return tensor


def _steps(shift: Any) -> list[Any]:
    """Shifts one by one, each a number or a tensor without axes."""
    if isinstance(shift, list | tuple):
        return [each for one in shift for each in _steps(one)]
    if not isinstance(shift, Tensor):
        return list(as_integers("roll", "shift", shift))
    if not dtypes.is_integer(shift.dtype) or shift.ndim > 1:
        raise DTypeError(f"roll: shift must be integers, got {shift.type}")
    wide = cast(shift, dtypes.int64)
    return [wide[k] for k in range(wide.size)] if wide.ndim else [wide]


def _picked(tensor: Tensor, step: Any, axis: int) -> Tensor:
    """Shifted along one axis."""
    if not tensor.shape[axis]:
        return tensor
    places = arange(tensor.shape[axis], device=tensor.device) - step
    return take(tensor, places, axis, mode="wrap")


def _total(shift: Any) -> int:
    return sum(as_integers("roll", "shift", shift))


@public
@often
def rot90(x: Any, /, k: int = 1, axes: Any = (0, 1)) -> Tensor:
    """Turn the plane of two axes by k quarter turns, from the first towards the second."""
    tensor = to_tensor(x, op="rot90")
    i, j = _plane(axes, tensor.ndim)
    turns = as_integer("rot90", "k", k) % 4
    if turns == 2:
        return flip(tensor, axis=(i, j))
    if turns == 1:
        return swapaxes(flip(tensor, axis=j), i, j)
    return flip(swapaxes(tensor, i, j), axis=j) if turns else alias(tensor)


def _plane(axes: Any, rank: int) -> tuple[int, ...]:
    found = normalize_axes("rot90", axes, rank)
    if len(found) != 2:
        raise AxisError(f"rot90: a plane has two axes, got {axes}")
    return found


@public
def fliplr(x: Any, /) -> Tensor:
    """Reverse the second axis."""
    return flip(_at_least("fliplr", x, 2), axis=1)


@public
def flipud(x: Any, /) -> Tensor:
    """Reverse the first axis."""
    return flip(_at_least("flipud", x, 1), axis=0)


def _at_least(op: str, x: Any, rank: int) -> Tensor:
    tensor = to_tensor(x, op=op)
    if tensor.ndim < rank:
        raise AxisError(f"{op}: needs at least {rank} axes, got shape {tensor.shape}")
    return tensor


def _each(op: str, arrays: tuple[Any, ...], shape: Any) -> Any:
    """One function of shapes applied to every argument; one argument gives one tensor."""
    made = tuple(reshape(t, shape(t.shape)) for t in to_tensors(op, *arrays))
    return made[0] if len(made) == 1 else made


@public
def atleast_1d(*arrays: Any) -> Any:
    """Tensors with at least one axis; several arguments give a tuple."""
    return _each("atleast_1d", arrays, lambda shape: shape or (1,))


@public
def atleast_2d(*arrays: Any) -> Any:
    """Tensors with at least two axes: new ones come first."""
    return _each("atleast_2d", arrays, _two)


@public
def atleast_3d(*arrays: Any) -> Any:
    """Tensors with at least three axes; a vector gets one on each side, a matrix one last."""
    return _each("atleast_3d", arrays, _three)


def _two(shape: Shape) -> Shape:
    return (1,) * (2 - len(shape)) + shape


def _three(shape: Shape) -> Shape:
    if len(shape) == 1:
        return (1, *shape, 1)
    return shape + (1,) * (3 - len(shape)) if len(shape) else (1, 1, 1)


@public
def concatenate(arrays: Any, /, axis: int | None = 0) -> Tensor:
    """Join tensors along an existing axis; `axis=None` joins them flattened."""
    return concat(arrays, axis=axis)


@public
@named
def hstack(arrays: Any, /) -> Tensor:
    """Join along the second axis; vectors along their only one."""
    parts = [reshape(t, t.shape or (1,)) for t in joined_tensors("hstack", arrays)]
    return concat(parts, axis=0 if parts[0].ndim == 1 else 1)


@public
@named
def vstack(arrays: Any, /) -> Tensor:
    """Join along the first axis; vectors become rows."""
    return concat([reshape(t, _two(t.shape)) for t in joined_tensors("vstack", arrays)], axis=0)


@public
@named
def dstack(arrays: Any, /) -> Tensor:
    """Join along the third axis."""
    return concat([reshape(t, _three(t.shape)) for t in joined_tensors("dstack", arrays)], axis=2)


@public
@named
def column_stack(arrays: Any, /) -> Tensor:
    """Join along the second axis; vectors become columns."""
    tensors = joined_tensors("column_stack", arrays)
    return concat([reshape(t, (t.size, 1)) if t.ndim < 2 else t for t in tensors], axis=1)


@public
@named
def block(blocks: Any, /) -> Tensor:
    """Assemble a tensor from nested lists of blocks: innermost lists join along the last axis."""
    depth = _depth(blocks)
    if not depth:
        result: Tensor = FUNCTIONS["copy_of"](blocks)
        return result
    leaves = as_tensors("block", *_leaves(blocks, depth))
    rank = max(depth, *(t.ndim for t in leaves))
    opened = iter([reshape(t, (1,) * (rank - t.ndim) + t.shape) for t in leaves])
    return _assembled(blocks, depth, opened)


def _depth(blocks: Any) -> int:
    if not isinstance(blocks, list):
        return 0
    if not blocks:
        raise ArgumentError("block: a list of blocks is empty")
    depths = {_depth(part) for part in blocks}
    if len(depths) > 1:
        raise ArgumentError(f"block: lists are nested to different depths ({sorted(depths)})")
    return 1 + depths.pop()


def _leaves(blocks: Any, depth: int) -> list[Any]:
    return [leaf for part in blocks for leaf in _leaves(part, depth - 1)] if depth else [blocks]


def _assembled(blocks: Any, depth: int, leaves: Any) -> Tensor:
    if not depth:
        result: Tensor = next(leaves)
        return result
    return concat([_assembled(part, depth - 1, leaves) for part in blocks], axis=-depth)


@public
@named
def append(x: Any, /, values: Any, axis: int | None = None) -> Tensor:
    """`x` with `values` behind it along an axis; both flattened when none is given."""
    return concat(as_tensors("append", x, values), axis=axis)


@public
def delete(x: Any, /, obj: Any, axis: int | None = None) -> Tensor:
    """`x` without the positions `obj` (an integer, a slice, integers or a mask) of an axis."""
    tensor = to_tensor(x, op="delete")
    if axis is None:
        tensor, axis = ravel(tensor), 0
    i = normalize_axis("delete", axis, tensor.ndim)
    kept = _by_numpy("delete", np.delete, np.arange(tensor.shape[i]), _static(obj))
    return take(tensor, kept, axis=i)


@public
def trim_zeros(filt: Any, /, trim: str = "fb", axis: Any = None) -> Tensor:
    """`filt` without the zeros at its front ("f"), its back ("b"), or both ends of the given axes.

    The elements are read, since they decide the result's shape: not inside vmap or compile.

    >>> trim_zeros([0, 0, 1, 0, 2, 0]).tolist()
    [1, 0, 2]
    """
    tensor = to_tensor(filt, op="trim_zeros")
    ends = as_choice("trim_zeros", "trim", str(trim).lower(), ("f", "b", "fb", "bf"))
    axes = range(tensor.ndim) if axis is None else normalize_axes("trim_zeros", axis, tensor.ndim)
    filled = tensor.host() != 0
    for i in axes:
        others = tuple(k for k in range(tensor.ndim) if k != i)
        there = np.flatnonzero(filled.any(axis=others)).tolist()
        first = there[0] if there and "f" in ends else 0
        last = there[-1] if there and "b" in ends else tensor.shape[i] - 1
        tensor = narrow(tensor, i, first, last + 1 - first if there else 0)
    return alias(tensor) if tensor is filt else tensor


@public
@named
def insert(x: Any, /, obj: Any, values: Any, axis: int | None = None) -> Tensor:
    """`x` with `values` put before the positions `obj` of an axis."""
    tensor = to_tensor(x, beside=(values,), op="insert")
    new = value_like("insert", tensor, values)
    if axis is None:
        tensor, axis = ravel(tensor), 0
    i = normalize_axis("insert", axis, tensor.ndim)
    size = tensor.shape[i]
    where = _static(obj)
    places = _by_numpy("insert", _places, where, size)
    if places.dtype == bool:
        places = np.flatnonzero(places)
    new = reshape(new, (1,) * (tensor.ndim - new.ndim) + new.shape)
    if places.ndim == 0:  # at one position several slices may go, and their axis comes first
        new = moveaxis(new, 0, i)
    count = new.shape[i] if places.size == 1 else places.size
    added = broadcast_to(new, (*tensor.shape[:i], count, *tensor.shape[i + 1 :]))
    order = _by_numpy("insert", np.insert, np.arange(size), places, size + np.arange(count))
    return take(concat((tensor, added), axis=i), order, axis=i)


def _places(where: Any, size: int) -> Array:
    """The positions that an integer, a slice, integers or a mask names."""
    found = np.arange(size)[where] if isinstance(where, slice) else np.asarray(where)
    if found.size and found.dtype.kind not in "biu":
        raise TypeError(f"positions must be integers, got {found.dtype}")
    if found.dtype == bool:
        return found
    if found.size and found.max() > size:
        raise IndexError(f"index {found.max()} is out of bounds for size {size}")
    return found.astype(np.int64)  # NumPy adds to them in their own dtype


def _static(obj: Any) -> Any:
    """Positions that decide a shape, as NumPy takes them."""
    return obj.host() if isinstance(obj, Tensor) else obj


def _by_numpy(op: str, function: Any, *args: Any) -> Array:
    try:
        result: Array = function(*args)
        return result
    except (IndexError, ValueError, TypeError) as error:
        raise IndexingError(f"{op}: {error}") from None


@public
def resize(x: Any, /, new_shape: Any) -> Tensor:
    """The elements of `x` in a new shape, repeated or cut to fit."""
    tensor = ravel(x)
    sizes = shape_tuple("resize", new_shape)
    total = prod(sizes)
    if not tensor.size:
        result: Tensor = FUNCTIONS["zeros"](sizes, dtype=tensor.dtype, device=tensor.device)
        return result
    whole = tile(tensor, (-(-total // tensor.size),)) if total > tensor.size else tensor
    return reshape(narrow(whole, 0, 0, total), sizes)


@public
@often
def kron(x1: Any, x2: Any, /) -> Tensor:
    """The Kronecker product: every element of `x1` times all of `x2`."""
    a, b = as_tensors("kron", x1, x2)
    rank = max(a.ndim, b.ndim)
    left, right = ((1,) * (rank - t.ndim) + t.shape for t in (a, b))
    outer = reshape(a, tuple(n for size in left for n in (size, 1)))
    inner = reshape(b, tuple(n for size in right for n in (1, size)))
    return reshape(outer * inner, tuple(m * n for m, n in zip(left, right, strict=True)))


@public
@often
def cross(
    x1: Any, x2: Any, /, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Tensor:
    """The cross product of vectors of three elements; other axes broadcast.

    Vectors lie along `axisa` of `x1`, `axisb` of `x2` and `axisc` of the result, or along `axis`.
    """
    a, b = numbers("cross", x1, x2)
    if axis is not None:
        axis = as_integer("cross", "axis", axis)
        if axis >= 0:
            axis = normalize_axis("cross", axis, max(a.ndim, b.ndim)) - max(a.ndim, b.ndim)
        axisa = axisb = axisc = axis
    sides = []
    for operand, (t, along) in enumerate(((a, axisa), (b, axisb))):
        place = normalize_axis("cross", along, t.ndim)
        if t.shape[place] != 3:
            raise ShapeError(
                f"cross: operand {operand}, axis {along}: size must be 3, got {t.shape[place]}"
            )
        last = moveaxis(t, place, -1)
        sides.append([narrow(last, -1, k, 1) for k in range(3)])
    u, v = sides
    parts = [
        u[1] * v[2] - u[2] * v[1],
        u[2] * v[0] - u[0] * v[2],
        u[0] * v[1] - u[1] * v[0],
    ]
    made = concat(parts, axis=-1)
    return moveaxis(made, -1, normalize_axis("cross", axisc, made.ndim))


@public
def sliding_window_view(x: Any, /, window_shape: Any, axis: Any = None) -> Tensor:
    """Every place of a window over the given axes; the window's own axes come last."""
    return sliding_windows(x, window_shape, axis)


@public
def unfold(x: Any, /, axis: int, size: int, step: int = 1) -> Tensor:
    """Windows of `size` elements along an axis, `step` apart, as a new last axis."""
    return sliding_windows(x, size, axis, stride=step)


@public
def tree_ravel(tree: Any, /) -> tuple[Tensor, Callable[[Any], Any]]:
    """All leaves of a tree as one vector, and the function that makes such a tree of a vector.

    Leaves of several dtypes meet in the one they promote to, and get their own back.

    >>> vector, restore = tree_ravel({"a": [1.0, 2.0], "b": 3.0})
    >>> vector.tolist(), restore(vector * 2)["b"].item()
    ([1.0, 2.0, 3.0], 6.0)
    """
    leaves, structure = tree_flatten(tree)
    tensors = to_tensors("tree_ravel", *leaves)
    kinds = [x.dtype for x in tensors]
    whole = dtypes.promote_all(*kinds, op="tree_ravel") if kinds else default_float()
    parts = [cast(reshape(x, (-1,)), whole) for x in tensors]
    vector = concat(parts) if parts else asarray([], dtype=whole)
    shapes = [x.shape for x in tensors]

    def restore(vector: Any) -> Any:
        flat = to_tensor(vector, beside=tuple(tensors), op="tree_ravel")
        if flat.shape != (sum(map(prod, shapes)),):
            raise ShapeError(
                f"tree_ravel: restore: expected a vector of {sum(map(prod, shapes))} elements,"
                f" got shape {flat.shape}"
            )
        made, start = [], 0
        for shape, kind in zip(shapes, kinds, strict=True):
            made.append(cast(reshape(narrow(flat, 0, start, prod(shape)), shape), kind))
            start += prod(shape)
        return tree_unflatten(structure, made)

    return vector, restore


__all__ = [
    "append",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block",
    "column_stack",
    "concatenate",
    "cross",
    "delete",
    "dstack",
    "expand",
    "fliplr",
    "flipud",
    "hstack",
    "insert",
    "kron",
    "repeat",
    "resize",
    "roll",
    "rollaxis",
    "rot90",
    "sliding_window_view",
    "tile",
    "tree_ravel",
    "trim_zeros",
    "unfold",
    "vstack",
]
