"""`Trace`: a function as data — inputs, recorded calls in order, outputs.

A trace is made once by running the user's Python on abstract tensors; afterwards it is replayed on
other tensors (`replay`, through the handler stack) or run on data (`run`), without that Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any
from weakref import WeakKeyDictionary

from weft.core.common.device import Device
from weft.core.common.handler import perform
from weft.core.common.parameters import shown
from weft.core.common.source import describe
from weft.core.common.types import TensorType
from weft.core.graph.graph import execute, get_operations_topological
from weft.core.graph.node import OutputRefs, Ref
from weft.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class Trace:
    """A captured graph. `captures` are outer tensors it uses: they follow the inputs.

    Calling `replay` with the inputs alone uses the captured tensors as they were.
    """

    inputs: tuple[OutputRefs, ...]
    outputs: tuple[Ref, ...]
    effects: tuple[OutputRefs, ...] = ()  # calls that must happen though nobody uses the result
    captures: tuple[Any, ...] = field(default=())
    name: str = "trace"

    @cached_property
    def nodes(self) -> tuple[OutputRefs, ...]:
        """The calls the outputs need, in an order in which they can run."""
        roots = [*self.effects, *(node for node, _ in self.outputs)]  # effects keep their order
        return tuple(n for n in get_operations_topological(roots) if n.op is not None)

    @cached_property
    def home(self) -> Any:
        """What gives calls of this graph their meaning wherever their operands lie, or None."""
        found = (home_of(node.op, node.params) for node in self.nodes)
        return next((home for home in found if home is not None), None)

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        """Shape and dtype of each input, captured tensors included."""
        return tuple(node.types[0] for node in self.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """Shape and dtype of each output."""
        return tuple(node.types[slot] for node, slot in self.outputs)

    @cached_property
    def output_devices(self) -> tuple[Device, ...]:
        """The device of each output."""
        return tuple(node.place(slot) for node, slot in self.outputs)

    @cached_property
    def _last_uses(self) -> tuple[tuple[OutputRefs, ...], ...]:
        """For each call, the nodes whose values nobody needs after it."""
        kept = {node for node, _ in self.outputs}
        final: dict[OutputRefs, int] = {}
        for number, node in enumerate(self.nodes):
            final.update((source, number) for source, _ in node.inputs)
        ending: list[list[OutputRefs]] = [[] for _ in self.nodes]
        for source, number in final.items():
            if source not in kept:
                ending[number].append(source)
        return tuple(map(tuple, ending))

    def walk(
        self, values: Sequence[Any], step: Callable[[OutputRefs, tuple[Any, ...]], tuple[Any, ...]]
    ) -> tuple[Any, ...]:
        """Give each call its inputs' values and keep its results until their last use."""
        if len(values) != len(self.inputs):
            count = len(self.inputs) - len(self.captures)
            raise ArgumentError(
                f"{self.name}: the trace has {count} inputs and {len(self.captures)} captured"
                f" tensors, got {len(values)} values"
            )
        found: dict[OutputRefs, tuple[Any, ...]] = {
            node: (value,) for node, value in zip(self.inputs, values, strict=True)
        }
        for node, ending in zip(self.nodes, self._last_uses, strict=True):
            found[node] = step(node, tuple([found[source][slot] for source, slot in node.inputs]))
            for source in ending:
                del found[source]
        return tuple(found[node][slot] for node, slot in self.outputs)

    def replay(self, *tensors: Any) -> tuple[Any, ...]:
        """Perform the recorded calls on `tensors`, in the current handler; on duals gives duals."""
        if any(hasattr(x, "logical") for x in tensors):
            return tuple(x.dual for x in self.replay(*(getattr(x, "logical", x) for x in tensors)))
        if len(tensors) == len(self.inputs) - len(self.captures):
            tensors = (*tensors, *self.captures)

        def step(node: OutputRefs, args: tuple[Any, ...]) -> tuple[Any, ...]:
            result = perform(node.op, args, node.params)
            return result if isinstance(result, tuple) else (result,)

        return self.walk(tensors, step)

    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Run the recorded calls on data: one array for each input and captured tensor."""
        return self.walk(arrays, execute)

    def __str__(self) -> str:
        return print_trace_graph(self)

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.nodes)} calls>"


def print_trace_graph(trace: Trace, *, lines: bool = True) -> str:
    """A readable listing: one call a line, with shapes, dtypes, parameters and the user's line."""
    if not isinstance(trace, Trace):
        raise ArgumentError(f"print_trace_graph: expected a trace, got {shown(trace)}")
    names: dict[Ref, str] = {}

    def define(node: OutputRefs) -> str:
        texts = []
        for slot, kind in enumerate(node.types):
            names[node, slot] = f"%{len(names)}"
            texts.append(f"{names[node, slot]}: {kind}{_sharding(node, slot)}")
        return ", ".join(texts)

    count = len(trace.inputs) - len(trace.captures)
    heads = [define(node) for node in trace.inputs]
    captured = f" captures ({', '.join(heads[count:])})" if trace.captures else ""
    rows = [f"{trace.name}({', '.join(heads[:count])}){captured}:"]
    for node in trace.nodes:
        args = [names[ref] for ref in node.inputs]
        params = [f"{name}={value!r}" for name, value in node.params.items()]
        where = f"  # {describe(node.position)}" if lines and node.position else ""
        rows.append(f"  {define(node)} = {node.name}({', '.join([*args, *params])}){where}")
        for inner in subgraphs(node.params):
            rows += [f"    {row}" for row in print_trace_graph(inner, lines=lines).split("\n")]
    rows.append(f"  return {', '.join(names[ref] for ref in trace.outputs)}")
    return "\n".join(rows)


