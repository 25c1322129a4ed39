"""Blocks of a transformer of usual width, written alike for weft and for torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 768, 12, 4, 512, 8


def arguments(dtype: Any, width: int = WIDTH, length: int = LENGTH) -> tuple[list[Any], Any]:
    """The weights of all blocks, and what goes into the first."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return (rng.standard_normal(shape) * 0.02).astype(np.float32).astype(dtype)

    layers = [
        {
            "qkv": normal(width, 3 * width),
            "out": normal(width, width),
            "up": normal(width, 4 * width),
            "down": normal(4 * width, width),
            "first": np.ones(width, dtype),
            "second": np.ones(width, dtype),
        }
        for _ in range(LAYERS)
    ]
    return layers, normal(BATCH, length, width) * 50


def loss_of(norm: Any, attend: Any, gelu: Any, wide: Callable[[Any], Any]) -> Callable[..., Any]:
    """The mean square of what the last block gives, in a library's functions."""

    def heads(x: Any) -> Any:
        return x.reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2)

    def block(p: Any, x: Any) -> Any:
        width = x.shape[-1]
        mixed = norm(x, (width,), p["first"]) @ p["qkv"]
        q, k, v = (heads(mixed[..., i * width : (i + 1) * width]) for i in range(3))
        seen = attend(q, k, v, is_causal=True).swapaxes(1, 2).reshape(x.shape)
        x = x + seen @ p["out"]
        return x + gelu(norm(x, (width,), p["second"]) @ p["up"]) @ p["down"]

    def loss(layers: Any, x: Any) -> Any:
        for p in layers:
            x = block(p, x)
        return (wide(x) ** 2).mean()

    return loss
