"""What this machine can do at most: arithmetic and memory, measured by kernels of our own.

The first processes that ask measure, which takes a fraction of a second; what they find is kept
with the compiled code, for all that run on such a processor with as many threads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, reduce
from time import perf_counter_ns
from typing import Any

import numpy as np

from weft.compiler.cost import Work
from weft.compiler.emit_cpu import emit
from weft.compiler.loops import (
    Assign,
    Buffer,
    Kernel,
    Local,
    Loop,
    Statement,
    Store,
    Value,
    const,
    get,
    integer,
    load,
    parameter,
    value,
    variable,
)
from weft.compiler.polynomial import add, multiply
from weft.compiler.rebuild import Statements
from weft.config import settings
from weft.core.common.types import Array, DType
from weft.runtime.cpu.code_cache import cached, code_cache, compiler_fingerprint
from weft.runtime.cpu.jit import compile_text, host_target, load_object
from weft.runtime.cpu.pool import pool
from weft.runtime.cpu.program_builder import PARALLEL_NS, ProgramBuilder, Step

SIZES = (1 << 16, 1 << 20, 1 << 23, 1 << 26)  # bytes at which memory is measured
_FLOAT, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_CHAINS = 12  # independent sums: enough to hide latency, few enough for 16 registers
_TURNS = 1 << 16
_TRIES = 7
_LEAST_BYTES = 1 << 23  # that a try reads, however small the working set is
_PROCESSES = 3  # whose measurements are kept


@dataclass(frozen=True)
class Peaks:
    """Rates of this machine with a number of threads; operations and bytes per nanosecond.

    That is: in GFLOP/s and GB/s. `read` and `write` are those of working sets of `SIZES` bytes.
    """

    threads: int
    float32: float
    float64: float
    read: tuple[float, ...]
    write: tuple[float, ...]

    def nanoseconds(self, work: Work, *, wide: bool = False) -> float:
        """The least time for some work: that of its arithmetic or of its memory."""
        level = next((i for i, size in enumerate(SIZES) if work.moved <= size), len(SIZES) - 1)
        moving = work.read / self.read[level] + work.written / self.write[level]
        return max(work.flops / (self.float64 if wide else self.float32), moving)

    def __str__(self) -> str:
        return (
            f"{self.threads} thread{'s' * (self.threads > 1)}: {self.float32:.0f} GFLOP/s float32,"
            f" {self.float64:.0f} float64; reads {_rates(self.read)} GB/s, writes"
            f" {_rates(self.write)} GB/s of {_sizes()}"
        )


def _rates(rates: Sequence[float]) -> str:
    return "/".join(f"{rate:.0f}" for rate in rates)


def _sizes() -> str:
    return "/".join(f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB" for size in SIZES)


def peaks(threads: int = 0) -> Peaks:
    """The machine's peaks with so many threads; 0 is what programs use by default."""
    return _known(threads or settings.threads or pool.cores)


@cache
def _known(threads: int) -> Peaks:
    target = host_target()
    parts = ("peaks", target.triple, target.cpu, target.features, compiler_fingerprint(), threads)
    key = hashlib.sha256(repr(parts).encode()).hexdigest()
    store = code_cache()
    kept = store.get(key)
    tries: list[dict[str, Any]] = [] if kept is None else json.loads(kept)
    if len(tries) < _PROCESSES:
        tries.append(asdict(_Bench(threads).measured()))
        store.put(key, json.dumps(tries).encode())
    found = [Peaks(**each) for each in tries]
    return best(found if threads == 1 else [*found, replace(_known(1), threads=threads)])


def best(tries: Sequence[Peaks]) -> Peaks:
    """The highest of each rate: other programs can only make a measurement slower."""
    return Peaks(
        tries[0].threads,
        max(each.float32 for each in tries),
        max(each.float64 for each in tries),
        tuple(map(max, zip(*(each.read for each in tries)))),
        tuple(map(max, zip(*(each.write for each in tries)))),
    )


