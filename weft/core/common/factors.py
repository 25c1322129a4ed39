"""Index notation: one string per op, from which shape, batching, sharding, cost and loops follow.

A *factor* is a named loop of an op's iteration space. `"... m k, ... k n -> ... m n"` says that
matmul loops over m, n and k, that k is contracted, and that any leading axes are batch. An operand
may lack leading axes that others have. An axis may be a product of factors, outermost first:
`"(a b) -> a b"` splits an axis in two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import gcd, prod
from typing import TypeAlias

from weft.core.common.types import Shape
from weft.errors import ShapeError

Axis: TypeAlias = tuple[str, ...]  # the factors whose product is this axis, outermost first
Term: TypeAlias = tuple[Axis, ...]  # one operand or result


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of every operand axis and of every result axis.

    >>> f = Factors.parse("... m k, ... k n -> ... m n", ranks=(3, 2))
    >>> str(f)
    'b0 m k, k n -> b0 m n'
    >>> f.contracted
    ('k',)
    >>> f.result_shapes(((8, 2, 5), (5, 3)))
    ((8, 2, 3),)
    """

    inputs: tuple[Term, ...]
    outputs: tuple[Term, ...]
    leads: tuple[int, ...] = ()  # how many leading (batch) axes each operand has
    extents: Mapping[str, int] = field(default_factory=dict)  # sizes no operand determines
    whole: frozenset[str] = frozenset()  # factors that one device must hold entirely

    @classmethod
    def parse(
        cls,
        text: str,
        ranks: Sequence[int],
        extents: Mapping[str, int] | None = None,
        whole: str = "",
    ) -> Factors:
        """Read `"i j, j k -> i k"`; `...` stands for the leading (batch) axes."""
        inputs, outputs, leads = _parse(text, tuple(ranks))
        return cls(inputs, outputs, leads, extents or {}, frozenset(whole.split()))

    @property
    def names(self) -> tuple[str, ...]:
        """All factors, result factors first: the loop nest, outermost first."""
        terms = (*self.outputs, *self.inputs)
        return tuple(dict.fromkeys(n for term in terms for axis in term for n in axis))

    @property
    def contracted(self) -> tuple[str, ...]:
        """Factors that no result carries: they are reduced away."""
        kept = {n for term in self.outputs for axis in term for n in axis}
        return tuple(n for n in self.names if n not in kept)

    def sizes(self, shapes: Sequence[Shape]) -> dict[str, int]:
        """Solve every factor's extent from the operand shapes, or say why it cannot be done."""
        found = dict(self.extents)
        for operand, (term, shape) in enumerate(zip(self.inputs, shapes, strict=True)):
            if len(term) != len(shape):
                raise ShapeError(
                    f"operand {operand}: expected {len(term)} axes ({show(term)}),"
                    f" got shape {shape}"
                )
            for axis, (names, size) in enumerate(zip(term, shape, strict=True)):
                _solve(found, names, size, f"operand {operand}, axis {axis}", shapes)
        return found

    def result_shapes(self, shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        """The shape of each result."""
        sizes = self.sizes(shapes)
        return tuple(
            tuple(prod(sizes[n] for n in names) for names in term) for term in self.outputs
        )

    def points(self, shapes: Sequence[Shape]) -> int:
        """Number of points of the iteration space: the op's work, up to a constant."""
        return prod(self.sizes(shapes).values())

    def __str__(self) -> str:
        sides = (", ".join(map(show, terms)) for terms in (self.inputs, self.outputs))
        return " -> ".join(sides)


def _solve(
    found: dict[str, int], names: Axis, size: int, where: str, shapes: Sequence[Shape]
) -> None:
    unknown = [n for n in names if n not in found]
    known = prod(found[n] for n in names if n in found)
    if len(unknown) == 1 and known and size % known == 0:
        found[unknown[0]] = size // known
    elif unknown:
        raise ShapeError(f"{where}: size {size} does not determine factors {show((names,))}")
    elif known != size:
        what = f"factor {names[0]!r}" if len(names) == 1 else f"axis {show((names,))}"
        listed = ", ".join(map(str, shapes))
        raise ShapeError(f"{where}: {what} is {size} here but {known} before (shapes {listed})")


def show(term: Iterable[Axis]) -> str:
    """A term as it is written: `b0 (a b) c`."""
    return " ".join(axis[0] if len(axis) == 1 else f"({' '.join(axis)})" for axis in term)


_BATCH: Axis = ("...",)


@lru_cache(maxsize=4096)
def _parse(
    text: str, ranks: tuple[int, ...]
) -> tuple[tuple[Term, ...], tuple[Term, ...], tuple[int, ...]]:
    left, right = (side.strip() for side in text.split("->"))
    inputs = [_axes(term) for term in left.split(",")] if ranks else []
    outputs = [_axes(term) for term in right.split(",")]
    leads = tuple(
        rank - len(term) + 1 if _BATCH in term else 0
        for rank, term in zip(ranks, inputs, strict=True)
    )
    for operand, lead in enumerate(leads):
        if lead < 0:
            core = [axis for axis in inputs[operand] if axis != _BATCH]
            raise ShapeError(
                f"operand {operand}: expected at least {len(core)} axes ({show(core)}),"
                f" got {ranks[operand]}"
            )
    batch = tuple((f"b{i}",) for i in range(max(leads, default=0)))

    def expand(term: list[Axis], lead: int) -> Term:
        names = batch[len(batch) - lead :]
        return tuple(a for axis in term for a in (names if axis == _BATCH else (axis,)))

    return (
        tuple(map(expand, inputs, leads)),
        tuple(expand(term, len(batch)) for term in outputs),
        leads,
    )


def _axes(term: str) -> list[Axis]:
    axes: list[Axis] = []
    group: list[str] | None = None
    for word in term.replace("(", " ( ").replace(")", " ) ").split():
        if word == "(":
            group = []
        elif word == ")":
            assert group is not None, term
            axes.append(tuple(group))
            group = None
        elif group is not None:
            group.append(word)
        else:
            axes.append((word,))
    return axes


def reshape_factors(old: Shape, new: Shape) -> tuple[str, dict[str, int], str]:
    """Notation, extents and whole factors of a row-major reshape.

    Equal-product segments are refined to common factors where sizes divide each other; what cannot
    be refined keeps its common leading part and is whole below it.

    >>> reshape_factors((6, 4), (2, 3, 4))
    ('(f0 f1) f2 -> f0 f1 f2', {'f0': 2, 'f1': 3, 'f2': 4}, '')
    >>> reshape_factors((6, 4), (4, 6))
    ('(f0 f1) f2 -> (f0 f3) f4', {'f0': 2, 'f1': 3, 'f2': 4, 'f3': 2, 'f4': 6}, 'f1 f2 f3 f4')
    """
    extents: dict[str, int] = {}
    whole: list[str] = []

    def fresh(size: int, stays: bool = False) -> str:
        name = f"f{len(extents)}"
        extents[name] = size
        if stays:
            whole.append(name)
        return name

    left: list[list[str]] = []
    right: list[list[str]] = []
    for olds, news in _segments(old, new):
        if (refined := _refine(olds, news)) is not None:
            names = [fresh(size) for size in refined]
            left += _group(names, refined, olds)
            right += _group(names, refined, news)
            continue
        common = gcd(olds[0], news[0]) if olds and news else 1
        lead = [fresh(common)] if common > 1 else []
        for side, sizes in ((left, olds), (right, news)):
            for i, size in enumerate(sizes):
                first = lead if i == 0 else []
                side.append([*first, fresh(size // common if first else size, stays=True)])
    text = " -> ".join(show(tuple(map(tuple, side))) for side in (left, right))
    return text, extents, " ".join(whole)


def _segments(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """Cut both shapes into the shortest runs of equal product."""
    if 0 in old or 0 in new:
        return [(list(old), list(new))] if old or new else []
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        olds, news = [], []
        a = b = 1
        while True:
            if (a <= b and i < len(old)) or j >= len(new):
                a *= old[i]
                olds.append(old[i])
                i += 1
            else:
                b *= new[j]
                news.append(new[j])
                j += 1
            if a == b and ((olds and news) or i == len(old) or j == len(new)):
                break
        runs.append((olds, news))
    return runs


def _refine(olds: list[int], news: list[int]) -> list[int] | None:
    """Factor sizes that both runs are products of, or None."""
    if 0 in olds or 0 in news or not olds or not news:
        return None
    cuts = sorted({prod(run[: k + 1]) for run in (olds, news) for k in range(len(run))} | {1})
    if any(b % a for a, b in pairwise(cuts)):
        return None
    return [b // a for a, b in pairwise(cuts)] or [1]


def _group(names: list[str], sizes: list[int], run: list[int]) -> list[list[str]]:
    """Distribute the factors over the axes of one side; a size-1 axis beyond them stays bare."""
    groups: list[list[str]] = []
    position = 0
    for size in run:
        group: list[str] = []
        product = 1
        while product < size or (size == 1 and not group and len(run) == 1):
            group.append(names[position])
            product *= sizes[position]
            position += 1
        groups.append(group)
    return groups
