"""How near heavy kernels come to what the machine can do, in one run.

    python benchmarks/roofline.py --threads 1

Each kernel runs in turns with the block of sums it is made of, on panels that lie packed in the
first cache: the share of that rate is what cutting, packing, memory and all else that is computed
leave of it. The column before is the share of the least time that the machine's peaks, of
arithmetic and memory, would allow.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import harness

OPTIONS = harness.options_of(__doc__) if __name__ == "__main__" else None
harness.hold(OPTIONS.threads if OPTIONS else 1)

import numpy as np  # noqa: E402  what stands above must come first

import weft as wf  # noqa: E402
from weft.compiler.cost import Work, work_of  # noqa: E402
from weft.compiler.native import Native  # noqa: E402
from weft.compiler.passes.contract_blocks import Block  # noqa: E402
from weft.compiler.peaks import Bench, peaks  # noqa: E402
from weft.compiler.steps import Call  # noqa: E402

BLOCK_FLOPS = 1 << 27  # that the block alone is run through in a turn
GOAL = 0.85


@dataclass(frozen=True)
class Heavy:
    """A program with one heavy kernel."""

    name: str
    program: Callable[..., Any]
    arrays: Callable[[], tuple[Any, ...]]
    goal: float = 0.0  # share of the block's own rate
    products: int = 0  # operations of its products alone, where there are others


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def programs(quick: bool) -> Iterator[Heavy]:
    """Products of several kinds, and what memory limits."""
    scale = 8 if quick else 1

    def product(m: int, k: int, n: int, dtype: Any = np.float32, goal: float = 0.0) -> Heavy:
        m, k, n = (max(size // scale, 1) for size in (m, k, n))
        name = f"matmul {np.dtype(dtype).name} {m}×{k}×{n}"
        arrays = lambda: (normal(m, k, dtype=dtype), normal(k, n, dtype=dtype))  # noqa: E731
        return Heavy(name, lambda x, y: x @ y, arrays, goal)

    yield product(1024, 1024, 1024, goal=GOAL)
    yield product(2048, 2048, 2048, goal=GOAL)
    yield product(1024, 1024, 1024, np.float64)
    yield product(4096, 512, 4096)
    yield product(4096, 64, 4096)
    yield product(16, 4096, 4096)
    m, k, n = (size // scale for size in (1024, 1024, 4096))
    yield Heavy(
        f"{m}×{k}×{n} + bias + gelu",
        lambda x, w, b: wf.gelu(x @ w + b),
        lambda: (normal(m, k), normal(k, n), normal(n)),
        products=2 * m * k * n,
    )
    long = 2048 // scale
    yield Heavy(
        f"attention b4 h8 T{long} d64",
        wf.scaled_dot_product_attention,
        lambda: tuple(normal(4, 8, long, 64) for _ in range(3)),
        products=4 * 4 * 8 * long * long * 64,
    )
    yield product(128, 4096, 4096)
    yield product(8192, 8192, 8)
    m = 8192 // scale
    yield Heavy(f"matrix–vector {m}²", lambda x, y: x @ y, lambda: (normal(m, m), normal(m)))
    n = (1 << 24) // scale
    yield Heavy(f"a·x + y, {n >> 20} M", lambda x, y: 2 * x + y, lambda: (normal(n), normal(n)))
    yield Heavy(f"sum of {n >> 20} M", lambda x: x.sum(), lambda: (normal(n),))
    yield Heavy(f"softmax {m}×1024", lambda x: wf.softmax(x, -1), lambda: (normal(m, 1024),))


def timed(heavy: Heavy, rounds: int, seconds: float, threads: int) -> dict[str, Any]:
    """Run one program beside its block, print a line, and give what was found."""
    tensors = [wf.tensor(a) for a in heavy.arrays()]
    function = wf.compile(heavy.program)
    made = Native(function.lower(*tensors))
    calls = [call for call in made.calls.values() if isinstance(call, Call)]
    work = [work_of(call) for call in calls]
    total = Work(*(sum(getattr(w, name) for w in work) for name in ("flops", "read", "written")))
    workload: harness.Workload = {"weft": lambda: function(*tensors)}
    kernels = [kernel for call in calls for kernel in call.request.compiled.kernels]
    cuts = (kernel.notes.get("contract") for kernel in kernels)
    cut: Block | None = next((found for found in cuts if found is not None), None)
    dtype = tensors[0].dtype
    flops = 0
    if cut is not None and cut.lanes > 1:
        alone = Bench(threads, [(cut.rows, cut.vectors)], np.dtype(dtype))
        _, once = alone.products_of(0, 1)
        run, flops = alone.products_of(0, max(BLOCK_FLOPS // once, 1))
        workload["block"] = run
    times = harness.measure(workload, rounds, seconds)
    spent = statistics.median(times["weft"])
    machine = peaks(threads)
    wide = np.dtype(dtype).itemsize == 8
    found: dict[str, Any] = {
        "milliseconds": {"weft": spent * 1e3},
        "gflops": total.flops / spent / 1e9,
        "of_peaks": machine.nanoseconds(total, wide=wide) / spent / 1e9,
    }
    told = f"{'':24}"
    if flops:
        done = heavy.products or total.flops
        rates = [(done / t) / (flops / b) for t, b in zip(*times.values(), strict=True)]
        found["of_block"] = statistics.median(rates)
        told = f"{found['of_block']:6.1%} of block {cut.rows}×{cut.vectors}" if cut else ""
        if heavy.goal:
            found["ok"] = found["of_block"] >= heavy.goal
            told += f" (goal {heavy.goal:.0%}: {harness.MARKS[found['ok']]})"
    print(
        f"  {heavy.name:28} {spent * 1e3:9.2f} ms {found['gflops']:7.1f} GFLOP/s"
        f"  {found['of_peaks']:6.1%} of peaks  {told}",
        flush=True,
    )
    return found


def main() -> None:
    """Print the table, and write it where `--json` says."""
    assert OPTIONS is not None
    print(harness.machine())
    print(peaks(OPTIONS.threads))
    rows = {
        heavy.name: timed(heavy, OPTIONS.rounds, OPTIONS.seconds, OPTIONS.threads)
        for heavy in programs(OPTIONS.quick)
        if OPTIONS.rows in heavy.name
    }
    harness.keep(OPTIONS.json, rows=rows)


if __name__ == "__main__":
    main()
