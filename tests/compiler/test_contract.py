"""Scheduled matrix products have the bits of plain loops, whatever their sizes and strides."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.compiler.native_kernels import Compiled
from weft.compiler.build import Builder
from weft.compiler.kernels import KernelStore, evaluate
from weft.compiler.loops import (
    INDEX,
    Assign,
    Buffer,
    Kernel,
    Local,
    Loop,
    Part,
    Reduce,
    Store,
    Value,
    const,
    every,
    get,
    integer,
    load,
    parameter,
    value,
    variable,
)
from weft.compiler.passes import contract_blocks
from weft.compiler.passes.contract import contract, plain
from weft.compiler.passes.contract_match import SHALLOW, is_shallow
from weft.compiler.polynomial import known, subtract
from weft.compiler.verify import verify
from weft.core.common.dtypes import bfloat16
from weft.runtime.cpu.jit import host_target
from weft.testing.ir import run_kernel

FLOAT = np.dtype(np.float32)
SPARE = 7  # elements after each result that nobody may touch
s = Builder()


@dataclass(frozen=True)
class Case:
    """c[m, n] = Σ a[m, k] b[k, n]: sizes, and strides in elements."""

    rows: int
    columns: int
    depth: int
    left: tuple[int, int] = (0, 0)  # (0, 0): row by row
    right: tuple[int, int] = (0, 0)
    batch: tuple[tuple[int, int, int, int], ...] = ()  # (extent, strides of a, b and c)
    dtype: Any = FLOAT
    source: Any = None  # factors are cast from this
    fused: bool = False  # max(c + bias, 0) and c · (c + bias) instead of c
    scaled: bool = False  # c times another matrix instead of c
    lifted: bool = False  # sizes and strides are parameters

    @property
    def numbers(self) -> tuple[int, ...]:
        """Rows, columns, depth, and the strides of both factors."""
        left = self.left if any(self.left) else (self.depth, 1)
        right = self.right if any(self.right) else (self.columns, 1)
        return (self.rows, self.columns, self.depth, *left, *right)

    @property
    def parameters(self) -> tuple[int, ...]:
        """What the kernel is called with."""
        return self.numbers if self.lifted else ()

    def transposed(self, left: bool, right: bool) -> Case:
        """The same product of transposed factors."""
        return replace(
            self,
            left=(1, self.rows + 2) if left else (self.depth + 1, 1),
            right=(1, self.depth + 3) if right else (self.columns + 1, 1),
        )


def index(*terms: tuple[Value, Value | int]) -> Value:
    total = integer(0)
    for x, step in terms:
        total = s.add(total, s.mul(x, integer(step) if isinstance(step, int) else step))
    return total


def product(case: Case, name: str = "product") -> Kernel:
    """The kernel that lowering makes of a product."""
    dtype, source = np.dtype(case.dtype), np.dtype(case.source or case.dtype)
    m, n, k = map(variable, "mnk")
    batch = [variable(f"b{i}") for i in range(len(case.batch))]
    if case.lifted:
        sizes: list[Value] = [parameter(i) for i in range(7)]
        sizes = [x if number != 1 else integer(1) for x, number in zip(sizes, case.numbers)]
    else:
        sizes = [integer(number) for number in case.numbers]
    rows, columns, depth, left_row, left_depth, right_depth, right_column = sizes

    def at(operand: int, *terms: tuple[Value, Value | int]) -> Value:
        return index(*((b, each[operand]) for b, each in zip(batch, case.batch)), *terms)

    a = s.cast(load(0, at(1, (m, left_row), (k, left_depth)), source), dtype)
    b = s.cast(load(1, at(2, (k, right_depth), (n, right_column)), source), dtype)
    here, total = at(3, (m, columns), (n, 1)), get(0, dtype)
    buffers = [Buffer("a", source), Buffer("b", source), Buffer("c", dtype, "write")]
    epilogue: tuple[Any, ...] = (Store(2, here, total),)
    if case.scaled:
        buffers.append(Buffer("scale", dtype))
        epilogue = (Store(2, here, s.mul(total, load(3, here, dtype))),)
    if case.fused:
        buffers += [Buffer("bias", dtype), Buffer("d", dtype, "write")]
        moved = get(1, dtype)
        epilogue = (
            Assign(1, s.add(total, load(3, n, dtype))),
            Store(2, here, s.max(moved, const(0, dtype))),
            Store(4, here, s.mul(moved, total)),
        )
    body: tuple[Any, ...] = (
        Reduce(((k, depth),), 0, (Part((0,), "dot", (a, b)),)),
        *epilogue,
    )
    loops = [(b, integer(each[0])) for b, each in zip(batch, case.batch)]
    for at_, extent in reversed([*loops, (m, rows), (n, columns)]):
        body = (Loop(at_, integer(0), extent, body),)
    locals_ = (Local("sum", dtype), Local("moved", dtype))
    return Kernel(name, tuple(buffers), locals_, body, 7 if case.lifted else 0)


def span(sizes: list[int], strides: list[int]) -> int:
    """Elements of memory that a strided operand reaches."""
    return 1 + sum(max(n - 1, 0) * step for n, step in zip(sizes, strides))


def arrays(case: Case) -> list[Any]:
    """Operands and results; what nobody may read is NaN."""
    rows, columns, depth, *steps = case.numbers
    extents = [each[0] for each in case.batch]
    random = np.random.default_rng(rows * 10007 + columns * 101 + depth)
    dtype, source = np.dtype(case.dtype), np.dtype(case.source or case.dtype)
    sizes = [
        span([*extents, rows, depth], [*(e[1] for e in case.batch), *steps[:2]]),
        span([*extents, depth, columns], [*(e[2] for e in case.batch), *steps[2:]]),
    ]
    made = []
    for size in sizes:
        if source.kind in "iu":
            made.append(random.integers(0, 100, size).astype(source))
        else:
            made.append(random.standard_normal(size).astype(source))
    result = span([*extents, rows, columns], [*(e[3] for e in case.batch), columns, 1]) + SPARE
    made.append(np.full(result, 77, dtype))
    if case.scaled:
        made.append(random.standard_normal(result).astype(dtype))
    if case.fused:
        made.append(random.standard_normal(max(columns, 1)).astype(dtype))
        made.append(np.full(result, 77, dtype))
    return made


def tasks(kernel: Kernel, case: Case) -> int:
    return evaluate(kernel.notes["tasks"], case.parameters)


def check(cases: list[Case], native: Set[str] = frozenset()) -> None:
    """Compile all cases in one module; compare scheduled and plain loops, bit for bit."""
    kernels = [product(case, f"k{i}") for i, case in enumerate(cases)]
    plains = [replace(plain(k), name=f"plain{i}") for i, k in enumerate(kernels)]
    width = host_target().vector_bytes
    made = [verify(contract(k, width, native=native), True) for k in kernels]
    code = Compiled([*plains, *made])
    for case, before, after in zip(cases, plains, made, strict=True):
        assert after.parallel is not None
        agree(code, case, before, after)


def agree(code: Compiled, case: Case, before: Kernel, after: Kernel) -> None:
    want, got = arrays(case), arrays(case)
    code(before.name, want, case.parameters)
    code(after.name, got, case.parameters, tasks(after, case))
    for x, y in zip(want, got, strict=True):
        assert x.tobytes() == y.tobytes(), case


def near(case: Case, result: Any, operands: list[Any]) -> None:
    """A result of the case is what NumPy finds in float64."""
    rows, columns, depth, *steps = case.numbers
    a, b = (
        np.lib.stride_tricks.as_strided(x.astype(np.float64), shape, [8 * step for step in strides])
        for x, shape, strides in zip(
            operands, ((rows, depth), (depth, columns)), (steps[:2], steps[2:])
        )
    )
    found = result[: rows * columns].reshape(rows, columns)
    np.testing.assert_allclose(found, a @ b, rtol=1e-4, atol=1e-4)
    assert np.all(result[rows * columns :] == 77)


TRANSPOSED = [(False, False), (True, False), (False, True), (True, True)]
SHAPES = [
    *[(1, 1, 1), (1, 1, 40), (1, 9, 5), (9, 1, 5), (2, 3, 4), (3, 2, 9), (4, 4, 4), (5, 40, 3)],
    *[(40, 5, 3), (8, 12, 7), (9, 13, 8), (16, 24, 1), (17, 31, 33), (40, 40, 40), (33, 7, 2)],
    *[(0, 4, 4), (4, 0, 4), (4, 4, 0)],
]


def test_one_kernel_serves_every_size_from_0_to_40() -> None:
    cases = {}
    for left, right in TRANSPOSED:
        case = Case(5, 6, 7, lifted=True).transposed(left, right)
        kernel = product(case, f"k{len(cases)}")
        before = replace(plain(kernel), name=f"plain{len(cases)}")
        cases[left, right] = before, contract(kernel, host_target().vector_bytes)
    code = Compiled([k for pair in cases.values() for k in pair])
    random = np.random.default_rng(0)
    for (left, right), (before, after) in cases.items():
        for size in range(41):
            m, n, k = (int(x) for x in random.permutation([size, *random.integers(0, 41, 2)]))
            agree(code, Case(m, n, k, lifted=True).transposed(left, right), before, after)


@pytest.mark.parametrize("left, right", TRANSPOSED)
def test_kernels_for_one_size_have_the_bits_of_plain_loops(left: bool, right: bool) -> None:
    check([Case(*shape).transposed(left, right) for shape in SHAPES])


@pytest.mark.parametrize("dtype", ["float64", "int32", "uint8", "int64"])
def test_other_dtypes_have_the_bits_of_plain_loops(dtype: str) -> None:
    check([Case(*shape, dtype=np.dtype(dtype)) for shape in [(9, 13, 8), (1, 9, 5), (17, 31, 33)]])


def test_factors_may_be_cast_from_a_narrow_dtype() -> None:
    check([Case(*shape, source=bfloat16) for shape in [(9, 13, 8), (40, 40, 40), (1, 9, 30)]])


@pytest.mark.parametrize("lifted", [False, True])
def test_an_epilogue_with_two_results_runs_on_every_element_once(lifted: bool) -> None:
    shapes = [(8, 12, 4), (9, 13, 8), (1, 40, 5), (40, 1, 5), (40, 40, 3)]
    check([Case(*shape, fused=True, lifted=lifted) for shape in shapes])


@pytest.mark.parametrize("lifted", [False, True])
def test_an_epilogue_that_reads_rows_finishes_panels_of_them(lifted: bool) -> None:
    shapes = [(8, 24, 80), (9, 13, 80), (1, 40, 70), (41, 50, 65), (20, 30, 600), (40, 3, 70)]
    check([Case(*shape, scaled=True, lifted=lifted) for shape in shapes])


@pytest.mark.slow
def test_a_deep_product_is_summed_piece_by_piece_in_one_order() -> None:
    shapes = [(30, 50, 700), (100, 150, 300), (1, 300, 100), (3, 2000, 40), (70, 1, 5000)]
    check([Case(*shape, lifted=lifted) for shape in shapes for lifted in (False, True)])


@pytest.mark.parametrize("native", [frozenset(), {"lane"}], ids=["plain", "by lane"])
def test_lanes_may_read_columns_that_lie_far_apart(native: Set[str]) -> None:
    shapes = [(64, 1, 300), (96, 2, 40), (3, 32, 9), (1, 64, 600), (48, 1, 8)]
    cases = [Case(*shape, fused=fused) for shape in shapes for fused in (False, True)]
    cases = [c.transposed(False, True) for c in cases]
    with contract_blocks.using_path("turned"):
        batched = Case(48, 1, 30, batch=((3, 1440, 30, 48),)).transposed(False, True)
        check([*cases, batched], native)
        after = contract(product(cases[0]), 16)
    assert (after.notes["contract"].tile_columns, evaluate(after.notes["tasks"], ())) == (4, 16)


def test_batches_share_a_factor_where_its_stride_is_zero() -> None:
    size = (9, 10, 11)
    check(
        [
            Case(*size, batch=((3, 99, 110, 90),)),
            Case(*size, batch=((3, 0, 110, 90),)),
            Case(*size, batch=((3, 99, 0, 90),)),
            Case(*size, batch=((2, 297, 0, 270), (3, 99, 110, 90))),
            Case(*size, batch=((2, 300, 0, 270), (3, 100, 0, 90))),
            Case(*size, batch=((0, 99, 110, 90),)),
        ]
    )


def test_results_are_near_those_of_numpy() -> None:
    for shape in [(17, 31, 33), (100, 150, 300), (64, 1, 64)]:
        case = Case(*shape)
        kernel = contract(product(case), host_target().vector_bytes)
        given = arrays(case)
        Compiled([kernel])(kernel.name, given, (), tasks(kernel, case))
        near(case, given[2], given[:2])


@pytest.mark.parametrize("vector_bytes, registers", [(16, 32), (16, 16), (32, 0), (64, 0)])
@pytest.mark.parametrize("shape", [(9, 13, 3), (1, 9, 2), (5, 1, 2), (0, 3, 3)])
@pytest.mark.parametrize("lifted", [False, True])
def test_tasks_are_independent_and_stay_inside_their_arrays(
    vector_bytes: int, registers: int, shape: Any, lifted: bool, monkeypatch: Any
) -> None:
    monkeypatch.setattr(contract_blocks, "TALL", 4)  # several tiles
    monkeypatch.setattr(contract_blocks, "SMALL", 0)
    monkeypatch.setattr(contract_blocks, "LONG", 16)
    case = Case(*shape, fused=True, lifted=lifted)
    kernel = product(case)
    made = verify(contract(kernel, vector_bytes, registers), True)
    want = run_kernel(kernel, arrays(case), case.parameters)
    for backward in (False, True):
        got = run_kernel(made, arrays(case), case.parameters, backward)
        assert [x.tobytes() for x in want] == [x.tobytes() for x in got]


def changed(kernel: Kernel, body: tuple[Any, ...]) -> Kernel:
    """The product's kernel with other statements inside its two loops."""
    (outer,) = kernel.body
    (inner,) = outer.body  # type: ignore[union-attr]
    return replace(kernel, body=(replace(outer, body=(replace(inner, body=body),)),))


