"""Attention beside torch: forward, gradients, and per-example gradients; rows of `heavy.py`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import harness
import numpy as np
from harness import Row, Workload

import weft as wf

SMALL, LARGE = (16, 4, 128, 32), (4, 8, 2048, 64)


def arrays(shape: tuple[int, ...], count: int) -> list[Any]:
    """Random float32 numbers."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, np.float32) for _ in range(count)]


def forward(shape: tuple[int, ...], causal: bool) -> Workload:
    """Attention alone."""
    given = arrays(shape, 3)
    tensors = [wf.tensor(x) for x in given]
    run = wf.compile(lambda q, k, v: wf.scaled_dot_product_attention(q, k, v, is_causal=causal))
    found: Workload = {"weft": lambda: run(*tensors).data()}
    if harness.available("torch"):
        import torch

        theirs = [torch.tensor(x) for x in given]
        attend = torch.nn.functional.scaled_dot_product_attention
        found["torch"] = lambda: attend(*theirs, is_causal=causal)
    return found


def gradient(shape: tuple[int, ...], causal: bool) -> Workload:
    """Attention and the gradients of queries, keys and values."""
    given = arrays(shape, 4)
    tensors = [wf.tensor(x) for x in given]

    def loss(q: Any, k: Any, v: Any, g: Any) -> Any:
        return (wf.scaled_dot_product_attention(q, k, v, is_causal=causal) * g).sum()

    run = wf.compile(wf.grad(loss, argnums=(0, 1, 2)))
    found: Workload = {"weft": lambda: [x.data() for x in run(*tensors)]}
    if harness.available("torch"):
        import torch

        *inputs, g = (torch.tensor(x) for x in given)
        inputs = [x.requires_grad_() for x in inputs]
        attend = torch.nn.functional.scaled_dot_product_attention
        found["torch"] = lambda: torch.autograd.grad(attend(*inputs, is_causal=causal), inputs, g)
    return found


def per_example() -> Workload:
    """The gradient of a projection's weights for each of 16 sequences that attend to themselves."""
    shape = (16, 128, 64)
    (x,), (w,) = arrays(shape, 1), arrays((64, 192), 1)
    w *= 0.1

    def loss(w: Any, x: Any, split: Any, attend: Any) -> Any:
        q, k, v = split(x @ w)
        return (attend(q, k, v, is_causal=True) ** 2).sum()

    def split(x: Any) -> Any:
        return x[:, :64], x[:, 64:128], x[:, 128:]

    mine = partial(loss, split=split, attend=wf.scaled_dot_product_attention)
    run = wf.compile(wf.vmap(wf.grad(mine), in_axes=(None, 0)))
    ours = wf.tensor(w), wf.tensor(x)
    found: Workload = {"weft": lambda: run(*ours).data()}
    if harness.available("torch"):
        import torch

        attend = torch.nn.functional.scaled_dot_product_attention
        single = partial(loss, split=split, attend=attend)
        slopes = torch.func.vmap(torch.func.grad(single), in_dims=(None, 0))
        theirs = torch.tensor(w), torch.tensor(x)
        found["torch"] = lambda: slopes(*theirs)
    if harness.available("jax"):
        import jax

        def attend_by_hand(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
            scores = q @ k.T * q.shape[-1] ** -0.5
            seen = jax.numpy.tril(jax.numpy.ones(scores.shape, bool)) | (not is_causal)
            return jax.nn.softmax(jax.numpy.where(seen, scores, -jax.numpy.inf), axis=-1) @ v

        one = partial(loss, split=split, attend=attend_by_hand)
        jitted = jax.jit(jax.vmap(jax.grad(one), in_axes=(None, 0)))
        placed = jax.numpy.asarray(w), jax.numpy.asarray(x)
        found["jax"] = lambda: jitted(*placed).block_until_ready()
    return found


def _named(shape: tuple[int, ...]) -> str:
    return "b{} h{} T{} d{}".format(*shape)


def rows() -> Iterator[Row]:
    """All of it, with goals: how many times faster than the best peer."""
    for shape in (SMALL, LARGE):
        for what, build in (("attention", forward), ("attention gradient", gradient)):
            for causal in (False, True):
                name = f"{what} {_named(shape)}{' causal' * causal}"
                yield Row(name, partial(build, shape, causal), 1.3)
    yield Row("attention per-example gradients", per_example, 1.3)
