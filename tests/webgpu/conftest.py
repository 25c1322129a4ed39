"""Tests of the WebGPU backend, on the default adapter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from weft.core.graph import GRAPH
from weft.errors import BackendError
from weft.runtime.webgpu import driver


def adapter() -> Iterator[Any]:
    """The default adapter, for a fixture; what was recorded for it runs before it goes."""
    try:
        found = driver.gpu()
    except BackendError as error:
        pytest.skip(str(error))
    yield found
    GRAPH.flush()


@pytest.fixture(scope="package", autouse=True)
def gpu():
    yield from adapter()
