"""Bits and truth values: parity with NumPy, counts past the width, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from tests.elementwise_oracle import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    SIGNED,
    agrees_with_numpy,
    same,
    values,
)
from weft.testing.loops import run_loops

BITS = ("bitwise_and", "bitwise_or", "bitwise_xor")
LOGICAL = ("logical_and", "logical_or", "logical_xor")
SHIFTS = ("bitwise_left_shift", "bitwise_right_shift")


@pytest.mark.parametrize("dtype", ("bool", *INTEGERS))
@pytest.mark.parametrize("name", BITS)
def test_bits_are_combined_as_in_numpy(name, dtype):
    agrees_with_numpy(getattr(wf, name), getattr(np, name), values(dtype, 1), values(dtype, 2))


@pytest.mark.parametrize("dtype", ("bool", *INTEGERS))
def test_inversion_agrees_with_numpy(dtype):
    agrees_with_numpy(wf.bitwise_invert, np.bitwise_invert, values(dtype))
    agrees_with_numpy(lambda x: ~x, np.bitwise_invert, values(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_bits_are_counted_as_in_numpy(dtype):
    agrees_with_numpy(wf.bitwise_count, np.bitwise_count, values(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", SHIFTS)
def test_shifts_inside_the_width_agree_with_numpy(name, dtype):
    counts = np.abs(values(dtype, 2, special=False)) % (8 * np.dtype(dtype).itemsize)
    agrees_with_numpy(getattr(wf, name), getattr(np, name), values(dtype, 1), counts)


@pytest.mark.parametrize("size", [4, 20_000])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_past_the_width_move_every_bit_out(dtype, size):
    width = 8 * np.dtype(dtype).itemsize
    x = np.resize(values(dtype), size)
    counts = [width, width + 1, 100] + ([-1, -width] if dtype in SIGNED else [])
    for count in counts:
        by = wf.asarray(np.full(size, count, dtype))
        same(wf.asarray(x) << by, np.zeros(size, dtype))
        same(wf.asarray(x) >> by, np.where(x < 0, -1, 0).astype(dtype))


@given(st.integers(-128, 127), st.integers(0, 7))
def test_shifting_right_is_dividing_by_a_power_of_two_rounded_down(x, count):
    assert (wf.asarray(np.int8(x)) >> count).item() == x // 2**count


def test_the_loop_form_of_shifts_and_counts_is_the_reference_at_the_edges():
    for dtype in INTEGERS:
        width = 8 * np.dtype(dtype).itemsize
        x = values(dtype)[:24]
        signed = dtype in SIGNED
        counts = np.resize([0, 1, width - 1, width, -1 if signed else 77, 100], 24).astype(dtype)
        for op in (wf.bitwise_left_shift, wf.bitwise_right_shift):
            np.testing.assert_array_equal(run_loops(op, [x, counts], {}), op.eval(x, counts))
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(run_loops(wf.bitwise_count, [x], {}), np.bitwise_count(x))


@pytest.mark.parametrize("dtype", ("bool", *INTEGERS, *FLOATS, *COMPLEX))
@pytest.mark.parametrize("name", LOGICAL)
def test_truth_values_are_combined_as_in_numpy(name, dtype):
    left, right = values(dtype, 1), values(dtype, 2)
    left[::3] = 0
    right[::2] = 0
    agrees_with_numpy(getattr(wf, name), getattr(np, name), left, right)


@pytest.mark.parametrize("dtype", ("bool", *INTEGERS, *FLOATS, *COMPLEX))
def test_negation_agrees_with_numpy(dtype):
    agrees_with_numpy(wf.logical_not, np.logical_not, values(dtype))


def test_truth_values_of_any_two_dtypes_mix():
    unsigned, signed = wf.asarray(np.uint64([0, 1])), wf.asarray(np.int64([1, 1]))
    same(wf.logical_and(unsigned, signed), np.array([False, True]))
    same(wf.logical_or(wf.asarray([0.0, np.nan]), False), np.array([False, True]))
    same(wf.logical_xor(wf.ones((2, 1)), wf.asarray([True, False])), np.array([[False, True]] * 2))


def test_bits_of_floats_raise():
    x = wf.ones(3)
    for function in (wf.bitwise_invert, wf.bitwise_count, lambda v: v & v, lambda v: v << 1):
        with pytest.raises(wf.errors.DTypeError, match="no meaning for float32"):
            function(x)
    with pytest.raises(wf.errors.DTypeError, match="bitwise_left_shift: no meaning for bool"):
        wf.asarray([True]) << wf.asarray([True])


def test_aliases_are_the_same_functions():
    assert wf.invert is wf.bitwise_not is wf.bitwise_invert
    assert wf.left_shift is wf.bitwise_left_shift
    assert wf.right_shift is wf.bitwise_right_shift
    assert wf.popcount is wf.bitwise_count
