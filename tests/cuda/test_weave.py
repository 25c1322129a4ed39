"""Narrow attention as one kernel: the bits of separate ones, and no scores in memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft as wf
from tests.cuda.attention import attention, causal, gradient
from tests.gpu.comparison import same
from weft.compiler import gpu_code, gpu_engine
from weft.compiler.gpu_program import _Planner
from weft.compiler.kernels import evaluate
from weft.compiler.loops import Loop
from weft.compiler.passes import blocks_woven
from weft.compiler.rewrite import rewrite
from weft.runtime.registry import client

# A GPU with one multiprocessor splits no sum along its depth.
SPLIT = "weft.compiler.passes.blocks_product.MULTIPROCESSORS"


def window(q, k, v):
    first = wf.arange(q.shape[-2], device=q.device)[:, None]
    second = wf.arange(k.shape[-2], device=q.device)
    return wf.scaled_dot_product_attention(q, k, v, (second <= first) & (second > first - 70))


def added(q, k, v):
    near = -0.01 * wf.arange(k.shape[-2], dtype="float32", device=q.device)
    return wf.scaled_dot_product_attention(q, k, v, near[None, :])


def shared_heads(q, k, v):
    return wf.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True)


def merged_heads(q, k, v):
    b, h, t, d = q.shape
    return causal(q, k, v).swapaxes(1, 2).reshape(b, t, h * d)


def with_statistics(q, k, v):
    """Weights by hand, whose sums others read as well."""
    scores = (q @ k.swapaxes(-1, -2)).astype("float32") / 8
    parts = wf.exp(scores - scores.max(axis=-1, keepdims=True)).astype(v.dtype)
    total = parts.astype("float32").sum(axis=-1, keepdims=True)
    return (parts @ v).astype("float32") / total, wf.log(total)


FUNCTIONS = [attention, causal, window, added, shared_heads, merged_heads]


def operands(shape, dtype, keys=None, seed=3):
    rng = np.random.default_rng(seed)
    *batch, rows, depth = shape
    wide = (*batch, keys or rows, depth)
    made = [rng.normal(size=s).astype(np.float32) for s in (shape, wide, wide)]
    return [wf.tensor(x).astype(dtype).to_device("cuda") for x in made]


def built(function, given):
    trace, _ = rewrite(wf.trace(function, *given))
    return gpu_engine.executable(client(given[0].device), trace)


def run(function, given):
    """Results, and how many kernels made them."""
    made = built(function, given)
    return [x.to_host() for x in made.run([x.data() for x in given])], made


def apart(function, given, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(_Planner, "woven", lambda self, outputs: self.steps)
        return run(function, given)


def check(function, given, monkeypatch, kernels=2):
    found, made = run(function, given)
    expected, others = apart(function, given, monkeypatch)
    assert len(made.program.steps) <= kernels < len(others.program.steps)
    assert all(map(same, found, expected))
    return made


@pytest.fixture(params=["groups", "warps"])
def ways(request, monkeypatch):
    """Four warps multiply together, or each by itself."""
    if request.param == "warps":
        language = gpu_code._LANGUAGES["cuda"]
        usual = language.limits
        alone = replace(language, limits=lambda gpu: replace(usual(gpu), groups=()))
        monkeypatch.setitem(gpu_code._LANGUAGES, "cuda", alone)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_attention_is_one_kernel_with_the_bits_of_three(function, ways, monkeypatch):
    kernels = 3 if function is merged_heads else 2
    check(function, operands((2, 2, 256, 64), wf.bfloat16), monkeypatch, kernels)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [wf.bfloat16, "float16"])
@pytest.mark.parametrize(
    ("shape", "keys"),
    [((3, 100, 32), None), ((2, 65, 128), 130), ((130, 16), 77), ((1, 64, 64), 9)],
)
def test_sizes_that_are_no_multiples_of_tiles(shape, keys, dtype, monkeypatch):
    for function in (attention, causal):
        check(function, operands(shape, dtype, keys), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [512, 1100])
def test_sums_of_long_rows_are_joined_by_the_same_tree(columns, ways, monkeypatch):
    monkeypatch.setattr(SPLIT, 1)
    for function in (attention, causal, window):
        check(function, operands((columns, 16), wf.bfloat16), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("growth", [0.05, 2.0, 40.0])
def test_sums_are_scaled_while_the_largest_grows(growth, ways, monkeypatch):
    """Scores of a row rise or fall from tile to tile, by a little or by hundreds of powers."""
    monkeypatch.setattr(SPLIT, 1)
    q, k, v = (
        x.to_device("cpu").numpy().astype(np.float32) for x in operands((1100, 16), "float32")
    )
    q[0], q[1, 3], q[2, 5] = 0, np.nan, np.inf
    q[3:, 0] = np.sign(q[3:, 0]) * growth
    k[:, 0] = np.linspace(-60, 60, len(k))
    given = [wf.tensor(x).astype(wf.bfloat16).to_device("cuda") for x in (q, k, v)]
    for function in (attention, causal, window):
        check(function, given, monkeypatch)


def test_rows_are_gone_through_once_where_only_a_power_of_two_waits_for_the_largest(monkeypatch):
    def by_the_largest(q, k, v):
        scores = (q @ k.T).astype("float32")
        parts = wf.exp(scores - scores.max(axis=-1, keepdims=True)).astype(q.dtype)
        return parts @ v

    given = operands((256, 32), wf.bfloat16)
    for function, runs in ((attention, 1), (by_the_largest, 2)):
        made = check(function, given, monkeypatch)
        (blocks,) = made.program.steps[-1].kernel.body
        assert sum(isinstance(s, Loop) and s.kind == "serial" for s in blocks.body) == runs


@pytest.mark.parametrize("function", [causal, window])
def test_what_is_hidden_may_be_anything(function, monkeypatch):
    q, k, v = operands((2, 320, 32), wf.bfloat16)
    values = v.numpy().copy()
    values[0, 200, 3], values[1, 319, 7], values[0, 5, 1] = np.nan, np.inf, -np.inf
    made = check(function, (q, k, wf.tensor(values).to_device("cuda")), monkeypatch)
    assert len(made.program.steps) == 2  # one of them leaves what hidden columns add


def test_infinite_scores_and_rows_that_see_nothing(monkeypatch):
    q, k, v = operands((2, 128, 32), wf.bfloat16)
    keys = k.numpy().copy()
    keys[0, 3], keys[1, 100] = np.inf, np.nan

    def masked(q, k, v):
        seen = wf.arange(q.shape[-2], device=q.device)[:, None] % 3 != 1
        return wf.scaled_dot_product_attention(
            q, k, v, seen & (wf.arange(128, device=q.device) < 90)
        )

    given = (q, wf.tensor(keys).to_device("cuda"), v)
    for function in (attention, causal, masked):
        check(function, given, monkeypatch)


def test_statistics_of_rows_may_be_results(monkeypatch):
    check(with_statistics, operands((2, 128, 64), wf.bfloat16), monkeypatch)


def test_no_scores_are_in_memory():
    made = built(attention, operands((2, 2, 512, 64), wf.bfloat16))
    assert made.counts.bytes_planned == 0


def test_scores_and_weights_that_are_asked_for_are_made(monkeypatch):
    def both(q, k, v):
        weights = wf.softmax((q @ k.swapaxes(-1, -2)).astype("float32"), axis=-1).astype(v.dtype)
        return weights, weights @ v

    given = operands((2, 128, 64), wf.bfloat16)
    found, made = run(both, given)
    expected, _ = apart(both, given, monkeypatch)
    assert len(made.program.steps) == 3
    assert all(map(same, found, expected))


def test_half_of_the_columns_are_left_out():
    """Blocks of causal attention end where their rows do."""
    made = built(causal, operands((1, 640, 64), wf.bfloat16))
    (blocks,) = made.program.steps[-1].kernel.body
    (run,) = (s for s in blocks.body if isinstance(s, Loop) and s.kind == "serial")
    stops = [evaluate(run.stop, (), {blocks.variable: g}) for g in range(10)]
    assert sorted(stops) == list(range(1, 11))


def test_few_rows_and_wide_heads_are_as_before(monkeypatch):
    for shape in ((1, 64), (64, 256), (64, 8)):
        given = operands(shape, wf.bfloat16, 128)
        found, _ = run(attention, given)
        expected, _ = apart(attention, given, monkeypatch)
        assert all(map(same, found, expected))


def test_a_block_has_room():
    given = operands((2, 64, 128), wf.bfloat16)
    made = built(attention, given)
    notes = made.program.steps[-1].kernel.notes
    assert notes["dynamic"] <= given[0].data().gpu.shared
    assert notes["threads"] == blocks_woven.THREADS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "shape"),
    [(attention, (2, 320, 32)), (causal, (300, 32)), (window, (2, 256, 32))],
)
def test_gradients_are_three_kernels_with_the_bits_of_many(function, shape, ways, monkeypatch):
    monkeypatch.setattr(SPLIT, 1)
    given = operands((1, *shape), wf.bfloat16)
    made = check(gradient(function), given, monkeypatch, kernels=8)
    names = [step.kernel.name for step in made.program.steps]
    assert sum("matmul" in name and "rests" not in name for name in names) == 3


@pytest.mark.slow
def test_gradients_meet_anything_where_a_mask_hides(monkeypatch):
    monkeypatch.setattr(SPLIT, 1)
    q, k, v = operands((1, 330, 32), wf.bfloat16)
    values = v.numpy().copy()
    values[0, 200, 3], values[0, 329, 7] = np.nan, np.inf
    check(gradient(causal), (q, k, wf.tensor(values).to_device("cuda")), monkeypatch, kernels=8)


def test_gradients_hold_no_squares():
    made = built(gradient(causal), operands((2, 640, 32), wf.bfloat16))
    assert made.counts.bytes_planned < 2 * 640 * 640


def test_gradients_are_those_of_the_processor():
    given = operands((2, 320, 32), wf.bfloat16)
    found, _ = run(gradient(causal), given)
    expected = gradient(causal)(*(x.to_device("cpu") for x in given))
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            x.astype(np.float32), y.numpy().astype(np.float32), rtol=0.02, atol=0.02
        )


@pytest.mark.slow
def test_layers_hold_no_squares_either():
    def loss(x, first, second):
        for weight in (first, second):
            q, k, v = (x @ weight[i] for i in range(3))
            heads = (y.reshape(1, 320, 2, 32).swapaxes(1, 2) for y in (q, k, v))
            x = x + causal(*heads).swapaxes(1, 2).reshape(1, 320, 64)
        return (x.astype("float32") ** 2).sum()

    (x, *_), (first, second, _) = (operands(s, wf.bfloat16) for s in ((1, 320, 64), (3, 64, 64)))
    made = built(wf.grad(loss, argnums=(0, 1, 2)), (x, first / 8, second / 8))
    squares = [b for launch in made.program.launches for b in launch.memory if b.size >= 2 * 320**2]
    assert not squares


@pytest.mark.slow
def test_dropped_weights_and_wide_heads_are_differentiated_as_before(monkeypatch):
    def dropped(q, k, v):
        key = wf.random.key(3).to_device(q.device)
        return wf.scaled_dot_product_attention(q, k, v, dropout_rate=0.3, dropout_key=key)

    for function, shape in ((dropped, (320, 32)), (causal, (640, 128))):
        given = operands(shape, wf.bfloat16)
        found, _ = run(gradient(function), given)
        expected, _ = apart(gradient(function), given, monkeypatch)
        assert all(map(same, found, expected))
