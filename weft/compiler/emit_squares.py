"""Products of small matrices by a warp's threads, in LLVM IR for NVIDIA GPUs.

Factors get to shared memory by copies that go on by themselves. Each thread holds a part of every
matrix: factors of one or two bytes come from shared memory four matrices at a time, turned on the
way if they lie along their points; float64 element by element.
"""

from __future__ import annotations

from weft.compiler.emit_text import Writer, number, type_of
from weft.compiler.emit_values import Values
from weft.compiler.loops import Fetch, Loop, Panel, Settle, Squares, Value, every, leaves_of
from weft.compiler.polynomial import (
    Monomial,
    add,
    divide,
    multiply,
    polynomial,
    remainder,
    to_value,
)
from weft.compiler.squares import ROW, Shape, place_in, shape_of
from weft.core.common.dtypes import float16

SQUARED = (8, 0)  # the oldest compute capability that has these instructions
GROUPED = (9, 0)  # the only one whose warps multiply four together, as they do it here
DEEP_DOUBLES = "deep squares of float64"  # what a GPU is said to have that multiplies
DEEP = 16  # so many points of the depth of float64 at once
_WORD = 2  # bytes that matrices of factors are counted in, when they are loaded


def multiply_squares(values: Values, squares: Squares) -> None:
    """Write the products of two panels."""
    dtype = values.kernel.locals[squares.left.array].dtype
    shape = shape_of(dtype)
    assert shape is not None, f"squares of {dtype}"
    kind = _Groups if squares.together else _Doubles if dtype.itemsize == 8 else _Words
    write = kind(values, squares, shape)
    sums = _Sums(values, squares, write.high)
    write.products(sums)
    sums.put()


class _Sums:
    """The sums of a thread as scalars: four for each square, two of a row side by side."""

    def __init__(self, values: Values, squares: Squares, high: int) -> None:
        self.values, self.squares = values, squares
        self.high = high  # rows of a thread in a square
        local = values.kernel.locals[squares.sums[0]]
        self.kind, self.lanes = values.registers[squares.sums[0]], local.lanes
        self.scalar = type_of(local.dtype)
        self.found = [x for n in squares.sums for x in self._scalars(n)]
        self.wide = len(self.found) // squares.rows  # sums of a row

    def _scalars(self, local: int) -> list[str]:
        if self.squares.fresh:
            return [number(0, self.scalar)] * self.lanes
        writer, values = self.values.writer, self.values
        held = writer.let(f"load {self.kind}, ptr {values.locals[local]}")
        if self.lanes == 1:
            return [held]
        return [writer.let(f"extractelement {self.kind} {held}, i32 {k}") for k in range(2)]

    def places(self, i: int, j: int) -> list[int]:
        """Which sums are of square (i, j)."""
        rows = range(i * self.high, (i + 1) * self.high)
        return [row * self.wide + 2 * j + k for row in rows for k in range(2)]

    def put(self) -> None:
        """Write them to their registers."""
        writer = self.values.writer
        for k, n in enumerate(self.squares.sums):
            parts = self.found[k * self.lanes : (k + 1) * self.lanes]
            held = parts[0]
            if self.lanes > 1:
                held = "undef"
                for lane, part in enumerate(parts):
                    one = f"{self.scalar} {part}, i32 {lane}"
                    held = writer.let(f"insertelement {self.kind} {held}, {one}")
            writer.do(f"store {self.kind} {held}, ptr {self.values.locals[n]}")


