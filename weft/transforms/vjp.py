"""Reverse-mode differentiation: `vjp`, `grad`, `value_and_grad`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from weft.core.autograd.tape import Tape, pull_back
from weft.core.common import dtypes
from weft.core.common.slots import public
from weft.core.common.trees import tree_flatten, tree_map, tree_unflatten
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import DifferentiationError, ShapeError, TreeError
from weft.ops.creation import ones_like, zeros_like


@public
def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Evaluate `function`; return its result and a function that pulls cotangents back.

    The pullback takes a cotangent of the result's structure and gives one cotangent for each
    argument. With `has_aux` the function returns (result, anything else), which comes third.
    """
    leaves, structure = tree_flatten(primals)
    with Tape() as tape:
        assert isinstance(tape, Tape)
        watched = [tape.watch(differentiable(x, "vjp")) for x in leaves]
        result = function(*tree_unflatten(structure, watched))
        result, aux = result if has_aux else (result, None)
        outputs, shape = tree_flatten(tree_map(to_tensor, result))
    roots = [tape.node(x) for x in outputs]
    sources = [tape.node(x) for x in watched]
    values = [tape.open(x) for x in outputs]

    def pullback(cotangent: Any) -> Any:
        given, other = tree_flatten(cotangent)
        if other != shape:
            raise TreeError(f"vjp: cotangent structure {other} differs from the result's {shape}")
        fitted = [_fitted(ct, value) for ct, value in zip(given, values, strict=True)]
        found = pull_back(roots, fitted, sources)
        filled = [
            zeros_like(tape.open(x)) if ct is None else ct
            for x, ct in zip(watched, found, strict=True)
        ]
        return tree_unflatten(structure, filled)

    primal_out = tree_unflatten(shape, values)
    if has_aux:
        outside = tree_map(lambda x: tape.open(x) if isinstance(x, Tensor) else x, aux)
        return primal_out, pullback, outside
    return primal_out, pullback


def differentiable(x: Any, name: str) -> Tensor:
    """`x` as a tensor that can carry a derivative, or an error with a hint."""
    tensor = to_tensor(x, op=name)
    if not dtypes.is_inexact(tensor.dtype):
        raise DifferentiationError(
            f"{name}: cannot differentiate with respect to {tensor.type}"
            "\nhint: integers and bools have no derivative; cast to a float, or leave the argument"
            " out with argnums"
        )
    return tensor


def _fitted(cotangent: Any, value: Tensor) -> Tensor:
    tensor = to_tensor(cotangent, op="vjp")
    if tensor.shape != value.shape:
        raise ShapeError(f"vjp: cotangent of shape {tensor.shape} for a result of {value.shape}")
    return tensor if tensor.dtype == value.dtype else tensor.astype(value.dtype)  # type: ignore[attr-defined, no-any-return]


@public
def value_and_grad(
    function: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns (value, gradient) of a scalar-valued function."""

    @wraps(function)
    def both(*args: Any, **keywords: Any) -> Any:
        chosen = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        if any(not -len(args) <= i < len(args) for i in chosen):
            raise DifferentiationError(
                f"grad: argnums {argnums} for {len(args)} positional arguments"
            )
        places = [i % len(args) for i in chosen]

        def of_chosen(*values: Any) -> Any:
            full = list(args)
            for place, value in zip(places, values, strict=True):
                full[place] = value
            return function(*full, **keywords)

        value, pullback, *aux = vjp(of_chosen, *(args[i] for i in places), has_aux=has_aux)
        gradients = pullback(_seed(value))
        gradient = gradients[0] if isinstance(argnums, int) else gradients
        return ((value, aux[0]), gradient) if has_aux else (value, gradient)

    return both


def _seed(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.shape != ():
        kind = value.type if isinstance(value, Tensor) else type(value).__name__
        raise DifferentiationError(
            f"grad: expected a scalar result, got {kind}\nhint: sum it, or use wf.vjp or wf.jacrev"
        )
    if not dtypes.is_floating(value.dtype):
        raise DifferentiationError(f"grad: expected a real float result, got {value.type}")
    return ones_like(value)


@public
def grad(
    function: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The gradient of a scalar-valued function with respect to the chosen arguments.

    >>> grad(lambda x: x * x)(3.0).item()
    6.0
    """
    both = value_and_grad(function, argnums, has_aux)

    @wraps(function)
    def gradient(*args: Any, **keywords: Any) -> Any:
        value, found = both(*args, **keywords)
        return (found, value[1]) if has_aux else found

    return gradient
