"""Results larger than caches are written past them, line by line; the bits are the same."""

import platform
import re
from dataclasses import replace

import numpy as np
import pytest

import weft as wf
from tests.compiler.native_kernels import Compiled, elementwise, operands
from weft.compiler import streams
from weft.compiler.build import Builder
from weft.compiler.emit_cpu import emit, native_to
from weft.compiler.kernels import STORE
from weft.compiler.steps import Memory
from weft.compiler.verify import verify
from weft.config import settings
from weft.core.common.types import TensorType
from weft.runtime.cpu.jit import Target, chosen_target, emit_assembly, using_target

FLOAT = np.dtype(np.float32)
TRIPLE = "x86_64-unknown-linux-gnu"
WIDE = Target(TRIPLE, "x86-64-v4", "+avx,+avx2,+avx512f,+avx512dq,+avx512vl,+fma")
OLD = Target(TRIPLE, "x86-64", "")
builder = Builder()


def doubled(mode="stream", lanes=16, size=4096, dtype=FLOAT):
    """A kernel that writes twice a number."""
    (x,) = operands(dtype)
    made = elementwise(builder.add(x, x), [dtype], size, lanes, "kernel")
    return with_mode(made, mode)


def with_mode(kernel, mode):
    """The kernel, with its first buffer in another mode and the others read."""
    modes = [mode, *("read" for _ in kernel.buffers[1:])]
    buffers = tuple(replace(b, mode=m) for b, m in zip(kernel.buffers, modes, strict=True))
    return replace(kernel, buffers=buffers)


def past(kernel, target=WIDE, checks=False):
    """How many instructions of a kernel write past caches, and whether a fence follows."""
    text = emit([kernel], target, checks)
    assembly = emit_assembly(text, target.triple, target.cpu, target.features)
    return len(re.findall(r"\bv?movnt", assembly)), "sfence" in assembly


@pytest.mark.parametrize(("lanes", "stores"), [(16, 1), (32, 2), (64, 4)])
def test_whole_lines_of_a_stream_go_past_caches_and_are_fenced(lanes, stores):
    assert past(doubled(lanes=lanes)) == (stores, True)
    assert past(doubled("write", lanes)) == (0, False)


def test_parts_of_lines_do_not():
    assert past(doubled(lanes=8))[0] == 0
    assert past(doubled(lanes=16, dtype=np.dtype(np.int16)))[0] == 0
    assert past(doubled(lanes=16, size=4099))[0] == 1  # the last three one by one


def test_nothing_does_on_processors_without_wide_vectors_or_if_accesses_are_checked():
    assert past(doubled(), OLD) == (0, False)
    assert past(doubled(), checks=True) == (0, False)


def test_a_stream_is_only_written():
    kernel = doubled()
    verify(kernel)
    with pytest.raises(AssertionError, match="loaded, but only written"):
        verify(replace(kernel, buffers=(kernel.buffers[1], kernel.buffers[0])))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="there are no such stores here")
@pytest.mark.parametrize("shift", [0, 1, 8, 16])
def test_memory_may_begin_anywhere(shift):
    size = 4096 + 5
    x = np.arange(size, dtype=FLOAT)
    room = np.zeros(size + 64, FLOAT)
    first = -(room.ctypes.data // 4) % 16 + shift
    Compiled([doubled(lanes=32, size=size)])("kernel", [room[first : first + size], x])
    assert np.array_equal(room[first : first + size], 2 * x)
    assert not room[:first].any()
    assert not room[first + size :].any()


def test_large_results_are_streams_but_nothing_else():
    kernel = doubled("write")
    large, small = TensorType((streams.TOUCHED // 8,), FLOAT), TensorType((100,), FLOAT)
    vast = TensorType((streams.TOUCHED,), FLOAT)
    with using_target(WIDE):
        for given, result, role, found in (
            (large, large, "output", {0}),
            (small, large, "output", set()),  # it is near
            (vast, small, "output", set()),
            (large, large, "temporary", set()),
        ):
            places = [Memory(result, role), Memory(given, "input")]
            assert streams.large_results(kernel, places) == found
        places = [Memory(large, "output"), Memory(large, "input")]
        assert not streams.large_results(with_mode(kernel, "update"), places)
    with using_target(OLD):
        assert not streams.large_results(kernel, places)
    made = streams.with_streams(kernel, frozenset({0}))
    assert [b.mode for b in made.buffers] == ["stream", "read"]
    assert streams.with_streams(kernel, frozenset()) is kernel


PROGRAMS = {
    "map": lambda x: wf.exp(x) * 2,
    "two": lambda x: (x + 1, wf.sum(x, 0), x * x),
    "softmax": lambda x: wf.softmax(x),
    "transpose": lambda x: wf.transpose(x) + 1,
    "product": lambda x: x @ wf.transpose(x),
    "narrow": lambda x: x[:, :17] * 2,
    "bool": lambda x: x > 0,
    "sum": lambda x: wf.cumsum(x, 1),
    "sort": lambda x: wf.sort(x),
    "gather": lambda x: wf.take(x, wf.arange(200) % 7, axis=0),
    "random": lambda x: wf.random.normal(wf.random.key(1), (128, 160)) + x[0, 0],
    "double": lambda x: x.astype(wf.float64) / 3,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_the_bits_they_gave(monkeypatch, name):
    x = wf.tensor(np.random.default_rng(3).standard_normal((96, 160)).astype(FLOAT))
    made = PROGRAMS[name]
    monkeypatch.setattr(settings, "cache_bytes", 0)  # else it would be the program that is there
    plain = wf.tree_leaves(wf.compile(lambda x: made(x))(x))
    monkeypatch.setattr(streams, "LARGE", 1 << 10)
    monkeypatch.setattr(streams, "TOUCHED", 1 << 10)
    streamed = wf.compile(lambda x: made(x))
    for _ in range(2):
        for one, other in zip(plain, wf.tree_leaves(streamed(x)), strict=True):
            assert one.host().tobytes() == other.host().tobytes()
    if "stream" in native_to(chosen_target()) and name in ("map", "softmax", "transpose"):
        forms = [key for made in STORE._made.values() for key in made.kernels]
        assert any(b.mode == "stream" for kernel in forms for b in kernel.buffers)
