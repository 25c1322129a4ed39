"""A graph whose calls are on several devices: parts of one device each, and moves between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from weft.compiler.executable import Executable, placed_input
from weft.compiler.statistics import BuildCounts
from weft.core.common.device import CPU, Device
from weft.core.graph.graph import Located, execute
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace, subgraphs

Nodes = tuple[OutputRefs, ...]


def homes(trace: Trace) -> set[Device]:
    """Where a graph computes, and where what it reads lies; all of the processor is one place."""
    return set().union(*map(_homes, trace.nodes))


def _homes(node: OutputRefs) -> set[Device]:
    read = {_home(source.place(slot)) for source, slot in node.inputs}
    return {_home(node.device)}.union(read, *map(homes, subgraphs(node.params)))


def _home(device: Device) -> Device:
    return CPU if device.kind == "cpu" else device


class Several(Executable):
    """Runs the parts of a graph one after the other; `make` gives what runs one on its device."""

    def __init__(self, trace: Trace, make: Callable[[Trace], Executable]) -> None:
        self._trace = trace
        self._constants = tuple(x.data() for x in trace.captures)
        refs = [*trace.outputs, *(ref for node in trace.nodes for ref in node.inputs)]
        self._literals = {
            (node, slot): node.results[slot] for node, slot in refs if node.results is not None
        }
        self._stages = [
            _Single(nodes[0]) if alone else _Part.of(trace, nodes, make)
            for nodes, alone in _parts(trace)
        ]
        counts = [stage.part.counts for stage in self._stages if isinstance(stage, _Part)]
        self.counts = BuildCounts()
        for name in (each.name for each in fields(BuildCounts) if each.type == "int"):
            setattr(self.counts, name, sum(getattr(each, name) for each in counts))
        self._ending = _last_uses(self._stages, trace.outputs)

    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        given = zip(self._trace.inputs, (*arrays, *self._constants), strict=True)
        held = {**self._literals}
        held.update({(node, 0): placed_input(node, array) for node, array in given})
        for stage, ending in zip(self._stages, self._ending, strict=True):
            made = stage.run([held[ref] for ref in stage.reads])
            held.update(zip(stage.makes, made, strict=True))
            for ref in ending:
                del held[ref]
        return tuple(held[ref] for ref in self._trace.outputs)

    def explain(self, *, loops: bool = False) -> str:
        return "\n".join(stage.explain(loops) for stage in self._stages)


@dataclass(frozen=True)
class _Single:
    """One call that meets several devices."""

    node: OutputRefs

    @property
    def reads(self) -> tuple[Ref, ...]:
        return self.node.inputs

    @property
    def makes(self) -> tuple[Ref, ...]:
        return tuple((self.node, slot) for slot in range(len(self.node.types)))

    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        with Located(self.node):
            return execute(self.node, tuple(arrays))

    def explain(self, loops: bool) -> str:
        where = f"to {self.node.device}" if self.node.op.moves else "over several devices"
        return f"{self.node.name} {where}"


@dataclass(frozen=True)
class _Part:
    """Calls of one device, compiled together."""

    part: Executable
    reads: tuple[Ref, ...]
    makes: tuple[Ref, ...]

    @classmethod
    def of(cls, trace: Trace, nodes: Nodes, make: Callable[[Trace], Executable]) -> _Part:
        """The part of a graph, as a graph of its own."""
        inside = set(nodes)
        outer = dict.fromkeys(r for n in nodes for r in n.inputs if r[0] not in inside)
        fixed = dict(zip(trace.inputs[len(trace.inputs) - len(trace.captures) :], trace.captures))
        read = [ref for ref in outer if ref[0] not in fixed]
        captured = [ref for ref in outer if ref[0] in fixed]
        leaves = {(s, k): OutputRefs.leaf(None, s.types[k], s.place(k)) for s, k in read + captured}
        copies: dict[OutputRefs, OutputRefs] = {}
        for n in nodes:
            refs = tuple(
                (copies[s], slot) if s in copies else (leaves[s, slot], 0) for s, slot in n.inputs
            )
            copies[n] = OutputRefs(n.op, refs, n.params, n.types, n.device, n.position)
        used = {r for n in trace.nodes if n not in inside for r in n.inputs} | set(trace.outputs)
        makes = tuple((n, k) for n in nodes for k in range(len(n.types)) if (n, k) in used)
        graph = Trace(
            tuple(leaves[ref] for ref in read + captured),
            tuple((copies[n], slot) for n, slot in makes),
            tuple(copies[n] for n in trace.effects if n in inside),
            tuple(fixed[source] for source, _ in captured),
            trace.name,
        )
        return cls(make(graph), tuple(read), makes)

    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        return self.part.run(arrays)

    def explain(self, loops: bool) -> str:
        return self.part.explain(loops=loops)


def _parts(trace: Trace) -> Iterator[tuple[Nodes, bool]]:
    """The calls in few groups that can run in this order; effects stay in theirs.

    A call that meets several devices, because it or calls inside of it move something, is alone.
    """
    lonely = {node for node in trace.nodes if len(_homes(node)) > 1}
    left, done = list(trace.nodes), set(trace.inputs)
    while left:
        taken: list[OutputRefs] = []
        kept: list[OutputRefs] = []
        first, alone, held = left[0], left[0] in lonely, False
        for node in left:
            fits = not taken if alone else node not in lonely
            fits = fits and _home(node.device) is _home(first.device) and (node.op.pure or not held)
            if fits and all(source in done or source.op is None for source, _ in node.inputs):
                taken.append(node)
                done.add(node)
            else:
                kept.append(node)
                held = held or not node.op.pure
        left = kept
        yield tuple(taken), alone


def _last_uses(stages: Sequence[_Single | _Part], outputs: Sequence[Ref]) -> list[list[Ref]]:
    """For each stage, what nobody needs after it."""
    final = {ref: i for i, stage in enumerate(stages) for ref in (*stage.makes, *stage.reads)}
    ending: list[list[Ref]] = [[] for _ in stages]
    for ref, number in final.items():
        if ref not in outputs:
            ending[number].append(ref)
    return ending


__all__ = ["Several", "homes"]
