"""Where a function finds tensors that are no arguments: cells of its closure, globals, its object.

A compiled function looks a captured tensor up again at each call where the traced function found
it, so that a variable bound to another tensor is seen. The tensor may lie inside of what a variable
holds: in dicts, lists, attributes and other functions, which then are like arguments, as another
structure is traced again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, NamedTuple

import optree

from weft.core.common.parameters import shown
from weft.core.common.trees import NAMESPACE, tree_structure
from weft.errors import WeftError

CONTAINERS = (dict, list, tuple, deque)


class Way(Enum):
    """How something is taken from what holds it: an expression in `holder` and `key`."""

    ITEM = "{holder}[{key}]"
    ENTRY = "dict_get({holder}, {key})"
    OWN = "{holder}.__dict__.get({key})"
    ATTRIBUTE = "getattr({holder}, {key}, None)"
    CELL = "{holder}.__closure__[{key}].cell_contents"
    REFERENT = "{holder}()"


class Step(NamedTuple):
    """From what holds something to what it holds: an item of a container, or an attribute."""

    way: Way
    kind: type  # of what holds it
    key: Any
    same: Any  # what `shape_of` says of the holder
    name: str = ""  # of a cell

    def __str__(self) -> str:
        if self.way in (Way.ITEM, Way.ENTRY):
            return f"[{self.key!r}]"
        if self.way is Way.REFERENT:
            return "()"
        return f".{self.name or self.key}"

    def take(self, holder: Any, shapes: Shapes) -> Any:
        """What is held now; None if nothing, or if the holder has changed."""
        if type(holder) is not self.kind:
            return None
        if self.same is not None and not is_alike(shapes.of(holder), self.same):
            return None
        try:
            return _TAKERS[self.way](holder, self.key)
        except (IndexError, ValueError):  # another thread took it; the variable was deleted
            return None


_TAKERS: dict[Way, Callable[[Any, Any], Any]] = {
    Way.ITEM: lambda holder, key: holder[key],
    Way.ENTRY: dict.get,
    Way.OWN: lambda holder, key: holder.__dict__.get(key),
    Way.ATTRIBUTE: lambda holder, key: getattr(holder, key, None),
    Way.CELL: lambda holder, key: holder.__closure__[key].cell_contents,
    Way.REFERENT: lambda holder, key: holder(),
}


@dataclass(frozen=True, eq=False)
class Variable:
    """A place that holds a tensor: a cell, a name in a module, an object, or somewhere inside."""

    name: str
    cell: CellType | None = None
    namespace: dict[str, Any] | None = None
    object: Any = None
    steps: tuple[Step, ...] = ()

    @property
    def root(self) -> tuple[int, str]:
        """What tells it from other variables: the cell, the object, or the module and the name."""
        if self.namespace is None:
            return id(self.object if self.cell is None else self.cell), ""
        return id(self.namespace), self.name

    @property
    def is_fixed(self) -> bool:
        """Whether it is an object itself, which no variable can hold another one instead of."""
        return self.namespace is None and self.cell is None and not self.steps

    @property
    def path(self) -> str:
        """The place as it is written."""
        return self.name + "".join(map(str, self.steps))

    def inside(self, *steps: Step) -> Variable:
        """A place inside of what this one holds."""
        return replace(self, steps=(*self.steps, *steps))

    def held(self) -> Any:
        """What the variable itself holds now; None if nothing."""
        if self.namespace is not None:
            return self.namespace.get(self.name)
        if self.cell is None:
            return self.object
        try:
            return self.cell.cell_contents
        except ValueError:  # the variable was deleted
            return None

    def read(self, shapes: Shapes) -> Any:
        """What is at the place now; None if nothing, or if what is around has changed."""
        found = self.held()
        for step in self.steps:
            found = step.take(found, shapes)
        return found

    def change(self) -> str:
        """Why there is no tensor at the place any more, in words."""
        found, place, shapes = self.held(), self.name, Shapes()
        for step in self.steps:
            if type(found) is not step.kind:
                return f"{place} was a {step.kind.__name__}, now {shown(found)}"
            if step.same is not None and not is_alike(shapes.of(found), step.same):
                if isinstance(found, CONTAINERS):
                    return f"the length of {place} was {step.same}, now {len(found)}"
                what = "has another structure" if is_tree(step.kind) else "is another function"
                return f"{place} {what} now"
            found, place = step.take(found, shapes), f"{place}{step}"
        return "is no tensor there any more"


class Shapes:
    """What `shape_of` says of holders, asked once of each: for places that are read together."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}

    def of(self, holder: Any) -> Any:
        """The shape of a holder, as it was the first time."""
        if id(holder) not in self._known:
            self._known[id(holder)] = holder, shape_of(holder)
        return self._known[id(holder)][1]


def shape_of(holder: Any) -> Any:
    """What must be the same of two holders of one type, so that a trace is right for both.

    That is how many things a container has, the code of what can be called, and what is around the
    leaves of an object that is a tree; None for other objects.
    """
    kind = type(holder)
    if issubclass(kind, CONTAINERS):
        return len(holder)
    if kind is FunctionType:
        return holder.__code__
    if kind is MethodType:
        return holder.__func__
    if kind is partial:
        return shape_of(holder.func)
    return structure_of(holder) if is_tree(kind) else None


def is_alike(one: Any, other: Any) -> bool:
    """Whether two shapes are equal; not if constants in them cannot be compared."""
    try:
        return bool(one == other)
    except (WeftError, TypeError, ValueError):
        return False


def is_tree(kind: type) -> bool:
    """Whether objects of a class are trees."""
    return optree.register_pytree_node.get(kind, namespace=NAMESPACE) is not None


def structure_of(value: Any) -> Any:
    """What is around the leaves of a tree; None if it is none."""
    try:
        return tree_structure(value)
    except (WeftError, TypeError, ValueError):
        return None
