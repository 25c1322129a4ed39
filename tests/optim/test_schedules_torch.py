"""Schedules are torch's, step by step."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.torch_oracle import torch

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
    "polynomial": (
        schedules.polynomial(0.5, 20, 2.0),
        0.5,
        lambda o: T.PolynomialLR(o, 20, 2.0),
    ),
    "cosine with restarts": (
        schedules.repeat(schedules.cosine(0.5, 7, 0.1), 7),
        0.5,
        lambda o: T.CosineAnnealingWarmRestarts(o, 7, eta_min=0.1),
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
