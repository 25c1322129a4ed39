"""Native routines as functions of Python's own kind, which are called in no time.

A call through ctypes takes longer than a small kernel. CPython lets a routine be a builtin function
if it has the right arguments; Python's lock is held while it runs, so it should not run long.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

_FASTCALL = 0x80  # arguments come as an array and its length
_definitions: list[_Definition] = []  # CPython refers to them for as long as there are functions

# What makes a Python number of a C one.
NUMBER_OF = int(ctypes.cast(ctypes.pythonapi.PyLong_FromLong, ctypes.c_void_p).value or 0)


_NEW = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


class _Definition(ctypes.Structure):
    """CPython's `PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("routine", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def has_builtins() -> bool:
    """Whether this Python takes native routines as functions, and locks while they run."""
    locks: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return sys.implementation.name == "cpython" and locks()


def function_of(routine: int, bound: Any) -> Callable[..., Any]:
    """The routine at an address, `object(bound, arguments, count)`, as a function of arguments."""
    made = next((each for each in _definitions if each.routine == routine), None)
    if made is None:
        made = _Definition(b"run", routine, _FASTCALL, None)
        _definitions.append(made)
    result: Callable[..., Any] = _NEW(ctypes.addressof(made), bound, None)
    return result
