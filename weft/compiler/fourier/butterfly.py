"""Transforms of a few complex numbers, written out in scalar instructions."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import TypeAlias

import numpy as np

from weft.compiler.build import Builder
from weft.compiler.fourier.plan import root_of_unity
from weft.compiler.loops import Value

Pair: TypeAlias = tuple[Value, Value]  # the parts of a complex number


def butterfly(s: Builder, x: Sequence[Pair]) -> list[Pair]:
    """Σⱼ x[j] e^(-2πi jk/r) for each k, of r numbers: 2, 4, 8 or an odd prime."""
    if len(x) == 2:
        return [_plus(s, *x), _minus(s, *x)]
    if len(x) == 4:
        return _four(s, x)
    return _eight(s, x) if len(x) == 8 else _odd(s, x)


def times(s: Builder, x: Pair, root: Pair) -> Pair:
    """The product of two complex numbers, each part of it rounded twice."""
    real = s.fma(s.neg(x[1]), root[1], s.mul(x[0], root[0]))
    return real, s.fma(x[1], root[0], s.mul(x[0], root[1]))


def _plus(s: Builder, x: Pair, y: Pair) -> Pair:
    return s.add(x[0], y[0]), s.add(x[1], y[1])


def _minus(s: Builder, x: Pair, y: Pair) -> Pair:
    return s.sub(x[0], y[0]), s.sub(x[1], y[1])


def _both(s: Builder, x: Pair, y: Pair) -> tuple[Pair, Pair]:
    """x - iy and x + iy."""
    return (s.add(x[0], y[1]), s.sub(x[1], y[0])), (s.sub(x[0], y[1]), s.add(x[1], y[0]))


def _four(s: Builder, x: Sequence[Pair]) -> list[Pair]:
    even, odd = _plus(s, x[0], x[2]), _plus(s, x[1], x[3])
    first, third = _both(s, _minus(s, x[0], x[2]), _minus(s, x[1], x[3]))
    return [_plus(s, even, odd), first, _minus(s, even, odd), third]


def _eight(s: Builder, x: Sequence[Pair]) -> list[Pair]:
    even, odd = _four(s, x[0::2]), _four(s, x[1::2])
    half = s.const(sqrt(0.5), x[0][0].dtype)

    def turned(base: Pair, by: Pair) -> tuple[Pair, Pair]:
        """base ± √½ by."""
        plus = s.fma(by[0], half, base[0]), s.fma(by[1], half, base[1])
        minus = s.fma(s.neg(by[0]), half, base[0]), s.fma(s.neg(by[1]), half, base[1])
        return plus, minus

    sums = [(s.add(re, im), s.sub(im, re)) for re, im in odd]  # (1 - i) of each
    one, five = turned(even[1], sums[1])
    two, six = _both(s, even[2], odd[2])
    seven, three = turned(even[3], (s.neg(sums[3][1]), sums[3][0]))
    first, fourth = _plus(s, even[0], odd[0]), _minus(s, even[0], odd[0])
    return [first, one, two, three, fourth, five, six, seven]


def _odd(s: Builder, x: Sequence[Pair]) -> list[Pair]:
    """Numbers j and r - j meet first: their sums see cosines, their differences sines."""
    size, dtype = len(x), x[0][0].dtype
    half = range(1, size // 2 + 1)
    sums = {j: _plus(s, x[j], x[size - j]) for j in half}
    differences = {j: _minus(s, x[j], x[size - j]) for j in half}
    total = x[0]
    for j in half:
        total = _plus(s, total, sums[j])
    made = [total] + [total] * (size - 1)
    for k in half:
        turns = root_of_unity(np.array([j * k % size for j in half]), size)
        cosines = [s.const(x, dtype) for x in turns.real]
        sines = [s.const(-x, dtype) for x in turns.imag]
        even: list[Value] = []
        odd: list[Value] = []
        for part in range(2):
            along, across = x[0][part], s.mul(differences[1][part], sines[0])
            for j in half:
                along = s.fma(sums[j][part], cosines[j - 1], along)
            for j in half[1:]:
                across = s.fma(differences[j][part], sines[j - 1], across)
            even.append(along)
            odd.append(across)
        made[k], made[size - k] = _both(s, (even[0], even[1]), (odd[0], odd[1]))
    return made


__all__ = ["Pair", "butterfly", "times"]
