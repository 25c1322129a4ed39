"""Forward-mode differentiation: `jvp`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.common import dtypes
from weft.core.common.handler import Handler, installed, perform
from weft.core.common.slots import public
from weft.core.common.trees import tree_flatten, tree_map, tree_unflatten
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.errors import DTypeError, ShapeError, TreeError
from weft.ops.creation import zeros_like
from weft.ops.families import broadcast
from weft.transforms.vjp import differentiable


class Jvp(Handler):
    """Pairs each value with its tangent; a tensor it does not own has tangent zero."""

    def handle(self, op: Any, args: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
        pairs = [self.open(a) for a in args]
        primals = tuple(p for p, _ in pairs)
        tangents = tuple(t for _, t in pairs)
        with installed(self.outer):
            result = perform(op, primals, params)
            outs = result if isinstance(result, tuple) else (result,)
            if all(t is None for t in tangents) or not any(
                dtypes.is_inexact(o.dtype) for o in outs
            ):
                return result
            pushed = op.jvp(primals, tangents, result, **params)
            moved = pushed if isinstance(pushed, tuple) else (pushed,)
            made = tuple(map(self.pair, outs, moved))
        return made if isinstance(result, tuple) else made[0]

    def pair(self, primal: Tensor, tangent: Tensor | None) -> Tensor:
        """A tensor that stands for `primal` and carries `tangent`."""
        if tangent is None or not dtypes.is_inexact(primal.dtype):
            return primal
        payload = (primal, broadcast(tangent, primal.shape))
        return Tensor(TensorImpl.owned(primal.type, primal.device, self, payload))

    def open(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Value and tangent of `x`."""
        return x._impl.payload if x._impl.owner is self else (x, None)

    def primal(self, payload: tuple[Tensor, Tensor]) -> Tensor:
        return payload[0]


@public
def jvp(function: Callable[..., Any], primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Push `tangents` through `function` at `primals`: gives (result, tangent of the result).

    >>> value, slope = jvp(lambda x: x * x, (3.0,), (1.0,))
    >>> slope.item()
    6.0
    """
    primals = primals if isinstance(primals, tuple | list) else (primals,)
    tangents = tangents if isinstance(tangents, tuple | list) else (tangents,)
    points, structure = tree_flatten(tuple(primals))
    moves, other = tree_flatten(tuple(tangents))
    if structure != other:
        raise TreeError(f"jvp: tangents {other} do not match primals {structure}")
    with Jvp() as handler:
        assert isinstance(handler, Jvp)
        with installed(handler.outer):
            pairs = [
                _checked_pair(i, p, t) for i, (p, t) in enumerate(zip(points, moves, strict=True))
            ]
        duals = [handler.pair(p, t) for p, t in pairs]
        result = function(*tree_unflatten(structure, duals))
        outputs, shape = tree_flatten(tree_map(to_tensor, result))
    opened = [handler.open(x) for x in outputs]
    values = [p for p, _ in opened]
    pushed = [zeros_like(p) if t is None else t for p, t in opened]
    return tree_unflatten(shape, values), tree_unflatten(shape, pushed)


def _checked_pair(position: int, primal: Any, tangent: Any) -> tuple[Tensor, Tensor]:
    point, move = differentiable(primal, "jvp"), to_tensor(tangent, op="jvp")
    if point.shape != move.shape:
        raise ShapeError(
            f"jvp: tangent {position} has shape {move.shape}, its primal {point.shape}"
        )
    if point.dtype != move.dtype:
        if isinstance(tangent, Tensor):
            raise DTypeError(
                f"jvp: tangent {position} has dtype {move.dtype}, its primal {point.dtype}"
            )
        move = move.astype(point.dtype)  # type: ignore[attr-defined]
    return point, move
