"""Compute large products again instead of keeping them: what makes gradients of attention small.

A *square* is a product of matrices that is much larger than its factors, or what is computed of it
element by element. Reverse mode keeps squares of the forward pass, and sums them along columns,
for which all rows must be there. Here each later use gets a copy of the calls that make its square.
Where there are few of them, sums along columns get a copy that is transposed: then every use goes
over the rows of a square of its own. Where there are many, `panels` adds up panel after panel; then
what reads a square's sums row by row goes on with the square of that panel. In all cases no square
need be held. Sums have the order they had, so no bit changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from weft.compiler.masks import behind_masks
from weft.compiler.point import kind_of, reduced_axes
from weft.core.common.slots import OPS
from weft.core.common.types import Shape, TensorType
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace
from weft.ops.families import ElementwiseOperation
from weft.runtime.cpu.pool import pool

LARGE = 1 << 25  # bytes of a square that is not kept
_TIMES = 4  # how much larger it is than its factors
_TURN = (-1, -2)  # axes of a permutation that transposes
_PLAIN = ("where", "broadcast_to")  # calls that read elements at their own place, or along axes

Part: TypeAlias = tuple[int, bool]  # how many uses came before; whether it is transposed


@dataclass(frozen=True)
class Terms:
    """What a device holds whole: anything smaller than `large`, and some squares for their sums.

    Panels of a square run `in_order`, and add up sums along its columns, where that says so. What
    is given may be `turned`, if reading it by columns is as good. Squares of the products that are
    `woven` into others are never in memory: they are computed again, however small they are.
    """

    large: int
    turned: bool = False
    in_order: Callable[[TensorType], bool] = lambda square: prod(square.shape[:-2]) >= pool.cores
    woven: Callable[[Trace], frozenset[OutputRefs]] = lambda trace: frozenset()


def recompute(trace: Trace, terms: Terms | None = None) -> Trace:
    """A trace of the same bits that keeps no square, or only those with uses of other kinds."""
    terms = terms or Terms(LARGE)
    trace = behind_masks(trace)
    woven = terms.woven(trace)
    if not woven and all(n.types[0].nbytes < terms.large for n in trace.nodes if n.types):
        return trace
    kept: frozenset[OutputRefs] = frozenset()
    while True:
        squares = _Squares(trace, kept, terms, woven)
        used = squares.used_otherwise()
        if not used:
            break
        kept |= used
    return _Rebuilt(trace, squares).result() if squares.found else trace


class _Squares:
    """The squares of a trace; `kept` are products that are not to be counted among them."""

    def __init__(
        self,
        trace: Trace,
        kept: frozenset[OutputRefs],
        terms: Terms,
        woven: frozenset[OutputRefs],
    ) -> None:
        self.trace, self.terms, self.woven = trace, terms, woven
        self.found: dict[OutputRefs, frozenset[OutputRefs]] = {}  # the products behind each
        for node in trace.nodes:
            if node not in kept and self._is_square(node):
                behind = [self.found[s] for s, _ in node.inputs if s in self.found]
                self.found[node] = frozenset([node]).union(*behind)
        self.upright: set[OutputRefs] = set()  # squares that are not to be transposed
        self._take_drawn(kept)
        self.ages = _Ages(self)

    def _is_square(self, node: OutputRefs) -> bool:
        kind = kind_of(node)
        if kind == "dot":
            nbytes = node.types[0].nbytes
            factors = sum(source.types[slot].nbytes for source, slot in node.inputs)
            large = nbytes >= self.terms.large or node in self.woven
            return large and nbytes >= _TIMES * factors
        plain = isinstance(node.op, ElementwiseOperation) or node.op.name == "where"
        return (
            plain
            and kind == "map"
            and any(s in self.found and _shape(s) == _shape(node) for s, _ in node.inputs)
        )

    def _take_drawn(self, kept: frozenset[OutputRefs]) -> None:
        """Count what is made of random numbers for squares alone among them."""
        drawn = {node for node in self.trace.nodes if node not in kept and self._is_drawn(node)}
        for node in reversed(self.trace.nodes):
            if node in self.found:
                fresh = [s for s, _ in node.inputs if s not in self.found]
                taken = [s for s in fresh if s in drawn and _shape(s) == _shape(node)]
                self.found |= {s: frozenset([s]) for s in taken}
        for node in self.trace.nodes:
            if node in self.found and (node in drawn or any(map(self._is_upright, node.inputs))):
                self.upright.add(node)

    def _is_upright(self, ref: Ref) -> bool:
        """Whether an operand of a square is hard to read by columns: given, and large."""
        node = ref[0]
        while node not in self.found and node.op is not None and kind_of(node) == "view":
            node = node.inputs[0][0]
        large = node.types[0].nbytes * _TIMES >= self.terms.large
        given = node.op is None and large and not self.terms.turned
        return given or node in self.upright

    def _is_drawn(self, node: OutputRefs) -> bool:
        """Whether a call draws random numbers, or is computed of such element by element."""
        if node.op.name == "random_bits":
            return kind_of(node) == "map"
        inside = [s for s, slot in node.inputs if s.types[slot].size > 1]
        return (
            isinstance(node.op, ElementwiseOperation)
            and bool(inside)
            and all(s.op is not None and _shape(s) == _shape(node) for s in inside)
            and all(self._is_drawn(s) for s in inside)
        )

    def runs_in_order(self, square: OutputRefs) -> bool:
        """Whether panels of a square run in order: it stays upright, or each core has a batch."""
        if square in self.upright:
            return True
        return not self.found[square] & self.woven and self.terms.in_order(square.types[0])

    def is_sum(self, node: OutputRefs) -> bool:
        """Whether a product sums over the rows or the columns of a square."""
        return node not in self.found and any(self.turned(ref) for ref in node.inputs)

    def turned(self, ref: Ref) -> tuple[OutputRefs, bool] | None:
        """The square behind a factor, and whether the factor is its transpose."""
        node = ref[0]
        if node in self.found:
            return node, False
        if is_transpose(node):
            source = node.inputs[0][0]
            return (source, True) if source in self.found else None
        return None

    def used_otherwise(self) -> frozenset[OutputRefs]:
        """Products behind squares that are used but in each other, sums of rows, and products."""
        turns = {
            node: found[0]
            for node in self.trace.nodes
            if node not in self.found and (found := self.turned((node, 0)))
        }
        spoilt = [node for node, _ in self.trace.outputs]
        for node in self.trace.nodes:
            if not self._is_use(node, turns):
                spoilt += [source for source, _ in node.inputs]
        squares = (turns.get(node, node) for node in spoilt)
        return frozenset[OutputRefs]().union(*(self.found.get(s, ()) for s in squares))

    def _is_use(self, node: OutputRefs, turns: dict[OutputRefs, OutputRefs]) -> bool:
        if node in turns or not any(s in self.found or s in turns for s, _ in node.inputs):
            return True
        kind = kind_of(node)
        if kind == "reduce":
            return reduced_axes(node) == (len(_shape(node.inputs[0][0])) - 1,)
        if kind == "dot":
            return node not in self.found and sum(map(bool, map(self.turned, node.inputs))) == 1
        return node in self.found and not any(source in turns for source, _ in node.inputs)


class _Ages:
    """How many sums over squares each result comes after.

    Sums of a square with a right factor have the square's rows. Who reads them row by row comes no
    later than they do (`near`), for panels of all squares that run in order; others come after them
    (`far`). `part` says of sums and reductions which of the copies of a square they read.
    """

    def __init__(self, squares: _Squares) -> None:
        self.squares = squares
        leads = {_shape(square)[:-1] for square in squares.found}
        in_order = all(map(squares.runs_in_order, squares.found))
        self.rows = leads.pop() if in_order and len(leads) == 1 else None
        self.near: dict[OutputRefs, int] = {}
        self.far: dict[OutputRefs, int] = {}
        self.part: dict[OutputRefs, int] = {}
        for node in squares.trace.nodes:
            self._count(node)

    def _count(self, node: OutputRefs) -> None:
        far = max((self.far.get(source, 0) for source, _ in node.inputs), default=0)
        if kind_of(node) == "dot" and self.squares.is_sum(node):
            self.part[node] = part = self._part_of_sum(node)
            found = self.squares.turned(node.inputs[0])
            keeps_rows = self.rows is not None and found is not None and not found[1]
            self.near[node], self.far[node] = part + (not keeps_rows), max(far, part + 1)
            return
        ages = (self._age(ref, self._is_by_rows(node, ref)) for ref in node.inputs)
        self.part[node] = self.near[node] = max(ages, default=0)
        self.far[node] = far

    def _age(self, ref: Ref, by_rows: bool) -> int:
        return (self.near if by_rows and self._has_rows(ref) else self.far).get(ref[0], 0)

    def _part_of_sum(self, node: OutputRefs) -> int:
        """The age of a square and of the other factor, as panels read them."""
        (left, one), (right, other) = ((ref, self.squares.turned(ref)) for ref in node.inputs)
        if one is not None and not one[1]:
            return max(self._age(left, True), self._age(right, False))
        if other is not None and other[1]:
            return max(self._age(left, False), self._age((other[0], 0), True))
        is_turned = is_transpose(left[0])  # sums over rows, of both factors
        left = left[0].inputs[0] if is_turned else left
        return max(self._age(left, is_turned), self._age(right, True))

    def _has_rows(self, ref: Ref) -> bool:
        """Whether a result has as many rows as all squares."""
        shape = ref[0].types[ref[1]].shape
        return self.rows is not None and shape[: len(self.rows)] == self.rows

    def _is_by_rows(self, node: OutputRefs, ref: Ref) -> bool:
        """Whether a call reads of an operand, for each row, that row alone."""
        if not self._has_rows(ref) or not self._has_rows((node, 0)):
            return False
        kind, shape = kind_of(node), ref[0].types[ref[1]].shape
        if kind == "dot":
            return ref == node.inputs[0]
        if kind == "reduce":
            assert self.rows is not None
            return min(reduced_axes(node)) >= len(self.rows)
        if node.op.name == "reshape":
            return True
        plain = isinstance(node.op, ElementwiseOperation) or node.op.name in _PLAIN
        return plain and len(shape) == len(_shape(node))


@dataclass
class _Rebuilt:
    """A trace written again."""

    trace: Trace
    squares: _Squares
    made: dict[OutputRefs, Ref] = field(default_factory=dict)  # what stands for a call
    parts: dict[tuple[OutputRefs, Part], Ref] = field(default_factory=dict)

    def result(self) -> Trace:
        """The new trace."""
        trace = self.trace
        for node in trace.nodes:
            if node not in self.squares.found:
                self.made[node] = self._call(node)
        effects = tuple(self.made[node][0] for node in trace.effects)
        outputs = tuple(self._now(ref) for ref in trace.outputs)
        return Trace(trace.inputs, outputs, effects, trace.captures, trace.name)

    def _now(self, ref: Ref) -> Ref:
        return (self.made[ref[0]][0], ref[1]) if ref[0] in self.made else ref

    def _call(self, node: OutputRefs) -> Ref:
        """A call that is no square, reading squares of its own part."""
        squares = self.squares
        kind = kind_of(node)
        if kind == "dot" and squares.is_sum(node):
            return self._sum(node)
        if kind == "reduce" and node.inputs[0][0] in squares.found:
            square = self._square(node.inputs[0][0], (squares.ages.part[node], False))
            inputs: tuple[Ref, ...] = (square,)
        elif squares.turned((node, 0)):
            return node, 0  # only sums read it, and they read the square
        else:
            inputs = tuple(map(self._now, node.inputs))
        if is_transpose(node):
            return _transposed(inputs[0], node)
        return (node if inputs == node.inputs else _like(node, inputs, node.types)), 0

    def _sum(self, node: OutputRefs) -> Ref:
        """A product with a square, so that the square is the left factor and rows are summed."""
        left, right = node.inputs
        age = self.squares.ages.part[node]
        found = self.squares.turned(left)
        if found is not None:
            square, turned = found
            if turned and self.squares.runs_in_order(square):
                # A square that is the right factor is read along its rows.
                factors = (
                    _transposed(self._now(right), node),
                    self._square(square, (age, False)),
                )
                return _transposed((_like(node, factors, _swapped(node.types)), 0), node)
            factor = self._square(square, (age, turned))
            return _like(node, (factor, self._now(right)), node.types), 0
        found = self.squares.turned(right)
        assert found is not None
        square, turned = found
        if not turned and self.squares.runs_in_order(square):
            factor = self._square(square, (age, False))
            return _like(node, (self._now(left), factor), node.types), 0
        factors = (self._square(square, (age, not turned)), _transposed(self._now(left), node))
        return _transposed((_like(node, factors, _swapped(node.types)), 0), node)

    def _square(self, node: OutputRefs, part: Part) -> Ref:
        """The square as a part of the program computes it for itself."""
        order = [node]
        for here in order:  # all that go into it, then the first ones first
            order += [s for s, _ in here.inputs if s in self.squares.found and s not in order]
        for here in sorted(order, key=self._position.__getitem__):
            if (here, part) not in self.parts:
                self.parts[here, part] = self._copy(here, part)
        return self.parts[node, part]

    def __post_init__(self) -> None:
        self._position = {node: place for place, node in enumerate(self.trace.nodes)}

    def _copy(self, node: OutputRefs, part: Part) -> Ref:
        turned = part[1]
        if kind_of(node) == "dot":
            left, right = map(self._now, node.inputs)
            if not turned:
                return _like(node, (left, right), node.types), 0
            factors = (_transposed(right, node), _transposed(left, node))
            return _like(node, factors, _swapped(node.types)), 0
        shape = _swapped(node.types)[0].shape if turned else _shape(node)
        inputs = [
            self.parts[ref[0], part]
            if ref[0] in self.squares.found
            else self._leaf(self._now(ref), shape, node)
            if turned
            else self._now(ref)
            for ref in node.inputs
        ]
        return _like(node, tuple(inputs), _swapped(node.types) if turned else node.types), 0

    @staticmethod
    def _leaf(ref: Ref, shape: Shape, like: OutputRefs) -> Ref:
        """What a square is computed of besides squares, transposed."""
        kind = ref[0].types[ref[1]]
        if not kind.shape:
            return ref
        if len(kind.shape) == 1:  # one value for each column becomes one for each row
            opened = TensorType((*kind.shape, 1), kind.dtype)
            params = {"rank": 1, "shape": opened.shape}
            ref = _made("reshape", ref, params, opened, like)
            whole = TensorType(shape[-2:], kind.dtype)
            return _made("broadcast_to", ref, {"rank": 2, "shape": whole.shape}, whole, like)
        return _transposed(ref, like)


def is_transpose(node: OutputRefs) -> bool:
    """Whether a call swaps the last two axes, and does nothing else."""
    return node.op is not None and node.op.name == "permute" and node.params["axes"] == _TURN


def _transposed(ref: Ref, like: OutputRefs) -> Ref:
    """The transpose of a result; that of a transpose is what it was."""
    node, slot = ref
    if is_transpose(node):
        return node.inputs[0]
    (kind,) = _swapped((node.types[slot],))
    return _made("permute", ref, {"axes": _TURN}, kind, like)


def _made(op: str, ref: Ref, params: dict[str, object], kind: TensorType, like: OutputRefs) -> Ref:
    return OutputRefs(OPS[op], (ref,), params, (kind,), like.device, like.position), 0


def _like(node: OutputRefs, inputs: tuple[Ref, ...], types: tuple[TensorType, ...]) -> OutputRefs:
    return OutputRefs(node.op, inputs, dict(node.params), types, node.device, node.position)


def _swapped(types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    shapes = ((t, (*t.shape[:-2], t.shape[-1], t.shape[-2])) for t in types)
    return tuple(TensorType(shape, t.dtype) for t, shape in shapes)


def _shape(node: OutputRefs) -> Shape:
    return node.types[0].shape
