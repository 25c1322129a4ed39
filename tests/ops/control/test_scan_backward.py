from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from weft.errors import MissingRuleError
from weft.ops.control.scan_backward import ROOM

STEPS, BATCH, SIZE = 6, 3, 8


def arr(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def scans(function, *args):
    """The scans of a function's gradient, and the calls beside them."""
    traced = wf.trace(function, *args)
    found = [node for node in traced.nodes if node.name == "scan"]
    return found, Counter(node.name for node in traced.nodes)


def inside(node):
    return Counter(call.name for call in node.params["body"].nodes)


def stacked_elements(node):
    """Elements that a step of a scan hands out."""
    return sum(kind.size for kind in node.types[node.params["carries"] :]) // STEPS


def network(w, h, xs):
    return wf.scan(lambda h, x: (wf.tanh(h @ w + x), None), h, xs)[0].sum()


def sigmoid(xp, x):
    return 1.0 / (1.0 + xp.exp(-x))


def memory_step(xp, w, u, b):
    def step(carry, x):
        hidden, memory = carry
        gates = x @ u + hidden @ w + b
        i, f, g, o = (gates[..., k * SIZE : (k + 1) * SIZE] for k in range(4))
        memory = sigmoid(xp, f) * memory + sigmoid(xp, i) * xp.tanh(g)
        hidden = sigmoid(xp, o) * xp.tanh(memory)
        return (hidden, memory), hidden

    return step


def long_memory(xp, scan, w, u, b, h, xs):
    (hidden, memory), ys = scan(memory_step(xp, w, u, b), (h, h * 0.5), xs)
    return (ys**2).sum() + memory.sum() + hidden[0].sum()


def layers(xp, scan, w, u, b, h, xs):
    """Two states, a weight used twice, a sum over the batch, steps from the last to the first."""

    def step(carry, x):
        one, two = carry
        one = xp.tanh(one @ w + x @ u + b[:SIZE])
        two = xp.tanh(two @ w.T + one @ w)
        return (one, two), (two @ u.T, (two * b[SIZE : 2 * SIZE]).sum())

    (one, two), (ys, sums) = scan(step, (h, h), xs, reverse=True)
    return (ys**2).sum() + (sums * sums).sum() + (one * two).sum()


def nested(xp, scan, w, u, b, h, xs):
    def step(h, x):
        h, inner = scan(
            lambda h, row: (xp.tanh(h @ w + row @ u), h * b[:SIZE]), h, xp.stack([x, x])
        )
        return h + h @ w, inner.sum(0)

    h, ys = scan(step, h, xs)
    return (ys**2).sum() + h.sum()


def passing(xp, scan, w, u, b, h, xs):
    """States and inputs that are handed on as they are; a counter."""

    def step(carry, x):
        number, one, two = carry
        return (number + 1, two, one @ w + number * b[:SIZE]), (x, one, two[0] * b[0])

    (_, one, two), (a, c, d) = scan(step, (0, h, h * 2.0), xs)
    return (one * two).sum() + (a * a).sum() + (c**3).sum() + (d * u[0, 0]).sum()


def operands(cell):
    gates = 4 if cell is long_memory else 1
    shapes = [(SIZE, gates * SIZE), (5, gates * SIZE), (4 * SIZE,)]
    shapes += [(BATCH, SIZE), (STEPS, BATCH, 5)]
    return [arr(*shape, seed=i) for i, shape in enumerate(shapes)]


CELLS = [long_memory, layers, nested, passing]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    ("argnums", "steps"), [((0, 1, 2, 3, 4), STEPS), ((0,), STEPS), ((4,), 1), ((0, 3), 0)]
)
def test_gradients_are_those_of_jax(cell, argnums, steps) -> None:
    *given, xs = operands(cell)
    given.append(xs[:steps])
    with jax.enable_x64(True):
        theirs = jax.jit(jax.grad(lambda *a: cell(jnp, jax.lax.scan, *a), argnums))(*given)
    ours = wf.grad(lambda *a: cell(wf, wf.scan, *a), argnums)
    tensors = [wf.asarray(a) for a in given]
    for found in (ours(*tensors), wf.compile(ours)(*tensors)):
        for a, b in zip(found, theirs, strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_second_derivatives_and_batches_are_those_of_jax(cell) -> None:
    given = operands(cell)
    stacked = [np.stack([given[0], given[0] * 0.5]), *given[1:]]

    def second(library, scan, grad, xp):
        def norm(*args):
            return sum((g * g).sum() for g in grad(lambda *a: cell(xp, scan, *a), (0, 3))(*args))

        return library.vmap(grad(norm, (0, 2, 4)), in_axes=(0, None, None, None, None))

    with jax.enable_x64(True):
        theirs = jax.jit(second(jax, jax.lax.scan, jax.grad, jnp))(*stacked)
    ours = second(wf, wf.scan, wf.grad, wf)(*map(wf.asarray, stacked))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-8, atol=1e-8)


def test_what_a_step_handed_on_is_not_computed_again() -> None:
    (forward, backward), _ = scans(wf.grad(network), arr(SIZE, SIZE), arr(SIZE), arr(STEPS, SIZE))
    assert inside(forward)["matmul"] == inside(forward)["tanh"] == 1
    assert inside(backward)["matmul"] == 1  # the cotangent by the weights
    assert inside(backward)["tanh"] == 0
    assert stacked_elements(forward) == SIZE  # the state before each step, and nothing else


