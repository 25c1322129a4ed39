"""Loops and branches over a mesh: one op whose subgraphs run the pieces of all devices together.

A subgraph is replayed once on pieces that are its inputs; what its calls move between devices then
happens inside the loop. The same code serves sharded tensors (`Layouts`) and functions that see one
piece at a time (`Pieces` by hand): they differ in what a value is and how two of them are matched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, TypeAlias

from weft.core.common.spec import MeshAxes, ShardingSpec
from weft.core.common.types import TensorType
from weft.core.graph.trace import Trace, subgraphs
from weft.core.sharding.log import repeated, unlogged
from weft.core.sharding.pieces import Pieces, Shards, local_coordinates
from weft.core.tensor.tensor import Tensor
from weft.errors import MissingRuleError
from weft.ops.base import Tangents, call_multiple
from weft.ops.communication.mesh import joint_rules, on_mesh, replay_step
from weft.ops.communication.named import NamedCollective
from weft.ops.communication.transfer import reshard, varied
from weft.ops.control.branches import Switch, perform_switch
from weft.ops.control.graph_call import GraphCall
from weft.ops.control.loop_ops import Scan, WhileLoop, perform_scan, perform_while
from weft.ops.control.subgraphs import Place, places, retrace, rows
from weft.ops.named_axis import axis_gather_op, axis_index_op

Values = Sequence[Any]
Rule: TypeAlias = Callable[[Any, Values, dict[str, Any]], tuple[Any, ...]]


class Joint(ABC):
    """What the values of a loop are over a mesh."""

    @abstractmethod
    def step(self, node: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """One recorded call."""

    @abstractmethod
    def pieces(self, x: Any) -> list[Tensor]:
        """The tensors a value is made of."""

    @abstractmethod
    def again(self, x: Any, tensors: Iterator[Tensor]) -> Any:
        """A value like `x` of other tensors."""

    @abstractmethod
    def matched(self, before: Any, after: Any) -> Any:
        """`before`, laid out so that a value like `after` can take its place in the next step."""

    @abstractmethod
    def fitted(self, x: Any, like: Any) -> Any:
        """`x` laid out as `like` is."""

    @abstractmethod
    def whole(self, x: Any) -> Any:
        """`x` the same everywhere: for conditions and choices."""

    def settled(self, x: Any) -> Any:
        """`x` as it may leave a loop or enter one."""
        return x

    def stacked(self, x: Any, length: int) -> Any:
        """What `x` is with a leading axis of steps, as far as its layout goes."""
        return x

    def row(self, x: Any) -> Any:
        """`x`, a stack of steps, with the steps on one device; and what one step of it is."""
        return x, x

    # -- the ops ---------------------------------------------------------------------------

    def flat(self, values: Values) -> list[Tensor]:
        """The tensors of several values."""
        return list(chain.from_iterable(map(self.pieces, values)))

    def rebuilt(self, templates: Values, tensors: Sequence[Tensor]) -> list[Any]:
        """Values like `templates` of these tensors."""
        following = iter(tensors)
        return [self.again(x, following) for x in templates]

    def replay(self, trace: Trace, values: Values) -> list[Any]:
        """The outputs of a subgraph."""
        return list(trace.walk((*values, *trace.captures), self.step))

    def _carries(self, body: Trace, fixed: Values, carry: Values, rest: Values) -> list[Any]:
        """Carries in layouts that a step gives back, found by trying steps on shapes."""
        found = list(map(self.settled, carry))
        for _ in range(4):
            made: list[Any] = []

            def attempt(*tensors: Tensor, now: Values = found, made: Any = made) -> Any:
                values = self.rebuilt([*fixed, *now, *rest], tensors)
                made[:] = map(self.settled, self.replay(body, values)[: len(now)])
                return tuple(self.flat(made))

            with unlogged():
                retrace(attempt, places=self._places([*fixed, *found], rest))
            wider = [self.matched(a, b) for a, b in zip(found, made, strict=True)]
            if all(a is b for a, b in zip(found, wider, strict=True)):
                break
            found = wider
        return found

    def _places(self, values: Values, sliced: Values) -> tuple[Place, ...]:
        return (*places(self.flat(values)), *(rows(self.flat(sliced))))

    def scan(self, op: Any, args: Values, params: dict[str, Any]) -> tuple[Any, ...]:
        """`scan` on values over a mesh."""
        own = {k: v for k, v in params.items() if k not in ("body", "consts", "carries")}
        body, consts, carries = params["body"], params["consts"], params["carries"]
        fixed = list(map(self.settled, args[:consts]))
        pairs = [self.row(self.settled(x)) for x in args[consts + carries :]]
        xs, slices = [x for x, _ in pairs], [one for _, one in pairs]
        carry = self._carries(body, fixed, args[consts : consts + carries], slices)
        kept: list[Any] = []

        def step(*tensors: Tensor) -> tuple[Tensor, ...]:
            results = self.replay(body, self.rebuilt([*fixed, *carry, *slices], tensors))
            moved = [self.fitted(x, like) for x, like in zip(results, carry, strict=False)]
            kept[:] = [*moved, *map(self.settled, results[carries:])]
            return tuple(self.flat(kept))

        with repeated(params["length"]):
            recorded = retrace(step, places=self._places([*fixed, *carry], xs))
        made = perform_scan(*recorded, self.flat(fixed), self.flat(carry), self.flat(xs), own)
        ys = [self.stacked(y, params["length"]) for y in kept[carries:]]
        return tuple(self.rebuilt([*kept[:carries], *ys], made))

    def while_loop(self, op: Any, args: Values, params: dict[str, Any]) -> tuple[Any, ...]:
        """`while_loop` on values over a mesh."""
        condition, body, consts = params["condition"], params["body"], params["consts"]
        fixed = list(map(self.settled, args[:consts]))
        carry = self._carries(body, fixed, args[consts:], ())

        def go_on(*tensors: Tensor) -> tuple[Tensor, ...]:
            (asked,) = self.replay(condition, self.rebuilt([*fixed, *carry], tensors))
            return (self.pieces(self.whole(asked))[0],)

        def step(*tensors: Tensor) -> tuple[Tensor, ...]:
            results = self.replay(body, self.rebuilt([*fixed, *carry], tensors))
            moved = [self.fitted(x, like) for x, like in zip(results, carry, strict=True)]
            return tuple(self.flat(moved))

        inside = places(self.flat([*fixed, *carry]))
        recorded = retrace(go_on, step, places=inside)
        made = perform_while(*recorded, self.flat(fixed), self.flat(carry))
        return tuple(self.rebuilt(carry, made))

    def switch(self, op: Any, args: Values, params: dict[str, Any]) -> tuple[Any, ...]:
        """`switch` on values over a mesh."""
        index = self.pieces(self.whole(args[0]))[0]
        operands = list(map(self.settled, args[1:]))
        branches: tuple[Trace, ...] = params["branches"]
        templates = self._common(branches, operands)

        def run(branch: Trace) -> Callable[..., tuple[Tensor, ...]]:
            def function(*tensors: Tensor) -> tuple[Tensor, ...]:
                found = self.replay(branch, self.rebuilt(operands, tensors))
                return tuple(
                    self.flat([self.fitted(x, t) for x, t in zip(found, templates, strict=True)])
                )

            return function

        inside = places(self.flat(operands))
        recorded = retrace(*map(run, branches), places=inside)
        made = perform_switch(index, *recorded, self.flat(operands))
        return tuple(self.rebuilt(templates, made))

    def _common(self, branches: Sequence[Trace], operands: Values) -> list[Any]:
        """Layouts that the results of every branch can take."""
        found: list[Any] = []

        def attempt(*tensors: Tensor) -> Any:
            values = self.rebuilt(operands, tensors)
            for branch in branches:
                made = list(map(self.settled, self.replay(branch, values)))
                found[:] = (
                    [self.matched(a, b) for a, b in zip(found, made, strict=True)]
                    if found
                    else made
                )
            return tuple(self.flat(found))

        with unlogged():
            retrace(attempt, places=places(self.flat(operands)))
        return found

    def inline(self, op: Any, args: Values, params: dict[str, Any]) -> tuple[Any, ...]:
        """A captured function: its calls one by one."""
        trace: Trace = params["trace"]
        return trace.walk(args, self.step)

    def rules(self) -> dict[type, Callable[..., tuple[Any, ...]]]:
        """What serves each class of ops with subgraphs."""
        return {
            Scan: self.scan,
            WhileLoop: self.while_loop,
            Switch: self.switch,
            GraphCall: self.inline,
        }


class OfLayouts(Joint):
    """Values are shards, or tensors of one device."""

    def step(self, node: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return replay_step(node, args)

    def pieces(self, x: Any) -> list[Tensor]:
        return list(x.pieces.parts.values()) if isinstance(x, Shards) else [x]

    def again(self, x: Any, tensors: Iterator[Tensor]) -> Any:
        if not isinstance(x, Shards):
            return next(tensors)
        return Shards(x.type, x.spec, x.pieces.map(lambda _: next(tensors)))

    def settled(self, x: Any) -> Any:
        return reshard(x, x.spec.settled) if isinstance(x, Shards) else x

    def whole(self, x: Any) -> Any:
        if not isinstance(x, Shards):
            return x
        return reshard(x, ShardingSpec.whole(len(x.spec.axes), x.mesh), "control flow")

    def matched(self, before: Any, after: Any) -> Any:
        if not isinstance(after, Shards):
            return before
        if not isinstance(before, Shards):
            return on_mesh(before, after.spec.plain)
        return reshard(before, after.spec.plain) if _refines(after, before) else before

    def fitted(self, x: Any, like: Any) -> Any:
        if not isinstance(like, Shards):
            return self.whole(x).pieces.parts[()] if isinstance(x, Shards) else x
        if not isinstance(x, Shards):
            return on_mesh(x, like.spec)
        return reshard(x, like.spec, "control flow")

    def stacked(self, x: Any, length: int) -> Any:
        if not isinstance(x, Shards):
            return x
        kind = TensorType((length, *x.type.shape), x.type.dtype)
        return Shards(kind, ShardingSpec(x.spec.mesh, ((), *x.spec.axes)), x.pieces)

    def row(self, x: Any) -> Any:
        if not isinstance(x, Shards):
            return x, x
        spec = ShardingSpec(x.spec.mesh, ((), *x.spec.axes[1:]))
        moved = reshard(x, spec, "scan")
        kind = TensorType(x.type.shape[1:], x.type.dtype)
        return moved, Shards(kind, ShardingSpec(x.spec.mesh, spec.axes[1:]), moved.pieces)


def _refines(fine: Shards, coarse: Shards) -> bool:
    """Whether cutting the pieces of one further, where nothing forbids it, gives the other's."""
    pairs = list(zip(coarse.spec.axes, fine.spec.axes, strict=True))
    pinned = any(axis in coarse.spec.replicated for _, axes in pairs for axis in axes)
    return not pinned and all(b == a[: len(b)] for b, a in pairs) and any(b != a for b, a in pairs)


