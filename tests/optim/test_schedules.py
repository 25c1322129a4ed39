"""Schedules are torch's, step by step, and follow a counter that is a tensor."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.torch_oracle import torch
from weft.errors import ArgumentError

schedules, T = wf.optim.schedules, torch.optim.lr_scheduler

PAIRS = {
    "constant": (schedules.constant(0.5), 0.5, lambda o: T.ConstantLR(o, 1.0)),
    "linear": (schedules.linear(0.5, 0.1, 10), 0.5, lambda o: T.LinearLR(o, 1.0, 0.2, 10)),
    "cosine": (
        schedules.cosine(0.5, 30, 0.1),
        0.5,
        lambda o: T.CosineAnnealingLR(o, 30, 0.1),
    ),
    "exponential": (schedules.exponential(0.5, 0.9), 0.5, lambda o: T.ExponentialLR(o, 0.9)),
    "step": (schedules.step(0.5, 0.3, 7), 0.5, lambda o: T.StepLR(o, 7, 0.3)),
    "piecewise": (
        schedules.piecewise(0.5, {4: 0.1, 15: 0.1}),
        0.5,
        lambda o: T.MultiStepLR(o, [4, 15]),
    ),
    "one cycle": (
        schedules.one_cycle(0.5, 30),
        0.5,
        lambda o: T.OneCycleLR(o, 0.5, total_steps=30),
    ),
    "one cycle, linear": (
        schedules.one_cycle(0.5, 30, 0.4, 10.0, 100.0, "linear"),
        0.5,
        lambda o: T.OneCycleLR(o, 0.5, total_steps=30, pct_start=0.4, anneal_strategy="linear",
                               div_factor=10.0, final_div_factor=100.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_thirty_steps_are_torchs(name):
    ours, start, theirs = PAIRS[name]
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], start)
    schedule = theirs(optimizer)
    expected = []
    for _ in range(29):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    found = ours(wf.arange(29)).numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-7)


def test_warmup_then_cosine():
    found = schedules.warmup_cosine(1.0, 4, 12, 0.2, 0.1)(wf.arange(14)).numpy()
    np.testing.assert_allclose(found[:5], [0.2, 0.4, 0.6, 0.8, 1.0], rtol=1e-6)
    np.testing.assert_allclose(found[8], 0.55, rtol=1e-6)
    np.testing.assert_allclose(found[12:], 0.1, rtol=1e-6)
    assert (np.diff(found[4:13]) < 0).all()


def test_a_compiled_step_with_a_schedule_is_compiled_once():
    transform = wf.optim.sgd(schedules.linear(1.0, 0.0, 4))
    params = wf.zeros(2)
    state = transform.init(params)
    step = wf.compile(lambda p, s: transform.update(wf.ones(2), s, p))
    found = []
    for _ in range(6):
        updates, state = step(params, state)
        found.append(-updates[0].item())
    assert found == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert step.stats.traces == 1


def test_a_rate_given_at_each_step_is_compiled_once():
    params = wf.zeros(2)
    state = wf.optim.adamw(0.0).init(params)

    @wf.compile
    def step(params, state, rate):
        return wf.optim.adamw(rate, weight_decay=0.0).update(wf.ones(2), state, params)

    for rate in (0.5, 0.25, 0.125):
        updates, state = step(params, state, rate)
        np.testing.assert_allclose(updates.numpy(), -rate, rtol=1e-5)
    assert step.stats.traces == 1


def test_mistakes_are_told():
    with pytest.raises(ArgumentError, match="steps 5 must be more than warmup 5"):
        schedules.warmup_cosine(1.0, 5, 5)
    with pytest.raises(ArgumentError, match="linear: steps must be at least 1, got 0"):
        schedules.linear(1.0, 0.0, 0)
    with pytest.raises(ArgumentError, match="2 schedules need 1 boundaries, got 2"):
        schedules.join([schedules.constant(1.0)] * 2, [1, 2])
    with pytest.raises(ArgumentError, match="factor must be positive"):
        schedules.exponential(1.0, 0.0)
