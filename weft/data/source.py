"""Where rows come from: arrays that are indexed all at once, or items that are fetched one by one.

A source gives the rows of a batch as a tree: of tensors, on their device, what is cut from tensors,
of NumPy arrays the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from weft.core.common.device import CPU, Device
from weft.core.common.handler import installed
from weft.core.common.parameters import shown
from weft.core.common.trees import (
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_paths,
    tree_unflatten,
)
from weft.core.common.types import Array
from weft.core.tensor.convert import PYTHON_SCALARS, checked, to_array, to_tensor, wrap
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.errors import (
    ArgumentError,
    DeviceMismatchError,
    DTypeError,
    ShapeError,
    TreeError,
    WeftError,
)
from weft.ops.selection import take


class Dataset(Protocol):
    """Anything with a length and items: a list, a memory map, a class of yours.

    Items are trees of numbers, arrays, tensors and text, all of one structure; arrays may be
    another library's, so torch's datasets will do.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Source(ABC):
    """Rows that a batch is made of."""

    length: int

    @abstractmethod
    def rows(self, positions: Array) -> Any:
        """The rows at these positions as a tree of arrays and tensors that are nobody else's."""


def as_source(data: Any, collate: Callable[[list[Any]], Any] | None) -> Source:
    """Arrays, tensors, tuples and dicts of them, or a dataset, whose items `collate` may join."""
    leaves = tree_leaves(data)
    is_leaf = len(leaves) == 1 and leaves[0] is data
    if leaves and (not is_leaf or hasattr(data, "__dlpack__")) and not isinstance(data, list):
        if collate is not None:
            raise ArgumentError(
                "Loader: collate: the data are arrays, whose rows are cut at once"
                "\nhint: transform takes batches; collate the items of a list or a dataset"
            )
        return Arrays(data)
    if leaves and hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return Items(data, collate)
    raise ArgumentError(
        f"Loader: data must be arrays or a dataset, got {shown(data)}"
        "\nhint: a dataset is anything with __len__ and __getitem__"
    )


class Arrays(Source):
    """A tree of arrays with equally many rows."""

    def __init__(self, data: Any) -> None:
        found, self._structure = tree_flatten(data)
        leaves, paths = [_taken_over(leaf) for leaf in found], tree_paths(data)
        self._arrays: list[Array | Tensor] = []
        self._devices = [_device_of(leaf) for leaf in leaves]
        for path, leaf in zip(paths, leaves):
            if not isinstance(leaf, Tensor | np.ndarray):
                raise DTypeError(
                    f"Loader: data{path}: {shown(leaf)} is no array"
                    "\nhint: a list of items is a dataset; tuples and dicts hold arrays"
                )
            if not leaf.shape:
                raise ShapeError(f"Loader: data{path}: an array without axes has no rows")
            self._arrays.append(_kept(leaf, f"Loader: data{path}"))
        lengths = {len(array) for array in self._arrays}
        if len(lengths) != 1:
            counts = ", ".join(f"{p or 'data'} {len(a)}" for p, a in zip(paths, self._arrays))
            raise ShapeError(f"Loader: the arrays have different numbers of rows ({counts})")
        self.length = lengths.pop()

    def rows(self, positions: Array) -> Any:
        """The rows at these positions, chosen from each array."""
        pairs = zip(self._arrays, self._devices, strict=True)
        return tree_unflatten(self._structure, [_cut(x, positions, device) for x, device in pairs])


class Items(Source):
    """Items of a dataset, stacked leaf by leaf, or joined by a function."""

    def __init__(self, data: Dataset, collate: Callable[[list[Any]], Any] | None) -> None:
        self._data = data
        self._collate = collate
        self.length = len(data)

    def rows(self, positions: Array) -> Any:
        """The items at these positions as one tree."""
        items = [self._data[int(position)] for position in positions]
        return stacked(items) if self._collate is None else tree_map(_own, self._collate(items))


