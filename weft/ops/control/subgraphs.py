"""Ops that hold subgraphs: record a Python function once, hoist what it captures, transform it.

A subgraph is a `Trace` in an op's parameters. Outer tensors it uses become leading operands, so
that every handler outside sees them. Batching or differentiating such an op means performing it
again with other subgraphs: the old ones replayed under `vmap`, `jvp` or `vjp`, and recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import current_device, default_float
from weft.core.common.device import Device
from weft.core.common.factors import Factors
from weft.core.common.frozen import freeze
from weft.core.common.handler import installed
from weft.core.common.slots import FUNCTIONS, OPS
from weft.core.common.trees import tree_flatten
from weft.core.common.types import Array, TensorType
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace, subgraphs
from weft.core.tensor.convert import PYTHON_SCALARS, device_of, scalar, to_tensor
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import Recorder
from weft.core.tensor.views import alias
from weft.errors import (
    ConversionError,
    DeviceMismatchError,
    DTypeError,
    MissingRuleError,
    ShapeError,
    UnsupportedError,
)
from weft.ops.base import Cost, Operation, call_multiple
from weft.ops.families import broadcast

Flags: TypeAlias = tuple[bool, ...]
T = TypeVar("T")
COUNT = TensorType((), dtypes.uint32)  # the number of a turn

_interned: WeakValueDictionary[Any, Trace] = WeakValueDictionary()


class Place(NamedTuple):
    """What a subgraph's input will be: its type, and where it lives."""

    type: TensorType
    device: Device


class SubgraphOperation(Operation):
    """An op whose parameters hold subgraphs and whose `eval` runs them."""

    multiple = True
    leaf = False
    widen = False
    selective = True
    reasons: ClassVar[dict[str, str]] = {
        "notation": "its subgraphs decide what happens along each axis",
        "kernel": "runs whole subgraphs",
        "examples": "a subgraph is made by tracing a function",
    }

    def index(self, *types: Any, **params: Any) -> Factors:
        raise self.missing("notation")

    def guard(self, *arguments: Any, **params: Any) -> Any:
        """Perform the op for (counts, operands): rows of which some do not count, see `guarded`."""
        _, operands = arguments
        return call_multiple(self, operands, params)

    def check_repeatable(self, rule: str, *traces: Trace) -> None:
        """Refuse to derive from subgraphs whose effects may not happen twice, but for prints."""
        if not all(map(repeatable, map(silent, traces))):
            raise MissingRuleError(
                f"{self}: no {rule} rule: the function has effects, which would happen twice"
                "\nhint: move calls with effects out of the function, or give the kernel pure=True"
            )


def carried_places(
    op: str, body: Trace, consts: int, carries: int | None = None
) -> tuple[Device, ...]:
    """The devices of a loop's results; what is carried stays on its own."""
    found = body.output_devices
    begun = tuple(node.device for node in body.inputs[consts:])[:carries]
    same_places(f"{op}: carry", begun, "after a step", found[: len(begun)])
    return found


def same_places(what: str, places: Sequence[Device], other: str, others: Sequence[Device]) -> None:
    """Raise where results of calls inside are not on the devices that they have to be on."""
    for number, (here, there) in enumerate(zip(places, others, strict=True)):
        if here is not there:
            raise DeviceMismatchError(
                f"{what} {number} is on {here}, {other} on {there}"
                f"\nhint: x.to_device({here.name!r}) moves it there"
            )


def repeatable(trace: Trace) -> bool:
    """Whether all that a subgraph does besides computing may happen again."""
    return all(map(repeatable_call, trace.effects))


def repeatable_call(node: OutputRefs) -> bool:
    """The same of a call."""
    found = subgraphs(node.params)
    return node.op.again or (bool(found) and all(map(repeatable, found)))


def silent(trace: Trace) -> Trace:
    """The subgraph without calls that give nothing, such as prints: what derivatives run again."""
    if not trace.effects:
        return trace
    copies: dict[OutputRefs, OutputRefs] = {}
    for node in trace.nodes:
        refs = tuple((copies.get(source, source), slot) for source, slot in node.inputs)
        params = {name: _silent(value) for name, value in node.params.items()}
        op = node.op
        if subgraphs(params) and not any(each.effects for each in subgraphs(params)):
            op = OPS[op.name.removesuffix("_with_effects")]
        if refs != node.inputs or op is not node.op or subgraphs(params) != subgraphs(node.params):
            copies[node] = OutputRefs(op, refs, params, node.types, node.device, node.position)
    outputs = tuple((copies.get(node, node), slot) for node, slot in trace.outputs)
    effects = (copies.get(node, node) for node in trace.effects if node.types)
    left = tuple(node for node in effects if not node.op.pure)
    return replace(trace, outputs=outputs, effects=left)


