"""What this machine can do at most: arithmetic, memory and threads, measured by our own kernels.

The first processes that ask measure, which takes a fraction of a second; what they find is kept
with the compiled code, for all that run on such a processor with as many threads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, reduce
from time import perf_counter_ns, sleep
from typing import Any

import numpy as np

from weft.compiler.choice import Choice
from weft.compiler.cost import Work
from weft.compiler.emit_cpu import emit
from weft.compiler.kernels import evaluate, registers_of
from weft.compiler.loops import (
    Assign,
    Buffer,
    Kernel,
    Local,
    Loop,
    Part,
    Reduce,
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
from weft.compiler.passes.contract import contract
from weft.compiler.polynomial import add, multiply
from weft.compiler.rebuild import Statements
from weft.config import settings
from weft.core.common.types import Array, DType
from weft.runtime.cpu.code_cache import cached, code_cache, compiler_fingerprint
from weft.runtime.cpu.jit import Target, compile_text, host_target, load_object
from weft.runtime.cpu.pool import pool
from weft.runtime.cpu.program_builder import PARALLEL_NS, ProgramBuilder, Step

SIZES = (1 << 14, 1 << 18, 1 << 22, 1 << 26)  # bytes: within three caches, and in memory
_FLOAT, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_CHAINS = 12  # independent sums: enough to hide latency, few enough for 16 registers
_TURNS = 1 << 14
_TRIES = 5
_LEAST_BYTES = 1 << 21  # that a try reads, however small the working set is
_ASLEEP = 1e-3  # seconds after which idle threads no longer look for work
_PRODUCT = (168, 96, 256)  # rows, columns, depth: whole blocks of any kind, in the second cache
_PROCESSES = 3  # whose measurements are kept


@dataclass(frozen=True)
class Peaks:
    """Rates of this machine with a number of threads; operations and bytes per nanosecond.

    That is: in GFLOP/s and GB/s. `read` and `write` are those of working sets of `SIZES` bytes,
    `handoff` is how many nanoseconds it takes to wake all threads and be done, and
    `blocks` are rates of float32 products with so many rows and vectors of sums in registers.
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
        tries.append(_Bench(threads).measured())
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
    for rows, vectors, rate in (block for each in tries for block in each.blocks):
        blocks[rows, vectors] = max(rate, blocks.get((rows, vectors), 0.0))
    return Peaks(
        tries[0].threads,
        max(each.float32 for each in tries),
        max(each.float64 for each in tries),
        tuple(map(max, zip(*(each.read for each in tries)))),
        tuple(map(max, zip(*(each.write for each in tries)))),
        min((each.handoff for each in tries if each.handoff), default=0.0),
        tuple((*block, rate) for block, rate in blocks.items()),
    )


