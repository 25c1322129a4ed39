"""Make two nested loops of one whose variable is divided: the opposite of `collapse`.

A loop over `j < R · C` that reads j // C and j % C becomes loops over `r < R` and `c < C`, so that
its indices are sums of multiples again.
"""

from __future__ import annotations

from weft.compiler.loops import (
    INDEX,
    Assign,
    Kernel,
    Loop,
    Statement,
    Store,
    Value,
    integer,
)
from weft.compiler.polynomial import add, divide, known, multiply, polynomial, remainder, to_value
from weft.compiler.rebuild import Scope, Statements, substitute, values_of, with_body


def unfold(kernel: Kernel) -> Kernel:
    """The kernel with plain indices where loops can be nested for them."""
    scope = Scope(kernel)
    return scope.kernel_with(_statements(kernel.body, scope))


def _statements(statements: Statements, scope: Scope) -> Statements:
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Loop):
            statement = _loop(statement, scope)
        if not isinstance(statement, Store | Assign):
            statement = with_body(statement, _statements(statement.body, scope))
        made.append(statement)
    return tuple(made)


def _loop(loop: Loop, scope: Scope) -> Loop:
    if loop.kind != "serial" or known(loop.start) != 0:
        return loop
    divided = [
        x
        for x in values_of(loop.body)
        if x.op in ("floordiv", "rem") and x.args[0] is loop.variable and x.dtype == INDEX
    ]
    size = _divisor({x.args[1] for x in divided}, loop.stop)
    count = None if size is None else quotient(loop.stop, size)
    if size is None or count is None or known(count) == 1:
        return loop
    row, column = (scope.variable(loop.variable.data) for _ in range(2))
    values = {loop.variable: add(multiply(row, size), column)}
    for x in divided:
        times = quotient(x.args[1], size)
        if times is None:
            continue
        if x.op == "floordiv":
            values[x] = divide(row, times)
        else:
            values[x] = add(multiply(remainder(row, times), size), column)
    body = substitute(loop.body, values)
    inner = Loop(column, integer(0), size, body)
    return Loop(row, integer(0), count, (inner,))


def _divisor(divisors: set[Value], extent: Value) -> Value | None:
    """The divisor to nest by: the smallest literal that the extent is a multiple of, or another."""
    fitting = [d for d in divisors if quotient(extent, d) is not None]
    numbers = {n: d for d in fitting if (n := known(d)) is not None and n > 1}
    if numbers:
        return numbers[min(numbers)]
    given = sorted((d for d in fitting if d.op == "parameter"), key=lambda d: int(d.data))
    return given[0] if given else None


def quotient(x: Value, by: Value) -> Value | None:
    """x / by where that is whole: literals, or products that `by` is a factor of."""
    divisor, terms = known(by), polynomial(x)
    if divisor is not None:
        if divisor <= 0 or any(count % divisor for count in terms.values()):
            return None
        return to_value({term: count // divisor for term, count in terms.items()})
    if not terms or any(by not in term for term in terms):
        return None
    left = {}
    for term, count in terms.items():
        place = term.index(by)
        left[term[:place] + term[place + 1 :]] = count
    return to_value(left)
