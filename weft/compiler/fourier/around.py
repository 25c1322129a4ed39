"""Kernels that go before and after complex transforms, of plain loops: for GPUs, and rare sizes.

Ends of spectra of real numbers meet here if they do not inside a kernel. For odd lengths imaginary
parts are zeros, or the half of a spectrum that mirrors the other is written out.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.compiler.fourier.butterfly import Pair
from weft.compiler.fourier.lanes import Numbers
from weft.compiler.fourier.real import half_roots, half_spectrum, pair_spectrum
from weft.compiler.index import axis
from weft.compiler.loops import Kernel, Loop, Store, Value, integer, load
from weft.compiler.order.code import Body, Code
from weft.compiler.order.rows import Made
from weft.compiler.steps import Memory
from weft.core.common.types import DType, TensorType

Shape3 = tuple[int, int, int]  # rows, numbers of the axis, what is inner


def plain(
    s: Code,
    name: str,
    shape: Shape3,
    body: Callable[[Value, Value, Value], Body],
    written: tuple[Memory, ...],
    work: int,
) -> Made:
    """The kernel of plain loops that does something at each point of a space."""
    point = [axis(f"i{k}", size).value for k, size in enumerate(shape)]
    loops: Body = body(point[0], point[1], point[2])
    for each, size in zip(reversed(point), reversed(shape), strict=True):
        loops = (Loop(each, integer(0), integer(size), loops),)
    kernel = Kernel(name, tuple(s.buffers), (), loops, notes={"name": name})
    return Made(kernel, tuple(s.memory), written, work)


class _Around:
    """A kernel of plain loops over (rows, axis, inner), from one piece of memory to another."""

    def __init__(self, name: str, dtype: DType, source: Memory, target: Memory) -> None:
        self.name, self.dtype, self.target = name, dtype, target
        self.code = Code()
        self.reads = self.code.buffer(source, source.kind.dtype)
        if source.kind.dtype.kind == "c":
            self.code.buffers.pop()
            self.code.memory.pop()
            self.reads = self.code.buffer(source, dtype)
        self.writes = self.code.buffer(target, dtype, "write")
        self.source = Numbers(self.code, (self.reads,), dtype)

    def roots(self, n: int) -> Callable[[Value], Pair]:
        """The roots of unity of a length, by their number."""
        table = half_roots(n, self.dtype)
        memory = Memory(TensorType(table.shape, self.dtype), "constant", data=table)
        buffer, s = self.code.buffer(memory, self.dtype), self.code

        def root(k: Value) -> Pair:
            again = s.sum(k, n // 2 + 1)
            return load(buffer, k, self.dtype), load(buffer, again, self.dtype)

        return root

    def real(self, place: Value) -> Value:
        """A real number of the source, in the dtype of the target's parts."""
        s, dtype = self.code, self.code.buffers[self.reads].dtype
        return s.cast(load(self.reads, place, dtype), self.dtype)

    def made(self, shape: Shape3, body: Callable[[Value, Value, Value], Body], work: int) -> Made:
        """The kernel that does something for each row, number and inner place."""
        return plain(self.code, self.name, shape, body, (self.target,), work)

    def place(self, shape: Shape3, b: Value, k: Value, i: Value) -> Value:
        """Where a number of such memory is."""
        s = self.code
        row = s.mul(s.add(s.mul(b, integer(shape[1])), k), integer(shape[2]))
        return s.add(row, i)


def copied(shape: Shape3, dtype: DType, source: Memory, target: Memory, scale: float) -> Made:
    """Complex numbers as they are, but for a factor; those that were real are widened."""
    around = _Around("fourier_copy", dtype, source, target)
    s, numbers = around.code, Numbers(around.code, (around.writes,), dtype, scale=scale)

    def body(b: Value, k: Value, i: Value) -> Body:
        place = around.place(shape, b, k, i)
        if source.kind.dtype.kind == "c":
            return numbers.put(place, around.source.at(place))
        return numbers.put(place, (around.real(place), s.const(0, dtype)))

    return around.made(shape, body, 2)


