"""The devices of these tests: GPUs that are here, or else two that the processor plays."""

from __future__ import annotations

import pytest

from weft.core.graph import GRAPH
from weft.runtime.cuda import driver
from weft.testing.emulated_gpu import use_emulated_gpu


@pytest.fixture(scope="module", autouse=True)
def gpus():
    if driver.is_available():
        yield [driver.gpu(number) for number in range(driver.device_count())]
        return
    with use_emulated_gpu(2) as found:
        yield found
        GRAPH.flush()


@pytest.fixture
def gpu(gpus):
    return gpus[0]