class _Words:
    """Factors of one or two bytes."""

    def __init__(self, values: Values, squares: Squares, shape: Shape) -> None:
        self.values, self.squares, self.shape = values, squares, shape
        self.dtype = values.kernel.locals[squares.left.array].dtype
        self.high = shape.rows // 8
        self.unit = _WORD // self.dtype.itemsize  # elements of one that is loaded
        lane = squares.lane
        inside, matrix = remainder(lane, 8), divide(lane, 8)
        self.left = ""
        if not squares.left.held:
            down, deep = remainder(matrix, 2), divide(matrix, 2)
            self.left = self._pointer(squares.left, inside, down, deep)
        self.right = self._pointer(squares.right, inside, divide(matrix, 2), remainder(matrix, 2))

    def _pointer(self, panel: Panel, inside: Value, down: Value, deep: Value) -> str:
        """Where the row of a matrix begins that a thread's address is for."""
        values = self.values
        point, depth = multiply(down, 8), multiply(deep, 8 * self.unit)
        if panel.along == 1:
            point = add(point, inside)
        else:
            depth = add(depth, inside)
        place = values.place_of(("local", panel.array))
        return values.address(place, values.scalar(place_in(panel, point, depth)))[0]

    def products(self, sums: _Sums) -> None:
        """All of them, an instruction's depth after the other."""
        high, wide = self.squares.rows // 2, sums.wide // 2
        for k in range(0, self.squares.depth, self.shape.depth):
            rows = [
                _held_part(self.values, self.squares, i, k)
                or self._loaded(self.squares.left, self.left, 16 * i, k)
                for i in range(high)
            ]
            pairs = [
                self._loaded(self.squares.right, self.right, 8 * j, k) for j in range(0, wide, 2)
            ]
            columns = [pair[half : half + 2] for pair in pairs for half in (0, 2)]
            for i, row in enumerate(rows):
                for j, column in enumerate(columns):
                    self._product(sums, sums.places(i, j), row, column)

    def _loaded(self, panel: Panel, pointer: str, point: int, depth: int) -> list[str]:
        """Four matrices: of the points here and below, at this depth and after it."""
        writer = self.values.writer
        turned = "" if panel.along == 1 else ".trans"
        assert not turned or self.unit == 1, "bytes that lie along their points"
        name = f"@llvm.nvvm.ldmatrix.sync.aligned.m8n8.x4{turned}.b16.p3"
        kind = "{ i32, i32, i32, i32 }"
        writer.declarations[f"declare {kind} {name}(ptr addrspace(3))"] = None
        moved = (point * panel.across + depth * panel.along) * self.dtype.itemsize
        at = f"getelementptr i8, ptr addrspace(3) {pointer}, i64 {moved}"
        whole = writer.let(f"call {kind} {name}(ptr addrspace(3) {writer.let(at)})")
        return [writer.let(f"extractvalue {kind} {whole}, {k}") for k in range(4)]

    def _product(self, sums: _Sums, places: list[int], row: list[str], column: list[str]) -> None:
        writer = self.values.writer
        word = "<2 x half>" if self.dtype == float16 else "i32"
        factors = [
            x if word == "i32" else writer.let(f"bitcast i32 {x} to {word}")
            for x in (*row, *column)
        ]
        _call(writer, self.shape, word, factors, sums, places)


