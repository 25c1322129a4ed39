"""A small problem to train on, and twenty steps of it."""

from __future__ import annotations

import numpy as np

import weft as wf

optim = wf.optim
SHAPES = {"w": (4, 3), "b": (3,), "k": (2, 3, 2)}


def draw(*shape, seed=0):
    """Normal numbers, the same each time."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def loss_of(xp, p, x):
    hidden = xp.tanh(x @ p["w"] + p["b"])
    return (hidden**2).sum() + (xp.sin(p["k"]) * 3).sum() + (p["b"] ** 2).sum()


def trained(transform, params, steps=20, compiled=True):
    params = wf.tree_map(wf.tensor, params)
    x = wf.tensor(draw(5, 4))
    state = transform.init(params)

    def step(params, state):
        gradients = wf.grad(lambda p: loss_of(wf, p, x))(params)
        updates, state = transform.update(gradients, state, params)
        return optim.apply(params, updates), state

    step = wf.compile(step) if compiled else step
    for _ in range(steps):
        params, state = step(params, state)
    assert not compiled or step.stats.traces == 1
    return params


def start():
    return {name: draw(*shape) for name, shape in SHAPES.items()}


def same(ours, expected, tolerance=1e-6):
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name].numpy(), value, rtol=tolerance, atol=tolerance)
