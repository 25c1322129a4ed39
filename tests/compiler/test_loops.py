"""Loops as steps of a program: what a step hands on is not copied where it lies already."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler.native import Native
from weft.compiler.steps import Copy, ScanLoop

SIZE = 100  # too large for registers


def normal(*shape: int, seed: int = 0) -> wf.Tensor:
    return wf.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def delays(h: Any, xs: Any, reverse: bool) -> Any:
    """Two carries that are what came before, one of them twice as late, and a sum."""

    def step(carry: Any, x: Any) -> Any:
        last, older, total = carry
        return (x, last, total * 0.5 + older), (last - x, older)

    return wf.scan(step, (h, h * 2.0, h), xs, reverse=reverse)


def states(h: Any, xs: Any, reverse: bool) -> Any:
    """States that are stacked as well, one of them twice, one as it was before the step."""

    def step(carry: Any, x: Any) -> Any:
        one, two, still = carry
        one, two = wf.sin(one + x), one * x
        return (one, two, still), (one, two, two, still, carry[0])

    return wf.scan(step, (h, h * 2.0, h), xs, reverse=reverse)


def nested(h: Any, xs: Any, reverse: bool) -> Any:
    def step(carry: Any, x: Any) -> Any:
        (last, older, total), ys = delays(carry, xs * x[:1], reverse)
        (one, two, _), more = states(carry, xs, reverse)
        return total + last * one, (older, two, ys[0], more[1])

    return wf.scan(step, h, xs)


@pytest.mark.parametrize("function", [delays, states, nested])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 7])
def test_carries_that_are_parts_of_sequences_have_the_bits_of_single_calls(
    function: Any, reverse: bool, length: int
) -> None:
    h, xs = normal(SIZE), normal(length, SIZE, seed=1)
    kept = xs.numpy().tobytes()
    alone = function(h, xs, reverse)
    found = wf.compile(lambda h, xs: function(h, xs, reverse))(h, xs)
    for a, b in zip(wf.tree_leaves(found), wf.tree_leaves(alone), strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()
    assert xs.numpy().tobytes() == kept


def test_a_carry_that_is_part_of_a_sequence_is_not_copied_at_each_step() -> None:
    steps = Native(
        wf.trace(lambda h, xs: delays(h, xs, False), normal(SIZE), normal(7, SIZE))
    ).steps
    (loop,) = (step for step in steps if isinstance(step, ScanLoop))
    assert [carry.changes for carry in loop.carries] == [False, True, True]
    copied = [step.target for step in loop.body if isinstance(step, Copy)]
    assert loop.carries[0].home not in copied and loop.carries[0].then not in copied


def test_a_state_that_is_stacked_is_written_once() -> None:
    def step(h: Any, x: Any) -> Any:
        h = wf.sin(h + x)
        return h, h

    steps = Native(
        wf.trace(lambda h, xs: wf.scan(step, h, xs), normal(SIZE), normal(7, SIZE))
    ).steps
    (loop,) = (step for step in steps if isinstance(step, ScanLoop))
    assert not any(isinstance(step, Copy) for step in loop.body)
