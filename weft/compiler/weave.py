"""Find kernels that a GPU's tensor cores can run as one: products, what is made of them, products.

In attention a product makes scores, a kernel makes weights of each row of them, and another product
mixes values by these; gradients make weights of two products, and mix more than once. A *weave* is
what they do together: a block that has some rows computes the scores of a few columns at a time, as
often as the rows are gone through, and never writes them to memory. Scores and weights are what
they would be there, and so are all bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from weft.compiler.gpu_steps import Block, Call, Step, Work
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
    every,
    get,
    identity_of,
    integer,
    literal,
    load,
)
from weft.compiler.nests import around, loops_of, nested, turns
from weft.compiler.passes.blocks_squares import narrowed
from weft.compiler.passes.contract_hidden import chosen
from weft.compiler.passes.contract_match import Axis
from weft.compiler.passes.positions import compared
from weft.compiler.passes.simplify import fold
from weft.compiler.point import kind_of
from weft.compiler.polynomial import hides, known, polynomial
from weft.compiler.rebuild import (
    Statements,
    changer,
    leaves_in,
    rename_locals,
    renumbered,
    revise,
    stored_buffers,
    substitute,
    substitute_value,
)
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace

HEADS = (16, 64)  # features of heads whose gradients are woven
COMBINES = frozenset({"max", "min", "add"})
Rows: TypeAlias = dict[tuple[int, frozenset[object]], Value]  # what is stored for each row


@dataclass(frozen=True)
class Inner:
    """A product at each row and column: its narrow factors, and the local of its sum."""

    left: Value
    right: Value
    depth: Axis
    target: int


@dataclass(frozen=True)
class Outer:
    """A product that sums over columns: the weight that is its left factor, its narrow right one.

    `epilogue` is what becomes of its sums.
    """

    weight: int
    right: Value
    column: Axis
    target: int
    epilogue: Statements


@dataclass(frozen=True)
class Weave:
    """What is done for each row.

    `middle` goes over the columns in each of its reductions, which read the sums of inner products;
    the last of them assigns all weights. What stands beside reductions is done once for a row.
    """

    kernel: Kernel  # all buffers and locals; statements are here
    batch: tuple[Axis, ...]
    row: Axis
    column: Axis
    inners: tuple[Inner, ...]
    middle: Statements
    outers: tuple[Outer, ...]
    mask: Value | None = None  # of positions: where it does not hold, nothing changes anything


@dataclass(frozen=True)
class Woven:
    """A weave, and the memory and calls of all its kernels."""

    weave: Weave
    work: Work


@dataclass
class _Members:
    """Kernels that make squares element by element, one that makes weights of rows, and products.

    A square has an element for each row and column.
    """

    points: list[Work]
    rows: Work | None = None
    mixes: list[Work] = field(default_factory=list)
    squares: set[Block] = field(default_factory=set)

    @property
    def all(self) -> list[Work]:
        """All of them, in some order."""
        return [*self.points, *([] if self.rows is None else [self.rows]), *self.mixes]


def attention_products(trace: Trace) -> frozenset[OutputRefs]:
    """Products that make scores of narrow attention, or differentiate it, of heads that can be one.

    Where weights are dropped at random, other passes keep what was drawn.
    """
    shapes = {node.types[0].shape for node in trace.nodes if node.op.name == "short_exp2"}
    drawn = {node.types[0].shape for node in trace.nodes if node.op.name == "random_bits"}
    products = (
        n for n in trace.nodes if kind_of(n) == "dot" and n.types[0].shape in shapes - drawn
    )
    return frozenset(node for node in products if all(map(_is_head, node.inputs)))


def _is_head(ref: Ref) -> bool:
    """Whether a factor is narrow, and has as many features as a block has room for."""
    node = ref[0]
    while node.op is not None and kind_of(node) == "view":
        node = node.inputs[0][0]
    narrow = node.op is not None and node.op.name == "cast"
    if not narrow or node.inputs[0][0].types[node.inputs[0][1]].dtype.itemsize != 2:
        return False
    features = min(ref[0].types[ref[1]].shape[-2:])
    return HEADS[0] <= features <= HEADS[1] and features % 8 == 0


class _No(Exception):
    """Kernels are not what a weave is made of."""


def woven(
    steps: Sequence[Step], outputs: frozenset[Block], fits: Callable[[Weave], bool]
) -> Iterator[Step | Woven]:
    """All steps; those that can be one, if a block has room for it, are a weave."""
    left = list(steps)
    while left:
        first, *rest = left
        found = None
        if isinstance(first, Work) and _is_narrow_product(first):
            found = _found(first, rest, outputs)
        if found is None or not fits(found[1].weave):
            yield first
            left = rest
            continue
        before, made, left = found
        yield from before
        yield made


def _found(
    first: Work, rest: Sequence[Step], outputs: frozenset[Block]
) -> tuple[list[Step], Woven, list[Step]] | None:
    """What runs before a weave that begins with a kernel, the weave, and what runs after it."""
    try:
        members = _members(first, rest, outputs)
        before, after = _beside(members, rest)
        kept = outputs.union(*(_memory(step) for step in after))
        return before, _Weaver(members, kept).woven(), after
    except _No:
        return None


def _members(first: Work, rest: Sequence[Step], outputs: frozenset[Block]) -> _Members:
    """All kernels that have to do with the squares of one, if they can be a weave."""
    size = max(block.size for block in first.writes)
    found = _Members([first], squares=_squares(first, size))
    waiting: list[Work] = []  # that make squares, perhaps of this weave
    for step in rest:
        touched = found.squares.intersection(_memory(step))
        if not isinstance(step, Work):
            if touched:
                raise _No
            continue
        squares = _squares(step, size)
        if not touched:
            waiting += [step] if squares else []
            continue
        if not squares:
            found.mixes.append(step)
            continue
        if found.rows is not None or (found.mixes and _has_runs(step)):
            raise _No
        needed = [work for work in waiting if work.writes & step.reads]
        for work in needed:
            found.points.append(work)
            found.squares |= _squares(work, size)
        if _has_runs(step):
            found.rows = step
        else:
            found.points.append(step)
        found.squares |= squares
    others = [s for s in rest if isinstance(s, Work) and s not in found.all]
    if (
        not found.mixes
        or found.squares & outputs
        or any(s.memory and found.squares & set(s.memory) for s in others)
    ):
        raise _No
    place = {work: k for k, work in enumerate((first, *rest))}
    found.points.sort(key=place.__getitem__)
    return found


def _squares(work: Work, size: int) -> set[Block]:
    return {block for block in work.writes if block.size == size}


def _has_runs(work: Work) -> bool:
    """Whether a kernel reduces rows."""
    return any(isinstance(s, Reduce) and s.lanes == LANES for s in every(work.kernel.body))


def _is_narrow_product(work: Work) -> bool:
    """Whether a kernel multiplies matrices of two bytes."""
    loops = loops_of(work.kernel)
    body = loops[-1].body if loops else ()
    if not body or not isinstance(body[0], Reduce) or body[0].parts[0].combine != "dot":
        return False
    return all(narrowed(x).dtype.itemsize == 2 for x in body[0].parts[0].values)


def _beside(members: _Members, rest: Sequence[Step]) -> tuple[list[Step], list[Step]]:
    """What can run before all members, and what has to run after them."""
    own = members.all
    late = set[Block]().union(*(work.writes for work in own))
    before, after = list[Step](), list[Step]()
    last = max(place for place, step in enumerate(rest) if step in own)
    for step in rest[: last + 1]:
        if step in own:
            continue
        if not isinstance(step, Work):
            raise _No
        is_late = bool(step.reads & late)
        (after if is_late else before).append(step)
        late |= step.writes if is_late else set()
    made = set[Block]().union(*(work.writes for work in own))
    if any(work.reads & (late - made) for work in own):
        raise _No
    return before, [*after, *rest[last + 1 :]]


def _memory(step: Step) -> Iterable[Block]:
    return (*step.reads, *step.makes) if isinstance(step, Call) else step.memory


class _Weaver:
    """Takes kernels apart; `kept` is what others read of their results."""

    def __init__(self, members: _Members, kept: frozenset[Block]) -> None:
        self.members, self.kept = members, kept
        self.memory = tuple(dict.fromkeys(b for work in members.all for b in work.memory))
        loops = around(members.points[0].kernel)
        if len(loops) < 2:
            raise _No
        axes = [_axis(f"batch{k}", loop) for k, loop in enumerate(loops[:-2])]
        self.batch, self.row, self.column = (
            axes,
            _axis("row", loops[-2]),
            _axis("column", loops[-1]),
        )
        self.locals: list[Local] = []
        self.places: dict[int, Value] = {}  # where elements of squares are stored
        self.held = {self.memory.index(b): self._local(b) for b in members.squares}

    def _local(self, block: Block) -> int:
        self.locals.append(Local("square", block.dtype))
        return len(self.locals) - 1

    def _body(self, work: Work, axes: Sequence[Axis]) -> Statements:
        """What a kernel does inside its loops, in the variables, buffers and locals of all."""
        extents = [known(extent) or 0 for _, extent in axes]
        kernel = nested(work.kernel, extents)
        if kernel is None or [turns(loop) for loop in around(kernel)] != extents:
            raise _No
        loops = loops_of(kernel)
        named = {loop.variable: integer(0) for loop in loops}
        named |= {loop.variable: v for loop, (v, _) in zip(around(kernel), axes, strict=True)}
        numbers = {k: self.memory.index(block) for k, block in enumerate(work.memory)}
        moved = {k: k + len(self.locals) for k in range(len(kernel.locals))}
        self.locals += kernel.locals
        body = substitute(loops[-1].body, named)
        body = rename_locals(renumbered(body, numbers), moved)
        return revise(body, changer(_as_written))

    def woven(self) -> Woven:
        """All of it."""
        inners, points = self._points()
        middle, rows = self._middle(points)
        outers = [self._outer(work, rows) for work in self.members.mixes]
        statements = (middle, *(outer.epilogue for outer in outers))
        factors = [x for inner in inners for x in (inner.left, inner.right)]
        used = {x.data for x in (*factors, *(outer.right for outer in outers))}
        used |= {x.data for s in statements for x in leaves_in(s) if x.op == "load"}
        used |= {n for s in statements for n in stored_buffers(s)}
        numbers = {old: new for new, old in enumerate(sorted(used))}
        memory = tuple(self.memory[k] for k in sorted(used))
        works = self.members.all
        name = f"{works[0].kernel.name}_{works[-1].kernel.name}"
        kernel = Kernel(name, self._buffers(memory), tuple(self.locals), ())
        weave = Weave(
            kernel,
            tuple(self.batch),
            self.row,
            self.column,
            tuple(
                replace(x, left=_at(x.left, numbers), right=_at(x.right, numbers)) for x in inners
            ),
            renumbered(middle, numbers),
            tuple(
                replace(x, right=_at(x.right, numbers), epilogue=renumbered(x.epilogue, numbers))
                for x in outers
            ),
            self._mask(middle, outers),
        )
        calls = tuple(call for work in works for call in work.calls)
        group = tuple(call for work in works for call in work.group)
        return Woven(weave, Work(kernel, memory, calls, group))

    def _buffers(self, memory: Sequence[Block]) -> tuple[Buffer, ...]:
        written = frozenset[Block]().union(*(work.writes for work in self.members.all))
        return tuple(
            Buffer(f"b{k}", block.dtype, "write" if block in written else "read")
            for k, block in enumerate(memory)
        )

    def _points(self) -> tuple[list[Inner], Statements]:
        """The inner products, and what is done at each row and column."""
        inners: list[Inner] = []
        made: list[Statement] = []
        for work in self.members.points:
            body = self._body(work, [*self.batch, self.row, self.column])
            if isinstance(body[0], Reduce):
                depth, left, right, target, body = _product(body)
                if hides(left, self.column[0]):
                    left, right = right, left
                if hides(left, self.column[0]) or hides(right, self.row[0]):
                    raise _No
                inners.append(Inner(_narrow(left), _narrow(right), depth, target))
            made += self._held(body)
        return inners, tuple(made)

    def _held(self, statements: Statements) -> Statements:
        """Statements of a point, which hold elements of squares in locals."""
        made: list[Statement] = []
        for s in statements:
            read = {x for x in leaves_in((s,)) if x.op == "load" and x.data in self.held}
            if any(_key(x)[1] != self._at_point(x.data) for x in read):
                raise _No
            (s,) = substitute((s,), {x: self._square(x.data) for x in read})
            if isinstance(s, Store):
                if s.buffer not in self.held or s.buffer in self.places:
                    raise _No
                self.places[s.buffer] = s.index
                s = Assign(self.held[s.buffer], s.value)
            if not isinstance(s, Assign):
                raise _No
            made.append(s)
        return tuple(made)

    def _at_point(self, buffer: int) -> frozenset[object]:
        if buffer not in self.places:
            raise _No
        return frozenset(polynomial(self.places[buffer]).items())

    def _square(self, buffer: int) -> Value:
        return get(self.held[buffer], self.memory[buffer].dtype)

    def _middle(self, points: Statements) -> tuple[Statements, Rows]:
        """The statements of a row, and what it stores beside weights."""
        if self.members.rows is None:
            return (Reduce((self.column,), LANES, (), points),), {}
        made: list[Statement] = []
        rows: Rows = {}
        for s in self._body(self.members.rows, [*self.batch, self.row]):
            if isinstance(s, Reduce | Loop):
                made.append(self._run(s, points))
            elif isinstance(s, Store):
                rows[_key(load(s.buffer, s.index, s.value.dtype))] = s.value
                made += [s] if self.memory[s.buffer] in self.kept else []
            else:
                made.append(s)
        beside = tuple(s for s in made if not isinstance(s, Reduce))
        if any(x.op == "load" and x.data in self.held for x in leaves_in(beside)):
            raise _No
        return tuple(made), rows

    def _run(self, statement: Reduce | Loop, points: Statements) -> Reduce:
        """A run over the columns."""
        run = statement
        if isinstance(run, Loop):
            run = Reduce(((run.variable, run.stop),), LANES, (), run.body)
        fits = len(run.axes) == 1 and run.axes[0][1] == self.column[1] and run.lanes == LANES
        if not fits or not all(part.combine in COMBINES for part in run.parts):
            raise _No
        ends = tuple(Assign(part.targets[0], part.values[0]) for part in run.parts)
        named = {run.axes[0][0]: self.column[0]}
        held = self._held(substitute((*run.body, *ends), named))
        count = len(run.body)
        parts = tuple(
            replace(part, values=(s.value,))
            for part, s in zip(run.parts, held[count:], strict=True)
            if isinstance(s, Assign)
        )
        return Reduce((self.column,), LANES, parts, (*points, *held[:count]))

    def _mask(self, middle: Statements, outers: Sequence[Outer]) -> Value | None:
        """A mask of positions without which weights are 0 and reductions meet what they ignore."""
        runs = [s for s in middle if isinstance(s, Reduce)]
        held = values_after(runs[-1].body, self.locals)
        weights = [held[outer.weight] for outer in outers]
        first = weights[0]
        if first.op != "select" or not compared(first.args[0]):
            return None
        condition = first.args[0]
        for run in runs:
            held = values_after(run.body, self.locals)
            for part in run.parts:
                hidden = _hidden(_resolved(part.values[0], held, self.locals), condition)
                ignored = const(0, hidden.dtype) if part.combine == "add" else None
                if hidden != (ignored or identity_of(part.combine, hidden.dtype)):
                    return None
        hidden_weights = [_hidden(weight, condition) for weight in weights]
        return condition if all(x == const(0, x.dtype) for x in hidden_weights) else None

    def _outer(self, work: Work, rows: Rows) -> Outer:
        """A product with weights."""
        loops = around(work.kernel)
        if not loops:
            raise _No
        mixed = _axis("mixed", loops[-1])
        body = self._body(work, [*self.batch, self.row, mixed])
        depth, left, right, target, epilogue = _product(body)
        if depth[1] != self.column[1]:
            raise _No
        named = {depth[0]: self.column[0]}
        left, right = (_narrow(substitute_value(x, named)) for x in (left, right))
        if right.data in self.held:
            left, right = right, left
        if left.data not in self.held or _key(left)[1] != self._at_point(left.data):
            raise _No
        if hides(right, self.row[0]) or right.data in self.held:
            raise _No
        read = [x for x in leaves_in(epilogue) if x.op == "load"]
        inside = {x: rows[_key(x)] for x in read if _key(x) in rows}
        written = {self.memory.index(b) for w in self.members.all for b in w.writes}
        if any(x.data in written for x in read if x not in inside) or right.data in written:
            raise _No
        return Outer(self.held[left.data], right, mixed, target, substitute(epilogue, inside))


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


def values_after(
    statements: Statements, locals_: Sequence[Local], before: dict[int, Value] | None = None
) -> dict[int, Value]:
    """What locals hold after statements that assign them."""
    held = dict(before or {})
    for s in statements:
        if isinstance(s, Assign):
            held[s.local] = _resolved(s.value, held, locals_)
    return held


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
