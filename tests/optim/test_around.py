"""Accumulation, loss scaling, averages, and how many regions a step takes."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.compiler.native import Native
from weft.compiler.rewrite import rewrite
from weft.errors import ShapeError, TreeError

optim = wf.optim


def gradients(count, size=3):
    rng = np.random.default_rng(0)
    return [{"w": wf.tensor(rng.standard_normal(size).astype(np.float32))} for _ in range(count)]


@pytest.mark.parametrize("compiled", [False, True])
def test_accumulated_gradients_take_one_step_for_their_mean(compiled):
    inner = optim.sgd(optim.schedules.constant(0.1), 0.9)  # Adam would not mind a factor
    outer = optim.accumulate(inner, every=3)
    params = plain = {"w": wf.ones(3)}
    state, own = outer.init(params), inner.init(params)
    update = wf.compile(outer.update) if compiled else outer.update
    rows = gradients(7)
    for number, row in enumerate(rows, 1):
        updates, state = update(row, state, params)
        moved = optim.apply(params, updates)
        if number % 3:
            np.testing.assert_array_equal(moved["w"].numpy(), params["w"].numpy())
        else:
            mean = {"w": sum(r["w"] for r in rows[number - 3 : number]) / 3}
            expected, own = inner.update(mean, own, plain)
            plain = optim.apply(plain, expected)
            np.testing.assert_allclose(moved["w"].numpy(), plain["w"].numpy(), rtol=1e-6)
        params = moved
    assert state.steps.item() == 1 and state.inner[-1].steps.item() == 2


@pytest.mark.parametrize("compiled", [False, True])
def test_a_scaled_loss_grows_its_scale_and_skips_what_is_not_finite(compiled):
    transform = optim.loss_scaled(optim.adam(0.1), initial=8.0, interval=2)
    params = {"w": wf.ones(2)}
    state = transform.init(params)
    update = wf.compile(transform.update) if compiled else transform.update
    scales, moved = [], []
    for factor in (1.0, 1.0, np.inf, np.nan, 1.0, 1.0):
        scaled = {"w": wf.full(2, factor) * state.scale}
        updates, state = update(scaled, state, params)
        scales.append(state.scale.item())
        moved.append(updates["w"][0].item())
    assert scales == [8.0, 16.0, 8.0, 4.0, 4.0, 8.0]
    np.testing.assert_allclose(moved, [-0.1, -0.1, 0, 0, -0.1, -0.1], rtol=1e-5)
    assert state.skipped.item() == 2
    assert state.inner[1].steps.item() == 4
    assert np.isfinite(state.inner[1].mean["w"].numpy()).all()


def test_a_scale_does_not_grow_beyond_what_float32_holds():
    transform = optim.loss_scaled(optim.sgd(0.1), initial=2.0**126, interval=1)
    params = {"w": wf.ones(2)}
    state = transform.init(params)
    for _ in range(3):
        _, state = transform.update({"w": wf.ones(2)}, state, params)
    assert state.scale.item() == 2.0**127
    assert state.skipped.item() == 0


def test_float16_underflows_without_a_scale_and_trains_with_it():
    policy = optim.Policy(compute="float16")
    params = {"w": wf.ones(4) * 1e-2}

    def loss(p, x):
        return wf.mean((policy.cast(p)["w"] * x) * wf.astype(1e-3, wf.float16)) * 1e-3

    x = wf.ones(4, dtype=wf.float16) * 1e-2
    assert not wf.any(wf.grad(loss)(params, x)["w"] != 0).item()
    transform = optim.loss_scaled(optim.sgd(1.0))
    state = transform.init(params)
    scaled = wf.grad(lambda p: loss(p, x) * wf.astype(state.scale, wf.float16))(params)
    updates, state = transform.update(scaled, state, params)
    np.testing.assert_allclose(updates["w"].numpy(), -2.5e-9, rtol=0.1)


def test_an_average_of_parameters_follows_them():
    average = optim.ema(0.9)
    state = average.init({"w": wf.zeros(2), "seen": wf.tensor(0)})
    update = wf.compile(average.update)
    for number in range(5):
        state = update({"w": wf.ones(2), "seen": wf.tensor(number)}, state)
    assert state.value["seen"].item() == 4
    np.testing.assert_allclose(state.value["w"].numpy(), 1 - 0.9**5, rtol=1e-6)
    for dtype, digits in (("float32", 1e-6), ("float64", 1e-14)):
        zeros, ones = wf.zeros(2, dtype=dtype), wf.ones(2, dtype=dtype)
        for average, moved in ((optim.ema(0.999, warmup=True), 1 - 2 / 11), (optim.ema(0.9), 0.1)):
            first = average.update({"w": ones}, average.init({"w": zeros}))
            np.testing.assert_allclose(first.value["w"].numpy(), moved, rtol=digits)


def test_parameters_that_an_average_is_not_of_are_told():
    average = optim.ema(0.9)
    params = {"w": wf.ones((3, 2))}
    state = average.init(params)
    for wrong in (params, None):
        with pytest.raises(TreeError, match="ema: state: expected EmaState, got "):
            average.update(state, wrong)
    with pytest.raises(ShapeError, match=r"ema: a parameter of shape \(1, 2\) for a"):
        average.update({"w": wf.ones((1, 2))}, state)
    with pytest.raises(TreeError, match="ema: parameters are not in the places of means"):
        average.update([wf.ones(2)], state)


def test_an_average_does_not_move_when_parameters_are_assigned_to():
    params = {"w": wf.zeros(2), "seen": wf.tensor([1])}
    average = optim.ema(0.5)
    states = [average.init(params)]
    states.append(average.update(params, states[0]))
    params["w"] += 4.0
    params["seen"][0] = 2
    for state in states:
        assert state.value["w"].tolist() == [0, 0]
        assert state.value["seen"].tolist() == [1]


def regions(transform, count=100):
    params = [wf.tensor(np.ones((17 + i, 33), np.float32)) for i in range(count)]
    state = transform.init(params)

    def step(params, gradients, state):
        updates, state = transform.update(gradients, state, params)
        return optim.apply(params, updates), state

    trace, _ = rewrite(wf.trace(step, params, params, state))
    return Native(trace).counts.regions


@pytest.mark.slow
@pytest.mark.parametrize(
    "transform",
    [
        optim.adamw(optim.schedules.warmup_cosine(1e-3, 10, 100), mask=optim.matrices),
        optim.adamw(1e-3),
        optim.sgd(1e-3, 0.9, nesterov=True),
        optim.lion(1e-3, weight_decay=0.1),
        optim.rmsprop(1e-3, centered=True),
    ],
    ids=["adamw with a schedule", "adamw", "sgd", "lion", "rmsprop"],
)
def test_a_step_over_a_hundred_parameters_runs_in_two_regions(transform):
    assert regions(transform) <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "transform",
    [
        optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(1e-3)),
        optim.loss_scaled(optim.adamw(1e-3)),
        optim.accumulate(optim.adamw(1e-3), 4),
        optim.adafactor(),
    ],
    ids=["clipped", "scaled", "accumulated", "adafactor"],
)
def test_sums_over_a_hundred_parameters_share_their_regions(transform):
    assert regions(transform) <= 6
