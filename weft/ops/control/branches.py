"""Choose what to compute by a value: `cond` and `switch`.

Both are one op with a subgraph for each branch: only the chosen one runs, unless the choice itself
is mapped over by `vmap`; then all run and `where` picks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from weft.core.common import dtypes
from weft.core.common.parameters import as_function, as_sequence
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.source import spare
from weft.core.common.trees import tree_flatten, tree_paths, tree_unflatten
from weft.core.common.types import Array, TensorType
from weft.core.graph.trace import Trace
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, MissingRuleError, ShapeError, TreeError
from weft.ops.base import Cost, Tangents, call_multiple
from weft.ops.control.guarded import batched_where, guarded
from weft.ops.control.subgraphs import (
    Flags,
    Recording,
    SubgraphOperation,
    as_operands,
    batched,
    chosen,
    close,
    cost_of,
    either,
    mismatch,
    number_of,
    owned_results,
    place_alike,
    places,
    pulled,
    pushed,
    reached,
    repeat,
    repeatable,
    retrace,
    same_places,
    smooth,
    spread,
    total_cost,
    weak,
)
from weft.ops.elementwise.arithmetic import where
from weft.ops.elementwise.comparison import equal, not_equal
from weft.ops.families import cast
from weft.ops.view.reshape import reshape


class Switch(SubgraphOperation):
    """Run the subgraph that the first operand chooses on the other operands."""

    def infer(self, *types: TensorType, branches: tuple[Trace, ...]) -> tuple[TensorType, ...]:
        return branches[0].output_types

    def places(self, **params: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = params["branches"][0].output_devices
        for branch in params["branches"][1:]:
            same_places(f"{self}: result", branch.output_devices, "in another branch", found)
        return found

    def eval(self, *arrays: Array, branches: tuple[Trace, ...]) -> tuple[Array, ...]:
        operands = arrays[1:]
        branch = branches[min(max(number_of(arrays[0]), 0), len(branches) - 1)]
        return owned_results(branch.run(operands), operands)

    def batch(self, size: int, args: Any, hidden: Any, *, branches: tuple[Trace, ...]) -> Any:
        index, *operands = args
        varies = tuple(hidden[1:])
        if hidden[0]:
            results = self._run_all(size, index, operands, varies, branches)
            return results, (True,) * len(results)
        mapped = either(*(reached(branch, varies) for branch in branches))
        functions = [batched(branch, size, varies, mapped) for branch in branches]
        return perform_switch(
            index, *retrace(*functions, places=places(operands)), operands
        ), mapped

    def _run_all(
        self, size: int, index: Tensor, operands: Any, varies: Flags, branches: tuple[Trace, ...]
    ) -> tuple[Tensor, ...]:
        if not all(map(repeatable, branches)):
            raise MissingRuleError(
                f"{self}: no batch rule for a mapped choice: all branches would run, with effects"
                "\nhint: wf.map goes through the rows one by one; or move effects out"
            )
        every = (True,) * len(branches[0].outputs)
        nearest = FUNCTIONS["clip"](index, 0, len(branches) - 1)
        results: tuple[Tensor, ...] = ()
        for number, branch in enumerate(branches):
            taken = equal(nearest, number)
            pairs = [_kept(taken, x, v) for x, v in zip(operands, varies, strict=True)]
            own, now = zip(*pairs, strict=True) if pairs else ((), ())
            found = batched_where(branch, size, now, every)(taken, *own)
            if number:
                with spare() if number < len(branches) - 1 else nullcontext():
                    found = tuple(map(partial(pick, taken), found, results))
            results = found
        return results

    def guard(self, counts: Tensor, args: Any, *, branches: tuple[Trace, ...]) -> Any:
        index, *operands = args
        given = (counts, *operands)
        recorded = retrace(*map(guarded, branches), places=places(given))
        return perform_switch(index, *recorded, given)

    def jvp(self, primals: Any, tangents: Any, out: Any, *, branches: tuple[Trace, ...]) -> Any:
        self.check_repeatable("jvp", *branches)
        index, *operands = primals
        active = tuple(t is not None for t in tangents[1:])
        moves = chosen(tangents[1:], active)
        moved = either(*(reached(branch, active, floats=True) for branch in branches))

        def tangents_of(branch: Trace) -> Callable[..., tuple[Tensor, ...]]:
            return lambda *tensors: chosen(pushed(branch, active)(*tensors)[1], moved)

        given = (*operands, *moves)
        recorded = retrace(*map(tangents_of, branches), places=places(given))
        return spread(moved, perform_switch(index, *recorded, given))

    def vjp(
        self,
        primals: Any,
        out: Any,
        ct: Any,
        *,
        branches: tuple[Trace, ...],
        needed: Sequence[bool] | None = None,
    ) -> Tangents:
        self.check_repeatable("vjp", *branches)
        index, *operands = primals
        active = smooth(operands)
        if needed is not None:
            active = tuple(a and n for a, n in zip(active, needed[1:], strict=True))
        moved = either(*(reached(branch, active, floats=True) for branch in branches))
        given = (*operands, *chosen(ct, moved))
        functions = [pulled(branch, active, moved) for branch in branches]
        recorded = retrace(*functions, places=places(given))
        return None, *spread(active, perform_switch(index, *recorded, given))

    def cost(self, *types: TensorType, branches: tuple[Trace, ...]) -> Cost:
        return cost_of(max(map(total_cost, branches)), *types, *branches[0].output_types)


class SwitchWithEffects(Switch):
    """A choice between subgraphs that do something besides computing: it runs at the call."""

    pure = False


switch_op, switch_with_effects_op = Switch(), SwitchWithEffects()


def pick(mask: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Rows of `x` where `mask` holds, of `y` elsewhere; the mask goes where they are."""
    if x.sharding.mesh is None and mask.sharding.mesh is None:
        mask = FUNCTIONS["to_device"](mask, x.device)
    return where(reshape(mask, (*mask.shape, *(1,) * (x.ndim - mask.ndim))), x, y)


