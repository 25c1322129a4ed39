"""Ways to run one call on a mesh: each mesh axis splits one factor, carries a sum, or does nothing.

A strategy says how operands must lie, how results come out, and what part of the work one device
does. Strategies are enumerated (`candidates`), or follow from how one operand lies (`follow`) or
from how the result is wanted (`lead`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple

from weft.core.common.factors import Axis, Term
from weft.core.common.spec import MeshAxes
from weft.core.common.types import TensorType
from weft.core.sharding.cost import Fabric
from weft.core.sharding.propagate import REDUCTIONS
from weft.core.sharding.steps import Layout
from weft.transforms.planning.problem import Signature

_MOST = 36  # strategies of one call; calls of many factors and meshes of three axes reach it
_CARRY = "+"  # in an assignment: the mesh axis carries a pending sum through the call


class Strategy(NamedTuple):
    """How one call runs: its operands' layouts, its results', and the share of one device."""

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    share: float


class Rules:
    """What the strategies of calls with one signature have in common."""

    def __init__(self, signature: Signature, fabric: Fabric) -> None:
        self.signature = signature
        self.fabric = fabric
        self.sizes = signature.sizes

    @cached_property
    def splittable(self) -> dict[str, bool]:
        """Factors a mesh axis may split; true where the parts must divide the size."""
        factors, found = self.signature.factors, {}
        kept = [{n for axis in term for n in axis} for term in factors.outputs]
        for name in factors.names:
            everywhere = all(name in names for names in kept)
            reduced = name in factors.contracted and self.signature.combine in REDUCTIONS
            if name in factors.whole or self.sizes[name] < 2 or not (everywhere or reduced):
                continue
            places = [
                axis for term in (*factors.inputs, *factors.outputs) for axis in _with(term, name)
            ]
            twice = any(len(_with(term, name)) > 1 for term in (*factors.inputs, *factors.outputs))
            if not twice and all(self.outermost(axis) == name for axis in places):
                found[name] = any(self._inner(axis) for axis in places)
        return found

    def outermost(self, axis: Axis) -> str | None:
        """The factor that splitting this axis splits."""
        return next((name for name in axis if self.sizes[name] != 1), None)

    def _inner(self, axis: Axis) -> bool:
        return sum(self.sizes[name] != 1 for name in axis) > 1

    def may_split(self, name: str, axes: MeshAxes) -> bool:
        """Whether these mesh axes together may split a factor."""
        if not axes:
            return True
        divides = self.splittable.get(name)
        parts, size = self.fabric.parts(axes), self.sizes[name]
        return divides is not None and parts <= size and not (divides and size % parts)

    @cached_property
    def carriers(self) -> tuple[int, ...]:
        """Operands that may be sums still to be done, all of them together; the result is then."""
        sign = self.signature
        if sign.linear != "jointly":
            return ()
        return tuple(k for k in range(len(sign.operands)) if k not in sign.constants)

    @cached_property
    def is_light(self) -> bool:
        """Whether an operand's layout settles everything: elementwise calls, views, reductions."""
        factors = self.signature.factors
        if not factors.inputs or factors.whole:
            return False
        if factors.contracted and len(factors.inputs) > 1:
            return False
        return not self._made

    @property
    def _made(self) -> list[str]:
        """Factors of results that no operand has."""
        factors = self.signature.factors
        read = {n for term in factors.inputs for axis in term for n in axis}
        return [n for n in factors.names if n not in read and self.sizes[n] != 1]

    def strategy(self, split: Mapping[str, MeshAxes], carried: MeshAxes = ()) -> Strategy:
        """The strategy that follows from the mesh axes of each factor."""
        factors = self.signature.factors
        waiting = [(axis, "sum") for axis in carried]
        inputs = tuple(
            self._layout(term, split, tuple(waiting) if k in self.carriers else ())
            for k, term in enumerate(factors.inputs)
        )
        kind = REDUCTIONS.get(self.signature.combine, "sum")
        own = [(axis, kind) for name in factors.contracted for axis in split.get(name, ())]
        pending = tuple(sorted(waiting + own))
        outputs = tuple(self._layout(term, split, pending) for term in factors.outputs)
        return Strategy(inputs, outputs, self._share(split))

    def _layout(
        self, term: Term, split: Mapping[str, MeshAxes], pending: tuple[tuple[str, str], ...]
    ) -> Layout:
        axes = tuple(split.get(self.outermost(axis) or "", ()) for axis in term)
        return Layout(axes, pending)

    def _share(self, split: Mapping[str, MeshAxes]) -> float:
        parts = ((self.sizes[n], self.fabric.parts(axes)) for n, axes in split.items() if axes)
        return prod(-(-size // count) / size for size, count in parts)

    def share_of(self, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]) -> float:
        """The part of the work one device does when operands and results lie like this."""
        split: dict[str, MeshAxes] = {}
        terms = (*self.signature.factors.inputs, *self.signature.factors.outputs)
        for term, layout in zip(terms, (*inputs, *outputs), strict=True):
            for axis, mine in zip(term, layout.axes, strict=True):
                name = self.outermost(axis)
                if mine and name is not None:
                    split[name] = mine
        return self._share(split)

    def candidates(self, carries: bool = False) -> list[Strategy]:
        """Every strategy: each mesh axis splits one factor, carries a sum, or does nothing."""
        axes = [axis for axis, size in self.fabric.sizes.items() if size > 1]
        options: list[list[str | None]] = [
            [None, *self.splittable, *([_CARRY] if carries and self.carriers else [])] for _ in axes
        ]
        found = []
        for choice in product(*options):
            split: dict[str, MeshAxes] = {}
            for axis, name in zip(axes, choice, strict=True):
                if name is not None:
                    split[name] = (*split.get(name, ()), axis)
            carried = split.pop(_CARRY, ())
            if all(self.may_split(name, mine) for name, mine in split.items()):
                found.append(self.strategy(split, carried))
        return _pruned(list(dict.fromkeys(found)))

    def follow(self, operand: int, layout: Layout, reduce: bool) -> Strategy | None:
        """The strategy that takes one operand as it lies, or None where there is none.

        With `reduce`, a pending reduction that the call cannot carry is done before it.
        """
        alone = self.carriers == (operand,)
        if any(kind != "sum" or not alone for _, kind in layout.pending):
            if not reduce:
                return None
            layout = Layout(layout.axes)
        return self._given(self.signature.factors.inputs[operand], layout)

    def lead(self, layout: Layout) -> Strategy | None:
        """The strategy whose only result comes out in this layout, or None."""
        if layout.pending and (len(self.carriers) != 1 or self.signature.factors.contracted):
            return None
        return self._given(self.signature.factors.outputs[0], layout)

    def _given(self, term: Term, layout: Layout) -> Strategy | None:
        split: dict[str, MeshAxes] = {}
        for axis, mine in zip(term, layout.axes, strict=True):
            if mine:
                name = self.outermost(axis)
                if name is None or not self.may_split(name, mine):
                    return None
                split[name] = mine
        return self.strategy(split, tuple(axis for axis, _ in layout.pending))

    @cached_property
    def leads(self) -> bool:
        """Whether `lead` finds a strategy for all layouts (up to sizes that do not divide)."""
        if len(self.signature.operands) != 1 or len(self.signature.results) != 1:
            return False
        names = map(self.outermost, self.signature.factors.outputs[0])
        return all(name is None or name in self.splittable for name in names)

    def replicated(self) -> Strategy:
        """Every device does everything."""
        return self.strategy({})


def _pruned(found: list[Strategy]) -> list[Strategy]:
    """At most `_MOST` of many: those that share the work best and leave the least to reduce."""
    if len(found) <= _MOST:
        return found
    ranked = sorted(found[1:], key=lambda each: (each.share, len(each.outputs[0].pending)))
    return [found[0], *ranked[: _MOST - 1]]  # the first leaves everything whole


def _with(term: Term, name: str) -> list[Axis]:
    return [axis for axis in term if name in axis]


def local_bytes(fabric: Fabric, kind: TensorType, layout: Layout) -> int:
    """Bytes of one device's piece."""
    return fabric.local_size(layout.axes, kind.shape) * kind.dtype.itemsize
