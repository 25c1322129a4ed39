"""What holds what around a function: the search for the places where captured tensors lie.

Variables, containers, objects and other functions are holders. Each is opened once, by the first
way that leads to it; the other ways are remembered, since any of them may lead elsewhere later.
Which of several places the function has read is not known, so all of them count.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property, partial
from pathlib import PurePath
from types import (
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from weft.compiler.variables import CONTAINERS, Shapes, Step, Variable, Way, is_tree
from weft.core.tensor.tensor import Tensor

_MOST = 100_000  # holders that are opened; if there are more, only variables themselves count
_ATOMS = frozenset({int, float, complex, str, bytes, bool, NoneType, range, slice, np.ndarray})
_OURS = __name__.partition(".")[0]
_LIBRARIES = frozenset({*sys.stdlib_module_names, _OURS, "numpy"})
_PARTIAL = ("func", "args", "keywords")
_DEFAULTS = ("__defaults__", "__kwdefaults__")
_WRAPPED = ("__wrapped__", "func")
_BROUGHT = frozenset({"__self__", *_PARTIAL, *_DEFAULTS, *_WRAPPED})  # without a name in the code
# Methods that code does not call on objects that are there.
_ASIDE = frozenset({"__init__", "__post_init__", "__new__", "__repr__", "__str__", "__del__"})
_INSTALLED = frozenset({"site-packages", "dist-packages"})

Edge = tuple[Variable, "int | None"]  # a place, and the holder (by id) that it is a step from


def find_variables(
    function: Callable[..., Any], handles: Sequence[Tensor], given: Sequence[Any] = ()
) -> dict[int, tuple[Variable, ...]]:
    """For each handle (by id) the places around `function` where it lies.

    Those are also looked for inside of objects that are `given` to the function.
    """
    if not handles:
        return {}
    search = _Search(handles)
    search.run([function, *given])
    return {id(handle): search.places(handle) for handle in handles}


class _Search:
    """Opens holders, nearest first."""

    def __init__(self, handles: Sequence[Tensor]) -> None:
        self.edges: dict[int, list[Edge]] = {id(handle): [] for handle in handles}
        self.opened: dict[int, Any] = {}
        self.shapes = Shapes()
        self.names: set[str] = set()  # that the code of functions has
        self.waiting: deque[tuple[Edge, Any]] = deque()
        self.roots: set[tuple[int, str]] = set()
        self.named: list[tuple[Variable, Any]] = []  # holders of which only those names count
        self.members: dict[type, _Members] = {}
        self.classes: set[type] = set()  # that code may make objects of

    def run(self, first: Iterable[Any]) -> None:
        """Open everything that can be reached."""
        for each in first:
            self.start(Variable(type(each).__name__, object=each))
        known: set[str] = set()
        while self.waiting:
            self.drain()
            fresh, known = self.names - known, set(self.names)
            for kind in list(self.members) if fresh else ():
                self.open_methods(kind, fresh)
            for place, holder in list(self.named) if fresh else ():
                self.open_names(place, holder, fresh)

    def drain(self) -> None:
        """Open what waits, and what that leads to."""
        while self.waiting:
            edge, value = self.waiting.popleft()
            number = id(value)
            if isinstance(value, Tensor):
                if number in self.edges:
                    self.edges[number].append(edge)
                continue
            self.edges.setdefault(number, []).append(edge)
            if number not in self.opened and len(self.opened) < _MOST:
                self.opened[number] = value
                self.open(edge[0], value)

    def start(self, root: Variable) -> None:
        """Look at a variable, once."""
        if root.root not in self.roots:
            self.roots.add(root.root)
            self.add(root, root.held(), None)

    def add(self, place: Variable, value: Any, holder: Any) -> None:
        """Look at what is at a place, if tensors may lie there."""
        if _is_worth(value):
            self.waiting.append(((place, None if holder is None else id(holder)), value))

    def step(self, place: Variable, holder: Any, way: Way, key: Any, value: Any) -> None:
        """Look at what a holder holds."""
        if _is_worth(value):
            step = Step(way, type(holder), key, self.shapes.of(holder))
            self.add(place.inside(step), value, holder)

    def open(self, place: Variable, holder: Any) -> None:
        """Look at all that something holds."""
        if isinstance(holder, FunctionType):
            self.open_function(place, holder)
        elif isinstance(holder, MethodType):
            if place.is_fixed:
                self.start(Variable("self", object=holder.__self__))
            else:
                self.step(place, holder, Way.ATTRIBUTE, "__self__", holder.__self__)
            self.start(Variable(place.name, object=holder.__func__))
        elif isinstance(holder, type | ModuleType):
            self.named.append((place, holder))
            self.open_names(place, holder, self.names)
        elif isinstance(holder, partial):
            for key in _PARTIAL:
                self.step(place, holder, Way.ATTRIBUTE, key, getattr(holder, key))
        elif isinstance(holder, ref):
            self.step(place, holder, Way.REFERENT, None, holder())
        else:
            self.open_object(place, holder)

    def open_function(self, place: Variable, function: FunctionType) -> None:
        """Look at a function's cells, globals, defaults and attributes."""
        code = function.__code__
        names = _names(code)
        self.names |= names
        rows = zip(code.co_freevars, function.__closure__ or (), strict=True)
        for number, (name, cell) in enumerate(rows):
            root = Variable(name, cell=cell)
            if place.is_fixed:
                self.start(root)
            elif _is_worth(root.held()):
                step = Step(Way.CELL, FunctionType, number, code, name)
                self.add(place.inside(step), root.held(), function)
        for key in _DEFAULTS:
            self.step(place, function, Way.ATTRIBUTE, key, getattr(function, key))
        for key, value in list(vars(function).items()):
            if key != "__wrapped__":  # which is in a cell, if it is called
                self.step(place, function, Way.OWN, key, value)
        if not _is_library(function.__module__):
            for name in sorted(names & function.__globals__.keys()):
                self.start(Variable(name, namespace=function.__globals__))

    def open_object(self, place: Variable, holder: Any) -> None:
        """Look at the items and attributes of an object, and at its class."""
        kind = type(holder)
        if isinstance(holder, dict):
            for key, value in _worthy(dict.items(holder)):
                self.step(place, holder, Way.ENTRY, key, value)
        elif isinstance(holder, CONTAINERS):
            for number, value in _worthy(enumerate(holder)):
                self.step(place, holder, Way.ITEM, number, value)
        if _is_ours(kind):
            for key in _WRAPPED:
                self.step(place, holder, Way.ATTRIBUTE, key, getattr(holder, key, None))
            return
        for key, value in list(_attributes(holder).items()):
            self.step(place, holder, Way.OWN, key, value)
        for key in _slots(kind):
            self.step(place, holder, Way.ATTRIBUTE, key, getattr(holder, key, None))
        if kind not in CONTAINERS:
            self.named.append((place, holder))
            self.open_names(place, holder, self.names)

    def open_names(self, place: Variable, holder: Any, names: set[str]) -> None:
        """Look at attributes of a module or a class that code has names of, and at methods."""
        if isinstance(holder, ModuleType):
            for name in sorted(names & vars(holder).keys()):
                self.start(Variable(name, namespace=vars(holder)))
            return
        kind = holder if isinstance(holder, type) else type(holder)
        if kind not in self.members:
            self.members[kind] = _members(kind)
            self.open_methods(kind, self.names)
        if kind is holder and kind not in self.classes:
            self.classes.add(kind)
            self.open_methods(kind, self.names)
        for name, value in self.members[kind].held:
            if name in names and getattr(holder, name, None) is value:
                self.step(place, holder, Way.ATTRIBUTE, name, value)

    def open_methods(self, kind: type, names: set[str]) -> None:
        """Look at methods that code has names of, or that operators call."""
        aside = frozenset() if kind in self.classes else _ASIDE
        for name, function in self.members[kind].functions:
            if name in names or (name.startswith("__") and name not in aside):
                self.start(Variable(name, object=function))

    def places(self, handle: Tensor) -> tuple[Variable, ...]:
        """All places of a tensor; only those with names in the code, if there are such.

        Where an object keeps what its methods do not name, such as what was there before, it may
        hold others later without any effect.
        """
        found: list[Variable] = []
        for place, holder in self.edges[id(handle)]:
            found.append(place)
            while holder is not None:
                (first, outer), *others = self.edges[holder]
                rest = place.steps[len(first.steps) :]
                found += [other.inside(*rest) for other, _ in others]
                holder = outer
        if len(self.opened) >= _MOST:  # of several tensors, some would be seen and some not
            return tuple(place for place in found if not place.steps)
        return tuple(filter(self.is_named, found)) or tuple(found)

    def is_named(self, place: Variable) -> bool:
        """Whether code has names for all attributes on the way to a place."""
        attributes = (step for step in place.steps if step.way in (Way.OWN, Way.ATTRIBUTE))
        return all(step.key in self.names or step.key in _BROUGHT for step in attributes)


