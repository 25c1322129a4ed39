"""Ops are effects: without a handler the backend runs them, a handler intercepts and continues."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import numpy as np
import pytest

import weft as wf
from weft.core.common.context import current_device, default_float
from weft.core.common.handler import Handler, _current, current, installed, perform
from weft.core.common.slots import OPS
from weft.core.common.source import _wanted
from weft.core.sharding.log import _logs
from weft.errors import LeakedTensorError, MissingRuleError
from weft.ops.base import Operation, call
from weft.ops.random.state import generator

GENERATOR = wf.random.Generator(2)


def state():
    """All that blocks change."""
    handlers, each = [], current()
    while each is not None:
        handlers.append(each)
        each = each.outer
    return (
        handlers,
        default_float(),
        current_device(),
        generator(),
        [*map(id, _logs.get())],
        _wanted.get(),
    )


class Log(Handler):
    """Notes every op and passes it on."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def handle(self, op, args, params):
        with installed(self.outer):
            result = perform(op, args, params)
        self.seen.append((op.name, args, params, result))
        return result


@pytest.mark.promise("S1.1")
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: x + x, "add"),
        (lambda x: wf.sin(x), "sin"),
        (lambda x: x @ x, "matmul"),
        (lambda x: x.sum(), "reduce_sum"),
        (lambda x: x.T, "permute"),
        (lambda x: x[0], "slice"),
    ],
)
def test_every_op_performs_an_effect_before_it_computes(function, name):
    with Log() as log:
        function(wf.ones((3, 3)))
    assert name in [seen[0] for seen in log.seen]


@pytest.mark.promise("S1.2")
def test_without_a_handler_the_backend_runs_the_op():
    assert current() is None
    assert (wf.tensor([1.0]) + wf.tensor([2.0])).is_realized


@pytest.mark.promise("S1.3")
def test_a_handler_intercepts_does_its_work_and_continues():
    class Negate(Handler):
        def handle(self, op, args, params):
            with installed(self.outer):
                return -perform(op, args, params)

    with Negate():
        assert (wf.tensor([1.0]) + wf.tensor([2.0])).tolist() == [-3.0]
    assert (wf.tensor([1.0]) + wf.tensor([2.0])).tolist() == [3.0]


@pytest.mark.promise("S1.4")
def test_the_effect_carries_op_inputs_parameters_and_gives_the_output():
    x = wf.ones((2, 3))
    with Log() as log:
        y = wf.sum(x, axis=1)
    ((name, args, params, result),) = log.seen
    assert (name, params) == ("reduce_sum", {"axes": (-1,)})
    assert args[0]._impl is x._impl
    assert result is y


@pytest.mark.promise("S1.5")
def test_one_function_and_one_tensor_class_everywhere():
    kinds = []

    def f(x):
        kinds.append(type(x))
        return wf.sum(wf.sin(x) * x)

    x = wf.tensor([0.5, 1.5])
    plain = f(x).item()
    wf.grad(f)(x)
    value, _ = wf.jvp(f, (x,), (x,))
    rows = wf.vmap(f)(wf.stack([x, x]))
    wf.trace(f, x)
    with Log():
        logged = f(x)
    assert set(kinds) == {wf.Tensor}
    assert value.item() == logged.item() == plain
    np.testing.assert_allclose(rows.numpy(), [plain] * 2, rtol=1e-6)


def test_handlers_nest_and_the_inner_ones_rules_run_outside_it():
    with Log() as outer:
        with Log() as inner:
            wf.ones(3) + 1
        assert current() is outer
    assert len(inner.seen) == len(outer.seen) > 0
    assert current() is None


def test_a_handler_is_removed_when_its_block_fails():
    with pytest.raises(KeyError), Log():
        raise KeyError
    assert current() is None


def test_an_interrupt_while_a_handler_is_installed_leaves_none(monkeypatch):
    class Interrupted:
        get, is_first = _current.get, True

        def set(self, value):
            _current.set(value)
            if self.is_first:
                self.is_first = False
                raise KeyboardInterrupt

    monkeypatch.setattr("weft.core.common.handler._current", Interrupted())
    with pytest.raises(KeyboardInterrupt), wf.no_grad():
        pass
    assert current() is None


