"""What example kernels are put together from, and `Example`: a kernel with its operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.compiler.loops import (
    BOOL,
    Buffer,
    Kernel,
    Loop,
    Statement,
    Value,
    integer,
    parameter,
    value,
    variable,
)

F = np.dtype(np.float32)
D = np.dtype(np.float64)


def op(name: str, *args: Value, dtype: Any = None) -> Value:
    compares = name in ("less", "less_equal", "equal", "not_equal")
    return value(name, args, np.dtype(dtype or (BOOL if compares else args[-1].dtype)))


def add(x: Value, y: Value | int) -> Value:
    return op("add", x, integer(y) if isinstance(y, int) else y)


def mul(x: Value, y: Value | int) -> Value:
    return op("mul", x, integer(y) if isinstance(y, int) else y)


def call(function: str, x: Value) -> Value:
    return value("call", (x,), x.dtype, function)


@dataclass(frozen=True)
class Example:
    """A kernel, the sizes of its buffers, and the parameters it is called with."""

    kernel: Kernel
    sizes: Sequence[int]
    parameters: Sequence[int] = ()
    fill: dict[int, Callable[[np.random.Generator, int], Any]] = field(default_factory=dict)

    def arrays(self, seed: int = 0) -> list[Any]:
        rng = np.random.default_rng(seed)
        made = []
        for k, (buffer, size) in enumerate(zip(self.kernel.buffers, self.sizes, strict=True)):
            if k in self.fill:
                array = self.fill[k](rng, size)
            elif buffer.dtype.kind == "f":
                array = rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4, size)
                array[rng.random(size) < 0.05] = 0
                array *= rng.choice([1.0, -1.0], size)  # zeros of either sign
            else:
                array = rng.integers(0, 2 if buffer.dtype == BOOL else 100, size)
            made.append(np.asarray(array).astype(buffer.dtype))
        return made


def buffers(*modes: str, dtype: Any = F) -> tuple[Buffer, ...]:
    return tuple(Buffer(f"b{k}", np.dtype(dtype), mode) for k, mode in enumerate(modes))


def nest(loops: Sequence[tuple[Value, Any]], body: Sequence[Statement]) -> tuple[Statement, ...]:
    made = tuple(body)
    for v, extent in reversed(loops):
        stop = integer(extent) if isinstance(extent, int) else extent
        made = (Loop(v, integer(0), stop, made),)
    return made


def variables(names: str) -> list[Value]:
    return [variable(n) for n in names.split()]


def sized(flexible: bool, *sizes: int) -> tuple[list[Value], tuple[int, ...]]:
    """Extents as parameters, or as literals."""
    if flexible:
        return [parameter(k) for k in range(len(sizes))], sizes
    return [integer(n) for n in sizes], ()
