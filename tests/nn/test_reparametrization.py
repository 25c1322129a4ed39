"""Weights made of other tensors are torch's, in state dicts, results, gradients and training."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.nn.torch_layers import loaded, same_layer
from tests.torch_oracle import close, draw, torch
from weft.errors import ArgumentError

nn, theirs = wf.nn, torch.nn
made_of = theirs.utils.parametrizations
KEY = wf.random.key(0)
LAYERS = [
    (nn.Linear(4, 6, key=KEY), lambda: theirs.Linear(4, 6), (3, 4)),
    (nn.Conv2d(2, 3, 3, key=KEY), lambda: theirs.Conv2d(2, 3, 3), (2, 2, 5, 5)),
    (nn.ConvTranspose1d(2, 3, 2, key=KEY), lambda: theirs.ConvTranspose1d(2, 3, 2), (2, 2, 5)),
    (nn.Linear(4, 6, False, key=KEY), lambda: theirs.Linear(4, 6, False), (4,)),
]


@pytest.mark.parametrize(("layer", "make", "shape"), LAYERS)
def test_weights_divided_by_their_largest_singular_value(layer, make, shape):
    other = made_of.spectral_norm(make())
    ours, x = nn.SpectralNorm(layer, key=KEY), draw(*shape)
    same_layer(ours, other.eval(), x)
    same_layer(ours, other, x)
    moving, other = loaded(ours, other), other.train()
    for _ in range(3):
        got, moving = wf.compile(lambda m, x: m.advance(x))(moving, wf.tensor(x))
        close(got.numpy(), other(torch.tensor(x)).detach().numpy(), 1e-9)
    for name, value in other.state_dict().items():
        close(nn.state_dict(moving)[name].numpy(), value.numpy(), 1e-9)


def test_the_largest_singular_value_becomes_1_and_vectors_are_no_parameters():
    layer = nn.SpectralNorm(nn.Linear(5, 5, key=KEY), 50, key=KEY)
    _, layer = layer.advance(wf.ones(5))
    assert wf.linalg.svdvals(layer.merged().weight)[0].item() == pytest.approx(1, abs=1e-5)
    assert list(nn.parameters(layer)) == ["parametrizations.weight.original", "bias"]
    _, chain = nn.Sequential(layer, nn.relu).advance(wf.ones(5))
    assert not np.array_equal(chain[0].u.numpy(), nn.SpectralNorm(layer.layer, key=KEY).u.numpy())


@pytest.mark.parametrize(("layer", "make", "shape"), LAYERS)
def test_weights_of_lengths_and_directions(layer, make, shape):
    ours = nn.WeightNorm(layer)
    close(ours.weight.numpy(), layer.weight.numpy(), 1e-6)
    same_layer(ours, made_of.weight_norm(make()), draw(*shape))


@pytest.mark.parametrize("wrong", [nn.LayerNorm(3), nn.relu, wf.ones((2, 2))])
def test_what_has_no_matrix_is_refused(wrong):
    with pytest.raises(ArgumentError, match="SpectralNorm: layer: expected a layer with a matrix"):
        nn.SpectralNorm(wrong, key=KEY)
    with pytest.raises(ArgumentError, match="WeightNorm: layer: expected a layer with a matrix"):
        nn.WeightNorm(wrong)
