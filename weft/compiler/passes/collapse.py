"""Make one loop of two nested ones where every index moves with both as with one.

Loops `a` and `b < B` become `m = a · B + b` if each index that reads them is a multiple of
`a · B + b` plus something else; strides and extents may be parameters. Axes of a reduction
collapse likewise: its points are row-major by definition, so their order stays.
"""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.loops import (
    Assign,
    Kernel,
    Loop,
    Reduce,
    Statement,
    Store,
    Value,
    integer,
    value,
    walk,
)
from weft.compiler.polynomial import (
    Polynomial,
    coefficient,
    hides,
    is_sum,
    known,
    multiply,
    plus,
    polynomial,
    times,
    to_value,
    without,
)
from weft.compiler.rebuild import Scope, Statements, revise, with_body


class _Stuck(Exception):
    """An index that does not move with two variables as with one."""


def collapse(kernel: Kernel) -> Kernel:
    """The kernel with as few loops as its indices allow."""
    scope = Scope(kernel)
    return scope.kernel_with(_statements(kernel.body, scope))


def _statements(statements: Statements, scope: Scope) -> Statements:
    made: list[Statement] = []
    for statement in statements:
        if not isinstance(statement, Store | Assign):
            statement = with_body(statement, _statements(statement.body, scope))
        if isinstance(statement, Loop):
            statement = _loop(statement, scope)
        elif isinstance(statement, Reduce):
            statement = _reduce(statement, scope)
        made.append(statement)
    return tuple(made)


def _loop(outer: Loop, scope: Scope) -> Loop:
    inner = outer.body[0] if len(outer.body) == 1 else None
    if not isinstance(inner, Loop) or not (_is_plain(outer) and _is_plain(inner)):
        return outer
    if hides(inner.stop, outer.variable):
        return outer
    merged = scope.variable(inner.variable.data)
    change = Merge(outer.variable, inner.variable, inner.stop, merged)
    try:
        body = revise(inner.body, change)
    except _Stuck:
        return outer
    return Loop(merged, integer(0), multiply(outer.stop, inner.stop), body)


def _is_plain(loop: Loop) -> bool:
    return loop.kind == "serial" and known(loop.start) == 0


def _reduce(reduce: Reduce, scope: Scope) -> Reduce:
    for k in range(len(reduce.axes) - 2, -1, -1):
        (a, many), (b, extent) = reduce.axes[k : k + 2]
        merged = scope.variable(b.data)
        rest = replace(reduce, axes=(*reduce.axes[:k], *reduce.axes[k + 2 :]))
        try:
            (changed,) = revise((rest,), Merge(a, b, extent, merged))
        except _Stuck:
            continue
        assert isinstance(changed, Reduce)
        axes = (*changed.axes[:k], (merged, multiply(many, extent)), *changed.axes[k:])
        reduce = replace(changed, axes=axes)
    return reduce


class Merge:
    """Rewrites values from `outer` and `inner` to `merged` = outer · extent + inner."""

    def __init__(self, outer: Value, inner: Value, extent: Value, merged: Value) -> None:
        self.outer = outer
        self.inner = inner
        self.extent = polynomial(extent)
        self.merged: Polynomial = {(merged,): 1}
        self.memo: dict[Value, Value] = {}

    def __call__(self, x: Value) -> Value:
        """The value over the merged variable, or `_Stuck`."""
        for point in walk(x):
            if is_sum(point) or point is self.outer or point is self.inner or point in self.memo:
                continue  # a part of an index is judged with the whole
            args = tuple(self._done(a) for a in point.args)
            self.memo[point] = value(point.op, args, point.dtype, point.data)
        return self._done(x)

    def _done(self, x: Value) -> Value:
        if x not in self.memo:
            self.memo[x] = self._sum(x)
        return self.memo[x]

    def _sum(self, x: Value) -> Value:
        if not (hides(x, self.outer) or hides(x, self.inner)):
            return x
        p: Polynomial = {}
        for term, count in polynomial(x).items():
            atoms = [a if a in (self.outer, self.inner) else self.memo.get(a, a) for a in term]
            product: Polynomial = {(): count}
            for atom in atoms:
                product = times(product, {(atom,): 1})
            p = plus(p, product)
        far, near = coefficient(p, self.outer), coefficient(p, self.inner)
        if far is None or near is None or far != times(near, self.extent):
            raise _Stuck
        return to_value(plus(times(near, self.merged), without(p, (self.outer, self.inner))))
