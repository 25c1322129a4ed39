"""Slabs that masks hide from blocks of a GPU: they are left out, and no bit changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.gpu_results import different, on_cpu
from tests.compiler.test_gpu_products import run
from weft.compiler import gpu_code
from weft.compiler.loops import Kernel, Loop, Squares, Value, every, literal
from weft.compiler.passes import blocks_hidden, blocks_product
from weft.compiler.passes.items import DOUBLES, GROUPS, SQUARES, TILES, Limits, Tile
from weft.compiler.rebuild import values_of
from weft.compiler.verify import verify
from weft.core.common.dtypes import bfloat16
from weft.core.tensor.tracing import trace
from weft.testing.emulated_gpu import use_emulated_gpu
from weft.testing.gpu_programs import planned

SMALL = Limits(tiles=(Tile(8, 8, 4, 4, 8),))
WIDE = Limits(tiles=(Tile(8, 16, 4, 8, 4),))
TALL = Limits(tiles=(Tile(32, 8, 4, 4, 8),), lanes=1)
PAIR = Limits(tiles=(), doubles=(Tile(16, 16, 1, 4, 8),))
TWO = Limits(tiles=(), squares=(Tile(16, 16, 2, 4, 32),), room=1 << 13)  # slabs at a time,
MORE = Limits(tiles=(), squares=(Tile(16, 32, 2, 4, 32),))  # or three and more
GROUPED = Limits(tiles=(), groups=GROUPS, room=227 * 1024)
LIMITS = {"small": SMALL, "wide": WIDE, "tall": TALL}
NARROW = {"two": TWO, "more": MORE, "groups": GROUPED}


def earlier(row: Any, column: Any) -> Any:
    return column <= row


def later(row: Any, column: Any) -> Any:
    return column > row - 3


def window(row: Any, column: Any) -> Any:
    behind = row - column
    return (behind >= -2) & (behind < 20)


def nothing(row: Any, column: Any) -> Any:
    behind = row - column
    return (behind >= 50) & (behind < 20)


MASKS = [earlier, later, window, nothing]


def hidden(mask: Any, x: Any, by: float = 0.0) -> Any:
    """A tensor that is another number where a mask of its last axes does not hold."""
    rows, columns = (wf.arange(n, device=x.device) for n in x.shape[-2:])
    return wf.where(mask(rows[:, None], columns), x, by)


def itself(x: Any) -> Any:
    return x


def left(mask: Any, made: Any = itself) -> Any:
    """The left factor is masked."""
    return lambda a, b: hidden(mask, made(a)) @ b


def turned(mask: Any, made: Any = itself) -> Any:
    """The same, which lies the other way."""
    return lambda a, b: hidden(mask, made(a)).mT @ b


def right(mask: Any, made: Any = itself) -> Any:
    """The right factor is masked."""
    return lambda a, b: a @ hidden(mask, made(b))


def sums(mask: Any, made: Any = itself) -> Any:
    """Sums are."""
    return lambda a, b: hidden(mask, a @ b, -wf.inf)


def operands(*shapes: Any, dtype: Any = np.float32) -> list[Any]:
    """Random numbers, some of which are special, tiny and of either sign."""
    rng = np.random.default_rng(len(shapes))
    made = []
    for shape in shapes:
        x = (rng.standard_normal(shape) * 3).astype(dtype)
        where = rng.random(shape)
        x[where < 0.3] *= dtype(1e-25 if dtype == np.float32 else 1e-200)
        x[..., 1] = np.abs(x[..., 1]) * np.float32(1e-25 if dtype == np.float32 else 1e-200)
        x[..., 2] = -np.abs(x[..., 2]) * np.float32(1e-25 if dtype == np.float32 else 1e-200)
        x[where > 0.99] = 0
        made.append(x)
    return made


def with_special(x: Any) -> Any:
    """The same with numbers that are none, or too large, in few rows and columns."""
    x = x.copy()
    x[..., -1, -1], x[..., 0, 0], x[..., x.shape[-2] // 2, 3] = np.nan, np.inf, -np.inf
    return x


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Any product is worth it; GPUs are busy with any tile."""
    monkeypatch.setattr(blocks_hidden, "WORTH", 0)
    monkeypatch.setattr(blocks_product, "THREADS", 0)


def on_gpu(function, arrays, limits: Limits) -> list[Any]:
    """The results of a GPU that the processor plays, with these tiles."""
    cuda = gpu_code._LANGUAGES["cuda"]
    with pytest.MonkeyPatch.context() as patch, use_emulated_gpu():
        patch.setitem(gpu_code._LANGUAGES, "cuda", replace(cuda, limits=lambda _: limits))
        found = wf.compile(function)(*(wf.asarray(x, device="cuda") for x in arrays))
        return [x.host() for x in (found if isinstance(found, tuple) else (found,))]


def agree(function, arrays, limits: Limits) -> None:
    expected = on_cpu(trace(function, *map(wf.asarray, arrays)), arrays)
    for x, y in zip(on_gpu(function, arrays, limits), expected, strict=True):
        assert different(x, np.asarray(y)) == 0


