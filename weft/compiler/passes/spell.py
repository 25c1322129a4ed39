"""Functions that some processors have an instruction for, spelled out for those that have none."""

from __future__ import annotations

from weft.compiler.build import Builder
from weft.compiler.loops import Kernel, Value, every, expressions, walk
from weft.compiler.rebuild import changer, revise, with_statements
from weft.ops.functions.expand import expand


def spell(kernel: Kernel) -> Kernel:
    """The kernel whose functions are made of plain instructions."""
    points = walk(*(x for s in every(kernel.body) for x in expressions(s)))
    if not any(x.op == "call" for x in points):
        return kernel
    return with_statements(kernel, revise(kernel.body, changer(_spelled)))


def spelled(x: Value) -> Value:
    """An expression that calls no function."""
    return changer(_spelled)(x)


def _spelled(x: Value) -> Value:
    if x.op != "call":
        return x
    found: Value = expand(Builder(), x.data, *x.args)
    return found
