"""Kernels as compute shaders in WGSL.

    @group(0) @binding(k)       buffer k; a bool is a u32 there, an int64 two i32, the status one
    main                        one workgroup for each block, 65 535 to a row of the grid

Indices are i32. Each value is a `let`, written once for as long as the memory it reads stays the
same. Kernels are scheduled without vectors: see `weft.compiler.pipeline_gpu`.
"""

from __future__ import annotations

from weft.compiler.loops import (
    BOOL,
    INDEX,
    Ahead,
    Assign,
    Fetch,
    Kernel,
    Loop,
    Settle,
    Squares,
    Statement,
    Store,
    Tiles,
    Value,
    When,
    every,
    literal,
    load,
    value,
    walk,
)
from weft.compiler.passes.spell import spell
from weft.compiler.reports import STATUS
from weft.compiler.wgsl_positions import check_positions
from weft.compiler.wgsl_scalars import HELPERS, PAIR, Scalars, stored_type, type_of
from weft.errors import UnsupportedError

GRID_WIDTH = 65_535  # workgroups in one dimension of a grid
_COMBINED = {"and": "bit_and", "or": "bit_or"}
_MANTISSA = 52  # a shift by this takes the exponent of a float64


def emit_wgsl(kernel: Kernel) -> str:
    """A shader with one entry point, `main`."""
    if kernel.parameters:
        raise UnsupportedError(f"kernel {kernel.name}: sizes are fixed in a shader")
    shader = _Shader(spell(kernel))
    shader.statements(shader.kernel.body, 1)
    return shader.text()


Memory = tuple[str, int]


