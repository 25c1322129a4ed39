"""The CUDA backend: devices `cuda:0 …`, as many as the driver shows."""

from __future__ import annotations

from typing import Any

from weft.core.tensor import dlpack
from weft.core.tensor.layout import Layout
from weft.runtime.cuda import driver
from weft.runtime.gpu.array import LEGACY_STREAM, GpuArray
from weft.runtime.gpu.client import GpuClient, GpuRuntime


class CudaClient(GpuClient):
    """Runs ops on one NVIDIA GPU."""

    def from_dlpack(self, source: Any) -> tuple[GpuArray, Layout]:
        """Another library's elements where they lie on this GPU: see `GpuArray.borrowed`."""
        place = (dlpack.CUDA_KIND, self.gpu.number)
        return GpuArray.borrowed(self.gpu, *dlpack.view_elsewhere(source, place, LEGACY_STREAM))


class CudaRuntime(GpuRuntime):
    """The backend of NVIDIA GPUs; it needs their driver and nothing else."""

    name = "cuda"
    client = CudaClient
    gpus = driver
