"""Which int64 a shader can have, whose integers have 32 bits.

Indices of loops are small. A position that memory holds is read as an int32 within ±`HELD`: what
lies beyond is out of every range that kernels ask for, and stays so when a little is added. Once it
is kept within bounds that are smaller, it is a number like any other. Whatever else is made of such
numbers, and what may not fit 32 bits, is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from weft.compiler.loops import (
    INDEX,
    Assign,
    Kernel,
    Loop,
    Statement,
    Store,
    Value,
    every,
    expressions,
    literal,
    walk,
)
from weft.compiler.reports import STATUS
from weft.errors import UnsupportedDTypeError

HELD = 1 << 30
_LEAST, _MOST = -(1 << 31), (1 << 31) - 1
_EVERYTHING = 1 << 63
_COMPARED = frozenset({"less", "less_equal", "equal", "not_equal"})
_EXACT = {"bool": (0, 1), "int32": (_LEAST, _MOST)}  # what is an int64 without loss, and back


@dataclass(frozen=True)
class Span:
    """Between which numbers an int64 lies, in a shader.

    Below `true` in size it is what the kernel means; otherwise that is at least as large, with the
    same sign. `data` are made of memory, and what is `small` is made of numbers of 32 bits alone.
    """

    low: int
    high: int
    true: int = _EVERYTHING
    data: bool = False
    small: bool = True

    @property
    def size(self) -> int:
        """No number in it is larger."""
        return max(abs(self.low), abs(self.high))

    @property
    def held(self) -> bool:
        """Whether it may be another number than the kernel means."""
        return self.true < _EVERYTHING


_ANY = Span(-_EVERYTHING, _EVERYTHING, small=False)


def check_positions(kernel: Kernel) -> None:
    """Raise unless every int64 of a kernel can be had with 32 bits."""
    stored = {k for k, b in enumerate(kernel.buffers) if b.dtype == INDEX and b != STATUS}
    if any(kernel.buffers[k].mode == "update" for k in stored):
        raise _refusal()
    if stored or any(_enters(x) for s in every(kernel.body) for x in walk(*expressions(s))):
        check = _Check(stored)
        check.collect(kernel.body)
        check.forget()
        check.statements(kernel.body)


def _refusal() -> UnsupportedDTypeError:
    return UnsupportedDTypeError("webgpu: int64: shaders have no such type")


def _enters(x: Value) -> bool:
    return x.op == "cast" and x.dtype == INDEX and x.args[0].dtype != INDEX


class _Check:
    def __init__(self, stored: set[int]) -> None:
        self.stored = stored
        self.spans: dict[Value, Span] = {}  # of values of the dtype of an index
        self.known: set[Value] = set()
        self.locals: dict[int, Span] = {}

    def forget(self) -> None:
        """Know nothing of values any more."""
        self.spans.clear()
        self.known.clear()

    def collect(self, body: tuple[Statement, ...]) -> None:
        """Find the spans of locals, which are those of all that is assigned to them.

        What is made of locals again may grow with every turn of a loop: of that nothing is known.
        """
        for statement in body:
            if isinstance(statement, Assign) and statement.value.dtype == INDEX:
                grows = any(x.op == "get" and x.dtype == INDEX for x in walk(statement.value))
                self.visit(statement.value)
                found = _ANY if grows else self.exact(statement.value)
                before = self.locals.get(statement.local, found)
                self.locals[statement.local] = _either(before, found)
            elif isinstance(statement, Loop):
                self.visit(statement.start, statement.stop)
                self.enter(statement)
            self.collect(statement.body)

    def visit(self, *roots: Value) -> None:
        """Look at values, and at all that they are made of."""
        for x in walk(*roots):
            if x not in self.known:
                self.known.add(x)
                self.look(x)

    def statements(self, body: tuple[Statement, ...]) -> None:
        """See that every statement is right."""
        for statement in body:
            self.visit(*expressions(statement))
            if isinstance(statement, Store):
                self.exact(statement.index)
                if statement.buffer in self.stored and not self.exact(statement.value).small:
                    raise _refusal()
            elif isinstance(statement, Assign):
                if statement.value.dtype == INDEX:
                    made, kept = self.exact(statement.value), self.locals[statement.local]
                    if made.data and not kept.small:
                        raise _refusal()
            elif isinstance(statement, Loop):
                self.enter(statement)
            self.statements(statement.body)

    def enter(self, loop: Loop) -> None:
        """Say what a loop's variable is; what was known of another one of its name is not."""
        start, stop = self.exact(loop.start), self.exact(loop.stop)
        small = start.small and stop.small
        found = Span(start.low, max(start.low, stop.high - 1), small=small)
        if self.spans.get(loop.variable, found) != found:
            self.forget()
        self.spans[loop.variable] = found
        self.known.add(loop.variable)

    def exact(self, x: Value) -> Span:
        """The span of a number that has to be what the kernel means."""
        found = self.spans[x]
        if found.held:
            raise _refusal()
        return found

    def look(self, x: Value) -> None:
        """Find the span of a value, or see that it makes no wrong use of others."""
        given = [self.spans[a] for a in x.args if a.dtype == INDEX]
        if x.dtype == INDEX:
            found = self.span(x, given)
            if found.data and not found.small:
                raise _refusal()
            self.spans[x] = found
        elif x.op in _COMPARED:
            _compared(given)
        elif any(span.held for span in given):
            raise _refusal()  # an index of a load, or a number that becomes another

    def span(self, x: Value, given: list[Span]) -> Span:
        if x.op == "const":
            number = int(literal(x))
            return _made((number, number), [])
        if x.op == "load":
            self.exact(x.args[0])
            return Span(-HELD, HELD, HELD, data=True)
        if x.op == "get":
            for place in x.args:
                self.exact(place)
            return self.locals.get(x.data, _ANY)
        if _enters(x):
            source = x.args[0].dtype.name
            if source not in _EXACT:
                raise _refusal()
            return Span(*_EXACT[source], data=True)
        if any(span.held for span in given):
            return _of_held(x, given)
        corners = _corners(x.op, given)
        if corners is None and any(span.data for span in given):
            raise _refusal()
        return _ANY if corners is None else _made(corners, given)


