"""Twenty steps of each optimiser are torch's."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.optim.small_problem import SHAPES, draw, loss_of, same, start, trained
from tests.torch_oracle import torch

optim = wf.optim


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
    "adam, the largest squares": (
        optim.adam(0.02, (0.8, 0.7), weight_decay=0.1, amsgrad=True),
        lambda p: T.Adam(p, 0.02, (0.8, 0.7), weight_decay=0.1, amsgrad=True),
    ),
    "adamw, the largest squares": (
        optim.adamw(0.02, (0.8, 0.7), amsgrad=True),
        lambda p: T.AdamW(p, 0.02, (0.8, 0.7), amsgrad=True),
    ),
    "rmsprop": (optim.rmsprop(0.01), lambda p: T.RMSprop(p, 0.01)),
    "rmsprop, centred": (
        optim.rmsprop(0.01, 0.9, weight_decay=0.1, momentum=0.5, centered=True),
        lambda p: T.RMSprop(p, 0.01, 0.9, weight_decay=0.1, momentum=0.5, centered=True),
    ),
    "adagrad": (optim.adagrad(0.05), lambda p: T.Adagrad(p, 0.05)),
    "adagrad with decay": (
        optim.adagrad(0.05, 0.1, 0.3, 1e-4),
        lambda p: T.Adagrad(p, 0.05, weight_decay=0.1, initial_accumulator_value=0.3, eps=1e-4),
    ),
    "adadelta": (optim.adadelta(), lambda p: T.Adadelta(p)),
    "adadelta with decay": (
        optim.adadelta(0.5, 0.7, 1e-4, 0.1),
        lambda p: T.Adadelta(p, 0.5, 0.7, 1e-4, 0.1),
    ),
    "adamax": (
        optim.adamax(0.02, (0.8, 0.95), 1e-4, 0.1),
        lambda p: T.Adamax(p, 0.02, (0.8, 0.95), 1e-4, 0.1),
    ),
    "radam": (optim.radam(0.02), lambda p: T.RAdam(p, 0.02)),
    "radam, soon over": (
        optim.radam(0.02, (0.5, 0.8), 1e-4, 0.1),
        lambda p: T.RAdam(p, 0.02, (0.5, 0.8), 1e-4, 0.1),
    ),
    "radam, decoupled": (
        optim.radam(0.02, weight_decay=0.3, decoupled_weight_decay=True),
        lambda p: T.RAdam(p, 0.02, weight_decay=0.3, decoupled_weight_decay=True),
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
    same(trained(ours, start()), trained_by_torch(theirs, start()), 1e-9)


NADAMS = [
    {},
    {"betas": (0.5, 0.9), "eps": 1e-4, "weight_decay": 0.1, "momentum_decay": 0.1},
    {"weight_decay": 0.3, "decoupled_weight_decay": True},
]


@pytest.mark.parametrize("options", NADAMS, ids=str)
def test_twenty_steps_of_nadam_are_torchs(options):
    theirs = trained_by_torch(lambda p: T.NAdam(p, 0.02, **options), start())
    # Both keep the product of momenta in float32, whatever the parameters are.
    same(trained(optim.nadam(0.02, **options), start()), theirs, 1e-6)


@pytest.mark.parametrize("b2", [0.9, 0.99999])
def test_early_steps_of_radam_have_their_digits_in_float32(b2):
    tensor = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    theirs, ours = T.RAdam([tensor], 1.0, (0.9, b2)), optim.radam(1.0, (0.9, b2))
    state, before = ours.init(wf.zeros(1)), 0.0
    for _ in range(40):
        tensor.grad = torch.ones(1, dtype=torch.float64)
        theirs.step()
        update, state = ours.update(wf.ones(1), state, wf.zeros(1))
        np.testing.assert_allclose(update.item(), tensor.item() - before, rtol=1e-5)
        before = tensor.item()


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
