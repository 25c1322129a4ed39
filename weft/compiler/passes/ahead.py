"""Have caches fetch what long vector loops will read, or the rows that come next.

A processor that follows reads loses the trail at the end of a page, and where several runs of one
page are read in turns. Wide vectors are through with a page before it is found again. Loops that
also write several runs are left alone: there the memory is busy, not idle. Narrower vectors are
slower than that; but the narrowest fetch a few lines ahead if a loop does little but read an array.
Where tasks read a row several times, memory is idle after the first time, so the second of these
loops fetches the next task's row.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

from weft.compiler.loops import (
    Ahead,
    Assign,
    Kernel,
    Loop,
    Statement,
    Store,
    Value,
    every,
    expressions,
    integer,
    leaves_of,
    load,
    walk,
)
from weft.compiler.passes.contract_blocks import LINE, NARROW
from weft.compiler.passes.contract_registers import WIDEST
from weft.compiler.passes.reduce_lanes import BLOCK
from weft.compiler.polynomial import add, known, number, stride, subtract
from weft.compiler.rebuild import Statements, substitute_value, with_body, with_statements

MOST_RUNS = 8
NEAR = 512  # bytes that a loop with narrow vectors fetches ahead, if all it does is read
ROW = 1 << 14  # bytes of a row that is still near when it is read again, as the next one is


def ahead(kernel: Kernel, vector_bytes: int = 16) -> Kernel:
    """The kernel whose long vector loops say what they will read."""
    if vector_bytes < WIDEST:
        made = _with_rows(kernel)
        return _with_next_lines(made) if made is kernel and vector_bytes == NARROW else made
    return with_statements(kernel, _statements(kernel.body))


def _statements(statements: Statements, outer: Loop | None = None) -> Statements:
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Loop) and (_is_long(statement) or _goes_on(statement, outer)):
            made.append(replace(statement, body=(*_soon(statement), *statement.body)))
        elif isinstance(statement, Store | Assign):
            made.append(statement)
        else:
            around = statement if isinstance(statement, Loop) else None
            made.append(with_body(statement, _statements(statement.body, around)))
    return tuple(made)


def _is_long(loop: Loop) -> bool:
    if not _is_simple(loop):
        return False
    steps = known(subtract(loop.stop, loop.start))
    return steps is None or steps >= BLOCK


def _is_simple(loop: Loop) -> bool:
    return loop.kind == "vector" and all(isinstance(s, Store | Assign) for s in loop.body)


def _goes_on(loop: Loop, outer: Loop | None) -> bool:
    """Whether a loop has one turn, and the next step of a long loop around it reads on."""
    if outer is None or outer.kind != "serial" or not _is_simple(loop):
        return False
    turns = known(subtract(outer.stop, outer.start))
    if known(subtract(loop.stop, loop.start)) != loop.step:
        return False
    if turns is not None and turns * loop.step < BLOCK:
        return False
    runs = _runs(loop)
    return bool(runs) and all(number(stride(x.args[0], outer.variable)) == loop.step for x in runs)


def _soon(loop: Loop) -> Statements:
    """What a later step reads of each run: a block on for each run of its buffer.

    A run whose place was found is of what has been read before, and is near.
    """
    runs = [x for x in _runs(loop) if not _is_found(x.args[0])]
    writes = any(isinstance(s, Store) for s in loop.body)
    if len(runs) > (1 if writes else MOST_RUNS):
        return ()
    together, made = Counter(x.data for x in runs), list[Statement]()
    for x in runs:
        made += _lines(x, BLOCK * together[x.data], loop.step)
    return tuple(made)


def _lines(x: Value, further: int, lanes: int) -> Statements:
    """The lines of memory that some lanes read, so many elements further."""
    places = range(further, further + lanes, max(LINE // x.dtype.itemsize, 1))
    return tuple(Ahead(load(x.data, add(x.args[0], k), x.dtype)) for k in places)


def _runs(loop: Loop) -> list[Value]:
    """Reads of adjacent elements, each once, in the order of the statements."""
    found: dict[Value, None] = {}
    for x in walk(*(x for s in loop.body for x in expressions(s))):
        if x.op == "load" and number(stride(x.args[0], loop.variable)) == 1:
            found[x] = None
    return list(found)


def _is_found(place: Value) -> bool:
    return any(x.op == "get" for x in leaves_of(place))


def _with_rows(kernel: Kernel) -> Kernel:
    """The kernel whose tasks fetch the rows of the next ones, if they read rows several times."""
    outer = kernel.parallel
    if outer is None:
        return kernel
    loops = [s for s in every(outer.body) if isinstance(s, Loop) and _is_long(s)]
    seen: dict[Value, int] = {}
    made: dict[int, Statements] = {}
    for loop in loops if len(loops) > 1 else ():
        for x in _runs(loop):
            run = _first(x, loop)
            seen[run] = times = seen.get(run, 0) + 1
            if times == 2:
                made[id(loop)] = made.get(id(loop), ()) + _next_row(x, outer.variable, loop.step)
    return with_statements(kernel, _fetching(kernel.body, made)) if made else kernel


def _with_next_lines(kernel: Kernel) -> Kernel:
    """The kernel whose long loops fetch the next lines of an array that they do little but read."""
    loops = [s for s in every(kernel.body) if isinstance(s, Loop) and _is_long(s)]
    reads = {id(loop): _runs(loop) for loop in loops}
    again = Counter(_first(x, loop) for loop in loops for x in reads[id(loop)])
    made: dict[int, Statements] = {}
    for loop in loops:
        runs = reads[id(loop)]
        known_before = any(again[_first(x, loop)] > 1 or _is_found(x.args[0]) for x in runs)
        if not known_before and len({x.data for x in runs}) == 1 and _is_light(loop, len(runs)):
            near = (_lines(x, NEAR // x.dtype.itemsize, loop.step) for x in runs)
            made[id(loop)] = tuple(itertools.chain.from_iterable(near))
    return with_statements(kernel, _fetching(kernel.body, made)) if made else kernel


def _first(x: Value, loop: Loop) -> Value:
    """Where a run begins."""
    return substitute_value(x, {loop.variable: integer(0)})


def _is_light(loop: Loop, runs: int) -> bool:
    """Whether a loop writes nothing, and takes an instruction or two for each run that it reads."""
    left = [s.value for s in loop.body if isinstance(s, Assign)]
    work: set[Value] = set()
    while left:
        x = left.pop()
        if x.args and x.op != "load" and x not in work:
            work.add(x)
            left += x.args
    few = len(work) <= 2 * runs and not any(x.op == "cast" for x in work)
    return few and all(isinstance(s, Assign) for s in loop.body)


def _next_row(x: Value, row: Value, lanes: int) -> Statements:
    """What the next task reads where this one reads a run."""
    length, size = number(stride(x.args[0], row)), x.dtype.itemsize
    if length is None or not BLOCK <= length <= ROW // size or lanes * size < LINE:
        return ()
    return _lines(x, length, lanes)


def _fetching(statements: Statements, made: dict[int, Statements]) -> Statements:
    return tuple(
        s
        if isinstance(s, Store | Assign)
        else with_body(s, (*made.get(id(s), ()), *_fetching(s.body, made)))
        for s in statements
    )
