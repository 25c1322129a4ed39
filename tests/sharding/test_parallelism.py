"""Ways to train in parallel, written with plain ops: each gives the run on one device.

A way is a layout of the parameters and of the batch (and at times of values in between); model,
loss and optimizer do not know of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest

import weft as wf
from tests.sharding.layouts import close, laid_out, log_of, same
from weft import P

LINE = wf.DeviceMesh("line", (4,), ("x",))
GRID = wf.DeviceMesh("grid", (2, 2), ("dp", "tp"))
CUBE = wf.DeviceMesh("cube", (2, 2, 2), ("dp", "tp", "sp"))
UNEVEN = wf.DeviceMesh("uneven", (3,), ("x",))
RNG = np.random.default_rng(11)
BATCH, TIME, WIDTH, HIDDEN, HEADS, WORDS = 4, 6, 8, 12, 2, 10
TOLERANCE = 1e-12


def drawn(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape) / np.sqrt(shape[0])


PARAMETERS = {
    "embedding": drawn(WORDS, WIDTH),
    "query": drawn(WIDTH, WIDTH),
    "key": drawn(WIDTH, WIDTH),
    "value": drawn(WIDTH, WIDTH),
    "output": drawn(WIDTH, WIDTH),
    "scale": 1 + drawn(WIDTH) / 4,
    "up": drawn(WIDTH, HIDDEN),
    "bias": drawn(HIDDEN),
    "down": drawn(HIDDEN, WIDTH),
}
TOKENS = RNG.integers(0, WORDS, (BATCH, TIME))
NEXT = RNG.integers(0, WORDS, (BATCH, TIME))


def normalized(x, scale):
    return x / wf.sqrt(wf.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def attention(p, x):
    def heads(name):
        return (x @ p[name]).reshape(*x.shape[:-1], HEADS, -1).swapaxes(-2, -3)

    scores = heads("query") @ heads("key").mT / np.sqrt(WIDTH / HEADS)
    mask = wf.tril(wf.ones((TIME, TIME), dtype=wf.bool))
    mixed = wf.softmax(wf.where(mask, scores, -1e9), axis=-1) @ heads("value")
    return mixed.swapaxes(-2, -3).reshape(x.shape) @ p["output"]


def transformer_loss(p, tokens, following, between=lambda x: x):
    x = between(wf.embedding(p["embedding"], tokens))
    x = between(x + attention(p, normalized(x, p["scale"])))
    x = between(x + wf.gelu(normalized(x, p["scale"]) @ p["up"] + p["bias"]) @ p["down"])
    scores = wf.log_softmax(x @ p["embedding"].mT, axis=-1)
    picked = wf.take_along_axis(scores, following[..., None], axis=-1)
    return -wf.mean(picked)


def sgd(p, state, slopes):
    state = {k: 0.9 * state[k][0] + slopes[k] for k in p}
    return {k: p[k] - 0.1 * state[k] for k in p}, {k: (m,) for k, m in state.items()}


def adam(p, state, slopes, rate=0.05, decay=(0.9, 0.99)):
    updated, moments = {}, {}
    for k in p:
        first = decay[0] * state[k][0] + (1 - decay[0]) * slopes[k]
        second = decay[1] * state[k][-1] + (1 - decay[1]) * slopes[k] ** 2
        updated[k] = p[k] - rate * first / (wf.sqrt(second) + 1e-8)
        moments[k] = (first, second)
    return updated, moments


@dataclass
class Way:
    """Where parameters, batch, optimizer state and activations lie; what is not named is whole."""

    mesh: wf.DeviceMesh
    batch: P
    parameters: dict[str, P] = field(default_factory=dict)
    state: dict[str, P] = field(default_factory=dict)
    between: P | None = None


def everywhere(spec):
    return dict.fromkeys(PARAMETERS, spec)


MEGATRON = {
    "query": P(None, "tp"),
    "key": P(None, "tp"),
    "value": P(None, "tp"),
    "output": P("tp"),
    "up": P(None, "tp"),
    "bias": P("tp"),
    "down": P("tp"),
}
WAYS = {
    "data": Way(LINE, P("x")),
    "data, uneven": Way(UNEVEN, P("x")),
    "column": Way(LINE, P(), {"up": P(None, "x"), "query": P(None, "x")}),
    "row": Way(LINE, P(), {"down": P("x"), "output": P("x")}),
    "tensor": Way(GRID, P(), MEGATRON),
    "vocabulary": Way(LINE, P(), {"embedding": P("x")}),
    "sequence": Way(LINE, P(None, "x"), between=P(None, "x")),
    "fully sharded": Way(LINE, P("x"), everywhere(P("x"))),
    "state sharded": Way(LINE, P("x"), {}, everywhere(P("x"))),
    "data and tensor": Way(GRID, P("dp"), MEGATRON),
    "tensor and sequence": Way(GRID, P(), MEGATRON, between=P(None, "tp")),
    "data, tensor and sequence": Way(CUBE, P("dp", "sp"), MEGATRON, between=P("dp", "sp")),
    "fully sharded and tensor": Way(
        GRID, P("dp"), {**everywhere(P("dp")), "up": P("dp", "tp"), "down": P("tp", "dp")}
    ),
}


def train(optimizer, way: Way | None, steps: int = 3):
    """Losses, parameters and the first gradients of a short run."""
    parameters = {k: wf.asarray(a) for k, a in PARAMETERS.items()}
    tokens, following = wf.asarray(TOKENS), wf.asarray(NEXT)
    keywords = {}
    state = {k: (wf.zeros_like(x), wf.zeros_like(x)) for k, x in parameters.items()}
    if way is not None:
        parameters = {
            k: x.shard(way.mesh, way.parameters.get(k, P())) for k, x in parameters.items()
        }
        tokens, following = tokens.shard(way.mesh, way.batch), following.shard(way.mesh, way.batch)
        state = {
            k: tuple(
                m.shard(way.mesh, way.state.get(k, way.parameters.get(k, P()))) for m in state[k]
            )
            for k in parameters
        }
        if way.between is not None:
            keywords["between"] = lambda x: wf.with_sharding_constraint(x, way.between, way.mesh)
    losses, first = [], None
    for _ in range(steps):
        value, slopes = wf.value_and_grad(transformer_loss)(
            parameters, tokens, following, **keywords
        )
        losses.append(value)
        first = first or slopes
        parameters, state = optimizer(parameters, state, slopes)
    return {"losses": losses, "first": first, "parameters": parameters, "state": state}


@cache
def reference(optimizer):
    return train(optimizer, None)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [sgd, adam])
@pytest.mark.parametrize("name", WAYS)
@pytest.mark.promise("S0.5")
def test_a_parallel_run_of_a_transformer_is_the_run_on_one_device(name, optimizer) -> None:
    found = train(optimizer, WAYS[name])
    close(found, reference(optimizer), TOLERANCE)
    assert float(found["losses"][-1]) < float(found["losses"][0])
    for key, spec in WAYS[name].parameters.items():
        sharding = found["parameters"][key].sharding
        expected = wf.asarray(PARAMETERS[key]).shard(WAYS[name].mesh, spec).sharding
        assert sharding.axes == expected.axes, f"{key} drifted to {sharding}"


def test_a_column_split_layer_has_the_bits_of_one_device() -> None:
    x, weight, bias = drawn(8, 16), drawn(16, 12), drawn(12)
    expected = wf.relu(wf.asarray(x) @ wf.asarray(weight) + wf.asarray(bias))
    spread = laid_out(x, LINE, P()) @ laid_out(weight, LINE, P(None, "x"))
    same(wf.relu(spread + laid_out(bias, LINE, P("x"))), expected)


def test_elementwise_programs_have_the_bits_of_one_device() -> None:
    x, y = RNG.normal(size=(50, 7)), RNG.normal(size=(50, 7))

    def program(x, y):
        z = wf.tanh(x * y + 0.3) / (1 + x * x)
        return wf.where(z > 0, wf.exp(-z), z**3) - wf.maximum(x, y)

    def pulled(x, y):
        value, pullback = wf.vjp(program, x, y)
        return value, pullback(wf.cos(value))

    expected = pulled(wf.asarray(x), wf.asarray(y))
    for mesh, spec in ((LINE, P("x")), (UNEVEN, P(None, "x")), (GRID, P("tp", "dp"))):
        same(pulled(laid_out(x, mesh, spec), laid_out(y, mesh, spec)), expected)


def test_an_elementwise_optimizer_step_has_the_bits_of_one_device() -> None:
    slopes = {k: RNG.normal(size=a.shape) for k, a in PARAMETERS.items()}

    def step(lay):
        parameters = {k: lay(a) for k, a in PARAMETERS.items()}
        state = {k: (wf.zeros_like(x),) * 2 for k, x in parameters.items()}
        for _ in range(3):
            parameters, state = adam(parameters, state, {k: lay(s) for k, s in slopes.items()})
        return parameters, state

    same(step(lambda a: laid_out(a, LINE, P("x"))), step(wf.asarray))


def test_a_sum_over_an_axis_that_is_not_split_has_the_bits_of_one_device() -> None:
    x = RNG.normal(size=(8, 40))
    for reduce in (wf.sum, wf.prod, wf.logsumexp, wf.var):
        same(
            reduce(laid_out(x, LINE, P("x")), axis=1),
            wf.concat([reduce(wf.asarray(x[i : i + 2]), axis=1) for i in range(0, 8, 2)]),
        )


EXPERTS, TOKENS_PER_EXPERT = 4, 3
ROUTED = {
    "gate": drawn(WIDTH, EXPERTS),
    "up": RNG.normal(size=(EXPERTS, WIDTH, HIDDEN)) / 3,
    "down": RNG.normal(size=(EXPERTS, HIDDEN, WIDTH)) / 3,
}
ITEMS = RNG.normal(size=(4 * TOKENS_PER_EXPERT, WIDTH))


def routed_loss(p, x, dispatch=lambda t: t, combine=lambda t: t):
    """Each item goes to its two best experts; experts see items as (expert, item, width)."""
    gates = wf.softmax(x @ p["gate"], axis=-1)
    _, chosen = wf.top_k(gates, 2, axis=-1)
    mask = wf.sum(wf.one_hot(chosen, EXPERTS, dtype=x.dtype), axis=-2)
    weights = gates * mask
    sent = dispatch(wf.einsum("ne,nw->enw", mask, x))
    hidden = wf.gelu(wf.einsum("enw,ewh->enh", sent, p["up"]))
    back = combine(wf.einsum("enh,ehw->enw", hidden, p["down"]))
    return wf.mean(wf.sin(wf.einsum("ne,enw->nw", weights, back)))


def test_experts_on_different_devices_are_reached_by_all_to_all() -> None:
    dense = {k: wf.asarray(a) for k, a in ROUTED.items()}
    expected = wf.value_and_grad(routed_loss, argnums=(0, 1))(dense, wf.asarray(ITEMS))
    specs = {"gate": P(), "up": P("x"), "down": P("x")}
    parameters = {k: laid_out(a, LINE, specs[k]) for k, a in ROUTED.items()}
    items = laid_out(ITEMS, LINE, P("x"))

    def step():
        return wf.value_and_grad(routed_loss, argnums=(0, 1))(
            parameters,
            items,
            dispatch=lambda t: wf.all_to_all(t, "x", axis=0),
            combine=lambda t: wf.all_to_all(t, "x", axis=1),
        )

    found, log = log_of(step)
    close(found, expected, TOLERANCE)
    assert log.count("all_to_all") == 4  # there and back, forward and backward
    assert not log.count("all_gather")
    assert found[1][0]["up"].sharding.axes[0] == ("x",)


@pytest.mark.slow
def test_a_training_step_can_be_compiled_and_mapped_over_a_mesh() -> None:
    way = WAYS["data and tensor"]
    lay = {k: laid_out(a, GRID, way.parameters.get(k, P())) for k, a in PARAMETERS.items()}
    tokens, following = laid_out(TOKENS, GRID, P("dp")), laid_out(NEXT, GRID, P("dp"))
    slopes = wf.compile(wf.grad(transformer_loss))(lay, tokens, following)
    close(slopes, reference(sgd)["first"], TOLERANCE)
    each = wf.vmap(transformer_loss, in_axes=(None, 0, 0))
    dense = {k: wf.asarray(a) for k, a in PARAMETERS.items()}
    close(each(lay, tokens, following), each(dense, wf.asarray(TOKENS), wf.asarray(NEXT)))
