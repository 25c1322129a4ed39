"""Trees of tensors: nested tuples, lists, dicts, dataclasses and registered classes.

optree keeps the registry and the structure; `None` is an empty tree. weft's classes and the user's
live in the namespace `weft`, so that no other library's registrations interfere.
"""

from __future__ import annotations

import atexit
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import optree
from optree import PyTreeSpec

from weft.core.common.frozen import Exact
from weft.core.common.parameters import as_function, as_sequence, shown
from weft.core.common.slots import public
from weft.errors import TreeError

NAMESPACE = "weft"
PyTreeDef: TypeAlias = PyTreeSpec
C = TypeVar("C", bound=type)


class _Ending:
    """Stands for optree while Python ends: a registry that is empty takes every tree for a leaf."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        if self._library.tree_leaves(None):
            raise TreeError(
                f"{name}: Python is ending, and the registry of trees has been let go"
                "\nhint: what uses weft at exit should be registered after `import weft`"
            )
        return getattr(self._library, name)


@atexit.register
def _end() -> None:
    globals()["optree"] = _Ending(optree)


def _predicate(op: str, is_leaf: Callable[[Any], bool] | None) -> Callable[[Any], bool] | None:
    """`is_leaf` such that it answers with a bool, whatever the user's function returns."""
    if is_leaf is None:
        return None
    asked = as_function(op, "is_leaf", is_leaf)
    return lambda node: bool(asked(node))


@public
def tree_flatten(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Any], PyTreeDef]:
    """The leaves of `tree` from left to right, and its structure."""
    leaves, spec = optree.tree_flatten(
        tree, _predicate("tree_flatten", is_leaf), namespace=NAMESPACE
    )
    return leaves, spec


@public
def tree_unflatten(structure: PyTreeDef, leaves: Iterable[Any]) -> Any:
    """Build a tree of the given structure from its leaves."""
    if not isinstance(structure, PyTreeDef):
        raise TreeError(f"tree_unflatten: {type(structure).__name__} is no structure of a tree")
    found = list(as_sequence("tree_unflatten", "leaves", leaves))
    if structure.num_leaves != len(found):
        raise TreeError(
            f"tree_unflatten: the structure has {structure.num_leaves} leaves, got {len(found)}"
        )
    return optree.tree_unflatten(structure, found)


