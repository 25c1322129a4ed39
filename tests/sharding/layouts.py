"""Meshes, random layouts and comparisons that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft as wf
from weft import P

HALVES = wf.DeviceMesh("halves", (2,), ("x",))
THIRDS = wf.DeviceMesh("thirds", (3,), ("x",))
LONG = wf.DeviceMesh("long", (8,), ("x",))
SQUARE = wf.DeviceMesh("square", (2, 2), ("x", "y"))
UNEVEN = wf.DeviceMesh("uneven", (2, 3), ("x", "y"))
CUBE = wf.DeviceMesh("cube", (2, 1, 2), ("x", "y", "z"))
MESHES = (HALVES, THIRDS, LONG, SQUARE, UNEVEN, CUBE)


def random_spec(rng: np.random.Generator, mesh: wf.DeviceMesh, rank: int) -> P:
    """A partition that gives each mesh axis to some axis of the tensor, or to none."""
    entries: list[list[str]] = [[] for _ in range(rank)]
    for name in rng.permutation(mesh.axis_names):
        axis = int(rng.integers(-1, rank))
        if axis >= 0:
            entries[axis].append(str(name))
    return P(*(tuple(names) or None for names in entries))


def one_axis(rank: int, axis: int, name: str = "x") -> P:
    """A partition that splits one axis."""
    return P(*(name if k == axis else None for k in range(rank)))


def laid_out(array: Any, mesh: wf.DeviceMesh, spec: P | None) -> wf.Tensor:
    """The array as a tensor over the mesh, or on one device where there is no spec."""
    tensor = wf.asarray(array)
    return tensor if spec is None else tensor.shard(mesh, spec)


def close(found: Any, expected: Any, tolerance: float = 1e-11) -> None:
    """Every leaf has the expected type, and its values up to a tolerance of the largest."""
    pairs = zip(wf.tree_leaves(found), wf.tree_leaves(expected), strict=True)
    for x, y in pairs:
        a, b = np.asarray(x), np.asarray(y)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        wide = np.complex128 if np.iscomplexobj(b) else np.float64
        a, b = a.astype(wide), b.astype(wide)
        finite = np.abs(b)[np.isfinite(b)]
        scale = max(1.0, float(finite.max(initial=0.0)))
        with np.errstate(invalid="ignore"):  # complex infinities
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)


def same(found: Any, expected: Any) -> None:
    """Every leaf has the same type and the same bits."""
    for x, y in zip(wf.tree_leaves(found), wf.tree_leaves(expected), strict=True):
        a, b = np.asarray(x), np.asarray(y)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert a.tobytes() == b.tobytes()


def log_of(function: Callable[[], Any]) -> tuple[Any, wf.CommunicationLog]:
    """What a function gives, and what was communicated for it."""
    with wf.communication_log() as log:
        result = function()
    return result, log
