"""How near the results of a GPU are to the CPU's.

CUDA gives the CPU's bits. Shaders may round `fma`, a division and a square root otherwise: what
they compute of floats is as near as that allows; integers, moves and what runs on the host are the
same bit for bit.
"""

from __future__ import annotations

import numpy as np

NEAR = 2.0**-18  # of the largest number in a result
SHADED = ("float16", "float32", "complex64")  # what shaders compute with, rounding


def agree(found, expected, device: str) -> bool:
    """Whether arrays are what the device promises."""
    if len(found) != len(expected):
        return False
    compare = same if device == "cuda" else near
    return all(compare(a, b) for a, b in zip(found, expected, strict=True))


def same(found, expected) -> bool:
    """Equal bit for bit; any NaN equals any NaN."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    if found.dtype.kind in "biu" or not found.size:
        return np.array_equal(found, expected)
    a, b = (np.ascontiguousarray(x).view(np.uint8).reshape(-1) for x in (found, expected))
    equal = (a == b).reshape(found.size, -1).all(axis=1).reshape(found.shape)
    return bool(np.all(equal | ((found != found) & (expected != expected))))


def near(found, expected) -> bool:
    """Equal, or as near as shaders promise; special numbers are where they should be."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    if found.dtype.name not in SHADED:
        return same(found, expected)
    special = ~np.isfinite(expected)
    if not np.array_equal(found[special], expected[special], equal_nan=True):
        return False
    a, b = found[~special], expected[~special]
    scale = float(np.max(np.abs(b), initial=0.0))
    unit = NEAR if found.dtype != np.float16 else 2.0**-8
    return bool(np.all(np.abs(a - b) <= unit * max(scale, 1.0)))
