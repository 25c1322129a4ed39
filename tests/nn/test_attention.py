"""Attention beyond torch's layers: grouped heads and caches."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.errors import ArgumentError, DTypeError, IndexingError, ShapeError

nn = wf.nn
KEY = wf.random.key(0)


def draw(*shape):
    return np.random.default_rng([0, *shape]).standard_normal(shape)


def close(a, b, tolerance):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_grouped_heads_are_heads_whose_keys_repeat():
    attention = nn.MultiHeadAttention(8, 4, num_kv_heads=2, key=KEY)
    full = nn.MultiHeadAttention(8, 4, key=KEY)
    weight = attention.in_proj.weight
    q, k, v = weight[:8], weight[8:12], weight[12:]
    twice = [wf.reshape(wf.repeat(wf.reshape(t, (2, 2, 8)), 2, axis=0), (8, 8)) for t in (k, v)]
    full = full.replace(
        in_proj=full.in_proj.replace(weight=wf.concat([q, *twice])), out_proj=attention.out_proj
    )
    x = draw(2, 5, 8).astype(np.float32)
    close(attention(x).numpy(), full(x).numpy(), 1e-5)


def test_weights_are_those_that_values_were_mixed_by():
    attention = nn.MultiHeadAttention(8, 4, 0.5, num_kv_heads=2, rope=1e4, key=KEY)
    x = wf.asarray(draw(2, 5, 8))
    made, weights = attention(
        x, mask=np.tri(5, dtype=bool), key=KEY, need_weights=True, average_attn_weights=False
    )
    close(made.numpy(), attention(x, mask=np.tri(5, dtype=bool), key=KEY).numpy(), 0)
    values = wf.repeat(attention._heads(x, None, None)[2], 2, axis=-3)
    joined = wf.reshape(wf.swapaxes(weights @ values, -2, -3), x.shape)
    close(made.numpy(), attention.out_proj(joined).numpy(), 1e-5)
    assert wf.all(wf.triu(weights, k=1) == 0) and wf.any(wf.tril(weights)[..., 1:, 0] == 0)
    with pytest.raises(DTypeError, match="need_weights must be True or False"):
        attention(x, key=KEY, need_weights="yes")


@pytest.mark.parametrize("batch", [2, 3])
def test_positions_of_each_sequence_are_its_own(batch):
    attention = nn.MultiHeadAttention(8, 2, rope=100.0, key=KEY)  # as many heads as sequences, too
    x = draw(batch, 5, 8).astype(np.float32)
    positions = np.random.default_rng(0).integers(0, 50, (batch, 5))
    each = [attention(row, positions=own) for row, own in zip(x, positions, strict=True)]
    close(attention(x, positions=positions).numpy(), wf.stack(each).numpy(), 1e-6)
    shared = attention(x, positions=positions[0])
    close(shared[0].numpy(), each[0].numpy(), 1e-6)


def test_wrong_positions_are_told():
    attention, x = nn.MultiHeadAttention(8, 2, rope=100.0, key=KEY), wf.ones((3, 5, 8))
    with pytest.raises(ShapeError, match=r"positions: expected shape \(5,\) or \(3, 5\), got"):
        attention(x, positions=wf.zeros((3, 1, 5)))
    with pytest.raises(ArgumentError, match=r"positions were given to a layer without rope\nhint"):
        nn.MultiHeadAttention(8, 2, key=KEY)(x, positions=wf.arange(5))
    for wrong in (0, -1.0):
        with pytest.raises(ArgumentError, match="rope must be positive"):
            nn.MultiHeadAttention(8, 2, rope=wrong, key=KEY)
        with pytest.raises(ArgumentError, match="rotary: base must be positive"):
            nn.rotary(x, base=wrong)


def test_rotary_angles_have_the_digits_of_what_they_turn():
    x, places = np.ones((7, 2)), np.arange(7) * 1e5
    close(nn.rotary(x, places)[..., 0].numpy(), np.cos(places) - np.sin(places), 1e-9)
    turned = nn.rotary(np.ones((7, 2), int))
    assert turned.dtype == wf.float32
    close(turned.numpy(), nn.rotary(np.ones((7, 2), np.float32)).numpy(), 0)


def test_a_mask_that_does_not_fit_and_a_full_cache_are_told():
    attention, x = nn.MultiHeadAttention(8, 4, key=KEY), wf.ones((2, 5, 8))
    for shape in ((2, 5), (2, 5, 5)):
        with pytest.raises(ShapeError, match=r"mask: \(2, .* heads, L, S\)\nhint: .*mask\[:, None"):
            attention(x, mask=np.ones(shape, bool))
    padded = np.arange(5) < [[3], [5]]
    found = attention(x, mask=padded[:, None, None])
    close(found[0].numpy(), attention(x[0], mask=padded[0]).numpy(), 1e-6)
    _, cache = attention.decode(x, attention.cache(2, capacity=7))
    with pytest.raises(IndexingError, match="KVCache: capacity: index 7 is out of range"):
        attention.decode(x, cache)[0].numpy()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2, "rope": 1e4}], ids=str)
def test_decoding_from_a_cache_is_attention_over_the_whole_sequence(options):
    attention = nn.MultiHeadAttention(8, 4, is_causal=True, key=KEY, **options)
    x = draw(2, 7, 8).astype(np.float32)
    whole = attention(x)
    decode = wf.compile(lambda m, x, cache: m.decode(x, cache))
    cache = attention.cache(2, capacity=9)
    found = []
    for start, stop in ((0, 3), (3, 4), (4, 5), (5, 7)):
        y, cache = decode(attention, x[:, start:stop], cache)
        found.append(y)
    close(wf.concat(found, axis=1).numpy(), whole.numpy(), 1e-5)
    assert cache.length.item() == 7


@pytest.mark.slow
def test_transformer_layers_decode_from_a_cache():
    x, memory = draw(2, 5, 8).astype(np.float32), draw(2, 3, 8).astype(np.float32)
    options = {"dropout": 0.0, "rope": 1e4, "is_causal": True, "key": KEY}
    encoder = nn.TransformerEncoderLayer(8, 2, 16, **options)
    decoder = nn.TransformerDecoderLayer(8, 2, 16, **options)
    for layer, rest in ((encoder, ()), (decoder, (memory,))):
        cache = layer.self_attn.cache(2, capacity=5)
        first, cache = layer.decode(x[:, :2], *rest, cache)
        second, cache = layer.decode(x[:, 2:], *rest, cache)
        close(wf.concat([first, second], axis=1).numpy(), layer(x, *rest).numpy(), 1e-5)
