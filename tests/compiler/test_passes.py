"""Every pass keeps every bit: kernels are interpreted before and after each of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler import example_kernels
from tests.compiler.example_kernels import EXAMPLES, TAILS, Example, add, mul, op
from weft.compiler.kernels import evaluate
from weft.compiler.loops import (
    INDEX,
    Ahead,
    Assign,
    Buffer,
    Kernel,
    Local,
    Loop,
    Reduce,
    Store,
    every,
    get,
    integer,
    literal,
    load,
    parameter,
    variable,
)
from weft.compiler.passes import parallelize, sink, split, tile
from weft.compiler.passes.collapse import collapse
from weft.compiler.passes.simplify import simplify
from weft.compiler.pipeline import schedule, stages
from weft.compiler.rebuild import rename_locals
from weft.compiler.show import show
from weft.compiler.verify import verify
from weft.testing.ir import run_kernel

F = example_kernels.F
LONG = frozenset(  # kernels that take seconds to interpret
    {
        "column sums, wide and long",
        "column sums, sizes given",
        "product",
        "transposed rows",
        "transposed rows, long",
    }
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Small kernels are cut, shared and tiled like large ones."""
    monkeypatch.setattr(split, "CHUNK", 1024)
    monkeypatch.setattr(split, "ROWS", 64)
    monkeypatch.setattr(split, "WORK", 1024)
    monkeypatch.setattr(sink, "LONG", 128)
    monkeypatch.setattr(parallelize, "LEAST", 100)
    monkeypatch.setattr(parallelize, "CHUNK", 64)
    monkeypatch.setattr(parallelize, "COLUMNS", 48)
    monkeypatch.setattr(parallelize, "WHOLE", 600)
    monkeypatch.setattr(tile, "TILE", 8)


def run(kernels, example: Example, backward: bool = False) -> list:
    """The buffers after all kernels; memory between them comes and goes."""
    buffers = example.arrays()
    given = len(buffers)
    for kernel in kernels:
        if "partials" in kernel.notes:
            dtype, elements = kernel.notes["partials"]
            if not isinstance(elements, int):
                elements = evaluate(elements, example.parameters)
            buffers.append(np.zeros(elements, dtype))
        buffers = run_kernel(kernel, buffers, example.parameters, backward)
    return buffers[:given]


def bits(arrays) -> list[bytes]:
    return [np.asarray(a).tobytes() for a in arrays]


def prove(example: Example, **options) -> tuple[Kernel, ...]:
    """Bits are the same before and after every pass, whatever the order of tasks."""
    verify(example.kernel)
    expected = bits(run((example.kernel,), example))
    kernels = before = (example.kernel,)
    for name, kernels in stages(example.kernel, **options):
        for kernel in kernels:
            verify(kernel)
        if kernels != before:
            assert bits(run(kernels, example)) == expected, name
        before = kernels
    for kernel in kernels:
        verify(kernel, scheduled=True)
    assert bits(run(kernels, example, backward=True)) == expected, "tasks share something"
    return kernels


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in LONG else x for x in EXAMPLES]
)
def test_every_pass_keeps_every_bit(name):
    prove(EXAMPLES[name]())


