"""Random bits: Threefry-2x32, a function of (key, position) — the same numbers everywhere.

A key is two 32-bit words. Bit block number i of a key is the cipher of counter i; nothing depends
on layout, thread count or backend. (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
2011.)
"""

from __future__ import annotations

from math import frexp, pi, prod
from typing import Any

import numpy as np

from weft.core.common.factors import Factors
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.ops.base import Example, Operation
from weft.ops.families import ElementwiseOperation

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_WORD = np.dtype("uint32")
_WIDE = np.dtype("uint64")
_CHUNK = 1 << 14  # positions whose words stay in the nearest cache through all rounds


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
        y = s.add(y, s.add(schedule[(block + 2) % 3], s.const(block + 1, _WORD)))
    return x, y


class _Words:
    """Threefry's instructions on NumPy arrays of uint32, which wrap."""

    const = staticmethod(lambda value, dtype: np.full(1, value, dtype))  # scalars would warn
    cast = staticmethod(lambda x, dtype: x.astype(dtype))
    add, bit_xor, bit_or = np.add, np.bitwise_xor, np.bitwise_or
    shift_left, shift_right = np.left_shift, np.right_shift


def _chosen(s: Any, x: Any, y: Any, bits: int, word: str) -> Any:
    """The top `bits` of one 32-bit word of a block, or of its whole 64 bits."""
    if bits > 32:
        whole = s.bit_or(
            s.shift_left(s.cast(x, _WIDE), s.const(32, _WIDE)),
            s.cast(y, _WIDE),
        )
        return whole if bits == 64 else s.shift_right(whole, s.const(64 - bits, _WIDE))
    taken = {"first": x, "second": y}[word] if word != "mixed" else s.bit_xor(x, y)
    return taken if bits == 32 else s.shift_right(taken, s.const(32 - bits, _WORD))


