"""Calls that go over their operands once run at the call up to a larger size than others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.config import settings
from weft.core.common.slots import OPS
from weft.ops import often, ready
from weft.runtime.registry import client

SHAPE = (200, 300)
LIGHT = 1 << 17


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What users have; other tests record calls of all kinds from the same size on."""
    monkeypatch.setattr(ready, "LIGHT", 8)
    yield


def drawn(seed: int, *shape: int, dtype: Any = np.float32) -> Any:
    numbers = 3 * np.random.default_rng(seed).standard_normal(shape or SHAPE)
    return numbers.astype(dtype)


x, y, v = drawn(0), drawn(1), drawn(2, 300)


def test_users_have_the_sizes_that_are_documented() -> None:
    program = "from weft.config import settings; from weft.ops import ready; import weft as wf\n"
    program += "print(settings.small_elements * ready.LIGHT, (wf.ones(131072) + 1).is_realized)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout.split() == [str(LIGHT), "True"], found.stderr


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x + y,
        lambda x, y: 2 * x - 1,
        lambda x, y: wf.tanh(x),
        lambda x, y: wf.where(x > 0, x, y),
        lambda x, y: x.sum(axis=0),
        lambda x, y: wf.max(x, axis=1),
        lambda x, y: x.astype(wf.float64),
        lambda x, y: wf.any(x > y, axis=0),
    ],
)
def test_a_pass_over_some_thousands_of_elements_runs_at_once(function: Callable[..., Any]) -> None:
    assert function(wf.tensor(x), wf.tensor(y)).is_realized


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x.mT,
        lambda x: wf.sort(x),
        lambda x: wf.cumsum(x, axis=0),
        lambda x: wf.argmax(x, axis=0),
        lambda x: x @ x.mT + 1,  # follows what waits
    ],
)
def test_calls_that_take_longer_are_recorded(function: Callable[..., Any]) -> None:
    assert not function(wf.tensor(x)).is_realized


def test_more_elements_are_recorded() -> None:
    large = wf.ones(LIGHT + 1)
    assert not (large + 1).is_realized and not (1 - large).is_realized
    assert not wf.exp(large).is_realized and not large.sum().is_realized


def test_ops_that_are_light_look_at_each_element_once() -> None:
    light = {name for name, op in OPS.items() if op.light}
    assert {"add", "exp", "where", "cast", "reduce_sum", "reduce_max", "equal"} <= light
    assert not {"matmul", "sort", "argmax", "convolution", "gather", "cholesky"} & light


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y, v: 2 * x * y - v / 3 + 0.5,
        lambda x, y, v: (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True),
        lambda x, y, v: wf.exp(x).sum(axis=0) + wf.log1p(wf.abs(y)).max(axis=0),
        lambda x, y, v: wf.where(x > y, wf.sqrt(wf.abs(x)), -y),
        lambda x, y, v: wf.softmax(x * v) @ v,
        lambda x, y, v: wf.log_softmax(x, axis=0).prod(axis=1),
        lambda x, y, v: wf.floor(x) // 2 + wf.round(y).astype(wf.int32) % 3,
        lambda x, y, v: wf.var(x, axis=(0, 1)) + wf.min(y, axis=0),
        lambda x, y, v: (x > y).sum(axis=1) + wf.all(x < 9, axis=1),
        lambda x, y, v: wf.tanh(x.mT + 1j * y.mT).sum(axis=0),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_they_have_the_bits_of_recorded_and_of_compiled_calls(
    function: Callable[..., Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [wf.tensor(a.astype(dtype)) for a in (x, y, v)]
    at_once = function(*given).numpy()
    compiled = wf.compile(function)(*given).numpy()
    monkeypatch.setattr(settings, "small_elements", 0)
    recorded = function(*given).numpy()
    assert at_once.tobytes() == recorded.tobytes() == compiled.tobytes()


@pytest.mark.parametrize("operation", ["add", "subtract", "multiply", "divide"])
@pytest.mark.parametrize("number", [2, 0.1, -0.0, float("inf"), float("nan")])
@pytest.mark.parametrize("shape", [(4,), SHAPE], ids=str)
def test_a_number_before_a_tensor_is_the_number_as_a_tensor(
    operation: str, number: Any, shape: tuple[int, ...]
) -> None:
    function, t = getattr(wf, operation), wf.tensor(drawn(3, *shape))
    expected, found = function(wf.full(shape, number, dtype=wf.float32), t), function(number, t)
    assert found.dtype == wf.float32 and found.is_realized
    assert found.numpy().tobytes() == expected.numpy().tobytes()


def test_an_integer_beyond_every_float_is_refused_in_words_on_either_side() -> None:
    t = wf.ones(4)
    for call in (lambda: 10**400 * t, lambda: t * 10**400):
        with pytest.raises(wf.errors.WeftError):
            call()


def test_results_lie_in_memory_that_is_used_again() -> None:
    memory: Any = client("cpu")
    t = wf.tensor(x)
    before = memory.allocator.stats().allocations
    for _ in range(5):
        t = 0.5 * t + t
    assert memory.allocator.stats().allocations >= before + 10


def test_composed_functions_of_such_tensors_are_compiled_when_they_come_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[str] = []

    def compile_(kind: Any, function: Any, *rest: Any) -> None:
        compiled.append(function.__name__)
        compile_as_ever(kind, function, *rest)

    compile_as_ever = often._compile
    monkeypatch.setattr(often, "_compile", compile_)
    monkeypatch.setattr(settings, "often_ms", 1)
    t = wf.tensor(drawn(4, 40, 500))
    for function in (wf.softmax, wf.log_softmax, wf.mean):
        first = function(t).numpy()
        for _ in range(200):
            last = function(t)
        assert compiled[-1] == function.__name__
        assert last.numpy().tobytes() == first.tobytes()
    wf.softmax(wf.ones(LIGHT + 1))
    assert len(compiled) == 3
