"""What every GPU promises is tested on each kind: an NVIDIA GPU, or one played, and WebGPU's."""

from __future__ import annotations

import pytest

from tests.cuda.conftest import gpus  # noqa: F401  (a fixture)
from weft.core.graph import GRAPH
from weft.errors import BackendError
from weft.runtime.webgpu import driver


@pytest.fixture(params=["cuda", "webgpu"])
def gpu(request, gpus):  # noqa: F811
    """A GPU's driver."""
    if request.param == "cuda":
        yield gpus[0]
        return
    try:
        found = driver.gpu()
    except BackendError as error:
        pytest.skip(str(error))
    yield found
    GRAPH.flush()


@pytest.fixture
def device(gpu) -> str:
    """The kind of the device whose driver `gpu` is."""
    return gpu.kind
