"""Kernels that report a mistake in what they were given, such as a position outside of its axis."""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.loops import (
    BOOL,
    INDEX,
    LANES,
    Buffer,
    Part,
    Reduce,
    Statement,
    Store,
    Value,
    When,
    get,
    integer,
)
from weft.compiler.lower import Frame, Lowered
from weft.compiler.point import Point
from weft.core.common.types import Shape

STATUS = Buffer("status", INDEX, "write")  # the last buffer of a kernel that reports


def report(status: int, bad: Value, code: int) -> Statement:
    """Write what is wrong into the buffer of this number, if something is."""
    return When(bad, (Store(status, integer(0), integer(code)),))


def reporting(
    frame: Frame,
    name: str,
    space: tuple[Point, Shape],
    bad: Value,
    code: int,
    body: tuple[Statement, ...] = (),
) -> Lowered:
    """The kernel that does something at every point of a space, and reports if any is `bad`."""
    found = frame.local(BOOL)
    axes = tuple((v.value, integer(n)) for v, n in zip(*space, strict=True))
    looked = Reduce(axes, LANES, (Part((found,), "or", (bad,)),), body)
    made = frame.finish(name, (looked, report(len(frame.buffers), get(found, BOOL), code)))
    kernel = replace(made.kernel, buffers=(*made.kernel.buffers, STATUS))
    return replace(made, kernel=kernel, reports=True)
