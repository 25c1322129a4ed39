"""Kernels for many sizes: literals that change from call to call become parameters.

The first kernel of a form is compiled for its very sizes. When the same form comes again with other
sizes, the literals that differ are lifted out, and one kernel serves both and all that follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from weft.compiler.loops import (
    INDEX,
    Assign,
    Kernel,
    Loop,
    Reduce,
    Statement,
    Store,
    Value,
    expressions,
    integer_of,
    parameter,
)
from weft.compiler.rebuild import changer, revise

SMALL = frozenset({-1, 0, 1})  # strides and offsets that decide how memory is read stay as they are


@dataclass(frozen=True)
class Form:
    """A kernel without its sizes."""

    key: tuple[object, ...]
    literals: tuple[int, ...]  # in order of first appearance, each once


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
    numbers: dict[Value, int] = {}
    literals: dict[int, int] = {}
    key = (
        tuple((b.dtype, b.mode) for b in kernel.buffers),
        tuple((x.dtype, x.lanes, x.length) for x in kernel.locals),
        tuple(_text(kernel.body, numbers, literals)),
    )
    return Form(key, tuple(literals))


def _text(
    statements: tuple[Statement, ...], numbers: dict[Value, int], literals: dict[int, int]
) -> Iterator[object]:
    """Statements as a flat sequence; each value is spelled once and then named by number."""
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
            yield from _spell(x, numbers, literals)
        yield "{"
        yield from _text(statement.body, numbers, literals)
        yield "}"


def _spell(x: Value, numbers: dict[Value, int], literals: dict[int, int]) -> Iterator[object]:
    stack: list[tuple[Value, bool]] = [(x, False)]
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
        if is_size(here):
            yield "size", literals.setdefault(integer_of(here), len(literals))
        else:
            yield here.op, args, here.dtype, here.data
    yield numbers[x]


def is_size(x: Value) -> bool:
    """Whether a value is a literal that another call of the same form may have otherwise."""
    return x.op == "const" and x.dtype == INDEX and integer_of(x) not in SMALL


def lift(kernel: Kernel, form: Form, lifted: frozenset[int]) -> tuple[Kernel, tuple[int, ...]]:
    """The kernel with these literals as parameters, and what they are."""
    if not lifted:
        return kernel, ()
    places = sorted(lifted)
    given = {form.literals[i]: k for k, i in enumerate(places)}

    def change(x: Value) -> Value:
        return parameter(given[integer_of(x)]) if is_size(x) and integer_of(x) in given else x

    made = replace(kernel, body=revise(kernel.body, changer(change)), parameters=len(places))
    return made, tuple(form.literals[i] for i in places)
