"""`compile` under and over every other transform, and random draws inside it."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.errors import ConcretizationError, MutationError
from weft.ops.random import state as random_state


def f(x, y):
    return (wf.sin(x) * y).sum() + (x * x).mean()


def runs_of(function):
    runs = []

    def counting(*args, **keywords):
        runs.append(1)
        return function(*args, **keywords)

    return wf.compile(counting), runs


@pytest.fixture
def x():
    return wf.tensor([0.5, 1.5, -2.0])


@pytest.fixture
def y():
    return wf.tensor([1.0, 2.0, 3.0])


OVER = {
    "grad": lambda g: wf.grad(g, argnums=(0, 1)),
    "value_and_grad": lambda g: wf.value_and_grad(g),
    "jvp": lambda g: lambda x, y: wf.jvp(g, (x, y), (y, x)),
    "vjp": lambda g: lambda x, y: wf.vjp(g, x, y)[1](wf.tensor(1.0)),
    "hessian": lambda g: wf.hessian(g),
    "vmap": lambda g: lambda x, y: wf.vmap(g)(wf.stack([x, y]), wf.stack([y, x])),
    "vmap one": lambda g: lambda x, y: wf.vmap(g, in_axes=(None, 0))(x, wf.stack([y, x])),
    "vmap grad": lambda g: lambda x, y: wf.vmap(wf.grad(g))(wf.stack([x, y]), wf.stack([y, x])),
    "checkpoint": lambda g: wf.grad(wf.checkpoint(g)),
    "compile": lambda g: wf.compile(g),
    "compile grad": lambda g: wf.compile(wf.grad(g)),
    "linearize": lambda g: lambda x, y: wf.linearize(g, x, y)[1](y, x),
    "scan": lambda g: lambda x, y: wf.scan(lambda c, r: (c + g(r, y), c), 0.0, wf.stack([x, y])),
    "cond": lambda g: lambda x, y: wf.cond(x.sum() > 100, g, lambda a, b: -g(a, b), x, y),
    "while_loop": lambda g: (
        lambda x, y: wf.while_loop(lambda c: c < 20, lambda c: c + abs(g(x, y)) + 1, 0.0)
    ),
    "no_grad": lambda g: lambda x, y: _without_gradient(g, x, y),
    "eval_shape": lambda g: lambda x, y: wf.zeros(wf.eval_shape(g, x, y).shape),
    "debug": lambda g: wf.debug(g, sink=[]),
    "trace": lambda g: lambda x, y: wf.trace(g, x, y).replay(x, y),
}


def _without_gradient(g, x, y):
    with wf.no_grad():
        return g(x, y)


@pytest.mark.parametrize("name", OVER)
def test_a_transform_of_a_compiled_function_is_that_of_the_function(name, x, y):
    compiled, runs = runs_of(f)
    transform = OVER[name]
    expected = wf.tree_leaves(transform(f)(x, y))
    for _ in range(3):
        found = wf.tree_leaves(transform(compiled)(x, y))
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
    assert len(runs) == 1


@pytest.mark.parametrize("name", [n for n in OVER if n not in ("eval_shape",)])
def test_a_compiled_transform_is_the_transform(name, x, y):
    transform = OVER[name]
    compiled = wf.compile(transform(f))
    expected = wf.tree_leaves(transform(f)(x, y))
    for _ in range(2):
        for a, b in zip(wf.tree_leaves(compiled(x, y)), expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
    assert compiled.stats.traces == 1


def test_imperative_gradients_flow_through_a_compiled_function(x, y):
    compiled, runs = runs_of(f)
    for _ in range(2):
        weight = wf.requires_grad(wf.tensor([0.5, 1.5, -2.0]))
        wf.backward(compiled(weight, y))
        np.testing.assert_allclose(weight.grad.numpy(), wf.grad(f)(x, y).numpy(), rtol=1e-6)
    assert len(runs) == 1


def test_imperative_gradients_reach_a_captured_tensor(y):
    weight = wf.requires_grad(wf.tensor([0.5, 1.5, -2.0]))
    compiled = wf.compile(lambda a: f(weight, a))
    wf.backward(compiled(y))
    np.testing.assert_allclose(
        weight.grad.numpy(), wf.grad(f)(wf.tensor([0.5, 1.5, -2.0]), y).numpy(), rtol=1e-6
    )
    with wf.no_grad():
        assert not compiled(y).requires_grad
        weight -= 1.0
    assert compiled(y).item() == pytest.approx(f(weight, y).item(), rel=1e-6)


def test_a_number_may_be_differentiated(x):
    compiled = wf.compile(lambda a, rate: (a * rate).sum())
    assert wf.grad(compiled, argnums=1)(x, 2.0).item() == pytest.approx(0.0)
    assert wf.compile(wf.grad(lambda rate: rate * rate))(3.0).item() == 6.0


def test_a_compiled_function_inside_another_takes_its_numbers():
    inner, runs = runs_of(lambda a, rate: a * rate)
    outer = wf.compile(lambda a, rate: inner(a, rate * 2) + inner(a, 0.5))
    a = wf.ones(2, dtype="bfloat16")
    for rate in (0.3, 0.4):
        found = outer(a, rate)
        assert found.dtype == wf.bfloat16
        assert found.tolist() == (a * (rate * 2) + a * 0.5).tolist()
    assert len(runs) == 1 and outer.stats.traces == 1


def test_debug_reports_the_lines_of_the_compiled_function(x):
    compiled = wf.compile(lambda a: wf.sin(a))
    compiled(x)
    reports = []
    wf.debug(compiled, sink=reports)(x)
    assert [r.op for r in reports] == ["sin"]
    assert "wf.sin(a)" in str(reports[0])


def test_debug_nans_finds_the_line_inside(x):
    compiled = wf.compile(lambda a: wf.log(a))
    with pytest.raises(wf.errors.NotFiniteError, match=r"wf\.log"), wf.debug_nans():
        compiled(x)


def test_a_closure_over_a_tensor_of_a_running_transform_works_and_is_not_kept(x):
    kept = []

    def outer(a):
        inner = wf.compile(lambda b: b * a)
        kept.append(inner)
        return inner(a).sum()

    np.testing.assert_allclose(wf.grad(outer)(x).numpy(), (2 * x).numpy())
    assert wf.vmap(lambda a: wf.compile(lambda b: a * b)(2.0))(x).tolist() == [1.0, 3.0, -4.0]
    assert kept[0].stats.traces == 1 and not kept[0]._cache


def test_named_axes_around_a_compiled_function(x):
    compiled, runs = runs_of(lambda a: a / wf.psum(a, "i"))
    x = abs(x)
    for rows in (x, x, wf.concat([x, x])):
        found = wf.vmap(compiled, axis_name="i")(rows)
        np.testing.assert_allclose(found.numpy(), rows.numpy() / rows.numpy().sum(), rtol=1e-6)
    assert len(runs) == 2


def test_effects_keep_their_order_inside_transforms(x, capsys):
    def noisy(a):
        wf.print("one")
        wf.print("two")
        return (a * a).sum()

    compiled = wf.compile(noisy)
    wf.grad(compiled)(x)
    wf.grad(compiled)(x)
    assert capsys.readouterr().out.split() == ["one", "two"] * 2


def draws_of(function, *args, calls=3):
    wf.random.seed(11)
    found = [[leaf.tolist() for leaf in wf.tree_leaves(function(*args))] for _ in range(calls)]
    return found, wf.random.get_state().tolist()


def noise(x):
    return x + wf.randn(3), wf.random.next_key()


RANDOM = {
    "plain": lambda g: g,
    "vmap": lambda g: lambda x: wf.vmap(g)(wf.stack([x, x])),
    "vmap twice": lambda g: lambda x: wf.vmap(wf.vmap(g))(wf.stack([wf.stack([x, x])] * 3)),
    "compile": wf.compile,
    "compile vmap": lambda g: wf.compile(lambda x: wf.vmap(g)(wf.stack([x, x]))),
    "vmap compile": lambda g: lambda x: wf.vmap(wf.compile(g))(wf.stack([x, x])),
    "jvp": lambda g: lambda x: wf.jvp(lambda a: g(a)[0], (x,), (x,)),
    "scan": lambda g: lambda x: wf.scan(lambda c, _: (g(c)[0], c), x, None, length=2),
    "vmap scan": lambda g: (
        lambda x: wf.vmap(lambda a: wf.scan(lambda c, _: (g(c)[0], c), a, None, length=2))(
            wf.stack([x, x])
        )
    ),
    "vmap compile scan": lambda g: (
        lambda x: wf.vmap(wf.compile(RANDOM["scan"](g)))(wf.stack([x, x]))
    ),
    "checkpoint": lambda g: wf.checkpoint(g),
}


@pytest.mark.parametrize("name", RANDOM)
def test_draws_inside_a_compiled_function_are_those_of_the_plain_one(name, x):
    transform = RANDOM[name]
    compiled, runs = runs_of(noise)
    expected = draws_of(transform(noise), x)
    assert draws_of(transform(compiled), x) == expected
    assert draws_of(transform(compiled), x) == expected
    assert len(runs) == 1
    assert expected[0][0] != expected[0][1]


@pytest.mark.parametrize("name", [n for n in RANDOM if "compile" not in n])
def test_draws_inside_a_compiled_transform_are_those_of_the_transform(name, x):
    transform = RANDOM[name]
    assert draws_of(wf.compile(transform(noise)), x) == draws_of(transform(noise), x)


def test_draws_of_a_scan_around_a_mapped_compiled_function_differ_by_slice(x):
    def loop(a):
        return wf.scan(lambda c, _: (c + wf.randn(3), None), a, None, length=2)[0]

    found = wf.vmap(wf.compile(loop))(wf.stack([x, x]))
    assert found[0].tolist() != found[1].tolist()


def test_generators_of_ones_own_go_on_too():
    source = wf.random.Generator(5)
    plain = wf.random.Generator(5)
    compiled = wf.compile(lambda: source.normal((2,)) + wf.randn(2) * 0)
    assert [compiled().tolist() for _ in range(3)] == [
        plain.normal((2,)).tolist() for _ in range(3)
    ]
    inside = wf.compile(lambda: wf.random.Generator(5).normal((2,)))
    assert inside().tolist() == inside().tolist() == wf.random.Generator(5).normal((2,)).tolist()


def test_the_generator_chosen_at_the_call_is_drawn_from():
    compiled = wf.compile(lambda: wf.randn(2))
    compiled()
    with wf.random.using(wf.random.Generator(5)):
        found = compiled().tolist()
    assert found == wf.random.Generator(5).normal((2,)).tolist()
    assert compiled.stats.traces == 1


def test_the_global_generator_cannot_be_seeded_inside():
    with pytest.raises(MutationError, match="seed it before"):
        wf.compile(lambda: (wf.random.seed(3), wf.randn(2))[1])()
    state = wf.compile(lambda: (wf.randn(2), wf.random.get_state())[1])
    wf.random.seed(3)
    assert state().tolist() == wf.random.get_state().tolist()


def test_the_last_key_of_a_base_is_passed_as_by_plain_code():
    def two():
        return wf.randn(1), wf.randn(1)

    compiled = wf.compile(two)
    compiled()
    state = wf.tensor([1, 2, random_state._WORD - 3], dtype="uint32")
    wf.random.set_state(state)
    expected = [[y.item() for y in two()] for _ in range(3)]
    wf.random.set_state(state)
    assert [[y.item() for y in compiled()] for _ in range(3)] == expected


def test_a_value_read_inside_a_nested_compiled_function_names_it(x):
    @wf.compile
    def careless(a):
        return a if a[0] > 0 else -a

    with pytest.raises(ConcretizationError, match="compile: careless"):
        wf.grad(lambda a: careless(a).sum())(x)
