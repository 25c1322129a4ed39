"""Sorting, selecting, gathering and counting beside numpy, torch and jax.

    python benchmarks/heavy_order.py --threads 1
    python benchmarks/heavy_order.py --threads 2 --rounds 3

`WORKLOADS` has a name, a goal (times faster than the best peer) and a function for each row.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any


def _threads() -> int:
    """Take `--threads` from the command line; to be done before libraries are imported."""
    if "--threads" not in sys.argv:
        return int(os.environ.get("WEFT_THREADS", "2"))
    place = sys.argv.index("--threads")
    count = int(sys.argv[place + 1])
    del sys.argv[place : place + 2]
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "WEFT_THREADS"):
        os.environ[name] = str(count)
    if count == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    return count


THREADS = _threads() if __name__ == "__main__" else int(os.environ.get("WEFT_THREADS", "2"))

import harness  # noqa: E402  what stands above must come first
import numpy as np  # noqa: E402

import weft as wf  # noqa: E402

Workload = dict[str, Callable[[], Any]]
RNG = np.random.default_rng(0)
K = 100
WORDS, WIDTH, TOKENS = 16_384, 256, 8192


def normal(*shape: int) -> Any:
    """Random float32 numbers."""
    return RNG.standard_normal(shape, np.float32)


def side_by_side(
    arrays: tuple[Any, ...],
    weft: Callable[..., Any],
    numpy: Callable[..., Any],
    torch: Callable[[Any], Callable[..., Any]],
    jax: Callable[[Any], Callable[..., Any]],
) -> Workload:
    """One program in every library; those of torch and jax are given the library."""
    compiled, tensors = wf.compile(weft), [wf.tensor(a) for a in arrays]
    made: Workload = {"weft": lambda: compiled(*tensors)}
    if harness.available("numpy"):
        made["numpy"] = lambda: numpy(*arrays)
    if harness.available("torch"):
        made["torch"] = _torch(torch, arrays)
    if harness.available("jax"):
        made["jax"] = _jax(jax, arrays)
    return made


def _torch(make: Callable[[Any], Callable[..., Any]], arrays: tuple[Any, ...]) -> Any:
    import torch

    torch.set_num_threads(THREADS)
    program, given = make(torch), [torch.from_numpy(a) for a in arrays]
    return lambda: program(*given)


def _jax(make: Callable[[Any], Callable[..., Any]], arrays: tuple[Any, ...]) -> Any:
    import jax

    compiled, given = jax.jit(make(jax)), [jax.numpy.asarray(a) for a in arrays]
    wait: Any = jax.block_until_ready
    return lambda: wait(compiled(*given))


def sorting(*shape: int) -> Workload:
    """Values in order."""
    return side_by_side(
        (normal(*shape),),
        wf.sort,
        np.sort,
        lambda torch: torch.sort,
        lambda jax: jax.numpy.sort,
    )


def positions(*shape: int) -> Workload:
    """Positions in order."""
    return side_by_side(
        (normal(*shape),),
        wf.argsort,
        np.argsort,
        lambda torch: torch.argsort,
        lambda jax: jax.numpy.argsort,
    )


def largest(*shape: int) -> Workload:
    """The largest elements and where they are."""

    def of_numpy(x: Any) -> Any:
        found = np.argpartition(x, -K, axis=-1)[..., -K:]
        values = np.take_along_axis(x, found, -1)
        order = np.argsort(-values, axis=-1)
        return np.take_along_axis(values, order, -1), np.take_along_axis(found, order, -1)

    return side_by_side(
        (normal(*shape),),
        lambda x: wf.top_k(x, K),
        of_numpy,
        lambda torch: lambda x: torch.topk(x, K),
        lambda jax: lambda x: jax.lax.top_k(x, K),
    )


def _tokens() -> Any:
    """Words as text has them: few are frequent."""
    return RNG.zipf(1.3, TOKENS) % WORDS


def embedding() -> Workload:
    """Rows of a table."""
    return side_by_side(
        (normal(WORDS, WIDTH), _tokens()),
        lambda table, ids: wf.take(table, ids, axis=0),
        lambda table, ids: table[ids],
        lambda torch: torch.embedding,
        lambda jax: lambda table, ids: jax.numpy.take(table, ids, axis=0),
    )


def embedding_gradient() -> Workload:
    """Rows added up where they came from."""

    def of_numpy(rows: Any, ids: Any) -> Any:
        made = np.zeros((WORDS, WIDTH), np.float32)
        np.add.at(made, ids, rows)
        return made

    return side_by_side(
        (normal(TOKENS, WIDTH), _tokens()),
        lambda rows, ids: wf.zeros((WORDS, WIDTH)).at[ids].add(rows),
        of_numpy,
        lambda torch: lambda rows, ids: torch.zeros(WORDS, WIDTH).index_add_(0, ids, rows),
        lambda jax: lambda rows, ids: jax.numpy.zeros((WORDS, WIDTH)).at[ids].add(rows),
    )


def counting() -> Workload:
    """How often each number is there."""
    return side_by_side(
        (RNG.integers(0, 1000, 1 << 20),),
        lambda x: wf.bincount(x, length=1000),
        lambda x: np.bincount(x, minlength=1000),
        lambda torch: lambda x: torch.bincount(x, minlength=1000),
        lambda jax: lambda x: jax.numpy.bincount(x, length=1000),
    )


def searching() -> Workload:
    """Where numbers belong among others."""
    return side_by_side(
        (np.sort(normal(4096)), normal(1 << 20)),
        wf.searchsorted,
        np.searchsorted,
        lambda torch: torch.searchsorted,
        lambda jax: jax.numpy.searchsorted,
    )


WORKLOADS: tuple[tuple[str, float, Callable[[], Workload]], ...] = (
    ("sort 1M", 1.0, lambda: sorting(1 << 20)),
    ("sort 4096×4096 by rows", 1.0, lambda: sorting(4096, 4096)),
    ("sort 16384×128 by rows", 1.0, lambda: sorting(16_384, 128)),
    ("argsort 1M", 1.0, lambda: positions(1 << 20)),
    ("argsort 16384×128 by rows", 1.0, lambda: positions(16_384, 128)),
    (f"top_k {K} of 1M", 1.0, lambda: largest(1 << 20)),
    (f"top_k {K} of 16×50257", 1.0, lambda: largest(16, 50_257)),
    ("embedding 16384×256, 8192 words", 1.0, embedding),
    ("its gradient", 1.0, embedding_gradient),
    ("bincount 1M in 1000", 1.0, counting),
    ("searchsorted 1M in 4096", 1.0, searching),
)


def rows() -> Iterator[Any]:
    """The rows in the form of a table with goals."""
    for name, goal, build in WORKLOADS:
        yield harness.Row(name, build, goal)  # type: ignore[attr-defined]


def _all() -> harness.Workloads:
    return {name: build() for name, _, build in WORKLOADS}


if __name__ == "__main__":
    harness.main(f"order, {THREADS} threads", _all)