class _Groups:
    """Factors of two bytes, which four warps read from shared memory by themselves.

    They are told of a panel by one number: its address, and how far its parts are apart.
    """

    high = 2

    def __init__(self, values: Values, squares: Squares, shape: Shape) -> None:
        self.values, self.squares, self.shape = values, squares, shape
        dtype = values.kernel.locals[squares.left.array].dtype
        self.word = "f16" if dtype == float16 else "bf16"

    def products(self, sums: _Sums) -> None:
        """All of them, by one piece of code that waits for its results."""
        writer, squares = self.values.writer, self.squares
        order = [p for j in range(sums.wide // 2) for p in sums.places(0, j)]
        count, steps = len(order), range(0, squares.depth, self.shape.depth)
        panels = (squares.right,) if squares.left.held else (squares.left, squares.right)
        told = [[f"i64 {x}" for x in self._told(panel, steps)] for panel in panels]
        own = [_held_part(self.values, squares, 0, k) for k in steps]
        if squares.left.held:
            told.insert(0, [f"i32 {x}" for part in own for x in part])
        name = f"wgmma.mma_async.sync.aligned.m64n{4 * sums.wide}k16.f32.{self.word}.{self.word}"
        held = ", ".join(f"${k}" for k in range(count))
        turned = ", ".join(str(int(panel.along != 1)) for panel in panels)
        lines = [".reg .pred p, q;", "setp.ne.b32 p, 1, 0;", "setp.ne.b32 q, 0, 0;"]
        lines.append("wgmma.fence.sync.aligned;")
        before = [] if squares.fresh else [sums.found[p] for p in order]
        first = count + len(before)
        for k in range(len(steps)):
            left = f"${first + k}"
            if squares.left.held:
                left = f"{{{', '.join(f'${first + 4 * k + n}' for n in range(4))}}}"
            right, adds = f"${first + len(told[0]) + k}", "p" if k or before else "q"
            lines.append(f"{name} {{{held}}}, {left}, {right}, {adds}, 1, 1, {turned};")
        lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
        constraints = ["=f"] * count + [str(k) for k in range(len(before))]
        constraints += ["r" if x.startswith("i32") else "l" for part in told for x in part]
        given = [*(f"float {x}" for x in before), *(x for part in told for x in part)]
        made = f"{{ {', '.join(['float'] * count)} }}"
        text = f'"{{ {" ".join(lines)} }}", "{",".join([*constraints, "~{memory}"])}"'
        found = writer.let(f"call {made} asm sideeffect {text}({', '.join(given)}) convergent")
        for k, place in enumerate(order):
            sums.found[place] = writer.let(f"extractvalue {made} {found}, {k}")

    def _told(self, panel: Panel, steps: range) -> list[str]:
        """What describes a panel from some points of its depth on."""
        values, writer = self.values, self.values.writer
        place = values.place_of(("local", panel.array))
        pointer, _ = values.address(place, values.scalar(panel.start))
        apart = panel.swirled * _WORD  # unused where rows are points
        fixed = (1 << 62) | ((8 * ROW * _WORD) >> 4) << 32 | (apart >> 4) << 16
        address = writer.let(f"ptrtoint {place.kind} {pointer} to i32")
        short = writer.let(f"lshr i32 {writer.let(f'and i32 {address}, {0x3FFFF}')}, 4")
        first = writer.let(f"or i64 {writer.let(f'zext i32 {short} to i64')}, {fixed}")
        moved = [k * (1 if panel.along == 1 else ROW) * _WORD for k in steps]
        return [writer.let(f"add i64 {first}, {nbytes >> 4}") for nbytes in moved]


class _Doubles:
    """Factors of float64: by matrices of 8 by 4, or of 16 by 16 where a GPU has them."""

    def __init__(self, values: Values, squares: Squares, shape: Shape) -> None:
        self.values, self.squares, self.shape = values, squares, shape
        whole = squares.rows % 2 == 0 and squares.depth % DEEP == 0
        self.high, self.deep = 1, 1  # of small matrices in one that is multiplied at once
        if whole and DEEP_DOUBLES in values.native:
            self.high, self.deep = 2, DEEP // shape.depth
        point, depth = divide(squares.lane, 4), remainder(squares.lane, 4)
        self.left = self._pointer(squares.left, point, depth)
        self.right = self._pointer(squares.right, point, depth)

    def _pointer(self, panel: Panel, point: Value, depth: Value) -> str:
        values = self.values
        place = values.place_of(("local", panel.array))
        return values.address(place, values.scalar(place_in(panel, point, depth)))[0]

    def products(self, sums: _Sums) -> None:
        """All of them, an instruction's depth after the other."""
        left, right, step = self.squares.left, self.squares.right, self.shape.depth
        for k in range(0, self.squares.depth, self.deep * step):
            deep = range(k, k + self.deep * step, step)
            rows = [
                [
                    self._loaded(left, self.left, 8 * (i + h), at)
                    for at in deep
                    for h in range(self.high)
                ]
                for i in range(0, self.squares.rows, self.high)
            ]
            columns = [
                [self._loaded(right, self.right, 8 * j, at) for at in deep]
                for j in range(sums.wide // 2)
            ]
            for i, row in enumerate(rows):
                for j, column in enumerate(columns):
                    self._product(sums, sums.places(i, j), [*row, *column])

    def _product(self, sums: _Sums, places: list[int], factors: list[str]) -> None:
        writer = self.values.writer
        if self.high == 1:
            _call(writer, self.shape, "double", factors, sums, places)
            return
        # LLVM has no name for this one.
        count = len(factors)
        numbers = [f"${k}" for k in range(8 + count)]
        parts = (numbers[:4], numbers[4:12], numbers[12:16], numbers[16:])
        text = ", ".join(f"{{{', '.join(part)}}}" for part in parts)
        name = f"mma.sync.aligned.m16n8k{DEEP}.row.col.f64.f64.f64.f64 {text};"
        constraints = ",".join(["=d"] * 4 + ["d"] * (4 + count))
        made = "{ double, double, double, double }"
        given = ", ".join(f"double {x}" for x in (*factors, *(sums.found[p] for p in places)))
        found = writer.let(f'call {made} asm "{name}", "{constraints}"({given}) convergent')
        for k, place in enumerate(places):
            sums.found[place] = writer.let(f"extractvalue {made} {found}, {k}")

    def _loaded(self, panel: Panel, pointer: str, point: int, depth: int) -> str:
        writer = self.values.writer
        moved = point * panel.across + depth * panel.along
        at = writer.let(f"getelementptr double, ptr addrspace(3) {pointer}, i64 {moved}")
        return writer.let(f"load double, ptr addrspace(3) {at}, align 8")


def _held_part(values: Values, squares: Squares, i: int, depth: int) -> list[str]:
    """What a thread holds of 16 rows of a left panel, at 16 points of the depth; none if nothing.

    Those of both rows that it has at 8 points of the depth, then at the 8 after them.
    """
    held, across = squares.left.held, squares.depth // 8
    made: list[str] = []
    for k in (depth // 8, depth // 8 + 1) if held else ():
        for row in (2 * i, 2 * i + 1):
            local = held[row * across + k]
            kind, place = values.registers[local], values.locals[local]
            pair = values.writer.let(f"load {kind}, ptr {place}")
            made.append(values.writer.let(f"bitcast {kind} {pair} to i32"))
    return made


def fetch(values: Values, fetch: Fetch) -> None:
    """Write a copy that goes on by itself."""
    place = values.place_of(("local", fetch.array))
    target = values.locate(place, _late(values, fetch.position)).pointer
    buffer = values.place_of(("buffer", fetch.source.data))
    source = values.locate(buffer, _late(values, fetch.source.args[0])).pointer
    given = f"{place.kind} {target}, {buffer.kind} {source}"
    kinds, name = f"{place.kind}, {buffer.kind}", "@llvm.nvvm.cp.async.cg.shared.global.16"
    writer = values.writer
    if fetch.inside is not None:
        held = values.scalar(fetch.inside).text
        given += f", i32 {writer.let(f'select i1 {held}, i32 16, i32 0')}"
        kinds, name = f"{kinds}, i32", f"{name}.s"
    writer.declarations[f"declare void {name}({kinds})"] = None
    writer.do(f"call void {name}({given})")


def _late(values: Values, index: Value) -> Value:
    """An index to which those parts come last that change from one turn of a loop to the next."""
    loops = (s for s in every(values.kernel.body) if isinstance(s, Loop) and s.kind == "serial")
    changing = {loop.variable for loop in loops}
    terms = polynomial(index)

    def is_late(term: Monomial) -> bool:
        return any(not changing.isdisjoint(leaves_of(atom)) for atom in term)

    return to_value({term: terms[term] for term in sorted(terms, key=is_late)})


def settle(writer: Writer, settle: Settle) -> None:
    """Write what ends a group of copies, and waits for earlier ones."""
    for name, kinds, given in (
        ("commit.group", "", ""),
        ("wait.group", "i32 immarg", f"i32 {settle.pending}"),
    ):
        writer.declarations[f"declare void @llvm.nvvm.cp.async.{name}({kinds})"] = None
        writer.do(f"call void @llvm.nvvm.cp.async.{name}({given})")
    if settle.shown:
        writer.do('call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"()')


def _call(
    writer: Writer, shape: Shape, word: str, factors: list[str], sums: _Sums, places: list[int]
) -> None:
    """One instruction: the sums at these places take the products of factors."""
    name, kind = f"@llvm.nvvm.mma.{shape.name}", sums.scalar
    made = f"{{ {', '.join([kind] * len(places))} }}"
    kinds = ", ".join([word] * len(factors) + [kind] * len(places))
    writer.declarations[f"declare {made} {name}({kinds})"] = None
    given = [f"{word} {x}" for x in factors]
    given += [f"{kind} {sums.found[place]}" for place in places]
    found = writer.let(f"call {made} {name}({', '.join(given)})")
    for k, place in enumerate(places):
        sums.found[place] = writer.let(f"extractvalue {made} {found}, {k}")
