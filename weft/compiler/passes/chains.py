"""Write a sum of products, a `dot`, as chains of PIECE products each and the sum of their sums."""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.loops import (
    PIECE,
    Assign,
    Loop,
    Part,
    Reduce,
    get,
    identity_of,
    integer,
    value,
)
from weft.compiler.passes.points import at, moved, name_of, points
from weft.compiler.polynomial import add, divide, known, larger, multiply, smaller, subtract
from weft.compiler.rebuild import Scope, Statements


def in_chains(scope: Scope, reduce: Reduce) -> Statements:
    """The statements for a `dot`; without points, one chain of none: the sum is +0."""
    count = points(reduce)
    pieces = larger(divide(add(count, PIECE - 1), PIECE), 1)
    if known(pieces) == 1:
        return (replace(reduce, parts=tuple(replace(p, combine="chain") for p in reduce.parts)),)
    piece, point = scope.variable("piece"), scope.variable(name_of(reduce))
    start = multiply(piece, PIECE)
    here = moved(reduce, at(reduce, add(start, point)))
    sums = [scope.local("sum", part.values[0].dtype) for part in reduce.parts]
    chains = tuple(Part((s,), "chain", p.values) for s, p in zip(sums, here.parts, strict=True))
    axis = (point, smaller(subtract(count, start), PIECE))
    first: list[Assign] = []
    joined: list[Assign] = []
    for s, part in zip(sums, reduce.parts, strict=True):
        (target,), dtype = part.targets, part.values[0].dtype
        first.append(Assign(target, identity_of("add", dtype)))
        joined.append(Assign(target, value("add", (get(target, dtype), get(s, dtype)), dtype)))
    body: Statements = (replace(here, axes=(axis,), parts=chains), *joined)
    return (*first, Loop(piece, integer(0), pieces, body))
