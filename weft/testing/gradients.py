"""`check_grads`: derivatives against finite differences, in both modes, to any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.trees import tree_flatten, tree_map, tree_unflatten
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, WeftError
from weft.ops.creation import asarray
from weft.transforms.jvp import jvp
from weft.transforms.vjp import vjp

_STEP = {"float64": 1e-6, "float32": 2e-3, "complex128": 1e-6, "complex64": 2e-3}
_TOLERANCE = {"float64": 1e-6, "float32": 1e-2, "complex128": 1e-6, "complex64": 1e-2}


class GradientMismatch(WeftError, AssertionError):
    """A derivative rule disagrees with finite differences, or with the other mode."""


def check_grads(
    function: Callable[..., Any],
    args: Any,
    order: int = 1,
    modes: Sequence[str] = ("fwd", "rev"),
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
    seed: int = 0,
) -> None:
    """Raise unless the derivatives of `function` at `args` are right, up to `order`.

    Along one random direction, forward mode is compared with a central difference, and reverse mode
    with forward mode; higher orders check the derivative functions in the same way.
    """
    if order < 1 or not set(modes) <= {"fwd", "rev"} or not modes:
        raise ArgumentError(f"check_grads: order {order}, modes {modes} (modes are 'fwd', 'rev')")
    args = args if isinstance(args, tuple | list) else (args,)
    points = tree_map(to_tensor, tuple(args))
    rng = np.random.default_rng(seed)
    for mode in modes:
        _check(function, points, order, mode, atol, rtol, eps, rng)


def _check(
    function: Callable[..., Any],
    points: tuple[Any, ...],
    order: int,
    mode: str,
    atol: float | None,
    rtol: float | None,
    eps: float | None,
    rng: np.random.Generator,
) -> None:
    names = {x.dtype.name for x in tree_flatten(points)[0]}
    widest = max(names, key=lambda n: _STEP.get(n, 0))
    step = _STEP.get(widest, 2e-3) if eps is None else eps
    close = {
        "atol": _TOLERANCE.get(widest, 1e-2) if atol is None else atol,
        "rtol": _TOLERANCE.get(widest, 1e-2) if rtol is None else rtol,
    }
    move = tree_map(lambda x: _direction(x, rng), points)
    expected = _difference(function, points, move, step)
    if mode == "fwd":
        _, pushed = jvp(function, points, move)
        _compare("forward mode", pushed, expected, close)
    else:
        out, pullback = vjp(function, *points)
        ct = tree_map(lambda x: _direction(x, rng), out)
        pulled = pullback(ct)
        _compare("reverse mode", _inner(pulled, move), _inner(ct, expected), close)
    if order > 1:
        if mode == "fwd":
            following: Any = lambda *xs: jvp(function, xs, move)[1]  # noqa: E731
        else:
            following = lambda *xs: vjp(function, *xs)[1](ct)  # noqa: E731
        _check(following, points, order - 1, mode, atol, rtol, eps, rng)


def _direction(x: Tensor, rng: np.random.Generator) -> Tensor:
    made = rng.standard_normal(x.shape)
    if dtypes.is_complex(x.dtype):
        made = made + 1j * rng.standard_normal(x.shape)
    return asarray(made.astype(x.dtype))


def _difference(function: Any, points: Any, move: Any, step: float) -> Any:
    """A central difference, computed from values alone."""
    leaves, structure = tree_flatten(points)
    moves, _ = tree_flatten(move)

    def at(sign: float) -> Any:
        shifted = [
            asarray((x.host() + sign * step * t.host()).astype(x.dtype))
            for x, t in zip(leaves, moves, strict=True)
        ]
        return function(*tree_unflatten(structure, shifted))

    return tree_map(
        lambda up, down: (to_tensor(up).host() - to_tensor(down).host()) / (2 * step),
        at(1.0),
        at(-1.0),
    )


def _inner(left: Any, right: Any) -> float:
    """The real bilinear pairing of two trees."""
    pairs = zip(tree_flatten(left)[0], tree_flatten(right)[0], strict=True)
    return float(sum(np.real(np.sum(np.asarray(a) * np.asarray(b))) for a, b in pairs))


def _compare(what: str, found: Any, expected: Any, close: dict[str, float]) -> None:
    pairs = zip(tree_flatten(found)[0], tree_flatten(expected)[0], strict=True)
    for position, (a, b) in enumerate(pairs):
        left, right = np.asarray(a), np.asarray(b)
        if not np.allclose(left, right, rtol=close["rtol"], atol=close["atol"]):
            worst = np.max(np.abs(left - right))
            raise GradientMismatch(
                f"check_grads: {what} differs from finite differences at leaf {position}"
                f" by up to {worst:.3g} (tolerances {close})"
            )
