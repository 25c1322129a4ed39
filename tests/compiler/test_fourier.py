"""Fourier transforms as kernels: what they compute, how exactly, and the same bits however cut."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.fft

import weft as wf
from tests.compiler.bits import assert_same, interpreted, native
from weft.compiler.emit_cpu import emit
from weft.compiler.emit_ptx import emit_ptx, gpu_target
from weft.compiler.emit_wgsl import emit_wgsl
from weft.compiler.fourier import gpu, passes
from weft.compiler.fourier.gpu import staged
from weft.compiler.fourier.lower import lower_fourier
from weft.compiler.fourier.plan import radices, root_of_unity, roots, stages
from weft.compiler.gpu_program import Launch, plan
from weft.compiler.kernels import KernelStore
from weft.compiler.loops import (
    Assign,
    Kernel,
    Store,
    Value,
    every,
    expressions,
    literal,
    values_in,
)
from weft.compiler.passes.items import Limits
from weft.compiler.pipeline_gpu import CUDA, OLDER, WEBGPU
from weft.compiler.point import kind_of
from weft.compiler.steps import Memory
from weft.compiler.verify import verify
from weft.core.common.device import CPU
from weft.core.common.slots import OPS
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs
from weft.runtime.cpu.jit import chosen_target
from weft.testing.emulated_gpu import use_emulated_gpu
from weft.testing.ir import run_kernel

NORMS = ("backward", "ortho", "forward")
LENGTHS = (1, 2, 3, 6, 8, 12, 13, 16, 60, 77, 243, 1000, 1024)
# (shape, axis): lanes along what is inner, along rows, along both parts of a row; and one lane
PLACES = [((5,), 0), ((3, 8), 1), ((9, 12), 1), ((7, 6, 5), 1), ((2, 60), 1), ((40, 3), 0)]
ULPS = {"float32": 3e-7, "float64": 6e-16}


def drawn(*shape: int, dtype: str = "complex64", seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if "complex" in dtype else x).astype(dtype)


def error(found: Any, wanted: Any) -> float:
    """The root of the mean square, relative to that of what is wanted."""
    if not wanted.size:
        return 0.0
    size = float(np.sqrt(np.mean(np.abs(wanted) ** 2)))
    return float(np.sqrt(np.mean(np.abs(found - wanted) ** 2))) / (size or 1.0)


def calls(axis: int, norm: str, n: int) -> dict[str, Any]:
    """Every transform of a length, as functions of a namespace."""
    keywords: dict[str, Any] = {"axis": axis, "norm": norm}
    return {
        "fft": lambda f, x: f.fft(x, **keywords),
        "ifft": lambda f, x: f.ifft(x, **keywords),
        "rfft": lambda f, x: f.rfft(x, **keywords),
        "irfft": lambda f, x: f.irfft(x, n=n, **keywords),
    }


def operand(name: str, shape: tuple[int, ...], axis: int, real: str) -> Any:
    if name == "rfft":
        return drawn(*shape, dtype=real)
    sizes = list(shape)
    if name == "irfft":
        sizes[axis] = shape[axis] // 2 + 1
    return drawn(*sizes, dtype="complex64" if real == "float32" else "complex128")


# -- what is computed ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [*LENGTHS, 2310, 16384, 32768])
def test_stages_multiply_to_the_length(n):
    found = stages(n)
    assert np.prod(radices(n), dtype=int) == n
    assert [s.before * s.radix * s.count for s in found] == [n] * len(found)


def test_roots_of_unity_are_rounded_once_or_nearly_so():
    with mpmath.workdps(40):
        exact = [complex(mpmath.expjpi(mpmath.mpf(-2 * k) / 1000)) for k in range(1000)]
    assert np.abs(root_of_unity(np.arange(1000), 1000) - exact).max() < 2e-16
    assert (root_of_unity(np.arange(4), 4) == np.array([1, -1j, -1, 1j])).all()
    assert root_of_unity(np.arange(3), 3).real.tolist()[1] == -0.5
    assert roots(1024, np.dtype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("real", ["float32", "float64"])
@pytest.mark.parametrize("n", LENGTHS)
def test_every_transform_is_as_exact_as_that_of_pocketfft(n, real):
    for name, run in calls(-1, NORMS[n % 3], n).items():
        x = operand(name, (3, n), -1, real)
        wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
        found = run(wf.fft, wf.tensor(x)).numpy()
        wanted = run(scipy.fft, wide)
        assert found.shape == wanted.shape and found.dtype == run(scipy.fft, x).dtype
        assert error(found, wanted) <= ULPS[real]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("shape", "axis"), PLACES)
def test_any_axis_of_a_batch(shape, axis, norm):
    for name, run in calls(axis, norm, shape[axis]).items():
        x = operand(name, shape, axis, "float32")
        wanted = run(scipy.fft, x.astype(np.complex128 if x.dtype.kind == "c" else np.float64))
        assert error(run(wf.fft, wf.tensor(x)).numpy(), wanted) <= ULPS["float32"]


def test_several_axes():
    x = drawn(6, 10, 9)
    for axes in ((0, 1, 2), (0, 2), (1,)):
        wanted = scipy.fft.fftn(x.astype(complex), axes=axes, norm="ortho")
        assert error(wf.fft.fftn(wf.tensor(x), axes=axes, norm="ortho").numpy(), wanted) < 3e-7
    y = x.real.copy()
    assert error(wf.fft.rfftn(wf.tensor(y)).numpy(), scipy.fft.rfftn(y.astype(float))) < 3e-7


@pytest.mark.parametrize("n", [40_000, 65_536])
def test_long_rows(n):
    for name, run in calls(-1, "ortho", n).items():
        x = operand(name, (2, n), -1, "float32")
        wanted = run(scipy.fft, x.astype(np.complex128 if x.dtype.kind == "c" else np.float64))
        assert error(run(wf.fft, wf.tensor(x)).numpy(), wanted) <= 4e-7


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_leaves_none_that_is(bad):
    x = drawn(2, 60)
    x[0, 7] = bad
    found = wf.fft.fft(wf.tensor(x)).numpy()
    assert not np.isfinite(found[0]).any() and np.isfinite(found[1]).all()


def test_both_ends_of_a_half_spectrum_are_taken_as_real():
    x = drawn(5)
    y = x.copy()
    y[0], y[-1] = y[0].real, y[-1].real
    assert (wf.fft.irfft(wf.tensor(x)).numpy() == wf.fft.irfft(wf.tensor(y)).numpy()).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_transformed_as_float32(dtype):
    x = wf.tensor(drawn(3, 12, dtype="float32")).astype(dtype)
    for axis in (0, 1):
        wide = wf.fft.rfft(x.astype("float32"), axis=axis).numpy()
        assert (wf.fft.rfft(x, axis=axis).numpy() == wide).all()


# -- how it runs -----------------------------------------------------------------------------------


def test_lengths_of_small_primes_have_kernels_and_others_have_none():
    def kind(name: str, *shape: int, **params: Any) -> str:
        kind = TensorType(shape, np.dtype(np.complex64 if name != "rfft" else np.float32))
        leaf, op = OutputRefs.leaf(None, kind, CPU), OPS[name]
        params |= {"norm": "backward"}
        return kind_of(OutputRefs(op, ((leaf, 0),), params, (op.infer(kind, **params),), CPU))

    assert kind("fft", 4, 2 * 3 * 5 * 7 * 11 * 13, axes=(-1,)) == "fourier"
    assert kind("fft", 17, 8, axes=(-1,)) == "fourier"
    assert kind("ifft", 17, 8, axes=(-2, -1)) == "host"
    assert kind("rfft", 34, axis=-1) == "host"
    assert kind("irfft", 51, axis=-1, size=100) == "fourier"


def test_loops_of_transforms_run_without_the_host():
    x = drawn(4, 24, dtype="float32")

    def turns(x: Any) -> Any:
        step = lambda c, _: (wf.fft.irfft(wf.fft.rfft(c) * 2), None)  # noqa: E731
        return wf.scan(step, x, None, length=5)[0]

    trace = wf.trace(turns, wf.tensor(x))
    program = native(trace)
    assert not program.hosts
    assert_same(program.run((x,), 1), interpreted(trace, (x,)))
    np.testing.assert_allclose(program.run((x,), 1)[0], 32 * x, rtol=1e-5, atol=1e-4)


def test_derivatives_run_without_the_host():
    x = wf.tensor(drawn(5, 12, dtype="float32"))
    loss = lambda x: wf.sum(wf.abs(wf.fft.rfft(x)) ** 2)  # noqa: E731
    each = wf.vmap(wf.grad(loss))
    assert not native(wf.trace(each, x)).hosts
    np.testing.assert_array_equal(wf.compile(each)(x).numpy(), each(x).numpy())


@pytest.mark.parametrize("width", [4, 16, 64])
@pytest.mark.parametrize("n", [8, 48, 250])
def test_bits_depend_neither_on_lanes_nor_on_threads_nor_on_room(n, width, monkeypatch):
    for name, run in calls(-1, "ortho", n).items():
        x = operand(name, (37, n), -1, "float32")
        trace = wf.trace(lambda x, run=run: run(wf.fft, x), wf.tensor(x))
        wanted = run(wf.fft, wf.tensor(x)).numpy()
        for kept in (passes.KEPT, 64):
            monkeypatch.setattr(
                passes, "chosen_target", lambda: SimpleNamespace(vector_bytes=width)
            )
            monkeypatch.setattr(passes, "KEPT", kept)
            program = native(trace)
            monkeypatch.undo()
            for threads in (1, 3):
                assert_same(program.run((x,), threads), (wanted,))


@pytest.mark.parametrize("n", [12, 35])
def test_bits_do_not_depend_on_what_lanes_hold(n, monkeypatch):
    for name, run in calls(1, "backward", n).items():
        x = operand(name, (2, n, 11), 1, "float32")
        trace = wf.trace(lambda x, run=run: run(wf.fft, x), wf.tensor(x))
        for name_of, size in (("HELD", 64), ("FAR", 64)):
            monkeypatch.setattr(passes, name_of, size)
            program = native(trace)
            monkeypatch.undo()
            assert_same(program.run((x,), 2), (run(wf.fft, wf.tensor(x)).numpy(),))


@pytest.mark.parametrize("n", [6, 9, 16])
@pytest.mark.parametrize("run", [passes.transformed, partial(staged, limits=CUDA)])
def test_kernels_mean_the_same_to_the_interpreter_of_loops(n, run):
    for name, call in calls(-1, "backward", n).items():
        x = operand(name, (5, n), -1, "float32")
        found = interpreted_call(OPS[name], x, params_of(name, n), run)
        assert (found == call(wf.fft, wf.tensor(x)).numpy()).all()


@pytest.mark.parametrize("n", [24, 30])
def test_groups_of_stages_mean_the_same_to_the_interpreter_of_loops(n, monkeypatch):
    for name, size in (("ROOM", 128), ("LINE", 16), ("WIDE", 24), ("POINTS", 1)):
        monkeypatch.setattr(gpu, name, size)
    x, run = operand("ifft", (2, n), -1, "float32"), partial(staged, limits=CUDA)
    found = interpreted_call(OPS["ifft"], x, params_of("ifft", n), run)
    assert (found == wf.fft.ifft(wf.tensor(x)).numpy()).all()


def params_of(name: str, n: int) -> dict[str, Any]:
    if name in ("fft", "ifft"):
        return {"axes": (-1,), "norm": "backward"}
    return {"axis": -1, "norm": "backward"} | ({"size": n} if name == "irfft" else {})


def called(op: Any, kind: TensorType, params: dict[str, Any]) -> OutputRefs:
    leaf = OutputRefs.leaf(None, kind, CPU)
    return OutputRefs(op, ((leaf, 0),), params, (op.infer(kind, **params),), CPU)


def interpreted_call(op: Any, x: Any, params: dict[str, Any], run: Any) -> Any:
    """A call whose kernels are walked statement by statement, their last tasks first."""
    node = called(op, TensorType(x.shape, x.dtype), params)
    source, target = Memory(node.inputs[0][0].types[0]), Memory(node.types[0])
    arrays = {source: x.reshape(-1).view(np.uint8), target: np.zeros(target.nbytes, np.uint8)}
    for each in lower_fourier(node, source, target, run):
        verify(each.kernel, scheduled="threads" in each.kernel.notes)
        for m in each.memory:
            start = np.zeros(m.nbytes, np.uint8) if m.data is None else m.data.view(np.uint8)
            arrays.setdefault(m, start)
        pairs = list(zip(each.memory, each.kernel.buffers, strict=True))
        made = run_kernel(each.kernel, [arrays[m].view(b.dtype) for m, b in pairs], backward=True)
        for m, array in zip(each.memory, made, strict=True):
            arrays[m] = array.view(np.uint8)
    return arrays[target].view(node.types[0].dtype).reshape(node.types[0].shape)


@pytest.mark.parametrize("name", ["fft", "rfft"])
def test_parts_and_ends_of_rows_are_read_as_whole_vectors(name):
    kind = TensorType((4, 1024), np.dtype(np.complex64 if name == "fft" else np.float32))
    node = called(OPS[name], kind, params_of(name, 1024))
    (made,) = lower_fourier(node, Memory(kind), Memory(node.types[0]))
    (kernel,) = KernelStore.scheduled(made.kernel)
    lines = emit((kernel,), chosen_target()).splitlines()
    lanes = [x for x in lines if "insertelement" in x and "i32 0" not in x]
    assert not lanes  # a lane is put into a vector only where it is then spread over all


# -- on GPUs ---------------------------------------------------------------------------------------


def launches(name: str, n: int, limits: Limits, axis: int = -1) -> list[Any]:
    """The launches of a transform of several rows, or columns."""
    x = operand(name, (6, n) if axis == -1 else (n, 6), axis, "float32")
    trace = wf.trace(lambda x: calls(axis, "ortho", n)[name](wf.fft, x), wf.tensor(x))
    steps = plan(trace, limits).steps
    assert steps and all(isinstance(step, Launch) for step in steps)
    return [step.kernel for step in steps]


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
@pytest.mark.parametrize(("limits", "n"), [(CUDA, 1024), (WEBGPU, 1024), (CUDA, 45), (WEBGPU, 45)])
def test_a_gpu_runs_one_kernel_for_all_stages_that_fit_and_no_call(name, limits, n):
    kernels = launches(name, n, limits)
    assert len(kernels) == 1 + (2 * (n % 2) if name in ("rfft", "irfft") else 0)
    for kernel in kernels:
        shared = sum(x.length * x.dtype.itemsize for x in kernel.locals if x.shared)
        assert shared <= limits.shared and kernel.notes["threads"] <= limits.threads
        if limits is WEBGPU:
            assert "fn main" in emit_wgsl(kernel)
    if limits is CUDA:
        assert ".entry" in emit_ptx(kernels, gpu_target((9, 0)))


@pytest.mark.parametrize("axis", [-1, 0])
def test_longer_transforms_are_few_kernels(axis):
    assert len(launches("fft", 4096, CUDA, axis)) == (1 if axis == -1 else 2)
    assert len(launches("fft", 65_536, CUDA, axis)) == 2
    assert len(launches("rfft", 32_768, CUDA, axis)) == (3 if axis == -1 else 4)
    assert len(launches("fft", 4096, WEBGPU, axis)) == 2


def test_more_room_and_threads_make_fewer_kernels_with_the_same_bits():
    (kernel,) = launches("fft", 8192, CUDA)
    assert kernel.notes["threads"] == 512 and kernel.notes["dynamic"] > CUDA.shared
    assert ".extern .shared" in emit_ptx([kernel], gpu_target((9, 0)))
    for older in (OLDER, WEBGPU):
        kernels = launches("fft", 8192, older)
        assert len(kernels) == 2 and not any(k.notes.get("dynamic") for k in kernels)
    with use_emulated_gpu():
        assert_same_on_gpu((2, 8192), 1, "float32")


@pytest.mark.parametrize("n", [1024, 65_536])
def test_numbers_are_read_and_written_as_pairs(n):
    text = emit_ptx(launches("fft", n, CUDA), gpu_target((9, 0)))
    for access in ("ld.global", "st.global", "ld.shared", "st.shared"):
        assert f"{access}.v2.b32" in text and f"{access}.b32" not in text


def index_in_threads(x: Value, known: dict[Value, Any]) -> Any:
    """An index in every thread of a block."""
    if x.op == "const":
        return literal(x)
    if x in known:
        return known[x]
    a, b = (index_in_threads(y, known) for y in x.args)
    found = {"add": np.add, "mul": np.multiply, "floordiv": np.floor_divide, "rem": np.remainder}
    return found[x.op](a, b)


def pairs_touched(kernel: Kernel) -> Iterator[tuple[str, Any]]:
    """The pairs of numbers that each statement's threads touch together, and in what memory."""
    (block,) = kernel.body
    for loop in block.body:
        known = {block.variable: 1, loop.variable: np.arange(kernel.notes["threads"])}
        for s in every(loop.body):
            places = [("shared", s.position)] if isinstance(s, Assign) and s.position else []
            places += [("global", s.index)] if isinstance(s, Store) else []
            for x in values_in(*expressions(s)):
                if x.op == "load" and kernel.buffers[x.data].name == "b0":
                    places.append(("global", x.args[0]))
                elif x.op == "get" and x.args:
                    places.append(("shared", x.args[0]))
            for where, index in places:
                yield where, index_in_threads(index, known) // 2


