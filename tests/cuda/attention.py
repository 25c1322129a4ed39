"""Attention, and gradients of it, for tests of kernels."""

from __future__ import annotations

import weft as wf


def attention(q, k, v):
    return wf.scaled_dot_product_attention(q, k, v)


def causal(q, k, v):
    return wf.scaled_dot_product_attention(q, k, v, is_causal=True)


def gradient(function):
    """The gradient of something that is made of all results."""

    def loss(*given):
        return wf.sin(function(*given).astype("float32")).sum()

    return wf.grad(loss, argnums=(0, 1, 2))
