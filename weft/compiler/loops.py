"""The loop IR: what a fused kernel is, on every backend.

    kernel    := name, buffers, locals, statements
    buffer    := name dtype mode                  memory given by the caller: read, write or update
    local     := name dtype lanes length          a register, a vector of lanes, or a small array;
                                                  or an array that the threads of a block share
    statement := loop | reduce | store | assign | when | tiles | squares | fetch | settle | ahead
    loop      := for variable in start .. stop by step, kind: statements
    kind      := serial | parallel | vector | unroll | block | thread
    reduce    := over (variable < extent)…, lanes: statements, then local = combine(value)…
    store     := buffer[index] = value            met by `combine`, if it has one
    assign    := local[position] = value
    when      := if value: statements
    tiles     := sums[…] += left[…] · right[…]    blocks of local arrays, multiplied as matrices
    squares   := sums… += left[…] · right[…]     arrays that threads share, multiplied by a warp
    fetch     := local[position…] = load…         of an array that threads share, in the background
    settle    := wait until fetches are done      all but those since the last few of these
    ahead     := load or get                      read soon: a cache may fetch it by now
    value     := instruction(values…) of a dtype  a point of a hash-consed graph
    index     := a value of dtype int64           counted in elements from the buffer's first

Instructions are the closed set of `weft.ops.scalars` and, for memory and structure: `variable`,
`parameter` (an integer that the caller gives), `load`, `get` (of a local), `fma`, `dot4` and `dot2`
(four bytes, or two halves, of one int32 by those of another, all added to a third), `across` (lanes
combined by a balanced tree), `rarely` (a branch that few lanes need), `turned` (as many vectors as
they have lanes: lane i of item k is lane k of operand i), `item` (of what has several results),
`call` (a function, spelled out where a processor has no instruction for it), `compress` (the
lanes of a vector where a mask holds, moved to its beginning; what follows them has no meaning) and
`opaque` (the index at which memory is read: one of another number is not taken for the same).
A `select` that was `written` chooses what memory has: it tells what a mask hides.
Buffers and locals are named by position. A `reduce` over n points has one meaning, whatever splits
it: see `weft.compiler.passes.reduce`. `chain` is the combination of products: target = fma(x, y,
target) for each point in order, from 0; integers wrap. `dot` is a chain of each PIECE of the
points, and the sums of all pieces added up in order: errors grow far less than along one chain.
A `dot` of bfloat16 factors into float32 is summed as `Tiles` sums, and so are `pairs`: each is made
only for processors that have the instruction.

A `block` loop runs its turns on groups of threads, in any order; a `thread` loop inside it runs one
turn on each thread, and everything it wrote is there for what follows the loop. What stands beside
thread loops is done by every thread alike, so it only assigns registers. Thread loops may be inside
a serial loop; registers that a thread assigns end with the thread loop, unless they are `kept`.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from weft.core.common.types import DType

INDEX = np.dtype(np.int64)
BOOL = np.dtype(np.bool_)
LANES = 16  # lanes of a reduction along the last axis
LEAF = 32  # points each lane adds up before the balanced tree begins
WRITTEN = "written"  # of a `select` of an element from memory: it has that value there already
UNREAD = "unread"  # of a `select` that is stored: nobody reads its second value from there
PIECE = 256  # products that a `dot` adds up before their sum joins that of the pieces before

COMPARISONS = frozenset({"less", "less_equal", "equal", "not_equal"})
UNARY = frozenset({"neg", "abs", "sqrt", "floor", "ceil", "trunc", "round", "bit_not"})
BINARY = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "floordiv",
        "rem",
        "min",
        "max",
        "bit_and",
        "bit_or",
        "bit_xor",
        "shift_left",
        "shift_right",
    ]
)
CONVERSIONS = frozenset({"cast", "bitcast"})
PRODUCTS = frozenset({"dot", "chain", "pairs"})
COMBINES = PRODUCTS | {"add", "mul", "min", "max", "and", "or", "argmax", "argmin", "last"}
KINDS = frozenset({"serial", "parallel", "vector", "unroll", "block", "thread"})

_LEAVES = frozenset({"variable", "load", "get"})

_values: dict[Any, _Reference] = {}
_NOTHING: frozenset[Value] = frozenset()
_Found = TypeVar("_Found")


class Value:
    """One point of an expression; equal expressions are one object."""

    __slots__ = (
        "__weakref__",
        "args",
        "data",
        "dtype",
        "extent",
        "inside",
        "is_folded",
        "is_plain",
        "op",
        "terms",
    )

    def __init__(self, op: str, args: tuple[Value, ...], dtype: DType, data: Any) -> None:
        self.op = op
        self.args = args
        self.dtype = dtype
        self.data = data  # a literal, or the number of a variable, parameter, buffer or local
        self.terms: Any = None  # an index as a polynomial, once somebody has asked for it
        self.extent: int | None = None  # of a variable whose name says how far it runs
        self.inside = _leaves_of_all(args) if args else _NOTHING  # see `leaves_of`
        self.is_folded = not args  # whether `simplify` leaves it as it is,
        self.is_plain = not args  # and as an index

    def __repr__(self) -> str:
        return f"<{self.op} {self.dtype}{'' if self.data is None else f' {self.data!r}'}>"


def _leaves_of_all(values: tuple[Value, ...]) -> frozenset[Value]:
    """The leaves of some values, often those of one of them."""
    found = _NOTHING
    for x in values:
        more = x.inside | {x} if x.op in _LEAVES else x.inside
        if more and more is not found:
            found = found | more if found else more
    return found


class _Reference(weakref.ref[Value]):
    """What the table of values holds: it goes when its value does."""

    __slots__ = ("key",)
    key: Any


def _forget(reference: weakref.ref[Value]) -> None:
    assert isinstance(reference, _Reference)
    if _values.get(reference.key) is reference:
        del _values[reference.key]


def value(op: str, args: tuple[Value, ...], dtype: DType, data: Any = None) -> Value:
    """The expression `op(args)`, the one object that stands for it."""
    key = (op, args, dtype, data)
    reference = _values.get(key)
    found = None if reference is None else reference()
    if found is None:
        found = Value(op, args, dtype, data)
        _values[key] = reference = _Reference(found, _forget)
        reference.key = key
    return found


def const(number: Any, dtype: DType) -> Value:
    """A literal; numbers that print alike but differ in their bits stay apart."""
    exact = np.asarray(number).astype(dtype)
    return value("const", (), dtype, exact.tobytes())


def literal(x: Value) -> Any:
    """The number of a `const`, as a NumPy scalar."""
    return np.frombuffer(x.data, x.dtype)[0]


def integer_of(x: Value) -> int:
    """The number of a `const` of integers."""
    if x.dtype is INDEX:
        return int.from_bytes(x.data, sys.byteorder, signed=True)
    return int(literal(x))


@lru_cache(4096)
def integer(number: int) -> Value:
    """A literal index."""
    return value("const", (), INDEX, int(number).to_bytes(8, sys.byteorder, signed=True))


def variable(name: str) -> Value:
    """A loop's variable; its name is unique in the kernel."""
    return value("variable", (), INDEX, name)


