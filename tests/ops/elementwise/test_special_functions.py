"""Special functions: parity with SciPy, derivatives with JAX, and derivatives that are refused."""

import jax.numpy as jnp
import jax.scipy.special as jsp
import mpmath
import numpy as np
import pytest
from scipy import special, stats

import weft as wf
from tests.elementwise_oracle import (
    FLOATS,
    agrees_with_jax,
    agrees_with_numpy,
    same,
    second_derivative_is_the_slope_of_the_first,
    values,
)

UNARY = {
    "erf": special.erf,
    "erfc": special.erfc,
    "erfcx": special.erfcx,
    "exp1": special.exp1,
    "expi": special.expi,
    "j0": special.j0,
    "j1": special.j1,
    "erfinv": special.erfinv,
    "erfcinv": special.erfcinv,
    "ndtri": special.ndtri,
    "log_ndtr": special.log_ndtr,
    "gamma": special.gamma,
    "lgamma": special.gammaln,
    "digamma": special.digamma,
    "logit": special.logit,
    "expit": special.expit,
    "i0": special.i0,
    "i1": special.i1,
    "i0e": special.i0e,
    "i1e": special.i1e,
}
BINARY = {
    "xlogy": special.xlogy,
    "xlog1py": special.xlog1py,
    "beta": special.beta,
    "betaln": special.betaln,
    "zeta": special.zeta,
    "gammainc": special.gammainc,
    "gammaincc": special.gammaincc,
    "rel_entr": special.rel_entr,
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_float_agree_with_scipy(name, dtype):
    x = values(dtype)
    wide = x.astype(np.float64)
    if name == "erfinv":  # SciPy loses the sign of zero
        x = np.where((wide == 0) & np.signbit(wide), x.dtype.type(0), x)
    if name == "lgamma":  # C and Python say +inf at -inf, SciPy -inf
        x = np.where(wide == -np.inf, x.dtype.type(1), x)
    digits = 64 if name == "digamma" else 8
    tolerance = digits * float(wf.finfo(x.dtype).eps)
    agrees_with_numpy(getattr(wf, name), UNARY[name], x, tolerance=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_floats_agree_with_scipy(name, dtype):
    agrees_with_numpy(getattr(wf, name), BINARY[name], values(dtype, 1), values(dtype, 2))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_compositions_agree_with_scipy(dtype):
    x = values(dtype, special=False)
    tolerance = 1e-6 if dtype == "float32" else 1e-14
    agrees_with_numpy(wf.ndtr, special.ndtr, x, tolerance=tolerance)
    agrees_with_numpy(wf.entr, special.entr, x, tolerance=tolerance)
    agrees_with_numpy(wf.sinc, np.sinc, x, tolerance=tolerance)
    positive = np.abs(x) + x.dtype.type(0.1)
    inside = positive / 4
    for order in (1, 2, 5):
        agrees_with_numpy(
            lambda v, n=order: wf.polygamma(n, v),
            lambda v, n=order: special.polygamma(n, v).astype(v.dtype),
            positive,
        )
    agrees_with_numpy(
        lambda v: wf.multigammaln(v, 3),
        lambda v: special.multigammaln(v, 3).astype(v.dtype),
        positive + 1,
        tolerance=4 * tolerance,
    )
    agrees_with_numpy(wf.betainc, special.betainc, positive, positive[::-1].copy(), inside)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_small_shares_and_distant_waves_have_all_digits(dtype):
    unit, smallest = wf.finfo(dtype).eps, wf.finfo(dtype).smallest_normal

    def agree(function, reference, x, floor):
        exact = x.numpy().astype(np.float64)
        found = function(x).numpy().astype(np.float64)
        np.testing.assert_allclose(found, reference(exact), rtol=2 * unit, atol=floor)

    x = wf.arange(-12.0, 0.0, 0.125, dtype=dtype)
    agree(wf.ndtr, special.ndtr, x, smallest)
    agree(wf.sinc, np.sinc, x * 5 + 0.0625, max(smallest, 1e-15))
    assert not wf.sinc(wf.tensor([1.0, -3.0, 1e4], dtype=dtype)).numpy().any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_slopes_of_log_ndtr_are_right_far_out(dtype):
    x = wf.tensor([-1e18, -1e4, -100.0, -5.0, 0.0, 3.0, 60.0], dtype=dtype)
    expected = np.float64([1e18, 1e4 + 1e-4, 100.0099980009992])
    last = stats.norm.pdf([-5, 0, 3, 60]) / special.ndtr([-5, 0, 3, 60])
    slopes = wf.grad(lambda v: wf.log_ndtr(v).sum())(x).numpy()
    np.testing.assert_allclose(slopes, [*expected, *last], rtol=1e-6, atol=0)
    curved = wf.grad(lambda v: wf.grad(lambda u: wf.log_ndtr(u).sum())(v).sum())(x).numpy()
    assert np.isfinite(curved).all()


def test_edges_are_what_the_docstrings_say():
    inf, nan = np.inf, np.nan
    same(wf.xlogy([0.0, 0.0, 2.0], [0.0, nan, 1.0]), np.float32([0, nan, 0]))
    same(wf.entr([0.0, -1.0, 1.0]), np.float32([0, -inf, -0.0]))
    same(wf.sinc([0.0, 0.5]), np.float32([1, 2 / np.pi]), 1e-7)
    same(wf.lgamma([0.0, -1.0, 1.0]), np.float32([inf, inf, 0]))
    same(wf.logit([0.0, 1.0, 2.0]), np.float32([-inf, inf, nan]))
    same(wf.zeta(2.0), np.float32(np.pi**2 / 6), 1e-6)
    same(wf.polygamma(0, 1.5), special.digamma(np.float32(1.5)))


@pytest.mark.parametrize("name", BINARY)
def test_a_python_number_takes_the_dtype_of_the_tensor_beside_it(name):
    for number in (2, 2.0):
        made = getattr(wf, name)(wf.ones(3, dtype=wf.float32), number)
        assert made.dtype == made.numpy().dtype == np.float32


def test_relative_entropy_is_finite_where_the_ratio_is_not():
    p, q = np.array([1.0, 1e-30, 0.5], "float32"), np.array([1e-39, 1e20, 0.5], "float32")
    want = special.rel_entr(p.astype(float), q.astype(float))
    np.testing.assert_allclose(wf.rel_entr(p, q).numpy(), want, rtol=1e-6)
    slope = wf.grad(lambda p: wf.sum(wf.rel_entr(p, q)))(wf.asarray(p))
    np.testing.assert_allclose(slope.numpy(), np.log(p.astype(float) / q) + 1, rtol=1e-6)
    half = wf.rel_entr(wf.tensor(1.0, dtype="float16"), wf.tensor(1e-5, dtype="float16"))
    assert half.item() == pytest.approx(11.5, rel=1e-2)


def test_relative_entropy_of_infinity_is_infinite_beside_any_number():
    p, q = np.array([np.inf] * 3 + [2.0]), np.array([0.5, 3.0, np.inf, np.inf])
    np.testing.assert_array_equal(wf.rel_entr(p, q).numpy(), [np.inf, np.inf, np.nan, -np.inf])


def test_multigammaln_is_nan_where_it_is_not_defined():
    a = wf.tensor([-1.0, 0.2, 0.5, 1.0, 1.5], dtype="float64")
    made = wf.multigammaln(a, 3).numpy()
    assert np.isnan(made[:3]).all() and made[3] == np.inf
    np.testing.assert_allclose(made[4], special.multigammaln(1.5, 3), rtol=1e-14)
    assert np.isnan(wf.multigammaln(-1.5, 1).item())


def test_integers_become_floats_and_complex_numbers_raise():
    assert wf.erf(wf.asarray([1])).dtype == np.float32
    assert wf.gammainc(wf.asarray([1]), wf.asarray([2])).dtype == np.float32
    assert wf.i0(wf.asarray([1])).dtype == np.float32
    for function in (wf.erf, wf.i0, lambda x: wf.gammainc(x, x)):
        with pytest.raises(wf.errors.DTypeError, match="no meaning for complex64"):
            function(wf.asarray([1j]))


@pytest.mark.parametrize("order", [-1, 1.5, True, "2"])
def test_polygamma_takes_a_whole_order(order):
    with pytest.raises((wf.errors.ArgumentError, wf.errors.DTypeError), match="polygamma: n must"):
        wf.polygamma(order, 1.0)


RNG = np.random.default_rng(11)
ANY, POS, UNIT = RNG.uniform(-2, 2, 7), RNG.uniform(0.3, 3, 7), RNG.uniform(0.1, 0.9, 7)
POINTS = {
    "erfinv": UNIT,
    "ndtri": UNIT,
    "logit": UNIT,
    "gamma": POS,
    "lgamma": POS,
    "digamma": POS,
    "exp1": POS,
    "expi": POS,
}
JAX_NAMES = {"lgamma": "gammaln"}


@pytest.mark.parametrize("name", [n for n in UNARY if n not in ("erfcinv", "erfcx", "j0", "j1")])
@pytest.mark.slow
def test_derivatives_of_functions_of_one_float_are_jaxs(name):
    ours, points = getattr(wf, name), POINTS.get(name, ANY)
    theirs = getattr(jsp, JAX_NAMES.get(name, name))
    agrees_with_jax(ours, theirs, points, tolerance=1e-8)
    second_derivative_is_the_slope_of_the_first(ours, points[0])


def _slope(function, x, step=1e-6):
    return (function(x + step) - function(x - step)) / (2 * step)


def test_derivatives_of_compositions_are_jaxs():
    agrees_with_jax(wf.sinc, jnp.sinc, ANY)
    agrees_with_jax(wf.ndtr, jsp.ndtr, ANY)
    agrees_with_jax(wf.entr, jsp.entr, POS)
    same(wf.grad(lambda x: wf.polygamma(1, x).sum())(POS), special.polygamma(2, POS), 1e-13)
    same(wf.grad(lambda x: wf.j1(x).sum())(ANY), special.jvp(1, ANY), 1e-13)
    same(wf.grad(lambda x: wf.erfcx(x).sum())(ANY), _slope(special.erfcx, ANY), 1e-8)
    agrees_with_jax(wf.rel_entr, jsp.rel_entr, POS, POS[::-1].copy())
    agrees_with_jax(lambda x: wf.multigammaln(x, 3), lambda x: jsp.multigammaln(x, 3), POS + 1)
    for function in (wf.erfcinv, wf.erfcx, wf.j0, wf.j1):
        second_derivative_is_the_slope_of_the_first(function, 0.3)
    second_derivative_is_the_slope_of_the_first(lambda x: wf.polygamma(2, x), 1.3, tolerance=1e-5)


@pytest.mark.parametrize("name", ["xlogy", "xlog1py"])
def test_derivatives_of_functions_of_two_floats_are_jaxs(name):
    agrees_with_jax(getattr(wf, name), getattr(jsp, name), POS, POS[::-1].copy(), tolerance=1e-9)
    second_derivative_is_the_slope_of_the_first(getattr(wf, name), 0.7, 1.3)


def test_derivatives_of_beta_functions_are_made_of_digamma():
    x, y = POS, POS[::-1].copy()
    by_x = special.digamma(x) - special.digamma(x + y)
    by_y = special.digamma(y) - special.digamma(x + y)
    for function, scale in ((wf.betaln, 1.0), (wf.beta, special.beta(x, y))):
        _, pullback = wf.vjp(function, x, y)
        left, right = pullback(np.ones(7))
        same(left, scale * by_x, 1e-13)
        same(right, scale * by_y, 1e-13)
        second_derivative_is_the_slope_of_the_first(function, 0.7, 1.3)


def test_derivatives_by_the_last_operand_are_the_integrands():
    a, b = 1.7, 0.6

    def slopes(function, x):
        return wf.grad(lambda v: function(v).sum())(x)

    density = POS ** (a - 1) * np.exp(-POS) / special.gamma(a)
    same(slopes(lambda x: wf.gammainc(a, x), POS), density, 1e-13)
    same(slopes(lambda x: wf.gammaincc(a, x), POS), -density, 1e-13)
    density = UNIT ** (a - 1) * (1 - UNIT) ** (b - 1) / special.beta(a, b)
    same(slopes(lambda x: wf.betainc(a, b, x), UNIT), density, 1e-13)
    same(slopes(lambda x: wf.zeta(a, x), POS), -a * special.zeta(a + 1, POS), 1e-13)
    for function in (wf.gammainc, wf.gammaincc, wf.zeta):
        second_derivative_is_the_slope_of_the_first(lambda x, f=function: f(a, x), 1.3)


def slope_by_shape(a, x):
    """∂P/∂a by its series, with digits enough for what cancels."""
    with mpmath.workdps(60 + int(x / 2)):
        a, x = mpmath.mpf(a), mpmath.mpf(x)
        level = mpmath.log(x) - mpmath.digamma(a + 1)
        term, harmonic, total, mass, n = mpmath.mpf(1), mpmath.mpf(0), level, mpmath.mpf(1), 0
        while term > mass * mpmath.eps:
            n += 1
            term, harmonic = term * x / (a + n), harmonic + 1 / (a + n)
            total, mass = total + term * (level - harmonic), mass + term
        return float(total * mpmath.exp(a * mpmath.log(x) - x - mpmath.loggamma(a + 1)))


SHAPES = [0.0, 1e-10, 0.1, 0.9, 1.0, 5.0, 19.9, 20.1, 99.0, 101.0, 400.0]


@pytest.mark.parametrize("a", SHAPES)
def test_the_derivative_of_incomplete_gamma_functions_by_the_shape_is_exact_in_both_tails(a):
    parts = np.array([1e-6, 0.01, 0.5, 0.9, 0.999, 1.0, 1.001, 1.1, 1.7, 3.0])
    x = max(a, 1.0) * parts
    want = np.array([slope_by_shape(a, each) for each in x])
    assert (want <= 0).all()
    shapes = np.full(x.shape, a)
    with np.errstate(over="raise", invalid="raise"):
        lower = wf.grad(lambda a: wf.gammainc(a, x).sum())(shapes)
        upper = wf.grad(lambda a: wf.gammaincc(a, x).sum())(shapes)
    np.testing.assert_allclose(lower.numpy(), want, rtol=2e-13, atol=1e-300)
    np.testing.assert_allclose(upper.numpy(), -want, rtol=2e-13, atol=1e-300)


@pytest.mark.parametrize("a", [1e8, 1e15, 1e300])
def test_the_derivative_of_incomplete_gamma_functions_by_large_shapes_is_a_normal_density(a):
    found = wf.grad(lambda b: wf.gammainc(b, np.float64(a)))(np.float64(a)).item()
    assert found == pytest.approx(-1 / np.sqrt(2 * np.pi) / np.sqrt(a), rel=1e-7)


def test_the_derivative_of_incomplete_gamma_functions_at_the_ends():
    a = np.array([1.0, 1.0, np.inf, 0.0, 2.0, -1.0, 1.0, np.nan])
    x = np.array([0.0, np.inf, 1.0, 3.0, 1e308, 1.0, -1.0, 1.0])
    found = wf.vmap(wf.grad(wf.gammainc))(a, x).numpy()
    np.testing.assert_allclose(found[:5], [0, 0, 0, -special.exp1(3.0), 0], rtol=1e-13)
    assert np.isnan(found[5:]).all()


@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_incomplete_gamma_functions_have_jaxs_derivatives_by_both(name):
    agrees_with_jax(getattr(wf, name), getattr(jsp, name), POS, POS[::-1].copy(), tolerance=1e-9)
    ours = getattr(wf, name)
    mixed = wf.grad(lambda x: wf.grad(ours)(np.float64(1.5), x))(np.float64(2.0)).item()
    other = wf.grad(lambda a: wf.grad(ours, 1)(a, np.float64(2.0)))(np.float64(1.5)).item()
    h = 1e-6
    near = [wf.grad(ours)(np.float64(1.5), np.float64(2.0 + s)).item() for s in (h, -h)]
    assert mixed == pytest.approx((near[0] - near[1]) / (2 * h), rel=1e-7)
    assert other == pytest.approx(mixed, rel=1e-12)
    narrow = wf.compile(wf.grad(lambda a: ours(a, 2.0).sum()))(POS.astype(np.float32))
    wide = wf.grad(lambda a: ours(a, 2.0).sum())(POS)
    np.testing.assert_allclose(narrow.numpy(), wide.numpy(), rtol=1e-5)


def test_derivatives_without_a_closed_form_are_refused():
    calls = {
        "derivative of gammainc: operand 0": wf.grad(lambda a: wf.gammainc(a, 0.5)),
        "derivative of gammaincc: operand 0": wf.grad(lambda a: wf.gammaincc(a, a)),
        "zeta: operand 0": lambda a: wf.zeta(a, 1.0),
        "betainc: operand 1": lambda b: wf.betainc(0.5, b, 0.5),
    }
    for message, function in calls.items():
        with pytest.raises(wf.errors.MissingRuleError, match=f"{message}: no vjp rule"):
            wf.grad(function)(1.5)
        with pytest.raises(wf.errors.MissingRuleError, match=f"{message}: no jvp rule"):
            wf.jvp(function, (1.5,), (1.0,))


def test_derivatives_of_sinc_are_right_at_zero():
    second = wf.grad(wf.grad(wf.sinc))
    assert wf.grad(wf.sinc)(np.float64(0)).item() == 0
    assert second(np.float64(0)).item() == pytest.approx(-(np.pi**2) / 3)
    for x in (0, 1e-4):  # beside 0 the quotient would cancel
        fourth = wf.grad(wf.grad(second))(np.float64(x))
        assert fourth.item() == pytest.approx(np.pi**4 / 5, rel=1e-5)


def test_derivatives_of_bessel_functions_are_right_at_zero():
    assert wf.grad(wf.i1)(np.float64(0)).item() == pytest.approx(0.5)
    third = wf.grad(wf.grad(wf.grad(wf.i1)))
    assert third(np.float64(0)).item() == pytest.approx(3 / 8)


def test_derivatives_of_xlogy_are_right_where_the_first_operand_is_zero():
    _, pullback = wf.vjp(wf.xlogy, np.float64(0), np.float64(0))
    assert pullback(np.float64(1))[1].item() == 0
    mixed = wf.grad(wf.grad(wf.xlogy, argnums=1), argnums=0)
    assert mixed(np.float64(0), np.float64(2)).item() == 0.5


def test_aliases_are_the_same_functions():
    assert wf.expit is wf.sigmoid and wf.gammaln is wf.lgamma and wf.psi is wf.digamma
