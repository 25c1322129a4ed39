"""Check and measure the CUDA backend on a machine with an NVIDIA GPU, in one call.

    python tools/cuda_check.py

Programs are compared with the kernels of this CPU bit for bit (any NaN equals any NaN), functions
at samples of all exponents; then bandwidths are measured with events of the driver, and given as
parts of what the driver's own copy of memory reaches.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

import weft as wf
from weft.compiler.native import Native
from weft.core.graph.trace import Trace
from weft.core.tensor.tracing import trace
from weft.runtime.cuda.driver import gpu
from weft.testing.gpu_programs import PROGRAMS, layer_norm, softmax

FUNCTIONS = (
    *("exp", "exp2", "expm1", "log", "log2", "log1p", "log10", "sin", "cos", "tan", "sinh", "cosh"),
    *("tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "sqrt", "rsqrt", "erf", "erfc"),
    *("lgamma", "digamma", "sigmoid"),
)
COUNT = 1 << 26  # elements of the large vectors
SIDE = 8192
RUNS = 20


def different(found: Any, expected: Any) -> int:
    """How many elements differ in their bits; NaN equals NaN."""
    nan = (found != found) & (expected != expected)
    raw = np.dtype(f"u{found.dtype.itemsize}")
    return int(np.sum((found.view(raw) != expected.view(raw)) & ~nan))


def on_cpu(graph: Trace, arrays: list[Any]) -> tuple[Any, ...]:
    """What the kernels of this machine's processor give."""
    return Native(graph).run(arrays)


def compare(name: str, graph: Trace, arrays: list[Any]) -> bool:
    """Whether GPU and CPU give the same bits; prints what it found."""
    found = [x.to_host() for x in wf.client("cuda").executable(graph).run(arrays)]
    expected = on_cpu(graph, arrays)
    wrong = sum(different(a, b) for a, b in zip(found, expected, strict=True))
    total = sum(a.size for a in found)
    print(f"  {name:<14} {'same bits' if not wrong else f'{wrong} of {total} differ'}")
    if wrong:
        for a, b in zip(found, expected, strict=True):
            places = np.flatnonzero((a != b) & ~((a != a) & (b != b)))[:4]
            print("   ", [(int(i), a.reshape(-1)[i], b.reshape(-1)[i]) for i in places])
    return wrong == 0


def samples(dtype: Any, count: int) -> Any:
    """Numbers of every exponent and both signs, and the special ones."""
    rng = np.random.default_rng(0)
    raw = np.dtype(f"u{np.dtype(dtype).itemsize}")
    x = rng.integers(0, np.iinfo(raw).max, count, raw, endpoint=True).view(dtype)
    x[: count // 2] = (rng.standard_normal(count // 2) * 10).astype(dtype)
    x[:6] = [0.0, -0.0, np.inf, -np.inf, np.nan, np.finfo(dtype).smallest_subnormal]
    return x


def check_programs() -> bool:
    """Small programs, then functions."""
    good = True
    print("programs against CPU kernels, bit for bit:")
    for name, program in PROGRAMS.items():
        good &= compare(name, program.trace(), program.arrays())
    for dtype in (np.float32, np.float64):
        print(f"functions of {np.dtype(dtype).name} against CPU kernels, 200 000 samples each:")
        x = samples(dtype, 200_000)
        for name in FUNCTIONS:
            if hasattr(wf, name):
                good &= compare(name, trace(getattr(wf, name), wf.asarray(x)), [x])
    return good


def measure(name: str, function: Callable[..., Any], shapes: list[Any], moved: int) -> float:
    """Print the bandwidth of a program that moves `moved` bytes; gives the median."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, np.float32) for shape in shapes]
    client = wf.client("cuda")
    made = client.executable(trace(function, *map(wf.asarray, arrays)))
    given = [client.to_device(x) for x in arrays]
    made.run(given)
    times = [client.gpu.milliseconds(lambda: made.run(given)) for _ in range(RUNS)]
    rate = moved / min(times) / 1e6
    middle = moved / float(np.median(times)) / 1e6
    count = len(made.program.launches)
    print(f"  {name:<24} {rate:5.0f} GB/s best, {middle:5.0f} median, {count} launches", end="")
    return middle


def measure_driver(nbytes: int) -> float:
    """Print and return the median bandwidth of a copy that the driver makes."""
    device = gpu()
    source, target = device.allocate(nbytes), device.allocate(nbytes)
    device.write(source.address, np.zeros(nbytes, np.uint8))
    times = [
        device.milliseconds(lambda: device.copy(target.address, source.address, nbytes))
        for _ in range(RUNS)
    ]
    best, middle = (2 * nbytes / t / 1e6 for t in (min(times), float(np.median(times))))
    print(f"  {'copy, by the driver':<24} {best:5.0f} GB/s best, {middle:5.0f} median")
    return middle


def check_bandwidth() -> None:
    """A copy, then what is to be as fast; programs that read more than they write can be faster."""
    print(f"bandwidth, float32, {RUNS} runs; percentages are of medians:")
    nbytes = 4 * COUNT
    copy = measure_driver(nbytes)
    area = 4 * SIDE * SIDE
    rows: list[tuple[str, Callable[..., Any], list[Any], int]] = [
        ("negative", wf.negative, [COUNT], 2 * nbytes),
        ("tanh(a*b+c)", lambda a, b, c: wf.tanh(a * b + c), [COUNT] * 3, 4 * nbytes),
        ("gelu", wf.gelu, [COUNT], 2 * nbytes),
        ("sum", lambda x: wf.sum(x), [COUNT], nbytes),
        ("softmax 8192 x 8192", softmax, [(SIDE, SIDE)], 2 * area),
        ("layer norm 8192 x 8192", layer_norm, [(SIDE, SIDE), SIDE, SIDE], 2 * area),
        ("row sums 8192 x 8192", lambda x: wf.sum(x, axis=-1), [(SIDE, SIDE)], area),
        ("column sums 8192 x 8192", lambda x: wf.sum(x, axis=0), [(SIDE, SIDE)], area),
        ("transpose 8192 x 8192", lambda x: wf.permute_dims(x, (1, 0)), [(SIDE, SIDE)], 2 * area),
    ]
    for name, function, shapes, moved in rows:
        rate = measure(name, function, shapes, moved)
        print(f", {100 * rate / copy:.0f} % of the copy")


def main() -> int:
    """Everything; the exit code says whether all bits agreed."""
    device = gpu()
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    print(f"{now}: {device.name}, compute capability {device.capability}, {platform.machine()}")
    good = check_programs()
    check_bandwidth()
    print("all bits agree" if good else "SOME BITS DIFFER")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