def _worthy(items: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Items that are no numbers and texts, nor tuples and lists of such: there may be many."""
    found = [(key, value) for key, value in items if type(value) not in _ATOMS]
    return [(key, value) for key, value in found if not _is_flat(value)]


def _is_flat(value: Any) -> bool:
    return type(value) in (tuple, list) and all(type(x) in _ATOMS for x in value)


def _is_worth(value: Any) -> bool:
    """Whether something is a tensor, or one may lie inside."""
    kind = type(value)
    if kind in _ATOMS:
        return False
    if issubclass(kind, (Tensor, FunctionType, MethodType, partial, ref, *CONTAINERS)):
        return True
    if issubclass(kind, type):
        return not _is_library(value.__module__)
    if issubclass(kind, ModuleType):
        return not _is_library(value.__name__)
    if _is_ours(kind):
        return hasattr(value, "__wrapped__") or hasattr(value, "func")
    return bool(_attributes(value)) or any(_slots(kind)) or not _is_library(kind.__module__)


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object itself; none if it stands for another, which may be gone."""
    try:
        found = getattr(value, "__dict__", {})
    except (LookupError, ReferenceError, RuntimeError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_ours(kind: type) -> bool:
    """Whether a class is weft's own, and no tree that holds tensors of users."""
    return kind.__module__.partition(".")[0] == _OURS and not is_tree(kind)


def _is_library(module: str | None) -> bool:
    """Whether a module has no tensors of users among its names: it is installed without weft."""
    package = (module or "").partition(".")[0]
    if package in _LIBRARIES:
        return True
    found = sys.modules.get(module or "")
    return found is not None and _is_without_weft(found, len(vars(found)))


@cache
def _is_without_weft(module: ModuleType, count: int) -> bool:
    """Whether an installed module with so many names has none of weft's among them."""
    names = vars(module)
    if not _INSTALLED.intersection(PurePath(str(names.get("__file__", ""))).parts):
        return False
    return not any(_is_of_weft(value) for value in list(names.values()))


def _is_of_weft(value: Any) -> bool:
    """Whether something is weft itself, or a class, a function or an object of it."""
    kind = type(value)
    if issubclass(kind, ModuleType):
        return str(value.__name__).partition(".")[0] == _OURS
    made = value if issubclass(kind, type | FunctionType) else kind
    return str(made.__module__).partition(".")[0] == _OURS


def _slots(kind: type) -> Iterator[str]:
    """Names of attributes that an object has outside of its dict."""
    for each in kind.__mro__:
        if not _is_library(each.__module__):
            for name, value in vars(each).items():
                if type(value) is MemberDescriptorType:
                    yield name


class _Members(NamedTuple):
    """What a class and those it inherits from have: functions, and what may hold tensors."""

    functions: list[tuple[str, Any]]
    held: list[tuple[str, Any]]


def _members(kind: type) -> _Members:
    found = _Members([], [])
    for each in kind.__mro__:
        if not _is_library(each.__module__) or is_tree(each):
            for name, value in list(vars(each).items()):
                functions = _functions(value)
                found.functions.extend((name, function) for function in functions)
                if not functions and not name.startswith("__") and _is_worth(value):
                    found.held.append((name, value))
    return found


def _functions(value: Any) -> tuple[Any, ...]:
    """The functions that an attribute of a class calls."""
    if isinstance(value, property):
        return () if value.fget is None else (value.fget,)
    if isinstance(value, cached_property):
        return (value.func,)
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, FunctionType):
        return (value,)
    if isinstance(getattr(type(value), "__get__", None), FunctionType):
        return (type(value).__get__, value)
    is_ours = _is_ours(type(value)) and not isinstance(value, Tensor)
    return (value,) if is_ours and callable(value) else ()


def _names(code: CodeType) -> set[str]:
    """Names that a function and those defined inside it look up."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names