@pytest.mark.parametrize("name", ["softmax", "column sums", "broadcast", "argmin of ties"])
@pytest.mark.parametrize("vector_bytes", [pytest.param(32, marks=pytest.mark.slow), 64])
def test_the_width_of_vectors_never_shows(name, vector_bytes):
    prove(EXAMPLES[name](), vector_bytes=vector_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full sum, long", "column sums, wide", "broadcast, long rows"])
def test_nothing_is_shared_out_where_no_threads_are_wanted(name):
    kernels = prove(EXAMPLES[name](), threads_wanted=False)
    assert len(kernels) == 1
    assert kernels[0].parallel is None
    assert evaluate(kernels[0].notes["tasks"], ()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("n", [1024, 2049, 5000])
@pytest.mark.parametrize("flexible", [False, True])
def test_blocks_that_wide_vectors_take_together_keep_every_bit(n, flexible):
    for example in (
        example_kernels.full_sum(n, flexible=flexible),
        example_kernels.row_sum(3, n, "max", flexible),
        example_kernels.extreme(2, n, "argmin", example_kernels.lowest, flexible=flexible),
    ):
        (kernel, *_) = prove(example, vector_bytes=64)
        assert any(loop.variable.data.startswith("group") for loop in loops_of(kernel)) or n == 1024


@pytest.mark.slow
@pytest.mark.parametrize(("n", "vector_bytes"), [(2048, 16), (9001, 64)])
@pytest.mark.parametrize("fill", [example_kernels.ties, example_kernels.lowest])
def test_a_place_found_in_two_runs_is_the_first(n, vector_bytes, fill):
    for combine in ("argmax", "argmin"):
        example = example_kernels.extreme(2, n, combine, fill, alone=True)
        options = {"vector_bytes": vector_bytes, "threads_wanted": False}
        (kernel,) = schedule(example.kernel, **options)
        assert any(loop.variable.data.startswith("part") for loop in loops_of(kernel))
        assert bits(run((kernel,), example)) == bits(run((example.kernel,), example))


@pytest.mark.parametrize(("rows", "tasks"), [(34, 17), (33, 33)])
def test_two_chains_run_side_by_side_where_rows_come_in_pairs(rows, tasks):
    (kernel,) = prove(example_kernels.running_sum(rows, 20))
    assert evaluate(kernel.notes["tasks"], ()) == tasks


@pytest.mark.parametrize(("n", "tasks"), [(128, 32), (512, 32), (8192, 64)])
def test_wide_vectors_take_two_rows_at_a_time_where_rows_are_short(n, tasks):
    example = example_kernels.extreme(64, n, "argmax", example_kernels.ties, alone=True)
    (kernel,) = schedule(example.kernel, vector_bytes=64, threads_wanted=True)
    assert evaluate(kernel.notes["tasks"], ()) == tasks


def test_what_was_found_is_near_and_not_fetched():
    example = example_kernels.extreme(64, 8192, "argmax", example_kernels.ties, alone=True)
    (kernel,) = schedule(example.kernel, vector_bytes=64, threads_wanted=True)
    fetching = [any(isinstance(s, Ahead) for s in loop.body) for loop in loops_of(kernel, "vector")]
    assert sum(fetching) == 1


QUICK = (1, 15, 16, 17, 33, 512, 513)
SIZES = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in TAILS]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    "make",
    [
        lambda n: example_kernels.elementwise(n),
        lambda n: example_kernels.full_sum(n),
        lambda n: example_kernels.full_sum(n, flexible=True),
        lambda n: example_kernels.extreme(1, n, "argmax", example_kernels.ties),
        lambda n: example_kernels.column_sum(n, 3),
        lambda n: example_kernels.column_sum(3, n),
    ],
    ids=["elementwise", "sum", "sum, sizes given", "argmax", "rows of 3", "3 rows"],
)
def test_no_size_of_a_tail_changes_a_bit(make, n):
    example = make(n)
    kernels = schedule(example.kernel)
    assert bits(run(kernels, example)) == bits(run((example.kernel,), example))


# -- what each pass is for ---------------------------------------------------------------------


def loops_of(kernel: Kernel, kind: str = "") -> list[Loop]:
    return [s for s in every(kernel.body) if isinstance(s, Loop) and kind in ("", s.kind)]


def test_loops_over_packed_memory_become_one():
    kernel = collapse(simplify(EXAMPLES["packed"]().kernel))
    assert [evaluate(loop.stop, ()) for loop in loops_of(kernel)] == [105]


def test_loops_collapse_where_strides_are_parameters():
    i, j = variable("i"), variable("j")
    at = add(mul(i, parameter(1)), j)
    inner = Loop(j, integer(0), parameter(1), (Store(0, at, load(1, at, F)),))
    body = (Loop(i, integer(0), parameter(0), (inner,)),)
    buffers = example_kernels.buffers("write", "read")
    (loop,) = loops_of(collapse(Kernel("copy", buffers, (), body, 2)))
    assert evaluate(loop.stop, (6, 7)) == 42


def test_loops_do_not_collapse_over_a_gap():
    i, j = variable("i"), variable("j")
    at = add(mul(i, 8), j)
    inner = Loop(j, integer(0), integer(7), (Store(0, at, load(1, at, F)),))
    body = (Loop(i, integer(0), integer(6), (inner,)),)
    kernel = Kernel("copy", example_kernels.buffers("write", "read"), (), body)
    assert len(loops_of(collapse(kernel))) == 2


def test_axes_of_a_reduction_collapse():
    r, k = variable("r"), variable("k")
    x = load(1, add(mul(r, 20), k), F)
    part = example_kernels.Part((0,), "add", (x,))
    reduce = Reduce(((r, integer(30)), (k, integer(20))), 16, (part,))
    body = (reduce, Store(0, integer(0), get(0, F)))
    kernel = collapse(
        Kernel("sum", example_kernels.buffers("write", "read"), (Local("s", F),), body)
    )
    (found,) = [s for s in kernel.body if isinstance(s, Reduce)]
    assert [evaluate(extent, ()) for _, extent in found.axes] == [600]


def test_simplify_folds_indices_and_drops_what_does_nothing():
    i, j = variable("i"), variable("j")
    index = add(mul(add(i, 0), 1), mul(j, 5))
    unused = Assign(0, op("sqrt", load(1, i, F)))
    once = Loop(j, integer(0), integer(1), (unused, Store(0, index, load(1, index, F))))
    never = Loop(variable("n"), integer(3), integer(3), (Store(0, i, load(1, i, F)),))
    body = (Loop(i, integer(0), integer(9), (once, never)),)
    kernel = simplify(
        Kernel("copy", example_kernels.buffers("write", "read"), (Local("t", F),), body)
    )
    assert kernel.body == (Loop(i, integer(0), integer(9), (Store(0, i, load(1, i, F)),)),)
    assert kernel.locals == ()


