"""The error function, its complement and its inverse."""

from __future__ import annotations

import math

from weft.ops.functions.exponential import Exponential, exponential, exponential_double, sigmoid
from weft.ops.functions.logarithm import Reduced, natural, reduce, reduce_one_plus
from weft.ops.functions.number import (
    Number,
    by_pairs,
    choose,
    coefficients,
    evaluate,
    polynomial,
)
from weft.ops.functions.split import divide, fast_two_sum, multiply, two_product, two_sum

_ERF_END = {32: 4.02, 64: 6.0}  # from here on erf is 1
_ERF_SEAM = 1.0  # up to here `central` serves
_SHARE_END = 5.42  # from here on all of a normal distribution is below, or none
_TANH_SHARE_END = 5.5  # the same of its approximation
_ERFC_END = {32: 10.2, 64: 27.3}  # from here on erfc is 0
_ROOT_HALF, _ROOT_HALF_REST = 0.5**0.5, -4.833646656726457e-17  # √½ and what float64 lacks of it
_ERFINV_ENDS = {32: (5.0,), 64: (6.25, 16.0)}
_ERFINV_PARTS = {"ERFINV_MIDDLE": 3.0, "ERFINV_TAIL": 5.0}


def central(x: Number) -> Number:
    """erf(x) for small |x|; any number beyond."""
    return x.fma(evaluate("ERF", x * x), x)


def erf(x: Number) -> Number:
    """2/√π times the integral of exp(-t²) from 0 to x."""
    size = abs(x)
    near = size.wrap("min", _ERF_END[x.format.width])
    if x.format.width == 32:
        # 1 - r² is t - t²/4 for t = 2 - 2r: with the root of erfc(x) for r, short in polynomials.
        t = near.fma(by_pairs(near, coefficients("ERF_ROOT", near)), near)
        return (-0.25 * t).fma(t, t).signed_by(x)
    y, n = exponential(evaluate("LOG_ERFC", near - 1.0), biases=1)
    large = y.fma(-n.power_of_two(), 1.0)
    return choose(size < _ERF_SEAM, central(x), large.signed_like(x))


def normal_share(x: Number) -> Number:
    """(1 + erf(x/√2)) / 2 to the last digits of 1: small shares have fewer."""
    if x.format.width == 64:
        return erf(x * 0.5**0.5).fma(0.5, 0.5)
    square = _root_of_rest("NORMAL_SHARE", abs(x).wrap("min", _SHARE_END))
    return square.fma(-square, 1.0).signed_by(x).fma(0.5, 0.5)


def tanh_share(x: Number) -> Number:
    """(1 + tanh(√(2/π) (x + 0.044715 x³))) / 2 to the last digits of 1; small ones have a few."""
    if x.format.width == 64:
        scale = (8 / math.pi) ** 0.5
        return sigmoid(x * (x * x).fma(0.044715 * scale, scale))
    size = abs(x)
    square = _root_of_rest("TANH_SHARE", size)
    rest = choose(size >= _TANH_SHARE_END, 0.0, square * (0.5 * square))
    return choose(x < 0.0, rest, 1.0 - rest)  # its slope is a product with the smaller of both


def _root_of_rest(name: str, size: Number) -> Number:
    """The root of what two equal shares leave to 1; a fourth root has a short polynomial."""
    root = size.fma(by_pairs(size, coefficients(name, size)), 1.0)
    return root * root


def ndtr(x: Number) -> Number:
    """(1 + erf(x/√2)) / 2, precise for small shares."""
    root = x.format.round(_ROOT_HALF)
    turned = two_product(x, x.like(-root))
    rest = x.fma(-(_ROOT_HALF - root + _ROOT_HALF_REST), turned.low)
    return 0.5 * erfc(turned.high, rest)


def erfc(x: Number, rest: Number | None = None) -> Number:
    """1 - erf(x), precise for large x; `rest` is added to x where it changes the result."""
    end = _ERFC_END[x.format.width]
    size = abs(x).wrap("min", end)
    square = two_product(size, size)
    t = (size - 4.0) / (size + 4.0)
    low = square.low
    if rest is not None:
        low = low + choose((x > 0.0) & (x < end), 2.0 * size * rest, 0.0)
    y, n = exponential_double(-square.high, -low)
    first, *others = coefficients("ERFC", t)
    series = fast_two_sum(t.like(first), t * polynomial(t, tuple(others)))
    quotient = divide(series, two_sum(t.like(1.0), 2.0 * size))
    value = Exponential(multiply(y, quotient).collapse(), n).collapse()
    value = choose(x < 0.0, 2.0 - value, value)
    return choose((x > -1.0) & (x < 0.5), 1.0 - central(x), value)


def erfinv(x: Number) -> Number:
    """The number whose error function is x; NaN outside [-1, 1]."""
    size = abs(x)
    inside = choose(size < 1.0, size, 0.0)
    # w = -log(1 - x²); for large x the difference 1 - x is exact.
    large = inside > 0.5
    small = reduce_one_plus(-(inside * inside))
    product = reduce((1.0 - inside) * (1.0 + inside))
    w = -natural(Reduced(choose(large, product.f, small.f), choose(large, product.k, small.k)))
    root = w.sqrt()
    ends = _ERFINV_ENDS[x.format.width]
    ratio = evaluate("ERFINV_CENTER", w - 2.5)
    for (name, center), end in zip(_ERFINV_PARTS.items(), ends, strict=False):
        ratio = choose(w > end, evaluate(name, root - center), ratio)
    value = choose(size.equals(1.0), math.inf, inside * ratio)
    return choose(size <= 1.0, value, math.nan).signed_like(x)
