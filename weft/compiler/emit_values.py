"""Expressions of the loop IR in LLVM IR.

Inside a vector loop a value that depends on the loop's variable is a vector, and other values are
scalars until an instruction needs them in every lane. An expression can also be asked for in one
lane only: the address of a vector in memory is the address of its first lane.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from weft.compiler import affine
from weft.compiler.emit_alternate import alternating, loads_in
from weft.compiler.emit_bits import inserted
from weft.compiler.emit_bounds import Guard
from weft.compiler.emit_held import gather, held_back, is_held_back, is_parted, parted
from weft.compiler.emit_lanes import (
    any_lane,
    asking_lanes,
    compressed,
    counting,
    meet,
    meeting,
    turned,
)
from weft.compiler.emit_scalars import instruction
from weft.compiler.emit_scale import scaled
from weft.compiler.emit_scope import (
    NOTHING,
    VECTOR,
    Located,
    Memory,
    Operand,
    Place,
    Scope,
    Scopes,
    alignment_of,
    folded,
    literal,
    needs_of,
    reads_of,
)
from weft.compiler.emit_text import Code, Writer, stored_type, type_of, vector
from weft.compiler.loops import (
    BOOL,
    INDEX,
    Ahead,
    Kernel,
    Local,
    Loop,
    Value,
    get,
    integer,
    integer_of,
    leaves_of,
)
from weft.compiler.polynomial import divides, polynomial, without
from weft.compiler.prices import Where

ASKING = -2  # the lane that a loop over lanes has come to
_PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
_GROWS = frozenset({"add", "mul", "floordiv", "rem", "min", "shift_right", "bit_and"})


class Values:
    """Writes expressions, each once as long as it stays true."""

    def __init__(
        self,
        kernel: Kernel,
        writer: Writer,
        native: frozenset[str],
        kind: str,
        aligned: bool = False,
    ) -> None:
        self.kernel = kernel
        self.writer = writer
        self.native = native
        self.kind = kind  # the type of pointers to buffers
        self.aligned = aligned  # whether buffers begin where vectors may
        self.parts = True  # whether vectors that meet no bound are handled apart from others
        self._whole = False  # whether the vector loop's variable counts whole vectors
        self.scopes = Scopes(writer)
        self._known = self.scopes.known
        self.buffers: tuple[str, ...] = ()
        self.parameters: tuple[str, ...] = ()
        self.guard: Guard | None = None
        self.locals: list[str] = []
        self.variable: Value | None = None  # of the vector loop around this point
        self.lanes = 1
        self.lane = VECTOR
        self.asking = ""  # the number of the lane `ASKING`
        self._slopes: dict[Value, int | Value | None] = {}
        self.loads: dict[Where, Value] = {}  # of the vector loop
        self._strides: dict[Value, Value | None] = {}  # the same for what indices consist of
        self._wide = {number for number, local in enumerate(kernel.locals) if local.lanes > 1}
        self._codes: dict[int, Code] = {}
        self._places: dict[Memory, Place] = {}
        self.registers = [vector(type_of(x.dtype), x.lanes) for x in kernel.locals]  # their types
        self._own = [frozenset({("local", number)}) for number in range(len(kernel.locals))]
        self._held = [get(number, x.dtype) for number, x in enumerate(kernel.locals)]
        self._wide_registers = frozenset(self._held[number] for number in self._wide)
        self._wide_arrays = {number for number in self._wide if kernel.locals[number].length}

    def vectorize(self, loop: Loop | None = None) -> None:
        """Enter a vector loop, or leave it."""
        variable, start = (None, None) if loop is None else (loop.variable, loop.start)
        lanes = 1 if loop is None else loop.step
        self.loads = {} if loop is None else loads_in(loop.body)
        assert variable is None or self.variable is None, "a vector loop inside a vector loop"
        self._whole = start is not None and divides(polynomial(start), lanes)
        self.variable, self.lanes = variable, lanes
        self._slopes, self._strides = {}, {}

    def value(self, root: Value, lane: int | None = None) -> Operand:
        """A value, as a vector if lanes differ, or in one lane."""
        lane = self.lane if lane is None else lane
        found = self._find(root, lane)
        if found is None:
            self._make_all(root, lane)
            found = self._find(root, lane)
        assert isinstance(found, Operand), root
        return found

    def _make_all(self, root: Value, lane: int) -> None:
        """Write a value, and before it what it needs."""
        find = self._known.get if lane == VECTOR else partial(self._find, lane=lane)
        stack = [(root, False)]
        while stack:
            x, ready = stack.pop()
            if not ready:
                if find(x) is not None:
                    continue
                if x.op not in _ASKING and not self._asks(x, lane):
                    missing = [(a, False) for a in needs_of(x) if find(a) is None]
                    if missing:
                        stack.append((x, True))
                        stack += reversed(missing)
                        continue
            self._make(x, lane)

    def next_of(self, local: int, root: Value) -> Operand:
        """The value that a register is given: if it is made of its old one, nobody asks again."""
        if self._held[local] not in root.args or root.op in _OTHERWISE:
            return self.value(root)
        for a in root.args:
            if self.lane != VECTOR or a not in self._known:
                self.value(a)
        return self._instruction(root, self.lane)

    def scalar(self, root: Value) -> Operand:
        """A value that is the same in all lanes."""
        found = self.value(root)
        assert found.lanes == 1, f"lanes differ in {root}"
        return found

    def spread(self, x: Operand, lanes: int) -> str:
        """A value in every one of `lanes` lanes."""
        if x.lanes == lanes:
            return x.text
        assert x.lanes == 1, f"{x.lanes} lanes where {lanes} are needed"
        name = type_of(x.dtype)
        if x.literal:
            return f"splat ({name} {x.text})"
        key = ("spread", x.text, lanes)
        found = self._known.get(key)
        if found is None:
            depth, kind = self.scopes.floor(x.depth), vector(name, lanes)
            one = self.let(f"insertelement {kind} poison, {name} {x.text}, i32 0", depth)
            mask = f"<{lanes} x i32> zeroinitializer"
            text = self.let(f"shufflevector {kind} {one}, {kind} poison, {mask}", depth)
            found = Operand(text, x.dtype, lanes, depth, x.reads)
            self.scopes.keep(key, found, depth)
        assert isinstance(found, Operand)
        return found.text

    def hold(self, local: int, text: str, x: Operand) -> None:
        """A register was given `x`, which is written as `text` there: no need to read it again."""
        kind, depth = self.kernel.locals[local], self.scopes.top
        literal, reads = x.literal and kind.lanes == 1, self._own[local]
        made = Operand(text, kind.dtype, kind.lanes, depth, reads, False, literal, x.natural)
        self.scopes.keep(self._held[local], made, depth)

    def slope(self, index: Value) -> int | Value | None:
        """How an index moves from lane to lane: 0, 1, another step, or None if it is not even."""
        if index in self._slopes:
            return self._slopes[index]
        found: int | Value | None = None
        if self.variable is not None and not self.has_lanes(index):
            step = affine.stride(index, self.variable, self._strides)
            found = integer_of(step) if step is not None and step.op == "const" else step
        self._slopes[index] = found
        return found

    def place_of(self, memory: Memory) -> Place:
        """A buffer or an array among the locals."""
        found = self._places.get(memory)
        if found is None:
            found = self._places[memory] = self._place_of(memory)
        return found

    def _place_of(self, memory: Memory) -> Place:
        kind, position = memory
        if kind == "buffer":
            dtype = self.kernel.buffers[position].dtype
            pointer, own = self.buffers[position], frozenset({memory})
            return Place(memory, pointer, self.kind, dtype, 1, stored_type(dtype), own)
        local = self.kernel.locals[position]
        kind = "ptr addrspace(3)" if local.shared else "ptr"
        pointer, element, own = self.locals[position], stored_type(local.dtype), self._own[position]
        return Place(memory, pointer, kind, local.dtype, local.lanes, element, own)

    def alignment(self, place: Place, index: Value) -> int:
        """The bytes that the address of a vector, adjacent elements from `index`, divides by."""
        size = place.dtype.itemsize
        if not (self.aligned and self._whole and self.variable is not None):
            return size
        others = without(polynomial(index), (self.variable,))
        return size * self.lanes if divides(others, self.lanes) else size

    def address(
        self, place: Place, index: Operand, step: int | str = 0, hidden: int | None = None
    ) -> tuple[str, int]:
        """A pointer to an element, `step` elements past `index`; and the depth it is known at.

        LLVM does not know where one that is `hidden` points to.
        """
        key = ("address", place.memory, index.text, step, hidden)
        found = self._known.get(key)
        if found is None:
            depth = self.scopes.floor(index.depth)
            start, moved = place.pointer, index.text
            if step:
                # It may be known from a turn of an unrolled loop alone: no further out then.
                (start, own), moved = self.address(place, index, 0, hidden), str(step)
                depth = max(depth, own)
            element = vector(place.element, place.lanes)
            text = self.let(f"getelementptr {element}, {place.kind} {start}, i64 {moved}", depth)
            if hidden is not None and not step:
                text = self.let(f'call ptr asm "", "=r,0"(ptr {text})', depth)
            found = Operand(text, INDEX, 1, depth, index.reads)
            self.scopes.keep(key, found, depth)
        assert isinstance(found, Operand)
        # Another turn of an unrolled loop may have the same number and know the address further
        # out; what is read there still belongs to this index.
        return found.text, max(found.depth, index.depth)

    def locate(self, place: Place, index: Value, lane: int | None = None) -> Located:
        """A pointer to the element at an index, which must be the same in all lanes or in one.

        A literal that is added is a step from a pointer that other indices share: instructions
        take it for nothing.
        """
        step = 0
        if index.op == "add" and index.args[1].op == "const":
            index, step = index.args[0], integer_of(index.args[1])
        hidden = None
        if index.op == "opaque":
            (index,), hidden = index.args, index.data
        position = self.value(index, lane)
        assert position.lanes == 1, f"lanes differ in {index}"
        depth, reads, varies = position.depth, position.reads, position.varies
        if step and position.literal and hidden is None:
            text, step = str(int(position.text) + step), 0
            position = Operand(text, INDEX, 1, depth, reads, varies, True)
        pointer, depth = self.address(place, position, step, hidden)
        return Located(pointer, depth, reads, varies)

    def lane_addresses(self, place: Place, index: Value) -> list[str]:
        """Pointers to the elements of all lanes."""
        step = self.slope(index)
        if step is None:
            many = self.value(index, VECTOR)
            each = [self._extract(many, lane) for lane in range(self.lanes)]
            return [self.address(place, x)[0] for x in each]
        if isinstance(step, Value):
            bases = [
                affine.add(index, affine.mul(step, integer(lane))) for lane in range(self.lanes)
            ]
            return [self.address(place, self.value(x, 0))[0] for x in bases]
        first = self.value(index, 0)
        return [self.address(place, first, step * lane)[0] for lane in range(self.lanes)]

    def read(self, place: Place, pointer: str, lanes: int, align: int = 0) -> str:
        """The elements at a pointer; a bool is a byte that is not 0."""
        if self.guard is not None:
            pointer = self.guard.pointer(place, pointer, lanes)
        name = vector(place.element, lanes)
        align = align or place.dtype.itemsize
        text = self.writer.let(f"load {name}, {place.kind} {pointer}, align {align}")
        if place.dtype != BOOL:
            return text
        return Code(self.writer, lanes).compare(
            "ne", "i8", text, "zeroinitializer" if lanes > 1 else "0"
        )

    def write(self, place: Place, pointer: str, text: str, lanes: int, align: int = 0) -> None:
        """Store elements at a pointer."""
        if place.dtype == BOOL:
            text = Code(self.writer, lanes).convert("zext", text, "i1", "i8")
        if self.guard is not None:
            pointer = self.guard.pointer(place, pointer, lanes)
        name = vector(place.element, lanes)
        align = align or place.dtype.itemsize
        self.writer.do(f"store {name} {text}, {place.kind} {pointer}, align {align}")

    def ahead(self, statement: Ahead) -> None:
        """Have one of this processor's caches fetch what will be read."""
        source, kind = statement.source, f"i32 0, i32 {statement.cache}, i32 1"
        place = self.place_of(("buffer" if source.op == "load" else "local", source.data))
        pointer = self.locate(place, source.args[0], 0).pointer
        self.writer.declarations[_PREFETCH] = None
        self.writer.do(f"call void @llvm.prefetch.p0(ptr {pointer}, {kind})")

    def has_lanes(self, index: Value) -> bool:
        """Whether an index is made of registers or arrays that have a value for each lane."""
        leaves, arrays = leaves_of(index), self._wide_arrays
        if not leaves.isdisjoint(self._wide_registers):
            return True
        return bool(arrays) and any(x.op == "get" and x.data in arrays for x in leaves)

    def _differs(self, x: Value) -> bool:
        """Whether a value may differ between the lanes of the vector loop around this point."""
        return self.variable is not None and any(
            part is self.variable or (part.op == "get" and part.data in self._wide)
            for part in leaves_of(x)
        )

    def _find(self, x: Value, lane: int) -> Operand | list[Operand] | None:
        found = self._known.get(x)
        if lane == VECTOR:
            return found
        special = self._known.get((x, lane))
        if special is not None:
            return special
        if isinstance(found, Operand):
            return found if found.lanes == 1 else self._extract(found, lane)
        return None

    def _extract(self, x: Operand, lane: int) -> Operand:
        key = ("lane", x.text, lane)
        found = self._known.get(key)
        if found is None:
            depth = self.scopes.floor(x.depth)
            kind = vector(type_of(x.dtype), x.lanes)
            which = self.asking if lane == ASKING else str(lane)
            text = self.let(f"extractelement {kind} {x.text}, i64 {which}", depth)
            found = Operand(text, x.dtype, 1, depth, x.reads, x.varies)
            self.scopes.keep(key, found, depth)
        assert isinstance(found, Operand)
        return found

    def let(self, instruction: str, depth: int) -> str:
        """Write one instruction in the scope at `depth`."""
        lines, self.writer.lines = self.writer.lines, self.scopes.lines_at(depth)
        name = self.writer.let(instruction)
        self.writer.lines = lines
        return name

    def _make(self, x: Value, lane: int) -> None:
        if x.op == "select" and self._asks(x, lane):
            made = parted(self, x)
        elif x.op == "cast" and self._asks(x, lane):
            made = self._counted(x)
        elif x.op not in _OTHERWISE:
            made = self._instruction(x, lane)
        elif x.op == "const":
            made = literal(x)
        elif x.op == "load":
            made = self._load(x, lane, self.place_of(("buffer", x.data)))
        elif x.op == "get":
            made = self._get(x, lane)
        elif x.op == "rarely":
            self._keep(x, lane, self._rarely(x, lane))
            return
        elif x.op == "turned":
            self._keep(x, lane, turned(self, x))
            return
        elif x.op == "compress":
            made = compressed(self, x, lane)
        elif x.op == "item":
            both = self._find(x.args[0], lane)
            assert isinstance(both, list)
            made = both[x.data]
        elif x.op == "across":
            self._across(x, lane)
            return
        elif x.op == "variable":
            made = self._variable(x, lane)
        else:
            made = Operand(self.parameters[x.data], INDEX)
        self._keep(x, lane, made)

    def _keep(self, x: Value, lane: int, made: Operand | list[Operand]) -> None:
        if isinstance(made, Operand):
            depth, varies = made.depth, made.varies
        else:
            depth, varies = max(part.depth for part in made), any(part.varies for part in made)
        self.scopes.keep((x, lane) if varies and lane != VECTOR else x, made, depth)

    def _variable(self, x: Value, lane: int) -> Operand:
        """The vector loop's variable; others are known from the start of their loop."""
        assert x is self.variable, f"{x} outside its loop"
        first = self._known.get((x, 0))
        assert isinstance(first, Operand)
        depth = self.scopes.floor(first.depth)
        if lane != VECTOR:
            if first.literal and lane != ASKING:
                return replace(first, text=str(int(first.text) + lane))
            step = self.asking if lane == ASKING else str(lane)
            text = self.let(f"add i64 {first.text}, {step}", depth)
            return replace(first, text=text, depth=depth, literal=False)
        lanes = self.lanes
        start, steps = self.spread(first, lanes), counting("i64", lanes)
        text = self.let(f"add <{lanes} x i64> {start}, {steps}", depth)
        return replace(first, text=text, lanes=lanes, depth=depth, literal=False)

    def _asks(self, x: Value, lane: int) -> bool:
        """Whether operands are asked for by lane: an index that a cast makes short, or loads, of
        which all lanes may take one."""
        if lane != VECTOR or x.op not in ("cast", "select"):
            return False
        if x.op == "select":
            inside = self.parts and self.variable is not None and self.kind == "ptr"
            return inside and is_parted(self, x)
        is_short = x.dtype.kind in "iu" and x.dtype.itemsize < x.args[0].dtype.itemsize
        is_index = x.args[0].dtype == INDEX
        return is_short and is_index and isinstance(self.slope(x.args[0]) or None, int)

    def _counted(self, x: Value) -> Operand:
        """The first lane is made short, and the others are counted from it."""
        first, name, lanes = self.value(x.args[0], 0), type_of(x.dtype), self.lanes
        depth = self.scopes.floor(first.depth)
        text = self.let(f"trunc i64 {first.text} to {name}", depth)
        start = self.spread(Operand(text, x.dtype, 1, depth, first.reads), lanes)
        steps = counting(name, lanes, self.slope(x.args[0]))
        text = self.let(f"add {vector(name, lanes)} {start}, {steps}", depth)
        return Operand(text, x.dtype, lanes, depth, first.reads, True)

    def _instruction(self, x: Value, lane: int) -> Operand:
        operands: list[Operand] = []
        texts: list[str] = []
        lanes, depth, varies, reads = 0, 0, False, NOTHING
        known, is_mixed = self._known, False
        for arg in x.args:
            a = known.get(arg) if lane == VECTOR else self._find(arg, lane)
            assert isinstance(a, Operand), x
            operands.append(a)
            texts.append(a.text)
            if a.lanes != lanes:
                is_mixed = lanes > 0
                lanes = max(lanes, a.lanes)
            if a.depth > depth:
                depth = a.depth
            varies = varies or a.varies
            if a.reads is not reads:
                reads = reads | a.reads if reads else a.reads
        natural = False
        if x.dtype == INDEX and operands[0].dtype == INDEX:
            simple = folded(x.op, operands) if lanes == 1 else None
            if simple is not None:
                return simple
            natural = x.op in _GROWS and all(a.natural for a in operands)
            natural = natural or (x.op == "max" and any(a.natural for a in operands))
        if is_mixed:
            for place, a in enumerate(operands):
                if a.lanes != lanes and (place or x.op != "select"):
                    texts[place] = self.spread(a, lanes)
        depth = self.scopes.floor(depth)
        lines, self.writer.lines = self.writer.lines, self.scopes.lines_at(depth)
        text = self._write(x, texts, operands, lanes)
        self.writer.lines = lines
        return Operand(text, x.dtype, lanes, depth, reads, varies, False, natural)

    def _write(self, x: Value, texts: list[str], operands: list[Operand], lanes: int) -> str:
        code = self._codes.get(lanes)
        if code is None:
            code = self._codes[lanes] = Code(self.writer, lanes)
        if x.op == "select":
            kind = code.type(type_of(x.dtype))
            condition = vector("i1", operands[0].lanes)
            return self.writer.let(
                f"select {condition} {texts[0]}, {kind} {texts[1]}, {kind} {texts[2]}"
            )
        if lanes > 1 and x.op in _SHORTER and _SHORTER[x.op][0] in self.native:
            text_of = lambda a: self.spread(self.value(a, VECTOR), lanes)  # noqa: E731
            found = _SHORTER[x.op][1](code, x, text_of)
            if found is not None:
                return found
        divides = x.op in ("floordiv", "rem") and x.dtype == INDEX and operands[1].literal
        if divides and int(operands[1].text) > 0 and operands[0].natural:
            return code.op("udiv" if x.op == "floordiv" else "urem", "i64", *texts)
        op = x.data if x.op == "call" else x.op
        return instruction(code, self.native, op, texts, x.args[0].dtype, x.dtype)

    def _load(self, x: Value, lane: int, place: Place) -> Operand:
        (index,) = x.args
        step = self.slope(index) if lane == VECTOR and self.variable is not None else 0
        align = 0
        if step == 0 or place.lanes > 1:
            (pointer, depth, reads, varies), lanes = self.locate(place, index, lane), place.lanes
            align = alignment_of(place, index) if self.aligned and lane == VECTOR else 0
        elif step == 1:
            pointer, depth, reads, _ = self.locate(place, index, 0)
            lanes, varies, align = self.lanes, True, self.alignment(place, index)
        else:
            part = alternating(self, x, place) if x.op == "load" else None
            if part is not None:
                return part
            inside = self.parts and x.op == "load" and self.kind == "ptr"
            is_held = inside and step is None and is_held_back(self, index)
            return held_back(self, x, place) if is_held else gather(self, x, place)
        depth = self.scopes.anchor(depth, place.memory)
        lines, self.writer.lines = self.writer.lines, self.scopes.lines_at(depth)
        text = self.read(place, pointer, lanes, align)
        self.writer.lines = lines
        made = Operand(text, x.dtype, lanes, depth, reads | place.reads, varies)
        if place.lanes > 1 and lane != VECTOR:
            return self._extract(made, lane)
        return made

    def _get(self, x: Value, lane: int) -> Operand:
        local: Local = self.kernel.locals[x.data]
        memory = ("local", x.data)
        if x.args:
            return self._load(x, lane, self.place_of(memory))
        depth = self.scopes.anchor(0, memory)
        text = self.let(f"load {self.registers[x.data]}, ptr {self.locals[x.data]}", depth)
        made = Operand(text, x.dtype, local.lanes, depth, self._own[x.data])
        if local.lanes == 1 or lane == VECTOR:
            return made
        return self._extract(made, lane)

    def _rarely(self, x: Value, lane: int) -> list[Operand]:
        """Slow values in a block that is skipped where nobody asks for them."""
        count, writer = x.data, self.writer
        condition = self.value(x.args[0], lane)
        slow, fast = x.args[1 : 1 + count], [self.value(a, lane) for a in x.args[1 + count :]]
        lanes = condition.lanes
        if lane == VECTOR and self._differs(x):
            lanes = self.lanes  # slow values may differ from lane to lane
        usual = [self.spread(many, lanes) for many in fast]
        kinds = [vector(type_of(many.dtype), lanes) for many in fast]
        branch, join = writer.label("slow"), writer.label("join")
        asked = any_lane(writer, condition.text, condition.lanes)
        start = writer.block
        writer.branch(asked, branch, join)
        writer.begin(branch)
        varies = lanes > 1 or any(a.varies for a in (condition, *fast))
        if condition.lanes == 1:
            self.scopes.push(Scope("branch"))
            operands = [self.value(a, lane) for a in slow]
            found = [self.spread(few, lanes) for few in operands]
            varies = varies or any(few.varies for few in operands)
            self.scopes.pop()
        else:
            found = self._lane_by_lane(condition, slow, usual, kinds)
        end = writer.block
        writer.goto(join)
        writer.begin(join)
        reads, made = reads_of(x), []
        for kind, few, plain, many in zip(kinds, found, usual, fast, strict=True):
            text = writer.let(f"phi {kind} [ {few}, %{end} ], [ {plain}, %{start} ]")
            made.append(Operand(text, many.dtype, lanes, self.scopes.top, reads, varies))
        return made

    def _lane_by_lane(
        self, condition: Operand, slow: tuple[Value, ...], usual: list[str], kinds: list[str]
    ) -> list[str]:
        """The usual vectors with the slow values put into the lanes that ask."""

        def found(asking: str) -> list[str]:
            self.asking = asking
            self.scopes.push(Scope("branch"))
            texts = [f"{type_of(a.dtype)} {self.value(a, ASKING).text}" for a in slow]
            self.scopes.pop()
            return texts

        return asking_lanes(self.writer, condition.text, condition.lanes, usual, kinds, found)

    def _across(self, x: Value, lane: int) -> None:
        """Combine lanes: each with the one half the lanes away, until one is left."""
        parts = [self.value(a, VECTOR) for a in meeting(x)]
        lanes = parts[0].lanes
        texts = [self.spread(part, lanes) for part in parts]
        depth = self.scopes.floor(max(part.depth for part in parts))
        lines, self.writer.lines = self.writer.lines, self.scopes.lines_at(depth)
        found = meet(self.writer, self.native, x, texts, lanes)
        self.writer.lines = lines
        reads = frozenset().union(*(part.reads for part in parts))
        made = [Operand(t, a.dtype, 1, depth, reads) for t, a in zip(found, x.args, strict=True)]
        self._keep(x, lane, made if len(made) > 1 else made[0])


_SHORTER = {"bit_or": ("inserts", inserted), "mul": ("scale", scaled)}  # by fewer instructions
_ASKING = frozenset({"load", "get", "across", "turned", "compress"})  # for operands by lane
_OTHERWISE = _ASKING | {"const", "rarely", "item", "variable", "parameter"}  # no instructions
