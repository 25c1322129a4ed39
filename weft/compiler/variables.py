"""Where a function finds tensors that are no arguments: cells of its closure, globals, its object.

A compiled function looks a captured tensor up again at each call where the traced function found
it, so that a variable bound to another tensor is seen. The tensor may lie inside of what a variable
holds: in dicts, lists and attributes, which then are like arguments, as another structure is traced
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from weft.core.common.trees import PyTreeDef, tree_structure
from weft.core.tensor.tensor import Tensor
from weft.errors import WeftError

_MOST = 10_000  # functions, and things inside of variables, that are looked at


class Step(NamedTuple):
    """From what holds something to what it holds: an item of a container, or an attribute."""

    kind: type  # of what holds it
    key: Any
    size: int | None  # of a container; None for an object
    structure: PyTreeDef | None  # of an object, as a tree

    def __str__(self) -> str:
        return f".{self.key}" if self.size is None else f"[{self.key!r}]"

    def take(self, holder: Any) -> Any:
        """What is held now; None if nothing, or if the holder has changed."""
        around: Any = holder
        if type(holder) is not self.kind:
            return None
        if self.size is None:
            around = vars(holder) if structure_of(holder) == self.structure else {}
        elif len(around) != self.size:
            return None
        try:
            return around[self.key]
        except (KeyError, IndexError):
            return None


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
    def path(self) -> str:
        """The place as it is written."""
        return self.name + "".join(map(str, self.steps))

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

    def read(self) -> Any:
        """What is at the place now; None if nothing, or if what is around has changed."""
        found = self.held()
        for step in self.steps:
            found = step.take(found)
        return found


def structure_of(value: Any) -> PyTreeDef | None:
    """What is around the leaves of a tree; None if it is none."""
    try:
        return tree_structure(value)
    except (WeftError, TypeError, ValueError):
        return None


def find_variables(
    function: Callable[..., Any], handles: Sequence[Tensor], given: Sequence[Any] = ()
) -> dict[int, tuple[Variable, ...]]:
    """For each handle (by id) the variables of `function`, and of those it calls, that hold it.

    Which of several the function has read is not known, so all of them count. Handles that no
    variable holds itself are looked for inside of what they hold, and inside of objects that are
    `given` to the function.
    """
    found: dict[int, list[Variable]] = {id(handle): [] for handle in handles}
    around = list(_all_variables(function)) if found else []
    around += [Variable(type(x).__name__, object=x) for x in given if _holds(x)]
    for variable in around:
        value = variable.held()
        if isinstance(value, Tensor) and id(value) in found:
            found[id(value)].append(variable)
    missing = {number: places for number, places in found.items() if not places}
    if missing:
        for place, number in _inside(around, missing):
            missing[number].append(place)
    return {number: tuple(places) for number, places in found.items()}


def _all_variables(function: Callable[..., Any]) -> Iterator[Variable]:
    """The variables of a function and of those it calls, each once."""
    waiting: list[Any] = [function]
    seen: set[int] = set()
    roots: set[tuple[int, str]] = set()
    while waiting and len(seen) < _MOST:
        each = waiting.pop()
        inner = _function(each)
        found = [Variable("self", object=x) for x in _objects(each, each is function)]
        if inner is not None and id(inner) not in seen:
            seen.add(id(inner))
            found += _variables(inner)
        for variable in found:
            if variable.root not in roots:
                roots.add(variable.root)
                yield variable
                value = variable.held()
                if callable(value) and not isinstance(value, Tensor):
                    waiting.append(value)


def _objects(value: Any, is_first: bool) -> Iterator[Any]:
    """What a method, or a partial, brings to the function it calls; an object brings itself.

    Other objects than the first are found where variables hold them.
    """
    if isinstance(value, MethodType):
        yield value.__self__
    elif isinstance(value, partial):
        yield value.args
        yield value.keywords
    elif is_first and _holds(value):
        yield value


def _inside(
    around: Sequence[Variable], wanted: dict[int, list[Variable]]
) -> Iterator[tuple[Variable, int]]:
    """The places inside of what variables hold where wanted tensors are."""
    waiting = deque((variable, variable.held()) for variable in around)
    seen: set[tuple[Any, int]] = set()
    while waiting and len(seen) < _MOST:
        place, value = waiting.popleft()
        if (place.root, id(value)) in seen:
            continue
        seen.add((place.root, id(value)))
        for step, child in _held_by(value):
            further = replace(place, steps=(*place.steps, step))
            if isinstance(child, Tensor):
                if id(child) in wanted:
                    yield further, id(child)
            elif _holds(child):
                waiting.append((further, child))


def _held_by(holder: Any) -> Iterator[tuple[Step, Any]]:
    """What a container, or an object, holds, and the way to it."""
    kind = type(holder)
    if isinstance(holder, dict | list | tuple):
        pairs = list(holder.items()) if isinstance(holder, dict) else list(enumerate(holder))
        for key, child in pairs:
            yield Step(kind, key, len(pairs), None), child
    elif _holds(holder):
        structure = structure_of(holder)
        for key, child in list(vars(holder).items()):
            yield Step(kind, key, None, structure), child


def _holds(value: Any) -> bool:
    """Whether tensors of a user's may lie inside: in a container, or an object of no library's."""
    if isinstance(value, dict | list | tuple):
        return True
    if isinstance(value, type | ModuleType | FunctionType | MethodType | Tensor):
        return False
    package, _, rest = type(value).__module__.partition(".")
    ours = package == __name__.partition(".")[0] and not rest.startswith("nn")
    return not ours and hasattr(value, "__dict__")


def _function(value: Any) -> FunctionType | None:
    """The Python function inside a method, a partial, an object, or something that wraps one."""
    for _ in range(16):
        if isinstance(value, FunctionType):
            return value
        if isinstance(value, MethodType):
            value = value.__func__
        elif isinstance(value, type):
            return None
        else:
            instance = getattr(value, "__dict__", {})
            inner = instance.get("__wrapped__", getattr(value, "func", None))
            calls = (vars(kind).get("__call__") for kind in type(value).__mro__)
            value = next(filter(None, calls), None) if inner is None else inner
    return None


def _variables(function: FunctionType) -> Iterator[Variable]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        yield Variable(name, cell=cell)
    if function.__module__.partition(".")[0] == __name__.partition(".")[0]:
        return  # globals of weft itself hold no tensors of the user's
    for name in sorted(_names(code)):
        if name in function.__globals__:
            yield Variable(name, namespace=function.__globals__)


def _names(code: CodeType) -> set[str]:
    """Names that a function and those defined inside it look up."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names