def _either(x: Span, y: Span) -> Span:
    low, high = min(x.low, y.low), max(x.high, y.high)
    return Span(low, high, data=x.data or y.data, small=x.small and y.small)


def _made(bounds: tuple[int, int], given: list[Span]) -> Span:
    small = bounds[0] >= _LEAST and bounds[1] <= _MOST and all(span.small for span in given)
    return Span(*bounds, data=any(span.data for span in given), small=small)


def _compared(given: list[Span]) -> None:
    """Comparing with what is held is right where the other number is smaller."""
    for one, other in (given, given[::-1]) if len(given) == 2 else ():
        if one.held and (other.held or other.size >= one.true):
            raise _refusal()


def _of_held(x: Value, given: list[Span]) -> Span:
    """The span of what is made of positions that are held."""
    true = min(span.true for span in given)
    others = [span for span in given if not span.held]
    if x.op in ("add", "sub") and others:
        true -= others[0].size
    elif x.op in ("min", "max") and others:
        if others[0].size >= true:
            raise _refusal()
    elif x.op not in ("select", "neg"):
        raise _refusal()
    corners = _corners(x.op, given)
    assert corners is not None
    made = _made(corners, given)
    if true <= HELD // 2:
        raise _refusal()
    bounded = -true < made.low and made.high < true and x.op in ("min", "max")
    return Span(made.low, made.high, _EVERYTHING if bounded else true, True, made.small)


def _corners(op: str, given: list[Span]) -> tuple[int, int] | None:
    """The least and the greatest that an instruction makes of numbers in spans."""
    if op == "select":
        return min(s.low for s in given), max(s.high for s in given)
    if op == "neg":
        return -given[0].high, -given[0].low
    if op == "rem":
        most = given[1].size - 1
        return (0 if given[0].low >= 0 else -most), most
    if op in ("min", "max"):
        choose = min if op == "min" else max
        return choose(s.low for s in given), choose(s.high for s in given)
    made = _TWO.get(op)
    if made is None or (op == "floordiv" and given[1].low <= 0 <= given[1].high):
        return None
    ends = [made(a, b) for a, b in product(*((s.low, s.high) for s in given))]
    return min(ends), max(ends)


_TWO = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
}
