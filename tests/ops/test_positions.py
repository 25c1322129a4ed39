"""What NumPy's functions take by position or by name, functions of the same name take so too."""

from __future__ import annotations

import inspect
from inspect import Parameter
from typing import Any

import numpy as np
import pytest

import weft as wf

PLACES = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
NAMESPACES = {"": (wf, np), "linalg": (wf.linalg, np.linalg), "fft": (wf.fft, np.fft)}
# Sums take `keepdims` after the axis; frequencies have a dtype here; the bounds of `clip` are `min`
# and `max` by position, of which NumPy's `a_min` and `a_max` are other names.
OTHERWISE = frozenset(
    "sum prod mean std var nansum nanprod nanmean nanvar nanstd fftfreq rfftfreq clip".split()
)
CALLS: list[Any] = [  # among them such as NumPy's own signatures are not told of
    lambda xp, x: xp.zeros((2, 3), "int32"),
    lambda xp, x: xp.ones(4, bool),
    lambda xp, x: xp.full((2, 2), 7, "float32"),
    lambda xp, x: xp.zeros_like(x, "int16"),
    lambda xp, x: xp.asarray([1, 2], "float32"),
    lambda xp, x: xp.arange(1, 9, 2, "float32"),
    lambda xp, x: xp.linspace(0, 1, 5, False),
    lambda xp, x: xp.logspace(0, 3, 4, False, 2.0, "float32"),
    lambda xp, x: xp.eye(3, 4, 1, "float32"),
    lambda xp, x: xp.tri(3, 4, -1, "int32"),
    lambda xp, x: xp.tril(x, -1),
    lambda xp, x: xp.triu(x, 1),
    lambda xp, x: xp.stack([x, x], -1),
    lambda xp, x: xp.concatenate([x, x], 1),
    lambda xp, x: xp.roll(x, 2, 1),
    lambda xp, x: xp.flip(x, 0),
    lambda xp, x: xp.repeat(x, 3, 1),
    lambda xp, x: xp.cumsum(x, 1, "float32"),
    lambda xp, x: xp.clip(x, -0.5, 0.5),
    lambda xp, x: xp.diff(x, 1, 0, 0.0, 1.0),
    lambda xp, x: xp.tensordot(x, x, ((0, 1), (0, 1))),
    lambda xp, x: xp.searchsorted(x[0], x[1], "right"),
    lambda xp, x: xp.isclose(x, x + 1e-3, 1e-2, 1e-6),
    lambda xp, x: xp.allclose(x, x + 1, 0.1, 5.0),
    lambda xp, x: xp.array_equal(x, x / 0 * 0, True),
    lambda xp, x: xp.trapezoid(x, None, 0.5, 0),
    lambda xp, x: xp.trapezoid(x, x=x[0], axis=1),
    lambda xp, x: xp.linspace(start=0, stop=1, num=5),
    lambda xp, x: xp.moveaxis(x, source=0, destination=1),
    lambda xp, x: xp.take(x, indices=[2, 0], axis=1),
    lambda xp, x: xp.vander(x[0], 3, True),
    lambda xp, x: xp.cov(x, None, False),
    lambda xp, x: xp.histogram(x, 4, None, True)[0],
]


def names(function: Any) -> tuple[dict[str, Parameter], list[str]]:
    """The parameters of a function, and the names of those that have a place."""
    found = dict(inspect.signature(function).parameters)
    return found, [p.name for p in found.values() if p.kind in PLACES]


def _takes_any_number(function: Any) -> bool:
    return any(p.kind == p.VAR_POSITIONAL for p in names(function)[0].values())


def shared() -> list[Any]:
    """Functions that NumPy has too, where both tell what they take."""
    made = []
    for space, (ours, theirs) in NAMESPACES.items():
        for name in sorted(vars(ours)):
            own, other = getattr(ours, name), getattr(theirs, name, None)
            if name.startswith("_") or not inspect.isfunction(own) or not callable(other):
                continue
            if name in OTHERWISE or _takes_any_number(own):
                continue
            try:
                inspect.signature(other)
            except ValueError:
                continue
            made.append(pytest.param(own, other, id=f"{space}.{name}".strip(".")))
    return made


@pytest.mark.parametrize("own, other", shared())
def test_parameters_stand_where_numpy_has_them(own: Any, other: Any) -> None:
    ours, places = names(own)
    for place, name in enumerate(names(other)[1]):
        if place and name not in ours:
            break  # what follows has no place here that NumPy's could have
        if name in ours:
            assert places[place : place + 1] == [name]


@pytest.mark.parametrize("own, other", shared())
def test_parameters_have_the_names_that_numpy_gives_them(own: Any, other: Any) -> None:
    ours = dict(names(own)[0])
    if own is wf.linalg.matrix_power:
        del ours["n"]  # the standard's has no name
    named = [p for p in names(other)[0].values() if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    for theirs in named[1:]:
        if theirs.name in ours:
            assert ours[theirs.name].kind is not Parameter.POSITIONAL_ONLY


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.filterwarnings("ignore:.*(divide|invalid):RuntimeWarning")
def test_calls_by_position_give_what_numpy_gives(call: Any) -> None:
    x = np.sort(np.random.default_rng(3).standard_normal((4, 5)), 1).astype(np.float32)
    want, found = np.asarray(call(np, x)), call(wf, wf.tensor(x))
    assert found.shape == want.shape
    np.testing.assert_allclose(found.host(), want, 1e-5, 1e-6)
