"""Models go through every transform as tensors do, alone and nested."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.errors import TreeError
from weft.nn import losses

nn = wf.nn
KEY = wf.random.key(1)
RNG = np.random.default_rng(0)


def image_net():
    first, second, third = wf.random.split(KEY, 3)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, key=first),
        nn.GroupNorm(2, 4),
        nn.silu,
        nn.Conv2d(4, 3, 3, stride=2, key=second),
        lambda x: wf.mean(x, axis=(-2, -1)),
        nn.Linear(3, 2, key=third),
    )


def sentence_net():
    first, second, third = wf.random.split(KEY, 3)
    return nn.Sequential(
        nn.Embedding(11, 8, key=first),
        nn.TransformerEncoderLayer(
            8, 4, 16, 0.0, nn.gelu, key=second, num_kv_heads=2, rope=1e4, is_causal=True
        ),
        nn.RMSNorm(8),
        lambda x: wf.mean(x, axis=-2),
        nn.Linear(8, 2, key=third),
    )


def sequence_net():
    first, second = wf.random.split(KEY, 2)
    return nn.Sequential(
        nn.LSTM(3, 4, bidirectional=True, key=first),
        lambda result: wf.mean(result[0], axis=-2),
        nn.LayerNorm(8),
        nn.Linear(8, 2, key=second),
    )


MODELS = {
    "mlp": (lambda: nn.MLP(3, (8, 8), 2, key=KEY), RNG.standard_normal((4, 3)).astype(np.float32)),
    "images": (image_net, RNG.standard_normal((4, 2, 6, 6)).astype(np.float32)),
    "sentences": (sentence_net, RNG.integers(0, 11, (4, 5))),
    "sequences": (sequence_net, RNG.standard_normal((4, 5, 3)).astype(np.float32)),
}
LABELS = wf.tensor([0, 1, 1, 0])


def loss(model, x, y):
    return losses.cross_entropy(model(x), y)


def same(a, b, tolerance=2e-5):
    assert wf.tree_structure(a) == wf.tree_structure(b)
    for x, y in zip(wf.tree_leaves(a), wf.tree_leaves(b), strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=tolerance, atol=tolerance)


@pytest.fixture(params=MODELS)
def case(request):
    make, x = MODELS[request.param]
    return make(), wf.tensor(x)


def test_the_gradient_is_a_model(case):
    model, x = case
    value, gradient = wf.value_and_grad(loss)(model, x, LABELS)
    assert type(gradient) is type(model) and np.isfinite(value.item())
    assert wf.tree_structure(gradient) == wf.tree_structure(model)
    moved = wf.tree_map(lambda p, g: p - 0.01 * g, model, gradient)
    assert loss(moved, x, LABELS).item() < value.item()


@pytest.mark.slow
def test_compiled_is_eager_bit_for_bit_and_compiled_once(case):
    model, x = case
    step = wf.compile(wf.value_and_grad(loss))
    eager = wf.value_and_grad(loss)(model, x, LABELS)
    for _ in range(2):
        found = step(model, x, LABELS)
        for a, b in zip(wf.tree_leaves(found), wf.tree_leaves(eager), strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()
    again = wf.tree_map(lambda p: p + 0, model)
    step(again, x, LABELS)
    assert step.stats.traces == 1


@pytest.mark.slow
def test_gradients_of_each_example_add_up(case):
    model, x = case
    if isinstance(model, nn.Sequential) and isinstance(model.layers[0], nn.Conv2d):
        x = wf.expand_dims(x, 1)  # a group norm needs the batch axis
    labels = LABELS if x.ndim < 5 else wf.expand_dims(LABELS, 1)
    each = wf.vmap(wf.grad(loss), in_axes=(None, 0, 0))(model, x, labels)
    assert {leaf.shape[0] for leaf in wf.tree_leaves(each)} == {4}
    flat = x if x.ndim < 5 else wf.squeeze(x, 1)
    same(wf.tree_map(lambda g: wf.mean(g, axis=0), each), wf.grad(loss)(model, flat, LABELS))


def test_forward_mode_is_the_gradient_along_a_direction(case):
    model, x = case
    direction = wf.tree_map(lambda p: wf.cos(p * 3), model)
    _, slope = wf.jvp(lambda m: loss(m, x, LABELS), model, direction)
    gradient = wf.grad(loss)(model, x, LABELS)
    products = wf.tree_map(lambda g, d: wf.sum(g * d), gradient, direction)
    np.testing.assert_allclose(slope.item(), sum(wf.tree_leaves(products)).item(), rtol=1e-4)


def test_an_ensemble_is_one_vmap():
    keys = wf.random.split(KEY, 3)
    models = wf.vmap(lambda key: nn.MLP(3, 8, 2, key=key))(keys)
    assert type(models) is nn.MLP and models.layers[0].weight.shape == (3, 8, 3)
    x = wf.tensor(MODELS["mlp"][1])
    found = wf.vmap(lambda m: m(x))(models)
    one = wf.tree_map(lambda p: p[1], models)
    np.testing.assert_allclose(found[1].numpy(), one(x).numpy(), rtol=1e-5)


def test_second_derivatives_go_through_a_model():
    model, x = nn.MLP(3, 4, 2, activation=nn.tanh, key=KEY), wf.tensor(MODELS["mlp"][1])
    direction = wf.tree_map(wf.ones_like, model)
    twice = wf.jvp(lambda m: wf.grad(loss)(m, x, LABELS), model, direction)[1]
    eps = 1e-2
    up, down = (
        wf.grad(loss)(wf.tree_map(lambda p, t, s=s: p + s * t, model, direction), x, LABELS)
        for s in (eps, -eps)
    )
    same(twice, wf.tree_map(lambda a, b: (a - b) / (2 * eps), up, down), 5e-3)


def test_a_layer_remembers_nothing_unless_its_state_is_passed_on():
    model = nn.Sequential(nn.Linear(3, 4, key=KEY), nn.BatchNorm(4), nn.relu)
    x = wf.tensor(MODELS["mlp"][1])
    params, rest = nn.partition(model)

    def training_loss(params, rest, x):
        out, model = nn.combine(params, rest).advance(x)
        return wf.mean(out * out), nn.partition(model)[1]

    step = wf.value_and_grad(training_loss, has_aux=True)
    (value, moved), gradient = step(params, rest, x)
    (value2, moved2), gradient2 = wf.compile(step)(params, rest, x)
    same((value, gradient), (value2, gradient2), 1e-6)
    same(moved, moved2, 1e-6)
    assert gradient.layers[1].running_mean is None
    assert not np.allclose(moved.layers[1].running_mean.numpy(), 0)
    assert np.allclose(model.layers[1].running_mean.numpy(), 0)
    batches = wf.stack([x, x + 1])
    outs, models = wf.vmap(nn.BatchNorm(3).advance)(batches)
    assert outs.shape == (2, 4, 3) and models.running_mean.shape == (2, 3)


def test_dropout_is_a_function_of_its_key():
    layer = nn.Dropout(0.25)
    x = wf.ones((100, 100))
    one = layer(x, key=KEY)
    same(one, layer(x, key=KEY), 0)
    same(one, wf.compile(lambda m, x, key: m(x, key=key))(layer, x, KEY), 0)
    assert abs((one.numpy() == 0).mean() - 0.25) < 0.02
    np.testing.assert_allclose(one.numpy()[one.numpy() > 0], 1 / 0.75, rtol=1e-6)
    same(nn.inference(layer)(x), x, 0)
    model = nn.Sequential(nn.Linear(3, 50, key=KEY), layer, nn.Dropout(0.5))
    y = model(wf.ones((2, 3)), key=KEY)
    assert 0.4 < (y.numpy() == 0).mean() < 0.85


def test_dropout_in_attention_and_between_layers_needs_a_key_in_training_only():
    layers = [
        (nn.TransformerEncoderLayer(8, 2, 16, 0.5, key=KEY), wf.ones((3, 8))),
        (nn.GRU(8, 4, 2, dropout=0.5, key=KEY), wf.ones((3, 8))),
        (nn.MLP(8, 4, 2, dropout=0.5, key=KEY), wf.ones((3, 8))),
    ]
    for layer, x in layers:
        first, second = (wf.tree_leaves(layer(x, key=wf.random.key(i))) for i in range(2))
        assert not np.allclose(first[0].numpy(), second[0].numpy())
        with pytest.raises(wf.errors.ArgumentError, match="Dropout: key: expected a key"):
            layer(x)
        assert np.isfinite(wf.tree_leaves(nn.inference(layer)(x))[0].numpy()).all()


def test_a_model_trains():
    x = wf.random.normal(KEY, (64, 2))
    y = wf.astype(x[:, 0] * x[:, 1] > 0, wf.int32)
    model = nn.MLP(2, (16, 16), 2, activation=nn.tanh, key=KEY)
    optimizer = wf.optim.chain(wf.optim.clip_by_global_norm(1.0), wf.optim.adamw(3e-2))
    state = optimizer.init(model)

    @wf.compile
    def step(model, state):
        value, gradients = wf.value_and_grad(loss)(model, x, y)
        updates, state = optimizer.update(gradients, state, model)
        return value, wf.optim.apply(model, updates), state

    for _ in range(80):
        value, model, state = step(model, state)
    assert value.item() < 0.1 and step.stats.traces == 1


def test_axes_and_partitions_may_be_a_module_like_the_argument():
    model = nn.Linear(3, 4, key=wf.random.key(0))
    stacked = wf.tree_map(lambda leaf: wf.stack([leaf, 2 * leaf]), model)
    x = wf.random.normal(wf.random.key(1), (2, 3))
    axes = wf.tree_map(lambda leaf: 0, model)
    mapped = wf.vmap(lambda m, row: m(row), in_axes=(axes, 0))(stacked, x)
    wanted = np.stack([model(x[0]).numpy(), 2 * model(x[1]).numpy()])
    np.testing.assert_allclose(mapped.numpy(), wanted, rtol=1e-6)
    mesh = wf.DeviceMesh("line", (2,), ("x",))
    specs = wf.tree_map(lambda leaf: wf.P("x"), model)
    apply = wf.shard_map(lambda m, rows: m(rows), mesh, in_specs=(specs, wf.P()), out_specs=wf.P())
    np.testing.assert_allclose(apply(model, x).numpy(), model(x).numpy(), rtol=1e-6)
    with pytest.raises(TreeError, match=r"vmap: in_axes .* is no prefix of"):
        wf.vmap(lambda m, row: m(row), in_axes=(axes, 0))((stacked.weight, stacked.bias), x)
