"""The tensors of a tree by name: dotted paths, as state dicts have them.

A name is made of field names, keys and positions; modules may call their tensors differently
(`Module.state_name`), so that state dicts of other libraries fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, TypeAlias

import optree

from weft.core.common.parameters import as_sequence, shown
from weft.core.common.trees import NAMESPACE
from weft.errors import ArgumentError
from weft.nn.module import Module

_SHOWN = 6  # names that a message spells out
Chooser: TypeAlias = "str | tuple[str, ...] | list[str] | Callable[[Entry], bool]"


@dataclass(frozen=True, eq=False)
class Entry:
    """One leaf of a tree: its value, its name, and whether it is a module's buffer."""

    name: str
    value: Any
    is_buffer: bool


def entries(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Entry]:
    """The leaves of a tree with their names, from left to right."""
    accessors, leaves, _ = optree.tree_flatten_with_accessor(tree, is_leaf, namespace=NAMESPACE)
    return [
        Entry(_name(tree, accessor), leaf, _is_buffer(accessor))
        for accessor, leaf in zip(accessors, leaves, strict=True)
    ]


def _name(tree: Any, accessor: Any) -> str:
    """Steps joined by dots; from the inside out, each module may rename what lies below it."""
    owners, steps = [tree], []
    for step in accessor:
        owners.append(step(owners[-1]))
        steps.append(step.field if isinstance(step, optree.NamedTupleEntry) else step.entry)
    name = ""
    for owner, step in zip(owners[-2::-1], steps[::-1], strict=True):
        name = f"{step}.{name}" if name else str(step)
        if isinstance(owner, Module):
            name = owner.state_name(name)
    return name


def _is_buffer(accessor: Any) -> bool:
    return any(
        issubclass(step.type, Module) and step.type._declared[step.entry].get("buffer")
        for step in accessor
    )


@lru_cache(64)
def buffer_places(structure: optree.PyTreeSpec) -> tuple[bool, ...]:
    """Which leaves of a tree of this structure are buffers of modules, from left to right."""
    return tuple(_is_buffer(accessor) for accessor in structure.accessors())


def as_chooser(op: str, where: Chooser) -> Callable[[Entry], bool]:
    """A test of entries, from one, or from patterns of names such as `"*.bias"`."""
    if callable(where):
        return where
    patterns = (where,) if isinstance(where, str) else as_sequence(op, "where", where)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise ArgumentError(f"{op}: expected a function or patterns of names, got {shown(where)}")
    return lambda entry: matches(entry.name, patterns)


def chosen(op: str, where: Chooser, tree: Any) -> list[bool]:
    """Which leaves of a tree are meant; patterns that fit no name are a mistake.

    Places where a part of a tree has None count: another part has the leaf.
    """
    is_chosen, found = as_chooser(op, where), entries(tree)
    flags = [bool(is_chosen(entry)) for entry in found]
    if not callable(where) and where and found and not any(flags):
        places = entries(tree, lambda value: value is None)
        if not any(map(is_chosen, places)):
            names = some([entry.name for entry in found])
            raise ArgumentError(f"{op}: no name fits {shown(where)}\nhint: the names are {names}")
    return flags


def some(words: list[str], separator: str = ", ") -> str:
    """The first of many words, and how many more there are."""
    rest = len(words) - _SHOWN
    return separator.join(words[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name fits one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