class _Bench:
    """The kernels, compiled, and how to time them; each thread has memory of its own."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        target = host_target()
        self.vector = target.vector_bytes
        kernels = [_products(d.name, d, self.vector // d.itemsize) for d in (_FLOAT, _DOUBLE)]
        kernels += [_sums(self.vector // _FLOAT.itemsize), _copies(self.vector // _FLOAT.itemsize)]
        text = emit(kernels, target)
        self.code = load_object(cached(text, target, lambda: compile_text(text, target)))

    def measured(self) -> Peaks:
        """All rates."""
        reads = tuple(map(self._reading, SIZES))
        return Peaks(
            self.threads,
            self._arithmetic(_FLOAT),
            self._arithmetic(_DOUBLE),
            reads,
            tuple(map(self._writing, SIZES, reads)),
        )

    def _arithmetic(self, dtype: DType) -> float:
        data = (np.zeros(2, dtype), np.zeros(self.threads * self.vector, dtype))
        flops = 2 * _CHAINS * (self.vector // dtype.itemsize) * _TURNS * self.threads
        return flops / self._nanoseconds(dtype.name, data, _TURNS, 1)

    def _reading(self, size: int) -> float:
        blocks = size // (self.vector * _CHAINS * self.threads)
        data = (np.ones(size // 4, _FLOAT), np.zeros(self.threads * self.vector, _FLOAT))
        moved = blocks * self.vector * _CHAINS * self.threads
        repeats = max(_LEAST_BYTES // size, 1)
        return moved * repeats / self._nanoseconds("sums", data, blocks, repeats)

    def _writing(self, size: int, reading: float) -> float:
        """From the time of a copy that reading does not explain: at least a tenth of it."""
        blocks = size // 2 // (self.vector * _CHAINS * self.threads)
        data = (np.ones(size // 8, _FLOAT), np.zeros(size // 8, _FLOAT))
        moved = blocks * self.vector * _CHAINS * self.threads
        repeats = max(_LEAST_BYTES // size, 1)
        spent = self._nanoseconds("copies", data, blocks, repeats) / repeats
        return moved / max(spent - moved / reading, spent / 10)

    def _nanoseconds(self, name: str, arrays: tuple[Array, ...], *counts: int) -> float:
        builder = ProgramBuilder(len(arrays))
        slots = tuple(builder.argument(k) for k in range(len(arrays)))
        address, numbers = self.code.address(name), (self.threads, *counts)
        cost = PARALLEL_NS * self.threads
        builder.region([Step(address, slots, numbers, self.threads, cost, name, grain=1)])
        program = builder.build(keep_alive=self.code)
        pointers = [a.ctypes.data for a in arrays]
        tries = []
        for _ in range(_TRIES):
            start = perf_counter_ns()
            program.run(pointers, self.threads)
            tries.append(perf_counter_ns() - start)
        return float(min(tries))


_task, _lane, _turn, _block = map(variable, ("task", "lane", "turn", "block"))


def _kernel(name: str, dtype: DType, lanes: int, body: Statements, modes: str) -> Kernel:
    """`body` for each task, in lanes; there are registers for sums, and two more."""
    buffers = tuple(Buffer(f"b{k}", dtype, mode) for k, mode in enumerate(modes.split()))
    registers = tuple(Local(f"t{k}", dtype, lanes) for k in range(_CHAINS + 2))
    inside = Loop(_lane, integer(0), integer(lanes), body, "vector", lanes)
    task = Loop(_task, integer(0), parameter(0), (inside,), "parallel")
    return Kernel(name, buffers, registers, (task,), parameters=3)


def _added(lanes: int, dtype: DType, repeated: Statement) -> Statements:
    """Sums that start at 0; then what is repeated; then their total in memory."""
    sums = [get(k, dtype) for k in range(_CHAINS)]
    total = reduce(lambda x, y: value("add", (x, y), dtype), sums)
    start = [Assign(k, const(0, dtype)) for k in range(_CHAINS)]
    return (*start, repeated, Store(1, add(multiply(_task, lanes), _lane), total))


def _products(name: str, dtype: DType, lanes: int) -> Kernel:
    """Chains of fused multiplications and additions on registers."""
    x, y = (get(_CHAINS + k, dtype) for k in range(2))
    steps = [Assign(k, value("fma", (x, y, get(k, dtype)), dtype)) for k in range(_CHAINS)]
    given = [Assign(_CHAINS + k, load(0, integer(k), dtype)) for k in range(2)]
    repeated = Loop(_turn, integer(0), parameter(1), tuple(steps))
    return _kernel(name, dtype, lanes, (*given, *_added(lanes, dtype, repeated)), "read write")


def _places(lanes: int) -> list[Value]:
    """Where the vectors of a block lie, and a lane in each."""
    block = multiply(add(multiply(_task, parameter(1)), _block), _CHAINS * lanes)
    return [add(add(block, k * lanes), _lane) for k in range(_CHAINS)]


def _again(body: list[Statement]) -> Loop:
    """A task's blocks, several times."""
    blocks = Loop(_block, integer(0), parameter(1), tuple(body))
    return Loop(_turn, integer(0), parameter(2), (blocks,))


def _sums(lanes: int) -> Kernel:
    steps: list[Statement] = [
        Assign(k, value("add", (get(k, _FLOAT), load(0, place, _FLOAT)), _FLOAT))
        for k, place in enumerate(_places(lanes))
    ]
    return _kernel("sums", _FLOAT, lanes, _added(lanes, _FLOAT, _again(steps)), "read write")


def _copies(lanes: int) -> Kernel:
    steps: list[Statement] = [Store(1, p, load(0, p, _FLOAT)) for p in _places(lanes)]
    return _kernel("copies", _FLOAT, lanes, (_again(steps),), "read write")
