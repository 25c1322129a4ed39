"""Automatic vectorisation: `vmap` runs a function once on tensors that hide a batch axis."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeAlias

from weft.core.common.handler import Handler, current, installed
from weft.core.common.parameters import as_flag, as_function, as_integer, shown
from weft.core.common.slots import public
from weft.core.common.source import describe, user_position
from weft.core.common.trees import prefix_leaves, tree_flatten, tree_map, tree_unflatten
from weft.core.common.types import TensorType
from weft.core.tensor.convert import PYTHON_SCALARS, to_tensor
from weft.core.tensor.impl import TensorImpl, check_running
from weft.core.tensor.number import Number
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import ArgumentError, AxisError, ConcretizationError, ShapeError, ShardingError
from weft.ops.communication.layout import spread_over
from weft.ops.creation import arange
from weft.ops.families import broadcast
from weft.ops.indexing import getitem
from weft.ops.named_axis import axis_gather_op, axis_index_op, gathers, names_of
from weft.ops.view.join import stack
from weft.ops.view.reshape import reshape
from weft.ops.view.transpose import moveaxis

AxisSpec: TypeAlias = Any  # an axis, None (not mapped), or a tree of them that is a prefix
PLAIN = (*PYTHON_SCALARS, str)  # arguments that are no arrays


class Vmap(Handler):
    """Carries a hidden leading axis. Ops treat leading axes as batch, so no op is special."""

    hides_axis = True

    def __init__(self, size: int, axis_name: str | None = None, spmd_axis_name: Any = None) -> None:
        super().__init__()
        self.size = size
        self.axis_name = axis_name
        self.spmd_axis_name = spmd_axis_name

    def handle(self, op: Any, args: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
        if op in (axis_gather_op, axis_index_op) and params["axis"] == self.axis_name:
            return self._named(op, args)
        hidden = [a._impl.owner is self for a in args]
        if not any(hidden) and not gathers(params, self.axis_name):
            return self.outside(op, args, params)
        opened = tuple([a._impl.payload if h else a for a, h in zip(args, hidden, strict=True)])
        if op.breaks_law:
            return self._by_rule(op, opened, hidden, params)
        if len(args) > 1:
            with installed(self.outer):
                opened = self._aligned(op, args, opened, hidden, params)
        result = self.outside(op, opened, params)
        return tuple(map(self.hide, result)) if isinstance(result, tuple) else self.hide(result)

    def _by_rule(
        self, op: Any, opened: tuple[Tensor, ...], hidden: list[bool], params: dict[str, Any]
    ) -> Any:
        """Ops with subgraphs say themselves what a batch of them is."""
        token = _batching.set(self)
        try:
            with installed(self.outer):
                results, mapped = op.batch(self.size, opened, hidden, **params)
        finally:
            _batching.reset(token)
        made = tuple(self.hide(r) if m else r for r, m in zip(results, mapped, strict=True))
        return made if op.multiple else made[0]

    def _named(self, op: Any, args: tuple[Tensor, ...]) -> Tensor:
        """The ops that see this axis as a whole: here it is an ordinary one."""
        with installed(self.outer):
            if op is axis_index_op:
                return self.hide(arange(self.size))
            return self.show(args[0])

    def _aligned(
        self, op: Any, args: Any, opened: Any, hidden: list[bool], params: dict[str, Any]
    ) -> tuple[Tensor, ...]:
        """Put the hidden axis before all leading axes: an operand that lacks some gets them."""
        leads = op.index(*(a.type for a in args), **params).leads
        top = max(leads)
        full: tuple[int, ...] = ()
        for a, lead in zip(args, leads, strict=True):
            if lead == top:
                full = a.shape[:lead]
        return tuple(
            _insert(x, full[: top - lead]) if h and lead < top else x
            for x, h, lead in zip(opened, hidden, leads, strict=True)
        )

    def hide(self, x: Tensor) -> Tensor:
        """A tensor that shows `x` without its leading axis."""
        kind = TensorType(x.shape[1:], x.dtype)
        return Tensor(TensorImpl.owned(kind, x.device, self, x))

    def show(self, x: Tensor) -> Tensor:
        """`x` with its batch axis in front; a value that does not vary is repeated."""
        if x._impl.owner is self:
            result: Tensor = x._impl.payload
            return result
        return broadcast(x, (self.size, *x.shape))

    def primal(self, payload: Tensor) -> Tensor:
        return payload

    def read(self, payload: Tensor) -> Any:
        check_running(self)
        raise ConcretizationError(
            f"vmap: a value was read inside a mapped function, at {describe(user_position(2))}:"
            f" it stands for {self.size} values at once"
            "\nhint: use wf.where or wf.cond, or vmap(f, loop=True) to run once for each slice"
        )


_batching: ContextVar[Vmap | None] = ContextVar("weft_batching", default=None)


@public
def vmap_again(
    function: Callable[..., Any], in_axes: AxisSpec, out_axes: AxisSpec, size: int
) -> Callable[..., Any]:
    """`vmap` for batching rules: the level that asks for the rule lends its axis name."""
    level = _batching.get()
    name = None if level is None else level.axis_name
    return vmap(function, in_axes, out_axes, axis_size=size, axis_name=name)


def _insert(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Repeat along new axes after the first."""
    opened = reshape(x, (x.shape[0], *(1,) * len(sizes), *x.shape[1:]))
    return broadcast(opened, (x.shape[0], *sizes, *x.shape[1:]))


