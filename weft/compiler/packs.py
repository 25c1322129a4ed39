"""What programs make of inputs whose values last, such as the packed weights of a model.

A program of its own makes it, before the first run and whenever one of these inputs is another
array, or may have been written to. Runs are given the result as one more input. If it is made again
and again, another program that keeps nothing is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.core.common.device import CPU
from weft.core.common.types import Array
from weft.core.tensor.convert import wrap
from weft.core.tensor.lasting import Mark, is_watched, watch
from weft.core.tensor.sharing import is_shared, root_of
from weft.core.tensor.tensor import Tensor
from weft.runtime.cpu.allocator import CachingAllocator
from weft.runtime.cpu.program import Program, address_of
from weft.runtime.registry import client

_BYTE = np.dtype(np.uint8)
_IN_VAIN = 3  # times that what was made was used by one run alone, one after another


class _Made(NamedTuple):
    """What was made, and the marks of the arrays it was made of."""

    tensor: Tensor  # so that reports of memory show it
    marks: tuple[Mark, ...]


class Packs:
    """Makes `nbytes` of the inputs at the places `sources`, and keeps them."""

    def __init__(self, program: Program, sources: Sequence[int], nbytes: int) -> None:
        self.program = program
        self.sources = tuple(sources)
        self.nbytes = nbytes
        self.runs = 0  # how often it was made
        self._in_vain = 0
        self._made: _Made | None = None
        runs: Any = client("cpu")
        self._allocator: CachingAllocator = runs.allocator

    def of(self, inputs: Sequence[Any], threads: int) -> Array:
        """What is made of these inputs."""
        made = self._made
        if made is not None:
            pairs = zip(self.sources, made.marks, strict=True)
            if all([is_watched(inputs[place], mark) for place, mark in pairs]):
                self._in_vain = 0
                found: Array = made.tensor.data()
                return found
        self._in_vain += 1
        return self._make([inputs[place] for place in self.sources], threads)

    @property
    def is_vain(self) -> bool:
        """Whether its sources change from run to run, so that nothing is gained by it."""
        return self._in_vain > _IN_VAIN

    def _make(self, arrays: list[Any], threads: int) -> Array:
        # A new place each time: another thread may be running on the old one.
        self._made = None
        target = self._allocator.empty((self.nbytes,), _BYTE)
        lasting = not any(map(is_shared, arrays))
        marks = tuple(watch(array, root_of(array)) for array in arrays) if lasting else ()
        given = [a if a.flags.c_contiguous else np.array(a, order="C") for a in arrays]
        self.program.run([address_of(a) for a in (*given, target)], threads)
        self.runs += 1
        if lasting and not self.is_vain:
            self._made = _Made(wrap(target, CPU), marks)
        return target
