"""Tensors that compiled functions find inside of what variables hold: looked up at each call."""

from __future__ import annotations

import gc
from collections import defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any
from weakref import proxy, ref

import pytest

import weft as wf
from weft.compiler import holders

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


class Slotted:
    __slots__ = ("weight",)

    def __init__(self, weight: Any) -> None:
        self.weight = weight


@dataclass(frozen=True, slots=True)
class FrozenSlotted:
    weight: Any


@wf.register_dataclass
@dataclass
class Registered:
    weight: Any
    factor: float = field(default=1.0, metadata={"static": True})


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


def of_slots() -> Any:
    held = Slotted(full(1))
    return lambda a: a * held.weight, lambda v: setattr(held, "weight", full(v))


def of_frozen_slots() -> Any:
    held = FrozenSlotted(full(1))

    def change(v: float) -> None:
        nonlocal held
        held = FrozenSlotted(full(v))

    return lambda a: a * held.weight, change


def of_class() -> Any:
    held = type("Held", (), {"inner": {"w": full(1)}})
    return lambda a: a * held.inner["w"], lambda v: held.inner.update(w=full(v))


def of_class_shadowed() -> Any:
    held = type("Held", (), {"weight": full(1)})()
    return lambda a: a * held.weight, lambda v: setattr(held, "weight", full(v))


def of_python_module() -> Any:
    held = ModuleType("held")
    exec("w = None\ndef helper(a): return a * w", vars(held))
    held.w = full(1)
    return lambda a: held.helper(a), lambda v: setattr(held, "w", full(v))


def of_method_of_object() -> Any:
    weight = full(1)

    def change(v: float) -> None:
        nonlocal weight
        weight = full(v)

    class Held:
        @property
        def twice(self) -> Any:
            return weight

        def scaled(self, a: Any) -> Any:
            return a * self.twice

    held = Held()
    return lambda a: held.scaled(a), change


def of_functions_in_a_list() -> Any:
    held = {"w": full(1)}
    functions = [lambda a: a * held["w"]]
    return lambda a: functions[0](a), lambda v: held.update(w=full(v))


def of_compiled_in_a_list() -> Any:
    held = {"w": full(1)}
    functions = [wf.compile(lambda a: a * held["w"])]
    return lambda a: functions[0](a), lambda v: held.update(w=full(v))


def of_another_closure() -> Any:
    def make(w: Any) -> Any:
        return lambda a: a * w

    inner = make(full(1))

    def change(v: float) -> None:
        nonlocal inner
        inner = make(full(v))

    return lambda a: inner(a), change


def of_another_partial() -> Any:
    inner = partial(wf.multiply, full(1))

    def change(v: float) -> None:
        nonlocal inner
        inner = partial(wf.multiply, full(v))

    return lambda a: inner(a), change


def of_another_method() -> Any:
    inner = Plain(full(1)).__call__

    def change(v: float) -> None:
        nonlocal inner
        inner = Plain(full(v)).__call__

    return lambda a: inner(a), change


def of_default() -> Any:
    held = {"w": full(1)}

    def function(a: Any, *, inner: Any = held) -> Any:
        return a * inner["w"]

    return lambda a: function(a), lambda v: held.update(w=full(v))


def of_attribute_of_function() -> Any:
    def function(a: Any) -> Any:
        return a * function.weight  # type: ignore[attr-defined]

    function.weight = full(1)  # type: ignore[attr-defined]
    return function, lambda v: setattr(function, "weight", full(v))


def of_deque() -> Any:
    held = deque([full(1)])
    return lambda a: a * held[0], lambda v: held.__setitem__(0, full(v))


def of_weak_reference() -> Any:
    held = Plain(full(1))
    weak = ref(held)
    return lambda a: weak()(a), lambda v: setattr(held, "weight", full(v))


HOLDERS = {name: make for name, make in list(globals().items()) if name.startswith("of_")}


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


def test_a_variable_of_the_same_name_is_not_the_place():
    weight = full(1)
    held = Plain(weight)
    compiled = wf.compile(lambda a: a * held.weight + 0 * weight)
    assert compiled(X).tolist() == [1, 2]
    held.weight = full(5)
    for _ in range(3):
        assert compiled(X).tolist() == [5, 10]


