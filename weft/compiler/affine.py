"""How an index moves when a loop's variable moves.

`stride` is the coefficient of a variable in an index that is a sum of products; `depends` says
whether a value reads a variable at all. `add`, `sub` and `mul` build such indices, folded.
"""

from __future__ import annotations

from weft.compiler.loops import Value, integer, integer_of, leaves_of, value

_ZERO, _ONE = integer(0), integer(1)


def _known(x: Value) -> int | None:
    return integer_of(x) if x.op == "const" else None


def add(x: Value, y: Value) -> Value:
    """`x + y` of two indices; literals are gathered on the right."""
    if x.op == "const":
        x, y = y, x
    a, b = _known(x), _known(y)
    if a is not None and b is not None:
        return integer(wrapped(a + b))
    if b == 0:
        return x
    if b is not None and x.op == "add" and x.args[1].op == "const":
        return add(x.args[0], add(x.args[1], y))
    return value("add", (x, y), x.dtype)


def sub(x: Value, y: Value) -> Value:
    """`x - y` of two indices."""
    a, b = _known(x), _known(y)
    if b is not None:
        return add(x, integer(wrapped(-b)))
    if x is y:
        return _ZERO
    if a == 0:
        return value("neg", (y,), x.dtype)
    return value("sub", (x, y), x.dtype)


def mul(x: Value, y: Value) -> Value:
    """`x * y` of two indices; a literal stands on the right."""
    if x.op == "const":
        x, y = y, x
    a, b = _known(x), _known(y)
    if a is not None and b is not None:
        return integer(wrapped(a * b))
    if b == 0:
        return _ZERO
    if b == 1:
        return x
    if b is not None and x.op == "mul" and x.args[1].op == "const":
        return mul(x.args[0], mul(x.args[1], y))
    return value("mul", (x, y), x.dtype)


def wrapped(number: int) -> int:
    """An integer as 64 bits hold it."""
    return (number + 2**63) % 2**64 - 2**63


def depends(x: Value, variable: Value) -> bool:
    """Whether a value reads the variable; what a local was assigned earlier does not count."""
    return variable in leaves_of(x)


def stride(
    index: Value, variable: Value, found: dict[Value, Value | None] | None = None
) -> Value | None:
    """By how much an index grows with each step of the variable; None if that is not constant.

    The coefficient is itself free of the variable: `integer(1)`, a parameter, a product of those.
    What is in `found` is taken from there; what is found on the way is put there.
    """
    found = {} if found is None else found
    stack = [index]
    while stack:
        point = stack[-1]
        if point in found:
            stack.pop()
            continue
        missing = [a for a in point.args if a not in found]
        if missing:
            stack += missing
        else:
            stack.pop()
            found[point] = _stride(point, variable, found)
    return found[index]


def _stride(x: Value, variable: Value, found: dict[Value, Value | None]) -> Value | None:
    if x is variable:
        return _ONE
    slopes = [found[a] for a in x.args]
    for slope in slopes:
        if slope is not _ZERO:
            break
    else:
        return _ZERO
    if x.op == "neg" and slopes[0] is not None:
        return sub(_ZERO, slopes[0])
    if x.op not in ("add", "sub", "mul"):
        return None
    (a, b), (p, q) = slopes, x.args
    if a is None or b is None:
        return None
    if x.op == "mul":
        if b is _ZERO:
            return mul(a, q)
        return mul(p, b) if a is _ZERO else None
    return add(a, b) if x.op == "add" else sub(a, b)
