"""Automatic vectorisation: `vmap` runs a function once on tensors that hide a batch axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from weft.core.common.handler import Handler, installed, perform
from weft.core.common.slots import public
from weft.core.common.source import describe, user_position
from weft.core.common.trees import tree_flatten, tree_map, tree_unflatten
from weft.core.common.types import TensorType
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.errors import AxisError, ConcretizationError, ShapeError, TreeError
from weft.ops.families import broadcast
from weft.ops.view.reshape import reshape
from weft.ops.view.transpose import moveaxis


class Vmap(Handler):
    """Carries a hidden leading axis. Ops treat leading axes as batch, so no op is special."""

    hides_axis = True

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def handle(self, op: Any, args: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
        hidden = [a._impl.owner is self for a in args]
        if not any(hidden):
            with installed(self.outer):
                return perform(op, args, params)
        opened = tuple(a._impl.payload if h else a for a, h in zip(args, hidden, strict=True))
        with installed(self.outer):
            if op.has("batch"):
                results, mapped = op.batch(self.size, opened, hidden, **params)
                made = tuple(self.hide(r) if m else r for r, m in zip(results, mapped, strict=True))
                return made if op.multiple else made[0]
            if len(args) > 1:
                opened = self._aligned(op, args, opened, hidden, params)
            result = perform(op, opened, params)
        if isinstance(result, tuple):
            return tuple(map(self.hide, result))
        return self.hide(result)

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
            return x._impl.payload  # type: ignore[no-any-return]
        return broadcast(x, (self.size, *x.shape))

    def primal(self, payload: Tensor) -> Tensor:
        return payload

    def read(self, payload: Tensor) -> Any:
        raise ConcretizationError(
            f"vmap: a value was read inside a mapped function, at {describe(user_position(2))}:"
            f" it stands for {self.size} values at once"
            "\nhint: use wf.where or wf.cond, or vmap(f, loop=True) to run once for each slice"
        )


def _insert(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Repeat along new axes after the first."""
    opened = reshape(x, (x.shape[0], *(1,) * len(sizes), *x.shape[1:]))
    return broadcast(opened, (x.shape[0], *sizes, *x.shape[1:]))


@public
def vmap(function: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """Map `function` over an axis of its arguments; `in_axes`/`out_axes` may be prefix trees.

    >>> vmap(lambda x, y: x * y, in_axes=(0, None))(to_tensor([1.0, 2.0]), 3.0).tolist()
    [3.0, 6.0]
    """

    @wraps(function)
    def mapped(*args: Any) -> Any:
        leaves, structure = tree_flatten(args)
        axes = spread_axes(in_axes, args, "in_axes")
        tensors = [to_tensor(x, op="vmap") for x in leaves]
        size = _batch_size(tensors, axes)
        with Vmap(size) as handler:
            assert isinstance(handler, Vmap)
            with installed(handler.outer):
                inputs = [
                    t if a is None else handler.hide(moveaxis(t, a, 0))
                    for t, a in zip(tensors, axes, strict=True)
                ]
            result = tree_map(to_tensor, function(*tree_unflatten(structure, inputs)))
        outputs, shape = tree_flatten(result)
        places = spread_axes(out_axes, result, "out_axes")
        return tree_unflatten(
            shape, [_shown(handler, x, a) for x, a in zip(outputs, places, strict=True)]
        )

    return mapped


def _shown(handler: Vmap, x: Tensor, axis: int | None) -> Tensor:
    if axis is None:
        if x._impl.owner is handler:
            raise AxisError("vmap: out_axes is None for a result that varies over the batch")
        return x
    return moveaxis(handler.show(x), 0, axis)


def spread_axes(axes: Any, tree: Any, name: str) -> list[int | None]:
    """One axis for each leaf of `tree`, from a prefix tree of axes."""
    leaves, structure = tree_flatten(tree)
    if axes is None or isinstance(axes, int):
        return [axes] * len(leaves)
    if isinstance(axes, list):
        axes = tuple(axes)
    found: list[int | None] = []

    def fill(axis: Any, part: Any) -> None:
        if axis is None or isinstance(axis, int):
            found.extend([axis] * len(tree_flatten(part)[0]))
        elif isinstance(axis, tuple | list) and isinstance(part, tuple | list):
            if len(axis) != len(part):
                raise TreeError(f"vmap: {name} has {len(axis)} entries for {len(part)} values")
            for a, p in zip(axis, part, strict=True):
                fill(a, p)
        elif isinstance(axis, dict) and isinstance(part, dict) and axis.keys() == part.keys():
            for key in sorted(part):
                fill(axis[key], part[key])
        else:
            raise TreeError(f"vmap: {name} {axis!r} is no prefix of {structure}")

    fill(axes, tree)
    return found


def _batch_size(tensors: list[Tensor], axes: list[int | None]) -> int:
    sizes = {}
    for position, (t, axis) in enumerate(zip(tensors, axes, strict=True)):
        if axis is not None:
            if not -t.ndim <= axis < t.ndim:
                raise AxisError(f"vmap: argument {position}: axis {axis} of shape {t.shape}")
            sizes[position] = t.shape[axis]
    if not sizes:
        raise AxisError("vmap: no argument is mapped over\nhint: one of in_axes must be an axis")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"argument {p}: {n}" for p, n in sizes.items())
        raise ShapeError(f"vmap: mapped axes differ in size ({listed})")
    return next(iter(sizes.values()))