def test_results_that_were_stacked_anyway_are_read_from_there() -> None:
    def loss(w, h, xs):
        def step(h, x):
            h = wf.tanh(h @ w + x)
            return h, h

        return wf.scan(step, h, xs)[1].sum()

    (forward, backward), _ = scans(wf.grad(loss), arr(SIZE, SIZE), arr(SIZE), arr(STEPS, SIZE))
    assert inside(backward)["tanh"] == 0
    assert backward.params["carries"] == 1  # no state is passed along for it
    assert stacked_elements(forward) == 2 * SIZE


def test_the_gradient_of_a_weight_is_one_product_after_the_loop() -> None:
    (_, backward), beside = scans(
        wf.grad(network), arr(SIZE, SIZE), arr(BATCH, SIZE), arr(STEPS, BATCH, SIZE)
    )
    assert (SIZE, SIZE) not in [kind.shape for kind in backward.types]
    assert beside["matmul"] == 1


def test_products_for_the_inputs_of_steps_are_done_for_all_at_once() -> None:
    def loss(u, h, xs):
        return wf.scan(lambda h, x: (wf.tanh(h + x @ u), None), h, xs)[0].sum()

    (_, backward), beside = scans(
        wf.grad(loss, (0, 2)), arr(5, SIZE), arr(BATCH, SIZE), arr(STEPS, BATCH, 5)
    )
    assert inside(backward)["matmul"] == 0
    assert beside["matmul"] == 2
    assert stacked_elements(backward) == BATCH * SIZE  # one stack serves both products


def test_sums_much_smaller_than_their_factors_stay_in_the_loop() -> None:
    wide = 64

    def loss(w, h, xs):
        return wf.scan(lambda h, x: (wf.sin(h @ w) + x, None), h, xs)[0].sum()

    (_, backward), beside = scans(wf.grad(loss), arr(2, 2), arr(wide, 2), arr(STEPS, wide, 2))
    assert (2, 2) in [kind.shape for kind in backward.types]
    assert beside["matmul"] == 0
    assert stacked_elements(backward) == 0


def test_small_results_of_long_calls_are_saved() -> None:
    w, u, b, h, xs = operands(long_memory)
    (forward, backward), _ = scans(wf.grad(lambda *a: long_memory(wf, wf.scan, *a)), w, u, b, h, xs)
    assert inside(backward)["matmul"] == 1  # the cotangent by the weights
    assert inside(backward)["exp"] == 0
    assert inside(backward)["tanh"] == 1  # of the next state, which is there
    asked, states, gates = SIZE, 2 * SIZE, 4 * SIZE
    assert stacked_elements(forward) == BATCH * (asked + states + gates)


@pytest.mark.parametrize(("times", "again"), [(ROOM, 0), (2 * ROOM, 1)])
def test_only_large_results_are_computed_again(times, again) -> None:
    size = 32

    def loss(w, v, h):
        return wf.scan(lambda h, _: (wf.tanh(h @ w) @ v, None), h, None, length=STEPS)[0].sum()

    wide = times * size
    (forward, backward), _ = scans(wf.grad(loss), arr(size, wide), arr(wide, size), arr(size))
    assert stacked_elements(forward) == size + (wide if again == 0 else 0)
    assert inside(backward)["tanh"] == again


def test_checkpoint_saves_states_alone() -> None:
    w, u, b, h, xs = (wf.asarray(a) for a in operands(long_memory))

    def loss(w):
        step = wf.checkpoint(memory_step(wf, w, u, b))
        (hidden, memory), _ = wf.scan(step, (h, h * 0.5), xs)
        return hidden.sum() + memory.sum()

    (forward, _), _ = scans(wf.grad(loss), w)
    assert stacked_elements(forward) == 2 * BATCH * SIZE + BATCH * SIZE  # and what it asks for


def test_states_that_no_derivative_reads_are_not_saved() -> None:
    def loss(k, xs):
        return wf.scan(lambda total, x: (total + k * x, None), xs[0], xs)[0].sum()

    (forward, backward), _ = scans(wf.value_and_grad(loss), arr(SIZE), arr(STEPS, SIZE))
    assert stacked_elements(forward) == 0
    assert backward.params["carries"] == 2


def test_a_loop_without_a_derivative_runs_until_one_is_asked_for() -> None:
    def step(c, x):
        return wf.while_loop(lambda v: v.sum() < 3, lambda v: v * 2 + 1, c + x), None

    value, pullback = wf.vjp(lambda xs: wf.scan(step, wf.zeros(()), xs)[0], wf.ones(3))
    assert value.item() == 5.0
    with pytest.raises(MissingRuleError, match="while_loop: no vjp rule"):
        pullback(wf.ones(()))


def test_what_steps_read_of_a_large_state_is_saved_instead_of_it() -> None:
    table, xs = arr(4096), arr(STEPS)

    def loss(xp, scan):
        def step(c, turn):
            i, v = turn
            return c.at[i + 1].set(xp.sin(c[i]) * v), None

        return lambda c, xs: (scan(step, c, (xp.arange(STEPS), xs))[0] ** 2).sum()

    gradient = wf.grad(loss(wf, wf.scan), argnums=(0, 1))
    (forward, _), _ = scans(gradient, table, xs)
    assert stacked_elements(forward) == 1
    with jax.enable_x64(True):
        expected = jax.grad(loss(jnp, jax.lax.scan), argnums=(0, 1))(table, xs)
    for function in (gradient, wf.compile(gradient)):
        for found, other in zip(function(table, xs), expected, strict=True):
            np.testing.assert_allclose(found.numpy(), other, rtol=1e-12, atol=1e-12)
