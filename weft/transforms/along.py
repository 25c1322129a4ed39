"""Functions of numbers, vectors, or a tensor and an axis, applied to tensors of any rank."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from weft.core.common.parameters import as_function, as_integers, shown
from weft.core.common.slots import public
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ops.axes import normalize_axis
from weft.ops.families import broadcast_shape
from weft.ops.placement import copy_of
from weft.ops.view.reshape import expand_dims, reshape
from weft.ops.view.transpose import moveaxis
from weft.transforms.vmap import vmap


@public
def apply_along_axis(
    func1d: Callable[..., Any], axis: int, x: Any, /, *args: Any, **keywords: Any
) -> Tensor:
    """`func1d(row, …)` for every vector along an axis; axes of its result stand in that place.

    The function is mapped with `vmap`: it runs once for all vectors, so it must be made of
    functions of weft and cannot read values. Further arguments are handed to it as they are.

    >>> apply_along_axis(lambda row: row[::-1] * 2, 1, to_tensor([[1, 2], [3, 4]])).tolist()
    [[4, 2], [8, 6]]
    """
    as_function("apply_along_axis", "func1d", func1d)
    tensor = to_tensor(x, op="apply_along_axis")
    i = normalize_axis("apply_along_axis", axis, tensor.ndim)

    def function(row: Tensor) -> Tensor:
        return _answer("apply_along_axis", func1d(row, *args, **keywords), tensor)

    mapped: Callable[[Tensor], Tensor] = function
    for _ in range(tensor.ndim - 1):
        mapped = vmap(mapped)
    found = mapped(moveaxis(tensor, i, -1))
    behind = tensor.ndim - 1 - i
    return moveaxis(found, tuple(range(i, i + behind)), tuple(range(-behind, 0)))


@public
def apply_over_axes(func: Callable[..., Any], x: Any, /, axes: Any) -> Tensor:
    """`func(x, axis)` for one axis after the other; an axis it removes comes back with size 1."""
    as_function("apply_over_axes", "func", func)
    tensor = to_tensor(x, op="apply_over_axes")
    rank, found = tensor.ndim, tensor
    for axis in as_integers("apply_over_axes", "axes", axes):
        i = normalize_axis("apply_over_axes", axis, rank)
        made = _answer("apply_over_axes", func(found, i), tensor)
        found = expand_dims(made, i) if made.ndim == rank - 1 else made
        if found.ndim != rank:
            raise ShapeError(
                f"apply_over_axes: a result of {rank} or {rank - 1} axes is expected, got shape"
                f" {made.shape}"
            )
    return copy_of(found) if found is x else found


@public
def vectorize(
    pyfunc: Callable[..., Any], *, excluded: Any = (), signature: str | None = None
) -> Callable[..., Any]:
    """A function of numbers as a function of tensors, which broadcast: `vmap` runs it once.

    `signature`, such as "(n,k),(k)->(n)", is for a function of vectors or matrices: those axes come
    last, and all before them broadcast. Positional arguments in `excluded`, and keyword arguments,
    are handed on as they are. The function must be made of functions of weft and reads no values.

    >>> difference = vectorize(lambda x, y: x - y)
    >>> difference([[1], [5]], [3, 4]).tolist()
    [[-2, -3], [2, 1]]
    """
    as_function("vectorize", "pyfunc", pyfunc)
    kept = frozenset(as_integers("vectorize", "excluded", tuple(excluded), low=0))
    wanted = None if signature is None else _Signature.parse(signature)

    @wraps(pyfunc)
    def vectorized(*args: Any, **keywords: Any) -> Any:
        places = [i for i in range(len(args)) if i not in kept]
        beside = tuple(args[i] for i in places)
        tensors = [to_tensor(args[i], beside=beside, op=f"vectorize: argument {i}") for i in places]
        kinds = wanted or _Signature(((),) * len(tensors), None)
        lead, sizes = kinds.lead(tensors)

        def one(*values: Any) -> Any:
            full = list(args)
            for place, value in zip(places, values, strict=True):
                full[place] = value
            return kinds.checked(pyfunc(*full, **keywords), sizes, tensors)

        parts = [
            x.shape[: x.ndim - len(axes)] for x, axes in zip(tensors, kinds.given, strict=True)
        ]
        mapped: Callable[..., Any] = one
        for i, size in enumerate(reversed(lead), 1):
            own = tuple(0 if len(part) >= i and part[-i] == size else None for part in parts)
            if any(axis == 0 for axis in own):
                mapped = vmap(mapped, in_axes=own)
        # An axis of size 1 that meets a longer one is not mapped: it is taken away.
        return mapped(*(_squeezed(x, part, lead) for x, part in zip(tensors, parts, strict=True)))

    return vectorized


def _squeezed(x: Tensor, part: tuple[int, ...], lead: tuple[int, ...]) -> Tensor:
    kept = [n for n, size in zip(part, lead[len(lead) - len(part) :], strict=True) if n == size]
    return reshape(x, (*kept, *x.shape[len(part) :]))


class _Signature(NamedTuple):
    """Names of the axes that a vectorized function is given, and of those it gives."""

    given: tuple[tuple[str, ...], ...]
    made: tuple[tuple[str, ...], ...] | None

    @classmethod
    def parse(cls, text: Any) -> _Signature:
        if not isinstance(text, str) or not _SIGNATURE.fullmatch(text.replace(" ", "")):
            raise ArgumentError(
                f"vectorize: signature: expected axes such as '(n,k),(k)->(n)', got {shown(text)}"
            )
        left, right = (
            tuple(tuple(filter(None, axes.split(","))) for axes in _AXES.findall(side))
            for side in text.replace(" ", "").split("->")
        )
        return cls(left, right)

    def lead(self, tensors: list[Tensor]) -> tuple[tuple[int, ...], dict[str, int]]:
        """The shape that all axes before the named ones broadcast to, and the named sizes."""
        if len(tensors) != len(self.given):
            raise ArgumentError(
                f"vectorize: the signature has {len(self.given)} arguments, got {len(tensors)}"
            )
        sizes: dict[str, int] = {}
        lead: tuple[int, ...] = ()
        for i, (x, axes) in enumerate(zip(tensors, self.given, strict=True)):
            if x.ndim < len(axes):
                raise ShapeError(
                    f"vectorize: argument {i}: axes ({', '.join(axes)}), got {x.shape}"
                )
            named = x.shape[x.ndim - len(axes) :]
            _match(f"vectorize: argument {i}", axes, named, sizes)
            lead = broadcast_shape("vectorize", lead, x.shape[: x.ndim - len(axes)])
        return lead, sizes

    def checked(self, result: Any, sizes: dict[str, int], beside: list[Tensor]) -> Any:
        """What the function gave for one set of values, if it has the axes it said."""
        if self.made is None:
            return result
        several = isinstance(result, tuple | list)
        found = [_answer("vectorize", x, *beside) for x in (result if several else (result,))]
        if len(found) != len(self.made):
            raise ArgumentError(
                f"vectorize: the signature has {len(self.made)} results, got {len(found)}"
            )
        for i, (x, axes) in enumerate(zip(found, self.made, strict=True)):
            if x.ndim != len(axes):
                raise ShapeError(f"vectorize: result {i}: axes ({', '.join(axes)}), got {x.shape}")
            _match(f"vectorize: result {i}", axes, x.shape, dict(sizes))
        return tuple(found) if several else found[0]


_AXES = re.compile(r"\(([^()]*)\)")
_LIST = r"\((\w+(,\w+)*)?\)"
_SIGNATURE = re.compile(rf"({_LIST}(,{_LIST})*)?->{_LIST}(,{_LIST})*")


def _match(
    where: str, axes: tuple[str, ...], shape: tuple[int, ...], sizes: dict[str, int]
) -> None:
    """Enter sizes under their names; a name may also be the size itself."""
    for name, size in zip(axes, shape, strict=True):
        known = int(name) if name.isdigit() else sizes.setdefault(name, size)
        if known != size:
            raise ShapeError(f"{where}: axis {name!r} is {size} here but {known} before")


def _answer(op: str, value: Any, *beside: Any) -> Tensor:
    """What a function gave: one tensor, or what can become one."""
    if value is None or isinstance(value, dict | set | str):
        raise ArgumentError(f"{op}: the function must give a tensor, got {shown(value)}")
    return to_tensor(value, beside=beside, op=op)


__all__ = [
    "apply_along_axis",
    "apply_over_axes",
    "vectorize",
]
