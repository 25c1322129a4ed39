"""Tensors that compiled functions find inside of what variables hold: looked up at each call."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import weft as wf

Pair = namedtuple("Pair", "left right")
X = wf.tensor([1.0, 2.0])


class Plain:
    """An object of no library's."""

    def __init__(self, weight: Any) -> None:
        self.weight = weight

    def __call__(self, a: Any) -> Any:
        return a * self.weight

    @partial(wf.compile, static_argnames="self")
    def compiled(self, a: Any) -> Any:
        return a * self.weight


@dataclass
class Scaled(wf.nn.Module):
    weight: wf.Tensor
    factor: float = wf.nn.static(default=1.0)

    def __call__(self, a: Any) -> Any:
        return a * self.weight * self.factor


def full(value: float) -> Any:
    return wf.full(2, value)


def of_dict() -> Any:
    held = {"inner": {"w": full(1)}}
    return lambda a: a * held["inner"]["w"], lambda v: held["inner"].update(w=full(v))


def of_list() -> Any:
    held = [full(0), full(1)]
    return lambda a: a * held[1], lambda v: held.__setitem__(1, full(v))


def of_variable() -> Any:
    held = {"w": full(1)}

    def change(v: float) -> None:
        nonlocal held
        held = {"w": full(v)}

    return lambda a: a * held["w"], change


def of_named_tuple() -> Any:
    held = Pair(full(0), full(1))

    def change(v: float) -> None:
        nonlocal held
        held = held._replace(right=full(v))

    return lambda a: a * held.right, change


def of_object() -> Any:
    held = Plain(full(1))
    return lambda a: held(a), lambda v: setattr(held, "weight", full(v))


def of_method() -> Any:
    held = Plain(full(1))
    return held.__call__, lambda v: setattr(held, "weight", full(v))


def of_callable() -> Any:
    held = Plain(full(1))
    return held, lambda v: setattr(held, "weight", full(v))


def of_partial() -> Any:
    held = {"w": full(1)}
    return partial(lambda p, a: a * p["w"], held), lambda v: held.update(w=full(v))


def of_module() -> Any:
    held = {"net": Scaled(full(1))}
    return lambda a: held["net"](a), lambda v: held.update(net=Scaled(full(v)))


def of_helper() -> Any:
    held = {"w": full(1)}

    def helper(a: Any) -> Any:
        return a * held["w"]

    return lambda a: helper(a), lambda v: held.update(w=full(v))


HOLDERS = {
    f.__name__: f
    for f in (
        of_dict,
        of_list,
        of_variable,
        of_named_tuple,
        of_object,
        of_method,
        of_callable,
        of_partial,
        of_module,
        of_helper,
    )
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_is_held_elsewhere_is_seen(holder):
    function, change = HOLDERS[holder]()
    compiled = wf.compile(function)
    for value in (1, 5, 7):
        change(value)
        for _ in range(3):  # the general way in, and the quick one
            assert compiled(X).tolist() == [value, 2 * value]
        slope = wf.grad(lambda a: compiled(a).sum())(X)
        assert slope.tolist() == [value, value]
    assert compiled.stats.traces == 1


def test_an_object_that_is_a_static_argument_is_looked_into():
    one, two = Plain(full(1)), Plain(full(3))
    for value in (1, 5):
        one.weight = full(value)
        for _ in range(3):
            assert one.compiled(X).tolist() == [value, 2 * value]
            assert two.compiled(X).tolist() == [3, 6]


def test_another_structure_is_traced_again():
    held = [full(1)]
    compiled = wf.compile(lambda a: sum((a * w for w in held), 0.0))
    for count in (1, 2, 3):
        for _ in range(3):
            assert compiled(X).tolist() == [count, 2 * count]
        assert compiled.stats.traces == count
        held.append(full(1))
    held.clear()
    assert compiled(X) == 0.0


def test_a_module_with_other_settings_is_traced_again():
    held = Scaled(full(1), factor=2.0)
    compiled = wf.compile(lambda a: held(a))
    for factor, traces in ((2.0, 1), (3.0, 2), (3.0, 2), (2.0, 2)):
        held = Scaled(full(factor), factor=factor)
        for _ in range(3):
            assert compiled(X).tolist() == [factor**2, 2 * factor**2]
        assert compiled.stats.traces == traces


def test_places_that_held_one_tensor_may_part():
    weight = full(1)
    first, second = {"w": weight}, {"w": weight}
    compiled = wf.compile(lambda a: a * first["w"] + 10 * a * second["w"])
    assert compiled(X).tolist() == [11, 22]
    first["w"] = full(2)
    for _ in range(3):
        assert compiled(X).tolist() == [12, 24]
    assert compiled.why_recompiled() == [
        "captured tensor first['w']: second['w'] is no longer the same one"
    ]
    second["w"] = full(3)
    assert compiled(X).tolist() == [32, 64]
    assert compiled.stats.traces == 2


def test_what_is_gone_is_told_by_the_function_itself():
    held = {"w": full(1)}
    compiled = wf.compile(lambda a: a * held["w"])
    assert compiled(X).tolist() == [1, 2]
    del held["w"]
    with pytest.raises(KeyError, match="w"):
        compiled(X)
    held["w"] = wf.full(1, 4.0)
    assert compiled(X).tolist() == [4, 8]
    assert any("held['w']" in reason for reason in compiled.why_recompiled())


def test_holders_that_hold_themselves_are_looked_into_once():
    held: dict[str, Any] = {"w": full(1)}
    held["self"] = [held]
    compiled = wf.compile(lambda a: a * held["w"])
    for value in (1, 2):
        held["w"] = full(value)
        assert compiled(X).tolist() == [value, 2 * value]
