"""What GPU results are held against: the kernels of this processor, bit for bit."""

from __future__ import annotations

import numpy as np

from weft.compiler.native import Native


def on_cpu(trace, arrays) -> tuple:
    return Native(trace).run(arrays)


def different(found, expected) -> int:
    """Elements whose bits differ; any NaN equals any NaN."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    nan = (found != found) & (expected != expected)
    raw = np.dtype(f"u{found.dtype.itemsize}")
    return int(np.sum((found.view(raw) != expected.view(raw)) & ~nan))
