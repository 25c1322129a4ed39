"""Forward-mode differentiation: `jvp` and `linearize`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.common import dtypes
from weft.core.common.handler import Handler, installed
from weft.core.common.parameters import as_flag, as_function
from weft.core.common.slots import public
from weft.core.common.trees import tree_flatten, tree_map, tree_unflatten
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import Recorder
from weft.core.tensor.views import alias
from weft.errors import DifferentiationError, DTypeError, ShapeError, TreeError
from weft.ops.creation import zeros_like
from weft.ops.families import broadcast, cast
from weft.transforms.vjp import differentiable, differentiable_tree, tensor_tree


class Jvp(Handler):
    """Pairs each value with its tangent; a tensor it does not own has tangent zero."""

    differentiates = True

    def handle(self, op: Any, args: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
        pairs = [self.open(a) for a in args]
        primals = tuple(p for p, _ in pairs)
        tangents = tuple(t for _, t in pairs)
        result = self.outside(op, primals, params)
        outs = result if isinstance(result, tuple) else (result,)
        if all(t is None for t in tangents) or not any(dtypes.is_inexact(o.dtype) for o in outs):
            return result
        with installed(self.outer):
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
def jvp(
    function: Callable[..., Any], primals: Any, tangents: Any, has_aux: bool = False
) -> tuple[Any, ...]:
    """Push `tangents` through `function` at `primals`: gives (result, tangent of the result).

    A bare tensor is taken as a one-tuple. With `has_aux` the rest of the result comes third.

    >>> value, slope = jvp(lambda x: x * x, (3.0,), (1.0,))
    >>> slope.item()
    6.0
    """
    as_function("jvp", "function", function)
    has_aux = as_flag("jvp", "has_aux", has_aux)
    primals = primals if isinstance(primals, tuple | list) else (primals,)
    tangents = tangents if isinstance(tangents, tuple | list) else (tangents,)
    points, structure = tree_flatten(differentiable_tree(tuple(primals), "jvp"))
    moves, other = tree_flatten(tuple(tangents))
    if structure != other:
        raise TreeError(f"jvp: tangents {other} do not match primals {structure}")
    with Jvp() as handler:
        assert isinstance(handler, Jvp)
        with installed(handler.outer):
            pairs = [_checked(i, p, t) for i, (p, t) in enumerate(zip(points, moves, strict=True))]
        duals = [handler.pair(p, t) for p, t in pairs]
        result = function(*tree_unflatten(structure, duals))
        if has_aux and not (isinstance(result, tuple) and len(result) == 2):
            raise DifferentiationError(
                "jvp: has_aux is set, so a pair (result, auxiliary) is needed"
            )
        result, aux = result if has_aux else (result, None)
        outputs, shape = tree_flatten(tensor_tree(result, "jvp", *points))
    opened = [handler.open(x) for x in outputs]
    values = tree_unflatten(shape, [alias(p) for p, _ in opened])
    pushed = tree_unflatten(shape, [zeros_like(p) if t is None else alias(t) for p, t in opened])
    if has_aux:
        return values, pushed, tree_map(lambda x: _outside(handler, x), aux)
    return values, pushed


def _outside(handler: Jvp, x: Any) -> Any:
    return alias(handler.open(x)[0]) if isinstance(x, Tensor) else x


def _checked(position: int, primal: Any, tangent: Any) -> tuple[Tensor, Tensor]:
    point = differentiable(primal, "jvp")
    move = to_tensor(tangent, like=point.device, op="jvp")
    if point.shape != move.shape:
        raise ShapeError(
            f"jvp: tangent {position} has shape {move.shape}, its primal {point.shape}"
        )
    if point.dtype != move.dtype and isinstance(tangent, Tensor):
        raise DTypeError(
            f"jvp: tangent {position} has dtype {move.dtype}, its primal {point.dtype}"
            "\nhint: cast it with astype"
        )
    return point, cast(move, point.dtype)


@public
def linearize(
    function: Callable[..., Any], *primals: Any, has_aux: bool = False
) -> tuple[Any, ...]:
    """Evaluate `function` once; return the result and its derivative as a linear function.

    The linear function is recorded: calling it runs no user Python and repeats no primal work.

    >>> value, push = linearize(lambda x: x * x, 3.0)
    >>> push(2.0).item()
    12.0
    """
    as_function("linearize", "function", function)
    leaves, structure = tree_flatten(tree_map(lambda x: differentiable(x, "linearize"), primals))
    with Recorder(partial=True) as recorder:
        assert isinstance(recorder, Recorder)
        moves = tree_unflatten(structure, [recorder.input(x.type, x.device) for x in leaves])
        points = tree_unflatten(structure, leaves)
        value, pushed, *aux = jvp(function, points, moves, has_aux=has_aux)
        outputs, shape = tree_flatten(pushed)
    trace = recorder.finish(outputs, "linearized")

    def push(*tangents: Any) -> Any:
        given, other = tree_flatten(tangents)
        if other != structure:
            raise TreeError(f"linearize: tangents {other} do not match primals {structure}")
        pairs = zip(leaves, given, strict=True)
        moved = [_checked(i, p, t)[1] for i, (p, t) in enumerate(pairs)]
        return tree_unflatten(shape, [alias(x) for x in trace.replay(*moved)])

    return (value, push, *aux)
