"""A model as a table: each module, its own tensors, and how many numbers it learns."""

from __future__ import annotations

from typing import Any

from weft.nn.module import Module, children, is_module
from weft.nn.names import entries
from weft.nn.parameters import is_parameter, parameter_count
from weft.nn.show import text_of


def summary(tree: Any) -> str:
    """A readable view of a model: names, classes, shapes, and counts of parameters.

    Print it: `print(nn.summary(model))`.
    """
    rows = [("name", "class", "tensors", "parameters")]
    _add(rows, "", tree, 0)
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:<{widths[2]}}  {d:>12}".rstrip()
        for a, b, c, d in rows
    ]
    buffers = sum(e.value.size for e in entries(tree) if e.is_buffer)
    trained = parameter_count(tree)
    frozen = sum(e.value.size for e in entries(tree) if not e.is_buffer and not is_parameter(e))
    told = f"{trained:,} parameters"
    for count, what in ((buffers, "numbers in buffers"), (frozen, "numbers that are not trained")):
        told += f", {count:,} {what}" if count else ""
    return "\n".join([*lines, told])


def _add(rows: list[tuple[str, str, str, str]], name: str, node: Any, depth: int) -> None:
    label = "  " * depth + (name or "(model)")
    if isinstance(node, Module):
        found = [e for name, x in children(node).items() for e in entries({name: x}, is_module)]
    else:
        found = entries(node, is_module)
    inner = [entry for entry in found if is_module(entry.value)]
    own = [entry for entry in found if not is_module(entry.value)]
    tensors = ", ".join(f"{entry.name} {text_of(entry.value)}" for entry in own)
    rows.append((label, type(node).__name__, tensors, f"{parameter_count(node):,}"))
    for entry in inner:
        _add(rows, entry.name, entry.value, depth + 1)
