"""Parts of a matrix product that need not be computed, as a mask hides them.

Masks that compare positions (row >= column, and both of two such) are false on whole tiles. A sum
that such a mask hides is nowhere used. Where a mask makes a factor 0, products are ±0 unless the
other factor is infinite or NaN; all of them together are one term, the *rest*, the sum of the
other factor times 0 from -0.0 on. Adding it gives each bit that adding them one by one would give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.compiler.loops import (
    BOOL,
    UNREAD,
    Assign,
    Loop,
    Statement,
    Store,
    Value,
    const,
    expressions,
    get,
    integer,
    value,
    walk,
)
from weft.compiler.passes.accumulate import multiplied
from weft.compiler.passes.contract_frame import ZERO, Frame, Span, both, ceiling, either, selected
from weft.compiler.passes.contract_match import Axis, Product, masked, runs_along
from weft.compiler.passes.positions import compared, is_held, position
from weft.compiler.polynomial import (
    Polynomial,
    add,
    coefficient,
    divide,
    hides,
    known,
    larger,
    multiply,
    number,
    polynomial,
    smaller,
    subtract,
    to_value,
    without,
)
from weft.compiler.rebuild import Statements, changer, rebuild, revise, substitute_value

TURNS = 16  # points of the depth that are taken together where a mask hides the next ones
BESIDE = 8  # sums of nothings that are taken together: none waits for another
FINE = 256  # points of the depth in one piece, at most, where a mask may hide them

Box = Mapping[Value, tuple[Value, Value]]  # variables with their first and last points


@dataclass(frozen=True)
class Masked:
    """A factor that is `hidden`, a number, where `condition` does not hold."""

    condition: Value
    shown: Value
    hidden: Value

    def is_zero_in(self, box: Box) -> Value | bool:
        """Whether the factor is 0 at all points of a box."""
        return both(is_hidden(self.condition, box), self.hides_by_zero)

    @property
    def hides_by_zero(self) -> Value | bool:
        """Whether the number is 0."""
        zero = const(0, self.hidden.dtype)
        return value("equal", (self.hidden, zero), BOOL)


def masks(product: Product) -> tuple[Masked | None, Masked | None]:
    """The left and the right factor as ones with a mask of positions, if they are that."""
    left, right = product.masks
    return _masked(product, left or product.left), _masked(product, right or product.right)


def _masked(product: Product, factor: Value) -> Masked | None:
    factor = masked(factor)
    if factor.op != "select" or factor.dtype.kind != "f":
        return None
    condition, shown, hidden = factor.args
    axes = {v for v, _ in (product.row, product.column, product.depth, *product.batch)}
    number = hidden.args[0] if hidden.op == "cast" else hidden
    if any(hides(hidden, v) for v in axes) or number.op not in ("load", "const"):
        return None
    return Masked(condition, shown, hidden) if compared(condition) else None


def mask_of_sums(product: Product) -> Value | None:
    """A condition without which the epilogue uses no sum, if there is one."""
    for x in walk(*(x for s in product.epilogue for x in expressions(s))):
        if x.op == "select" and compared(x.args[0]) and _is_behind(product, x.args[0]):
            return x.args[0]
    return None


def _is_behind(product: Product, condition: Value) -> bool:
    """Whether no statement of an epilogue reads the sum where a condition does not hold."""

    def change(x: Value) -> Value:
        return x.args[2] if x.op == "select" and x.args[0] is condition else x

    memo: dict[Value, Value] = {}
    rest = [rebuild(x, change, memo) for s in product.epilogue for x in _used(s)]
    return not any(x.op == "get" and x.data == product.target for x in walk(*rest))


def chosen(statements: Statements, condition: Value | None, choice: int) -> Statements:
    """Statements where a condition holds everywhere, 1, or nowhere, 2."""

    def change(x: Value) -> Value:
        return x.args[choice] if x.op == "select" and x.args[0] is condition else x

    return revise(statements, changer(change))


def _is_unread(statement: Statement, condition: Value | None) -> bool:
    """Whether nobody reads what a statement stores where a condition does not hold."""
    if not isinstance(statement, Store) or statement.combine:
        return False
    x = statement.value
    return x.op == "select" and x.data == UNREAD and x.args[0] is condition


def _used(statement: Statement) -> Sequence[Value]:
    return (statement.value,) if isinstance(statement, Store) else expressions(statement)


def is_hidden(condition: Value, box: Box) -> Value | bool:
    """Whether a condition holds nowhere in a box; False where that cannot be said."""
    found: Value | bool = False
    for each in compared(condition):
        here = _exceeds(each, box)
        if here is True:
            return True
        if isinstance(here, bool):
            continue
        found = here if isinstance(found, bool) else value("bit_or", (found, here), BOOL)
    return found


def is_shown(condition: Value, box: Box) -> Value | bool:
    """Whether a condition holds everywhere in a box; False where that cannot be said."""
    found: Value | bool = True
    for each in compared(condition):
        x, y = each.args
        opposite = value("less" if each.op == "less_equal" else "less_equal", (y, x), BOOL)
        found = both(found, _exceeds(opposite, box))
    return found


def _exceeds(comparison: Value, box: Box) -> Value | bool:
    """Whether x <= y, or x < y, is false in all of a box."""
    gap, bound = _gap(comparison)
    least = _least(gap, box)
    if least is None:
        return False
    exact = number(polynomial(least))
    if exact is not None:
        return exact > bound
    return both(value("less", (integer(bound), least), BOOL), is_held(least))


def _gap(comparison: Value) -> tuple[Polynomial, int]:
    """x - y of a comparison, and the most it may be."""
    x, y = (position(a) for a in comparison.args)
    assert x is not None and y is not None
    return polynomial(subtract(x, y)), 0 if comparison.op == "less_equal" else -1


def _least(gap: Polynomial, box: Box) -> Value | None:
    """The least value in a box, which is at a corner; None where that cannot be said."""
    least = to_value(without(gap, tuple(box)))
    for variable, (first, last) in box.items():
        steps = number(coefficient(gap, variable))
        if steps is None:
            return None
        least = add(least, multiply(first if steps > 0 else last, steps))
    return None if any(hides(least, v) for v in box) else least


def ends(condition: Value, point: Value, box: Box) -> tuple[list[Value], list[Value]]:
    """From where on, and up to where, a condition may hold at a variable's points in a box.

    At points before one of the first or from one of the second on it holds nowhere.
    """
    lows: list[Value] = []
    highs: list[Value] = []
    for each in compared(condition):
        gap, bound = _gap(each)
        step, least = number(coefficient(gap, point)), _least(without(gap, (point,)), box)
        if least is not None and step == 1:
            highs.append(subtract(integer(bound + 1), least))
        if least is not None and step == -1:
            lows.append(subtract(least, bound))
    return lows, highs


def box_of(*spans: tuple[Axis, Span]) -> Box:
    """A box of axes, each with its part."""
    last = ((a[0], s.start, subtract(add(s.start, s.count), 1)) for a, s in spans)
    return {variable: (first, end) for variable, first, end in last}


class Hidden:
    """What a mask hides of a product, and the rests that stand for it."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        product = frame.product
        self.sums = mask_of_sums(product)
        self.left, self.right = masks(product)
        if self.left is not None:
            self.right = None
        self.length = frame.block.tile_columns if self.left else frame.block.tile_rows
        self.rest = 0
        if self.left or self.right:
            self.rest = frame.scope.local("rest", frame.dtype, 1, self.length)

    def no_sum(self, rows: Span, columns: Span) -> Value | bool:
        """Whether no sum of some rows and columns is used."""
        product = self.frame.product
        if self.sums is None:
            return False
        return is_hidden(self.sums, box_of((product.row, rows), (product.column, columns)))

    def all_sums(self, rows: Span, columns: Span) -> Value | bool:
        """Whether a mask shows all sums of some rows and columns."""
        product = self.frame.product
        if self.sums is None:
            return False
        return is_shown(self.sums, box_of((product.row, rows), (product.column, columns)))

    def epilogue(self, choice: int) -> Statements:
        """The epilogue where a mask shows all sums, 1, or none of them, 2: what is read of it."""
        epilogue = self.frame.product.epilogue
        if choice == 2:
            epilogue = tuple(s for s in epilogue if not _is_unread(s, self.sums))
        return chosen(epilogue, self.sums, choice)

    def no_product(self, rows: Span, columns: Span, depth: Span) -> Value | bool:
        """Whether a factor is 0 for all products."""
        product = self.frame.product
        if self.left is not None:
            return self.left.is_zero_in(box_of((product.row, rows), (product.depth, depth)))
        if self.right is not None:
            return self.right.is_zero_in(box_of((product.column, columns), (product.depth, depth)))
        return False

    def seen(self, rows: Span, depth: Span, none: Value | bool) -> Value:
        """How many points of a depth come before those at which the left factor is 0 in all rows.

        It may say more: whole turns of a loop. If there is no product at all, it is 0.
        """
        found, (name, _) = depth.count, self.frame.product.depth
        if self.left is None:
            return found
        _, highs = ends(self.left.condition, name, box_of((self.frame.product.row, rows)))
        for high in highs:
            shown = subtract(high, depth.start)
            shown = larger(multiply(ceiling(shown, TURNS), TURNS), 0)
            found = smaller(found, selected(is_held(high), shown, depth.count))
        return selected(none, ZERO, selected(self.left.hides_by_zero, found, depth.count))

    def no_products_of_some(self, rows: Span, columns: Span, depth: Span) -> Value | bool:
        """Whether the right factor is 0 for a panel of columns: if so, for the first or last."""
        if self.right is None or self.frame.waits is None:
            return False
        wide = self.frame.block.columns
        last = multiply(divide(subtract(columns.count, 1), wide), wide)
        starts = columns.start, add(columns.start, last)
        first, final = (self.no_product(rows, Span(x, integer(wide)), depth) for x in starts)
        return either(first, final)

    def is_shown(self, rows: Span, columns: Span, depth: Span) -> Value | bool:
        """Whether a mask of a factor shows all of it."""
        product = self.frame.product
        mask, own = (
            (self.left, (product.row, rows))
            if self.left
            else (
                self.right,
                (product.column, columns),
            )
        )
        return (
            False if mask is None else is_shown(mask.condition, box_of(own, (product.depth, depth)))
        )

    @property
    def left_shown(self) -> Value:
        """The left factor where a mask shows it."""
        return self.frame.product.left if self.left is None else self.left.shown

    @property
    def right_shown(self) -> Value:
        """The right factor where a mask shows it."""
        return self.frame.product.right if self.right is None else self.right.shown

    def rests(self, rows: Span, columns: Span, depth: Span) -> Statements:
        """Sums of the other factor times 0: one for each column of the tile, or for each row."""
        f, product = self.frame, self.frame.product
        mask = self.left or self.right
        assert mask is not None
        span, (name, _), factor = columns, product.column, product.right
        if self.left is None:
            span, (name, _), factor = rows, product.row, product.left
        made: list[Statement] = []

        def sums_at(places: Sequence[Value], lanes: int) -> Statements:
            sums = [f.scope.local("sum", f.dtype, lanes) for _ in places]

            def body(k: Value) -> Statements:
                deep, found = {product.depth[0]: add(depth.start, k)}, list[Statement]()
                for s, place in zip(sums, places, strict=True):
                    x = substitute_value(factor, {**deep, name: add(span.start, place)})
                    found.append(Assign(s, multiplied(mask.hidden, x, get(s, f.dtype))))
                return tuple(found)

            return (
                *(Assign(s, const(-0.0, f.dtype)) for s in sums),
                *f.loop("depth", depth.count, body),
                *(
                    Assign(self.rest, get(s, f.dtype), at)
                    for s, at in zip(sums, places, strict=True)
                ),
            )

        first, wide = ZERO, f.block.lanes if runs_along(factor, name) else 1
        beside = max(min((known(span.count) or self.length) // wide, BESIDE), 1)
        for lanes, several in dict.fromkeys(((wide, beside), (wide, 1), (1, 1))):
            step = lanes * several
            turns = f.let("turns", divide(subtract(span.count, first), step), made)
            if known(turns) == 0:
                continue

            def turn(
                n: Value, lanes: int = lanes, step: int = step, first: Value = first
            ) -> Statements:
                start = add(first, multiply(n, step))
                if lanes == 1:
                    return sums_at([add(start, i) for i in range(step)], 1)
                lane = f.scope.variable("lane")
                places = [add(add(start, lane), i) for i in range(0, step, lanes)]
                return (Loop(lane, ZERO, integer(lanes), sums_at(places, lanes), "vector", lanes),)

            made += f.loop("turn", turns, turn)
            first = add(first, multiply(turns, step))
        return tuple(made)

    def add_rests(self, p: Value, q: Value, lane: Value) -> Statements:
        """Add them to the sums of the block where two panels meet."""
        f, b = self.frame, self.frame.block
        made: list[Statement] = []
        for i, sums in enumerate(f.sums):
            for j, s in enumerate(sums):
                place = add(multiply(q, b.columns), add(lane, j * b.lanes))
                if self.left is None:
                    place = add(multiply(p, b.rows), i)
                rest = get(self.rest, f.dtype, place)
                made.append(Assign(s, value("add", (get(s, f.dtype), rest), f.dtype)))
        return tuple(made)
