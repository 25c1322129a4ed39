"""What tests of statistics beside JAX share: samples, comparisons, gradients."""

from __future__ import annotations

import jax
import numpy as np

from weft.core.common import dtypes


def close(got, want, tolerance=1e-9):
    found = np.asarray(got.numpy())
    found = found.astype(np.float32) if dtypes.is_narrow(found.dtype) else found
    np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance)
    assert found.shape == np.shape(want)


def slope(function):
    return jax.jit(jax.grad(function))


def drawn(rng, dtype, shape=(2, 3, 4)):
    if dtypes.is_complex(dtype):
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    return rng.integers(0, 3, shape).astype(np.float32).astype(dtype)
