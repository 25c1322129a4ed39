"""Bits of two words in one: rotations and signs, by the instructions of NEON that insert bits.

LLVM rotates by two shifts, the second of which adds; to insert takes half as long. Whole bytes are
looked up instead, which more units can do. A sign is one instruction where LLVM sees three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from weft.compiler.emit_text import Code, type_of
from weft.compiler.loops import Value, integer_of
from weft.core.common.types import DType

_LANES = 4  # words in a register
_WIDTH, _BYTES = 32, 4  # of a word
_HALF = 16  # LLVM has an instruction for this rotation
_FLOAT = {4: "float", 8: "double"}
_SHIFTS, _MASKS = ("shift_left", "shift_right"), ("bit_and", "bit_and")


def inserted(c: Code, x: Value, text_of: Callable[[Value], str]) -> str | None:
    """A `bit_or` that is a rotation or gives a number a sign; None of others."""
    left, right = x.args
    kinds = left.op, right.op
    if kinds not in (_SHIFTS, _MASKS) or left.args[1].op != "const" or right.args[1].op != "const":
        return None
    first, second = integer_of(left.args[1]), integer_of(right.args[1])
    if kinds == _MASKS:
        return _signed(c, x, text_of) if _are_magnitude_and_sign(x.dtype, first, second) else None
    is_rotation = left.args[0] is right.args[0] and first + second == _WIDTH and first != _HALF
    if not is_rotation or type_of(x.dtype) != "i32" or x.dtype.kind != "u" or c.lanes % _LANES:
        return None
    word = text_of(left.args[0])
    return _looked_up(c, word, first // 8) if first % 8 == 0 else _rotated(c, x, word, text_of)


def _are_magnitude_and_sign(dtype: DType, first: int, second: int) -> bool:
    sign = -(1 << (8 * dtype.itemsize - 1))
    return dtype.kind == "i" and dtype.itemsize in _FLOAT and (first, second) == (~sign, sign)


def _signed(c: Code, x: Value, text_of: Callable[[Value], str]) -> str:
    """The first word with the highest bit of the second."""
    name, whole = _FLOAT[x.dtype.itemsize], type_of(x.dtype)
    floats = (c.convert("bitcast", text_of(a.args[0]), whole, name) for a in x.args)
    return c.convert("bitcast", c.intrinsic("copysign", name, *floats), name, whole)


def _rotated(c: Code, x: Value, word: str, text_of: Callable[[Value], str]) -> str:
    """What is shifted out of words to the left comes in from the right, register by register."""
    kind, piece, name = c.type("i32"), f"<{_LANES} x i32>", "@llvm.aarch64.neon.vsri.v4i32"
    c.writer.declarations[f"declare {piece} {name}({piece}, {piece}, i32)"] = None
    shifted, count = text_of(x.args[0]), integer_of(x.args[1].args[1])
    pieces = []
    for first in range(0, c.lanes, _LANES):
        mask = places(range(first, first + _LANES))
        high, low = (
            c.writer.let(f"shufflevector {kind} {text}, {kind} poison, {mask}")
            for text in (shifted, word)
        )
        pieces.append(
            c.writer.let(f"call {piece} {name}({piece} {high}, {piece} {low}, i32 {count})")
        )
    return _joined(c, pieces)


def _joined(c: Code, pieces: list[str]) -> str:
    """Registers, as many as a power of two, as one vector."""
    size = _LANES
    while len(pieces) > 1:
        kind, mask = f"<{size} x i32>", places(range(2 * size))
        pieces = [
            c.writer.let(f"shufflevector {kind} {x}, {kind} {y}, {mask}")
            for x, y in zip(pieces[::2], pieces[1::2], strict=True)
        ]
        size *= 2
    return pieces[0]


def _looked_up(c: Code, word: str, by: int) -> str:
    """Words rotated by whole bytes to the left."""
    kind, each = c.type("i32"), f"<{_BYTES * c.lanes} x i8>"
    taken = (k - k % _BYTES + (k - by) % _BYTES for k in range(_BYTES * c.lanes))
    seen = c.writer.let(f"bitcast {kind} {word} to {each}")
    moved = c.writer.let(f"shufflevector {each} {seen}, {each} poison, {places(taken)}")
    return c.writer.let(f"bitcast {each} {moved} to {kind}")


def places(numbers: Iterable[int]) -> str:
    """The lanes that a `shufflevector` takes, one after the other."""
    lanes = [f"i32 {number}" for number in numbers]
    return f"<{len(lanes)} x i32> <{', '.join(lanes)}>"
