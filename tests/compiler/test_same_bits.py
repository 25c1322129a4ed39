"""Interpreted and compiled: the same bits, for every op and for random programs.

    python -m tests.compiler.test_same_bits --programs 10000

runs the random programs for longer. Many programs are compiled as one function, since compiling is
what takes the time; where a batch differs, its programs are tried one by one and the seed is named.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import (
    assert_same,
    compiled,
    draw_program,
    interpreted,
    is_same,
    native,
    spiced,
    together,
    unfused,
)
from weft.compiler import build_executable
from weft.compiler.kernels import STORE
from weft.compiler.native import Native
from weft.config import settings
from weft.core.common import dtypes
from weft.core.common.slots import OPS
from weft.errors import DTypeError, WeftError
from weft.ops.base import Operation, call
from weft.ops.families import ElementwiseOperation, LogicalShapeOperation
from weft.runtime.cpu import jit
from weft.testing.samples import calls, operands

BATCH = 20
PLAIN = range(180)
TRANSFORMED = range(1000, 1060)
FRESH = 20


@dataclass
class Case:
    """A function and arrays to call it with; `name` brings it back."""

    name: str
    function: Callable[..., Any]
    arrays: list[Any]


def flat(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *x: wf.tree_leaves(function(*x))


def both_ways(cases: Sequence[Case], how: Callable[..., Any]) -> None:
    """Trace all cases as one function and compare `how` it runs with the interpreter."""
    run = together([flat(c.function) for c in cases], [len(c.arrays) for c in cases])
    arrays = [a for c in cases for a in c.arrays]
    trace = wf.trace(run, *map(wf.asarray, arrays))
    given = [*arrays, *(np.asarray(x) for x in trace.captures)]
    assert_same(how(trace, given), interpreted(trace, given))


def check(cases: Iterable[Case], how: Callable[..., Any] = compiled) -> None:
    """Compare in batches; a batch that differs is taken apart."""
    every = list(cases)
    bad = []
    for start in range(0, len(every), BATCH):
        batch = every[start : start + BATCH]
        try:
            both_ways(batch, how)
        except Exception:
            for case in batch:
                try:
                    both_ways([case], how)
                except Exception as error:
                    bad.append(f"{case.name}: {type(error).__name__}: {error}")
    assert not bad, "\n\n".join(bad)


# -- every op ------------------------------------------------------------------------------------


def legal(op: Operation) -> tuple[Any, ...]:
    """The dtypes an op may be asked for without its public function before it."""
    if isinstance(op, ElementwiseOperation | LogicalShapeOperation):
        return dtypes.ALL_DTYPES
    return (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)


def performer(op: Operation, params: dict[str, Any]) -> Callable[..., Any]:
    if isinstance(op, ElementwiseOperation) and not params:
        return op
    return lambda *tensors: call(op, tensors, params)


def awkward(op: Operation, letters: str, arrays: list[Any], rng: Any) -> list[Any]:
    """The operands with special values; what must be sorted is sorted again."""
    if "kernel" in op.reasons:  # both ways run the reference, and LAPACK may not come back
        return arrays
    made = [spiced(a, rng) for a in arrays]
    return [np.sort(a) if k == "o" else a for a, k in zip(made, letters.ljust(9, "f"))]


def op_cases(dtype: Any) -> Iterable[Case]:
    for op in OPS.values():
        for number, example in enumerate(calls(op)):
            rng = np.random.default_rng(sum(map(ord, op.name)) + number)
            letters = example.sample or op.sample
            for lead in ((), (0,), (1,), (3,)):
                arrays = operands(op, example, rng, lead)
                if dtype in legal(op):
                    arrays = [
                        (np.abs(a) if dtype.kind in "ub" else a).astype(dtype)
                        if a.dtype.kind == "f"
                        else a
                        for a in arrays
                    ]
                elif dtype != dtypes.float64:
                    continue
                if lead == (3,):
                    arrays = awkward(op, letters, arrays, rng)
                arrays = [np.asarray(a) for a in arrays]  # NumPy makes numbers of 0-d arrays
                case = Case(f"{op}-{number}-{lead}", performer(op, example.params), arrays)
                if takes(case):
                    yield case


def takes(case: Case) -> bool:
    try:
        wf.trace(case.function, *map(wf.asarray, case.arrays))
    except DTypeError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.promise("S4.26")
@pytest.mark.parametrize(
    "dtype",
    [
        dtypes.float64,
        dtypes.float32,
        dtypes.bfloat16,
        dtypes.float16,
        dtypes.int64,
        dtypes.int32,
        dtypes.uint8,
        dtypes.bool_,
    ],
    ids=dtypes.name_of,
)
def test_every_op_gives_the_same_bits_compiled(dtype: Any) -> None:
    cases = list(op_cases(dtype))
    assert len(cases) > 300
    check(cases)


ZEROS = {
    "minimum": lambda x, y: wf.minimum(x, y),
    "maximum": lambda x, y: wf.maximum(x, y),
    "clip": lambda x, y: wf.clip(x, y, 1.0),
    "relu": lambda x, y: wf.relu(x),
    "max": lambda x, y: wf.max(x, axis=-1),
    "min": lambda x, y: wf.min(x, axis=0),
    "cummax": lambda x, y: wf.cummax(y, axis=0),
    "scatter_min": lambda x, y: y.at[wf.asarray([0, 1, 1])].min(x[:3]),
    "scatter_max": lambda x, y: y.at[wf.asarray([0, 1, 1])].max(x[:3]),
    "sum": lambda x, y: wf.sum(y, axis=-1),
    "sum of nothing": lambda x, y: wf.sum(y[:0], axis=0),
    "product": lambda x, y: -abs(y) @ abs(y),
    "argmax": lambda x, y: wf.argmax(x, axis=1),
    "argmin": lambda x, y: wf.argmin(x, axis=0),
    "sign": lambda x, y: wf.sign(x),
    "atan2": lambda x, y: wf.atan2(y, x),
    "power": lambda x, y: x**y,
    "remainder": lambda x, y: x % y,
    "floor_divide": lambda x, y: x // y,
    "nextafter": lambda x, y: wf.nextafter(y, x),
    "int32 of infinity": lambda x, y: wf.astype(x * np.inf, wf.int32),
    "int8 of 300": lambda x, y: wf.astype(x * 300, wf.int8),
    "uint64 of 1e20": lambda x, y: wf.astype(x * 1e20, wf.uint64),
    "logsumexp of -infinity": lambda x, y: wf.logsumexp(x - np.inf, axis=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [wf.float64, wf.float32, wf.bfloat16, wf.float16], ids=str)
def test_signed_zeros_nan_and_infinity_go_the_same_way(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    cases = []
    for size in (4, 33):
        x = rng.choice([0.0, -0.0, np.nan, 1.0], (size, size), p=[0.45, 0.45, 0.02, 0.08])
        y = rng.choice([0.0, -0.0], (size, size))
        arrays = [x.astype(dtype), y.astype(dtype)]
        cases += [Case(f"{name} of {size}", f, arrays) for name, f in ZEROS.items()]
    check(cases)


# -- programs that were once compiled to something else -------------------------------------------


def kept_loop(x):
    """A loop of an odd number of steps whose counter nobody wants."""
    return wf.fori_loop(0, 3, lambda i, c: wf.sin(c) * x, x)


def turned_product(x):
    """A cheap call that another kernel computes for itself, in another order."""
    return (x @ wf.matrix_transpose(x) * 3)[:, ::-1]


def stored_then_read(x):
    """A first stage stores over memory that the second one reads."""
    t = wf.cumsum(x, axis=-1)
    y = t * 2
    return y, t + wf.sum(y, axis=-1, keepdims=True)


def reduced_with_an_axis_of_one(x):
    """A reduction of everything in a group that has one axis more."""
    y = wf.expand_dims(x, -1)
    wide = wf.squeeze(wf.exp(y) + y, axis=-1)
    return wf.max(wide) * 2, wide


def complex_sum(x):
    """NumPy may add in an order that depends on strides, which compiling changes."""
    y = wf.exp(x[0] * 1j)
    return wf.sum(wf.matrix_transpose(y), axis=0), y @ wf.matrix_transpose(y)


def turned_factors(x):
    """A complex product is not the same turned round."""
    y, z = wf.exp(x * 1j), wf.exp(x * 2j + 1)
    return y * z, z * y


REGRESSIONS = [
    kept_loop,
    turned_product,
    stored_then_read,
    reduced_with_an_axis_of_one,
    complex_sum,
    turned_factors,
]


@pytest.mark.parametrize("function", REGRESSIONS, ids=lambda f: f.__name__)
def test_a_program_that_went_wrong_once_stays_right(function: Any) -> None:
    x = np.random.default_rng(1).uniform(-2, 2, (4, 11, 27))
    check([Case(function.__name__, function, [x])])
    check([Case(function.__name__, function, [x])], unfused)


@pytest.mark.parametrize("rows", [4, 33])
def test_rows_that_lie_in_the_same_memory_are_read_once_for_all_lanes(rows: int) -> None:
    x = np.broadcast_to(np.linspace(-2, 2, 12, dtype=np.float32), (rows, 12))
    trace = wf.trace(lambda t: wf.sum(wf.sin(t) * t, axis=-1), wf.asarray(x))
    program = Native(trace, strides={(trace.inputs[0], 0): (0, 1)})
    assert_same(program.run([x]), interpreted(trace, [x]))


# -- random programs -----------------------------------------------------------------------------


def total_of(program: Callable[..., Any]) -> Callable[..., Any]:
    """A real number to differentiate."""
    return lambda *x: sum((wf.sum(wf.real(wf.sin(y))) for y in program(*x)), wf.tensor(0.0))


def gradient(f):
    return lambda *x: wf.grad(total_of(f), argnums=tuple(range(len(x))))(*x)


def tangent(f):
    return lambda *x: wf.jvp(f, x, tuple(wf.cos(v) for v in x))


def mapped(f):
    return lambda *x: wf.vmap(f)(*(wf.stack([v, v * 0.5, v + 1]) for v in x))


TRANSFORMS = {
    "grad": gradient,
    "jvp": tangent,
    "vmap": mapped,
    "checkpoint": lambda f: gradient(wf.checkpoint(f)),
    "grad of vmap": lambda f: gradient(mapped(f)),
    "vmap of grad": lambda f: mapped(gradient(f)),
}


def plain_cases(seeds: Iterable[int]) -> Iterable[Case]:
    for seed in seeds:
        program, arrays = draw_program(seed)
        yield Case(f"seed {seed}\n{program}", program, arrays)


def transformed_cases(seeds: Iterable[int]) -> Iterable[Case]:
    for seed in seeds:
        program, arrays = draw_program(seed)
        name = list(TRANSFORMS)[seed % len(TRANSFORMS)]
        function = TRANSFORMS[name](program)
        yield Case(f"{name} of seed {seed}\n{program}", function, arrays)


def parts(seeds: range, size: int = 60) -> list[Any]:
    made = [seeds[i : i + size] for i in range(0, len(seeds), size)]
    return [pytest.param(part, id=f"{part.start}-{part.stop}") for part in made]


@pytest.mark.slow
@pytest.mark.promise("S4.27")
@pytest.mark.parametrize("seeds", parts(PLAIN))
def test_random_programs_give_the_same_bits_compiled(seeds: range) -> None:
    check(plain_cases(seeds))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", parts(TRANSFORMED))
def test_random_programs_under_transforms_give_the_same_bits_compiled(seeds: range) -> None:
    check(transformed_cases(seeds))


@pytest.mark.slow
def test_fresh_random_programs_give_the_same_bits_compiled(fresh_seed: int) -> None:
    check(plain_cases(range(fresh_seed, fresh_seed + FRESH)))
    check(transformed_cases(range(fresh_seed, fresh_seed + FRESH // 2)))


@pytest.mark.slow
def test_fusion_changes_no_bit() -> None:
    check(plain_cases(range(500, 540)), unfused)


@pytest.mark.slow
def test_a_recorded_graph_that_is_compiled_gives_the_bits_of_single_calls() -> None:
    before = settings.small_elements, settings.compile_after
    for seed in range(600, 640):
        program, arrays = draw_program(seed)
        expected = [y.numpy() for y in program(*map(wf.asarray, arrays))]
        settings.small_elements, settings.compile_after = 0, 0
        try:
            found = [y.numpy() for y in program(*(wf.tensor(a) for a in arrays))]
        finally:
            settings.small_elements, settings.compile_after = before
        assert_same(found, expected, f"of seed {seed}\n{program}")


# -- threads and processors ----------------------------------------------------------------------


def softmax(x):
    e = wf.exp(x - wf.max(x, axis=-1, keepdims=True))
    return e / wf.sum(e, axis=-1, keepdims=True)


def layer_norm(x):
    centred = x - wf.mean(x, axis=-1, keepdims=True)
    return centred / wf.sqrt(wf.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


LARGE = {
    "chain": lambda x: wf.tanh(x * x + 1),
    "sum of all": lambda x: wf.sum(x),
    "mean of rows": lambda x: wf.mean(x, axis=1),
    "mean of columns": lambda x: wf.mean(x, axis=0),
    "logsumexp of all": lambda x: wf.logsumexp(x),
    "softmax": softmax,
    "layer norm": layer_norm,
    "product": lambda x: x[:200] @ wf.matrix_transpose(x[:300]),
    "transposed": lambda x: wf.matrix_transpose(x) * 2,
    "cumsum": lambda x: wf.cumsum(x, axis=0),
    "argmax": lambda x: wf.argmax(x, axis=0),
    "argmax of all": lambda x: wf.argmax(x),
    "prod": lambda x: wf.prod(1 + x * 1e-3, axis=1),
    "max of all": lambda x: wf.max(x),
    "gathered": lambda x: wf.sum(x[wf.asarray([5, 3, 3, 700])], axis=0),
    "updated": lambda x: x.at[wf.asarray([5, 3, 3])].add(x[:3]),
}


def large(dtype: Any) -> list[Case]:
    x = np.random.default_rng(3).standard_normal((777, 1031)).astype(dtype)
    return [Case(name, f, [x]) for name, f in LARGE.items()]


@pytest.mark.slow
@pytest.mark.promise("S4.30")
@pytest.mark.parametrize("dtype", [wf.float32, wf.bfloat16], ids=str)
def test_the_number_of_threads_changes_no_bit(dtype: Any) -> None:
    cases = large(dtype)
    (x,) = cases[0].arrays
    trace = wf.trace(lambda x: [c.function(x) for c in cases], wf.asarray(x))
    program = native(trace)
    expected = program.run([x], 1)
    assert_same(expected, interpreted(trace, [x]))
    for threads in (2, 3, 4, 4, 4):
        assert_same(program.run([x], threads), expected, f"with {threads} threads")
    before = settings.threads
    settings.threads = 4
    try:
        assert_same(program.run([x]), expected)
    finally:
        settings.threads = before


class WiderVectors(jit.Target):
    """A processor for which loops are made as if its vectors had 64 bytes."""

    @property
    def vector_bytes(self) -> int:
        return 64


def targets() -> list[Any]:
    host = jit.host_target()
    made = {
        "baseline": host.baseline(),
        "no avx512": host.without("avx512"),
        "no avx": host.without("avx"),
        "no half": host.without("fullfp16"),  # on x86 wide vectors imply conversions of halves
        "wider vectors": WiderVectors(host.triple, host.cpu, host.features),
    }
    distinct = {t: name for name, t in made.items() if t != host}
    return [pytest.param(target, id=name) for target, name in distinct.items()]


@pytest.mark.slow
@pytest.mark.promise("S4.29")
@pytest.mark.parametrize("target", targets())
def test_what_a_processor_can_do_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch, target: Any
) -> None:
    monkeypatch.setattr(build_executable._stored, "recall", lambda origin: None)
    before = STORE.compilations
    with jit.using_target(target):
        check(large(wf.float32))
        check(plain_cases(range(700, 720)))
    assert STORE.compilations > before, "nothing was made for this target"


def test_a_difference_in_one_bit_or_one_sign_is_seen() -> None:
    one = np.ones(3, np.float32)
    assert is_same(np.array([np.nan, -0.0]), np.array([-np.nan, -0.0]))
    assert not is_same(np.nextafter(one, 2), one)
    assert not is_same(np.zeros(2), -np.zeros(2))
    assert not is_same(one, one.astype(np.float64))
    assert not is_same(one, one[:, None])
    assert not is_same(np.array([np.nan]), np.array([0.0]))
    with pytest.raises(AssertionError, match="off: AssertionError"):
        check([Case("off", lambda x: wf.sin(x), [one])], lambda trace, arrays: (one,))


def main() -> int:
    """Try random programs until enough have passed."""
    parser = argparse.ArgumentParser(description="random programs, interpreted and compiled")
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    bad = 0
    print(f"seed {given.seed}")
    for start in range(given.seed, given.seed + given.programs, BATCH):
        seeds = range(start, min(start + BATCH, given.seed + given.programs))
        for make in (plain_cases, transformed_cases):
            try:
                check(make(seeds))
            except (AssertionError, WeftError) as error:
                bad += 1
                print(error, flush=True)
        print(f"{seeds.stop - given.seed} programs, {bad} batches differ", flush=True)
    return 1 if bad else 0


def test_turns_of_an_unrolled_loop_read_their_own_elements() -> None:
    """An address that an earlier stage knows under the same number stays this turn's alone."""

    def function(x):
        rolled = wf.roll(x, 1)
        scale = wf.where(wf.any(rolled > -9), 0.25, 1.0) * 1.0
        return wf.any(rolled > -9), wf.abs(scale) * x

    check([Case("roll, any, scale", function, [np.array([-1.03, 0.55], np.float32)])])
    check(transformed_cases(range(1545608712, 1545608713)))


def test_addresses_begin_at_those_that_are_known_where_they_are_written() -> None:
    """A turn of an unrolled loop may know an address under the number of one further out."""

    def function(a, b):
        m = a + b[:, None]
        return wf.sum(m[:-1, :, :, None] + m[1:, None], axis=2)

    for count, rows in ((5, 20), (5, 99), (4, 20), (9, 33)):
        arrays = [np.ones((count, count)), np.arange(float(rows * count)).reshape(rows, count)]
        check([Case(f"products of neighbours {count} {rows}", function, arrays)])


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
@pytest.mark.parametrize("name", ["gather", "dynamic_start", "scatter_add", "scatter_set"])
def test_positions_may_be_narrow(name: str, dtype: str) -> None:
    op = OPS[name]
    example = calls(op)[0]
    wide = operands(op, example, np.random.default_rng(0))
    arrays = [a.astype(dtype) if a.dtype == np.int64 else a for a in wide]
    check([Case(f"{name} {dtype}", performer(op, dict(example.params)), arrays)])


if __name__ == "__main__":
    sys.exit(main())