class _Bench:
    """The kernels, compiled, and how to time them; each thread has memory of its own."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        target = host_target()
        self.vector = target.vector_bytes
        kernels = [_products(d.name, d, self.vector // d.itemsize) for d in (_FLOAT, _DOUBLE)]
        kernels += [_sums(self.vector // _FLOAT.itemsize), _copies(self.vector // _FLOAT.itemsize)]
        kernels.append(_kernel("nothing", _FLOAT, 1, (), "write"))
        self.blocks = () if threads > 1 else blocks_of(target)
        self.cut = {f"block{k}": _cut(f"block{k}", b, target) for k, b in enumerate(self.blocks)}
        text = emit([*kernels, *self.cut.values()], target)
        self.code = load_object(cached(text, target, lambda: compile_text(text, target)))
        self.memory = np.ones(SIZES[-1] // _FLOAT.itemsize, _FLOAT)

    def measured(self) -> Peaks:
        """All rates."""
        reads = tuple(map(self._reading, SIZES))
        return Peaks(
            self.threads,
            self._arithmetic(_FLOAT),
            self._arithmetic(_DOUBLE),
            reads,
            tuple(map(self._writing, SIZES, reads)),
            self._handoff() if self.threads > 1 else 0.0,
            tuple(self._products()),
        )

    def _arithmetic(self, dtype: DType) -> float:
        data = (np.zeros(2, dtype), np.zeros(self.threads * self.vector, dtype))
        flops = 2 * _CHAINS * (self.vector // dtype.itemsize) * _TURNS * self.threads
        return flops / self._nanoseconds(dtype.name, data, _TURNS, 1)

    def _reading(self, size: int) -> float:
        blocks = size // (self.vector * _CHAINS * self.threads)
        data = (self.memory, np.zeros(self.threads * self.vector, _FLOAT))
        moved = blocks * self.vector * _CHAINS * self.threads
        repeats = max(_LEAST_BYTES // size, 1)
        return moved * repeats / self._nanoseconds("sums", data, blocks, repeats)

    def _writing(self, size: int, reading: float) -> float:
        """From the time of a copy that reading does not explain: at least a tenth of it."""
        blocks = size // 2 // (self.vector * _CHAINS * self.threads)
        half = len(self.memory) // 2
        moved = blocks * self.vector * _CHAINS * self.threads
        repeats = max(_LEAST_BYTES // size, 1)
        data = (self.memory[:half], self.memory[half:])
        spent = self._nanoseconds("copies", data, blocks, repeats) / repeats
        return moved / max(spent - moved / reading, spent / 10)

    def _handoff(self) -> float:
        """What a region of nothing costs on threads that have gone to sleep."""
        nothing = (np.zeros(1, _FLOAT),)
        return self._nanoseconds("nothing", nothing, 1, 1, pause=_ASLEEP)

    def _products(self) -> Iterator[tuple[int, int, float]]:
        rows, columns, depth = _PRODUCT
        shapes = ((rows, depth), (depth, columns), (rows, columns))
        data = tuple(np.zeros(shape, _FLOAT) for shape in shapes)
        for name, block in zip(self.cut, self.blocks, strict=True):
            tasks = evaluate(self.cut[name].notes["tasks"], ())
            spent = self._nanoseconds(name, data, tasks=tasks)
            yield (*block, 2 * rows * columns * depth / spent)

    def _nanoseconds(
        self,
        name: str,
        arrays: tuple[Array, ...],
        *counts: int,
        tasks: int = 0,
        pause: float = 0.0,
    ) -> float:
        """The least of several times of a kernel; each thread has a task, unless there are more."""
        builder = ProgramBuilder(len(arrays))
        slots = tuple(builder.argument(k) for k in range(len(arrays)))
        address, tasks = self.code.address(name), tasks or self.threads
        numbers = (self.threads, *counts) if counts else ()
        cost = PARALLEL_NS * (self.threads > 1)
        builder.region([Step(address, slots, numbers, tasks, cost, name, grain=1)])
        program = builder.build(keep_alive=self.code)
        pointers = [a.ctypes.data for a in arrays]
        spent = []
        for _ in range(_TRIES):
            sleep(pause)
            start = perf_counter_ns()
            program.run(pointers, self.threads)
            spent.append(perf_counter_ns() - start)
        return float(min(spent))


def blocks_of(target: Target) -> tuple[tuple[int, int], ...]:
    """Rows and vectors of sums in registers that large products may take; the usual come first."""
    if registers_of(target) == 16:
        return ((6, 2), (4, 3))
    return ((14, 2), (8, 3)) if target.vector_bytes == 64 else ((8, 3), (12, 2))


def _cut(name: str, block: tuple[int, int], target: Target) -> Kernel:
    """A product of matrices with such a block."""
    rows, columns, depth = map(integer, _PRODUCT)
    row, column, at = map(variable, ("row", "column", "depth"))
    left = load(0, add(multiply(row, depth), at), _FLOAT)
    right = load(1, add(multiply(at, columns), column), _FLOAT)
    total = Reduce(((at, depth),), 0, (Part((0,), "dot", (left, right)),))
    store = Store(2, add(multiply(row, columns), column), get(0, _FLOAT))
    inner = Loop(column, integer(0), columns, (total, store))
    buffers = (Buffer("a", _FLOAT), Buffer("b", _FLOAT), Buffer("c", _FLOAT, "write"))
    body = (Loop(row, integer(0), rows, (inner,)),)
    kernel = Kernel(name, buffers, (Local("sum", _FLOAT),), body)
    choice = Choice(rows=block[0], vectors=block[1])
    return contract(kernel, target.vector_bytes, registers_of(target), choice)


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
