"""`Trace`: a function as data — inputs, recorded calls in order, outputs.

A trace is made once by running the user's Python on abstract tensors; afterwards it is replayed on
other tensors (`replay`, through the handler stack) or run on data (`run`), without that Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from weft.core.common.handler import perform
from weft.core.common.source import describe
from weft.core.common.types import TensorType
from weft.core.graph.graph import execute, get_operations_topological
from weft.core.graph.node import OutputRefs, Ref


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
        roots = [*(node for node, _ in self.outputs), *self.effects]
        return tuple(n for n in get_operations_topological(roots) if n.op is not None)

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        """Shape and dtype of each input, captured tensors included."""
        return tuple(node.types[0] for node in self.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """Shape and dtype of each output."""
        return tuple(node.types[slot] for node, slot in self.outputs)

    def replay(self, *tensors: Any) -> tuple[Any, ...]:
        """Perform the recorded calls on `tensors`, in the current handler."""
        if len(tensors) == len(self.inputs) - len(self.captures):
            tensors = (*tensors, *self.captures)
        values: dict[OutputRefs, Any] = {
            node: (tensor,) for node, tensor in zip(self.inputs, tensors, strict=True)
        }
        for node in self.nodes:
            args = tuple(values[source][slot] for source, slot in node.inputs)
            result = perform(node.op, args, node.params)
            values[node] = result if isinstance(result, tuple) else (result,)
        return tuple(values[node][slot] for node, slot in self.outputs)

    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Run the recorded calls on data."""
        values: dict[OutputRefs, tuple[Any, ...]] = {
            node: (array,) for node, array in zip(self.inputs, arrays, strict=True)
        }
        for node in self.nodes:
            inputs = tuple(values[source][slot] for source, slot in node.inputs)
            values[node] = execute(node, inputs)
        return tuple(values[node][slot] for node, slot in self.outputs)

    def __str__(self) -> str:
        return print_trace_graph(self)


def print_trace_graph(trace: Trace, *, lines: bool = True) -> str:
    """A readable listing: one call a line, with shapes, dtypes, parameters and the user's line."""
    names: dict[Ref, str] = {}

    def define(node: OutputRefs) -> str:
        texts = []
        for slot, kind in enumerate(node.types):
            names[node, slot] = f"%{len(names)}"
            texts.append(f"{names[node, slot]}: {kind}")
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
    rows.append(f"  return {', '.join(names[ref] for ref in trace.outputs)}")
    return "\n".join(rows)
