"""The variables a function reads tensors from: cells of its closure, and globals.

A compiled function looks a captured tensor up again at each call where the traced function found
it, so that a variable bound to another tensor is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from weft.core.tensor.tensor import Tensor

_MOST = 10_000  # functions looked into


@dataclass(frozen=True, eq=False)
class Variable:
    """A place that holds a tensor: a cell, or a name in a module."""

    name: str
    cell: CellType | None = None
    namespace: dict[str, Any] | None = None

    @property
    def place(self) -> tuple[int, str]:
        """What tells it from other variables: the cell, or the module and the name."""
        if self.cell is not None:
            return id(self.cell), ""
        return id(self.namespace), self.name

    def read(self) -> Any:
        """What it holds now; None if nothing."""
        if self.namespace is not None:
            return self.namespace.get(self.name)
        assert self.cell is not None
        try:
            return self.cell.cell_contents
        except ValueError:  # the variable was deleted
            return None


def find_variables(
    function: Callable[..., Any], handles: Sequence[Tensor]
) -> dict[int, tuple[Variable, ...]]:
    """For each handle (by id) the variables of `function`, and of those it calls, that hold it.

    Which of several the function has read is not known, so all of them count.
    """
    found: dict[int, dict[Any, Variable]] = {id(handle): {} for handle in handles}
    waiting: list[Any] = [function] if found else []
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        each = _function(waiting.pop())
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        for variable in _variables(each):
            value = variable.read()
            if isinstance(value, Tensor):
                if id(value) in found:
                    found[id(value)].setdefault(variable.place, variable)
            elif callable(value):
                waiting.append(value)
    return {handle: tuple(places.values()) for handle, places in found.items()}


def _function(value: Any) -> FunctionType | None:
    """The Python function inside a method, a partial, or something that wraps one."""
    for _ in range(16):
        if isinstance(value, FunctionType):
            return value
        if isinstance(value, MethodType):
            value = value.__func__
        else:
            instance = getattr(value, "__dict__", {})
            value = instance.get("__wrapped__", getattr(value, "func", None))
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
