"""Transforms as users meet them: mistakes, leaks, threads, exceptions, cost in nodes and bytes."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

import weft as wf
from weft.core.autograd.tape import TapeNode
from weft.core.common.handler import current
from weft.errors import (
    AxisError,
    ConversionError,
    DifferentiationError,
    DTypeError,
    LeakedTensorError,
    ShapeError,
    TreeError,
)


def square_sum(x):
    """The sum of squares."""
    return (x * x).sum()


TRANSFORMED = {
    "grad": lambda f, x: wf.grad(f)(x),
    "jvp": lambda f, x: wf.jvp(f, x, x),
    "linearize": lambda f, x: wf.linearize(f, x),
    "vmap": lambda f, x: wf.vmap(f)(wf.stack([x, x])),
    "jacrev": lambda f, x: wf.jacrev(f)(x),
    "jacfwd": lambda f, x: wf.jacfwd(f)(x),
    "hessian": lambda f, x: wf.hessian(f)(x),
    "scan": lambda f, x: wf.scan(lambda c, _: (c, f(x)), 0.0, length=2),
    "fori_loop": lambda f, x: wf.fori_loop(0, 2, lambda i, c: c + f(x), wf.tensor(0.0)),
    "cond": lambda f, x: wf.cond(True, f, lambda v: v.sum(), x),
    "checkpoint": lambda f, x: wf.checkpoint(f)(x),
    "trace": lambda f, x: wf.trace(f, x),
    "eval_shape": lambda f, x: wf.eval_shape(f, x),
    "debug": lambda f, x: wf.debug(f, sink=[])(x),
}
each_transform = pytest.mark.parametrize("transform", TRANSFORMED.values(), ids=TRANSFORMED)


@each_transform
def test_side_effects_of_python_happen_once(transform) -> None:
    count = []

    def f(x):
        count.append(1)
        return square_sum(x)

    transform(f, wf.ones(3))
    assert len(count) == 1


@each_transform
def test_an_exception_leaves_the_stack_of_handlers_clean(transform) -> None:
    def broken(x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        transform(broken, wf.ones(3))
    assert current() is None
    assert wf.grad(square_sum)(wf.ones(2)).tolist() == [2.0, 2.0]


def test_an_exception_in_a_rule_leaves_the_stack_of_handlers_clean() -> None:
    f = wf.custom_jvp(lambda x: x)
    f.defjvp(lambda p, t: 1 / 0)
    for transform in (wf.grad, lambda f: lambda x: wf.jvp(f, x, x)):
        with pytest.raises(ZeroDivisionError):
            transform(f)(1.0)
        assert current() is None


LEAKS = {
    "grad": lambda f, x: wf.grad(lambda x: f(x).sum())(x),
    "jvp": lambda f, x: wf.jvp(f, x, x),
    "vmap": lambda f, x: wf.vmap(f)(x),
    "scan": lambda f, x: wf.scan(lambda c, v: (f(c), v), 0.0, x),
    "cond": lambda f, x: wf.cond(True, f, f, x),
    "trace": lambda f, x: wf.trace(f, x),
    "checkpoint": lambda f, x: wf.checkpoint(f)(x),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_tensor_that_escapes_is_refused_by_the_name_of_its_transform(name) -> None:
    kept = []

    def f(x):
        kept.append(x)
        return x * 2

    LEAKS[name](f, wf.ones(3))
    uses = (
        lambda x: x + 1,
        lambda x: wf.grad(lambda y: (y * x).sum())(wf.ones(3)),
        lambda x: wf.vmap(lambda y: y * x)(wf.ones(3)),
    )
    for use in uses:
        with pytest.raises(LeakedTensorError, match=f"inside a {name} that has ended"):
            use(kept[0])


@pytest.mark.parametrize("name", ["vmap", "scan", "trace"])
def test_reading_a_tensor_that_escaped_names_its_transform(name) -> None:
    kept = []
    LEAKS[name](lambda x: kept.append(x) or x, wf.ones(3))
    with pytest.raises(LeakedTensorError, match=rf"^{name}: a tensor made inside was read after"):
        kept[0].numpy()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: wf.grad(lambda x: x.item())(2.0),
            DifferentiationError,
            r"a float, which[\s\S]*item",
        ),
        (lambda: wf.grad(lambda x: x.numpy())(2.0), DifferentiationError, "a ndarray, which"),
        (lambda: wf.grad(lambda x: None)(2.0), DifferentiationError, "got NoneType"),
        (lambda: wf.grad(lambda x: [x])(2.0), DifferentiationError, "got list"),
        (lambda: wf.grad(lambda x: "a")(2.0), ConversionError, "returned str, not tensors"),
        (
            lambda: wf.jvp(lambda x: "a", 2.0, 1.0),
            ConversionError,
            "jvp: the function returned str",
        ),
        (lambda: wf.vmap(lambda x: "a")(wf.ones(2)), ConversionError, "^vmap: .*str"),
        (lambda: wf.grad(wf.argmax)(wf.ones(2)), DifferentiationError, r"got int64\[\]"),
        (
            lambda: wf.jacrev(wf.argmax)(wf.ones(2)),
            DifferentiationError,
            r"int64\[\][\s\S]*has_aux",
        ),
        (lambda: wf.jacfwd(wf.argmax)(wf.ones(2)), DifferentiationError, r"int64\[\],"),
        (
            lambda: wf.grad(lambda p: p["a"].sum())({"a": wf.ones(2), "n": 3}),
            DifferentiationError,
            r"grad: argument leaf \[0\]\['n'\]: .*int64\[\]",
        ),
        (
            lambda: wf.grad(lambda x, p: p["a"].sum(), 1)(1.0, {"a": wf.ones(2), "n": "relu"}),
            ConversionError,
            r"grad: argument leaf \[1\]\['n'\]: cannot make a tensor of str 'relu'",
        ),
        (
            lambda: wf.jvp(lambda p: p["a"], ({"a": 1.0, "n": 3},), ({"a": 1.0, "n": 0},)),
            DifferentiationError,
            r"jvp: argument leaf \[0\]\['n'\]",
        ),
        (lambda: wf.grad(lambda x, y: x * y, (0, 0))(1.0, 2.0), DifferentiationError, "twice"),
        (lambda: wf.grad(lambda x: x, 1)(1.0), DifferentiationError, "argnums 1 for 1 positional"),
        (lambda: wf.jacfwd(wf.abs)(wf.tensor([1j])), DifferentiationError, "holomorphic"),
        (lambda: wf.jacrev(wf.conj)(wf.tensor([1j])), DifferentiationError, "holomorphic"),
        (lambda: wf.cond(True, wf.sin, lambda x: (x, x), 1.0), TreeError, "differ in structure"),
        (lambda: wf.cond(True, wf.sin, wf.sum, wf.ones(3)), ShapeError, r"\[\].*\[3\]"),
        (lambda: wf.scan(lambda c, _: (wf.stack([c, c]), c), 0.0, length=2), ShapeError, "carry"),
        (
            lambda: wf.scan(lambda c, _: (c.astype(wf.float64), c), wf.tensor(0.0), length=2),
            DTypeError,
            "carry: dtypes differ",
        ),
        (lambda: wf.scan(lambda c, _: ((c, c), c), 0.0, length=2), TreeError, "carry of structure"),
        (
            lambda: wf.vmap(wf.vmap(lambda x: x, in_axes=None))(wf.ones((2, 3))),
            AxisError,
            "no argument is mapped",
        ),
    ],
)
def test_mistakes_are_refused_at_the_call(call, error, text) -> None:
    with pytest.raises(error, match=text):
        call()
    assert current() is None


def test_holomorphic_jacobians() -> None:
    z = wf.tensor([1 + 2j, 3 - 1j])
    for jacobian in (wf.jacfwd, wf.jacrev):
        found = jacobian(lambda z: z * z, holomorphic=True)(z)
        np.testing.assert_allclose(found.numpy(), np.diag(2 * z.numpy()))
    real = wf.jacrev(wf.abs)(wf.tensor([3 + 4j]))
    np.testing.assert_allclose(real.numpy(), [[0.6 - 0.8j]], rtol=1e-6)


@pytest.mark.parametrize(
    "name",
    "grad value_and_grad vmap jacfwd jacrev hessian checkpoint debug custom_vjp custom_jvp".split(),
)
def test_transformed_functions_keep_their_name_and_documentation(name) -> None:
    made = getattr(wf, name)(square_sum)
    assert made.__name__ == "square_sum"
    assert made.__doc__ == "The sum of squares."


def test_trees_none_and_empty_results_pass_through() -> None:
    x = wf.ones(3)
    f = lambda x: {"a": (x * 2, None, ()), "b": []}  # noqa: E731
    value, pushed = wf.jvp(f, x, x)
    assert value["a"][1] is None
    assert pushed["a"][0].tolist() == [2.0] * 3
    assert pushed["a"][1:] == (None, ())
    value, pullback = wf.vjp(f, x)
    assert pullback({"a": (x, None, ()), "b": []})[0].tolist() == [2.0] * 3
    mapped = wf.vmap(f)(x)
    assert mapped["a"][0].tolist() == [2.0] * 3
    assert mapped["b"] == []
    assert wf.vmap(lambda x: None)(x) is None
    assert wf.vjp(lambda x: (), x)[1](())[0].tolist() == [0.0] * 3
    assert wf.grad(lambda p: p["a"].sum())({"a": x, "b": None, "c": ()})["b"] is None


def test_arguments_may_be_dicts_and_keywords() -> None:
    f = lambda p, q, *, r: (p["a"] * q["b"] * r).sum()  # noqa: E731
    p, q = {"a": wf.ones(2)}, {"b": wf.full(2, 3.0)}
    by_p, by_q = wf.grad(f, argnums=(0, -1))(p, q, r=wf.full(2, 5.0))
    assert by_p["a"].tolist() == [15.0, 15.0]
    assert by_q["b"].tolist() == [5.0, 5.0]


EMPTY = {
    "elementwise": lambda x: wf.sin(x) * 2,
    "reduction": lambda x: wf.max(x) + x.sum(),
    "grad": wf.grad(square_sum),
    "sort": wf.sort,
    "matmul": lambda x: x[:, None] @ x[None, :],
    "index": lambda x: x[wf.tensor([0, 0])],
    "scan": lambda x: wf.scan(lambda c, v: (c + v, c), 0.0, x)[1],
    "cond": lambda x: wf.cond(x.sum() > 0, wf.sin, wf.cos, x),
    "while_loop": lambda x: wf.while_loop(lambda c: c.sum() < 3, lambda c: c + 1, x),
    "checkpoint": wf.checkpoint(wf.sin),
    "linalg": lambda x: wf.linalg.inv(x[:, None] * x + wf.eye(3, dtype=x.dtype)),
    "fft": wf.fft.fft,
    "jacobian": wf.jacrev(wf.sin),
    "nested": lambda x: wf.vmap(lambda v: v * x)(x),
}


@pytest.mark.parametrize("f", EMPTY.values(), ids=EMPTY)
def test_a_map_over_an_axis_of_size_zero_knows_the_shape(f) -> None:
    one, none = (wf.vmap(f)(wf.ones((n, 3), dtype=wf.float64) + wf.arange(3)) for n in (1, 0))
    assert none.shape == (0, *one.shape[1:])
    assert none.dtype == one.dtype
    by = wf.grad(lambda x: wf.sum(wf.real(wf.vmap(wf.sin)(x))))(wf.ones((0, 3)))
    assert by.shape == (0, 3)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1_000, 10_000])
def test_a_gradient_costs_nodes_and_bytes_in_proportion_to_its_ops(count) -> None:
    def chain(x):
        for _ in range(count):
            x = wf.sin(x)
        return x.sum()

    gc.collect()
    before = sum(type(o) is TapeNode for o in gc.get_objects())
    value, pullback = wf.vjp(chain, wf.ones(2))
    nodes = sum(type(o) is TapeNode for o in gc.get_objects()) - before
    assert nodes == count + 2  # the leaf, the chain, the sum
    performed = []
    wf.debug(pullback, sink=performed)(wf.tensor(1.0))
    assert len(performed) <= 2 * count + 8
    del value, pullback
    assert sum(type(o) is TapeNode for o in gc.get_objects()) <= before


PEAKS = """
import weft as wf

