"""WGSL: golden files, refusals, and the bits of the CPU on whatever adapter is here."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.compiler.gpu_results import different, on_cpu
from tools import accuracy, golden
from weft.compiler.emit_wgsl import emit_wgsl
from weft.compiler.gpu_steps import Launch
from weft.compiler.loops import Buffer, Kernel, Loop, Store, integer, load, value, variable
from weft.compiler.pipeline_gpu import WEBGPU, schedule_gpu
from weft.core.common.slots import OPS
from weft.core.tensor.tracing import trace
from weft.errors import BackendError, UnsupportedDTypeError, UnsupportedError
from weft.runtime.registry import client
from weft.runtime.webgpu import driver
from weft.testing.gpu_programs import PROGRAMS, planned

FUNCTIONS = [name for name, oracle in accuracy.ORACLES.items() if oracle.operands == 1]
WIDE = ("counts",)  # sums of int32 are int64
FUSED = ("chain", "chain_tail", "gelu", "softmax", "softmax_odd")  # functions use `fma`
HERE = [name for name in PROGRAMS if name not in WIDE]


def missing() -> str:
    """Why no shader can run here; empty where one can."""
    try:
        driver.gpu()
    except BackendError as error:
        return str(error)
    return ""


runs = pytest.mark.skipif(bool(missing()), reason=missing() or "an adapter is here")


def on_webgpu(made, arrays) -> list:
    """The results of a trace, all of which shaders compute."""
    ready = client("webgpu").executable(made)
    assert all(isinstance(step, Launch) for step in ready.program.steps)
    return [result.to_host() for result in ready.run(arrays)]


def shaders(function, *arrays) -> list[str]:
    program = planned(trace(function, *map(wf.asarray, arrays)), WEBGPU)
    return [emit_wgsl(kernel) for kernel in program.kernels]


def test_shaders_are_what_the_golden_files_say():
    lines = golden.differences("wgsl")
    assert not lines, "\n".join([*lines[:40], "hint: python tools/golden.py --update wgsl"])


@pytest.mark.parametrize("name", ["int64", "float64", "bfloat16", "int8", "uint16"])
def test_dtypes_that_shaders_lack_are_refused_by_name(name):
    x = wf.zeros((8,), dtype=getattr(wf, name))
    program = planned(trace(lambda x: x + x, x), WEBGPU)
    with pytest.raises(UnsupportedDTypeError, match=f"webgpu: {name}: shaders have no such type"):
        emit_wgsl(program.kernels[0])


@pytest.mark.parametrize("name", WIDE)
def test_programs_with_int64_results_are_refused(name):
    program = planned(PROGRAMS[name].trace(), WEBGPU)
    with pytest.raises(UnsupportedDTypeError, match="webgpu: int64"):
        emit_wgsl(program.kernels[0])


def test_int64_inside_a_kernel_is_refused_too():
    x = np.ones(8, np.int32)
    with pytest.raises(UnsupportedDTypeError, match="webgpu: int64"):
        shaders(lambda x: wf.astype(wf.astype(x, wf.int64) * 5, wf.int32), x)


POSITIONS = {
    "clipped": lambda x, i: wf.take(x, i, mode="clip"),
    "a little added": lambda x, i: wf.take(x, i + 5, mode="clip"),
    "compared": lambda x, i: wf.where(i == 3, x, 0.0),
    "made": lambda x, i: wf.argmax(x),
    "counted": lambda x, i: wf.arange(3, 900, 4),
}
OTHERS = {
    "wrapped": lambda x, i: wf.take(x, i, mode="wrap"),
    "doubled": lambda x, i: wf.take(x, i * 2, mode="clip"),
    "too much added": lambda x, i: wf.take(x, i + (1 << 30), mode="clip"),
    "added": lambda x, i: wf.take(x, i + i[::-1], mode="clip"),
    "compared with another": lambda x, i: wf.where(i == i[::-1], x, 0.0),
    "compared with much": lambda x, i: wf.where(i < 1 << 30, x, 0.0),
    "copied": lambda x, i: i[::-1],
    "cast": lambda x, i: wf.astype(i, wf.float32),
    "summed": lambda x, i: wf.sum(i),
    "too large": lambda x, i: wf.arange(0, 1 << 40, 1 << 30),
    "grown": lambda x, i: wf.sum(wf.arange(100_000)),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_of_64_bits_are_held_in_32(name):
    texts = shaders(POSITIONS[name], np.ones(8, np.float32), np.ones(8, np.int64))
    assert any("vec2<i32>" in text for text in texts)


@pytest.mark.parametrize("name", OTHERS)
def test_other_int64_is_refused(name):
    with pytest.raises(
        (UnsupportedDTypeError, UnsupportedError), match=r"webgpu: .*(int64|32 bits)"
    ):
        shaders(OTHERS[name], np.ones(8, np.float32), np.ones(8, np.int64))


def test_an_exact_remainder_of_floats_is_refused():
    i, dtype = variable("i"), np.dtype(np.float32)
    x = value("rem", (load(1, i, dtype), load(1, i, dtype)), dtype)
    buffers = (Buffer("out", dtype, "write"), Buffer("x", dtype))
    kernel = Kernel("rem", buffers, (), (Loop(i, integer(0), integer(8), (Store(0, i, x),)),))
    with pytest.raises(UnsupportedError, match="webgpu: rem: no exact instruction for float32"):
        emit_wgsl(schedule_gpu(kernel, WEBGPU)[0])


def test_half_floats_are_enabled():
    (text,) = shaders(lambda x: x + x, np.ones(8, np.float16))
    assert text.startswith("enable f16;") and "array<f16>" in text


def test_bools_are_words_in_memory():
    (text,) = shaders(lambda x, y: x & (y > 0), np.ones(8, bool), np.ones(8, np.float32))
    assert text.count(": array<u32>") == 2 and "= u32(" in text


@runs
@pytest.mark.parametrize("name", HERE)
def test_a_shader_gives_the_bits_of_the_cpu_where_nothing_is_fused(name):
    program = PROGRAMS[name]
    if program.dtype == np.float16 and "shader-f16" not in driver.gpu().features:
        pytest.skip("this adapter has no float16")
    arrays, made = program.arrays(special=name != "matmul"), program.trace()
    for found, expected in zip(on_webgpu(made, arrays), on_cpu(made, arrays), strict=True):
        if name == "matmul":  # an adapter may round `fma` twice
            scale = np.abs(arrays[0]) @ np.abs(arrays[1])
            assert np.all(np.abs(found - expected) <= 2**-22 * scale)
        elif name in FUSED:
            np.testing.assert_allclose(found, expected, rtol=2**-20, atol=2**-20)
        else:
            assert different(found, expected) == 0


@runs
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_as_accurate_as_promised(name):
    # Not the bits of the CPU: an adapter may round `fma` twice.
    x = accuracy.samples(np.dtype(np.float32), 2000, np.random.default_rng(1))
    x = x[np.isfinite(x)] if name == "lgamma" else x
    function = getattr(wf, name, None) or OPS[name]
    found = on_webgpu(trace(function, wf.asarray(x)), [x])[0]
    with np.errstate(all="ignore"):
        errors = accuracy.narrow_errors(name, x.dtype, [x], found)
    worst = int(np.argmax(errors))
    assert errors[worst] <= accuracy.tolerance(name, x.dtype), (x[worst], found[worst])


@runs
def test_bools_and_integers_go_there_and_back():
    rng = np.random.default_rng(2)
    x, y = rng.integers(-9, 9, 300).astype(np.int32), rng.random(300) < 0.5

    def function(x, y):
        return (x // 4 > -2) & y, wf.where(y, x << 3, x % 7)

    made = trace(function, wf.asarray(x), wf.asarray(y))
    found = on_webgpu(made, [x, y])
    np.testing.assert_array_equal(found[0], (x // 4 > -2) & y)
    np.testing.assert_array_equal(found[1], np.where(y, x << 3, x % 7))
