"""Draws have derivatives by the parameters of their laws, where they move with them."""

import numpy as np
import pytest
from scipy import special

import weft as wf
from weft import errors, random
from weft.ops.random.gamma import quantile_slope

KEY = random.key(20240607)
COVARIANCE = np.array([[2.0, 0.6], [0.6, 0.5]])


def test_draws_differentiate_in_location_and_scale():
    z = random.normal(KEY, (9,), "float64")

    def total(mean, std):
        return random.normal(KEY, (9,), "float64", mean, std).sum()

    slope = wf.grad(total, argnums=(0, 1))(
        wf.asarray(1.0, dtype="float64"), wf.asarray(2.0, dtype="float64")
    )
    assert np.allclose(slope[0].numpy(), 9)
    assert np.allclose(slope[1].numpy(), z.sum().numpy())
    low, high = wf.asarray(-1.0, dtype="float64"), wf.asarray(2.0, dtype="float64")
    u = random.uniform(KEY, (), "float64").item()
    ends = wf.grad(lambda a, b: random.uniform(KEY, (), None, a, b), argnums=(0, 1))(low, high)
    assert np.allclose([ends[0].item(), ends[1].item()], [1 - u, u])


def test_truncated_and_multivariate_normals_differentiate():
    step = 1e-6
    low = wf.asarray(-1.0, dtype="float64")
    draw_from = lambda a: random.truncated_normal(KEY, a, 2.0, (5,)).sum()  # noqa: E731
    slope = (draw_from(low + step) - draw_from(low - step)).item() / (2 * step)
    assert np.isclose(wf.grad(draw_from)(low).item(), slope, rtol=1e-5)
    scale = wf.asarray(2.0, dtype="float64")

    def vector(s):
        return random.multivariate_normal(KEY, np.zeros(2), s * COVARIANCE).sum()

    assert np.isclose(wf.grad(vector)(scale).item(), vector(scale).item() / 4)


@pytest.mark.parametrize("a", [1.0, 2.5, 40.0, 1e4])
def test_a_gamma_draw_follows_its_quantile_as_the_shape_grows(a):
    shapes = np.full(500, a)
    drawn, pull = wf.vjp(lambda a: random.gamma(KEY, a), wf.asarray(shapes))
    slope = pull(wf.ones_like(drawn))[0].numpy()
    x, step = drawn.numpy(), 1e-5 * a
    below, above = special.gammainc(a, x), special.gammaincc(a, x)

    def quantile(a):
        inverse = special.gammaincinv(a, below), special.gammainccinv(a, above)
        return np.where(below < 0.5, *inverse)

    wanted = (quantile(a + step) - quantile(a - step)) / (2 * step)
    np.testing.assert_allclose(slope, wanted, rtol=1e-8)
    compiled = wf.compile(wf.grad(lambda a: random.gamma(KEY, a).sum()))
    assert compiled(wf.asarray(shapes)).numpy().tobytes() == slope.tobytes()
    alone = wf.grad(lambda a: random.gamma(KEY, a)[7])(wf.asarray(shapes))
    assert alone[7].item() == slope[7]


MOMENTS = {  # a draw, and how fast its mean changes
    "gamma": (lambda a: random.gamma(KEY, a, (40_000,)), lambda a: 1.0),
    "loggamma": (lambda a: random.loggamma(KEY, a, (40_000,)), lambda a: special.polygamma(1, a)),
    "beta": (lambda a: random.beta(KEY, a, 2.0, (40_000,)), lambda a: 2 / (a + 2) ** 2),
    "chisquare": (lambda a: random.chisquare(KEY, a, (40_000,)), lambda a: 1.0),
}


@pytest.mark.parametrize("a", [0.2, 0.9, 3.0])
@pytest.mark.parametrize("name", MOMENTS)
def test_slopes_of_draws_have_the_slope_of_the_mean(name, a):
    draw, wanted = MOMENTS[name]
    found = wf.grad(lambda a: draw(a).mean())(a).item()
    assert found == pytest.approx(wanted(a), rel=0.03)


def test_the_second_derivative_of_a_gamma_draw_is_ahead_or_refused():
    a, one = wf.asarray(2.0, dtype="float64"), wf.ones((), dtype="float64")
    slope = wf.grad(lambda a: random.gamma(KEY, a))
    found = wf.jvp(slope, (a,), (one,))[1].item()
    x, h = random.gamma(KEY, a), 1e-4
    ahead, behind = (quantile_slope(a + s, x + s * slope(a)).item() for s in (h, -h))
    assert found == pytest.approx((ahead - behind) / (2 * h), rel=1e-6)
    with pytest.raises(errors.MissingRuleError, match="while_loop: no vjp rule"):
        wf.grad(slope)(a)


def test_discrete_draws_let_gradients_pass_by():
    def score(p):
        hit = random.bernoulli(KEY, p)
        count = random.poisson(KEY, 10 * p)
        return wf.where(hit, p, 1 - p) + count.astype("float32") * p

    assert np.isfinite(wf.grad(score)(wf.asarray(0.7)).item())
