"""State dicts, parts of models, adapters, dtype policies, initial values, losses."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.errors import ArgumentError, DTypeError, ShapeError, TreeError

nn = wf.nn
KEY = wf.random.key(2)


def model():
    first, second = wf.random.split(KEY, 2)
    return nn.Sequential(
        nn.Linear(3, 4, key=first),
        nn.BatchNorm(4),
        nn.relu,
        nn.MultiHeadAttention(4, 2, key=second),
    )


def test_a_state_dict_has_dotted_names_and_comes_back():
    made = model()
    state = nn.state_dict(made)
    assert list(state) == [
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var",
        "3.in_proj_weight", "3.in_proj_bias", "3.out_proj.weight", "3.out_proj.bias",
    ]  # fmt: skip
    blank = wf.tree_map(wf.zeros_like, made)
    again = nn.load_state_dict(blank, {k: v.numpy() for k, v in state.items()})
    assert wf.tree_structure(again) == wf.tree_structure(made)
    for a, b in zip(wf.tree_leaves(again), wf.tree_leaves(made), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    tree = {"a": [nn.Linear(2, 2, key=KEY)], "b": wf.ones(1)}
    assert list(nn.state_dict(tree)) == ["a.0.weight", "a.0.bias", "b"]


def test_loading_copies_and_casts():
    source = np.ones((4, 3))
    state = {"weight": source, "bias": np.zeros(4)}
    layer = nn.load_state_dict(nn.Linear(3, 4, key=KEY), state)
    source[:] = 7
    assert layer.weight.dtype == wf.float32 and layer.weight.numpy().max() == 1


def test_what_does_not_fit_a_state_dict_is_told():
    layer = nn.Linear(3, 4, key=KEY)
    state = nn.state_dict(layer)
    with pytest.raises(TreeError, match=r"Linear: missing: bias; unexpected: shift\nhint: strict"):
        nn.load_state_dict(layer, {"weight": state["weight"], "shift": state["bias"]})
    kept = nn.load_state_dict(layer, {"weight": wf.zeros((4, 3)), "shift": 1}, strict=False)
    assert kept.bias is layer.bias and not kept.weight.numpy().any()
    told = r"none of the names fits \(module\.bias\)\nhint: the names are weight, bias"
    with pytest.raises(TreeError, match=told):
        nn.load_state_dict(layer, {"module.bias": state["bias"]}, strict=False)
    assert nn.load_state_dict(layer, {}, strict=False).bias is layer.bias
    for strict in (True, False):
        with pytest.raises(ShapeError, match=r"weight: expected \(4, 3\), got \(3, 4\)"):
            nn.load_state_dict(layer, {**state, "weight": wf.ones((3, 4))}, strict)
    with pytest.raises(DTypeError, match="weight: expected float32, got int64"):
        nn.load_state_dict(layer, {**state, "weight": np.ones((4, 3), int)})
    counts = {"seen": wf.zeros(2, dtype="int8"), "full": wf.tensor([False, True])}
    fitting = {"seen": np.array([3, -4]), "full": np.array([1, 0])}
    assert nn.load_state_dict(counts, fitting)["seen"].tolist() == [3, -4]
    for name, wrong in (("seen", [3, 300]), ("full", [0, 2])):
        with pytest.raises(DTypeError, match=f"{name}: int64 holds numbers that (int8|bool) has"):
            nn.load_state_dict(counts, {**fitting, name: np.array(wrong)})
    tracked = {**nn.state_dict(model()), "1.num_batches_tracked": 3}
    nn.load_state_dict(model(), tracked)
    with pytest.raises(TreeError, match="unexpected: num_batches_tracked"):
        nn.load_state_dict(model(), {**tracked, "num_batches_tracked": 3})


def test_parts_of_a_model_come_together_again():
    made = model()
    params, rest = nn.partition(made)
    assert [e for e in nn.parameters(made) if "running" in e] == []
    assert rest.layers[0].weight is None and params.layers[1].running_mean is None
    whole = nn.combine(params, rest)
    assert wf.tree_structure(whole) == wf.tree_structure(made)
    attention, others = nn.partition(made, ("3.*",))
    assert len(wf.tree_leaves(attention)) == 4 and len(wf.tree_leaves(others)) == 6
    gradient = wf.grad(lambda p: wf.sum(nn.combine(p, others)(wf.ones((2, 3)))))(attention)
    assert gradient.layers[0].weight is None and gradient.layers[3].out_proj.bias.shape == (4,)
    with pytest.raises(TreeError, match=r"combine: 0\.weight: 2 parts have a leaf there"):
        nn.combine(made, made)
    with pytest.raises(TreeError, match="combine: part 1 has another structure"):
        nn.combine(params, rest.layers[0])
    changed = nn.update_where(made, "*.bias", wf.zeros_like)
    assert not changed.layers[0].bias.numpy().any() and changed.layers[0].weight.numpy().any()


@pytest.mark.slow
def test_adapters_change_nothing_then_learn_then_merge():
    made = model()
    x = wf.random.normal(KEY, (2, 5, 3))

    def run(m):
        hidden = m.layers[0](x)
        return m.layers[3](hidden)

    adapted = nn.lora(made, 2, key=KEY, alpha=4.0)
    np.testing.assert_array_equal(run(adapted).numpy(), run(made).numpy())
    trained, frozen = nn.partition(adapted, nn.is_lora)
    assert sorted(nn.parameters(trained))[:2] == ["0.lora_a", "0.lora_b"]
    assert nn.parameter_count(trained) == 2 * (3 + 4) + 2 * (4 + 12) + 2 * (4 + 4)
    gradient = wf.grad(lambda t: wf.sum(wf.sin(run(nn.combine(t, frozen)))))(trained)
    moved = wf.tree_map(lambda p, g: p - 0.1 * g, trained, gradient)
    tuned = nn.combine(moved, frozen)
    assert not np.allclose(run(tuned).numpy(), run(made).numpy())
    merged = nn.merge_lora(tuned)
    assert wf.tree_structure(merged) == wf.tree_structure(made)
    np.testing.assert_allclose(run(merged).numpy(), run(tuned).numpy(), rtol=1e-5, atol=1e-6)
    memory = wf.ones((2, 4, 4))
    attention, plain = tuned.layers[3], merged.layers[3]
    query = tuned.layers[0](x)
    np.testing.assert_allclose(
        attention(query, memory).numpy(), plain(query, memory).numpy(), rtol=1e-5, atol=1e-6
    )


def test_layers_that_are_stacked_have_an_adapter_each():
    stack = wf.vmap(lambda key: nn.Linear(3, 3, key=key))(wf.random.split(KEY, 4))
    adapted = nn.lora(stack, 2, key=KEY)
    assert adapted.lora_a.shape == (4, 2, 3) and adapted.lora_b.shape == (4, 3, 2)
    adapted = adapted.replace(lora_b=wf.random.normal(KEY, (4, 3, 2)))

    def run(layers):
        return wf.scan(lambda x, layer: (layer(x), None), wf.ones(3), layers)[0]

    assert not np.allclose(run(adapted), run(stack))
    np.testing.assert_allclose(run(nn.merge_lora(adapted)), run(adapted), rtol=1e-5, atol=1e-6)


def test_adapters_go_where_they_are_told():
    adapted = nn.lora(model(), 1, key=KEY, targets="*out_proj")
    assert isinstance(adapted.layers[3].out_proj, nn.LoRALinear)
    assert isinstance(adapted.layers[0], nn.Linear)
    with pytest.raises(ArgumentError, match=r"no linear layer fits.*\nhint: linear layers are: 0,"):
        nn.lora(model(), 1, key=KEY, targets="q_proj")


def test_a_policy_computes_in_another_dtype_and_gradients_come_back():
    policy = nn.Policy(compute="bfloat16")
    made = nn.Sequential(nn.Linear(3, 4, key=KEY), nn.BatchNorm(4), nn.Linear(4, 2, key=KEY))
    cast = policy.cast(made)
    assert cast.layers[0].weight.dtype == wf.bfloat16
    assert cast.layers[1].running_mean.dtype == wf.float32
    x = wf.ones((2, 3))

    def loss(m, x):
        out = policy.cast(m)(policy.cast(x))
        assert out.dtype == wf.bfloat16
        return wf.mean(policy.output(out) ** 2)

    params, rest = nn.partition(made)
    gradient = wf.compile(wf.grad(lambda p, x: loss(nn.combine(p, rest), x)))(params, x)
    assert gradient.layers[0].weight.dtype == wf.float32
    kept = nn.Policy(compute="bfloat16", parameters="float64").cast_parameters(made)
    assert {x.dtype for x in wf.tree_leaves(kept)} == {wf.float64}
    assert policy.cast({"ids": wf.arange(3)})["ids"].dtype == wf.arange(3).dtype
    assert policy == nn.Policy(compute=wf.bfloat16) and hash(policy)
    with pytest.raises(DTypeError, match="Policy: compute: expected a float, got int32"):
        nn.Policy(compute="int32")


INITS = {
    "normal": (nn.init.normal(0.5), 0.25),
    "truncated_normal": (nn.init.truncated_normal(0.5), 0.25 * 0.8796**2),
    "uniform": (nn.init.uniform(-1, 1), 1 / 3),
    "glorot_normal": (nn.init.glorot_normal(), 2 / (60 * 6 + 40 * 6)),
    "xavier_uniform": (nn.init.xavier_uniform(2.0), 4 * 2 / (60 * 6 + 40 * 6)),
    "he_normal": (nn.init.he_normal(), 2 / (60 * 6)),
    "kaiming_uniform": (nn.init.kaiming_uniform(mode="fan_out"), 2 / (40 * 6)),
    "lecun_normal": (nn.init.lecun_normal(), 1 / (60 * 6)),
    "lecun_uniform": (nn.init.lecun_uniform(), 1 / (60 * 6)),
}


@pytest.mark.parametrize("name", INITS)
def test_initial_values_have_the_variance_they_should(name):
    init, variance = INITS[name]
    made = init(KEY, (40, 60, 2, 3), wf.float32).numpy()
    assert made.dtype == np.float32 and abs(made.mean()) < 0.02
    np.testing.assert_allclose(made.var(), variance, rtol=0.05)


def test_orthogonal_constant_and_wrong_initial_values():
    for shape in ((4, 6), (6, 4), (4, 2, 3)):
        for dtype, digits in (("float32", 1e-5), ("float64", 1e-12)):
            made = nn.init.orthogonal(2.0)(KEY, shape, dtype).numpy().reshape(shape[0], -1)
            product = made @ made.T if made.shape[0] <= made.shape[1] else made.T @ made
            np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=digits)
    assert nn.init.ones()(KEY, (2,)).tolist() == [1.0, 1.0]
    assert nn.init.zeros()(KEY, (2,), wf.float64).dtype == wf.float64
    assert nn.init.constant(3)(KEY, (1,)).dtype == wf.float32
    with pytest.raises(
        ShapeError, match=r"init: expected a weight.*got shape \(3,\)\nhint: a bias"
    ):
        nn.init.he_normal()(KEY, (3,))
    layer = nn.Linear(3, 4, key=KEY, init=nn.init.zeros())
    assert not layer.weight.numpy().any()


def test_losses_are_those_of_the_ops():
    x, y = wf.tensor([[1.0, 2.0]]), wf.tensor([[0.0, 2.5]])
    assert nn.losses.mse(x, y).item() == wf.mse_loss(x, y).item() == 0.625
    for name in nn.losses.__all__:
        assert getattr(nn.losses, name).__doc__
    smooth = nn.losses.cross_entropy(x, wf.tensor([1]), label_smoothing=0.1)
    ignored = nn.losses.cross_entropy(
        wf.tensor([[1.0, 2.0]] * 2), wf.tensor([1, -100]), label_smoothing=0.1
    )
    np.testing.assert_allclose(smooth.item(), ignored.item())


def tensor(*shape):
    return wf.zeros(shape)


MISTAKES = [
    (
        nn.Linear(3, 4, key=KEY),
        (tensor(2, 5),),
        r"Linear: x: expected shape \(…, 3\), got \(2, 5\)",
    ),
    (nn.Linear(3, 4, key=KEY), (tensor(3, 2),), "hint: swap its last two axes"),
    (nn.MLP(3, 4, 2, key=KEY), (tensor(4),), r"MLP: x: expected shape \(…, 3\), got \(4,\)\nhint"),
    (nn.Conv2d(3, 4, 2, key=KEY), (tensor(1, 8, 8, 3),), "hint: features come before space"),
    (
        nn.Conv1d(3, 4, 2, key=KEY),
        (
            tensor(
                3,
            ),
        ),
        r"Conv1d: x: expected shape \(N, 3, L\) or \(3, L",
    ),
    (nn.ConvTranspose2d(3, 4, 2, key=KEY), (tensor(1, 2, 8, 8),), r"expected shape \(N, 3, H, W\)"),
    (
        nn.LayerNorm((3, 4)),
        (tensor(4, 3),),
        r"LayerNorm: x: expected shape \(…, 3, 4\), got \(4, 3",
    ),
    (nn.RMSNorm(4), (tensor(3),), "RMSNorm: x: expected"),
    (
        nn.GroupNorm(2, 4),
        (tensor(2, 3),),
        r"GroupNorm: x: expected shape \(N, 4, …\), got \(2, 3\)",
    ),
    (nn.BatchNorm(4), (tensor(2, 3, 4),), "hint: move the features from the last axis"),
    (nn.MultiHeadAttention(4, 2, key=KEY), (tensor(2, 3),), "MultiHeadAttention: query: expected"),
    (
        nn.MultiHeadAttention(4, 2, key=KEY),
        (tensor(2, 4), tensor(2, 3)),
        r"memory: expected shape \(…, 4\), got \(2, 3\)",
    ),
    (nn.GRU(3, 4, key=KEY), (tensor(3),), r"GRU: x: expected shape \(…, length, 3\), got \(3,\)"),
    (
        nn.GRU(3, 4, 2, key=KEY),
        (tensor(5, 3), tensor(1, 4)),
        r"GRU: state: expected shape \(2, 4\), got \(1, 4\)\nhint",
    ),
    (nn.GRUCell(3, 4, key=KEY), (tensor(2),), r"GRUCell: x: expected shape \(…, 3\), got \(2,\)"),
]


@pytest.mark.parametrize("layer, arguments, message", MISTAKES)
def test_a_wrong_shape_is_told_by_the_layer(layer, arguments, message):
    with pytest.raises(ShapeError, match=message):
        layer(*arguments)


class Wrapped(nn.Module):
    inner: nn.Module

    def __call__(self, x):
        return self.inner(x)


def test_a_chain_tells_which_layer_takes_what_it_is_given():
    pooled = nn.MaxPool1d(2, return_indices=True)
    for layer in (nn.Linear(2, 1, key=KEY), nn.Dropout(), nn.MaxPool1d(2), nn.Flatten()):
        told = f"{type(layer).__name__}: expected a tensor, got a tuple of 2 results\nhint: take"
        with pytest.raises(ArgumentError, match=told):
            nn.Sequential(pooled, layer)(wf.ones((1, 1, 4)))
    chain = nn.Sequential(nn.relu, Wrapped(nn.BatchNorm(2)))
    with pytest.raises(ArgumentError, match=r"advance: layer 1: Wrapped has no advance, .* Batch"):
        chain.advance(wf.ones((3, 2)))


def test_patterns_that_fit_no_name_are_told():
    fits = r"no name fits {}\nhint: the names are 0\.weight, 0\.bias, "
    with pytest.raises(ArgumentError, match="partition: " + fits.format("'0.wieght'")):
        nn.partition(model(), "0.wieght")
    with pytest.raises(ArgumentError, match="update_where: " + fits.format(r"\('a', 'b\*'\)")):
        nn.update_where(model(), ("a", "b*"), wf.zeros_like)
    assert nn.parameter_count(model(), "decoder.*") == 0


def test_other_mistakes_are_told():
    with pytest.raises(DTypeError, match=r"Embedding: ids: expected integers, got float32.*\nhint"):
        nn.Embedding(3, 2, key=KEY)(wf.ones(2))
    with pytest.raises(ArgumentError, match="embed_dim 5 cannot be divided by num_heads 2"):
        nn.MultiHeadAttention(5, 2, key=KEY)
    with pytest.raises(ArgumentError, match="num_heads 4 cannot be divided by num_kv_heads 3"):
        nn.MultiHeadAttention(8, 4, num_kv_heads=3, key=KEY)
    with pytest.raises(ArgumentError, match="rope turns pairs of features, but a head has 3"):
        nn.MultiHeadAttention(6, 2, rope=1e4, key=KEY)
    with pytest.raises(ArgumentError, match="out_channels 4 cannot be divided by groups 3"):
        nn.Conv2d(3, 4, 1, groups=3, key=KEY)
    with pytest.raises(ArgumentError, match="Linear: in_features must be at least 1, got 0"):
        nn.Linear(0, 1, key=KEY)
    with pytest.raises(ArgumentError, match="Dropout: rate must be below 1"):
        nn.Dropout(1.0)
    with pytest.raises(ArgumentError, match="Sequential: layer 1: 3 cannot be called"):
        nn.Sequential(nn.relu, 3)
    with pytest.raises(ArgumentError, match="LSTMCell: state: expected a pair"):
        nn.LSTMCell(2, 3, key=KEY)(wf.ones(2), wf.ones(3))
    with pytest.raises(TreeError, match=r"LSTM: state: expected a pair \(hidden, memory\), got"):
        nn.LSTM(2, 3, key=KEY)(wf.ones((4, 2)), wf.ones((1, 3)))
    with pytest.raises(TreeError, match="GRU: state: expected one tensor, got"):
        nn.GRU(2, 3, key=KEY)(wf.ones((4, 2)), (wf.ones((1, 3)), wf.ones((1, 3))))
    with pytest.raises(ArgumentError, match=r"state: expected tensors by name, got None\nhint"):
        nn.load_state_dict(model(), None)
    with pytest.raises(ArgumentError, match="Conv2d: padding must be one of 'same', 'valid'"):
        nn.Conv2d(1, 1, 3, padding="reflect", key=KEY)
    for layer in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):
        with pytest.raises(ArgumentError, match=f"{layer.__name__}: activation must be a function"):
            layer(8, 2, activation="gelu", key=KEY)
    with pytest.raises(ArgumentError, match="MLP: activation must be a function, got 'relu'"):
        nn.MLP(2, 3, 1, activation="relu", key=KEY)
    with pytest.raises(ArgumentError, match="MLP: final_activation must be a function"):
        nn.MLP(2, 3, 1, final_activation="relu", key=KEY)
    with pytest.raises(DTypeError, match=r"MLP: hidden must be an integer, got 2\.5"):
        nn.MLP(2, 2.5, 1, key=KEY)
    with pytest.raises(DTypeError, match="lora: targets must be a sequence, got 3"):
        nn.lora(model(), 1, key=KEY, targets=3)
    with pytest.raises(DTypeError, match="partition: where must be a sequence, got 3"):
        nn.partition(model(), 3)
    with pytest.raises(DTypeError, match="inference: value must be True or False, got 'yes'"):
        nn.inference(model(), "yes")
    with pytest.raises(DTypeError, match=r"cache: capacity must be an integer, got 2\.5"):
        nn.MultiHeadAttention(4, 2, key=KEY).cache(capacity=2.5)
    cache = nn.MultiHeadAttention(4, 2, key=KEY).cache(capacity=2)
    with pytest.raises(ShapeError, match=r"3 positions do not fit a capacity of 2\nhint"):
        nn.MultiHeadAttention(4, 2, key=KEY).decode(wf.ones((3, 4)), cache)


def test_models_and_optimizer_states_are_saved_and_loaded(tmp_path):
    made = model()
    whole = (made, wf.optim.adamw(1e-3).init(made))
    wf.checkpoints.save(tmp_path / "point", whole)
    again = wf.checkpoints.load(tmp_path / "point", wf.tree_map(wf.zeros_like, whole))
    assert wf.tree_structure(again) == wf.tree_structure(whole)
    for a, b in zip(wf.tree_leaves(again), wf.tree_leaves(whole), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    wf.save_safetensors(tmp_path / "file", nn.state_dict(made))
    loaded = nn.load_state_dict(model(), wf.load_safetensors(tmp_path / "file"))
    np.testing.assert_array_equal(loaded.layers[0].weight, made.layers[0].weight)
