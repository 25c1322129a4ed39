"""How a transform is computed: the stages of a length, the same on every device.

A transform of n = r·m numbers is, for every p < m, a transform of the r numbers that lie m apart,
whose results are multiplied by powers of a root of unity; then r transforms of m numbers follow.
Which numbers meet, and in what order, is decided here by the length alone; so all ways to run the
stages give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from weft.core.common.types import Array, DType

_TURN = 2.4492935982947064e-16  # 2π, less what float64 has of it


@dataclass(frozen=True)
class Stage:
    """Transforms of `radix` numbers; `before` results of earlier stages lie side by side."""

    radix: int
    count: int  # of numbers that remain to be transformed afterwards
    before: int
    table: int  # where its roots of unity begin

    def root(self, k: int) -> tuple[int, int]:
        """Where the real and the imaginary parts begin that result k is multiplied by."""
        first = self.table + 2 * (k - 1) * self.count
        return first, first + self.count


def radices(n: int) -> tuple[int, ...]:
    """The sizes of the stages of a length: large primes, then fours, then as many eights."""
    found: list[int] = []
    rest = n
    for prime in (13, 11, 7, 5, 3):
        while rest % prime == 0:
            found.append(prime)
            rest //= prime
    twos = rest.bit_length() - 1
    if twos == 1:
        return (*found, 2)
    fours = (0, 2, 1)[twos % 3]
    return (*found, *[4] * fours, *[8] * ((twos - 2 * fours) // 3))


@lru_cache(256)
def stages(n: int) -> tuple[Stage, ...]:
    """The stages of a transform of n numbers."""
    made: list[Stage] = []
    rest, table = n, 0
    for radix in radices(n):
        rest //= radix
        made.append(Stage(radix, rest, n // (rest * radix), table))
        table += 2 * (radix - 1) * rest if rest > 1 else 0
    return tuple(made)


def cuts(n: int, lanes: int) -> list[int]:
    """After how many stages a transform can be cut so that lanes find enough in both parts."""
    sizes = radices(n)
    heads = [(k, prod(sizes[:k])) for k in range(1, len(sizes))]
    return [k for k, head in heads if min(head, n // head) >= lanes]


@lru_cache(4)
def roots(n: int, dtype: DType) -> Array:
    """All roots of unity that the stages of a length multiply by, each rounded once."""
    found = [stage for stage in stages(n) if stage.count > 1]
    made = np.zeros(sum(2 * (stage.radix - 1) * stage.count for stage in found) or 1, dtype)
    for stage in found:
        size = stage.radix * stage.count
        for k in range(1, stage.radix):
            waves = root_of_unity(k * np.arange(stage.count), size)
            for part, start in zip((waves.real, waves.imag), stage.root(k), strict=True):
                made[start : start + stage.count] = part
    return made


def root_of_unity(power: Array, size: int) -> Array:
    """e^(-2πi power/size): angles are an eighth of a turn at most, with what rounding takes."""
    quarter = (8 * power + size) // (2 * size)  # the nearest one
    share = (4 * power - quarter * size) / (4 * size)
    high, low = _product(share, 4.0 * size)
    missing = ((4 * power - quarter * size) - high - low) / (4 * size)
    angle, less = _product(share, 2 * np.pi)
    less = less + share * _TURN + missing * 2 * np.pi
    cosine, sine = np.cos(angle), np.sin(angle)
    waves = (cosine - less * sine) - 1j * (sine + less * cosine)
    return np.asarray(waves * np.array([1, -1j, -1, 1j])[quarter % 4])


def _product(x: Array, y: float) -> tuple[Array, Array]:
    """x·y and what its rounding takes away, by halves whose products are exact."""
    made = x * y
    first, second = _halves(x), _halves(np.asarray(y))
    crossed = first[0] * second[1] + first[1] * second[0]
    return made, (first[0] * second[0] - made + crossed) + first[1] * second[1]


def _halves(x: Array) -> tuple[Array, Array]:
    scaled = x * (2.0**27 + 1)
    high = scaled - (scaled - x)
    return high, x - high
