"""Products of pairs of bfloat16 in LLVM IR: the instruction of AVX512-BF16.

A vector of 16 words of the right factor meets one word of a row of the left factor, two products
for each sum. Sums of a few rows stay in registers while the depth runs.
"""

from __future__ import annotations

from weft.compiler.emit_text import Writer
from weft.compiler.emit_values import Values
from weft.compiler.loops import Tiles
from weft.errors import UnsupportedError

FEATURE = "pairs of bfloat16"  # what a processor that multiplies them is said to have
WORDS = 16  # of a vector, and of a group of the depth
GROUP = 64  # bytes of a row of a group
HELD = 16  # vectors of sums in registers
_SUMS, _PAIRS = f"<{WORDS} x float>", f"<{2 * WORDS} x bfloat>"
_NAME = "@llvm.x86.avx512bf16.dpbf16ps.512"


def multiply(values: Values, native: frozenset[str], tiles: Tiles) -> None:
    """Write the product of two panels: for some rows at a time, all groups of the depth."""
    writer, kernel = values.writer, values.kernel
    if FEATURE not in native:
        raise UnsupportedError(f"kernel {kernel.name}: no {FEATURE} on this processor")
    writer.declarations[f"declare {_SUMS} {_NAME}({_SUMS}, {_PAIRS}, {_PAIRS})"] = None
    sums, left, right = (
        values.address(values.place_of(("local", number)), values.scalar(at))[0]
        for number, at in zip((tiles.sums, tiles.left, tiles.right), tiles.places, strict=True)
    )
    groups = values.scalar(tiles.groups).text
    wide = tiles.columns // WORDS
    high = min(tiles.rows, HELD // wide)
    before, some, after = (writer.label(part) for part in ("pairs", "rows", "multiplied"))
    writer.goto(before)
    writer.begin(before)
    writer.goto(some)
    writer.begin(some)
    turn, following = writer.name(), writer.name()
    phi: list[str] = []
    writer.lines.append(phi)
    row = _moved(writer, left, turn, high * GROUP)
    made = _summed(writer, (row, right, groups), (high, wide), tiles.rows)
    _put(writer, tiles, _moved(writer, sums, turn, high * wide * GROUP), made)
    writer.lines.append(f"  {following} = add nuw nsw i64 {turn}, 1")
    phi.append(f"  {turn} = phi i64 [ 0, %{before} ], [ {following}, %{writer.block} ]")
    more = writer.let(f"icmp slt i64 {following}, {tiles.rows // high}")
    writer.branch(more, some, after)
    writer.begin(after)


def _summed(
    writer: Writer, given: tuple[str, str, str], size: tuple[int, int], rows: int
) -> list[str]:
    """The sums of some rows over all groups, from 0: vectors row by row."""
    (left, right, groups), (high, wide) = given, size
    start, body, done = writer.block, writer.label("group"), writer.label("summed")
    writer.branch(writer.let(f"icmp sgt i64 {groups}, 0"), body, done)
    writer.begin(body)
    group, following = writer.name(), writer.name()
    sums = [writer.name() for _ in range(high * wide)]
    phis: list[str] = []
    writer.lines.append(phis)
    row = _moved(writer, left, group, rows * GROUP)
    column = _moved(writer, right, group, WORDS * wide * GROUP)
    made = list(sums)
    for word in range(WORDS):
        vectors = [
            writer.let(f"load {_PAIRS}, ptr {_at(writer, column, (word * wide + j) * GROUP)}")
            for j in range(wide)
        ]
        for i in range(high):
            pairs = _everywhere(writer, _at(writer, row, i * GROUP + word * 4))
            for j, vector in enumerate(vectors):
                k = i * wide + j
                args = f"{_SUMS} {made[k]}, {_PAIRS} {pairs}, {_PAIRS} {vector}"
                made[k] = writer.let(f"call {_SUMS} {_NAME}({args})")
    writer.lines.append(f"  {following} = add nuw nsw i64 {group}, 1")
    phis.append(f"  {group} = phi i64 [ 0, %{start} ], [ {following}, %{body} ]")
    none = f"[ zeroinitializer, %{start} ]"
    phis += [f"  {s} = phi {_SUMS} {none}, [ {m}, %{body} ]" for s, m in zip(sums, made)]
    writer.branch(writer.let(f"icmp slt i64 {following}, {groups}"), body, done)
    writer.begin(done)
    return [writer.let(f"phi {_SUMS} {none}, [ {m}, %{body} ]") for m in made]


def _put(writer: Writer, tiles: Tiles, place: str, made: list[str]) -> None:
    """Store these sums, or add them to those that are there."""
    for k, found in enumerate(made):
        at = _at(writer, place, k * GROUP)
        if not tiles.fresh:
            old = writer.let(f"load {_SUMS}, ptr {at}")
            found = writer.let(f"fadd {_SUMS} {old}, {found}")
        writer.do(f"store {_SUMS} {found}, ptr {at}")


def _everywhere(writer: Writer, place: str) -> str:
    """One word, two elements of a row, in all places of a vector."""
    kind = f"<{WORDS} x i32>"
    word = writer.let(f"load i32, ptr {place}")
    first = writer.let(f"insertelement {kind} poison, i32 {word}, i32 0")
    whole = writer.let(f"shufflevector {kind} {first}, {kind} poison, {kind} zeroinitializer")
    return writer.let(f"bitcast {kind} {whole} to {_PAIRS}")


def _moved(writer: Writer, base: str, turn: str, size: int) -> str:
    """Where the part of an array begins that a turn of a loop takes."""
    by = writer.let(f"mul nuw nsw i64 {turn}, {size}")
    return writer.let(f"getelementptr inbounds i8, ptr {base}, i64 {by}")


def _at(writer: Writer, base: str, offset: int) -> str:
    return writer.let(f"getelementptr inbounds i8, ptr {base}, i64 {offset}") if offset else base
