"""Counters in shared memory that order what two processes write and read, in native code.

Each directed pair of ranks has a counter that one side advances and the other waits for. Stores
release and loads acquire, which plain stores from Python would not do on every processor.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from string import Template

from weft.runtime.cpu.jit import Loaded, compile_text, host_target, load_object

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
}

# `turn` advances my counters and waits until the others' have come as far. A pair goes in step, so
# mine says how far theirs must be. The result is the number of counters that are there in a row.
_TEXT = Template("""
$DECLARE
define void @post(ptr %mine, i64 %count) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %more, %step ]
  %end = icmp sge i64 %i, %count
  br i1 %end, label %done, label %step
step:
  %at = getelementptr ptr, ptr %mine, i64 %i
  %word = load ptr, ptr %at
  %old = load i64, ptr %word
  %new = add i64 %old, 1
  store atomic i64 %new, ptr %word release, align 8
  %more = add i64 %i, 1
  br label %next
done:
  ret void
}
define i64 @arrived(ptr %mine, ptr %theirs, i64 %count, i64 %spins) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %more, %there ]
  %budget = phi i64 [ %spins, %entry ], [ %left, %there ]
  %end = icmp sge i64 %i, %count
  br i1 %end, label %done, label %first
first:
  %mine.at = getelementptr ptr, ptr %mine, i64 %i
  %mine.word = load ptr, ptr %mine.at
  %wanted = load i64, ptr %mine.word
  %theirs.at = getelementptr ptr, ptr %theirs, i64 %i
  %word = load ptr, ptr %theirs.at
  br label %look
look:
  %left = phi i64 [ %budget, %first ], [ %less, %again ]
  %value = load atomic i64, ptr %word acquire, align 8
  %enough = icmp sge i64 %value, %wanted
  br i1 %enough, label %there, label %missing
missing:
  %spent = icmp sle i64 %left, 0
  br i1 %spent, label %done, label %again
again:
  $PAUSE
  %less = sub i64 %left, 1
  br label %look
there:
  %more = add i64 %i, 1
  br label %next
done:
  ret i64 %i
}
define i64 @turn(ptr %mine, ptr %theirs, i64 %count, i64 %spins) {
  call void @post(ptr %mine, i64 %count)
  %r = call i64 @arrived(ptr %mine, ptr %theirs, i64 %count, i64 %spins)
  ret i64 %r
}
define void @store(ptr %word, i64 %value) {
  store atomic i64 %value, ptr %word release, align 8
  ret void
}
define i64 @load(ptr %word) {
  %value = load atomic i64, ptr %word acquire, align 8
  ret i64 %value
}
""")


class Signals:
    """The native functions; words and tables are given by their addresses."""

    def __init__(self, code: Loaded) -> None:
        self._code = code  # the functions live in it
        word = ctypes.c_int64
        nothing = ctypes.CFUNCTYPE(None, word, word)
        number = ctypes.CFUNCTYPE(word, word, word, word, word)
        self.post: Callable[[int, int], None] = nothing(code.address("post"))
        self.arrived: Callable[[int, int, int, int], int] = number(code.address("arrived"))
        self.turn: Callable[[int, int, int, int], int] = number(code.address("turn"))
        self.store: Callable[[int, int], None] = nothing(code.address("store"))
        self.load: Callable[[int], int] = ctypes.CFUNCTYPE(word, word)(code.address("load"))


@functools.cache
def signals() -> Signals:
    """The functions, compiled for this processor."""
    target = host_target()
    declare, pause = _PAUSE.get(target.architecture, ("", ""))
    text = _TEXT.substitute(DECLARE=declare, PAUSE=pause)
    return Signals(load_object(compile_text(text, target)))