class _Shader:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.scalars = Scalars()
        self.lines: list[str] = []
        self.known: list[dict[Value, tuple[str, frozenset[Memory]]]] = [{}]
        self.count = 0
        check_positions(kernel)
        self.buffers = ["i32" if b == STATUS else stored_type(b.dtype) for b in kernel.buffers]

    # -- the module ------------------------------------------------------------------------

    def text(self) -> str:
        """The module."""
        kernel, head = self.kernel, []
        dtypes = (*(b.dtype for b in kernel.buffers), *(x.dtype for x in kernel.locals))
        if any(dtype.name == "float16" for dtype in dtypes):
            head.append("enable f16;")
        for number, (buffer, kind) in enumerate(zip(kernel.buffers, self.buffers, strict=True)):
            mode = "read" if buffer.mode == "read" else "read_write"
            declared = f"var<storage, {mode}> b{number}: array<{kind}>;"
            head.append(f"@group(0) @binding({number}) {declared}")
        for number, local in enumerate(kernel.locals):
            if local.shared:
                kind = "u32" if local.dtype == BOOL else type_of(local.dtype)
                head.append(f"var<workgroup> l{number}: array<{kind}, {local.length}>;")
        head.append("var<private> zero: u32;")
        head += [HELPERS[name] for name in self.scalars.helpers]
        head.append(f"@compute @workgroup_size({kernel.notes['threads']})")
        head.append("fn main(@builtin(workgroup_id) group: vec3<u32>,")
        head.append("        @builtin(local_invocation_id) local: vec3<u32>) {")
        for number, local in enumerate(kernel.locals):
            if not local.shared:
                kind = type_of(local.dtype)
                kind = f"array<{kind}, {local.length}>" if local.length else kind
                head.append(f"  var l{number}: {kind};")
        head.append("  zero = group.z;  // a grid has one layer")
        return "\n".join([*head, *self.lines, "}", ""])

    def write(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    # -- statements ------------------------------------------------------------------------

    def statements(self, body: tuple[Statement, ...], depth: int, again: bool = False) -> None:
        for statement in body:
            if isinstance(statement, Store):
                self.store(statement, depth)
            elif isinstance(statement, Assign):
                self.assign(statement, depth)
            elif isinstance(statement, When):
                self.nested(f"if ({self.value(statement.condition, depth)})", statement.body, depth)
            elif isinstance(statement, Tiles | Squares | Fetch | Settle):
                raise UnsupportedError(f"kernel {self.kernel.name}: tiles, in a shader")
            elif not isinstance(statement, Ahead):
                assert isinstance(statement, Loop), "a reduction that was not scheduled"
                self.loop(statement, depth)
                if statement.kind == "thread" and (again or statement is not body[-1]):
                    self.write(depth, "workgroupBarrier();")
                    self.write(depth, "storageBarrier();")

    def nested(
        self, head: str, body: tuple[Statement, ...], depth: int, again: bool = False
    ) -> None:
        self.write(depth, f"{head} {{")
        self.known.append({})
        self.statements(body, depth + 1, again)
        self.known.pop()
        self.write(depth, "}")

    def loop(self, loop: Loop, depth: int) -> None:
        assert loop.kind in ("serial", "unroll", "block", "thread"), f"a {loop.kind} loop"
        name, stop = self.variable(loop.variable), self.value(loop.stop, depth)
        if loop.kind in ("block", "thread"):
            block = f"group.x + group.y * {GRID_WIDTH}u"
            here = f"i32({block if loop.kind == 'block' else 'local.x'})"
            self.write(depth, f"let {name} = {here};")
            self.nested(f"if ({name} < {stop})", loop.body, depth)
            return
        start = self.value(loop.start, depth)
        self.forget(_written(loop.body))
        head = f"for (var {name} = {start}; {name} < {stop}; {name}++)"
        self.nested(head, loop.body, depth, again=True)

    def store(self, store: Store, depth: int) -> None:
        stored = store.value
        if store.combine not in ("", "last"):
            old = load(store.buffer, store.index, stored.dtype)
            how = _COMBINED.get(store.combine, store.combine)
            stored = value(how, (old, stored), stored.dtype)
        index, x = self.value(store.index, depth), self.value(stored, depth)
        word = f"u32({x})" if stored.dtype == BOOL else x
        if self.buffers[store.buffer] == PAIR:
            word = f"{PAIR}({x}, {x} >> 31u)"
        self.write(depth, f"b{store.buffer}[{index}] = {word};")
        self.forget({("buffer", store.buffer)})

    def assign(self, assign: Assign, depth: int) -> None:
        x = self.value(assign.value, depth)
        local = self.kernel.locals[assign.local]
        word = f"u32({x})" if local.shared and local.dtype == BOOL else x
        place = "" if assign.position is None else f"[{self.value(assign.position, depth)}]"
        self.write(depth, f"l{assign.local}{place} = {word};")
        self.forget({("local", assign.local)})

    def forget(self, written: set[Memory]) -> None:
        for scope in self.known:
            for x in [x for x, (_, reads) in scope.items() if not written.isdisjoint(reads)]:
                del scope[x]

    # -- values ----------------------------------------------------------------------------

    def variable(self, x: Value) -> str:
        return f"i_{x.data}"

    def find(self, x: Value) -> tuple[str, frozenset[Memory]] | None:
        for scope in reversed(self.known):
            if x in scope:
                return scope[x]
        return None

    def value(self, root: Value, depth: int) -> str:
        """The name of a value; what is not written yet is written now."""
        stack = [(root, False)]
        while stack:
            x, ready = stack.pop()
            if self.find(x) is not None:
                continue
            if ready:
                self.known[-1][x] = self.made(x, depth)
            else:
                stack.append((x, True))
                stack.extend((a, False) for a in reversed(_needs(x)))
        found = self.find(root)
        assert found is not None
        return found[0]

    def made(self, x: Value, depth: int) -> tuple[str, frozenset[Memory]]:
        if x.op == "const":
            return self.scalars.constant(x), frozenset()
        if x.op == "variable":
            return self.variable(x), frozenset()
        reads = self.reads(x)
        if x.op == "rarely":
            return self.rarely(x, depth), reads
        if x.op == "item":
            found = self.find(x.args[0])
            assert found is not None
            return f"{found[0]}_{x.data}", reads
        args = [self.value(a, depth) for a in _needs(x)]
        self.count += 1
        name = f"v{self.count}"
        self.write(depth, f"let {name} = {self.expression(x, args)};")
        return name, reads

    def expression(self, x: Value, args: list[str]) -> str:
        if x.op == "load":
            text = f"b{x.data}[{args[0]}]"
            if x.dtype == INDEX:
                return self.scalars.call("held", text)
            return f"{text} != 0u" if x.dtype == BOOL else text
        if x.op == "get":
            local = self.kernel.locals[x.data]
            text = f"l{x.data}[{args[0]}]" if args else f"l{x.data}"
            return f"{text} != 0u" if local.shared and x.dtype == BOOL else text
        if _is_exponent(x):
            return f"i32(firstLeadingBit(u32({args[0]}))) + 1023"
        return self.scalars.instruction(x, args)

    def reads(self, x: Value) -> frozenset[Memory]:
        own = {"load": ("buffer", x.data), "get": ("local", x.data)}.get(x.op)
        found = frozenset() if own is None else frozenset({own})
        for a in x.args:
            known = self.find(a)
            found |= known[1] if known is not None else _memory(a)
        return found

    def rarely(self, x: Value, depth: int) -> str:
        """Variables that hold the usual values, replaced where the condition asks for it."""
        count = x.data
        slow, fast = x.args[1 : 1 + count], x.args[1 + count :]
        condition = self.value(x.args[0], depth)
        self.count += 1
        name = f"v{self.count}"
        for k, usual in enumerate(fast):
            self.write(depth, f"var {name}_{k} = {self.value(usual, depth)};")
        self.write(depth, f"if ({condition}) {{")
        self.known.append({})
        for k, seldom in enumerate(slow):
            self.write(depth + 1, f"{name}_{k} = {self.value(seldom, depth + 1)};")
        self.known.pop()
        self.write(depth, "}")
        return name


def _is_exponent(x: Value) -> bool:
    """Whether a value is the biased exponent of an index, told through the bits of a float64."""
    if x.op != "shift_right" or x.dtype != INDEX or x.args[0].op != "bitcast":
        return False
    return x.args[1].op == "const" and int(literal(x.args[1])) == _MANTISSA


def _needs(x: Value) -> tuple[Value, ...]:
    """The operands that are written before a value."""
    if _is_exponent(x):
        return (x.args[0].args[0].args[0],)
    return (x.args[0], *x.args[1 + x.data :]) if x.op == "rarely" else x.args


def _memory(x: Value) -> frozenset[Memory]:
    kinds = {"load": "buffer", "get": "local"}
    return frozenset((kinds[v.op], v.data) for v in walk(x) if v.op in kinds)


def _written(body: tuple[Statement, ...]) -> set[Memory]:
    found: set[Memory] = set()
    for s in every(body):
        if isinstance(s, Store):
            found.add(("buffer", s.buffer))
        elif isinstance(s, Assign):
            found.add(("local", s.local))
    return found
