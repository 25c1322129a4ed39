"""Text from a model: one compiled loop that draws a character, feeds it back, and goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft as wf
from weft.demo.model import GPT


def draw(scores: Any, key: wf.Tensor, temperature: Any, top: int) -> wf.Tensor:
    """One of the `top` best characters, the likelier the better its score."""
    best: Any
    best, places = wf.top_k(scores, top)
    chosen = wf.random.categorical(key, best / temperature)
    return wf.take_along_axis(places, wf.expand_dims(chosen, -1), axis=-1)


def continued(
    model: GPT, prompt: Any, key: wf.Tensor, temperature: float = 0.8, *, count: int, top: int = 20
) -> wf.Tensor:
    """`count` characters that follow `prompt` (batch, length): shape (batch, count).

    The prompt goes through the model once; afterwards a step looks at one new character, and at
    the keys and values of those before it, which the caches hold.
    """
    batch, length = prompt.shape
    scores, caches = model.decode(prompt, model.caches(batch, length + count))

    def step(carry: Any, own: wf.Tensor) -> tuple[Any, Any]:
        scores, caches = carry
        ids = wf.astype(draw(scores, own, temperature, top), prompt.dtype)
        following, caches = model.decode(ids, caches)
        return (following[:, -1], caches), ids[:, 0]

    _, drawn = wf.scan(step, (scores[:, -1], caches), wf.random.split(key, count))
    return wf.swapaxes(drawn, 0, 1)


generate: Callable[..., wf.Tensor] = wf.compile(
    continued, static_argnames=("count", "top"), name="generate"
)
