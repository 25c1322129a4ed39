"""Attention: several heads, grouped or not, with rotary positions and an explicit cache.

A bool mask says what may be seen (True), a float mask is added to the scores (…, heads, L, S), with
which it broadcasts; shapes are (…, length, features), whatever leads is batch.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, overload

import weft as wf
from weft.core.common import dtypes
from weft.core.common.parameters import as_finite, as_flag, as_integer, as_integers
from weft.core.tensor.convert import to_tensor
from weft.errors import ArgumentError, ShapeError
from weft.nn.basic import Dropout, Linear
from weft.nn.init import glorot_uniform
from weft.nn.inputs import divided, features_last, keys_of, sizes
from weft.nn.module import Module, static
from weft.ops.base import call
from weft.ops.gather import scatter_set_op
from weft.ops.nn.normalization import attention_weights
from weft.ops.norms import inexact


def rotary(x: Any, positions: Any = None, base: float = 10_000.0) -> wf.Tensor:
    """Turn pairs of features of `x` (…, length, size) by angles that grow with the position.

    Feature i is paired with i + size/2 and turned by position · base^(−2i/size). `positions` are
    0, 1, 2 … unless given, of shape (length,) or (…, length).
    """
    tensor = inexact("rotary", x, positions)
    if tensor.ndim < 2 or tensor.shape[-1] % 2:
        raise ShapeError(f"rotary: x: expected (…, length, an even size), got {tensor.shape}")
    base = _as_base("rotary", "base", base)
    half = tensor.shape[-1] // 2
    if positions is None:
        positions = wf.arange(tensor.shape[-2], device=tensor.device)
    wide = wf.float32 if dtypes.is_narrow(tensor.dtype) else dtypes.real_of(tensor.dtype)
    speeds: Any = base ** (wf.arange(half, dtype=wide, device=tensor.device) * (-1 / half))
    angles = wf.expand_dims(wf.astype(to_tensor(positions, like=tensor.device), wide), -1) * speeds
    cos, sin = (wf.astype(f(angles), tensor.dtype) for f in (wf.cos, wf.sin))
    first: Any = tensor[..., :half]
    second: Any = tensor[..., half:]
    return wf.concat([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _as_base(op: str, name: str, value: Any) -> float:
    """The base of rotary positions."""
    base = as_finite(op, name, value)
    if base <= 0:
        raise ArgumentError(f"{op}: {name} must be positive, got {base}")
    return base


class KVCache(Module):
    """The keys and values of the positions seen so far: a value like any other.

    `keys` and `values` are (…, heads, capacity, size); `length` counts the positions filled.
    """

    keys: wf.Tensor
    values: wf.Tensor
    length: wf.Tensor

    @property
    def capacity(self) -> int:
        """How many positions fit."""
        return self.keys.shape[-2]

    def extend(self, keys: Any, values: Any) -> KVCache:
        """The cache with keys and values (…, heads, new positions, size) behind those it has."""
        new = keys.shape[-2]
        if new > self.capacity:
            raise ShapeError(
                f"KVCache: {new} positions do not fit a capacity of {self.capacity}"
                "\nhint: attention.cache(capacity=...) makes a larger one"
            )
        first = wf.astype(self.length, wf.int64)
        places = wf.expand_dims(first + wf.arange(new, device=self.length.device), -1)
        params = {"indexed": 1, "rest": 1, "picks": 1, "mode": "KVCache: capacity"}

        def put(old: Any, given: Any) -> wf.Tensor:
            made: wf.Tensor = call(
                scatter_set_op, (old, places, wf.astype(given, old.dtype)), params
            )
            return made

        return KVCache(put(self.keys, keys), put(self.values, values), self.length + new)


class MultiHeadAttention(Module):
    """Attention over several heads; torch's state dicts fit (`in_proj_weight`, `out_proj.weight`).

    `num_kv_heads` below `num_heads` lets query heads share keys and values, `rope` is the base of
    rotary positions (None: no positions), `is_causal` hides later positions.
    """

    in_proj: Linear
    out_proj: Linear
    dropout: Dropout
    num_heads: int = static()
    num_kv_heads: int = static()
    rope: float | None = static()
    is_causal: bool = static()

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        key: wf.Tensor,
        num_kv_heads: int | None = None,
        rope: float | None = None,
        is_causal: bool = False,
        dtype: Any = None,
    ) -> None:
        kind = "MultiHeadAttention"
        width, heads = sizes(kind, embed_dim=embed_dim, num_heads=num_heads)
        shared = (
            heads if num_kv_heads is None else as_integer(kind, "num_kv_heads", num_kv_heads, 1)
        )
        size = divided(kind, "embed_dim", width, "num_heads", heads)
        divided(kind, "num_heads", heads, "num_kv_heads", shared)
        if rope is not None and size % 2:
            raise ArgumentError(f"{kind}: rope turns pairs of features, but a head has {size}")
        first, second = keys_of(key, 2)
        rows = width + 2 * shared * size
        projection = Linear(width, rows, bias, key=first, init=glorot_uniform(), dtype=dtype)
        result = Linear(width, width, bias, key=second, dtype=dtype)
        self.in_proj, self.out_proj = (_without_shift(x) for x in (projection, result))
        self.dropout = Dropout(dropout)
        self.num_heads, self.num_kv_heads = heads, shared
        self.rope = None if rope is None else _as_base(kind, "rope", rope)
        self.is_causal = as_flag(kind, "is_causal", is_causal)

    @property
    def embed_dim(self) -> int:
        """How many features a position has."""
        return self.in_proj.in_features

    @property
    def head_dim(self) -> int:
        """How many features a head has."""
        return self.embed_dim // self.num_heads

    @overload
    def __call__(
        self,
        query: Any,
        memory: Any = ...,
        value: Any = ...,
        *,
        mask: Any = ...,
        is_causal: bool | None = ...,
        positions: Any = ...,
        key: Any = ...,
        need_weights: Literal[False] = ...,
        average_attn_weights: bool = ...,
    ) -> wf.Tensor: ...

    @overload
    def __call__(
        self,
        query: Any,
        memory: Any = ...,
        value: Any = ...,
        *,
        mask: Any = ...,
        is_causal: bool | None = ...,
        positions: Any = ...,
        key: Any = ...,
        need_weights: Literal[True],
        average_attn_weights: bool = ...,
    ) -> tuple[wf.Tensor, wf.Tensor]: ...

    def __call__(
        self,
        query: Any,
        memory: Any = None,
        value: Any = None,
        *,
        mask: Any = None,
        is_causal: bool | None = None,
        positions: Any = None,
        key: Any = None,
        need_weights: bool = False,
        average_attn_weights: bool = True,
    ) -> Any:
        """Let each position of `query` (…, L, E) mix those of `memory` (…, S, E), or its own.

        `value` (…, S, E) is mixed in place of `memory` where it is given; `positions` (L) or (…, L)
        are those of the query, for `rope`; `key` is the random key for dropout. With `need_weights`
        the result is a pair: the second are the weights (…, L, S), means over heads, or those of
        each head (…, heads, L, S) without `average_attn_weights`. They take memory for all scores.
        """
        x = features_last(self, "query", query, self.embed_dim)
        q, k, v = self._heads(x, memory, value)
        if positions is not None:
            positions = self._positions(positions, x.shape[:-1])
        if self.rope is not None:
            q = rotary(q, positions, self.rope)
            k = rotary(k, positions if memory is None else None, self.rope)
        causal = self.is_causal if is_causal is None else is_causal
        how = self._how(q, k, mask, causal, key)
        made = self._mixed(q, k, v, how)
        if not as_flag("MultiHeadAttention", "need_weights", need_weights):
            return made
        weights = attention_weights(q, k, **how)
        if as_flag("MultiHeadAttention", "average_attn_weights", average_attn_weights):
            weights = wf.mean(weights, axis=-3)
        return made, weights

    def decode(
        self, x: Any, cache: KVCache, *, mask: Any = None, key: Any = None
    ) -> tuple[wf.Tensor, KVCache]:
        """Attend from the next positions `x` (…, L, E) to all before; gives the extended cache."""
        x = features_last(self, "x", x, self.embed_dim)
        q, k, v = self._heads(x, None, None)
        steps = wf.arange(x.shape[-2], dtype=cache.length.dtype, device=x.device)
        places: Any = cache.length + steps
        if self.rope is not None:
            q, k = (rotary(t, places, self.rope) for t in (q, k))
        cache = cache.extend(k, v)
        columns = wf.arange(cache.capacity, dtype=cache.length.dtype, device=x.device)
        seen: Any = columns <= wf.expand_dims(places, -1)
        if mask is not None:
            given = to_tensor(mask, like=x.device, op="MultiHeadAttention: mask")
            is_bool = wf.isdtype(given.dtype, "bool")
            seen = seen & given if is_bool else wf.where(seen, given, -wf.inf)
        keys, values = (wf.astype(t, q.dtype) for t in (cache.keys, cache.values))
        return self._mixed(q, keys, values, self._how(q, keys, seen, False, key)), cache

    def cache(self, batch: Any = (), *, capacity: int, dtype: Any = None) -> KVCache:
        """An empty cache for `capacity` positions of each of a batch of sequences."""
        lead = as_integers("cache", "batch", batch, 0)
        room = as_integer("cache", "capacity", capacity, 0)
        shape = (*lead, self.num_kv_heads, room, self.head_dim)
        weight = self.out_proj.weight
        kind = weight.dtype if dtype is None else dtype
        empty = wf.zeros(shape, dtype=kind, device=weight.device)
        return KVCache(empty, empty, wf.zeros((), dtype=wf.int32, device=weight.device))

    def _positions(self, positions: Any, lead: tuple[int, ...]) -> wf.Tensor:
        """Positions (L), or (…, 1, L): the same for all heads."""
        if self.rope is None:
            raise ArgumentError(
                "MultiHeadAttention: positions were given to a layer without rope"
                "\nhint: MultiHeadAttention(..., rope=10_000.0) turns queries and keys by them"
            )
        given = to_tensor(
            positions, like=self.out_proj.weight.device, op="MultiHeadAttention: positions"
        )
        if given.shape == lead[-1:]:
            return given
        if given.shape != lead:
            raise ShapeError(
                f"MultiHeadAttention: positions: expected shape {lead[-1:]} or {lead},"
                f" got {given.shape}"
            )
        return wf.expand_dims(given, -2)

    def _heads(self, x: Any, memory: Any, value: Any) -> tuple[Any, Any, Any]:
        """Queries, keys and values (…, heads, length, size)."""
        width, inner = self.embed_dim, self.num_kv_heads * self.head_dim
        counts = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        ends = (0, width, width + inner, width + 2 * inner)
        if memory is None:
            if value is not None:
                raise ArgumentError("MultiHeadAttention: value was given without memory")
            mixed: Any = self.in_proj(x)
            parts = [mixed[..., a:b] for a, b in pairwise(ends)]
        else:
            memory = features_last(self, "memory", memory, width)
            if value is None:
                both: Any = self.in_proj.rows(width, ends[-1])(memory)
                parts = [self.in_proj.rows(0, width)(x), both[..., :inner], both[..., inner:]]
            else:
                sources = (x, memory, features_last(self, "value", value, width))
                parts = [self.in_proj.rows(ends[i], ends[i + 1])(t) for i, t in enumerate(sources)]
        q, k, v = (self._split(t, n) for t, n in zip(parts, counts, strict=True))
        return q, k, v

    def _split(self, x: Any, heads: int) -> wf.Tensor:
        return wf.swapaxes(wf.reshape(x, (*x.shape[:-1], heads, self.head_dim)), -2, -3)

    def _how(self, q: Any, k: Any, mask: Any, is_causal: bool, key: Any) -> dict[str, Any]:
        """What attention takes besides queries, keys and values."""
        active = self.dropout.active
        if mask is not None:
            given = to_tensor(mask, like=q.device, op="MultiHeadAttention: mask")
            mask = _fitting(given, (*q.shape[:-1], k.shape[-2]))
        return {
            "mask": mask,
            "is_causal": is_causal,
            "enable_gqa": self.num_kv_heads != self.num_heads,
            "dropout_rate": self.dropout.rate if active else 0.0,
            "dropout_key": self.dropout.checked(key) if active else None,
        }

    def _mixed(self, q: Any, k: Any, v: Any, how: dict[str, Any]) -> wf.Tensor:
        made: Any = wf.scaled_dot_product_attention(q, k, v, **how)
        joined = wf.swapaxes(made, -2, -3)
        return self.out_proj(wf.reshape(joined, (*joined.shape[:-2], self.embed_dim)))

    def state_name(self, name: str) -> str:
        """The joint projection is called as in torch."""
        plain = {"in_proj.weight": "in_proj_weight", "in_proj.bias": "in_proj_bias"}
        return plain.get(name, name)


def _fitting(given: wf.Tensor, scores: tuple[int, ...]) -> wf.Tensor:
    """A mask that broadcasts with scores (…, heads, L, S)."""
    pairs = zip(reversed(given.shape), reversed(scores), strict=False)
    if given.ndim > len(scores) or any(n not in (1, size) for n, size in pairs):
        raise ShapeError(
            f"MultiHeadAttention: mask: {given.shape} does not broadcast with scores {scores},"
            " which are (…, heads, L, S)\nhint: a mask (N, L, S) of sequences is mask[:, None], one"
            " (N, S) of what they look at mask[:, None, None]"
        )
    return given


def _without_shift(layer: Linear) -> Linear:
    return layer if layer.bias is None else layer.replace(bias=wf.zeros_like(layer.bias))
