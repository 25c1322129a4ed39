"""What this machine can do at most: arithmetic, memory and threads, measured by our own kernels.

The first processes that ask measure, which takes a fraction of a second; what they find is kept
with the compiled code, for all that run on such a processor with as many threads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from time import perf_counter_ns, sleep, thread_time_ns
from typing import Any

import numpy as np

from weft.compiler.cost import Work
from weft.compiler.emit_cpu import emit
from weft.compiler.kernels import registers_of
from weft.compiler.peak_kernels import CHAINS, DEPTH, FLOAT, block, copies, kernel, products, sums
from weft.config import settings
from weft.core.common.types import Array, DType
from weft.runtime.cpu.code_cache import cached, code_cache, compiler_fingerprint
from weft.runtime.cpu.jit import Target, compile_text, host_target, load_object
from weft.runtime.cpu.pool import pool
from weft.runtime.cpu.program_builder import PARALLEL_NS, ProgramBuilder, Step

SIZES = (1 << 14, 1 << 18, 1 << 22, 1 << 26)  # bytes: within three caches, and in memory
_DOUBLE = np.dtype(np.float64)
_TURNS = 1 << 14
_TRIES = 5
_LEAST_BYTES = 1 << 21  # that a try reads, however small the working set is
_BLOCKS = 64  # times that a block of a product is run through
_ROUNDS = 4  # in which blocks take turns
_ASLEEP = 1e-3  # seconds after which idle threads no longer look for work
_PROCESSES = 3  # whose measurements are kept


@dataclass(frozen=True)
class Peaks:
    """Rates of this machine with a number of threads; operations and bytes per nanosecond.

    That is: in GFLOP/s and GB/s. `read` and `write` are those of working sets of `SIZES` bytes,
    `handoff` is how many nanoseconds it takes to wake all threads and be done, and
    `blocks` are rates of float32 products with so many rows and vectors of sums in registers,
    while all they read is in the first cache.
    """

    threads: int
    float32: float
    float64: float
    read: tuple[float, ...]
    write: tuple[float, ...]
    handoff: float = 0.0
    blocks: tuple[tuple[int, int, float], ...] = ()

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
            + (f"; a handoff {self.handoff / 1e3:.1f} µs" if self.handoff else "")
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
    tries = _kept(threads)
    if len(tries) < _PROCESSES:
        blocks = blocks_of(host_target()) if threads == 1 else ()
        tries.append(Bench(threads, blocks).measured())
        data = json.dumps([asdict(each) for each in tries])
        code_cache().put(_key(threads), data.encode())
    return best(tries if threads == 1 else [*tries, replace(_known(1), threads=threads)])


def measured_before(threads: int) -> Peaks | None:
    """The peaks with so many threads, if some process has measured them."""
    tries = _kept(threads)
    return best(tries) if tries else None


def _kept(threads: int) -> list[Peaks]:
    found = code_cache().get(_key(threads))
    if found is None:
        return []
    return [_from_json(each) for each in json.loads(found)]


def _from_json(data: dict[str, Any]) -> Peaks:
    """JSON has lists where a record has tuples."""
    blocks = tuple((rows, vectors, rate) for rows, vectors, rate in data["blocks"])
    lists = {name: tuple(data[name]) for name in ("read", "write")}
    return Peaks(**{**data, **lists, "blocks": blocks})


def _key(threads: int) -> str:
    target = host_target()
    parts = ("peaks", target.triple, target.cpu, target.features, compiler_fingerprint(), threads)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def best(tries: Sequence[Peaks]) -> Peaks:
    """The best of each figure: other programs can only make a measurement worse."""
    blocks: dict[tuple[int, int], float] = {}
    for rows, vectors, rate in (kind for each in tries for kind in each.blocks):
        blocks[rows, vectors] = max(rate, blocks.get((rows, vectors), 0.0))
    return Peaks(
        tries[0].threads,
        max(each.float32 for each in tries),
        max(each.float64 for each in tries),
        tuple(map(max, zip(*(each.read for each in tries)))),
        tuple(map(max, zip(*(each.write for each in tries)))),
        min((each.handoff for each in tries if each.handoff), default=0.0),
        tuple((*kind, rate) for kind, rate in blocks.items()),
    )


class Bench:
    """The kernels, compiled, and how to time them; each thread has a task of its own."""

    def __init__(
        self, threads: int, blocks: Sequence[tuple[int, int]] = (), dtype: DType = FLOAT
    ) -> None:
        self.threads = threads
        self.blocks = tuple(blocks)
        self.dtype = dtype  # of the blocks
        target = host_target()
        self.vector = target.vector_bytes
        lanes = self.vector // FLOAT.itemsize
        kernels = [products(d.name, d, self.vector // d.itemsize) for d in (FLOAT, _DOUBLE)]
        kernels += [sums(lanes), copies(lanes), kernel("nothing", FLOAT, 1, (), "write")]
        kernels += [
            block(f"block{k}", dtype, self.vector // dtype.itemsize, *b)
            for k, b in enumerate(self.blocks)
        ]
        text = emit(kernels, target)
        self.code = load_object(cached(text, target, lambda: compile_text(text, target)))
        self.memory = np.ones(SIZES[-1] // FLOAT.itemsize, FLOAT)

    def measured(self) -> Peaks:
        """All rates."""
        reads = tuple(map(self._reading, SIZES))
        return Peaks(
            self.threads,
            self._arithmetic(FLOAT),
            self._arithmetic(_DOUBLE),
            reads,
            tuple(map(self._writing, SIZES, reads)),
            self._handoff() if self.threads > 1 else 0.0,
            tuple(self._products()),
        )

    def _arithmetic(self, dtype: DType) -> float:
        data = (np.zeros(2, dtype), np.zeros(self.threads * self.vector, dtype))
        flops = 2 * CHAINS * (self.vector // dtype.itemsize) * _TURNS * self.threads
        return flops / self._nanoseconds(dtype.name, data, _TURNS, 1)

    def _reading(self, size: int) -> float:
        blocks = size // (self.vector * CHAINS * self.threads)
        data = (self.memory, np.zeros(self.threads * self.vector, FLOAT))
        moved = blocks * self.vector * CHAINS * self.threads
        repeats = max(_LEAST_BYTES // size, 1)
        return moved * repeats / self._nanoseconds("sums", data, blocks, repeats)

    def _writing(self, size: int, reading: float) -> float:
        """From the time of a copy that reading does not explain: at least a tenth of it."""
        blocks = size // 2 // (self.vector * CHAINS * self.threads)
        half = len(self.memory) // 2
        moved = blocks * self.vector * CHAINS * self.threads
        repeats = max(_LEAST_BYTES // size, 1)
        data = (self.memory[:half], self.memory[half:])
        spent = self._nanoseconds("copies", data, blocks, repeats) / repeats
        return moved / max(spent - moved / reading, spent / 10)

    def _handoff(self) -> float:
        """What a region of nothing costs on threads that have gone to sleep."""
        nothing = (np.zeros(1, FLOAT),)
        return self._least(self._runner("nothing", nothing, 1, 1), _ASLEEP)

    def products_of(self, place: int, repeats: int) -> tuple[Callable[[], None], int]:
        """A call that runs one of the blocks so often on every thread, and its flops."""
        rows, vectors = self.blocks[place]
        lanes = self.vector // self.dtype.itemsize
        widths = (rows * DEPTH, vectors * lanes * DEPTH, lanes * self.threads)
        data = tuple(np.zeros(width, self.dtype) for width in widths)
        flops = 2 * rows * vectors * lanes * DEPTH * repeats * self.threads
        return self._runner(f"block{place}", data, 1, repeats), flops

    def _products(self) -> Iterator[tuple[int, int, float]]:
        runs = [self.products_of(place, _BLOCKS) for place in range(len(self.blocks))]
        # In turns: processors are slow at first.
        rounds = [[flops / self._least(run) for run, flops in runs] for _ in range(_ROUNDS)]
        for (rows, vectors), rates in zip(self.blocks, zip(*rounds, strict=True), strict=True):
            yield rows, vectors, max(rates)

    def _nanoseconds(self, name: str, arrays: tuple[Array, ...], *counts: int) -> float:
        return self._least(self._runner(name, arrays, *counts))

    def _least(self, run: Callable[[], None], pause: float = 0.0) -> float:
        """The least of several times of a call, in nanoseconds.

        Alone a thread's own time counts: so it does not matter what else the machine does.
        """
        clock = thread_time_ns if self.threads == 1 else perf_counter_ns
        spent = []
        for _ in range(_TRIES):
            sleep(pause)
            start = clock()
            run()
            spent.append(clock() - start)
        return float(max(min(spent), 1))

    def _runner(self, name: str, arrays: tuple[Array, ...], *counts: int) -> Callable[[], None]:
        """A call of a kernel with a task for each thread."""
        builder = ProgramBuilder(len(arrays))
        slots = tuple(builder.argument(k) for k in range(len(arrays)))
        address, numbers = self.code.address(name), (self.threads, *counts)
        cost = PARALLEL_NS * self.threads
        builder.region([Step(address, slots, numbers, self.threads, cost, name, grain=1)])
        program = builder.build(keep_alive=(self.code, arrays))
        pointers = [a.ctypes.data for a in arrays]
        return lambda: program.run(pointers, self.threads)


def blocks_of(target: Target) -> tuple[tuple[int, int], ...]:
    """Rows and vectors of sums in registers that large products may take; the usual come first."""
    if registers_of(target) == 16:
        return ((6, 2), (4, 3))
    return ((14, 2),) if target.vector_bytes == 64 else ((8, 3), (12, 2))
