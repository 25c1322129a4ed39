"""Reverse-mode differentiation: `vjp`, `grad`, `value_and_grad`, `linear_transpose`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from weft.core.autograd.tape import Tape, pull_back
from weft.core.common import dtypes
from weft.core.common.parameters import as_flag, as_function, as_sequence, shown
from weft.core.common.slots import public
from weft.core.common.trees import (
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_paths,
    tree_unflatten,
)
from weft.core.common.types import TensorType
from weft.core.tensor.convert import PYTHON_SCALARS, to_tensor
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import is_type
from weft.core.tensor.views import alias
from weft.errors import ConversionError, DifferentiationError, ShapeError, TreeError
from weft.ops.creation import ones_like, zeros, zeros_like
from weft.ops.families import cast


@public
def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Evaluate `function`; return its result and a function that pulls cotangents back.

    The pullback takes a cotangent of the result's structure and gives one cotangent for each
    argument; it may be called many times. With `has_aux` the function returns (result, anything
    else), and the rest comes third.

    >>> value, pullback = vjp(lambda x: x * x, 3.0)
    >>> pullback(1.0)[0].item()
    6.0
    """
    as_function("vjp", "function", function)
    has_aux = as_flag("vjp", "has_aux", has_aux)
    points = differentiable_tree(primals, "vjp")
    leaves, structure = tree_flatten(points)
    with Tape() as tape:
        assert isinstance(tape, Tape)
        watched = [tape.watch(x) for x in leaves]
        sources = [tape.node(x) for x in watched]  # before the function may assign to them
        inputs = [tape.open(x) for x in watched]
        result = function(*tree_unflatten(structure, watched))
        result, aux = _split_aux(result, has_aux)
        outputs, shape = tree_flatten(tensor_tree(result, "vjp", *leaves))
    roots = [tape.node(x) for x in outputs]
    values = [alias(tape.open(x)) for x in outputs]

    def pullback(cotangent: Any) -> Any:
        given, other = tree_flatten(cotangent)
        if other != shape:
            raise TreeError(f"vjp: cotangent structure {other} differs from the result's {shape}")
        fitted = [_fitted(ct, value) for ct, value in zip(given, values, strict=True)]
        found = pull_back(roots, fitted, sources)
        pairs = zip(inputs, found, strict=True)
        own = [zeros_like(x) if ct is None else alias(ct) for x, ct in pairs]
        return tree_unflatten(structure, own)

    primal_out = tree_unflatten(shape, values)
    if has_aux:
        outside = tree_map(lambda x: alias(tape.open(x)) if isinstance(x, Tensor) else x, aux)
        return primal_out, pullback, outside
    return primal_out, pullback


def _split_aux(result: Any, has_aux: bool) -> tuple[Any, Any]:
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise DifferentiationError(
            "vjp: has_aux is set, so the function must return a pair (result, auxiliary)"
        )
    return result


def differentiable(x: Any, name: str, *beside: Any) -> Tensor:
    """`x` as a tensor that can carry a derivative, or an error with a hint."""
    tensor = to_tensor(x, beside=beside, op=name)
    if not dtypes.is_inexact(tensor.dtype):
        raise DifferentiationError(
            f"{name}: cannot differentiate with respect to {tensor.type}"
            "\nhint: integers and bools have no derivative; cast to a float, or leave the argument"
            " out with argnums"
        )
    return tensor


def differentiable_tree(tree: Any, name: str) -> Any:
    """`tree` with tensors for leaves; an error names the leaf that can carry no derivative."""
    leaves, structure = tree_flatten(tree)
    found = []
    for position, leaf in enumerate(leaves):
        try:
            found.append(differentiable(leaf, name, *leaves))
        except (ConversionError, DifferentiationError) as error:
            if len(leaves) == 1:
                raise
            path = tree_paths(tree)[position]
            raise type(error)(
                f"{name}: argument leaf {path}: {str(error).partition(': ')[2]}"
            ) from None
    return tree_unflatten(structure, found)


def tensor_tree(result: Any, name: str, *beside: Any) -> Any:
    """What a transformed function returned, with tensors for leaves; they follow its arguments."""

    def convert(leaf: Any) -> Tensor:
        try:
            return to_tensor(leaf, beside=beside)
        except ConversionError:
            raise ConversionError(
                f"{name}: the function returned {type(leaf).__name__}, not tensors"
                "\nhint: has_aux=True returns other values beside the result"
            ) from None

    return tree_map(convert, result)


def _fitted(cotangent: Any, value: Tensor) -> Tensor:
    tensor = to_tensor(cotangent, like=value.device, op="vjp")
    if tensor.shape != value.shape:
        raise ShapeError(f"vjp: cotangent of shape {tensor.shape} for a result of {value.shape}")
    if isinstance(cotangent, Tensor) and tensor.dtype != value.dtype:
        raise DifferentiationError(
            f"vjp: cotangent of dtype {tensor.dtype} for a result of {value.dtype}"
            "\nhint: cast it with astype"
        )
    return cast(tensor, value.dtype)


