"""Fourier transforms as kernels: which ones a call becomes, axis by axis.

Everything but the complex transforms themselves, `Run`, is the same on processors and on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from typing import TypeAlias

from weft.compiler.fourier import around
from weft.compiler.fourier.passes import transformed
from weft.compiler.fourier.real import Transform
from weft.compiler.order.rows import Made
from weft.compiler.steps import Memory
from weft.core.common import dtypes
from weft.core.common.types import DType, Shape, TensorType
from weft.core.graph.node import OutputRefs
from weft.ops.fft import ComplexTransform, Fft, Rfft

Run: TypeAlias = Callable[[Transform, Memory, Memory], list[Made] | None]


def lower_fourier(
    node: OutputRefs, source: Memory, target: Memory, run: Run = transformed
) -> list[Made]:
    """The kernels of a call; none where there is nothing to transform."""
    if not target.kind.size:
        return []
    if isinstance(node.op, ComplexTransform):
        return _complex(node, source, target, run)
    axis, norm = node.params["axis"], node.params["norm"]
    if isinstance(node.op, Rfft):
        return _real(source, target, axis, norm, run)
    return _to_real(source, target, axis, norm, run)


def _scale(n: int, norm: str, inverse: bool) -> float:
    """The factor of a transform of n numbers."""
    if norm == "ortho":
        return 1 / sqrt(n)
    return 1 / n if inverse == (norm == "backward") else 1.0


def _around_axis(shape: Shape, axis: int) -> tuple[int, int, int]:
    place = len(shape) + axis
    return prod(shape[:place]), shape[axis], prod(shape[place + 1 :])


def _room(dtype: DType, *shape: int) -> Memory:
    return Memory(TensorType(shape, dtypes.complex_of(dtype)))


def _complex(node: OutputRefs, source: Memory, target: Memory, run: Run) -> list[Made]:
    shape, dtype = target.kind.shape, dtypes.real_of(target.kind.dtype)
    inverse, axes = not isinstance(node.op, Fft), node.params["axes"]
    scale = _scale(prod(shape[axis] for axis in axes), node.params["norm"], inverse)
    left = [axis for axis in axes if shape[axis] > 1]
    if not left:
        return [around.copied((1, 1, target.kind.size), dtype, source, target, scale)]
    made: list[Made] = []
    while left:
        sizes = _around_axis(shape, left.pop())
        goal = _room(dtype, target.kind.size) if left else target
        t = Transform(*sizes, dtype, inverse, 1.0 if left else scale)
        made += _plain(t, source, goal, run)
        source = goal
    return made


def _real(source: Memory, target: Memory, axis: int, norm: str, run: Run) -> list[Made]:
    dtype = dtypes.real_of(target.kind.dtype)
    shape = rows, n, inner = _around_axis(source.kind.shape, axis)
    scale = _scale(n, norm, inverse=False)
    if n == 1:
        return [around.copied(shape, dtype, source, target, scale)]
    if n % 2:
        wide, whole = (_room(dtype, *shape) for _ in range(2))
        return [
            around.copied(shape, dtype, source, wide, 1.0),
            *_plain(Transform(*shape, dtype, False, scale), wide, whole, run),
            around.cropped(shape, n // 2 + 1, dtype, whole, target, real=False),
        ]
    t = Transform(rows, n // 2, inner, dtype, False, scale, "half")
    same = source.kind.dtype == dtype
    found = run(t, source, target) if same and n > 2 else None
    if found is not None:
        return found
    half, made = (rows, n // 2, inner), list[Made]()
    if inner > 1 or not same:
        pairs = _room(dtype, *half)
        made.append(around.paired(half, dtype, source, pairs))
        source = pairs
    if n > 2:
        spectrum = _room(dtype, *half)
        made += _plain(t.inside, source, spectrum, run)
        source = spectrum
    return [*made, around.halved(half, n, dtype, source, target, scale)]


def _to_real(source: Memory, target: Memory, axis: int, norm: str, run: Run) -> list[Made]:
    dtype = target.kind.dtype
    shape = rows, n, inner = _around_axis(target.kind.shape, axis)
    scale = _scale(n, norm, inverse=True)
    if n % 2:
        full, whole = (_room(dtype, *shape) for _ in range(2))
        made = [around.mirrored(shape, dtype, source, full)]
        if n == 1:
            return [*made, around.cropped(shape, n, dtype, full, target, real=True)]
        made += _plain(Transform(*shape, dtype, True, scale), full, whole, run)
        return [*made, around.cropped(shape, n, dtype, whole, target, real=True)]
    half = (rows, n // 2, inner)
    t = Transform(*half, dtype, True, scale, "double")
    found = run(t, source, target) if n > 2 else None
    if found is not None:
        return found
    pairs = _room(dtype, *half)
    made = [around.doubled(half, n, dtype, source, pairs)]
    goal = target if inner == 1 else _room(dtype, *half)
    if n > 2:
        made += _plain(t.inside, pairs, goal, run)
    else:
        made.append(around.copied(half, dtype, pairs, goal, scale))
    if goal is not target:
        made.append(around.parted(half, dtype, goal, target))
    return made


def _plain(t: Transform, source: Memory, target: Memory, run: Run) -> list[Made]:
    """The kernels of a transform without ends."""
    found = run(t, source, target)
    assert found is not None, t
    return found