def paired(shape: Shape3, dtype: DType, source: Memory, target: Memory) -> Made:
    """Real numbers of (rows, 2h, inner), two by two as the complex ones of (rows, h, inner)."""
    around = _Around("fourier_pair", dtype, source, target)
    s, numbers = around.code, Numbers(around.code, (around.writes,), dtype)
    rows, half, inner = shape

    def body(b: Value, k: Value, i: Value) -> Body:
        first = around.place((rows, 2 * half, inner), b, s.mul(k, integer(2)), i)
        x = around.real(first), around.real(s.sum(first, inner))
        return numbers.put(around.place(shape, b, k, i), x)

    return around.made(shape, body, 2)


def parted(shape: Shape3, dtype: DType, source: Memory, target: Memory) -> Made:
    """The opposite: complex numbers of (rows, h, inner) as the real ones of (rows, 2h, inner)."""
    around = _Around("fourier_part", dtype, source, target)
    s, (rows, half, inner) = around.code, shape

    def body(b: Value, k: Value, i: Value) -> Body:
        first = around.place((rows, 2 * half, inner), b, s.mul(k, integer(2)), i)
        real, imag = around.source.at(around.place(shape, b, k, i))
        return Store(around.writes, first, real), Store(around.writes, s.sum(first, inner), imag)

    return around.made(shape, body, 2)


def cropped(
    shape: Shape3, kept: int, dtype: DType, source: Memory, target: Memory, real: bool
) -> Made:
    """The first numbers of each row, or their real parts."""
    around = _Around("fourier_crop", dtype, source, target)
    numbers = Numbers(around.code, (around.writes,), dtype)
    goal = (shape[0], kept, shape[2])

    def body(b: Value, k: Value, i: Value) -> Body:
        x, place = around.source.at(around.place(shape, b, k, i)), around.place(goal, b, k, i)
        return (Store(around.writes, place, x[0]),) if real else numbers.put(place, x)

    return around.made(goal, body, 2)


def halved(
    shape: Shape3, n: int, dtype: DType, source: Memory, target: Memory, scale: float
) -> Made:
    """The half spectrum of n real numbers from the transform of (rows, n/2, inner) pairs."""
    around = _Around("fourier_half", dtype, source, target)
    s, (rows, half, inner) = around.code, shape
    numbers, root = Numbers(s, (around.writes,), dtype, scale=scale / 2), around.roots(n)
    goal = (rows, half + 1, inner)

    def body(b: Value, k: Value, i: Value) -> Body:
        here = s.select(s.equal(k, integer(half)), integer(0), k)
        there = s.select(s.equal(k, integer(0)), integer(0), s.sub(integer(half), k))
        x = around.source.at(around.place(shape, b, here, i))
        y = around.source.at(around.place(shape, b, there, i))
        return numbers.put(around.place(goal, b, k, i), half_spectrum(s, x, y, root(k)))

    return around.made(goal, body, 16)


def doubled(shape: Shape3, n: int, dtype: DType, source: Memory, target: Memory) -> Made:
    """What an inverse transform of (rows, n/2, inner) takes to the pairs of n real numbers."""
    around = _Around("fourier_double", dtype, source, target)
    s, (rows, half, inner) = around.code, shape
    numbers, root = Numbers(s, (around.writes,), dtype), around.roots(n)
    given = (rows, half + 1, inner)

    def body(b: Value, k: Value, i: Value) -> Body:
        x = around.source.at(around.place(given, b, k, i))
        y = around.source.at(around.place(given, b, s.sub(integer(half), k), i))
        zero, first = s.const(0, dtype), s.equal(k, integer(0))
        x, y = ((re, s.select(first, zero, im)) for re, im in (x, y))
        return numbers.put(around.place(shape, b, k, i), pair_spectrum(s, x, y, root(k)))

    return around.made(shape, body, 16)


def mirrored(shape: Shape3, dtype: DType, source: Memory, target: Memory) -> Made:
    """The whole spectrum of an odd number of real numbers from its first half."""
    around = _Around("fourier_mirror", dtype, source, target)
    s, (rows, size, inner) = around.code, shape
    numbers, given = Numbers(s, (around.writes,), dtype), (rows, size // 2 + 1, inner)

    def body(b: Value, k: Value, i: Value) -> Body:
        first, is_half = s.equal(k, integer(0)), s.less(integer(size // 2), k)
        real, imag = around.source.at(
            around.place(given, b, s.select(is_half, s.sub(integer(size), k), k), i)
        )
        signed = s.select(is_half, s.neg(imag), s.select(first, s.const(0, dtype), imag))
        return numbers.put(around.place(shape, b, k, i), (real, signed))

    return around.made(shape, body, 4)
