"""Find kernels that a GPU's tensor cores can run as one: a product, rows made of it, a product.

In attention a product makes scores, a kernel makes weights of each row of them, and another product
mixes values by these. A *weave* is what they do together: a block that has some rows computes the
scores of a few columns at a time, as often as the rows are gone through, and never writes them to
memory. Scores and weights are what they would be there, and so are all bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from weft.compiler.gpu_steps import Block, Call, Launch, Work
from weft.compiler.index import axis
from weft.compiler.loops import (
    LANES,
    WRITTEN,
    Assign,
    Buffer,
    Kernel,
    Local,
    Loop,
    Reduce,
    Statement,
    Store,
    Value,
    const,
    get,
    identity_of,
    integer,
    literal,
    load,
)
from weft.compiler.nests import around, loops_of, turns
from weft.compiler.passes.blocks_squares import narrowed
from weft.compiler.passes.contract_hidden import chosen
from weft.compiler.passes.contract_match import Axis
from weft.compiler.passes.positions import compared
from weft.compiler.passes.simplify import fold
from weft.compiler.polynomial import hides, known, polynomial
from weft.compiler.rebuild import (
    Statements,
    assigned_locals,
    changer,
    leaves_in,
    rename_locals,
    renumbered,
    revise,
    stored_buffers,
    substitute,
    substitute_value,
)

COMBINES = frozenset({"max", "min", "add"})
Step: TypeAlias = Work | Launch | Call
Rows: TypeAlias = dict[tuple[int, frozenset[object]], Value]  # what is stored for each row


@dataclass(frozen=True)
class Inner:
    """A product at each row and column: its narrow factors, and what becomes of its sum."""

    left: Value
    right: Value
    depth: Axis
    target: int
    epilogue: Statements  # the last one assigns the score


@dataclass(frozen=True)
class Outer:
    """A product that sums over columns: its narrow right factor, and what becomes of its sums."""

    right: Value
    column: Axis
    target: int
    epilogue: Statements


@dataclass(frozen=True)
class Weave:
    """What is done for each row.

    `middle` goes over the columns in each of its reductions, which read a score; the last of them
    assigns `weight`. What stands beside reductions is done once for a row.
    """

    kernel: Kernel  # all buffers and locals; statements are here
    batch: tuple[Axis, ...]
    row: Axis
    column: Axis
    inner: Inner
    middle: Statements
    weight: int
    outer: Outer
    mask: Value | None = None  # of positions: where it does not hold, nothing changes anything


@dataclass(frozen=True)
class Woven:
    """A weave, and the memory and calls of all its kernels."""

    weave: Weave
    work: Work


class _No(Exception):
    """Kernels are not what a weave is made of."""


def woven(
    steps: Sequence[Step], outputs: frozenset[Block], fits: Callable[[Weave], bool]
) -> Iterator[Step | Woven]:
    """All steps; three that can be one, if a block has room for it, are a weave."""
    left = list(steps)
    while left:
        first, *rest = left
        found = _three(first, rest, outputs) if isinstance(first, Work) else None
        if found is None or not fits(found[1].weave):
            yield first
            left = rest
            continue
        before, made, left = found
        yield from before
        yield made


def _three(
    first: Work, rest: Sequence[Step], outputs: frozenset[Block]
) -> tuple[list[Step], Woven, list[Step]] | None:
    """What runs before a weave that begins with a kernel, the weave, and what runs after it."""
    rows = _only_reader(first, rest, outputs)
    mix = None if rows is None else _only_reader(rows, rest, outputs)
    if rows is None or mix is None:
        return None
    late = {*first.writes, *rows.writes}
    before, after = list[Step](), list[Step]()
    place = rest.index(mix)
    for step in rest[:place]:
        if step is rows:
            continue
        if not isinstance(step, Work):
            return None
        is_late = bool(step.reads & late)
        (after if is_late else before).append(step)
        late |= step.writes if is_late else set()
    after += rest[place + 1 :]
    if mix.reads & (late - first.writes - rows.writes):
        return None
    kept = outputs.union(*(_memory(step) for step in after))
    try:
        return before, _Weaver((first, rows, mix), kept).woven(), after
    except _No:
        return None


def _only_reader(work: Work, rest: Sequence[Step], outputs: frozenset[Block]) -> Work | None:
    """The kernel that alone reads the largest of another's results."""
    block = _largest(work)
    readers = [step for step in rest if step is not work and block in _memory(step)]
    if len(readers) != 1 or block in outputs or not isinstance(readers[0], Work):
        return None
    return readers[0]


