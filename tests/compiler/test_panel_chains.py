"""Random chains of products in one process, in panels where that can be: the bits of plain loops.

Sizes change from one to the next, as lengths of sequences do, so that kernels meet sizes that they
were not made for, and kernels for all sizes stand beside those for some.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pytest

import weft as wf
from weft.compiler import panels
from weft.compiler import recompute as recomputing
from weft.compiler.executable import Interpreted
from weft.compiler.native import Native
from weft.compiler.recompute import recompute
from weft.compiler.rewrite import rewrite

pytestmark = pytest.mark.slow

LOW = 1 << 15  # bytes from which results are large here
PROGRAMS = 24  # of each seed
MOST = 200_000  # scores

Function: TypeAlias = Callable[..., Any]


def scores(q: Any, k: Any) -> Any:
    return q @ wf.swapaxes(k, -1, -2)


def window(q: Any, k: Any, v: Any) -> Any:
    behind = wf.arange(q.shape[-2])[:, None] - wf.arange(k.shape[-2])
    return wf.scaled_dot_product_attention(q, k, v, (behind >= -3) & (behind < 40))


def used_twice(q: Any, k: Any, v: Any) -> Any:
    weights = wf.softmax(scores(q, k), -1)
    return weights @ v + weights @ k


def normed(x: Any, a: Any, b: Any) -> Any:
    y = x @ a
    y = y - wf.mean(y, -1, keepdims=True)
    return wf.relu(y / wf.sqrt(wf.mean(y * y, -1, keepdims=True) + 1e-5)) @ b


HEADS: tuple[Function, ...] = (
    lambda q, k, v: wf.scaled_dot_product_attention(q, k, v, is_causal=True),
    lambda q, k, v: wf.softmax(scores(q, k), -1) @ v,
    lambda q, k, v: wf.scaled_dot_product_attention(
        q, k, v, dropout_rate=0.2, dropout_key=wf.random.key(1)
    ),
    lambda q, k, v: wf.softmax(scores(q, k[:1, :1]), -1) @ v[:1, :1],
    lambda q, k, v: (wf.sigmoid(scores(q, k)) * scores(q, k)) @ v,
    lambda q, k, v: wf.swapaxes(wf.softmax(scores(q, k), -1), -1, -2) @ v,
    used_twice,
    window,
)
LAYERS: tuple[Function, ...] = (
    lambda x, a, b: wf.gelu(x @ a) @ b,
    lambda x, a, b: wf.softmax(wf.tanh(x @ a) @ b, -1),
    lambda x, a, b: wf.log_softmax(x @ a, -1) @ b,
    lambda x, a, b: wf.relu(wf.gelu(x @ a) + wf.sum(x)) @ b + x[:, :1],
    lambda x, a, b: wf.gelu(x @ a).T @ x,
    normed,
)
LOSSES: tuple[Function, ...] = (
    lambda y: wf.sum(y * 0.5),
    lambda y: wf.mean(wf.square(y)),
    lambda y: wf.sum(y[..., :1]),
    lambda y: wf.sum(wf.sum(y, -1) ** 2),
)


class Draw:
    """A program, its operands, and how it runs."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.function, shapes = self.heads(rng) if rng.integers(2) else self.layers(rng)
        if rng.integers(3):
            function, loss = self.function, LOSSES[rng.integers(len(LOSSES))]
            wanted = ((0, 1, 2), (0,), (2,), (1, 2))[rng.integers(4)]
            self.function = wf.value_and_grad(lambda *a: loss(function(*a)), argnums=wanted)
        self.arrays = [(rng.normal(size=s) * 0.5).astype(np.float32) for s in shapes]
        self.general, self.threads = bool(rng.integers(2)), int(rng.integers(1, 4))

    def heads(self, rng: np.random.Generator) -> tuple[Function, list[tuple[int, ...]]]:
        batches, heads = (int(rng.choice([1, 2, 4])) for _ in range(2))
        most = int((MOST / batches / heads) ** 0.5)
        shape = (batches, heads, int(rng.integers(2, most)), int(rng.choice([2, 8, 16, 24, 32])))
        return HEADS[rng.integers(len(HEADS))], [shape] * 3

    def layers(self, rng: np.random.Generator) -> tuple[Function, list[tuple[int, ...]]]:
        rows, depth = int(rng.integers(2, 500)), int(rng.choice([3, 16, 32, 100]))
        wide, columns = int(rng.choice([64, 130, 256])), int(rng.choice([1, 5, 10, 16, 64]))
        shapes: list[tuple[int, ...]] = [(rows, depth), (depth, wide), (wide, columns)]
        return LAYERS[rng.integers(len(LAYERS))], shapes


def check(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for number in range(PROGRAMS):
        check_program(Draw(rng), f"program {number} of seed {seed}")


def check_program(draw: Any, name: str) -> None:
    given = [wf.zeros(array.shape) for array in draw.arrays]
    trace = rewrite(wf.trace(draw.function, *given))[0]
    found = Native(recompute(trace), general=draw.general).run(draw.arrays, draw.threads)
    expected = Interpreted(trace).run(draw.arrays)
    for x, y in zip(found, expected, strict=True):
        same = np.asarray(x).view(np.int32) == np.asarray(y).view(np.int32)
        assert same.all(), name


@pytest.fixture(autouse=True)
def all_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are large soon, and there are two cores."""
    for module, name in ((panels, "WORTH"), (recomputing, "LARGE")):
        monkeypatch.setattr(module, name, LOW)
        monkeypatch.setattr(module, "pool", SimpleNamespace(cores=2))


@pytest.mark.parametrize("seed", [0, 7])
def test_chains_of_many_sizes_have_the_bits_of_plain_loops(seed):
    check(seed)


def test_chains_of_sizes_drawn_anew_have_the_bits_of_plain_loops(fresh_seed):
    check(fresh_seed)


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("lead", [(2, 1), (2,), (3, 2)])
def test_a_sum_over_rows_has_the_order_of_batches_where_outer_ones_share_a_factor(lead, general):
    rng = np.random.default_rng(3)
    weights = wf.tensor(rng.normal(size=(*lead, 102, 8)).astype(np.float32))

    def loss(q: Any, k: Any, v: Any) -> Any:
        return wf.sum(wf.softmax(scores(q, k), -1) @ v * weights)

    shapes = ((2, *lead, 102, 4), (2, *lead, 102, 4), (2, *lead, 102, 8))
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    function = wf.vmap(wf.value_and_grad(loss, argnums=(0, 1, 2)))
    draw = SimpleNamespace(function=function, arrays=arrays, general=general, threads=2)
    check_program(draw, "each example has its own factors, but for the weights")
