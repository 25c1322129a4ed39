"""Kernels as functions that a GPU has loaded, in its language: each is compiled once for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from weft.compiler.emit_ptx import emit_ptx, gpu_target
from weft.compiler.emit_squares import GROUPED, SQUARED
from weft.compiler.emit_wgsl import emit_wgsl
from weft.compiler.loops import Kernel
from weft.compiler.passes.items import GROUPS, Limits
from weft.compiler.pipeline_gpu import CUDA, OLDER, WEBGPU
from weft.compiler.show import fingerprint
from weft.errors import UnsupportedDTypeError, UnsupportedError
from weft.runtime.cpu.code_cache import key_of
from weft.runtime.gpu.interface import Driver

SHARE = 64  # of a GPU's memory, that a panel has
LARGEST = 1 << 31  # bytes of a panel: more would not make it faster
_loaded: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Language:
    """What kernels are written in.

    `limits` are those of a device; `admit` gives a kernel that can be written for it, or raises
    what it lacks; `key` names code for certain kernels, where a device keeps it.
    """

    limits: Callable[[Any], Limits]
    admit: Callable[[Any, Kernel], Kernel]
    key: Callable[[str, Any], str]
    emit: Callable[[Sequence[Kernel], Any], str]


def language_of(gpu: Driver) -> Language:
    """The language of a GPU's kernels."""
    return _LANGUAGES[gpu.kind]


def functions_of(gpu: Driver, kernels: Sequence[Kernel]) -> list[Any]:
    """What `gpu.prepare` takes for each kernel; those that are new are compiled together."""
    known = _loaded.setdefault(gpu, {})
    keys = [_key(kernel) for kernel in kernels]
    new = {key: kernel for key, kernel in zip(keys, kernels, strict=True) if key not in known}
    if new:
        named = [replace(kernel, name=f"kernel{i}") for i, kernel in enumerate(new.values())]
        language = language_of(gpu)
        key = language.key("\n".join(new), gpu)
        known |= zip(new, gpu.compiled(named, key, language.emit), strict=True)
    return [known[key] for key in keys]


def _with_squares(gpu: Any) -> Limits:
    panel = min(max(gpu.nbytes // SHARE, CUDA.panel), LARGEST)
    if gpu.capability < SQUARED:
        return replace(OLDER, panel=panel)
    groups = GROUPS if gpu.capability == GROUPED else ()
    return replace(CUDA, room=gpu.shared, groups=groups, panel=panel)


def _shaders(gpu: Any) -> Limits:
    return WEBGPU


def _every_kernel(gpu: Driver, kernel: Kernel) -> Kernel:
    return kernel


def _kept_ptx(kernels: str, gpu: Any) -> str:
    return key_of(kernels, gpu_target(gpu.capability))


def _ptx(kernels: Sequence[Kernel], capability: tuple[int, int]) -> str:
    return emit_ptx(kernels, gpu_target(capability))


def _shader(gpu: Any, kernel: Kernel) -> Kernel:
    """The kernel with a note of its text, which is the way to know that it has one."""
    if len(kernel.buffers) > gpu.most_buffers:
        raise UnsupportedError(
            f"webgpu: {kernel.name}: {len(kernel.buffers)} buffers,"
            f" where {gpu.most_buffers} are the most"
        )
    dtypes = {x.dtype for x in kernel.buffers} | {x.dtype for x in kernel.locals}
    if np.dtype(np.float16) in dtypes and "shader-f16" not in gpu.features:
        raise UnsupportedDTypeError(f"webgpu: float16: {gpu.name} has no such type")
    return replace(kernel, notes=kernel.notes | {"shader": emit_wgsl(kernel)})


def _kept_wgsl(kernels: str, gpu: Any) -> str:
    return kernels


def _wgsl(kernels: Sequence[Kernel], _: Any) -> str:
    (kernel,) = kernels
    text: str = kernel.notes["shader"]
    return text


def _key(kernel: Kernel) -> str:
    """Two kernels share it exactly if one function can run for both."""
    shared = "".join(str(int(local.shared)) for local in kernel.locals)
    return f"{fingerprint(kernel)} {shared} {kernel.notes['blocks']} {kernel.notes['threads']}"


_LANGUAGES = {
    "cuda": Language(_with_squares, _every_kernel, _kept_ptx, _ptx),
    "webgpu": Language(_shaders, _shader, _kept_wgsl, _wgsl),
}