def _largest(work: Work) -> Block:
    return max(work.writes, key=lambda block: block.size)


def _memory(step: Step) -> Iterable[Block]:
    return (*step.reads, *step.makes) if isinstance(step, Call) else step.memory


class _Weaver:
    """Takes three kernels apart; `kept` is what others read of their results."""

    def __init__(self, works: tuple[Work, Work, Work], kept: frozenset[Block]) -> None:
        self.works, self.kept = works, kept
        self.scores, self.weights = _largest(works[0]), _largest(works[1])
        self.memory = tuple(dict.fromkeys(b for work in works for b in work.memory))
        nests = [around(work.kernel) for work in works]
        if not all(nests):
            raise _No
        *lead, row = nests[1]
        self.batch = [_axis(f"batch{k}", loop) for k, loop in enumerate(lead)]
        self.row, self.column = _axis("row", row), _axis("column", nests[0][-1])
        self.mixed = _axis("mixed", nests[2][-1])
        common = [*self.batch, self.row]
        self.locals: list[Local] = []
        self.bodies = [
            self._body(work, nest, axes)
            for work, nest, axes in zip(
                works,
                nests,
                ([*common, self.column], common, [*common, self.mixed]),
                strict=True,
            )
        ]
        self.score, self.weight = (self._local(name, b) for name, b in self._squares())

    def _squares(self) -> tuple[tuple[str, Block], tuple[str, Block]]:
        return ("score", self.scores), ("weight", self.weights)

    def _local(self, name: str, block: Block) -> int:
        self.locals.append(Local(name, block.dtype))
        return len(self.locals) - 1

    def _body(self, work: Work, nest: list[Loop], axes: list[Axis]) -> Statements:
        """What a kernel does inside its loops, in the variables, buffers and locals of all."""
        if [turns(loop) for loop in nest] != [known(extent) for _, extent in axes]:
            raise _No
        loops = loops_of(work.kernel)
        body = loops[-1].body
        named = {loop.variable: integer(0) for loop in loops}
        named |= {loop.variable: v for loop, (v, _) in zip(nest, axes, strict=True)}
        numbers = {k: self.memory.index(block) for k, block in enumerate(work.memory)}
        moved = {k: k + len(self.locals) for k in range(len(work.kernel.locals))}
        self.locals += work.kernel.locals
        body = rename_locals(renumbered(substitute(body, named), numbers), moved)
        return revise(body, changer(_as_written))

    def woven(self) -> Woven:
        """All of it."""
        inner, scored = self._inner()
        middle, weighed, rows = self._middle(scored)
        outer = self._outer(weighed, rows)
        first, _, last = self.works
        found = (inner.epilogue, middle, outer.epilogue)
        used = {x.data for x in (inner.left, inner.right, outer.right)}
        used |= {x.data for s in found for x in leaves_in(s) if x.op == "load"}
        used |= {n for s in found for n in stored_buffers(s)}
        left = sorted(used)
        numbers = {old: new for new, old in enumerate(left)}
        memory = tuple(self.memory[k] for k in left)
        kernel = Kernel(
            f"{first.kernel.name}_{last.kernel.name}", self._buffers(memory), tuple(self.locals), ()
        )
        inner = replace(
            inner,
            left=_at(inner.left, numbers),
            right=_at(inner.right, numbers),
            epilogue=renumbered(inner.epilogue, numbers),
        )
        outer = replace(
            outer,
            right=_at(outer.right, numbers),
            epilogue=renumbered(outer.epilogue, numbers),
        )
        weave = Weave(
            kernel,
            tuple(self.batch),
            self.row,
            self.column,
            inner,
            renumbered(middle, numbers),
            self.weight,
            outer,
            self._mask(inner, middle),
        )
        calls = tuple(call for work in self.works for call in work.calls)
        group = tuple(call for work in self.works for call in work.group)
        return Woven(weave, Work(kernel, memory, calls, group))

    def _buffers(self, memory: Sequence[Block]) -> tuple[Buffer, ...]:
        written = frozenset[Block]().union(*(work.writes for work in self.works))
        names = (f"b{k}" for k in range(len(memory)))
        return tuple(
            Buffer(name, block.dtype, "write" if block in written else "read")
            for name, block in zip(names, memory, strict=True)
        )

    def _inner(self) -> tuple[Inner, Value]:
        """The first product, and where its score is stored."""
        depth, left, right, target, epilogue = _product(self.bodies[0])
        if hides(left, self.column[0]):
            left, right = right, left
        if hides(left, self.column[0]) or hides(right, self.row[0]):
            raise _No
        *others, store = epilogue
        if not isinstance(store, Store) or not all(isinstance(s, Assign) for s in others):
            raise _No
        made = (*others, Assign(self.score, store.value))
        return Inner(_narrow(left), _narrow(right), depth, target, made), store.index

    def _middle(self, scored: Value) -> tuple[Statements, Value, Rows]:
        """The statements of a row, where its weights are stored, and what it stores beside them."""
        made: list[Statement] = []
        rows: Rows = {}
        weighed: list[Value] = []
        scores, weights = (self.memory.index(b) for b in (self.scores, self.weights))
        for s in self.bodies[1]:
            if isinstance(s, Reduce | Loop):
                phase, found = self._phase(s, weights)
                weighed += found
                made.append(phase)
            elif isinstance(s, Store):
                rows[_key(load(s.buffer, s.index, s.value.dtype))] = s.value
                if self.memory[s.buffer] in self.kept:
                    made.append(s)
            else:
                made.append(s)
        runs = [s for s in made if isinstance(s, Reduce)]
        if len(weighed) != 1 or self.weight not in assigned_locals(runs[-1:]):
            raise _No
        loads = [x for x in leaves_in(tuple(made)) if x.op == "load"]
        if any(x.data == weights for x in loads):
            raise _No
        read = {x for x in loads if x.data == scores}
        if any(polynomial(x.args[0]) != polynomial(scored) for x in read):
            raise _No
        score = get(self.score, self.scores.dtype)
        return substitute(tuple(made), dict.fromkeys(read, score)), weighed[0], rows

    def _phase(self, statement: Reduce | Loop, weights: int) -> tuple[Reduce, list[Value]]:
        """A run over the columns, with the places at which it stores weights."""
        if isinstance(statement, Loop):
            axes: tuple[Axis, ...] = ((statement.variable, statement.stop),)
            run = Reduce(axes, LANES, (), statement.body)
        else:
            run = statement
        fits = len(run.axes) == 1 and run.axes[0][1] == self.column[1] and run.lanes == LANES
        plain = all(part.combine in COMBINES for part in run.parts)
        if not fits or not plain or not all(isinstance(s, Assign | Store) for s in run.body):
            raise _No
        (run,) = substitute((run,), {run.axes[0][0]: self.column[0]})  # type: ignore[assignment]
        body: list[Statement] = []
        places: list[Value] = []
        for s in run.body:
            if isinstance(s, Store):
                if s.buffer != weights:
                    raise _No
                places.append(s.index)
                body.append(Assign(self.weight, s.value))
            else:
                body.append(s)
        return replace(run, body=tuple(body)), places

    def _mask(self, inner: Inner, middle: Statements) -> Value | None:
        """A mask of positions without which weights are 0 and reductions meet what they ignore."""
        runs = [s for s in middle if isinstance(s, Reduce)]
        held = self._values((*inner.epilogue, *runs[-1].body))
        weight = held[self.weight]
        if weight.op != "select" or not compared(weight.args[0]):
            return None
        condition = weight.args[0]
        for run in runs:
            held = self._values((*inner.epilogue, *run.body))
            for part in run.parts:
                hidden = _hidden(_resolved(part.values[0], held, self.locals), condition)
                ignored = const(0, hidden.dtype) if part.combine == "add" else None
                if hidden != (ignored or identity_of(part.combine, hidden.dtype)):
                    return None
        hidden = _hidden(weight, condition)
        return condition if hidden == const(0, hidden.dtype) else None

    def _values(self, statements: Statements) -> dict[int, Value]:
        """What locals hold after statements that assign them."""
        held: dict[int, Value] = {}
        for s in statements:
            if isinstance(s, Assign):
                held[s.local] = _resolved(s.value, held, self.locals)
        return held

    def _outer(self, weighed: Value, rows: Rows) -> Outer:
        """The last product."""
        depth, left, right, target, epilogue = _product(self.bodies[2])
        weights = self.memory.index(self.weights)
        if depth[1] != self.column[1]:
            raise _No
        named = {depth[0]: self.column[0]}
        left, right = (_narrow(substitute_value(x, named)) for x in (left, right))
        if right.op == "load" and right.data == weights:
            left, right = right, left
        if left.data != weights or polynomial(left.args[0]) != polynomial(weighed):
            raise _No
        if hides(right, self.row[0]) or right.data == weights:
            raise _No
        read = [x for x in leaves_in(epilogue) if x.op == "load"]
        inside = {x: rows[_key(x)] for x in read if _key(x) in rows}
        written = {self.memory.index(b) for work in self.works[:2] for b in work.writes}
        if any(x.data in written for x in read if x not in inside) or right.data in written:
            raise _No
        return Outer(right, self.mixed, target, substitute(epilogue, inside))


