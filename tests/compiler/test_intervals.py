"""What intervals decide is true of every number, and functions of draws ask nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.compiler.native_kernels import operands
from weft.compiler.build import Builder
from weft.compiler.intervals import decided
from weft.compiler.loops import COMPARISONS, const, literal, value
from weft.ops.functions.numpy_scalars import NumpyScalars

FLOAT, DOUBLE, WORD = np.dtype("f4"), np.dtype("f8"), np.dtype("u4")
builder = Builder()
RNG = np.random.default_rng(11)
SAMPLES = np.concatenate(
    [
        np.array([0, 1, 2, 2**23, 2**24 + 1, 2**31, 2**32 - 2, 2**32 - 1], np.uint32),
        RNG.integers(0, 2**32, 40, np.uint32),
    ]
)


def evaluate(x):
    """The numbers that a value has for all samples of the word it is made of."""
    if x.op == "load":
        return SAMPLES if x.dtype == WORD else SAMPLES.view(x.dtype)
    if x.op == "const":
        return np.full(len(SAMPLES), literal(x))
    args = [evaluate(a) for a in x.args]
    with np.errstate(all="ignore"):
        found = NumpyScalars.cast(args[0], x.dtype) if x.op == "cast" else None
        return getattr(NumpyScalars, x.op)(*args) if found is None else found


def expression(dtype, depth):
    """A random value made of a word and literals; now and then of a float from memory."""
    (word,) = operands("u4")
    kind = RNG.integers(0, 12)
    if depth == 0 or kind == 0:
        count = int(RNG.integers(0, 33))
        shifted = builder.shift_right(word, const(count, WORD)) if count < 32 else word
        return builder.cast(shifted, dtype)
    if kind == 1:
        return const(RNG.choice([0.0, 1.0, -0.5, 2.0**-32, 1e30, np.inf, np.nan]), dtype)
    if kind == 2:
        return operands(dtype)[0] if dtype == FLOAT else const(-3.0, dtype)
    args = [expression(dtype, depth - 1) for _ in range(3)]
    op, arity = [
        *(("add", 2), ("sub", 2), ("mul", 2), ("min", 2), ("max", 2)),
        *(("neg", 1), ("abs", 1), ("fma", 3), ("sqrt", 1)),
    ][kind - 3]
    return value(op, tuple(args[:arity]), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE], ids=str)
def test_decided_comparisons_hold_for_every_sample(dtype):
    answers = set()
    for _ in range(1500):
        x, y = expression(dtype, 3), expression(dtype, int(RNG.integers(0, 2)))
        for op in sorted(COMPARISONS):
            known = decided(op, x, y)
            if known is not None:
                answers.add((op, known))
                assert (getattr(NumpyScalars, op)(evaluate(x), evaluate(y)) == known).all(), op
    assert {(op, is_true) for op in ("less", "less_equal") for is_true in (True, False)} <= answers
    assert {("equal", False), ("not_equal", True)} <= answers


def test_limits_themselves_are_reached():
    (word,) = operands("u4")
    x = builder.cast(builder.shift_right(word, const(31, WORD)), FLOAT)  # 0 or 1
    zero, one = const(0, FLOAT), const(1, FLOAT)
    assert decided("less", x, one) is None
    assert decided("less_equal", x, one) is True
    assert decided("less", x, zero) is False
    assert decided("less_equal", x, zero) is None
    assert decided("equal", x, one) is None
    assert decided("equal", x, x) is True
    assert decided("not_equal", x, x) is False


def test_what_memory_holds_decides_nothing():
    (x,) = operands("f4")
    for y in (x, const(np.inf, FLOAT), const(np.nan, FLOAT)):
        assert all(decided(op, x, y) is None for op in COMPARISONS)
        assert all(decided(op, y, builder.min(x, y)) is None for op in COMPARISONS)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_of_draws_have_no_branches_for_other_numbers(dtype):
    draw = wf.compile(lambda key: wf.random.normal(key, (10_000,), dtype))
    text = draw.explain(wf.random.key(0), loops=True).rpartition("kernel ")[2]
    assert "inf:" not in text
    assert "rarely" not in text
    assert text.count("select") == text.count("sqrt")  # one for each draw: sine or cosine
