"""`Executable`: a trace made ready to run on data, many times and from many threads.

It is made from a trace whose `captures` are constants: `run` gets one array for each of the other
inputs and gives one for each output. A result may be one of the arrays given, or a view of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.compiler.statistics import BuildCounts
from weft.core.common.slots import place
from weft.core.graph.graph import Located, execute
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import Trace


class Executable(ABC):
    """What a compiled function runs."""

    counts: BuildCounts

    @abstractmethod
    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """The outputs for these inputs; effects happen in program order."""

    @abstractmethod
    def explain(self, *, loops: bool = False) -> str:
        """What runs, in words: kernels, memory, estimated time; with `loops`, also their loops."""


class Interpreted(Executable):
    """Runs the calls of a trace one by one, on their reference kernels."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._constants = tuple(x.data() for x in trace.captures)
        self.counts = BuildCounts(kernels=len(trace.nodes))

    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        given = map(placed_input, self._trace.inputs, arrays)
        return self._trace.walk((*given, *self._constants), _step)

    def retell(self, arrays: Sequence[Any]) -> None:
        """Raise what a run of the same has met; what was done for its effect alone is not again."""
        self._trace.walk((*arrays, *self._constants), _step_without_effects)

    def explain(self, *, loops: bool = False) -> str:
        return f"{len(self._trace.nodes)} calls, each on its reference kernel\n{self._trace}"


class Handing(Executable):
    """Runs what one device computes, and hands on results that are inputs from elsewhere.

    `given` says which of `inputs` the inner executable takes; `handed`, of some results, which
    input each is, or which constant.
    """

    def __init__(
        self,
        inner: Executable,
        inputs: Sequence[OutputRefs],
        given: Sequence[int],
        handed: Mapping[int, Any],
    ) -> None:
        self._inner, self._inputs, self._given, self._handed = inner, inputs, given, handed
        self.counts = inner.counts

    def run(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        results = list(self._inner.run([arrays[i] for i in self._given]))
        for number, source in self._handed.items():  # in rising order
            taken = isinstance(source, int)
            found = placed_input(self._inputs[source], arrays[source]) if taken else source.data()
            results.insert(number, found)
        return tuple(results)

    def explain(self, *, loops: bool = False) -> str:
        return self._inner.explain(loops=loops)


def placed_input(node: OutputRefs, array: Any) -> Any:
    """An input on its device: numbers and states of generators come from the host."""
    elsewhere = node.device.kind != "cpu" and isinstance(array, np.ndarray)
    return place(array, node.device) if elsewhere else array


def _step(node: OutputRefs, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    with Located(node):
        return execute(node, arrays)


def _step_without_effects(node: OutputRefs, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    return _step(node, arrays) if node.types or node.op.pure else ()
