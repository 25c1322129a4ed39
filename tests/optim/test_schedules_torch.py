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
    "cosine with longer and longer rounds": (
        schedules.repeat(schedules.cosine(0.5, 3, 0.1), 3, growth=2),
        0.5,
        lambda o: T.CosineAnnealingWarmRestarts(o, 3, T_mult=2, eta_min=0.1),
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


VALUES = [9, 8, 7.9, 8, 8, 8, 5, 5, 5, 5, 5, 5, 4.9, np.nan, 6, 7, 8, 9, 4.8, 4.7, 4.7, 4.7, 1]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize(
    "options",
    [
        {"patience": 2},
        {"patience": 0, "factor": 0.5},
        {"patience": 1, "cooldown": 3},
        {"patience": 2, "threshold": 0.05},
        {"patience": 2, "threshold": 0.2, "threshold_mode": "abs"},
    ],
    ids=str,
)
def test_rates_after_plateaus_are_torchs(options, mode):
    values = [v if mode == "min" else 12 - v for v in VALUES]
    other = torch.optim.SGD([torch.ones(1, requires_grad=True)], 1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(other, mode, min_lr=1e-2, **options)
    plain = wf.optim.sgd(0.5)
    transform = wf.optim.reduce_on_plateau(plain, least=1e-2, mode=mode, **options)
    params = {"w": wf.ones(1)}
    state, found, want = transform.init(params), [], []
    for value in values:
        updates, state = transform.update(params, state, params, value=value)
        found.append(-2 * updates["w"].item())
        schedule.step(value)
        want.append(other.param_groups[0]["lr"])
    np.testing.assert_allclose(found, want, 1e-6)
    assert min(want) < 0.2
