"""What every GPU promises is tested on each kind: an NVIDIA GPU, or one played, and WebGPU's."""

from __future__ import annotations

import pytest

from tests.cuda.conftest import gpus  # noqa: F401  (a fixture)
from tests.webgpu.conftest import adapter


@pytest.fixture(params=["cuda", "webgpu"])
def gpu(request, gpus):  # noqa: F811
    """A GPU's driver."""
    if request.param == "cuda":
        yield gpus[0]
    else:
        yield from adapter()


@pytest.fixture
def device(gpu) -> str:
    """The kind of the device whose driver `gpu` is."""
    return gpu.kind
