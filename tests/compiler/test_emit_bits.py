"""Rotations, signs and short indices give the bits of NumPy, by the instructions they should."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.compiler.native_kernels import (
    LANES,
    Compiled,
    elementwise,
    i,
    in_pieces,
    kernel_of,
    operands,
    run,
)
from weft.compiler.build import Builder
from weft.compiler.emit_cpu import emit
from weft.compiler.loops import Store, const
from weft.runtime.cpu import jit

GRAVITON = jit.Target("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon,+fp-armv8")
builder = Builder()


def either(x, y, left, right):
    """The bits of `x` shifted to the left or of `y` shifted to the right."""
    high = builder.shift_left(x, const(left, x.dtype))
    return builder.bit_or(high, builder.shift_right(y, const(right, y.dtype)))


def masked(x, y, first, second):
    """Bits of `x` and of `y`, each under a mask."""
    one = builder.bit_and(x, const(first, x.dtype))
    return builder.bit_or(one, builder.bit_and(y, const(second, y.dtype)))


def check(cases, x, y):
    """Compiled in any number of lanes, each value of the cases is what NumPy makes of x and y."""
    kernels = [
        elementwise(made, [x.dtype, y.dtype], len(x), lanes, f"case{k}_{lanes}")
        for k, (made, _) in enumerate(cases)
        for lanes in LANES
    ]
    compiled = Compiled(kernels)
    for k, (_, wanted) in enumerate(cases):
        for lanes in LANES:
            found = np.zeros_like(x)
            compiled(f"case{k}_{lanes}", [found, x, y])
            assert np.array_equal(found, wanted), (k, lanes)


def words(dtype):
    """Two arrays of random bits, with those of NaN, infinity and the zeros among them."""
    size = 8 * np.dtype(dtype).itemsize
    found = np.random.default_rng(size).integers(0, 1 << size, (2, 133), np.dtype(f"u{size // 8}"))
    exponent = 0x7F800000 if size == 32 else 0x7FF << 52
    found[0, :6] = 0, 1 << (size - 1), exponent, exponent | 1, (1 << size) - 1, exponent | 1 << 22
    return found.view(dtype)


def test_words_are_rotated_by_any_count():
    x, y = words("u4")
    a, b = operands("u4", "u4")
    cases = [(either(a, a, n, 32 - n), x << n | x >> (32 - n)) for n in range(1, 32)]
    cases += [(either(a, a, 0, 32), x), (either(a, a, 32, 0), x)]
    cases += [(either(a, b, 13, 19), x << 13 | y >> 19), (either(a, a, 13, 20), x << 13 | x >> 20)]
    check(cases, x, y)


@pytest.mark.parametrize("dtype", ["i4", "u8", "u2"])
def test_shifts_of_other_words_stay_as_they_are(dtype):
    x = np.random.default_rng(1).integers(0, 1 << 15, 133).astype(dtype)
    x = -x if dtype == "i4" else x
    (a,) = operands(dtype)
    width = 8 * x.dtype.itemsize
    check([(either(a, a, 5, width - 5), x << 5 | x >> (width - 5))], x, x)


@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_numbers_take_a_sign_bit_for_bit(dtype):
    x, y = words(dtype)
    a, b = operands(dtype, dtype)
    sign = np.iinfo(dtype).min
    others = ((~sign, sign), (sign, ~sign), (~sign - 1, sign), (-1, sign), (sign, sign))
    check([(masked(a, b, m, n), x & m | y & n) for m, n in others], x, y)


@pytest.mark.parametrize("count", [13, 24])
def test_a_rotation_waits_for_no_addition(count):
    (a,) = operands("u4")
    text = emit([elementwise(either(a, a, count, 32 - count), ["u4"], 64, 16, "kernel")], GRAVITON)
    assembly = jit.emit_assembly(text, GRAVITON.triple, GRAVITON.cpu, GRAVITON.features)
    assert "usra" not in assembly
    assert len(re.findall(r"\stbl\s" if count == 24 else r"\ssri\s", assembly)) == 4


def test_a_sign_is_one_instruction():
    a, b = operands("i4", "i4")
    made = masked(a, b, (1 << 31) - 1, -(1 << 31))
    text = emit([elementwise(made, ["i4", "i4"], 64, 16, "kernel")], GRAVITON)
    assembly = jit.emit_assembly(text, GRAVITON.triple, GRAVITON.cpu, GRAVITON.features)
    assert len(re.findall(r"\s(bif|bit|bsl)\s", assembly)) == 4
    assert not re.search(r"\s(and|bic|orr)\s+v", assembly)


@pytest.mark.parametrize("dtype", ["u1", "i2", "i4", "u4"])
def test_indices_made_short_wrap_as_those_of_numpy(dtype):
    size, n = 133, np.arange(133)
    steps = [(1, 0), (3, 7), (-1, 5), (1, 2**32 - 20), (2**33 + 1, -9), (0, 300), (2**32, 4)]
    indices = [builder.add(builder.mul(i, step), first) for step, first in steps]
    made = [builder.cast(index, dtype) for index in [*indices, builder.floordiv(i, 4)]]
    body = tuple(Store(k, i, value) for k, value in enumerate(made))
    wanted = [(n * step + first).astype(dtype) for step, first in steps] + [(n // 4).astype(dtype)]
    for lanes in LANES:
        results = [np.zeros(size, dtype) for _ in made]
        run(kernel_of([dtype] * len(made), in_pieces(body, size, lanes)), *results)
        for found, right in zip(results, wanted, strict=True):
            assert np.array_equal(found, right), lanes


def test_a_short_index_needs_no_long_vector():
    text = emit([elementwise(builder.cast(i, "u4"), [], 64, 16, "kernel")], GRAVITON)
    assert "<16 x i32>" in text
    assert "<16 x i64>" not in text
