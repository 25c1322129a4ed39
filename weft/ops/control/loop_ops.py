"""The two loop ops: `while_loop` decides as it goes, `scan` knows how many steps it takes.

A loop's length costs no recording: the body is one subgraph. `scan` can be differentiated in both
modes, because it can keep the carries of every step (see `scan_backward`); `while_loop` has no
reverse mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.core.common.context import current_device
from weft.core.common.types import Array, TensorType
from weft.core.graph.trace import Trace
from weft.core.tensor.tensor import Tensor
from weft.errors import MissingRuleError, WeftError
from weft.ops.base import Cost, Tangents, call_multiple
from weft.ops.control.branches import pick
from weft.ops.control.guarded import batched_where, guarded
from weft.ops.control.scan_backward import Backward
from weft.ops.control.subgraphs import (
    DerivedRecorder,
    Flags,
    SubgraphOperation,
    batch_operands,
    batched,
    carried_places,
    chosen,
    cost_of,
    grouped,
    interned,
    number_of,
    owned_results,
    places,
    pushed,
    reached,
    reached_carries,
    repeatable,
    retrace,
    row_of,
    rows,
    silent,
    spread,
    total_cost,
)
from weft.ops.creation import zeros_like
from weft.ops.reduction import max as largest
from weft.ops.view.transpose import moveaxis


class WhileLoop(SubgraphOperation):
    """Run `body` on the carries while `condition` holds; operands are constants, then carries."""

    reasons = {
        **SubgraphOperation.reasons,
        "vjp": "how many steps it takes, each with values to keep, is known only when it runs",
    }

    def infer(self, *types: TensorType, body: Trace, **params: Any) -> tuple[TensorType, ...]:
        return body.output_types

    def places(self, **params: Any) -> tuple[Any, ...]:
        return carried_places(self.name, params["body"], params["consts"])

    def eval(self, *arrays: Array, condition: Trace, body: Trace, consts: int) -> tuple[Array, ...]:
        fixed, carry = arrays[:consts], arrays[consts:]
        while number_of(condition.run((*fixed, *carry))[0]):
            carry = body.run((*fixed, *carry))
        return owned_results(carry, arrays)

    def batch(
        self, size: int, args: Any, hidden: Any, *, condition: Trace, body: Trace, consts: int
    ) -> Any:
        hidden = tuple(hidden)
        fixed = hidden[:consts]
        varies = reached_carries(body, fixed, hidden[consts:])
        (asks,) = reached(condition, (*fixed, *varies))
        if asks:
            every = (True,) * len(varies)
            return self._batch_rows(size, args, hidden, condition, body, consts), every
        operands = batch_operands(args, size, hidden, (*fixed, *varies))
        functions = (
            batched(condition, size, (*fixed, *varies), (False,)),
            batched(body, size, (*fixed, *varies), varies),
        )
        recorded = retrace(*functions, places=places(operands))
        return perform_while(*recorded, operands[:consts], operands[consts:]), varies

    def _batch_rows(
        self, size: int, args: Any, hidden: Flags, condition: Trace, body: Trace, consts: int
    ) -> tuple[Tensor, ...]:
        """Rows end at different steps: go on while any row does, and keep those that are done."""
        if not (repeatable(condition) and repeatable(body)):
            raise MissingRuleError(
                f"{self}: no batch rule for a mapped condition: finished rows would go on"
                "\nhint: wf.map goes through the rows one by one; or move effects out"
            )
        every = (True,) * (len(args) - consts)
        varies = (*hidden[:consts], *every)
        operands = batch_operands(args, size, hidden, varies)
        if size == 0:
            return tuple(operands[consts:])
        asked = batched(condition, size, varies, (True,))
        stepped = batched_where(body, size, varies, every)

        def go_on(*tensors: Tensor) -> tuple[Tensor, ...]:
            return (largest(tensors[consts]),)

        def step(*tensors: Tensor) -> tuple[Tensor, ...]:
            fixed, mask, carry = tensors[:consts], tensors[consts], tensors[consts + 1 :]
            moved = stepped(mask, *fixed, *carry)
            carry = tuple(pick(mask, new, old) for new, old in zip(moved, carry, strict=True))
            (still,) = asked(*fixed, *carry)
            return (still, *carry)  # a row that is done has not changed, so it stays done

        fixed, (mask,) = operands[:consts], asked(*operands)
        carry = (mask, *operands[consts:])
        recorded = retrace(go_on, step, places=places((*fixed, *carry)))
        return perform_while(*recorded, fixed, carry)[1:]

    def guard(
        self, counts: Tensor, args: Any, *, condition: Trace, body: Trace, consts: int
    ) -> tuple[Tensor, ...]:
        def goes_on(counts: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            (still,) = guarded(condition)(counts, *tensors)
            return (still & counts,)  # a row that does not count takes no step

        def step(counts: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            return body.replay(*tensors)

        recorded = retrace(goes_on, step, places=places((counts, *args)))
        return perform_while(*recorded, (counts, *args[:consts]), args[consts:])

    def jvp(
        self, primals: Any, tangents: Any, out: Any, *, condition: Trace, body: Trace, consts: int
    ) -> Any:
        self.check_repeatable("jvp", condition, body)
        given = tuple(t is not None for t in tangents)
        moving = reached_carries(body, given[:consts], given[consts:], floats=True)
        active = (*given[:consts], *moving)
        count, shift = len(primals), sum(given[:consts])
        moves = _filled(primals, tangents, active)
        derivative = pushed(body, active)

        def split(tensors: tuple[Tensor, ...]) -> tuple[Any, Any]:
            """Constants, their tangents, carries, theirs: as inputs and as tangents of these."""
            inner = tensors[consts + shift :]
            inputs = (*tensors[:consts], *inner[: count - consts])
            return inputs, (*tensors[consts : consts + shift], *inner[count - consts :])

        def go_on(*tensors: Tensor) -> tuple[Tensor, ...]:
            return silent(condition).replay(*split(tensors)[0])

        def step(*tensors: Tensor) -> tuple[Tensor, ...]:
            inputs, moved = split(tensors)
            values, slopes = derivative(*inputs, *moved)
            return (*values, *chosen(slopes, moving))

        fixed = (*primals[:consts], *moves[:shift])
        carry = (*primals[consts:], *moves[shift:])
        inside = places((*fixed, *carry))
        recorded = retrace(go_on, step, places=inside, kind=DerivedRecorder)
        return spread(moving, perform_while(*recorded, fixed, carry)[count - consts :])

    def missing(self, rule: str) -> WeftError:
        if rule == "vjp":
            return MissingRuleError(
                f"{self}: no vjp rule: {self.reasons['vjp']}"
                "\nhint: use wf.scan, or wf.fori_loop with Python integers as bounds; wf.jvp works"
            )
        return super().missing(rule)

    def cost(self, *types: TensorType, condition: Trace, body: Trace, consts: int) -> Cost:
        return cost_of(total_cost(condition) + total_cost(body), *types, *body.output_types)


class WhileLoopWithEffects(WhileLoop):
    """A loop whose functions do something besides computing: it runs at the call."""

    pure = False


class Scan(SubgraphOperation):
    """Run `body` on the carries and a slice of each `xs`, `length` times; stack what it gives.

    Operands are constants, carries, then xs with the steps along their leading axis.
    """

    def infer(
        self, *types: TensorType, body: Trace, carries: int, length: int, **params: Any
    ) -> tuple[TensorType, ...]:
        kinds = body.output_types
        stacked = (TensorType((length, *k.shape), k.dtype) for k in kinds[carries:])
        return (*kinds[:carries], *stacked)

    def places(self, **params: Any) -> tuple[Any, ...]:
        return carried_places(self.name, params["body"], params["consts"], params["carries"])

    def eval(
        self,
        *arrays: Array,
        body: Trace,
        consts: int,
        carries: int,
        length: int,
        reverse: bool,
        **params: Any,
    ) -> tuple[Array, ...]:
        fixed, carry, xs = grouped(arrays, (consts, carries))
        ys = [np.empty((length, *k.shape), k.dtype) for k in body.output_types[carries:]]
        steps = range(length)
        for i in reversed(steps) if reverse else steps:
            results = body.run((*fixed, *carry, *(row_of(x, i) for x in xs)))
            carry = results[:carries]
            for y, result in zip(ys, results[carries:], strict=True):
                y[i] = result
        return (*owned_results(carry, arrays), *ys)

    def batch(
        self,
        size: int,
        args: Any,
        hidden: Any,
        *,
        body: Trace,
        consts: int,
        carries: int,
        **params: Any,
    ) -> Any:
        hidden = tuple(hidden)
        fixed, init, sliced = grouped(hidden, (consts, carries))
        varies = reached_carries(body, fixed, init, sliced)
        inputs = (*fixed, *varies, *sliced)
        mapped = (*varies, *reached(body, inputs)[carries:])
        constants, carry, xs = grouped(
            batch_operands(args, size, hidden, inputs), (consts, carries)
        )
        xs = tuple(moveaxis(x, 0, 1) if s else x for x, s in zip(xs, sliced, strict=True))
        inside = (*places((*constants, *carry)), *rows(xs))
        recorded = retrace(batched(body, size, inputs, mapped), places=inside)
        results = perform_scan(*recorded, constants, carry, xs, params)
        ys = (
            moveaxis(y, 1, 0) if m else y
            for y, m in zip(results[carries:], mapped[carries:], strict=True)
        )
        return (*results[:carries], *ys), mapped

    def guard(
        self, counts: Tensor, args: Any, *, body: Trace, consts: int, carries: int, **params: Any
    ) -> tuple[Tensor, ...]:
        constants, carry, xs = grouped((counts, *args), (1 + consts, carries))
        inside = (*places((*constants, *carry)), *rows(xs))
        recorded = retrace(guarded(body), places=inside)
        return perform_scan(*recorded, constants, carry, xs, params)

    def jvp(
        self,
        primals: Any,
        tangents: Any,
        out: Any,
        *,
        body: Trace,
        consts: int,
        carries: int,
        **params: Any,
    ) -> Any:
        self.check_repeatable("jvp", body)
        given = tuple(t is not None for t in tangents)
        fixed, init, sliced = grouped(given, (consts, carries))
        moving = reached_carries(body, fixed, init, sliced, floats=True)
        active = (*fixed, *moving, *sliced)
        moved = (*moving, *reached(body, active, floats=True)[carries:])
        constants, carry, xs = grouped(primals, (consts, carries))
        moves = _filled(primals, tangents, active)
        groups = grouped(moves, (sum(fixed), sum(moving)))
        sizes = [len(g) for g in (constants, groups[0], carry, groups[1], xs)]
        derivative = pushed(body, active)

        def step(*tensors: Tensor) -> tuple[Tensor, ...]:
            c, tc, s, ts, x, tx = grouped(tensors, sizes)
            values, slopes = derivative(*c, *s, *x, *tc, *ts, *tx)
            return (*values[:carries], *chosen(slopes, moved))

        fixed_operands, state = (*constants, *groups[0]), (*carry, *groups[1])
        slices = (*xs, *groups[2])
        inside = (*places((*fixed_operands, *state)), *rows(slices))
        recorded = retrace(step, places=inside, kind=DerivedRecorder)
        results = perform_scan(*recorded, fixed_operands, state, slices, params)
        return spread(moved, results[carries:])

    def forward(self, args: Any, *, needed: Sequence[bool] | None = None, **params: Any) -> Any:
        """Stack what the backward pass reads of each step too, such as the state before it."""
        try:
            backward = self._backward(args, needed, **params)
        except WeftError:  # it is for the one who wants a derivative
            return call_multiple(self, args, params), None
        return self._save(backward, args, **params)

    def _backward(
        self,
        args: Any,
        needed: Sequence[bool] | None,
        *,
        body: Trace,
        consts: int,
        carries: int,
        **params: Any,
    ) -> Backward:
        self.check_repeatable("vjp", body)
        return Backward(args, body, consts, carries, needed)

    def _save(
        self,
        backward: Backward,
        args: Any,
        *,
        body: Trace,
        consts: int,
        carries: int,
        **params: Any,
    ) -> tuple[tuple[Tensor, ...], Any]:
        extra = [ref for ref in backward.stacks.values() if ref not in body.outputs[carries:]]
        outputs = (*body.outputs, *extra)
        saving = interned(Trace(body.inputs, outputs, body.effects, (), body.name))
        constants, carry, xs = grouped(args, (consts, carries))
        results = perform_scan((), (saving,), constants, carry, xs, params)
        stacks = dict(zip(outputs[carries:], results[carries:], strict=True))
        saved = [stacks[ref] for ref in backward.stacks.values()]
        saved += [results[number] for number in backward.following.values()]
        return results[: len(body.outputs)], (backward, saved)

    def pull(self, primals: Any, saved: Any, ct: Any, **params: Any) -> Tangents:
        backward, tensors = saved
        names = ("length", "unroll")
        again = {"reverse": not params["reverse"], **{name: params[name] for name in names}}
        made: Tangents = backward.pull(
            primals, tensors, ct, params["length"], partial(perform_scan, params=again)
        )
        return made

    def vjp(
        self,
        primals: Any,
        out: Any,
        ct: Any,
        *,
        needed: Sequence[bool] | None = None,
        **params: Any,
    ) -> Tangents:
        backward = self._backward(primals, needed, **params)
        _, saved = self._save(backward, primals, **params)
        return self.pull(primals, saved, ct, **params)

    def cost(self, *types: TensorType, body: Trace, length: int, **params: Any) -> Cost:
        results = self.infer(*types, body=body, length=length, **params)
        return cost_of(length * total_cost(body), *types, *results)


class ScanWithEffects(Scan):
    """A scan whose function does something besides computing: it runs at the call."""

    pure = False


while_loop_op, while_loop_with_effects_op = WhileLoop(), WhileLoopWithEffects()
scan_op, scan_with_effects_op = Scan(), ScanWithEffects()


def _filled(primals: Any, tangents: Any, active: Flags) -> tuple[Tensor, ...]:
    """Tangents of the active operands; those that are zero at first become zeros."""
    triples = zip(primals, tangents, active, strict=True)
    return tuple(zeros_like(p) if t is None else t for p, t, a in triples if a)


def perform_while(
    captures: Sequence[Tensor],
    functions: Sequence[Trace],
    constants: Sequence[Tensor],
    carry: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """Perform the op: the subgraphs take captures, constants and carries."""
    condition, body = functions
    effects = condition.effects or body.effects
    op = while_loop_with_effects_op if effects else while_loop_op
    consts = len(captures) + len(constants)
    params = {"condition": condition, "body": body, "consts": consts}
    return call_multiple(op, (*captures, *constants, *carry), params)


def perform_scan(
    captures: Sequence[Tensor],
    functions: Sequence[Trace],
    constants: Sequence[Tensor],
    carry: Sequence[Tensor],
    xs: Sequence[Tensor],
    params: dict[str, Any],
) -> tuple[Tensor, ...]:
    """Perform the op: the subgraph takes captures, constants, carries and slices of `xs`."""
    (body,) = functions
    if not body.outputs and not body.effects:
        return ()
    op = scan_with_effects_op if body.effects else scan_op
    operands = (*captures, *constants, *carry, *xs)
    counts = {"consts": len(captures) + len(constants), "carries": len(carry)}
    device = {} if operands else {"device": current_device()}
    return call_multiple(op, operands, {**params, "body": body, **counts, **device})