OPS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "floordiv": lambda x, y: x // y,
    "rem": lambda x, y: x % y,
    "min": min,
    "max": max,
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "bit_or": lambda x, y: x or y,
    "bit_and": lambda x, y: x and y,
    "select": lambda c, x, y: x if c else y,
}


def turns(statements: Any, known: dict[Value, int] | None = None) -> int:
    """How often the loops over slabs of a kernel turn, in all of its blocks."""

    def number(x: Value) -> int:
        if x.op == "const":
            return int(literal(x))
        return known[x] if x in known else OPS[x.op](*map(number, x.args))

    known, found = known or {}, 0
    for s in statements:
        if isinstance(s, Loop) and s.variable.data == "slab":
            assert number(s.start) == 0 and number(s.stop) >= 0
            found += number(s.stop)
        elif isinstance(s, Loop) and s.variable.data in ("group", "piece"):
            for at in range(number(s.start), number(s.stop)):
                found += turns(s.body, {**known, s.variable: at})
    return found


def share(kernel: Kernel, slabs: int) -> float:
    """The slabs that blocks take of all of them."""
    return turns(verify(kernel, scheduled=True).body) / (kernel.notes["blocks"] * slabs)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", [left, turned, right, sums])
@pytest.mark.parametrize("size", [64, 75])
def test_masked_products_keep_every_bit(kind, mask, limits, size):
    given = operands((2, size, size), (2, size, size))
    given = given if size == 64 else [with_special(x) for x in given]
    agree(kind(mask), given, LIMITS[limits])


@pytest.mark.parametrize("kind", [left, right, sums])
@pytest.mark.parametrize("number", [-3, 0, 20, 100, 1 << 30, -(1 << 30)])
def test_masks_may_have_numbers_that_are_given(kind, number):
    def function(a: Any, b: Any, n: Any) -> Any:
        return kind(lambda row, column: row - column < n)(a, b)

    agree(function, [*operands((64, 64), (64, 64)), np.array(number, np.int32)], SMALL)


@pytest.mark.parametrize("kind", [left, turned, right, sums])
@pytest.mark.parametrize(("mask", "most"), [(earlier, 0.57), (later, 0.68), (window, 0.52)])
def test_blocks_take_no_more_slabs_than_masks_show(kind, mask, most):
    graph = trace(kind(mask), *map(wf.asarray, operands((2, 64, 64), (2, 64, 64))))
    kernels = planned(graph, SMALL).kernels
    assert len(kernels) == (1 if kind is sums else 2)
    assert 0.3 < share(kernels[-1], 8) < most


def test_blocks_take_no_slabs_where_nothing_is_shown():
    for kind in (left, turned, right, sums):
        graph = trace(kind(nothing), *map(wf.asarray, operands((64, 64), (64, 64))))
        assert share(planned(graph, SMALL).kernels[-1], 8) < 0.1


LONG = [earlier, later, lambda row, column: (row >= column) & (row < column + 200)]


@pytest.mark.parametrize("kind", [left, turned, right])
@pytest.mark.parametrize("mask", LONG, ids=["earlier", "later", "window"])
@pytest.mark.parametrize("busy", [True, False], ids=["joined", "parted"])
def test_pieces_of_long_sums_keep_every_bit(monkeypatch, kind, mask, busy):
    monkeypatch.setattr(blocks_product, "THREADS", 0 if busy else 1 << 20)
    sizes = ((9, 600), (600, 600)) if kind is right else ((600, 600), (600, 9))
    a, b = operands(*sizes)
    graph = trace(kind(mask), *map(wf.asarray, (a, b)))
    assert len(planned(graph, SMALL).kernels) == (2 if busy else 3)
    agree(kind(mask), [a, b], SMALL)
    agree(kind(mask), [with_special(a), with_special(b)], SMALL)


@pytest.mark.parametrize("limits", [SMALL, PAIR], ids=["threads", "squares"])
@pytest.mark.parametrize("kind", [left, turned, right, sums])
@pytest.mark.parametrize("size", [64, 300])
def test_float64_keeps_every_bit(kind, limits, size):
    a, b = operands((size, size), (size, size), dtype=np.float64)
    agree(kind(window), [a, b], limits)
    agree(kind(earlier), [with_special(a), with_special(b)], limits)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [left, turned, right, sums])
def test_threads_may_run_in_any_order(kind):
    arrays = [with_special(x) for x in operands((16, 16), (16, 16))]
    graph = trace(kind(window), *map(wf.asarray, arrays))
    program, (expected,) = planned(graph, SMALL), on_cpu(graph, arrays)
    for backward in (False, True):
        (found,) = run(program, arrays, backward)
        assert different(found, expected) == 0