def layer(x):
    for _ in range(8):
        x = wf.sin(x)
    return x

def deep(layer):
    def loss(x):
        for _ in range(6):
            x = layer(x)
        return x.sum()
    return loss

x = wf.realize(wf.ones(1 << 16, dtype=wf.float64))
allocator = wf.client("cpu").allocator
for f in (wf.checkpoint(layer), layer):  # the peak never falls, so the lighter one goes first
    wf.realize(wf.grad(deep(f))(x))
    print(allocator.stats().peak_bytes / x.nbytes)
"""


@pytest.mark.slow
def test_checkpoints_lower_the_peak_of_memory() -> None:
    done = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True)
    light, plain = map(float, done.stdout.split())
    assert plain >= 48  # a result for each of the ops
    assert light < plain / 2


def test_threads_transform_at_the_same_time() -> None:
    f = lambda x: wf.vmap(lambda v: wf.sin(v) * v)(x).sum()  # noqa: E731
    x = wf.arange(5.0)
    expected = wf.grad(f)(x).numpy()
    found = {}

    def work(scale: int) -> None:
        for _ in range(10):
            found[scale] = wf.grad(lambda x: f(x) * scale)(x).numpy()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for scale in range(6):
        np.testing.assert_allclose(found[scale], expected * scale, rtol=1e-5)


def test_generators_and_coroutines_may_be_transformed() -> None:
    def multiples(x):
        for i in range(3):
            yield x * i

    assert wf.grad(lambda x: sum(multiples(x), start=wf.tensor(0.0)))(2.0).item() == 3.0

    async def derivative(scale):
        await asyncio.sleep(0)
        found = wf.grad(lambda x: x * x * scale)(3.0)
        await asyncio.sleep(0)
        return found.item()

    async def every():
        return await asyncio.gather(*map(derivative, range(4)))

    assert asyncio.run(every()) == [0.0, 6.0, 12.0, 18.0]
