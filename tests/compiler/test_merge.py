"""Loops that change a few elements of what they carry change them where they lie."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import assert_same
from weft.compiler import updates
from weft.compiler.executable import Interpreted
from weft.compiler.native import Native
from weft.compiler.steps import Call, Choice, Copy, Repeat, ScanLoop, Step
from weft.config import settings

SIZE, STEPS = 1 << 15, 6
SEEDS = range(12)


def every(steps: tuple[Step, ...], inside: bool = False) -> Iterator[tuple[Step, bool]]:
    """All steps of a program, and whether a loop repeats them."""
    for step in steps:
        yield step, inside
        if isinstance(step, ScanLoop):
            yield from every(step.body, True)
        elif isinstance(step, Repeat):
            yield from every((*step.condition, *step.body), True)
        elif isinstance(step, Choice):
            for branch in step.branches:
                yield from every(branch, inside)


def copies(function: Callable[..., Any], *args: Any) -> tuple[int, int]:
    """How many large copies a program makes, and how many of them in each turn of a loop."""
    found = [
        inside
        for step, inside in every(Native(wf.trace(function, *args)).steps)
        if (isinstance(step, Copy) and step.source.kind.size >= SIZE)
        or (isinstance(step, Call) and step.copies and step.points >= SIZE)
    ]
    return len(found), sum(found)


def operands() -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    return wf.tensor(draw.normal(size=SIZE)), wf.tensor(draw.normal(size=STEPS))


def check(function: Callable[..., Any], most: int = 1) -> None:
    """Nothing large is copied in a loop, little before it, and results have the same bits."""
    args = operands()
    before, inside = copies(function, *args)
    assert inside == 0, "a loop copies what it carries"
    assert before <= most
    check_bits(function)


def check_bits(function: Callable[..., Any]) -> None:
    """Results have the bits of the calls one by one, and operands stay."""
    args = operands()
    given = [x.numpy().copy() for x in args]
    expected = Interpreted(wf.trace(function, *args)).run(given)
    found = wf.tree_leaves(wf.compile(function)(*args))
    assert_same([x.numpy() for x in found], expected)
    assert_same([x.numpy() for x in args], given, "operands changed")


def scanned(step: Callable[..., Any]) -> Callable[..., Any]:
    return lambda c, xs: wf.scan(step, c, (wf.arange(STEPS), xs))


def test_an_element_is_set():
    check(scanned(lambda c, e: (c.at[e[0]].set(e[1]), c.sum())))


def test_an_element_follows_from_the_one_before():
    check(scanned(lambda c, e: (c.at[e[0] + 1].set(c[e[0]] * 0.5 + e[1]), c[e[0]])))


def test_what_was_there_is_read_before_and_what_is_there_after():
    def step(c, e):
        old = c[e[0]]
        new = c.at[e[0]].add(e[1])
        return new, old * 2 + new[0]

    check(scanned(step))


def test_two_elements_change_places():
    def step(c, e):
        a, b = c[e[0]], c[e[0] + 1]
        return c.at[e[0]].set(b).at[e[0] + 1].set(a), a

    check(scanned(step))


def test_a_choice_leaves_it_or_changes_it():
    def step(c, e):
        i, v = e
        return wf.cond(v > 0, lambda c: c.at[i].set(v), lambda c: c, c), v

    check(scanned(step))


def test_a_choice_changes_it_in_two_ways():
    def step(c, e):
        i, v = e
        return wf.cond(v > 0, lambda c: c.at[i].set(v), lambda c: c.at[i + 1].add(v), c), v

    check(scanned(step))


def test_what_is_handed_on_is_not_changed_for_a_result_of_the_turn():
    def step(c, e):
        new = c.at[e[0]].set(e[1])
        return new, new.at[e[0] + 1].set(3.0).sum()

    check_bits(scanned(step))


def test_what_a_while_loop_hands_on_is_not_changed_for_another_of_its_values():
    def turn(s):
        new = s[0].at[s[1]].set(2.0)
        return new, s[1] + 1, s[2] + new.at[s[1] + 1].set(3.0).sum()

    init = (wf.tensor(0), wf.tensor(0.0, dtype="float64"))
    check_bits(lambda c, xs: wf.while_loop(lambda s: s[1] < STEPS, turn, (c, *init)))


def test_a_part_of_something_larger_is_copied():
    check_bits(lambda c, xs: wf.sort(c)[: SIZE // 8].at[xs.argmax()].set(xs[0]))


def test_host_calls_see_the_shape_of_what_is_changed_in_the_memory_of_another():
    def function(c, xs):
        changed = wf.sort(c).reshape((8, -1)).at[xs.argmax()].set(xs[0])
        return wf.callback(lambda x: x.sum(0), ((SIZE // 8,), "float64"), changed)

    check_bits(function)


def test_loops_inside_loops():
    def inner(k: Any, xs: Any) -> Callable[..., Any]:
        return lambda i, c: c.at[i * STEPS + k].set(xs[k] + c[i])

    check(lambda c, xs: wf.fori_loop(0, STEPS, lambda k, c: wf.fori_loop(0, 3, inner(k, xs), c), c))


def test_what_changes_places_in_a_loop_stays_in_place_in_one_inside():
    def step(state, e):
        c, d = state
        d = wf.fori_loop(0, 2, lambda k, d: d.at[e[0] + k].add(e[1]), d.at[e[0]].add(e[1]))
        return (d, c), e[1]

    def function(c, xs):
        (a, b), _ = wf.scan(step, (c, c), (wf.arange(3), xs[:3]))
        return a.sum(), b.sum()

    check_bits(function)


def test_while_something_holds():
    def go_on(s):
        return s[1] < STEPS

    check(
        lambda c, xs: wf.while_loop(
            go_on, lambda s: (s[0].at[s[1]].set(xs[s[1]]), s[1] + 1), (c, wf.tensor(0))
        )
    )


def test_what_is_handed_on_unchanged():
    check(lambda c, xs: wf.scan(lambda s, v: ((s[0], s[1] + s[0][0] * v), v), (c, xs[0]), xs), 1)


def test_a_slice_at_a_known_place():
    check(scanned(lambda c, e: (c.at[3:9].set(e[1]), e[1])))


def test_one_assignment_after_another_copies_once():
    def assigned(c, xs):
        for k in range(STEPS):
            c = c.at[7 * k].set(xs[k])
        return c

    check(assigned)


def test_many_assignments_are_not_computed_at_every_element():
    def total(c, xs):
        c = c * 2
        for k in range(STEPS):
            c[7 * k] = xs[k] + c[7 * k + 1]
        return (c * c).sum()

    args = operands()
    steps = Native(wf.trace(total, *args)).steps
    small = [s for s in steps if isinstance(s, Call) and s.name == "slice_update"]
    assert len(small) == STEPS
    assert all(step.points == 1 for step in small)
    check(total)
    check(lambda c, xs: wf.grad(total, argnums=1)(c, xs), most=STEPS)


def test_parts_that_begin_where_values_say():
    def step(c, e):
        part = wf.dynamic_slice(c, [e[0]], (4,))
        return wf.dynamic_update_slice(c, part + e[1], [e[0] + 1]), part

    check(scanned(step))


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_large_carries_are_copied_by_threads_and_change_places(turns, monkeypatch):
    monkeypatch.setattr(settings, "threads", 2)
    a = np.random.default_rng(turns).normal(size=1 << 18)
    b = a[::-1].copy()

    def function(a, b):
        return wf.fori_loop(0, turns, lambda i, s: (s[1] * 0.5 + i, s[0]), (a, b))

    program = Native(wf.trace(function, wf.tensor(a), wf.tensor(b)))
    assert any(call.copies for call in program.calls.values())
    assert_same(program.run([a, b]), Interpreted(wf.trace(function, a, b)).run([a, b]))


def test_a_donated_operand_is_changed_in_its_memory():
    c, xs = operands()
    expected = c.numpy().copy()
    expected[5] = xs.numpy()[0]
    trace = wf.trace(lambda c, xs: c.at[xs.astype("int64")[0] * 0 + 5].set(xs[0]), c, xs)
    program = Native(trace, (True, False))
    assert "scatter_copy" not in program.calls
    data = c.numpy().copy()
    (found,) = program.run([data, xs.numpy()])
    assert found.ctypes.data == data.ctypes.data
    assert_same([found], [expected])


@pytest.mark.parametrize("follows", [False, True])
def test_gradients_of_such_loops_copy_nothing_either(follows):
    def loss(c, xs):
        def step(c, e):
            i, v = e
            return c.at[i + 1].set(v * 2 + (c[i] if follows else 0)), None

        last, _ = wf.scan(step, c, (wf.arange(STEPS), xs))
        return (last * last).sum()

    def gradient(c, xs):
        return wf.grad(loss, argnums=1)(c, xs)

    check(gradient, most=2)


def test_gradients_of_a_table_that_steps_look_up_are_added_where_they_lie():
    def loss(table, xs):
        def step(total, i):
            return total + wf.sin(table[i] * xs[0]), None

        return wf.scan(step, 0.0, wf.arange(STEPS) * 5)[0]

    def gradient(table, xs):
        return wf.grad(loss)(table, xs)

    args = operands()
    loops = [n for n in wf.trace(gradient, *args).nodes if n.name == "scan"]
    calls = [n for loop in loops for n in loop.params["body"].nodes]
    adds = [n for n in calls if n.name == "add" and n.types[0].size == SIZE]
    assert not adds, "all of the table is added to in every step"
    check(gradient, most=2)


# -- random loops --------------------------------------------------------------------------------


class Draw:
    """A random loop: the same numbers give the same one, however often it is traced."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.rows = draw.choice([5, 40, 300])
        self.columns = draw.choice([(), (3,), (17,)])
        self.steps = draw.choice([1, 2, 5])
        self.dtype = draw.choice(["float32", "float64", "int32", "complex64"])
        self.donated = draw.choice([(), (0,), (0, 1)])
        self.numbers = [draw.random() for _ in range(60)]
        numbers = np.random.default_rng(seed)
        shape = (self.rows, *self.columns)
        shapes = (shape, shape, (self.steps, *self.columns))
        self.arrays = [(numbers.normal(size=s) * 3).astype(self.dtype) for s in shapes]
        self.arrays.append(numbers.integers(0, self.rows, size=self.steps))

    def program(self) -> Callable[..., Any]:
        return _Loop(self).function


