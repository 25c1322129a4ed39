"""Runs hand-built kernels: emitted, compiled, loaded and called, as a program would."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.compiler.emit_cpu import Cpu
from weft.compiler.emit_llvm import emit_kernel
from weft.compiler.emit_text import Writer
from weft.compiler.loops import (
    BOOL,
    Buffer,
    Kernel,
    Local,
    Loop,
    Statement,
    Store,
    integer,
    load,
    variable,
)
from weft.core.common.dtypes import bfloat16
from weft.runtime.cpu import jit

SIGNATURE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)
i = variable("i")
INTEGERS = [np.dtype(f"{sign}{size}") for size in (1, 2, 4, 8) for sign in "iu"]
NARROW = [np.dtype(np.float16), np.dtype(bfloat16)]
FLOATS = [*NARROW, np.dtype(np.float32), np.dtype(np.float64)]
EVERY = [BOOL, *INTEGERS, *FLOATS]
LANES = (1, 4, 8, 16)


class Compiled:
    """Kernels of one module, callable by name."""

    def __init__(self, kernels: Sequence[Kernel], native: frozenset[str] | None = None) -> None:
        self.code = jit.compile_text(text_of(kernels, native), jit.host_target())
        self._loaded = jit.load_object(self.code)
        self._functions = {k.name: SIGNATURE(self._loaded.address(k.name)) for k in kernels}

    def __call__(
        self, name: str, arrays: Sequence[Any], parameters: Sequence[int] = (), end: int = 1
    ) -> None:
        status = np.zeros(2, np.int64)
        pointers = [status.ctypes.data, *(a.ctypes.data for a in arrays)]
        table = np.array(pointers, np.uint64)
        slots = np.arange(1, len(pointers), dtype=np.int32)
        given = np.array([*parameters, 0], np.int64)
        self._functions[name](table.ctypes.data, slots.ctypes.data, given.ctypes.data, 0, end)


def text_of(kernels: Sequence[Kernel], native: frozenset[str] | None) -> str:
    """A module for this processor, or for one like it that has only the `native` instructions."""
    dialect, writer = Cpu(jit.host_target()), Writer()
    dialect.native = dialect.native if native is None else native
    for kernel in kernels:
        emit_kernel(kernel, dialect, writer)
    return writer.text()


def run(
    kernel: Kernel,
    *arrays: Any,
    parameters: Sequence[int] = (),
    end: int = 1,
    native: frozenset[str] | None = None,
) -> None:
    """Compile one kernel and call it on arrays, which it may write."""
    Compiled([kernel], native)(kernel.name, arrays, parameters, end)


def kernel_of(
    dtypes: Sequence[Any],
    body: Sequence[Statement],
    locals: Sequence[Local] = (),
    name: str = "kernel",
    parameters: int = 0,
) -> Kernel:
    """A kernel whose buffers may all be read and written."""
    buffers = tuple(Buffer(f"b{k}", np.dtype(d), "update") for k, d in enumerate(dtypes))
    return Kernel(name, buffers, tuple(locals), tuple(body), parameters)


def elementwise(value: Any, dtypes: Sequence[Any], size: int, lanes: int, name: str) -> Kernel:
    """out[i] = value(i) for whole vectors, then for what is left; the result is buffer 0."""
    whole = size - size % lanes
    loops = [Loop(i, integer(0), integer(whole), (Store(0, i, value),), "vector", lanes)]
    if whole < size:
        loops.append(Loop(i, integer(whole), integer(size), (Store(0, i, value),)))
    return kernel_of([value.dtype, *dtypes], loops, name=name)


def operands(*dtypes: Any) -> list[Any]:
    """Elements i of the buffers after the first."""
    return [load(k + 1, i, np.dtype(d)) for k, d in enumerate(dtypes)]


def same_bits(a, b):
    """Equal bit for bit; any NaN is as good as another."""
    if a.dtype.kind in "biu":
        return np.array_equal(a, b)
    width = np.dtype(f"u{a.dtype.itemsize}")
    nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    return bool(np.all(nan | (a.view(width) == b.view(width))))


def samples(dtype):
    """Numbers at which instructions go wrong."""
    if dtype == BOOL:
        return np.array([False, True])
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        numbers = [0, 1, 2, 3, 7, 8, 31, 63, 100, limits.max, limits.max - 1, limits.min]
        if dtype.kind == "i":
            numbers += [-1, -2, -3, -7, limits.min + 1]
        return np.array(numbers, dtype)
    numbers = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 0.3, -0.7, 3.0, -7.0]
    numbers += [
        1e-3,
        1e3,
        123456.7,
        np.inf,
        -np.inf,
        np.nan,
        8388609.0,
        -8388607.5,
        4503599627370497,
    ]
    with np.errstate(over="ignore"):
        made = np.array(numbers).astype(dtype)
    bits = np.array([1, 2, 3], f"u{dtype.itemsize}")  # denormals
    largest = np.array([0x7F7F if dtype == bfloat16 else 0x7BFF], np.uint16)
    extremes = (
        largest.view(dtype) if dtype.itemsize == 2 else np.array([np.finfo(dtype).max], dtype)
    )
    return np.concatenate([made, bits.view(dtype), extremes, -extremes])


def pairs(dtype):
    x = samples(dtype)
    rows, columns = np.meshgrid(np.arange(len(x)), np.arange(len(x)))
    return x[rows.ravel()], x[columns.ravel()]


def in_pieces(statements, size, lanes):
    """The statements for every i < size: whole vectors, then what is left."""
    whole = size - size % lanes
    rest = [Loop(i, integer(whole), integer(size), statements)] if whole < size else []
    return [Loop(i, integer(0), integer(whole), statements, "vector", lanes), *rest]