def opened(block):
    with block:
        yield
        yield


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    "blocks",
    [
        (lambda: wf.default_dtype("float64"), lambda: wf.default_dtype("float16")),
        (lambda: wf.default_device("cpu:1"), lambda: wf.defaults_like(wf.ones(1, device="cpu:2"))),
        (lambda: wf.random.using(wf.random.Generator(1)), lambda: wf.random.using(GENERATOR)),
        (wf.no_grad, wf.debug_nans),
        (wf.debug_nans, wf.no_grad),
        (wf.communication_log, wf.communication_log),
    ],
)
def test_blocks_of_generators_may_end_in_any_order(blocks, first):
    before = state()
    generators = [opened(make()) for make in blocks]
    alone = []
    for each in generators:
        next(each)
        alone.append(state())
    generators[first].close()
    assert state() == alone[0] if first else state() not in (before, alone[0])
    generators[1 - first].close()
    assert state() == before


def test_a_block_may_be_opened_again_and_inside_itself():
    for block in (wf.random.using(GENERATOR), wf.debug_nans(), wf.no_grad()):
        before = state()
        for _ in range(2):
            with block:
                once = state()
                with block:
                    assert state() != before
                assert state() == once != before
            assert state() == before
    setting = wf.default_dtype("float64")
    for _ in range(2):
        with setting:
            with setting:
                assert default_float() == wf.float64
            assert default_float() == wf.float64
        assert default_float() == wf.float32


def test_a_block_that_a_transform_has_ended_takes_no_other_with_it():
    inner = opened(wf.no_grad())
    with wf.no_grad():
        outer = current()
        wf.grad(lambda x: next(inner) or x)(1.0)
        inner.close()
        assert current() is outer


def test_every_result_is_a_fresh_impl():
    x = wf.ones(3)
    a, b = x + 1, x + 1
    assert a._impl is not b._impl
    big = wf.tensor(np.ones((200, 200), np.float32))
    seen = []

    def f(v):
        c, d = v + 1, v + 1
        seen.append(c._impl is not d._impl)
        return wf.sum(c * 2 + d)

    assert wf.grad(f)(big).numpy()[0, 0] == 3
    assert seen == [True]


@pytest.mark.parametrize("name", ["grad", "jvp", "vmap"])
def test_a_tensor_that_leaves_its_transform_raises_when_used(name):
    kept = []

    def f(x):
        kept.append(x * 2)
        return wf.sum(x)

    x = wf.ones(3)
    {
        "grad": lambda: wf.grad(f)(x),
        "jvp": lambda: wf.jvp(f, (x,), (x,)),
        "vmap": lambda: wf.vmap(f)(wf.ones((2, 3))),
    }[name]()
    with pytest.raises(LeakedTensorError, match=r"add: operand 0 .* has ended") as caught:
        kept[0] + x
    assert "hint:" in str(caught.value)
    assert (x + 1).tolist() == [2.0] * 3


def test_a_missing_rule_is_named_with_its_reason_and_a_hint():
    class Ruleless(Operation):
        """Has no derivative."""

        factors = "... -> ..."
        reasons = {"vjp": "it was left out"}

        def eval(self, x):
            return x

    op = object.__new__(Ruleless)
    op.name = op.__name__ = "ruleless"
    assert "ruleless" not in OPS
    with pytest.raises(MissingRuleError, match="ruleless: no vjp rule: it was left out") as caught:
        wf.grad(lambda x: wf.sum(call(op, (x,), {})))(wf.ones(3))
    assert "hint: wf.stop_gradient" in str(caught.value)
    with pytest.raises(MissingRuleError, match="ruleless: no jvp rule"):
        wf.jvp(lambda x: call(op, (x,), {}), (wf.ones(3),), (wf.ones(3),))


def test_a_thread_starts_without_handlers_and_defaults():
    found = []
    with Log(), wf.default_dtype("float64"), wf.default_device("cpu:3"):
        thread = threading.Thread(
            target=lambda: found.append(
                (current(), wf.zeros(1).dtype.name, wf.zeros(1).device.name)
            )
        )
        thread.start()
        thread.join()
        assert wf.zeros(1).device.name == "cpu:3" and wf.zeros(1).dtype.name == "float64"
    assert found == [(None, "float32", "cpu:0")]


def test_a_task_inherits_handlers_and_its_own_do_not_leak():
    async def child():
        inherited = current()
        with Log() as own:
            await asyncio.sleep(0)
            wf.ones(2) + 1
            return inherited, current() is own

    async def main():
        with Log() as log:
            found = await asyncio.gather(child(), child())
            assert current() is log
            assert all(pair == (log, True) for pair in found)

    asyncio.run(main())
    assert current() is None
    assert contextvars.copy_context().run(current) is None


