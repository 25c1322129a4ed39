"""Reverse mode: grad, value_and_grad, vjp and the imperative front end."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

import weft as wf
from weft.core.autograd.tape import Tape
from weft.core.common.handler import current
from weft.core.common.slots import OPS
from weft.errors import (
    ArgumentError,
    DifferentiationError,
    LeakedTensorError,
    MissingRuleError,
    ShapeError,
    TreeError,
)


@pytest.mark.promise("S1.7")
def test_grad_seeds_one_and_walks_the_tape_back() -> None:
    x = wf.tensor([1.0, 2.0, 3.0])
    np.testing.assert_allclose(wf.grad(lambda x: (x * x).sum())(x).numpy(), [2, 4, 6])


@pytest.mark.promise("S1.8")
def test_grad_of_a_result_that_is_not_scalar_is_refused_with_a_hint() -> None:
    with pytest.raises(DifferentiationError, match=r"scalar result, got float32\[2\][\s\S]*hint"):
        wf.grad(lambda x: x * 2)(wf.tensor([1.0, 2.0]))


@pytest.mark.promise("S1.9")
def test_each_vjp_rule_can_be_called_alone() -> None:
    a, b = wf.ones((2, 3)), wf.ones((3, 4))
    left, right = OPS["matmul"].vjp((a, b), None, wf.ones((2, 4)))
    assert left.shape == (2, 3)
    assert right.shape == (3, 4)


def test_an_op_without_a_rule_raises_and_never_gives_zeros() -> None:
    def loss(x):
        return wf.while_loop(lambda c: c < 3.0, lambda c: c * 2.0, x)

    with pytest.raises(MissingRuleError, match="while_loop"):
        wf.grad(loss)(1.0)


def test_unused_inputs_have_zero_gradients() -> None:
    gx, gy = wf.grad(lambda x, y: (x * 2).sum(), argnums=(0, 1))(wf.ones(3), wf.ones(2))
    assert gx.tolist() == [2.0, 2.0, 2.0]
    assert gy.tolist() == [0.0, 0.0]


@pytest.mark.promise("S1.10")
def test_third_derivative_of_the_fourth_power() -> None:
    f = wf.grad(wf.grad(wf.grad(lambda x: x**4)))
    assert f(2.0).item() == pytest.approx(48.0)


def test_argnums_argnames_and_aux() -> None:
    def f(x, *, scale):
        return (x * scale).sum(), {"twice": x * 2}

    gradient, aux = wf.grad(f, argnums=(), argnames="scale", has_aux=True)(
        wf.ones(3), scale=wf.tensor(2.0)
    )
    assert gradient["scale"].item() == 3.0
    assert aux["twice"].tolist() == [2.0, 2.0, 2.0]
    (value, _), grads = wf.value_and_grad(f, has_aux=True)(wf.ones(3), scale=wf.tensor(2.0))
    assert value.item() == 6.0
    assert grads.tolist() == [2.0, 2.0, 2.0]


def test_trees_of_mixed_dtypes_differentiate() -> None:
    params = {
        "w": wf.ones((2, 2), dtype=wf.float64),
        "b": [wf.ones(2), wf.ones(2, dtype=wf.bfloat16)],
    }
    grads = wf.grad(lambda p: p["w"].sum() + (p["b"][0] * 3).sum() + p["b"][1].sum())(params)
    assert grads["w"].dtype == wf.float64
    assert grads["b"][0].tolist() == [3.0, 3.0]
    assert grads["b"][1].dtype == wf.bfloat16


def test_integers_are_refused_with_a_hint() -> None:
    with pytest.raises(DifferentiationError, match=r"int64\[\][\s\S]*cast to a float"):
        wf.grad(lambda x: x * 1.0)(3)


def test_holomorphic_functions() -> None:
    z = wf.tensor(1.0 + 2.0j)
    assert wf.grad(lambda z: z * z, holomorphic=True)(z).item() == pytest.approx(2 + 4j)
    with pytest.raises(DifferentiationError, match="holomorphic=True"):
        wf.grad(lambda z: z * z)(z)


def test_a_pullback_may_be_called_many_times() -> None:
    _, pullback = wf.vjp(lambda x: x * x, wf.tensor([1.0, 2.0]))
    first = pullback(wf.tensor([1.0, 0.0]))[0].tolist()
    second = pullback(wf.tensor([0.0, 1.0]))[0].tolist()
    assert (first, second) == ([2.0, 0.0], [0.0, 4.0])


def test_bad_cotangents_are_refused() -> None:
    _, pullback = wf.vjp(lambda x: x * x, wf.ones(2))
    with pytest.raises(ShapeError, match=r"\(3,\)"):
        pullback(wf.ones(3))
    with pytest.raises(TreeError, match="structure"):
        pullback((wf.ones(2), wf.ones(2)))


@pytest.mark.promise("S1.18")
def test_values_can_be_read_inside_grad() -> None:
    def f(x):
        return x * 2 if x > 0 else x * 3

    assert wf.grad(f)(1.0).item() == 2.0
    assert wf.grad(f)(-1.0).item() == 3.0


@pytest.mark.promise("S1.19")
def test_python_control_flow_on_values_works_inside_grad_and_jvp() -> None:
    def f(x):
        while x.item() < 100:
            x = x * x
        match int(x.item()) % 2:
            case 0:
                return x
            case _:
                return -x

    assert wf.grad(f)(2.0).item() == pytest.approx(8 * 2.0**7)
    assert wf.jvp(f, 2.0, 1.0)[1].item() == pytest.approx(8 * 2.0**7)


@pytest.mark.promise("S1.20")
def test_side_effects_happen_once() -> None:
    seen = []

    def f(x):
        seen.append(1)
        return x * x

    wf.grad(f)(2.0)
    wf.jvp(f, 2.0, 1.0)
    wf.vmap(f)(wf.ones(5))
    assert len(seen) == 3


def test_a_leaked_tensor_is_refused_by_name() -> None:
    kept = []
    wf.grad(lambda x: kept.append(x) or x * 2)(1.0)
    with pytest.raises(LeakedTensorError, match="made inside a grad that has ended"):
        kept[0] + 1


@pytest.mark.slow
def test_ten_thousand_ops_differentiate_without_recursion() -> None:
    def f(x):
        for _ in range(10_000):
            x = x + 0.001 * x
        return x

    expected = 1.001**10_000
    assert wf.grad(f)(wf.tensor(1.0, dtype=wf.float64)).item() == pytest.approx(expected, rel=1e-9)


def test_equal_values_never_share_a_gradient() -> None:
    def f(x):
        a, b = x * 1, x * 1
        return (a * 2 + b * 3).sum()

    assert wf.grad(f)(wf.ones(2)).tolist() == [5.0, 5.0]


def test_stop_gradient_and_no_grad_make_constants() -> None:
    x = wf.tensor([1.0, 2.0])
    assert wf.grad(lambda x: (wf.stop_gradient(x) * x).sum())(x).tolist() == [1.0, 2.0]

    def f(x):
        with wf.no_grad():
            y = x * x
        return (x * y).sum()

    assert wf.grad(f)(x).tolist() == [1.0, 4.0]
    assert wf.jvp(f, x, wf.ones(2))[1].item() == 5.0


def test_what_no_grad_gives_may_be_used_again_anywhere() -> None:
    constant = wf.no_grad()

    @constant
    def doubled(x: wf.Tensor) -> wf.Tensor:
        with constant:
            return x * 2

    def f(x: wf.Tensor) -> wf.Tensor:
        return wf.sum(doubled(x) * x)

    x = wf.ones(2)

    def work(times: int) -> None:
        for _ in range(times):
            assert doubled(x).tolist() == [2.0, 2.0] and current() is None

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(work, [100] * 3)) == [None] * 3
    assert wf.grad(f)(x).tolist() == wf.compile(wf.grad(f))(x).tolist() == [2.0, 2.0]
    assert wf.vmap(f)(wf.ones((3, 2))).tolist() == [4.0] * 3


def test_no_grad_around_what_runs_later_is_refused() -> None:
    with pytest.raises(ArgumentError, match="batches does not run when it is called"):

        @wf.no_grad()
        def batches() -> Iterator[int]:
            yield 1


@pytest.mark.promise("S4.34")
def test_backward_gives_gradients_by_tensor_id() -> None:
    w = wf.requires_grad(wf.tensor([1.0, 2.0]))
    store = wf.backward((w * w).sum())
    assert store[w.id].tolist() == [2.0, 4.0]
    assert store[w].tolist() == [2.0, 4.0]


@pytest.mark.promise("S4.35")
def test_gradients_add_up_in_grad_until_cleared() -> None:
    w = wf.tensor([1.0, 2.0])
    w.requires_grad = True
    (w * 2).sum().backward()
    (w * 3).sum().backward()
    assert w.grad.tolist() == [5.0, 5.0]
    w.grad = None
    assert w.grad is None


@pytest.mark.promise("S4.36")
def test_hooks_see_and_replace_gradients() -> None:
    w = wf.requires_grad(wf.ones(2))
    remove = w.register_hook(lambda g: g * 10)
    w.sum().backward()
    assert w.grad.tolist() == [10.0, 10.0]
    remove()
    w.grad = None
    w.sum().backward()
    assert w.grad.tolist() == [1.0, 1.0]


@pytest.mark.promise("S4.37")
def test_gradients_are_ordinary_tensors() -> None:
    w = wf.requires_grad(wf.ones(2))
    grad = wf.backward((w * w).sum())[w]
    assert type(grad) is wf.Tensor
    assert (grad + 1).tolist() == [3.0, 3.0]
    assert not grad.requires_grad


def test_imperative_training_keeps_a_parameter_a_leaf() -> None:
    w = wf.requires_grad(wf.tensor(4.0))
    for _ in range(50):
        loss = (w - 1) ** 2
        w.grad = None
        loss.backward()
        with wf.no_grad():
            w -= 0.1 * w.grad
    assert w.requires_grad
    assert w.item() == pytest.approx(1.0, abs=1e-3)


def test_backward_without_leaves_is_refused() -> None:
    with pytest.raises(DifferentiationError, match="requires a gradient"):
        wf.backward(wf.tensor(1.0))


def test_a_tape_is_freed_with_its_results() -> None:
    gc.collect()
    before = sum(type(o) is Tape for o in gc.get_objects())
    wf.grad(lambda x: (x * x).sum())(wf.ones(3))
    gc.collect()
    assert sum(type(o) is Tape for o in gc.get_objects()) <= before


def test_checkpoint_keeps_only_the_arguments() -> None:
    def layer(x):
        for _ in range(20):
            x = wf.sin(x)
        return x

    def saved_bytes(f):
        _, pullback = wf.vjp(f, wf.ones(1000, dtype=wf.float64))
        nodes, seen, total = [c.cell_contents for c in pullback.__closure__], set(), 0
        roots = next(c for c in nodes if isinstance(c, list) and c and isinstance(c[0], tuple))
        stack = [node for node, _ in roots]
        while stack:
            node = stack.pop()
            if id(node) not in seen:
                seen.add(id(node))
                total += sum(x.nbytes for x in node.outs)
                stack += [p[0] for p in node.parents if p is not None]
        return total

    assert saved_bytes(wf.checkpoint(layer)) * 8 < saved_bytes(layer)
    x = wf.ones(3)
    plain, remat = (wf.grad(lambda x, f=f: f(x).sum())(x) for f in (layer, wf.checkpoint(layer)))
    np.testing.assert_array_equal(plain.numpy(), remat.numpy())


@pytest.mark.slow
def test_slopes_of_rows_are_added_where_they_lie():
    x = np.random.default_rng(0).normal(size=(32, 128))

    def loss(xp, x):
        h = xp.zeros(x.shape[1], dtype=x.dtype)
        for row in range(32):
            h = xp.tanh(h * 0.5 + x[row]) * x[31 - row, ::-1]
        return h.sum() + (x * x).sum()

    gradient = wf.grad(lambda x: loss(wf, x))
    names = [node.name for node in wf.trace(gradient, x).nodes]
    assert names.count("pad") <= 1, "a whole tensor is added for every row"
    with jax.enable_x64(True):
        expected = jax.grad(lambda x: loss(jax.numpy, x))(x)
    for function in (gradient, wf.compile(gradient)):
        np.testing.assert_allclose(function(x).numpy(), expected, rtol=1e-12, atol=1e-12)


def test_each_gradient_may_be_assigned_to_alone():
    x, y, ct = wf.ones(2), wf.ones(2), wf.ones(2)
    for gradient in (found := wf.grad(lambda x, y: wf.sum(x + y), argnums=(0, 1))(x, y)):
        gradient *= 0.5
    assert [g.tolist() for g in found] == [[0.5, 0.5], [0.5, 0.5]]
    pullback = wf.vjp(lambda x, y: x + y, x, y)[1]
    first, second = pullback(ct)
    first += 1
    assert second.tolist() == ct.tolist() == [1, 1]


def test_arguments_that_are_not_differentiated_may_be_assigned_to():
    def f(w, y, *, z):
        y[0] = w * 2
        z *= 3
        return (w * y).sum() + z.sum()

    y, z = wf.tensor([1.0, 5.0]), wf.tensor([1.0])
    for gradient in (wf.grad(f), wf.compile(wf.grad(f))):
        assert gradient(3.0, y, z=z).item() == 17  # of 2w² + 5w
        assert (y.tolist(), z.tolist()) == ([1, 5], [1])
