"""The demo's model learns and writes the same on every mesh."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import nn
from weft.demo import GPT, Settings, Training, generate, laid_out

TINY = Settings(steps=20, batch=4, layers=1, width=16, heads=2, context=16)
SQUARE = wf.DeviceMesh("demo", (2, 2), ("dp", "tp"))


@cache
def losses(settings: Settings, mesh: Any, count: int) -> list[float]:
    training = Training(settings, mesh)
    state = training.first_state()
    found = [training.advance(state, b) for b in islice(training.batches(state), count)]
    return [*found, training.validate(state)]


@pytest.mark.slow
def test_over_a_mesh_the_losses_are_those_of_one_device() -> None:
    np.testing.assert_allclose(losses(TINY, SQUARE, 6), losses(TINY, None, 6), rtol=2e-5)


@pytest.mark.slow
def test_in_float64_they_agree_to_the_last_digits() -> None:
    settings = replace(TINY, dtype="float64")
    with wf.default_dtype("float64"):
        training = [Training(settings, mesh) for mesh in (SQUARE, None)]
        states = [t.first_state() for t in training]
        for t, state in zip(training, states):
            for batch in islice(t.batches(state), 4):
                t.advance(state, batch)
    for a, b in zip(*(wf.tree_leaves((s.model, s.optimizer)) for s in states), strict=True):
        assert a.dtype in (wf.float64, wf.int32)
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_in_bfloat16_the_parameters_stay_float32_and_the_losses_are_near() -> None:
    narrow = replace(TINY, dtype="bfloat16")
    training = Training(narrow)
    state = training.first_state()
    found = [training.advance(state, b) for b in islice(training.batches(state), 6)]
    assert all(x.dtype == wf.float32 for x in wf.tree_leaves(state.model))
    np.testing.assert_allclose(found, losses(TINY, None, 6)[:6], rtol=2e-2)


def test_the_layout_is_megatrons() -> None:
    model = laid_out(GPT(10, 1, 16, 2, 8, key=wf.random.key(0)), SQUARE)
    found = {name: str(x.sharding) for name, x in nn.state_dict(model).items()}
    assert found["blocks.0.attention.query.weight"] == found["blocks.0.expand.weight"] == "[tp, ·]"
    assert found["blocks.0.attention.output.weight"] == "[·, tp]"
    assert found["blocks.0.contract.weight"] == "[·, tp]"
    assert found["embedding.weight"] == found["head.weight"] == "[·, ·]"


@pytest.mark.slow
def test_a_step_is_compiled_once_and_gradients_are_added_up_once() -> None:
    training = Training(TINY, SQUARE)
    state = training.first_state()
    batches = training.batches(state)
    with wf.communication_log() as log:
        training.advance(state, next(batches))
    training.advance(state, next(batches))
    assert training.step.stats.traces == 1
    reduced = [each for each in log if each.axes == ("dp",) and len(each.shape) == 2]
    matrices = [x for x in wf.tree_leaves(state.model) if x.ndim == 2]
    assert len(reduced) == len(matrices)


def test_what_is_decoded_piece_by_piece_is_what_the_whole_gives() -> None:
    model = GPT(10, 2, 16, 2, 8, key=wf.random.key(0))
    ids = wf.random.randint(wf.random.key(1), (2, 8), 0, 10)
    first, caches = model.decode(ids[:, :5], model.caches(2, 8))
    second, _ = model.decode(ids[:, 5:], caches)
    whole = model(ids)
    np.testing.assert_allclose(wf.concat([first, second], axis=1).numpy(), whole.numpy(), atol=1e-5)


def test_decoding_looks_back_no_further_than_the_context() -> None:
    model = GPT(10, 1, 16, 2, 4, key=wf.random.key(0))
    ids = wf.random.randint(wf.random.key(1), (1, 9), 0, 10)
    other = wf.concat([(ids[:, :5] + 1) % 10, ids[:, 5:]], axis=1)
    a, b = (model.decode(x, model.caches(1, 9))[0][:, -1] for x in (ids, other))
    np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.slow
def test_samples_depend_on_the_key_alone_not_on_the_mesh() -> None:
    model = GPT(30, 1, 16, 2, 8, key=wf.random.key(0))
    prompt = wf.zeros((1, 3), dtype=wf.int32)
    plain, meshed, other = (
        generate(m, prompt, wf.random.key(k), count=12).tolist()
        for m, k in ((model, 1), (laid_out(model, SQUARE), 1), (model, 2))
    )
    assert plain == meshed
    assert plain != other
    best = generate(model, prompt, wf.random.key(1), count=12, top=1).tolist()
    assert best == generate(model, prompt, wf.random.key(2), count=12, top=1).tolist()
