"""Whole derivatives: `jacfwd`, `jacrev`, `hessian`, and products with the Hessian."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from weft.core.common import dtypes
from weft.core.common.parameters import as_flag, as_function
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.trees import tree_flatten, tree_leaves, tree_map, tree_unflatten
from weft.core.tensor.tensor import Tensor
from weft.errors import DifferentiationError
from weft.ops.creation import zeros
from weft.ops.view.join import concat
from weft.ops.view.reshape import reshape
from weft.ops.view.transpose import moveaxis
from weft.transforms.jvp import jvp
from weft.transforms.vjp import chosen_places, differentiable_tree, grad, vjp
from weft.transforms.vmap import vmap_directions


def _split(
    args: tuple[Any, ...], argnums: int | Sequence[int]
) -> tuple[list[int], tuple[Any, ...]]:
    places = chosen_places(argnums, len(args), "jacobian")
    return places, tuple(args[i] for i in places)


def _check_kinds(what: str, leaves: list[Tensor], holomorphic: bool) -> None:
    """Refuse complex numbers unless the user vouches for a complex derivative, and the reverse."""
    for leaf in leaves:
        if dtypes.is_complex(leaf.dtype) != holomorphic:
            hint = "" if holomorphic else "\nhint: holomorphic=True if it has a complex derivative"
            raise DifferentiationError(
                f"{what} is {leaf.type}, but holomorphic is {holomorphic}{hint}"
            )


def _check_results(name: str, leaves: list[Tensor]) -> None:
    for leaf in leaves:
        if not dtypes.is_inexact(leaf.dtype):
            raise DifferentiationError(
                f"{name}: a result is {leaf.type}, which has no derivative"
                "\nhint: has_aux=True returns it beside the differentiated one"
            )


def _with(args: tuple[Any, ...], places: list[int], values: Any) -> list[Any]:
    full = list(args)
    for place, value in zip(places, values, strict=True):
        full[place] = value
    return full


def _basis(leaves: list[Tensor]) -> list[Tensor]:
    """For each leaf the rows of one big identity that belong to it: (total, *leaf.shape)."""
    total = sum(leaf.size for leaf in leaves)
    parts, start = [], 0
    for leaf in leaves:
        blocks = [
            zeros((start, leaf.size), dtype=leaf.dtype, device=leaf.device),
            FUNCTIONS["eye"](leaf.size, dtype=leaf.dtype, device=leaf.device),
            zeros((total - start - leaf.size, leaf.size), dtype=leaf.dtype, device=leaf.device),
        ]
        parts.append(reshape(concat(blocks, axis=0), (total, *leaf.shape)))
        start += leaf.size
    return parts


def _unstack(rows: Tensor, leaves: list[Tensor], axis: int) -> list[Tensor]:
    """Cut the basis axis into one piece for each leaf and give it that leaf's shape."""
    pieces, start = [], 0
    front = moveaxis(rows, axis, 0)
    for leaf in leaves:
        piece = front[start : start + leaf.size]
        pieces.append(reshape(piece, (*leaf.shape, *front.shape[1:])))
        start += leaf.size
    return pieces


@public
def jacfwd(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """The Jacobian, one column at a time: best for few inputs. Shape: output axes, input axes.

    Complex inputs need `holomorphic=True`: only then one number says how a result follows them.
    """

    as_function("jacfwd", "function", function)
    has_aux = as_flag("jacfwd", "has_aux", has_aux)
    holomorphic = as_flag("jacfwd", "holomorphic", holomorphic)

    @wraps(function)
    def jacobian(*args: Any, **keywords: Any) -> Any:
        places, chosen = _split(args, argnums)
        leaves, structure = tree_flatten(differentiable_tree(chosen, "jacfwd"))
        _check_kinds("jacfwd: an input", leaves, holomorphic)

        def push(*tangents: Tensor) -> Any:
            moved = tree_unflatten(structure, tangents)
            run = lambda *values: function(*_with(args, places, values), **keywords)  # noqa: E731
            value, pushed, *aux = jvp(
                run, tree_unflatten(structure, leaves), moved, has_aux=has_aux
            )
            _check_results("jacfwd", tree_leaves(value))
            kept[:] = aux  # it does not depend on the tangents, so it does not vary over the map
            return pushed

        kept: list[Any] = []
        columns = vmap_directions(push, out_axes=-1)(*_basis(leaves))

        def rows(column: Tensor) -> Any:
            pieces = _unstack(column, leaves, -1)
            turned = [
                moveaxis(p, tuple(range(x.ndim)), tuple(range(-x.ndim, 0))) if x.ndim else p
                for p, x in zip(pieces, leaves, strict=True)
            ]
            whole = tree_unflatten(structure, turned)
            return whole[0] if isinstance(argnums, int) else whole

        found = tree_map(rows, columns)
        return (found, kept[0]) if has_aux else found

    return jacobian


@public
def jacrev(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """The Jacobian, one row at a time: best for few outputs. Shape: output axes, input axes.

    Complex results need `holomorphic=True`: only then one number says how they follow an input.
    """

    as_function("jacrev", "function", function)
    has_aux = as_flag("jacrev", "has_aux", has_aux)
    holomorphic = as_flag("jacrev", "holomorphic", holomorphic)

    @wraps(function)
    def jacobian(*args: Any, **keywords: Any) -> Any:
        places, chosen = _split(args, argnums)
        run = lambda *values: function(*_with(args, places, values), **keywords)  # noqa: E731
        out, pullback, *aux = vjp(run, *chosen, has_aux=has_aux)
        leaves, structure = tree_flatten(out)
        _check_results("jacrev", leaves)
        _check_kinds("jacrev: a result", leaves, holomorphic)

        def pull(*cotangents: Tensor) -> Any:
            return pullback(tree_unflatten(structure, cotangents))

        rows = vmap_directions(pull)(*_basis(leaves))
        gathered = rows[0] if isinstance(argnums, int) else rows

        def of_output(position: int) -> Any:
            return tree_map(lambda r: _unstack(r, leaves, 0)[position], gathered)

        found = tree_unflatten(structure, [of_output(i) for i in range(len(leaves))])
        return (found, aux[0]) if has_aux else found

    return jacobian


@public
def hessian(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Callable[..., Any]:
    """The matrix of second derivatives of a scalar-valued function: `jacfwd` of `jacrev`."""
    return jacfwd(jacrev(function, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic)


@public
def hvp(function: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """The Hessian of a scalar-valued function times a vector, without forming the Hessian.

    >>> hvp(lambda x: x**3, (2.0,), (1.0,)).item()
    12.0
    """
    points = tuple(primals) if isinstance(primals, tuple | list) else (primals,)
    several = len(points) > 1
    return jvp(grad(function, tuple(range(len(points))) if several else 0), primals, tangents)[1]
