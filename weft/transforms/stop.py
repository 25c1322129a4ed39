"""Keep derivatives out: `stop_gradient` (alias `detach`) and `no_grad`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, ParamSpec, TypeVar

from weft.core.common import dtypes
from weft.core.common.handler import Blocks, Handler, installed, perform
from weft.core.common.parameters import as_function
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.trees import tree_map
from weft.core.common.types import Array
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import ArgumentError
from weft.ops.base import Operation, call

P = ParamSpec("P")
T = TypeVar("T")
_LATER = (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction)


class StopGradient(Operation):
    """The same value, with derivative zero."""

    factors = "... -> ..."
    stops = True
    work = 0
    widen = False
    view = True
    reasons = {"jvp": "zero by definition", "vjp": "zero by definition"}

    def eval(self, x: Array) -> Array:
        return x

    def body(self, s: Any, x: Any) -> Any:
        return x

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        return None


stop_gradient_op = StopGradient()


def stopped(x: Any) -> Any:
    """A leaf without its derivative."""
    if isinstance(x, Tensor) and x.owner is not None and dtypes.is_inexact(x.dtype):
        return call(stop_gradient_op, (x,), {})
    return alias(x) if isinstance(x, Tensor) else x


@public
def stop_gradient(tree: Any) -> Any:
    """The same values, treated as constants by every kind of differentiation."""
    return tree_map(stopped, tree)


FUNCTIONS["detach"] = stop_gradient
detach = stop_gradient


class NoGrad(Handler):
    """Runs every op outside and takes the derivative off its result."""

    transparent = True
    constant = True

    def handle(self, op: Any, args: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
        with installed(self.outer):
            result = perform(op, args, params)
            if isinstance(result, tuple):
                return tuple(map(stopped, result))
            return stopped(result)


class NoGradBlock(Blocks):
    """Blocks in which nothing is differentiated; a decorator, too."""

    def handler(self) -> Handler:
        return NoGrad()

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function with such a block around each call: `@no_grad()`."""
        as_function("no_grad", "function", function)
        if any(is_such(function) for is_such in _LATER):
            raise ArgumentError(
                f"no_grad: {function.__name__} does not run when it is called, but later"
                "\nhint: write `with wf.no_grad():` inside of it"
            )

        @wraps(function)
        def inside(*args: P.args, **keywords: P.kwargs) -> T:
            with self:
                return function(*args, **keywords)

        return inside


@public
def no_grad() -> NoGradBlock:
    """`with no_grad():` — what is computed inside is constant to every differentiation outside.

    `@no_grad()` has all of a function inside.
    """
    return NoGradBlock()
