"""Chains of a GPU's kernels that run panel by panel: the same results, memory for a panel alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft as wf
from tests.cuda.attention import attention, causal, gradient
from tests.gpu.comparison import same
from weft.compiler import gpu_code
from weft.compiler.gpu_engine import executable
from weft.compiler.rewrite import rewrite
from weft.runtime.registry import client

LINEAR = 2.6  # times the memory of half the length, where the square would take 4 times as much


@pytest.fixture(autouse=True)
def small_memory(monkeypatch):
    """A GPU for which little is much."""
    room(1 << 15, monkeypatch)


def room(nbytes, monkeypatch):
    language = gpu_code._LANGUAGES["cuda"]
    usual = language.limits
    made = replace(language, limits=lambda gpu: replace(usual(gpu), panel=nbytes))
    monkeypatch.setitem(gpu_code._LANGUAGES, "cuda", made)


def window(q, k, v):
    first = wf.arange(q.shape[-2], device=q.device)[:, None]
    near = abs(first - wf.arange(k.shape[-2], device=q.device)) < 20
    return wf.scaled_dot_product_attention(q, k, v, near)


def dropped(q, k, v):
    key = wf.random.key(3).to_device(q.device)
    return wf.scaled_dot_product_attention(q, k, v, dropout_rate=0.2, dropout_key=key)


def by_hand(q, k, v):
    weights = wf.softmax(q @ k.swapaxes(-1, -2) / 4.0, axis=-1)
    return weights @ v


def built(function, given):
    """What runs a function on a GPU, and its operands there."""
    tensors = [wf.tensor(x).to_device("cuda") for x in given]
    trace, _ = rewrite(wf.trace(function, *tensors))
    return executable(client(trace.nodes[0].device), trace), [x.data() for x in tensors]


def results(function, given):
    made, arrays = built(function, given)
    return [x.to_host() for x in made.run(arrays)], made


def operands(shape, dtype, count=3):
    rng = np.random.default_rng(7)
    return [rng.normal(size=shape).astype(np.float32).astype(dtype) for _ in range(count)]


def both(function, given, monkeypatch):
    """Results in panels, those of whole squares, and the bytes between kernels of each."""
    found, made = results(function, given)
    assert "panels" in made.explain()
    room(1 << 60, monkeypatch)
    expected, whole = results(function, given)
    assert "panels" not in whole.explain()
    return found, expected, made.counts.bytes_planned, whole.counts.bytes_planned


@pytest.mark.parametrize("function", [attention, causal, window, by_hand, dropped])
def test_attention_in_panels_gives_what_it_gives_whole(function, monkeypatch):
    used = gradient(function)
    given = operands((2, 3, 128, 16), "float32")
    found, expected, less, more = both(used, given, monkeypatch)
    assert all(map(same, found, expected))
    assert less < more / 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "dtype"), [((1, 1, 333, 8), "float32"), ((2, 301, 8), wf.bfloat16)]
)
def test_rows_of_a_single_head_are_parted(shape, dtype, monkeypatch):
    room(1 << 16, monkeypatch)
    for used in (causal, gradient(causal)):
        with monkeypatch.context() as patch:
            found, expected, less, more = both(used, operands(shape, dtype), patch)
        assert all(map(same, found, expected))
        assert less < more / 3


@pytest.mark.slow
@pytest.mark.parametrize("function", [causal, gradient(causal)])
def test_memory_grows_with_the_length_and_not_with_its_square(function, monkeypatch):
    room(1 << 18, monkeypatch)
    sizes = [
        built(function, operands((1, 2, length, 8), "float32"))[0].counts.bytes_planned
        for length in (512, 1024)
    ]
    assert sizes[1] < LINEAR * sizes[0]


@pytest.mark.slow
def test_layers_do_not_keep_their_squares(monkeypatch):
    def loss(x, first, second):
        for weight in (first, second):
            q, k, v = (x @ weight[i] for i in range(3))
            x = x + causal(*(y.reshape(1, 256, 2, 16).swapaxes(1, 2) for y in (q, k, v))).swapaxes(
                1, 2
            ).reshape(1, 256, 32)
        return (x * x).sum()

    (x,) = operands((1, 256, 32), "float32", 1)
    weights = [w / 6 for w in operands((3, 32, 32), "float32", 2)]
    used = wf.grad(loss, argnums=(0, 1, 2))
    found, expected, less, more = both(used, (x, *weights), monkeypatch)
    assert all(map(same, found, expected))
    assert less < more / 3


def test_a_result_that_is_asked_for_is_whole(monkeypatch):
    def scores(q, k, v):
        whole = q @ k.swapaxes(-1, -2)
        return whole, wf.softmax(whole, axis=-1) @ v

    found, expected, _, _ = both(scores, operands((2, 3, 128, 16), "float32"), monkeypatch)
    assert all(map(same, found, expected))


def test_what_is_summed_over_all_batches_waits_for_the_last_panel(monkeypatch):
    def mixed(q, k, v):
        weights = wf.softmax(q @ k.swapaxes(-1, -2), axis=-1)
        mixed = weights @ v
        return mixed.sum(axis=0) + mixed[::-1].mean(), weights.sum(axis=-2)

    found, expected, _, _ = both(mixed, operands((6, 128, 16), "float32"), monkeypatch)
    assert all(map(same, found, expected))


def test_kernels_of_all_panels_are_one():
    made, _ = built(attention, operands((2, 4, 128, 16), "float32"))
    launches = made.program.launches
    assert len(launches) == 3 * launches[0].panel[1] > 60
    assert len({id(launch.kernel) for launch in launches}) <= 6  # the last panel may be shorter
