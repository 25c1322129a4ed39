"""Random bits: Threefry-2x32, a function of (key, position) — the same numbers everywhere.

A key is two 32-bit words. Bit block number i of a key is the cipher of counter i; nothing depends on
layout, thread count or backend. (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common.factors import Factors
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.ops.base import Example, Operation

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_WORD = np.dtype("uint32")


def threefry(s: Any, key: tuple[Any, Any], counter: tuple[Any, Any]) -> tuple[Any, Any]:
    """Twenty rounds of Threefry-2x32, in scalar instructions on uint32."""
    parity = s.bit_xor(s.bit_xor(key[0], key[1]), s.const(_PARITY, _WORD))
    schedule = (key[0], key[1], parity)
    x, y = s.add(counter[0], key[0]), s.add(counter[1], key[1])
    for block in range(5):
        for turn in _ROTATIONS[4 * (block % 2) : 4 * (block % 2) + 4]:
            x = s.add(x, y)
            left = s.shift_left(y, s.const(turn, _WORD))
            y = s.bit_xor(s.bit_or(left, s.shift_right(y, s.const(32 - turn, _WORD))), x)
        x = s.add(x, schedule[(block + 1) % 3])
        y = s.add(s.add(y, schedule[(block + 2) % 3]), s.const(block + 1, _WORD))
    return x, y


class _Words:
    """Threefry's instructions on NumPy arrays of uint32, which wrap."""

    const = staticmethod(lambda value, dtype: dtype.type(value))
    add, bit_xor, bit_or = np.add, np.bitwise_xor, np.bitwise_or
    shift_left, shift_right = np.left_shift, np.right_shift


class RandomBits(Operation):
    """Uniform random integers of `bits` (32 or 64) each, for a key of two words."""

    sample = "k"
    examples = (
        Example({"shape": (2, 3), "bits": 32}, ((2,),)),
        Example({"shape": (3,), "bits": 64}, ((2,),)),
    )
    work = 100
    reasons = {"vjp": "the result is an integer", "jvp": "the result is an integer"}

    def index(self, key: TensorType, *, shape: Shape, bits: int) -> Factors:
        names = [f"n{k}" for k in range(len(shape))]
        extents = dict(zip(names, shape, strict=True))
        return Factors.parse(f"... k -> ... {' '.join(names)}", (key.rank,), extents, "k")

    def dtype(self, *found: DType, **params: Any) -> DType:
        return np.dtype(f"uint{params['bits']}")

    def eval(self, key: Array, *, shape: Shape, bits: int) -> Array:
        count = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64).reshape(shape)
        high, low = (count >> np.uint64(32)).astype(np.uint32), count.astype(np.uint32)
        words = [key[..., i].reshape(key.shape[:-1] + (1,) * len(shape)) for i in (0, 1)]
        x, y = threefry(_Words, (words[0], words[1]), (high, low))
        if bits == 32:
            return x
        return (x.astype(np.uint64) << np.uint64(32)) | y.astype(np.uint64)

    def at(self, s: Any, index: Any, read: Any, key: TensorType, *, shape: Shape, bits: int) -> Any:
        cut = len(index) - len(shape)
        flat: Any = 0
        for size, i in zip(shape, index[cut:], strict=True):
            flat = flat * size + i
        lead = tuple(index[:cut])
        words = (read(0, (*lead, 0)), read(0, (*lead, 1)))
        counter = (s.cast(flat // (1 << 32), _WORD), s.cast(flat % (1 << 32), _WORD))
        x, y = threefry(s, words, counter)
        if bits == 32:
            return x
        wide = np.dtype("uint64")
        high = s.shift_left(s.cast(x, wide), s.const(32, wide))
        return s.bit_or(high, s.cast(y, wide))


random_bits_op = RandomBits()
