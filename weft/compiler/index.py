"""`Index`: integer arithmetic on loop variables, simplified as it is built.

An index is a sum of multiples of atoms: loop variables, quotients and remainders that could not be
taken apart, and values read at run time. Reshapes, slices and broadcasts compose here, so that what
reaches a kernel is as plain as a hand-written loop's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Literal, TypeAlias

from weft.compiler.loops import INDEX, Value, integer, integer_of, value, variable
from weft.core.common.types import DType, Shape

Bounds: TypeAlias = tuple[int, int]  # the least and the greatest value, both included
Part: TypeAlias = "Index | Value | int"


def axis(name: str, extent: int) -> Index:
    """A loop variable that runs from 0 to `extent` - 1."""
    made = variable(f"{name}_{extent}")
    made.extent = extent
    return Index({made: 1}, 0)


class Index:
    """Σ coefficient · atom + offset, for integers."""

    __slots__ = ("_bounds", "_hash", "offset", "terms")
    dtype: DType = INDEX

    def __init__(self, terms: dict[Value, int], offset: int) -> None:
        self.terms = terms  # which nobody may change
        self.offset = offset
        self._hash: int | None = None
        self._bounds: Bounds | Literal[False] | None = False  # until somebody has asked

    @staticmethod
    def of(x: Part) -> Index:
        """Any integer as an index; what is not understood becomes an atom."""
        if isinstance(x, Index):
            return x
        if not isinstance(x, Value):
            return Index({}, int(x))
        if x.op == "const":
            return Index({}, integer_of(x))
        if x.op in ("add", "sub") and x.dtype == INDEX:
            left, right = map(Index.of, x.args)
            return left + right if x.op == "add" else left - right
        if x.op == "mul" and x.dtype == INDEX and x.args[1].op == "const":
            return Index.of(x.args[0]) * integer_of(x.args[1])
        return Index({x: 1}, 0)

    @property
    def value(self) -> Value:
        """This index in scalar instructions."""
        total: Value | None = None
        for atom, coefficient in self.terms.items():
            term = atom if coefficient == 1 else _binary("mul", atom, integer(coefficient))
            total = term if total is None else _binary("add", total, term)
        if total is None:
            return integer(self.offset)
        return total if self.offset == 0 else _binary("add", total, integer(self.offset))

    @property
    def constant(self) -> int | None:
        """The number this is, where no variable is left."""
        return None if self.terms else self.offset

    @property
    def bounds(self) -> Bounds | None:
        """The least and greatest value it can take, where that is known."""
        if self._bounds is False:
            self._bounds = self._find_bounds()
        return self._bounds

    def _find_bounds(self) -> Bounds | None:
        low = high = self.offset
        for atom, coefficient in self.terms.items():
            found = bounds_of(atom)
            if found is None:
                return None
            one, other = found[0] * coefficient, found[1] * coefficient
            if one > other:
                one, other = other, one
            low, high = low + one, high + other
        return low, high

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Index) and self.offset == other.offset and self.terms == other.terms
        )

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((frozenset(self.terms.items()), self.offset))
        return self._hash

    def __repr__(self) -> str:
        return f"Index({self.value!r})"

    def __add__(self, other: Part) -> Index:
        right = Index.of(other)
        terms = dict(self.terms)
        for atom, coefficient in right.terms.items():
            terms[atom] = terms.get(atom, 0) + coefficient
            if not terms[atom]:
                del terms[atom]
        return Index(_rejoined(terms), self.offset + right.offset)

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Part) -> Index:
        return self + Index.of(other) * -1

    def __rsub__(self, other: Part) -> Index:
        return Index.of(other) + self * -1

    def __mul__(self, other: Part) -> Index:
        right = Index.of(other)
        left: Index = self
        if right.constant is None:
            left, right = right, left
        if right.constant is None:
            return Index({_binary("mul", left.value, right.value): 1}, 0)
        factor = right.offset
        if factor == 0:
            return Index({}, 0)
        return Index({a: c * factor for a, c in left.terms.items()}, left.offset * factor)

    __rmul__ = __mul__

    def __floordiv__(self, other: Part) -> Index:
        divisor = Index.of(other).constant
        if divisor is not None and divisor < 0:
            return -self // -divisor
        if not divisor:
            return Index({_binary("floordiv", self.value, Index.of(other).value): 1}, 0)
        whole, rest = self._split(divisor)
        found = rest.bounds
        if found is not None and found[0] // divisor == found[1] // divisor:
            return whole + found[0] // divisor
        return whole + _quotient(rest, divisor)

    def __rfloordiv__(self, other: Part) -> Index:
        return Index.of(other) // self

    def __mod__(self, other: Part) -> Index:
        divisor = Index.of(other).constant
        if divisor is None or divisor <= 0:
            other = Index.of(other)
            return self - (self // other) * other
        _, rest = self._split(divisor)
        found = rest.bounds
        if found is not None and found[0] // divisor == found[1] // divisor:
            return rest - found[0] // divisor * divisor
        if found is None or found[0] < 0:
            return rest - _quotient(rest, divisor) * divisor
        return Index({_binary("rem", rest.value, integer(divisor)): 1}, 0)

    def _split(self, divisor: int) -> tuple[Index, Index]:
        """(whole, rest): self = whole · divisor + rest, the rest as small as can be seen."""
        whole: dict[Value, int] = {}
        rest: dict[Value, int] = {}
        for atom, coefficient in self.terms.items():
            (whole if coefficient % divisor == 0 else rest)[atom] = coefficient
        taken = {atom: c // divisor for atom, c in whole.items()}
        return Index(taken, self.offset // divisor), Index(rest, self.offset % divisor)


def _quotient(x: Index, divisor: int) -> Index:
    """x // divisor where it does not come apart; a common divisor is cancelled first."""
    common = gcd(divisor, *x.terms.values())
    if common > 1:
        terms = {atom: c // common for atom, c in x.terms.items()}
        return Index(terms, x.offset // common) // (divisor // common)
    nested = _nested(x, "floordiv")
    if nested is not None:
        return _quotient(Index.of(nested.args[0]), divisor * integer_of(nested.args[1]))
    return Index({_binary("floordiv", x.value, integer(divisor)): 1}, 0)


def _nested(x: Index, op: str) -> Value | None:
    """The quotient by a literal that x is, if it is one: x // a // b = x // (a b)."""
    if x.offset or len(x.terms) != 1:
        return None
    ((atom, coefficient),) = x.terms.items()
    literal_divisor = atom.op == op and atom.args[1].op == "const"
    return atom if coefficient == 1 and literal_divisor and integer_of(atom.args[1]) > 0 else None


def _rejoined(terms: dict[Value, int]) -> dict[Value, int]:
    """Put (x // n) · n + x % n together again."""
    for rest in [atom for atom in terms if atom.op == "rem" and atom.args[1].op == "const"]:
        x, n = rest.args
        if integer_of(n) <= 0:
            continue
        quotient = _quotient(Index.of(x), integer_of(n))
        if len(quotient.terms) != 1 or quotient.offset:
            continue
        ((atom, count),) = quotient.terms.items()
        times = terms.get(rest, 0)
        if count == 1 and times and terms.get(atom) == times * integer_of(n):
            whole = Index.of(x) * times
            if not whole.offset:
                del terms[rest], terms[atom]
                return (Index(terms, 0) + whole).terms
    return terms


def _binary(op: str, x: Value, y: Value) -> Value:
    return value(op, (x, y), INDEX)


def bounds_of(x: Value) -> Bounds | None:
    """The least and greatest number an integer value can be, where that is known."""
    if x.op == "const":
        number = integer_of(x)
        return number, number
    if x.op == "variable":
        return None if x.extent is None else (0, max(x.extent - 1, 0))
    if (
        x.op == "cast"
        and x.args[0].dtype.kind in "iu"
        and x.args[0].dtype.itemsize <= x.dtype.itemsize
    ):
        return bounds_of(x.args[0])
    if x.op == "select":
        return _both(bounds_of(x.args[1]), bounds_of(x.args[2]))
    if x.op == "rem" and x.args[1].op == "const":
        left, most = bounds_of(x.args[0]), abs(integer_of(x.args[1])) - 1
        return (0 if left is not None and left[0] >= 0 else -most, most)
    if x.op in ("add", "sub", "mul", "floordiv", "min", "max"):
        return _combined(x.op, bounds_of(x.args[0]), bounds_of(x.args[1]))
    return None


def _both(a: Bounds | None, b: Bounds | None) -> Bounds | None:
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))