def _silent(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_silent, value))
    return silent(value) if isinstance(value, Trace) else value


class LoopRecorder(Recorder):
    """Records a function of a loop; the number of the turn becomes the first input when asked."""

    number: OutputRefs | None = None

    def turn(self) -> Tensor:
        if self.number is None:
            place = self.inputs[0].device if self.inputs else current_device()
            self.number = OutputRefs.leaf(None, COUNT, place)
            self.inputs.insert(0, self.number)
        return self._tensor(self.number, 0)


class DerivedRecorder(Recorder):
    """Records what is derived from a function of a loop: its turns are not counted again."""

    def turn(self) -> Tensor:
        raise UnsupportedError(
            "random: a rule for derivatives draws without a key in a loop, and its function draws"
            " less: every turn would draw the same"
            "\nhint: pass a key as an argument, such as a row of wf.random.split(key, turns)"
        )


class Recording:
    """A Python function after its one run on shapes: what it returned, not yet a trace."""

    def __init__(
        self,
        op: str,
        function: Callable[..., Any],
        places: Sequence[Place],
        kind: type[Recorder] = Recorder,
    ) -> None:
        self.name = getattr(function, "__name__", op)
        with kind(label=op) as recorder:
            assert isinstance(recorder, Recorder)
            inputs = [recorder.input(place.type, place.device) for place in places]
            result = function(*inputs)
        self.recorder = recorder
        self.outputs, self.structure = tree_flatten(result)
        known = places[0].device if places else device_of(*recorder.captured, *self.outputs)
        self.device: Device | None = known
        for leaf in self.outputs:
            if not isinstance(leaf, (Tensor, np.ndarray, np.generic, *PYTHON_SCALARS)):
                raise ConversionError(
                    f"{op}: {self.name} returned {type(leaf).__name__}, not tensors"
                )

    def dtype(self, position: int) -> Any:
        """Dtype of one output, or None for a Python number, which takes its dtype from others."""
        leaf = self.outputs[position]
        return None if type(leaf) in PYTHON_SCALARS else to_tensor(leaf).dtype

    def settle(self, position: int, dtype: Any) -> TensorType:
        """Make one output a tensor, a Python number one of `dtype` if one is given and fits."""
        leaf = self.outputs[position]
        if not isinstance(leaf, Tensor):
            number = type(leaf) in PYTHON_SCALARS
            if number and dtype is not None and weak(leaf, dtype) == dtype:
                leaf = scalar(leaf, dtype, self.device or current_device())
            self.outputs[position] = leaf = to_tensor(leaf, like=self.device)
        return leaf.type


def weak(value: Any, dtype: Any) -> Any:
    """The dtype of a Python number that meets `dtype`."""
    return dtypes.weak_dtype(type(value), dtype, default_float())


def close(*recordings: Recording) -> tuple[tuple[Tensor, ...], tuple[Trace, ...]]:
    """What the functions captured together, and their traces: captures first, then own inputs."""
    refs = [tuple(map(r.recorder.ref, r.outputs)) for r in recordings]
    captured: dict[TensorImpl, Tensor] = {}
    for recording in recordings:
        found = recording.recorder
        captured.update(zip(found.captures, found.captured, strict=True))
    traces = []
    for recording, outputs in zip(recordings, refs, strict=True):
        own = recording.recorder.captures
        heads = (own.get(i) or OutputRefs.leaf(None, i.type, i.device) for i in captured)
        inputs = (*heads, *recording.recorder.inputs)
        effects = tuple(recording.recorder.effects)
        traces.append(interned(Trace(inputs, outputs, effects, (), recording.name)))
    pairs = captured.items()
    return tuple(alias(x) if x._impl is i else Tensor(i) for i, x in pairs), tuple(traces)


