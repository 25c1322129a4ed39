"""Schedules follow a counter that is a tensor: a step is compiled once."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.errors import ArgumentError

schedules = wf.optim.schedules


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


def test_a_factor_close_to_1_keeps_its_digits_over_a_million_steps():
    found = schedules.exponential(1.0, 0.99999)(1_000_000).item()
    np.testing.assert_allclose(found, 0.99999**1_000_000, rtol=1e-5)


def test_mistakes_are_told():
    with pytest.raises(ArgumentError, match="steps 5 must be more than warmup 5"):
        schedules.warmup_cosine(1.0, 5, 5)
    with pytest.raises(ArgumentError, match="linear: steps must be at least 1, got 0"):
        schedules.linear(1.0, 0.0, 0)
    with pytest.raises(ArgumentError, match="2 schedules need 1 boundaries, got 2"):
        schedules.join([schedules.constant(1.0)] * 2, [1, 2])
    with pytest.raises(ArgumentError, match="join: boundaries must grow"):
        schedules.join([schedules.constant(1.0)] * 3, [5, 2])
    with pytest.raises(ArgumentError, match="join: schedule 0 must be a function, got 1"):
        schedules.join([1.0, 2.0], [5])
    with pytest.raises(
        ArgumentError, match=r"piecewise: factors: expected factors by step.*\nhint"
    ):
        schedules.piecewise(1.0, [10, 20])
    with pytest.raises(ArgumentError, match="one_cycle: start_divisor must be positive"):
        schedules.one_cycle(1.0, 10, start_divisor=0)
    with pytest.raises(ArgumentError, match="factor must be positive"):
        schedules.exponential(1.0, 0.0)
