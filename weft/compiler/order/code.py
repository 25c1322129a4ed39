"""How elements become numbers that sort as they do, and how kernels of ordering are written down.

A *key* is an unsigned integer as wide as the element, and the order of keys is the order of
elements: equal elements have equal keys (both zeros, all NaNs). A *record* is what moves while
keys are sorted: the key alone, or the key and the element's position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weft.compiler.build import Builder
from weft.compiler.loops import (
    INDEX,
    Assign,
    Buffer,
    Kernel,
    Local,
    Loop,
    Statement,
    Store,
    Value,
    get,
    integer,
    load,
    value,
    variable,
)
from weft.compiler.steps import Memory
from weft.core.common import dtypes
from weft.core.common.types import DType

Body: TypeAlias = tuple[Statement, ...]
COUNT = np.dtype(np.int32)  # of elements in a row
LANES = 8  # of the loops that clear and add up tables
_FREE = 3  # highest bits, 010: those of floats that are neither tiny nor infinite


@dataclass(frozen=True)
class Order:
    """What is asked for: the first `kept` of `size` elements in each row, by value or position."""

    dtype: DType
    rows: int
    size: int
    kept: int
    positions: bool
    descending: bool
    missing_first: bool = False  # NaN before all numbers, not after them

    @property
    def width(self) -> int:
        """Bits of a key."""
        return self.dtype.itemsize * 8

    @property
    def key_dtype(self) -> DType:
        """The dtype of keys, and of memory that holds elements."""
        return np.dtype(f"u{self.dtype.itemsize}")

    @property
    def record(self) -> tuple[DType, ...]:
        """Key and position in one integer where they fit, else in two; or the key alone."""
        if not self.positions:
            return (self.key_dtype,)
        return self.numbered

    @property
    def numbered(self) -> tuple[DType, ...]:
        """A record that holds a position."""
        needed = self.width + max(self.size - 1, 1).bit_length()
        if needed <= 64:
            return (np.dtype(np.uint32 if needed <= 32 else np.uint64),)
        return (self.key_dtype, np.dtype(np.uint32 if self.size <= 1 << 32 else np.uint64))

    @property
    def number(self) -> DType | None:
        """Floats that can stand for records, in the same order, if there are such."""
        if not self.positions:
            return self.dtype if self.dtype.kind == "f" and self.width >= 32 else None
        bits = self.record[0].itemsize * 8
        needed = self.width + max(self.size - 1, 1).bit_length()
        if len(self.record) > 1 or needed > bits - _FREE or bits < 32:
            return None
        return np.dtype(f"f{bits // 8}")


class Code(Builder):
    """A kernel under construction: its buffers, locals and loops, and scalar instructions."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.memory: list[Memory] = []
        self.locals: list[Local] = []
        self._variables = 0

    def buffer(self, memory: Memory, dtype: DType, mode: str = "read") -> int:
        """A buffer for a piece of memory, whose bytes are read as `dtype`."""
        self.buffers.append(Buffer(f"b{len(self.buffers)}", dtype, mode))
        self.memory.append(memory)
        return len(self.buffers) - 1

    def register(self, dtype: DType, lanes: int = 1) -> Register:
        """A variable."""
        self.locals.append(Local(f"t{len(self.locals)}", dtype, lanes))
        return Register(len(self.locals) - 1, dtype)

    def array(self, dtype: DType, length: int, lanes: int = 1) -> Register:
        """A small array of the task's own."""
        self.locals.append(Local(f"t{len(self.locals)}", dtype, lanes, length))
        return Register(len(self.locals) - 1, dtype)

    def shared(self, dtype: DType, length: int) -> Register:
        """An array that the threads of a block share."""
        self.locals.append(Local(f"t{len(self.locals)}", dtype, 1, length, shared=True))
        return Register(len(self.locals) - 1, dtype)

    def loop(
        self,
        stop: Value | int,
        body: Callable[[Value], Iterable[Statement]],
        start: Value | int = 0,
        kind: str = "serial",
        lanes: int = LANES,
    ) -> Loop:
        """A loop; `body` is told its variable."""
        self._variables += 1
        name = variable(f"i{self._variables}")
        step = lanes if kind == "vector" else 1
        return Loop(name, _index(start), _index(stop), tuple(body(name)), kind, step)

    def kernel(self, name: str, tasks: int, body: Callable[[Value], Iterable[Statement]]) -> Kernel:
        """The kernel whose tasks, which run in any order, do this."""
        loop = self.loop(tasks, body, kind="parallel")
        notes = {"name": name}
        return Kernel(name, tuple(self.buffers), tuple(self.locals), (loop,), notes=notes)

    def sum(self, *parts: Value | int) -> Value:
        """The sum of indices."""
        total = integer(0)
        for part in parts:
            total = self.add(total, _index(part))
        return total

    def across(self, combine: str, x: Value) -> Value:
        """The lanes of a register, combined."""
        return value("across", (x,), x.dtype, combine)

    def index(self, x: Value) -> Value:
        """An integer as an index."""
        return self.cast(x, INDEX)


