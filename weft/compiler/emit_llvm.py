"""A scheduled kernel as a function in LLVM IR.

Statements become blocks here, expressions are written by `Values`. What differs between targets is
a `Dialect`: how a function begins, where its buffers lie, which loops the hardware runs, and which
instructions it has.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from weft.compiler.emit_alternate import in_groups, put_alternately
from weft.compiler.emit_bounds import Guard
from weft.compiler.emit_lanes import combine
from weft.compiler.emit_scope import VECTOR, Memory, Operand, Place, Scope, alignment_of, reads_of
from weft.compiler.emit_squares import fetch, multiply_squares, settle
from weft.compiler.emit_stream import LINE, fills_lines, stream
from weft.compiler.emit_text import Code, Writer, stored_type, type_of, vector
from weft.compiler.emit_tiles import configure, multiply, release
from weft.compiler.emit_values import Values
from weft.compiler.emit_words import multiply as multiply_words
from weft.compiler.loops import (
    INDEX,
    Ahead,
    Assign,
    Fetch,
    Kernel,
    Loop,
    Reduce,
    Settle,
    Squares,
    Statement,
    Store,
    Tiles,
    Value,
    When,
    every,
    literal,
)
from weft.errors import UnsupportedError

WAY = 1 << 14  # bytes that the nearest cache has places for once, or a multiple of it
BEHIND = 1 << 10  # bytes from what is read back to an array that is walked with it


class Frame(NamedTuple):
    """What a function's header gives its body, as text."""

    buffers: tuple[str, ...]  # pointers to first elements
    parameters: tuple[str, ...]
    begin: str  # the range of the parallel loop
    end: str
    guard: Guard | None = None  # checks accesses, where somebody asks for that
    streams: frozenset[int] = frozenset()  # buffers that are written past caches


class Dialect(Protocol):
    """What a target decides of the functions made for it."""

    native: frozenset[str]  # of `half`, `round`, `fma`, …: instructions it has
    pointer: str  # the type of pointers to buffers
    aligned: bool  # whether buffers begin where vectors of their elements may

    def open(self, kernel: Kernel, writer: Writer) -> Frame:
        """Write the function's header and what its entry block needs."""

    def close(self, writer: Writer) -> None:
        """Write the function's end."""

    def index(self, loop: Loop, writer: Writer) -> str:
        """The variable of a `block` or `thread` loop, which hardware runs."""

    def shared(self, name: str, kind: str, nbytes: int, writer: Writer) -> str:
        """A pointer to so many bytes, memory of this type, that the threads of a block share."""

    def barrier(self, writer: Writer) -> None:
        """Wait until every thread of the block is here."""


def emit_kernel(kernel: Kernel, dialect: Dialect, writer: Writer) -> None:
    """Write one kernel as a function of its name."""
    writer.block = "entry"
    frame = dialect.open(kernel, writer)
    tiled = any(isinstance(s, Tiles) and not s.words for s in every(kernel.body))
    if tiled:
        configure(writer)
    _Function(kernel, dialect, writer, frame).statements(kernel.body)
    if tiled:
        release(writer)
    dialect.close(writer)


def _written(
    statements: tuple[Statement, ...], memo: dict[int, frozenset[Memory]]
) -> frozenset[Memory]:
    """The memory that statements write; `memo` knows it for statements by their identity."""
    found: set[Memory] = set()
    for statement in statements:
        if isinstance(statement, Store):
            found.add(("buffer", statement.buffer))
        elif isinstance(statement, Assign):
            found.add(("local", statement.local))
        elif isinstance(statement, Tiles):
            found.add(("local", statement.sums))
        elif isinstance(statement, Fetch):
            found.add(("local", statement.array))
        elif isinstance(statement, Squares):
            found |= {("local", number) for number in statement.sums}
        else:
            inner = memo.get(id(statement))
            if inner is None:
                inner = memo[id(statement)] = _written(statement.body, memo)
            found |= inner
    return frozenset(found)


def _goes_on(statement: Statement) -> bool:
    """Whether threads go on to a statement without waiting for others."""
    first = statement.body[0] if isinstance(statement, Loop) and statement.body else statement
    return isinstance(first, Squares) and bool(first.left.held)


