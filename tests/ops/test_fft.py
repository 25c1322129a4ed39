"""Fourier ops against pocketfft and the definition, and their derivatives against JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.core.common.slots import OPS
from weft.core.common.types import TensorType
from weft.ops.base import call

NORMS = ["backward", "ortho", "forward"]


def drawn(*shape, kind="c", seed=0):
    rng = np.random.default_rng(seed)
    real = rng.uniform(-1, 1, shape)
    return real + 1j * rng.uniform(-1, 1, shape) if kind == "c" else real


def close(a, b, tolerance=1e-10):
    found = a.numpy() if isinstance(a, wf.Tensor) else np.asarray(a)
    np.testing.assert_allclose(found, np.asarray(b), rtol=tolerance, atol=tolerance)


@given(n=st.integers(1, 40))
def test_every_length_is_the_sum_of_the_definition(n):
    x = drawn(n)
    k = np.arange(n)
    waves = np.exp(-2j * np.pi * np.outer(k, k) / n)
    close(OPS["fft"](x, axes=(-1,), norm="backward"), waves @ x)
    close(OPS["ifft"](x, axes=(-1,), norm="forward"), waves.conj() @ x)
    close(OPS["rfft"](x.real, axis=-1, norm="backward"), (waves @ x.real)[: n // 2 + 1])


@pytest.mark.parametrize("n", [97, 101, 1009])
def test_large_primes_come_back(n):
    x = drawn(2, n)
    spectrum = OPS["fft"](x, axes=(-1,), norm="ortho")
    close(OPS["ifft"](spectrum, axes=(-1,), norm="ortho"), x)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_half_spectra_are_complex_of_the_same_width(dtype):
    kind = TensorType((6,), np.dtype(dtype))
    found = OPS["rfft"].infer(kind, axis=-1, norm="backward")
    assert found.shape == (4,)
    assert found.dtype == (np.complex128 if dtype == np.float64 else np.complex64)
    x = np.arange(6, dtype=dtype)
    close(OPS["rfft"](x, axis=-1, norm="backward"), np.fft.rfft(x.astype(np.float64)), 1e-5)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_precision_is_kept(dtype):
    x = drawn(3, 8).astype(dtype)
    for name in ("fft", "ifft"):
        assert OPS[name](x, axes=(-1,), norm="backward").dtype == dtype


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4)])
def test_empty_batches_are_transformed_to_empty_batches(shape):
    x = drawn(*shape)
    assert OPS["fft"](x, axes=(-1,), norm="backward").shape == shape
    assert OPS["rfft"](x.real, axis=-1, norm="backward").shape == (*shape[:-1], 3)
    assert OPS["irfft"](x, axis=-1, size=6, norm="backward").shape == (*shape[:-1], 6)


def test_negative_strides_are_read_right():
    x = drawn(4, 6)[::-1, ::-2]
    close(OPS["fft"](x, axes=(-1,), norm="backward"), np.fft.fft(x))


CASES = (
    [
        pytest.param(
            lambda x, norm=norm: wf.fft.fftn(x, axes=(0, 2), norm=norm),
            lambda x, norm=norm: jnp.fft.fftn(x, axes=(0, 2), norm=norm),
            drawn(3, 2, 4),
            id=f"fftn-{norm}",
        )
        for norm in NORMS
    ]
    + [
        pytest.param(
            lambda x, n=n: wf.fft.rfft(x, n=n, norm="ortho"),
            lambda x, n=n: jnp.fft.rfft(x, n=n, norm="ortho"),
            drawn(2, 6, kind="f"),
            id=f"rfft-{n}",
        )
        for n in (None, 5, 9)
    ]
    + [
        pytest.param(
            lambda x, n=n: wf.fft.irfft(x, n=n),
            lambda x, n=n: jnp.fft.irfft(x, n=n),
            drawn(2, 4),
            id=f"irfft-{n}",
        )
        for n in (None, 5, 9)
    ]
    + [
        pytest.param(wf.fft.ifft, jnp.fft.ifft, drawn(2, 5), id="ifft"),
        pytest.param(wf.fft.fft, jnp.fft.fft, drawn(2, 5, kind="f"), id="fft-of-real"),
        pytest.param(wf.fft.hfft, jnp.fft.hfft, drawn(2, 4), id="hfft"),
        pytest.param(wf.fft.ihfft, jnp.fft.ihfft, drawn(2, 6, kind="f"), id="ihfft"),
        pytest.param(wf.fft.rfftn, jnp.fft.rfftn, drawn(3, 4, kind="f"), id="rfftn"),
        pytest.param(wf.fft.irfftn, jnp.fft.irfftn, drawn(3, 4), id="irfftn"),
    ]
)


@pytest.mark.parametrize(("ours", "theirs", "x"), CASES)
@pytest.mark.slow
def test_derivatives_are_those_of_jax(ours, theirs, x):
    with jax.enable_x64(True):
        value, pullback = jax.vjp(theirs, jnp.asarray(x))
        ct = np.sin(1 + np.arange(value.size)).reshape(value.shape)
        ct = (ct * (1 + 0.5j) if np.iscomplexobj(value) else ct).astype(value.dtype)
        (pulled,) = pullback(jnp.asarray(ct))
        value, pulled = np.asarray(value), np.asarray(pulled)
    found, pull = wf.vjp(ours, x)
    close(found, value)
    close(pull(ct)[0], pulled)
    _, pushed = wf.jvp(ours, (x,), (np.cos(x),))
    close(pushed, ours(np.cos(x)))


def test_transforms_map_and_differentiate_twice():
    x = drawn(3, 5, kind="f")

    def energy(row):
        return wf.sum(wf.abs(wf.fft.rfft(row)) ** 2)

    close(wf.vmap(wf.grad(energy))(x), np.stack([wf.grad(energy)(row).numpy() for row in x]))
    _, curved = wf.jvp(wf.grad(energy), (x[0],), (x[1],))
    close(curved, wf.grad(energy)(x[1]))  # the energy is a square: its Hessian is constant


def test_the_transform_of_a_cotangent_is_the_transform_itself():
    x, ct = drawn(5), drawn(5, seed=1)
    op, params = OPS["fft"], {"axes": (-1,), "norm": "backward"}
    _, pullback = wf.vjp(lambda v: call(op, (v,), params), x)
    close(pullback(ct)[0], np.fft.fft(ct))
