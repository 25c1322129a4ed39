"""The backward pass of `scan`: what its steps take from the forward pass, and what is done after.

A step is transposed starting from the state before it. What the step handed on, its next state or a
stacked result, is not computed again, nor is what would take long and is small: that is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from weft.core.common.slots import FUNCTIONS
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace
from weft.core.tensor.tensor import Tensor
from weft.ops.base import Tangents, call
from weft.ops.control.postpone import (
    VIEWS,
    Postponed,
    dependents,
    evaluate,
    needed_calls,
    size_of,
    viewed,
)
from weft.ops.control.subgraphs import (
    DerivedRecorder,
    Flags,
    Place,
    chosen,
    grouped,
    merged,
    places,
    reached,
    reached_carries,
    repeatable_call,
    retrace,
    rows,
    silent,
    smooth,
    spread,
)
from weft.ops.creation import zeros
from weft.ops.families import ElementwiseOperation, LogicalShapeOperation
from weft.ops.gather import scatter_add_op
from weft.ops.placement import copy_op
from weft.ops.view.broadcast import broadcast_op

ROOM = 4  # how much more a step may save or stack, in sizes of what it reads anyway
WORTH = 16  # operations that saving an element must spare


class Transposed:
    """A scan's step, transposed and recorded; `needed` says which operands want a cotangent."""

    def __init__(
        self, primals: Any, body: Trace, consts: int, carries: int, needed: Sequence[bool] | None
    ) -> None:
        wanted = smooth(primals)
        if needed is not None:
            wanted = tuple(w and n for w, n in zip(wanted, needed, strict=True))
        sizes = (consts, carries)
        fixed, init, sliced = grouped(wanted, sizes)
        moving = reached_carries(body, fixed, init, sliced, floats=True)
        self.wanted = wanted
        self.active = (*fixed, *moving, *sliced)
        self.moved = (*moving, *reached(body, self.active, floats=True)[carries:])
        constants, carry, xs = grouped(primals, sizes)
        inside = (*places((*constants, *carry)), *rows(xs))
        self.captures, self.trace = _record(body, inside, self.active, self.moved)
        # Rules of the user's own may print; what may happen again happens where it is needed.
        self.effects = [node for node in self.trace.effects if not repeatable_call(node)]

        heads = [(node, 0) for node in self.trace.inputs]
        counts = (len(self.captures) + consts, carries, len(xs), sum(moving))
        self.constants, self.states, self.xs, self.ct_following, self.ct_ys = grouped(heads, counts)
        outs = (carries, len(body.outputs) - carries)
        found = grouped(self.trace.outputs, (sum(fixed), sum(moving), sum(sliced), *outs))
        self.ct_constants, self.before, self.ct_xs, self.following, self.ys, made = found
        self.origins = dict(zip(made, _results(body.nodes), strict=True))  # results in the body
        inner = body.inputs[consts : consts + carries]
        self.origins |= {ref: (node, 0) for ref, node in zip(self.states, inner, strict=True)}

    def is_zero(self, ref: Ref) -> bool:
        """Whether a result is nothing but a zero that was captured, again and again."""
        while ref[0].op in (copy_op, broadcast_op):
            (ref,) = ref[0].inputs
        given = dict(zip(self.constants, self.captures, strict=False))
        value = given.get(ref)
        if value is None or value.size != 1 or value.owner is not None or not value.is_realized:
            return False
        return not value.host().any()


def _results(nodes: Iterable[OutputRefs]) -> list[Ref]:
    return [(node, slot) for node in nodes for slot in range(len(node.types))]


def _record(
    body: Trace, inside: Sequence[Place], active: Flags, moved: Flags
) -> tuple[tuple[Tensor, ...], Trace]:
    """Captures and trace of the transposed body.

    It takes the body's inputs and the cotangents of outputs that are `moved`, and gives those of
    inputs that are `active`, then the body's outputs, then all results of its calls.
    """
    outputs = (*body.outputs, *_results(body.nodes))
    whole = silent(Trace(body.inputs, outputs, body.effects, (), body.name))

    def transposed(*tensors: Tensor) -> tuple[Tensor, ...]:
        inputs, cotangents = tensors[: len(active)], tensors[len(active) :]

        def of_active(*values: Tensor) -> Any:
            made = whole.replay(*merged(inputs, active, values))
            return chosen(made[: len(moved)], moved), made

        given = chosen(inputs, active)
        _, pullback, made = FUNCTIONS["vjp"](of_active, *given, has_aux=True)
        return (*pullback(cotangents), *made)

    needed = chosen(body.outputs, moved)
    inside = (*inside, *(Place(node.types[slot], node.place(slot)) for node, slot in needed))
    captures, (trace,) = retrace(transposed, places=inside, kind=DerivedRecorder)
    return captures, trace


