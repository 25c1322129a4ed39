"""Kernels as text: `show` for people and golden files, `fingerprint` for caches.

Indices are written as they would be by hand; a value that several places use is given a name,
`%0`, `%1`…, before the statement that needs it first.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator

from weft.compiler.loops import (
    INDEX,
    NEAREST,
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
    expressions,
    literal,
    walk,
)
from weft.compiler.rebuild import bound

_INFIX = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "rem": "%"}
_PRECEDENCE = {"add": 1, "sub": 1, "mul": 2, "floordiv": 2, "rem": 2}
_LEAVES = frozenset({"const", "variable", "parameter"})


def show(kernel: Kernel) -> str:
    """A kernel as text that stays the same from run to run."""
    return "\n".join(_Text(kernel).lines()) + "\n"


class _Text:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names: dict[Value, str] = {}
        self.count = 0

    def lines(self) -> Iterator[str]:
        kernel = self.kernel
        parameters = f"({kernel.parameters} parameters)" if kernel.parameters else ""
        yield f"kernel {kernel.name}{parameters}"
        for k, buffer in enumerate(kernel.buffers):
            yield f"  {buffer.mode} b{k}: {buffer.dtype}"
        for k, local in enumerate(kernel.locals):
            lanes = f" x {local.lanes}" if local.lanes > 1 else ""
            length = f"[{local.length}]" if local.length else ""
            place = "" if local.beside is None else f", walked with b{local.beside}"
            yield f"  local t{k}{length}: {local.dtype}{lanes}{place}"
        yield from self.block(kernel.body, 1)

    def block(self, statements: tuple[Statement, ...], depth: int) -> Iterator[str]:
        for statement in statements:
            # What memory holds may change between statements, so names last for one only.
            self.names = {}
            indent = "  " * depth
            if not isinstance(statement, Reduce):
                yield from (indent + line for line in self.shared(expressions(statement)))
            yield indent + self.head(statement)
            yield from self.block(statement.body, depth + 1)
            if isinstance(statement, Reduce):
                self.names = {}
                values = tuple(x for part in statement.parts for x in part.values)
                inner = "  " * (depth + 1)
                yield from (inner + line for line in self.shared(values))
                yield from (inner + line for line in self.parts(statement))

    def head(self, statement: Statement) -> str:
        if isinstance(statement, Loop):
            start, stop = self.text(statement.start), self.text(statement.stop)
            step = f" by {statement.step}" if statement.step > 1 else ""
            return f"{statement.kind} {statement.variable.data} in {start} .. {stop}{step}:"
        if isinstance(statement, Reduce):
            axes = ", ".join(f"{v.data} < {self.text(extent)}" for v, extent in statement.axes)
            return f"reduce {axes} in {statement.lanes} lanes:"
        if isinstance(statement, Store):
            index, x = self.text(statement.index), self.text(statement.value)
            return f"b{statement.buffer}[{index}] {_sign(statement.combine)} {x}"
        if isinstance(statement, Assign):
            place = "" if statement.position is None else f"[{self.text(statement.position)}]"
            return f"t{statement.local}{place} = {self.text(statement.value)}"
        if isinstance(statement, Tiles):
            names = (statement.sums, statement.left, statement.right)
            sums, left, right = (
                f"{'tb'[k == 2 and statement.shared]}{n}[{self.text(at)}]"
                for k, (n, at) in enumerate(zip(names, statement.places, strict=True))
            )
            sign, size = "=" if statement.fresh else "+=", f"{statement.rows}x{statement.columns}"
            kind = "words" if statement.words else "tiles"
            return f"{kind} {size} {sums} {sign} {left} . {right}, {self.text(statement.groups)}"
        if isinstance(statement, Squares):
            left, right = (
                f"t{p.array}[{self.text(p.start)} by {p.across}, {p.along}]"
                for p in (statement.left, statement.right)
            )
            sums = f"{statement.rows} rows of t{statement.sums[0]}..t{statement.sums[-1]}"
            sign = "=" if statement.fresh else "+="
            return f"squares {sums} {sign} {left} . {right}, {statement.depth}"
        if isinstance(statement, Fetch):
            inside = "" if statement.inside is None else f" if {self.text(statement.inside)}"
            place = f"t{statement.array}[{self.text(statement.position)}]"
            return f"fetch {place} = {statement.lanes} of {self.text(statement.source)}{inside}"
        if isinstance(statement, Settle):
            return f"settle all but {statement.pending}"
        if isinstance(statement, Ahead):
            where = "" if statement.cache == NEAREST else " in the second cache"
            return f"ahead{where} {self.text(statement.source)}"
        return f"when {self.text(statement.condition)}:"

    def parts(self, reduce: Reduce) -> Iterator[str]:
        for part in reduce.parts:
            targets = ", ".join(f"t{t}" for t in part.targets)
            values = ", ".join(map(self.text, part.values))
            yield f"{targets} = {part.combine}({values})"

    def shared(self, roots: tuple[Value, ...]) -> Iterator[str]:
        """Lines that name the values which are used more than once."""
        points = list(walk(*roots))
        uses = Counter(a for x in points for a in x.args)
        uses.update(roots)
        for x in points:
            if uses[x] > 1 and x.op not in _LEAVES and not _is_short(x):
                text = self.text(x)
                self.names[x] = f"%{self.count}"
                self.count += 1
                yield f"{self.names[x]} = {text}"

    def text(self, x: Value, around: int = 0) -> str:
        if x in self.names:
            return self.names[x]
        if x.op == "const":
            return _literal(x)
        if x.op == "variable":
            return str(x.data)
        if x.op == "parameter":
            return f"p{x.data}"
        if x.op == "load":
            return f"b{x.data}[{self.text(x.args[0])}]"
        if x.op == "get":
            return f"t{x.data}" + (f"[{self.text(x.args[0])}]" if x.args else "")
        if x.op in _INFIX and x.dtype == INDEX:
            here = _PRECEDENCE[x.op]
            left, right = self.text(x.args[0], here), self.text(x.args[1], here + 1)
            minus = x.op == "add" and x.args[1].op == "const" and right.startswith("-")
            whole = f"{left} - {right[1:]}" if minus else f"{left} {_INFIX[x.op]} {right}"
            return f"({whole})" if here < around else whole
        args = ", ".join(map(self.text, x.args))
        if x.op in ("cast", "bitcast"):
            return f"{x.op}({args}, {x.dtype})"
        data = "" if x.data is None else f"[{x.data}]"
        return f"{x.op}{data}({args})"


def _sign(combine: str) -> str:
    return f"{combine}=" if combine else "="


def _is_short(x: Value) -> bool:
    return x.op == "get" and not x.args


def _literal(x: Value) -> str:
    return str(literal(x)) if x.dtype == INDEX else f"{literal(x)!s}:{x.dtype}"


def fingerprint(kernel: Kernel) -> str:
    """A key that two kernels share exactly if they are the same but for names."""
    digest = hashlib.sha256()
    numbers: dict[Value, int] = {}
    for buffer in kernel.buffers:
        digest.update(f"buffer {buffer.dtype} {buffer.mode}\n".encode())
    for local in kernel.locals:
        size = f"{local.lanes} {local.length} {local.beside}"
        digest.update(f"local {local.dtype} {size}\n".encode())
    digest.update(f"parameters {kernel.parameters}\n".encode())
    for line in _canonical(kernel.body, numbers):
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def _canonical(statements: tuple[Statement, ...], numbers: dict[Value, int]) -> Iterator[str]:
    for statement in statements:
        for v in bound(statement):
            numbers.setdefault(v, len(numbers))
            yield f"variable {numbers[v]}"
        for x in walk(*expressions(statement)):
            if x not in numbers:
                numbers[x] = len(numbers)
                args = " ".join(str(numbers[a]) for a in x.args)
                data = x.data.hex() if isinstance(x.data, bytes) else x.data
                yield f"{numbers[x]} = {x.op} {x.dtype} {data} {args}"
        yield _structure(statement, numbers)
        yield from _canonical(statement.body, numbers)
        yield "end"


def _structure(statement: Statement, numbers: dict[Value, int]) -> str:
    own = " ".join(str(numbers[x]) for x in expressions(statement))
    if isinstance(statement, Loop):
        return f"loop {statement.kind} {statement.step} {numbers[statement.variable]} {own}"
    if isinstance(statement, Reduce):
        parts = " ".join(f"{p.combine}{p.targets}" for p in statement.parts)
        return f"reduce {statement.lanes} {len(statement.axes)} {parts} {own}"
    if isinstance(statement, Store):
        return f"store {statement.buffer} {statement.combine} {own}"
    if isinstance(statement, Assign):
        return f"assign {statement.local} {own}"
    if isinstance(statement, Tiles):
        s = statement
        names = f"{s.sums} {s.left} {s.right}"
        flags = f"{s.fresh} {s.words} {s.shared} {s.ahead and s.ahead[1]}"
        return f"tiles {names} {s.rows} {s.columns} {flags} {own}"
    if isinstance(statement, Squares):
        sides = (statement.left, statement.right)
        panels = [(p.array, p.across, p.along, p.swirled, p.held) for p in sides]
        sizes = f"{statement.rows} {statement.depth}"
        flags = f"{statement.together} {statement.fresh}"
        return f"squares {statement.sums} {sizes} {flags} {panels} {own}"
    if isinstance(statement, Fetch):
        return f"fetch {statement.array} {statement.lanes} {statement.inside is None} {own}"
    if isinstance(statement, Settle):
        return f"settle {statement.pending} {statement.shown}"
    if isinstance(statement, Ahead):
        return f"ahead {statement.cache} {own}"
    return f"when {own}"
