"""Reach the host from transformed code: `callback`, `print`, `breakpoint`.

Each is an op with effects: it runs when the function runs, in program order, also inside `grad`,
`vmap` (once for each slice), `scan` and traces.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from weft.core.common.parameters import as_function, shown
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.types import Array
from weft.errors import ArgumentError
from weft.ops.control.custom_op import call_custom_kernel


@public
def callback(
    function: Callable[..., Any],
    result_type: Any,
    *args: Any,
    vectorized: bool = False,
    vjp: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
) -> Any:
    """Call a Python function on the arrays of `args`, every time and in order; give its result.

    `result_type` says what it returns: `(shape, dtype)`, a tree of such pairs, or `()` for nothing.
    `vjp(primals, result, cotangent)` and `jvp(primals, tangents, result)` give it derivatives.

    >>> import numpy as np
    >>> callback(np.cumsum, ((2,), "float32"), FUNCTIONS["ones"](2)).tolist()
    [1.0, 2.0]
    """
    as_function("callback", "function", function)
    return call_custom_kernel(
        function,
        *args,
        result_type=result_type,
        vjp=vjp,
        jvp=jvp,
        vectorized=vectorized,
        pure=False,
    )


def print_values(template: str, *args: Any, **named: Any) -> None:
    """Print values from inside transformed code: `wf.print("x = {}, y = {y}", x, y=y)`."""

    if not isinstance(template, str):
        raise ArgumentError(
            f"print: template must be a string, got {shown(template)}"
            '\nhint: wf.print("{}", x) prints a tensor alone'
        )

    def show(*values: Array) -> tuple[()]:
        rest = values[len(args) :]
        try:
            text = template.format(*values[: len(args)], **dict(zip(named, rest, strict=True)))
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise ArgumentError(
                f"print: template {template!r} does not fit {len(values)} values ({error})"
            ) from None
        builtins.print(text)
        return ()

    callback(show, (), *args, *named.values())


def break_here(*args: Any) -> None:
    """Stop in the debugger inside transformed code; `values` holds the arrays of `args`."""

    def stop(*values: Array) -> tuple[()]:
        builtins.breakpoint()
        return ()

    callback(stop, (), *args)


for _name, _function in (("print", print_values), ("breakpoint", break_here)):
    _function.__name__ = _function.__qualname__ = _name  # Python's errors say what was called
    FUNCTIONS[_name] = _function
