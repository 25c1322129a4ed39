"""Collectives by the name of a mesh axis, for bodies that see one device's piece at a time.

Inside `shard_map(f, …, manual=True)` a tensor is one piece; these ops combine it with those of the
other devices along named axes. Each is a linear map of the pieces of all devices, so its cotangent
rule is the transposed collective.
"""

from __future__ import annotations

from operator import index
from typing import Any

from weft.core.common.factors import Factors
from weft.core.common.parameters import shown
from weft.core.common.slots import FUNCTIONS
from weft.core.common.types import TensorType
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.ops.base import Linear, Operation, Tangents, call
from weft.ops.families import cast
from weft.ops.named_axis import unbound

_REASONS = {
    "kernel": "moves pieces between devices",
    "examples": "needs the devices of a mesh",
}


class NamedCollective(Operation):
    """Combines a piece with the pieces of other devices along the mesh axes `axes`."""

    linear = Linear.JOINTLY
    work = 0
    widen = False
    factors = "... -> ..."
    reasons = _REASONS

    def eval(self, *args: Any, **params: Any) -> Any:
        raise unbound(self.name, params["axes"][0])


class SumOver(NamedCollective):
    """The sum of all pieces, the same on every device."""

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (call(self, (ct,), params),)


class ReduceOver(NamedCollective):
    """The largest, smallest or product of all pieces (`kind`), the same on every device."""

    linear = Linear.NO

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        (x,), (t,) = primals, tangents
        weight = self._weight(x, out, params)
        return call(sum_over_op, (t * weight,), {"axes": params["axes"]})

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        (x,) = primals
        total = call(sum_over_op, (ct,), {"axes": params["axes"]})
        return (total * self._weight(x, out, params),)

    def _weight(self, x: Any, out: Any, params: dict[str, Any]) -> Any:
        """How much each piece moves the result."""
        if params["kind"] == "prod":
            return _product_of_others(x, params["axes"])
        hit = cast(FUNCTIONS["equal"](x, out), x.dtype)
        return hit / call(sum_over_op, (hit,), {"axes": params["axes"]})


def _product_of_others(x: Tensor, axes: tuple[str, ...]) -> Tensor:
    """The product of all pieces but this device's, which `out / x` is not where x is zero."""
    number, count = FUNCTIONS["asarray"](0), 1
    for axis in axes:
        size = FUNCTIONS["axis_size"](axis)
        number, count = number * size + FUNCTIONS["axis_index"](axis), count * size
    rows = FUNCTIONS["expand_dims"](x, axis=0)
    params = {"axes": axes, "axis": -rows.ndim, "count": count}
    pieces = call(join_over_op, (rows,), params)
    mine = FUNCTIONS["equal"](FUNCTIONS["arange"](count), number)
    mine = FUNCTIONS["reshape"](mine, (count, *(1,) * x.ndim))
    product: Tensor = FUNCTIONS["prod"](FUNCTIONS["where"](mine, 1, pieces), axis=0)
    return product


class JoinOver(NamedCollective):
    """All pieces behind each other along `axis`; `count` devices take part."""

    def index(self, x: TensorType, *, axes: Any, axis: int, count: int) -> Factors:
        return _resized(self, x, {axis: x.shape[axis] * count})

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (call(sum_part_over_op, (ct,), params),)


class SumPartOver(NamedCollective):
    """This device's part, along `axis`, of the sum of all pieces."""

    def index(self, x: TensorType, *, axes: Any, axis: int, count: int) -> Factors:
        return _resized(self, x, {axis: x.shape[axis] // count})

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (call(join_over_op, (ct,), params),)


class SwapOver(NamedCollective):
    """Send part j along `split` to device j; join what arrives along `axis`."""

    def index(self, x: TensorType, *, axes: Any, split: int, axis: int, count: int) -> Factors:
        if split == axis:
            return _resized(self, x, {})
        sizes = {split: x.shape[split] // count, axis: x.shape[axis] * count}
        return _resized(self, x, sizes)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        back = {**params, "split": params["axis"], "axis": params["split"]}
        return (call(self, (ct,), back),)


class PermuteOver(NamedCollective):
    """Send each piece to another device: `pairs` of (from, to); who gets none has zeros."""

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        back = tuple((target, source) for source, target in params["pairs"])
        return (call(self, (ct,), {**params, "pairs": back}),)


def _resized(op: Operation, x: TensorType, sizes: dict[int, int]) -> Factors:
    rank = x.rank
    last = max((-axis for axis in sizes), default=0)
    left = [f"i{k}" for k in range(last)]
    right = [f"o{k}" if k - last in sizes else f"i{k}" for k in range(last)]
    extents = {f"o{k}": sizes[k - last] for k in range(last) if k - last in sizes}
    changed = " ".join([*(n for n in left if n not in right), *extents])
    return Factors.parse(
        f"... {' '.join(left)} -> ... {' '.join(right)}", (rank,), extents, changed
    )


def checked_pairs(op: str, pairs: Any, count: int) -> tuple[tuple[int, int], ...]:
    """Pairs of (from, to) in which nobody sends or receives twice."""
    try:
        found = tuple((index(source), index(target)) for source, target in pairs)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{op}: expected pairs (from, to) of integers, got {shown(pairs)}"
        ) from error
    sources, targets = [s for s, _ in found], [t for _, t in found]
    legal = all(0 <= i < count for i in (*sources, *targets))
    if not legal or len(set(sources)) != len(sources) or len(set(targets)) != len(targets):
        raise ArgumentError(
            f"{op}: {list(found)} is no permutation of {count} devices"
            "\nhint: each device may send once and receive once"
        )
    return found


sum_over_op, reduce_over_op = SumOver(), ReduceOver()
join_over_op, sum_part_over_op = JoinOver(), SumPartOver()
swap_over_op, permute_over_op = SwapOver(), PermuteOver()
