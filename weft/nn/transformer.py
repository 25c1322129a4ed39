"""The layers transformers are stacked of, with torch's names, order and defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import weft as wf
from weft.core.common.parameters import as_flag, as_function
from weft.nn.attention import KVCache, MultiHeadAttention
from weft.nn.basic import Dropout, Linear
from weft.nn.inputs import features_last, keys_of
from weft.nn.module import Module, static
from weft.nn.normalization import LayerNorm


def _keys(key: Any, count: int) -> list[Any]:
    return [None] * count if key is None else keys_of(key, count)


class _Block(Module):
    """What encoder and decoder layers share: self-attention and a network on each position."""

    self_attn: MultiHeadAttention
    linear1: Linear
    linear2: Linear
    norm1: LayerNorm
    norm2: LayerNorm
    dropout: Dropout
    activation: Callable[[Any], wf.Tensor] = static()
    norm_first: bool = static()

    def _make(
        self,
        d_model: int,
        dim_feedforward: int,
        dropout: float,
        activation: Callable[[Any], wf.Tensor],
        layer_norm_eps: float,
        norm_first: bool,
        bias: bool,
        keys: list[Any],
        dtype: Any,
    ) -> None:
        self.linear1 = Linear(d_model, dim_feedforward, bias, key=keys[0], dtype=dtype)
        self.linear2 = Linear(dim_feedforward, d_model, bias, key=keys[1], dtype=dtype)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.activation = as_function(type(self).__name__, "activation", activation)
        self.norm_first = as_flag(type(self).__name__, "norm_first", norm_first)

    def _residual(self, x: Any, norm: LayerNorm, part: Callable[[Any], Any], key: Any) -> Any:
        """x + part(x), normalised before the part or behind the sum."""
        if self.norm_first:
            return x + self.dropout(part(norm(x)), key=key)
        return norm(x + self.dropout(part(x), key=key))

    def _feed_forward(self, x: Any, key: Any) -> Any:
        return self.linear2(self.dropout(self.activation(self.linear1(x)), key=key))


class TransformerEncoderLayer(_Block):
    """Self-attention, then a network on each position, each with a residual and a norm.

    With `is_causal=True` it is the block of a language model; `decode` then goes on from a cache.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Callable[[Any], wf.Tensor] = wf.relu,
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        key: wf.Tensor,
        num_kv_heads: int | None = None,
        rope: float | None = None,
        is_causal: bool = False,
        dtype: Any = None,
    ) -> None:
        keys = keys_of(key, 3)
        self.self_attn = MultiHeadAttention(
            d_model,
            nhead,
            dropout,
            bias,
            key=keys[2],
            num_kv_heads=num_kv_heads,
            rope=rope,
            is_causal=is_causal,
            dtype=dtype,
        )
        self._make(
            d_model, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias,
            keys, dtype,
        )  # fmt: skip

    def __call__(
        self, x: Any, *, mask: Any = None, is_causal: bool | None = None, key: Any = None
    ) -> wf.Tensor:
        """Map (…, length, d_model) to the same shape."""
        x = features_last(self, "x", x, self.self_attn.embed_dim)
        k1, k2, k3, k4 = _keys(key, 4)

        def attend(t: Any) -> Any:
            return self.self_attn(t, mask=mask, is_causal=is_causal, key=k1)

        x = self._residual(x, self.norm1, attend, k2)
        made: wf.Tensor = self._residual(x, self.norm2, lambda t: self._feed_forward(t, k3), k4)
        return made

    def decode(self, x: Any, cache: KVCache, *, key: Any = None) -> tuple[wf.Tensor, KVCache]:
        """The next positions (…, new, d_model), given a cache of those before them."""
        x = features_last(self, "x", x, self.self_attn.embed_dim)
        k1, k2, k3, k4 = _keys(key, 4)
        extended = [cache]

        def attend(t: Any) -> Any:
            made, extended[0] = self.self_attn.decode(t, cache, key=k1)
            return made

        x = self._residual(x, self.norm1, attend, k2)
        made = self._residual(x, self.norm2, lambda t: self._feed_forward(t, k3), k4)
        return made, extended[0]


class TransformerDecoderLayer(_Block):
    """Causal self-attention, attention to a memory, then a network on each position."""

    multihead_attn: MultiHeadAttention
    norm3: LayerNorm

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Callable[[Any], wf.Tensor] = wf.relu,
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        key: wf.Tensor,
        num_kv_heads: int | None = None,
        rope: float | None = None,
        is_causal: bool = True,
        dtype: Any = None,
    ) -> None:
        keys = keys_of(key, 4)
        self.self_attn = MultiHeadAttention(
            d_model,
            nhead,
            dropout,
            bias,
            key=keys[2],
            num_kv_heads=num_kv_heads,
            rope=rope,
            is_causal=is_causal,
            dtype=dtype,
        )
        self.multihead_attn = MultiHeadAttention(
            d_model, nhead, dropout, bias, key=keys[3], num_kv_heads=num_kv_heads, dtype=dtype
        )
        self.norm3 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self._make(
            d_model, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias,
            keys, dtype,
        )  # fmt: skip

    def __call__(
        self,
        x: Any,
        memory: Any,
        *,
        mask: Any = None,
        memory_mask: Any = None,
        is_causal: bool | None = None,
        key: Any = None,
    ) -> wf.Tensor:
        """Map (…, length, d_model) to the same shape, looking at `memory` (…, S, d_model)."""
        k1, *rest = _keys(key, 6)

        def attend(t: Any) -> Any:
            return self.self_attn(t, mask=mask, is_causal=is_causal, key=k1)

        return self._layers(x, memory, memory_mask, attend, rest)

    def decode(
        self, x: Any, memory: Any, cache: KVCache, *, memory_mask: Any = None, key: Any = None
    ) -> tuple[wf.Tensor, KVCache]:
        """The next positions (…, new, d_model), given the memory and a cache of those before."""
        k1, *rest = _keys(key, 6)
        extended = [cache]

        def attend(t: Any) -> Any:
            made, extended[0] = self.self_attn.decode(t, cache, key=k1)
            return made

        return self._layers(x, memory, memory_mask, attend, rest), extended[0]

    def _layers(
        self, x: Any, memory: Any, memory_mask: Any, attend: Callable[[Any], Any], keys: list[Any]
    ) -> wf.Tensor:
        x = features_last(self, "x", x, self.self_attn.embed_dim)

        def look(t: Any) -> Any:
            return self.multihead_attn(t, memory, mask=memory_mask, key=keys[1])

        x = self._residual(x, self.norm1, attend, keys[0])
        x = self._residual(x, self.norm2, look, keys[2])
        made: wf.Tensor = self._residual(
            x, self.norm3, lambda t: self._feed_forward(t, keys[3]), keys[4]
        )
        return made
