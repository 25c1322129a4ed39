"""weft computes with kernels of its own: no vendor's library has to be there."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import sys

for name in ("mkl", "torch", "jax", "jaxlib", "cupy", "tensorflow", "onnxruntime", "numba", "cuda"):
    sys.modules[name] = None  # importing it raises

import numpy as np
import weft as wf

rng = np.random.default_rng(0)
x, w = rng.normal(size=(6, 5)), rng.normal(size=(5, 4))
both = wf.compile(lambda x, w: (wf.sum(wf.exp(x) / 2 - 1, axis=0), x @ w))
total, product = both(wf.tensor(x), wf.tensor(w))
np.testing.assert_allclose(total.numpy(), (np.exp(x) / 2 - 1).sum(0), rtol=1e-12)
np.testing.assert_allclose(product.numpy(), x @ w, rtol=1e-12)
image, kernel = rng.normal(size=(1, 1, 5, 5)), rng.normal(size=(1, 1, 3, 3))
found = wf.conv2d(wf.tensor(image), wf.tensor(kernel)).numpy()[0, 0]
windows = np.lib.stride_tricks.sliding_window_view(image[0, 0], (3, 3))
np.testing.assert_allclose(found, (windows * kernel[0, 0]).sum((2, 3)), rtol=1e-12)
"""


@pytest.mark.promise("S4.44")
def test_arithmetic_reductions_products_and_convolutions_need_no_vendor_library() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