def test_one_holder_in_two_places_may_part():
    inner = {"w": full(1)}
    held = {"a": inner, "b": inner}
    compiled = wf.compile(lambda a: a * held["b"]["w"])
    assert compiled(X).tolist() == [1, 2]
    held["b"] = {"w": full(4)}
    for _ in range(3):
        assert compiled(X).tolist() == [4, 8]
    assert compiled.stats.traces == 2


def test_a_static_function_is_looked_into():
    held = {"w": full(1)}
    compiled = wf.compile(lambda f, a: f(a), static_argnums=0)

    def function(a: Any) -> Any:
        return a * held["w"]

    for value in (1, 5):
        held["w"] = full(value)
        for _ in range(3):
            assert compiled(function, X).tolist() == [value, 2 * value]


def test_a_setting_changed_in_place_is_traced_again():
    held = Registered(full(1))
    compiled = wf.compile(lambda a: a * held.weight * held.factor)
    for factor in (1.0, 2.0, 3.0):
        held.factor = factor
        for _ in range(3):
            assert compiled(X).tolist() == [factor, 2 * factor]
    assert (
        compiled.why_recompiled()
        == ["captured tensor held.weight: held has another structure now"] * 2
    )


def test_attributes_that_no_code_names_do_not_count():
    held = Plain(full(1))
    held.history = []  # type: ignore[attr-defined]
    compiled = wf.compile(lambda a: held(a))
    for value in (1, 2, 3):
        held.weight = full(value)
        vars(held)["history"].append(held.weight)
        assert compiled(X).tolist() == [value, 2 * value]
    assert compiled.stats.traces == 1


def test_looking_up_adds_nothing_to_a_defaultdict():
    held: Any = defaultdict(lambda: full(9), w=full(1), u=full(2))
    compiled = wf.compile(lambda a: a * held["w"] if "w" in held else a)
    for _ in range(3):
        assert compiled(X).tolist() == [1, 2]
    del held["w"]
    held["v"] = full(3)
    assert compiled(X).tolist() == [1, 2]
    assert sorted(held) == ["u", "v"]


@pytest.mark.parametrize("make", [wf.negative, Plain, Scaled])
def test_what_was_replaced_is_let_go(make):
    held = {"it": make(full(-1))}
    compiled = wf.compile(lambda a: a * getattr(held["it"], "weight", held["it"]))
    for _ in range(3):
        compiled(X)
    old = ref(held["it"])
    held["it"] = make(full(2))
    for _ in range(3):
        assert abs(compiled(X)).tolist() == [2, 4]
    gc.collect()
    assert old() is None


def test_why_a_place_has_no_tensor_is_told():
    held: Any = [full(1)]
    compiled = wf.compile(lambda a: sum((a * w for w in held), 0.0))
    compiled(X)
    held.append(full(1))
    compiled(X)
    assert compiled.why_recompiled() == ["captured tensor held[0]: the length of held was 1, now 2"]
    held = (full(1),)
    compiled(X)
    assert "held was a list, now (" in compiled.why_recompiled()[-1]


def test_descriptors_are_not_asked_by_the_search():
    weight = full(1)

    class Strict:
        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance.closed:
                raise KeyError("closed")
            return weight

    class Held:
        strict = Strict()
        closed = False

    held, other = Held(), Held()
    other.closed = True
    gone = proxy(Held())
    compiled = wf.compile(lambda a: (a * held.strict, other, gone)[0])
    for value in (1, 5):
        weight = full(value)
        for _ in range(3):
            assert compiled(X).tolist() == [value, 2 * value]


def test_where_there_is_too_much_to_look_through_all_or_nothing_is_seen(monkeypatch):
    monkeypatch.setattr(holders, "_MOST", 50)
    near, far = {"w": full(1)}, [{"w": full(1)}, *([{}] for _ in range(100))]
    compiled = wf.compile(lambda a: a * near["w"] + 10 * a * far[0]["w"])
    assert compiled(X).tolist() == [11, 22]
    near["w"], far[0]["w"] = full(2), full(2)
    assert compiled(X).tolist() == [11, 22]