def retrace(
    *functions: Callable[..., tuple[Tensor, ...]],
    places: Sequence[Place],
    kind: type[Recorder] = Recorder,
) -> tuple[tuple[Tensor, ...], tuple[Trace, ...]]:
    """Record functions of flat tensors: constants they make, and their traces."""
    return close(*(Recording("control flow", function, places, kind) for function in functions))


def interned(trace: Trace) -> Trace:
    """The trace itself or an equal one made before: so equal loops are equal calls."""
    numbers = {node: i for i, node in enumerate((*trace.inputs, *trace.nodes))}
    calls = tuple(
        (
            node.op,
            tuple((numbers[source], slot) for source, slot in node.inputs),
            freeze(node.params),
            node.device,
            node.position,
        )
        for node in trace.nodes
    )
    inputs = tuple((node.types[0], node.device) for node in trace.inputs)
    outputs = tuple((numbers[node], slot) for node, slot in trace.outputs)
    effects = tuple(numbers[node] for node in trace.effects)
    return _interned.setdefault((inputs, calls, outputs, effects, trace.name), trace)


def counted(body: Recording, *others: Recording) -> tuple[Tensor, ...]:
    """Have a loop count its turns as its first carry, if it asked for their number: the start."""
    asked = (body, *others)
    if not any(isinstance(r.recorder, LoopRecorder) and r.recorder.number for r in asked):
        return ()
    first, *_ = [recording.recorder.turn() for recording in asked]
    with installed(body.recorder):
        body.outputs.insert(0, first + 1)
    return (scalar(0, COUNT.dtype, first.device),)


def place_alike(recordings: Sequence[Recording]) -> None:
    """Have numbers that a function returns be where another one, which uses tensors, has them."""
    known = next((r.device for r in recordings if r.device is not None), None)
    for recording in recordings:
        recording.device = recording.device or known


def places(tensors: Sequence[Tensor]) -> tuple[Place, ...]:
    """Where these tensors would stand as inputs of a subgraph."""
    return tuple(Place(t.type, t.device) for t in tensors)


def rows(tensors: Sequence[Tensor]) -> tuple[Place, ...]:
    """The same for one element of each along its leading axis."""
    return tuple(Place(TensorType(t.shape[1:], t.dtype), t.device) for t in tensors)


def as_operands(op: str, leaves: Sequence[Any], beside: Sequence[Any] = ()) -> list[Tensor]:
    """Leaves as tensors; what is no tensor yet goes where the first tensor (or `beside`) is."""
    tensors = (x for x in (*leaves, *beside) if isinstance(x, Tensor))
    device = next((x.device for x in tensors), current_device())
    return [to_tensor(x, like=device, op=op) for x in leaves]


def chosen(values: Sequence[T], flags: Sequence[bool]) -> tuple[T, ...]:
    """Those of `values` that are flagged."""
    return tuple(value for value, flag in zip(values, flags, strict=True) if flag)


def grouped(values: Iterable[T], sizes: Iterable[int]) -> list[tuple[T, ...]]:
    """Consecutive groups of the given sizes, and the rest."""
    found, groups, start = tuple(values), [], 0
    for size in sizes:
        groups.append(found[start : start + size])
        start += size
    return [*groups, found[start:]]


def spread(flags: Sequence[bool], values: Sequence[T]) -> tuple[T | None, ...]:
    """The inverse of `chosen`: `values` where flagged, None elsewhere."""
    following = iter(values)
    return tuple(next(following) if flag else None for flag in flags)


def merged(base: Sequence[T], flags: Sequence[bool], values: Sequence[T]) -> tuple[T, ...]:
    """`base` with the flagged entries replaced by `values`."""
    following = iter(values)
    return tuple(next(following) if f else b for b, f in zip(base, flags, strict=True))


def either(*columns: Sequence[bool]) -> Flags:
    """Entry by entry, whether any of the columns has it."""
    return tuple(map(any, zip(*columns, strict=True)))


def smooth(tensors: Sequence[Any]) -> Flags:
    """Which of these (tensors or types) can carry a derivative."""
    return tuple(dtypes.is_inexact(t.dtype) for t in tensors)


def reached(trace: Trace, marks: Sequence[bool], *, floats: bool = False) -> Flags:
    """Which outputs depend on the marked inputs (`floats`: through values with derivatives)."""
    found: set[Ref] = {(node, 0) for node, mark in zip(trace.inputs, marks, strict=True) if mark}
    for node in trace.nodes:
        if any(ref in found for ref in node.inputs):
            carried = smooth(node.types) if floats else (True,) * len(node.types)
            found.update((node, slot) for slot, flag in enumerate(carried) if flag)
    return tuple(ref in found for ref in trace.outputs)


