"""Kernels for many sizes: literals that change from call to call become parameters.

The first kernel of a form is compiled for its very sizes. When the same form comes again with other
sizes, the literals that differ are lifted out, and one kernel serves both and all that follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from weft.compiler.loops import (
    INDEX,
    Assign,
    Kernel,
    Loop,
    Reduce,
    Statement,
    Store,
    Value,
    every,
    expressions,
    integer_of,
    leaves_of,
    parameter,
)
from weft.compiler.passes.beside import beside_extents
from weft.compiler.passes.contract_match import shallow_sizes
from weft.compiler.passes.short import short_extents
from weft.compiler.passes.unroll import unrolled_steps
from weft.compiler.polynomial import multiply
from weft.compiler.rebuild import changer, revise, values_of

Multiples: TypeAlias = Mapping[int, tuple[int, int]]  # a literal: what is lifted for it, how often

# Strides and offsets that decide how memory is read stay as they are, and so do short rows: the
# parts of complex numbers, coordinates, channels.
SMALL = frozenset(range(-1, 5))
FEW = 16  # places that have a quotient in common: there are as many kernels as such numbers


@dataclass(frozen=True)
class Form:
    """A kernel without its sizes."""

    key: tuple[object, ...]
    literals: tuple[int, ...]  # in order of first appearance, each once
    multiples: Multiples  # literals that are others, times numbers that stay


class Versions:
    """The kernels made of one form: the sizes of the first, and what those after it lift."""

    def __init__(self) -> None:
        self.first: tuple[int, ...] | None = None
        self.lifted: frozenset[int] = frozenset()

    def choose(self, literals: tuple[int, ...]) -> frozenset[int]:
        """Which literals the kernel for these sizes lifts: none for the first one."""
        if self.first is None:
            self.first = literals
        pairs = zip(literals, self.first, strict=True)
        differ = {i for i, (here, before) in enumerate(pairs) if here != before}
        if not differ:
            return frozenset()
        self.lifted |= differ
        return self.lifted


def form_of(kernel: Kernel) -> Form:
    """The form of a kernel and the sizes it has."""
    fixed = short_extents(kernel) | shallow_sizes(kernel) | beside_extents(kernel)
    fixed |= SMALL | unrolled_steps(kernel) | _divisors(kernel)
    multiples = _multiples(kernel, fixed)
    speller = _Speller(fixed, multiples)
    key = (
        tuple((b.dtype, b.mode) for b in kernel.buffers),
        tuple((x.dtype, x.lanes, x.length) for x in kernel.locals),
        tuple(speller.text(kernel.body)),
    )
    return Form(key, tuple(speller.literals), multiples)


def _divisors(kernel: Kernel) -> frozenset[int]:
    """Numbers that are divided by, and had better be known: what memory holds is divided sooner.

    So are places, by small numbers: their quotients change from lane to lane.
    """
    found = (
        (integer_of(x.args[1]), x.args[0])
        for x in values_of(kernel.body)
        if x.op in ("floordiv", "rem") and is_literal(x.args[1])
    )
    return frozenset(n for n, x in found if n <= FEW or _is_read(x))


def _multiples(kernel: Kernel, fixed: frozenset[int]) -> Multiples:
    """Extents of loops that are few times what their variable is divided by: `unfold` nests them.

    One of the two factors stays as it is, so that the other can be seen in the extent.
    """
    found: dict[int, tuple[int, int]] = {}
    for loop in every(kernel.body):
        if not isinstance(loop, Loop) or not is_literal(loop.stop):
            continue
        extent = integer_of(loop.stop)
        divisors = [
            integer_of(x.args[1])
            for x in values_of(loop.body)
            if x.op in ("floordiv", "rem") and x.args[0] is loop.variable and is_literal(x.args[1])
        ]
        for by in sorted(n for n in divisors if 1 < n < extent and extent % n == 0):
            times = extent // by
            if extent not in fixed and (by in fixed or times <= FEW):
                lifted, kept = (times, by) if by in fixed else (by, times)
                found.setdefault(extent, (lifted, kept))
    return {n: pair for n, pair in found.items() if pair[0] not in fixed and pair[0] not in found}


def _is_read(x: Value) -> bool:
    return any(leaf.op in ("load", "get") for leaf in leaves_of(x))


class _Speller:
    """Spells kernels, and collects the sizes in them: literals, but for those that are `fixed`."""

    def __init__(self, fixed: frozenset[int], multiples: Multiples) -> None:
        self.fixed = fixed
        self.multiples = multiples
        self.literals: dict[int, int] = {}
        self._numbers: dict[Value, int] = {}

    def text(self, statements: tuple[Statement, ...]) -> Iterator[object]:
        """Statements as a flat sequence; each value is spelled once and then named by number."""
        numbers = self._numbers
        for statement in statements:
            yield type(statement).__name__
            if isinstance(statement, Loop):
                numbers.setdefault(statement.variable, len(numbers))
                yield statement.kind, statement.step
            elif isinstance(statement, Reduce):
                for variable, _ in statement.axes:
                    numbers.setdefault(variable, len(numbers))
                yield statement.lanes, tuple((p.targets, p.combine) for p in statement.parts)
            elif isinstance(statement, Store):
                yield statement.buffer, statement.combine
            elif isinstance(statement, Assign):
                yield statement.local
            for x in expressions(statement):
                yield from self._spell(x)
            yield "{"
            yield from self.text(statement.body)
            yield "}"

    def _spell(self, x: Value) -> Iterator[object]:
        numbers, stack = self._numbers, [(x, False)]
        while stack:
            here, ready = stack.pop()
            if here in numbers:
                continue
            if not ready:
                stack.append((here, True))
                stack.extend((a, False) for a in here.args)
                continue
            numbers[here] = len(numbers)
            args = tuple(numbers[a] for a in here.args)
            if is_literal(here) and integer_of(here) not in self.fixed:
                number, times = self.multiples.get(integer_of(here), (integer_of(here), 1))
                yield "size", self.literals.setdefault(number, len(self.literals)), times
            else:
                yield here.op, args, here.dtype, here.data
        yield numbers[x]


def is_literal(x: Value) -> bool:
    """Whether a value is an integer that another call of the same form may have otherwise."""
    return x.op == "const" and x.dtype == INDEX


def lift(kernel: Kernel, form: Form, lifted: frozenset[int]) -> tuple[Kernel, tuple[int, ...]]:
    """The kernel with these literals as parameters, and what they are."""
    if not lifted:
        return kernel, ()
    places = sorted(lifted)
    given = {form.literals[i]: k for k, i in enumerate(places)}

    def change(x: Value) -> Value:
        if not is_literal(x):
            return x
        number, times = form.multiples.get(integer_of(x), (integer_of(x), 1))
        return multiply(parameter(given[number]), times) if number in given else x

    made = replace(kernel, body=revise(kernel.body, changer(change)), parameters=len(places))
    return made, tuple(form.literals[i] for i in places)
