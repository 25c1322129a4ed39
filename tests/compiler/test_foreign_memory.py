"""Memory that others made, memory that runs out, and sizes that no memory has: errors, no crash."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler import kernels
from weft.config import settings
from weft.errors import OutOfMemoryError
from weft.runtime.cpu import room

DTYPES = ["float32", "float64", "float16", "int8", "int16", "int32", "int64"]


def at_odd_address(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array that begins one byte behind where its elements may."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    found = np.zeros(size + 16, np.uint8)[1 : size + 1].view(dtype).reshape(shape)
    found[...] = np.random.default_rng(0).integers(-4, 5, shape)
    return found


def in_records(shape: tuple[int, ...], dtype: Any) -> Any:
    """A field of records whose strides are no multiples of its elements."""
    found = np.zeros(shape, np.dtype([("before", "u1"), ("here", dtype), ("after", "u2")]))["here"]
    found[...] = np.random.default_rng(0).integers(-4, 5, shape)
    return found


def never_written(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array that must not be written, backwards."""
    found = np.random.default_rng(0).integers(-4, 5, shape).astype(dtype)[::-1]
    found.flags.writeable = False
    return found


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "product": lambda x: x @ x.T,
    "sum": lambda x: (x * 2 + 1).sum(0),
    "cumulative": lambda x: wf.cumsum(x, 1),
    "sort": lambda x: wf.sort(x, axis=-1),
    "rows": lambda x: wf.take(x, wf.tensor([3, 1, 1]), axis=0),
    "loop": lambda x: wf.scan(lambda c, r: (c + r, c * 2), x[0], x)[1],
    "windows": lambda x: wf.conv2d(x[None, None], x[None, None, :3, :2]),
}


@pytest.mark.parametrize("make", [at_odd_address, in_records, never_written])
@pytest.mark.parametrize(
    "name, dtype",
    [
        (name, dtype)
        for name in FUNCTIONS
        for dtype in (DTYPES[:2] if name == "windows" else DTYPES)  # which is of floats
    ],
)
def test_arrays_of_others_are_read_wherever_they_lie(name: str, dtype: str, make: Any) -> None:
    array, function = make((19, 23), dtype), FUNCTIONS[name]
    before = array.copy()
    want = function(wf.tensor(before)).numpy()
    given = wf.asarray(array)
    for got in (function(given), wf.compile(function)(given)):
        np.testing.assert_array_equal(got.numpy(), want)
    np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_dlpack_at_an_odd_address_is_read(dtype: str) -> None:
    array = at_odd_address((19, 23), dtype)
    shared = wf.from_dlpack(array)
    got = wf.compile(lambda x: x @ x.T)(shared).numpy()
    np.testing.assert_array_equal(got, array @ array.T)


ABSURD = [(1 << 40,), (1 << 62,), (2**63 - 1,), (1 << 20, 1 << 20, 1 << 20), (2**63, 2), (0, 2**63)]


@pytest.mark.parametrize("shape", ABSURD)
@pytest.mark.parametrize("make", [wf.zeros, wf.ones, wf.empty])
def test_shapes_that_no_memory_has_are_refused(make: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(wf.errors.WeftError):
        make(shape).numpy()


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x.T,
        lambda x: (x @ x.T).sum(),
        lambda x: wf.exp(x - x.T),
        lambda x: wf.broadcast_to(x, (1 << 21, 1 << 21)) * 2,
        lambda x: wf.sort(x - x.T),
    ],
)
def test_results_that_no_memory_has_are_refused_and_the_next_call_works(function: Any) -> None:
    x = wf.ones((1 << 21, 1))
    for run in (wf.compile(function), function):
        with pytest.raises(OutOfMemoryError):
            wf.realize(run(x))
    assert (wf.ones(3) + 1).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(("raised", "unlike"), [(MemoryError, wf.sinh), (SystemError, wf.cosh)])
def test_memory_that_runs_out_while_code_is_written_is_told(
    raised: type[Exception], unlike: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def emit(*_: Any) -> str:
        raise raised("error return without exception set")

    monkeypatch.setattr(settings, "cache_dir", str(tmp_path))
    x = wf.ones(1000)
    with monkeypatch.context() as inside:
        inside.setattr(kernels, "emit", emit)
        with pytest.raises(OutOfMemoryError, match="memory ran out while"):
            wf.compile(lambda x: wf.cbrt(x) - unlike(x))(x)
    assert wf.compile(lambda x: wf.cbrt(x) - unlike(x))(x).shape == (1000,)


@pytest.mark.parametrize(
    ("constant", "doing"), [("LEAST", "were written"), ("EACH", "1 kernels were compiled")]
)
def test_no_room_for_the_compiler_is_told_before_it_is_needed(
    constant: str, doing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "cache_bytes", 0)
    function, x = getattr(wf, {"LEAST": "sinh", "EACH": "cosh"}[constant]), wf.ones(1000)
    with monkeypatch.context() as inside:
        inside.setattr(room, "_is_limited", lambda: True)
        wf.compile(lambda x: function(x) + wf.cbrt(x))(x)  # there is enough
        inside.setattr(room, constant, {"LEAST": 1 << 60, "EACH": 1 << 48}[constant])
        with pytest.raises(OutOfMemoryError, match=f"memory ran out while .*{doing}"):
            wf.compile(lambda x: function(x) * wf.cbrt(x))(x)
    assert wf.compile(lambda x: function(x) * wf.cbrt(x))(x).shape == (1000,)


_LIMITED = """
import resource, sys
import numpy as np, weft as wf
from weft.errors import OutOfMemoryError

f = wf.compile(lambda x: wf.tanh(x @ x) + 1)
g = wf.compile(wf.grad(lambda x: wf.softmax(x @ x.T, -1).sum()))
h = lambda x: wf.sort(x, axis=-1)
for run in (f, g, h):
    wf.realize(run(wf.ones((64, 64))))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (int(sys.argv[1]) << 20),) * 2)
told = 0
for n in (512, 1024, 3000, 5000, 2048, 6000, 256):
    for run in (f, g, h):
        try:
            wf.realize(run(wf.ones((n, n)) * 1e-3))
        except OutOfMemoryError:
            told += 1
assert told >= 6, told
print("alive", wf.realize(f(wf.ones((64, 64)))).shape)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits are those of Linux")
@pytest.mark.parametrize("megabytes", [96, 56, 4])
def test_memory_that_runs_out_is_an_error_and_the_process_goes_on(megabytes: int) -> None:
    kept = {**os.environ, "WEFT_CACHE_BYTES": "0"}  # else there would be nothing to compile
    command = [sys.executable, "-c", _LIMITED, str(megabytes)]
    done = subprocess.run(command, capture_output=True, text=True, env=kept)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("alive")
