"""Division of integers by numbers that a program knows: products and shifts, with the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import assert_same, interpreted
from weft.compiler.fuse import Fusion
from weft.compiler.loops import Loop, every, integer_of, walk
from weft.compiler.native import Native
from weft.compiler.pipeline import schedule
from weft.compiler.rebuild import values_of
from weft.compiler.scatter import lower
from weft.compiler.steps import Call
from weft.config import settings

DTYPES = [np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)]
OPS = {
    "floor": lambda x, by: x // by,
    "remainder": lambda x, by: x % by,
    "fmod": wf.fmod,
    "both": lambda x, by: (x // by) * by + x % by,
}


def edges(dtype: Any) -> Any:
    """Numbers near the ends of a dtype, near zero, and some between."""
    limits = np.iinfo(dtype)
    near = [limits.min, limits.min + 1, -8, -7, -6, -1, 0, 1, 6, 7, 8, limits.max - 1, limits.max]
    inside = [n for n in near if limits.min <= n <= limits.max]
    drawn = np.random.default_rng(7).integers(limits.min, limits.max, 200, dtype, endpoint=True)
    return np.concatenate([np.array(inside, dtype), drawn])


def divisors(dtype: Any) -> list[int]:
    limits = np.iinfo(dtype)
    wanted = (1, 2, 3, 7, 8, 10, 100, 127, -1, -2, -3, -7, -8, 0, limits.max, limits.min)
    return sorted({n for n in wanted if limits.min <= n <= limits.max})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_every_divisor_gives_the_bits_of_a_division(name, dtype):
    x = edges(dtype)
    for by in divisors(dtype):
        trace = wf.trace(lambda x, by=by: OPS[name](x, by), wf.tensor(x))
        assert_same(Native(trace).run([x], 1), interpreted(trace, [x]), f"by {by}")


def written(program: Native) -> set[int]:
    """What the kernels of a program divide by that is written in them."""
    kernels = [k for s in program.steps if isinstance(s, Call) for k in s.request.compiled.kernels]
    found = [x for k in kernels for x in values_of(k.body) if x.op in ("floordiv", "rem")]
    data = [x for x in found if any(y.op == "load" for y in walk(x.args[0]))]
    return {integer_of(x.args[1]) for x in data if x.args[1].op == "const"}


def test_numbers_that_a_function_captures_are_written_in_its_kernels():
    by = wf.tensor(np.int32(11))
    x = wf.tensor(np.arange(100, dtype=np.int32))
    program = Native(
        wf.trace(lambda x, y: (x // 7, x % by, x // y, x % wf.reshape(by, (1,))), x, x)
    )
    assert written(program) == {7, 11}


def test_numbers_that_may_change_are_not():
    x, place = wf.tensor(np.arange(100, dtype=np.int32)), np.array(9, np.int32)
    shared = wf.from_dlpack(place)
    program = Native(wf.trace(lambda x: x // shared, x))
    assert not written(program)
    place[...] = 4
    assert np.array_equal(program.run([x.host()], 1)[0], np.arange(100) // 4)


def test_like_groups_with_other_divisors_are_other_kernels(monkeypatch):
    monkeypatch.setattr(settings, "cache_bytes", 0)
    x = np.arange(-500, 500, dtype=np.int64)

    def function(x: Any) -> Any:
        return wf.sort(x // 7), wf.sort(x // 9), wf.sort(x // 11)

    found = wf.compile(function)(wf.tensor(x))
    for each, by in zip(found, (7, 9, 11), strict=True):
        assert np.array_equal(each.host(), np.sort(x // by))
    assert written(Native(wf.trace(function, wf.tensor(x)))) == {7, 9, 11}


def test_places_are_divided_by_small_numbers_that_are_written_in_kernels(monkeypatch):
    monkeypatch.setattr(settings, "cache_bytes", 0)
    for rows, times in ((30, 8), (30, 3), (40, 3), (50, 5), (60, 5)):
        x = np.arange(rows * 64.0).reshape(rows, 64)
        program = Native(wf.trace(lambda x, n=times: wf.repeat(x, n, axis=-1), wf.tensor(x)))
        steps = [s for s in program.steps if isinstance(s, Call)]
        values = [x for s in steps for k in s.request.compiled.kernels for x in values_of(k.body)]
        by = {x.args[1].op for x in values if x.op in ("floordiv", "rem")}
        assert by <= {"const"}
        assert np.array_equal(program.run([x], 1)[0], np.repeat(x, times, axis=-1))


REPEATED = {
    "repeat": lambda m, x: m.repeat(x, 3, axis=-1),
    "tile": lambda m, x: m.tile(x, (3, 4)),
    "kron": lambda m, x: m.kron(x, m.ones((3, 3))),
    "diag": lambda m, x: m.diag(x[0], 2),
}


@pytest.mark.parametrize("name", REPEATED)
def test_kernels_for_any_size_nest_loops_where_those_of_one_size_do(name, monkeypatch):
    monkeypatch.setattr(settings, "cache_bytes", 0)
    for rows, columns in ((70, 90), (80, 110), (97, 130), (51, 77)):
        x = np.arange(float(rows * columns)).reshape(rows, columns)
        program = Native(wf.trace(lambda x: REPEATED[name](wf, x), wf.tensor(x)))
        assert np.array_equal(program.run([x], 1)[0], REPEATED[name](np, x))
        for step in program.steps:
            assert isinstance(step, Call)
            for kernel in step.request.compiled.kernels:
                loops = [s for s in every(kernel.body) if isinstance(s, Loop)]
                lanes = {s.variable for s in loops if s.kind == "vector"}
                divided = [x for x in values_of(kernel.body) if x.op in ("floordiv", "rem")]
                assert lanes
                assert not any(y in lanes for x in divided for y in walk(x.args[0]))


@pytest.mark.parametrize(("width", "lanes"), [(16, False), (64, True)])
def test_narrow_vectors_leave_long_products_and_searches_to_scalars(width, lanes):
    table, x = wf.tensor(np.arange(100.0)), wf.tensor(np.zeros(4096, np.int64))
    functions = [
        (lambda x: x * 7 + 3, x),
        (lambda x: x % 10, x),
        (lambda y: wf.searchsorted(table, y), wf.ones(4096, dtype=wf.float64)),
    ]
    for function, given in functions:
        trace = wf.trace(function, given)
        fusion = Fusion(trace.nodes, trace.outputs)
        (made,) = schedule(lower(fusion, fusion.groups[-1], {})[-1].kernel, vector_bytes=width)
        found = any(isinstance(s, Loop) and s.kind == "vector" for s in every(made.body))
        assert found is lanes
