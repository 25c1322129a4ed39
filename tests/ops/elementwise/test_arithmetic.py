"""Arithmetic: parity with NumPy on every dtype, the edges of integers and floats, derivatives."""

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
    NUMBERS,
    SIGNED,
    agrees_with_jax,
    agrees_with_numpy,
    numpy_dtype,
    same,
    second_derivative_is_the_slope_of_the_first,
    values,
)

BINARY = {
    "add": (np.add, NUMBERS),
    "subtract": (np.subtract, NUMBERS),
    "multiply": (np.multiply, NUMBERS),
    "divide": (np.divide, FLOATS + COMPLEX),
    "floor_divide": (np.floor_divide, INTEGERS + FLOATS),
    "remainder": (np.remainder, INTEGERS + FLOATS),
    "fmod": (np.fmod, INTEGERS + FLOATS),
    "pow": (np.power, FLOATS + COMPLEX),
    "gcd": (np.gcd, INTEGERS),
    "lcm": (np.lcm, INTEGERS),
}
UNARY = {
    "negative": (np.negative, NUMBERS),
    "positive": (np.positive, NUMBERS),
    "square": (np.square, NUMBERS),
    "reciprocal": (np.reciprocal, FLOATS + COMPLEX),
}


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n in BINARY for d in BINARY[n][1]])
def test_binary_operators_agree_with_numpy(name, dtype):
    left, right = values(dtype, 1), values(dtype, 2)
    agrees_with_numpy(getattr(wf, name), BINARY[name][0], left, right)


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n in UNARY for d in UNARY[n][1]])
def test_unary_operators_agree_with_numpy(name, dtype):
    agrees_with_numpy(getattr(wf, name), UNARY[name][0], values(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_powers_wrap_around(dtype):
    base, exponent = values(dtype, 1), np.abs(values(dtype, 2, special=False)) % 12
    agrees_with_numpy(wf.pow, np.power, base, exponent)


@pytest.mark.parametrize("size", [6, 40_000])
def test_integer_powers_with_negative_exponents_round_toward_zero(size):
    base = np.resize(np.array([1, -1, -1, 2, 0, -3]), size)
    exponent = np.resize(np.array([-3, -3, -2, -1, -1, 2]), size)
    want = np.resize(np.array([1, -1, 1, 0, 0, 9]), size)
    same(wf.pow(wf.asarray(base), wf.asarray(exponent)), want)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("size", [3, 20_000])
def test_integers_divided_by_zero_give_zero_in_silence(dtype, size):
    x = wf.asarray(np.full(size, 7, dtype))
    zero = wf.zeros(size, dtype=dtype)
    same(x // zero, np.zeros(size, dtype))
    same(x % zero, np.zeros(size, dtype))
    same(wf.fmod(x, zero), np.zeros(size, dtype))


@pytest.mark.parametrize("dtype", SIGNED)
def test_the_smallest_integer_wraps_around(dtype):
    least = wf.asarray(np.array([np.iinfo(dtype).min], dtype))
    same(-least, least.numpy())
    same(least // -1, least.numpy())
    same(least % -1, np.zeros(1, dtype))
    same(least - 1, np.array([np.iinfo(dtype).max], dtype))


def test_remainders_follow_pythons_signs_and_infinities():
    x = wf.asarray([5.0, -5.0, 5.0, -5.0, 1.0, -1.0, 4.0, -4.0])
    y = wf.asarray([3.0, 3.0, -3.0, -3.0, np.inf, np.inf, 2.0, 2.0])
    want = [a % b for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    same(x % y, np.float32(want))
    same(x // y, np.float32([a // b for a, b in zip(x.tolist(), y.tolist(), strict=True)]))


@given(st.integers(-128, 127), st.integers(-128, 127).filter(bool))
def test_divmod_of_integers_is_pythons(x, y):
    quotient, rest = wf.divmod(wf.asarray(x), wf.asarray(y))
    assert (quotient.item(), rest.item()) == divmod(x, y)
    for quotient, rest in (divmod(wf.asarray(x), y), divmod(x, wf.asarray(y))):
        assert (quotient.item(), rest.item()) == divmod(x, y)


def test_integers_are_divided_as_floats():
    same(wf.asarray([1, 2]) / wf.asarray([2, 3]), np.float32([0.5, 2 / 3]))
    same(wf.reciprocal(wf.asarray([2, 4])), np.float32([0.5, 0.25]))
    same(wf.float_power(wf.asarray([2, 3]), -1), np.float32([0.5, 1 / 3]))


def test_bool_is_not_a_number():
    flags = wf.asarray([True, False])
    for function in (wf.add, wf.multiply, wf.divide, wf.pow, wf.remainder):
        with pytest.raises(wf.errors.DTypeError, match="bool is not a number"):
            function(flags, flags)
    for function in (wf.negative, wf.square, wf.exp, wf.abs):
        with pytest.raises(wf.errors.DTypeError, match="bool is not a number"):
            function(flags)


def test_remainders_of_complex_numbers_raise():
    with pytest.raises(wf.errors.DTypeError, match="remainder: no meaning for complex64"):
        wf.asarray([1j]) % 2


def test_shapes_that_do_not_broadcast_are_named():
    with pytest.raises(wf.errors.ShapeError, match=r"add: operand 1, axis -1: size 4"):
        wf.add(wf.ones(3), wf.ones(4))


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", FLOATS)
def test_floats_become_integers_by_truncation_and_saturation(source, target):
    x = np.array([0, 1.5, -1.5, 100, -100, 3e9, -3e9, 1e30, -1e30, np.inf, -np.inf, np.nan])
    with np.errstate(all="ignore"):
        x = x.astype(np.float32).astype(numpy_dtype(source))
    info = np.iinfo(target)
    want = []
    for v in x.astype(np.float64):
        whole = 0 if np.isnan(v) else v if np.isinf(v) else int(v)
        want.append(int(min(max(whole, info.min), info.max)))
    same(wf.asarray(x).astype(target), np.array(want, target))


@pytest.mark.parametrize("target", ("bool", *NUMBERS))
@pytest.mark.parametrize("source", ("bool", *INTEGERS))
def test_casts_of_integers_are_numpys(source, target):
    x = values(source)
    with np.errstate(all="ignore"):
        same(wf.asarray(x).astype(target), x.astype(numpy_dtype(target)))


def test_casting_to_bool_asks_whether_a_number_is_zero():
    x = wf.asarray([0.0, -0.0, 0.3, np.nan, np.inf])
    want = np.array([False, False, True, True, True])
    same(x.astype("bool"), want)
    same(x.astype("bfloat16").astype("bool"), want)
    same(wf.asarray([0j, 1j, 1 + 0j]).astype("bool"), np.array([False, True, True]))


@pytest.mark.parametrize("target", ["int32", "float64"])
def test_casting_a_complex_number_to_a_real_dtype_raises(target):
    with pytest.raises(wf.errors.DTypeError, match=f"{target} has no room for an imaginary part"):
        wf.asarray([1.5 + 2j]).astype(target)


PAIR = np.array([1 + 2j, 3j], "complex64")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("asarray", lambda: wf.asarray(PAIR, dtype="float32")),
        ("asarray", lambda: wf.asarray(wf.asarray(PAIR), dtype="float32")),
        ("asarray", lambda: wf.tensor([wf.asarray(PAIR)], dtype="float32")),
        ("to", lambda: wf.asarray(PAIR).to("float32")),
        ("to", lambda: wf.asarray(PAIR).to(wf.ones(2))),
        *(
            (name, lambda name=name: getattr(wf, name)(PAIR, dtype="float32"))
            for name in ("sum", "prod", "mean", "std", "cumsum", "cumulative_sum", "nansum")
        ),
        ("cov", lambda: wf.cov([[1.0, 2.0], [3.0, 5.0]], aweights=PAIR)),
    ],
)
def test_no_function_loses_imaginary_parts_in_a_cast(name, call):
    with pytest.raises(wf.errors.DTypeError, match=f"^{name}: float32 has no room for an imag"):
        call()


@pytest.mark.parametrize("target", NARROW)
def test_casts_to_narrow_floats_round_once(target):
    narrow = numpy_dtype(target)
    rounded = np.float64([1, 0, 0])
    for i in (1, 2):
        rounded[i] = np.nextafter(rounded[i - 1].astype(narrow), np.array(2, narrow))
    middle = (rounded[:-1] + rounded[1:]) / 2
    above = wf.asarray(np.concatenate([middle + 2.0**-45, -middle - 2.0**-45]))
    want = np.concatenate([rounded[1:], -rounded[1:]])
    np.testing.assert_array_equal(above.astype(target).astype("float64").numpy(), want)


@pytest.mark.parametrize("target", ("bfloat16", "float8_e5m2", "float8_e4m3"))
def test_special_values_survive_a_cast_to_narrow_floats(target):
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e300, -1e300, 5e-324, 0.1])
    with np.errstate(all="ignore"):
        same(wf.asarray(x).astype(target), x.astype(numpy_dtype(target)))


def test_where_chooses_and_promotes():
    mask = wf.asarray([True, False])
    same(wf.where(mask, wf.asarray([1, 2]), 0.5), np.float32([1, 0.5]))
    same(wf.where(mask, np.ones((3, 1)), wf.zeros((1, 2))), np.tile([1.0, 0.0], (3, 1)))
    with pytest.raises(wf.errors.DTypeError, match="condition must be bool, got int64"):
        wf.where(wf.asarray([1]), 1, 2)


def test_where_of_a_condition_and_one_value_says_what_is_missing():
    with pytest.raises(wf.errors.ArgumentError, match="where: one of two values is missing"):
        wf.where(wf.asarray([True, False]), 1.0)


def test_where_keeps_nan_out_of_derivatives():
    def safe(x):
        return wf.where(x > 0, wf.log(wf.where(x > 0, x, 1)), 0).sum()

    same(wf.grad(safe)(wf.asarray([0.0, 2.0])), np.float32([0, 0.5]))


def test_lerp_meets_both_ends_exactly():
    start, end = wf.asarray([0.1, -7.0]), wf.asarray([0.7, 1e10])
    same(wf.lerp(start, end, 0.0), start.numpy())
    same(wf.lerp(start, end, 1.0), end.numpy())


X = np.random.default_rng(0).uniform(0.3, 2, (3, 4))
Y = np.random.default_rng(1).uniform(0.3, 2, (3, 4))
Z = X - 1.1 + 1j * (Y - 1.2)
W = Y - 0.9 + 1j * (X - 0.7)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "pow", "remainder"])
@pytest.mark.slow
def test_derivatives_of_binary_operators_are_jaxs(name):
    agrees_with_jax(getattr(wf, name), getattr(jnp, name), X, Y)
    agrees_with_jax(getattr(wf, name), getattr(jnp, name), X, Y[0])
    if name != "remainder":
        agrees_with_jax(getattr(wf, name), getattr(jnp, name), Z, W)
        agrees_with_jax(getattr(wf, name), getattr(jnp, name), X, W)