@dataclass(frozen=True)
class Register:
    """A local of a kernel."""

    number: int
    dtype: DType

    @property
    def value(self) -> Value:
        """What it holds now."""
        return get(self.number, self.dtype)

    def at(self, position: Value) -> Value:
        """What an array holds at a position now."""
        return get(self.number, self.dtype, position)

    def set(self, x: Value, position: Value | None = None) -> Assign:
        """Make it, or its element at a position, `x`."""
        return Assign(self.number, x, position)


@dataclass(frozen=True)
class Stretch:
    """A buffer, used as a `Register` that is an array is."""

    buffer: int
    dtype: DType

    def at(self, position: Value) -> Value:
        """What it holds at a position."""
        return load(self.buffer, position, self.dtype)

    def set(self, x: Value, position: Value) -> Store:
        """Make its element at a position `x`."""
        return Store(self.buffer, position, x)


def _index(x: Value | int) -> Value:
    return integer(x) if isinstance(x, int) else x


# -- keys --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Keys:
    """How the elements of one order become keys and come back."""

    order: Order
    code: Code

    def _number(self, bits: int) -> Value:
        return self.code.const(bits, self.order.key_dtype)

    @property
    def _sign(self) -> int:
        return 1 << (self.order.width - 1)

    @property
    def _most(self) -> int:
        return (1 << self.order.width) - 1

    @property
    def _infinity(self) -> int:
        return int(np.array(np.inf, self.order.dtype).view(self.order.key_dtype))

    @property
    def floating(self) -> bool:
        """Whether elements that are equal may differ in their bits."""
        return dtypes.is_floating(self.order.dtype)

    def key(self, bits: Value) -> Value:
        """The key of an element, given as its bits."""
        s, order = self.code, self.order
        if not self.floating:
            made = s.bit_xor(bits, self._number(self._sign)) if self._is_signed else bits
            return s.bit_not(made) if order.descending else made
        size = s.bit_and(bits, self._number(self._sign - 1))
        plain = s.select(s.equal(size, self._number(0)), size, bits)
        turned = s.bit_or(self._spread_sign(plain), self._number(self._sign))
        made = s.bit_xor(plain, turned)
        made = s.bit_not(made) if order.descending else made
        last = self._number(0 if order.missing_first else self._most)
        return s.select(self.is_missing(bits), last, made)

    @property
    def _is_signed(self) -> bool:
        return self.order.dtype.kind == "i"

    def _spread_sign(self, bits: Value) -> Value:
        """All bits set where the sign is."""
        s = self.code
        signed = np.dtype(f"i{self.order.dtype.itemsize}")
        filled = s.shift_right(s.bitcast(bits, signed), s.const(self.order.width - 1, signed))
        return s.bitcast(filled, self.order.key_dtype)

    def bits(self, key: Value) -> Value:
        """The bits of an element with this key: of zeros the positive one."""
        s = self.code
        made = s.bit_not(key) if self.order.descending else key
        if not self.floating:
            return s.bit_xor(made, self._number(self._sign)) if self._is_signed else made
        return self._rising(made)

    def _rising(self, key: Value) -> Value:
        """The bits of the float that has this key where rows rise."""
        s = self.code
        turned = s.bit_or(self._spread_sign(s.bit_not(key)), self._number(self._sign))
        return s.bit_xor(key, turned)

    def number(self, key: Value) -> Value:
        """A float that sorts as its key does; for NaN, the infinity next to it."""
        s, last = self.code, self._infinity | self._sign
        first = self._most - last
        if self.order.missing_first:
            inside = s.max(key, self._number(first))
        else:
            inside = s.min(key, self._number(last))
        return s.bitcast(self._rising(inside), self.order.dtype)

    def bits_of_number(self, number: Value) -> Value:
        """The bits of an element whose key became this number."""
        s = self.code
        bits = s.bitcast(number, self.order.key_dtype)
        return s.bit_xor(bits, self._number(self._sign)) if self.order.descending else bits

    def is_missing(self, bits: Value) -> Value:
        """Whether bits are those of NaN."""
        s = self.code
        return s.less(self._number(self._infinity), self._size(bits))

    def _size(self, bits: Value) -> Value:
        """Bits without the sign."""
        return self.code.bit_and(bits, self._number(self._sign - 1))

    def is_zero(self, bits: Value) -> Value:
        """Whether bits are those of one of the zeros."""
        return self.code.equal(self._size(bits), self._number(0))

    def is_before_zeros(self, bits: Value) -> Value:
        """Whether an element is a number that comes before zeros."""
        s = self.code
        first = 1 if self.order.descending else self._sign + 1
        return s.less(s.sub(bits, self._number(first)), self._number(self._infinity))

    def oddity(self, bits: Value) -> Value:
        """A number that is at least `odd` for zeros and NaN, and less for all others."""
        return self.code.sub(self._size(bits), self._number(1))

    def odd(self) -> Value:
        """The least `oddity` of zeros and NaN."""
        return self._number(self._infinity)

    def is_special(self, bits: Value) -> Value:
        """Whether an element cannot be told from its key: NaN, or the negative zero."""
        negative_zero = self.code.equal(bits, self._number(self._sign))
        return self.code.bit_or(negative_zero, self.is_missing(bits))

    def is_near(self, bits: Value, bound: Value) -> Value:
        """Whether an element may not come after another one: quick, and true more often."""
        s, order = self.code, self.order
        if self.floating and order.width < 32:
            return s.less_equal(self.key(bits), self.key(bound))
        kind = np.dtype(order.key_dtype if order.dtype.kind == "b" else order.dtype)
        x, y = s.bitcast(bits, kind), s.bitcast(bound, kind)
        after = s.less(x, y) if order.descending else s.less(y, x)
        return s.bit_not(after)