def _kept(taken: Tensor, x: Tensor, varies: bool) -> tuple[Tensor, bool]:
    """`x`, a constant in the rows that are not taken: 0 times an infinite slope would be NaN.

    A matrix that all rows share stays one: products with it would be done row by row.
    """
    constant = FUNCTIONS["stop_gradient"](x)
    if constant is x or (x.ndim > 1 and not varies):
        return x, varies
    if not varies:
        x, constant = repeat(x, taken.shape[0]), repeat(constant, taken.shape[0])
    return pick(taken, x, constant), True


def perform_switch(
    index: Tensor, captures: Sequence[Tensor], branches: tuple[Trace, ...], operands: Sequence[Any]
) -> tuple[Tensor, ...]:
    """Perform the op: `branches` take the captures, then the operands."""
    if not branches[0].outputs and not any(branch.effects for branch in branches):
        return ()
    op = switch_with_effects_op if any(b.effects for b in branches) else switch_op
    return call_multiple(op, (index, *captures, *operands), {"branches": branches})


@public
def cond(
    pred: Any,
    true_fun: Callable[..., Any],
    false_fun: Callable[..., Any],
    *operands: Any,
) -> Any:
    """`true_fun(*operands)` if `pred` holds, else `false_fun(*operands)`; one of them runs.

    Both functions are traced once on shapes, and must return trees of the same structure, shapes
    and dtypes. When `vmap` maps over `pred` itself, both run and `where` picks.

    >>> cond(True, lambda x: x + 1, lambda x: x - 1, 3.0).item()
    4.0
    """
    tensor = _choice("cond", "pred", pred)
    if not dtypes.is_bool(tensor.dtype):
        tensor = not_equal(tensor, 0)
    labels = ("false_fun", "true_fun")
    return _branch(
        "cond", tensor, isinstance(pred, Tensor), (false_fun, true_fun), labels, operands
    )


@public
def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """`branches[index](*operands)`; an index out of range counts as the nearest one.

    >>> switch(7, [lambda x: x, lambda x: -x], 3.0).item()
    -3.0
    """
    tensor = _choice("switch", "index", index)
    if not dtypes.is_integer(tensor.dtype):
        raise DTypeError(f"switch: the index must be an integer, got {tensor.type}")
    branches = as_sequence("switch", "branches", branches)
    if not branches:
        raise ArgumentError("switch: no branches were given")
    labels = tuple(f"branch {i}" for i in range(len(branches)))
    return _branch("switch", tensor, isinstance(index, Tensor), tuple(branches), labels, operands)


def _choice(op: str, name: str, value: Any) -> Tensor:
    tensor = to_tensor(value, op=op)
    if tensor.shape != ():
        raise ShapeError(
            f"{op}: {name} must have no axes, got shape {tensor.shape}"
            "\nhint: wf.where chooses element by element; vmap chooses for each row"
        )
    return tensor


def _branch(
    op: str,
    index: Tensor,
    given: bool,
    functions: Sequence[Callable[..., Any]],
    labels: Sequence[str],
    operands: tuple[Any, ...],
) -> Any:
    for function, label in zip(functions, labels, strict=True):
        as_function(op, label, function)
    leaves, structure = tree_flatten(operands)
    tensors = as_operands(op, leaves, (index,) if given else ())

    def flat(function: Callable[..., Any]) -> Recording:
        def run(*values: Tensor) -> Any:
            return function(*tree_unflatten(structure, values))

        recording = Recording(op, run, places(tensors))
        recording.name = getattr(function, "__name__", op)
        return recording

    recordings = [flat(function) for function in functions]
    place_alike(recordings)
    _agree(op, recordings, labels)
    captures, branches = close(*recordings)
    first = next(iter((*tensors, *captures)), index)
    if not given:
        index = FUNCTIONS["to_device"](index, first.device)
    if index.dtype == dtypes.uint64:  # the largest would be negative
        index = FUNCTIONS["clip"](index, 0, len(functions) - 1)
    index = cast(index, dtypes.int64)
    results = perform_switch(index, captures, branches, tensors)
    return tree_unflatten(recordings[0].structure, results)


def _agree(op: str, recordings: Sequence[Recording], labels: Sequence[str]) -> None:
    """Check that all branches return the same types; Python numbers follow the tensors."""
    first = recordings[0]
    for recording, label in zip(recordings[1:], labels[1:], strict=True):
        if recording.structure != first.structure:
            raise TreeError(
                f"{op}: results differ in structure ({labels[0]} {first.structure},"
                f" {label} {recording.structure})"
            )
    paths = tree_paths(tree_unflatten(first.structure, range(len(first.outputs))))
    for position, path in enumerate(paths):
        dtype = next((d for r in recordings if (d := r.dtype(position)) is not None), None)
        numbers = [r.outputs[position] for r in recordings if r.dtype(position) is None]
        if dtype is None:
            dtype = to_tensor(numbers[0]).dtype
        for number in numbers:
            dtype = weak(number, dtype)
        kinds = [r.settle(position, dtype) for r in recordings]
        if len(set(kinds)) > 1:
            where_ = f"{op}: result{path or ''}"
            raise mismatch(where_, list(zip(labels, kinds, strict=True)))


__all__ = ["cond", "switch"]
