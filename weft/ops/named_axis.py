"""Values of the whole batch inside a mapped function: `psum`, `pmean`, `pmax` over a named axis.

One primitive, `axis_gather`, gives all values of a named `vmap` axis; the rest is spelled with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.factors import Factors
from weft.core.common.handler import current, installed
from weft.core.common.parameters import shown
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.trees import tree_map
from weft.core.common.types import Array, TensorType
from weft.core.graph.trace import subgraphs
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShardingError
from weft.ops import reduction
from weft.ops.base import Linear, Operation, Tangents, call
from weft.ops.view.transpose import moveaxis

_LAWLESS = {"kernel": "exists only inside a mapped function", "examples": "needs a named axis"}


class AxisGather(Operation):
    """All values of a named axis, along a new leading axis of `size`; the same for every slice."""

    linear = Linear.JOINTLY
    reasons = _LAWLESS

    def index(self, x: TensorType, *, axis: str, size: int) -> Factors:
        names = " ".join(f"i{k}" for k in range(x.rank))
        return Factors.parse(f"{names} -> g {names}", (x.rank,), {"g": size})

    def eval(self, x: Array, *, axis: str, size: int) -> Array:
        raise unbound(self.name, axis)

    def batch(self, size: int, args: Any, hidden: Any, /, **params: Any) -> Any:
        gathered = call(self, args, params)  # another level's axis stays in front
        return (moveaxis(gathered, 1, 0),), (True,)

    def vjp(self, primals: Any, out: Any, ct: Any, *, axis: str, size: int) -> Tangents:
        everywhere = call(self, (ct,), {"axis": axis, "size": size})
        total = reduction.sum(everywhere, axis=0)
        return (total[axis_index(axis)],)


class AxisIndex(Operation):
    """The position of the current slice along a named axis."""

    reasons = {**_LAWLESS, "vjp": "has no operands", "jvp": "has no operands"}

    def index(self, **params: Any) -> Factors:
        return Factors.parse("-> ", ())

    def dtype(self, *found: Any, **params: Any) -> Any:
        return dtypes.int64

    def eval(self, *, axis: str, size: int, device: Any) -> Array:
        raise unbound(self.name, axis)


axis_gather_op, axis_index_op = AxisGather(), AxisIndex()


def unbound(op: str, axis: str) -> ArgumentError:
    """The error for a name that no enclosing `vmap` has."""
    names = []
    handler = current()
    while handler is not None:
        name = getattr(handler, "axis_name", None)
        if name is not None:
            names.append(repr(name))
        mesh = getattr(handler, "piece_mesh", None)
        if mesh is not None:
            names += map(repr, mesh.axis_names)
        handler = handler.outer
    known = f"there are {', '.join(names)}" if names else "no mapped axis has a name here"
    return ArgumentError(
        f"{op}: no axis is called {axis!r} ({known})"
        "\nhint: vmap(f, axis_name=…), or shard_map(f, mesh, …, manual=True)"
    )


def _holder(op: str, axis: str) -> tuple[Any, int]:
    """The innermost handler that has an axis of this name, and the axis's size."""
    handler: Any = current()
    while handler is not None:
        if getattr(handler, "axis_name", None) == axis:
            return handler, handler.size
        mesh = getattr(handler, "piece_mesh", None)
        if mesh is not None and axis in mesh.axis_names:
            return handler, mesh.axis_size(axis)
        handler = handler.outer
    raise unbound(op, axis)


def named_axis_size(op: str, axis: str) -> int:
    """The size of a named axis of an enclosing `vmap`."""
    return _holder(op, axis)[1]


def gathers(params: Mapping[str, Any], axis: str | None) -> bool:
    """Whether subgraphs among a call's parameters ask for all values of a named axis."""
    return axis is not None and any(
        (node.op is axis_gather_op and node.params["axis"] == axis) or gathers(node.params, axis)
        for trace in subgraphs(params)
        for node in trace.nodes
    )


def names_of(op: str, axes: Any) -> tuple[str, ...]:
    """The name of an axis, or several, as a tuple; each may be named once."""
    names = (axes,) if isinstance(axes, str) else axes
    if not isinstance(names, tuple | list) or not all(isinstance(axis, str) for axis in names):
        raise ShardingError(f"{op}: expected the name of an axis or several, got {shown(axes)}")
    if len(set(names)) != len(names):
        raise ShardingError(f"{op}: {shown(axes)} names an axis twice")
    return tuple(names)


def is_mapped(axis: str) -> bool:
    """Whether an enclosing `vmap` has an axis of this name."""
    handler: Any = current()
    while handler is not None and getattr(handler, "axis_name", None) != axis:
        handler = handler.outer
    return handler is not None


def reduced_over(name: str, tree: Any, axes: Any, kind: str, reduce: Any) -> Any:
    """A reduction over mapped axes, and over the devices along mesh axes."""
    names = names_of(name, axes)
    for axis in names:
        named_axis_size(name, axis)
    for axis in filter(is_mapped, names):
        tree = tree_map(lambda x, axis=axis: reduce(gather_axis(name, x, axis), axis=0), tree)
    others = tuple(axis for axis in names if not is_mapped(axis))
    return tree_map(lambda x: FUNCTIONS["all_reduce"](x, others, kind), tree) if others else tree


@public
def axis_size(axis_name: str, /) -> int:
    """How many slices a named axis has."""
    return named_axis_size("axis_size", axis_name)


@public
def axis_index(axis_name: str, /) -> Tensor:
    """The position of the current slice along a named axis."""
    holder, size = _holder("axis_index", axis_name)
    device = to_tensor(np.zeros(())).device
    params = {"axis": axis_name, "size": size, "device": device}
    # Made at the level of a map, a loop's body captures it: what varies is among its operands.
    with installed(holder if holder.hides_axis else current()):
        result: Tensor = call(axis_index_op, (), params)
    return result


def gather_axis(op: str, x: Any, axis_name: str) -> Tensor:
    """All values of a named axis, stacked in front."""
    params = {"axis": axis_name, "size": named_axis_size(op, axis_name)}
    result: Tensor = call(axis_gather_op, (to_tensor(x, op=op),), params)
    return result


@public
def psum(tree: Any, axis_name: str | Sequence[str]) -> Any:
    """The sum over a named axis, or several, for every leaf.

    >>> from weft.transforms.vmap import vmap
    >>> vmap(lambda x: x / psum(x, "i"), axis_name="i")(to_tensor([1.0, 3.0])).tolist()
    [0.25, 0.75]
    """
    return reduced_over("psum", tree, axis_name, "sum", reduction.sum)


@public
def pmean(tree: Any, axis_name: str | Sequence[str]) -> Any:
    """The mean over a named axis, or several, for every leaf."""
    return reduced_over("pmean", tree, axis_name, "mean", FUNCTIONS["mean"])


@public
def pmax(tree: Any, axis_name: str | Sequence[str]) -> Any:
    """The maximum over a named axis, or several, for every leaf."""
    return reduced_over("pmax", tree, axis_name, "max", reduction.max)


@public
def pmin(tree: Any, axis_name: str | Sequence[str]) -> Any:
    """The minimum over a named axis, or several, for every leaf."""
    return reduced_over("pmin", tree, axis_name, "min", reduction.min)


__all__ = ["axis_index", "axis_size", "pmax", "pmean", "pmin", "psum"]
