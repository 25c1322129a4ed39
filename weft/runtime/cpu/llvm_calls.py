"""LLVM in several threads at once: its functions, called past the one lock of llvmlite.

LLVM asks only that a context, its modules and a target machine belong to one thread at a time. The
functions are those of llvmlite's library, with the signatures it has declared. Long calls let go of
Python's lock; short ones keep it, since to ask for it again may take longer than they do. An
llvmlite that is not as expected has no `calls`; then its own classes do the work, one at a time.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from weft.core.common.lazy import LazyModule

_ffi = LazyModule("llvmlite.binding.ffi")
_LONG = {  # functions, and how many arguments each takes
    "ParseAssembly": 3,
    "RunNewModulePassManager": 3,
    "TargetMachineEmitToMemory": 4,
}
_SHORT = {
    "ContextCreate": 0,
    "ContextDispose": 1,
    "CreateNewModulePassManager": 0,
    "CreatePassBuilder": 2,
    "CreatePipelineTuningOptions": 0,
    "DisposeMemoryBuffer": 1,
    "DisposeModule": 1,
    "DisposeNewModulePassManger": 1,
    "DisposePassBuilder": 1,
    "DisposePipelineTuningOptions": 1,
    "GetBufferSize": 1,
    "GetBufferStart": 1,
    "SetCommandLine": 2,
    "VerifyModule": 2,
    "module_AddSROAPass": 1,
}


class Calls:
    """The functions of LLVM that make object code of a module, whichever thread asks."""

    def __init__(self, library: Any) -> None:
        name, handle = library._name, library._handle
        free, kept = ctypes.CDLL(name, handle=handle), ctypes.PyDLL(name, handle=handle)
        self._lock = library._lock._lock  # whose `with` no interrupt can leave locked
        self._call: dict[str, Any] = {}
        for each, count in (_LONG | _SHORT).items():
            known = getattr(library, f"LLVMPY_{each}")
            if len(known.argtypes or ()) != count:
                raise AttributeError(f"{each} takes {len(known.argtypes or ())} arguments")
            call = getattr(free if each in _LONG else kept, f"LLVMPY_{each}")
            call.argtypes, call.restype = known.argtypes, known.restype
            self._call[each] = call
        self._forget = kept.LLVMPY_DisposeString

    def set_option(self, option: str) -> None:
        """Change an option of the whole process, while nobody compiles through llvmlite."""
        with self._lock:
            self._call["SetCommandLine"](b"", option.encode())

    def object_code(self, text: str, machine: Any) -> bytes:
        """The object code of a module, made by a machine that no other thread uses meanwhile."""
        call = self._call
        context = call["ContextCreate"]()
        module = None
        try:
            module = self._told("ParseAssembly", context, text.encode())
            self._told("VerifyModule", module)
            if "alloca" in text:
                self._promote(module, machine)
            buffer = self._told("TargetMachineEmitToMemory", machine, module, 1)
            try:
                size = call["GetBufferSize"](buffer)
                return ctypes.string_at(call["GetBufferStart"](buffer), size)
            finally:
                call["DisposeMemoryBuffer"](buffer)
        finally:
            if module:
                call["DisposeModule"](module)
            call["ContextDispose"](context)

    def _told(self, name: str, *arguments: Any) -> Any:
        """What a function gives whose last argument is a place for a message; an error if any."""
        message = ctypes.c_char_p()
        found = self._call[name](*arguments, ctypes.byref(message))
        said = b"" if message.value is None else message.value
        if message.value is not None:
            self._forget(message)
        if said or not (found or found is False):  # the verifier's False is no pointer to nothing
            error = "parsing error" if name == "ParseAssembly" else "error"
            raise RuntimeError(f"LLVM IR {error}\n{said.decode(errors='replace')}")
        return found

    def _promote(self, module: Any, machine: Any) -> None:
        """Make registers of locals."""
        call = self._call
        options = call["CreatePipelineTuningOptions"]()
        builder = call["CreatePassBuilder"](machine, options)
        passes = call["CreateNewModulePassManager"]()
        try:
            call["module_AddSROAPass"](passes)
            call["RunNewModulePassManager"](passes, module, builder)
        finally:
            call["DisposeNewModulePassManger"](passes)
            call["DisposePassBuilder"](builder)
            call["DisposePipelineTuningOptions"](options)


@functools.cache
def calls() -> Calls | None:
    """LLVM's functions; None where llvmlite does not have each of them as expected."""
    try:
        return Calls(_ffi.lib)
    except AttributeError:
        return None