def parameter(position: int) -> Value:
    """An integer that the caller gives with each call."""
    return value("parameter", (), INDEX, position)


def load(buffer: int, index: Value, dtype: DType) -> Value:
    """The element of a buffer at `index`, of the buffer's dtype."""
    return value("load", (index,), dtype, buffer)


def get(local: int, dtype: DType, position: Value | None = None) -> Value:
    """A local as it is at this statement: its register, or one element of its array."""
    return value("get", () if position is None else (position,), dtype, local)


def turned(vectors: Sequence[Value], in_blocks: bool = False) -> tuple[Value, ...]:
    """Vectors of the loop's lanes, as many as lanes: what lay across them lies along them.

    Those that lie in memory may be read `in_blocks`: few at once are in registers then.
    """
    whole = value("turned", tuple(vectors), vectors[0].dtype, in_blocks or None)
    return tuple(value("item", (whole,), x.dtype, k) for k, x in enumerate(vectors))


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory the caller gives: `read`, `write`, or `update` (read and written).

    What is written as a `stream` is so large, and read so late, that caches need not keep it.
    """

    name: str
    dtype: DType
    mode: str = "read"


@dataclass(frozen=True, slots=True)
class Local:
    """Memory of one task: a register of `lanes` elements, or an array of `length` of them."""

    name: str
    dtype: DType
    lanes: int = 1
    length: int = 0  # 0: a register
    shared: bool = False  # an array that all threads of a block see
    kept: bool = False  # one for each thread, which has it still in the next thread loop
    beside: int | None = None  # the buffer an array is walked with: apart from it in caches


@dataclass(frozen=True, slots=True)
class Loop:
    """Runs its statements for each value of `variable`, from `start` up to `stop`."""

    variable: Value
    start: Value
    stop: Value
    body: tuple[Statement, ...]
    kind: str = "serial"
    step: int = 1  # a vector loop's lanes; every vector loop runs whole steps only


@dataclass(frozen=True, slots=True)
class Part:
    """One result of a reduction: `target` becomes all `values` met by `combine`.

    argmax and argmin have two targets and two values: the element and its place. dot has two
    values, the factors of each product.
    """

    targets: tuple[int, ...]
    combine: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Reduce:
    """Combines values over the points of an index space; `body` runs at each point before."""

    axes: tuple[tuple[Value, Value], ...]  # (variable, extent), the last one running fastest
    lanes: int  # LANES where the last axis of the tensor is among them, else 1; 0: in plain order
    parts: tuple[Part, ...]
    body: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = value, or buffer[index] = combine(buffer[index], value)."""

    buffer: int
    index: Value
    value: Value
    combine: str = ""
    body: ClassVar[tuple[Statement, ...]] = ()


