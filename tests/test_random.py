"""Random numbers: laws of keys and generators, and distributions against SciPy."""

from inspect import signature

import jax
import mpmath
import numpy as np
import pytest
from scipy import stats

import weft as wf
from weft import random
from weft.ops.base import call
from weft.ops.functions.numpy_scalars import NumpyScalars
from weft.ops.random import counts
from weft.ops.random.bits import midpoint, random_bits_op

KEY = random.key(20240607)
N = 20_000
COVARIANCE = np.array([[2.0, 0.6], [0.6, 0.5]])

CONTINUOUS = {
    "uniform": ((), {}, stats.uniform()),
    "uniform between": ((), {"minval": -3.0, "maxval": 2.0}, stats.uniform(-3, 5)),
    "normal": ((), {}, stats.norm()),
    "normal moved": ((), {"mean": 2.0, "std": 0.5}, stats.norm(2, 0.5)),
    "truncated_normal": ((-1.0, 2.0), {}, stats.truncnorm(-1, 2)),
    "truncated_normal far": ((5.0, 7.0), {}, stats.truncnorm(5, 7)),
    "truncated_normal left": ((-np.inf, -2.0), {}, stats.truncnorm(-np.inf, -2)),
    "exponential": ((), {}, stats.expon()),
    "gamma": ((3.0,), {}, stats.gamma(3)),
    "gamma small": ((0.2,), {}, stats.gamma(0.2)),
    "gamma one": ((1.0,), {}, stats.gamma(1)),
    "gamma large": ((1e6,), {}, stats.gamma(1e6)),
    "loggamma": ((0.3,), {}, stats.loggamma(0.3)),
    "beta": ((0.5, 2.0), {}, stats.beta(0.5, 2)),
    "laplace": ((), {}, stats.laplace()),
    "gumbel": ((), {}, stats.gumbel_r()),
    "logistic": ((), {}, stats.logistic()),
    "cauchy": ((), {}, stats.cauchy()),
    "chisquare": ((3.0,), {}, stats.chi2(3)),
    "t": ((2.5,), {}, stats.t(2.5)),
    "f": ((3.0, 7.0), {}, stats.f(3, 7)),
    "pareto": ((3.0,), {}, stats.pareto(3)),
    "rayleigh": ((2.0,), {}, stats.rayleigh(scale=2)),
    "weibull_min": ((2.0, 1.5), {}, stats.weibull_min(1.5, scale=2)),
    "maxwell": ((), {}, stats.maxwell()),
    "lognormal": ((0.5,), {}, stats.lognorm(0.5)),
}
DISCRETE = {
    "randint": ((), {"minval": -3, "maxval": 8}, stats.randint(-3, 8)),
    "bernoulli": ((0.3,), {}, stats.bernoulli(0.3)),
    "poisson": ((2.5,), {}, stats.poisson(2.5)),
    "poisson inverted": ((9.99,), {}, stats.poisson(9.99)),
    "poisson rejected": ((10.0,), {}, stats.poisson(10)),
    "poisson large": ((400.0,), {}, stats.poisson(400)),
    "binomial": ((12, 0.3), {}, stats.binom(12, 0.3)),
    "binomial likely": ((12, 0.9), {}, stats.binom(12, 0.9)),
    "binomial least": ((20, 0.5), {}, stats.binom(20, 0.5)),
    "binomial rare": ((10**9, 3e-9), {}, stats.binom(10**9, 3e-9)),
    "binomial large": ((1000, 0.7), {}, stats.binom(1000, 0.7)),
    "geometric": ((0.2,), {}, stats.geom(0.2)),
}
# Every distribution with arguments, for laws that hold for all.
CALLS = {
    **{name: (args, kw) for name, (args, kw, _) in (CONTINUOUS | DISCRETE).items()},
    "bits": ((), {}),
    "rademacher": ((), {}),
    "categorical": (([0.1, 1.0, -2.0],), {}),
    "multinomial": ((40, [0.2, 0.5, 0.3]), {}),
    "dirichlet": (([0.5, 2.0, 1.0],), {}),
    "multivariate_normal": (([1.0, 2.0], COVARIANCE.astype(np.float32)), {}),
    "wishart": ((3.0, COVARIANCE.astype(np.float32)), {}),
    "choice": ((7,), {}),
    "choice weighted": ((3,), {"p": [0.2, 0.5, 0.3]}),
}


