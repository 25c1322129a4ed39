"""`compile` (alias `jit`): trace a function once for each kind of arguments, then run its graph.

The machinery is in `weft.compiler`; this file is what users call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.compiler.function import CompiledFunction
from weft.compiler.signature import Parameters
from weft.core.common.parameters import as_function, as_integer, shown
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.trees import tree_leaves
from weft.errors import ArgumentError


@public
def compile(
    function: Callable[..., Any] | None = None,
    /,
    *,
    static_argnums: Any = (),
    static_argnames: Any = (),
    donate_argnums: Any = (),
    donate_argnames: Any = (),
    dynamic_dims: Any = None,
    cache_size: int = 64,
    name: str | None = None,
) -> Any:
    """The same function, traced and compiled at its first call with arguments of each kind.

    Arguments and results are trees of tensors. Later calls with the same structure, shapes and
    dtypes run no Python of yours. Python numbers among the arguments are inputs, so a changing
    learning rate compiles nothing anew; `static_argnums` and `static_argnames` choose arguments
    that are compiled for each value instead. Tensors the function finds in variables outside, or
    inside of the containers, objects and functions they hold, are looked up again at each call;
    numbers and NumPy arrays it finds there are compiled in. Random draws go on from call to call as
    they would in the plain function. Results are always tensors.

    What the function assigns to an argument (`x[0] = 1`) is seen inside only: return it.
    Arguments in `donate_argnums` and `donate_argnames` are used up: results may take their memory.
    The `cache_size` kinds of call used last are kept. Without a function it is a decorator.

    Machine code is made for the first sizes it meets; when others come, for all that follow. Give
    the axes that change as `dynamic_dims`, such as `{"x": 0}`, to have it made for all at once.

    >>> f = compile(lambda x, rate: x - rate * x)
    >>> f(FUNCTIONS["ones"](2), 0.5).tolist(), f(FUNCTIONS["ones"](2), 0.25).tolist()
    ([0.5, 0.5], [0.75, 0.75])
    >>> f.stats.traces
    1
    """
    if function is None:
        return lambda f: compile(
            f,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            dynamic_dims=dynamic_dims,
            cache_size=cache_size,
            name=name,
        )
    as_function("compile", "function", function)
    if not all(type(axis) is int for axis in tree_leaves(dynamic_dims)):
        raise ArgumentError(
            "compile: dynamic_dims: expected axes (integers, or a tree of them such as"
            f" {{'x': 0}}), got {shown(dynamic_dims)}"
        )
    parameters = Parameters(
        function,
        _label(function, name),
        {"static": static_argnums, "donate": donate_argnums},
        {"static": static_argnames, "donate": donate_argnames},
    )
    size = as_integer("compile", "cache_size", cache_size, low=1)
    return CompiledFunction(function, parameters, size, general=dynamic_dims is not None)


def _label(function: Callable[..., Any], name: str | None) -> str:
    if not isinstance(name, str | None):
        raise ArgumentError(f"compile: name must be a string, got {shown(name)}")
    return name or getattr(function, "__name__", None) or type(function).__name__


jit = compile
FUNCTIONS["jit"] = compile
