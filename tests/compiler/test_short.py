"""Reductions of a few points are written out: rows are lanes, and no bit is another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import SPECIAL, assert_same, interpreted, lowered_kernels
from weft.compiler.kernels import STORE, Kernel
from weft.compiler.lift import form_of
from weft.compiler.loops import LANES, Assign, Loop, Reduce, every
from weft.compiler.native import Native
from weft.compiler.passes import short as short_module
from weft.compiler.passes.short import MOST, short, short_extents
from weft.compiler.pipeline import schedule
from weft.compiler.steps import Call
from weft.config import settings
from weft.testing.ir import run_kernel

RNG = np.random.default_rng(41)
FUNCTIONS = {
    "sum": lambda x: x.sum(-1),
    "prod": lambda x: wf.prod(x, axis=-1),
    "max": lambda x: x.max(-1),
    "min": lambda x: x.min(-1),
    "argmax": lambda x: wf.argmax(x, axis=-1),
    "argmin": lambda x: wf.argmin(x, axis=-1),
    "any": lambda x: (x > 0).any(-1),
    "all": lambda x: (x > 0).all(-1),
    "count": lambda x: wf.count_nonzero(x > 0, axis=-1),
    "var": lambda x: wf.var(x, axis=-1),
    "softmax": lambda x: wf.softmax(x, -1),
    "centred": lambda x: x - x.mean(-1, keepdims=True),
    "apart": lambda x: ((x[:, None] - x[None]) ** 2).sum(-1),
    "two axes": lambda x: x.reshape(-1, *(1, x.shape[1])).sum((1, 2)),
}


def rows(count: int, length: int) -> Any:
    """Rows with ties, zeros of both signs, infinities and NaN among them."""
    made = RNG.standard_normal((count, length)) * 10.0 ** RNG.integers(-3, 4, (count, length))
    some = RNG.integers(0, 12, made.shape) == 0
    made[some] = RNG.choice([x for x in SPECIAL if abs(x) < 1e38 or x != x], some.sum())
    made[::3, -1:] = made[::3, :1]
    return made.astype(np.float32)


def kernel_of(function: Any, *given: Any) -> Kernel:
    """The only kernel that lowering makes."""
    (kernel,) = lowered_kernels(function, *given)
    return kernel


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8, 15, 16, 17, 24, 31, 32, 33])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_short_rows_have_the_bits_of_loops(monkeypatch, name, length):
    monkeypatch.setattr(settings, "cache_bytes", 0)
    x = rows(37, length)
    trace = wf.trace(FUNCTIONS[name], wf.tensor(x))
    written, expected = Native(trace), interpreted(trace, [x])
    for threads in (1, 2, 4):
        assert_same(written.run([x], threads), expected)
    monkeypatch.setattr(short_module, "MOST", 0)
    monkeypatch.setattr(STORE, "_made", type(STORE._made)())
    assert_same(Native(trace).run([x], 1), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.int32, np.uint16])
@pytest.mark.parametrize("name", ["sum", "max", "argmax", "argmin", "prod"])
def test_short_rows_of_other_dtypes(name, dtype):
    x = RNG.integers(-3 if np.dtype(dtype).kind != "u" else 0, 4, (50, 5)).astype(dtype)
    trace = wf.trace(FUNCTIONS[name], wf.tensor(x))
    assert_same(Native(trace).run([x], 2), interpreted(trace, [x]))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 3), (4, 1)])
def test_rows_of_nothing_and_no_rows(shape):
    x = np.ones(shape, np.float32)
    for name in ("sum", "any", "softmax"):
        trace = wf.trace(FUNCTIONS[name], wf.tensor(x))
        assert_same(Native(trace).run([x], 1), interpreted(trace, [x]))


@pytest.mark.parametrize("name", ["sum", "max", "softmax", "argmax", "var"])
@pytest.mark.parametrize("length", [3, 9])
def test_a_kernel_written_out_means_what_its_loops_mean(name, length):
    x = rows(20, length)
    kernels = lowered_kernels(FUNCTIONS[name], x)
    reduced = [k for k in kernels if any(isinstance(s, Reduce) for s in every(k.body))]
    assert reduced
    for kernel in reduced:
        made = short(kernel)
        assert not any(isinstance(s, Reduce) for s in every(made.body))
        given = [np.ones(2000, b.dtype) for b in kernel.buffers]
        given[0] = np.resize(x.ravel(), 2000).astype(given[0].dtype)
        pairs = zip(run_kernel(kernel, given, ()), run_kernel(made, given, ()), strict=True)
        assert all(a.tobytes() == b.tobytes() for a, b in pairs)


@pytest.mark.parametrize("name", ["sum", "argmax", "softmax", "apart"])
def test_rows_are_lanes_and_in_registers(name):
    (made,) = schedule(kernel_of(FUNCTIONS[name], np.ones((4096, 3), np.float32)))
    assert any(isinstance(s, Loop) and s.kind == "vector" for s in every(made.body))
    assert not any(isinstance(s, Assign) and s.position is not None for s in every(made.body))


@pytest.mark.parametrize("length", [LANES, 2 * LANES, MOST + 1, 1000])
def test_rows_of_whole_vectors_and_long_ones_stay_loops(length):
    kernel = kernel_of(FUNCTIONS["sum"], np.ones((64, length), np.float32))
    assert short(kernel) is kernel and not short_extents(kernel)


@pytest.mark.parametrize("shape", [(8, 20, 20), (4, 9, 9, 9), (2, 31, 31, 31)])
@pytest.mark.parametrize("name", ["sum", "softmax"])
def test_loops_that_are_as_short_by_chance_stay_loops(name, shape):
    kernel = kernel_of(lambda x: FUNCTIONS[name](x), np.ones(shape, np.float32))
    rows = kernel_of(FUNCTIONS[name], np.ones((7, shape[-1]), np.float32))
    made, alone = (len(list(every(short(each).body))) for each in (kernel, rows))
    assert made <= alone + len(shape)


def test_what_would_become_too_long_stays_a_loop(monkeypatch):
    kernel = kernel_of(FUNCTIONS["softmax"], np.ones((64, 10), np.float32))
    assert short(kernel) is not kernel
    monkeypatch.setattr(short_module, "MOST_WORK", 100)
    assert short(kernel) is kernel


def test_the_length_of_a_short_row_belongs_to_the_form_and_their_number_does_not():
    three, more, four = (
        form_of(kernel_of(FUNCTIONS["sum"], np.ones(shape, np.float32)))
        for shape in ((100, 3), (700, 3), (100, 4))
    )
    assert three.key == more.key != four.key
    assert 3 not in three.literals and 100 in three.literals


def test_many_numbers_of_rows_share_a_kernel(monkeypatch):
    monkeypatch.setattr(settings, "cache_bytes", 0)
    made = set()
    for count in range(50, 60):
        program = Native(wf.trace(FUNCTIONS["max"], wf.ones((count, 7))))
        made |= {id(s.request.compiled) for s in program.steps if isinstance(s, Call)}
    assert len(made) <= 2
