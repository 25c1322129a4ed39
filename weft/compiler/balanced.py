"""A reduction of a few values written out: the same tree that loops follow, as an expression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.compiler.loops import LANES, LEAF, Value

_COMBINE = {
    "add": "add",
    "mul": "mul",
    "max": "max",
    "min": "min",
    "and": "bit_and",
    "or": "bit_or",
}


def combined(builder: Any, combine: str, x: Value, y: Value) -> Value:
    """Two values met by `combine`."""
    made: Value = getattr(builder, _COMBINE[combine])(x, y)
    return made


def balanced(builder: Any, combine: str, values: Sequence[Value], lanes: int) -> Value:
    """The definition of a reduction, written out; lanes that hold nothing change nothing."""
    block = lanes * LEAF
    blocks = [
        _lanes(builder, combine, values[i : i + block], lanes) for i in range(0, len(values), block)
    ]
    found = _tree(builder, combine, blocks)
    width = LANES
    while lanes > 1 and width > 1:
        width //= 2
        pairs = zip(found[:width], found[width : 2 * width], strict=True)
        found = [_met(builder, combine, x, y) for x, y in pairs]
    assert found[0] is not None
    return found[0]


def _met(builder: Any, combine: str, x: Value | None, y: Value | None) -> Value | None:
    if x is None or y is None:
        return y if x is None else x
    return combined(builder, combine, x, y)


def _lanes(builder: Any, combine: str, values: Sequence[Value], lanes: int) -> list[Value | None]:
    found: list[Value | None] = [None] * lanes
    for position, x in enumerate(values):
        found[position % lanes] = _met(builder, combine, found[position % lanes], x)
    return found


def _tree(builder: Any, combine: str, blocks: list[list[Value | None]]) -> list[Value | None]:
    if len(blocks) == 1:
        return blocks[0]
    cut = 1 << (len(blocks) - 1).bit_length() - 1
    left, right = (_tree(builder, combine, each) for each in (blocks[:cut], blocks[cut:]))
    return [_met(builder, combine, x, y) for x, y in zip(left, right, strict=True)]
