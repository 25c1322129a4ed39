"""Saved leaves take the places of the leaves of a tree; every leaf that does not fit is named."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from weft.checkpoints.sharded import read_like
from weft.checkpoints.structure import Leaf, leaves_in, leaves_of, path_text, rebuild, refill
from weft.checkpoints.structure import Path as TreePath
from weft.core.common.context import current_device
from weft.core.common.types import Array, TensorType
from weft.core.tensor.convert import wrap
from weft.core.tensor.tensor import Tensor
from weft.errors import TreeError

_MOST_LINES: Final = 8
_PLAIN: Final = (bool, int, float, str)


class Source(Protocol):
    """An open checkpoint."""

    @property
    def path(self) -> Path:
        """Where it is, for messages."""

    @property
    def structure(self) -> Any:
        """The tree as JSON."""

    @property
    def types(self) -> dict[str, TensorType]:
        """Shape and dtype of every tensor by name."""

    def read_slice(self, name: str, offset: Any = None, shape: Any = None) -> Array:
        """A box of a tensor."""


def restored(source: Source, like: Any, strict: bool) -> Any:
    """The saved tree, in the structure of `like` if one is given."""
    if like is None:
        return rebuild(source.structure, str(source.path), lambda leaf: _as_saved(source, leaf))
    leaves = {leaf.path: leaf for leaf in leaves_of(source.structure, str(source.path))}
    _check_fits(source, like, leaves, strict)

    def value(path: TreePath, leaf: Any) -> Any:
        return _as_like(source, leaves[path], leaf) if path in leaves else leaf

    return refill(like, value)


def _as_saved(source: Source, leaf: Leaf) -> Any:
    if leaf.kind == "value":
        return leaf.value
    array = source.read_slice(leaf.value)
    if leaf.kind == "tensor":
        return wrap(array, current_device())
    return array[()] if leaf.kind == "scalar" else array


def _as_like(source: Source, saved: Leaf, like: Any) -> Any:
    if saved.kind == "value":
        return saved.value
    if not isinstance(like, Tensor):
        array = source.read_slice(saved.value)
        if isinstance(like, np.generic):
            return array[()]
        return array if isinstance(like, np.ndarray) else wrap(array, current_device())
    made = read_like(partial(source.read_slice, saved.value), like)
    if like.requires_grad:
        made.requires_grad = True
    return made


def _check_fits(source: Source, like: Any, leaves: Mapping[TreePath, Leaf], strict: bool) -> None:
    """Raise one error that lists the leaves that are missing, unexpected or of another type.

    Unless `strict`, only a type has no value to stay, and one leaf must be there.
    """
    types = source.types
    asked: set[TreePath] = set()
    wrong: list[str] = []
    for path, leaf in leaves_in(like):
        asked.add(path)
        wanted = _wanted_type(path, leaf)
        saved = leaves.get(path)
        if saved is None:
            if strict or isinstance(leaf, TensorType):
                wrong.append(f"{path_text(path)}: is not in the checkpoint")
        elif (held := _saved_type(saved, types)) != wanted:
            wrong.append(f"{path_text(path)}: is {held} in the checkpoint, {wanted} in `like`")
    if strict or asked.isdisjoint(leaves):
        rest = leaves.keys() - asked
        wrong += [f"{path_text(path)}: is in the checkpoint, not in `like`" for path in rest]
    if wrong:
        shown = sorted(wrong)[:_MOST_LINES]
        more = f"\n  and {len(wrong) - len(shown)} more" if len(wrong) > len(shown) else ""
        raise TreeError(
            f"load: {source.path}: does not fit the tree to fill ({len(wrong)} leaves):\n  "
            + "\n  ".join(shown)
            + more
            + "\nhint: load(path) without `like` gives the tree as it was saved"
            + (", strict=False fills what was" if strict else "")
        )


def _saved_type(saved: Leaf, types: Mapping[str, TensorType]) -> str:
    return type(saved.value).__name__ if saved.kind == "value" else str(types[saved.value])


def _wanted_type(path: TreePath, leaf: Any) -> str:
    if type(leaf) in _PLAIN:
        return type(leaf).__name__
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if isinstance(shape, tuple) and isinstance(dtype, np.dtype):
        return str(TensorType(shape, dtype))
    raise TreeError(
        f"load: {path_text(path)}: {type(leaf).__name__} in `like` is nothing a checkpoint holds"
        "\nhint: leaves may be tensors, NumPy arrays and scalars, int, float, bool, str and None"
    )