@pytest.mark.parametrize("name", ["negative", "positive", "square", "reciprocal"])
def test_derivatives_of_unary_operators_are_jaxs(name):
    agrees_with_jax(getattr(wf, name), getattr(jnp, name), X - 1)
    agrees_with_jax(getattr(wf, name), getattr(jnp, name), Z)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint16", "int64"])
def test_a_cube_is_two_products(dtype):
    x = np.array([0, 1, 2, 3, 7, 100], dtype)
    if x.dtype.kind == "f":
        top = np.cbrt(np.finfo(dtype).max)
        more = [-0.0, -1.1, 1e-30, np.inf, -np.inf, np.nan, top * 0.99, -top * 1.01]
        x = np.concatenate([x, np.array(more, dtype)])
    found = (wf.tensor(x) ** 3).numpy()
    with np.errstate(all="ignore"):
        wanted = x * x * x
    assert found.dtype == x.dtype and found.tobytes() == wanted.tobytes()


def test_derivatives_of_divisions_with_remainder_are_jaxs():
    agrees_with_jax(wf.fmod, jnp.fmod, X - 1, Y - 1)
    agrees_with_jax(wf.floor_divide, jnp.floor_divide, X - 1, Y - 1)
    agrees_with_jax(lambda x: x**3, lambda x: x**3, X - 1)
    agrees_with_jax(lambda x: x**-2, lambda x: x**-2, X - 1)
    agrees_with_jax(lambda x: 2**x, lambda x: 2.0**x, X - 1)


