"""Write out reductions of a few points: their results are an expression, as those of other calls.

Rows that are shorter than a vector are no lanes, but then the rows can be. The tree is the one that
loops follow, so no bit changes. Loops over such a row are written out as well, and what it holds is
in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.balanced import balanced
from weft.compiler.build import Builder
from weft.compiler.loops import (
    LANES,
    Assign,
    Kernel,
    Loop,
    Reduce,
    Statement,
    Store,
    Value,
    const,
    every,
    get,
    integer,
)
from weft.compiler.passes.accumulate import is_better, multiplied, select
from weft.compiler.passes.contract_match import SHALLOW, match, shallow_sizes
from weft.compiler.passes.points import at, moved, points
from weft.compiler.passes.simplify import fold
from weft.compiler.polynomial import known
from weft.compiler.rebuild import (
    Scope,
    Statements,
    changer,
    leaves_in,
    revise,
    substitute,
    values_of,
    with_body,
)

COMBINES = frozenset({"add", "mul", "max", "min", "and", "or", "argmax", "argmin"})
SUMS = frozenset({"dot", "chain"})  # of products
MOST = 31  # points; as many as there are lanes, and many more, are better these lanes
MOST_WORK = 1536  # instructions that a row may become


def short(kernel: Kernel) -> Kernel:
    """The kernel whose short reductions inside loops are written out."""
    extents = short_extents(kernel)
    if not extents:
        return kernel
    scope = Scope(kernel)
    writer = _Writer(scope, extents, _small_axes(kernel))
    body = _in_registers(writer.inner(kernel.body), scope)
    return scope.kernel_with(body, rows_written=True)


def short_extents(kernel: Kernel) -> frozenset[int]:
    """The extents of all reductions inside loops that are written out."""
    loops = tuple(s for s in kernel.body if isinstance(s, Loop))
    found = [s for s in every(loops) if isinstance(s, Reduce)]
    if not found or not all(map(_is_short, found)):
        return frozenset()
    extents = frozenset(known(extent) or 0 for s in found for _, extent in s.axes)
    return extents if _work(kernel.body, extents) <= MOST_WORK else frozenset()


def _work(statements: Statements, extents: frozenset[int]) -> int:
    """About how many instructions statements become: those over a short row as often as it has."""
    total = 0
    for s in statements:
        if isinstance(s, Loop) and not (known(s.stop) in extents and _is_plain(s.body)):
            total += _work(s.body, extents)
        else:
            times = points(s) if isinstance(s, Reduce) else s.stop if isinstance(s, Loop) else None
            total += len(values_of((s,))) * (1 if times is None else known(times) or 0)
    return total


def _is_plain(statements: Statements) -> bool:
    """Whether statements have no others inside."""
    return all(isinstance(s, Store | Assign) for s in statements)


def _small_axes(kernel: Kernel) -> frozenset[Value]:
    """The rows and columns of small matrices that are multiplied."""
    product = match(Scope(kernel)) if shallow_sizes(kernel) else None
    if product is None:
        return frozenset()
    axes = product.row, product.column
    return frozenset(variable for variable, extent in axes if (known(extent) or MOST) <= SHALLOW)


def _is_short(reduce: Reduce) -> bool:
    count = known(points(reduce))
    if count and all(part.combine in SUMS for part in reduce.parts):
        return count <= SHALLOW and not reduce.body  # products that are more are cut in blocks
    if not count or count > MOST or count % LANES == 0 or reduce.lanes != LANES:
        return False
    return all(part.combine in COMBINES for part in reduce.parts)


class _Writer:
    """Writes out what is short."""

    def __init__(self, scope: Scope, extents: frozenset[int], small: frozenset[Value]) -> None:
        self.scope = scope
        self.extents = extents
        self.small = small

    def inner(self, statements: Statements, inside: bool = False) -> Statements:
        """Statements, in which short reductions and loops are written out if they are in a loop."""
        made: list[Statement] = []
        for statement in statements:
            if isinstance(statement, Reduce) and inside:
                made += self.reduction(statement)
            elif isinstance(statement, Store | Assign | Reduce):
                made.append(statement)
            elif isinstance(statement, Loop) and inside and self.is_row(statement):
                for point in range(known(statement.stop) or 0):
                    body = substitute(statement.body, {statement.variable: integer(point)})
                    made += self.inner(fold(self.scope.copy(body)), True)
            else:
                is_inside = inside or isinstance(statement, Loop)
                made.append(with_body(statement, self.inner(statement.body, is_inside)))
        return tuple(made)

    def is_row(self, loop: Loop) -> bool:
        """Whether a loop is over what a short reduction is over, or over axes that are small.

        Others around them may be as short, by chance: they stay loops.
        """
        if loop.kind != "serial" or known(loop.start) != 0:
            return False
        short = known(loop.stop) in self.extents and _is_plain(loop.body)
        return loop.variable in self.small or short

    def reduction(self, reduce: Reduce) -> Statements:
        """What is combined at each point, held, and then combined."""
        made: list[Statement] = []
        found: list[list[tuple[Value, ...]]] = [[] for _ in reduce.parts]
        for point in range(known(points(reduce)) or 0):
            here = moved(reduce, at(reduce, integer(point)))
            made += here.body
            for part, values in zip(here.parts, found, strict=True):
                x, *others = part.values
                if part.combine not in SUMS:
                    held = self.scope.local("point", x.dtype)
                    made.append(Assign(held, x))
                    x = get(held, x.dtype)
                values.append((x, *others))
        for part, values in zip(reduce.parts, found, strict=True):
            made += map(Assign, part.targets, _combined(part.combine, values))
        return tuple(made)


def _combined(combine: str, values: Sequence[tuple[Value, ...]]) -> tuple[Value, ...]:
    """All values met by `combine`; of an extreme one, the place too."""
    if combine in ("argmax", "argmin"):
        return _extreme(combine, values)
    if combine in SUMS:
        total = const(0, values[0][0].dtype)
        for x, y in values:
            total = multiplied(x, y, total)
        return (total,)
    return (balanced(Builder(), combine, [x for (x,) in values], LANES),)


def _extreme(combine: str, values: Sequence[tuple[Value, ...]]) -> tuple[Value, Value]:
    """The first of the most extreme elements, and its place."""
    (best, place), *others = values
    for x, there in others:
        better = is_better(combine, best, x)
        best, place = select(better, x, best), select(better, there, place)
    return best, place


def _in_registers(statements: Statements, scope: Scope) -> Statements:
    """Statements in which arrays whose every position is known are a register for each of them."""
    moving: set[int] = set()
    for s in every(statements):
        if isinstance(s, Assign) and s.position is not None and known(s.position) is None:
            moving.add(s.local)
    for x in leaves_in(statements):
        if x.op == "get" and x.args and known(x.args[0]) is None:
            moving.add(x.data)
    registers: dict[tuple[int, int], int] = {}

    def register(local: int, position: Value) -> int:
        key = local, known(position) or 0
        if key not in registers:
            old = scope.locals[local]
            registers[key] = scope.local(old.name, old.dtype, old.lanes)
        return registers[key]

    def change(x: Value) -> Value:
        still = x.op == "get" and x.args and x.data not in moving
        return get(register(x.data, x.args[0]), x.dtype) if still else x

    def assigned(statements: Statements) -> Statements:
        made: list[Statement] = []
        for s in statements:
            if isinstance(s, Assign) and s.position is not None and s.local not in moving:
                made.append(Assign(register(s.local, s.position), s.value))
            elif isinstance(s, Store | Assign):
                made.append(s)
            else:
                made.append(with_body(s, assigned(s.body)))
        return tuple(made)

    return assigned(revise(statements, changer(change)))
