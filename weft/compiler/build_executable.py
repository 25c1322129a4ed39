"""From a trace to what runs it: taken from the disk where an earlier process left it, or made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial

from weft.compiler.executable import Executable, Interpreted
from weft.compiler.flatten import passed_through
from weft.compiler.statistics import Clock
from weft.core.common.device import Device
from weft.core.common.lazy import LazyModule
from weft.core.graph.trace import Trace
from weft.runtime.cpu import jit
from weft.runtime.registry import client

_ahead = LazyModule("weft.runtime.cpu.code_ahead")
_native = LazyModule("weft.compiler.native")
_rewriting = LazyModule("weft.compiler.rewrite")
_recompute = LazyModule("weft.compiler.recompute")
_stored = LazyModule("weft.compiler.stored")


@dataclass(frozen=True)
class Built:
    """An executable, and what became of its trace on the way."""

    executable: Executable
    lower: Callable[[], Trace]  # the trace as it was simplified
    passed_through: frozenset[int]  # inputs whose memory a result may be
    rewritten: dict[str, int]  # counts of what the simplification did


def build(
    trace: Trace,
    donated: tuple[bool, ...],
    general: bool,
    clock: Clock,
    *,
    own: bool = False,
    recalls: bool = True,
    lasting: tuple[bool, ...] = (),
) -> Built:
    """Make a trace ready to run; memory of `donated` inputs may be used for results.

    Kernels of a `general` one serve every size from the start; with `own`, long products have
    kernels for their very sizes. Without `recalls` what lies on disk is made again. Inputs that are
    `lasting` are the same arrays in most runs, so what is packed of them is kept.
    """
    places = {node.device for node in trace.nodes or trace.inputs}
    native = all(place.kind == "cpu" for place in places) and jit.available()
    origin = None

    @cache
    def otherwise() -> Executable:
        return build(trace, donated, general, Clock(), own=own).executable

    if native:
        with clock("recall"):
            origin = _stored.origin_of(trace, donated, general, own, lasting)
            found = _stored.recall(origin) if origin is not None and recalls else None
        if found is not None:
            found.without_packs = otherwise
            lower = lambda: origin.lowered  # noqa: E731
            return Built(found, lower, found.passed_through, found.rewritten)
    with clock("optimise"):
        lowered, counts = _rewriting.rewrite(trace)
        lowered = _recompute.recompute(lowered) if native else lowered
    kept = passed_through(lowered)
    rewritten = {**asdict(counts), "nodes_after": len(lowered.nodes)}
    if not native:
        other = _elsewhere(lowered, places)
        return Built(other or Interpreted(lowered), lambda: lowered, kept, rewritten)
    drafts = _native.drafts_pay(lowered)
    with _ahead.hurrying():
        made = _native.Native(
            lowered, donated, general=general, own=own, lasting=lasting, drafts=drafts
        )
    made.without_packs = otherwise
    if origin is not None:
        made.settle(partial(_stored.keep, origin, made, lowered, rewritten, kept))
    else:
        made.settle()
    return Built(made, lambda: lowered, kept, rewritten)


def _elsewhere(trace: Trace, places: set[Device]) -> Executable | None:
    """What runs a trace on the one device all its calls are on, if that runs whole traces."""
    if len(places) != 1:
        return None
    make = getattr(client(*places), "executable", None)
    made: Executable | None = None if make is None else make(trace)
    return made
