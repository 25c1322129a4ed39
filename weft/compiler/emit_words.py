"""Products of panels in LLVM IR by instructions on vectors, a word of the depth at a time.

A vector of 16 words of the right factor meets one word of a row of the left factor: two products
of bfloat16 for each sum (AVX512-BF16), or four of int8 (AVX512-VNNI). Sums of a few rows stay in
registers while the depth runs. Of four bytes, those of the right factor count as unsigned.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.compiler.emit_text import Writer
from weft.compiler.emit_tiles import addresses, fetch, part_of
from weft.compiler.emit_values import Values
from weft.compiler.loops import SECOND, Tiles
from weft.core.common.dtypes import bfloat16, int8
from weft.core.common.types import DType
from weft.errors import UnsupportedError

PAIRS, QUADS = "pairs of bfloat16", "quads of int8"  # what processors are said to have
WORDS = 16  # of a vector, and of a group of the depth
GROUP = 64  # bytes of a row of a group
_HELD = {bfloat16: 16, int8: 24}  # vectors of sums in registers, at most
_INTEGERS, _FLOATS = f"<{WORDS} x i32>", f"<{WORDS} x float>"


@dataclass(frozen=True)
class _Kind:
    """How words of a dtype are multiplied."""

    feature: str
    name: str
    sums: str
    factors: str
    add: str


_KINDS = {
    bfloat16: _Kind(PAIRS, "avx512bf16.dpbf16ps.512", _FLOATS, f"<{2 * WORDS} x bfloat>", "fadd"),
    int8: _Kind(QUADS, "avx512.vpdpbusd.512", _INTEGERS, _INTEGERS, "add"),
}


def words_feature(dtype: DType) -> str:
    """What a processor that multiplies words of these factors is said to have; empty for others."""
    return _KINDS[dtype].feature if dtype in _KINDS else ""


def rows_at_once(dtype: DType, rows: int, columns: int) -> int:
    """How many of the rows of a block are summed in registers at a time."""
    most = _HELD[dtype] * WORDS // columns
    return max((high for high in range(1, most + 1) if rows % high == 0), default=1)


def multiply(values: Values, native: frozenset[str], tiles: Tiles) -> None:
    """Write the product of two panels: for some rows at a time, all groups of the depth."""
    writer, kernel = values.writer, values.kernel
    dtype = kernel.locals[tiles.left].dtype
    kind = _KINDS[dtype]
    if kind.feature not in native:
        raise UnsupportedError(f"kernel {kernel.name}: no {kind.feature} on this processor")
    given = f"({kind.sums}, {kind.factors}, {kind.factors})"
    writer.declarations[f"declare {kind.sums} @llvm.x86.{kind.name}{given}"] = None
    sums, left, right, soon = addresses(values, tiles)
    groups = values.scalar(tiles.groups).text
    wide = tiles.columns // WORDS
    high = rows_at_once(dtype, tiles.rows, tiles.columns)
    before, some, after = (writer.label(part) for part in ("words", "rows", "multiplied"))
    writer.goto(before)
    writer.begin(before)
    writer.goto(some)
    writer.begin(some)
    turn, following = writer.name(), writer.name()
    phi: list[str] = []
    writer.lines.append(phi)
    row = part_of(writer, left, turn, high * GROUP)
    if tiles.ahead is not None:
        soon = part_of(writer, soon, turn, _lines(tiles, high) * GROUP)
    made = _Rows(writer, kind, tiles, high).summed(row, right, soon, groups)
    _put(writer, kind, tiles, part_of(writer, sums, turn, high * wide * GROUP), made)
    writer.lines.append(f"  {following} = add nuw nsw i64 {turn}, 1")
    phi.append(f"  {turn} = phi i64 [ 0, %{before} ], [ {following}, %{writer.block} ]")
    more = writer.let(f"icmp slt i64 {following}, {tiles.rows // high}")
    writer.branch(more, some, after)
    writer.begin(after)


@dataclass(frozen=True)
class _Rows:
    """Some rows of a block, whose sums are held row by row."""

    writer: Writer
    kind: _Kind
    tiles: Tiles
    high: int

    @property
    def wide(self) -> int:
        """Vectors of a row."""
        return self.tiles.columns // WORDS

    def summed(self, left: str, right: str, soon: str, groups: str) -> list[str]:
        """The sums over all groups, from 0."""
        writer, kind = self.writer, self.kind.sums
        start, body, done = writer.block, writer.label("group"), writer.label("summed")
        writer.branch(writer.let(f"icmp sgt i64 {groups}, 0"), body, done)
        writer.begin(body)
        group, following = writer.name(), writer.name()
        sums = [writer.name() for _ in range(self.high * self.wide)]
        phis: list[str] = []
        writer.lines.append(phis)
        row = part_of(writer, left, group, self.tiles.rows * GROUP)
        column = part_of(writer, right, group, WORDS * self.wide * GROUP)
        if self.tiles.ahead is not None:
            later = part_of(writer, soon, group, self.tiles.ahead[1] * GROUP)
            fetch(writer, later, range(_lines(self.tiles, self.high)), SECOND)
        made = self.group(row, column, sums)
        writer.lines.append(f"  {following} = add nuw nsw i64 {group}, 1")
        phis.append(f"  {group} = phi i64 [ 0, %{start} ], [ {following}, %{body} ]")
        none = f"[ zeroinitializer, %{start} ]"
        phis += [f"  {s} = phi {kind} {none}, [ {m}, %{body} ]" for s, m in zip(sums, made)]
        writer.branch(writer.let(f"icmp slt i64 {following}, {groups}"), body, done)
        writer.begin(done)
        return [writer.let(f"phi {kind} {none}, [ {m}, %{body} ]") for m in made]

    def group(self, row: str, column: str, sums: list[str]) -> list[str]:
        """The sums with the products of one group of the depth."""
        writer, factors, made = self.writer, self.kind.factors, list(sums)

        def load(base: str, offset: int, kind: str = factors) -> str:
            return writer.let(f"load {kind}, ptr {_at(writer, base, offset)}, align 4")

        for word in range(WORDS):
            first = word * self.wide
            vectors = [load(column, (first + j) * GROUP) for j in range(self.wide)]
            for i in range(self.high):
                own = _everywhere(writer, load(row, i * GROUP + word * 4, "i32"))
                if factors != _INTEGERS:
                    own = writer.let(f"bitcast {_INTEGERS} {own} to {factors}")
                for j, vector in enumerate(vectors):
                    k = i * self.wide + j
                    made[k] = self.multiplied(made[k], vector, own)
        return made

    def multiplied(self, total: str, right: str, left: str) -> str:
        """A vector of sums and its next products."""
        kind = self.kind
        first, second = (right, left) if kind.feature == QUADS else (left, right)
        args = f"{kind.sums} {total}, {kind.factors} {first}, {kind.factors} {second}"
        return self.writer.let(f"call {kind.sums} @llvm.x86.{kind.name}({args})")


def _lines(tiles: Tiles, high: int) -> int:
    """Lines of what is needed next that some rows have a cache fetch for each group."""
    assert tiles.ahead is not None
    return -(-tiles.ahead[1] * high // tiles.rows)


def _everywhere(writer: Writer, word: str) -> str:
    """A word in all places of a vector."""
    first = writer.let(f"insertelement {_INTEGERS} poison, i32 {word}, i32 0")
    same = f"{_INTEGERS} {first}, {_INTEGERS} poison, {_INTEGERS} zeroinitializer"
    return writer.let(f"shufflevector {same}")


def _put(writer: Writer, kind: _Kind, tiles: Tiles, place: str, made: list[str]) -> None:
    """Store these sums, or add them to those that are there."""
    for k, found in enumerate(made):
        at = _at(writer, place, k * GROUP)
        if not tiles.fresh:
            old = writer.let(f"load {kind.sums}, ptr {at}")
            found = writer.let(f"{kind.add} {kind.sums} {old}, {found}")
        writer.do(f"store {kind.sums} {found}, ptr {at}")


def _at(writer: Writer, base: str, offset: int) -> str:
    return writer.let(f"getelementptr inbounds i8, ptr {base}, i64 {offset}") if offset else base
