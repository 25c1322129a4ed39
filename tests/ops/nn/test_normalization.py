import ml_dtypes
import numpy as np
import pytest

import weft as wf
from tests.torch_oracle import agrees, close, draw, torch
from weft.errors import ArgumentError, DTypeError, ShapeError

F = torch.nn.functional


@pytest.mark.parametrize("shape", [(5,), (4, 5), (3, 4, 5)])
def test_layer_norm_is_torchs_with_its_gradients(shape):
    x = draw(3, 4, 5)
    agrees(lambda x: wf.layer_norm(x, shape), lambda x: F.layer_norm(x, shape), x)
    agrees(
        lambda x, w, b: wf.layer_norm(x, shape, w, b, 1e-3),
        lambda x, w, b: F.layer_norm(x, shape, w, b, 1e-3),
        x,
        draw(*shape, seed=1),
        draw(*shape, seed=2),
    )


@pytest.mark.parametrize("eps", [None, 1e-3])
def test_rms_norm_is_torchs_with_its_gradients(eps):
    agrees(
        lambda x, w: wf.rms_norm(x, (4, 5), w, eps),
        lambda x, w: F.rms_norm(x, (4, 5), w, eps),
        draw(3, 4, 5),
        draw(4, 5, seed=1),
    )


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("shape", [(3, 6), (3, 6, 4), (2, 6, 3, 2)])
def test_group_norm_is_torchs_with_its_gradients(shape, groups):
    if shape == (3, 6) and groups == 6:
        shape = (3, 6, 2)
    agrees(
        lambda x, w, b: wf.group_norm(x, groups, w, b),
        lambda x, w, b: F.group_norm(x, groups, w, b),
        draw(*shape),
        draw(6, seed=1),
        draw(6, seed=2),
    )


def test_instance_norm_is_torchs_with_its_gradients():
    agrees(
        lambda x, w, b: wf.instance_norm(x, w, b),
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        draw(2, 3, 4, 5),
        draw(3, seed=1),
        draw(3, seed=2),
    )


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_is_torchs_and_returns_the_running_statistics(shape, training):
    mean, var = draw(3, seed=3), np.abs(draw(3, seed=4)) + 0.5
    agrees(
        lambda x, w, b: wf.batch_norm(x, mean, var, w, b, training=training)[0],
        lambda x, w, b: F.batch_norm(
            x, torch.tensor(mean), torch.tensor(var), w, b, training=training
        ),
        draw(*shape),
        draw(3, seed=1),
        draw(3, seed=2),
    )
    theirs = torch.tensor(mean), torch.tensor(var)
    F.batch_norm(torch.tensor(draw(*shape)), *theirs, training=training, momentum=0.3)
    _, *ours = wf.batch_norm(draw(*shape), mean, var, training=training, momentum=0.3)
    for mine, other in zip(ours, theirs, strict=True):
        close(mine, other.numpy())


def test_batch_norm_without_running_statistics_returns_none_for_them():
    x = draw(4, 3)
    made, mean, var = wf.batch_norm(x, training=True)
    assert mean is None and var is None
    close(made.numpy(), F.batch_norm(torch.tensor(x), None, None, training=True).numpy())


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_local_response_norm_is_torchs_with_its_gradient(size):
    agrees(
        lambda x: wf.local_response_norm(x, size, 0.5, 0.6, 2.0),
        lambda x: F.local_response_norm(x, size, 0.5, 0.6, 2.0),
        draw(2, 5, 3, 2),
    )
    assert wf.local_response_norm(draw(0, 5, 3, 2), size).shape == (0, 5, 3, 2)


@pytest.mark.parametrize("p", [1, 2, 3.5])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_normalize_is_torchs_with_its_gradient(p, axis):
    agrees(
        lambda x: wf.normalize(x, p, axis),
        lambda x: F.normalize(x, p, axis),
        draw(3, 4, 5),
    )


def test_normalize_of_zeros_is_zero_with_a_finite_gradient():
    value, gradient = wf.value_and_grad(lambda x: wf.sum(wf.normalize(x, 2, 0)))(np.zeros(3))
    assert value.item() == 0
    assert np.isfinite(gradient.numpy()).all()


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_narrow_floats_are_normalised_in_float32_and_rounded_once(name):
    x = (draw(4, 64) * 30 + 100).astype(ml_dtypes.bfloat16)
    got = getattr(wf, name)(x, 64, eps=1e-5)
    assert got.dtype == x.dtype
    want = getattr(wf, name)(x.astype(np.float32), 64, eps=1e-5).numpy().astype(x.dtype)
    np.testing.assert_array_equal(got.numpy(), want)


def test_dropout_keeps_the_mean_and_scales_what_it_keeps():
    key = wf.random.key(7)
    x = np.full(20_000, 3.0)
    got, pullback = wf.vjp(lambda x: wf.dropout(x, 0.25, key), x)
    values = got.numpy()
    assert set(np.round(np.unique(values), 12)) == {0.0, 4.0}
    assert np.mean(values) == pytest.approx(3.0, abs=0.05)
    (gradient,) = pullback(np.ones_like(x))
    close(gradient.numpy(), values / 3)
    close(wf.dropout(x, 0.25, key).numpy(), values)
    close(wf.dropout(x, 0, key).numpy(), x)
    with pytest.raises(ArgumentError, match=r"dropout: rate must be in \[0, 1\), got 1"):
        wf.dropout(x, 1, key)


MASK = draw(4, 6) > -0.5


