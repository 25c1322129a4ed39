"""Optimisers by formula, and what they do with masks, models, narrow floats and mistakes."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import weft as wf
from tests.optim.small_problem import draw, loss_of, same, start, trained
from weft.errors import ArgumentError, DTypeError, ShapeError, TreeError

optim = wf.optim


@pytest.mark.parametrize("transform", [optim.adamw(0.02), optim.adafactor(0.5)])
def test_a_step_compiled_is_the_step_itself(transform):
    eager = trained(transform, start(), 3, compiled=False)
    same(trained(transform, start(), 3), {k: v.numpy() for k, v in eager.items()}, 1e-12)


def test_lion_is_its_formula():
    params, x = start(), draw(5, 4)
    expected = {k: v.copy() for k, v in params.items()}
    momentum = {k: np.zeros_like(v) for k, v in params.items()}
    slope = wf.grad(lambda p: loss_of(wf, p, wf.tensor(x)))
    for _ in range(20):
        found = slope(wf.tree_map(wf.tensor, expected))
        for name in expected:
            g, m = found[name].numpy(), momentum[name]
            step = np.sign(0.9 * m + 0.1 * g) + 0.1 * expected[name]
            expected[name] = expected[name] - 0.01 * step
            momentum[name] = 0.99 * m + 0.01 * g
    same(trained(optim.lion(0.01, weight_decay=0.1), params), expected)


def test_lamb_is_its_formula():
    params, x = {**start(), "zero": np.zeros(2)}, draw(5, 4)
    expected = {k: v.copy() for k, v in params.items()}
    mean, square = ({k: np.zeros_like(v) for k, v in params.items()} for _ in range(2))
    slope = wf.grad(lambda p: loss_of(wf, p, wf.tensor(x)) + wf.sum(p["zero"]))
    transform = optim.lamb(0.01, (0.8, 0.95), weight_decay=0.1)
    moved = wf.tree_map(wf.tensor, params)
    state = transform.init(moved)
    for number in range(1, 21):
        updates, state = transform.update(slope(moved), state, moved)
        found = slope(wf.tree_map(wf.tensor, expected))
        moved = optim.apply(moved, updates)
        for name, p in expected.items():
            g = found[name].numpy()
            mean[name] = 0.8 * mean[name] + 0.2 * g
            square[name] = 0.95 * square[name] + 0.05 * g * g
            root = np.sqrt(square[name] / (1 - 0.95**number)) + 1e-6
            step = mean[name] / (1 - 0.8**number) / root + 0.1 * p
            size, length = np.linalg.norm(p), np.linalg.norm(step)
            expected[name] = p - 0.01 * step * (size / length if size and length else 1)
    same(moved, expected, 1e-9)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_orthogonalize_keeps_singular_vectors_and_levels_singular_values(shape):
    matrix = draw(*shape)
    made = optim.orthogonalize(matrix, steps=10).numpy()
    u, _, v = np.linalg.svd(matrix, full_matrices=False)
    levels = u.T @ made @ v.T
    assert np.abs(levels - np.diag(np.diag(levels))).max() < 1e-9
    assert (np.diag(levels) > 0.6).all() and (np.diag(levels) < 1.3).all()


def test_muon_falls_back_for_tensors_that_are_no_matrices():
    params = start()
    fallback = optim.sgd(0.5)
    moved = trained(optim.muon(0.1, fallback=fallback), params, 1)
    plain = trained(fallback, params, 1)
    for name in ("b", "k"):
        np.testing.assert_allclose(moved[name].numpy(), plain[name].numpy(), rtol=1e-9)
    assert not np.allclose(moved["w"].numpy(), plain["w"].numpy())


@pytest.mark.slow
def test_a_mask_says_what_decays():
    params = start()
    whole, part = (
        trained(optim.adamw(0.1, weight_decay=0.5, mask=mask), params, 1)
        for mask in (None, optim.matrices)
    )
    none = trained(optim.adamw(0.1, weight_decay=0.0), params, 1)
    np.testing.assert_array_equal(part["b"].numpy(), none["b"].numpy())
    np.testing.assert_array_equal(part["k"].numpy(), whole["k"].numpy())
    tree = {"w": False, "b": True, "k": False}
    turned = trained(optim.adamw(0.1, weight_decay=0.5, mask=tree), params, 1)
    assert not np.array_equal(turned["b"].numpy(), trained(optim.adamw(0.1), params, 1)["b"])


GROUPS = {"a": {"w": 1.0, "b": 1.0}, "c": [2.0, 2.0], "d": 3.0}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": True, "c": False, "d": False}, {"a": False, "c": True, "d": False}),
        ("a.*", ["c.0", "c.1"]),
        (lambda p: {k: k == "a" for k in p}, lambda p: {k: k == "c" for k in p}),
    ],
    ids=["prefixes", "patterns", "functions"],
)
def test_splits_within_splits_make_groups(first, second):
    ones = wf.tree_map(lambda _: wf.ones(2), GROUPS)
    rest = optim.split(second, optim.scale(2.0), optim.scale(3.0))
    transform = optim.split(first, optim.scale(1.0), rest)
    updates, _ = transform.update(ones, transform.init(ones), ones)
    assert wf.tree_map(lambda u: u[0].item(), updates) == GROUPS


def test_a_mask_may_speak_of_parameters_that_are_none():
    params = {"encoder": None, "head": wf.ones(2)}
    transform = optim.split({"encoder": True, "head": True}, optim.scale(2.0), optim.scale(0.0))
    updates, _ = transform.update(params, transform.init(params))
    assert updates["encoder"] is None and updates["head"].tolist() == [2.0, 2.0]


def test_a_mask_may_be_patterns_of_names_but_no_deeper_than_the_parameters():
    model = wf.nn.MLP(2, (3,), 1, key=wf.random.key(0))
    still = wf.tree_map(wf.zeros_like, model)
    for mask in ("*.weight", optim.matrices):
        transform = optim.sgd(1.0, weight_decay=1.0, mask=mask)
        updates, _ = transform.update(still, transform.init(model), model)
        moved = wf.nn.state_dict(optim.apply(model, updates))
        kept = {name for name, w in moved.items() if w.tolist() != wf.zeros_like(w).tolist()}
        assert kept == {"layers.0.bias", "layers.1.bias"}
    with pytest.raises(TreeError, match=r"add_decayed_weights: mask .* is no prefix of"):
        deeper = optim.add_decayed_weights(1.0, {"w": {"x": False}})
        deeper.update({"w": wf.ones(2)}, (), {"w": wf.ones(2)})


def test_narrow_parameters_take_steps_in_float32():
    params = {"w": wf.ones(3, dtype=wf.bfloat16)}
    transform = optim.adamw(1e-2)
    state = transform.init(params)
    assert state[0].square["w"].dtype == wf.float32
    updates, state = transform.update({"w": wf.ones(3, dtype=wf.bfloat16)}, state, params)
    assert updates["w"].dtype == wf.float32
    assert optim.apply(params, updates)["w"].dtype == wf.bfloat16


def test_narrow_gradients_are_clipped_and_scaled_in_float32():
    gradients = {"w": wf.full(100_000, 6e4, dtype=wf.float16)}  # the factor is below float16
    transform = optim.chain(optim.clip_by_global_norm(1.0), optim.sgd(0.1))
    updates, _ = transform.update(gradients, transform.init(gradients), gradients)
    np.testing.assert_allclose(updates["w"].numpy(), -0.1 / 100_000**0.5, rtol=1e-5)


def test_gradients_that_hardly_change_have_a_variance_that_is_no_nan():
    transform = optim.rmsprop(1e-3, 0.5, centered=True)
    gradient = wf.tensor(np.linspace(0.1, 1, 1000), dtype=wf.float32)
    update, state = wf.compile(transform.update), transform.init(gradient)
    for _ in range(40):
        updates, state = update(gradient, state, gradient)
        assert np.isfinite(updates.numpy()).all()


def test_optimizers_take_models_and_parts_of_models():
    model = wf.nn.Sequential(wf.nn.Linear(2, 3, key=wf.random.key(0)), wf.nn.BatchNorm(3))
    params, rest = wf.nn.partition(model)
    for transform in (optim.adamw(0.1, mask=optim.matrices), optim.muon(0.1), optim.adafactor(0.1)):
        state = transform.init(params)
        gradients = wf.tree_map(wf.ones_like, params)
        updates, state = transform.update(gradients, state, params)
        moved = wf.nn.combine(optim.apply(params, updates), rest)
        assert type(moved) is wf.nn.Sequential
        assert moved.layers[1].running_mean is model.layers[1].running_mean
        assert not np.allclose(moved.layers[0].bias, model.layers[0].bias)


def test_no_optimizer_changes_a_buffer():
    norm = wf.nn.BatchNorm(2)
    gradients = wf.grad(lambda m: wf.sum(m(wf.ones((3, 2)))))(norm)
    for transform in (optim.adamw(0.1), optim.sgd(0.1, 0.9)):
        updates, _ = transform.update(gradients, transform.init(norm), norm)
        moved = optim.apply(norm, updates)
        assert moved.running_var is norm.running_var and moved.running_mean is norm.running_mean
        assert not np.allclose(moved.bias.numpy(), norm.bias.numpy())


class Placed(wf.nn.Module):
    weight: wf.Tensor
    places: wf.Tensor = wf.nn.buffer()


def test_buffers_do_not_count_where_gradients_are_clipped_or_skipped():
    model = Placed(wf.ones(2), wf.ones(2))
    clip = optim.clip_by_global_norm(1.0)
    clipped, _ = clip.update(Placed(wf.tensor([0.6, 0.0]), wf.ones(2)), (), model)
    assert clipped.weight.tolist() == wf.tensor([0.6, 0.0]).tolist()
    scaled = optim.loss_scaled(optim.sgd(1.0), initial=1.0)
    gradients = Placed(wf.ones(2), wf.full(2, wf.nan))
    updates, state = scaled.update(gradients, scaled.init(model), model)
    assert updates.weight.tolist() == [-1.0, -1.0] and state.skipped.item() == 0


def test_updates_that_do_not_fit_are_told():
    with pytest.raises(ShapeError, match=r"apply: an update of shape \(4, 2\) for a parameter of"):
        optim.apply({"b": wf.ones(2)}, {"b": wf.ones((4, 2))})
    with pytest.raises(DTypeError, match=r"dtype int64 takes no steps\nhint: nn\.partition"):
        optim.apply({"n": wf.tensor([5])}, {"n": wf.tensor([-0.1])})
    with pytest.raises(DTypeError, match=r"dtype complex64 takes no steps\nhint: train real and"):
        optim.apply({"z": wf.tensor([1j])}, {"z": wf.tensor([1j])})
    part = {"w": None, "b": wf.ones(2)}
    whole, adam = {**part, "w": wf.ones(2)}, optim.adam()
    same = r"are not in the places of parameters \(.*\)\nhint: init, update and apply take one"
    for state, gradients in ((part, whole), (whole, part), ({"c": wf.ones(2)}, whole)):
        with pytest.raises(TreeError, match="gradients " + same):
            adam.update(gradients, adam.init(state))
    for updates in (part, [wf.ones(2)], {**whole, "w": 1.0}):
        with pytest.raises(TreeError, match="apply: updates " + same):
            optim.apply(whole, updates)
    for transform in (optim.adamw(mask="wieght"), optim.split("wieght", adam, optim.sgd(0.1))):
        with pytest.raises(ArgumentError, match=r": no name fits 'wieght'\nhint: the names are b"):
            transform.update(whole, transform.init(whole), whole)
    nested = optim.split("w", adam, optim.split("w", optim.sgd(0.1), optim.sgd(0.2)))
    updates, _ = nested.update(whole, nested.init(whole), whole)
    np.testing.assert_allclose(updates["b"].numpy(), -0.2, rtol=1e-6)
    with pytest.raises(DTypeError, match=r"optim: expected tensors, got 1\.0\nhint: wf\.asarray"):
        optim.adam().init({"w": 1.0})


def test_a_norm_of_complex_numbers_is_that_of_their_sizes():
    assert optim.global_norm([wf.tensor([3j]), wf.tensor([4.0])]).item() == 5.0


def test_mistakes_are_told():
    transform = optim.adamw(0.1)
    params = {"w": wf.ones(2)}
    with pytest.raises(
        ArgumentError, match=r"add_decayed_weights: update: params are needed\nhint"
    ):
        transform.update(params, transform.init(params))
    with pytest.raises(TreeError, match=r"chain: state: expected a tuple of 3 states.*\nhint"):
        transform.update(params, (), params)
    with pytest.raises(ArgumentError, match="chain: transform 0: expected a Transform"):
        optim.chain(optim.adam)
    with pytest.raises(ArgumentError, match="learning_rate: expected a number, a tensor or a sch"):
        optim.sgd("fast")
    with pytest.raises(ArgumentError, match="adam: betas: expected two numbers"):
        optim.adam(0.1, 0.9)
    with pytest.raises(ArgumentError, match="nesterov needs a momentum"):
        optim.sgd(0.1, nesterov=True)
    with pytest.raises(ArgumentError, match=r"a tree of True and False, a function .*, or names"):
        optim.adamw(0.1, mask=lambda p: p).update(params, transform.init(params), params)
    with pytest.raises(TreeError, match="differs"):
        transform.update({"v": wf.ones(2)}, transform.init(params), params)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.sgd(float("nan")), "learning_rate must be finite, got nan"),
        (lambda: optim.adam(0.1, (0.9, 1.0)), r"adam: b2 must be below 1, got 1\.0"),
        (lambda: optim.adafactor(clip=0), "adafactor: clip must be positive"),
        (lambda: optim.adafactor(eps=1e-3), "adafactor: eps: expected two numbers"),
        (lambda: optim.accumulate(optim.adam, 2), "accumulate: transform: expected a Transform"),
        (lambda: optim.loss_scaled(optim.adam), "loss_scaled: transform: expected a Transform"),
        (lambda: optim.loss_scaled(optim.adam(), 0), "loss_scaled: initial must be positive"),
        (lambda: optim.muon(fallback=optim.adam), "split: others: expected a Transform"),
    ],
)
def test_settings_that_would_make_no_steps_are_told(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def test_only_matrices_are_made_orthogonal():
    with pytest.raises(ShapeError, match=r"orthogonalize: expected a matrix .*, got \(3,\)"):
        optim.orthogonalize(wf.ones(3))


@pytest.mark.parametrize(
    "make",
    [
        wf.optim.adam,
        wf.optim.lion,
        wf.optim.rmsprop,
        wf.optim.adagrad,
        wf.optim.adamax,
        wf.optim.nadam,
        wf.optim.radam,
        wf.optim.muon,
        lambda rate: wf.optim.sgd(rate, momentum=0.9),
        lambda rate: wf.optim.sgd(rate, weight_decay=0.1),
        wf.optim.adadelta,
        wf.optim.adafactor,
        lambda rate: wf.optim.accumulate(wf.optim.sgd(rate), 2),
    ],
)
def test_gradients_of_another_shape_and_states_of_another_kind_are_told(make):
    params = {"w": wf.ones((3, 2))}
    transform = make(1e-2)
    state = transform.init(params)
    with pytest.raises(ShapeError, match=r"gradient of shape \(1, 2\) for a parameter of shape"):
        transform.update({"w": wf.ones((1, 2))}, state, params)
    with pytest.raises(TreeError, match="state: expected"):
        transform.update(params, wf.optim.loss_scaled(transform).init(params), params)


@pytest.mark.parametrize(
    "make",
    [
        lambda: wf.optim.adam(1e-3),
        lambda: wf.optim.adamw(wf.optim.schedules.warmup_cosine(0.1, 2, 9), mask=wf.optim.matrices),
        lambda: wf.optim.sgd(
            wf.optim.schedules.join(
                [wf.optim.schedules.constant(1.0), wf.optim.schedules.cosine(0.1, 3)], [1]
            )
        ),
        lambda: wf.optim.chain(
            wf.optim.clip_by_global_norm(0.1), wf.optim.accumulate(wf.optim.lion(), 2)
        ),
        lambda: wf.optim.split(wf.optim.matrices, wf.optim.muon(), wf.optim.sgd(0.1, momentum=0.9)),
        lambda: wf.optim.reduce_on_plateau(wf.optim.sgd(0.1), patience=2),
    ],
)
def test_transformations_and_schedules_are_pickled_as_the_calls_that_made_them(make):
    params = {"w": wf.ones((3, 2)), "b": wf.ones(2)}

    def after_steps(transform):
        state, moved = transform.init(params), params
        for _ in range(3):
            updates, state = transform.update(params, state, moved)
            moved = wf.optim.apply(moved, updates)
        return [x.tolist() for x in wf.tree_leaves(moved)]

    made = make()
    expected = after_steps(made)
    assert after_steps(pickle.loads(pickle.dumps(made))) == expected
    assert after_steps(copy.deepcopy(made)) == expected


@pytest.mark.parametrize("rate", [np.float32(0.5), np.array(0.5), np.int64(1)])
def test_a_rate_may_be_a_number_of_numpys(rate):
    for make in (optim.sgd, optim.adafactor):
        transform, same_one = make(rate), make(float(rate))
        params = {"w": wf.ones(2)}
        updates, _ = transform.update(params, transform.init(params), params)
        expected, _ = same_one.update(params, same_one.init(params), params)
        assert updates["w"].tolist() == expected["w"].tolist()


def test_a_rate_of_a_wider_dtype_widens_no_step():
    params, rate = {"w": wf.ones(2)}, wf.tensor(0.1, dtype="float64")
    for transform in (optim.sgd(rate), optim.accumulate(optim.adamw(rate), 2)):
        updates, _ = transform.update(params, transform.init(params), params)
        assert updates["w"].dtype == wf.float32


SETTINGS = {
    "weight_decay": lambda v: optim.adamw(0.1, weight_decay=v),
    "first beta": lambda v: optim.adam(0.1, (v, 0.9)),
    "second beta": lambda v: optim.adam(0.1, (0.8, v), amsgrad=True),
    "eps": lambda v: optim.adam(0.1, eps=v),
    "momentum": lambda v: optim.sgd(0.1, momentum=v, nesterov=True),
    "alpha": lambda v: optim.rmsprop(0.1, alpha=v, eps=v, momentum=v, centered=True),
    "adagrad": lambda v: optim.adagrad(0.1, initial_accumulator_value=v, eps=v),
    "adadelta": lambda v: optim.adadelta(0.1, rho=v, eps=v),
    "adamax": lambda v: optim.adamax(0.1, (v, v), eps=v),
    "nadam": lambda v: optim.nadam(0.1, (v, v), eps=v, momentum_decay=v),
    "radam": lambda v: optim.radam(0.1, (v, 0.99), eps=v),
    "lion": lambda v: optim.lion(0.1, weight_decay=v),
    "muon": lambda v: optim.scale_by_muon(momentum=v),
    "norm": lambda v: optim.chain(optim.clip_by_global_norm(v), optim.sgd(0.1)),
    "value": lambda v: optim.chain(optim.clip_by_value(v), optim.sgd(0.1)),
    "cosine": lambda v: optim.sgd(optim.schedules.cosine(v, 5)),
    "warmup": lambda v: optim.sgd(optim.schedules.warmup_cosine(v, 2, 5)),
    "one_cycle": lambda v: optim.sgd(optim.schedules.one_cycle(v, 5)),
    "polynomial": lambda v: optim.sgd(optim.schedules.polynomial(0.1, 5, end=v)),
    "exponential": lambda v: optim.sgd(optim.schedules.exponential(v, 0.9)),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_may_be_tensors_that_are_mapped_compiled_and_differentiated(name):
    x, y = wf.asarray(draw(5, 4)), wf.asarray(draw(5, 2))

    def trained_with(setting):
        transform = SETTINGS[name](setting)
        params = {"w": wf.ones((4, 2), dtype="float64")}

        def step(carry, _):
            params, state = carry
            gradients = wf.grad(lambda p: wf.mean((x @ p["w"] - y) ** 2))(params)
            updates, state = transform.update(gradients, state, params)
            return (optim.apply(params, updates), state), None

        (params, _), _ = wf.scan(step, (params, transform.init(params)), length=3)
        return wf.sum(params["w"] * wf.asarray(draw(4, 2)))

    settings = wf.tensor([0.3, 0.4], dtype="float64")
    each = [trained_with(s) for s in settings]
    assert each[0].item() == pytest.approx(trained_with(0.3).item(), rel=1e-6)
    np.testing.assert_allclose(wf.vmap(trained_with)(settings), wf.stack(each), rtol=1e-12)
    assert wf.compile(trained_with)(settings[0]).tobytes() == each[0].tobytes()
    above, below = trained_with(0.3 + 1e-5).item(), trained_with(0.3 - 1e-5).item()
    slope = wf.grad(trained_with)(settings[0]).item()
    assert slope == pytest.approx((above - below) / 2e-5, rel=2e-2, abs=1e-4)


def test_an_average_may_decay_by_a_tensor():
    params = {"w": wf.ones(3)}

    def averaged(decay):
        ema = optim.ema(decay)
        return ema.update({"w": wf.zeros(3)}, ema.init(params)).value["w"][0]

    assert wf.grad(averaged)(wf.tensor(0.9)).item() == 1.0
    np.testing.assert_allclose(wf.vmap(averaged)(wf.tensor([0.5, 0.9])), [0.5, 0.9], rtol=1e-6)
    with pytest.raises(ArgumentError, match="ema: decay: expected a number, got Tensor of shape"):
        optim.ema(wf.ones(2))
