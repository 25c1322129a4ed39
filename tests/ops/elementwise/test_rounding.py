"""Rounding, signs and the parts of floats: parity with NumPy, derivatives, refusals."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from tests.elementwise_oracle import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    NARROW,
    agrees_with_jax,
    agrees_with_numpy,
    numpy_dtype,
    same,
    values,
)
from weft.ops.elementwise.rounding import exponent_op
from weft.testing.loops import run_loops

ROUNDING = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ROUNDING)
def test_rounding_agrees_with_numpy(name, dtype):
    x = values(dtype)
    x[:6] = np.array([0.5, 1.5, -0.5, -1.5, 2.5, -0.25], np.float32).astype(x.dtype)
    agrees_with_numpy(getattr(wf, name), ROUNDING[name], x)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ROUNDING)
def test_rounding_leaves_integers_as_they_are(name, dtype):
    agrees_with_numpy(getattr(wf, name), lambda x: x, values(dtype))


@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_numbers_are_rounded_part_by_part(dtype):
    agrees_with_numpy(wf.round, np.rint, values(dtype))
    with pytest.raises(wf.errors.DTypeError, match=f"floor: no meaning for {dtype}"):
        wf.floor(wf.asarray(values(dtype)))


@pytest.mark.parametrize("decimals", [-1, 0, 1, 3])
def test_rounding_to_decimals_agrees_with_numpy(decimals):
    x = np.random.default_rng(0).uniform(-200, 200, 60)
    agrees_with_numpy(
        lambda v: wf.round(v, decimals), lambda v: np.round(v, decimals), x, tolerance=1e-13
    )


@pytest.mark.parametrize("decimals", [-1, -2])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_integers_are_rounded_to_tens_and_hundreds(dtype, decimals):
    x = np.arange(0 if dtype[0] == "u" else -104, 105).astype(dtype)
    expected = np.round(x.astype(np.int64), decimals).astype(dtype)
    found = wf.round(wf.asarray(x), decimals)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.numpy(), expected)


def test_rounding_mistakes_are_named():
    with pytest.raises(wf.errors.ArgumentError, match="round: int8 has no room for 1000\nhint"):
        wf.round(wf.asarray([15], dtype="int8"), -3)
    with pytest.raises(wf.errors.DTypeError, match="round: bool is not a number"):
        wf.round(wf.asarray([True]))


@pytest.mark.parametrize("dtype", (*INTEGERS, *FLOATS, *COMPLEX))
def test_sign_agrees_with_numpy(dtype):
    agrees_with_numpy(wf.sign, np.sign, values(dtype))


@pytest.mark.parametrize("dtype", (*INTEGERS, *FLOATS))
def test_signbit_agrees_with_numpy(dtype):
    reference = np.signbit if dtype in FLOATS else lambda x: x < 0
    agrees_with_numpy(wf.signbit, reference, values(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_copysign_agrees_with_numpy(dtype):
    x, y = values(dtype, 1), values(dtype, 2)
    y[np.isnan(y)] = -1
    agrees_with_numpy(wf.copysign, np.copysign, x, y)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nextafter_steps_by_one_unit_of_the_dtype_itself(dtype):
    x, y = values(dtype, 1), values(dtype, 2)
    want = np.nextafter(x, y)
    same(wf.nextafter(wf.asarray(x), wf.asarray(y)), want)
    one = np.ones(1, numpy_dtype(dtype))
    step = wf.nextafter(wf.asarray(one), 2.0).astype("float64").item() - 1
    assert step == wf.finfo(dtype).eps


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_float_is_its_mantissa_times_a_power_of_two(dtype):
    x = values(dtype)
    mantissa, exponent = wf.frexp(wf.asarray(x))
    assert exponent.dtype == np.int32
    want, power = np.frexp(x.astype(np.float64))
    finite = np.isfinite(x.astype(np.float64))
    np.testing.assert_array_equal(exponent.numpy(), np.where(finite, power, 0))
    same(mantissa, want.astype(x.dtype))
    same(wf.ldexp(mantissa, exponent), x)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_loop_form_of_the_exponent_is_exact_for_subnormals_too(x):
    assert run_loops(exponent_op, [np.float64(x)], {}) == np.frexp(x)[1]
    small = np.float32(np.clip(x, -1e-38, 1e-38))
    assert run_loops(exponent_op, [small], {}) == np.frexp(small)[1]


def test_ldexp_takes_integers_as_exponents():
    same(wf.ldexp(wf.asarray([1.0, 3.0]), wf.asarray([-1, 200])), np.float32([0.5, np.inf]))
    same(wf.ldexp(wf.asarray([3]), 2), np.float32([12]))
    with pytest.raises(wf.errors.DTypeError, match="exponent must be an integer, got float32"):
        wf.ldexp(1.0, 0.5)
    same(wf.grad(lambda x: wf.ldexp(x, 3))(1.5), np.float32(8))


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d not in NARROW])
def test_modf_agrees_with_numpy(dtype):
    x = values(dtype)
    for got, want in zip(wf.modf(wf.asarray(x)), np.modf(x), strict=True):
        same(got, want)


def test_the_derivative_of_a_fraction_is_one_at_whole_numbers_too():
    for x in (-2.0, -1.5, 0.5, 3.0):
        same(wf.grad(lambda v: wf.modf(v)[0])(x), np.float32(1))


def test_heaviside_agrees_with_numpy():
    x, y = values("float64", 1), values("float64", 2)
    agrees_with_numpy(wf.heaviside, np.heaviside, x, y)
    same(wf.heaviside(wf.asarray([-1, 0, 2]), 0.5), np.float32([0, 0.5, 1]))


@pytest.mark.parametrize("name", [*ROUNDING, "sign"])
def test_step_functions_have_derivative_zero(name):
    x = wf.asarray([-1.5, 0.0, 0.2, 3.0])
    same(wf.grad(lambda v: getattr(wf, name)(v).sum())(x), np.zeros(4, np.float32))
    same(wf.jvp(getattr(wf, name), (x,), (x,))[1], np.zeros(4, np.float32))


def test_the_derivative_of_a_complex_sign_turns_only():
    z = np.array([3 + 4j, -1j])
    _, along = wf.jvp(wf.sign, (z,), (z,))
    same(along, np.zeros(2, complex), 1e-15)
    _, across = wf.jvp(wf.sign, (z,), (1j * z,))
    same(across, 1j * np.sign(z), 1e-15)
    _, at_zero = wf.jvp(wf.sign, (0j,), (1 + 0j,))
    assert at_zero.item() == 0


def test_derivatives_of_copysign_are_jaxs():
    x, y = np.array([1.5, -2, 3, -4]), np.array([1.0, 1, -1, -1])
    agrees_with_jax(wf.copysign, jnp.copysign, x, y)


def test_a_step_between_floats_has_no_derivative():
    with pytest.raises(wf.errors.MissingRuleError, match="nextafter: no vjp rule: a step between"):
        wf.grad(lambda x: wf.nextafter(x, 2.0))(1.0)