@pytest.mark.parametrize(("n", "axis"), [(1024, -1), (4096, -1), (64, -1), (65_536, -1), (4096, 0)])
def test_neighbouring_threads_touch_lines_of_memory_and_all_banks(n, axis):
    x = np.zeros((64, n) if axis == -1 else (n, 64), np.complex64)
    trace = wf.trace(lambda x: wf.fft.fft(x, axis=axis), wf.tensor(x))
    for step in plan(trace, CUDA).steps:
        assert isinstance(step, Launch)
        for where, pairs in pairs_touched(step.kernel):
            for at in pairs.reshape(-1, 16):  # half a warp: 128 bytes of pairs
                if where == "shared":
                    assert len(set(at % 16)) == 16
                else:
                    assert len(set(at // 8)) <= 2  # lines of 64 bytes


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 17, 33, 49])
def test_a_gpu_gives_the_bits_of_the_cpu_at_every_short_length(first):
    smooth = [n for n in range(first, first + 16) if np.prod(radices(n), dtype=int) == n]
    with use_emulated_gpu():
        for n in smooth:
            shapes = (((1, n), 1), ((3, n), 1), ((n, 3), 0), ((2, n, 5), 1))
            assert_same_on_gpu(*shapes[n % 4], "float32")


LONG = [
    ((3, 1000), 1),
    ((1, 2310), 1),
    ((2310, 3), 0),
    ((300, 64), 1),
    ((3, 4096), 1),
    ((2, 1024, 33), 1),
    ((1, 8192), 1),
    ((3, 30_030), 1),
    ((1, 65_536), 1),
    ((32_768, 3), 0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "axis"), LONG)
def test_a_gpu_gives_the_bits_of_the_cpu_at_longer_lengths(shape, axis):
    with use_emulated_gpu():
        assert_same_on_gpu(shape, axis, "float32")


def assert_same_on_gpu(shape: tuple[int, ...], axis: int, real: str) -> None:
    for name, run in calls(axis, "ortho", shape[axis]).items():
        x = operand(name, shape, axis, real)
        found = run(wf.fft, wf.tensor(x, device="cuda"))
        assert found.device.kind == "cuda"
        assert_same((found.numpy(),), (run(wf.fft, wf.tensor(x)).numpy(),))


@pytest.mark.parametrize("real", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "axis"), [*PLACES, ((1,), 0), ((2, 1024), 1), ((3, 4097), 1)])
def test_a_gpu_gives_the_bits_of_the_cpu(shape, axis, real):
    with use_emulated_gpu():
        assert_same_on_gpu(shape, axis, real)
