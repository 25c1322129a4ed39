"""Pipeline parallelism: `gpipe` and `one_forward_one_backward`, from `vmap`, `ppermute` and `scan`.

The parameters of all stages are stacked along axis 0 and split over a mesh axis. At each tick every
stage works on another microbatch, and what it made moves on to its neighbour. While a pipeline
fills or drains, stages work on other microbatches, and nothing that they make is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.common.parameters import as_function, shown
from weft.core.common.slots import public
from weft.core.common.spec import DeviceMesh
from weft.core.common.trees import tree_leaves, tree_map
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ops.communication.collectives import ppermute
from weft.ops.communication.layout import spread_over
from weft.ops.control.loops import scan
from weft.ops.creation import arange, ones, zeros_like
from weft.ops.elementwise.arithmetic import add, where
from weft.ops.elementwise.comparison import equal
from weft.ops.padding import pad
from weft.ops.reduction import sum as total_of
from weft.ops.view.broadcast import broadcast_to
from weft.ops.view.join import concat
from weft.transforms.vjp import value_and_grad, vjp
from weft.transforms.vmap import vmap

Stage = Callable[[Any, Any], Any]


@public
def gpipe(stage: Stage, params: Any, xs: Any, mesh: DeviceMesh, axis: str = "stage") -> Tensor:
    """Run all microbatches `xs` through the stages of a pipeline: the result of the last stage.

    `stage(params, x)` keeps the type of a microbatch `x`. Stage s works on microbatch t - s at tick
    t. It is differentiated like any function; its gradient runs the pipeline backwards.
    """
    pipe = _Pipe("gpipe", stage, params, xs, mesh, axis)

    def work(params: Any, number: Tensor, arrived: Tensor, new: Tensor) -> Any:
        return pipe.run(params, where(equal(number, 0), new, arrived))

    everywhere = vmap(work, (0, 0, 0, None), spmd_axis_name=axis)

    def tick(arrived: Tensor, new: Tensor) -> Any:
        made = everywhere(params, arange(pipe.stages, device=pipe.xs.device), arrived, new)
        return pipe.onwards(made), made

    made = scan(tick, pipe.first(), _delayed(pipe.xs, 0, pipe.fill))[1]
    last: Tensor = made[pipe.fill :, -1]
    return last


@public
def one_forward_one_backward(
    stage: Stage,
    loss: Callable[[Any, Any], Any],
    params: Any,
    xs: Any,
    targets: Any,
    mesh: DeviceMesh,
    axis: str = "stage",
) -> tuple[Tensor, Any]:
    """The sum of `loss(y, target)` over all microbatches, and its gradient by `params` (1F1B).

    At each tick every stage runs one microbatch forward and one backward: stage s the microbatch
    t - s, and the one whose input came 2 (stages - 1 - s) ticks before. Only inputs of the last
    2 stages - 1 ticks are kept; a stage runs forward again when its backward comes.
    """
    pipe = _Pipe("one_forward_one_backward", stage, params, xs, mesh, axis)
    as_function("one_forward_one_backward", "loss", loss)
    fill = pipe.fill

    def work(
        params: Any, number: Any, arrived: Any, cotangent: Any, kept: Any, row: tuple[Any, ...]
    ) -> Any:
        new, target, counts = row
        x = where(equal(number, 0), new, arrived)
        kept = concat([x[None], kept[:-1]])
        y = pipe.run(params, x)
        value, by_y = value_and_grad(loss)(y, target)
        # A cotangent of zero adds nothing to a gradient: so nothing else need be masked.
        cotangent = where(equal(number, fill), counts * by_y, cotangent)
        gradient, by_x = vjp(stage, params, kept[2 * (fill - number)])[1](cotangent)
        return y, by_x, kept, gradient, counts * value

    everywhere = vmap(work, (0, 0, 0, 0, 0, None), spmd_axis_name=axis)

    def tick(state: Any, row: Any) -> Any:
        arrived, cotangent, kept, gradients = state
        y, by_x, kept, more, value = everywhere(
            params, arange(pipe.stages, device=pipe.xs.device), arrived, cotangent, kept, row
        )
        return (pipe.onwards(y), pipe.back(by_x), kept, tree_map(add, gradients, more)), value

    rows = (
        _delayed(pipe.xs, 0, 2 * fill),
        tree_map(lambda t: _delayed(to_tensor(t, like=pipe.xs.device), fill, fill), targets),
        pad(ones(len(pipe.xs), dtype=pipe.xs.dtype, device=pipe.xs.device), (fill, fill)),
    )
    none = zeros_like(pipe.first())
    start = (pipe.first(), none, pipe.first(2 * fill + 1), tree_map(zeros_like, params))
    (_, _, _, gradients), values = scan(tick, start, rows)
    return total_of(values[:, -1]), gradients


class _Pipe:
    """The stages of a pipeline on a mesh axis, and the way from each to the next."""

    def __init__(
        self, op: str, stage: Stage, params: Any, xs: Any, mesh: DeviceMesh, axis: str
    ) -> None:
        self.op, self.stage = op, as_function(op, "stage", stage)
        if not isinstance(mesh, DeviceMesh):
            raise ArgumentError(f"{op}: expected a DeviceMesh, got {shown(mesh)}")
        self.mesh, self.axis = mesh, axis
        self.stages = mesh.axis_size(axis)
        self.fill = self.stages - 1
        self.xs = to_tensor(xs, op=op)
        if not self.xs.ndim or not len(self.xs):
            raise ShapeError(f"{op}: xs: expected microbatches along axis 0, got {self.xs.shape}")
        for leaf in tree_leaves(params):
            found = to_tensor(leaf, op=op).shape
            if found[:1] != (self.stages,):
                raise ShapeError(
                    f"{op}: params: shape {found} does not lead with {self.stages} stages"
                    "\nhint: stack the parameters of all stages along axis 0"
                )
        self._steps = [(s, s + 1) for s in range(self.fill)]

    def first(self, *sizes: int) -> Tensor:
        """The first microbatch at each stage, for ticks in which nothing has arrived there."""
        shape = (self.stages, *sizes, *self.xs.shape[1:])
        return spread_over(broadcast_to(self.xs[0], shape), self.axis, self.mesh)

    def run(self, params: Any, x: Tensor) -> Tensor:
        """What a stage makes of a microbatch, which the next stage must be able to take."""
        made: Tensor = to_tensor(self.stage(params, x), op=self.op)
        if made.type != x.type:
            raise ShapeError(
                f"{self.op}: stage: gives {made.type} for a microbatch {x.type}"
                "\nhint: all stages take and give one type; put first and last layers outside"
            )
        return made

    def onwards(self, x: Tensor) -> Tensor:
        """Hand what each stage made to the next."""
        return ppermute(x, self.axis, self._steps)

    def back(self, x: Tensor) -> Tensor:
        """Hand what each stage made to the one before."""
        return ppermute(x, self.axis, [(target, source) for source, target in self._steps])


def _delayed(xs: Tensor, before: int, after: int) -> Tensor:
    """The first row more often before, the last one after."""
    return pad(xs, [(before, after), *[(0, 0)] * (xs.ndim - 1)], mode="edge")


__all__ = ["gpipe", "one_forward_one_backward"]
