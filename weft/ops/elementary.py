"""Elementary functions of each element: exponentials, logarithms, trigonometry."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.tensor.tensor import Tensor
from weft.ops.families import UnaryOperation


class FloatFunction(UnaryOperation):
    """A function of floats (and complex numbers); integers are converted first."""

    domain = "inexact"

    def body(self, s: Any, x: Any) -> Any:
        return s.call(self.name, x)


class Exp(FloatFunction):
    """e to the power x, elementwise."""

    ufunc = np.exp

    def derivative(self, x: Tensor, y: Tensor) -> Tensor:
        return y


class Log(FloatFunction):
    """Natural logarithm, elementwise."""

    ufunc = np.log
    sample = "p"

    def derivative(self, x: Tensor, y: Tensor) -> Tensor:
        return 1 / x


class Sin(FloatFunction):
    """Sine of x in radians, elementwise."""

    ufunc = np.sin

    def derivative(self, x: Tensor, y: Tensor) -> Tensor:
        return cos(x)


class Cos(FloatFunction):
    """Cosine of x in radians, elementwise."""

    ufunc = np.cos

    def derivative(self, x: Tensor, y: Tensor) -> Tensor:
        return -sin(x)


class Tanh(FloatFunction):
    """Hyperbolic tangent, elementwise."""

    ufunc = np.tanh

    def derivative(self, x: Tensor, y: Tensor) -> Tensor:
        return 1 - y * y


exp, log, sin, cos, tanh = Exp(), Log(), Sin(), Cos(), Tanh()


__all__ = [
    "cos",
    "exp",
    "log",
    "sin",
    "tanh",
]