def draw(name, key, shape, **more):
    args, keywords = CALLS[name]
    return getattr(random, name.split()[0])(key, *args, shape=shape, **keywords, **more)


def fits(sample, law):
    assert np.isfinite(sample).all()
    assert stats.kstest(sample.astype(np.float64).ravel(), law.cdf).pvalue > 1e-6


def counts_fit(sample, law):
    values, seen = np.unique(sample, return_counts=True)
    support = np.arange(values.min(), values.max() + 1)
    expected = law.pmf(support) * sample.size
    observed = np.zeros(len(support))
    observed[values - values.min()] = seen
    common = expected > 5
    rest = sample.size - expected[common].sum(), sample.size - observed[common].sum()
    statistic = ((observed - expected)[common] ** 2 / expected[common]).sum()
    statistic += (rest[1] - rest[0]) ** 2 / max(rest[0], 5)
    assert stats.chi2.sf(statistic, max(common.sum(), 1)) > 1e-6


# Distributions.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_draws_follow_their_law(name, dtype):
    sample = draw(name, KEY, (N,), dtype=dtype).numpy()
    assert sample.dtype == dtype
    fits(sample, CONTINUOUS[name][2])


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_draws_follow_their_law(name):
    counts_fit(draw(name, KEY, (N,)).numpy().astype(np.int64), DISCRETE[name][2])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3", "float8_e5m2"])
def test_narrow_draws_are_rounded_from_float32(dtype):
    for name in ("normal", "gamma", "beta", "laplace"):
        wide, narrow = (draw(name, KEY, (500,), dtype=d) for d in ("float32", dtype))
        assert narrow.dtype == wf.zeros((), dtype=dtype).dtype
        assert np.array_equal(narrow.numpy(), wide.astype(dtype).numpy())


@pytest.mark.parametrize(
    ("dtype", "digits"),
    [("float64", 53), ("float32", 24), ("float16", 11), ("bfloat16", 8), ("float8_e4m3", 4)],
)
def test_uniform_floats_are_exact_multiples_below_one(dtype, digits):
    sample = random.uniform(KEY, (5000,), dtype).numpy().astype(np.float64)
    assert sample.min() >= 0
    assert sample.max() < 1
    scaled = sample * 2.0**digits
    assert np.array_equal(scaled, np.floor(scaled))
    assert (scaled % 2 == 1).any()


def test_uniform_never_rounds_up_to_its_open_end():
    low, high = np.float32(1e6), np.float32(1e6 + 1)
    sample = random.uniform(KEY, (N,), "float32", low, high).numpy()
    values, seen = np.unique(sample, return_counts=True)
    assert values.max() < high
    assert len(values) == 16
    assert stats.chisquare(seen).pvalue > 1e-6


@pytest.mark.parametrize(
    ("dtype", "end"), [("float32", 3e38), ("float16", 60000), ("float64", 1e308)]
)
def test_uniform_of_an_interval_whose_length_overflows(dtype, end):
    sample = random.uniform(KEY, (N,), dtype, -end, end).numpy().astype(np.float64) / end
    assert stats.kstest(sample, stats.uniform(-1, 2).cdf).pvalue > 1e-6
    with pytest.raises(wf.errors.ArgumentError, match="minval must be finite"):
        random.uniform(KEY, (2,), minval=-np.inf)


def test_normals_have_independent_neighbours_and_light_tails():
    x = random.normal(KEY, (200_000,)).numpy().astype(np.float64)
    assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 5 / np.sqrt(x.size)
    assert abs(stats.skew(x)) < 5 * np.sqrt(6 / x.size)
    assert abs(stats.kurtosis(x)) < 5 * np.sqrt(24 / x.size)
    beyond = (np.abs(x) > 4).mean()
    assert abs(beyond - 2 * stats.norm.sf(4)) < 5 * np.sqrt(2 * stats.norm.sf(4) / x.size)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normals_are_box_muller_of_the_words_bit_for_bit(dtype):
    kind, size = np.dtype(dtype), 100_003
    if dtype == "float32":
        x, y = (block_words(KEY, size) >> np.uint64(32), block_words(KEY, size) & 0xFFFFFFFF)
        y, digits = y >> np.uint64(9), 23
    else:
        x, y = (block_words(k, size) for k in random.split(KEY, 2))
        y, digits = y >> np.uint64(12), 52
    half = kind.type(0.5)
    radius = (x.astype(kind) + half) * kind.type(2.0 ** -(8 * kind.itemsize))
    radius = np.minimum(radius, kind.type(1 - np.finfo(kind).epsneg))
    angle = (y.astype(kind) + half) * kind.type(np.pi * 2.0**-digits)
    length = np.sqrt(kind.type(-2) * NumpyScalars.call("log", radius))
    wanted = length * NumpyScalars.call("cos", angle)
    for drawn in (random.normal(KEY, (size,), dtype), COMPILED_NORMAL(KEY, (size,), dtype)):
        assert drawn.numpy().tobytes() == wanted.tobytes()


