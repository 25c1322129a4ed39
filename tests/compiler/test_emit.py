"""Loops, branches, memory and locals of compiled kernels do what the loop IR says."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.native_kernels import (
    LANES,
    elementwise,
    i,
    in_pieces,
    kernel_of,
    operands,
    run,
    same_bits,
)
from weft.compiler.build import Builder
from weft.compiler.emit_cpu import emit
from weft.compiler.loops import (
    BOOL,
    INDEX,
    Assign,
    Local,
    Loop,
    Reduce,
    Store,
    Value,
    When,
    const,
    get,
    integer,
    load,
    parameter,
    value,
    variable,
)
from weft.errors import UnsupportedDTypeError, UnsupportedError
from weft.runtime.cpu import jit

builder = Builder()
j, k, v = variable("j"), variable("k"), variable("v")
FLOAT = np.dtype(np.float32)


def test_a_slow_branch_runs_for_the_lanes_that_ask():
    (x,) = operands("f4")
    slow = lambda: (builder.mul(x, builder.const(10, FLOAT)), builder.neg(x))  # noqa: E731
    large = builder.less(builder.const(5, FLOAT), x)
    first, second = builder.rarely(large, slow, (x, builder.add(x, x)))
    made = builder.add(first, second)
    data = np.arange(37, dtype=np.float32) % 9
    wanted = np.where(data > 5, data * 10 - data, data * 3)
    for lanes in LANES:
        found = np.zeros_like(data)
        run(elementwise(made, ["f4"], len(data), lanes, "kernel"), found, data)
        assert np.array_equal(found, wanted)


def test_what_only_a_slow_branch_needs_is_written_inside_it():
    (x,) = operands("f4")
    condition = builder.less(x, builder.const(0, FLOAT))
    (made,) = builder.rarely(condition, lambda: (builder.sqrt(x),), (x,))
    text = emit([elementwise(made, ["f4"], 16, 8, "kernel")], jit.host_target())
    body = text[text.index("define") :]
    assert body.index("slow") < body.index("@llvm.sqrt") < body.rindex("join")


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", [BOOL, np.dtype("i1"), FLOAT, np.dtype("f8")], ids=str)
def test_strided_reversed_and_gathered_elements_are_read_and_written_lane_by_lane(lanes, dtype):
    size = 37
    rng = np.random.default_rng(2)
    data = rng.integers(-100, 100, 200).astype(dtype)
    order = rng.permutation(size)
    step = parameter(0)
    indices = [
        builder.add(builder.mul(i, 3), 5),
        builder.sub(100, i),
        builder.mul(i, step),
        load(1, i, INDEX),
        builder.floordiv(i, 4),
        builder.rem(i, 5),
        integer(7),
    ]
    body = tuple(Store(n + 2, i, load(0, index, dtype)) for n, index in enumerate(indices))
    results = [np.zeros(size, dtype) for _ in indices]
    scattered = [np.zeros(200, dtype) for _ in range(3)]
    to = [builder.mul(i, 2), load(1, i, INDEX), builder.sub(size, i)]
    body += tuple(
        Store(n + 2 + len(indices), index, load(0, i, dtype)) for n, index in enumerate(to)
    )
    kernel = kernel_of(
        [dtype, INDEX, *[dtype] * (len(indices) + len(to))],
        in_pieces(body, size, lanes),
        parameters=1,
    )
    run(kernel, data, order, *results, *scattered, parameters=[4])
    n = np.arange(size)
    for found, index in zip(
        results, (3 * n + 5, 100 - n, 4 * n, order, n // 4, n % 5, np.full(size, 7)), strict=True
    ):
        assert np.array_equal(found, data[index])
    for found, index in zip(scattered, (2 * n, order, size - n), strict=True):
        assert np.array_equal(found[index], data[:size])


def test_index_arithmetic_floors_below_zero():
    """A variable that starts below zero is divided as a signed integer."""
    out, rest = np.zeros(21, np.int64), np.zeros(21, np.int64)
    at = builder.add(i, 10)
    body = (Store(0, at, builder.floordiv(i, 4)), Store(1, at, builder.rem(i, 4)))
    run(kernel_of([INDEX, INDEX], [Loop(i, integer(-10), integer(11), body)]), out, rest)
    n = np.arange(-10, 11)
    assert np.array_equal(out, n // 4)
    assert np.array_equal(rest, np.fmod(n, 4))


@pytest.mark.parametrize("lanes", [4, 16])
def test_the_variable_of_a_vector_loop_counts_its_lanes(lanes):
    found = np.zeros(32, np.int64)
    body = (Store(0, i, builder.mul(i, i)),)
    run(kernel_of([INDEX], [Loop(i, integer(0), integer(32), body, "vector", lanes)]), found)
    assert np.array_equal(found, np.arange(32) ** 2)


def test_the_parallel_loop_runs_the_range_it_is_given():
    found = np.zeros(10, np.int64)
    kernel = kernel_of(
        [INDEX], [Loop(i, integer(0), parameter(0), (Store(0, i, i),), "parallel")], parameters=1
    )
    run(kernel, found, parameters=[10], end=7)
    assert np.array_equal(found, [0, 1, 2, 3, 4, 5, 6, 0, 0, 0])


def test_loops_whose_bounds_are_equal_do_not_run():
    found = np.zeros(3, np.int64)
    loops = [
        Loop(i, integer(2), integer(2), (Store(0, integer(0), integer(1)),)),
        Loop(j, parameter(0), parameter(0), (Store(0, integer(1), integer(1)),)),
        Loop(k, integer(3), integer(1), (Store(0, integer(2), integer(1)),), "unroll"),
    ]
    run(kernel_of([INDEX], loops, parameters=1), found, parameters=[5])
    assert not found.any()


def test_an_element_is_read_again_after_it_was_written():
    x = load(0, integer(0), FLOAT)
    body = [
        Store(0, integer(0), builder.add(x, builder.const(1, FLOAT))),
        Store(1, integer(0), builder.mul(x, x)),
    ]
    data, out = np.array([2.0], np.float32), np.zeros(1, np.float32)
    run(kernel_of([FLOAT, FLOAT], body), data, out)
    assert (data[0], out[0]) == (3.0, 9.0)


def test_a_loop_reads_what_its_last_turn_wrote():
    """A running sum in memory: nothing that the loop writes is carried from before it."""
    total = load(1, integer(0), FLOAT)
    body = (Store(1, integer(0), builder.add(total, load(0, i, FLOAT))), Store(2, i, total))
    first = Store(2, integer(0), total)
    data, out = np.arange(1, 6, dtype=np.float32), np.zeros(5, np.float32)
    kernel = kernel_of([FLOAT] * 3, [first, Loop(i, integer(0), integer(5), body)])
    run(kernel, data, np.zeros(1, np.float32), out)
    assert np.array_equal(out, np.cumsum(data))


def test_an_index_moves_with_the_register_it_is_made_of():
    """What an index was when its register held a literal is not what it is in a loop after that."""
    place = get(0, INDEX)
    x = load(0, builder.add(place, v), FLOAT)
    total = get(1, FLOAT)
    take = Assign(1, builder.add(total, x))
    on = Assign(0, builder.add(place, integer(4)))
    body = (
        Assign(1, builder.const(0, FLOAT)),
        Assign(0, integer(0)),
        *(take, on),
        Loop(k, integer(0), integer(3), (take, on)),
        Store(1, v, total),
    )
    loop = Loop(v, integer(0), integer(4), body, "vector", 4)
    data, out = np.arange(16, dtype=np.float32), np.zeros(4, np.float32)
    run(kernel_of([FLOAT] * 2, [loop], [Local("at", INDEX), Local("sum", FLOAT, 4)]), data, out)
    assert np.array_equal(out, data.reshape(4, 4).sum(0))


def test_a_result_may_take_the_place_of_an_operand_it_does_not_need():
    x, y = load(0, i, FLOAT), load(1, i, FLOAT)
    body = (Store(2, i, builder.add(x, x)), Store(3, i, builder.neg(y)))
    for lanes in LANES:
        a, b, out = np.arange(16, dtype=np.float32), np.full(16, 5, np.float32), np.zeros(16, "f4")
        kernel = kernel_of([FLOAT] * 4, [Loop(i, integer(0), integer(16), body, "vector", lanes)])
        run(kernel, a, b, b, out)  # the first result overwrites the second operand
        assert np.array_equal(b, 2 * a)
        assert np.array_equal(out, np.full(16, -5))


@pytest.mark.parametrize("combine", ["add", "mul", "min", "max", "and", "or", "last"])
def test_stores_combine_with_what_is_there_even_where_lanes_meet(combine):
    dtype = np.dtype(np.int32)
    places = np.array([0, 1, 1, 2, 2, 2, 2, 3, 0, 3, 1, 1, 1, 1, 1, 0])
    data = np.arange(1, 17, dtype=np.int32)
    wanted = np.full(4, 6, np.int32)
    meet = {
        "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "last": lambda x, y: y,
    }[combine]  # fmt: skip
    for place, number in zip(places, data, strict=True):
        wanted[place] = meet(wanted[place], number)
    for lanes in LANES:
        found, level = np.full(4, 6, np.int32), np.full(16, 6, np.int32)
        body = (
            Store(0, load(2, i, INDEX), load(3, i, dtype), combine),
            Store(1, i, load(3, i, dtype), combine),
        )
        kernel = kernel_of(
            [dtype, dtype, INDEX, dtype],
            [Loop(i, integer(0), integer(16), body, "vector", lanes)],
        )
        run(kernel, found, level, places, data)
        assert np.array_equal(found, wanted)
        assert np.array_equal(level, meet(np.full(16, 6, np.int32), data))


@pytest.mark.parametrize("combine", ["add", "max", "min", "mul"])
def test_lanes_of_a_register_are_combined_in_halves(combine):
    dtype = FLOAT
    x = np.random.default_rng(3).normal(size=64).astype(np.float32)
    locals = [Local("sum", dtype, lanes=16), Local("total", dtype)]
    meet = value(combine, (get(0, dtype), load(1, v, dtype)), dtype)
    body = [
        Assign(0, load(1, integer(0), dtype)),
        Loop(v, integer(0), integer(64), (Assign(0, meet),), "vector", 16),
        Assign(1, value("across", (get(0, dtype),), dtype, combine)),
        Store(0, integer(0), get(1, dtype)),
    ]
    found = np.zeros(1, np.float32)
    run(kernel_of([dtype, dtype], body, locals), found, x)
    meet = {"add": np.add, "max": np.maximum, "min": np.minimum, "mul": np.multiply}[combine]
    lanes = np.full(16, x[0])
    for row in x.reshape(4, 16):
        lanes = meet(lanes, row)
    while len(lanes) > 1:
        lanes = meet(lanes[: len(lanes) // 2], lanes[len(lanes) // 2 :])
    assert found[0] == lanes[0]


@pytest.mark.parametrize("nbytes", [8, 16, 32, 64])
@pytest.mark.parametrize("dtype", ["uint32", "int64", "float32", "float64"])
def test_lanes_that_hold_are_moved_together_and_counted(nbytes, dtype):
    dtype = np.dtype(dtype)
    lanes = max(nbytes // dtype.itemsize, 2)
    size = 10 * lanes
    x = np.random.default_rng(lanes).integers(0, 9, size).astype(dtype)
    held = builder.less(load(1, v, dtype), const(4, dtype))
    place = value("add", (get(0, INDEX), value("sub", (v, get(1, INDEX)), INDEX)), INDEX)
    count = value("across", (builder.cast(held, INDEX),), INDEX, "add")
    steps = (
        Store(0, place, value("compress", (held, load(1, v, dtype)), dtype)),
        Assign(0, builder.add(get(0, INDEX), count)),
        Assign(1, builder.add(get(1, INDEX), integer(lanes))),
    )
    body = [
        Assign(0, integer(0)),
        Assign(1, integer(0)),
        Loop(v, integer(0), integer(size), steps, "vector", lanes),
        Store(2, integer(0), get(0, INDEX)),
    ]
    kernel = kernel_of([dtype, dtype, INDEX], body, [Local("low", INDEX), Local("done", INDEX)])
    found, total = np.zeros(size, dtype), np.zeros(1, np.int64)
    run(kernel, found, x, total)
    assert total[0] == np.count_nonzero(x < 4)
    assert np.array_equal(found[: total[0]], x[x < 4])


@pytest.mark.parametrize("combine", ["argmax", "argmin"])
@pytest.mark.parametrize("case", ["plain", "ties", "nan"])
def test_the_extreme_lane_keeps_its_place(combine, case):
    x = np.random.default_rng(4).normal(size=16).astype(np.float32)
    x[[3, 11, 5]] = {"plain": x[[3, 11, 5]], "ties": 9, "nan": np.nan}[case]
    x = -x if combine == "argmin" else x
    locals = [Local("element", FLOAT, lanes=16), Local("place", INDEX, lanes=16)]
    both = value("across", (get(0, FLOAT), get(1, INDEX)), FLOAT, combine)
    body = [
        Loop(
            v,
            integer(0),
            integer(16),
            (Assign(0, load(2, v, FLOAT)), Assign(1, v)),
            "vector",
            16,
        ),
        Store(0, integer(0), value("item", (both,), FLOAT, 0)),
        Store(1, integer(0), value("item", (both,), INDEX, 1)),
    ]
    element, place = np.zeros(1, np.float32), np.zeros(1, np.int64)
    run(kernel_of([FLOAT, INDEX, FLOAT], body, locals), element, place, x)
    assert place[0] == getattr(np, combine)(x)
    assert same_bits(element, x[place])


def test_arrays_among_the_locals_hold_elements_and_vectors():
    """A tile is filled and read back to front; partial sums of 16 lanes lie in an array."""
    locals = [Local("tile", FLOAT, length=32), Local("partial", FLOAT, lanes=16, length=2)]
    body = [
        Loop(
            v,
            integer(0),
            integer(32),
            (Assign(0, builder.mul(load(1, v, FLOAT), load(1, v, FLOAT)), v),),
            "vector",
            8,
        ),
        Loop(i, integer(0), integer(32), (Store(0, i, get(0, FLOAT, builder.sub(31, i))),)),
        Loop(
            j,
            integer(0),
            integer(2),
            (
                Loop(
                    v,
                    integer(0),
                    integer(16),
                    (Assign(1, get(0, FLOAT, builder.add(builder.mul(j, 16), v)), j),),
                    "vector",
                    16,
                ),
            ),
        ),
        Store(
            0,
            integer(32),
            value(
                "across",
                (builder.add(get(1, FLOAT, integer(0)), get(1, FLOAT, integer(1))),),
                FLOAT,
                "add",
            ),
        ),
    ]
    x, found = np.arange(32, dtype=np.float32), np.zeros(33, np.float32)
    run(kernel_of([FLOAT, FLOAT], body, locals), found, x)
    assert np.array_equal(found[:32], (x * x)[::-1])
    assert found[32] == (x * x).sum()


def test_unrolled_loops_have_literal_indices():
    acc = [Local(f"acc{n}", FLOAT, lanes=4) for n in range(1)]
    body = [
        Loop(
            i,
            integer(0),
            integer(3),
            (
                Assign(0, const(0, FLOAT)),
                Loop(
                    k,
                    integer(0),
                    integer(5),
                    (
                        Loop(
                            v,
                            integer(0),
                            integer(4),
                            (
                                Assign(
                                    0,
                                    builder.add(
                                        get(0, FLOAT),
                                        builder.mul(
                                            load(1, builder.add(builder.mul(i, 5), k), FLOAT),
                                            load(2, builder.add(builder.mul(k, 4), v), FLOAT),
                                        ),
                                    ),
                                ),
                            ),
                            "vector",
                            4,
                        ),
                    ),
                    "unroll",
                ),
                Loop(
                    v,
                    integer(0),
                    integer(4),
                    (Store(0, builder.add(builder.mul(i, 4), v), get(0, FLOAT)),),
                    "vector",
                    4,
                ),
            ),
            "unroll",
        )
    ]
    a = np.arange(15, dtype=np.float32).reshape(3, 5)
    b = np.arange(20, dtype=np.float32).reshape(5, 4)
    found = np.zeros((3, 4), np.float32)
    kernel = kernel_of([FLOAT] * 3, body, acc)
    run(kernel, found, a, b)
    assert np.array_equal(found, a @ b)
    assert " mul " not in emit([kernel], jit.host_target())


def test_a_condition_that_differs_between_lanes_runs_them_one_by_one():
    place = load(1, i, INDEX)
    inside = builder.bit_and(builder.less_equal(0, place), builder.less(place, 8))
    body = (When(inside, (Store(0, place, load(2, i, FLOAT), "add"),)),)
    places = np.array([0, 9, 3, 3, -1, 7, 8, 3, 1, 2, 100, 0, 5, 5, -7, 6])
    data = np.arange(16, dtype=np.float32)
    wanted = np.zeros(8, np.float32)
    for place_, number in zip(places, data, strict=True):
        if 0 <= place_ < 8:
            wanted[place_] += number
    for lanes in LANES:
        found = np.zeros(8, np.float32)
        loop = Loop(i, integer(0), integer(16), body, "vector", lanes)
        run(kernel_of([FLOAT, INDEX, FLOAT], [loop]), found, places, data)
        assert np.array_equal(found, wanted)


def test_nothing_is_read_where_a_condition_forbids_it():
    """Loads under a condition stay there: the place may not exist."""
    nowhere = integer(1 << 44)
    body = (When(builder.less(i, parameter(0)), (Store(0, i, load(1, nowhere, FLOAT)),)),)
    found = np.ones(4, np.float32)
    kernel = kernel_of([FLOAT] * 2, [Loop(i, integer(0), integer(4), body)], parameters=1)
    run(kernel, found, np.zeros(1, np.float32), parameters=[0])
    empty = Loop(j, integer(0), parameter(0), (Store(0, j, load(1, nowhere, FLOAT)),))
    outer = Loop(i, integer(0), integer(4), (empty,))
    run(kernel_of([FLOAT] * 2, [outer], parameters=1), found, found, parameters=[0])
    assert np.array_equal(found, np.ones(4))


@pytest.mark.parametrize("lanes", LANES)
def test_what_a_branch_computes_is_computed_again_after_it(lanes):
    """The branch may not have run: its values are not there for what follows."""
    square = builder.mul(i, builder.add(i, parameter(0)))
    body = (
        When(builder.less(parameter(0), 5), (Store(0, i, square),)),
        Store(1, i, square),
        Store(2, i, builder.neg(i)),
    )
    kernel = kernel_of(
        [INDEX] * 3, [Loop(i, integer(0), integer(16), body, "vector", lanes)], parameters=1
    )
    for given in (3, 7):
        found = [np.zeros(16, np.int64) for _ in range(3)]
        run(kernel, *found, parameters=[given])
        n = np.arange(16)
        assert np.array_equal(found[0], n * (n + given) * (given < 5))
        assert np.array_equal(found[1], n * (n + given))
        assert np.array_equal(found[2], -n)


def test_what_a_loop_does_not_change_is_computed_before_it():
    x = load(1, i, FLOAT)
    row = Loop(
        j,
        integer(0),
        integer(64),
        (Store(0, builder.add(builder.mul(i, 64), j), builder.sqrt(x)),),
        "vector",
        8,
    )
    text = emit(
        [kernel_of([FLOAT] * 2, [Loop(i, integer(0), integer(64), (row,))])], jit.host_target()
    )
    inner = text[text.index("phi", text.index("phi") + 1) :]
    assert "load" not in inner and "sqrt" not in inner and "insertelement" not in inner


def test_instructions_that_do_not_exist_are_refused():
    x = load(1, i, np.dtype(np.int32))
    for op, dtype in (("sqrt", np.dtype(np.int32)), ("sub", BOOL), ("bit_and", FLOAT)):
        args = (load(1, i, dtype),) * (1 if op == "sqrt" else 2)
        with pytest.raises(UnsupportedDTypeError, match=op):
            emit([elementwise(value(op, args, dtype), [dtype], 4, 4, "kernel")], jit.host_target())
    with pytest.raises(UnsupportedDTypeError, match="complex64"):
        made = load(1, i, np.dtype(np.complex64))
        emit([elementwise(made, ["c8"], 4, 1, "kernel")], jit.host_target())
    with pytest.raises(UnsupportedError, match="block"):
        loop = Loop(i, integer(0), integer(4), (Store(0, i, x),), "block")
        emit([kernel_of(["i4", "i4"], [loop])], jit.host_target())
    with pytest.raises(UnsupportedError, match="unrolled"):
        loop = Loop(i, integer(0), parameter(0), (Store(0, i, x),), "unroll")
        emit([kernel_of(["i4", "i4"], [loop], parameters=1)], jit.host_target())
    with pytest.raises(AssertionError, match="not scheduled"):
        emit([kernel_of(["i4"], [Reduce((), 1, ())])], jit.host_target())


def test_long_expressions_do_not_exhaust_the_stack():
    made: Value = load(1, i, FLOAT)
    for n in range(3000):
        made = builder.add(made, builder.const(n % 3, FLOAT))
    found = np.zeros(8, np.float32)
    run(elementwise(made, ["f4"], 8, 8, "kernel"), found, np.ones(8, np.float32))
    assert np.array_equal(found, np.full(8, 3001))