def _product(body: Statements) -> tuple[Axis, Value, Value, int, Statements]:
    """The depth, the factors, the target and the epilogue of a product."""
    reduce, *epilogue = body
    if not isinstance(reduce, Reduce) or reduce.body or len(reduce.axes) != 1:
        raise _No
    (part, *others) = reduce.parts
    if others or part.combine != "dot" or not all(isinstance(s, Assign | Store) for s in epilogue):
        raise _No
    left, right = part.values
    return reduce.axes[0], left, right, part.targets[0], tuple(epilogue)


def _narrow(factor: Value) -> Value:
    """A factor of two bytes as memory holds it."""
    found = narrowed(factor)
    if found.op != "load" or found.dtype.itemsize != 2:
        raise _No
    return found


def _as_written(x: Value) -> Value:
    """An element as memory has it."""
    return x.args[1] if x.op == "select" and x.data == WRITTEN else x


def _resolved(x: Value, held: dict[int, Value], locals_: Sequence[Local]) -> Value:
    """A value with those of locals in their place."""
    return substitute_value(x, {get(n, locals_[n].dtype): y for n, y in held.items()})


def _hidden(x: Value, condition: Value) -> Value:
    """A value where a condition does not hold."""
    (made,) = fold(chosen((Assign(0, x),), condition, 2))
    assert isinstance(made, Assign)
    found = made.value
    if found.op == "cast" and found.args[0].op == "const":
        return const(literal(found.args[0]), found.dtype)
    return found


def _at(factor: Value, numbers: dict[int, int]) -> Value:
    """A load of a buffer that has another number now."""
    return load(numbers[factor.data], factor.args[0], factor.dtype)


def _axis(name: str, loop: Loop) -> Axis:
    return axis(name, turns(loop)).value, loop.stop


def _key(x: Value) -> tuple[int, frozenset[object]]:
    """Loads that share it read the same."""
    return x.data, frozenset(polynomial(x.args[0]).items())