def block_words(key, size):
    """Both words of the blocks 0, 1, … of a key, by the reference."""
    return random_bits_op.eval(key.numpy(), shape=(size,), bits=64)


COMPILED_NORMAL = wf.compile(random.normal, static_argnums=(1, 2))


def test_no_normal_is_a_zero():
    turns = wf.asarray(np.arange(1 << 23, dtype=np.uint32))
    params = {"bits": 23, "length": np.pi, "dtype": np.dtype("float32")}
    cosines = wf.compile(lambda x: wf.cos(call(midpoint, (x,), params)))(turns).numpy()
    assert (cosines != 0).all()
    nearest = wf.asarray([np.pi / 2, np.nextafter(np.pi / 2, 0), np.nextafter(np.pi / 2, 2)])
    assert (wf.cos(nearest).numpy() != 0).all()
    for dtype in ("float32", "float64"):
        below = np.nextafter(np.ones(1, dtype), np.zeros(1, dtype))
        assert wf.log(wf.asarray(below)).item() < 0


def test_a_spread_of_zero_leaves_the_mean():
    for mean in (0.0, 0, 3.0):
        drawn = random.normal(KEY, (100,), mean=mean, std=0.0).numpy()
        assert drawn.tobytes() == np.full(100, mean, np.float32).tobytes()


def test_truncated_normals_stay_inside_and_far_out():
    for low, high in ((-0.5, 0.1), (6.0, np.inf), (-np.inf, -6.0), (30.0, 31.0)):
        sample = random.truncated_normal(KEY, low, high, (2000,)).numpy()
        assert sample.min() >= np.float32(low)
        assert sample.max() <= np.float32(high)


def test_a_truncated_normal_beyond_all_shares_is_the_nearest_end():
    def ends(low, high):
        return random.truncated_normal(KEY, low, high, (2,))

    assert ends(20.0, 21.0).tolist() == [20, 20]
    assert ends(-21.0, -20.0).tolist() == [-20, -20]
    slopes = wf.grad(lambda low, high: ends(low, high).sum(), argnums=(0, 1))(20.0, 21.0)
    assert [slope.item() for slope in slopes] == [2, 0]


def test_randint_covers_whole_ranges_of_every_dtype():
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        limits = np.iinfo(name)
        low, high = int(limits.min), int(limits.max) + 1
        sample = random.randint(KEY, (N,), low, high, name).numpy()
        assert sample.dtype == name
        fraction = (sample.astype(np.float64) - low) / (high - low)
        assert stats.kstest(fraction, "uniform").pvalue > (1e-6 if name[-1] != "8" else 0)
        assert random.randint(KEY, (9,), low, low + 1, name).tolist() == [low] * 9
        assert random.randint(KEY, (9,), high - 1, high, name).tolist() == [high - 1] * 9


def test_randint_is_unbiased_for_spans_near_the_word():
    span = 3 * 2**62
    sample = random.randint(KEY, (N,), 0, span, "uint64").numpy().astype(np.float64)
    thirds = np.bincount((sample / 2**62).astype(int), minlength=3)
    assert len(thirds) == 3
    assert stats.chisquare(thirds).pvalue > 1e-6


