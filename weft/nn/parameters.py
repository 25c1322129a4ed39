"""Which leaves of a model are trained: `partition` it, differentiate one part, `combine` again.

    trained, frozen = nn.partition(model)
    gradient = wf.grad(lambda t: loss(nn.combine(t, frozen)))(trained)

Both parts have the model's shape, with None where the other part has a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.common import dtypes
from weft.core.common.parameters import as_flag
from weft.core.common.trees import tree_flatten, tree_unflatten
from weft.errors import TreeError
from weft.nn.module import Module, map_modules
from weft.nn.names import Chooser, Entry, as_chooser, chosen, entries


def is_parameter(entry: Entry) -> bool:
    """Whether a leaf is a tensor that training changes: of floats, and no buffer."""
    dtype = getattr(entry.value, "dtype", None)
    return dtype is not None and dtypes.is_inexact(dtype) and not entry.is_buffer


def partition(tree: Any, where: Chooser = is_parameter) -> tuple[Any, Any]:
    """Two trees: one with the leaves that `where` chooses, one with the others; else None.

    `where` is a function of an `Entry` (`name`, `value`, `is_buffer`), or patterns of names such as
    `"decoder.*"`; by default it chooses the parameters.
    """
    leaves, structure = tree_flatten(tree)
    kept = chosen("partition", where, tree)
    first = [leaf if keep else None for leaf, keep in zip(leaves, kept, strict=True)]
    second = [None if keep else leaf for leaf, keep in zip(leaves, kept, strict=True)]
    return tree_unflatten(structure, first), tree_unflatten(structure, second)


def combine(*parts: Any) -> Any:
    """The tree whose parts these are: at each place the one leaf that is not None."""
    columns, structures = zip(*(tree_flatten(part, _is_none) for part in parts), strict=True)
    for number, structure in enumerate(structures[1:], 1):
        if structure != structures[0]:
            raise TreeError(
                f"combine: part {number} has another structure than part 0"
                f" ({structure} and {structures[0]})"
            )
    made = []
    for place, row in enumerate(zip(*columns, strict=True)):
        found = [leaf for leaf in row if leaf is not None]
        if len(found) > 1:
            name = entries(parts[0], _is_none)[place].name
            raise TreeError(f"combine: {name}: {len(found)} parts have a leaf there")
        made.append(found[0] if found else None)
    return tree_unflatten(structures[0], made)


def _is_none(value: Any) -> bool:
    return value is None


def parameters(tree: Any, where: Chooser = is_parameter) -> dict[str, Any]:
    """The parameters of a model by name."""
    is_chosen = as_chooser("parameters", where)
    return {entry.name: entry.value for entry in entries(tree) if is_chosen(entry)}


def parameter_count(tree: Any, where: Chooser = is_parameter) -> int:
    """How many numbers a model learns."""
    return sum(tensor.size for tensor in parameters(tree, where).values())


def inference(tree: Any, value: bool = True) -> Any:
    """The model with every field named `inference` set: dropout then does nothing."""
    flag = as_flag("inference", "value", value)

    def switch(module: Module) -> Module:
        has_flag = isinstance(getattr(module, "inference", None), bool)
        return module.replace(inference=flag) if has_flag else module

    return map_modules(switch, tree)


def update_where(tree: Any, where: Chooser, function: Callable[[Any], Any]) -> Any:
    """The tree with `function` applied to the leaves that `where` chooses."""
    leaves, structure = tree_flatten(tree)
    rows = zip(leaves, chosen("update_where", where, tree), strict=True)
    made = [function(leaf) if is_chosen else leaf for leaf, is_chosen in rows]
    return tree_unflatten(structure, made)