@dataclass(frozen=True, slots=True)
class Assign:
    """local = value, or local[position] = value."""

    local: int
    value: Value
    position: Value | None = None
    body: ClassVar[tuple[Statement, ...]] = ()


@dataclass(frozen=True, slots=True)
class When:
    """Runs its statements where the condition holds."""

    condition: Value
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Tiles:
    """A block of sums takes the products of two panels, as instructions on tiles multiply.

    The local arrays `sums` (float32 or int32, row by row), `left` (bfloat16 or int8) and `right`
    (int32, words of two or four such elements, the first one lowest) are used from `places` on, in
    groups of 64 bytes of the depth; an element that was never assigned counts as 0. If `right` is
    `shared` it is a buffer, and from `ahead` on, some lines for each group, it is needed next:

        left[(group · rows + i) · 64 / itemsize + k]        element k of row i
        right[(group · 16 + w) · columns + j]               word w of column j

    Integers wrap. Of bfloat16, each group adds one number to a sum: its products at even places of
    the depth, added up in order from 0, plus those at odd places; one rounding for each addition,
    and numbers below the smallest normal float32 count as 0, as factors and as results.

    If vectors take the products, word by `words`, bytes of `right` are unsigned ones. Of bfloat16,
    all groups, up to PIECE products, then together add one number: products are added up in order
    from 0, but each one at an odd place before its neighbour at an even one.
    """

    sums: int
    left: int
    right: int
    places: tuple[Value, Value, Value]  # where the block of each array begins
    rows: int  # a multiple of 16, 32 at most; so is `columns`; of words also fewer
    columns: int
    groups: Value
    fresh: bool  # whether sums start at 0
    words: bool = False
    shared: bool = False
    ahead: tuple[Value, int] | None = None  # a place, and lines of 64 bytes
    body: ClassVar[tuple[Statement, ...]] = ()

    @property
    def memories(self) -> tuple[tuple[str, int], ...]:
        """Where sums, the left and the right factor lie: the kind of memory, and its number."""
        kind = "buffer" if self.shared else "local"
        return ("local", self.sums), ("local", self.left), (kind, self.right)


@dataclass(frozen=True, slots=True)
class Panel:
    """Points of one factor in an array that threads share, each at the points of a depth.

    Element k of point p is at `start` + p · `across` + k · `along`; one of both steps is 1. A panel
    that is `swirled` lies in rows of 128 bytes, of a point or of one of the depth, in which chunk c
    of 16 bytes of row r is at c ^ (r % 8); `swirled` are the elements from points that a row of the
    depth holds to the points after them. If a thread has its part of a left panel in registers too,
    they are `held`, in the order and the places of sums; warps may take them from there, and do not
    wait for others where the threads begin with that.
    """

    array: int
    start: Value
    across: int
    along: int
    swirled: int = 0
    held: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Squares:
    """The threads of a warp multiply two panels as matrices, and each adds its share to its sums.

    `sums` are kept registers of a thread, row by row, each of 1 or 2 adjacent columns: `rows` of
    them, 8 apart, and every fourth pair of columns. Thread `lane` of 32 begins at row lane // 4 and
    column 2 · (lane % 4). Products of narrow floats are added up in float32 as the instruction does
    it; of float64, each in order by `fma`; integers wrap. Sums that are `fresh` begin with these
    products. If four warps multiply `together`, lanes are 128, those of each warp 16 rows below
    those of the one before.
    """

    sums: tuple[int, ...]
    rows: int
    left: Panel
    right: Panel
    depth: int
    lane: Value
    together: bool = False
    fresh: bool = False
    body: ClassVar[tuple[Statement, ...]] = ()


@dataclass(frozen=True, slots=True)
class Fetch:
    """Adjacent elements of a buffer go to a shared array while their thread does other things.

    They may be there at once, and are there once a thread has settled them and all have met. Where
    `inside` does not hold, zeros go in their place.
    """

    array: int
    position: Value
    source: Value  # a `load` of the first of them
    lanes: int  # 16 bytes of them, which begin where 16 divides the address
    inside: Value | None = None
    body: ClassVar[tuple[Statement, ...]] = ()


@dataclass(frozen=True, slots=True)
class Settle:
    """Ends a group of a thread's fetches, and waits until all but the last `pending` are done.

    Warps that multiply together read what is there only if it is `shown` to them.
    """

    pending: int
    shown: bool = False
    body: ClassVar[tuple[Statement, ...]] = ()


