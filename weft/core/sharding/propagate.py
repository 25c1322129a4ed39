"""From the shardings of operands to those of results: COLLECT, RESOLVE, UPDATE over factors.

Index notation does all the work: a mesh axis splits a *factor*; the factor's axes in every operand
and result follow. A split factor that is contracted leaves a reduction pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.core.common.factors import Factors, Term
from weft.core.common.parameters import shown
from weft.core.common.spec import DeviceMesh, MeshAxes, ShardingSpec
from weft.errors import ShardingError

_REDUCTIONS = {"add": "sum", "max": "max", "min": "min", "mul": "prod"}


@dataclass(frozen=True)
class Propagation:
    """What an op needs of its operands, and what its results are."""

    inputs: tuple[ShardingSpec, ...]
    outputs: tuple[ShardingSpec, ...]


def propagate(
    factors: Factors, sizes: Mapping[str, int], specs: Sequence[ShardingSpec], combine: str = "add"
) -> Propagation:
    """Shardings for one op: operands that differ from `inputs` must be resharded first.

    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> f = Factors.parse("m k, k n -> m n", (2, 2))
    >>> rows, columns = ShardingSpec(mesh, ((), ("x",))), ShardingSpec(mesh, (("x",), ()))
    >>> result = propagate(f, {"m": 4, "k": 4, "n": 4}, (rows, columns))
    >>> print(result.outputs[0])
    [·, ·] pending sum over x
    """
    _check_kinds(factors, sizes, specs, combine)
    mesh = next((spec.mesh for spec in specs if spec.mesh is not None), None)
    if mesh is None:
        return Propagation(
            tuple(specs), tuple(ShardingSpec.whole(len(term)) for term in factors.outputs)
        )
    chosen = resolve(factors, sizes, mesh, collect(factors, sizes, mesh, specs))
    return update(factors, mesh, chosen, combine)


def _check_kinds(factors: Any, sizes: Any, specs: Any, combine: Any) -> None:
    if not isinstance(factors, Factors):
        raise ShardingError(f"propagate: factors must be Factors, got {shown(factors)}")
    if not isinstance(sizes, Mapping) or not sizes.keys() >= set(factors.names):
        raise ShardingError(f"propagate: sizes must name every factor, got {shown(sizes)}")
    is_list = isinstance(specs, Sequence) and len(specs) == len(factors.inputs)
    if not is_list or not all(isinstance(spec, ShardingSpec) for spec in specs):
        raise ShardingError(f"propagate: specs must be one for each operand, got {shown(specs)}")
    if combine not in _REDUCTIONS:
        legal = ", ".join(_REDUCTIONS)
        raise ShardingError(f"propagate: combine must be one of {legal}, got {shown(combine)}")


def collect(
    factors: Factors, sizes: Mapping[str, int], mesh: DeviceMesh, specs: Sequence[ShardingSpec]
) -> dict[str, list[MeshAxes]]:
    """For each factor the ways operands would split it; of a product the outermost is cut."""
    wishes: dict[str, list[MeshAxes]] = {}
    for term, spec in zip(factors.inputs, specs, strict=True):
        for names, axes in zip(term, spec.axes, strict=True):
            remaining = axes
            for name in names:
                mine: MeshAxes = ()
                while remaining and sizes[name] >= _parts(mesh, (*mine, remaining[0])):
                    mine, remaining = (*mine, remaining[0]), remaining[1:]
                wishes.setdefault(name, []).append(mine)
    return wishes


def resolve(
    factors: Factors,
    sizes: Mapping[str, int],
    mesh: DeviceMesh,
    wishes: Mapping[str, list[MeshAxes]],
) -> dict[str, MeshAxes]:
    """One split for each factor: more parallelism wins; a mesh axis serves one factor only."""
    chosen: dict[str, MeshAxes] = {}
    used: set[str] = set()
    by_gain = sorted(wishes, key=lambda n: -max(_parts(mesh, w) for w in wishes[n]))
    for name in by_gain:
        best = max(wishes[name], key=lambda axes: _parts(mesh, axes))
        if name in factors.whole or used & set(best):
            best = ()
        chosen[name] = best
        used |= set(best)
    return chosen


def update(
    factors: Factors, mesh: DeviceMesh, chosen: Mapping[str, MeshAxes], combine: str
) -> Propagation:
    """The specs that follow from the chosen splits."""

    def spec(term: Term, pending: tuple[tuple[str, str], ...] = ()) -> ShardingSpec:
        axes = tuple(tuple(a for name in names for a in chosen.get(name, ())) for names in term)
        return ShardingSpec(mesh, axes, pending)

    waiting = tuple(
        (axis, _REDUCTIONS[combine]) for name in factors.contracted for axis in chosen.get(name, ())
    )
    return Propagation(
        tuple(spec(term) for term in factors.inputs),
        tuple(spec(term, waiting) for term in factors.outputs),
    )


def _parts(mesh: DeviceMesh, axes: MeshAxes) -> int:
    product = 1
    for axis in axes:
        product *= mesh.axis_size(axis)
    return product
