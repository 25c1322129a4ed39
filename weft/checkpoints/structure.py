"""Trees as JSON: what a checkpoint keeps of a tree beside the values of its tensors.

Tensors are named by their path (`layers.0.weight`), numbers and text are kept as they are. Classes
are kept as the names of their fields: nothing is imported or called to load them, so without a tree
to fill (`like`) they come back as dicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import optree

from weft.checkpoints.schema import sequence, text
from weft.core.common import dtypes
from weft.core.common.parameters import shown
from weft.core.common.trees import NAMESPACE
from weft.core.common.types import Array, TensorType
from weft.core.tensor.tensor import Tensor
from weft.errors import FormatError, TreeError, UnsupportedDTypeError

Path: TypeAlias = tuple[str | int, ...]

DEEPEST: Final = 100  # levels of a tree
_WIDEST: Final = 4096  # bits of an integer
_STORED: Final = ("tensor", "array", "scalar")
_ENDLESS: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Leaf(NamedTuple):
    """A leaf at a path; `kind` is tensor, array or scalar (whose `value` is a name) or value."""

    path: Path
    kind: str
    value: Any


class Described(NamedTuple):
    """A tree as JSON, and by name the tensors that JSON does not hold."""

    structure: Any
    tensors: dict[str, Tensor | Array]


def path_text(path: Path) -> str:
    """A path as a message shows it.

    >>> path_text(("layers", 0, "weight"))
    "['layers'][0]['weight']"
    """
    return "".join(f"[{step!r}]" for step in path) or "the tree itself"


def describe(tree: Any) -> Described:
    """A tree in a form that can be saved; `TreeError` names the path of a leaf that cannot."""
    tensors: dict[str, Tensor | Array] = {}

    def leaf(path: Path, value: Any) -> Any:
        kind = _kind(value)
        if kind is None:
            return _value(path, value)
        _check_dtype(path, value)
        name = _name(path, tensors)
        tensors[name] = value if kind != "scalar" else np.asarray(value)
        return {kind: name}

    return Described(_node((), tree, leaf), tensors)


def _name(path: Path, taken: dict[str, Any]) -> str:
    """A path with dots, as other libraries name weights; made different where two would be one."""
    name = ".".join(map(str, path)) or "tensor"
    while name in taken or name == "__metadata__":
        name += "'"
    return name


def _kind(value: Any) -> str | None:
    if isinstance(value, Tensor):
        return "tensor"
    if isinstance(value, np.ndarray):
        return "array"
    return "scalar" if isinstance(value, np.generic) else None


def _check_dtype(path: Path, value: Any) -> None:
    try:
        dtypes.as_dtype(value.dtype, op="save")
    except UnsupportedDTypeError as error:
        raise TreeError(f"save: {path_text(path)}: {error}") from None
    if isinstance(value, np.ma.MaskedArray):
        raise TreeError(f"save: {path_text(path)}: a masked array would lose its mask")


def _value(path: Path, value: Any) -> Any:
    kind = type(value)
    if kind is float and not math.isfinite(value):
        return {"float": str(value)}
    if kind is int and value.bit_length() > _WIDEST:
        raise TreeError(f"save: {path_text(path)}: {shown(value)} is too large to be saved")
    if kind in (bool, int, float, str):
        return {"value": value}
    raise TreeError(
        f"save: {path_text(path)}: {kind.__name__} cannot be saved ({shown(value)})"
        "\nhint: leaves may be tensors, NumPy arrays and scalars, int, float, bool, str and None"
    )


def _node(path: Path, tree: Any, leaf: Callable[[Path, Any], Any]) -> Any:
    if tree is None:
        return None
    if _is_leaf(tree):
        return leaf(path, tree)
    if len(path) >= DEEPEST:
        raise TreeError(f"save: the tree has more than {DEEPEST} levels")
    parts = children(path, tree)
    inner = [(step, _node((*path, step), child, leaf)) for step, child in parts]
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [child for _, child in inner]}
    listed = [[step, child] for step, child in inner]
    if isinstance(tree, dict):
        return {"dict": listed}
    return {"object": type(tree).__name__, "fields": listed}


def _is_leaf(tree: Any) -> bool:
    """Whether a tree ends here; `eval_shape` gives types as leaves."""
    return type(tree) is TensorType or optree.tree_is_leaf(tree, namespace=NAMESPACE)


def children(path: Path, tree: Any) -> list[tuple[str | int, Any]]:
    """The parts of a node one level down, with the key, index or field name of each."""
    flat = optree.tree_flatten_one_level(tree, namespace=NAMESPACE)
    named = getattr(type(tree), "_fields", None) if isinstance(tree, tuple) else None
    steps = named or flat.entries
    for step in steps:
        if type(step) not in (str, int):
            raise TreeError(
                f"save: {path_text(path)}: the key {shown(step)} is neither text nor an integer"
            )
        if type(step) is int and step.bit_length() > _WIDEST:
            raise TreeError(f"save: {path_text(path)}: the key {shown(step)} is too large")
    return list(zip(steps, flat.children, strict=True))


def leaves_of(structure: Any, where: str) -> Iterator[Leaf]:
    """The leaves that a saved structure has; nothing in it is believed."""
    return _leaves((), structure, where)


def _leaves(path: Path, node: Any, where: str) -> Iterator[Leaf]:
    here = f"{where}: {path_text(path)}"
    if node is None:
        return
    if not isinstance(node, dict) or len(path) > DEEPEST:
        raise FormatError(f"load: {here}: is no part of a tree ({shown(node)})")
    content = _content(node, here)
    if isinstance(content, Leaf):
        yield content._replace(path=path)
        return
    seen = set()
    for step, child in content:
        if type(step) not in (str, int) or step in seen:
            raise FormatError(f"load: {here}: {shown(step)} is no key, or occurs twice")
        seen.add(step)
        yield from _leaves((*path, step), child, where)


def _content(node: dict[str, Any], here: str) -> Leaf | list[tuple[Any, Any]]:
    """What a node of JSON says: a leaf, or steps with children."""
    names = set(node)
    if names == {"object", "fields"}:
        text(node["object"], here)
        return [_pair(pair, here) for pair in sequence(node["fields"], here)]
    if len(names) != 1:
        raise FormatError(f"load: {here}: is no part of a tree ({shown(node)})")
    ((kind, inner),) = node.items()
    if kind == "dict":
        return [_pair(pair, here) for pair in sequence(inner, here)]
    if kind in ("list", "tuple"):
        return list(enumerate(sequence(inner, here)))
    if kind in _STORED:
        return Leaf((), kind, text(inner, here))
    if kind == "float" and isinstance(inner, str) and inner in _ENDLESS:
        return Leaf((), "value", _ENDLESS[inner])
    if kind == "value" and type(inner) in (bool, int, float, str):
        return Leaf((), "value", inner)
    raise FormatError(f"load: {here}: is no part of a tree ({shown(node)})")


def _pair(found: Any, here: str) -> tuple[Any, Any]:
    step, child = sequence(found, here, 2)
    return step, child


def rebuild(structure: Any, where: str, value: Callable[[Leaf], Any]) -> Any:
    """The tree that was saved; classes come back as dicts of their fields."""

    def build(path: Path, node: Any) -> Any:
        if node is None:
            return None
        content = _content(node, where)
        if isinstance(content, Leaf):
            return value(content._replace(path=path))
        built = [(step, build((*path, step), child)) for step, child in content]
        if "list" in node:
            return [child for _, child in built]
        if "tuple" in node:
            return tuple(child for _, child in built)
        return dict(built)

    return build((), structure)


def leaves_in(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The leaves of a tree with their paths."""
    if tree is None:
        return
    if _is_leaf(tree):
        yield path, tree
        return
    for step, child in children(path, tree):
        yield from leaves_in(child, (*path, step))


def refill(like: Any, value: Callable[[Path, Any], Any]) -> Any:
    """A tree of the structure of `like` whose leaves are `value(path, leaf of like)`."""

    def build(path: Path, tree: Any) -> Any:
        if tree is None:
            return None
        if _is_leaf(tree):
            return value(path, tree)
        flat = optree.tree_flatten_one_level(tree, namespace=NAMESPACE)
        parts = [build((*path, step), child) for step, child in children(path, tree)]
        return flat.unflatten_func(flat.metadata, parts)

    return build((), like)
