"""A layer and torch's with the same weights: results and all gradients, in float64."""

from __future__ import annotations

import numpy as np

import weft as wf
from tests.torch_oracle import close, torch

nn = wf.nn


def loaded(ours, theirs):
    """`ours` in float64 with torch's weights."""
    wide = wf.tree_map(lambda t: wf.astype(t, wf.float64), ours)
    return nn.load_state_dict(wide, theirs.state_dict())


def uneven(shape):
    """A cotangent whose entries all differ."""
    return np.cos(np.arange(np.prod(shape, dtype=int), dtype=float)).reshape(shape)


def same_layer(ours, theirs, *arrays, call=None, call_theirs=None, tolerance=1e-9):
    """Results agree, and so do the gradients of weights and inputs."""
    theirs = theirs.double()
    theirs.zero_grad()
    ours = loaded(ours, theirs)
    tensors = [torch.tensor(a, requires_grad=a.dtype == np.float64) for a in arrays]
    expected = (call_theirs or (lambda m, *x: m(*x)))(theirs, *tensors)
    cotangent = uneven(tuple(expected.shape))

    def value(module, inputs):
        floats = iter(inputs)
        full = [next(floats) if a.dtype == np.float64 else a for a in arrays]
        return (call or (lambda m, *x: m(*x)))(module, *full)

    trained, rest = nn.partition(ours)
    points = [a for a in arrays if a.dtype == np.float64]
    got, pullback = wf.vjp(lambda t, x: value(nn.combine(t, rest), x), trained, points)
    close(got.numpy(), expected.detach().numpy(), tolerance)
    gradient, inputs = pullback(cotangent)
    (expected * torch.tensor(cotangent)).sum().backward()
    for name, parameter in theirs.named_parameters():
        close(nn.state_dict(gradient)[name].numpy(), parameter.grad.numpy(), tolerance)
    for mine, other in zip(inputs, [t for t in tensors if t.requires_grad], strict=True):
        close(mine.numpy(), other.grad.numpy(), tolerance)
    return ours
