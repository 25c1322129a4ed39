"""L-BFGS: steps by the curvature that the last few gradients show, for smooth losses of all data.

`lbfgs` is an optimiser like the others, with a fixed rate; `minimize` searches along each step for
a length that suffices, and goes on until the gradient is small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import weft as wf
from weft.core.common.parameters import as_function, as_integer, as_real, shown
from weft.core.common.trees import tree_map
from weft.errors import DifferentiationError, DTypeError
from weft.optim.steps import Rate, scale_by_rate
from weft.optim.transform import (
    Transform,
    chain,
    first_count,
    needed,
    remade,
    widened,
    with_state,
)


class Curvature(NamedTuple):
    """The last moves and the changes of the gradient along them, newest last; 1 / their products.

    A row with weight 0 has not been filled yet. `scale` is the newest estimate of 1 / curvature.
    """

    moves: wf.Tensor
    changes: wf.Tensor
    weights: wf.Tensor
    scale: wf.Tensor


class LbfgsState(NamedTuple):
    """Steps taken, where the last one began and the gradient there, and what has been learned."""

    steps: wf.Tensor
    point: wf.Tensor
    gradient: wf.Tensor
    curvature: Curvature


class MinimizeResult(NamedTuple):
    """Where the search ended, value and gradient there, steps taken, and whether it got there."""

    x: Any
    fun: wf.Tensor
    jac: Any
    steps: wf.Tensor
    success: wf.Tensor


@remade
def lbfgs(learning_rate: Rate = 1.0, memory: int = 10) -> Transform:
    """L-BFGS without a line search, as torch's: for gradients of one and the same function.

    The first step has length `learning_rate` at most. `minimize` is safer where values are cheap.
    """
    return chain(scale_by_lbfgs(memory), scale_by_rate(learning_rate))


@remade
def scale_by_lbfgs(memory: int = 10) -> Transform:
    """Multiply by an estimate of the inverse Hessian that the last `memory` steps give."""
    rows = as_integer("scale_by_lbfgs", "memory", memory, 1)

    def init(params: Any) -> LbfgsState:
        flat, _ = wf.tree_ravel(tree_map(widened, params))
        zero = wf.zeros_like(flat)
        return LbfgsState(first_count(params), zero, zero, _nothing(flat, rows))

    @with_state("scale_by_lbfgs", LbfgsState)
    def update(gradients: Any, state: LbfgsState, params: Any = None) -> tuple[Any, Any]:
        point, _ = wf.tree_ravel(tree_map(widened, needed("scale_by_lbfgs", params)))
        gradient, restore = wf.tree_ravel(tree_map(widened, gradients))
        move, change = point - state.point, gradient - state.gradient
        is_first = state.steps == 0
        known = _learned(state.curvature, move, change, is_first)
        careful: Any = gradient * wf.minimum(1.0, 1 / wf.sum(wf.abs(gradient)))
        moved = wf.where(is_first, careful, _turned(known, gradient))
        return restore(moved), LbfgsState(state.steps + 1, point, gradient, known)

    return Transform(init, update)


def _nothing(flat: Any, rows: int) -> Curvature:
    shape = (rows, flat.shape[0])
    empty = wf.zeros(shape, dtype=flat.dtype, device=flat.device)
    weights = empty[:, 0] if shape[1] else wf.zeros(rows, device=flat.device)
    return Curvature(empty, empty, weights, wf.ones_like(flat.sum()))


def _learned(known: Curvature, move: Any, change: Any, is_first: Any = False) -> Curvature:
    """With one more pair, unless it shows no positive curvature."""
    product = wf.vecdot(move, change)
    bends = product > 1e-10 * wf.vecdot(change, change)
    bends = wf.where(is_first, False, bends)
    safe = wf.where(bends, product, 1)

    def pushed(rows: Any, row: Any) -> Any:
        return wf.where(bends, wf.concat([rows[1:], row[None]]), rows)

    return Curvature(
        pushed(known.moves, move),
        pushed(known.changes, change),
        pushed(known.weights, 1 / safe),
        wf.where(bends, safe / wf.where(bends, wf.vecdot(change, change), 1), known.scale),
    )


def _turned(known: Curvature, gradient: Any) -> Any:
    """The gradient times the inverse Hessian (Nocedal 1980): back through the pairs, and forth."""

    def back(q: Any, pair: Any) -> Any:
        move, change, weight = pair
        share = weight * wf.vecdot(move, q)
        return q - share * change, share

    def forth(r: Any, pair: Any) -> Any:
        move, change, weight, share = pair
        return r + (share - weight * wf.vecdot(change, r)) * move, None

    pairs = (known.moves, known.changes, known.weights)
    q, shares = wf.scan(back, gradient, pairs, reverse=True)
    return wf.scan(forth, known.scale * q, (*pairs, shares))[0]


def minimize(
    function: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...] = (),
    *,
    tol: float = 1e-5,
    maxiter: int | None = None,
    memory: int = 10,
) -> MinimizeResult:
    """Search for a minimum of `function(x, *args)` from `x0`, a tensor or a tree, by L-BFGS.

    It ends when no part of the gradient exceeds `tol` (`success`), after `maxiter` steps (200 for
    each number sought), or where no step leads down. It can be compiled and mapped; it has no
    derivative in reverse mode, as loops of unknown length have none.

    >>> result = minimize(lambda x: ((x - 3.0) ** 4).sum(), wf.zeros(2), tol=1e-6)
    >>> bool(result.success), [round(value, 1) for value in result.x.tolist()]
    (True, [3.0, 3.0])
    """
    as_function("minimize", "function", function)
    tol = as_real("minimize", "tol", tol, 0, decides=True)
    start, restore = wf.tree_ravel(x0)
    if not wf.isdtype(start.dtype, "real floating"):
        raise DTypeError(f"minimize: x0: expected real floats, got {start.dtype}")
    most = 200 * start.size if maxiter is None else as_integer("minimize", "maxiter", maxiter, 0)
    rows = as_integer("minimize", "memory", memory, 1)

    def value(flat: Any) -> Any:
        found = function(restore(flat), *args)
        if not isinstance(found, wf.Tensor) or found.shape != ():
            raise DifferentiationError(
                f"minimize: function: expected a scalar result, got {shown(found)}"
            )
        return wf.astype(found, start.dtype)

    slope = wf.value_and_grad(value)

    def proceeds(state: Any) -> Any:
        _, _, gradient, _, count, stuck = state
        steep = wf.any(wf.abs(gradient) > tol)
        return wf.logical_and(wf.logical_and(steep, count < most), wf.logical_not(stuck))

    def step(state: Any) -> Any:
        x, height, gradient, known, count, _ = state
        first = wf.minimum(1.0, 1 / wf.sum(wf.abs(gradient)))
        turned = wf.where(known.weights[-1] == 0, first * gradient, _turned(known, gradient))
        length, found, at = _search(slope, x, -turned, height, gradient)
        lower = length > 0
        move = -length * turned
        new = wf.where(lower, x + move, x)
        return new, found, at, _learned(known, move, at - gradient), count + 1, ~lower

    height, gradient = slope(start)
    count, stuck = (wf.tensor(first, device=start.device) for first in (0, False))
    state = (start, height, gradient, _nothing(start, rows), count, stuck)
    x, height, gradient, _, count, _ = wf.while_loop(proceeds, step, state)
    success = wf.all(wf.abs(gradient) <= tol)
    return MinimizeResult(restore(x), height, restore(gradient), count, success)


def _search(slope: Any, x: Any, way: Any, height: Any, gradient: Any) -> Any:
    """A length that leads down far enough and to a flatter place (Wolfe), by doubling and halving.

    Gives length, value and gradient there; the length is 0 where there is none.
    """
    incline = wf.vecdot(gradient, way)
    slack = 4 * wf.finfo(x.dtype).eps * wf.abs(height)  # what rounding alone may do to a value

    def proceeds(state: Any) -> Any:
        return wf.logical_and(wf.logical_not(state[5]), state[6] < 40)

    def step(state: Any) -> Any:
        low, high, length, *_, count = state
        value, at = slope(x + length * way)
        # Not "above", but "not below": NaN is too far, too.
        below = value <= height + 1e-4 * length * incline + slack
        flat = wf.vecdot(at, way) >= 0.9 * incline
        low = wf.where(below, length, low)
        high = wf.where(below, high, length)
        following = wf.where(wf.isfinite(high), (low + high) / 2, 2 * length)
        done = wf.logical_and(below, flat)
        return low, high, wf.where(done, length, following), value, at, done, count + 1

    zero = wf.zeros_like(height)
    done, count = (wf.tensor(first, device=x.device) for first in (False, 0))
    state = (zero, zero + wf.inf, zero + 1, height, gradient, done, count)
    _, _, length, value, at, done, _ = wf.while_loop(proceeds, step, state)
    downhill = wf.logical_and(done, incline < 0)
    return (
        wf.where(downhill, length, 0),
        wf.where(downhill, value, height),
        wf.where(downhill, at, gradient),
    )


__all__ = [
    "Curvature",
    "LbfgsState",
    "MinimizeResult",
    "lbfgs",
    "minimize",
    "scale_by_lbfgs",
]
