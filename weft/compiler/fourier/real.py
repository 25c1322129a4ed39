"""Transforms of real numbers: those of pairs of them, and what both ends of a spectrum make of it.

The transform of n = 2h real numbers is made of that of h complex ones, which lie in the same
memory where the axis is the last: the numbers at k and at h - k meet, before or after.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from weft.compiler.fourier.butterfly import Pair, times
from weft.compiler.fourier.lanes import Held, Numbers, Read
from weft.compiler.fourier.plan import root_of_unity
from weft.compiler.loops import Value, integer, load
from weft.compiler.order.code import Body, Code
from weft.compiler.steps import Memory
from weft.core.common.types import Array, DType, TensorType


@dataclass(frozen=True)
class Transform:
    """A complex transform of the middle axis of (rows, size, inner).

    If its `ends` are "half", it is of pairs of 2·size real numbers, and size + 1 numbers of their
    spectrum are wanted; if they are "double", it is the inverse of that.
    """

    rows: int
    size: int
    inner: int
    dtype: DType  # of real and imaginary parts
    inverse: bool
    scale: float = 1.0
    ends: str = ""

    @property
    def points(self) -> int:
        """How many numbers there are."""
        return self.rows * self.size * self.inner

    @property
    def work(self) -> int:
        """Instructions for each number, as a guess."""
        return 4 * (self.size.bit_length() + 1)

    @property
    def inside(self) -> Transform:
        """The transform without its ends."""
        return replace(self, ends="", scale=1.0 if self.ends == "half" else self.scale)


@lru_cache(4)
def half_roots(n: int, dtype: DType) -> Array:
    """e^(-2πi k/n) for k up to n/2: all real parts, then all imaginary ones."""
    waves = root_of_unity(np.arange(n // 2 + 1), n)
    return np.concatenate([waves.real, waves.imag]).astype(dtype)


def half_spectrum(s: Code, x: Pair, y: Pair, root: Pair) -> Pair:
    """Twice the spectrum of real numbers at k, from that of their pairs at k and at -k."""
    even = s.add(x[0], y[0]), s.sub(x[1], y[1])
    odd = s.add(x[1], y[1]), s.sub(y[0], x[0])
    turned = times(s, odd, root)
    return s.add(even[0], turned[0]), s.add(even[1], turned[1])


def pair_spectrum(s: Code, x: Pair, y: Pair, root: Pair) -> Pair:
    """The spectrum of pairs at k, from that of real numbers at k and at n/2 - k."""
    even = s.add(x[0], y[0]), s.sub(x[1], y[1])
    odd = s.sub(x[0], y[0]), s.add(x[1], y[1])
    turned = times(s, odd, (root[0], s.neg(root[1])))
    return s.sub(even[0], turned[1]), s.add(even[1], turned[0])


class Ends:
    """How the kernel of a transform reads and writes, and what it does before and after."""

    def __init__(self, s: Code, t: Transform) -> None:
        self.code, self.t = s, t
        self._roots = -1

    def source(self, buffers: tuple[int, ...]) -> Numbers:
        """What is read."""
        t = self.t
        apart = t.inner if t.ends == "half" and t.inner > 1 else 0
        return Numbers(self.code, buffers, t.dtype, t.inverse and not t.ends, apart=apart)

    def target(self, buffers: tuple[int, ...]) -> Numbers:
        """What is written."""
        t = self.t
        apart = t.inner if t.ends == "double" and t.inner > 1 else 0
        scale = t.scale / 2 if t.ends == "half" else t.scale
        return Numbers(self.code, buffers, t.dtype, t.inverse, scale, apart)

    def place_read(self, row: Value, j: Value, inside: Value) -> Value:
        """Where a number of a row is in the source."""
        return self._place(row, j, inside, self.t.ends == "double", self.t.ends == "half")

    def place_written(self, row: Value, k: Value, inside: Value) -> Value:
        """Where a number of a row goes in the target."""
        return self._place(row, k, inside, self.t.ends == "half", self.t.ends == "double")

    def _place(self, row: Value, k: Value, inside: Value, more: bool, real: bool) -> Value:
        """In memory of so many numbers, one more perhaps, or of twice as many real ones."""
        s, t = self.code, self.t
        twice = 2 if real and t.inner > 1 else 1
        start = s.mul(row, integer(twice * (t.size + more) * t.inner))
        return s.sum(start, s.mul(k, integer(twice * t.inner)), inside)

    def held(self, lanes: int) -> Held | None:
        """Room for a spectrum from end to end, if ends meet."""
        t = self.t
        return Held.of(self.code, t.dtype, t.size + 1, lanes) if t.ends else None

    def _root(self, k: Value) -> Pair:
        s, t = self.code, self.t
        if self._roots < 0:
            table = half_roots(2 * t.size, t.dtype)
            memory = Memory(TensorType(table.shape, t.dtype), "constant", data=table)
            self._roots = s.buffer(memory, t.dtype)
        again = s.sum(k, t.size + 1)
        return load(self._roots, k, t.dtype), load(self._roots, again, t.dtype)

    def opened(self, held: Held) -> Body:
        """Both ends of a spectrum of real numbers are real."""
        zero = self.code.const(0, self.t.dtype)
        return tuple(held.parts[1].set(zero, integer(k)) for k in (0, self.t.size))

    def pairs(self, held: Read, k: Value) -> Pair:
        """A number of the spectrum of pairs, its parts traded as an inverse transform wants it."""
        x, y = held(k), held(self.code.sub(integer(self.t.size), k))
        real, imag = pair_spectrum(self.code, x, y, self._root(k))
        return imag, real

    def closed(self, held: Held) -> Body:
        """The spectrum of pairs begins again behind its end."""
        return held.put(integer(self.t.size), held.at(integer(0)))

    def half(self, held: Read, k: Value) -> Pair:
        """A number of the half spectrum, doubled."""
        x, y = held(k), held(self.code.sub(integer(self.t.size), k))
        return half_spectrum(self.code, x, y, self._root(k))
