"""Convolution and pooling kernels: what they compute, to the bit, however they are cut."""

from __future__ import annotations

import re
from itertools import product
from math import prod
from typing import Any

import jax
import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import assert_same, interpreted
from weft.compiler import kernels
from weft.compiler.choice import Choice
from weft.compiler.emit_cpu import emit
from weft.compiler.fuse import Fusion
from weft.compiler.native import Native
from weft.compiler.passes import convolve, convolve_blocks, convolve_window
from weft.compiler.passes.convolve_blocks import Cut
from weft.compiler.passes.convolve_window import Piece
from weft.compiler.scatter import lower
from weft.compiler.steps import HostCall
from weft.compiler.verify import verify
from weft.core.common import dtypes
from weft.ops.base import call
from weft.ops.nn.correlation import conv_op
from weft.runtime.cpu import jit
from weft.testing.ir import run_kernel

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(7)


def params(strides: Any, dilation: Any, low: Any, high: Any) -> dict[str, Any]:
    return {"strides": strides, "dilation": dilation, "low": low, "high": high}


CASES = [
    # image, kernel, strides, dilation, low, high
    ((2, 3, 9), (4, 3, 3), (1,), (1,), (1,), (1,)),
    ((2, 3, 40), (5, 3, 4), (3,), (2,), (2,), (0,)),
    ((3, 1000), (7, 3, 5), (1,), (1,), (2,), (2,)),
    ((2, 5, 8, 9), (6, 5, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    ((2, 5, 8, 9), (6, 5, 3, 2), (2, 1), (1, 2), (0, 2), (1, 0)),
    ((1, 4, 13, 12), (9, 4, 3, 4), (3, 2), (2, 3), (-1, 3), (2, -2)),
    ((2, 3, 7, 7), (4, 3, 7, 7), (2, 2), (1, 1), (3, 3), (3, 3)),
    ((1, 2, 6, 6), (3, 2, 6, 6), (1, 1), (1, 1), (0, 0), (0, 0)),
    ((2, 40, 5, 5), (3, 40, 1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
    ((2, 6, 5, 5), (3, 6, 1, 1), (2, 2), (1, 1), (0, 0), (0, 0)),
    ((2, 4, 2, 7, 8), (4, 3, 2, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    ((2, 6, 1, 7, 8), (6, 1, 1, 3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), (1, 2, 1), (1, 1, 2), (1, 1, 0), (0, 1, 1)),
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
    ((0, 2, 4, 4), (3, 2, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    ((2, 0, 4, 4), (3, 0, 3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    ((2, 2, 0, 4), (3, 2, 3, 3), (1, 1), (1, 1), (2, 1), (2, 1)),
    ((9, 2, 11, 12), (5, 2, 9, 10), (1, 1), (1, 1), (0, 0), (0, 0)),
    ((5, 3, 6, 21, 9), (3, 7, 6, 9, 3), (2, 1), (2, 3), (0, 1), (-1, 0)),
]


def naive(x: Any, k: Any, strides: Any, dilation: Any, low: Any, high: Any) -> Any:
    """A convolution in float64, one point of the window after another."""
    rank = len(strides)
    x, k = np.asarray(x).astype(np.float64), np.asarray(k).astype(np.float64)
    sizes = [n + a + b for n, a, b in zip(x.shape[-rank:], low, high, strict=True)]
    wide = np.zeros((*x.shape[:-rank], *sizes))
    inner, outer = [], []
    for n, a, size in zip(x.shape[-rank:], low, sizes, strict=True):
        first, last = max(a, 0), min(n + a, size)
        inner.append(slice(first, max(last, first)))
        outer.append(slice(first - a, max(last, first) - a))
    wide[(..., *inner)] = x[(..., *outer)]
    window = k.shape[-rank:]
    places = [
        (size - (w - 1) * d - 1) // s + 1
        for size, w, d, s in zip(sizes, window, dilation, strides, strict=True)
    ]
    total: Any = 0.0
    for tap in product(*map(range, window)):
        where = tuple(
            slice(t * d, t * d + (p - 1) * s + 1, s)
            for t, d, p, s in zip(tap, dilation, places, strides, strict=True)
        )
        part = wide[(..., *where)]
        flat = part.reshape((*part.shape[:-rank], prod(places)))
        total = total + k[(..., *tap)] @ flat
    return np.reshape(total, (*total.shape[:-1], *places))


@pytest.fixture(params=["scheduled", "plain"])
def way(request: Any, monkeypatch: Any) -> str:
    """Every convolution by its schedule, or none."""
    worth = 1 if request.param == "scheduled" else 1 << 60
    monkeypatch.setattr(convolve, "WORTH", worth)
    return str(request.param)


def compiled_steps(function: Any, *arrays: Any) -> Native:
    kernels.STORE._made.clear()  # or what was cut otherwise would serve
    return Native(wf.trace(function, *map(wf.tensor, arrays)))


def kernels_of(native: Native) -> list[Any]:
    return [k for c in native.steps for k in c.request.compiled.kernels]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}{c[1]}")
def test_a_convolution_is_the_sum_of_its_products(case, way):
    x, k = (RNG.standard_normal(shape).astype(np.float32) for shape in case[:2])
    options = params(*case[2:])
    native = compiled_steps(lambda x, k: call(conv_op, (x, k), options), x, k)
    for kernel in kernels_of(native):
        verify(kernel)
    (found,) = native.run([x, k])
    np.testing.assert_allclose(found, naive(x, k, *case[2:]), rtol=1e-5, atol=1e-5)
    (alone,) = interpreted(
        wf.trace(lambda x, k: call(conv_op, (x, k), options), *map(wf.tensor, (x, k))), [x, k]
    )
    assert_same([found], [alone], way)


NAMES = ["float32", "float64", "bfloat16", "float16", "int8", "int32", "int64", "uint16"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", [CASES[5], CASES[17]], ids=lambda c: str(c[0]))
def test_bits_do_not_depend_on_threads_or_on_the_way(case, name, monkeypatch):
    dtype = getattr(wf, name)
    x, k = (np.abs(RNG.standard_normal(shape) * 5).astype(dtype) for shape in case[:2])
    options = params(*case[2:])
    results = []
    for worth in (1, 1 << 60):
        monkeypatch.setattr(convolve, "WORTH", worth)
        native = compiled_steps(lambda x, k: call(conv_op, (x, k), options), x, k)
        results += [native.run([x, k], threads)[0] for threads in (1, 2, 4)]
    eager = call(conv_op, (wf.tensor(x), wf.tensor(k)), options).numpy()
    for other in results[1:]:
        assert_same([other], [results[0]])
    assert_same([eager], [results[0]])
    if not dtypes.is_integer(dtype):
        wide = naive(x, k, *case[2:])
        tolerance = {"bfloat16": 2e-2, "float16": 2e-3, "float32": 1e-5}.get(name, 1e-12)
        np.testing.assert_allclose(
            np.asarray(results[0], np.float64), wide, rtol=tolerance, atol=50 * tolerance
        )


def test_a_large_convolution_has_the_bits_of_its_plain_loops(monkeypatch):
    """Several tiles, pieces of channels, panels of features, and edges of all of them."""
    x = RNG.standard_normal((2, 37, 30, 31)).astype(np.float32)
    k = RNG.standard_normal((29, 37, 3, 3)).astype(np.float32)
    monkeypatch.setattr(convolve_blocks, "COLUMNS", 100)
    monkeypatch.setattr(convolve_blocks, "PANEL", 4096)
    monkeypatch.setattr(convolve_blocks, "TALL", 11)

    def function(x: Any, k: Any) -> Any:
        return wf.conv2d(x, k, padding=1, stride=(1, 2))

    native = compiled_steps(function, x, k)
    cut = kernels_of(native)[-1].notes["convolve"]
    assert isinstance(cut, Cut)
    assert cut.channels < 37 and cut.features < 29 and cut.counts[0] < 30
    found = [native.run([x, k], threads) for threads in (1, 2, 4)]
    monkeypatch.setattr(kernels, "is_worth", lambda kernel: False)
    expected = compiled_steps(function, x, k).run([x, k])
    for each in found:
        assert_same(each, expected)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("window", [(3, 3), (2, 2), (4, 9)], ids=str)
def test_gradients_of_kernels_have_the_bits_of_their_plain_loops(monkeypatch, window, small):
    """Rows of a block are several images, one, or a row of their places; panels may be `small`."""
    x = RNG.standard_normal((3, 21, 16 + window[0] - 1, 18 + window[1] - 1)).astype(np.float32)
    ct = RNG.standard_normal((3, 19, 18, 20)).astype(np.float32)
    k = np.zeros((19, 21, *window), np.float32)
    monkeypatch.setattr(convolve_window, "TALL", ())
    monkeypatch.setattr(convolve_window, "ROWS", 40)
    monkeypatch.setattr(convolve_window, "FEATURES", 5)
    monkeypatch.setattr(convolve_window, "DEEP", 50)
    if small:
        monkeypatch.setattr(convolve_window, "PANEL", 512)

    def function(x: Any, k: Any, ct: Any) -> Any:
        return wf.vjp(lambda k: wf.conv2d(x, k, padding=1), k)[1](ct)[0]

    native = compiled_steps(function, x, k, ct)
    cuts = [k.notes.get("convolve") for k in kernels_of(native)]
    (piece,) = [c for c in cuts if isinstance(c, Piece)]
    assert piece.images < 21 and piece.features < 19 and piece.window[0] < 18
    assert piece.window[0] == 1 or piece.window[1] == ct.shape[3]
    found = [native.run([x, k, ct], threads) for threads in (1, 2, 4)]
    monkeypatch.setattr(kernels, "is_worth", lambda kernel: False)
    expected = compiled_steps(function, x, k, ct).run([x, k, ct])
    for each in found:
        assert_same(each, expected)


@pytest.mark.parametrize(("features", "tasks", "images"), [(64, 0, 32), (256, 0, 64), (64, 8, 16)])
def test_tiles_of_gradients_are_tall_if_that_leaves_enough_of_them(features, tasks, images):
    """A tile has the nine places of so many images, of 64."""
    x, k = np.zeros((2, 64, 30, 30), np.float32), np.zeros((features, 64, 3, 3), np.float32)
    ct = np.zeros((2, features, 28, 28), np.float32)
    trace = wf.trace(lambda *given: wf.vjp(wf.conv2d, *given[:2])[1](given[2])[1], x, k, ct)
    fusion = Fusion(trace.nodes, trace.outputs)
    made = [lower(fusion, group, {}) for group in fusion.groups]
    found = [convolve.convolve(each.kernel, 64, 32, Choice(tasks=tasks)) for (each,) in made]
    (piece,) = [kernels[-1].notes["convolve"] for kernels in found if kernels]
    assert isinstance(piece, Piece) and piece.images == images


TINY = [
    ((1, 2, 19), (4, 2, 3), (1,), (1,), (1,), (1,)),
    ((1, 2, 7, 6), (3, 2, 3, 2), (2, 1), (1, 2), (0, 2), (1, 0)),
    ((2, 1, 7, 6), (3, 1, 6, 5), (1, 1), (1, 1), (0, 0), (0, 1)),
    ((2, 1, 4, 19), (3, 1, 3, 17), (1, 1), (1, 1), (0, 0), (0, 1)),
]


@pytest.mark.parametrize("case", TINY, ids=lambda c: str(c[0]))
def test_the_schedule_means_what_the_loops_mean(case):
    """The interpreter of the loop IR runs the scheduled kernels, with all widths of vectors."""
    x, k = (RNG.standard_normal(shape).astype(np.float32) for shape in case[:2])
    options = params(*case[2:])
    expected = compiled_steps(lambda x, k: call(conv_op, (x, k), options), x, k).run([x, k])[0]
    for vector_bytes in (16, 32, 64):
        made = scheduled(x, k, options, vector_bytes)
        buffers = [
            *(a.reshape(-1) for a in _in_order(made[-1], x, k)),
            np.zeros(expected.size, np.float32),
        ]
        if len(made) > 1:
            dtype, count = made[0].notes["partials"]
            buffers.append(np.zeros(count, dtype))
        for kernel in made:
            verify(kernel, scheduled=True)
            buffers = run_kernel(kernel, buffers)
        assert_same([buffers[2].reshape(expected.shape)], [expected], f"{vector_bytes} bytes")


def scheduled(x: Any, k: Any, options: Any, vector_bytes: int) -> tuple[Any, ...]:
    """The kernels of a convolution for vectors of a width."""
    trace = wf.trace(lambda x, k: call(conv_op, (x, k), options), wf.tensor(x), wf.tensor(k))
    fusion = Fusion(trace.nodes, trace.outputs)
    (group,) = fusion.groups
    (lowered,) = lower(fusion, group, {})
    made = convolve.convolve(lowered.kernel, vector_bytes)
    assert made is not None
    return made


def _in_order(kernel: Any, x: Any, k: Any) -> list[Any]:
    """The operands as the kernel's buffers have them: it reads the image first."""
    assert [b.mode for b in kernel.buffers[:3]] == ["read", "read", "write"]
    return [x, k]


@pytest.mark.parametrize(
    ("groups", "stride", "padding", "dilation"),
    [(1, 2, 1, 1), (2, (1, 3), (0, 2), 1), (6, 1, 1, 2), (1, 2, 2, 2)],
)
def test_convolutions_and_their_derivatives_are_jaxs(
    groups, stride, padding, dilation, monkeypatch
):
    monkeypatch.setattr(convolve, "WORTH", 1)
    x = RNG.standard_normal((2, 6, 13, 14)).astype(np.float32)
    k = RNG.standard_normal((12, 6 // groups, 3, 3)).astype(np.float32)
    pair = lambda n: (n, n) if isinstance(n, int) else n  # noqa: E731

    def ours(x: Any, k: Any) -> Any:
        return wf.conv2d(x, k, stride=stride, padding=padding, dilation=dilation, groups=groups)

    def theirs(x: Any, k: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            k,
            pair(stride),
            [(p, p) for p in pair(padding)],
            rhs_dilation=pair(dilation),
            feature_group_count=groups,
            precision="highest",
        )

    expected = theirs(x, k)
    ct = RNG.standard_normal(expected.shape).astype(np.float32)
    dx, dk = (RNG.standard_normal(a.shape).astype(np.float32) for a in (x, k))

    def everything(x: Any, k: Any, dx: Any, dk: Any, ct: Any) -> Any:
        made, back = wf.vjp(ours, x, k)
        return (made, *back(ct), wf.jvp(ours, (x, k), (dx, dk))[1])

    native = compiled_steps(everything, x, k, dx, dk, ct)
    assert not any(isinstance(step, HostCall) for step in native.steps)
    found = native.run([x, k, dx, dk, ct])
    wanted = (expected, *jax.vjp(theirs, x, k)[1](ct), jax.jvp(theirs, (x, k), (dx, dk))[1])
    for mine, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, other, rtol=2e-4, atol=2e-4)
    alone = interpreted(
        wf.trace(everything, *map(wf.tensor, (x, k, dx, dk, ct))), [x, k, dx, dk, ct]
    )
    assert_same(found, alone)


@pytest.mark.parametrize("stride", [1, 2, 3, (2, 5)])
def test_transposed_convolutions_are_jaxs(stride, way):
    x = RNG.standard_normal((2, 4, 7, 6)).astype(np.float32)
    k = RNG.standard_normal((4, 5, 3, 4)).astype(np.float32)
    steps = (stride, stride) if isinstance(stride, int) else stride
    found = wf.compile(lambda x, k: wf.conv_transpose2d(x, k, stride=stride, padding=1))(
        wf.tensor(x), wf.tensor(k)
    )
    expected = jax.lax.conv_general_dilated(
        x,
        k[..., ::-1, ::-1].swapaxes(0, 1),
        (1, 1),
        [(1, 1), (2, 2)],
        lhs_dilation=steps,
        precision="highest",
    )
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_convolutions_map_over_images_and_kernels(way):
    x = RNG.standard_normal((3, 2, 4, 9, 8)).astype(np.float32)
    k = RNG.standard_normal((3, 5, 4, 3, 3)).astype(np.float32)
    single = lambda x, k: wf.conv2d(x, k, padding=1)  # noqa: E731
    both = wf.compile(wf.vmap(single))(wf.tensor(x), wf.tensor(k)).numpy()
    shared = wf.compile(wf.vmap(single, in_axes=(None, 0)))(wf.tensor(x[0]), wf.tensor(k)).numpy()
    for i in range(3):
        assert_same([both[i]], [single(wf.tensor(x[i]), wf.tensor(k[i])).numpy()])
        assert_same([shared[i]], [single(wf.tensor(x[0]), wf.tensor(k[i])).numpy()])


def test_views_are_read_where_they_lie(way):
    whole = RNG.standard_normal((2, 10, 9, 4)).astype(np.float32)
    x = whole[:, ::-1, ::-2].transpose(0, 3, 1, 2)
    k = RNG.standard_normal((3, 4, 3, 3)).astype(np.float32)[::-1, :, ::-1]
    expected = wf.conv2d(wf.tensor(x.copy()), wf.tensor(k.copy()), padding=1).numpy()
    found = wf.compile(
        lambda x: wf.conv2d(
            wf.permute_dims(x[:, ::-1, ::-2], (0, 3, 1, 2)), wf.tensor(k), padding=1
        )
    )(wf.tensor(whole))
    assert_same([found.numpy()], [expected])
    assert_same([wf.conv2d(wf.tensor(x), wf.tensor(k), padding=1).numpy()], [expected])


def test_bias_norm_residual_and_relu_go_with_the_convolution():
    x, y = (RNG.standard_normal((2, 16, 12, 12)).astype(np.float32) for _ in range(2))
    k = RNG.standard_normal((16, 16, 3, 3)).astype(np.float32)
    scale, shift = (RNG.standard_normal((16, 1, 1)).astype(np.float32) for _ in range(2))

    def layer(x: Any, y: Any, k: Any, scale: Any, shift: Any) -> Any:
        return wf.maximum(wf.conv2d(x, k, padding=1) * scale + shift + y, 0.0)

    arrays = [x, y, k, scale, shift]
    native = compiled_steps(layer, *arrays)
    names = [step.name for step in native.steps]  # a host call has none
    assert len(names) == 2, names
    assert all(name.startswith("conv_multiply_add_add") for name in names)
    assert "convolve" in native.steps[1].request.compiled.kernels[1].notes
    alone = interpreted(wf.trace(layer, *map(wf.tensor, arrays)), arrays)
    assert_same(native.run(arrays), alone)


def test_large_plain_calls_run_on_the_kernels(monkeypatch):
    """A single call that is not compiled gives the bits of compiled ones."""
    x = RNG.standard_normal((2, 8, 40, 40)).astype(np.float32)
    k = RNG.standard_normal((8, 8, 3, 3)).astype(np.float32)
    plain = wf.conv2d(wf.tensor(x), wf.tensor(k)).numpy()
    made = wf.compile(lambda x, k: wf.conv2d(x, k))(wf.tensor(x), wf.tensor(k)).numpy()
    assert_same([plain], [made])


def test_complex_convolutions_are_calls_of_python():
    x, k = (RNG.standard_normal(s) + 1j for s in ((1, 2, 5, 5), (2, 2, 3, 3)))
    native = compiled_steps(lambda x, k: wf.conv2d(x, k), x, k)
    assert any(isinstance(step, HostCall) for step in native.steps)
    (found,) = native.run([x, k])
    expected = jax.lax.conv_general_dilated(x, k, (1, 1), "VALID", precision="highest")
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("features", ["+avx,+avx2,+fma", "+avx,+avx2,+fma,+avx512f,+avx512vl"])
def test_sums_are_taken_in_vectors_of_other_processors(features):
    x = RNG.standard_normal((1, 16, 20, 20)).astype(np.float32)
    k = RNG.standard_normal((16, 16, 3, 3)).astype(np.float32)
    target = jit.Target("x86_64-unknown-linux-gnu", "x86-64", features)
    made = scheduled(x, k, params((1, 1), (1, 1), (1, 1), (1, 1)), target.vector_bytes)
    text = emit([made[-1]], target)
    assembly = jit.emit_assembly(text, target.triple, target.cpu, target.features)
    cut, register = made[-1].notes["convolve"], "%zmm" if "512" in features else "%ymm"
    sums = [line for line in assembly.splitlines() if "vfmadd" in line and register in line]
    assert len(sums) >= cut.rows * cut.vectors * 9


def test_few_registers_hold_all_sums_of_a_window():
    """Blocks of few rows: what the vectors of features meet stays, and they come one at a time."""
    x = np.zeros((16, 8, 24, 24), np.float32)
    k = np.zeros((32, 8, 24, 24), np.float32)
    target = jit.Target("x86_64-unknown-linux-gnu", "x86-64", "+avx,+avx2,+fma")
    made = scheduled(x, k, params((1, 1), (1, 1), (1, 1), (1, 1)), target.vector_bytes)
    cut = made[-1].notes["convolve"]
    assert isinstance(cut, Piece) and cut.vectors > cut.rows > 1
    assembly = jit.emit_assembly(
        emit([made[-1]], target), target.triple, target.cpu, target.features
    )
    loops = [block for block in re.split(r"\n\.L\w+:", assembly) if "vfmadd" in block]
    assert loops
    for block in loops:
        inside = block[: block.rindex("vfmadd")]
        assert not re.search(r"vmov\w+\s+%ymm\d+, -?\d*\(%rsp\)", inside)


# -- pools -------------------------------------------------------------------------------------

POOLS = {
    "max 3 by 2": lambda x: wf.max_pool2d(x, 3, 2, 1),
    "max 2": lambda x: wf.max_pool2d(x, 2),
    "max 2 dilated": lambda x: wf.max_pool2d(x, 2, 1, 1, dilation=2),
    "mean 3 by 2": lambda x: wf.avg_pool2d(x, 3, 2, 1),
    "mean 2 of own": lambda x: wf.avg_pool2d(x, 2, 2, 1, count_include_pad=False),
    "mean 5 by 1": lambda x: wf.avg_pool2d(x, 5, 1),
    "sum": lambda x: wf.sum(wf.sliding_windows(x, (3, 2), (2, 3)), axis=(-2, -1)),
}


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@pytest.mark.parametrize("pool", POOLS)
def test_pools_and_their_gradients_are_kernels_with_one_meaning(pool, name):
    function = POOLS[pool]
    x = RNG.standard_normal((2, 3, 11, 12)).astype(getattr(wf, name))
    shape = wf.eval_shape(function, wf.tensor(x)).shape
    ct = RNG.standard_normal(shape).astype(x.dtype)

    def both(x: Any, ct: Any) -> Any:
        made, back = wf.vjp(function, x)
        return (made, *back(ct))

    native = compiled_steps(both, x, ct)
    assert not any(isinstance(step, HostCall) for step in native.steps)
    found = [native.run([x, ct], threads) for threads in (1, 2, 4)]
    alone = interpreted(wf.trace(both, wf.tensor(x), wf.tensor(ct)), [x, ct])
    for each in found:
        assert_same(each, alone)


def test_a_pool_is_one_kernel_with_what_follows():
    x = RNG.standard_normal((2, 3, 16, 16)).astype(np.float32)
    native = compiled_steps(lambda x: wf.tanh(wf.avg_pool2d(x, 2)) + 1.0, x)
    assert len(native.steps) == 1


@pytest.mark.parametrize(
    ("image", "kernel", "groups"),
    [((2, 64, 20, 20), (64, 1, 3, 3), 64), ((1, 8, 20, 20), (1, 8, 3, 3), 1)],
    ids=["depthwise", "one image, one feature"],
)
def test_axes_of_one_keep_the_schedule_of_convolutions(image, kernel, groups):
    x, k = (RNG.standard_normal(shape).astype(np.float32) for shape in (image, kernel))
    native = compiled_steps(lambda x, k: wf.conv2d(x, k, padding=1, groups=groups), x, k)
    assert isinstance(kernels_of(native)[-1].notes["convolve"], Cut)