def incr_batch_dims(x: Tensor, level: Vmap) -> Tensor:
    """Hide the leading axis of `x` as the batch axis of `level`."""
    return level.hide(x)


def move_axis_to_batch_dims(x: Tensor, axis: int, level: Vmap) -> Tensor:
    """Hide an axis of `x` as the batch axis of `level`."""
    return incr_batch_dims(moveaxis(x, axis, 0), level)


@public
def with_batch_dims(tree: Any, count: int) -> Any:
    """Hide the `count` leading axes of every tensor as batch axes of the innermost `vmap` levels.

    For code inside mapped functions that builds batched tensors by hand.
    """
    count = as_integer("with_batch_dims", "count", count, low=0)
    levels: list[Vmap] = []
    handler = current()
    while handler is not None and len(levels) < count:
        if isinstance(handler, Vmap):
            levels.insert(0, handler)
        handler = handler.outer
    if len(levels) < count:
        raise ArgumentError(f"with_batch_dims: {count} axes, but {len(levels)} levels of vmap here")

    def hide(x: Tensor) -> Tensor:
        for level in levels:
            if x.shape[:1] != (level.size,):
                raise ShapeError(
                    f"with_batch_dims: shape {x.shape} does not lead with {level.size}"
                )
            x = incr_batch_dims(x, level)
        return x

    return tree_map(hide, tree)


@public
def vmap(
    function: Callable[..., Any] | None = None,
    in_axes: AxisSpec = 0,
    out_axes: AxisSpec = 0,
    *,
    axis_size: int | None = None,
    axis_name: str | None = None,
    spmd_axis_name: Any = None,
    loop: bool = False,
) -> Callable[..., Any]:
    """Map a function over an axis of its arguments: the function runs once, on batched tensors.

    `in_axes` and `out_axes` may be trees that are prefixes of the arguments and the result; None
    leaves a value out: the function gets numbers and text as they are, all else as tensors. Keyword
    arguments are mapped over axis 0. `axis_name` lets the function use `psum`, `all_gather`,
    `ppermute` and the like; `spmd_axis_name` spreads the mapped axis over axes of the mesh that
    arguments lie on, if they lie on one. `loop=True` runs the function once for each slice, so that
    Python may read values. Without a function it is a decorator.

    >>> vmap(lambda x, y: x * y, in_axes=(0, None))(to_tensor([1.0, 2.0]), 3.0).tolist()
    [3.0, 6.0]
    """
    if function is None:
        return lambda f: vmap(
            f,
            in_axes,
            out_axes,
            axis_size=axis_size,
            axis_name=axis_name,
            spmd_axis_name=spmd_axis_name,
            loop=loop,
        )
    as_function("vmap", "function", function)
    run = _run_slices if as_flag("vmap", "loop", loop) else _run_batched
    axis_size = None if axis_size is None else as_integer("vmap", "axis_size", axis_size, low=0)
    spread_axis = None if spmd_axis_name is None else names_of("vmap", spmd_axis_name)

    @wraps(function)
    def mapped(*args: Any, **keywords: Any) -> Any:
        leaves, structure = tree_flatten((args, keywords))
        axes = [
            *spread_axes(in_axes, args, "in_axes"),
            *spread_axes(0, keywords, "in_axes"),
        ]
        values = _as_values(leaves, axes)
        size = _batch_size(values, axes, axis_size)

        def call_function(inputs: list[Any]) -> Any:
            positional, named = tree_unflatten(structure, inputs)
            result = function(*positional, **named)
            return tree_map(lambda x: to_tensor(x, beside=tuple(values), op="vmap"), result)

        level = Vmap(size, axis_name, spread_axis)
        return run(level, call_function, values, axes, out_axes)

    return mapped


def vmap_directions(function: Callable[..., Any], out_axes: AxisSpec = 0) -> Callable[..., Any]:
    """`vmap` over the directions in which one function is differentiated at one point.

    The function runs once for all of them, so what it draws at random is the same for each.
    """

    def mapped(*directions: Tensor) -> Any:
        axes: list[int | None] = [0] * len(directions)
        level = Vmap(_batch_size(list(directions), axes, None))
        level.draws_apart = False
        run = lambda inputs: function(*inputs)  # noqa: E731
        return _run_batched(level, run, list(directions), axes, out_axes)

    return mapped