def _combined(op: str, a: Bounds | None, b: Bounds | None) -> Bounds | None:
    if a is None or b is None:
        return _half_open(op, a or b)
    if op == "add":
        return a[0] + b[0], a[1] + b[1]
    if op == "sub":
        return a[0] - b[1], a[1] - b[0]
    if op in ("min", "max"):
        choose = min if op == "min" else max
        return choose(a[0], b[0]), choose(a[1], b[1])
    if op == "floordiv":
        return (a[0] // b[0], a[1] // b[0]) if b[0] == b[1] and b[0] > 0 else None
    products = [x * y for x in a for y in b]
    return min(products), max(products)


def _half_open(op: str, known: Bounds | None) -> Bounds | None:
    """min and max bound one side whatever the other operand is; the other side is the dtype's."""
    if known is None or op not in ("min", "max"):
        return None
    return (-(1 << 63), known[1]) if op == "min" else (known[0], (1 << 63) - 1)


def flat(index: Sequence[Part], shape: Shape) -> Index:
    """The row-major position of a point."""
    terms: dict[Value, int] = {}
    offset = 0
    has_rest = False
    for i, size in zip(index, shape, strict=True):
        if size == 1:
            continue
        part = Index.of(i)
        terms = {atom: count * size for atom, count in terms.items()} if size else {}
        offset = offset * size + part.offset
        for atom, count in part.terms.items():
            terms[atom] = terms.get(atom, 0) + count
            if not terms[atom]:
                del terms[atom]
            has_rest = has_rest or atom.op == "rem"
        if has_rest:
            terms = _rejoined(terms)
    return Index(terms, offset)


def unflat(position: Part, shape: Shape) -> tuple[Index, ...]:
    """The point at a row-major position."""
    rest = Index.of(position)
    found: list[Index] = []
    for size in reversed(shape[1:]):
        found.append(rest % size if size != 1 else Index({}, 0))
        rest = rest // size if size > 0 else rest
    return tuple(reversed([*found, rest])) if shape else ()


def strided(index: Sequence[Part], strides: Sequence[int]) -> Index:
    """Σ index · stride, in elements."""
    total = Index({}, 0)
    for i, stride in zip(index, strides, strict=True):
        total = total + Index.of(i) * stride
    return total