class Backward:
    """How a scan is pulled back: planned when it runs, since that says what to save.

    `stacks` are results of its steps to save, by what they are in the transposed step, and
    `following` the states that steps read though they come after them.
    """

    def __init__(
        self, primals: Any, body: Trace, consts: int, carries: int, needed: Sequence[bool] | None
    ) -> None:
        self.consts, self.carries = consts, carries
        self.step = step = Transposed(primals, body, consts, carries, needed)
        ys = {ref for ref in step.ys if ref[0].op is not None}
        following = {
            ref: number
            for number, ref in enumerate(step.following)
            if ref[0].op is not None and ref not in ys
        }
        known = {(node, 0) for node in step.trace.inputs} | ys | following.keys()
        varying = dependents(step.trace, (*step.states, *step.xs, *step.ct_following, *step.ct_ys))
        room = ROOM * size_of((*step.states, *step.xs))
        kept = _worth_saving(step, known, varying, room)
        kept |= _saved_instead(step, known | kept)
        known |= kept
        saved = {*step.states, *ys, *kept}
        self.known = known
        free = {*saved, *step.xs, *step.ct_ys}
        self.later = Postponed(step.trace, varying, known, free, room - size_of(kept))
        self.later.plan(step.before, step.ct_constants, step.ct_xs)
        alone = all(x.sharding.mesh is None for x in primals)
        self.terms = [self._term(ref) if alone else (ref,) for ref in self.later.added]
        terms = (ref for refs in self.terms for ref in refs)
        self.results = (*step.before, *terms, *self.later.stacked)
        calls = needed_calls(step.trace, self.results, known, step.effects)
        read = {*self.results, *(ref for node in calls for ref in node.inputs)}
        self.following = {ref: number for ref, number in following.items() if ref in read}
        read |= {step.states[number] for number in self.following.values()}
        self.read = read  # by the steps
        stacks = saved & (read | self.later.sources)
        self.stacks = {ref: body_ref for ref, body_ref in step.origins.items() if ref in stacks}

    def _term(self, ref: Ref) -> tuple[Ref, ...]:
        """What is added to a sum in each step: all of a result, or its positions and updates."""
        node = ref[0]
        if node.op is scatter_add_op and self.step.is_zero(node.inputs[0]):
            return node.inputs[1:]
        return (ref,)

    def pull(
        self,
        primals: Any,
        saved: Sequence[Tensor],
        ct: Any,
        length: int,
        run: Callable[..., tuple[Tensor, ...]],
    ) -> Tangents:
        """Cotangents of the operands; `run` performs a scan from the last step to the first.

        `saved` are the `stacks`, then the last of the states in `following`.
        """
        step, later = self.step, self.later
        constants, _, xs = grouped(primals, (self.consts, self.carries))
        fixed = dict(zip(step.constants, (*step.captures, *constants), strict=True))
        cotangents = chosen(ct, step.moved)
        ct_last, ct_ys = grouped(cotangents, (len(step.ct_following),))
        stacks, last = grouped(saved, (len(self.stacks),))
        stacked = {
            **dict(zip(self.stacks, stacks, strict=True)),
            **dict(zip(step.xs, xs, strict=True)),
            **dict(zip(step.ct_ys, ct_ys, strict=True)),
        }
        slices = {ref: stack for ref, stack in stacked.items() if ref in self.read}
        totals = [_zeros(ref, like=primals[0]) for ref in later.added]
        state = (*ct_last, *totals, *last)
        inside = (*places((*fixed.values(), *state)), *rows(tuple(slices.values())))
        recorded = retrace(self._step(tuple(slices)), places=inside)
        results = run(*recorded, tuple(fixed.values()), state, tuple(slices.values()))
        counts = (len(ct_last), len(totals), len(last))
        ct_init, sums, _, made = grouped(results, counts)
        stacked.update(zip(later.stacked, made, strict=True))
        ct_constants = later.sums(
            step.ct_constants, fixed, stacked, dict(zip(later.added, sums, strict=True)), length
        )
        ct_xs = later.each(step.ct_xs, fixed, stacked, length)
        found = spread(step.active, (*ct_constants, *ct_init, *ct_xs))
        return tuple(x if w else None for x, w in zip(found, step.wanted, strict=True))

    def _step(self, slices: Sequence[Ref]) -> Callable[..., tuple[Tensor, ...]]:
        """A step of the backward pass: takes what is fixed, its state and `slices`."""
        step, added = self.step, len(self.later.added)
        heads = (*step.constants, *step.ct_following)

        def function(*tensors: Tensor) -> tuple[Tensor, ...]:
            given, totals, after, parts = grouped(tensors, (len(heads), added, len(self.following)))
            refs = (*heads, *self.following, *slices)
            known = dict(zip(refs, (*given, *after, *parts), strict=True))
            made = evaluate(step.trace, self.results, known, step.effects)
            before, *terms, stacked = grouped(made, (len(step.before), *map(len, self.terms)))
            places = (ref[0].params for ref in self.later.added)
            sums = map(_added, totals, terms, places)
            # The state before this step is the one after the step that comes next.
            states = (known[step.states[number]] for number in self.following.values())
            return (*before, *sums, *states, *stacked)

        return function