# -- records -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Records:
    """What moves while keys are sorted, as one or two integers."""

    order: Order
    code: Code
    dtypes: tuple[DType, ...]

    @property
    def _packed(self) -> int:
        """Bits below the key that hold the position; 0 if it stands elsewhere."""
        first = self.dtypes[0].itemsize * 8
        return first - self.order.width if len(self.dtypes) == 1 else 0

    def make(self, key: Value, position: Value) -> tuple[Value, ...]:
        """The record of an element."""
        s, first = self.code, self.dtypes[0]
        if len(self.dtypes) == 2:
            return key, s.cast(position, self.dtypes[1])
        if not self._packed:
            return (key,)
        high = s.shift_left(s.cast(key, first), s.const(self._packed, first))
        return (s.bit_or(high, s.cast(position, first)),)

    def key(self, record: tuple[Value, ...]) -> Value:
        """The key in a record."""
        s = self.code
        if not self._packed:
            return record[0]
        high = s.shift_right(record[0], s.const(self._packed, self.dtypes[0]))
        return s.cast(high, self.order.key_dtype)

    def position(self, record: tuple[Value, ...]) -> Value:
        """The position in a record."""
        s = self.code
        if len(record) == 2:
            return s.index(record[1])
        mask = (1 << self._packed) - 1
        return s.index(s.bit_and(record[0], s.const(mask, self.dtypes[0])))

    @property
    def _below(self) -> int:
        """The bits that hold the position in a number."""
        return (1 << self._packed - _FREE) - 1

    def number(self, record: Value) -> Value:
        """A float that sorts as a record with a position does: the key is moved closer to it."""
        s, first = self.code, self.dtypes[0]
        below, top = s.const(self._below, first), s.const(1 << first.itemsize * 8 - 2, first)
        moved = s.bit_and(s.shift_right(record, s.const(_FREE, first)), s.bit_not(below))
        bits = s.bit_or(s.bit_or(moved, s.bit_and(record, below)), top)
        return s.bitcast(bits, np.dtype(f"f{first.itemsize}"))

    def position_of_number(self, number: Value) -> Value:
        """The position in a record that became this number."""
        s, first = self.code, self.dtypes[0]
        return s.index(s.bit_and(s.bitcast(number, first), s.const(self._below, first)))

    def digit(self, record: tuple[Value, ...], shift: int, bits: int) -> Value:
        """Some bits of the key, as an index."""
        s, first = self.code, self.dtypes[0]
        moved, width = shift + self._packed, first.itemsize * 8
        x = s.shift_right(record[0], s.const(moved, first)) if moved else record[0]
        if moved + bits < width:
            x = s.bit_and(x, s.const((1 << bits) - 1, first))
        return s.index(x)


@dataclass(frozen=True)
class Rows:
    """Memory that holds records, one field to a buffer."""

    fields: tuple[Stretch, ...]

    def at(self, position: Value) -> tuple[Value, ...]:
        """The record at a position."""
        return tuple(field.at(position) for field in self.fields)

    def put(self, position: Value, record: tuple[Value, ...]) -> Body:
        """Write a record."""
        pairs = zip(self.fields, record, strict=True)
        return tuple(field.set(x, position) for field, x in pairs)
