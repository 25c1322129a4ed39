"""Indices as polynomials: sums of integer multiples of products of variables and parameters.

Two indices are equal everywhere if their polynomials are; a variable's coefficient tells how an
index moves with it, also where strides are parameters. What is not a sum or a product is an atom.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

from weft.compiler.loops import INDEX, Value, integer, integer_of, leaves_of, value

Monomial: TypeAlias = tuple[Value, ...]
Polynomial: TypeAlias = dict[Monomial, int]

_RANK = {"variable": 0, "parameter": 1}
_WRAP = 1 << 64
RECENT = 1024  # sums and products that are remembered: most are asked for several times in a row
_MOST_FACTORS = 4  # products of more than a few stay whole: they are data, not strides


def polynomial(x: Value) -> Polynomial:
    """An index as a polynomial, which nobody may change; products of two sums are left whole."""
    if x.terms is None:
        found = _terms(x)
        if (x,) in found:  # not kept: a value that held itself would stay until all is searched
            return found
        x.terms = found
    terms: Polynomial = x.terms
    return terms


def _terms(x: Value) -> Polynomial:
    if x.op == "const" and x.dtype == INDEX:
        return constant(integer_of(x))
    if not is_sum(x):
        return {(x,): 1}
    args = [polynomial(a) for a in x.args]
    if x.op == "neg":
        return times(args[0], constant(-1))
    if x.op == "add":
        return plus(*args)
    if x.op == "sub":
        return plus(args[0], times(args[1], constant(-1)))
    degree = sum(max(map(len, p), default=0) for p in args)
    if degree > _MOST_FACTORS or min(map(len, args)) > 1:
        return {(x,): 1}
    return times(*args)


def is_sum(x: Value) -> bool:
    """Whether a value is integer arithmetic that a polynomial takes apart."""
    return x.dtype == INDEX and x.op in ("add", "sub", "mul", "neg")


def constant(number: int) -> Polynomial:
    """A literal."""
    return {(): number} if number else {}


def plus(p: Polynomial, q: Polynomial) -> Polynomial:
    """p + q, terms in the order they are met."""
    total = dict(p)
    for term, count in q.items():
        total[term] = total.get(term, 0) + count
        if total[term] % _WRAP == 0:
            del total[term]
    return total


def times(p: Polynomial, q: Polynomial) -> Polynomial:
    """p · q."""
    if len(q) == 1 and () in q:
        by = q[()]
        return {term: count * by for term, count in p.items() if count * by % _WRAP}
    total: Polynomial = {}
    for term, count in p.items():
        for other, many in q.items():
            total = plus(total, {_ordered(term + other): count * many})
    return total


def _ordered(atoms: Monomial) -> Monomial:
    return atoms if len(atoms) < 2 else tuple(sorted(atoms, key=_place))


def _place(atom: Value) -> tuple[int, str, int]:
    return _RANK.get(atom.op, 2), _spelled(atom, 4), id(atom)


def _spelled(x: Value, depth: int) -> str:
    inner = ",".join(_spelled(a, depth - 1) for a in x.args) if depth else ""
    return f"{x.op} {x.data}({inner})"


def to_value(p: Polynomial) -> Value:
    """A polynomial in scalar instructions, its literal last."""
    total: Value | None = None
    for term, count in p.items():
        if not term:
            continue
        product, *factors = term
        for factor in factors:
            product = value("mul", (product, factor), INDEX)
        if count != 1:
            product = value("mul", (product, integer(_wrapped(count))), INDEX)
        total = product if total is None else value("add", (total, product), INDEX)
    offset = p.get((), 0)
    if total is None:
        return integer(_wrapped(offset))
    return value("add", (total, integer(_wrapped(offset))), INDEX) if offset else total


def _wrapped(number: int) -> int:
    return (number + _WRAP // 2) % _WRAP - _WRAP // 2


def coefficient(p: Polynomial, atom: Value) -> Polynomial | None:
    """What multiplies an atom; None where it occurs in powers or hides inside another atom."""
    found: Polynomial = {}
    for term, count in p.items():
        powers = sum(a is atom for a in term)
        if powers > 1 or any(a is not atom and hides(a, atom) for a in term):
            return None
        if powers:
            found[tuple(a for a in term if a is not atom)] = count
    return found


def hides(x: Value, atom: Value) -> bool:
    """Whether an atom is somewhere inside a value."""
    if x is atom:
        return True
    if atom.op == "variable":
        return atom in leaves_of(x)
    seen: set[Value] = set()
    stack = [x]
    while stack:
        args = stack.pop().args
        if atom in args:
            return True
        for a in args:
            if a.args and a not in seen:
                seen.add(a)
                stack.append(a)
    return False


def without(p: Polynomial, atoms: Iterable[Value]) -> Polynomial:
    """The terms that have none of these atoms as a factor."""
    gone = set(atoms)
    return {term: count for term, count in p.items() if gone.isdisjoint(term)}


def divides(p: Polynomial, by: int) -> bool:
    """Whether every coefficient is a multiple of a number."""
    return all(count % by == 0 for count in p.values())


@lru_cache(RECENT)
def stride(index: Value, variable: Value) -> Polynomial | None:
    """By how much an index grows with a variable; None if that is not the same everywhere.

    Nobody may change what it gives.
    """
    if not hides(index, variable):
        return {}
    return coefficient(polynomial(index), variable)


def number(p: Polynomial | None) -> int | None:
    """The number a polynomial is, where it has no atoms."""
    if p is None or any(term for term in p):
        return None
    return p.get((), 0)


def known(x: Value) -> int | None:
    """The number of a literal index."""
    return integer_of(x) if x.op == "const" else None


def most_of(x: Value) -> int | None:
    """A number that an index never exceeds, where one can be read off."""
    if x.op == "min":
        return min((most for most in map(most_of, x.args) if most is not None), default=None)
    if x.op not in ("add", "floordiv"):
        return known(x)
    most, other = most_of(x.args[0]), known(x.args[1])
    if most is None or other is None or (x.op == "floordiv" and other <= 0):
        return None
    return most + other if x.op == "add" else most // other


@lru_cache(RECENT)
def add(x: Value, y: Value | int) -> Value:
    """x + y, folded."""
    return to_value(plus(polynomial(x), polynomial(_value(y))))


@lru_cache(RECENT)
def subtract(x: Value, y: Value | int) -> Value:
    """x - y, folded."""
    return to_value(plus(polynomial(x), times(polynomial(_value(y)), constant(-1))))


@lru_cache(RECENT)
def multiply(x: Value, y: Value | int) -> Value:
    """x · y, folded."""
    p, q = polynomial(x), polynomial(_value(y))
    if len(p) > 1 and len(q) > 1:
        return value("mul", (x, _value(y)), INDEX)
    return to_value(times(p, q))


@lru_cache(RECENT)
def divide(x: Value, by: Value | int) -> Value:
    """The floor of x / by, folded where every term divides or both are literals."""
    divisor = known(_value(by))
    if divisor is None or divisor <= 0:
        return value("floordiv", (x, _value(by)), INDEX)
    p = polynomial(x)
    if all(count % divisor == 0 for count in p.values()) or not any(p):
        return to_value({term: count // divisor for term, count in p.items()})
    return value("floordiv", (x, integer(divisor)), INDEX)


def remainder(x: Value, by: Value | int) -> Value:
    """x - floor(x / by) · by for x that is not negative, folded like `divide`."""
    divisor = known(_value(by))
    if divisor is None or divisor <= 0:
        return value("rem", (x, _value(by)), INDEX)
    p = {term: count for term, count in polynomial(x).items() if count % divisor}
    if not any(p):
        return integer(p.get((), 0) % divisor)
    return value("rem", (x, integer(divisor)), INDEX)


def whole(x: Value, by: int) -> Value:
    """The largest multiple of `by` that is not above x: x itself, where it is known to be one."""
    return x if is_multiple(x, by) else multiply(divide(x, by), by)


def is_multiple(x: Value, by: int) -> bool:
    """Whether an index is known to be a multiple of a number, whatever its variables are."""
    if x.op in ("min", "max"):
        return all(is_multiple(a, by) for a in x.args)
    return all(
        count % by == 0 or any(a.op in ("min", "max") and is_multiple(a, by) for a in term)
        for term, count in polynomial(x).items()
    )


def smaller(x: Value, y: Value | int) -> Value:
    """The smaller of two indices, folded where their difference is known."""
    y = _value(y)
    gap = number(plus(polynomial(x), times(polynomial(y), constant(-1))))
    if gap is not None:
        return x if gap <= 0 else y
    return value("min", (x, y), INDEX)


def larger(x: Value, y: Value | int) -> Value:
    """The larger of two indices, folded where their difference is known."""
    y = _value(y)
    gap = number(plus(polynomial(x), times(polynomial(y), constant(-1))))
    if gap is not None:
        return x if gap >= 0 else y
    return value("max", (x, y), INDEX)


def _value(x: Value | int) -> Value:
    return integer(x) if isinstance(x, int) else x