def inside(kernel: Kernel) -> tuple[Any, ...]:
    body: tuple[Any, ...] = kernel.body[0].body[0].body  # type: ignore[union-attr]
    return body


def test_a_kernel_that_is_no_product_comes_back_as_it_is() -> None:
    kernel = product(Case(4, 5, 6))
    reduce, store = inside(kernel)
    others = [
        changed(kernel, (store, reduce)),
        changed(kernel, (reduce, replace(store, combine="add"))),
        changed(kernel, (reduce, replace(store, buffer=0))),
        changed(kernel, (reduce, Assign(0, const(1, FLOAT)), store)),
        changed(kernel, (reduce, replace(store, value=get(1, FLOAT)))),
        changed(kernel, (replace(reduce, axes=((variable("k"), variable("m")),)), store)),
    ]
    for other in others:
        assert contract(other, 16) is other


def test_factors_that_read_both_loops_are_summed_without_tiles() -> None:
    kernel = product(Case(4, 5, 6))
    reduce, store = inside(kernel)
    a, b = reduce.parts[0].values
    mixed = s.mul(a, s.cast(variable("n"), FLOAT))
    other = changed(kernel, (replace(reduce, parts=(Part((0,), "dot", (mixed, b)),)), store))
    made = contract(other, host_target().vector_bytes)
    want, got = arrays(Case(4, 5, 6)), run_kernel(made, arrays(Case(4, 5, 6)))
    Compiled([plain(other)])("product", want)
    assert got[2].tobytes() == want[2].tobytes()


