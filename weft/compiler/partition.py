"""From a trace over a mesh to a trace of pieces, which compiles like any other.

The recorded calls are replayed once on pieces that are inputs of a second trace. What moves between
devices of this process is then ordinary ops, fused with the rest; what moves between processes is a
call in program order. Sums between processes are put together (`bucket`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from weft.compiler.bucket import Ledger, merged
from weft.core.common.spec import ShardingSpec
from weft.core.common.trees import PyTreeDef, tree_unflatten
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import Trace
from weft.core.sharding.pieces import Pieces, Shards, home_at
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import Recorder
from weft.ops.communication.mesh import MESH, replay_step, wrapped
from weft.ops.communication.transfer import noting


@dataclass(frozen=True)
class Partition:
    """A trace of pieces, and how its outputs make up the results of the original."""

    trace: Trace
    outputs: tuple[Shards | None, ...]  # whose pieces are positions; None for a plain result
    structure: PyTreeDef

    def leave(self, arrays: Sequence[Any]) -> Any:
        """The result's tree of tensors."""
        tensors = iter(
            [
                Tensor(TensorImpl.realized(array, node.types[slot], node.place(slot)))
                for array, (node, slot) in zip(arrays, self.trace.outputs, strict=True)
            ]
        )
        return tree_unflatten(self.structure, [_result(held, tensors) for held in self.outputs])


def _result(held: Shards | None, tensors: Iterator[Tensor]) -> Tensor:
    if held is None:
        return next(tensors)
    pieces = held.pieces.map(lambda _: next(tensors))
    return wrapped(Shards(held.type, held.spec, pieces))


def is_distributed(trace: Trace, specs: Sequence[ShardingSpec | None]) -> bool:
    """Whether anything of a trace lies over a mesh."""
    return any(spec is not None for spec in specs) or trace.home is MESH


def partition(
    trace: Trace, specs: Sequence[ShardingSpec | None], structure: PyTreeDef
) -> Partition:
    """The trace of pieces for inputs laid out as `specs` (None: on one device)."""
    with Recorder(label="compile") as recorder:
        assert isinstance(recorder, Recorder)
        given = trace.inputs[: len(trace.inputs) - len(trace.captures)]
        values = [_input(recorder, node, spec) for node, spec in zip(given, specs, strict=True)]
        ledger = Ledger(trace, recorder)
        with noting(ledger.note):
            found = trace.walk((*values, *trace.captures), ledger.watch(replay_step))
        flat = [piece for x in found for piece in _pieces(x)]
    outputs = tuple(x if isinstance(x, Shards) else None for x in found)
    made = merged(recorder.finish(flat, trace.name), ledger.order())
    return Partition(made, outputs, structure)


def _input(recorder: Recorder, node: OutputRefs, spec: ShardingSpec | None) -> Any:
    kind, device = node.types[0], node.device
    if spec is None:
        return recorder.input(kind, device)
    assert spec.mesh is not None

    mesh = spec.mesh

    def make(at: dict[str, int]) -> Tensor:
        home = home_at(mesh, at) if mesh.is_apart else device
        return recorder.input(TensorType(spec.local_shape(kind.shape, at), kind.dtype), home)

    return Shards(kind, spec, Pieces.build(mesh, spec.varying, make))


def _pieces(x: Any) -> list[Tensor]:
    return list(x.pieces.parts.values()) if isinstance(x, Shards) else [x]
