"""Products of tiles in LLVM IR: the instructions of AMX.

A processor has eight tiles of 16 rows of 64 bytes. Four hold a block of 32 × 32 sums, two the rows
of the left factor, two the columns of the right one; a group of the depth is one row of a tile.
Tiles are configured where a kernel begins and given back where it ends.
"""

from __future__ import annotations

from weft.compiler.emit_text import Writer
from weft.compiler.emit_values import Values
from weft.compiler.loops import NEAREST, SECOND, Tiles
from weft.core.common.dtypes import bfloat16, int8
from weft.core.common.types import DType
from weft.errors import UnsupportedError

EDGE = 16  # rows of a tile, and words of one of them
BYTES = 64  # of a row
TILE = EDGE * BYTES
_NAMES = {bfloat16: "tdpbf16ps", int8: "tdpbssd"}
_FEATURES = {bfloat16: "tiles of bfloat16", int8: "tiles of int8"}
_LEFT, _RIGHT = 4, 6  # the first tiles that hold factors
_SHAPES = bytes([1, *[0] * 15, *[BYTES, 0] * 8, *[0] * 16, *[EDGE] * 8, *[0] * 8])
AHEAD = 2  # groups of the right factor that the first cache asks for before they are needed
_TILE, _PLACE = "i8 immarg", "ptr, i64"


def feature_of(dtype: DType) -> str:
    """What a processor that multiplies tiles of these factors is said to have; empty for others."""
    return _FEATURES.get(dtype, "")


def configure(writer: Writer) -> None:
    """Give every tile its shape."""
    shapes = "".join(f"\\{byte:02X}" for byte in _SHAPES)
    name = f'@tile_shapes = private constant [{len(_SHAPES)} x i8] c"{shapes}", align 64'
    writer.declarations[name] = None
    _do(writer, "ldtilecfg", "ptr", "ptr @tile_shapes")


def release(writer: Writer) -> None:
    """Leave the tiles as they were before any kernel."""
    _do(writer, "tilerelease", "", "")


def multiply(values: Values, native: frozenset[str], tiles: Tiles) -> None:
    """Write the product of two panels."""
    writer, kernel = values.writer, values.kernel
    dtype = kernel.locals[tiles.left].dtype
    if feature_of(dtype) not in native:
        raise UnsupportedError(f"kernel {kernel.name}: no tiles of {dtype} on this processor")
    sums, left, right, soon = addresses(values, tiles)
    groups = values.scalar(tiles.groups).text
    _sums(writer, tiles, sums, "tilezero" if tiles.fresh else "tileloadd64")
    head, body, done = (writer.label(part) for part in ("tiles", "group", "done"))
    writer.goto(head)
    writer.begin(head)
    writer.branch(writer.let(f"icmp sgt i64 {groups}, 0"), body, done)
    writer.begin(body)
    group, following = writer.name(), writer.name()
    writer.lines.append(f"  {group} = phi i64 [ 0, %{head} ], [ {following}, %{body} ]")
    if tiles.ahead is not None:
        lines = tiles.ahead[1]
        fetch(writer, part_of(writer, soon, group, lines * BYTES), range(lines), SECOND)
    _group(writer, tiles, left, right, group, _NAMES[dtype])
    writer.lines.append(f"  {following} = add nuw nsw i64 {group}, 1")
    writer.branch(writer.let(f"icmp slt i64 {following}, {groups}"), body, done)
    writer.begin(done)
    _sums(writer, tiles, sums, "tilestored64")


def addresses(values: Values, tiles: Tiles) -> tuple[str, str, str, str]:
    """Where sums, the left and the right panel begin, and what is needed next, if that is known."""
    sums, left, right = (
        values.address(values.place_of(memory), values.scalar(at))[0]
        for memory, at in zip(tiles.memories, tiles.places, strict=True)
    )
    soon = ""
    if tiles.ahead is not None:
        soon, _ = values.address(values.place_of(tiles.memories[2]), values.scalar(tiles.ahead[0]))
    return sums, left, right, soon


def _sums(writer: Writer, tiles: Tiles, sums: str, name: str) -> None:
    """Start all sums at 0, load them, or store them."""
    wide = tiles.columns // EDGE
    for i in range(tiles.rows // EDGE):
        for j in range(wide):
            number = f"i8 {i * wide + j}"
            if name == "tilezero":
                _do(writer, name, _TILE, number)
                continue
            place = _at(writer, sums, (i * EDGE * tiles.columns + j * EDGE) * 4)
            _do(writer, name, f"{_TILE}, {_PLACE}", f"{number}, {place}, i64 {tiles.columns * 4}")


def _group(writer: Writer, tiles: Tiles, left: str, right: str, group: str, name: str) -> None:
    """The products of one group of the depth."""
    high, wide = tiles.rows // EDGE, tiles.columns // EDGE
    step = tiles.columns * 4
    for first, count, base, apart, row in (
        (_LEFT, high, left, TILE, BYTES),
        (_RIGHT, wide, right, BYTES, step),
    ):
        here = part_of(writer, base, group, count * TILE)
        for k in range(count):
            place = _at(writer, here, k * apart)
            given = f"i8 {first + k}, {place}, i64 {row}"
            _do(writer, "tileloadd64", f"{_TILE}, {_PLACE}", given)
    first = AHEAD * wide * EDGE
    fetch(writer, here, range(first, first + wide * EDGE), NEAREST)
    for i in range(high):
        for j in range(wide):
            given = f"i8 {i * wide + j}, i8 {_LEFT + i}, i8 {_RIGHT + j}"
            _do(writer, name, ", ".join([_TILE] * 3), given)


def fetch(writer: Writer, base: str, lines: range, cache: int) -> None:
    """Have a cache ask for lines of memory."""
    kinds = "ptr nocapture readonly, i32 immarg, i32 immarg, i32 immarg"
    writer.declarations[f"declare void @llvm.prefetch.p0({kinds})"] = None
    for line in lines:
        place = _at(writer, base, line * BYTES)
        writer.do(f"call void @llvm.prefetch.p0({place}, i32 0, i32 {cache}, i32 1)")


def part_of(writer: Writer, base: str, group: str, size: int) -> str:
    """Where the part of an array begins that belongs to a group."""
    at = writer.let(f"mul nuw nsw i64 {group}, {size}")
    return writer.let(f"getelementptr inbounds i8, ptr {base}, i64 {at}")


def _at(writer: Writer, base: str, offset: int) -> str:
    if not offset:
        return f"ptr {base}"
    return f"ptr {writer.let(f'getelementptr inbounds i8, ptr {base}, i64 {offset}')}"


def _do(writer: Writer, name: str, kinds: str, given: str) -> None:
    writer.declarations[f"declare void @llvm.x86.{name}({kinds})"] = None
    writer.do(f"call void @llvm.x86.{name}({given})")