NEAREST, SECOND = 3, 2  # caches, as fetching instructions name them


@dataclass(frozen=True, slots=True)
class Ahead:
    """Something in memory will be read soon: it changes nothing, and any index does."""

    source: Value  # a `load`, or a `get` of an array
    cache: int = NEAREST  # that fetches it
    body: ClassVar[tuple[Statement, ...]] = ()


Statement: TypeAlias = (
    Loop | Reduce | Store | Assign | When | Tiles | Squares | Fetch | Settle | Ahead
)


@dataclass(frozen=True)
class Kernel:
    """A fused kernel: at most one parallel loop, which is then its only outermost statement."""

    name: str
    buffers: tuple[Buffer, ...]
    locals: tuple[Local, ...]
    body: tuple[Statement, ...]
    parameters: int = 0
    notes: dict[str, Any] = field(default_factory=dict, compare=False)  # for `explain`, never a key

    @property
    def parallel(self) -> Loop | None:
        """The loop whose range the caller may split, if there is one."""
        (first, *others) = self.body or (None,)
        return (
            first if isinstance(first, Loop) and first.kind == "parallel" and not others else None
        )


@lru_cache(256)  # passes ask for the same again, one after the other
def walk(*roots: Value) -> Sequence[Value]:
    """Every value these need, operands before users, each once."""
    found: dict[Value, None] = {}
    entered: set[Value] = set()
    stack = list(reversed(roots))
    while stack:
        x = stack[-1]
        args = x.args
        if not args or x in entered:
            stack.pop()
            found[x] = None
        else:
            entered.add(x)
            stack += [a for a in reversed(args) if a not in found]
    return tuple(found)


def values_in(*roots: Value) -> set[Value]:
    """Every value these need, in no order."""
    seen = set(roots)
    stack = list(roots)
    while stack:
        for a in stack.pop().args:
            if a not in seen:
                seen.add(a)
                stack.append(a)
    return seen


def leaves_of(x: Value) -> frozenset[Value]:
    """The variables, loads and locals among the values that `x` needs, itself included."""
    return x.inside | {x} if x.op in _LEAVES else x.inside


def expressions(statement: Statement) -> tuple[Value, ...]:
    """The values a statement itself names; not those of statements inside it."""
    if isinstance(statement, Assign):
        position = statement.position
        return (statement.value,) if position is None else (statement.value, position)
    if isinstance(statement, Store):
        return (statement.index, statement.value)
    if isinstance(statement, Loop):
        return (statement.start, statement.stop)
    if isinstance(statement, Reduce):
        extents = tuple(extent for _, extent in statement.axes)
        return extents + tuple(v for part in statement.parts for v in part.values)
    if isinstance(statement, Tiles):
        ahead = () if statement.ahead is None else statement.ahead[:1]
        return (*statement.places, statement.groups, *ahead)
    if isinstance(statement, Squares):
        return (statement.left.start, statement.right.start, statement.lane)
    if isinstance(statement, Fetch):
        found = (statement.position, statement.source)
        return found if statement.inside is None else (*found, statement.inside)
    if isinstance(statement, Settle):
        return ()
    if isinstance(statement, Ahead):
        return (statement.source,)
    return (statement.condition,)


def recalled(
    find: Callable[[tuple[Statement, ...]], _Found],
) -> Callable[[tuple[Statement, ...]], _Found]:
    """A function of statements that has its last result ready: who asks, asks again in a row."""
    last: tuple[tuple[Statement, ...], _Found] = (), find(())

    @wraps(find)
    def found(statements: tuple[Statement, ...]) -> _Found:
        nonlocal last
        of, result = last
        if of is not statements:
            result = find(statements)
            last = statements, result
        return result

    return found


@recalled
def every(statements: tuple[Statement, ...]) -> Sequence[Statement]:
    """All statements, outer before inner, in order."""
    found: list[Statement] = []
    stack = list(reversed(statements))
    while stack:
        statement = stack.pop()
        found.append(statement)
        if statement.body:
            stack += reversed(statement.body)
    return found


def identity_of(combine: str, dtype: DType) -> Value:
    """The value that `combine` leaves others as they are with: -0.0 for a sum of floats."""
    if combine in ("and", "or"):
        return (
            const(combine == "and", dtype) if dtype == BOOL else const(-(combine == "and"), dtype)
        )
    floating = dtype.kind not in "biu"
    if combine == "add":
        return const(-0.0 if floating else 0, dtype)
    if combine == "mul":
        return const(1, dtype)
    least = combine in ("max", "argmax")
    if dtype == BOOL:
        return const(not least, dtype)
    if floating:
        return const(-np.inf if least else np.inf, dtype)
    limits = np.iinfo(dtype)
    return const(limits.min if least else limits.max, dtype)
