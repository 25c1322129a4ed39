"""Reverse mode: `Tape` remembers what was computed, `pull_back` walks it from the end.

A node keeps how its result came about; nodes know their parents, so what the result does not need
is forgotten with its handles. The walk is by creation number, without recursion.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

from weft.core.common.handler import Handler, installed, perform
from weft.core.common.slots import FUNCTIONS, OPS
from weft.core.common.source import Position, blamed, positions_wanted, user_position
from weft.core.common.types import Shape
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias

_numbers = itertools.count()


class TapeNode:
    """One step: an op, its operands outside the tape, its results, and the nodes it came from."""

    __slots__ = (
        "__weakref__",
        "number",
        "op",
        "outs",
        "params",
        "parents",
        "position",
        "primals",
        "saved",
    )

    def __init__(
        self,
        op: Any,
        primals: tuple[Tensor, ...],
        outs: tuple[Tensor, ...],
        params: dict[str, Any],
        parents: tuple[tuple[TapeNode, int] | None, ...],
    ) -> None:
        self.number = next(_numbers)
        self.op = op
        self.primals = primals
        self.outs = outs
        self.params = params
        self.parents = parents
        self.saved: Any = None  # what `Operation.forward` kept for `pull`
        self.position: Position | None = user_position(3) if positions_wanted() else None


class Addend:
    """A cotangent that is zero but for a few elements: it is added to others in their memory."""

    __slots__ = ("onto", "shape")

    def __init__(self, shape: Shape, onto: Callable[[Tensor | None], Tensor]) -> None:
        self.shape = shape
        self.onto = onto  # its sum with a tensor, or with nothing but zeros


def _whole(part: Any) -> Any:
    return part.onto(None) if type(part) is Addend else part


def _sum(seen: Any, more: Any) -> Any:
    """Of two cotangents."""
    if type(more) is Addend:
        return more.onto(_whole(seen))
    return seen.onto(more) if type(seen) is Addend else seen + more


class Tape(Handler):
    """Records every op that depends on a watched tensor."""

    label = "grad"
    differentiates = True

    def handle(self, op: Any, args: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
        parents: list[tuple[TapeNode, int] | None] = []
        values: list[Tensor] = []
        watched = False
        for a in args:
            impl = a._impl
            if impl.owner is self:
                node, slot = impl.payload
                values.append(node.outs[slot])
                parents.append(impl.payload)
                watched = not op.stops
            else:
                values.append(alias(a))
                parents.append(None)
        primals, saved = tuple(values), None
        if watched and op.saves:
            with installed(self.outer):
                result, saved = op.forward(primals, **_selected(op, params, parents))
        else:
            result = self.outside(op, primals, params)
        if not watched:
            return result
        several = type(result) is tuple
        outs = result if several else (result,)
        made = TapeNode(op, primals, outs, params, tuple(parents))
        made.saved = saved
        if several:
            return tuple([self._wrap(made, slot) for slot in range(len(outs))])
        return self._wrap(made, 0)

    def watch(self, x: Tensor) -> Tensor:
        """A tensor that stands for `x` and whose uses are recorded."""
        return self._wrap(TapeNode(None, (), (alias(x),), {}, ()), 0)

    def _wrap(self, node: TapeNode, slot: int) -> Tensor:
        out = node.outs[slot]
        value = out._impl
        if value.dtype.kind in "biu":
            return out  # integers and bools carry no derivative
        return Tensor(TensorImpl.owned(value.type, value.device, self, (node, slot)))

    def primal(self, payload: tuple[TapeNode, int]) -> Tensor:
        node, slot = payload
        return node.outs[slot]

    def open(self, x: Tensor) -> Tensor:
        """The value of `x` outside this tape."""
        return self.primal(x._impl.payload) if x._impl.owner is self else x

    def node(self, x: Tensor) -> tuple[TapeNode, int] | None:
        """Where `x` stands on this tape, if it does."""
        return x._impl.payload if x._impl.owner is self else None


class _Flow:
    """Cotangents on their way back, and the nodes that have some: the last one comes first."""

    def __init__(self) -> None:
        self.found: dict[TapeNode, list[Any]] = {}
        self.queue: list[tuple[int, TapeNode]] = []
        self.waiting: set[TapeNode] = set()  # nodes with addends among their cotangents

    def add(self, place: tuple[TapeNode, int], contribution: Tensor | Addend) -> None:
        """Have a cotangent, or a part of it, reach an output of a node."""
        node, slot = place
        slots = self.found.get(node)
        if slots is None:
            slots = self.found[node] = [None] * len(node.outs)
            heappush(self.queue, (-node.number, node))
        seen = slots[slot]
        if seen is None:
            slots[slot] = contribution
            if type(contribution) is Addend:
                self.waiting.add(node)
        else:
            plain = type(contribution) is Tensor and not self.waiting
            slots[slot] = seen + contribution if plain else _sum(seen, contribution)

    def pass_on(self, node: TapeNode, slots: list[Any]) -> None:
        """Have what a node makes of its cotangents reach its parents."""
        for place, part in zip(node.parents, _contributions(node, slots), strict=True):
            if place is not None and part is not None:
                primal = place[0].outs[place[1]]
                fits = (part if type(part) is Addend else part._impl).shape == primal._impl.shape
                self.add(place, part if fits else fit(_whole(part), primal))


def pull_back(
    roots: Sequence[tuple[TapeNode, int] | None],
    cotangents: Sequence[Tensor],
    leaves: Sequence[tuple[TapeNode, int] | None],
) -> list[Tensor | None]:
    """Cotangents of the leaves, given those of the roots; `None` where nothing flows."""
    flow = _Flow()
    found, queue = flow.found, flow.queue
    for root, cotangent in zip(roots, cotangents, strict=True):
        if root is not None:
            flow.add(root, cotangent)
    kept = {leaf[0] for leaf in leaves if leaf is not None}
    while queue:
        _, node = heappop(queue)
        if node.op is None:
            continue
        slots = found[node] if node in kept else found.pop(node)
        if node in flow.waiting:
            slots[:] = map(_whole, slots)
        if node.position is None:
            flow.pass_on(node, slots)
        else:
            with blamed(node.position):
                flow.pass_on(node, slots)
    return [
        _whole(found[leaf[0]][leaf[1]]) if leaf is not None and leaf[0] in found else None
        for leaf in leaves
    ]


def _contributions(node: TapeNode, slots: list[Any]) -> tuple[Any, ...]:
    op = node.op
    outs: Any = node.outs
    cotangents: Any = slots
    if op.multiple:
        cotangents = tuple(slots) if op.sparse else filled(node.outs, slots)
    else:
        (outs,), (cotangents,) = outs, cotangents
    params = _selected(op, node.params, node.parents)
    rule = op.vjp if node.saved is None else op.pull
    known = outs if node.saved is None else node.saved
    found: tuple[Any, ...] = rule(node.primals, known, cotangents, **params)
    return found


def _selected(op: Any, params: dict[str, Any], parents: Sequence[Any]) -> dict[str, Any]:
    """Parameters for a rule; some are told which operands want a cotangent."""
    if not op.selective:
        return params
    return {**params, "needed": tuple([parent is not None for parent in parents])}


def filled(outs: Sequence[Tensor], slots: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """The cotangents of several results, with zeros where nothing flows."""
    zeros = FUNCTIONS["zeros_like"]
    return tuple(zeros(o) if ct is None else ct for o, ct in zip(outs, slots, strict=True))


def fit(part: Tensor, primal: Tensor) -> Tensor:
    """Sum the leading axes that the operand lacks."""
    extra = part.ndim - primal.ndim
    if extra:
        axes = tuple(range(-part.ndim, -primal.ndim))
        part = perform(OPS["reduce_sum"], (part,), {"axes": axes})
    assert part.shape == primal.shape, (part.shape, primal.shape)
    return part
