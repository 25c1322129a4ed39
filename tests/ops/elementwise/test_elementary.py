"""Elementary functions: parity with NumPy on floats and complex numbers, derivatives with JAX."""

import cmath

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import weft as wf
from tests.elementwise_oracle import (
    COMPLEX,
    FLOATS,
    agrees_with_jax,
    agrees_with_numpy,
    same,
    second_derivative_is_the_slope_of_the_first,
    values,
)

NUMPY = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
}
REAL = {
    "cbrt": np.cbrt,
    "sigmoid": special.expit,
    "deg2rad": np.deg2rad,
    "rad2deg": np.rad2deg,
}
BINARY = {
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "logaddexp": np.logaddexp,
    "logaddexp2": np.logaddexp2,
}
POSITIVE = ("log", "log2", "log10", "log1p", "sqrt")
INSIDE = ("asin", "acos", "atanh")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [*NUMPY, *REAL])
def test_functions_of_floats_agree_with_numpy(name, dtype):
    reference = NUMPY.get(name) or REAL[name]
    scaled = name in ("deg2rad", "rad2deg")
    tolerance = 2e-7 if scaled and dtype == "float32" else 1e-15 if scaled else 0.0
    if not (scaled and dtype not in ("float32", "float64")):
        agrees_with_numpy(getattr(wf, name), reference, values(dtype), tolerance=tolerance)


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", NUMPY)
def test_functions_of_complex_numbers_agree_with_numpy(name, dtype):
    tolerance = 0.0 if name != "log1p" else 1e-15 if dtype == "complex128" else 1e-6
    agrees_with_numpy(getattr(wf, name), NUMPY[name], values(dtype), tolerance=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_floats_agree_with_numpy(name, dtype):
    agrees_with_numpy(getattr(wf, name), BINARY[name], values(dtype, 1), values(dtype, 2))


@pytest.mark.parametrize("dtype", (*FLOATS, *COMPLEX))
def test_rsqrt_is_one_over_the_root(dtype):
    agrees_with_numpy(wf.rsqrt, lambda x: 1 / np.sqrt(x), values(dtype))


def test_integers_become_the_default_float():
    assert wf.exp(wf.asarray([1, 2])).dtype == np.float32
    with wf.default_dtype("float64"):
        assert wf.hypot(wf.asarray([3]), 4).dtype == np.float64


def test_real_functions_refuse_complex_numbers():
    for function in (wf.cbrt, wf.sigmoid):
        with pytest.raises(wf.errors.DTypeError, match="no meaning for complex64"):
            function(wf.asarray([1j]))


def test_complex_log1p_keeps_small_real_parts():
    small = 1e-20 + 1e-25j
    assert wf.log1p(wf.asarray(np.array(small))).item() == pytest.approx(small, rel=1e-14)


@pytest.mark.parametrize("name", ["sqrt", "log", "acos", "asin", "atan", "acosh", "atanh"])
@pytest.mark.parametrize("z", [-2 + 0j, complex(-2, -0.0), 2j, -0.5 - 3j, complex(3, -0.0)])
def test_branch_cuts_are_those_of_c99(name, z):
    got = getattr(wf, name)(wf.asarray(np.array(z))).item()
    assert got == pytest.approx(getattr(cmath, name)(z), rel=1e-14)


def test_special_values_of_the_standard_hold():
    inf, nan = np.inf, np.nan
    same(wf.exp([-inf, inf, 0.0]), np.float32([0, inf, 1]))
    same(wf.log([0.0, -0.0, -1.0, inf]), np.float32([-inf, -inf, nan, inf]))
    same(wf.expm1([-0.0, -inf]), np.float32([-0.0, -1]))
    same(wf.log1p([-0.0, -1.0]), np.float32([-0.0, -inf]))
    same(wf.atan2([0.0, -0.0], [-0.0, -0.0]), np.float32([np.pi, -np.pi]))
    same(wf.hypot([nan, inf], [inf, nan]), np.float32([inf, inf]))
    same(wf.logaddexp([-inf, inf], [-inf, 1.0]), np.float32([-inf, inf]))
    same(wf.sqrt([-0.0, inf]), np.float32([-0.0, inf]))


@pytest.mark.parametrize("dtype", [name for name in FLOATS if name != "float8_e4m3"])
@pytest.mark.parametrize("count", [1, 40_000])
def test_a_hypotenuse_is_infinite_if_one_side_is_whatever_the_other_is(dtype, count):
    inf, nan = np.inf, np.nan
    sides = np.array([[inf, nan], [nan, inf], [-inf, nan], [nan, -inf], [inf, 1]] * count)
    x, y = (wf.asarray(side).astype(dtype) for side in sides.T)
    for found in (wf.hypot(x, y), wf.compile(wf.hypot)(x, y)):
        assert wf.all(found.astype("float32") == inf)


def test_log_sigmoid_is_precise_in_both_tails():
    same(wf.log_sigmoid([-1000.0, 0.0, 1000.0]), np.float32([-1000, -np.log(2), -0.0]), 1e-7)
    agrees_with_jax(wf.log_sigmoid, jax.nn.log_sigmoid, np.array([-50.0, -1, 0, 2, 50]))


RNG = np.random.default_rng(4)
ANY, POS, UNIT = RNG.uniform(-2, 2, 9), RNG.uniform(0.2, 3, 9), RNG.uniform(-0.9, 0.9, 9)
PLANE = RNG.uniform(-2, 2, 9) + 1j * RNG.uniform(-2, 2, 9)


def points(name):
    if name in POSITIVE:
        return POS
    if name == "acosh":
        return POS + 1
    return UNIT if name in INSIDE else ANY


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.slow
def test_derivatives_are_jaxs(name):
    ours, theirs = getattr(wf, name), getattr(jnp, name)
    agrees_with_jax(ours, theirs, points(name))
    second_derivative_is_the_slope_of_the_first(ours, points(name)[0])


@pytest.mark.parametrize("name", ["exp", "log", "log1p", "sqrt", "sin", "tan", "asin", "atanh"])
def test_derivatives_of_complex_functions_are_jaxs(name):
    agrees_with_jax(getattr(wf, name), getattr(jnp, name), PLANE, tolerance=1e-9)


@pytest.mark.parametrize("name", BINARY)
def test_derivatives_of_functions_of_two_floats_are_jaxs(name):
    ours, theirs = getattr(wf, name), getattr(jnp, name)
    agrees_with_jax(ours, theirs, ANY, POS)
    second_derivative_is_the_slope_of_the_first(ours, 0.7, 0.7)


def test_derivatives_of_roots_and_sigmoid_are_jaxs():
    agrees_with_jax(wf.rsqrt, jax.lax.rsqrt, POS)
    agrees_with_jax(wf.cbrt, jnp.cbrt, ANY)
    agrees_with_jax(wf.sigmoid, jax.nn.sigmoid, ANY)
    agrees_with_jax(wf.rad2deg, jnp.rad2deg, ANY)


def test_derivatives_at_the_edges_are_what_the_docstrings_say():
    same(wf.grad(wf.sqrt)(0.0), np.float32(np.inf))
    same(wf.grad(lambda x: wf.hypot(x, 0.0))(0.0), np.float32(0))
    same(wf.grad(lambda x: wf.logaddexp(x, -np.inf))(-np.inf), np.float32(0.5))
    same(wf.grad(wf.expm1)(-40.0), np.exp(np.float32(-40)))
    same(wf.grad(lambda x: wf.atan2(x, 1e-30))(1e-30), np.float32(0.5 / np.float32(1e-30)), 1e24)


def test_aliases_are_the_same_functions():
    for letters in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2"):
        assert getattr(wf, f"arc{letters}") is getattr(wf, f"a{letters}")
    assert wf.radians is wf.deg2rad and wf.degrees is wf.rad2deg


@pytest.mark.parametrize(
    "function", [wf.log, wf.log2, wf.log10, lambda x: 0.001 * (x / x), lambda x: wf.square(x) / x]
)
def test_slopes_of_float16_are_finite_though_a_reciprocal_is_not(function):
    given = np.full(64, 1e-5, np.float16)

    def loss(x):
        return wf.mean(function(x))

    def slopes(dtype):
        x = wf.astype(wf.tensor(given), dtype)
        moved = wf.jvp(loss, (x,), (wf.full_like(x, 2.0**-6),))[1]
        return [wf.astype(found, "float64").numpy() for found in (wf.grad(loss)(x), moved)]

    for found, exact in zip(slopes("float16"), slopes("float64"), strict=True):
        np.testing.assert_allclose(found, exact, rtol=5e-3, atol=0.02)
