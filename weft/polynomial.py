"""Polynomials as their coefficients, the highest power first: `[2, 0, 1]` is 2x² + 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.parameters import as_flag, as_integer
from weft.core.common.slots import FUNCTIONS, public
from weft.core.tensor.convert import holds_tensor, to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.linalg import eigvals, pinv
from weft.ops.creation import arange, ones, zeros, zeros_like
from weft.ops.families import as_tensors, cast
from weft.ops.naming import named
from weft.ops.often import often
from weft.ops.view.join import concat

_NEGLIGIBLE = 1e-8  # NumPy's limit for coefficients that count as 0


def _coefficients(name: str, operand: str, p: Any, *beside: Any) -> Tensor:
    found: Tensor = FUNCTIONS["atleast_1d"](to_tensor(p, beside=beside, op=name))
    if found.ndim != 1:
        raise ShapeError(f"{name}: {operand}: coefficients lie along one axis, got {found.shape}")
    return found


def _pair(name: str, p: Any, q: Any) -> tuple[Tensor, Tensor]:
    """Both polynomials in one dtype."""
    found = (_coefficients(name, "p", p, q), _coefficients(name, "q", q, p))
    dtype = dtypes.promote(found[0].dtype, found[1].dtype, op=name)
    return cast(found[0], dtype), cast(found[1], dtype)


def _inexact(x: Tensor) -> Tensor:
    return x if dtypes.is_inexact(x.dtype) else cast(x, default_float())


@public
@often
def polyval(p: Any, /, x: Any) -> Tensor:
    """The value of the polynomial `p` at each element of `x`, by Horner's rule.

    >>> polyval([2.0, 0.0, 1.0], [0.0, 3.0]).tolist()
    [1.0, 19.0]
    """
    coefficients, at = as_tensors("polyval", _coefficients("polyval", "p", p, x), x)
    dtype = dtypes.promote(coefficients.dtype, at.dtype, op="polyval")
    coefficients, at = cast(coefficients, dtype), cast(at, dtype)
    found = zeros_like(at)
    for i in range(coefficients.shape[0]):
        found = found * at + coefficients[i]
    return found


@public
def polyadd(p: Any, q: Any, /) -> Tensor:
    """The sum of two polynomials."""
    a, b = _pair("polyadd", p, q)
    size = max(a.shape[0], b.shape[0])
    a, b = (_padded(c, size) for c in (a, b))
    return a + b


def _padded(p: Tensor, size: int) -> Tensor:
    missing = size - p.shape[0]
    return concat([zeros((missing,), dtype=p.dtype, device=p.device), p])


@public
def polysub(p: Any, q: Any, /) -> Tensor:
    """The polynomial `p` minus the polynomial `q`."""
    return polyadd(p, -_coefficients("polysub", "q", q, p))


@public
def polymul(p: Any, q: Any, /) -> Tensor:
    """The product of two polynomials.

    >>> polymul([1.0, 1.0], [1.0, -1.0]).tolist()
    [1.0, 0.0, -1.0]
    """
    a, b = _pair("polymul", p, q)
    made: Tensor = FUNCTIONS["convolve"](a, b)
    return made


@public
def polydiv(u: Any, /, v: Any, *, trim: bool = True) -> tuple[Tensor, Tensor]:
    """The quotient and the remainder of two polynomials; the first coefficient of `v` is not 0.

    Zeros before the first power of the remainder are left out, for which it is read; `trim=False`
    keeps them, and can be traced.

    >>> [part.tolist() for part in polydiv([1.0, 2.0, 3.0], [1.0, 1.0])]
    [[1.0, 1.0], [2.0]]
    """
    over, under = _pair("polydiv", u, v)
    if not (over.size and under.size):
        raise ShapeError(f"polydiv: no coefficients (shapes {over.shape}, {under.shape})")
    rest, divisor = _inexact(over), _inexact(under)
    degree = divisor.shape[0] - 1
    terms = []
    while rest.shape[0] > degree:
        term = rest[:1] / divisor[:1]
        terms.append(term)
        rest = concat([rest[1 : degree + 1] - term * divisor[1:], rest[degree + 1 :]])
    nothing = zeros((1,), dtype=rest.dtype, device=rest.device)
    quotient = concat(terms) if terms else nothing
    rest = rest if rest.size else nothing
    if as_flag("polydiv", "trim", trim):
        large = np.flatnonzero(~(np.abs(rest.host().astype(complex)) <= _NEGLIGIBLE))
        rest = rest[large[0] if large.size else rest.shape[0] - 1 :]
    return quotient, rest


@public
def polyder(p: Any, /, m: int = 1) -> Tensor:
    """The `m`-th derivative of a polynomial."""
    found = _coefficients("polyder", "p", p)
    for _ in range(as_integer("polyder", "m", m, low=0)):
        powers = arange(found.shape[0] - 1, 0, -1, dtype=found.dtype, device=found.device)
        found = found[:-1] * powers if found.shape[0] > 1 else found[:0]
    return found


@public
def polyint(p: Any, /, m: int = 1, k: Any = 0) -> Tensor:
    """The `m`-th integral of a polynomial; `k` has its constants (one for all, or one a turn)."""
    found = _inexact(_coefficients("polyint", "p", p, k))
    times = as_integer("polyint", "m", m, low=0)
    constants = cast(_coefficients("polyint", "k", k, found), found.dtype)
    if constants.shape[0] not in (1, times):
        raise ArgumentError(
            f"polyint: k: expected 1 or {times} constants, got {constants.shape[0]}"
        )
    for turn in range(times):
        powers = arange(found.shape[0], 0, -1, dtype=found.dtype, device=found.device)
        place = turn if constants.shape[0] > 1 else 0
        found = concat([found / powers, constants[place : place + 1]])
    return found


@public
def polyfit(x: Any, /, y: Any, deg: int, *, w: Any = None) -> Tensor:
    """Coefficients of the polynomial of degree `deg` nearest to `y` at `x` (least squares).

    `y` may hold several curves in columns; `w` are weights of the points, not of their squares.
    """
    places, values = (_inexact(t) for t in as_tensors("polyfit", x, y, beside=(w,)))
    degree = as_integer("polyfit", "deg", deg, low=0)
    if places.ndim != 1 or values.ndim not in (1, 2) or values.shape[0] != places.shape[0]:
        raise ShapeError(
            f"polyfit: x is one axis and y has as many rows, got {places.shape} and {values.shape}"
        )
    if not places.size:
        raise ShapeError("polyfit: x: there is no point to fit")
    table = FUNCTIONS["vander"](places, degree + 1)
    if w is not None:
        weights = cast(_coefficients("polyfit", "w", w, places), places.dtype)
        table = table * weights[:, None]
        values = values * (weights if values.ndim == 1 else weights[:, None])
    scale = FUNCTIONS["sqrt"](FUNCTIONS["sum"](table * table, 0))
    found = pinv(table / scale) @ values
    made: Tensor = found / (scale if values.ndim == 1 else scale[:, None])
    return made


@public
def poly(roots: Any, /) -> Tensor:
    """The polynomial with the given roots, whose first coefficient is 1."""
    places = _inexact(_coefficients("poly", "roots", roots))
    one = ones((1,), dtype=places.dtype, device=places.device)
    found = one
    for i in range(places.shape[0]):
        factor = concat([one, -places[i : i + 1]])
        found = polymul(found, factor)
    return found


@public
@named
def roots(p: Any, /) -> Tensor:
    """Where a polynomial is 0: complex, one for each power.

    Leading zeros of numbers are left out; the first coefficient of a tensor is not 0.
    """
    found = _inexact(_coefficients("roots", "p", p))
    if not isinstance(p, Tensor) and not holds_tensor(p):
        given = np.flatnonzero(found.host())
        found = found[given[0] if given.size else len(found) :]
    degree = found.shape[0] - 1
    if degree < 1:
        return zeros((0,), dtype=dtypes.complex_of(found.dtype), device=found.device)
    below = FUNCTIONS["eye"](degree - 1, degree, dtype=found.dtype, device=found.device)
    companion = concat([(-found[1:] / found[0])[None], below])
    return eigvals(companion)


__all__ = [
    "poly",
    "polyadd",
    "polyder",
    "polydiv",
    "polyfit",
    "polyint",
    "polymul",
    "polysub",
    "polyval",
    "roots",
]


def __dir__() -> list[str]:
    return sorted(__all__)