def test_threads_differentiate_at_once():
    failures = []

    def work(k):
        x = wf.tensor(np.full((150, 150), 0.5 + k))
        for _ in range(10):
            got = wf.grad(lambda v: wf.sum(v * v * v))(x).numpy()
            if not np.allclose(got, 3 * (0.5 + k) ** 2):
                failures.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("wrap", ["checkpoint", "custom_vjp", "custom_jvp"])
def test_effects_inside_functions_with_derivatives_of_their_own_happen_in_order(wrap, compiled):
    seen = []

    def told(name, x):
        return wf.callback(lambda a: seen.append(name) or a, x.type, x)

    def inner(x):
        told("inside", x)
        return x * 2

    function = getattr(wf, wrap)(inner)
    if wrap == "custom_vjp":
        function.defvjp(lambda x: (function(x), None), lambda _, ct: (ct * 2,))
    elif wrap == "custom_jvp":
        function.defjvp(lambda p, t: (function(*p), t[0] * 2))

    def whole(x):
        told("before", x)
        function(x)  # nobody reads it
        told("after", x)
        return x + 1

    run = wf.compile(whole) if compiled else whole
    for _ in range(2):
        seen.clear()
        assert run(wf.ones(3)).tolist() == [2.0, 2.0, 2.0]
        assert seen == ["before", "inside", "after"]


def _loop(note, x):
    def step(c, r):
        note(c)
        return c * r + 1, None

    return wf.scan(step, 0.5, x)[0]


def _branch(note, x):
    def taken(v):
        note(v[0])
        return (v * v).sum()

    return wf.cond(x[0] > 0, taken, lambda v: v.sum(), x)


def _nested(note, x):
    def sine(c):
        note(c)
        return wf.sin(c)

    def step(c, r):
        grown = wf.cond(c > 1, lambda v: sine(v) * r, lambda v: v + r, c)
        return grown + wf.checkpoint(sine)(c), c

    return wf.scan(step, 0.5, x)[0]


@pytest.mark.parametrize("function", [_loop, _branch, _nested])
@pytest.mark.parametrize(
    "derive",
    [
        wf.grad,
        lambda f: wf.compile(wf.grad(f)),
        lambda f: lambda x: wf.jvp(f, (x,), (x,))[1],
        lambda f: lambda x: wf.jvp(wf.grad(f), (x,), (x,))[1],
        lambda f: lambda x: wf.grad(lambda x: wf.jvp(f, (x,), (x,))[1])(x),
    ],
    ids=["grad", "compiled_grad", "jvp", "jvp_of_grad", "grad_of_jvp"],
)
def test_what_is_told_inside_loops_and_branches_is_told_once_by_derivatives(derive, function):
    told = []

    def note(x):
        wf.callback(lambda a: told.append(a.tolist()) or (), (), x)

    def run(note):
        return derive(lambda x: function(note, x))(wf.tensor([1.0, 2.0, 3.0])).numpy()

    function(note, wf.tensor([1.0, 2.0, 3.0]))
    plain = [*told]
    told.clear()
    assert run(note).tolist() == run(lambda x: None).tolist()
    assert told == plain


@pytest.mark.parametrize("derive", [wf.grad, lambda f: wf.compile(wf.grad(f))])
def test_what_rules_tell_inside_loops_is_told_by_derivatives(derive):
    told = []

    def note(name, x):
        wf.callback(lambda a: told.append((name, a.item())) or (), (), x)

    @wf.custom_vjp
    def square(x):
        return x * x

    def ahead(x):
        note("ahead", x)
        return square(x), x

    def back(x, ct):
        note("back", ct)
        return (2 * x * ct,)

    square.defvjp(ahead, back)
    slope = derive(lambda x: wf.fori_loop(0, 2, lambda _, c: square(c), x))
    assert slope(wf.tensor(3.0)).item() == 108
    assert told == [("ahead", 9.0), ("back", 1.0), ("ahead", 3.0), ("back", 18.0)]


def test_a_loop_that_takes_what_the_host_gives_has_no_derivative():
    def step(c, r):
        return c * wf.callback(np.sin, r.type, r), None

    with pytest.raises(wf.errors.MissingRuleError, match="effects, which would happen twice"):
        wf.grad(lambda x: wf.scan(step, 1.0, x)[0])(wf.ones(3))
