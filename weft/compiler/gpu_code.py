"""Kernels as functions that a GPU has loaded: each is compiled once for a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from weft.compiler.emit_ptx import emit_ptx, gpu_target
from weft.compiler.loops import Kernel
from weft.compiler.show import fingerprint

_loaded: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


def functions_of(gpu: Any, kernels: Sequence[Kernel]) -> list[Any]:
    """What `gpu.prepare` takes for each kernel; those that are new are compiled together."""
    known = _loaded.setdefault(gpu, {})
    keys = [_key(kernel) for kernel in kernels]
    new = {key: kernel for key, kernel in zip(keys, kernels, strict=True) if key not in known}
    if new:
        known |= zip(new, gpu.compiled(list(new.values()), _ptx), strict=True)
    return [known[key] for key in keys]


def _ptx(kernels: Sequence[Kernel], capability: tuple[int, int]) -> str:
    return emit_ptx(kernels, gpu_target(capability))


def _key(kernel: Kernel) -> Any:
    """Two kernels share it exactly if one function can run for both."""
    shared = tuple(local.shared for local in kernel.locals)
    return fingerprint(kernel), shared, kernel.notes["blocks"], kernel.notes["threads"]
