"""`GPT`: a language model over characters, and how its weights lie over a mesh.

Positions enter by rotation of queries and keys, so attention sees distances alone: a text may grow
past the context, as long as each character looks back no further than the model was trained to.
"""

from __future__ import annotations

from typing import Any

import weft as wf
from weft import nn


class Attention(nn.Module):
    """Causal self-attention, with a projection each for queries, keys and values."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    heads: int
    context: int

    def __init__(self, width: int, heads: int, context: int, *, key: wf.Tensor) -> None:
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=False, key=k) for k in wf.random.split(key, 4)
        )
        self.heads, self.context = heads, context

    def __call__(self, x: Any) -> wf.Tensor:
        """Mix each position of (batch, length, width) with those before it."""
        q, k, v = self._heads(x)
        q, k = nn.rotary(q), nn.rotary(k)
        return self._joined(wf.scaled_dot_product_attention(q, k, v, is_causal=True))

    def decode(self, x: Any, cache: nn.KVCache) -> tuple[wf.Tensor, nn.KVCache]:
        """The same for the next positions alone: what came before them is in the cache."""
        q, k, v = self._heads(x)
        here: Any = wf.expand_dims(cache.length + wf.arange(x.shape[-2]), -1)
        there: Any = wf.arange(cache.capacity)
        cache = cache.extend(nn.rotary(k, here[:, 0]), v)
        seen = (there <= here) & (there > here - self.context)
        mixed = wf.scaled_dot_product_attention(
            nn.rotary(q, here[:, 0]), cache.keys, cache.values, seen
        )
        return self._joined(mixed), cache

    def cache(self, batch: int, capacity: int) -> nn.KVCache:
        """An empty cache for texts of `capacity` characters."""
        weight = self.query.weight
        size = weight.shape[0] // self.heads
        empty = wf.zeros((batch, self.heads, capacity, size), dtype=weight.dtype)
        return nn.KVCache(empty, empty, wf.zeros((), dtype=wf.int32))

    def _heads(self, x: Any) -> list[Any]:
        """Queries, keys and values: (batch, length, width) to (batch, heads, length, size)."""
        shape = (*x.shape[:-1], self.heads, x.shape[-1] // self.heads)
        maps = (self.query, self.key, self.value)
        return [wf.swapaxes(wf.reshape(f(x), shape), -2, -3) for f in maps]

    def _joined(self, mixed: Any) -> wf.Tensor:
        """The opposite, and the projection back."""
        rows = wf.swapaxes(mixed, -2, -3)
        return self.output(wf.reshape(rows, (*rows.shape[:-2], -1)))


class Block(nn.Module):
    """Attention, then a network on each position, each added to what went in."""

    norm1: nn.RMSNorm
    attention: Attention
    norm2: nn.RMSNorm
    expand: nn.Linear
    contract: nn.Linear

    def __init__(self, width: int, heads: int, context: int, *, key: wf.Tensor) -> None:
        k1, k2, k3 = wf.random.split(key, 3)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads, context, key=k1)
        self.expand = nn.Linear(width, 4 * width, bias=False, key=k2)
        self.contract = nn.Linear(4 * width, width, bias=False, key=k3)

    def __call__(self, x: Any) -> Any:
        """Map (batch, length, width) to the same shape."""
        return self._feed_forward(x + self.attention(self.norm1(x)))

    def decode(self, x: Any, cache: nn.KVCache) -> tuple[Any, nn.KVCache]:
        """The next positions, given a cache of those before them."""
        mixed, cache = self.attention.decode(self.norm1(x), cache)
        return self._feed_forward(x + mixed), cache

    def _feed_forward(self, x: Any) -> Any:
        return x + self.contract(wf.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Scores for the next character after each character of a text."""

    embedding: nn.Embedding
    blocks: tuple[Block, ...]
    norm: nn.RMSNorm
    head: nn.Linear

    def __init__(
        self,
        vocabulary: int,
        layers: int = 4,
        width: int = 128,
        heads: int = 4,
        context: int = 128,
        *,
        key: wf.Tensor,
    ) -> None:
        first, last, *rest = wf.random.split(key, layers + 2)
        self.embedding = nn.Embedding(vocabulary, width, key=first)
        self.blocks = tuple(Block(width, heads, context, key=k) for k in rest)
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False, key=last)

    def __call__(self, ids: Any) -> wf.Tensor:
        """Map characters (batch, length) to scores (batch, length, vocabulary)."""
        x: Any = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def decode(self, ids: Any, caches: Any) -> tuple[wf.Tensor, tuple[nn.KVCache, ...]]:
        """Scores for characters that follow those in the caches, and the extended caches."""
        x: Any = self.embedding(ids)
        extended = []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, cache = block.decode(x, cache)
            extended.append(cache)
        return self.head(self.norm(x)), tuple(extended)

    def caches(self, batch: int, capacity: int) -> tuple[nn.KVCache, ...]:
        """Empty caches, one for each block."""
        return tuple(block.attention.cache(batch, capacity) for block in self.blocks)


# Megatron's cut: a map that widens is split by its outputs, the one behind it by its inputs. What
# lies between never moves; the sums that the second map leaves open are added up once a block.
BY_OUTPUTS = ("query", "key", "value", "expand")
BY_INPUTS = ("output", "contract")


def laid_out(model: GPT, mesh: wf.DeviceMesh | None) -> GPT:
    """The model over the axis `tp` of a mesh; without a mesh, as it is."""
    if mesh is None:
        return model

    def layout(name: str) -> wf.P:
        layer = name.split(".")[-2]
        if layer in BY_OUTPUTS:
            return wf.P("tp", None)
        return wf.P(None, "tp") if layer in BY_INPUTS else wf.P()

    placed = {name: wf.shard(x, mesh, layout(name)) for name, x in nn.state_dict(model).items()}
    made: GPT = wf.tree_unflatten(wf.tree_structure(model), list(placed.values()))
    return made
