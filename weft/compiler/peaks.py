"""What this machine can do at most: arithmetic and memory, measured by kernels of our own.

The measurement takes about half a second. It is kept with the compiled code, for all processes of
the same processor, number of threads and compiler. The best of several tries counts, since other
programs can only make a try slower.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from time import perf_counter_ns

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
    get,
    integer,
    load,
    parameter,
    value,
    variable,
)
from weft.config import settings
from weft.core.common.types import Array, DType
from weft.runtime.cpu.code_cache import cached, code_cache, compiler_fingerprint
from weft.runtime.cpu.jit import compile_text, host_target, load_object
from weft.runtime.cpu.pool import pool
from weft.runtime.cpu.program_builder import ProgramBuilder, Step

SIZES = (1 << 16, 1 << 20, 1 << 23, 1 << 26)  # bytes at which memory is measured
_FLOAT, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_CHAINS = 12  # independent sums: enough to hide latency, few enough for 16 registers
_TURNS = 4096
_TRIES = 5
_PASS_BYTES = 1 << 25  # that a try moves at least
_PARALLEL_NS = 1e9  # an estimate that lets every region run on all threads


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
    if kept is not None:
        found = json.loads(kept)
        return Peaks(**{k: tuple(v) if isinstance(v, list) else v for k, v in found.items()})
    made = _Bench(threads).measured()
    store.put(key, json.dumps(asdict(made)).encode())
    return made


class _Bench:
    """The kernels, compiled, and how to time them."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        target = host_target()
        wide = target.vector_bytes
        self.lanes = {_FLOAT: wide // 4, _DOUBLE: wide // 8}
        kernels = [
            _products("float32", _FLOAT, self.lanes[_FLOAT]),
            _products("float64", _DOUBLE, self.lanes[_DOUBLE]),
            _sums(self.lanes[_FLOAT]),
            _copies(self.lanes[_FLOAT]),
        ]
        text = emit(kernels, target)
        self.code = load_object(cached(text, target, lambda: compile_text(text, target)))

    def measured(self) -> Peaks:
        """All rates."""
        rates = [(self._reading(size), self._writing(size)) for size in SIZES]
        return Peaks(
            self.threads,
            self._arithmetic("float32", _FLOAT),
            self._arithmetic("float64", _DOUBLE),
            tuple(r for r, _ in rates),
            tuple(w for _, w in rates),
        )

    def _arithmetic(self, name: str, dtype: DType) -> float:
        data = np.zeros(2 + self.threads * self.lanes[dtype], dtype)
        flops = 2 * _CHAINS * self.lanes[dtype] * _TURNS * self.threads
        return flops / self._time(name, (data,), 0, 4)

    def _reading(self, size: int) -> float:
        data = np.ones(size // _FLOAT.itemsize, _FLOAT)
        out = np.zeros(self.threads * self.lanes[_FLOAT], _FLOAT)
        return self._moved(size) / self._time("sums", (data, out), self._blocks(size), 1)

    def _writing(self, size: int) -> float:
        """What is left of the time of a copy when its reading is taken away, at least a tenth."""
        half = size // 2
        source = np.ones(half // _FLOAT.itemsize, _FLOAT)
        target = np.zeros_like(source)
        spent = self._time("copies", (source, target), self._blocks(half), 1)
        reading = self._moved(half) / self._reading(size)
        return self._moved(half) / max(spent - reading, spent / 10)

    def _blocks(self, size: int) -> int:
        """Blocks of vectors that each thread has of a working set."""
        return size // (_CHAINS * self.lanes[_FLOAT] * _FLOAT.itemsize * self.threads)

    def _moved(self, size: int) -> int:
        block = _CHAINS * self.lanes[_FLOAT] * _FLOAT.itemsize
        return self._blocks(size) * block * self.threads * _passes(size)

    def _time(self, name: str, arrays: tuple[Array, ...], blocks: int, passes: int) -> float:
        """The least nanoseconds of a kernel with a task for each thread."""
        passes = _passes(arrays[0].nbytes) if blocks else passes
        builder = ProgramBuilder(len(arrays))
        slots = tuple(builder.argument(k) for k in range(len(arrays)))
        parameters = (blocks,) if blocks else ()
        address = self.code.address(name)
        step = Step(address, slots, parameters, self.threads, _PARALLEL_NS, name, grain=1)
        with builder.loop(passes):
            builder.region([step])
        program = builder.build(keep_alive=self.code)
        pointers = [a.ctypes.data for a in arrays]
        program.run(pointers, self.threads)
        best = float("inf")
        for _ in range(_TRIES):
            start = perf_counter_ns()
            program.run(pointers, self.threads)
            best = min(best, perf_counter_ns() - start)
        return best / (1 if blocks else passes)


def _passes(size: int) -> int:
    return max(_PASS_BYTES // size, 1)


def _each(make: object) -> None:
    raise NotImplementedError
