"""`Prepared`: machine code and a program that calls it, run on arrays.

Inputs are used where they lie; results come from the caching allocator; everything in between lives
in one arena whose parts are used again. What the code reports (an index out of range) becomes the
error that the calls it was made of would have raised.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from weft.compiler.executable import Executable
from weft.compiler.packs import Packs
from weft.core.common.events import watchers
from weft.core.common.lazy import LazyModule
from weft.core.common.types import DType, Shape, TensorType
from weft.errors import CompilationError, WeftError
from weft.runtime.cpu.allocator import CachingAllocator
from weft.runtime.cpu.executor_layout import DONE
from weft.runtime.cpu.handles import array_maker
from weft.runtime.cpu.program import Program, address_of, knows_arrays
from weft.runtime.registry import client

_bounds = LazyModule("weft.compiler.emit_bounds")
_CACHED_BYTES = 1 << 16  # results from which memory is worth a search in the allocator
_BYTE = np.dtype(np.uint8)


class KernelFailure(WeftError):
    """A kernel reported what the calls it was made of would have raised."""


class Interface(NamedTuple):
    """How arrays belong to the arguments of a program: inputs, constants, outputs, the arena.

    The last input may be what `Packs` makes of others.
    """

    strided: tuple[bool, ...]  # for each input: whether it is read however it lies
    outputs: tuple[TensorType, ...]
    reused: dict[int, int]  # outputs that take over the memory of an input
    places: tuple[int, ...]  # for each result: the argument it is
    arena: int  # bytes that every run is given


class Prepared(Executable):
    """Runs a program; what an error says and what watchers see is for subclasses to know.

    `without_packs` gives the executable that runs instead where inputs do not last.
    """

    without_packs: Callable[[], Any] | None = None

    def _connect(
        self,
        program: Program,
        interface: Interface,
        constants: Sequence[Any],
        packs: Packs | None = None,
    ) -> None:
        """Make ready to run; `constants` are the last inputs, before what `packs` makes."""
        self.program = program
        self.interface = interface
        self.packs = packs
        self._constants = tuple(constants)
        self._chosen = _chooser(interface.places)
        self._arena = interface.arena
        self._is_direct = knows_arrays() and not any(interface.strided)
        # Whatever it cannot do is done again, for which all inputs must be as they were.
        plain = self._is_direct and not (self._arena or interface.reused)
        self._call = program.as_function() if plain else None
        runs: Any = client("cpu")
        self._allocator: CachingAllocator = runs.allocator
        self._kinds: list[tuple[Callable[..., Any], Shape, DType]] = [
            (
                self._allocator.empty if kind.nbytes >= _CACHED_BYTES else np.empty,
                kind.shape,
                kind.dtype,
            )
            for kind in interface.outputs
        ]
        small = all(make is np.empty for make, _, _ in self._kinds)
        self._new = array_maker(interface.outputs) if small else self._allocated

    @abstractmethod
    def _retell(self, arrays: Sequence[Any]) -> None:
        """Raise what is wrong, and where, as the calls one by one do."""

    @abstractmethod
    def _run_watched(self, arrays: Sequence[Any], threads: int) -> tuple[Any, ...]:
        """Run on inputs, and tell watchers."""

    def _with_constants(self, arrays: Sequence[Any], threads: int) -> list[Any]:
        """All inputs: those of a call, constants, and what is made of inputs that last."""
        inputs = [*arrays, *self._constants]
        if self.packs is not None:
            inputs.append(self.packs.of(inputs, threads))
        return inputs

    def run(self, arrays: Sequence[Any], threads: int = 0) -> tuple[Any, ...]:
        if self.packs is not None and self.packs.is_vain and self.without_packs is not None:
            found: tuple[Any, ...] = self.without_packs().run(arrays, threads)
            return found
        if watchers:
            return self._run_watched(arrays, threads)
        inputs = self._with_constants(arrays, threads)
        if not self._is_direct:
            return self._run_by_address(inputs, threads, self.program.run)
        outputs = self._outputs_for(inputs)
        given = inputs + outputs
        if self._call is not None and self._call(*given) == DONE:
            return self._chosen(given)
        if self._arena:
            given.append(self._allocator.empty((self._arena,), _BYTE))
        try:
            done = self.program.run_arrays(given, threads)
        except KernelFailure:
            self._retell(arrays)
            raise
        if not done:
            return self._run_by_address(inputs, threads, self.program.run)
        return self._chosen(given)

    def as_function(self) -> Callable[..., Any]:
        """The program as a function of arrays that gives its only result, None if it failed."""
        call, new = self._call, self._new
        if call is None or self._constants or self.packs is not None:
            return self._only

        def one(x: Any) -> Any:
            if watchers:
                return self._only(x)
            (out,) = new()
            return out if call(x, out) == DONE else self._only(x)

        def several(*arrays: Any) -> Any:
            if watchers:
                return self._only(*arrays)
            (out,) = new()
            return out if call(*arrays, out) == DONE else self._only(*arrays)

        return one if len(self.interface.strided) == 1 else several

    def _only(self, *arrays: Any) -> Any:
        try:
            return self.run(arrays)[0]
        except KernelFailure:
            return None

    def _allocated(self) -> list[Any]:
        return [make(shape, dtype) for make, shape, dtype in self._kinds]

    def _outputs_for(self, inputs: list[Any]) -> list[Any]:
        """Memory for results: new, or that of inputs which were given away."""
        outputs = self._new()
        for output, source in self.interface.reused.items():
            _, shape, dtype = self._kinds[output]
            given = inputs[source]
            same = given.dtype == dtype and given.shape == shape
            outputs[output] = given if same else given.view(dtype).reshape(shape)
        return outputs

    def _run_by_address(
        self, arrays: Sequence[Any], threads: int, run: Callable[[list[int], int], None]
    ) -> tuple[Any, ...]:
        """Run on arrays of any layout; `run` gets their addresses."""
        inputs = [
            a if a.flags.c_contiguous or kept else np.array(a, order="C")
            for a, kept in zip(arrays, self.interface.strided, strict=True)
        ]
        given = inputs + self._outputs_for(inputs)
        if self._arena:
            given.append(self._allocator.empty((self._arena,), _BYTE))
        try:
            run([*map(address_of, given)], threads)
        except KernelFailure:
            added = len(self._constants) + (self.packs is not None)
            self._retell(arrays[: len(arrays) - added])
            raise
        return self._chosen(given)


def _chooser(places: tuple[int, ...]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """What gives the values at these places of a list."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple([values[i] for i in places])


def failure_of(name: str) -> Callable[[int, int], WeftError]:
    """What makes the error for a status that a kernel of `name` reports."""

    def failure(code: int, detail: int) -> WeftError:
        if code == _bounds.BOUNDS:
            inside = detail - _bounds.LOCALS
            kind, number = ("local", inside) if inside >= 0 else ("buffer", detail)
            return CompilationError(
                f"{name}: a kernel reaches outside of its {kind} {number}"
                "\nhint: this is a mistake of weft; nothing was written there"
            )
        return KernelFailure(f"{name}: a kernel reported status {code} ({detail})")

    return failure