def subgraphs(params: Mapping[str, Any]) -> list[Trace]:
    """The traces among a call's parameters: branches, loop bodies."""
    values = [v if isinstance(v, tuple) else (v,) for v in params.values()]
    return [each for group in values for each in group if isinstance(each, Trace)]


def relocated(trace: Trace, old: Device, new: Device) -> Trace:
    """The same graph with what is on one device on another; made once for both."""
    known = _relocated.setdefault(trace, {})
    if (old, new) not in known:
        moved = partial(_moved, old=old, new=new)
        copies: dict[OutputRefs, OutputRefs] = {}
        for node in (*trace.inputs, *trace.nodes):
            refs = tuple((copies.get(source, source), slot) for source, slot in node.inputs)
            params = {name: moved(value) for name, value in node.params.items()}
            copies[node] = OutputRefs(
                node.op, refs, params, node.types, moved(node.device), node.position
            )
        known[old, new] = replace(
            trace,
            inputs=tuple(copies[node] for node in trace.inputs),
            outputs=tuple((copies.get(node, node), slot) for node, slot in trace.outputs),
            effects=tuple(copies[node] for node in trace.effects),
        )
    return known[old, new]


def _moved(value: Any, old: Device, new: Device) -> Any:
    if isinstance(value, Trace):
        return relocated(value, old, new)
    if isinstance(value, tuple):
        return tuple(_moved(x, old, new) for x in value)
    return new if value is old else value


def home_of(op: Any, params: Mapping[str, Any]) -> Any:
    """What gives a call its meaning wherever its operands lie, such as a mesh; None for most."""
    if op.leaf or op.home is not None:
        return op.home
    return next((each.home for each in subgraphs(params) if each.home is not None), None)


def _sharding(node: OutputRefs, slot: int) -> str:
    """How the result is laid out over a mesh, if it is on one."""
    spec = None if node.specs is None else node.specs[slot]
    return "" if spec is None else f" @ {spec}"


_relocated: WeakKeyDictionary[Trace, dict[tuple[Device, Device], Trace]] = WeakKeyDictionary()

__all__ = [
    "Trace",
    "print_trace_graph",
]
