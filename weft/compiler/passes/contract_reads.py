"""How the vectors of a block of a matrix product read the left factor, one element for all lanes.

Instructions of the longest vectors take such an element from memory as they multiply, but only if
nobody else asks for it: else it is read once, by an instruction of its own, and then multiplied by
each vector. Where there are two of these, every other row is read twice instead, each time at a
place that is not known to be the same. That takes fewer instructions, which counts where a core is
shared with somebody, and still no more than two reads for two multiplications.
"""

from __future__ import annotations

from weft.compiler.loops import INDEX, Value, integer, value
from weft.compiler.passes.contract_registers import TWO, WIDEST
from weft.compiler.polynomial import add


def for_vectors(lefts: list[Value], vectors: int, lanes: int) -> list[list[Value]]:
    """What each vector of a block multiplies by, in every row: the same element."""
    same = [[x] * vectors for x in lefts]
    places = {_place(x) for x in lefts}
    is_long = lanes * lefts[0].dtype.itemsize == WIDEST
    if not is_long or vectors != TWO or len(places) > 1 or None in places:
        return same
    return [
        [_apart(x, j) for j in range(TWO)] if i % 2 else xs
        for i, (x, xs) in enumerate(zip(lefts, same, strict=True))
    ]


def _split(x: Value) -> tuple[Value, Value]:
    """The index of an element: what others share, and the literal that is added."""
    (index,) = x.args
    if index.op == "add" and index.args[1].op == "const":
        return index.args[0], index.args[1]
    return index, integer(0)


def _place(x: Value) -> tuple[str, int, Value] | None:
    """The memory and the index from which elements are a literal apart; None of other values."""
    if x.op not in ("load", "get") or not x.args:
        return None
    return x.op, x.data, _split(x)[0]


def _apart(x: Value, number: int) -> Value:
    """The same element, which nobody takes for that of another number."""
    shared, literal = _split(x)
    return value(x.op, (add(value("opaque", (shared,), INDEX, number), literal),), x.dtype, x.data)
