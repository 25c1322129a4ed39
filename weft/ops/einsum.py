"""`einsum`: index notation as an API, carried out as a few matrix products.

Each operand is first reduced to what matters (diagonals of repeated labels, sums over labels that
nobody else has). Pairs are then contracted in an order that keeps the arithmetic small; a pair is
one `matmul` of transposed and reshaped operands, or a product where nothing is summed.
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from operator import index as as_int
from typing import Any, TypeAlias

from weft.core.common.slots import public
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ops.base import call
from weft.ops.contraction import matmul_op, numbers
from weft.ops.families import broadcast
from weft.ops.naming import named
from weft.ops.often import often
from weft.ops.reduction import reduce_sum_op
from weft.ops.view.reshape import reshape
from weft.ops.view.slice import slice_axes
from weft.ops.view.transpose import moveaxis, permute_dims

Label: TypeAlias = Any  # a letter, a number, or ("...", axis from the right)
Term: TypeAlias = tuple[Label, ...]
_OPTIMAL = 6  # up to this many operands every order is tried


@dataclass(frozen=True, slots=True)
class Labelled:
    """A tensor and the label of each of its axes."""

    tensor: Tensor
    labels: Term

    @property
    def sizes(self) -> dict[Label, int]:
        """The size of each label."""
        return dict(zip(self.labels, self.tensor.shape, strict=True))


@public
@often
def einsum(subscripts: Any, /, *operands: Any, optimize: Any = True) -> Tensor:
    """Sum products of operands over labelled axes: `einsum("ij,jk->ik", a, b)`.

    Repeated labels take diagonals, `...` broadcasts, and without `->` the labels that occur once
    are kept in order. Operands and lists of labels may alternate: `einsum(a, [0, 1], b, [1, 2])`.
    The order of the products is always chosen by their cost, whatever `optimize` says.
    """
    read, wanted, sizes = _read(subscripts, operands)
    rest = [
        _sum_alone(x, wanted, [y.labels for y in read[:k] + read[k + 1 :]])
        for k, x in enumerate(read)
    ]
    result = _contract(rest, wanted, sizes)
    present = tuple(label for label in wanted if label in result.labels)
    ordered = _ordered(result, present)
    return _stretch(ordered, present, wanted, sizes)


@public
@named
def einsum_path(
    subscripts: Any, /, *operands: Any, optimize: Any = True
) -> tuple[list[str | tuple[int, ...]], str]:
    """The order in which `einsum` multiplies, as NumPy writes it, and what each product costs.

    Each pair of positions leaves the list of operands, and their product joins its end. The order
    is always chosen by its cost, whatever `optimize` says.

    >>> a, b = [[1, 2]] * 9, [[1] * 9] * 2
    >>> path, costs = einsum_path("ij,jk,kl->il", a, b, a)
    >>> path
    ['einsum_path', (1, 2), (0, 1)]
    >>> print(costs)
    72 products instead of 648
    jk,kl->jl: 36
    ij,jl->il: 36
    """
    found, wanted, sizes = _read(subscripts, operands)
    terms = [frozenset(x.labels) for x in found]
    needed = [frozenset(wanted).union(*terms[:k], *terms[k + 1 :]) for k in range(len(terms))]
    rest = [term & others for term, others in zip(terms, needed, strict=True)]
    pairs, lines, total = _order(rest, frozenset(wanted), sizes), [], 0
    for i, j in pairs:
        made, cost = _made(rest, (i, j), frozenset(wanted)), _work([rest[i], rest[j]], sizes)
        left, right, result = (_shown(term, sizes) for term in (rest[i], rest[j], made))
        lines.append(f"{left},{right}->{result}: {cost}")
        rest, total = [t for k, t in enumerate(rest) if k not in (i, j)] + [made], total + cost
    head = f"{total} products instead of {(len(terms) - 1) * _work(terms, sizes)}"
    path: list[tuple[int, ...]] = [*pairs] or [(0,)]
    return ["einsum_path", *path], "\n".join([head, *lines])


def _read(
    subscripts: Any, operands: tuple[Any, ...]
) -> tuple[list[Labelled], Term, dict[Label, int]]:
    """Operands with a label for each axis, the labels of the result, and the size of each label."""
    if isinstance(subscripts, str):
        terms, target = _from_text(subscripts)
        given = operands
    else:
        terms, target, given = _from_lists((subscripts, *operands))
    if len(given) != len(terms):
        raise ArgumentError(f"einsum: {len(terms)} terms for {len(given)} operands")
    tensors = numbers("einsum", *given)
    labelled = [_label(k, x, term) for k, (x, term) in enumerate(zip(tensors, terms, strict=True))]
    dots = max(
        (x.ndim - len(term) + 1 for x, term in zip(tensors, terms) if ... in term), default=0
    )
    wanted = _target(terms, target, [("...", k) for k in range(dots, 0, -1)])
    sizes = _sizes(labelled)
    return [_drop_stretched(x, sizes) for x in labelled], wanted, sizes


def _from_text(text: str) -> tuple[list[list[Label]], list[Label] | None]:
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = [_letters(term, text) for term in left.split(",")]
    return terms, _letters(right, text) if arrow else None


def _letters(term: str, text: str) -> list[Label]:
    head, dots, tail = term.partition("...")
    letters: list[Label] = [*head, *([Ellipsis] if dots else []), *tail]
    for letter in letters:
        if letter is not Ellipsis and not letter.isalpha():
            raise ArgumentError(f"einsum: {letter!r} is no label (in {text!r})")
    return letters


def _from_lists(
    items: Sequence[Any],
) -> tuple[list[list[Label]], list[Label] | None, tuple[Any, ...]]:
    pairs, rest = items[: len(items) // 2 * 2], items[len(items) // 2 * 2 :]
    given = tuple(pairs[0::2])
    terms = [_numbers(labels) for labels in pairs[1::2]]
    return terms, _numbers(rest[0]) if rest else None, given


def _numbers(labels: Any) -> list[Label]:
    try:
        return [label if label is Ellipsis else as_int(label) for label in labels]
    except TypeError:
        raise ArgumentError(
            f"einsum: expected a list of integer labels after each operand, got {labels!r}"
        ) from None


def _label(operand: int, x: Tensor, term: list[Label]) -> Labelled:
    """Write the ellipsis out, check the rank, and take diagonals of repeated labels."""
    dots = builtins.sum(label is Ellipsis for label in term)
    named = len(term) - dots
    if dots > 1 or (x.ndim < named if dots else x.ndim != named):
        raise ShapeError(
            f"einsum: operand {operand}: {named} labels{' and ...' if dots else ''} for shape"
            f" {x.shape}"
        )
    spread = [("...", k) for k in range(x.ndim - named, 0, -1)]
    labels: list[Label] = []
    for label in term:
        labels += spread if label is Ellipsis else [label]
    for label, count in Counter(labels).items():
        for _ in range(count - 1):
            x, labels = _diagonal(operand, x, labels, label)
    return Labelled(x, tuple(labels))


def _diagonal(
    operand: int, x: Tensor, labels: list[Label], label: Label
) -> tuple[Tensor, list[Label]]:
    """Merge the first two axes of one label: every (n + 1)-th element of the flattened pair."""
    i = labels.index(label)
    j = labels.index(label, i + 1)
    n = x.shape[i]
    if x.shape[j] != n:
        raise ShapeError(
            f"einsum: operand {operand}: label {label!r} is {x.shape[j]} on axis {j} but {n} on"
            f" axis {i}"
        )
    moved = moveaxis(x, (i, j), (-2, -1))
    flat = reshape(moved, (*moved.shape[:-2], n * n))
    kept = [other for k, other in enumerate(labels) if k not in (i, j)]
    return slice_axes(flat, (0,), (n,), (n + 1 if n > 1 else 1,)), [*kept, label]


def _target(terms: list[list[Label]], target: list[Label] | None, spread: list[Label]) -> Term:
    """The labels of the result, in order."""
    counts = Counter(label for term in terms for label in term if label is not Ellipsis)
    if target is None:
        return (*spread, *sorted(label for label, n in counts.items() if n == 1))
    if spread and Ellipsis not in target:
        raise ArgumentError("einsum: the operands have ... axes, so the result needs ... too")
    for label, n in Counter(target).items():
        if label is not Ellipsis and label not in counts:
            raise ArgumentError(f"einsum: label {label!r} of the result is in no operand")
        if n > 1:
            raise ArgumentError(f"einsum: label {label!r} is twice in the result")
    wanted: list[Label] = []
    for label in target:
        wanted += spread if label is Ellipsis else [label]
    return tuple(wanted)


def _is_spread(label: Label) -> bool:
    return isinstance(label, tuple)


def _sizes(operands: list[Labelled]) -> dict[Label, int]:
    """The size of each label; axes of size 1 stretch."""
    sizes: dict[Label, int] = {}
    for k, x in enumerate(operands):
        for label, n in x.sizes.items():
            if sizes.setdefault(label, n) == 1:
                sizes[label] = n
            elif n not in (1, sizes[label]):
                name = "..." if _is_spread(label) else label
                raise ShapeError(
                    f"einsum: operand {k}: label {name!r} is {n} here but {sizes[label]} before"
                )
    return sizes


def _drop_stretched(x: Labelled, sizes: dict[Label, int]) -> Labelled:
    """Forget size-1 axes of labels that are longer elsewhere: a product stretches them anyway."""
    kept = tuple(label for label, n in x.sizes.items() if n == sizes[label])
    return Labelled(reshape(x.tensor, tuple(sizes[label] for label in kept)), kept)


def _sum_alone(x: Labelled, wanted: Term, others: list[Term]) -> Labelled:
    """Sum over labels that neither the result nor another operand has."""
    needed = set(wanted).union(*others)
    axes = tuple(k - len(x.labels) for k, label in enumerate(x.labels) if label not in needed)
    if not axes:
        return x
    summed = call(reduce_sum_op, (x.tensor,), {"axes": axes})
    return Labelled(summed, tuple(label for label in x.labels if label in needed))


def _contract(operands: list[Labelled], wanted: Term, sizes: dict[Label, int]) -> Labelled:
    """Contract all operands to one, two at a time."""
    terms = [frozenset(x.labels) for x in operands]
    rest = list(operands)
    for i, j in _order(terms, frozenset(wanted), sizes):
        right, left = rest.pop(j), rest.pop(i)
        needed = set(wanted).union(*(x.labels for x in rest))
        rest.append(_pair(left, right, needed))
    return rest[0]


def _pair(a: Labelled, b: Labelled, needed: set[Label]) -> Labelled:
    """One product of two operands; labels of both that nobody needs are summed."""
    shared = [label for label in a.labels if label in b.labels]
    batch = tuple(label for label in shared if label in needed)
    summed = tuple(label for label in shared if label not in needed)
    rows = tuple(label for label in a.labels if label not in shared)
    columns = tuple(label for label in b.labels if label not in shared)
    sizes = a.sizes | b.sizes
    lead, m, k, n = (
        tuple(sizes[label] for label in part) for part in (batch, rows, summed, columns)
    )
    left = _ordered(a, batch + rows + summed)
    right = _ordered(b, batch + summed + columns)
    if not summed:
        product = reshape(left, lead + m + (1,) * len(n)) * reshape(right, lead + (1,) * len(m) + n)
        return Labelled(product, batch + rows + columns)
    left = reshape(left, (*lead, prod(m), prod(k)))
    right = reshape(right, (*lead, prod(k), prod(n)))
    product = call(matmul_op, (left, right), {})
    return Labelled(reshape(product, lead + m + n), batch + rows + columns)


def _ordered(x: Labelled, labels: Term) -> Tensor:
    """The tensor with its axes in this order."""
    return permute_dims(x.tensor, [x.labels.index(label) for label in labels])


def _stretch(x: Tensor, present: Term, wanted: Term, sizes: dict[Label, int]) -> Tensor:
    """Bring back labels that every operand had with size 1 only."""
    if present == wanted:
        return x
    opened = reshape(x, tuple(sizes[label] if label in present else 1 for label in wanted))
    return broadcast(opened, tuple(sizes[label] for label in wanted))


def _work(terms: Sequence[frozenset[Label]], sizes: dict[Label, int]) -> int:
    return prod(sizes[label] for label in frozenset().union(*terms))


def _shown(term: frozenset[Label], sizes: dict[Label, int]) -> str:
    """The labels of a term as text, in order of appearance."""
    texts = ("..." if _is_spread(label) else str(label) for label in sizes if label in term)
    return "".join(dict.fromkeys(texts))


def _order(
    terms: list[frozenset[Label]], wanted: frozenset[Label], sizes: dict[Label, int]
) -> list[tuple[int, int]]:
    """Which two terms to contract, one pair after the other; each result joins the end."""
    return (_optimal if len(terms) <= _OPTIMAL else _greedy)(terms, wanted, sizes)


def _greedy(
    terms: list[frozenset[Label]], wanted: frozenset[Label], sizes: dict[Label, int]
) -> list[tuple[int, int]]:
    """Always the pair whose result grows least over its operands, the cheapest among equals."""
    rest, order = list(terms), []
    while len(rest) > 1:
        ranked = []
        for pair in combinations(range(len(rest)), 2):
            a, b = rest[pair[0]], rest[pair[1]]
            made = _made(rest, pair, wanted)
            grown = _work([made], sizes) - _work([a], sizes) - _work([b], sizes)
            ranked.append((grown, _work([a, b], sizes), pair))
        pair = min(ranked)[2]
        made = _made(rest, pair, wanted)
        order.append(pair)
        rest = [t for k, t in enumerate(rest) if k not in pair] + [made]
    return order


def _made(
    rest: list[frozenset[Label]], pair: tuple[int, int], wanted: frozenset[Label]
) -> frozenset[Label]:
    """The labels a pair's product keeps: those that are still needed."""
    others = (t for k, t in enumerate(rest) if k not in pair)
    return (rest[pair[0]] | rest[pair[1]]) & wanted.union(*others)


def _optimal(
    terms: list[frozenset[Label]], wanted: frozenset[Label], sizes: dict[Label, int]
) -> list[tuple[int, int]]:
    """The order with the least arithmetic, by trying all."""
    best: tuple[int, list[tuple[int, int]]] | None = None

    def search(rest: list[frozenset[Label]], spent: int, order: list[tuple[int, int]]) -> None:
        nonlocal best
        if best is not None and spent >= best[0]:
            return
        if len(rest) == 1:
            best = spent, order
            return
        for pair in combinations(range(len(rest)), 2):
            cost = _work([rest[pair[0]], rest[pair[1]]], sizes)
            made = _made(rest, pair, wanted)
            kept = [t for k, t in enumerate(rest) if k not in pair] + [made]
            search(kept, spent + cost, [*order, pair])

    search(terms, 0, [])
    assert best is not None
    return best[1]


__all__ = [
    "einsum",
    "einsum_path",
]
