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


_HEAVY = """
import sys

for name in ("scipy", "mkl", "torch", "jax", "jaxlib", "cupy", "tensorflow", "numba"):
    sys.modules[name] = None  # importing it raises

import numpy as np
import weft as wf


def refused(function):
    def call(*args, **keywords):
        # NumPy has no library for integers; its own loops are as exact as any.
        assert all(np.asarray(x).dtype.kind in "iu" for x in args), "a library was called"
        return function(*args, **keywords)

    return call


for name in ("matmul", "dot", "vdot", "inner", "tensordot", "einsum"):
    setattr(np, name, refused(getattr(np, name)))

rng = np.random.default_rng(0)


def normal(*shape, dtype=np.float32):
    return wf.tensor(rng.integers(-3, 4, shape).astype(dtype))


def loss(ws, x):
    for w in ws:
        x = wf.tanh(x @ w)
    return (x * x).mean()


q = normal(2, 3, 33, 16)
heavy = {
    "float32": (lambda x, y: x @ y, normal(65, 70), normal(70, 33)),
    "float64": (lambda x, y: x @ y, normal(65, 70, dtype="f8"), normal(70, 33, dtype="f8")),
    "bfloat16": (
        lambda x, y: x @ y,
        normal(40, 41).astype(wf.bfloat16),
        normal(41, 42).astype(wf.bfloat16),
    ),
    "int8": (lambda x, y: x @ y, normal(40, 41, dtype="i1"), normal(41, 42, dtype="i1")),
    "batched": (lambda x, y: x @ y, normal(5, 20, 21), normal(5, 21, 22)),
    "vector": (lambda x, y: x @ y, normal(65, 70), normal(70)),
    "einsum": (lambda x, y: wf.einsum("bij,kj->bik", x, y), normal(4, 5, 6), normal(7, 6)),
    "gradient": (lambda x, *ws: wf.grad(loss)(ws, x), normal(9, 16), normal(16, 24), normal(24, 8)),
    "convolution": (wf.conv2d, normal(2, 3, 19, 20), normal(4, 3, 3, 3)),
    "sort": (lambda x: wf.sort(x, axis=-1), normal(30, 41)),
    "attention": (lambda q: wf.softmax(q @ wf.swapaxes(q, -1, -2), -1) @ q, q),
}
for name, (function, *args) in heavy.items():
    plain = wf.realize(function(*args))
    compiled = wf.realize(wf.compile(function)(*args))
    for one, other in zip(wf.tree_leaves(plain), wf.tree_leaves(compiled), strict=True):
        assert np.asarray(one.numpy()).tobytes() == np.asarray(other.numpy()).tobytes(), name
print(*heavy)
"""


@pytest.mark.slow
def test_everything_heavy_runs_on_kernels_of_our_own() -> None:
    done = subprocess.run([sys.executable, "-c", _HEAVY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "attention" in done.stdout


@pytest.mark.promise("S4.44")
def test_arithmetic_reductions_products_and_convolutions_need_no_vendor_library() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
