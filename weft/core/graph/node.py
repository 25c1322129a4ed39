"""`OutputRefs`: one recorded call — op, inputs, parameters and what it will produce.

Nodes are hash-consed by the graph that records them: equal calls on equal inputs are one node. A
node without an op is a leaf: it holds data, or stands for an input of a trace.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any, TypeAlias

from weft.core.common.device import Device
from weft.core.common.source import Position
from weft.core.common.types import TensorType

Ref: TypeAlias = "tuple[OutputRefs, int]"  # one result of one node


class OutputRefs:
    """A recorded call and, once it has run, its results."""

    __slots__ = (
        "__weakref__",
        "counted",
        "device",
        "inputs",
        "key",
        "kind",
        "number",
        "op",
        "outputs",
        "params",
        "position",
        "results",
        "specs",
        "types",
    )

    def __init__(
        self,
        op: Any,
        inputs: tuple[Ref, ...],
        params: dict[str, Any],
        types: tuple[TensorType, ...],
        device: Device,
        position: Position | None = None,
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.params = params
        self.types = types
        self.device = device
        self.position = position
        self.results: tuple[Any, ...] | None = None  # backend arrays, one for each output
        self.outputs: list[Any] = []  # weak references to the impls handed out for this node
        self.specs: tuple[Any, ...] | None = None  # how each result lies on a mesh, if on one
        self.key: Hashable = None
        self.kind = ""  # how the compiler takes it, once that was asked
        self.number: int | None = None  # that an input of a program always is
        self.counted = False  # whether a graph counts the results among the bytes it holds

    @classmethod
    def leaf(cls, data: Any, kind: TensorType, device: Device) -> OutputRefs:
        """A node that holds `data`, or stands for an input when `data` is None."""
        node = cls(None, (), {}, (kind,), device)
        node.results = None if data is None else (data,)
        return node

    @property
    def realized(self) -> bool:
        """Whether the results are there."""
        return self.results is not None

    def place(self, slot: int) -> Device:
        """The device of one result: calls inside may leave theirs on several."""
        places = None if self.op is None else self.op.places(**self.params)
        found: Device = places[slot] if places else self.device
        return found

    @property
    def name(self) -> str:
        """The op's name, or what kind of leaf this is."""
        return str(self.op) if self.op is not None else ("constant" if self.realized else "input")

    def hand_out(self, impl: Any) -> None:
        """Remember, weakly, an impl that stands for one of the results."""
        outputs = self.outputs
        count = len(outputs)
        if count >= 16 and count & (count - 1) == 0:  # at powers of two, so that it costs nothing
            outputs[:] = [ref for ref in outputs if ref() is not None]
        outputs.append(weakref.ref(impl))

    def finish(self, results: tuple[Any, ...]) -> None:
        """Keep the results and cut the edges to the inputs, so that they can be freed."""
        self.results = results
        self.inputs = ()
        self.key = None  # the key holds the inputs too

    def __repr__(self) -> str:
        return f"<{self.name} {', '.join(map(str, self.types))}>"
