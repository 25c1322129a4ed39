"""Compare elementwise functions with NumPy over dtypes and layouts, and derivatives with JAX."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np

import weft as wf

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
NARROW = ("float8_e4m3", "float8_e5m2", "float16", "bfloat16")
FLOATS = (*NARROW, "float32", "float64")
COMPLEX = ("complex64", "complex128")
NUMBERS = INTEGERS + FLOATS + COMPLEX

_EXTRA = {
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def numpy_dtype(name):
    return _EXTRA.get(name) or np.dtype(name)


def values(name, seed=0, low=-3.0, high=3.0, special=True):
    """Sixty numbers of a dtype; among them its extremes, or NaN, infinities and both zeros."""
    rng = np.random.default_rng(seed)
    dtype = numpy_dtype(name)
    if name == "bool":
        return rng.integers(0, 2, 60).astype(bool)
    if name in INTEGERS:
        info = np.iinfo(dtype)
        drawn = rng.integers(max(-20, info.min), 20, 60).astype(dtype)
        edges = [info.min, info.max, 0, 1, info.max - 1]
    elif name in COMPLEX:
        drawn = (rng.uniform(low, high, 60) + 1j * rng.uniform(low, high, 60)).astype(dtype)
        edges = [0, -0.0, 1, 1j, -1, complex(np.inf, 1), complex(1, np.nan)]
    else:
        drawn = rng.uniform(low, high, 60).astype(np.float32).astype(dtype)
        edges = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.5]
    if special:
        drawn[: len(edges)] = np.array(edges, drawn.dtype)
        rng.shuffle(drawn)
    return drawn


def layouts(array):
    """The same numbers in other forms: matrix, reversed, strided, one element, none."""
    yield array
    yield array.reshape(5, 12)[::-1, ::3]
    yield array[:1]
    yield array[0]
    yield array[:0].reshape(0, 3)


def expected(function, *arrays):
    """What NumPy says; narrow floats are computed in float32 and rounded once."""
    narrow = any(a.dtype.name in (*_EXTRA, "float8_e4m3fn", "float16") for a in arrays)
    with np.errstate(all="ignore"):
        if not narrow:
            return np.asarray(function(*arrays))
        result = np.asarray(function(*(a.astype(np.float32) for a in arrays)))
        return result.astype(arrays[0].dtype) if result.dtype == np.float32 else result


def same(got, want, tolerance=0.0):
    """Equal dtype, shape and numbers: NaN at the same places, zeros of the same sign."""
    assert isinstance(got, wf.Tensor)
    found, want = got.numpy(), np.asarray(want)
    assert found.dtype == want.dtype, (found.dtype, want.dtype)
    assert found.shape == want.shape
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(found, want)
        return
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    found, want = found.astype(wide), want.astype(wide)
    np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance)
    if wide is np.float64:
        zero = (found == 0) & (want == 0)
        np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(want[zero]))


def rounding(ours, arrays):
    """How far results may lie apart: not at all, unless weft's own functions compute them."""
    kinds = [a.dtype for a in arrays]
    whole = any(k.kind in "biu" for k in kinds)
    exact = isinstance(ours, wf.ops.Operation) and ours.is_exact(*kinds)
    return 0.0 if whole or exact else 8 * float(wf.finfo(kinds[0]).eps)


def agrees_with_numpy(ours, reference, *arrays, tolerance=0.0):
    """Both give the same for every layout, and for operands long enough to be recorded."""
    tolerance = max(tolerance, rounding(ours, arrays))
    for views in zip(*map(layouts, arrays), strict=True):
        same(ours(*map(wf.asarray, views)), expected(reference, *views), tolerance)
    long = [np.resize(a, 40_000) for a in arrays]
    same(ours(*map(wf.asarray, long)), expected(reference, *long), tolerance)


def agrees_with_jax(ours, theirs, *arrays, tolerance=1e-11):
    """Values, jvp and vjp are those of JAX in double precision."""
    arrays = [np.asarray(a, np.complex128 if np.iscomplexobj(a) else np.float64) for a in arrays]
    moves = [np.cos(1 + 3 * a) for a in arrays]
    with jax.enable_x64(True):
        kind = jax.eval_shape(theirs, *arrays)
        ct = np.sin(2 + np.arange(kind.size)).reshape(kind.shape)
        if np.issubdtype(kind.dtype, np.complexfloating):
            ct = ct + 0.5j * np.cos(ct)
        value, pushed, pulled = jax.jit(_derivatives, static_argnums=0)(theirs, arrays, moves, ct)
    got, move = wf.jvp(ours, tuple(arrays), tuple(moves))
    _near(got, value, tolerance)
    _near(move, pushed, tolerance)
    _, pullback = wf.vjp(ours, *arrays)
    for mine, other in zip(pullback(ct), pulled, strict=True):
        _near(mine, other, tolerance)


def _derivatives(function, arrays, moves, ct):
    value, pushed = jax.jvp(function, tuple(arrays), tuple(moves))
    return value, pushed, jax.vjp(function, *arrays)[1](ct)


def second_derivative_is_the_slope_of_the_first(function, x, *rest, tolerance=1e-6):
    """Reverse over reverse at one float (the other operands held), against finite differences."""
    first = wf.grad(lambda v: function(v, *map(np.float64, rest)))
    step = 1e-5
    up, down = first(np.float64(x + step)).item(), first(np.float64(x - step)).item()
    slope = wf.grad(first)(np.float64(x)).item()
    np.testing.assert_allclose(slope, (up - down) / (2 * step), rtol=tolerance, atol=tolerance)


def _near(got, want, tolerance):
    found, want = got.numpy(), np.asarray(want)
    assert found.dtype == want.dtype
    np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance)
