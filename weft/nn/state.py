"""Models to and from dictionaries of tensors by name: `state_dict`, `load_state_dict`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import weft as wf
from weft.core.common import dtypes
from weft.core.common.parameters import shown
from weft.core.common.trees import tree_flatten, tree_unflatten
from weft.errors import ArgumentError, DTypeError, ShapeError, TreeError
from weft.nn.module import Module
from weft.nn.names import entries, some

M = TypeVar("M")


def state_dict(module: Any) -> dict[str, Any]:
    """All tensors of a module by name, such as `layers.0.weight`; the tensors are not copied."""
    found: dict[str, Any] = {}
    for entry in entries(module):
        if entry.name in found:
            raise TreeError(f"state_dict: two tensors are called {entry.name}")
        found[entry.name] = entry.value
    return found


def load_state_dict(module: M, state: Mapping[str, Any], strict: bool = True) -> M:
    """The module with the tensors that `state` has under its names; values are copied.

    Tensors, NumPy arrays and torch's tensors are taken, and become the dtype they replace. With
    `strict=False` missing names keep the module's tensors, and unexpected ones are left alone; a
    shape must fit in any case, and one name.
    """
    if not isinstance(state, Mapping):
        raise ArgumentError(
            f"load_state_dict: state: expected tensors by name, got {shown(state)}"
            "\nhint: load_state_dict(model, nn.state_dict(other))"
        )
    leaves, structure = tree_flatten(module)
    names = [entry.name for entry in entries(module)]
    _check_names(module, names, state, strict)
    made, wrong = [], []
    for name, leaf in zip(names, leaves, strict=True):
        if name not in state:
            made.append(leaf)
            continue
        value = wf.asarray(state[name], copy=True)
        if value.shape != leaf.shape:
            wrong.append(f"{name}: expected {leaf.shape}, got {value.shape}")
        elif dtypes.is_inexact(value.dtype) != dtypes.is_inexact(leaf.dtype):
            raise DTypeError(
                f"load_state_dict: {name}: expected {dtypes.name_of(leaf.dtype)},"
                f" got {dtypes.name_of(value.dtype)}"
            )
        made.append(_like(name, value, leaf))
    if wrong:
        raise ShapeError(f"load_state_dict: {type(module).__name__}: {some(wrong, '; ')}")
    loaded: M = tree_unflatten(structure, made)
    return loaded


def _like(name: str, value: wf.Tensor, leaf: Any) -> wf.Tensor:
    """The value in the dtype and on the device of the tensor it replaces."""
    moved = wf.to_device(value, leaf.device) if isinstance(leaf, wf.Tensor) else value
    made = wf.astype(moved, leaf.dtype)
    narrowed = value.dtype != leaf.dtype and not dtypes.is_inexact(leaf.dtype)
    if narrowed and wf.any(wf.astype(made, value.dtype) != moved):
        raise DTypeError(
            f"load_state_dict: {name}: {dtypes.name_of(value.dtype)} holds numbers that"
            f" {dtypes.name_of(leaf.dtype)} has not"
        )
    return made


def _check_names(module: Any, names: list[str], state: Mapping[str, Any], strict: bool) -> None:
    if not strict:
        if state and names and state.keys().isdisjoint(names):
            raise TreeError(
                f"load_state_dict: {type(module).__name__}: none of the names fits"
                f" ({some(list(map(str, state)))})\nhint: the names are {some(names)}"
            )
        return
    missing = [name for name in names if name not in state]
    known = {*names, *_ignored(module)}
    unexpected = [name for name in state if name not in known]
    told = []
    if missing:
        told.append(f"missing: {some(missing)}")
    if unexpected:
        told.append(f"unexpected: {some(unexpected)}")
    if told:
        raise TreeError(
            f"load_state_dict: {type(module).__name__}: {'; '.join(told)}"
            "\nhint: strict=False takes what there is; nn.state_dict(module) shows the names"
        )


def _ignored(tree: Any) -> list[str]:
    """The names that modules do without, as the whole tree would call them."""
    found = entries(tree, lambda node: isinstance(node, Module) and bool(node.ignored_names))
    return [
        f"{entry.name}.{name}" if entry.name else name
        for entry in found
        if isinstance(entry.value, Module)
        for name in entry.value.ignored_names
    ]
