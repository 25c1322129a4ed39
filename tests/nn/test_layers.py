"""Every layer is torch's: same weights by name, same results, same gradients."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.nn.torch_layers import loaded, same_layer
from tests.torch_oracle import close, draw, torch
from weft.errors import ArgumentError, ShapeError

nn, theirs = wf.nn, torch.nn
KEY = wf.random.key(0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3)])
def test_linear(shape, bias):
    same_layer(nn.Linear(3, 5, bias, key=KEY), theirs.Linear(3, 5, bias), draw(*shape))


def test_embedding_and_its_shared_head():
    ids = np.array([[1, 0, 6], [1, 1, 2]])
    same_layer(nn.Embedding(7, 4, key=KEY), theirs.Embedding(7, 4), ids)
    table = nn.Embedding(7, 4, key=KEY)
    assert table.logits(wf.ones((2, 4))).shape == (2, 7)


@pytest.mark.parametrize("row", [2, -1])
def test_a_row_of_an_embedding_that_stands_for_nothing(row):
    ids = np.array([[1, 2, 6], [6, 2, 2]])
    ours = nn.Embedding(7, 4, row, key=KEY)
    assert ours.padding_idx == row % 7 and not ours.weight[row].numpy().any()
    same_layer(ours, theirs.Embedding(7, 4, row), ids)
    with pytest.raises(ArgumentError, match="padding_idx must be from -7 to 6, got 7"):
        nn.Embedding(7, 4, 7, key=KEY)
    assert nn.Embedding(300, 4, -1, key=KEY)(np.array([3], np.int8)).shape == (1, 4)


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
@pytest.mark.parametrize("row", [None, 2, -1])
def test_bags_of_an_embedding(row, mode):
    ids = np.array([[1, 2, 6], [6, 2, 2]])
    ours = nn.EmbeddingBag(7, 4, mode, padding_idx=row, key=KEY)
    other = theirs.EmbeddingBag(7, 4, mode=mode, padding_idx=row)
    assert row is None or not ours.weight[row].numpy().any()
    same_layer(ours, other, ids)


def test_bags_begin_at_offsets_and_sums_take_weights():
    ids, offsets, weights = np.array([1, 2, 6, 0]), np.array([0, 3, 4]), draw(4)
    other = theirs.EmbeddingBag(7, 4, mode="sum", include_last_offset=True).double()
    ours = loaded(nn.EmbeddingBag(7, 4, "sum", True, key=KEY), other)
    given = [torch.tensor(v) for v in (ids, offsets, weights)]
    close(ours(ids, offsets, weights), other(*given).detach())
    mapped = wf.compile(wf.vmap(lambda ids: ours(ids, offsets)))(np.stack([ids, ids[::-1]]))
    close(mapped[1], other(torch.tensor(ids[::-1].copy()), given[1]).detach())
    with pytest.raises(ArgumentError, match="EmbeddingBag: mode must be one of 'sum', 'mean'"):
        nn.EmbeddingBag(7, 4, "min", key=KEY)


UNPOOLS = [
    ({"kernel_size": 2}, None),
    ({"kernel_size": 2, "stride": 3}, (8, 6, 6)),
    ({"kernel_size": 2, "stride": 2, "padding": 1}, None),
]


@pytest.mark.parametrize(("options", "size"), UNPOOLS, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pools_undone(rank, options, size):
    x = draw(2, 3, *(8, 6, 6)[:rank])
    pools = [getattr(m, f"MaxPool{rank}d")(**options, return_indices=True) for m in (nn, theirs)]
    backs = [getattr(m, f"MaxUnpool{rank}d")(**options) for m in (nn, theirs)]
    wanted = None if size is None else size[:rank]
    found, other = wf.asarray(x), torch.tensor(x, requires_grad=True)

    def undone(x):
        return backs[0](*pools[0](x), output_size=wanted)

    want = backs[1](*pools[1](other), output_size=wanted)
    close(undone(found), want.detach())
    (want**2).sum().backward()
    close(wf.compile(wf.grad(lambda x: wf.sum(undone(x) ** 2)))(found), other.grad)


POOLS = [
    ("MaxPool", {"kernel_size": 2}),
    ("MaxPool", {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    ("AvgPool", {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False}),
    ("AdaptiveAvgPool", {"output_size": 3}),
    ("AdaptiveMaxPool", {"output_size": 2}),
]


@pytest.mark.parametrize(("name", "options"), POOLS, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pools(rank, name, options):
    ours, other = (getattr(m, f"{name}{rank}d")(**options) for m in (nn, theirs))
    same_layer(nn.Sequential(ours), other, draw(2, 3, *(7, 6, 5)[:rank]))


def test_layers_without_a_window():
    x = draw(2, 3, 4, 5)
    same_layer(nn.AdaptiveAvgPool2d((None, 2)), theirs.AdaptiveAvgPool2d((None, 2)), x)
    same_layer(nn.Flatten(), theirs.Flatten(), x)
    same_layer(nn.Flatten(0, 2), theirs.Flatten(0, 2), x)
    same_layer(nn.PReLU(), theirs.PReLU(), x)
    same_layer(nn.PReLU(3, 0.1), theirs.PReLU(3, 0.1), x)
    options = {"scale_factor": 2, "mode": "bilinear"}
    same_layer(nn.Upsample(**options), theirs.Upsample(**options), x)
    with pytest.raises(ArgumentError, match=r"AdaptiveAvgPool2d: output_size: \(1,\) for 2 axes"):
        nn.AdaptiveAvgPool2d((1,))


def test_dropout_of_whole_features_keeps_or_drops_all_of_one():
    x = wf.ones((50, 40, 3, 2))
    y = nn.Dropout(0.25, whole_features=True)(x, key=KEY).numpy().reshape(2000, 6)
    assert (y == y[:, :1]).all() and set(np.unique(y)) == {0, np.float32(4 / 3)}
    assert 0.2 < (y == 0).mean() < 0.3
    with pytest.raises(ShapeError, match=r"Dropout: x: expected shape \(N, C, …\), got \(3,\)"):
        nn.Dropout(whole_features=True)(wf.ones(3), key=KEY)


CONVOLUTIONS = [
    {},
    {"stride": 2, "padding": 1},
    {"padding": 2, "dilation": 2, "groups": 2, "bias": False},
    {"padding": "same"},
    {"padding": 2, "padding_mode": "reflect", "stride": 2},
    {"padding": "same", "padding_mode": "circular"},
    {"padding": 1, "padding_mode": "replicate"},
]


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions(rank, options):
    name = f"Conv{rank}d"
    ours = getattr(nn, name)(4, 6, 3, **options, key=KEY)
    other = getattr(theirs, name)(4, 6, 3, **options)
    same_layer(ours, other, draw(2, 4, *(7, 6, 5)[:rank]))


TRANSPOSED = [
    {},
    {"stride": 2, "padding": 1, "output_padding": 1},
    {"dilation": 2, "groups": 2, "bias": False},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", TRANSPOSED, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolutions(rank, options):
    name = f"ConvTranspose{rank}d"
    ours = getattr(nn, name)(4, 6, 3, **options, key=KEY)
    other = getattr(theirs, name)(4, 6, 3, **options)
    same_layer(ours, other, draw(2, 4, *(5, 4, 3)[:rank]))


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(affine):
    ours = nn.LayerNorm((4, 5), 1e-3, elementwise_affine=affine)
    other = theirs.LayerNorm((4, 5), 1e-3, elementwise_affine=affine)
    same_layer(ours, other, draw(3, 4, 5))


def test_rms_norm():
    same_layer(nn.RMSNorm(5), theirs.RMSNorm(5), draw(3, 4, 5))


def test_group_norm():
    same_layer(nn.GroupNorm(2, 6), theirs.GroupNorm(2, 6), draw(3, 6, 4))


@pytest.mark.parametrize("affine", [True, False])
def test_instance_norm(affine):
    options = {"eps": 1e-3, "affine": affine}
    same_layer(nn.InstanceNorm(4, **options), theirs.InstanceNorm2d(4, **options), draw(3, 4, 2, 5))


def test_batch_norm_at_inference():
    other = theirs.BatchNorm1d(4)
    other(torch.tensor(draw(8, 4, 3), dtype=torch.float32))
    same_layer(nn.BatchNorm(4), other.eval(), draw(3, 4, 2, seed=1))


def test_batch_norm_in_training_gives_the_layer_that_has_seen_the_batch():
    other = theirs.BatchNorm2d(4)
    ours = same_layer(nn.BatchNorm(4), other, draw(3, 4, 2, 5), call=lambda m, x: m.advance(x)[0])
    fresh = theirs.BatchNorm2d(4).double()
    moved = nn.load_state_dict(ours, fresh.state_dict())
    for seed in range(3):
        x = draw(3, 4, 2, 5, seed=seed)
        y, moved = moved.advance(x)
        close(y.numpy(), fresh(torch.tensor(x)).detach().numpy())
    close(moved.running_mean.numpy(), fresh.running_mean.numpy())
    close(moved.running_var.numpy(), fresh.running_var.numpy())


def test_running_statistics_have_no_slope():
    x = wf.tensor(draw(5, 4))
    for call in (lambda m: m(x), lambda m: m.advance(x)[0]):
        slope = wf.grad(lambda m, call=call: wf.sum(call(m) ** 3))(nn.BatchNorm(4, dtype="float64"))
        assert not slope.running_mean.numpy().any() and not slope.running_var.numpy().any()
        assert slope.bias.numpy().any()


def test_mlp():
    other = theirs.Sequential(theirs.Linear(3, 8), theirs.GELU(), theirs.Linear(8, 2)).double()
    ours = wf.tree_map(
        lambda t: wf.astype(t, wf.float64), nn.MLP(3, 8, 2, activation=nn.gelu, key=KEY)
    )
    names = {"0.": "layers.0.", "2.": "layers.1."}
    state = {names[k[:2]] + k[2:]: v for k, v in other.state_dict().items()}
    x = draw(4, 3)
    ours = nn.load_state_dict(ours, state)
    close(ours(x).numpy(), other(torch.tensor(x)).detach().numpy())


def test_a_chain_has_the_names_of_torchs():
    ours = nn.Sequential(
        nn.Conv2d(2, 3, 3, key=KEY), nn.BatchNorm(3), nn.relu, nn.Conv2d(3, 1, 1, key=KEY)
    )
    other = theirs.Sequential(
        theirs.Conv2d(2, 3, 3), theirs.BatchNorm2d(3), theirs.ReLU(), theirs.Conv2d(3, 1, 1)
    )
    same_layer(ours, other, draw(2, 2, 5, 5), call=lambda m, x: m.advance(x)[0])


@pytest.mark.parametrize("bias", [True, False])
def test_self_attention(bias):
    ours = nn.MultiHeadAttention(8, 2, bias=bias, key=KEY)
    other = theirs.MultiheadAttention(8, 2, bias=bias, batch_first=True)
    same_layer(ours, other, draw(3, 5, 8), call_theirs=lambda m, x: m(x, x, x)[0])


def test_causal_attention_and_masks():
    ours = nn.MultiHeadAttention(8, 2, is_causal=True, key=KEY)
    other = theirs.MultiheadAttention(8, 2, batch_first=True)
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    call = {"call_theirs": lambda m, x: m(x, x, x, attn_mask=hidden)[0]}
    same_layer(ours, other, draw(3, 5, 8), **call)
    seen = np.tri(5, dtype=bool)
    plain = nn.MultiHeadAttention(8, 2, key=KEY)
    same_layer(plain, other, draw(3, 5, 8), call=lambda m, x: m(x, mask=seen), **call)


@pytest.mark.parametrize("average", [True, False])
def test_weights_of_attention(average):
    other = theirs.MultiheadAttention(8, 2, batch_first=True).double()
    ours = loaded(nn.MultiHeadAttention(8, 2, key=KEY), other)
    x, memory, hidden = draw(3, 5, 8), draw(3, 6, 8), np.triu(np.ones((5, 6), bool), 1)
    options = {"need_weights": True, "average_attn_weights": average}
    given = [torch.tensor(a) for a in (x, memory, memory)]
    want = other(*given, attn_mask=torch.tensor(hidden), **options)
    for found, expected in zip(ours(x, memory, mask=~hidden, **options), want, strict=True):
        assert found.shape == tuple(expected.shape)
        close(found.numpy(), expected.detach().numpy())


def test_attention_to_a_memory_and_to_other_values():
    other = theirs.MultiheadAttention(8, 4, batch_first=True)
    ours = nn.MultiHeadAttention(8, 4, key=KEY)
    q, k, v = draw(3, 5, 8), draw(3, 6, 8, seed=1), draw(3, 6, 8, seed=2)
    same_layer(ours, other, q, k, call_theirs=lambda m, q, k: m(q, k, k)[0])
    same_layer(ours, other, q, k, v, call_theirs=lambda m, q, k, v: m(q, k, v)[0])


def test_rotary_positions_turn_pairs_of_features():
    x = draw(2, 7, 6)
    angles = torch.arange(7.0)[:, None] * 100.0 ** (-torch.arange(3.0) / 3)
    turned = torch.polar(torch.ones_like(angles), angles).to(torch.complex128)
    pairs = torch.complex(torch.tensor(x[..., :3]), torch.tensor(x[..., 3:])) * turned
    close(nn.rotary(x, base=100.0).numpy(), torch.cat([pairs.real, pairs.imag], -1).numpy(), 1e-6)
    scores = [
        (nn.rotary(x, np.arange(7) + s) @ wf.matrix_transpose(nn.rotary(x, np.arange(7) + s)))
        for s in (0, 5)
    ]
    close(scores[0].numpy(), scores[1].numpy(), 1e-5)


ENCODERS = [{}, {"norm_first": True, "activation": "gelu"}, {"bias": False}]


def _ours(options):
    named = {"relu": nn.relu, "gelu": nn.gelu}
    return {k: named[v] if k == "activation" else v for k, v in options.items()}


@pytest.mark.parametrize("options", ENCODERS, ids=str)
def test_a_transformers_encoder_layer(options):
    ours = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **_ours(options), key=KEY)
    other = theirs.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **options)
    same_layer(ours, other, draw(3, 5, 8))


@pytest.mark.parametrize("options", ENCODERS, ids=str)
def test_a_transformers_decoder_layer(options):
    ours = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, **_ours(options), key=KEY)
    other = theirs.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **options)
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    same_layer(
        ours,
        other,
        draw(3, 5, 8),
        draw(3, 4, 8, seed=1),
        call_theirs=lambda m, x, memory: m(x, memory, tgt_mask=hidden),
    )


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_cells(name):
    ours = getattr(nn, name + "Cell")(3, 4, key=KEY)
    other = getattr(theirs, name + "Cell")(3, 4)
    if name == "LSTM":
        state = (draw(2, 4, seed=1), draw(2, 4, seed=2))
        same_layer(
            ours,
            other,
            draw(2, 3),
            *state,
            call=lambda m, x, h, c: wf.concat(m(x, (h, c)), axis=-1),
            call_theirs=lambda m, x, h, c: torch.cat(m(x, (h, c)), -1),
        )
    else:
        same_layer(ours, other, draw(2, 3), draw(2, 4, seed=1))


SEQUENCES = [{}, {"num_layers": 2}, {"num_layers": 2, "bidirectional": True, "bias": False}]


@pytest.mark.parametrize("options", SEQUENCES, ids=str)
@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_recurrent_layers(name, options):
    ours = getattr(nn, name)(3, 4, **options, key=KEY)
    other = getattr(theirs, name)(3, 4, batch_first=True, **options)
    ours = same_layer(
        ours,
        other,
        draw(2, 5, 3),
        call=lambda m, x: m(x)[0],
        call_theirs=lambda m, x: m(x)[0],
    )
    cells = len(ours.cells)
    state = draw(cells, 2, 4, seed=3)
    given = (state, state) if name == "LSTM" else state
    known = wf.tree_map(torch.tensor, given)
    found = wf.tree_leaves(ours(draw(2, 5, 3), wf.tree_map(wf.tensor, given)))
    expected = wf.tree_leaves(other(torch.tensor(draw(2, 5, 3)), known))
    for mine, their in zip(found, expected, strict=True):
        close(mine.numpy(), their.detach().numpy())


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_sequences_of_several_lengths(name):
    options, lengths = {"num_layers": 2, "bidirectional": True}, [3, 5, 1]
    ours = getattr(nn, name)(3, 4, **options, key=KEY)
    other = getattr(theirs, name)(3, 4, batch_first=True, **options)
    utils = theirs.utils.rnn

    def packed(module, x):
        rows = utils.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        out, state = module(rows)
        return utils.pad_packed_sequence(out, True)[0], state

    def ends(found):
        return (found[0], *found[1]) if name == "LSTM" else found

    for part in range(3 if name == "LSTM" else 2):
        same_layer(
            ours,
            other,
            draw(3, 5, 3),
            call=lambda m, x, part=part: ends(m(x, lengths=lengths))[part],
            call_theirs=lambda m, x, part=part: ends(packed(m, x))[part],
        )
    with pytest.raises(ShapeError, match=r"lengths: expected integers of shape \(3,\), got int64"):
        ours(draw(3, 5, 3), lengths=[5, 5])


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_what_follows_a_sequence_may_be_anything(name):
    layer = getattr(nn, name)(3, 4, bidirectional=True, key=KEY)
    x = draw(2, 140, 3)

    def slopes(fill):
        x[0, 100:] = fill
        lengths = np.array([100, 127], np.int8)  # no int8 counts the steps
        grad = wf.grad(lambda m, t: (m(t, lengths=lengths)[0] ** 2).sum(), (0, 1))
        return [t.numpy() for t in wf.tree_leaves(grad(layer, wf.tensor(x)))]

    for plain, odd in zip(slopes(0), slopes(np.nan), strict=True):
        np.testing.assert_array_equal(plain, odd)


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_sequences_may_be_of_another_dtype_than_weights(name):
    x, layer = draw(2, 5, 3), getattr(nn, name)(3, 4, key=KEY)
    wide = wf.tree_map(lambda t: wf.astype(t, wf.float64), layer)
    close(layer(x)[0].numpy(), wide(x)[0].numpy())
    assert layer(x.astype(np.float16))[0].dtype == wf.float32
    first = wf.tree_map(lambda t: t.numpy().astype(np.float64), layer(x.astype(np.float32))[1])
    assert layer(x.astype(np.float32), first)[0].dtype == wf.float64


def test_a_layer_of_sequences_whose_batch_is_not_first_is_refused():
    assert nn.GRU(3, 4, batch_first=True, key=KEY)(draw(2, 5, 3))[0].shape == (2, 5, 4)
    with pytest.raises(ArgumentError, match=r"LSTM: batch_first=False: .*\nhint: wf\.swapaxes"):
        nn.LSTM(3, 4, batch_first=False, key=KEY)


def test_a_relu_in_a_recurrent_layer():
    ours = nn.RNN(3, 4, nonlinearity="relu", key=KEY)
    other = theirs.RNN(3, 4, nonlinearity="relu", batch_first=True)
    first = {"call": lambda m, x: m(x)[0], "call_theirs": lambda m, x: m(x)[0]}
    same_layer(ours, other, draw(2, 5, 3), **first)
