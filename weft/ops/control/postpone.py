"""What a backward scan leaves for after its loop.

Only what steps pass on to each other has to be computed one step after another. The gradient of a
weight is a sum over all steps: where the terms are matrix products, their factors are stacked, and
the sum is one product of the stacks. Products that give the gradient of a step's own input are done
for all steps at once. Steps hand out what such products are made of, if that is small enough.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from weft.core.common.handler import perform
from weft.core.common.slots import FUNCTIONS
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace
from weft.core.tensor.tensor import Tensor
from weft.ops.base import Linear, call
from weft.ops.contraction import fold, matmul_op
from weft.ops.view.broadcast import broadcast_op
from weft.ops.view.reshape import reshape_op
from weft.ops.view.transpose import permute_op

VIEWS = frozenset({reshape_op, permute_op, broadcast_op})  # no operand is larger than the result


def needed_calls(
    trace: Trace,
    outputs: Iterable[Ref],
    known: Collection[Ref],
    effects: Iterable[OutputRefs] = (),
) -> list[OutputRefs]:
    """The calls of a trace that `outputs` and `effects` need, where some results are known."""
    wanted = {*effects, *(ref[0] for ref in outputs if ref not in known)}
    for node in reversed(trace.nodes):
        if node in wanted:
            wanted.update(ref[0] for ref in node.inputs if ref not in known)
    return [node for node in trace.nodes if node in wanted]


def evaluate(
    trace: Trace,
    outputs: Sequence[Ref],
    known: Mapping[Ref, Tensor],
    effects: Iterable[OutputRefs] = (),
) -> tuple[Tensor, ...]:
    """Perform the calls of a trace that `outputs` and `effects` need, in the current handler."""
    found = dict(known)
    for node in needed_calls(trace, outputs, known, effects):
        made = perform(node.op, tuple([found[ref] for ref in node.inputs]), node.params)
        results = made if isinstance(made, tuple) else (made,)
        for slot, result in enumerate(results):
            found.setdefault((node, slot), result)
    return tuple(found[ref] for ref in outputs)


def dependents(trace: Trace, inputs: Collection[Ref]) -> set[OutputRefs]:
    """These inputs, and the calls that depend on them."""
    found = {node for node, _ in inputs}
    for node in trace.nodes:
        if any(source in found for source, _ in node.inputs):
            found.add(node)
    return found


def viewed(ref: Ref, known: Collection[Ref]) -> Ref:
    """What a result is a view of, if it is one that is not known itself."""
    while ref not in known and ref[0].op in VIEWS:
        (ref,) = ref[0].inputs
    return ref


def size_of(refs: Iterable[Ref]) -> int:
    """Bytes of these results together."""
    return sum(node.types[slot].nbytes for node, slot in refs)


class Postponed:
    """Which results of a step can wait; `varying` are the calls that differ from step to step.

    A step gives the terms `added`, which the loop sums up, and what is `stacked`. It need not
    compute what is `known`; of that, what is in `free` is stacked before the loop begins.
    """

    def __init__(
        self,
        trace: Trace,
        varying: Collection[OutputRefs],
        known: Collection[Ref],
        free: Collection[Ref],
        room: int,
    ) -> None:
        self.trace = trace
        self.varying = varying
        self.known = known
        self.free = free
        self.room = room  # bytes that may be stacked for the sake of what waits
        self.added: dict[Ref, None] = {}
        self.stacked: dict[Ref, None] = {}
        self.products: dict[Ref, tuple[Ref, Ref]] = {}  # sums of products, with their factors
        self.mapped: dict[Ref, tuple[Ref, ...]] = {}  # what is done for all steps at once

    def plan(self, before: Sequence[Ref], sums: Sequence[Ref], each: Sequence[Ref]) -> None:
        """Decide for the `sums` over all steps and for what `each` step gives.

        Steps pass on `before` to each other.
        """
        waiting = []
        for ref in each:
            if self._factor(ref) is None:
                self.stacked[ref] = None
            else:
                waiting.append(ref)
        for ref in sums:
            self._sum(ref)
        roots = (*before, *self.added, *self.stacked)
        now = set(needed_calls(self.trace, roots, self.known))
        for ref in waiting:
            factor = self._factor(ref)
            assert factor is not None
            if ref[0] in now or not self._stack((factor,), size_of((ref,))):
                self.stacked[ref] = None
            else:
                self.mapped[ref] = (factor,)

    def _factor(self, ref: Ref) -> Ref | None:
        """The part of a product that varies, or what a view is of, where that is there anyway."""
        found = viewed(ref, self.known)
        if found in self.free:
            return found
        if found[0].op is matmul_op:
            varying = [each for each in found[0].inputs if each[0] in self.varying]
            if len(varying) == 1:
                return viewed(varying[0], self.known)
        return None

    def _sum(self, ref: Ref) -> None:
        """Take the sum of products out of the loop, and what is linear in such sums."""
        stack = [ref]
        while stack:
            ref = stack.pop()
            terms = self._terms(ref[0])
            if self._is_product(ref[0]):
                a, b = (viewed(each, self.known) for each in ref[0].inputs)
                if self._stack((a, b), size_of((ref,))):
                    self.products[ref] = (a, b)
                else:
                    self.added[ref] = None
            elif terms and self._holds_product(terms):
                stack += terms
            else:
                self.added[ref] = None

    def _terms(self, node: OutputRefs) -> list[Ref]:
        """The operands that vary, if the result is linear in all of them together."""
        if node.op is None or node.op.multiple:
            return []
        varying = [place for place, ref in enumerate(node.inputs) if ref[0] in self.varying]
        if node.op.linear is Linear.EACH:
            linear = len(varying) == 1
        else:
            free = [i for i in range(len(node.inputs)) if i not in node.op.constants]
            linear = node.op.linear is Linear.JOINTLY and varying == free
        return [node.inputs[place] for place in varying] if linear else []

    def _is_product(self, node: OutputRefs) -> bool:
        return node.op is matmul_op and all(ref[0] in self.varying for ref in node.inputs)

    def _holds_product(self, terms: Sequence[Ref]) -> bool:
        """Whether a sum of products would be found further down."""
        stack, seen = list(terms), set(terms)
        while stack:
            node = stack.pop()[0]
            if self._is_product(node):
                return True
            further = [ref for ref in self._terms(node) if ref not in seen]
            seen.update(further)
            stack += further
        return False

    def _stack(self, refs: Sequence[Ref], most: int) -> bool:
        """Have these stacked, if what is not yet takes at most so many bytes of a step."""
        new = dict.fromkeys(r for r in refs if r not in self.free and r not in self.stacked)
        if size_of(new) > min(most, self.room):
            return False
        self.room -= size_of(new)
        self.stacked |= new
        return True

    @property
    def sources(self) -> set[Ref]:
        """What is read after the loop."""
        return {ref for refs in (*self.products.values(), *self.mapped.values()) for ref in refs}

    def sums(
        self,
        refs: Sequence[Ref],
        fixed: Mapping[Ref, Tensor],
        stacks: Mapping[Ref, Tensor],
        totals: Mapping[Ref, Tensor],
        length: int,
    ) -> tuple[Tensor, ...]:
        """Sums over all steps, given those of what was added."""
        known = {**fixed, **totals}
        for ref, sources in self.products.items():
            a, b = self._for_all(ref[0].inputs, sources, fixed, stacks, length)
            known[ref] = call(matmul_op, (fold(a, 1, -1), fold(b, 1, -2)), {})
        return evaluate(self.trace, refs, known)

    def each(
        self,
        refs: Sequence[Ref],
        fixed: Mapping[Ref, Tensor],
        stacks: Mapping[Ref, Tensor],
        length: int,
    ) -> tuple[Tensor, ...]:
        """What each step gives, stacked."""
        return tuple(
            self._for_all((ref,), self.mapped[ref], fixed, stacks, length)[0]
            if ref in self.mapped
            else stacks[ref]
            for ref in refs
        )

    def _for_all(
        self,
        refs: Sequence[Ref],
        sources: Sequence[Ref],
        fixed: Mapping[Ref, Tensor],
        stacks: Mapping[Ref, Tensor],
        length: int,
    ) -> tuple[Tensor, ...]:
        """Results of all steps at once, made of what is stacked and of what does not vary."""
        distinct = tuple(dict.fromkeys(sources))

        def of_step(*tensors: Tensor) -> tuple[Tensor, ...]:
            return evaluate(
                self.trace, refs, {**fixed, **dict(zip(distinct, tensors, strict=True))}
            )

        mapped = FUNCTIONS["vmap"](of_step, axis_size=length)
        found: tuple[Tensor, ...] = mapped(*(stacks[ref] for ref in distinct))
        return found