def stacked(items: list[Any]) -> Any:
    """Items of one structure as a tree of arrays with a new first axis; text becomes lists."""
    _, structure = tree_flatten(items[0])
    columns = []
    for number, item in enumerate(items):
        leaves, found = tree_flatten(item)
        if found != structure:
            raise TreeError(
                f"Loader: item {number} of a batch has structure {found}, item 0 has {structure}"
            )
        columns.append(leaves)
    paths = tree_paths(items[0])
    made = [_column(path, list(column)) for path, column in zip(paths, zip(*columns))]
    return tree_unflatten(structure, made)


def _taken_over(leaf: Any) -> Any:
    """Another library's array as one of NumPy, or where it lies as a tensor; others as they are."""
    if isinstance(leaf, Tensor | np.ndarray | np.generic) or not hasattr(leaf, "__dlpack__"):
        return leaf
    made = to_tensor(leaf, like=CPU, op="Loader")
    return made.numpy() if made.device == CPU else made


def _own(leaf: Any) -> Any:
    """A leaf that a function of the user's gave, whose array may be filled again: a copy."""
    found = _taken_over(leaf)
    if not isinstance(found, np.ndarray | np.generic):
        return found
    return np.array(checked(np.asanyarray(found), "Loader: the result of collate"))


def _column(path: str, found: list[Any]) -> Any:
    leaves = [_taken_over(leaf) for leaf in found]
    first = leaves[0]
    if isinstance(first, str):
        for leaf in leaves:
            if not isinstance(leaf, str):
                raise DTypeError(f"Loader: items{path}: {shown(leaf)} is in a batch of text")
        return leaves
    if isinstance(first, Tensor | np.ndarray | np.generic):
        arrays = [_plain(leaf, f"Loader: items{path}") for leaf in leaves]
        kinds = {(array.shape, array.dtype) for array in arrays}
        if len(kinds) > 1:
            raise ShapeError(
                f"Loader: items{path}: shapes or dtypes differ within a batch"
                f" ({' and '.join(f'{dtype}{list(shape)}' for shape, dtype in list(kinds)[:2])})"
                "\nhint: pad the items to one shape, or batch by batch in collate"
            )
        return _placed(np.stack(arrays), _common_device(path, leaves))
    if isinstance(first, PYTHON_SCALARS):
        try:
            return to_array(leaves, None, f"Loader: items{path}")
        except WeftError as error:
            error.add_note("while a batch was put together")
            raise
    raise DTypeError(f"Loader: items{path}: {shown(first)} cannot be put into a batch")


def _device_of(leaf: Any) -> Device | None:
    """Where batches of a tensor are; None of others, and of tensors over a mesh."""
    return leaf.device if isinstance(leaf, Tensor) and leaf._impl.spec is None else None


def _common_device(path: str, leaves: list[Any]) -> Device | None:
    found = list(dict.fromkeys(d for d in map(_device_of, leaves) if d is not None))
    if len(found) > 1:
        raise DeviceMismatchError(
            f"Loader: items{path}: tensors of one batch are on {found[0]} and {found[1]}"
        )
    return found[0] if found else None


def _placed(rows: Array, device: Device | None) -> Any:
    return rows if device is None else wrap(rows, device)


def _cut(array: Array | Tensor, positions: Array, device: Device | None) -> Any:
    if not isinstance(array, Tensor):
        return _placed(array[positions], device)
    with installed(None):  # a transform around the loop sees batches, not how they were cut
        rows = take(array, positions, axis=0)
        rows.data()
        return rows


def _kept(leaf: Any, where: str) -> Array | Tensor:
    """What batches are cut from: an array of the host, or the elements on another device."""
    if _device_of(leaf) is not None and not isinstance(data := leaf.data(), np.ndarray):
        return Tensor(TensorImpl.realized(data, leaf.type, leaf.device))
    return _plain(leaf, where)


def _plain(leaf: Any, where: str) -> Array:
    """An array or a tensor as an array that batches can be made of."""
    if isinstance(leaf, Tensor):
        return leaf.numpy()
    return checked(np.asanyarray(leaf), where).view(np.ndarray)
