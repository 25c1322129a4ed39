"""When recorded graphs are compiled: at the second run of a graph, or at once if it is large.

A graph is known by its structure: ops, parameters, types, which results somebody still holds, and
the GPU it runs on. What nobody holds is not computed for its own sake.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from weft.compiler.executable import Executable
from weft.compiler.native import Native, drafts_pay
from weft.compiler.point import kind_of
from weft.compiler.rewrite import rewrite
from weft.config import settings
from weft.core.common.frozen import freeze
from weft.core.graph.graph import GRAPH
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace
from weft.runtime.cpu import jit
from weft.runtime.cpu.code_ahead import hurrying
from weft.runtime.registry import client

EACH = 1 << 16  # elements of each call of a graph that is compiled at once: others take no longer
_LIGHT = ("view", "map")  # kinds of calls that are computed where their elements are needed
MOST_GRAPHS = 256  # compiled graphs that are kept
MOST_SEEN = 4096  # graphs whose first run is remembered

_seen: OrderedDict[Any, int] = OrderedDict()
_compiled: OrderedDict[Any, Executable] = OrderedDict()


class Recorded:
    """Pending calls about to run: their structure, their data, and what is kept."""

    def __init__(self, order: Sequence[OutputRefs], roots: Iterable[OutputRefs]) -> None:
        self.order = order
        self.numbers: dict[OutputRefs, int] = {node: i for i, node in enumerate(order)}
        self.leaves: dict[Ref, int] = {}
        self.arrays: list[Any] = []
        wanted = set(roots)
        self.kept = [node for node in order if node in wanted or is_held(node)]
        rows = [self._row(node) for node in order]
        self.key = (tuple(rows), tuple(self.numbers[node] for node in self.kept))

    def _row(self, node: OutputRefs) -> tuple[Any, ...]:
        inputs = []
        for ref in node.inputs:
            number = self.numbers.get(ref[0])
            inputs.append((number, ref[1]) if number is not None else self._leaf(ref))
        frozen = node.key[2] if node.op.pure else None  # type: ignore[index]
        if not node.op.leaf:
            frozen = freeze(_without_rules(node))
        return (node.op, tuple(inputs), frozen, node.types)

    def _leaf(self, ref: Ref) -> tuple[Any, ...]:
        number = self.leaves.get(ref)
        if number is None:
            number = self.leaves[ref] = len(self.arrays)
            array = ref[0].results[ref[1]]  # type: ignore[index]
            self.arrays.append(array)
        array = self.arrays[number]
        packed = not isinstance(array, np.ndarray) or array.flags.c_contiguous
        strides = None if packed else array.strides
        return ("leaf", number, array.shape, array.dtype, strides)

    @property
    def elements(self) -> int:
        """How many elements all results have together."""
        return sum(kind.size for node in self.order for kind in node.types)

    def trace(self) -> tuple[Trace, dict[Ref, tuple[int, ...]]]:
        """The graph as a trace of its own, which holds no data, and the strides of its inputs."""
        inputs: dict[Ref, OutputRefs] = {}
        strides: dict[Ref, tuple[int, ...]] = {}
        for (source, slot), number in self.leaves.items():
            made = OutputRefs.leaf(None, source.types[slot], source.place(slot))
            inputs[source, slot] = made
            array = self.arrays[number]
            if not isinstance(array, np.ndarray):
                continue
            if not array.flags.c_contiguous and not any(s % array.itemsize for s in array.strides):
                strides[made, 0] = tuple(s // array.itemsize for s in array.strides)
        copies: dict[OutputRefs, OutputRefs] = {}
        for node in self.order:
            refs = tuple(
                (copies[s], slot) if s in copies else (inputs[s, slot], 0)
                for s, slot in node.inputs
            )
            params = node.params if node.op.leaf else _without_rules(node)
            copies[node] = OutputRefs(node.op, refs, params, node.types, node.device, node.position)
        outputs = tuple(
            (copies[node], slot) for node in self.kept for slot in range(len(node.types))
        )
        return Trace(tuple(inputs.values()), outputs, name="recorded"), strides


def is_held(node: OutputRefs) -> bool:
    """Whether some tensor stands for a result of this call."""
    return any(ref() is not None for ref in node.outputs)


def beside(
    order: Sequence[OutputRefs],
    wanted: Iterable[OutputRefs],
    pending: Callable[[], Iterable[OutputRefs]],
) -> list[OutputRefs]:
    """Results that somebody holds and that need work of these calls which no result keeps.

    Run by themselves, gradients of a model that are read one by one would each take the whole way
    back again. What is computed element by element is not counted: kernels do that anyway.
    `pending` gives all calls that wait, inputs before users.
    """
    kept, repeated = set(wanted), set()
    for node in order:
        if node not in kept and not is_held(node):
            inner = any(source in repeated for source, _ in node.inputs)
            if inner or kind_of(node) not in _LIGHT:
                repeated.add(node)
    if not repeated:
        return []
    own, found = set(order), []
    for node in pending():
        if node not in own and any(source in repeated for source, _ in node.inputs):
            if is_held(node):
                found.append(node)
            else:
                repeated.add(node)
    return found


def run(order: Sequence[OutputRefs], roots: Iterable[OutputRefs]) -> bool:
    """Run pending calls as one compiled graph; False where they should be interpreted."""
    if not all(node.op.pure for node in order):
        return False
    make = device = None
    if any(node.device.kind != "cpu" for node in order):
        device = order[0].device
        make = getattr(client(device), "executable", None)
        if make is None or len({node.device for node in order}) > 1:
            return False
    graph = Recorded(order, roots)
    key = (device, graph.key)
    program = _compiled.get(key)
    if program is None:
        times = _seen[key] = _seen.get(key, 0) + 1
        if len(_seen) > MOST_SEEN:
            _seen.popitem(last=False)
        large = graph.elements >= max(settings.compile_elements, EACH * len(order))
        if (times <= settings.compile_after and not large) or not jit.available():
            return False
        trace, strides = graph.trace()
        program = _native(trace, strides) if make is None else make(rewrite(trace)[0])
        GRAPH.counters.compilations += 1
        _compiled[key] = program
        if len(_compiled) > MOST_GRAPHS:
            _compiled.popitem(last=False)
    else:
        _compiled.move_to_end(key)
    results: tuple[Any, ...] | None = None
    with suppress(Exception):
        results = program.run(graph.arrays)
    if results is None:
        return False  # calls are pure: one by one they say what is wrong, and which is to blame
    made = iter(results)
    for node in graph.kept:
        node.finish(tuple(next(made) for _ in node.types))
    return True


def _without_rules(node: OutputRefs) -> dict[str, Any]:
    """What a call with calls inside runs by: not the user's derivatives, which hold tensors."""
    return {name: each for name, each in node.params.items() if not callable(each)}


def _native(trace: Trace, strides: dict[Ref, tuple[int, ...]]) -> Native:
    with hurrying():
        made = Native(trace, strides=strides, drafts=drafts_pay(trace))
    made.settle()
    return made