def _as_values(leaves: list[Any], axes: list[int | None]) -> list[Any]:
    """Arguments as tensors, but for numbers that are not mapped.

    Those take the dtype of the tensors that they meet.
    """
    return [
        x if axis is None and type(x) in PLAIN else to_tensor(x, beside=tuple(leaves), op="vmap")
        for x, axis in zip(leaves, axes, strict=True)
    ]


def _run_batched(
    level: Vmap, function: Any, values: list[Any], axes: list[int | None], out_axes: Any
) -> Any:
    mesh = _mesh_of(level, [x for x in values if isinstance(x, Tensor)])
    fronts = [
        x if axis is None else _spread(level, moveaxis(x, axis, 0), mesh)
        for x, axis in zip(values, axes, strict=True)
    ]
    with level:  # the function may assign to its arguments: they are handles made inside
        pairs = zip(fronts, axes, strict=True)
        result = function([_shared(x) if axis is None else level.hide(x) for x, axis in pairs])
    outputs, shape = tree_flatten(result)
    places = spread_axes(out_axes, result, "out_axes")
    shown = [_shown(level, x, axis) for x, axis in zip(outputs, places, strict=True)]
    return tree_unflatten(shape, shown)


def _shared(x: Any) -> Any:
    """A handle of its own for what all slices share, since the function may assign to it."""
    return x if isinstance(x, Number) or not isinstance(x, Tensor) else alias(x)


def _mesh_of(level: Vmap, tensors: list[Tensor]) -> Any:
    """The mesh that the map's axis is spread over: that of an argument with such axes."""
    names = level.spmd_axis_name
    if names is None:
        return None
    meshes = [t.sharding.mesh for t in tensors if t.sharding.mesh is not None]
    for mesh in meshes:
        if set(names) <= set(mesh.axis_names):
            return mesh
    if not meshes:
        return None
    known = [axis for mesh in meshes for axis in mesh.axis_names]
    wrong = next((axis for axis in names if axis not in known), names)
    raise ShardingError(
        f"vmap: spmd_axis_name: no argument lies on a mesh with {shown(wrong)}"
        f" (there are {', '.join(map(str, dict.fromkeys(meshes)))})"
        "\nhint: it names mesh axes; axis_name names the mapped axis for psum and the like"
    )


def _spread(level: Vmap, x: Tensor, mesh: Any) -> Tensor:
    return x if mesh is None else spread_over(x, level.spmd_axis_name, mesh)


def _run_slices(
    level: Vmap, function: Any, values: list[Any], axes: list[int | None], out_axes: Any
) -> Any:
    fronts = [
        x if axis is None else moveaxis(x, axis, 0) for x, axis in zip(values, axes, strict=True)
    ]
    rows: list[list[Tensor]] = []
    for i in range(level.size):
        pairs = zip(fronts, axes, strict=True)
        result = function([_shared(x) if a is None else getitem(x, i) for x, a in pairs])
        outputs, shape = tree_flatten(result)
        rows.append(outputs)
    if not rows:
        raise ShapeError("vmap: loop=True over an axis of size 0 cannot know the result's shape")
    places = spread_axes(out_axes, result, "out_axes")
    columns = [
        column[0] if axis is None else moveaxis(stack(column), 0, axis)
        for column, axis in zip(zip(*rows, strict=True), places, strict=True)
    ]
    return tree_unflatten(shape, columns)


def _shown(handler: Vmap, x: Tensor, axis: int | None) -> Tensor:
    if axis is None:
        if x._impl.owner is handler:
            raise AxisError("vmap: out_axes is None for a result that varies over the batch")
        return alias(x)
    if not -x.ndim - 1 <= axis <= x.ndim:
        raise AxisError(f"vmap: out_axes {axis} for a result of {x.ndim} axes and the batch axis")
    return moveaxis(handler.show(x), 0, axis)


def spread_axes(axes: AxisSpec, tree: Any, name: str) -> list[int | None]:
    """One axis for each leaf of `tree`, from a prefix tree of axes."""
    return prefix_leaves(
        f"vmap: {name}", axes, tree, lambda axis: axis is None or isinstance(axis, int)
    )


def _batch_size(values: list[Any], axes: list[int | None], given: int | None) -> int:
    sizes: dict[int, int] = {}
    for position, (t, axis) in enumerate(zip(values, axes, strict=True)):
        if axis is not None:
            if not -t.ndim <= axis < t.ndim:
                raise AxisError(
                    f"vmap: argument leaf {position}: axis {axis} of shape {t.shape}"
                    "\nhint: in_axes=None leaves an argument unmapped"
                )
            sizes[position] = t.shape[axis]
    if given is not None:
        sizes[-1] = given
    if not sizes:
        raise AxisError(
            "vmap: no argument is mapped over"
            "\nhint: one of in_axes must be an axis, or give axis_size"
        )
    if len(set(sizes.values())) > 1:
        listed = ", ".join(
            f"axis_size: {n}" if p < 0 else f"argument leaf {p}: {n}" for p, n in sizes.items()
        )
        raise ShapeError(f"vmap: mapped axes differ in size ({listed})")
    return next(iter(sizes.values()))
