"""Dots of vectors, and of many rows: lanes are pieces or rows; the bits are those of one lane."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import SPECIAL, assert_same
from tests.compiler.test_contract import Case, arrays, product
from weft.compiler.emit_cpu import emit
from weft.compiler.kernels import evaluate
from weft.compiler.native import Native
from weft.compiler.passes.contract_blocks import using_path
from weft.compiler.passes.contract_pairs import contract_long_dot, is_long_dot
from weft.compiler.pipeline import schedule
from weft.compiler.steps import Call
from weft.compiler.verify import verify
from weft.config import settings
from weft.core.common import dtypes
from weft.runtime.cpu.jit import Target, emit_assembly
from weft.testing.ir import run_kernel

RNG = np.random.default_rng(31)
LENGTHS = (0, 1, 3, 4, 5, 100, 255, 256, 257, 1023, 1024, 1025, 1300, 4096, 4097, 9000)
ROWS = (1, 2, 3, 4, 5, 16, 17, 33, 130)
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int8", "uint8")


def numbers(*shape: int, dtype: Any = "float32") -> Any:
    """Some of them tiny or negative zeros, so that an order shows."""
    dtype = dtypes.as_dtype(dtype, op="test")
    if dtypes.is_integer(dtype):
        return RNG.integers(0, 100, shape).astype(dtype)
    made = RNG.standard_normal(shape) * 10.0 ** RNG.integers(-3, 4, shape)
    return made.astype(np.float32).astype(dtype)


def by_one_lane(function: Any, *given: Any) -> Any:
    """What the same sums are without lanes."""
    with using_path("scalar"):
        return Native(wf.trace(function, *map(wf.tensor, given))).run(list(given), 1)


def assert_like_one_lane(function: Any, *given: Any) -> None:
    program = Native(wf.trace(function, *map(wf.tensor, given)))
    expected = by_one_lane(function, *given)
    for threads in (1, 2, 4):
        assert_same(program.run(list(given), threads), expected)


@pytest.mark.parametrize("length", LENGTHS)
def test_dots_of_vectors_are_those_of_one_lane(length):
    assert_like_one_lane(wf.dot, numbers(length), numbers(length))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1300, 9000])
def test_dots_of_every_dtype_are_those_of_one_lane(dtype, length):
    assert_like_one_lane(wf.dot, numbers(length, dtype=dtype), numbers(length, dtype=dtype))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("equation", ["bi,bi->b", "ib,ib->b", "bi,ib->b"])
def test_dots_of_rows_are_those_of_one_lane(equation, rows):
    for length in (0, 1, 5, 16, 100, 256, 300, 1025):
        shapes = [
            (rows, length) if part == "bi" else (length, rows) for part in equation[:5].split(",")
        ]
        given = [numbers(*shape) for shape in shapes]
        assert_like_one_lane(lambda x, y: wf.einsum(equation, x, y), *given)


@pytest.mark.parametrize("length", [300, 1024, 4500])
def test_dots_read_what_views_show_and_end_in_what_follows_them(length):
    x, y = numbers(3, 2 * length), numbers(length, 3)

    def function(x: Any, y: Any) -> Any:
        found = wf.einsum("bi,bi->b", x[:, ::-2] * 2, wf.swapaxes(y, 0, 1))
        return found, wf.tanh(found) + found.sum()

    assert_like_one_lane(function, x, y)
    halves = wf.vmap(lambda row: wf.dot(row[length:], row[:length][::-1]))
    assert_like_one_lane(halves, x)


def test_infinities_and_zeros_are_summed_as_ever():
    special = np.array(SPECIAL, np.float32)
    for each in special:
        x, y = numbers(2000), np.full(2000, 1e-30, np.float32)
        x[777] = each
        assert_like_one_lane(wf.dot, x, y)
    tiny = np.full(2048, -1e-30, np.float32)
    assert_like_one_lane(wf.dot, tiny, -tiny)  # a sum of products that vanish keeps its sign


@pytest.mark.parametrize("rows", [1, 3, 16, 33])
@pytest.mark.parametrize("equation", ["bi,bi->b", "ib,ib->b", "bi,ib->b"])
def test_dots_of_rows_whose_sizes_are_parameters_are_those_of_one_lane(equation, rows):
    for length in (1, 5, 100, 300, 1025):
        shapes = [
            (rows, length) if part == "bi" else (length, rows) for part in equation[:5].split(",")
        ]
        given = [numbers(*shape) for shape in shapes]
        function = lambda x, y: wf.einsum(equation, x, y)  # noqa: E731
        program = Native(wf.trace(function, *map(wf.tensor, given)), general=True)
        assert_same(program.run(given, 2), by_one_lane(function, *given))


def test_gradients_and_maps_of_dots():
    x, y = numbers(20, 1100), numbers(20, 1100)
    slope = wf.compile(wf.grad(lambda x, y: wf.einsum("bi,bi->b", x, y).sum()))
    assert np.array_equal(slope(wf.tensor(x), wf.tensor(y)).host(), y)
    mapped = wf.compile(wf.vmap(wf.dot))(wf.tensor(x), wf.tensor(y)).host()
    rows = [
        wf.compile(wf.dot)(wf.tensor(a), wf.tensor(b)).host() for a, b in zip(x, y, strict=True)
    ]
    assert np.array_equal(mapped, np.stack(rows))


@pytest.mark.parametrize("length", [1030, 5000])
def test_dots_stay_inside_their_memory(monkeypatch, length):
    monkeypatch.setattr(settings, "check_bounds", 1)
    assert_like_one_lane(wf.dot, numbers(length), numbers(length))
    assert_like_one_lane(
        lambda x, y: wf.einsum("bi,bi->b", x, y), numbers(19, 200), numbers(19, 200)
    )


@pytest.mark.parametrize("depth", [4096, 4500])
@pytest.mark.parametrize("vector_bytes, registers", [(16, 32), (32, 16), (64, 32)])
def test_both_kernels_of_a_long_dot_mean_the_plain_loops(vector_bytes, registers, depth):
    case = Case(1, 1, depth, fused=True)
    kernel = product(case)
    assert is_long_dot(kernel, vector_bytes)
    first, last = contract_long_dot(kernel, vector_bytes, registers)
    dtype, size = first.notes["partials"]
    given = [*arrays(case), np.full(evaluate(size, ()), np.nan, dtype)]
    for made in (first, *schedule(last, vector_bytes=vector_bytes)):
        given = list(run_kernel(verify(made, True), given, (), True))
    for x, y in zip(run_kernel(kernel, arrays(case), ()), given[:-1], strict=True):
        assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize(
    ("vector_bytes", "registers", "cpu", "features", "inserted", "moved"),
    [
        (64, 32, "x86-64-v4", "+avx512f", ("vinsertf32x4", 2 * 48), "vshuff64x2"),
        (32, 16, "x86-64-v3", "+avx2,+fma", ("vinsertf128", 2 * 2 * 8), "vperm2f128"),
    ],
)
def test_blocks_get_to_their_lanes_as_they_are_read(
    vector_bytes, registers, cpu, features, inserted, moved
):
    target = Target("x86_64-unknown-linux-gnu", cpu, features)
    first, _ = contract_long_dot(product(Case(1, 1, 4096)), vector_bytes, registers)
    text = emit_assembly(emit([first], target), target.triple, target.cpu, target.features)
    name, count = inserted
    assert len(re.findall(rf"{name}.*\(%r", text)) == count
    assert moved not in text


def test_long_dots_are_lanes_of_pieces_and_short_ones_lanes_of_rows():
    calls = calls_of(wf.dot, wf.ones(20_000), wf.ones(20_000))
    assert len(calls) == 2
    x = wf.ones((64, 200))
    rows = [
        *calls_of(lambda x: wf.einsum("bi,bi->b", x, x), x),
        *calls_of(lambda x: wf.einsum("bi,bi->b", x, x), x, general=True),
    ]
    assert len(rows) == 2
    for each in (calls[0], *rows):
        assert each.request.compiled.kernels[0].notes["contract"].lanes > 1


def calls_of(function: Any, *given: Any, general: bool = False) -> list[Call]:
    """The kernels that a function runs."""
    program = Native(wf.trace(function, *given), general=general)
    return [step for step in program.steps if isinstance(step, Call)]
