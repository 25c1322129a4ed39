"""Kernels as text: readable, the same from run to run, and a key that names do not change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compiler.example_kernels import EXAMPLES, F, buffers, elementwise, op
from weft.compiler.loops import (
    Assign,
    Buffer,
    Kernel,
    Local,
    Loop,
    Part,
    Reduce,
    Store,
    const,
    every,
    get,
    integer,
    load,
    variable,
)
from weft.compiler.pipeline import schedule
from weft.compiler.rebuild import bound, substitute
from weft.compiler.show import fingerprint, show


def test_a_kernel_reads_like_a_program():
    assert show(EXAMPLES["row sums"]().kernel) == (
        "kernel row_sum\n"
        "  write b0: float32\n"
        "  read b1: float32\n"
        "  local t0: float32\n"
        "  serial r in 0 .. 5:\n"
        "    reduce k < 100 in 16 lanes:\n"
        "      t0 = add(b1[r * 100 + k])\n"
        "    b0[r] = t0\n"
    )


def test_a_scheduled_kernel_shows_how_it_runs():
    (kernel,) = schedule(EXAMPLES["row sums"]().kernel)
    assert show(kernel) == (
        "kernel row_sum\n"
        "  write b0: float32\n"
        "  read b1: float32\n"
        "  local t0: float32\n"
        "  local t1: float32 x 16\n"
        "  local t2[16]: float32\n"
        "  serial r in 0 .. 5:\n"
        "    t1 = -0.0:float32\n"
        "    vector k_2 in 0 .. 96 by 16:\n"
        "      t1 = add(t1, b1[r * 100 + k_2])\n"
        "    vector lane_1 in 0 .. 16 by 16:\n"
        "      t2[lane_1] = t1\n"
        "    vector k in 96 .. 100 by 4:\n"
        "      %0 = k - 96\n"
        "      t2[%0] = add(t2[%0], b1[r * 100 + k])\n"
        "    vector lane_2 in 0 .. 16 by 16:\n"
        "      t1 = t2[lane_2]\n"
        "    t0 = across[add](t1)\n"
        "    b0[r] = t0\n"
    )


def test_what_is_used_twice_is_written_once():
    i = variable("i")
    square = op("mul", load(1, i, F), load(1, i, F))
    body = (Loop(i, integer(0), integer(9), (Store(0, i, op("add", square, square)),)),)
    text = show(Kernel("double", buffers("write", "read"), (), body))
    assert "%0 = b1[i]" in text
    assert "%1 = mul(%0, %0)" in text
    assert "b0[i] = add(%1, %1)" in text


def test_parentheses_stand_only_where_they_are_needed():
    i = variable("i")
    index = op("mul", op("add", i, integer(1)), op("floordiv", i, op("sub", i, integer(2))))
    text = show(Kernel("k", buffers("write"), (), (Store(0, index, get(0, F)),)))
    assert "b0[(i + 1) * (i // (i - 2))]" in text


def renamed(kernel: Kernel) -> Kernel:
    names = {v: variable(f"other_{v.data}") for s in every(kernel.body) for v in bound(s)}
    made = tuple(Buffer(f"other_{b.name}", b.dtype, b.mode) for b in kernel.buffers)
    locals_ = tuple(replace(x, name=f"other_{x.name}") for x in kernel.locals)
    return replace(
        kernel,
        name="other",
        buffers=made,
        locals=locals_,
        body=substitute(kernel.body, names),
        notes={"anything": 1},
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_names_do_not_change_a_fingerprint(name):
    kernel = EXAMPLES[name]().kernel
    assert fingerprint(renamed(kernel)) == fingerprint(kernel)


def test_kernels_of_different_forms_have_different_fingerprints():
    kernels = [make().kernel for make in EXAMPLES.values()]
    scheduled = [k for kernel in kernels for k in schedule(kernel)]
    by_key = {}
    for kernel in (*kernels, *scheduled):
        other = by_key.setdefault(fingerprint(kernel), kernel)
        assert show(replace(other, name="")) == show(replace(kernel, name=""))


def test_everything_that_changes_code_changes_the_fingerprint():
    kernel = EXAMPLES["row sums"]().kernel
    (loop,) = kernel.body
    assert isinstance(loop, Loop)
    reduce, store = loop.body
    assert isinstance(reduce, Reduce) and isinstance(store, Store)
    bodies = [
        (replace(loop, stop=integer(6)),),
        (replace(loop, kind="parallel"),),
        (replace(loop, body=(replace(reduce, lanes=1), store)),),
        (replace(loop, body=(replace(reduce, parts=(_maximum(reduce),)), store)),),
        (replace(loop, body=(reduce, replace(store, combine="add"))),),
        (replace(loop, body=(reduce, Assign(0, store.value), store)),),
    ]
    changed = [replace(kernel, body=body) for body in bodies]
    changed.append(replace(kernel, locals=(Local("s", F, 2),)))
    changed.append(replace(kernel, locals=(Local("s", F, 1, 2),)))
    changed.append(replace(kernel, buffers=buffers("update", "read")))
    changed.append(replace(kernel, parameters=1))
    assert len({fingerprint(k) for k in (kernel, *changed)}) == 1 + len(changed)


def _maximum(reduce: Reduce) -> Part:
    return replace(reduce.parts[0], combine="max")


def test_literals_that_print_alike_stay_apart():
    kernel = elementwise(8, dtype="float32").kernel
    zeros = [replace(kernel, body=_plus(kernel, zero)) for zero in (0.0, -0.0)]
    assert len({fingerprint(k) for k in zeros}) == 2


def _plus(kernel: Kernel, number: float) -> tuple:
    (loop,) = kernel.body
    (store,) = loop.body
    added = op("add", store.value, const(number, F))
    return (replace(loop, body=(replace(store, value=added),)),)
