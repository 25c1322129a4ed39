"""Twenty steps of each optimiser are torch's (or the formula's, where torch has none)."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.torch_oracle import draw, torch
from weft.errors import ArgumentError, TreeError

optim = wf.optim
SHAPES = {"w": (4, 3), "b": (3,), "k": (2, 3, 2)}


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


def trained_by_torch(make, params, steps=20, schedule=None):
    tensors = {k: torch.tensor(v, requires_grad=True) for k, v in params.items()}
    x = torch.tensor(draw(5, 4))
    optimizer = make(list(tensors.values()))
    following = schedule(optimizer) if schedule else None
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(torch, tensors, x).backward()
        optimizer.step()
        if following:
            following.step()
    return {k: v.detach().numpy() for k, v in tensors.items()}


def start():
    return {name: draw(*shape) for name, shape in SHAPES.items()}


def same(ours, expected, tolerance=1e-6):
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name].numpy(), value, rtol=tolerance, atol=tolerance)


T = torch.optim
PAIRS = {
    "sgd": (optim.sgd(0.01), lambda p: T.SGD(p, 0.01)),
    "momentum": (optim.sgd(0.01, 0.9), lambda p: T.SGD(p, 0.01, 0.9)),
    "nesterov": (
        optim.sgd(0.01, 0.9, nesterov=True, weight_decay=0.1),
        lambda p: T.SGD(p, 0.01, 0.9, weight_decay=0.1, nesterov=True),
    ),
    "adam": (optim.adam(0.02), lambda p: T.Adam(p, 0.02)),
    "adam with decay": (
        optim.adam(0.02, (0.8, 0.95), 1e-6, 0.1),
        lambda p: T.Adam(p, 0.02, (0.8, 0.95), 1e-6, 0.1),
    ),
    "adamw": (
        optim.adamw(0.02, weight_decay=0.3),
        lambda p: T.AdamW(p, 0.02, weight_decay=0.3),
    ),
    "rmsprop": (optim.rmsprop(0.01), lambda p: T.RMSprop(p, 0.01)),
    "rmsprop, centred": (
        optim.rmsprop(0.01, 0.9, weight_decay=0.1, momentum=0.5, centered=True),
        lambda p: T.RMSprop(p, 0.01, 0.9, weight_decay=0.1, momentum=0.5, centered=True),
    ),
    "adafactor": (optim.adafactor(0.05), lambda p: T.Adafactor(p, 0.05)),
    "adafactor with decay": (
        optim.adafactor(0.5, -0.5, (1e-5, 1e-2), 1.5, 0.1),
        lambda p: T.Adafactor(p, 0.5, -0.5, (1e-5, 1e-2), 1.5, 0.1),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_twenty_steps_are_torchs(name):
    ours, theirs = PAIRS[name]
    # Schedules and corrections are computed in float32, whatever the parameters are.
    same(trained(ours, start()), trained_by_torch(theirs, start()), 1e-5)


@pytest.mark.parametrize("name", ["adamw", "adafactor with decay"])
def test_a_step_compiled_is_the_step_itself(name):
    transform, _ = PAIRS[name]
    eager = trained(transform, start(), 3, compiled=False)
    same(trained(transform, start(), 3), {k: v.numpy() for k, v in eager.items()}, 1e-12)


def test_lion_is_its_formula():
    params, x = start(), draw(5, 4)
    expected = {k: v.copy() for k, v in params.items()}
    momentum = {k: np.zeros_like(v) for k, v in params.items()}
    slope = wf.grad(lambda p: loss_of(wf, p, wf.tensor(x)))
    for _ in range(20):
        found = slope(wf.tree_map(wf.tensor, expected))
        for name in expected:
            g, m = found[name].numpy(), momentum[name]
            step = np.sign(0.9 * m + 0.1 * g) + 0.1 * expected[name]
            expected[name] = expected[name] - 0.01 * step
            momentum[name] = 0.99 * m + 0.01 * g
    same(trained(optim.lion(0.01, weight_decay=0.1), params), expected)


def test_muon_is_torchs_for_matrices(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)  # torch's would round
    params = {"w": draw(4, 3), "b": draw(2, 3), "k": draw(3, 3)}

    def loss(xp, p):
        return sum((t**2).sum() + xp.sin(t).sum() for t in p.values())

    theirs = {k: torch.tensor(v, requires_grad=True) for k, v in params.items()}
    options = {"weight_decay": 0.2, "nesterov": False}
    optimizer = T.Muon(list(theirs.values()), 0.02, **options)
    ours = optim.muon(0.02, **options)
    moved = wf.tree_map(wf.tensor, params)
    state = ours.init(moved)
    for _ in range(20):
        optimizer.zero_grad()
        loss(torch, theirs).backward()
        optimizer.step()
        updates, state = ours.update(wf.grad(lambda p: loss(wf, p))(moved), state, moved)
        moved = optim.apply(moved, updates)
    same(moved, {k: v.detach().numpy() for k, v in theirs.items()}, 1e-9)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_orthogonalize_keeps_singular_vectors_and_levels_singular_values(shape):
    matrix = draw(*shape)
    made = optim.orthogonalize(matrix, steps=10).numpy()
    u, _, v = np.linalg.svd(matrix, full_matrices=False)
    levels = u.T @ made @ v.T
    assert np.abs(levels - np.diag(np.diag(levels))).max() < 1e-9
    assert (np.diag(levels) > 0.6).all() and (np.diag(levels) < 1.3).all()


def test_muon_falls_back_for_tensors_that_are_no_matrices():
    params = start()
    fallback = optim.sgd(0.5)
    moved = trained(optim.muon(0.1, fallback=fallback), params, 1)
    plain = trained(fallback, params, 1)
    for name in ("b", "k"):
        np.testing.assert_allclose(moved[name].numpy(), plain[name].numpy(), rtol=1e-9)
    assert not np.allclose(moved["w"].numpy(), plain["w"].numpy())


def test_a_mask_says_what_decays():
    params = start()
    whole, part = (
        trained(optim.adamw(0.1, weight_decay=0.5, mask=mask), params, 1)
        for mask in (None, optim.matrices)
    )
    none = trained(optim.adamw(0.1, weight_decay=0.0), params, 1)
    np.testing.assert_array_equal(part["b"].numpy(), none["b"].numpy())
    np.testing.assert_array_equal(part["k"].numpy(), whole["k"].numpy())
    tree = {"w": False, "b": True, "k": False}
    turned = trained(optim.adamw(0.1, weight_decay=0.5, mask=tree), params, 1)
    assert not np.array_equal(turned["b"].numpy(), trained(optim.adamw(0.1), params, 1)["b"])


def test_clipping_is_torchs():
    gradients = {name: 3 * draw(*shape) for name, shape in SHAPES.items()}
    for limit in (1.0, 1e6):
        tensors = [torch.tensor(v, requires_grad=True) for v in gradients.values()]
        for tensor, value in zip(tensors, gradients.values(), strict=True):
            tensor.grad = torch.tensor(value)
        norm = torch.nn.utils.clip_grad_norm_(tensors, limit)
        found, _ = optim.clip_by_global_norm(limit).update(wf.tree_map(wf.tensor, gradients), ())
        for mine, tensor in zip(found.values(), tensors, strict=True):
            np.testing.assert_allclose(mine.numpy(), tensor.grad.numpy(), rtol=1e-9)
        ours = optim.global_norm(wf.tree_map(wf.tensor, gradients))
        np.testing.assert_allclose(ours.item(), norm.item())
    found, _ = optim.clip_by_value(0.5).update({"b": wf.tensor([-2.0, 0.1, 2.0])}, ())
    assert found["b"].numpy().tolist() == np.float32([-0.5, 0.1, 0.5]).tolist()


def test_narrow_parameters_take_steps_in_float32():
    params = {"w": wf.ones(3, dtype=wf.bfloat16)}
    transform = optim.adamw(1e-2)
    state = transform.init(params)
    assert state[0].square["w"].dtype == wf.float32
    updates, state = transform.update({"w": wf.ones(3, dtype=wf.bfloat16)}, state, params)
    assert updates["w"].dtype == wf.float32
    assert optim.apply(params, updates)["w"].dtype == wf.bfloat16


def test_optimizers_take_models_and_parts_of_models():
    model = wf.nn.Sequential(wf.nn.Linear(2, 3, key=wf.random.key(0)), wf.nn.BatchNorm(3))
    params, rest = wf.nn.partition(model)
    for transform in (optim.adamw(0.1, mask=optim.matrices), optim.muon(0.1), optim.adafactor(0.1)):
        state = transform.init(params)
        gradients = wf.tree_map(wf.ones_like, params)
        updates, state = transform.update(gradients, state, params)
        moved = wf.nn.combine(optim.apply(params, updates), rest)
        assert type(moved) is wf.nn.Sequential
        assert moved.layers[1].running_mean is model.layers[1].running_mean
        assert not np.allclose(moved.layers[0].bias, model.layers[0].bias)


def test_mistakes_are_told():
    transform = optim.adamw(0.1)
    params = {"w": wf.ones(2)}
    with pytest.raises(
        ArgumentError, match=r"add_decayed_weights: update: params are needed\nhint"
    ):
        transform.update(params, transform.init(params))
    with pytest.raises(TreeError, match=r"chain: state: expected a tuple of 3 states.*\nhint"):
        transform.update(params, (), params)
    with pytest.raises(ArgumentError, match="chain: transform 0: expected a Transform"):
        optim.chain(optim.adam)
    with pytest.raises(ArgumentError, match="learning_rate: expected a number, a tensor or a sch"):
        optim.sgd("fast")
    with pytest.raises(ArgumentError, match="adam: betas: expected two numbers"):
        optim.adam(0.1, 0.9)
    with pytest.raises(ArgumentError, match="nesterov needs a momentum"):
        optim.sgd(0.1, nesterov=True)
    with pytest.raises(ArgumentError, match="mask: expected a tree of True and False"):
        optim.adamw(0.1, mask=lambda p: p).update(params, transform.init(params), params)
    with pytest.raises(TreeError, match="differs"):
        transform.update({"v": wf.ones(2)}, transform.init(params), params)