@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"scale": 0.3}],
    ids=str,
)
def test_attention_is_torchs_with_its_gradients(options):
    agrees(
        lambda q, k, v: wf.scaled_dot_product_attention(q, k, v, **options),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options),
        draw(2, 3, 4, 5),
        draw(2, 3, 6, 5, seed=1),
        draw(2, 3, 6, 7, seed=2),
    )


@pytest.mark.parametrize("mask", [MASK, draw(2, 1, 4, 6, seed=5)], ids=["bool", "float"])
def test_attention_masks_are_torchs(mask):
    agrees(
        lambda q, k, v: wf.scaled_dot_product_attention(q, k, v, mask),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.tensor(mask)),
        draw(2, 3, 4, 5),
        draw(2, 3, 6, 5, seed=1),
        draw(2, 3, 6, 7, seed=2),
    )


def test_heads_may_share_keys_and_values():
    agrees(
        lambda q, k, v: wf.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        draw(2, 6, 4, 5),
        draw(2, 2, 6, 5, seed=1),
        draw(2, 2, 6, 7, seed=2),
    )


def test_a_query_that_may_see_nothing_gives_zeros_and_no_nan_in_the_gradient():
    q, k, v = draw(2, 3), draw(4, 3, seed=1), draw(4, 3, seed=2)
    mask = np.array([[False] * 4, [True] * 4])

    def total(q, k, v):
        return wf.sum(wf.scaled_dot_product_attention(q, k, v, mask))

    got = wf.scaled_dot_product_attention(q, k, v, mask).numpy()
    np.testing.assert_array_equal(got[0], 0)
    for gradient in wf.grad(total, (0, 1, 2))(q, k, v):
        assert np.isfinite(gradient.numpy()).all()


WIDE, FLAT = np.ones((2, 6, 4)), np.ones((2, 6))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: wf.layer_norm(WIDE, 3), ShapeError, "does not end with normalized_shape"),
        (lambda: wf.layer_norm(WIDE, 4, np.ones(3)), ShapeError, "weight: expected shape"),
        (lambda: wf.layer_norm(WIDE + 0j, 4), DTypeError, "takes real numbers"),
        (lambda: wf.group_norm(FLAT, 4), ArgumentError, "6 features cannot be split into 4"),
        (lambda: wf.instance_norm(FLAT), ShapeError, "expected .N, C, space"),
        (lambda: wf.batch_norm(FLAT), ArgumentError, "running statistics are needed"),
        (lambda: wf.batch_norm(FLAT, np.ones(6)), ArgumentError, "give both running statistics"),
        (lambda: wf.batch_norm(FLAT[:1], training=True), ShapeError, "no variance"),
        (
            lambda: wf.scaled_dot_product_attention(FLAT, FLAT[:, :3], FLAT),
            ShapeError,
            "query … L E, key … S E",
        ),
        (
            lambda: wf.scaled_dot_product_attention(FLAT, FLAT, FLAT, np.ones((3, 3), bool)),
            ShapeError,
            "scaled_dot_product_attention: .*does not broadcast",
        ),
        (
            lambda: wf.scaled_dot_product_attention(FLAT, FLAT, FLAT, np.ones((3, 2, 2), bool)),
            ShapeError,
            "scaled_dot_product_attention: mask of shape",
        ),
        (
            lambda: wf.scaled_dot_product_attention(FLAT, FLAT, FLAT, np.ones((2, 2), int)),
            DTypeError,
            r"mask: expected bools or floats, got int64\nhint: mask != 0",
        ),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_attention_drops_weights_by_a_key():
    q, k, v = (wf.tensor(draw(2, 5, 4, seed=i)) for i in range(3))
    key = wf.random.key(0)
    dropped = wf.scaled_dot_product_attention(q, k, v, dropout_rate=0.5, dropout_key=key)
    weights = wf.softmax(q @ wf.matrix_transpose(k) / 2, axis=-1)
    close(dropped.numpy(), (wf.dropout(weights, 0.5, key) @ v).numpy())
    whole = wf.scaled_dot_product_attention(q, k, v, dropout_rate=0.0)
    close(whole.numpy(), wf.scaled_dot_product_attention(q, k, v).numpy(), 0)
    with pytest.raises(ArgumentError, match=r"dropout_rate 0\.5 needs a dropout_key"):
        wf.scaled_dot_product_attention(q, k, v, dropout_rate=0.5)


def test_gumbel_softmax_chooses_as_often_as_softmax_says():
    logits = wf.broadcast_to(wf.tensor([0.0, 1.0, 2.0]), (20000, 3))
    hard = wf.gumbel_softmax(logits, wf.random.key(0), 0.5, hard=True)
    assert wf.unique(hard).tolist() == [0, 1] and (hard.sum(axis=1) == 1).all()
    assert np.allclose(hard.mean(axis=0).numpy(), wf.softmax(logits[0]).numpy(), atol=0.015)
    soft = wf.gumbel_softmax(logits, wf.random.key(0), 0.5)
    assert wf.array_equal(wf.argmax(soft, axis=1), wf.argmax(hard, axis=1))
    assert wf.allclose(wf.sum(soft, axis=1), 1.0)


def test_a_hard_choice_has_the_slope_of_the_soft_one():
    key, weights = wf.random.key(1), wf.tensor([[1.0], [2.0], [4.0]])

    def value(logits, hard):
        return wf.sum(wf.gumbel_softmax(logits, key, hard=hard, axis=0) * weights)

    x = wf.tensor([[0.0, 1.0], [0.5, -1.0], [2.0, 0.0]])
    assert wf.array_equal(wf.grad(value)(x, True), wf.grad(value)(x, False))
    with pytest.raises(ArgumentError, match="gumbel_softmax: tau must be positive, got 0"):
        wf.gumbel_softmax(x, key, 0)