@pytest.mark.parametrize("limits", NARROW)
@pytest.mark.parametrize("kind", [left, turned, right, sums])
@pytest.mark.parametrize("mask", [earlier, window])
def test_squares_leave_out_the_same(monkeypatch, kind, mask, limits):
    size = 200 if limits == "groups" else 120
    given = [x.astype(bfloat16) for x in operands((2, size, size), (2, size, size))]
    function = kind(mask, wf.exp)  # which is stored, as weights of attention are
    for arrays in (given, [with_special(x) for x in given]):
        (found,) = on_gpu(function, arrays, NARROW[limits])
        with monkeypatch.context() as patch:
            patch.setattr(blocks_hidden, "WORTH", 1 << 60)
            patch.setattr(blocks_hidden, "mask_of_sums", lambda product: None)
            (expected,) = on_gpu(function, arrays, NARROW[limits])
        assert different(found, expected) == 0
        assert not np.isnan(found.astype(np.float32)).all()
    kernels = planned(trace(function, *map(wf.asarray, given)), NARROW[limits]).kernels
    product = next(k for k in kernels if any(isinstance(s, Squares) for s in every(k.body)))
    depth = 64 if limits == "groups" else 32
    assert share(product, -(-size // depth)) < 0.8


EACH = [
    *((np.float32, Limits(tiles=(tile,))) for tile in TILES),
    *((np.float64, Limits(tiles=(), doubles=(tile,))) for tile in DOUBLES),
    *((bfloat16, Limits(tiles=(), squares=(tile,))) for tile in SQUARES),
    *((bfloat16, Limits(tiles=(), groups=(tile,), room=227 * 1024)) for tile in GROUPS),
]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "dtype", "limits"), [(k, *each) for k, each in enumerate(EACH)])
def test_every_tile_of_a_gpu_leaves_out_the_same(monkeypatch, number, dtype, limits):
    wide = np.float32 if dtype == bfloat16 else dtype
    a, b = (with_special(x.astype(dtype)) for x in operands((264, 264), (264, 72), dtype=wide))
    function = (left, turned)[number % 2](earlier, wf.exp)
    (found,) = on_gpu(function, [a, b], limits)
    with monkeypatch.context() as patch:
        patch.setattr(blocks_hidden, "WORTH", 1 << 60)
        (expected,) = on_gpu(function, [a, b], limits)
    assert different(found, expected) == 0
    assert np.isnan(found.astype(wide)).any() and np.isfinite(found.astype(wide)).any()


def attention(q: Any, k: Any, v: Any) -> Any:
    return wf.scaled_dot_product_attention(q, k, v, is_causal=True)


def gradients(q: Any, k: Any, v: Any) -> Any:
    total = lambda *x: wf.sum(wf.sin(attention(*x).astype("float32")))  # noqa: E731
    return wf.grad(total, argnums=(0, 1, 2))(q, k, v)


def weighted(q: Any, k: Any, v: Any) -> Any:
    """Attention to some earlier places, by weights that are stored."""
    scores = hidden(window, q @ k.mT, -wf.inf)
    return hidden(window, wf.exp(scores - wf.max(scores, axis=-1, keepdims=True))) @ v


@pytest.mark.parametrize("function", [attention, gradients, weighted])
@pytest.mark.parametrize("length", [64, pytest.param(83, marks=pytest.mark.slow)])
def test_attention_keeps_every_bit(function, length):
    given = operands(*[(2, 2, length, 16)] * 3)
    agree(function, given, SMALL)
    agree(function, [*given[:2], with_special(given[2])], SMALL)
    graph = trace(function, *map(wf.asarray, given))
    products = [k for k in planned(graph, SMALL).kernels if turns(k.body)]
    assert len(products) == (6 if function is gradients else 2)
    for kernel in products:
        slabs = 2 if turns(kernel.body) <= 2 * kernel.notes["blocks"] else -(-length // 8)
        assert share(kernel, slabs) < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("function", [attention, gradients])
@pytest.mark.parametrize("limits", NARROW)
def test_narrow_attention_leaves_out_the_same(monkeypatch, function, limits):
    length = 200 if limits == "groups" else 75
    given = [x.astype(bfloat16) for x in operands(*[(2, length, 24)] * 3)]
    for arrays in (given, [*given[:2], with_special(given[2])]):
        found = on_gpu(function, arrays, NARROW[limits])
        with monkeypatch.context() as patch:
            patch.setattr(blocks_hidden, "WORTH", 1 << 60)
            patch.setattr(blocks_hidden, "mask_of_sums", lambda product: None)
            expected = on_gpu(function, arrays, NARROW[limits])
        for x, y in zip(found, expected, strict=True):
            assert different(x, y) == 0
            assert arrays is not given or np.isfinite(x.astype(np.float32)).all()


def test_rows_read_what_masks_show_of_scores():
    given = operands(*[(64, 16)] * 3)
    _, rows, *_ = planned(trace(attention, *map(wf.asarray, given)), SMALL).kernels
    inside = values_of(rows.body)
    read = [x for x in inside if x.op == "load" and x.data == 0]
    assert rows.buffers[0].mode == "read" and len(read) >= 2
    assert all(x.args[0].op == "select" for x in read)
