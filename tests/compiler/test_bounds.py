"""Kernels that check every access: they find what is outside, and nothing in what weft compiles."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler import translate
from weft.compiler.emit_bounds import BOUNDS, LOCALS
from weft.compiler.emit_cpu import emit
from weft.compiler.loops import (
    Assign,
    Buffer,
    Kernel,
    Local,
    Loop,
    Store,
    get,
    integer,
    load,
    variable,
)
from weft.compiler.native import Native
from weft.compiler.prepared import failure_of
from weft.config import settings
from weft.errors import CompilationError
from weft.runtime.cpu.jit import compile_text, host_target, load_object

PROGRAMS = Path(__file__).parent / "checked_programs.py"


@pytest.fixture
def checking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "check_bounds", 1)


def shortened(monkeypatch: pytest.MonkeyPatch, role: str, ends: tuple[int, int]) -> None:
    """Make programs believe that memory of a role is smaller than it is."""
    real = translate.Translator._step

    def step(self: Any, call: Any) -> Any:
        for place in call.memory:
            if place.role == role:
                self.ranges[place] = ends[0], place.kind.size - ends[1]
        return real(self, call)

    monkeypatch.setattr(translate.Translator, "_step", step)


def run(function: Any, *arrays: Any) -> Any:
    return Native(wf.trace(function, *map(wf.tensor, arrays))).run(arrays)


VECTOR = np.arange(1003, dtype=np.float32)
MATRIX = np.ones((13, 13), np.float32)


@pytest.mark.parametrize(
    "function, array",
    [
        (lambda x: x * 2 + 1, VECTOR),
        (lambda x: wf.flip(x), VECTOR),
        (lambda x: x.sum(), VECTOR),
        (lambda x: x @ x, MATRIX),
        (lambda x: wf.cumsum(x, 1).T * 1, MATRIX),
    ],
)
@pytest.mark.parametrize("role, ends", [("input", (1, 0)), ("input", (0, 1)), ("output", (0, 1))])
def test_an_access_outside_is_found(
    checking: None, monkeypatch: pytest.MonkeyPatch, function: Any, array: Any, role: str, ends: Any
) -> None:
    run(function, array)
    shortened(monkeypatch, role, ends)
    with pytest.raises(CompilationError, match="a kernel reaches outside of its buffer"):
        run(function, array)


def test_a_write_outside_does_not_happen(checking: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x, target = wf.tensor(VECTOR), np.full(1003, 7.0, np.float32)
    made = Native(wf.trace(lambda x: x + 1, x))
    shortened(monkeypatch, "output", (0, 3))
    small = Native(wf.trace(lambda x: x + 1, x))
    made._outputs_for = small._outputs_for = lambda inputs: [target]  # type: ignore[method-assign]
    with pytest.raises(CompilationError, match="buffer"):
        small.run([VECTOR])
    assert (target[-3:] == 7.0).all() and target[0] == 1.0
    made.run([VECTOR])
    assert target[-1] == 1003.0


def test_strided_inputs_have_the_range_of_their_strides(checking: None) -> None:
    x = np.arange(40, dtype=np.float32)[::-2]
    trace = wf.trace(lambda x: x * 2, wf.tensor(x))
    made = Native(trace, strides={(trace.inputs[0], 0): (-2,)})
    (got,) = made.run([x])
    np.testing.assert_array_equal(got, x * 2)


def test_checked_kernels_are_kernels_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = wf.trace(lambda x: x * 3 - 1, wf.tensor(VECTOR))
    plain = Native(trace)
    monkeypatch.setattr(settings, "check_bounds", 1)
    checked = Native(trace)
    assert plain.code[0] is not checked.code[0]
    assert plain.code[0].modules != checked.code[0].modules
    np.testing.assert_array_equal(plain.run([VECTOR])[0], checked.run([VECTOR])[0])


def test_an_array_among_the_locals_is_checked() -> None:
    dtype, i = np.dtype(np.float32), variable("i")
    body = (Assign(0, load(0, i, dtype), i), Store(1, i, get(0, dtype, i)))
    buffers = (Buffer("x", dtype), Buffer("y", dtype, "write"))
    loop = Loop(i, integer(0), integer(8), body)
    kernel = Kernel("outside", buffers, (Local("room", dtype, 1, 5),), (loop,))
    target = host_target()
    code = load_object(compile_text(emit([kernel], target, checks=True), target))
    x, y = np.arange(1, 9, dtype=dtype), np.zeros(8, dtype)
    status, ranges = np.zeros(2, np.int64), np.array([0, 8, 0, 8], np.int64)
    table = np.array([status.ctypes.data, x.ctypes.data, y.ctypes.data], np.uint64)
    slots = np.array([1, 2], np.int32)
    kinds = (ctypes.c_void_p,) * 3 + (ctypes.c_int64,) * 2
    call = ctypes.CFUNCTYPE(None, *kinds)(code.address("outside"))
    call(table.ctypes.data, slots.ctypes.data, ranges.ctypes.data, 0, 1)
    assert status.tolist() == [BOUNDS, LOCALS]
    assert y[:5].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_an_error_says_what_was_left() -> None:
    failure = failure_of("f")
    assert "f: a kernel reaches outside of its buffer 2" in str(failure(BOUNDS, 2))
    assert "f: a kernel reaches outside of its local 3" in str(failure(BOUNDS, LOCALS + 3))


def swept(count: int) -> str:
    environment = {**os.environ, "WEFT_CHECK_BOUNDS": "1"}
    done = subprocess.run(
        [sys.executable, str(PROGRAMS), str(count)],
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_programs_drawn_at_random_stay_inside_their_memory() -> None:
    assert "'products': 6" in swept(6)