def _added(total: Tensor, term: Sequence[Tensor], params: dict[str, Any]) -> Tensor:
    """A sum with one more term, which may be few updates at positions."""
    if len(term) == 1:
        return total + term[0]
    return call(scatter_add_op, (total, *term), params)


def _worth_saving(
    step: Transposed, known: set[Ref], varying: Collection[OutputRefs], room: int
) -> set[Ref]:
    """Results to save, so that long calls of the forward pass are not done again.

    These are what the backward pass reads, as far as short calls do not give it from the rest; or
    the results of the long calls, where that is too much.
    """
    backward = dependents(step.trace, (*step.ct_following, *step.ct_ys))
    roots = (*step.ct_constants, *step.before, *step.ct_xs)
    calls = needed_calls(step.trace, roots, known)
    again = [node for node in calls if node in varying and node not in backward]
    long = {node: cost for node in again if (cost := _cost(node)) >= WORTH * node.types[0].size}
    if not long:
        return set()
    read = [*roots, *(ref for node in calls if node in backward for ref in node.inputs)]
    wanted = {viewed(ref, known) for ref in read}
    for node in reversed(again):  # what the step does not compute itself follows from what it does
        if any(ref in wanted and ref not in step.origins for ref in _results([node])):
            wanted.update(viewed(ref, known) for ref in node.inputs)
    waiting = {*_results(again)}  # for a long call
    ends: set[Ref] = set()
    for node in again:
        results = _results([node])
        if node not in long and waiting.isdisjoint(node.inputs):
            waiting.difference_update(results)
        else:
            saved = {ref for ref in results if ref in wanted and ref in step.origins}
            waiting -= saved
            ends |= saved
    for kept in (ends, {ref for ref in _results(long) if ref in step.origins}):
        left = {*needed_calls(step.trace, roots, known | kept)}
        spared = sum(cost for node, cost in long.items() if node not in left)
        elements = sum(node.types[slot].size for node, slot in kept)
        if size_of(kept) <= room and spared >= WORTH * elements:
            return kept
    return set()


def _saved_instead(step: Transposed, known: set[Ref]) -> set[Ref]:
    """Results to save in the place of states that steps read a small part of."""
    roots = (*step.ct_constants, *step.before, *step.ct_xs)
    calls = [n for n in needed_calls(step.trace, roots, known) if n.op not in VIEWS]
    found: set[Ref] = set()
    for state in {*step.states}.difference(viewed(ref, known) for ref in roots):
        readers = [n for n in calls if any(viewed(ref, known) == state for ref in n.inputs)]
        results = {*_results(readers)}
        if results <= step.origins.keys() and 2 * size_of(results) <= size_of((state,)):
            found |= results
    return found


def _cost(node: OutputRefs) -> int:
    """Arithmetic operations of a call; few are not worth being counted."""
    if isinstance(node.op, ElementwiseOperation | LogicalShapeOperation):
        return 0
    types = (source.types[slot] for source, slot in node.inputs)
    flops: int = node.op.cost(*types, **node.params).flops
    return flops


def _zeros(ref: Ref, like: Tensor) -> Tensor:
    kind = ref[0].types[ref[1]]
    return zeros(kind.shape, dtype=kind.dtype, device=like.device)
