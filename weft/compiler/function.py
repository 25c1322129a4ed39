"""`CompiledFunction`: traces at the first call of each kind, then runs what was compiled.

A call on plain tensors runs an executable. Inside another transform the trace is replayed in that
transform's handler, so compiled functions compose with everything and their Python still runs once.
"""

from __future__ import annotations

import builtins
import gc
import os
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from threading import get_ident
from types import MethodType
from typing import Any

from weft.compiler import export
from weft.compiler.capture import capture
from weft.compiler.signature import Call, Parameters, Signature, differences
from weft.compiler.specialization import Specialization
from weft.compiler.statistics import CompilationStats, Counting
from weft.core.common.handler import current
from weft.core.common.locks import lock_for
from weft.core.graph.graph import GRAPH
from weft.core.graph.trace import Trace
from weft.errors import ArgumentError

_MOST_REASONS = 100
# One for all functions: they may call each other while they are traced.
_tracing = lock_for(sys.modules[__name__], "_tracing")
_undisturbing: list[bool] = []  # one, while searches for cycles wait for us
_spared = [None] * 64  # searches for cycles that do not follow; a function has two


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Inside, nobody searches for cycles: what compiling makes is a lot, and nearly has none."""
    collects = gc.isenabled()
    if collects:
        _undisturbing.append(True)
        gc.disable()
    try:
        yield
    finally:
        if collects:
            try:
                _spare_a_search()
            finally:
                _disturb()


def _disturb() -> None:
    """Have cycles searched for again, if nobody but us has stopped that."""
    if _undisturbing:
        _undisturbing.clear()
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disturb)  # the thread that compiled is not there


def _spare_a_search() -> None:
    """Count what is new as old, since the search that would follow at once takes milliseconds.

    The wait for a search through everything begins anew, too, so this is for the first ones alone:
    a process that goes on compiling is searched as ever. So is one where somebody has frozen what
    there was, which must stay so, and takes long to count.
    """
    if not _spared:
        return
    _spared.pop()
    if gc.get_freeze_count():
        _spared.clear()
        return
    gc.freeze()
    gc.unfreeze()


class CompiledFunction:
    """A function that `compile` made: call it like the original.

    `stats` counts, `why_recompiled()` explains, `explain(*args)` shows what runs.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        parameters: Parameters,
        cache_size: int,
        general: bool = False,
    ) -> None:
        if not isinstance(parameters, Parameters):
            raise ArgumentError("CompiledFunction: is made by wf.compile, not by its own name")
        wrapper: Any = self
        update_wrapper(wrapper, function)
        self.name = parameters.name
        self._function = function
        self._parameters = parameters
        self._cache_size = cache_size
        self._general_kernels = general
        self._counting = Counting()
        self._ready: Specialization | None = None  # what ran last, tried first
        self._cache: OrderedDict[Signature, list[Specialization]] = OrderedDict()
        self._gone_hits = 0  # of specializations that have left the cache
        self._reasons: deque[str] = deque(maxlen=_MOST_REASONS)
        self._last: tuple[Signature, list[str]] | None = None
        self._running: set[Any] = set()

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        ready = self._ready
        if ready is not None and current() is None:
            arrays = ready.enter(args, keywords)
            if arrays is not None:
                ready.hits += 1
                return ready.leave(ready.run(arrays))
        return self._general(args, keywords)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<compiled {self.name}>"

    def _general(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if not GRAPH.runs_here:
            return self._find_and_run(args, keywords)
        lock = _tracing
        if not lock.acquire(blocking=False):  # who traces may wait for the kernel that called us
            return self._function(*args, **keywords)
        try:
            return self._find_and_run(args, keywords)
        finally:
            lock.release()

    def _find_and_run(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        call = self._parameters.call(args, keywords)
        found, captured = self._specialization(call, args, keywords)
        if not found.runs_plainly(call, captured):
            return found.replay(call, captured, lambda: self._function(*args, **keywords))
        if found.is_ready:
            found.ease(call, (args, keywords))
        else:
            self._prepare(found)
        if current() is None:
            self._ready = found
        arrays = found.gather(call, captured)
        if arrays is None:  # a generator is about to change its base key: do as eager code would
            return self._function(*args, **keywords)
        return found.leave(found.run(arrays))

    def _specialization(
        self, call: Call, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[Specialization, list[Any]]:
        """The one for this kind of call, traced now if there is none, and what it captures now."""
        signature = call.signature
        with _tracing:
            known = self._cache.get(signature, ())
            for each in known:
                captured = each.fitting()
                if captured is not None:
                    self._cache.move_to_end(signature)
                    self._counting.add(hits=1)
                    return each, captured
            self._counting.add(misses=1)
            paths = self._parameters.paths(args, keywords)
            self._explain_miss(signature, paths, known)
            donated = self._parameters.donations(args, keywords)
            made, captured = self._trace(call, paths, donated)
            if made.program.lasting:
                self._keep(made)
            return made, captured

    def _explain_miss(self, signature: Signature, paths: list[str], known: Any) -> None:
        if known:
            self._reasons.extend(known[-1].capture_changes()[1])
        elif self._last is not None:
            old, before = self._last
            label = self._parameters.label
            found = differences(old, signature, before, paths, label)
            self._reasons.extend(found or ["this kind of call had left the cache"])
        self._last = signature, paths

    def _trace(
        self, call: Call, paths: list[str], donated: tuple[bool, ...]
    ) -> tuple[Specialization, list[Any]]:
        mark = (os.getpid(), get_ident(), call.signature)
        if mark in self._running:
            raise ArgumentError(
                f"compile: {self.name}: calls itself with arguments of the same kind while it is"
                " traced, which would never end\nhint: use wf.while_loop or wf.scan"
            )
        self._running.add(mark)
        try:
            leaves = [(leaf.kind, leaf.device, leaf.spec) for leaf in call.signature.leaves]
            with _undisturbed(), self._counting.timed("trace"):
                program, captured = capture(self._function, self.name, leaves, call.build)
        finally:
            self._running.discard(mark)
        needed = len(program.trace.nodes)
        self._counting.add(
            traces=1,
            nodes_before=program.calls,
            shared=program.shared,
            dead=program.calls - program.shared - needed,
        )
        return Specialization(call.signature, program, paths, donated), captured

    def _keep(self, made: Specialization) -> None:
        self._cache.setdefault(made.signature, []).append(made)
        self._cache.move_to_end(made.signature)
        while sum(map(len, self._cache.values())) > self._cache_size:
            oldest = next(iter(self._cache))
            gone = self._cache[oldest].pop(0)
            if not self._cache[oldest]:
                del self._cache[oldest]
            if self._ready is gone:
                self._ready = None
            self._gone_hits += gone.hits
            self._counting.add(evictions=1)

    def _prepare(self, found: Specialization) -> None:
        """Build the executable, if it is not there."""
        with _tracing, _undisturbed():
            if not found.is_ready:
                is_first = self._counting.numbers["compilations"] == 0
                found.build(self._counting, self._general_kernels, is_first)

    @property
    def stats(self) -> CompilationStats:
        """Counters so far, as a snapshot."""
        kept = [each for group in list(self._cache.values()) for each in group]
        return self._counting.snapshot(self._gone_hits + sum(each.hits for each in kept))

    def why_recompiled(self) -> list[str]:
        """Why calls after the first could not use what was there, oldest first."""
        return list(self._reasons)

    def clear_cache(self) -> None:
        """Forget everything compiled; the next call traces again."""
        with _tracing:
            self._gone_hits += sum(each.hits for group in self._cache.values() for each in group)
            self._cache.clear()
            self._reasons.clear()
            self._ready = self._last = None

    def trace(self, *args: Any, **keywords: Any) -> Trace:
        """The captured graph for these arguments, as it was traced; nothing runs."""
        call = self._parameters.call(args, keywords)
        return self._specialization(call, args, keywords)[0].program.trace

    def lower(self, *args: Any, **keywords: Any) -> Trace:
        """The graph for these arguments after it was simplified: what is compiled."""
        return self.prepared(args, keywords).lower()

    def explain(self, *args: Any, loops: bool = False, **keywords: Any) -> str:
        """What runs for these arguments, in words: kernels, loops, memory, estimated time.

        With `loops=True` the loops of every kernel follow. Nothing runs. Printed and returned. (A
        parameter of your own called `loops` must be given by position.)
        """
        text = self.prepared(args, keywords).executable.explain(loops=loops)
        builtins.print(text)
        return text

    def export(self, path: Any, /, *args: Any, **keywords: Any) -> None:
        """Save what is compiled for these arguments; `wf.load_compiled(path)` runs it elsewhere.

        Captured tensors are saved with their present values. The file holds data and names of ops,
        no code of yours: a function that calls back into Python cannot be saved.
        """
        call = self._parameters.call(args, keywords)
        found, _ = self._specialization(call, args, keywords)
        export.save(path, found.program, call.signature, found.paths)

    def prepared(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Specialization:
        """What is traced and compiled for these arguments; nothing runs."""
        call = self._parameters.call(args, keywords)
        found, _ = self._specialization(call, args, keywords)
        self._prepare(found)
        return found
