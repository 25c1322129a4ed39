"""Put the compiler in its place below: it is loaded when a call or a graph first needs it."""

from __future__ import annotations

from weft.core.common.lazy import LazyModule
from weft.core.graph.graph import install_runner
from weft.runtime.cpu.client import install_kernels
from weft.runtime.gpu.client import install_engine

install_kernels(LazyModule("weft.compiler.eager"))
install_engine(LazyModule("weft.compiler.gpu_engine"))
install_runner(LazyModule("weft.compiler.tier"))
