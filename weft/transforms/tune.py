"""`tune`: measure other ways to run the heavy kernels of a compiled function, and keep the best."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Any, TypeAlias

import numpy as np

from weft.compiler import choices
from weft.compiler.choice import ALTERNATIVES, USUAL, Choice
from weft.compiler.function import CompiledFunction
from weft.compiler.native import Native
from weft.compiler.search import Found, is_faster, search
from weft.compiler.show import fingerprint
from weft.compiler.specialization import Specialization
from weft.compiler.watched import details_of
from weft.core.common.handler import current
from weft.core.common.parameters import shown
from weft.core.common.slots import public
from weft.core.graph.trace import Trace
from weft.errors import ArgumentError, CompilationError, UnsupportedError
from weft.runtime.cpu import jit

HEAVY = 0.02  # share of the function's time from which a kernel counts as heavy
_LAST = 0.25  # share of the time that is left for the whole function at the end
_WARMUPS = 2

Form: TypeAlias = choices.Form


@dataclass(frozen=True)
class TunedKernel:
    """A heavy kernel, and what became of it."""

    name: str
    shapes: str
    milliseconds: float  # that it took before, all threads added
    factor: float  # how much faster it is now; 1 if nothing was reliably faster
    choice: str  # by which it runs now


@dataclass(frozen=True)
class TuningReport:
    """What `tune` has found; `print` it for a table."""

    name: str
    seconds: float  # that it took
    alternatives: int  # that were measured
    rounds: int
    kernels: tuple[TunedKernel, ...] = ()
    factor: float = 1.0  # how much faster the whole function is now
    on_disk: bool = False  # whether later processes find the choices

    @property
    def improved(self) -> bool:
        """Whether anything is otherwise now."""
        return self.factor > 1.0

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.alternatives} alternatives, {self.rounds} rounds,"
            f" {self.seconds:.2f} s"
        ]
        rows = [("kernel", "shapes", "ms", "faster", "choice")] + [
            (k.name, k.shapes, f"{k.milliseconds:.3f}", f"{k.factor:.2f}", k.choice)
            for k in self.kernels
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows if self.kernels else ():
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append("  " + "  ".join(cells).rstrip())
        if self.improved:
            where = "kept for later processes" if self.on_disk else "for this process"
            lines.append(f"the function is {self.factor:.2f} times as fast; {where}")
        else:
            lines.append("nothing was reliably faster than what runs already")
        return "\n".join(lines)


@public
def tune(function: Any, /, *args: Any, seconds: float = 5.0, **keywords: Any) -> TuningReport:
    """Search other tile sizes for the heavy kernels of a compiled function, for `seconds` at most.

    `args` and `keywords` are those of a call, as `compile` would be given; the function runs on
    copies of them, and its results are thrown away. What the compiler chose and the alternatives
    run in turns. An alternative is kept only where it was reliably faster and the whole function
    is; the bits of all results are compared on the way. So a function is never slower afterwards,
    and its results never change. What was found is kept with the compiled code: later processes
    use it as well. (A parameter of your own called `seconds` must be given by position.)

    >>> import weft as wf
    >>> f = wf.compile(lambda x: x @ x)
    >>> wf.tune(f, wf.ones((4, 4)), seconds=0).improved
    False
    """
    limit: Any = seconds
    if not isinstance(limit, int | float) or isinstance(limit, bool) or not 0 <= limit < inf:
        raise ArgumentError(f"tune: seconds must be a number of at least 0, got {shown(limit)}")
    if not isinstance(function, CompiledFunction):
        raise ArgumentError(
            f"tune: function: expected what wf.compile returns, got {shown(function)}"
            "\nhint: tune(wf.compile(f), *args)"
        )
    start = time.perf_counter()
    found, arrays = _prepared(function, args, keywords)
    tuner = Tuner(function.name, found.lower(), arrays, general=function._general_kernels)
    report, chosen = tuner.tune(start, start + seconds)
    if not chosen:
        return report
    on_disk = choices.keep(chosen)
    found.build_anew(function._counting, function._general_kernels)
    return replace(report, on_disk=on_disk)


def _prepared(
    function: CompiledFunction, args: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Specialization, list[Any]]:
    """The compiled version for these arguments, and arrays to run it on."""
    if not jit.available():
        raise UnsupportedError("tune: no machine code can be made here\nhint: install llvmlite")
    if current() is not None:
        raise ArgumentError(
            "tune: inside a transform nothing can be measured\nhint: call it outside"
        )
    found = function.prepared(args, keywords)
    name, trace = function.name, found.program.trace
    if found.parts is not None:
        raise UnsupportedError(f"tune: {name}: runs over a mesh; tune it on one device")
    if trace.effects:
        op = trace.effects[0].op.name
        raise ArgumentError(
            f"tune: {name}: has effects ({op}), which would happen at every trial"
            "\nhint: tune the function without them"
        )
    if any(node.device.kind != "cpu" for node in trace.nodes):
        raise UnsupportedError(f"tune: {name}: runs on another device than the processor")
    return found, found.sample(function._parameters.call(args, keywords))


class Tuner:
    """One function's search; tests give it a clock and a way to measure of their own."""

    def __init__(
        self,
        name: str,
        lowered: Trace,
        arrays: Sequence[Any],
        *,
        general: bool = False,
        alternatives: Sequence[Choice] = (USUAL, *ALTERNATIVES),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name = name
        self.clock = clock
        self.alternatives = alternatives
        self._lowered = lowered
        self._arrays = arrays
        self._general = general
        self._made: dict[Choice | None, Native] = {}  # None: as it is now
        self._shown: dict[Choice | None, dict[Form, list[str]]] = {}
        self._bits: tuple[bytes, ...] = ()

    def tune(self, start: float, end: float) -> tuple[TuningReport, dict[Form, Choice]]:
        """The report, and the choices that are worth keeping."""
        found: Found[Choice | None, Form] = Found()
        heavy: Mapping[Form, float] = {}
        if self.clock() < end:
            for _ in range(_WARMUPS):
                heavy = self.measure(None)
            total = sum(heavy.values())
            heavy = {form: spent for form, spent in heavy.items() if spent >= HEAVY * total}
            found = self._searched(heavy, end - _LAST * (end - start))
        chosen = {
            form: (best[0], best[1])
            for form in heavy
            if (best := found.best(form)) is not None and best[0] is not None
        }
        factor = self._whole({form: choice for form, (choice, _) in chosen.items()}, end)
        if factor <= 1.0:
            chosen = {}
        report = TuningReport(
            self.name,
            self.clock() - start,
            sum(1 for ratios in found.ratios.values() if ratios),
            found.rounds,
            tuple(self._told(form, found, chosen) for form in heavy),
            factor,
        )
        return report, {form: choice for form, (choice, _) in chosen.items()}

    def _searched(self, heavy: Mapping[Form, float], end: float) -> Found[Choice | None, Form]:
        def run(choice: Choice | None) -> dict[Form, float]:
            changed = set(heavy)
            if choice is not None:
                changed -= self._unchanged(choice)
            spent = self.measure(choice) if changed else {}
            return {form: spent[form] for form in changed}

        return search(self.alternatives, None, run, self.clock, end)

    def _unchanged(self, choice: Choice) -> frozenset[Form]:
        """Kernels that a choice leaves as they are."""
        now, made = self._kernels(None), self._kernels(choice)
        return frozenset(form for form in made if made[form] == now[form])

    def _kernels(self, choice: Choice | None) -> dict[Form, list[str]]:
        """What runs, by form."""
        found = self._shown.get(choice)
        if found is None:
            asked = {call.request for call in self._native(choice).calls.values()}
            found = {each.form: [*map(fingerprint, each.compiled.kernels)] for each in asked}
            self._shown[choice] = found
        return found

    def _native(self, choice: Choice | None) -> Native:
        found = self._made.get(choice)
        if found is None:
            with choices.trying({}, choice):
                found = Native(self._lowered, general=self._general)
            self._made[choice] = found
        return found

    def measure(self, choice: Choice | None) -> dict[Form, float]:
        """Run once with a choice for all kernels: nanoseconds of each, and the same bits."""
        native = self._native(choice)
        outputs, spent = native.timed(self._arrays)
        self._check(outputs, str(choice))
        total: dict[Form, float] = {}
        for name, call in native.calls.items():
            form = call.request.form
            total[form] = total.get(form, 0.0) + spent[name]
        return total

    def _check(self, outputs: Sequence[Any], told: str) -> None:
        """All results have the bits of the first ones."""
        bits = tuple(hashlib.sha256(np.ascontiguousarray(x).data).digest() for x in outputs)
        self._bits = self._bits or bits
        if bits != self._bits:
            raise CompilationError(
                f"tune: {self.name}: other bits by choice ({told}); nothing was kept"
                "\nhint: a mistake of weft, unless the function gives other results each time"
            )

    def _whole(self, chosen: Mapping[Form, Choice], end: float) -> float:
        """How much faster the function is by these choices; 1 where that is in doubt."""
        if not chosen:
            return 1.0
        with choices.trying(chosen):
            better = Native(self._lowered, general=self._general)
        both = {False: self._native(None), True: better}
        found = search([True], False, lambda k: self.measure_whole(both[k]), self.clock, end)
        ratios = found.ratios.get(True, {}).get("whole", [])
        return median(ratios) if is_faster(ratios) else 1.0

    def measure_whole(self, native: Native) -> dict[str, float]:
        """Run all of it once."""
        start = self.clock()
        outputs = native.run(self._arrays)
        spent = self.clock() - start
        self._check(outputs, "those of all kernels together")
        return {"whole": spent}

    def _told(
        self,
        form: Form,
        found: Found[Choice | None, Form],
        chosen: Mapping[Form, tuple[Choice, float]],
    ) -> TunedKernel:
        calls = self._native(None).calls.items()
        names = [name for name, call in calls if call.request.form == form]
        call = self._native(None).calls[names[0]]
        choice, factor = chosen.get(form, (call.request.compiled.choice, 1.0))
        name = names[0] if len(names) == 1 else f"{names[0]} (×{len(names)})"
        spent = median(found.usual.get(form, [0.0])) / 1e6
        return TunedKernel(name, details_of(call)["shapes"], spent, factor, str(choice))


__all__ = ["TunedKernel", "TuningReport", "tune"]
