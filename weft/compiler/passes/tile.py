"""Put nested loops in the order memory likes; where two orders meet, run in tiles.

The innermost loop becomes the one along which most accesses are adjacent, stores before loads. If
others are adjacent along a second loop, as in a transpose, both run in tiles small enough for the
nearest cache, so that every line of it is used whole.
"""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.lanes import Lanes
from weft.compiler.loops import (
    Assign,
    Kernel,
    Loop,
    Statement,
    Store,
    Value,
    expressions,
    get,
    integer,
    walk,
)
from weft.compiler.polynomial import (
    add,
    divide,
    hides,
    known,
    multiply,
    number,
    smaller,
    stride,
    subtract,
)
from weft.compiler.prices import APART, accesses, price
from weft.compiler.rebuild import (
    Scope,
    Statements,
    stored_buffers,
    substitute,
    with_body,
)

TILE = 32  # elements along each side,
WIDE, LOW = 256, 16  # or, where rows are long, along those that are read and those written:
_LONG = 1024  # memory is read faster the longer it goes on, and each line is written at once
_SHORT = 4  # an axis below this is better taken whole


def tile(kernel: Kernel) -> Kernel:
    """The kernel with its innermost loops in the best order."""
    scope = Scope(kernel)
    return scope.kernel_with(_statements(kernel.body, scope, Lanes(kernel)))


def _statements(statements: Statements, scope: Scope, judge: Lanes) -> Statements:
    made: list[Statement] = []
    for statement in statements:
        nest = _nest(statement, judge)
        if len(nest) > 1:
            made.append(_arranged(nest, scope))
        elif isinstance(statement, Store | Assign):
            made.append(statement)
        else:
            made.append(with_body(statement, _statements(statement.body, scope, judge)))
    return tuple(made)


def _nest(statement: Statement, judge: Lanes) -> list[Loop]:
    """Loops, each the only statement of the one before, whose steps may run in any order."""
    found: list[Loop] = []
    while isinstance(statement, Loop):
        plain = statement.kind == "serial" and known(statement.start) == 0
        if not plain or any(hides(statement.stop, loop.variable) for loop in found):
            return []
        found.append(statement)
        if len(statement.body) != 1 or not isinstance(statement.body[0], Loop):
            break
        statement = statement.body[0]
    if not found or not all(isinstance(s, Store | Assign) for s in found[-1].body):
        return []
    free = all(judge.varying(loop.variable, loop.body) is not None for loop in found)
    return found if free else []


def _arranged(nest: list[Loop], scope: Scope) -> Loop:
    body = nest[-1].body
    best = min(reversed(nest), key=lambda loop: _cost(loop.variable, body))
    other = _meeting(nest, best, body)
    kept = [loop for loop in nest if loop is not best and loop is not other]
    if other is None:
        return _wrapped([*kept, best], body)
    wide, high = _sides(other)
    (far, near), (down, along) = _tiled(other, wide, scope), _tiled(best, high, scope)
    places = {
        other.variable: add(multiply(far.variable, wide), near.variable),
        best.variable: add(multiply(down.variable, high), along.variable),
    }
    staged, body = _staged(substitute(body, places), near, along, (wide, high), scope)
    inner = (*staged, _wrapped([near, along], body))
    return _wrapped([*kept, far, down], inner)


def _staged(
    body: Statements, near: Loop, along: Loop, sides: tuple[int, int], scope: Scope
) -> tuple[Statements, Statements]:
    """A copy of each tile that is read across, made along its rows, and the body that reads it.

    Rows that lie a power of two apart share places in a cache, so they are read only once.
    """
    wide, high = sides
    written = stored_buffers(body)
    held: dict[Value, Value] = {}
    copies: list[Statement] = []
    for x in dict.fromkeys(walk(*(v for s in body for v in expressions(s)))):
        if x.op != "load" or x.data in written or _step(x.args[0], near.variable) != 1:
            continue
        if _step(x.args[0], along.variable) in (0, 1):
            continue
        array = scope.local("tile", x.dtype, 1, wide * high)
        place = add(multiply(along.variable, wide), near.variable)
        held[x] = get(array, x.dtype, place)
        copies.append(Assign(array, x, place))
    if not copies:
        return (), body
    loop = scope.copy((_wrapped([along, near], tuple(copies)),))
    return loop, substitute(body, held)


def _cost(variable: Value, body: Statements) -> float:
    """The price of lanes along a variable; stores count twice."""
    stores = [s.index for s in body if isinstance(s, Store)]
    return price(variable, body) + APART * sum(_step(i, variable) != 1 for i in stores)


def _meeting(nest: list[Loop], best: Loop, body: Statements) -> Loop | None:
    """The loop along which accesses are adjacent that are apart along the best one."""
    apart = [i for i in accesses(body) if hides(i, best.variable) and _step(i, best.variable) != 1]
    for loop in nest:
        if loop is best or not any(_step(i, loop.variable) == 1 for i in apart):
            continue
        return loop if not (_is_short(loop) or _is_short(best)) else None
    return None


def _step(index: Value, variable: Value) -> int | None:
    return number(stride(index, variable))


def _is_short(loop: Loop) -> bool:
    extent = known(loop.stop)
    return extent is not None and extent < _SHORT


def _sides(read: Loop) -> tuple[int, int]:
    """Elements of a tile along the loop that reads adjacent ones, and along the other."""
    extent = known(read.stop)
    long = extent is not None and (extent % WIDE == 0 or extent >= _LONG)
    return (WIDE, LOW) if long else (TILE, TILE)


def _tiled(loop: Loop, side: int, scope: Scope) -> tuple[Loop, Loop]:
    """A loop over tiles, and the loop over one of them; their bodies are to be filled."""
    block, inside = scope.variable("tile"), scope.variable(loop.variable.data)
    extent = known(loop.stop)
    stop = integer(side)
    if extent is None or extent % side:
        stop = smaller(subtract(loop.stop, multiply(block, side)), side)
    count = divide(add(loop.stop, side - 1), side)
    return Loop(block, integer(0), count, ()), Loop(inside, integer(0), stop, ())


def _wrapped(loops: list[Loop], body: Statements) -> Loop:
    for loop in reversed(loops):
        body = (replace(loop, body=body),)
    (outermost,) = body
    assert isinstance(outermost, Loop)
    return outermost
