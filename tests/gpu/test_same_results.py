"""The same code on a GPU gives the results of the CPU: every op, and programs of every kind."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.gpu.comparison import agree
from weft.core.common.slots import OPS
from weft.ops.base import call
from weft.runtime import registry
from weft.runtime.cuda import driver
from weft.testing.samples import calls, operands

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(5, 4)).astype(np.float32)
LARGE = RNG.normal(size=(300, 200)).astype(np.float32)
PLACES = RNG.integers(0, 5, 7)
SHORT = ("softmax of a product", "einsum")  # which take long where a processor plays the shaders
INSTRUCTIONS = ("short_exp2", "narrow_exp")  # of float32, which a GPU has, with digits of its own
NARROW = {"float64": "float32", "complex128": "complex64", "int64": "int32"}


def every_example():
    return [
        pytest.param(op, example, id=f"{op}-{number}")
        for op in OPS.values()
        for number, example in enumerate(calls(op))
    ]


def on(kind, op, example, arrays):
    device = registry.client(kind).device
    params = {k: device if k == "device" else v for k, v in example.params.items()}
    made = call(op, tuple(wf.asarray(a, device=kind) for a in arrays), params)
    return made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize(("op", "example"), every_example())
def test_every_op_gives_the_results_of_the_cpu(op, example, device):
    given = operands(op, example, np.random.default_rng(5))
    narrow = [a.astype(NARROW.get(a.dtype.name, a.dtype)) for a in given]
    for arrays in [given, narrow] if device == "cuda" else [narrow]:
        found, expected = (on(kind, op, example, arrays) for kind in (device, "cpu"))
        assert {x.device.name for x in found} <= {f"{device}:0"}
        found, expected = ([x.host() for x in made] for made in (found, expected))
        own = device == "cuda" and driver.is_available() and op.name in INSTRUCTIONS
        if own and arrays[0].dtype == np.float32:
            assert np.allclose(found, expected, rtol=2.0**-15, atol=0)
        else:
            assert agree(found, expected, device)


def scanned(x):
    def body(carry, row):
        carry = wf.tanh(carry + row)
        return carry, carry * 2

    return wf.scan(body, wf.zeros_like(x[0]), x)


def assigned(x):
    y = x.copy()
    y[1] = 7.0
    y[2, 1:3] += 1.0
    y[y > 1.0] = 0.5
    return y


def picked(x):
    return wf.take(x, wf.tensor(PLACES, device=x.device), axis=0)


def attended(x):
    x = x[:, :16].reshape(2, 150, 2, 8).permute_dims((0, 2, 1, 3))
    return wf.scaled_dot_product_attention(x, x, x, is_causal=True)


def passed(x):
    x = x[:4] / 9
    same = wf.cond(wf.sum(x) > -100, lambda v: v, lambda v: -v, x * 2)
    a = wf.sin(x)
    b = a @ a
    c = b @ b
    return same + wf.exp(c @ b), wf.sum(c)


PROGRAMS = {
    "operands that branches hand on": (passed, ROWS),
    "scan": (scanned, ROWS),
    "gradient of scan": (wf.grad(lambda x: wf.sum(scanned(x)[1] ** 2)), ROWS),
    "reversed scan": (lambda x: wf.scan(lambda c, r: (c * r, c), x[0], x, reverse=True), ROWS),
    "odd rows of a scan": (lambda x: wf.scan(lambda c, r: (c + r, r), x[0, :3], x[:, :3]), ROWS),
    "while": (
        lambda x: wf.while_loop(lambda s: wf.sum(s) < 100.0, lambda s: s * 2 + 1, wf.abs(x)),
        ROWS,
    ),
    "cond": (lambda x: wf.cond(wf.sum(x) > 0, lambda v: v * 2, lambda v: -v, x), ROWS),
    "assignment": (assigned, ROWS),
    "take": (picked, ROWS),
    "gradient of take": (wf.grad(lambda x: wf.sum(picked(x) ** 2)), ROWS),
    "counts": (lambda x: wf.bincount(wf.tensor(PLACES, device=x.device)), ROWS),
    "softmax of a product": (lambda x: wf.softmax(wf.sin(x) @ x.T).sum(), LARGE),
    "layer norm": (wf.grad(lambda x: wf.mean(wf.layer_norm(x, (200,)) ** 3)), LARGE),
    "attention": (attended, LARGE),
    "vmap": (wf.vmap(lambda row: row / row.sum()), ROWS),
    "hessian": (wf.hessian(lambda x: wf.sum(x**3)), ROWS[0]),
    "jvp": (lambda x: wf.jvp(lambda v: wf.sin(v) * v, (x,), (x,)), ROWS),
    "checkpoint": (lambda x: wf.checkpoint(lambda v: wf.sin(v).sum())(x), ROWS),
    "svd": (lambda x: wf.linalg.svd(x)[1], ROWS),
    "sort": (lambda x: wf.sort(x * 2, axis=1) + 1, LARGE),
    "median": (lambda x: wf.median(x, axis=1), LARGE),
    "cumsum": (lambda x: wf.cumsum(x, axis=0), LARGE),
    "einsum": (lambda x: wf.einsum("ij,kj->ik", x, x), LARGE),
    "argmax": (lambda x: wf.argmax(x, axis=1), LARGE),
    "empty": (lambda x: x[:0].sum(axis=0) + x[:0].size, ROWS),
    "complex": (lambda x: wf.abs(x.astype("complex64") * 1j + x), ROWS),
    "bfloat16": (lambda x: (x.astype("bfloat16") @ x.astype("bfloat16").T) * 2, ROWS),
    "float8": (lambda x: x.astype("float8_e4m3fn").astype("float32"), ROWS),
    "draws": (lambda x: wf.random.normal(wf.random.key(3), (40, 500)) + x[0, 0], ROWS),
    "nothing": (lambda x: x, ROWS),
    "constant": (lambda x: wf.ones(3, device=x.device), ROWS),
}
VALUES = {  # whose shapes depend on values: these cannot be compiled
    "where": (lambda x: wf.where(x > 0), ROWS),
    "mask": (lambda x: x[x > 0], ROWS),
    "unique": (lambda x: wf.unique(wf.round(x)), ROWS),
}


def results(function, array, device):
    with wf.default_device(device):
        leaves = wf.tree_leaves(function(wf.tensor(array, device=device)))
        assert {leaf.device.kind for leaf in leaves} == {device}
        return [leaf.host() for leaf in leaves]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_the_results_of_the_cpu(name, compiled, device):
    function, array = PROGRAMS[name]
    array = array[:60] if device == "webgpu" and name in SHORT else array
    function = wf.compile(function) if compiled else function
    expected = results(function, array, "cpu")
    for _ in range(2):
        assert agree(results(function, array, device), expected, device)


@pytest.mark.parametrize("name", VALUES)
def test_shapes_may_depend_on_values(name, device):
    function, array = VALUES[name]
    assert agree(results(function, array, device), results(function, array, "cpu"), device)


def test_a_training_step_gives_the_results_of_the_cpu(device):
    def step(weights, x, y):
        def loss(w):
            hidden = wf.relu(x @ w["in"] + w["bias"])
            return wf.mean((hidden @ w["out"] - y) ** 2)

        value, slopes = wf.value_and_grad(loss)(weights)
        return value, wf.tree_map(lambda w, s: w - 0.1 * s, weights, slopes)

    rng = np.random.default_rng(1)
    shapes = {"in": (20, 30), "bias": (30,), "out": (30, 3)}
    weights = {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}
    x, y = (rng.normal(size=(64, n)).astype(np.float32) for n in (20, 3))
    made = []
    for kind in (device, "cpu"):
        run = wf.compile(step)
        w, a, b = wf.tree_map(lambda v, d=kind: wf.tensor(v, device=d), (weights, x, y))
        losses = []
        for _ in range(3):
            value, w = run(w, a, b)
            losses.append(value.host())
        made.append([*losses, *(leaf.host() for leaf in wf.tree_leaves(w))])
    assert agree(*made, device)