@pytest.mark.parametrize(
    ("base", "exponent"), [(0, 2), (0, 1), (-1.5, 2), (-1.5, 0), (2, 0), (0, 3), (0, 0.5)]
)
def test_derivatives_of_powers_at_the_edges_are_jaxs(base, exponent):
    agrees_with_jax(lambda x: wf.pow(x, float(exponent)), lambda x: x ** float(exponent), base)


def test_the_slope_of_a_zeroth_power_changes_with_the_exponent():
    hessian = wf.hessian(lambda v: v[0] ** v[1])
    for base, mixed in ((2.0, 0.5), (4.0, 0.25), (0.0, 0.0)):
        assert hessian(wf.tensor([base, 0.0]))[0, 1].item() == mixed


def test_the_derivative_of_a_zeroth_power_is_zero():
    same(wf.grad(lambda x: wf.pow(x, 0.0))(0.0), np.float32(0))


def test_the_derivative_by_the_exponent_is_zero_at_base_zero():
    for exponent in (2.0, 0.0, -1.0):
        got = wf.grad(lambda y: wf.pow(0.0, y))(exponent)
        same(got, np.float32(0))


def test_a_python_two_as_exponent_squares():
    x = wf.asarray([0.1, -3.0, np.nan])
    same(x**2, np.square(x.numpy()))
    same(wf.grad(lambda v: (v**2).sum())(x), 2 * x.numpy())