class _Loop:
    def __init__(self, draw: Draw) -> None:
        self.draw, self.used = draw, 0

    def below(self, count: int) -> int:
        self.used += 1
        numbers = self.draw.numbers
        return int(numbers[self.used % len(numbers)] * count)

    def place(self, i: Any, more: int = 0) -> Any:
        return (i + more) % self.draw.rows

    def changed(self, c: Any, i: Any, v: Any, depth: int = 0) -> Any:
        """Something of `c`, changed at `i` or thereabouts."""
        near = self.place(i, 1)
        positive = wf.real(v).sum() > 0
        simple: list[Callable[[], Any]] = [
            lambda: c.at[i].set(v),
            lambda: c.at[i].add(v),
            lambda: c.at[near].set(c[i] + v),
            lambda: c.at[self.below(self.draw.rows)].set(v),
            lambda: c.at[i].set(c[near]).at[near].set(c[i]),
            lambda: wf.cond(positive, lambda c: c.at[i].set(v), lambda c: c, c),
            lambda: wf.cond(positive, lambda c: c.at[i].set(v), lambda c: c.at[near].add(v), c),
            lambda: wf.dynamic_update_slice(c, v[None], [i] + [0] * (c.ndim - 1)),
            lambda: c * 1,
            lambda: c,
            lambda: c.at[wf.stack([i, near, i])].set(wf.stack([v, v + v, v])),
        ]
        nested: list[Callable[[], Any]] = [
            lambda: wf.fori_loop(
                0, 3, lambda j, c: self.changed(c, self.place(i, j), v, depth + 1), c
            ),
            lambda: wf.while_loop(
                lambda s: s[1] < 2,
                lambda s: (self.changed(s[0], self.place(i, s[1]), v, depth + 1), s[1] + 1),
                (c, wf.tensor(0)),
            )[0],
        ]
        ways = simple + (nested if depth < 2 else [])
        return ways[self.below(len(ways))]()

    def step(self, state: Any, element: Any) -> Any:
        (c, d), (i, v) = state, element
        old = c[self.place(i, 1)] if self.below(2) else v
        new = self.changed(c, i, v)
        if self.below(2):
            new = self.changed(new, self.place(i, 1), old)
        others = [
            lambda: self.changed(d, i, new[i]),
            lambda: d,
            lambda: c,
            lambda: d.at[i].add(c[i]),
            lambda: new,
            lambda: d.at[i].set(new[self.place(i, 1)] + old),
        ]
        other = others[self.below(len(others))]()
        if not self.below(5):
            new, other = other, new
        return (new, other), (old * 2 + new[0], new, c[i], other.sum(0), old)[self.below(5)]

    def function(self, c: Any, d: Any, xs: Any, places: Any) -> Any:
        if not self.below(3):
            c = self.changed(c, places[0], xs[0])
        init = (c, d if self.below(2) else c)
        reverse = bool(self.below(2))
        (a, b), ys = wf.scan(self.step, init, (places, xs), reverse=reverse)
        if not self.below(3):
            a = self.changed(a, places[0], b[0])
        return (a, b, ys, c) if self.below(2) else (a, b, ys, a.at[0].add(a[1]))


def _runs_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "LARGE", 1)
    draw = Draw(seed)
    trace = wf.trace(draw.program(), *map(wf.tensor, draw.arrays))
    expected = Interpreted(trace).run([x.copy() for x in draw.arrays])
    compiled = wf.compile(draw.program(), donate_argnums=draw.donated)
    for threads in (1, 2):
        monkeypatch.setattr(settings, "threads", threads)
        given = [wf.tensor(x.copy()) for x in draw.arrays]
        found = [x.numpy() for x in wf.tree_leaves(compiled(*given))]
        assert_same(found, expected, f"seed {seed}")
        for number, (x, array) in enumerate(zip(given, draw.arrays, strict=True)):
            if number not in draw.donated:
                assert_same([x.numpy()], [array], f"seed {seed}: operand {number} changed")


@pytest.mark.parametrize("seed", SEEDS)
def test_random_loops_have_the_bits_of_their_calls(seed, monkeypatch):
    _runs_alike(seed, monkeypatch)


def test_a_fresh_random_loop_has_the_bits_of_its_calls(fresh_seed, monkeypatch):
    _runs_alike(fresh_seed % 2**31, monkeypatch)
