"""Tests of the WebGPU backend, on the default adapter."""

from __future__ import annotations

import pytest

from weft.core.graph import GRAPH
from weft.errors import BackendError
from weft.runtime.webgpu import driver


@pytest.fixture(scope="package", autouse=True)
def gpu():
    try:
        found = driver.gpu()
    except BackendError as error:
        pytest.skip(str(error))
    yield found
    GRAPH.flush()
