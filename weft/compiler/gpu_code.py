"""Kernels as functions that a GPU has loaded: each is compiled once for a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from weft.compiler.emit_ptx import emit_ptx, gpu_target
from weft.compiler.loops import Kernel
from weft.compiler.show import fingerprint
from weft.runtime.cpu.code_cache import key_of

_loaded: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def functions_of(gpu: Any, kernels: Sequence[Kernel]) -> list[Any]:
    """What `gpu.prepare` takes for each kernel; those that are new are compiled together."""
    known = _loaded.setdefault(gpu, {})
    keys = [_key(kernel) for kernel in kernels]
    new = {key: kernel for key, kernel in zip(keys, kernels, strict=True) if key not in known}
    if new:
        named = [replace(kernel, name=f"kernel{i}") for i, kernel in enumerate(new.values())]
        key = key_of("\n".join(new), gpu_target(gpu.capability))
        known |= zip(new, gpu.compiled(named, key, _ptx), strict=True)
    return [known[key] for key in keys]


def _ptx(kernels: Sequence[Kernel], capability: tuple[int, int]) -> str:
    return emit_ptx(kernels, gpu_target(capability))


def _key(kernel: Kernel) -> str:
    """Two kernels share it exactly if one function can run for both."""
    shared = "".join(str(int(local.shared)) for local in kernel.locals)
    return f"{fingerprint(kernel)} {shared} {kernel.notes['blocks']} {kernel.notes['threads']}"
