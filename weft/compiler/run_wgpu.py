"""Run traces on a WebGPU device: `compile_for_webgpu(trace)` gives a function of NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.compiler.emit_wgsl import emit_wgsl
from weft.compiler.gpu_program import Block, GpuProgram, plan
from weft.compiler.loops import BOOL
from weft.compiler.pipeline_gpu import WEBGPU
from weft.core.common.types import Array
from weft.core.graph.trace import Trace
from weft.runtime.wgpu.device import webgpu

_WORD = np.dtype(np.uint32)


class WebGpuFunction:
    """A trace on a WebGPU device; its memory there is kept between calls."""

    def __init__(self, trace: Trace) -> None:
        self.program: GpuProgram = plan(trace, WEBGPU)
        self.shaders = [emit_wgsl(kernel) for kernel in self.program.kernels]
        self._device = webgpu()
        self._buffers: dict[Block, Any] = {}
        for block in self.program.memory():
            data = None if block.data is None else _stored(block.data)
            self._buffers[block] = self._device.buffer(block.size * _itemsize(block), data)
        self._launches = []
        for launch, text in zip(self.program.launches, self.shaders, strict=True):
            buffers = [self._buffers[block] for block in launch.memory]
            writes = [buffer.mode != "read" for buffer in launch.kernel.buffers]
            pipeline = self._device.pipeline(text, writes)
            self._launches.append((pipeline, launch.kernel.notes["blocks"], buffers))

    def __call__(self, *arrays: Any) -> tuple[Array, ...]:
        """The outputs for these inputs."""
        for block, array in zip(self.program.inputs, self.program.check(arrays), strict=True):
            self._device.write(self._buffers[block], _stored(array))
        self._device.run(self._launches)
        outputs = []
        for block, kind in zip(self.program.outputs, self.program.trace.output_types, strict=True):
            raw = self._device.read(self._buffers[block], block.size * _itemsize(block))
            if block.dtype == BOOL:
                outputs.append((raw.view(_WORD) != 0).reshape(kind.shape))
            else:
                outputs.append(raw.view(block.dtype).reshape(kind.shape))
        return tuple(outputs)


def _itemsize(block: Block) -> int:
    return _WORD.itemsize if block.dtype == BOOL else block.dtype.itemsize


def _stored(array: Array) -> Array:
    return array.astype(_WORD) if array.dtype == BOOL else array


def compile_for_webgpu(trace: Trace) -> WebGpuFunction:
    """Make a trace ready to run on a WebGPU device; its captured tensors are constants."""
    return WebGpuFunction(trace)