class Undivided(GraphCall):
    """What devices compute together in a function with derivatives of its own.

    Those speak of one device's piece: from outside, where all pieces are seen, nobody can use them.
    """

    reasons = {
        **GraphCall.reasons,
        **dict.fromkeys(("vjp", "jvp"), "its purpose is to refuse derivatives"),
    }

    def jvp(self, *args: Any, **params: Any) -> Any:
        raise self._refusal("jvp", params["name"])

    def vjp(self, *args: Any, **params: Any) -> Tangents:
        raise self._refusal("vjp", params["name"])

    def _refusal(self, rule: str, name: str) -> MissingRuleError:
        return MissingRuleError(
            f"{name}: no {rule} rule outside shard_map(…, manual=True): the function calls"
            " collectives, and its derivative is that of one device's piece"
            "\nhint: take the derivative inside the function that shard_map maps"
        )


undivided_op = Undivided()


def needs_devices(trace: Trace) -> bool:
    """Whether a subgraph asks for other devices' pieces, or which device it runs on."""
    return any(
        isinstance(node.op, NamedCollective)
        or node.op in (axis_index_op, axis_gather_op)
        or any(map(needs_devices, subgraphs(node.params)))
        for node in trace.nodes
    )


class OfPieces(Joint):
    """Values are pieces of which a function sees one; `step` is the handler's.

    Where a choice or a condition differs between devices, each goes its own way: inside `alone`
    the handler knows at which coordinates.
    """

    def __init__(
        self,
        step: Callable[[Any, tuple[Any, ...]], tuple[Any, ...]],
        alone: Callable[[Mapping[str, int]], AbstractContextManager[None]],
    ) -> None:
        self._step = step
        self._alone = alone

    def step(self, node: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._step(node, args)

    def pieces(self, x: Pieces) -> list[Tensor]:
        return list(x.parts.values())

    def again(self, x: Pieces, tensors: Iterator[Tensor]) -> Pieces:
        return x.map(lambda _: next(tensors))

    def whole(self, x: Pieces) -> Pieces:
        return x

    def matched(self, before: Pieces, after: Pieces) -> Pieces:
        return self.fitted(before, after)

    def fitted(self, x: Pieces, like: Pieces) -> Pieces:
        for axis in like.axes:
            x = varied(x, axis)
        return x

    def switch(self, op: Any, args: Values, params: dict[str, Any]) -> tuple[Any, ...]:
        if not args[0].axes:
            return super().switch(op, args, params)
        return self._apart(super().switch, args[0].axes, op, args, params)

    def while_loop(self, op: Any, args: Values, params: dict[str, Any]) -> tuple[Any, ...]:
        axes = self._deciding(args, params)
        if not axes:
            return super().while_loop(op, args, params)
        return self._apart(super().while_loop, axes, op, args, params)

    def inline(self, op: Any, args: Values, params: dict[str, Any]) -> tuple[Any, ...]:
        if type(op).vjp is GraphCall.vjp:
            return super().inline(op, args, params)
        made: list[Pieces] = []

        def joint(*tensors: Tensor) -> tuple[Tensor, ...]:
            made[:] = self.replay(params["trace"], self.rebuilt(args, tensors))
            return tuple(self.flat(made))

        flat = self.flat(args)
        captures, (trace,) = retrace(joint, places=places(flat))
        found = call_multiple(undivided_op, (*captures, *flat), {"trace": trace, "name": op.name})
        return tuple(self.rebuilt(made, found))

    def _deciding(self, args: Values, params: dict[str, Any]) -> MeshAxes:
        """The mesh axes along which the condition of a loop may differ."""
        fixed, carry = args[: params["consts"]], args[params["consts"] :]
        given = [*fixed, *self._carries(params["body"], fixed, carry, ())]
        found: list[Pieces] = []

        def ask(*tensors: Tensor) -> tuple[Tensor, ...]:
            found[:] = self.replay(params["condition"], self.rebuilt(given, tensors))
            return tuple(self.flat(found))

        with unlogged():
            retrace(ask, places=places(self.flat(given)))
        return found[0].axes

    def _apart(
        self, run: Rule, axes: MeshAxes, op: Any, args: Values, params: dict[str, Any]
    ) -> tuple[Any, ...]:
        """An op that devices along some mesh axes perform differently, each for itself."""
        mesh, made = args[0].mesh, {}
        for place in local_coordinates(mesh, axes):
            here = dict(zip(axes, place, strict=True))
            with self._alone(here):
                made[place] = run(op, [x.only(here) for x in args], params)

        def joined(results: Sequence[Pieces]) -> Pieces:
            held = dict(zip(made, results, strict=True))
            names = {*axes, *(axis for each in results for axis in each.axes)}
            return Pieces.build(mesh, names, lambda at: held[tuple(at[a] for a in axes)].at(at))

        return tuple(map(joined, zip(*made.values(), strict=True)))


joint_rules.update(OfLayouts().rules())