@pytest.mark.parametrize("x", [0.7, 1.3])
def test_second_derivatives_are_the_slopes_of_the_first(x):
    for function in (wf.pow, wf.divide, lambda x, y: y / x, lambda x, y: y**x, lambda x, _: x**2):
        second_derivative_is_the_slope_of_the_first(function, x, 2.7)


def test_aliases_are_the_same_functions():
    assert wf.sub is wf.subtract and wf.mul is wf.multiply and wf.neg is wf.negative
    assert wf.div is wf.true_divide is wf.divide
    assert wf.mod is wf.remainder and wf.power is wf.pow


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_a_power_of_one_half_is_a_root_that_knows_what_powers_do(name):
    x = wf.tensor([0.0, -0.0, 1.0, 2.0, 6.25, 1e-3, -1.0, np.inf, -np.inf, np.nan]).astype(name)
    found = (x**0.5).astype("float64").host()
    roots = np.sqrt(np.abs(x.astype("float64").host()))
    wanted = np.where(np.isin(np.arange(10), (6, 9)), np.nan, roots)
    assert np.allclose(found, wanted, rtol=4 * float(wf.finfo(name).eps), equal_nan=True)
    assert not np.signbit(found[:2]).any()
    assert (x**0.5).dtype == x.dtype
    assert wf.pow(x, 0.5).host().tobytes() == (x**0.5).host().tobytes()
    assert wf.compile(lambda x: x**0.5)(x).host().tobytes() == (x**0.5).host().tobytes()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_a_power_of_minus_one_is_a_quotient(name):
    x = wf.tensor([0.0, -0.0, 3.0, -7.0, 1e-3, np.inf, -np.inf, np.nan]).astype(name)
    for exponent in (-1, -1.0):
        same(x**exponent, (1 / x).host())
    assert (wf.tensor([1, 2, -1]) ** -1).tolist() == [1, 0, -1]
    assert wf.grad(wf.grad(lambda t: t**-1))(2.0).item() == 0.25


def test_a_root_written_as_a_power_has_its_derivatives():
    x = wf.tensor([4.0, 9.0, 0.25])
    assert np.allclose(wf.grad(lambda x: (x**0.5).sum())(x).host(), [0.25, 1 / 6, 1.0])
    second = wf.grad(lambda x: wf.grad(lambda x: (x**0.5).sum())(x).sum())(x)
    assert np.allclose(second.host(), -0.25 * np.array([4.0, 9.0, 0.25]) ** -1.5)
    assert wf.vmap(lambda x: x**0.5)(x).tolist() == [2.0, 3.0, 0.5]
