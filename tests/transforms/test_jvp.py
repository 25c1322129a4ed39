"""Forward mode: jvp, linearize, Jacobians and Hessians in every order of modes."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.errors import DifferentiationError, DTypeError, ShapeError, TreeError


@pytest.mark.promise("S1.11")
def test_jvp_gives_value_and_directional_derivative_in_one_pass() -> None:
    calls = []

    def f(x):
        calls.append(1)
        return wf.sin(x)

    value, tangent = wf.jvp(f, (wf.tensor([0.0, 1.0]),), (wf.tensor([1.0, 2.0]),))
    np.testing.assert_allclose(value.numpy(), np.sin([0, 1]), rtol=1e-6)
    np.testing.assert_allclose(tangent.numpy(), np.cos([0, 1]) * [1, 2], rtol=1e-6)
    assert len(calls) == 1


def test_a_bare_tensor_is_a_one_tuple() -> None:
    assert wf.jvp(lambda x: x * 3, wf.tensor(2.0), wf.tensor(1.0))[1].item() == 3.0


def test_perturbations_are_not_confused() -> None:
    inner = lambda x: wf.jvp(lambda y: x, (0.0,), (1.0,))[1]  # noqa: E731
    assert wf.jvp(lambda x: x * inner(x), (3.0,), (1.0,))[1].item() == 0.0
    nested = wf.grad(lambda x: x * wf.grad(lambda y: x + y)(1.0))
    assert nested(5.0).item() == 1.0


def test_closures_over_traced_values_are_differentiated() -> None:
    def f(x):
        g = lambda y: x * y * y  # noqa: E731
        return wf.grad(g)(3.0) * x

    assert wf.grad(f)(2.0).item() == pytest.approx(2 * 2 * 3.0 * 2.0)


def test_linearize_runs_the_function_once() -> None:
    calls = []

    def f(x):
        calls.append(1)
        return (wf.sin(x) * x).sum()

    x = wf.tensor([1.0, 2.0])
    value, push = wf.linearize(f, x)
    for scale in (1.0, 2.0):
        want = wf.jvp(lambda x: (wf.sin(x) * x).sum(), x, x * scale)[1]
        np.testing.assert_allclose(push(x * scale).numpy(), want.numpy(), rtol=1e-6)
    assert len(calls) == 1
    assert value.item() == pytest.approx(f(x).item())


def test_linear_transpose_is_the_transpose() -> None:
    a = wf.asarray(np.arange(6.0).reshape(2, 3))
    pulled = wf.linear_transpose(lambda x: a @ x, wf.zeros(3, dtype=wf.float64))(
        wf.asarray([1.0, 2.0]).astype(wf.float64)
    )
    np.testing.assert_allclose(pulled[0].numpy(), a.numpy().T @ [1, 2])


def f(x):
    return wf.sum(wf.sin(x) * wf.exp(x[::-1])) * x[0]


@pytest.mark.parametrize("outer", [wf.jacfwd, wf.jacrev], ids=["fwd", "rev"])
@pytest.mark.parametrize("inner", [wf.jacfwd, wf.jacrev], ids=["fwd", "rev"])
def test_hessians_agree_in_all_four_orders_of_modes(outer, inner) -> None:
    x = wf.asarray(np.linspace(-1, 1, 4))
    got = outer(inner(f))(x).numpy()
    h = 1e-5
    want = np.stack(
        [
            (wf.grad(f)(x + h * e).numpy() - wf.grad(f)(x - h * e).numpy()) / (2 * h)
            for e in map(wf.asarray, np.eye(4))
        ]
    )
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got, got.T, rtol=1e-9, atol=1e-9)


def test_jacobians_of_trees_nest_output_in_input() -> None:
    def g(p):
        return {"y": p["a"] * 2, "z": p["b"].sum() * p["a"]}

    p = {"a": wf.arange(3.0), "b": wf.ones((2, 2))}
    for jac in (wf.jacfwd, wf.jacrev):
        j = jac(g)(p)
        assert j["y"]["a"].shape == (3, 3)
        assert j["z"]["b"].shape == (3, 2, 2)
        np.testing.assert_allclose(j["z"]["a"].numpy(), 4 * np.eye(3))


def test_several_arguments() -> None:
    g = lambda x, y: x * y  # noqa: E731
    a, b = wf.jacrev(g, argnums=(0, 1))(wf.tensor([1.0, 2.0]), wf.tensor([3.0, 4.0]))
    np.testing.assert_allclose(a.numpy(), np.diag([3.0, 4.0]))
    np.testing.assert_allclose(b.numpy(), np.diag([1.0, 2.0]))


def test_hvp_is_the_hessian_times_a_vector() -> None:
    x, v = wf.asarray(np.linspace(-1, 1, 4)), wf.asarray(np.arange(4.0))
    want = wf.hessian(f)(x).numpy() @ v.numpy()
    np.testing.assert_allclose(wf.hvp(f, (x,), (v,)).numpy(), want, rtol=1e-9)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: wf.jvp(f, (wf.ones(3),), (wf.ones(2),)),
            ShapeError,
            r"tangent 0 has shape \(2,\)",
        ),
        (
            lambda: wf.jvp(f, (wf.ones(3),), (wf.ones(3, dtype=wf.float64),)),
            DTypeError,
            "tangent 0 has dtype float64",
        ),
        (lambda: wf.jvp(f, (wf.ones(3),), (wf.ones(3), wf.ones(3))), TreeError, "do not match"),
        (lambda: wf.jvp(f, (wf.arange(3),), (wf.arange(3),)), DifferentiationError, "int64"),
        (lambda: wf.jacfwd(f, argnums=2)(wf.ones(3)), DifferentiationError, "argnums 2"),
    ],
)
def test_mismatched_tangents_are_refused(call, error, text) -> None:
    with pytest.raises(error, match=text):
        call()


def test_auxiliary_results_of_jacobians_may_be_anything() -> None:
    x = wf.tensor([1.0, 2.0])
    for jac in (wf.jacfwd, wf.jacrev):
        found, (name, doubled) = jac(lambda x: (x * x, ("square", x * 2)), has_aux=True)(x)
        assert found.tolist() == [[2.0, 0.0], [0.0, 4.0]]
        assert name == "square"
        assert doubled.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("push", [wf.jvp, lambda f, x, t: (wf.linearize(f, *x)[1](*t),)])
def test_what_comes_out_may_be_assigned_to_alone(push):
    x, t = wf.ones(2), wf.ones(2)
    for found in push(lambda x: x, (x,), (t,)):
        found += 1
    assert x.tolist() == t.tolist() == [1, 1]
