"""Values that meet: an element and what it is combined with, and the lanes of a vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.compiler.emit_scalars import instruction
from weft.compiler.emit_scope import VECTOR, Operand, reads_of
from weft.compiler.emit_text import SUFFIX, Code, Writer, type_of, vector
from weft.compiler.loops import BOOL, Value
from weft.compiler.polynomial import add
from weft.core.common.types import DType

if TYPE_CHECKING:
    from weft.compiler.emit_values import Values

_BITS = {"i32": 32, "float": 32, "i64": 64, "double": 64}  # of lanes that can be moved together
_REGISTER = 512
_LEAST = 16  # bytes of the smallest register of vectors
_BLOCK = 16  # bytes inside which elements change places at once
_INSTRUCTION = {"and": "bit_and", "or": "bit_or"}


def combine(c: Code, native: frozenset[str], how: str, x: str, y: str, dtype: DType) -> str:
    """Two values met by the `combine` of a reduction or a store."""
    if how == "last":
        return y
    return instruction(c, native, _INSTRUCTION.get(how, how), [x, y], dtype, dtype)


def counting(name: str, lanes: int, step: Any = 1) -> str:
    """The literal 0, step, 2 · step… of integers, as many as lanes."""
    width = 1 << int(name[1:])
    return f"<{', '.join(f'{name} {step * lane % width}' for lane in range(lanes))}>"


def turned(values: Values, x: Value) -> list[Operand]:
    """Each bit of a lane's number trades places with one of the vectors' own."""
    lanes, kind, size = values.lanes, vector(type_of(x.dtype), values.lanes), x.dtype.itemsize
    block = _block(size, lanes)
    in_place = x.data is not None and block < lanes and all(_is_run(values, a) for a in x.args)
    if in_place:
        texts = _read_in_blocks(values, x, kind, block)
    else:
        texts = [values.spread(values.value(a, VECTOR), lanes) for a in x.args]
    found, reads = turn(values.writer, kind, texts, size, in_place), reads_of(x)
    return [Operand(text, x.dtype, lanes, values.scopes.top, reads, True) for text in found]


def _is_run(values: Values, x: Value) -> bool:
    """Whether the lanes of a value are words of memory that follow each other."""
    if x.op != "load" or type_of(x.dtype) not in _BITS or x.args[0].op == "opaque":
        return False
    return values.kind == "ptr" and values.slope(x.args[0]) == 1


def _read_in_blocks(values: Values, x: Value, kind: str, size: int) -> list[str]:
    """Vectors to turn of which the blocks are where they belong, as many as a block has elements.

    Then as many from the next blocks. A block gets to its place as it is read: that takes any of a
    processor's units for vectors, to move it between registers takes a certain one. Each line of
    memory is read several times.
    """
    writer, lanes, name = values.writer, values.lanes, type_of(x.dtype)
    part, suffix = vector(name, size), SUFFIX.get(name, name)
    insert = f"{kind} @llvm.vector.insert.v{lanes}{suffix}.v{size}{suffix}"
    writer.declarations[f"declare {insert}({kind}, {part}, i64)"] = None
    made: list[str] = []
    for first in range(0, lanes, size):
        for row in range(size):
            text = "poison"
            for at in range(row, lanes, size):
                source = x.args[at]
                place = values.place_of(("buffer", source.data))
                pointer = values.locate(place, add(source.args[0], first), 0).pointer
                one = values.read(place, pointer, size)
                given = f"{kind} {text}, {part} {one}, i64 {at - row}"
                text = writer.let(f"call {insert}({given})")
            made.append(text)
    return made


def turn(
    writer: Writer, kind: str, texts: list[str], size: int, in_place: bool = False
) -> list[str]:
    """As many vectors as they have lanes, turned; equal ones are one lane each in all lanes.

    Blocks that are `in_place` are turned inside alone. What is made in the middle is fenced: LLVM
    would look for fewer instructions through all steps, which are as few as there can be, for
    longer than the rest of a kernel takes.
    """
    lanes, fence = len(texts), ""
    if len(set(texts)) == 1:
        alike = f"shufflevector {kind} {texts[0]}, {kind} poison, <{lanes} x i32> splat"
        return [writer.let(f"{alike} (i32 {lane})") for lane in range(lanes)]
    masks, order = turning(lanes, size)
    if in_place:
        masks = masks[: _block(size, lanes).bit_length() - 1]
    if "float" in kind or "double" in kind:
        fence = f"{kind} @llvm.arithmetic.fence.v{lanes}f{8 * size}"
    for bit, both in enumerate(masks):
        made = list(texts)
        for k in range(lanes):
            first, second = texts[k & ~(1 << bit)], texts[k | 1 << bit]
            mask = ", ".join(f"i32 {lane}" for lane in both[k >> bit & 1])
            made[k] = writer.let(
                f"shufflevector {kind} {first}, {kind} {second}, <{lanes} x i32> <{mask}>"
            )
        if fence and 0 < bit < len(masks) - 1:
            writer.declarations[f"declare {fence}({kind})"] = None
            made = [writer.let(f"call {fence}({kind} {text})") for text in made]
        texts = made
    return [texts[k] for k in order]


def _block(size: int, lanes: int) -> int:
    """How many of so many lanes change places at once, if elements have so many bytes."""
    return min(max(_BLOCK // size, 1), lanes)


def turning(lanes: int, size: int) -> tuple[list[tuple[list[int], list[int]]], list[int]]:
    """How vectors of elements of so many bytes are turned, in instructions processors have.

    For each bit of a vector's number: which lanes of the two vectors that differ in it make the
    first and the second one. Then, which vector has become which. Inside a block of 16 bytes halves
    are interleaved; blocks are taken every other one.
    """
    inner = _block(size, lanes)
    bits = inner.bit_length() - 1
    masks = []
    for bit in range(lanes.bit_length() - 1):
        pair: tuple[list[int], list[int]] = ([], [])
        if bit < bits:
            unit = 1 << bit
            for block in range(0, lanes, inner):
                for at in range(0, inner, unit):
                    both = range(block + at, block + at + unit)
                    pair[2 * at >= inner].extend([*both, *(lane + lanes for lane in both)])
        else:
            for lane in range(2 * lanes):
                pair[lane // inner % 2].append(lane)
        masks.append(pair)
    back = [sum((k >> bit & 1) << (bits - 1 - bit) for bit in range(bits)) for k in range(inner)]
    return masks, [k - k % inner + back[k % inner] for k in range(lanes)]


def combine_lanes(
    writer: Writer,
    native: frozenset[str],
    how: str,
    texts: list[str],
    dtypes: list[DType],
    lanes: int,
) -> list[str]:
    """Each lane met with the one half the lanes away, until one is left.

    `argmax` and `argmin` have two vectors, elements and their places; others have one.
    """
    least = _LEAST // dtypes[0].itemsize if _is_by_range(native, how, dtypes[0]) else 1
    while lanes > least:
        pairs = list(zip(texts, dtypes, strict=True))
        low = [_half(writer, text, dtype, lanes, 0) for text, dtype in pairs]
        high = [_half(writer, text, dtype, lanes, 1) for text, dtype in pairs]
        lanes //= 2
        code = Code(writer, lanes)
        if how in ("argmax", "argmin"):
            texts = _extreme(code, native, how, low, high, dtypes)
        else:
            texts = [combine(code, native, how, low[0], high[0], dtypes[0])]
    return texts if lanes == 1 else [_first_of(writer, native, how, texts[0], dtypes[0], lanes)]


def _is_by_range(native: frozenset[str], how: str, dtype: DType) -> bool:
    """Whether one instruction meets lanes, which takes no fewer than fill a small register."""
    return "range" in native and how in ("min", "max") and dtype.kind == "f" and dtype.itemsize >= 4


def _first_of(
    writer: Writer, native: frozenset[str], how: str, text: str, dtype: DType, lanes: int
) -> str:
    """The lanes of a register met, all of them in each step: only the first one counts."""
    kind, code, apart = f"<{lanes} x {type_of(dtype)}>", Code(writer, lanes), lanes // 2
    while apart:
        mask = ", ".join(f"i32 {(k + apart) % lanes}" for k in range(lanes))
        other = writer.let(f"shufflevector {kind} {text}, {kind} poison, <{lanes} x i32> <{mask}>")
        text, apart = combine(code, native, how, text, other, dtype), apart // 2
    return writer.let(f"extractelement {kind} {text}, i32 0")


def compressed(values: Values, x: Value, lane: int) -> Operand:
    """The lanes of a vector where a mask holds, moved to its beginning."""
    assert lane == VECTOR, "lanes that move are asked for together"
    lanes = values.lanes
    mask, text = (values.spread(values.value(a, VECTOR), lanes) for a in x.args)
    made = compress(values.writer, mask, text, type_of(x.dtype), lanes)
    return Operand(made, x.dtype, lanes, values.scopes.top, reads_of(x), True)


def compress(writer: Writer, mask: str, text: str, name: str, lanes: int) -> str:
    """The lanes of a vector where the mask holds, moved to its beginning.

    It must fit a register of AVX-512: what LLVM makes of a longer one there is wrong.
    """
    assert lanes * _BITS[name] <= _REGISTER, f"{lanes} lanes of {name} are too many"
    kind, bools = f"<{lanes} x {name}>", f"<{lanes} x i1>"
    suffix = SUFFIX.get(name, name)
    function = f"{kind} @llvm.experimental.vector.compress.v{lanes}{suffix}"
    writer.declarations[f"declare {function}({kind}, {bools}, {kind})"] = None
    return writer.let(f"call {function}({kind} {text}, {bools} {mask}, {kind} poison)")


def any_lane(writer: Writer, mask: str, lanes: int) -> str:
    """Whether the mask holds in some lane."""
    if lanes == 1:
        return mask
    kind, name = f"<{lanes} x i1>", f"@llvm.vector.reduce.or.v{lanes}i1"
    writer.declarations[f"declare i1 {name}({kind})"] = None
    return writer.let(f"call i1 {name}({kind} {mask})")


def _is_count(x: Value) -> bool:
    """Whether lanes that are combined are counted: in how many of them something holds."""
    of = x.args[0]
    counts = of.op == "cast" and of.args[0].dtype == BOOL and of.dtype.kind in "iu"
    return counts and x.data == "add"


def meeting(x: Value) -> tuple[Value, ...]:
    """What `meet` is given of an `across`: its operands, or the mask that is counted."""
    return x.args[0].args if _is_count(x) else x.args


def meet(
    writer: Writer, native: frozenset[str], x: Value, texts: list[str], lanes: int
) -> list[str]:
    """The lanes of an `across` combined, given as the text of what is meeting."""
    if _is_count(x):
        return [_count_lanes(writer, texts[0], type_of(x.dtype), lanes)]
    return combine_lanes(writer, native, x.data, texts, [a.dtype for a in x.args], lanes)


def _count_lanes(writer: Writer, mask: str, name: str, lanes: int) -> str:
    """In how many lanes the mask holds, as an integer of a type."""
    bits, function = f"i{lanes}", f"i{lanes} @llvm.ctpop.i{lanes}"
    writer.declarations[f"declare {function}({bits})"] = None
    held = writer.let(f"bitcast <{lanes} x i1> {mask} to {bits}")
    count = writer.let(f"call {function}({bits} {held})")
    if bits == name:
        return count
    narrows = lanes > int(name[1:])
    return writer.let(f"{'trunc' if narrows else 'zext'} {bits} {count} to {name}")


def _half(writer: Writer, text: str, dtype: DType, lanes: int, which: int) -> str:
    kind, half = f"<{lanes} x {type_of(dtype)}>", lanes // 2
    if half == 1:
        return writer.let(f"extractelement {kind} {text}, i32 {which}")
    mask = ", ".join(f"i32 {which * half + k}" for k in range(half))
    return writer.let(f"shufflevector {kind} {text}, {kind} poison, <{half} x i32> <{mask}>")


def _extreme(
    c: Code, native: frozenset[str], how: str, low: list[str], high: list[str], dtypes: list[DType]
) -> list[str]:
    """The more extreme elements and their places; NaN is most extreme, ties go to the first."""

    def test(op: str, x: str, y: str, dtype: DType) -> str:
        return instruction(c, native, op, [x, y], dtype, BOOL)

    (x, x_place), (y, y_place), (dtype, place) = low, high, dtypes
    beyond = test("less", x, y, dtype) if how == "argmax" else test("less", y, x, dtype)
    x_nan, y_nan = test("not_equal", x, x, dtype), test("not_equal", y, y, dtype)
    only = c.op("and", "i1", y_nan, c.op("xor", "i1", x_nan, y_nan))
    same = c.op("or", "i1", test("equal", x, y, dtype), c.op("and", "i1", x_nan, y_nan))
    earlier = c.op("and", "i1", same, test("less", y_place, x_place, place))
    wins = c.op("or", "i1", c.op("or", "i1", beyond, only), earlier)
    return [
        c.select(wins, type_of(kind), new, old)
        for kind, old, new in zip(dtypes, low, high, strict=True)
    ]


def asking_lanes(
    writer: Writer,
    condition: str,
    lanes: int,
    usual: list[str],
    kinds: list[str],
    found: Callable[[str], list[str]],
) -> list[str]:
    """Vectors, with what is `found` for a lane put into those that a condition holds for; a loop.

    A scalar's instructions are few to compile, and those that run them are few too.
    """
    before = writer.block
    loop, asks, after, done = (writer.label(n) for n in ("lane", "asks", "after", "done"))
    asking, following = writer.name(), writer.name()
    olds, news = [writer.name() for _ in usual], [writer.name() for _ in usual]
    writer.goto(loop)
    writer.begin(loop)
    count = f"phi i64 [ 0, %{before} ], [ {following}, %{after} ]"
    writer.lines.append(f"  {asking} = {count}")
    for kind, old, first, new in zip(kinds, olds, usual, news, strict=True):
        writer.lines.append(f"  {old} = phi {kind} [ {first}, %{before} ], [ {new}, %{after} ]")
    which = f"i64 {asking}"
    flag = writer.let(f"extractelement <{lanes} x i1> {condition}, {which}")
    writer.branch(flag, asks, after)
    writer.begin(asks)
    put = [
        writer.let(f"insertelement {kind} {old}, {one}, {which}")
        for kind, old, one in zip(kinds, olds, found(asking), strict=True)
    ]
    end = writer.block
    writer.goto(after)
    writer.begin(after)
    for kind, old, one, new in zip(kinds, olds, put, news, strict=True):
        writer.lines.append(f"  {new} = phi {kind} [ {old}, %{loop} ], [ {one}, %{end} ]")
    writer.lines.append(f"  {following} = add nuw nsw i64 {asking}, 1")
    more = writer.let(f"icmp ult i64 {following}, {lanes}")
    writer.branch(more, loop, done)
    writer.begin(done)
    return news
