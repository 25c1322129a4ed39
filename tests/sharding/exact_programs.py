"""Random programs over integers and truth values: whatever the layout, the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft as wf

DTYPES = ("bool", "int8", "uint8", "int16", "int32", "uint32", "int64")


def _any_axis(rng: np.random.Generator, x: Any) -> int:
    return int(rng.integers(-x.ndim, x.ndim))


def _number(x: Any) -> Any:
    return x.astype(wf.int32) if x.dtype == wf.bool else x


PLAIN: dict[str, Callable[..., Any]] = {
    "x + 1": lambda x: _number(x) + 1,
    "x * x": lambda x: _number(x) * _number(x),
    "-(x - 3)": lambda x: 3 - _number(x),
    "x // 3": lambda x: _number(x) // 3,
    "x % 5": lambda x: _number(x) % 5,
    "x > 2": lambda x: _number(x) > 2,
    "x == max": lambda x: x == wf.max(_number(x)).astype(x.dtype),
    "invert": lambda x: wf.bitwise_invert(x),
    "xor": lambda x: wf.bitwise_xor(x, wf.flip(x)),
    "ravel": wf.ravel,
    "cast to int16": lambda x: x.astype(wf.int16),
    "cast to uint8": lambda x: x.astype(wf.uint8),
    "cast to int64": lambda x: x.astype(wf.int64),
    "cast to bool": lambda x: x.astype(wf.bool),
    "sum": wf.sum,
    "count_nonzero": wf.count_nonzero,
    "x @ x.T": lambda x: _number(x) @ wf.matrix_transpose(_number(x)) if x.ndim > 1 else x,
    "where": lambda x: wf.where(x.astype(wf.bool), x, wf.flip(x)),
    "broadcast": lambda x: wf.broadcast_to(x, (2, *x.shape)),
    "transpose": lambda x: wf.permute_dims(x, tuple(range(x.ndim))[::-1]),
    "expand": lambda x: wf.expand_dims(x, axis=0),
}
AXIS: dict[str, Callable[..., Any]] = {
    "sum": lambda x, axis: wf.sum(x, axis=axis),
    "narrow sum": lambda x, axis: wf.sum(_number(x), axis=axis, dtype=wf.int8),
    "prod": lambda x, axis: wf.prod(x, axis=axis),
    "max": lambda x, axis: wf.max(_number(x), axis=axis),
    "min": lambda x, axis: wf.min(_number(x), axis=axis, keepdims=True),
    "any": lambda x, axis: wf.any(x, axis=axis),
    "all": lambda x, axis: wf.all(x, axis=axis, keepdims=True),
    "argmax": lambda x, axis: wf.argmax(_number(x), axis=axis),
    "argmin": lambda x, axis: wf.argmin(_number(x), axis=axis),
    "sort": lambda x, axis: wf.sort(x, axis=axis),
    "argsort": lambda x, axis: wf.argsort(_number(x), axis=axis),
    "cumsum": lambda x, axis: wf.cumulative_sum(_number(x), axis=axis),
    "flip": lambda x, axis: wf.flip(x, axis=axis),
    "roll": lambda x, axis: wf.roll(x, 1, axis=axis),
    "concat": lambda x, axis: wf.concat([x, x], axis=axis),
    "take": lambda x, axis: wf.take(x, wf.asarray([0, -1, 0]), axis=axis),
    "first": lambda x, axis: wf.take(x, wf.asarray(0), axis=axis),
}
BINARY: dict[str, Callable[..., Any]] = {
    "x + y": lambda x, y: _number(x) + _number(y),
    "x * y": lambda x, y: _number(x) * _number(y),
    "maximum": lambda x, y: wf.maximum(_number(x), _number(y)),
    "x < y": lambda x, y: _number(x) < _number(y),
    "and": lambda x, y: wf.logical_and(x.astype(wf.bool), y.astype(wf.bool)),
}


def make_exact(rng: np.random.Generator, length: int = 6) -> tuple[list[Any], list[Any]]:
    """Input arrays, and steps as (text, function, places of operands)."""
    shape = tuple(int(n) for n in rng.integers(1, 6, rng.integers(1, 4)))
    inputs = [
        rng.integers(0, 9, shape).astype(str(rng.choice(DTYPES))) for _ in range(rng.integers(1, 3))
    ]
    values = [wf.asarray(a) for a in inputs]
    steps: list[Any] = []
    while len(steps) < length:
        place = int(rng.integers(max(0, len(values) - 2), len(values)))
        other = int(rng.integers(len(values)))
        text, function, operands = _draw(rng, values, place, other)
        try:
            made = function(*(values[i] for i in operands))
        except wf.errors.DTypeError:
            continue  # no integer holds both int64 and uint64
        if 0 < made.size <= 256:
            steps.append((text, function, operands))
            values.append(made)
    return inputs, steps


def _draw(rng: np.random.Generator, values: list[Any], place: int, other: int) -> Any:
    x = values[place]
    kind = int(rng.integers(3))
    if kind == 0 and x.shape == values[other].shape:
        name = str(rng.choice(list(BINARY)))
        return name, BINARY[name], (place, other)
    if kind == 1 and x.ndim:
        name, axis = str(rng.choice(list(AXIS))), _any_axis(rng, x)
        return f"{name}, axis={axis}", lambda x: AXIS[name](x, axis), (place,)
    name = str(rng.choice(list(PLAIN)))
    return name, PLAIN[name], (place,)


def run_steps(tensors: list[Any], steps: list[Any]) -> list[Any]:
    """Every value of the program."""
    values = list(tensors)
    for _, function, operands in steps:
        values.append(function(*(values[i] for i in operands)))
    return values