def reached_carries(
    trace: Trace, consts: Flags, carries: Flags, rest: Flags = (), *, floats: bool = False
) -> Flags:
    """Which carries of a loop come to depend on the marked inputs, after any number of steps."""
    while True:
        outputs = reached(trace, (*consts, *carries, *rest), floats=floats)
        wider = either(carries, outputs[: len(carries)])
        if wider == carries:
            return carries
        carries = wider


def batched(trace: Trace, size: int, varies: Flags, wanted: Flags) -> Callable[..., Any]:
    """The subgraph for operands that have a leading batch axis where they vary.

    The `wanted` outputs get the axis too, whether they vary or not.
    """
    axes = tuple(0 if v else None for v in varies)
    places = tuple(0 if w else None for w in wanted)
    mapped: Callable[..., Any] = FUNCTIONS["vmap_again"](trace.replay, axes, places, size)
    return mapped


def repeat(x: Tensor, size: int) -> Tensor:
    """`x` with a new leading axis along which it does not vary."""
    return broadcast(x, (size, *x.shape))


def batch_operands(tensors: Sequence[Tensor], size: int, hidden: Flags, wanted: Flags) -> Any:
    """Give a batch axis to the operands that need one and have none."""
    triples = zip(tensors, hidden, wanted, strict=True)
    return tuple(repeat(x, size) if w and not h else x for x, h, w in triples)


def pushed(trace: Trace, active: Flags) -> Callable[..., Any]:
    """The subgraph's derivative: (inputs, tangents of active ones) to (outputs, tangents)."""
    again = silent(trace)

    def function(*tensors: Tensor) -> Any:
        inputs, moves = tensors[: len(active)], tensors[len(active) :]

        def of_active(*values: Tensor) -> Any:
            return again.replay(*merged(inputs, active, values))

        return FUNCTIONS["jvp"](of_active, chosen(inputs, active), moves)

    return function


def pulled(trace: Trace, active: Flags, wanted: Flags) -> Callable[..., Any]:
    """Its transpose: (inputs, cotangents of wanted outputs) to cotangents of active inputs."""
    again = silent(trace)

    def function(*tensors: Tensor) -> Any:
        inputs, cotangents = tensors[: len(active)], tensors[len(active) :]

        def of_active(*values: Tensor) -> Any:
            return chosen(again.replay(*merged(inputs, active, values)), wanted)

        _, pullback = FUNCTIONS["vjp"](of_active, *chosen(inputs, active))
        return pullback(cotangents)

    return function


def owned_results(results: Sequence[Array], operands: Sequence[Any]) -> tuple[Array, ...]:
    """Results in memory of their own: a subgraph may hand an operand, or a view of it, through."""
    here = [x for x in operands if isinstance(x, np.ndarray)]
    return tuple(
        np.array(r) if any(np.may_share_memory(r, x) for x in here) else r for r in results
    )


def number_of(array: Any) -> int:
    """The number that decides, wherever it is."""
    return int(array.to_host() if hasattr(array, "to_host") else array)


def row_of(array: Any, number: int) -> Any:
    """One slice along the leading axis, where it lies."""
    return array.row(number) if hasattr(array, "row") else array[number, ...]


def total_cost(trace: Trace) -> int:
    """Arithmetic operations of one run."""
    return sum(
        node.op.cost(*(source.types[slot] for source, slot in node.inputs), **node.params).flops
        for node in trace.nodes
    )


def cost_of(flops: int, *types: TensorType) -> Cost:
    """A cost with the bytes of these operands and results."""
    return Cost(flops, sum(t.nbytes for t in types))


def mismatch(where: str, kinds: Sequence[tuple[str, TensorType]]) -> ShapeError | DTypeError:
    """The error for types that should agree: `where` names the leaf, `kinds` who gave what."""
    told = ", ".join(f"{name} {kind}" for name, kind in kinds)
    if len({kind.shape for _, kind in kinds}) > 1:
        return ShapeError(f"{where}: shapes differ ({told})")
    return DTypeError(f"{where}: dtypes differ ({told})\nhint: cast with x.astype(…)")
