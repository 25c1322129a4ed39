"""Put the arrays that threads fill together where all of them see them.

That is shared memory as far as it goes; longer rows are kept in scratch buffers, a part for each
row, which the kernel notes.
"""

from __future__ import annotations

from dataclasses import replace

from weft.compiler.loops import Assign, Buffer, Kernel, Statement, Store, Value, load
from weft.compiler.polynomial import add, multiply
from weft.compiler.rebuild import Statements, changer, revise, with_body


def share(kernel: Kernel, row: Value, rows: int, most: int) -> Kernel:
    """The kernel with at most `most` bytes of shared arrays; `row` counts its blocks to `rows`."""
    used = sum(x.length * x.dtype.itemsize for x in kernel.locals if x.shared)
    numbers: dict[int, int] = {}
    locals_, buffers = list(kernel.locals), list(kernel.buffers)
    scratch = list(kernel.notes["scratch"])
    for k, local in enumerate(kernel.locals):
        if not local.length or local.shared or local.name == "partials":
            continue
        used += local.length * local.dtype.itemsize
        if used <= most:
            locals_[k] = replace(local, shared=True)
            continue
        used -= local.length * local.dtype.itemsize
        numbers[k] = len(buffers)
        buffers.append(Buffer(local.name, local.dtype, "update"))
        scratch.append((local.dtype, rows * local.length))
    body = _spilled(kernel, numbers, row)
    notes = {**kernel.notes, "scratch": tuple(scratch)}
    return replace(kernel, body=body, locals=tuple(locals_), buffers=tuple(buffers), notes=notes)


def _spilled(kernel: Kernel, numbers: dict[int, int], row: Value) -> Statements:
    """Statements that keep some arrays in buffers, one part for each row."""

    def place(local: int, position: Value) -> Value:
        return add(multiply(row, kernel.locals[local].length), position)

    def change(x: Value) -> Value:
        if x.op == "get" and x.data in numbers:
            return load(numbers[x.data], place(x.data, x.args[0]), x.dtype)
        return x

    def stored(statements: Statements) -> Statements:
        made: list[Statement] = []
        for s in statements:
            if isinstance(s, Assign) and s.local in numbers:
                assert s.position is not None
                made.append(Store(numbers[s.local], place(s.local, s.position), s.value))
            elif isinstance(s, Store | Assign):
                made.append(s)
            else:
                made.append(with_body(s, stored(s.body)))
        return tuple(made)

    return stored(revise(kernel.body, changer(change))) if numbers else kernel.body
