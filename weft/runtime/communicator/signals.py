"""Counters in shared memory that order what two processes write and read, in native code.

Each directed pair of ranks has a counter that one side advances and the other waits for. Stores
release and loads acquire, which plain stores from Python would not do on every processor.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from string import Template

from weft.runtime.communicator.sum_text import sum_text
from weft.runtime.cpu.code_cache import cached
from weft.runtime.cpu.jit import Loaded, compile_text, host_target, load_object

_PAUSE = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
}

# A table holds the number of peers, how long to spin, my counters and theirs. `turn` advances mine
# and waits until theirs have come as far: a pair goes in step, so mine says how far theirs must be.
_TEXT = Template("""
$DECLARE
define void @post(ptr %table) {
entry:
  %count = load i64, ptr %table
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %more, %step ]
  %end = icmp sge i64 %i, %count
  br i1 %end, label %done, label %step
step:
  %place = add i64 %i, 2
  %at = getelementptr ptr, ptr %table, i64 %place
  %word = load ptr, ptr %at
  %old = load i64, ptr %word
  %new = add i64 %old, 1
  store atomic i64 %new, ptr %word release, align 8
  %more = add i64 %i, 1
  br label %next
done:
  ret void
}
define i64 @arrived(ptr %table) {
entry:
  %count = load i64, ptr %table
  %spins.at = getelementptr i64, ptr %table, i64 1
  %spins = load i64, ptr %spins.at
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %more, %there ]
  %budget = phi i64 [ %spins, %entry ], [ %left, %there ]
  %end = icmp sge i64 %i, %count
  br i1 %end, label %done, label %first
first:
  %place = add i64 %i, 2
  %mine.at = getelementptr ptr, ptr %table, i64 %place
  %mine = load ptr, ptr %mine.at
  %wanted = load i64, ptr %mine
  %other = add i64 %place, %count
  %theirs.at = getelementptr ptr, ptr %table, i64 %other
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
  %all = icmp sge i64 %i, %count
  %wide = zext i1 %all to i64
  ret i64 %wide
}
define i64 @turn(ptr %table) {
  call void @post(ptr %table)
  %r = call i64 @arrived(ptr %table)
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
        self.address = code.address  # of a function; they live as long as this
        word = ctypes.c_int64
        number = ctypes.CFUNCTYPE(word, word)
        self.post: Callable[[int], None] = ctypes.CFUNCTYPE(None, word)(code.address("post"))
        self.arrived: Callable[[int], int] = number(code.address("arrived"))
        self.turn: Callable[[int], int] = number(code.address("turn"))
        self.load: Callable[[int], int] = number(code.address("load"))
        self.claim: Callable[[int], int] = number(code.address("claim"))
        store = ctypes.CFUNCTYPE(None, word, word)
        self.store: Callable[[int, int], None] = store(code.address("store"))
        add_up = ctypes.CFUNCTYPE(word, word, word, word)
        self.add_up: Callable[[int, int, int], int] = add_up(code.address("add_up"))


@functools.cache
def signals() -> Signals:
    """The functions, compiled for this processor."""
    target = host_target()
    declare, pause = _PAUSE.get(target.architecture, ("", ""))
    text = _TEXT.substitute(DECLARE=declare, PAUSE=pause) + sum_text()
    return Signals(load_object(cached(text, target, lambda: compile_text(text, target))))
