"""Where in a function each value is computed, and how long it may be used again.

Every loop, branch and unrolled step is a `Scope`. A value is written in the outermost scope that
has its operands: before a loop, if nothing in the loop changes it. Values that read memory are
forgotten when it is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import gcd
from typing import Any, NamedTuple, TypeAlias

from weft.compiler import affine
from weft.compiler.emit_text import Writer, constant
from weft.compiler.loops import INDEX, Value, leaves_of
from weft.compiler.polynomial import polynomial
from weft.core.common.types import DType

Memory: TypeAlias = tuple[str, int]  # ("buffer", position) or ("local", position)
NOTHING: frozenset[Memory] = frozenset()
WIDEST = 16  # bytes that an instruction moves between memory and registers
VECTOR = -1  # all lanes, where a lane's number is asked for
_MEMORY = {"load": "buffer", "get": "local"}


@dataclass(slots=True, eq=False)
class Operand:
    """A value that has been written: its text and what is known of it."""

    text: str
    dtype: DType
    lanes: int = 1
    depth: int = 0  # of the scope that computes it
    reads: frozenset[Memory] = NOTHING
    varies: bool = False  # from lane to lane of the vector loop
    literal: bool = False
    natural: bool = False  # an index that is not negative


@dataclass(slots=True, eq=False)
class Place:
    """An array of elements in memory."""

    memory: Memory
    pointer: str
    kind: str  # the pointer's type
    dtype: DType
    lanes: int  # of one element
    element: str  # the type of one in memory
    reads: frozenset[Memory]  # the array itself


class Located(NamedTuple):
    """A pointer to an element, and what is known of its index."""

    pointer: str
    depth: int
    reads: frozenset[Memory]
    varies: bool


Made: TypeAlias = Operand | list[Operand]


@dataclass(slots=True)
class Scope:
    """A region of a function; what it computes is known until it ends.

    `branch`: may not run, so nothing leaves it. `head`: runs once before a loop's body, if the
    body runs at all. `body`: a loop's body. `step`: a part of straight code.
    """

    kind: str
    writes: frozenset[Memory] = NOTHING  # by any turn of the loop, for a body
    certain: bool = False  # a head whose loop is known to run
    before: list[Any] = field(default_factory=list)  # lines just before a head's loop is entered
    inside: list[Any] = field(default_factory=list)  # lines of a head
    made: list[tuple[Any, Made]] = field(default_factory=list)  # keys, and what it computes


class Scopes:
    """The scopes around the point that is being written, outermost first."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.stack = [Scope("branch")]
        self.top = 0  # the depth of the innermost scope
        self.known: dict[Any, Made] = {}  # in any scope
        self._branches = [0]  # depths of branches
        self._readers: defaultdict[Memory, list[tuple[Any, Made]]] = defaultdict(list)

    def push(self, scope: Scope) -> Scope:
        """Enter a scope."""
        self.stack.append(scope)
        self.top += 1
        if scope.kind == "branch":
            self._branches.append(self.top)
        return scope

    def pop(self) -> None:
        """Leave the innermost scope, and forget what it computed."""
        scope = self.stack.pop()
        self.top -= 1
        if scope.kind == "branch":
            self._branches.pop()
        self._drop(scope.made)

    def keep(self, key: Any, made: Made, depth: int) -> None:
        """Remember what was computed in the scope at `depth`."""
        self.known[key] = made
        entry = (key, made)
        self.stack[depth].made.append(entry)
        for memory in made.reads if isinstance(made, Operand) else _reads(made):
            self._readers[memory].append(entry)

    def floor(self, depth: int) -> int:
        """`depth`, or that of the innermost branch if it is deeper: values stay in branches."""
        branch = self._branches[-1]
        return branch if branch > depth else depth

    def anchor(self, depth: int, memory: Memory) -> int:
        """How far out memory may be read, at least at `depth`.

        Not before a branch or a loop that may not run, where the place may not exist; not outside
        a loop that writes it.
        """
        for level in range(self.top, depth, -1):
            scope = self.stack[level]
            if (
                scope.kind == "branch"
                or (scope.kind == "body" and memory in scope.writes)
                or (scope.kind == "head" and not scope.certain)
            ):
                return level
        return depth

    def lines_at(self, depth: int) -> list[Any]:
        """Where the text of a value of the scope at `depth` is written."""
        if depth >= self.top:
            return self.writer.lines
        if self.stack[depth].kind == "head":
            return self.stack[depth].inside
        for scope in self.stack[depth + 1 :]:
            if scope.kind == "head":
                return scope.before
        return self.writer.lines

    def forget(self, written: frozenset[Memory]) -> None:
        """Drop every value that reads memory which has been, or will be, written."""
        for memory in written:
            self.forget_one(memory)

    def forget_one(self, memory: Memory) -> None:
        """Drop every value that reads this memory."""
        if memory in self._readers:
            self._drop(self._readers.pop(memory))

    def _drop(self, made: Iterable[tuple[Any, Made]]) -> None:
        """Forget these, but not what has come in their place since."""
        known = self.known
        for key, what in made:
            if known.get(key) is what:
                del known[key]


def alignment_of(place: Place, index: Value) -> int:
    """The bytes that the address of an element divides by, if its array begins at many."""
    size = place.dtype.itemsize * place.lanes
    return size if size >= WIDEST else size * gcd(WIDEST // size, *polynomial(index).values())


def reads_of(x: Value) -> frozenset[Memory]:
    """The memory that a value needs."""
    return frozenset((_MEMORY[a.op], a.data) for a in leaves_of(x) if a.op in _MEMORY)


def needs_of(x: Value) -> tuple[Value, ...]:
    """Operands that are written before a value: those of branches are written inside."""
    return (x.args[0], *x.args[1 + x.data :]) if x.op == "rarely" else x.args


def literal(x: Value) -> Operand:
    """A literal, as it stands in the text."""
    text = constant(x.data, x.dtype)
    return Operand(text, x.dtype, literal=True, natural=x.dtype == INDEX and text[0] != "-")


def _reads(parts: list[Operand]) -> frozenset[Memory]:
    return NOTHING.union(*(part.reads for part in parts))


def folded(op: str, args: list[Operand]) -> Operand | None:
    """Index arithmetic whose result needs no instruction."""
    if op not in ("add", "sub", "mul") or not (args[0].literal or args[1].literal):
        return None
    x, y = args
    # A literal may be an unrolled variable, which is one for a turn, or a lane of a vector's; or
    # what a register holds now, which is no longer known when the register changes.
    depth, varies, reads = max(x.depth, y.depth), x.varies or y.varies, x.reads | y.reads
    if x.literal and y.literal:
        a, b = int(x.text), int(y.text)
        number = affine.wrapped(a + b if op == "add" else a - b if op == "sub" else a * b)
        return Operand(str(number), INDEX, 1, depth, reads, varies, True, number >= 0)
    unit = "1" if op == "mul" else "0"
    if y.literal and y.text == unit:
        return Operand(x.text, INDEX, 1, depth, reads, varies, False, x.natural)
    if x.literal and x.text == unit and op != "sub":
        return Operand(y.text, INDEX, 1, depth, reads, varies, False, y.natural)
    return None
