"""Fold index arithmetic, drop loops of one step or none, and locals that nobody reads."""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.loops import (
    BOOL,
    COMPARISONS,
    INDEX,
    Assign,
    Kernel,
    Loop,
    Part,
    Reduce,
    Statement,
    Store,
    Value,
    When,
    const,
    integer,
    literal,
    value,
    walk,
)
from weft.compiler.polynomial import (
    Polynomial,
    divide,
    is_sum,
    known,
    larger,
    plus,
    polynomial,
    remainder,
    smaller,
    to_value,
)
from weft.compiler.rebuild import (
    DEEPEST,
    Change,
    Statements,
    assigned_locals,
    read_locals,
    rename_locals,
    revise_one,
    substitute,
    with_body,
    with_statements,
)


def simplify(kernel: Kernel) -> Kernel:
    """The same kernel in fewer and plainer words."""
    return renumber(shorten(kernel))


def shorten(kernel: Kernel) -> Kernel:
    """`simplify` but for `renumber`: locals keep theirs, whether they are used or not."""
    body = fold(kernel.body)
    while True:
        smaller_body = _used(_without_steps(body), kernel)
        if smaller_body == body:
            break
        body = fold(smaller_body)
    return with_statements(kernel, body)


def fold(statements: Statements) -> Statements:
    """Statements whose index arithmetic is in its plainest form."""
    memo: dict[Value, Value] = {}

    def change(x: Value) -> Value:
        return x if x.is_folded else _folded(x, memo)

    return tuple([_fold_one(s, change) for s in statements])


def _folded(x: Value, memo: dict[Value, Value], depth: int = 0) -> Value:
    """`rebuild` by `_point`, for those values of which it is not known that they stay."""
    found = memo.get(x)
    if found is not None:
        return found
    if depth == DEEPEST:
        for point in walk(x):
            if not point.is_folded:
                _folded(point, memo, DEEPEST - 1)
        return memo.get(x, x)
    made, is_final = [], True
    for a in x.args:
        if not a.is_folded:
            a = _folded(a, memo, depth + 1)
            is_final = is_final and a.is_folded
        made.append(a)
    args = tuple(made)
    found = x if args == x.args else value(x.op, args, x.dtype, x.data)
    if found.op in _FOLDED:
        found = _point(found)
    if found is x:
        x.is_folded = is_final
    memo[x] = found
    return found


def _fold_one(statement: Statement, change: Change) -> Statement:
    changed = revise_one(statement, change)
    if isinstance(changed, Store):
        index = plain(changed.index)
        return changed if index is changed.index else replace(changed, index=index)
    if isinstance(changed, Assign):
        position = None if changed.position is None else plain(changed.position)
        return changed if position is changed.position else replace(changed, position=position)
    if isinstance(changed, Loop):
        start, stop = plain(changed.start), plain(changed.stop)
        if start is not changed.start or stop is not changed.stop:
            changed = replace(changed, start=start, stop=stop)
    elif isinstance(changed, Reduce):
        axes = tuple((v, plain(extent)) for v, extent in changed.axes)
        changed = changed if axes == changed.axes else replace(changed, axes=axes)
    return with_body(changed, tuple([_fold_one(s, change) for s in changed.body]))


def plain(index: Value) -> Value:
    """An index as a sum of products, its quotients and remainders put together again."""
    if index.is_plain or not is_sum(index):
        return index
    found = to_value(rejoined(polynomial(index)))
    found.is_plain = True
    return found


def rejoined(p: Polynomial) -> Polynomial:
    """(x // n) · n + x % n is x, also when both are multiplied."""
    for rest in [term for term in p if len(term) == 1 and term[0].op == "rem"]:
        x, n = rest[0].args
        whole = (value("floordiv", (x, n), INDEX),)
        count, by = p[rest], known(n)
        if by is not None and by > 0 and p.get(whole) == count * by:
            others = {term: c for term, c in p.items() if term not in (rest, whole)}
            times_x = {term: c * count for term, c in polynomial(x).items()}
            return rejoined(plus(others, times_x))
    return p


_FOLDED = frozenset({"load", "get", "floordiv", "rem", "min", "max", "select"}) | COMPARISONS