class RandomBits(Operation):
    """Uniform random integers below 2^`bits` for a key of two words, one for each position.

    Up to 32 bits come from the `first` or `second` word of a position's block, or from both,
    `mixed`; more come from the block as one number. `within` is (start, shape) of a larger draw in
    which this one is a window: the same numbers that the larger draw has there.
    """

    sample = "k"
    examples = (
        Example({"shape": (2, 3), "bits": 32}, ((2,),)),
        Example({"shape": (3,), "bits": 64}, ((2,),)),
        Example({"shape": (3,), "bits": 53}, ((2,),)),
        Example({"shape": (3,), "bits": 23, "word": "second"}, ((2,),)),
        Example({"shape": (2, 3), "bits": 32, "within": ((1, 2), (4, 7))}, ((2,),)),
    )
    work = 100
    reasons = {"vjp": "the result is an integer", "jvp": "the result is an integer"}

    def index(self, key: TensorType, *, shape: Shape, **params: Any) -> Factors:
        names = [f"n{k}" for k in range(len(shape))]
        extents = dict(zip(names, shape, strict=True))
        return Factors.parse(f"... k -> ... {' '.join(names)}", (key.rank,), extents, "k")

    def dtype(self, *found: DType, **params: Any) -> DType:
        return _WORD if params["bits"] <= 32 else _WIDE

    def eval(
        self,
        key: Array,
        *,
        shape: Shape,
        bits: int,
        word: str = "mixed",
        within: tuple[Shape, Shape] | None = None,
    ) -> Array:
        lead, size = key.shape[:-1], prod(shape)
        words = (key[..., 0, None], key[..., 1, None])
        out = np.empty((*lead, size), self.dtype(bits=bits))
        chunk = max(1, _CHUNK // max(1, prod(lead)))
        for low in range(0, size, chunk):
            block = np.arange(low, min(low + chunk, size), dtype=np.uint64)
            if within is not None:
                block = _numbers(block, shape, *within)
            counter = ((block >> np.uint64(32)).astype(_WORD), block.astype(_WORD))
            x, y = threefry(_Words, words, counter)
            out[..., low : low + chunk] = _chosen(_Words, x, y, bits, word)
        return out.reshape((*lead, *shape))

    def at(
        self,
        s: Any,
        index: Any,
        read: Any,
        key: TensorType,
        *,
        shape: Shape,
        bits: int,
        word: str = "mixed",
        within: tuple[Shape, Shape] | None = None,
    ) -> Any:
        cut = len(index) - len(shape)
        start, sizes = ((0,) * len(shape), shape) if within is None else within
        flat: Any = 0
        for first, size, i in zip(start, sizes, index[cut:], strict=True):
            flat = flat * size + (i + first)
        lead = tuple(index[:cut])
        words = (read(0, (*lead, 0)), read(0, (*lead, 1)))
        counter = (s.cast(flat // (1 << 32), _WORD), s.cast(flat % (1 << 32), _WORD))
        return _chosen(s, *threefry(s, words, counter), bits, word)


def _numbers(flat: Array, shape: Shape, start: Shape, sizes: Shape) -> Array:
    """Block numbers, in the larger draw, of row-major positions in a window of it."""
    places = np.unravel_index(flat.astype(np.int64), shape)
    moved = tuple(place + first for place, first in zip(places, start, strict=True))
    return np.asarray(np.ravel_multi_index(moved, sizes)).astype(np.uint64)


class FoldIn(Operation):
    """The key that a number (modulo 2³²) makes of a key: both words of the block it counts."""

    factors = "... k, ... -> ... k"
    whole = "k"
    work = 100
    examples = (Example({}, ((2,), ()), "kn"),)
    reasons = {"vjp": "the result is an integer", "jvp": "the result is an integer"}

    def dtype(self, *found: DType, **params: Any) -> DType:
        return _WORD

    def eval(self, key: Array, data: Array) -> Array:
        low = data.astype(_WORD)[..., None]
        x, y = threefry(_Words, (key[..., :1], key[..., 1:]), (np.zeros_like(low), low))
        return np.concatenate(np.broadcast_arrays(x, y), axis=-1)

    def at(self, s: Any, index: Any, read: Any, key: TensorType, data: TensorType) -> Any:
        lead = tuple(index[:-1])
        words = (read(0, (*lead, 0)), read(0, (*lead, 1)))
        counter = (s.const(0, _WORD), s.cast(read(1, lead), _WORD))
        x, y = threefry(s, words, counter)
        return s.select(s.equal(s.cast(index[-1], _WORD), s.const(0, _WORD)), x, y)


class Midpoint(ElementwiseOperation):
    """The middle of interval x, of 2^`bits` equal ones that divide `length`, as a float.

    Where an x has more digits than the float, what would round up to the length stays below it.
    """

    domain = "integer"
    sample = "n"
    examples = (
        Example({"bits": 32, "length": 1.0, "dtype": np.dtype("float32")}),
        Example({"bits": 52, "length": pi, "dtype": np.dtype("float64")}),
    )
    reasons = {"vjp": "the operand is an integer", "jvp": "the operand is an integer"}

    def dtype(self, *found: DType, **params: Any) -> DType:
        result: DType = params["dtype"]
        return result

    def eval(self, x: Array, *, bits: int, length: float, dtype: DType) -> Array:
        step, below = _interval(bits, length, dtype)
        middle: Array = (x.astype(dtype) + dtype.type(0.5)) * step
        return middle if below is None else np.minimum(middle, below)

    def body(self, s: Any, x: Any, *, bits: int, length: float, dtype: DType) -> Any:
        step, below = _interval(bits, length, dtype)
        middle = s.fma(s.cast(x, dtype), s.const(step, dtype), s.const(step / 2, dtype))
        return middle if below is None else s.min(middle, s.const(below, dtype))


def _interval(bits: int, length: float, dtype: DType) -> tuple[Any, Any]:
    """The length of one interval; the largest float below that of all, if middles may reach it."""
    whole = dtype.type(length)
    step = whole * dtype.type(2.0**-bits)
    if bits <= np.finfo(dtype).nmant:  # x + ½ is exact,
        return step, None
    assert frexp(length)[0] == 0.5, length  # or its product is: one rounding, fused or not
    return step, np.nextafter(whole, dtype.type(0))


random_bits_op, fold_in_op, midpoint = RandomBits(), FoldIn(), Midpoint()
