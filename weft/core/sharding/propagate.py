"""From the shardings of operands to those of results: COLLECT, RESOLVE, UPDATE over factors.

Index notation does all the work: a mesh axis splits a *factor*; the factor's axes in every operand
and result follow. A split factor that is contracted leaves a reduction pending; a pending reduction
passes through what is linear in its operand and is settled before anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from weft.core.common.factors import Factors, Term
from weft.core.common.parameters import shown
from weft.core.common.spec import DeviceMesh, MeshAxes, Pending, ShardingSpec
from weft.errors import ShardingError

REDUCTIONS = {"add": "sum", "max": "max", "min": "min", "mul": "prod", "and": "all", "or": "any"}


class Passing(NamedTuple):
    """How pending reductions go through an op, which follows from its linearity."""

    jointly: bool = False  # linear in all operands together
    each: bool = False  # linear in each operand, the others held fixed
    moves: bool = False  # one operand whose elements are only moved: any reduction may wait
    constants: tuple[int, ...] = ()  # operands it is not linear in


SETTLES = Passing()


@dataclass(frozen=True)
class Propagation:
    """What an op needs of its operands, what its results are, and which factors are split."""

    inputs: tuple[ShardingSpec, ...]
    outputs: tuple[ShardingSpec, ...]
    chosen: Mapping[str, MeshAxes] = field(default_factory=dict)


class Wish(NamedTuple):
    """How one operand would split a factor, and how much its wish counts."""

    axes: MeshAxes
    priority: int = 0
    elements: int = 0


def propagate(
    factors: Factors,
    sizes: Mapping[str, int],
    specs: Sequence[ShardingSpec],
    combine: str = "add",
    passing: Passing = SETTLES,
) -> Propagation:
    """Shardings for one op: operands that differ from `inputs` must be resharded first.

    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> f = Factors.parse("m k, k n -> m n", (2, 2))
    >>> rows, columns = ShardingSpec(mesh, ((), ("x",))), ShardingSpec(mesh, (("x",), ()))
    >>> result = propagate(f, {"m": 4, "k": 4, "n": 4}, (rows, columns))
    >>> print(result.outputs[0])
    [·, ·] pending sum over x
    """
    _check_kinds(factors, sizes, specs)
    mesh = common_mesh(specs)
    if mesh is None:
        return Propagation(
            tuple(specs), tuple(ShardingSpec.whole(len(term)) for term in factors.outputs)
        )
    specs = [spec.on(mesh) for spec in specs]
    chosen = resolve(factors, sizes, mesh, collect(factors, sizes, mesh, specs), combine)
    waiting = passed(factors, sizes, specs, chosen, passing)
    done = update(factors, mesh, chosen, combine)
    if not waiting:
        return done
    return Propagation(
        tuple(
            ShardingSpec(mesh, new.axes, tuple(p for p in old.pending if p in waiting))
            for old, new in zip(specs, done.inputs, strict=True)
        ),
        tuple(ShardingSpec(mesh, s.axes, (*s.pending, *waiting)) for s in done.outputs),
        chosen,
    )


def common_mesh(specs: Sequence[ShardingSpec]) -> DeviceMesh | None:
    """The mesh of these specs: one of them may split the axes of another further."""
    meshes = list(dict.fromkeys(spec.mesh for spec in specs if spec.mesh is not None))
    if len(meshes) <= 1:
        return meshes[0] if meshes else None
    for finest in meshes:
        if all(_descends(finest, mesh) for mesh in meshes):
            return finest
    alike = len(set(map(str, meshes))) < len(meshes)
    listed = " and ".join(f"{m} of {m.devices}" if alike else str(m) for m in meshes)
    raise ShardingError(
        f"operands lie on different meshes: {listed}"
        "\nhint: x.shard(mesh, spec) moves a tensor to another mesh"
    )


def _descends(mesh: DeviceMesh | None, from_mesh: DeviceMesh) -> bool:
    while mesh is not None and mesh != from_mesh:
        mesh = mesh.parent
    return mesh is not None


def _check_kinds(factors: Any, sizes: Any, specs: Any) -> None:
    if not isinstance(factors, Factors):
        raise ShardingError(f"propagate: factors must be Factors, got {shown(factors)}")
    if not isinstance(sizes, Mapping) or not sizes.keys() >= set(factors.names):
        raise ShardingError(f"propagate: sizes must name every factor, got {shown(sizes)}")
    is_list = isinstance(specs, Sequence) and len(specs) == len(factors.inputs)
    if not is_list or not all(isinstance(spec, ShardingSpec) for spec in specs):
        raise ShardingError(f"propagate: specs must be one for each operand, got {shown(specs)}")


def collect(
    factors: Factors, sizes: Mapping[str, int], mesh: DeviceMesh, specs: Sequence[ShardingSpec]
) -> dict[str, list[Wish]]:
    """For each factor the ways operands would split it; of a product the outermost is cut."""
    wishes: dict[str, list[Wish]] = {}
    merged = _merged(factors)
    vetoes: dict[str, set[str]] = {}
    for term, spec in zip(factors.inputs, specs, strict=True):
        elements = prod(sizes[name] for names in term for name in names)
        for names, axes in zip(term, spec.axes, strict=True):
            remaining = axes
            for name in names:
                vetoes.setdefault(name, set()).update(spec.replicated)
                mine: MeshAxes = ()
                while remaining and _divides(
                    sizes[name], mesh.parts((*mine, remaining[0])), name in merged
                ):
                    mine, remaining = (*mine, remaining[0]), remaining[1:]
                if mine:
                    wish = Wish(mine, spec.priority, elements)
                    wishes.setdefault(name, []).append(wish)
                if mesh.parts(mine) != sizes[name]:
                    break  # what lies further in is not contiguous in a piece
    return {
        name: [w._replace(axes=_before(w.axes, vetoes[name])) for w in found]
        for name, found in wishes.items()
    }


def resolve(
    factors: Factors,
    sizes: Mapping[str, int],
    mesh: DeviceMesh,
    wishes: Mapping[str, list[Wish]],
    combine: str = "add",
) -> dict[str, MeshAxes]:
    """One split for each factor, and for each mesh axis at most one factor.

    A mesh axis an operand is kept whole over is never used (COLLECT has left it out); then the
    lower priority number counts, then more parallelism, then the operand with more elements.
    """
    chosen: dict[str, MeshAxes] = dict.fromkeys(factors.names, ())
    used: set[str] = set()

    def rank(wish: Wish) -> tuple[int, int, int]:
        return wish.priority, -mesh.parts(wish.axes), -wish.elements

    best = {name: min(found, key=rank) for name, found in wishes.items()}
    for name in sorted(best, key=lambda name: rank(best[name])):
        if can_split(factors, name, combine):
            chosen[name] = _before(best[name].axes, used)
            while not _divides(sizes[name], mesh.parts(chosen[name]), name in _merged(factors)):
                chosen[name] = chosen[name][:-1]
            used |= set(chosen[name])
    for term in (*factors.inputs, *factors.outputs):
        for names in term:
            inside = False
            for name in names:
                if inside:
                    chosen[name] = ()  # a piece of it would not be contiguous in the product
                inside = inside or mesh.parts(chosen[name]) != sizes[name]
    return chosen


def can_split(factors: Factors, name: str, combine: str) -> bool:
    """Whether devices may each take a part of a factor."""
    if name in factors.whole:
        return False
    carriers = [any(name in names for names in term) for term in factors.outputs]
    return all(carriers) or (not any(carriers) and combine in REDUCTIONS)


def passed(
    factors: Factors,
    sizes: Mapping[str, int],
    specs: Sequence[ShardingSpec],
    chosen: Mapping[str, MeshAxes],
    passing: Passing,
) -> Pending:
    """The reductions of operands that may stay pending in the results."""
    used = {axis for axes in chosen.values() for axis in axes}
    made = max(_elements(term, sizes) for term in factors.outputs) if factors.outputs else 0
    found: list[tuple[str, str]] = []
    for each in dict.fromkeys(p for spec in specs for p in spec.pending):
        holders = [i for i, spec in enumerate(specs) if each in spec.pending]
        if each[0] in used or any(
            axis == each[0] and kind != each[1] for spec in specs for axis, kind in spec.pending
        ):
            continue
        if made > max(_elements(factors.inputs[i], sizes) for i in holders):
            continue  # settling the smaller operand moves fewer bytes
        carried = [i for i in range(len(specs)) if i not in passing.constants]
        if (
            (passing.moves and len(specs) == 1)
            or (each[1] == "sum" and passing.jointly and holders == carried)
            or (each[1] == "sum" and passing.each and len(holders) == 1 and holders[0] in carried)
        ):
            found.append(each)
    return tuple(found)


def update(
    factors: Factors, mesh: DeviceMesh, chosen: Mapping[str, MeshAxes], combine: str
) -> Propagation:
    """The specs that follow from the chosen splits."""

    def spec(term: Term, pending: Pending = ()) -> ShardingSpec:
        axes = tuple(tuple(a for name in names for a in chosen.get(name, ())) for names in term)
        return ShardingSpec(mesh, axes, pending)

    cut = [axis for name in factors.contracted for axis in chosen.get(name, ())]
    if cut and combine not in REDUCTIONS:
        legal = ", ".join(REDUCTIONS)
        raise ShardingError(f"propagate: combine must be one of {legal}, got {shown(combine)}")
    waiting = tuple((axis, REDUCTIONS[combine]) for axis in cut)
    return Propagation(
        tuple(spec(term) for term in factors.inputs),
        tuple(spec(term, waiting) for term in factors.outputs),
        dict(chosen),
    )


def _merged(factors: Factors) -> set[str]:
    """Factors that are part of a product somewhere: their pieces must be equal."""
    terms = (*factors.inputs, *factors.outputs)
    return {name for term in terms for names in term if len(names) > 1 for name in names}


def _divides(size: int, parts: int, evenly: bool) -> bool:
    return size % parts == 0 if evenly else size >= parts


def _before(axes: MeshAxes, taken: set[str]) -> MeshAxes:
    """The axes up to the first that is taken."""
    for count, axis in enumerate(axes):
        if axis in taken:
            return axes[:count]
    return axes


def _elements(term: Term, sizes: Mapping[str, int]) -> int:
    return prod(sizes[name] for names in term for name in names)
