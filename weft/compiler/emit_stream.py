"""Stores of whole lines past the caches, for results that are larger than these.

A cache would read each line first, only to write it back later: that is twice the traffic. Memory
must begin with a line for it, which is asked when a function starts. Other threads see what was
written so once it is fenced.
"""

from __future__ import annotations

from weft.compiler.emit_scope import Place
from weft.compiler.emit_text import Writer, vector
from weft.compiler.emit_values import Values
from weft.compiler.loops import Kernel, Value

LINE = 64  # bytes
_FENCE = "@llvm.x86.sse.sfence"
_PAST = "!0"


def streams_of(kernel: Kernel, buffers: list[str], writer: Writer) -> dict[int, str]:
    """By buffer that is a stream: what tells whether it begins with a line."""
    found = {}
    for number, buffer in enumerate(kernel.buffers):
        if buffer.mode == "stream":
            start = writer.let(f"ptrtoint ptr {buffers[number]} to i64")
            apart = writer.let(f"and i64 {start}, {LINE - 1}")
            found[number] = writer.let(f"icmp eq i64 {apart}, 0")
    return found


def is_streamed(values: Values, place: Place, index: Value) -> bool:
    """Whether a vector of a stream, adjacent elements from `index` on, fills whole lines."""
    whole_lines = values.lanes * place.dtype.itemsize % LINE == 0
    return whole_lines and values.is_whole(index)


def stream(values: Values, starts: str, place: Place, pointer: str, text: str) -> None:
    """Write a vector, past the caches if its buffer `starts` with a line."""
    writer = values.writer
    writer.declarations[f"{_PAST} = !{{i32 1}}"] = None
    past, near, after = (writer.label(name) for name in ("past", "near", "after"))
    writer.branch(starts, past, near)
    writer.begin(past)
    kind = vector(place.element, values.lanes)
    writer.do(f"store {kind} {text}, ptr {pointer}, align {LINE}, !nontemporal {_PAST}")
    writer.goto(after)
    writer.begin(near)
    values.write(place, pointer, text, values.lanes)
    writer.goto(after)
    writer.begin(after)


def fence(writer: Writer) -> None:
    """Have others see what was written past the caches."""
    writer.declarations[f"declare void {_FENCE}()"] = None
    writer.do(f"call void {_FENCE}()")
