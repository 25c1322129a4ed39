"""`verify` lets no kernel pass that breaks a rule, and says which rule it was."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.example_kernels import EXAMPLES, F, add, op
from weft.compiler.loops import (
    BOOL,
    INDEX,
    Ahead,
    Assign,
    Buffer,
    Kernel,
    Local,
    Loop,
    Part,
    Reduce,
    Store,
    When,
    const,
    get,
    integer,
    load,
    parameter,
    value,
    variable,
)
from weft.compiler.verify import verify

i, j = variable("i"), variable("j")
x = load(1, i, F)
BUFFERS = (Buffer("out", F, "write"), Buffer("x", F, "read"), Buffer("n", INDEX, "update"))
LOCALS = (Local("t", F), Local("v", F, 8), Local("a", F, 1, 4), Local("n", INDEX))
copy = Store(0, i, x)


def kernel(*body, parameters: int = 0) -> Kernel:
    return Kernel("test", BUFFERS, LOCALS, body, parameters)


def over(*body, variable=i, kind="serial", stop=8, step=1) -> Loop:
    return Loop(variable, integer(0), integer(stop), body, kind, step)


def reduced(*parts: Part, lanes: int = 16, body=()) -> Reduce:
    return Reduce(((i, integer(8)),), lanes, parts, body)


def total(**options) -> Reduce:
    return reduced(Part((0,), "add", (x,)), **options)


WRONG = {
    "no such instruction": over(Store(0, i, value("twist", (x,), F))),
    "add: 1 operands": over(Store(0, i, value("add", (x,), F))),
    "add: dtypes that do not fit": over(Store(0, i, value("add", (x, const(1, INDEX)), F))),
    "less: dtypes": over(Store(0, i, value("less", (x, x), F))),
    "opaque: dtypes": over(Store(0, i, value("opaque", (x,), F))),
    "compress: dtypes": over(Store(0, i, value("compress", (x, x), F)), kind="vector", step=4),
    "select: dtypes": over(Store(0, i, value("select", (x, x, x), F))),
    "bitcast: dtypes": over(Store(0, i, value("bitcast", (value("cast", (x,), INDEX),), F))),
    "item: dtypes": over(Store(0, i, value("item", (x,), F, 0))),
    "i: used outside its loop": copy,
    "j: used outside its loop": (over(copy, variable=i), Store(0, j, const(0, F))),
    "i: the variable of two loops": (over(copy), over(copy)),
    "an index is int64": over(Store(0, value("cast", (i,), F), x)),
    "x: an index is int64": over(Store(0, i, load(1, value("cast", (i,), F), F))),
    "x: stored to, but read only": over(Store(1, i, x)),
    "out: loaded, but only written": over(Store(0, i, load(0, i, F))),
    "out: combined with": over(Store(0, i, x, "add")),
    "no such combine: twist": over(Store(2, i, i, "twist")),
    "no buffer 7": over(Store(7, i, x)),
    "no buffer 8": over(Store(0, i, load(8, i, F))),
    "x: loaded as int64": over(Store(2, i, load(1, i, INDEX))),
    "out: int64 into float32": over(Store(0, i, i)),
    "no local 9": over(Store(0, i, get(9, F))),
    "no local 11": over(Assign(11, x)),
    "t: int64 into float32": over(Assign(0, i)),
    "t: read as int64": over(Store(2, i, get(0, INDEX))),
    "t: a register has no positions": over(Assign(0, x, i)),
    "a: an array needs a position": over(Assign(2, x)),
    "a: arrays alone have positions": over(Store(0, i, get(2, F))),
    "no parameter 2": over(Store(2, i, parameter(2))),
    "a condition is a bool": over(When(x, (copy,))),
    "ahead is what memory holds": over(Ahead(i), copy),
    "no such kind of loop": over(copy, kind="sideways"),
    "only vector loops have steps": over(copy, step=4),
    "a vector loop of one lane": over(copy, kind="vector"),
    "a part of a step is left": over(copy, kind="vector", stop=10, step=4),
    "a vector loop inside another": over(
        over(Store(0, j, x), variable=j, kind="vector", step=4), kind="vector", step=4
    ),
    "a parallel loop is the only outermost": over(
        over(Store(0, add(i, j), x), variable=j, kind="parallel")
    ),
    "only outermost statement": (over(copy, kind="parallel"), Assign(3, integer(0))),
    "t: 4 lanes into 1": over(Assign(0, x), kind="vector", step=4),
    "8 lanes inside 4": over(Store(0, i, get(1, F)), kind="vector", step=4),
    "v: 4 lanes into 8": over(Assign(1, x), kind="vector", step=4),
    "out: lanes outside": over(Store(0, i, get(1, F))),
    "out: lanes store to one element": over(Store(0, integer(0), x), kind="vector", step=4),
    "a condition is one for all lanes": over(
        When(op("less", x, x), (copy,)), kind="vector", step=4
    ),
    "a bound is one for all lanes": over(
        Loop(j, integer(0), i, (Store(0, add(i, j), x),)), kind="vector", step=4
    ),
    "a bound is an index": Loop(i, integer(0), const(3, F), (copy,)),
    "no such combine of a reduction": reduced(Part((0,), "last", (x,))),
    "argmax": reduced(Part((0,), "argmax", (x,))),
    "a place is a signed integer": reduced(Part((0, 0), "argmax", (x, x))),
    "a place is computed": reduced(Part((0, 3), "argmax", (x, load(2, i, INDEX)))),
    "products, and only they": reduced(Part((0,), "dot", (x, x))),
    "a reduction of 4 lanes": total(lanes=4),
    "a: a reduction's target is a register": reduced(Part((2,), "add", (x,))),
    "n: float32 into int64": reduced(Part((3,), "add", (x,))),
}


@pytest.mark.parametrize("rule", WRONG)
def test_a_broken_rule_is_named(rule):
    body = WRONG[rule] if isinstance(WRONG[rule], tuple) else (WRONG[rule],)
    with pytest.raises(AssertionError) as found:
        verify(kernel(*body, parameters=1))
    assert rule in str(found.value)
    assert "kernel test" in str(found.value)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_lowering_makes_obeys_the_rules(name):
    example = EXAMPLES[name]().kernel
    assert verify(example) is example


def test_no_reduction_is_left_in_a_scheduled_kernel():
    body = (total(), Store(0, integer(0), get(0, F)))
    verify(kernel(*body))
    with pytest.raises(AssertionError, match="a reduction is left"):
        verify(kernel(*body), scheduled=True)


def test_lanes_may_be_filled_with_one_value_and_combined_into_one():
    fill = Assign(1, const(0, F))
    step = over(Assign(1, op("add", get(1, F), x)), kind="vector", step=8)
    across = value("across", (get(1, F),), F, "add")
    verify(kernel(fill, step, Store(0, integer(0), across)), scheduled=True)


def test_an_array_holds_one_element_for_each_lane():
    dump = over(Assign(2, x, i), kind="vector", stop=4, step=4)
    back = over(Store(0, j, get(2, F, j)), variable=j, kind="vector", stop=4, step=4)
    verify(kernel(dump, back), scheduled=True)


def test_modes_and_sizes_of_memory_are_known():
    with pytest.raises(AssertionError, match="out: no such mode"):
        verify(Kernel("test", (Buffer("out", F, "sometimes"),), (), ()))
    with pytest.raises(AssertionError, match="t: no such size"):
        verify(Kernel("test", (), (Local("t", np.dtype(np.float32), 0),), ()))


def test_literals_have_the_bits_of_their_dtype():
    broken = value("const", (), BOOL, b"\0\0\0\0")
    with pytest.raises(AssertionError, match="a literal of its dtype's size"):
        verify(kernel(When(broken, (over(copy),))))
