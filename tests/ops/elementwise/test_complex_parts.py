"""Parts of complex numbers, sizes and predicates: parity with NumPy, derivatives with JAX."""

import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from tests.elementwise_oracle import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    NUMBERS,
    agrees_with_jax,
    agrees_with_numpy,
    same,
    second_derivative_is_the_slope_of_the_first,
    values,
)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_abs_agrees_with_numpy(dtype):
    agrees_with_numpy(wf.abs, np.abs, values(dtype))


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("name", ["real", "imag", "conj"])
def test_parts_agree_with_numpy(name, dtype):
    agrees_with_numpy(getattr(wf, name), getattr(np, name), values(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", *COMPLEX])
def test_angle_agrees_with_numpy(dtype):
    digits = 8 * float(wf.finfo(dtype).eps)  # atan2 is one of our own functions
    agrees_with_numpy(wf.angle, np.angle, values(dtype), tolerance=digits)


@pytest.mark.parametrize("dtype", ("bool", *NUMBERS))
@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
def test_predicates_agree_with_numpy(name, dtype):
    agrees_with_numpy(getattr(wf, name), getattr(np, name), values(dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", ["isposinf", "isneginf"])
def test_signs_of_infinities_agree_with_numpy(name, dtype):
    agrees_with_numpy(getattr(wf, name), getattr(np, name), values(dtype))


@pytest.mark.parametrize("dtype", (*INTEGERS, "float32", "float64", *COMPLEX))
@pytest.mark.parametrize("options", [{}, {"nan": 3.0, "posinf": 7.0, "neginf": -7.0}])
def test_nan_to_num_agrees_with_numpy(dtype, options):
    agrees_with_numpy(
        lambda x: wf.nan_to_num(x, **options), lambda x: np.nan_to_num(x, **options), values(dtype)
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_infinities_become_the_largest_numbers_of_their_dtype(dtype):
    x = wf.asarray([np.inf, -np.inf, np.nan, 1.0]).astype(dtype)
    if wf.isinf(x).numpy().any():
        info = wf.finfo(dtype)
        got = wf.nan_to_num(x).astype("float64")
        same(got, np.array([info.max, info.min, 0, 1]))


def test_a_complex_number_is_made_of_two_floats():
    inf = np.inf
    made = wf.complex(wf.asarray([1.0, inf]), wf.asarray([-0.0, inf]))
    assert made.dtype == np.complex64
    same(wf.real(made), np.float32([1, inf]))
    same(wf.imag(made), np.float32([-0.0, inf]))
    assert wf.complex(wf.ones((2, 1)), wf.ones(3)).shape == (2, 3)
    assert wf.complex(wf.ones(2, dtype="bfloat16"), 0).dtype == np.complex64


def test_the_real_part_is_a_copy():
    outside = np.array([1 + 2j, 3 + 4j])
    part = wf.real(wf.asarray(outside))
    outside[0] = 9
    same(part, np.array([1.0, 3.0]))


def test_parts_of_bools_raise():
    with pytest.raises(wf.errors.DTypeError, match="abs: bool is not a number"):
        wf.abs(wf.asarray([True]))


RNG = np.random.default_rng(7)
LINE = RNG.uniform(-2, 2, 8)
PLANE = RNG.uniform(-2, 2, 8) + 1j * RNG.uniform(-2, 2, 8)


@pytest.mark.parametrize("name", ["abs", "real", "imag", "conj", "angle"])
def test_derivatives_are_in_jaxs_convention(name):
    agrees_with_jax(getattr(wf, name), getattr(jnp, name), PLANE)
    agrees_with_jax(getattr(wf, name), getattr(jnp, name), LINE)


def test_derivatives_of_a_function_that_mixes_parts_are_jaxs():
    def of(xp):
        return lambda z: xp.abs(xp.exp(z) * xp.conj(z)) + xp.real(z) ** 3 * xp.imag(xp.sqrt(z))

    agrees_with_jax(of(wf), of(jnp), PLANE)


def test_the_derivative_of_abs_at_zero_is_zero():
    same(wf.grad(wf.abs)(0.0), np.float32(0))
    _, pullback = wf.vjp(wf.abs, 0j)
    assert pullback(1.0)[0].item() == 0


def test_second_derivatives_through_complex_numbers_are_right():
    second_derivative_is_the_slope_of_the_first(lambda x: wf.abs(wf.exp(1j * x) + x), 0.7)
    second_derivative_is_the_slope_of_the_first(lambda x: wf.angle(wf.complex(x, x * x)), 0.7)


def test_replaced_elements_carry_no_derivative():
    x = wf.asarray([np.nan, np.inf, 2.0])
    same(wf.grad(lambda v: wf.nan_to_num(v, posinf=1.0).sum())(x), np.float32([0, 0, 1]))


def test_aliases_are_the_same_functions():
    assert wf.absolute is wf.abs and wf.conjugate is wf.conj
