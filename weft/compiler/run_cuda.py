"""Run traces on an NVIDIA GPU: `compile_for_cuda(trace)` gives a function of NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.compiler.emit_ptx import emit_ptx, gpu_target
from weft.compiler.gpu_program import Block, GpuProgram, plan
from weft.compiler.pipeline_gpu import CUDA
from weft.core.common.types import Array
from weft.core.graph.trace import Trace
from weft.runtime.cuda.driver import GpuMemory, gpu


class CudaFunction:
    """A trace on a GPU; its memory there is kept between calls."""

    def __init__(self, trace: Trace, device: int = 0) -> None:
        self.gpu = gpu(device)
        self.program: GpuProgram = plan(trace, CUDA)
        self.ptx = emit_ptx(self.program.kernels, gpu_target(self.gpu.capability))
        module = self.gpu.load(self.ptx)
        self.memory: dict[Block, GpuMemory] = {}
        for block in self.program.memory():
            held = self.gpu.allocate(block.size * block.dtype.itemsize)
            if block.data is not None:
                held.write(block.data)
            self.memory[block] = held
        self._module = module  # keeps the functions
        self._launches = [
            (
                module.function(launch.kernel.name),
                launch.kernel.notes["blocks"],
                launch.kernel.notes["threads"],
                [self.memory[block] for block in launch.memory],
            )
            for launch in self.program.launches
        ]

    def __call__(self, *arrays: Any) -> tuple[Array, ...]:
        """The outputs for these inputs."""
        for block, array in zip(self.program.inputs, self.program.check(arrays), strict=True):
            self.memory[block].write(array)
        self.launch()
        outputs = []
        for block, kind in zip(self.program.outputs, self.program.trace.output_types, strict=True):
            made = np.empty(kind.shape, kind.dtype)
            self.memory[block].read(made)
            outputs.append(made)
        return tuple(outputs)

    def launch(self) -> None:
        """Start all kernels on the inputs that are there."""
        for function, blocks, threads, memory in self._launches:
            self.gpu.launch(function, blocks, threads, memory)


def compile_for_cuda(trace: Trace, device: int = 0) -> CudaFunction:
    """Make a trace ready to run on a GPU; its captured tensors are constants."""
    return CudaFunction(trace, device)
