"""Rules for ops that move elements: two moves are one, and a move that moves nothing is none.

Parameters of these ops count axes from the right, and leading axes that they do not name stay; so
two ops that name different numbers of axes meet after the shorter one is extended.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from weft.compiler.calls import Call, Calls, Rule
from weft.core.graph.node import Ref

MOST_TURNED = 1 << 16  # elements of a matrix that may as well be read across its rows


def moves_nothing(calls: Calls, call: Call) -> Ref | None:
    """A reshape or broadcast to the shape that is there already."""
    return call.inputs[0] if call.source_kind(0) == call.kind else None


def permute_in_order(calls: Calls, call: Call) -> Ref | None:
    """A permutation that leaves every axis where it is, or moves only axes of size 1 past none."""
    axes = call.params["axes"]
    return call.inputs[0] if axes == tuple(range(-len(axes), 0)) else None


def permute_of_permute(calls: Calls, call: Call) -> Ref | None:
    """Two permutations are one."""
    inner = calls.made_by(call.inputs[0], "permute")
    if inner is None:
        return None
    outer_axes, inner_axes = call.params["axes"], inner.params["axes"]
    count = max(len(outer_axes), len(inner_axes))
    first, second = (_extended(axes, count) for axes in (inner_axes, outer_axes))
    axes = tuple(first[axis + count] for axis in second)
    while axes and axes[0] == -len(axes):
        axes = axes[1:]
    if not axes:
        return inner.inputs[0]
    return calls.call("permute", inner.inputs, {"axes": axes}, call.like)


def permute_of_product(calls: Calls, call: Call) -> Ref | None:
    """A product whose rows are wanted as columns is the transposed product of transposed factors.

    That is if nobody else reads it, and its left factor lies along the rows: these are the columns
    of the other product, whose results lie in memory as they are wanted. A large right factor is
    better read along its columns.
    """
    product, axes = calls.made_by(call.inputs[0], "matmul"), call.params["axes"]
    if product is None or axes[-1] != -2 or not calls.is_read_once(call):
        return None
    if call.kind.dtype.kind == "c":
        return None  # which of the two parts of a sum is rounded first follows from the order
    left, right = product.inputs
    lies = calls.made_by(left, "permute")
    if lies is None or lies.params["axes"][-2] != -1:
        return None
    first, second = (node.types[slot].shape for node, slot in product.inputs)
    if len(first) != len(second) or prod(second[-2:]) > MOST_TURNED:
        return None  # a factor without batches is better on the right
    turn = {"axes": (-1, -2)}
    factors = tuple(calls.call("permute", (ref,), turn, call.like) for ref in (right, left))
    turned = calls.call("matmul", factors, product.params, call.like)
    rest = tuple({-1: -2, -2: -1}.get(axis, axis) for axis in axes)
    return calls.call("permute", (turned,), {"axes": rest}, call.like)


def _extended(axes: tuple[int, ...], count: int) -> tuple[int, ...]:
    return (*range(-count, -len(axes)), *axes)


def reshape_of_reshape(calls: Calls, call: Call) -> Ref | None:
    """Only the last shape counts: all of them are in row-major order."""
    inner = calls.made_by(call.inputs[0], "reshape")
    if inner is None:
        return None
    node, slot = inner.inputs[0]
    source, target = node.types[slot].shape, call.kind.shape
    kept = 0
    if prod(source):
        while kept < min(len(source), len(target)) and source[kept] == target[kept]:
            kept += 1
    params = {"rank": len(source) - kept, "shape": target[kept:]}
    return calls.call("reshape", inner.inputs, params, call.like)


def broadcast_of_broadcast(calls: Calls, call: Call) -> Ref | None:
    """Stretching twice is stretching once, where both take all axes."""
    inner = calls.made_by(call.inputs[0], "broadcast_to")
    if inner is None:
        return None
    node, slot = inner.inputs[0]
    rank = len(node.types[slot].shape)
    if inner.params["rank"] != rank or call.params["rank"] != len(inner.types[0].shape):
        return None
    params = {"rank": rank, "shape": call.kind.shape}
    return calls.call("broadcast_to", inner.inputs, params, call.like)


def slice_everything(calls: Calls, call: Call) -> Ref | None:
    """A slice from the first element to the last, one by one."""
    plain = all(start == 0 for start in call.params["starts"])
    plain = plain and all(step == 1 for step in call.params["steps"])
    return call.inputs[0] if plain and call.source_kind(0) == call.kind else None


def slice_of_slice(calls: Calls, call: Call) -> Ref | None:
    """A slice of a slice is a slice."""
    inner = calls.made_by(call.inputs[0], "slice")
    if inner is None:
        return None
    count = max(len(call.params["starts"]), len(inner.params["starts"]))
    sizes = inner.types[0].shape[len(inner.types[0].shape) - count :]
    lengths = call.kind.shape[len(call.kind.shape) - count :]
    first, second = (_starts_and_steps(each.params, count) for each in (inner, call))
    starts, steps = [], []
    for (start, step), (next_start, next_step), length, size in zip(
        first, second, lengths, sizes, strict=True
    ):
        empty = length == 0 or size == 0  # where nothing is read, any start is one
        starts.append(0 if empty else start + step * next_start)
        steps.append(1 if empty else step * next_step)
    params = {"starts": tuple(starts), "lengths": lengths, "steps": tuple(steps)}
    return calls.call("slice", inner.inputs, params, call.like)


def _starts_and_steps(params: Mapping[str, tuple[int, ...]], count: int) -> list[tuple[int, int]]:
    missing = count - len(params["starts"])
    return [(0, 1)] * missing + list(zip(params["starts"], params["steps"], strict=True))


def slice_of_update(calls: Calls, call: Call) -> Ref | None:
    """A slice of what was changed elsewhere is one of what it was before; or of the change."""
    source = call.inputs[0]
    update = calls.made_by(source, "slice_update")
    if update is None:
        return None
    read = _ranges(call.params, call.source_kind(0).shape)
    while update is not None:
        written = _ranges(update.params, call.source_kind(0).shape)
        if all(map(_meet, read, written)):
            break
        (source, _), update = update.inputs, calls.made_by(update.inputs[0], "slice_update")
    if update is not None and all(map(_holds, written, read)):
        window, slot = update.inputs[1]
        if len(window.types[slot].shape) == len(read):
            count = max(len(each.params["starts"]) for each in (update, call))
            starts = tuple(r.start - w.start for r, w in zip(read, written, strict=True))
            params = {"starts": starts, "lengths": call.kind.shape, "steps": (1,) * len(read)}
            params = {name: numbers[-count:] for name, numbers in params.items()}
            return calls.call("slice", (update.inputs[1],), params, call.like)
    if source == call.inputs[0] or source[0].types[source[1]] != call.source_kind(0):
        return None
    return calls.call("slice", (source,), call.params, call.like)


def _ranges(params: Mapping[str, tuple[int, ...]], shape: tuple[int, ...]) -> list[range]:
    """The positions of a slice along all axes."""
    names = ("starts", "lengths", "steps")
    missing = len(shape) - len(params["starts"])
    found = [range(size) for size in shape[:missing]]
    for start, length, step in zip(*(params[name] for name in names), strict=True):
        found.append(range(start, start + length * step, step))
    return found


def _meet(read: range, written: range) -> bool:
    """Whether two ranges may have a position in common."""
    if not read or not written:
        return False
    low, high = max(min(read), min(written)), min(max(read), max(written))
    return low <= high


def _holds(written: range, read: range) -> bool:
    """Whether all positions that are read were written, one beside the other."""
    inside = min(written) <= min(read) and max(read) <= max(written)
    return written.step == 1 and read.step == 1 and inside


def flip_of_flip(calls: Calls, call: Call) -> Ref | None:
    """What is turned twice is not turned; an axis of one element never is."""
    shape = call.kind.shape
    axes, source = set(call.params["axes"]), call.inputs[0]
    inner = calls.made_by(source, "flip")
    if inner is not None:
        axes, source = axes ^ set(inner.params["axes"]), inner.inputs[0]
    axes = {axis for axis in axes if shape[axis] > 1}
    if not axes:
        return source
    if inner is None and len(axes) == len(call.params["axes"]):
        return None
    return calls.call("flip", (source,), {"axes": tuple(sorted(axes))}, call.like)


def pad_nothing(calls: Calls, call: Call) -> Ref | None:
    """Padding of no width."""
    widths = (n for name in ("low", "high", "interior") for n in call.params[name])
    return call.inputs[0] if not any(widths) and call.source_kind(0) == call.kind else None


def join_what_is_there(calls: Calls, call: Call) -> Ref | None:
    """Joining one tensor, or one beside others that have no elements."""
    axis = call.params["axis"]
    kinds = [call.source_kind(i) for i in range(len(call.inputs))]
    full = [ref for ref, kind in zip(call.inputs, kinds, strict=True) if kind.shape[axis]]
    if not full:
        full = [call.inputs[0]]
    if len(full) == 1:
        return calls.fitted(full[0], call)
    if len(full) == len(call.inputs):
        return None
    found = calls.call("concat", tuple(full), call.params, call.like)
    return calls.fitted(found, call)


MOVEMENT: dict[str, tuple[Rule, ...]] = {
    "reshape": (moves_nothing, reshape_of_reshape),
    "broadcast_to": (moves_nothing, broadcast_of_broadcast),
    "permute": (permute_in_order, permute_of_permute, permute_of_product),
    "slice": (slice_everything, slice_of_slice, slice_of_update),
    "flip": (flip_of_flip,),
    "pad": (pad_nothing,),
    "concat": (join_what_is_there,),
}
