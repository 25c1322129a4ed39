"""Results of compiled calls, many at a time: arrays to write to, and tensors around them.

A tensor is two objects of some ten fields around an array. Python takes longer to make them than a
small kernel takes to run, so native routines do (`handle_text`), where this Python is known.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from weft.core.common.device import Device
from weft.core.common.types import Array, TensorType
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.runtime.cpu import jit
from weft.runtime.cpu.builtin import has_builtins
from weft.runtime.cpu.executor import executor
from weft.runtime.cpu.handle_text import ARRAYS, TENSORS

ArrayMaker: TypeAlias = "Callable[[], list[Array]]"
TensorMaker: TypeAlias = "Callable[..., tuple[Tensor, ...]]"

_WORD = 8
_EMPTY = 184  # the place of `PyArray_Empty` among the functions that NumPy has for C


class _Record(np.ndarray[tuple[int], np.dtype[np.int64]]):
    """What a native routine reads; it keeps alive what it refers to."""

    held: Any


def array_maker(kinds: Sequence[TensorType]) -> ArrayMaker:
    """A function that gives a new array of each kind, with arbitrary contents."""
    if not _is_known():
        return lambda: [np.empty(kind.shape, kind.dtype) for kind in kinds]
    sizes = [np.array(kind.shape, np.int64) for kind in kinds]
    rows = [
        (id(kind.dtype), len(kind.shape), each.ctypes.data)
        for kind, each in zip(kinds, sizes, strict=True)
    ]
    content = {"count": len(kinds), "PyArray_Empty": _numpy_routine(_EMPTY)}
    flat = [word for row in rows for word in row]
    return executor().arrays(_record(ARRAYS, content, flat, (kinds, sizes)))


def tensor_maker(kinds: Sequence[tuple[TensorType, Device]]) -> TensorMaker:
    """A function of as many arrays as there are `kinds`: it gives a tensor for each."""
    samples = [TensorImpl(kind.shape, kind.dtype, device) for kind, device in kinds]
    if not _is_known():
        return lambda *arrays: tuple(
            Tensor(TensorImpl(x.shape, x.dtype, x.device, data))
            for x, data in zip(samples, arrays, strict=True)
        )
    for sample in samples:
        del sample.data  # what differs from run to run
    content = {
        "count": len(samples),
        "Handle": id(Tensor),
        "handle_at": _place_of("_impl", Tensor),
        "Value": id(TensorImpl),
        "data_at": _place_of("data", TensorImpl),
        "end": TensorImpl.__basicsize__,
    }
    return executor().tensors(_record(TENSORS, content, [*map(id, samples)], samples))


def _is_known() -> bool:
    """Whether native routines can make objects of this Python."""
    return has_builtins() and jit.available()


def _record(names: Sequence[str], content: dict[str, int], rest: list[int], held: Any) -> _Record:
    """What a routine reads: values by name, or routines of CPython, then `rest`."""
    first = [content[name] if name in content else _python_routine(name) for name in names]
    record = np.array([*first, *rest], np.int64).view(_Record)
    record.held = held
    return record


@cache
def _place_of(field: str, kind: type) -> int:
    """Where objects of a class keep a field, in bytes from their beginning."""
    sample: Any = object.__new__(kind)
    marker = object()
    setattr(sample, field, marker)
    words = (ctypes.c_int64 * (kind.__basicsize__ // _WORD)).from_address(id(sample))
    return [*words].index(id(marker)) * _WORD


@cache
def _python_routine(name: str) -> int:
    return int(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0)


@cache
def _numpy_routine(place: int) -> int:
    """An entry of the table that NumPy has for code in C; the order is part of its promises."""
    kind = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    address = kind(("PyCapsule_GetPointer", ctypes.pythonapi))
    table: Any = np._core.multiarray._ARRAY_API  # type: ignore[attr-defined]
    return int(ctypes.c_int64.from_address(address(table, None) + place * _WORD).value)