def _point(x: Value) -> Value:
    """One of the instructions of `_FOLDED`, whose operands are folded."""
    if x.op in ("load", "get") and x.args:
        return value(x.op, (plain(x.args[0]),), x.dtype, x.data)
    if x.dtype == INDEX and x.op in ("floordiv", "rem", "min", "max"):
        return _index_point(x)
    if x.op == "select" and x.args[0].op == "const":
        return x.args[1] if literal(x.args[0]) else x.args[2]
    if x.op in COMPARISONS and x.args[0].dtype == INDEX:
        return _comparison(x)
    return x


def _index_point(x: Value) -> Value:
    left, right = x.args
    both = left.op == right.op == "const"
    by = known(right)
    if x.op in ("min", "max"):
        return (smaller if x.op == "min" else larger)(left, right)
    if by is None or by <= 0 or not (both or by == 1):
        return x
    if x.op == "floordiv":
        return divide(left, right)
    number = known(left)
    return remainder(left, right) if number is None or number >= 0 else x


def _comparison(x: Value) -> Value:
    a, b = (known(v) for v in x.args)
    if a is None or b is None:
        return x
    found = {"less": a < b, "less_equal": a <= b, "equal": a == b, "not_equal": a != b}[x.op]
    return const(found, BOOL)


def _without_steps(statements: Statements) -> Statements:
    """Statements without loops that run once or never."""
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Loop) and statement.kind != "parallel":
            made.extend(_loop(statement))
        elif isinstance(statement, When) and statement.condition.op == "const":
            made.extend(_without_steps(statement.body) if literal(statement.condition) else ())
        elif isinstance(statement, Reduce):
            made.extend(_reduce(statement))
        elif isinstance(statement, Loop | When):
            body = _without_steps(statement.body)
            made.extend((with_body(statement, body),) if body else ())
        else:
            made.append(statement)
    return tuple(made)


def _loop(loop: Loop) -> Statements:
    start, stop = known(loop.start), known(loop.stop)
    body = _without_steps(loop.body)
    if not body or (start is not None and stop is not None and stop <= start):
        return ()
    once = start is not None and stop is not None and stop - start == 1
    if once and loop.kind in ("serial", "unroll"):
        return substitute(body, {loop.variable: loop.start})
    return (with_body(loop, body),)


def _reduce(reduce: Reduce) -> Statements:
    """A reduction without axes of one point; one that gives nothing is loops around its body."""
    single = {v: integer(0) for v, extent in reduce.axes if known(extent) == 1}
    inner = with_body(reduce, _without_steps(reduce.body))
    assert isinstance(inner, Reduce)
    if single:
        kept = tuple(axis for axis in inner.axes if axis[0] not in single)
        (changed,) = substitute((replace(inner, axes=kept),), single)
        assert isinstance(changed, Reduce)
        inner = changed
    if inner.parts:
        return (inner,)
    body = inner.body
    for variable, extent in reversed(inner.axes):
        body = (Loop(variable, integer(0), extent, body),)
    return body


def _used(statements: Statements, kernel: Kernel) -> Statements:
    """Statements without assignments to locals that are never read."""
    read = read_locals(statements)
    unread = {n for n in range(len(kernel.locals)) if n not in read}
    return _reading(statements, unread) if unread & assigned_locals(statements) else statements


def _reading(statements: Statements, unread: set[int]) -> Statements:
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Assign) and statement.local in unread:
            continue
        if isinstance(statement, Reduce):
            parts = tuple(p for p in statement.parts if not _is_unread(p, unread))
            body = _reading(statement.body, unread)
            if parts or body:
                made.append(replace(statement, parts=parts, body=body))
        elif isinstance(statement, Store | Assign):
            made.append(statement)
        else:
            made.append(with_body(statement, _reading(statement.body, unread)))
    return tuple(made)


def _is_unread(part: Part, unread: set[int]) -> bool:
    return unread.issuperset(part.targets)


def renumber(kernel: Kernel) -> Kernel:
    """The kernel without locals that nobody uses; the others are numbered anew."""
    used = sorted(read_locals(kernel.body) | assigned_locals(kernel.body))
    if len(used) == len(kernel.locals):
        return kernel
    numbers = {old: new for new, old in enumerate(used)}
    body = rename_locals(kernel.body, numbers)
    return replace(kernel, body=body, locals=tuple(kernel.locals[n] for n in used))