@public
def value_and_grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    argnames: str | Sequence[str] = (),
) -> Callable[..., Any]:
    """A function that returns (value, gradient) of a scalar-valued function.

    `argnums` chooses positional arguments, `argnames` keyword ones (the gradient is then a pair).
    A complex result needs `holomorphic=True`.
    """
    as_function("grad", "function", function)
    has_aux = as_flag("grad", "has_aux", has_aux)
    holomorphic = as_flag("grad", "holomorphic", holomorphic)
    names = _names(argnames)

    @wraps(function)
    def both(*args: Any, **keywords: Any) -> Any:
        places = _places(argnums, len(args), bool(names))
        absent = [name for name in names if name not in keywords]
        if absent:
            raise DifferentiationError(f"grad: no keyword argument {', '.join(absent)} was given")

        def of_chosen(values: tuple[Any, ...], named: dict[str, Any]) -> Any:
            full = [_own(x) for x in args]
            for place, value in zip(places, values, strict=True):
                full[place] = value
            others = {name: _own(x) for name, x in keywords.items()} | named
            return _with_derivative(function(*full, **others), has_aux)

        given = differentiable_tree({i: args[i] for i in places}, "grad")
        named = differentiable_tree({name: keywords[name] for name in names}, "grad")
        chosen = tuple(given[i] for i in places), named
        for leaf in tree_leaves(chosen):
            _check_kind(leaf, holomorphic)
        value, pullback, *aux = vjp(of_chosen, *chosen, has_aux=has_aux)
        gradients, named = pullback(_seed(value, holomorphic))
        found = gradients[0] if isinstance(argnums, int) and gradients else gradients
        gradient = (found, named) if names and places else (named if names else found)
        return ((value, aux[0]), gradient) if has_aux else (value, gradient)

    return both


def _names(argnames: Any) -> tuple[str, ...]:
    names = (argnames,) if isinstance(argnames, str) else as_sequence("grad", "argnames", argnames)
    if not all(isinstance(name, str) for name in names):
        raise DifferentiationError(f"grad: argnames must be strings, got {shown(argnames)}")
    return names


def _places(argnums: int | Sequence[int], count: int, optional: bool) -> list[int]:
    if optional and count == 0 and isinstance(argnums, int) and argnums == 0:
        return []
    return chosen_places(argnums, count, "grad")


def chosen_places(argnums: int | Sequence[int], count: int, name: str) -> list[int]:
    """Which of `count` positional arguments `argnums` means, each once."""
    chosen = tuple(argnums) if isinstance(argnums, tuple | list) else (argnums,)
    if any(not isinstance(i, int) or isinstance(i, bool) for i in chosen):
        raise DifferentiationError(
            f"{name}: argnums must be an integer or a tuple of integers, got {shown(argnums)}"
            "\nhint: argnames chooses keyword arguments"
        )
    if any(not -count <= i < count for i in chosen):
        raise DifferentiationError(f"{name}: argnums {argnums} for {count} positional arguments")
    places = [i % count for i in chosen]
    if len(set(places)) < len(places):
        raise DifferentiationError(f"{name}: argnums {argnums} name an argument twice")
    return places


def _own(x: Any) -> Any:
    """A tensor as a handle made inside, which the function may assign to."""
    return alias(x) if type(x) is Tensor else x


def _with_derivative(result: Any, has_aux: bool) -> Any:
    """The result of a function to differentiate, which must not have left weft."""
    value = result[0] if has_aux and isinstance(result, tuple) and result else result
    if isinstance(value, (np.generic, np.ndarray, *PYTHON_SCALARS)):
        raise DifferentiationError(
            f"grad: the function returned a {type(value).__name__}, which carries no derivative"
            "\nhint: return the tensor itself, not x.item(), float(x) or x.numpy()"
        )
    return result


def _check_kind(leaf: Tensor, holomorphic: bool) -> None:
    if holomorphic and not dtypes.is_complex(leaf.dtype):
        raise DifferentiationError(f"grad: holomorphic=True needs complex inputs, got {leaf.type}")


def _seed(value: Any, holomorphic: bool) -> Tensor:
    if not isinstance(value, Tensor) or value.shape != ():
        kind = value.type if isinstance(value, Tensor) else type(value).__name__
        pair = isinstance(value, tuple) and len(value) == 2
        raise DifferentiationError(
            f"grad: expected a scalar result, got {kind}\nhint: "
            + ("has_aux=True: (value, more)" if pair else "sum it, or use wf.vjp or wf.jacrev")
        )
    if holomorphic and not dtypes.is_complex(value.dtype):
        raise DifferentiationError(
            f"grad: holomorphic=True needs a complex result, got {value.type}"
        )
    if not holomorphic and not dtypes.is_floating(value.dtype):
        hint = "\nhint: pass holomorphic=True" if dtypes.is_complex(value.dtype) else ""
        raise DifferentiationError(f"grad: expected a real float result, got {value.type}{hint}")
    return ones_like(value)


@public
def grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    argnames: str | Sequence[str] = (),
) -> Callable[..., Any]:
    """The gradient of a scalar-valued function with respect to the chosen arguments.

    >>> grad(lambda x: x * x)(3.0).item()
    6.0
    """
    both = value_and_grad(function, argnums, has_aux, holomorphic, argnames)

    @wraps(function)
    def gradient(*args: Any, **keywords: Any) -> Any:
        value, found = both(*args, **keywords)
        return (found, value[1]) if has_aux else found

    return gradient


@public
def linear_transpose(function: Callable[..., Any], *primals: Any) -> Callable[..., Any]:
    """The transpose of a linear function; `primals` (tensors or types) give its argument types.

    >>> linear_transpose(lambda x: 3 * x, TensorType((), dtypes.float32))(2.0)[0].item()
    6.0
    """

    def origin(x: Any) -> Tensor:
        if isinstance(x, TensorType):
            return zeros(x.shape, dtype=x.dtype)
        return zeros_like(to_tensor(x))

    pullback: Callable[..., Any] = vjp(function, *tree_map(origin, primals, is_leaf=is_type))[1]
    return pullback
