"""Elements that are written along one axis and read along another: tiles through shared memory.

A block takes a square of both axes. Its threads read what lies along the other axis in the order of
memory, leave it in shared memory, and then each element finds it there.
"""

from __future__ import annotations

from math import prod

from weft.compiler.loops import Assign, Kernel, Local, Loop, Store, Value, When, get, integer
from weft.compiler.passes.cooperate import Team
from weft.compiler.passes.items import Limits, is_plain, less, placed
from weft.compiler.polynomial import add, divide, multiply, number, remainder, smaller, stride
from weft.compiler.rebuild import Scope, Statements, changer, revise, substitute, values_of

SIDE = 32  # of a square
LEAST = 8  # elements of an axis that is worth one
Nest = list[tuple[Value, int]]


def turned(kernel: Kernel, nest: Nest, body: Statements, limits: Limits) -> Kernel | None:
    """The kernel in squares, if it is one of elements that are read along another axis."""
    if len(nest) < 2 or not all(map(is_plain, body)):
        return None
    column, width = nest[-1]
    loads = {x for x in values_of(body) if x.op == "load"}
    across = sorted((x for x in loads if _step(x, column) not in (0, 1)), key=repr)
    rows = [each for each in nest[:-1] if all(_step(x, each[0]) == 1 for x in across)]
    stores = [s for s in body if isinstance(s, Store)]
    along = all(number(stride(s.index, column)) == 1 for s in stores)
    if not across or not rows or not along:
        return None
    if SIDE * (SIDE + 1) * sum(x.dtype.itemsize for x in across) > limits.shared:
        return None
    row, height = rows[-1]
    if min(height, width) < LEAST:
        return None
    others = [each for each in nest[:-1] if each[0] is not row]
    return _Squares(kernel, (row, height), (column, width), others, limits).kernel(body, across)


def _step(x: Value, variable: Value) -> int | None:
    return number(stride(x.args[0], variable))


class _Squares:
    """Writes the kernel whose blocks take squares of a row and a column."""

    def __init__(
        self,
        kernel: Kernel,
        row: tuple[Value, int],
        column: tuple[Value, int],
        others: Nest,
        limits: Limits,
    ) -> None:
        self.scope = Scope(kernel)
        self.row, self.column, self.others = row, column, others
        self.team = Team(self.scope, min(limits.threads, SIDE * SIDE))
        self.block = self.scope.variable("block")
        high, wide = (-(-extent // SIDE) for _, extent in (row, column))
        first, second = self.scope.variable("row"), self.scope.variable("column")
        nest = [*others, (first, high), (second, wide)]
        at = placed(nest, self.block)
        self.start = multiply(at.pop(first), SIDE), multiply(at.pop(second), SIDE)
        self.at = at
        self.count = prod(extent for _, extent in nest)

    def kernel(self, body: Statements, across: list[Value]) -> Kernel:
        """All of it: what lies across is read, then everything is computed."""
        scope, place = self.scope, self.scope.variable("place")
        arrays: dict[Value, int] = {}
        for x in across:
            scope.locals.append(Local("turned", x.dtype, 1, SIDE * (SIDE + 1), shared=True))
            arrays[x] = len(scope.locals) - 1

        def change(x: Value) -> Value:
            return get(arrays[x], x.dtype, place) if x in arrays else x

        near = revise(body, changer(change))

        def read(item: Value) -> Statements:
            """A point of the square whose neighbours are rows."""
            far, here = divide(item, SIDE), remainder(item, SIDE)
            names = self.names(here, far, held=True)
            to = add(multiply(far, SIDE + 1), here)
            taken = tuple(Assign(k, x, to) for x, k in arrays.items())
            return substitute(taken, names)

        def compute(item: Value) -> Statements:
            """A point of the square whose neighbours are columns."""
            far, here = divide(item, SIDE), remainder(item, SIDE)
            names = self.names(far, here)
            names[place] = add(multiply(here, SIDE + 1), far)
            made = substitute(scope.copy(near), names)
            return self.inside(far, here, made)

        made = tuple(self.team.each("item", SIDE * SIDE, part) for part in (read, compute))
        loop = Loop(self.block, integer(0), integer(self.count), made, "block")
        threads = self.team.threads
        return scope.kernel_with((loop,), blocks=self.count, threads=threads, scratch=())

    def names(self, row: Value, column: Value, held: bool = False) -> dict[Value, Value]:
        """The variables at a point of the square, which may be `held` inside both axes."""
        found = dict(self.at)
        for (name, extent), start, offset in zip(
            (self.row, self.column), self.start, (row, column), strict=True
        ):
            at = add(start, offset)
            found[name] = smaller(at, extent - 1) if held and extent % SIDE else at
        return found

    def inside(self, row: Value, column: Value, made: Statements) -> Statements:
        """Statements for a point, if it is inside both axes."""
        for (_, extent), start, offset in zip(
            (self.row, self.column), self.start, (row, column), strict=True
        ):
            if extent % SIDE:
                made = (When(less(add(start, offset), extent), made),)
        return made
