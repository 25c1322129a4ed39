"""Slabs that masks hide from blocks of a GPU: they are left out, and no bit changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.gpu_results import different, on_cpu
from tests.compiler.test_gpu_products import run
from weft.compiler import gpu_code
from weft.compiler.loops import Kernel, Loop, Reduce, every
from weft.compiler.passes import blocks_hidden, blocks_product
from weft.compiler.passes.items import Limits, Tile
from weft.compiler.verify import verify
from weft.core.tensor.tracing import trace
from weft.testing.emulated_gpu import use_emulated_gpu
from weft.testing.gpu_programs import planned

SMALL = Limits(tiles=(Tile(8, 8, 4, 4, 8),))
WIDE = Limits(tiles=(Tile(8, 16, 4, 8, 4),))
TALL = Limits(tiles=(Tile(32, 8, 4, 4, 8),), lanes=1)
DOUBLES = Limits(tiles=(), doubles=(Tile(16, 16, 1, 4, 8),))
LIMITS = {"small": SMALL, "wide": WIDE, "tall": TALL}


def earlier(row: Any, column: Any) -> Any:
    return column <= row


def later(row: Any, column: Any) -> Any:
    return column > row - 3


def window(row: Any, column: Any) -> Any:
    behind = row - column
    return (behind >= -2) & (behind < 20)


def nothing(row: Any, column: Any) -> Any:
    behind = row - column
    return (behind >= 50) & (behind < 20)


MASKS = [earlier, later, window, nothing]


def hidden(mask: Any, x: Any, by: float = 0.0) -> Any:
    """A tensor that is another number where a mask of its last axes does not hold."""
    rows, columns = (wf.arange(n, device=x.device) for n in x.shape[-2:])
    return wf.where(mask(rows[:, None], columns), x, by)


def left(mask: Any) -> Any:
    """The left factor is masked."""
    return lambda a, b: hidden(mask, a) @ b


def turned(mask: Any) -> Any:
    """The same, which lies the other way."""
    return lambda a, b: hidden(mask, a).mT @ b


def right(mask: Any) -> Any:
    """The right factor is masked."""
    return lambda a, b: a @ hidden(mask, b)


def sums(mask: Any) -> Any:
    """Sums are."""
    return lambda a, b: hidden(mask, a @ b, -wf.inf)


def operands(*shapes: Any, dtype: Any = np.float32) -> list[Any]:
    """Random numbers, some of which are special, tiny and of either sign."""
    rng = np.random.default_rng(len(shapes))
    made = []
    for shape in shapes:
        x = (rng.standard_normal(shape) * 3).astype(dtype)
        where = rng.random(shape)
        x[where < 0.3] *= dtype(1e-25 if dtype == np.float32 else 1e-200)
        x[..., 1] = np.abs(x[..., 1]) * np.float32(1e-25 if dtype == np.float32 else 1e-200)
        x[..., 2] = -np.abs(x[..., 2]) * np.float32(1e-25 if dtype == np.float32 else 1e-200)
        x[where > 0.99] = 0
        made.append(x)
    return made


def with_special(x: Any) -> Any:
    """The same with numbers that are none, or too large, in few rows and columns."""
    x = x.copy()
    x[..., -1, -1], x[..., 0, 0], x[..., x.shape[-2] // 2, 3] = np.nan, np.inf, -np.inf
    return x


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Any product is worth it; GPUs are busy with any tile."""
    monkeypatch.setattr(blocks_hidden, "WORTH", 0)
    monkeypatch.setattr(blocks_product, "THREADS", 0)


def on_gpu(function, arrays, limits: Limits) -> list[Any]:
    """The results of a GPU that the processor plays, with these tiles."""
    cuda = gpu_code._LANGUAGES["cuda"]
    with pytest.MonkeyPatch.context() as patch, use_emulated_gpu():
        patch.setitem(gpu_code._LANGUAGES, "cuda", replace(cuda, limits=lambda _: limits))
        found = wf.compile(function)(*(wf.asarray(x, device="cuda") for x in arrays))
        return [x.host() for x in (found if isinstance(found, tuple) else (found,))]


def agree(function, arrays, limits: Limits) -> None:
    expected = on_cpu(trace(function, *map(wf.asarray, arrays)), arrays)
    for x, y in zip(on_gpu(function, arrays, limits), expected, strict=True):
        assert different(x, np.asarray(y)) == 0


def has_bounds(kernel: Kernel) -> bool:
    """Whether slabs of a kernel's blocks are not all of them."""
    loops = [s for s in every(kernel.body) if isinstance(s, Loop) and s.variable.data == "slab"]
    return any(s.stop.op != "const" for s in loops)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", [left, turned, right, sums])
@pytest.mark.parametrize("size", [64, 75])
def test_masked_products_keep_every_bit(kind, mask, limits, size):
    a, b = operands((2, size, size), (2, size, size))
    agree(kind(mask), [a, b], LIMITS[limits])
    agree(kind(mask), [with_special(a), with_special(b)], LIMITS[limits])


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", [left, turned, right, sums])
def test_loops_over_slabs_begin_and_end_where_masks_do(kind, mask):
    graph = trace(kind(mask), *map(wf.asarray, operands((64, 64), (64, 64))))
    kernels = planned(graph, SMALL).kernels
    assert len(kernels) == (1 if kind is sums else 2)
    assert has_bounds(verify(kernels[-1], scheduled=True))
