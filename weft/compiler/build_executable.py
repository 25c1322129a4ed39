"""From a trace to what runs it: taken from the disk where an earlier process left it, or made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

from weft.compiler.executable import Executable, Handing, Interpreted
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
_several = LazyModule("weft.compiler.several")
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
    beside = _without_others(trace, places)
    again = partial(build, general=general, clock=clock, own=own, recalls=recalls)
    if beside is not None:
        return _handing(trace, beside, donated, lasting, again)
    if len(_several.homes(trace)) > 1:
        return _on_several(trace, clock, again)
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


def _handing(
    trace: Trace,
    beside: tuple[Trace, list[int], dict[int, Any]],
    donated: tuple[bool, ...],
    lasting: tuple[bool, ...],
    again: Callable[..., Built],
) -> Built:
    """A trace without the inputs from elsewhere, which are handed on."""
    inner, given, handed = beside
    flags = [tuple(flag[i] for i in given) if flag else () for flag in (donated, lasting)]
    made = again(inner, flags[0], lasting=flags[1])
    passed = {given[i] for i in made.passed_through if i < len(given)}
    passed |= {source for source in handed.values() if isinstance(source, int)}
    executable = Handing(made.executable, trace.inputs, given, handed)
    return replace(made, executable=executable, passed_through=frozenset(passed))


def _on_several(trace: Trace, clock: Clock, again: Callable[..., Built]) -> Built:
    """A trace whose calls are on several devices."""
    with clock("optimise"):
        lowered, counts = _rewriting.rewrite(trace)

    def make(part: Trace) -> Executable:
        return again(part, (False,) * (len(part.inputs) - len(part.captures))).executable

    rewritten = {**asdict(counts), "nodes_after": len(lowered.nodes)}
    made = _several.Several(lowered, make)
    return Built(made, lambda: lowered, passed_through(lowered), rewritten)


def _without_others(
    trace: Trace, places: set[Device]
) -> tuple[Trace, list[int], dict[int, Any]] | None:
    """The trace without inputs from where no call is: those that nobody reads, or are results.

    With it come the inputs that are left, and what some results are: an input, by its number, or a
    constant. None where there is no such input.
    """
    kinds = {place.kind for place in places}
    used = {source for node in trace.nodes for source, _ in node.inputs}
    count = len(trace.inputs) - len(trace.captures)
    others = {
        node: i if i < count else trace.captures[i - count]
        for i, node in enumerate(trace.inputs)
        if node.device not in places and not (node.device.kind == "cpu" and "cpu" in kinds)
    }
    handed = {k: others[node] for k, (node, _) in enumerate(trace.outputs) if node in others}
    kept = [i for i, node in enumerate(trace.inputs) if node not in others or node in used]
    if len(kept) == len(trace.inputs) and not handed:
        return None
    inner = replace(
        trace,
        inputs=tuple(trace.inputs[i] for i in kept),
        outputs=tuple(ref for k, ref in enumerate(trace.outputs) if k not in handed),
        captures=tuple(trace.captures[i - count] for i in kept if i >= count),
    )
    return inner, [i for i in kept if i < count], handed


def _elsewhere(trace: Trace, places: set[Device]) -> Executable | None:
    """What runs a trace on the one device all its calls are on, if that runs whole traces."""
    if len(places) != 1:
        return None
    make = getattr(client(*places), "executable", None)
    made: Executable | None = None if make is None else make(trace)
    return made
