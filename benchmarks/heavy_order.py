"""Sorting, selecting, gathering and counting beside numpy, torch and jax: rows of `heavy.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import harness
import numpy as np
from harness import Row, Workload
from peers import RNG, normal

import weft as wf

K = 100
WORDS, WIDTH, TOKENS = 16_384, 256, 8192


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

    torch.set_num_threads(harness.held())
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


def rows() -> Iterator[Row]:
    """Each with its goal: how many times faster than the best peer."""
    for name, goal, build in WORKLOADS:
        yield Row(name, build, goal)
