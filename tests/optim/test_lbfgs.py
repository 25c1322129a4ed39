"""L-BFGS: torch's steps, and SciPy's minima."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize

import weft as wf
from tests.torch_oracle import torch
from weft.errors import ArgumentError, DifferentiationError, DTypeError, MissingRuleError

optim = wf.optim


def rosenbrock(x):
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


@pytest.mark.parametrize(("rate", "memory"), [(1.0, 10), (0.5, 3)])
def test_steps_are_torchs(rate, memory):
    x = wf.tensor([0.5, 1.2, 0.7, -0.2], dtype="float64")
    theirs = torch.tensor(x.tolist(), dtype=torch.float64, requires_grad=True)
    options = {"lr": rate, "max_iter": 1, "history_size": memory, "tolerance_change": 0}
    optimizer, transform = torch.optim.LBFGS([theirs], **options), optim.lbfgs(rate, memory)

    def closure():
        optimizer.zero_grad()
        value = rosenbrock(theirs)
        value.backward()
        return value

    @wf.compile
    def step(params, state):
        gradients = wf.grad(lambda p: rosenbrock(wf.concat([p["a"], p["b"]])))(params)
        updates, state = transform.update(gradients, state, params)
        return optim.apply(params, updates), state

    params = {"a": x[:1], "b": x[1:]}
    state = transform.init(params)
    for _ in range(20):
        optimizer.step(closure)
        params, state = step(params, state)
    found = wf.concat([params["a"], params["b"]]).numpy()
    np.testing.assert_allclose(found, theirs.detach().numpy(), rtol=1e-9)


@pytest.mark.parametrize("size", [2, 20])
@pytest.mark.parametrize(("dtype", "tol"), [("float64", 1e-7), ("float32", 1e-3)])
def test_minimize_finds_what_scipy_finds(size, dtype, tol):
    start = wf.linspace(-1.2, 1.0, size, dtype=dtype)
    result = optim.minimize(rosenbrock, start, tol=tol)
    assert result.success.item() and abs(result.jac).max().item() <= tol
    np.testing.assert_allclose(result.x.numpy(), 1, atol=100 * tol)
    want = scipy.optimize.minimize(rosenbrock, start.numpy().astype(float), method="L-BFGS-B")
    assert result.steps.item() < 2 * want.nit
    again = wf.compile(lambda x: optim.minimize(rosenbrock, x, tol=tol))(start)
    assert again.x.tolist() == result.x.tolist() and again.steps.item() == result.steps.item()


def test_minimize_takes_trees_and_arguments_and_is_mapped():
    def loss(p, centre):
        return (p["a"] - centre) ** 2 + ((p["b"] + 1) ** 4).sum() + 2.0

    start = {"a": wf.zeros((), dtype="float64"), "b": wf.zeros(2, dtype="float64")}
    found = wf.vmap(lambda c: optim.minimize(loss, start, (c,), tol=1e-8))(wf.arange(3.0))
    np.testing.assert_allclose(found.x["a"].numpy(), [0, 1, 2], atol=1e-6)
    np.testing.assert_allclose(found.x["b"].numpy(), -1, atol=1e-2)
    np.testing.assert_allclose(found.fun.numpy(), 2, atol=1e-6)


def test_a_search_that_cannot_succeed_says_so():
    assert not optim.minimize(lambda x: -x.sum(), wf.ones(2)).success
    assert not optim.minimize(rosenbrock, wf.zeros(4), maxiter=2).success
    there = optim.minimize(lambda x: (x * 0).sum(), wf.ones(2))
    assert there.success and there.steps.item() == 0 and there.x.tolist() == [1, 1]
    assert optim.minimize(lambda x: wf.where(x > 3, wf.nan, (x - 3) ** 2), wf.tensor(0.0)).success


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: optim.minimize(lambda x: x, wf.ones(2)), DifferentiationError, "scalar result"),
        (lambda: optim.minimize(lambda x: 1.0, wf.ones(2)), DifferentiationError, "got 1.0"),
        (lambda: optim.minimize(wf.sum, wf.arange(2)), DTypeError, "x0: expected real floats"),
        (lambda: optim.minimize(wf.sum, wf.ones(2), tol=-1), ArgumentError, "tol"),
        (lambda: optim.lbfgs(memory=0), ArgumentError, "memory"),
        (
            lambda: optim.lbfgs().update(wf.ones(2), optim.lbfgs().init(wf.ones(2))),
            ArgumentError,
            "params are needed",
        ),
        (
            lambda: wf.grad(lambda c: optim.minimize(lambda x: (x - c) ** 2, wf.tensor(0.0)).x)(
                1.0
            ),
            MissingRuleError,
            "while_loop",
        ),
    ],
)
def test_mistakes_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()