@public
def tree_map(
    function: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Apply `function` to each leaf of `tree` (and to the matching leaves of `rest`).

    >>> tree_map(lambda x, y: x + y, {"a": 1, "b": (2, 3)}, {"a": 10, "b": (20, 30)})
    {'a': 11, 'b': (22, 33)}
    """
    as_function("tree_map", "function", function)
    columns, structure = _columns("tree_map", tree, rest, is_leaf)
    return tree_unflatten(structure, (function(*row) for row in zip(*columns, strict=True)))


@public
def tree_map_with_path(
    function: Callable[..., Any],
    tree: Any,
    *rest: Any,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """`tree_map` of a function that is given the path of each leaf first, as `tree_paths` has it.

    >>> tree_map_with_path(lambda path, x: path, {"a": 1, "b": (2, 3)})
    {'a': "['a']", 'b': ("['b'][0]", "['b'][1]")}
    """
    as_function("tree_map_with_path", "function", function)
    columns, structure = _columns("tree_map_with_path", tree, rest, is_leaf)
    rows = zip(tree_paths(tree, is_leaf), *columns, strict=True)
    return tree_unflatten(structure, (function(*row) for row in rows))


def _columns(
    op: str, tree: Any, rest: tuple[Any, ...], is_leaf: Callable[[Any], bool] | None
) -> tuple[list[list[Any]], PyTreeDef]:
    """The leaves of a tree, what other trees have in their places, and the tree's structure."""
    leaves, structure = optree.tree_flatten(tree, _predicate(op, is_leaf), namespace=NAMESPACE)
    columns = [leaves]
    for number, other in enumerate(rest, 1):
        try:
            columns.append(structure.flatten_up_to(other))
        except ValueError as error:
            raise TreeError(f"{op}: tree {number} differs from tree 0: {error}") from None
    return columns, structure


@public
def tree_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves of `tree` from left to right."""
    return optree.tree_leaves(tree, _predicate("tree_leaves", is_leaf), namespace=NAMESPACE)


@public
def tree_structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> PyTreeDef:
    """The structure of `tree`, without its leaves."""
    return optree.tree_structure(tree, _predicate("tree_structure", is_leaf), namespace=NAMESPACE)


@public
def tree_paths(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[str]:
    """A readable path to each leaf, such as `['layers'][0].weight`."""
    predicate = _predicate("tree_paths", is_leaf)
    accessors = optree.tree_accessors(tree, predicate, namespace=NAMESPACE)
    return [accessor.codify("") for accessor in accessors]


def prefix_leaves(
    where: str, prefix: Any, tree: Any, is_leaf: Callable[[Any], bool], hint: str = ""
) -> list[Any]:
    """One entry for each leaf of `tree`; an entry of `prefix` stands for all that lies below it."""
    found: list[Any] = []

    def fill(entry: Any, part: Any) -> None:
        if is_leaf(entry):
            found.extend([entry] * len(tree_leaves(part)))
            return
        entries, parts = _children(entry), _children(part)
        if entries is None or parts is None or entries[0] != parts[0]:
            raise TreeError(f"{where} {shown(entry)} is no prefix of {tree_structure(part)}{hint}")
        if len(entries[1]) != len(parts[1]):
            raise TreeError(f"{where} has {len(entries[1])} entries for {len(parts[1])} values")
        for each, below in zip(entries[1], parts[1], strict=True):
            fill(each, below)

    fill(prefix, tree)
    return found


def _children(tree: Any) -> tuple[Any, list[Any]] | None:
    """What kind of node a tree is, and what lies right below; None for a leaf. Lists are tuples."""
    try:
        children, constant, *_ = optree.tree_flatten_one_level(tree, namespace=NAMESPACE)
    except ValueError:
        return None
    is_plain = type(tree) in (tuple, list)
    return (tuple, None) if is_plain else (type(tree), constant), list(children)


@public
def register_tree(
    cls: type,
    flatten: Callable[[Any], tuple[Iterable[Any], Any]],
    unflatten: Callable[[Any, Iterable[Any]], Any],
) -> None:
    """Teach weft that instances of `cls` are trees: `flatten` gives (children, constant part)."""
    if not isinstance(cls, type):
        raise TreeError(f"register_tree: {shown(cls)} is no class")
    as_function("register_tree", "flatten", flatten)
    as_function("register_tree", "unflatten", unflatten)

    def taken(value: Any) -> tuple[Any, ...]:
        found: Any = flatten(value)
        children, constant, *entries = found
        return (children, Exact(constant), *entries)

    def rebuild(constant: Any, children: Any) -> Any:
        return unflatten(constant.value, tuple(children))

    try:
        optree.register_pytree_node(cls, taken, rebuild, namespace=NAMESPACE)
    except ValueError as error:
        raise TreeError(f"register_tree: {cls.__name__} is registered already") from error


@public
def register_dataclass(cls: C) -> C:
    """Class decorator: a dataclass whose fields are children, except those with `static=True`.

    A field is static when declared `field(metadata={"static": True})`; its value then belongs to
    the structure and must be hashable.
    """
    is_class = isinstance(cls, type)  # a decorator may be put on anything
    if not is_class or not dataclasses.is_dataclass(cls):
        raise TreeError(f"register_dataclass: {shown(cls)} is no dataclass")
    fields = dataclasses.fields(cls)
    children = tuple(f.name for f in fields if not f.metadata.get("static"))
    statics = tuple(f.name for f in fields if f.metadata.get("static"))

    def flatten(value: Any) -> tuple[tuple[Any, ...], Exact, tuple[str, ...]]:
        constant = Exact(tuple(getattr(value, name) for name in statics))
        return tuple(getattr(value, name) for name in children), constant, children

    def rebuild(constant: Any, leaves: Any) -> Any:
        made: Any = object.__new__(cls)
        for name, leaf in zip((*children, *statics), (*leaves, *constant.value), strict=True):
            object.__setattr__(made, name, leaf)
        return made

    kind: Any = cls
    try:
        optree.register_pytree_node(kind, flatten, rebuild, namespace=NAMESPACE)
    except ValueError as error:
        raise TreeError(f"register_dataclass: {cls.__name__} is registered already") from error
    return cls


__all__ = [
    "PyTreeDef",
    "register_dataclass",
    "register_tree",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_map_with_path",
    "tree_paths",
    "tree_structure",
    "tree_unflatten",
]
