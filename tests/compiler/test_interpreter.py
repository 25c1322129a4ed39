"""The interpreter of kernels, which other tests believe."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from weft.compiler.loops import value
from weft.testing.instructions import fma, instruction

RNG = np.random.default_rng(5)
SINGLE = np.dtype(np.float32)


def awkward(count: int) -> np.ndarray:
    """Finite float32 of all sizes: small integers, subnormal numbers, any bits."""
    anything = RNG.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    whole = RNG.integers(-9, 10, count).astype(np.float32)
    tiny = (whole * np.float32(2.0**-140)).astype(np.float32)
    made = np.choose(RNG.integers(0, 3, count), [anything, whole, tiny])
    return np.where(np.abs(made) < 1e18, made, np.float32(1.5)).astype(np.float32)


def is_nearest(found: np.float32, exact: Fraction) -> bool:
    """Whether no float32 is nearer, and of two that are as near this is the even one."""
    off = abs(Fraction(float(found)) - exact)
    for way in (-np.inf, np.inf):
        other = abs(Fraction(float(np.nextafter(found, np.float32(way)))) - exact)
        if other < off or (other == off and found.view(np.uint32) & 1):
            return False
    return True


def test_an_fma_of_float32_is_rounded_once() -> None:
    x, y, z = (awkward(3000) for _ in range(3))
    # A third of the sums all but vanish, and a third are ties or next to one.
    product = x.astype(np.float64) * y
    z[::3] = -product[::3].astype(np.float32)
    near = np.ldexp(np.float32(1), np.frexp(product[1::3])[1] + 24).astype(np.float32)
    z[1::3] = np.where(np.isfinite(near), near, 1)
    with np.errstate(all="ignore"):
        found = fma(x, y, z)
    exact = [
        Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        for a, b, c in zip(x, y, z, strict=True)
    ]
    assert all(is_nearest(f, e) for f, e in zip(found, exact, strict=True) if np.isfinite(f))
    one = [fma(*each) for each in zip(x[:300], y[:300], z[:300], strict=True)]
    assert np.array(one).tobytes() == found[:300].tobytes(), "lanes and scalars"


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_an_fma_keeps_the_sign_of_nothing(zero: float) -> None:
    one, nothing = np.float32(-1), np.float32(zero)
    for x, y, z in ((one, nothing, nothing), (one, nothing, -nothing), (nothing, one, nothing)):
        assert fma(x, y, z).tobytes() == np.float32(x * y + z).tobytes()


def test_what_is_no_instruction_is_refused() -> None:
    with pytest.raises(AssertionError, match="no such scalar instruction: guess"):
        instruction(value("guess", (), SINGLE))