def test_a_long_sum_is_split_in_two_kernels_with_memory_between():
    kernels = schedule(EXAMPLES["full sum, long"]().kernel)
    first, second = kernels
    assert first.buffers[-1] == Buffer("partials", F, "write")
    assert second.buffers[-1] == Buffer("partials", F, "read")
    assert first.notes["partials"] == (F, 4 * 16)
    assert evaluate(first.notes["tasks"], ()) == 4


def test_a_reduction_of_many_rows_is_not_split():
    assert len(schedule(EXAMPLES["row sums, many"]().kernel)) == 1


def test_elementwise_loops_are_shared_in_chunks():
    (kernel,) = schedule(EXAMPLES["elementwise"]().kernel)
    assert evaluate(kernel.notes["tasks"], ()) == 2
    (kernel,) = schedule(EXAMPLES["elementwise, sizes given"]().kernel)
    assert [evaluate(kernel.notes["tasks"], (n,)) for n in (1, 64, 65, 200)] == [1, 1, 2, 4]


def test_a_scatter_keeps_the_order_of_its_updates():
    for name in EXAMPLES:
        if not name.startswith("scatter"):
            continue
        (kernel,) = schedule(EXAMPLES[name]().kernel)
        assert kernel.parallel is None
        outermost = kernel.body[0]
        assert isinstance(outermost, Loop) and outermost.kind == "serial"


def test_a_kernel_that_is_shared_already_stays_so():
    (loop,) = EXAMPLES["scatter"]().kernel.body
    marked = Loop(loop.variable, loop.start, loop.stop, loop.body, "parallel")
    example = EXAMPLES["scatter"]().kernel
    kernel = Kernel("scatter", example.buffers, (), (marked,))
    (made,) = schedule(kernel)
    assert made.parallel is not None
    assert evaluate(made.notes["tasks"], ()) == 40


def test_whole_rows_have_no_tails():
    kernels = schedule(example_kernels.row_sum(300, 64).kernel)
    (kernel,) = kernels
    assert [loop.step for loop in loops_of(kernel, "vector")] == [16]
    assert not loops_of(kernel, "serial")


def test_a_transpose_reads_and_writes_rows():
    (kernel,) = schedule(EXAMPLES["transpose, whole tiles"]().kernel)
    copy, main = loops_of(kernel, "vector")
    assert isinstance(copy.body[0], Assign)
    assert isinstance(main.body[0], Store)


def test_the_same_kernel_is_scheduled_the_same_way_each_time():
    for name in ("softmax", "column sums, long", "permute"):
        texts = {
            "".join(show(kernel) for kernel in schedule(EXAMPLES[name]().kernel)) for _ in range(3)
        }
        assert len(texts) == 1


@pytest.mark.parametrize(
    "example, wide, fetched",
    [
        (example_kernels.row_sum(20, 4096), 64, [2048, 2560, 3072, 3584]),  # four runs of a row
        (example_kernels.row_sum(4, 4096), 32, []),
        (example_kernels.row_sum(4, 4096), 16, [128]),
        (example_kernels.row_sum(4, 4096, "max"), 16, [128]),
        (example_kernels.elementwise(4096), 16, []),
        (example_kernels.row_sum(4, 256), 64, []),  # rows end before it
        (example_kernels.transpose(64, 64), 64, []),
        (example_kernels.long_steps(4, 4096), 64, [512, 528]),
        (example_kernels.long_steps(4, 64), 64, []),
    ],
    ids=[
        *["long rows", "narrow", "narrowest", "extremes", "arithmetic", "short rows", "tiles"],
        *["several steps", "a few steps"],
    ],
)
def test_long_reductions_have_caches_fetch_what_they_will_read(example, wide, fetched):
    kernels = prove(example, vector_bytes=wide, threads_wanted=False)
    soon = [s.source.args[0] for k in kernels for s in every(k.body) if isinstance(s, Ahead)]
    assert [literal(x.args[1]) for x in soon] == fetched


@pytest.mark.parametrize("n, steps", [(4096, [32]), (1008, [32, 16]), (96, [32])])
def test_several_long_steps_are_taken_at_once_with_the_longest_vectors(n, steps):
    """A place has 64 bits, so 32 of them are four registers; what is left over is as ever."""
    example = example_kernels.long_steps(2, n)
    for vector_bytes in (16, 32, 64):
        kernels = prove(example, vector_bytes=vector_bytes, threads_wanted=False)
        loops = [loop for k in kernels for loop in loops_of(k, "vector")]
        kept = [loop.step for loop in loops if any(isinstance(s, Store) for s in loop.body)]
        assert kept == (steps if vector_bytes == 64 else [16])


def test_locals_are_renamed_in_positions_of_positions_too():
    def chosen(register, inner, outer):
        return get(outer, F, get(inner, INDEX, add(get(register, INDEX), integer(1))))

    (made,) = rename_locals((Assign(3, chosen(0, 1, 2)),), {0: 1, 1: 2, 2: 0, 3: 5})
    assert made == Assign(5, chosen(1, 2, 0))


def test_a_pass_that_finds_nothing_to_do_gives_the_kernel_itself():
    kernel = simplify(EXAMPLES["packed"]().kernel)
    assert sink.sink(kernel) is kernel
    assert simplify(kernel) is kernel