class _Function:
    """Writes the statements of one kernel."""

    def __init__(self, kernel: Kernel, dialect: Dialect, writer: Writer, frame: Frame) -> None:
        self.kernel = kernel
        self.dialect = dialect
        self.writer = writer
        self.frame = frame
        self.values = Values(kernel, writer, dialect.native, dialect.pointer, dialect.aligned)
        self.values.buffers = frame.buffers
        self.values.parameters = frame.parameters
        self.values.guard = frame.guard
        self.scopes = self.values.scopes
        self.streams = {("buffer", number) for number in frame.streams}
        self._writes: dict[int, frozenset[Memory]] = {}  # what loops of this kernel write
        for number, local in enumerate(kernel.locals):
            if local.shared:
                kind = f"[{local.length} x {stored_type(local.dtype)}]"
                name = f"{kernel.name}_{local.name}{number}"
                nbytes = local.length * local.dtype.itemsize
                self.values.locals.append(dialect.shared(name, kind, nbytes, writer))
                continue
            if local.length:
                element = vector(stored_type(local.dtype), local.lanes)
                spare = 0 if local.beside is None else WAY // local.dtype.itemsize
                kind = f"[{local.length + spare} x {element}], align 64"
            else:
                kind = vector(type_of(local.dtype), local.lanes)
            array = writer.let(f"alloca {kind}")
            if local.beside is not None:
                array = self._apart(array, frame.buffers[local.beside])
            self.values.locals.append(array)

    def _apart(self, array: str, buffer: str) -> str:
        """Where in the room of an array it begins, so that it is `BEHIND` a buffer in a cache."""
        here, there = (self.writer.let(f"ptrtoint ptr {x} to i64") for x in (array, buffer))
        apart = self.writer.let(f"sub i64 {there}, {here}")
        behind = self.writer.let(f"sub i64 {apart}, {BEHIND}")
        start = self.writer.let(f"and i64 {behind}, {WAY - LINE}")
        return self.writer.let(f"getelementptr inbounds i8, ptr {array}, i64 {start}")

    def statements(self, body: tuple[Statement, ...], again: bool = False) -> None:
        """Write statements one after the other; stores that follow each other, together.

        `again` where the first of them follow the last, so that threads wait at the end too.
        """
        stores: list[Store] = []
        for place, statement in enumerate(body):
            if isinstance(statement, Store) and not statement.combine:
                stores.append(statement)
                continue
            if stores:
                self._stores(stores)
                stores = []
            self._statement(statement)
            shared_out = isinstance(statement, Loop) and statement.kind == "thread"
            after = body[(place + 1) % len(body)]
            if shared_out and (again or statement is not body[-1]) and not _goes_on(after):
                self.dialect.barrier(self.writer)
        self._stores(stores)

    def _statement(self, statement: Statement) -> None:
        if isinstance(statement, Store):
            self._accumulate(statement)
        elif isinstance(statement, Assign):
            self._assign(statement)
        elif isinstance(statement, When):
            self._when(statement)
        elif isinstance(statement, Tiles):
            write = multiply_words if statement.words else multiply
            write(self.values, self.dialect.native, statement)
            self.scopes.forget_one(("local", statement.sums))
        elif isinstance(statement, Squares):
            multiply_squares(self.values, statement)
            self.scopes.forget(frozenset(("local", number) for number in statement.sums))
        elif isinstance(statement, Fetch):
            fetch(self.values, statement)
            self.scopes.forget_one(("local", statement.array))
        elif isinstance(statement, Settle):
            settle(self.writer, statement)
        elif isinstance(statement, Ahead):
            self.values.ahead(statement)
        elif isinstance(statement, Reduce):
            raise AssertionError("a reduction reached the emitter: it was not scheduled")
        else:
            self._loop(statement)

    def _stores(self, stores: list[Store]) -> None:
        """All values are read before the first is stored.

        A result may lie where an operand lies, if each element is read before it is overwritten.
        """
        ready: list[tuple[Store, Operand]] = []
        written: set[Memory] = set()
        for store in stores:
            value = self.values.value(store.value)
            if not written.isdisjoint(value.reads | reads_of(store.index)):
                self._flush(ready, written)
                ready, written = [], set()
                value = self.values.value(store.value)
            ready.append((store, value))
            written.add(("buffer", store.buffer))
        self._flush(ready, written)

    def _flush(self, ready: list[tuple[Store, Operand]], written: set[Memory]) -> None:
        for group in in_groups(self.values, ready):
            store, value = group[0]
            place = self.values.place_of(("buffer", store.buffer))
            if len(group) > 1:
                put_alternately(self.values, place, store.index, [x for _, x in group])
            else:
                self._put(place, store.index, value)
        self.scopes.forget(frozenset(written))

    def _put(self, place: Place, index: Value, value: Operand) -> None:
        """Write a value, or a vector of them, into memory at an index."""
        values = self.values
        if values.variable is None or values.lane != VECTOR or place.lanes > 1:
            pointer = values.locate(place, index).pointer
            known = values.aligned and values.variable is None
            align = alignment_of(place, index) if known else 0
            values.write(place, pointer, values.spread(value, place.lanes), place.lanes, align)
            return
        step = values.slope(index)
        if step == 1:
            pointer = values.locate(place, index, 0).pointer
            text = values.spread(value, values.lanes)
            if place.memory in self.streams and fills_lines(place, values.lanes):
                stream(values, place, pointer, text)
                return
            values.write(place, pointer, text, values.lanes, values.alignment(place, index))
        elif step == 0 and value.lanes == 1:
            pointer = values.locate(place, index, 0).pointer
            values.write(place, pointer, value.text, 1)
        else:
            for lane, pointer in enumerate(values.lane_addresses(place, index)):
                values.write(place, pointer, self._in_lane(value, lane), 1)

    def _in_lane(self, value: Operand, lane: int) -> str:
        if value.lanes == 1:
            return value.text
        kind = vector(type_of(value.dtype), value.lanes)
        return self.writer.let(f"extractelement {kind} {value.text}, i32 {lane}")

    def _accumulate(self, store: Store) -> None:
        """buffer[index] = combine(buffer[index], value); lanes one by one where they may meet."""
        values = self.values
        place = values.place_of(("buffer", store.buffer))
        value = values.value(store.value)
        scalar = values.variable is None or values.lane != VECTOR
        if scalar or values.slope(store.index) == 1:
            pointer = values.locate(place, store.index, None if scalar else 0).pointer
            lanes = 1 if scalar else values.lanes
            old, new = values.read(place, pointer, lanes), values.spread(value, lanes)
            made = self._combine(store, old, new, lanes)
            values.write(place, pointer, made, lanes)
        else:
            for lane, pointer in enumerate(values.lane_addresses(place, store.index)):
                old, new = values.read(place, pointer, 1), self._in_lane(value, lane)
                made = self._combine(store, old, new, 1)
                values.write(place, pointer, made, 1)
        self.scopes.forget_one(("buffer", store.buffer))

    def _combine(self, store: Store, old: str, new: str, lanes: int) -> str:
        dtype = self.kernel.buffers[store.buffer].dtype
        code = Code(self.writer, lanes)
        return combine(code, self.dialect.native, store.combine, old, new, dtype)

    def _assign(self, statement: Assign) -> None:
        values, memory = self.values, ("local", statement.local)
        local = self.kernel.locals[statement.local]
        if statement.position is not None:
            value = values.value(statement.value)
            self._put(values.place_of(memory), statement.position, value)
            self.scopes.forget_one(memory)
        else:
            value = values.next_of(statement.local, statement.value)
            name = values.registers[statement.local]
            pointer = values.locals[statement.local]
            if local.lanes > 1 and values.lane != VECTOR:
                old = self.writer.let(f"load {name}, ptr {pointer}")
                one = f"{type_of(local.dtype)} {value.text}, i32 {values.lane}"
                text = self.writer.let(f"insertelement {name} {old}, {one}")
            else:
                text = values.spread(value, local.lanes)
            self.writer.do(f"store {name} {text}, ptr {pointer}")
            self.scopes.forget_one(memory)
            values.hold(statement.local, text, value)

    def _when(self, statement: When) -> None:
        condition = self.values.value(statement.condition)
        if condition.literal:
            if condition.text == "true":
                self.statements(statement.body)
        elif condition.lanes == 1:
            self._branch(condition.text, statement.body)
        else:
            for lane in range(condition.lanes):
                self.values.lane = lane
                self._branch(self._in_lane(condition, lane), statement.body)
            self.values.lane = VECTOR

    def _branch(self, condition: str, body: tuple[Statement, ...]) -> None:
        then, after = self.writer.label("then"), self.writer.label("after")
        self.writer.branch(condition, then, after)
        self.writer.begin(then)
        self.scopes.push(Scope("branch"))
        self.statements(body)
        self.scopes.pop()
        self.writer.goto(after)
        self.writer.begin(after)

    def _loop(self, loop: Loop) -> None:
        if loop.kind == "unroll":
            self._unroll(loop)
        elif loop.kind in ("block", "thread"):
            self._hardware(loop)
        elif loop.kind == "parallel":
            begin, end = self.frame.begin, self.frame.end
            self._run(loop, Operand(begin, INDEX, natural=True), Operand(end, INDEX))
        else:
            self._run(loop, self.values.scalar(loop.start), self.values.scalar(loop.stop))

    def _unroll(self, loop: Loop) -> None:
        start, stop = loop.start, loop.stop
        if start.op != "const" or stop.op != "const":
            raise UnsupportedError(f"kernel {self.kernel.name}: only fixed loops can be unrolled")
        for i in range(int(literal(start)), int(literal(stop)), loop.step):
            self.scopes.push(Scope("step"))
            depth = self.scopes.top  # what follows from this number belongs to this turn
            number = Operand(str(i), INDEX, depth=depth, literal=True, natural=i >= 0)
            self.scopes.keep(loop.variable, number, depth)
            self.statements(loop.body, again=True)
            self.scopes.pop()

    def _hardware(self, loop: Loop) -> None:
        """A loop whose turns run side by side: its variable is an index the hardware gives."""
        stop = self.values.scalar(loop.stop)
        variable = self.dialect.index(loop, self.writer)
        self.scopes.push(Scope("step"))
        depth = self.scopes.top
        made = Operand(variable, INDEX, depth=depth, natural=True)
        self.scopes.keep(loop.variable, made, depth)
        if loop.kind == "block" or stop.text == str(self.kernel.notes.get("threads")):
            self.statements(loop.body)  # one turn for each block, or each thread, there is
        else:
            inside = self.writer.let(f"icmp slt i64 {variable}, {stop.text}")
            self._branch(inside, loop.body)
        self.scopes.pop()

    def _run(self, loop: Loop, start: Operand, stop: Operand) -> None:
        """A loop: a guard, a head that runs once, and a body that tests at its end.

        Blocks take LLVM longer than what is in them: a head is one of its own only where something
        is in it and it may not run.
        """
        certain = start.literal and stop.literal
        turns = -(-(int(stop.text) - int(start.text)) // loop.step) if certain else 2
        if turns < 2:
            self._once(loop, start, turns)
            return
        writer, written = self.writer, _written(loop.body, self._writes)
        self.scopes.forget(written)
        head, body, done = writer.block, writer.label("body"), writer.label("done")
        outer = Scope("head", certain=certain)
        writer.lines += (outer.before, outer.inside) if certain else (outer.before,)
        guard: list[Any] = []
        test = "" if certain else writer.let(f"icmp slt i64 {start.text}, {stop.text}")
        writer.lines.append(guard)
        self.scopes.push(outer)
        self.scopes.push(Scope("body", writes=written))
        writer.begin(body)
        phi: list[str] = []
        writer.lines.append(phi)
        name = writer.name()
        self._enter(loop, Operand(name, INDEX, depth=self.scopes.top, natural=start.natural))
        self.statements(loop.body, again=True)
        self._leave(loop)
        following = writer.let(f"add nsw i64 {name}, {loop.step}")
        if outer.inside and not certain:
            head = writer.label("head")
            guard += (f"  br i1 {test}, label %{head}, label %{done}", f"{head}:", outer.inside)
            test = ""
        guard.append(
            f"  br i1 {test}, label %{body}, label %{done}" if test else f"  br label %{body}"
        )
        phi.append(
            f"  {name} = phi i64 [ {start.text}, %{head} ], [ {following}, %{writer.block} ]"
        )
        writer.branch(writer.let(f"icmp slt i64 {following}, {stop.text}"), body, done)
        self.scopes.pop()
        self.scopes.pop()
        writer.begin(done)

    def _once(self, loop: Loop, start: Operand, turns: int) -> None:
        """A loop of one turn, or none, is no loop."""
        if turns > 0:
            self.scopes.push(Scope("step"))
            depth, reads, varies = self.scopes.top, start.reads, start.varies
            made = Operand(start.text, INDEX, 1, depth, reads, varies, True, start.natural)
            self._enter(loop, made)
            self.statements(loop.body, again=True)
            self._leave(loop)
            self.scopes.pop()

    def _leave(self, loop: Loop) -> None:
        if loop.kind == "vector" and loop.step > 1:
            self.values.vectorize()

    def _enter(self, loop: Loop, variable: Operand) -> None:
        """Make a loop's variable, which nobody has seen, known in its body."""
        if loop.kind != "vector" or loop.step == 1:
            self.scopes.keep(loop.variable, variable, self.scopes.top)
            return
        self.values.vectorize(loop)
        variable.varies = True
        self.scopes.keep((loop.variable, 0), variable, self.scopes.top)