def test_two_summed_axes_are_one_depth() -> None:
    case = Case(9, 13, 12)
    kernel = product(case)
    reduce, store = inside(kernel)
    outer, inner = variable("k1"), variable("k2")
    flat = value("add", (value("mul", (outer, integer(4)), INDEX), inner), INDEX)
    a, b = (load(x.data, index_at(x, flat), FLOAT) for x in reduce.parts[0].values)
    axes = ((outer, integer(3)), (inner, integer(4)))
    part = Part((0,), "dot", (a, b))
    other = changed(kernel, (replace(reduce, axes=axes, parts=(part,)), store))
    made = verify(contract(other, host_target().vector_bytes), True)
    assert made.parallel is not None
    want, got = arrays(case), arrays(case)
    Compiled([plain(kernel)])("product", want)
    Compiled([made])("product", got, (), tasks(made, case))
    assert got[2].tobytes() == want[2].tobytes()


def index_at(x: Value, k: Value) -> Value:
    """The index of a load with another depth."""
    m, n = variable("m"), variable("n")
    return index((m, 12), (k, 1)) if x.data == 0 else index((k, 13), (n, 1))


@pytest.mark.parametrize(
    ("case", "is_plain"),
    [
        (Case(20, 50, 1), True),
        (Case(40, 5, 1), True),
        (Case(20, 50, 2), True),
        (Case(9, 50, SHALLOW), True),
        (Case(9, 50, SHALLOW + 1), False),
        (Case(40, 5, 3), True),
        (Case(40, 10, 3), False),
        (Case(3, 4, 3), False),
        (Case(3, 5, 2, batch=((20, 6, 10, 15),)), True),
        (Case(3, 4, 2, batch=((20, 6, 8, 12),)), False),
        (Case(2, 1, 6, batch=((20, 12, 6, 2),)), True),
        (Case(30, 3, 4, batch=((5, 120, 12, 90),)), True),
        (Case(7, 3, 7, batch=((5, 49, 21, 21),)), False),
        (Case(2, 2000, 3), False),
        (Case(9, 50, 3).transposed(False, True), False),
        (Case(9, 50, 3).transposed(True, False), True),
    ],
    ids=str,
)
def test_few_products_of_each_result_are_plain_loops_with_columns_as_lanes(
    case: Case, is_plain: bool
) -> None:
    kernel = product(case)
    assert is_shallow(kernel) is is_plain
    (*_, made) = KernelStore.scheduled(kernel, shallow=is_plain)
    assert ("contract" in made.notes) is not is_plain
    results = (run_kernel(each, arrays(case), ()) for each in (made, kernel))
    for x, y in zip(*results, strict=True):
        assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize("depth", [4, 8, 12, 16, 20, 40, 64])
def test_few_points_of_the_depth_are_turned_without_loops_of_no_steps(depth: int) -> None:
    case = Case(1, 24, depth).transposed(False, True)
    made = contract(product(case), 16)
    assert made.notes["contract"].turns
    for loop in (x for x in every(made.body) if isinstance(x, Loop)):
        assert known(subtract(loop.stop, loop.start)) != 0
    check([case])