def test_randint_multiplies_exactly():
    keys = random.split(KEY, 2)
    for size in (32, 64):
        upper, lower = (random.bits(k, (300,), f"uint{size}").tolist() for k in keys)
        for span in (3, 2 ** (size // 2) + 1, 2 ** (size - 1) + 12345, 2**size - 1):
            pairs = zip(upper, lower, strict=True)
            want = [((u << size | v) * span) >> (2 * size) for u, v in pairs]
            assert random.randint(KEY, (300,), 0, span, f"uint{size}").tolist() == want


def test_randint_takes_bounds_per_element():
    low, high = wf.asarray([[0], [100]]), wf.asarray([1, 5, 50]) + 100
    sample = random.randint(KEY, (2, 3), low, high).numpy()
    assert (sample >= low.numpy()).all()
    assert (sample < high.numpy()).all()


def test_coins_at_the_ends_are_certain():
    assert not random.bernoulli(KEY, 0.0, (N,)).numpy().any()
    assert random.bernoulli(KEY, 1.0, (N,)).numpy().all()
    rare = random.bernoulli(KEY, 1e-3, (400_000,)).numpy().sum()
    assert abs(rare - 400) < 100


@pytest.mark.parametrize(
    ("n", "p", "want"),
    [(0, 0.3, 0), (5, 0.0, 0), (5, 1.0, 5), (10**6, 0.0, 0), (10**6, 1.0, 10**6)],
)
def test_binomial_at_the_ends_is_certain(n, p, want):
    assert set(random.binomial(KEY, n, p, (100,)).tolist()) == {want}


@pytest.mark.parametrize("lam", [1e6, 1e12])
def test_large_poisson_means_have_the_right_moments(lam):
    z = (random.poisson(KEY, lam, (N,)).numpy() - lam) / np.sqrt(lam)
    fits(z, stats.norm())
    assert set(random.poisson(KEY, 0.0, (50,)).tolist()) == {0}


@pytest.mark.parametrize(("n", "p"), [(20, 0.5), (1000, 0.01), (10**6, 0.3), (10**15, 0.4)])
def test_probabilities_in_the_rejection_tests_are_precise(n, p):
    # SciPy's own differences of logarithmic factorials cancel for large n: mpmath is the oracle.
    spread = np.sqrt(n * p * (1 - p))
    places = np.clip(np.floor(n * p + np.array([-9, -3, -1, 0, 2, 8]) * spread), 0, n)
    k, trials, chance = (wf.asarray(np.float64(x)) for x in (places, n, p))
    mean = n * p
    with mpmath.workdps(60):
        want = [_log_binomial(int(x), n, p) for x in places]
        rates = [x * mpmath.log(mean) - mean - mpmath.loggamma(x + 1) for x in map(int, places)]
    found = counts._log_binomial(k, trials, chance).numpy()
    close = 1e-12 if n < 10**9 else 1e-7  # n·p itself is rounded
    assert np.allclose(found, np.array(want, np.float64), rtol=0, atol=close)
    positive = places > 0
    rate = wf.asarray(np.float64(mean))
    density = -counts._deviance(k, rate) - counts._stirling(k)
    density = density.numpy()[positive] - 0.5 * np.log(2 * np.pi * places[positive])
    want_rates = np.array(rates, np.float64)[positive]
    assert np.allclose(density, want_rates, rtol=1e-13, atol=1e-12)


def _log_binomial(k, n, p):
    factorial = mpmath.loggamma
    choose = factorial(n + 1) - factorial(k + 1) - factorial(n - k + 1)
    return choose + k * mpmath.log(p) + (n - k) * mpmath.log(1 - mpmath.mpf(p))


@pytest.mark.parametrize("name", ["gamma one", "binomial least", "poisson rejected"])
@pytest.mark.slow
def test_rejection_is_exact_where_most_candidates_are_refused(name):
    law = (CONTINUOUS | DISCRETE)[name][2]
    sample = draw(name, KEY, (150_000,)).numpy().astype(np.float64)
    edges = law.ppf(np.linspace(0, 1, 12)[1:-1])
    seen = np.histogram(sample, np.r_[-np.inf, np.unique(edges) + 0.25, np.inf])[0]
    share = np.diff(np.r_[0, law.cdf(np.unique(edges) + 0.25), 1])
    assert stats.chisquare(seen, share * sample.size).pvalue > 1e-6


def test_large_binomials_have_the_right_moments():
    n, p = 10**12, 0.25
    z = (random.binomial(KEY, n, p, (N,)).numpy() - n * p) / np.sqrt(n * p * (1 - p))
    fits(z, stats.norm())


@pytest.mark.slow
def test_counts_mix_small_and_large_parameters_in_one_draw():
    lam = np.array([0.0, 3.0, 30.0, 3000.0])
    sample = random.poisson(KEY, lam, (5000, 4)).numpy()
    assert (np.abs(sample.mean(0) - lam) <= 5 * np.sqrt(lam / 5000)).all()
    for i, rate in enumerate(lam):  # a value does not depend on what is known of the others
        alone = random.poisson(KEY, np.full((5000, 4), rate)).numpy()
        assert np.array_equal(sample[:, i], alone[:, i])
    n, p = np.array([5, 50, 5000]), np.array([0.5, 0.9, 0.2])
    sample = random.binomial(KEY, n, p, (5000, 3)).numpy()
    assert (np.abs(sample.mean(0) - n * p) <= 5 * np.sqrt(n * p * (1 - p) / 5000)).all()


def test_tiny_gamma_shapes_underflow_only_outside_the_logarithm():
    assert (random.gamma(KEY, 1e-4, (1000,)).numpy() >= 0).all()
    assert np.isfinite(random.loggamma(KEY, 1e-4, (1000,)).numpy()).all()
    points = random.dirichlet(KEY, [1e-4, 1e-4, 1e-4], (1000,)).numpy()
    assert np.allclose(points.sum(-1), 1)
    assert (points.max(-1) > 0.999).mean() > 0.98
    halves = random.beta(KEY, 1e-4, 1e-4, (1000,)).numpy()
    assert 0.4 < (halves > 0.5).mean() < 0.6


def test_categories_come_up_with_their_probabilities():
    logits = np.log([0.1, 0.6, 0.3])
    sample = random.categorical(KEY, logits, shape=(N,)).numpy()
    assert stats.chisquare(np.bincount(sample), N * np.exp(logits)).pvalue > 1e-6
    table = wf.asarray([[0.0, -np.inf], [-np.inf, 0.0], [0.0, -np.inf]])
    assert random.categorical(KEY, table).tolist() == [0, 1, 0]
    assert random.categorical(KEY, table, axis=0, shape=(5, 2)).shape == (5, 2)


@pytest.mark.slow
def test_multinomial_counts_add_up_and_follow_their_law():
    p = np.array([0.2, 0.0, 0.5, 0.25, 0.05])
    sample = random.multinomial(KEY, 60, p, (N,)).numpy()
    assert sample.shape == (N, 5)
    assert (sample.sum(-1) == 60).all()
    for i in (0, 2, 3, 4):
        counts_fit(sample[:, i], stats.binom(60, p[i]))
    assert not sample[:, 1].any()
    covariance = np.cov(sample[:, 0], sample[:, 2])[0, 1]
    assert abs(covariance + 60 * 0.1) < 0.6
    assert random.multinomial(KEY, 7, [1.0]).tolist() == [7]
    assert random.multinomial(KEY, 0, [0.5, 0.5]).tolist() == [0, 0]


def test_dirichlet_margins_are_beta():
    alpha = np.array([0.5, 2.0, 1.5])
    sample = random.dirichlet(KEY, alpha, (N,)).numpy()
    assert np.allclose(sample.sum(-1), 1)
    for i in range(3):
        fits(sample[:, i], stats.beta(alpha[i], 4 - alpha[i]))


def test_normal_vectors_have_mean_and_covariance():
    mean = np.array([1.0, -2.0])
    sample = random.multivariate_normal(KEY, mean, COVARIANCE, (N,)).numpy()
    whitened = np.linalg.solve(np.linalg.cholesky(COVARIANCE), (sample - mean).T)
    fits(whitened, stats.norm())
    assert abs(np.corrcoef(whitened)[0, 1]) < 5 / np.sqrt(N)
    assert random.multivariate_normal(KEY, np.zeros((3, 2)), COVARIANCE).shape == (3, 2)


def test_wishart_matrices_follow_their_law():
    df = 4.5
    sample = random.wishart(KEY, df, COVARIANCE, (N,)).numpy()
    assert np.allclose(sample, sample.mT)
    assert np.linalg.eigvalsh(sample).min() > 0
    fits(sample[:, 0, 0] / COVARIANCE[0, 0], stats.chi2(df))
    fits(sample[:, 1, 1] / COVARIANCE[1, 1], stats.chi2(df))
    determinant = np.linalg.det(sample) / np.linalg.det(COVARIANCE)
    assert abs(determinant.mean() - df * (df - 1)) < 5 * determinant.std() / np.sqrt(N)
    assert abs(sample[:, 0, 1].mean() - df * 0.6) < 5 * sample[:, 0, 1].std() / np.sqrt(N)


# Orders and choices.


def test_permutations_hold_every_element_once_and_are_uniform():
    assert sorted(random.permutation(KEY, 100).tolist()) == list(range(100))
    orders = wf.vmap(lambda k: random.permutation(k, 3))(random.split(KEY, 6000)).numpy()
    seen = np.unique(orders @ [100, 10, 1], return_counts=True)[1]
    assert len(seen) == 6
    assert stats.chisquare(seen).pvalue > 1e-6
    assert random.permutation(KEY, 0).shape == (0,)


def test_permutations_move_slices_whole_or_each_line_by_itself():
    x = np.arange(12).reshape(3, 4)
    columns = random.permutation(KEY, x, axis=1).numpy()
    assert sorted(map(tuple, columns.T)) == sorted(map(tuple, x.T))
    lines = random.permutation(
        KEY, np.tile(np.arange(50), (4, 1)), axis=-1, independent=True
    ).numpy()
    assert (np.sort(lines, axis=1) == np.arange(50)).all()
    assert len({tuple(line) for line in lines}) == 4
    assert random.shuffle is random.permutation


def test_a_number_of_elements_may_be_an_array_without_axes():
    key, draw = wf.random.key(3), wf.random.choice
    for number in (np.array(5), wf.tensor(5), np.int64(5)):
        assert wf.random.permutation(key, number).tolist() == wf.random.permutation(key, 5).tolist()
        assert draw(key, number, (4,)).tolist() == draw(key, 5, (4,)).tolist()
    for function in (wf.random.permutation, wf.random.choice):
        with pytest.raises(wf.errors.DTypeError, match="the number of elements must be an integer"):
            function(key, wf.tensor(2.5))


def test_choices_with_and_without_repetition():
    assert len(set(random.choice(KEY, 50, (50,), replace=False).tolist())) == 50
    p = np.array([0.1, 0.0, 0.6, 0.3])
    sample = random.choice(KEY, 4, (N,), p=p).numpy()
    seen = np.bincount(sample, minlength=4)
    assert seen[1] == 0
    assert stats.chisquare(seen[p > 0], N * p[p > 0]).pvalue > 1e-6
    assert sorted(random.choice(KEY, 4, (3,), replace=False, p=p).tolist()) == [0, 2, 3]
    first = wf.vmap(lambda k: random.choice(k, 4, (2,), replace=False, p=p))(random.split(KEY, N))
    seen = np.bincount(first.numpy()[:, 0], minlength=4)
    assert stats.chisquare(seen[p > 0], N * p[p > 0]).pvalue > 1e-6
    rows = random.choice(KEY, wf.asarray([[1, 2], [3, 4], [5, 6]]), (2, 5))
    assert rows.shape == (2, 5, 2)
    assert set(map(tuple, rows.numpy().reshape(-1, 2).tolist())) <= {(1, 2), (3, 4), (5, 6)}
    assert random.choice(KEY, wf.asarray([[1, 2], [3, 4]]), (3,), axis=1).shape == (2, 3)


@pytest.mark.parametrize("weight", [3e38, 1e-45])
def test_choices_take_weights_of_any_size(weight):
    p = np.array([weight, weight, 0], np.float32)
    seen = np.bincount(random.choice(KEY, 3, (N,), p=p).numpy(), minlength=3)
    assert len(seen) == 3
    assert seen[2] == 0
    assert stats.chisquare(seen[:2]).pvalue > 1e-6


def test_numpy_integers_count_elements():
    assert random.permutation(KEY, np.int64(5)).tolist() == random.permutation(KEY, 5).tolist()
    assert random.choice(KEY, np.int32(5), (4,)).tolist() == random.choice(KEY, 5, (4,)).tolist()


# Laws.


@pytest.mark.parametrize("name", CALLS)
def test_a_map_over_keys_is_a_loop_over_keys_bit_for_bit(name):
    keys = random.split(KEY, 3)
    mapped = wf.vmap(lambda k: draw(name, k, (5, 2)))(keys).numpy()
    looped = np.stack([draw(name, keys[i], (5, 2)).numpy() for i in range(3)])
    assert mapped.dtype == looped.dtype
    assert np.array_equal(mapped, looped)


@pytest.mark.parametrize("name", CALLS)
def test_draws_do_not_depend_on_how_positions_are_shaped(name):
    flat = draw(name, KEY, (12,)).numpy()
    shaped = draw(name, KEY, (3, 4)).numpy()
    assert np.array_equal(shaped.reshape(flat.shape), flat)


@pytest.mark.parametrize("name", CALLS)
def test_draws_can_be_empty_scalar_and_traced(name):
    assert draw(name, KEY, (0, 3)).shape[:2] == (0, 3)
    scalar = draw(name, KEY, ())
    traced = wf.eval_shape(lambda k: draw(name, k, ()), KEY)
    assert (traced.shape, traced.dtype) == (scalar.shape, scalar.dtype)


@pytest.mark.parametrize(
    ("name", "parameter"),
    [("poisson", [1.0, 50.0]), ("gamma", [0.3, 4.0]), ("bernoulli", [0.1, 0.9]), ("t", [1.0, 9.0])],
)
def test_a_map_over_parameters_is_a_loop_over_parameters(name, parameter):
    function = getattr(random, name)
    values = wf.asarray(parameter)
    mapped = wf.vmap(lambda a: function(KEY, a, (7,)))(values).numpy()
    assert np.array_equal(mapped, np.stack([function(KEY, v, (7,)).numpy() for v in values]))


def test_parameters_out_of_range_are_marked_where_they_cannot_be_read():
    bad = wf.asarray([-1.0, 2.0])
    assert wf.vmap(lambda x: random.poisson(KEY, x))(bad).tolist()[0] == -1
    assert wf.vmap(lambda x: random.binomial(KEY, 3, x))(bad).tolist() == [-1, -1]
    assert np.isnan(wf.vmap(lambda x: random.gamma(KEY, x))(bad).numpy()).tolist() == [True, False]


def test_keys_of_a_split_are_distinct_and_uncorrelated():
    keys = random.split(KEY, 8)
    assert len({tuple(k) for k in keys.tolist()}) == 8
    draws = wf.vmap(lambda k: random.normal(k, (5000,)))(keys).numpy()
    correlation = np.corrcoef(draws) - np.eye(8)
    assert np.abs(correlation).max() < 5 / np.sqrt(5000)
    assert random.split(KEY, (2, 3)).shape == (2, 3, 2)
    assert np.array_equal(random.split(KEY, 4).numpy(), random.fold_in(KEY, np.arange(4)).numpy())


def test_keys_come_from_numbers_and_tensors_alike():
    for seed in (0, 7, 2**40 + 3, -1, 2**63 - 1):
        assert random.key(wf.asarray(seed)).tolist() == random.key(seed).tolist()
    assert random.key(-1).tolist() == random.key(2**64 - 1).tolist() == [2**32 - 1] * 2
    assert wf.vmap(random.key)(wf.asarray([1, 2])).tolist() == [[0, 1], [0, 2]]


def test_a_generator_has_every_distribution_without_the_key():
    own = random.Generator(11)
    for count, name in enumerate(CALLS):
        args, keywords = CALLS[name]
        got = getattr(own, name.split()[0])(*args, shape=(2,), **keywords)
        want = draw(name, random.fold_in(random.key(11), count), (2,))
        assert np.array_equal(got.numpy(), want.numpy())
    assert sorted(own.permutation(5).tolist()) == sorted(own.shuffle(5).tolist())


def test_argument_orders_follow_jax():
    for name in (
        "uniform",
        "randint",
        "bernoulli",
        "gamma",
        "beta",
        "poisson",
        "choice",
        "permutation",
    ):
        mine = list(signature(getattr(random, name)).parameters)
        theirs = list(signature(getattr(jax.random, name)).parameters)
        shared = [p for p in mine if p in theirs]
        assert shared == [p for p in theirs if p in mine]


def test_a_choice_without_repetition_begins_as_the_permutation_does():
    key = random.key(3)
    for size, count in ((10, 10), (5000, 40), (7, 0)):
        found = random.choice(key, size, (count,), replace=False)
        assert found.tolist() == random.permutation(key, size)[:count].tolist()
    weights = wf.tensor([0.0, 3.0, 1.0, 0.0, 2.0])
    assert sorted(random.choice(key, 5, (3,), replace=False, p=weights).tolist()) == [1, 2, 4]
