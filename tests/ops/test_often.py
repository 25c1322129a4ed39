"""Small calls of composed functions that come often are compiled, with the bits they had."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.config import settings
from weft.core.common.slots import FUNCTIONS
from weft.ops import often as module
from weft.ops.often import often

RNG = np.random.default_rng(0)
X = wf.tensor(RNG.standard_normal((5, 6)).astype(np.float32))
V = wf.tensor(RNG.random(9).astype(np.float32))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of functions that are compiled; that happens at the second call of a kind."""
    names: list[str] = []
    compile_ = FUNCTIONS["compile"]

    def told(function: Any) -> Any:
        names.append(function.__name__)
        return compile_(function)

    clock = itertools.count()
    monkeypatch.setattr(module, "perf_counter", lambda: 0.0006 * next(clock))
    monkeypatch.setitem(FUNCTIONS, "compile", told)
    monkeypatch.setattr(settings, "often_ms", 1)
    return names


def many(function: Any, *args: Any, **keywords: Any) -> list[Any]:
    """What several calls give, one after the other."""
    return [function(*args, **keywords) for _ in range(5)]


CALLS = {
    "median": lambda: wf.median(V),
    "quantile": lambda: wf.quantile(X, 0.3, axis=1, keepdims=True),
    "interp": lambda: wf.interp(V, wf.sort(V), V),
    "gradient": lambda: wf.gradient(V),
    "histogram": lambda: wf.histogram(V, 4),
    "einsum": lambda: wf.einsum("ij,kj->ik", X, X),
    "std": lambda: X.std(axis=0),
    "norm": lambda: wf.linalg.norm(X),
    "roll": lambda: wf.roll(X, 2, axis=1),
    "stack": lambda: wf.stack([V, V * 2], axis=1),
    "bincount": lambda: wf.bincount(wf.tensor([1, 5, 1])),
    "sinc": lambda: wf.sinc(X),
    "isclose": lambda: wf.isclose(X, X + 1e-6, equal_nan=True),
    "nanmax": lambda: wf.nanmax(X, axis=0),
    "cross_entropy": lambda: wf.cross_entropy(X, wf.tensor([0, 1, 2, 3, 4])),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_bit_changes_when_a_call_is_compiled(name: str, compiled: list[str]) -> None:
    found = [tuple(x.numpy().tobytes() for x in wf.tree_leaves(made)) for made in many(CALLS[name])]
    assert compiled and len(set(found)) == 1


def test_each_kind_of_call_has_its_own_code(compiled: list[str]) -> None:
    @often
    def scaled(x: Any, by: Any = 1, *, parts: Any = ()) -> Any:
        for _ in range(40):
            x = x * by
        return sum(parts, x)

    for by in (1, True, 1.0, -1.0, 0.0, -0.0):
        for x in (V, wf.tensor([2, 3])):
            found = many(scaled, x, by, parts=[x, x])[-1]
            want = x
            for _ in range(40):
                want = want * by
            want = want + x + x
            assert found.dtype == want.dtype
            assert found.numpy().tobytes() == want.numpy().tobytes()
    assert len(compiled) == 12


def test_results_are_tensors_of_their_own(compiled: list[str]) -> None:
    x = wf.tensor([1.0, 2.0, 3.0])
    found = many(wf.roll, x, 1)[-1]
    found[0] = 9.0
    x[1] = 7.0
    assert wf.roll(x, 1).tolist() == [3.0, 1.0, 7.0] and found.tolist() == [9.0, 1.0, 2.0]
    assert compiled == ["roll"]


def test_nobody_who_watches_gets_a_compiled_call(compiled: list[str]) -> None:
    x = V[:7].copy()
    many(wf.median, x)
    assert compiled == ["median"]
    np.testing.assert_allclose(wf.grad(wf.median)(x).numpy().sum(), 1.0)
    w = wf.tensor(x.numpy())
    w.requires_grad = True
    wf.median(w).backward()
    assert w.grad.numpy().sum() == 1.0
    rows = wf.vmap(wf.median)(wf.stack([x, x + 1.0]))
    np.testing.assert_array_equal(rows.numpy(), [wf.median(x).item(), wf.median(x + 1.0).item()])
    with wf.profile() as profile:
        wf.median(x)
    assert any(event.kind == "op" for event in profile.events)


def test_what_depends_on_values_is_not_compiled(compiled: list[str]) -> None:
    @often
    def cut(x: Any) -> Any:
        for _ in range(20):
            x = x + 0.0
        return x[: int(x[0].item())]

    for n in (1.0, 3.0, 2.0):
        assert many(cut, wf.tensor([n, 5.0, 6.0]))[-1].shape == (int(n),)
    assert compiled == ["cut"]  # tried once, for the kind of all three


def test_errors_are_those_of_the_plain_call(compiled: list[str]) -> None:
    x = X[:3].copy()
    many(wf.cross_entropy, x, wf.tensor([0, 1, 2]))
    assert compiled == ["cross_entropy"]
    with pytest.raises(wf.errors.IndexingError, match="cross_entropy: target: index 6"):
        wf.cross_entropy(x, wf.tensor([0, 1, 6])).numpy()
    with pytest.raises(wf.errors.ShapeError):
        wf.cross_entropy(x, wf.tensor([0, 1]))


def test_never_is_never(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "often_ms", 0)
    many(wf.median, V * 3.0)
    large = wf.zeros(settings.small_elements + 1)
    monkeypatch.setattr(settings, "often_ms", 1)
    for _ in range(3):
        wf.median(large)
    assert not compiled


def test_a_default_dtype_is_another_kind(compiled: list[str]) -> None:
    ints = wf.tensor([3, 1, 2])
    many(wf.median, ints)
    with wf.default_dtype(wf.float64):
        assert many(wf.median, ints)[-1].dtype == wf.float64
    assert wf.median(ints).dtype == wf.float32
