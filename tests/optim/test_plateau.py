"""A rate that falls on plateaus: compiled, with and without values, and mistakes."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.errors import ArgumentError, DTypeError, ShapeError, TreeError

optim = wf.optim
PARAMS = {"w": wf.ones(2)}


def scales(transform, values, update=None):
    """The scale after each value."""
    state, found = transform.init(PARAMS), []
    for value in values:
        _, state = (update or transform.update)(PARAMS, state, PARAMS, value=value)
        found.append(state.scale.item())
    return found


def test_one_compiled_step_serves_all_values_and_means_are_judged():
    transform = optim.reduce_on_plateau(optim.adam(0.1), patience=1, every=2)
    update = wf.compile(lambda g, s, p, value: transform.update(g, s, p, value=value))
    values = [wf.asarray(float(v)) for v in [3, 1, 1, 3, 0, 4, 3, 1, 2, 2]]
    found = scales(transform, values, update)
    np.testing.assert_allclose(found, [1] * 5 + [0.1] * 4 + [0.01], 1e-6)
    assert update.stats.compilations == 1
    assert found == scales(transform, values)


def test_an_update_without_a_value_keeps_the_scale():
    transform = optim.reduce_on_plateau(optim.sgd(1.0), patience=0)
    _, state = transform.update(PARAMS, transform.init(PARAMS), PARAMS, value=1.0)
    _, state = transform.update(PARAMS, state, PARAMS, value=1.0)
    before = state
    for _ in range(2):
        updates, state = transform.update(PARAMS, state, PARAMS)
    assert updates["w"].tolist() == pytest.approx([-0.1, -0.1])
    assert [x.item() for x in state[:6]] == [x.item() for x in before[:6]]


def test_mistakes_are_named():
    plain = optim.sgd(1.0)
    with pytest.raises(ArgumentError, match=r"transform: expected a Transform, got .*\nhint"):
        optim.reduce_on_plateau(optim.sgd)
    for options, text in (
        ({"factor": 1.0}, "factor must be below 1"),
        ({"patience": -1}, "patience must be at least 0"),
        ({"mode": "lower"}, "mode must be one of 'min', 'max'"),
        ({"threshold_mode": "both"}, "threshold_mode must be one of"),
        ({"every": 0}, "every must be at least 1"),
    ):
        with pytest.raises(ArgumentError, match=f"reduce_on_plateau: {text}"):
            optim.reduce_on_plateau(plain, **options)
    transform = optim.reduce_on_plateau(plain)
    state = transform.init(PARAMS)
    with pytest.raises(ShapeError, match=r"value: expected one number, got shape \(2,\)"):
        transform.update(PARAMS, state, PARAMS, value=wf.ones(2))
    with pytest.raises(DTypeError, match="value: expected a real number, got complex"):
        transform.update(PARAMS, state, PARAMS, value=1j)
    with pytest.raises(TreeError, match="reduce_on_plateau: state: expected PlateauState"):
        transform.update(PARAMS, plain.init(PARAMS), PARAMS, value=1.0)


@pytest.mark.parametrize(
    ("op", "around"),
    [
        ("chain", lambda inner: optim.chain(optim.clip_by_value(1.0), inner)),
        ("accumulate", lambda inner: optim.accumulate(inner, 2)),
        ("loss_scaled", optim.loss_scaled),
        ("split", lambda inner: optim.split(optim.matrices, inner, optim.sgd(0.1))),
        ("update", lambda inner: optim.clip_by_value(1.0)),
    ],
)
def test_a_value_for_a_transformation_that_takes_none_is_told(op, around):
    transform = around(optim.reduce_on_plateau(optim.sgd(0.1)))
    with pytest.raises(ArgumentError, match=f"{op}: update takes no 'value'\nhint: .* around"):
        transform.update(PARAMS, transform.init(PARAMS), PARAMS, value=1.0)
