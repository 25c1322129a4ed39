"""Stores of whole lines past the caches, for results that are larger than these.

A cache would read each line first, only to write it back later: that is twice the traffic. A vector
goes past it if it lies on whole lines, which is asked at each store: one instruction more beside
memory that is waited for. Other threads see what was written so once it is fenced.
"""

from __future__ import annotations

from weft.compiler.emit_scope import Place
from weft.compiler.emit_text import Writer, vector
from weft.compiler.emit_values import Values

LINE = 64  # bytes
_FENCE = "@llvm.x86.sse.sfence"
_PAST = "!0"


def fills_lines(place: Place, lanes: int) -> bool:
    """Whether a vector of elements can lie on whole lines."""
    return lanes * place.dtype.itemsize % LINE == 0


def stream(values: Values, place: Place, pointer: str, text: str) -> None:
    """Write a vector, past the caches if it lies on whole lines."""
    writer = values.writer
    writer.declarations[f"{_PAST} = !{{i32 1}}"] = None
    past, near, after = (writer.label(name) for name in ("past", "near", "after"))
    address = writer.let(f"ptrtoint ptr {pointer} to i64")
    inside = writer.let(f"and i64 {address}, {LINE - 1}")
    writer.branch(writer.let(f"icmp eq i64 {inside}, 0"), past, near)
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
