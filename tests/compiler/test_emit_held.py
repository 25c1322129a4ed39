"""What is joined, padded or rolled is read in runs; where a vector meets a bound, lane by lane."""

import re

import numpy as np
import pytest

import weft as wf
from tests.compiler.native_kernels import Compiled, elementwise, i, operands
from weft.compiler import emit_held
from weft.compiler.build import Builder
from weft.compiler.emit_cpu import emit
from weft.compiler.loops import const, integer, load
from weft.compiler.point import FEW_PIECES
from weft.config import settings
from weft.runtime.cpu import jit

FLOAT = np.dtype(np.float32)
WIDE = jit.Target(
    "x86_64-unknown-linux-gnu", "x86-64-v4", "+avx,+avx2,+avx512f,+avx512dq,+avx512vl,+fma"
)
builder = Builder()


def held(position, low, high):
    """An index between two bounds."""
    return builder.min(builder.max(position, integer(low)), integer(high))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "bool", "f2"])
@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize(("low", "high"), [(0, 99), (3, 40), (16, 47), (20, 20), (0, 15)])
def test_a_load_between_bounds_reads_what_it_should(dtype, lanes, low, high):
    dtype, n = np.dtype(dtype), np.arange(100)
    x = (np.random.default_rng(1).integers(-50, 50, 100)).astype(dtype)
    for shift in (0, 5, 17, -20):
        place = held(builder.add(i, integer(shift)), low, high)
        kernel = elementwise(load(1, place, dtype), [dtype], 100, lanes, "kernel")
        found = np.zeros_like(x)
        Compiled([kernel])("kernel", [found, x])
        assert np.array_equal(found, x[np.clip(n + shift, low, high)])


@pytest.mark.parametrize("lanes", [4, 16])
def test_a_choice_between_loads_takes_each_where_it_should(lanes):
    n, x, y = np.arange(100), *np.random.default_rng(2).standard_normal((2, 100)).astype(FLOAT)
    (first,) = operands(FLOAT)
    second = load(2, held(builder.sub(i, integer(37)), 0, 99), FLOAT)
    for start, stop in ((37, 90), (32, 64), (0, 100), (50, 50), (99, 100)):
        above = builder.less_equal(integer(start), i)
        inside = builder.bit_and(above, builder.less(i, integer(stop)))
        for condition, holds in ((above, n >= start), (inside, (n >= start) & (n < stop))):
            made = builder.select(condition, second, first)
            kernel = elementwise(made, [FLOAT, FLOAT], 100, lanes, "kernel")
            found = np.zeros_like(x)
            Compiled([kernel])("kernel", [found, x, y])
            assert np.array_equal(found, np.where(holds, y[np.clip(n - 37, 0, 99)], x))


def test_vectors_are_loaded_and_no_lane_is_moved_where_no_bound_is_met():
    place = held(builder.sub(i, integer(3)), 0, 500)
    choice = builder.select(
        builder.less_equal(integer(3), i), load(1, place, FLOAT), const(0.0, FLOAT)
    )
    for made in (load(1, place, FLOAT), choice):
        text = emit([elementwise(made, [FLOAT], 640, 16, "kernel")], WIDE)
        assert re.search(r"load <16 x float>", text)
        assert text.count("insertelement <16 x float>") <= 16 + 2  # of one block, for bounds


SIZES = (0, 1, 3, 15, 16, 17, 33, 64, 100)
PROGRAMS = {
    "joined": lambda xp, x, y: xp.concatenate([x, y]),
    "joined thrice": lambda xp, x, y: xp.concatenate([y, x[:7], y, x]) * 2,
    "sums joined": lambda xp, x, y: xp.concatenate([x + 1, y * y]),
    "rolled": lambda xp, x, y: xp.roll(x, 5) + xp.roll(x, -3),
    "padded": lambda xp, x, y: xp.pad(x, (3, 18)),
    "several joined": lambda xp, x, y: xp.concatenate([x, y] * 2),
    "both": lambda xp, x, y: xp.pad(xp.concatenate([x, y]), 2)[1:],
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("checks", [0, 1])
def test_programs_give_what_numpy_gives(monkeypatch, name, checks):
    monkeypatch.setattr(settings, "check_bounds", checks)
    rng, made = np.random.default_rng(3), PROGRAMS[name]
    for a in SIZES:
        for b in (1, 16, 40):
            x, y = rng.standard_normal(a).astype(FLOAT), rng.standard_normal(b).astype(FLOAT)
            found = wf.compile(lambda x, y: made(wf, x, y))(wf.tensor(x), wf.tensor(y))
            assert np.array_equal(found.host(), made(np, x, y)), (a, b)


@pytest.mark.parametrize("shape", [(5, 3), (4, 16), (3, 37), (2, 100)])
def test_rows_are_joined_and_padded_along_either_axis(shape):
    x = np.random.default_rng(4).standard_normal(shape).astype(FLOAT)
    t = wf.tensor(x)
    for axis in (0, 1):
        joined = wf.compile(lambda t, axis=axis: wf.concatenate([t, t * 2, t], axis))(t)
        assert np.array_equal(joined.host(), np.concatenate([x, x * 2, x], axis))
        rolled = wf.compile(lambda t, axis=axis: wf.roll(t, 2, axis=axis))(t)
        assert np.array_equal(rolled.host(), np.roll(x, 2, axis=axis))
    padded = wf.compile(lambda t: wf.pad(t, ((1, 2), (3, 4)), constant_values=7.0))(t)
    assert np.array_equal(padded.host(), np.pad(x, ((1, 2), (3, 4)), constant_values=7.0))
    slope = wf.compile(wf.grad(lambda t: (wf.pad(t, 2) ** 2).sum()))(t)
    assert np.array_equal(slope.host(), 2 * x)


@pytest.mark.parametrize("most", [1, 2, 32])
def test_only_so_many_choices_are_taken_apart_and_the_rest_is_as_it_was(monkeypatch, most):
    monkeypatch.setattr(settings, "cache_bytes", 0)
    monkeypatch.setattr(emit_held, "MOST", most)
    xs = [np.full(11, k, FLOAT) for k in range(FEW_PIECES)]
    joined = wf.compile(lambda *given: wf.concatenate(given))(*map(wf.tensor, xs))
    assert np.array_equal(joined.host(), np.concatenate(xs))


def test_choices_as_deep_as_the_stack_are_not_taken_apart():
    loaded = load(1, held(i, 0, 9), FLOAT)
    made = builder.select(builder.less(i, integer(5)), loaded, const(0.0, FLOAT))
    for k in range(1200):
        made = builder.select(builder.less(i, integer(k)), const(float(k), FLOAT), made)
    text = emit([elementwise(made, [FLOAT], 32, 16, "kernel")], WIDE)
    assert text.count("select <16 x i1>") > 1000
