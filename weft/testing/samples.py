"""Operands for an op's examples: what each letter of `sample` stands for."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import Any

import numpy as np

from weft.core.common.types import Array, Shape
from weft.ops.base import Example, Operation

_DEFAULT: Shape = (4, 6)


def arity(op: Operation, example: Example) -> int:
    """How many operands the op takes in this example."""
    parameters = signature(op.eval).parameters.values()
    if any(p.kind is Parameter.VAR_POSITIONAL for p in parameters):
        if example.shapes:
            return len(example.shapes)
        nin = getattr(op.ufunc, "nin", None)
        return nin if nin is not None else len(op.sample) or 1
    return sum(
        p.kind is not Parameter.KEYWORD_ONLY and p.kind is not Parameter.VAR_KEYWORD
        for p in parameters
    )


def calls(op: Operation) -> tuple[Example, ...]:
    """The op's examples, or one plain call; none for an op that says why it has none."""
    if "examples" in op.reasons:
        return ()
    return op.examples or (Example({}),)


def operands(
    op: Operation, example: Example, rng: np.random.Generator, lead: Shape = ()
) -> list[Array]:
    """Random operands for an example, with leading axes of sizes `lead`."""
    count = arity(op, example)
    shapes = example.shapes[:count] or (_DEFAULT,) * count
    letters = (example.sample or op.sample or "f" * count).ljust(count, "f")
    return [draw(letter, lead + shape, rng) for letter, shape in zip(letters, shapes, strict=False)]


def draw(letter: str, shape: Shape, rng: np.random.Generator) -> Array:
    """An array of the kind a sample letter names."""
    made: Any
    if letter == "f":
        made = rng.uniform(-2, 2, shape)
    elif letter == "p":
        made = rng.uniform(0.2, 2, shape)
    elif letter == "u":
        made = rng.uniform(-0.9, 0.9, shape)
    elif letter == "q":
        made = rng.uniform(0.1, 0.9, shape)
    elif letter == "g":
        made = rng.uniform(1.2, 3, shape)
    elif letter == "o":
        made = np.sort(rng.uniform(-2, 2, shape), axis=-1)
    elif letter == "i":
        made = rng.integers(0, 4, shape)
    elif letter == "n":
        made = rng.integers(1, 9, shape)
    elif letter == "b":
        made = rng.integers(0, 2, shape).astype(bool)
    elif letter == "c":
        made = rng.uniform(-1, 1, shape) + 1j * rng.uniform(-1, 1, shape)
    elif letter in "msl":
        made = _matrix(letter, shape, rng)
    elif letter == "k":
        made = rng.integers(0, 2**32, shape, dtype=np.uint32)
    else:
        raise ValueError(f"unknown sample letter {letter!r}")
    return np.asarray(made)


def _matrix(letter: str, shape: Shape, rng: np.random.Generator) -> Array:
    """A well-conditioned square matrix: general, symmetric positive definite, or lower."""
    made = rng.uniform(-1, 1, shape)
    eye = np.eye(shape[-1])
    if letter == "s":
        return np.asarray(made @ made.mT + shape[-1] * eye)
    made = made + 3 * eye
    return np.asarray(np.tril(made) if letter == "l" else made)
