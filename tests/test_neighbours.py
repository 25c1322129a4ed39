"""Other libraries accept tensors and give tensors: SciPy, scikit-learn, einops, jaxtyping.

SciPy decides when it is loaded whether it takes other arrays than NumPy's, so its functions run in
a process of their own.
"""

import json
import os
import subprocess
import sys
import textwrap

import einops
import einops.array_api
import jaxtyping
import numpy as np
import pytest
import sklearn
from sklearn import metrics
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import (
    LabelEncoder,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    PolynomialFeatures,
    StandardScaler,
)

import weft as wf

SCIPY_PROGRAM = """
    import json, warnings
    import numpy as np
    from scipy import cluster, differentiate, fft, integrate, ndimage, signal, special, stats
    from scipy.cluster import hierarchy, vq
    import weft as wf

    warnings.simplefilter("error")
    x, y = np.linspace(0.1, 2, 12), np.cos(np.arange(12.0))
    calls = {
        "special.erf": lambda x, y: special.erf(x),
        "special.gammaln": lambda x, y: special.gammaln(x),
        "special.logsumexp": lambda x, y: special.logsumexp(x.reshape((3, 4)), axis=1),
        "special.softmax": lambda x, y: special.softmax(x.reshape((3, 4)), axis=0),
        "special.betainc": lambda x, y: special.betainc(x, x, x / 3),
        "fft.rfft": lambda x, y: fft.rfft(x),
        "fft.fftn": lambda x, y: fft.fftn(x.reshape((3, 4))),
        "fft.dct": lambda x, y: fft.dct(x),
        "stats.skew": lambda x, y: stats.skew(x),
        "stats.zscore": lambda x, y: stats.zscore(x),
        "stats.pearsonr": lambda x, y: stats.pearsonr(x, y).statistic,
        "stats.ttest_ind": lambda x, y: stats.ttest_ind(x, y).pvalue,
        "stats.rankdata": lambda x, y: stats.rankdata(y),
        "stats.mannwhitneyu": lambda x, y: stats.mannwhitneyu(x, y).pvalue,
        "stats.quantile": lambda x, y: stats.quantile(x, 0.3),
        "signal.fftconvolve": lambda x, y: signal.fftconvolve(x, y),
        "signal.detrend": lambda x, y: signal.detrend(y),
        "signal.hilbert": lambda x, y: signal.hilbert(y),
        "signal.savgol_filter": lambda x, y: signal.savgol_filter(y, 5, 2),
        "ndimage.gaussian_filter": lambda x, y: ndimage.gaussian_filter(y, 1.0),
        "ndimage.zoom": lambda x, y: ndimage.zoom(y.reshape((3, 4)), 2),
        "integrate.trapezoid": lambda x, y: integrate.trapezoid(y, x),
        "integrate.cumulative_simpson": lambda x, y: integrate.cumulative_simpson(y, x=x),
        "differentiate.derivative": lambda x, y: differentiate.derivative(lambda t: t**2, x).df,
        "cluster.vq.whiten": lambda x, y: vq.whiten(x.reshape((3, 4))),
        "cluster.hierarchy.linkage": lambda x, y: hierarchy.linkage(y.reshape((3, 4))),
    }
    report = {}
    for name, call in calls.items():
        found, expected = call(wf.asarray(x), wf.asarray(y)), call(x, y)
        close = bool(np.allclose(np.asarray(found), expected, rtol=1e-6, atol=1e-9))
        report[name] = [type(found).__name__, close]
    print(json.dumps(report))
"""


def run(program: str, **variables: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


@pytest.mark.slow
def test_scipy_functions_give_tensors_with_the_right_values():
    report = json.loads(run(SCIPY_PROGRAM, SCIPY_ARRAY_API="1"))
    assert len(report) == 26
    assert {name: found for name, found in report.items() if found != ["Tensor", True]} == {}


@pytest.fixture
def samples():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 4)).astype("float32")
    labels = (x[:, 0] + x[:, 1] > 0).astype("int64")
    targets = (x @ np.arange(4.0)).astype("float32")
    return x, labels, targets


ESTIMATORS = {
    "StandardScaler": lambda x, labels, targets: StandardScaler().fit_transform(x),
    "MinMaxScaler": lambda x, labels, targets: MinMaxScaler().fit_transform(x),
    "MaxAbsScaler": lambda x, labels, targets: MaxAbsScaler().fit_transform(x),
    "Normalizer": lambda x, labels, targets: Normalizer().fit_transform(x),
    "PolynomialFeatures": lambda x, labels, targets: PolynomialFeatures(2).fit_transform(x),
    "LabelEncoder": lambda x, labels, targets: LabelEncoder().fit_transform(labels),
    "PCA": lambda x, labels, targets: PCA(2, svd_solver="full").fit_transform(x),
    "Ridge": lambda x, labels, targets: Ridge(solver="svd").fit(x, targets).predict(x),
    "LinearDiscriminantAnalysis": lambda x, labels, targets: (
        LinearDiscriminantAnalysis().fit(x, labels).predict_proba(x)
    ),
    "GaussianMixture": lambda x, labels, targets: (
        GaussianMixture(2, init_params="random_from_data", random_state=0).fit(x).predict_proba(x)
    ),
    "train_test_split": lambda x, labels, targets: train_test_split(x, labels, random_state=0)[0],
    "euclidean_distances": lambda x, labels, targets: metrics.pairwise.euclidean_distances(x, x),
    "confusion_matrix": lambda x, labels, targets: metrics.confusion_matrix(labels, 1 - labels),
    "roc_curve": lambda x, labels, targets: metrics.roc_curve(labels, targets)[1],
}
SCORES = {
    "r2_score": lambda labels, targets: metrics.r2_score(targets, targets * 0.9),
    "mean_squared_error": lambda labels, targets: metrics.mean_squared_error(targets, targets + 1),
    "accuracy_score": lambda labels, targets: metrics.accuracy_score(labels, labels * 0 + 1),
    "f1_score": lambda labels, targets: metrics.f1_score(labels, labels * 0 + 1),
    "log_loss": lambda labels, targets: metrics.log_loss(labels, targets * 0 + 0.25),
    "roc_auc_score": lambda labels, targets: metrics.roc_auc_score(labels, targets),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_scikit_learn_estimators_give_tensors_with_the_right_values(name, samples):
    expected = ESTIMATORS[name](*samples)
    with sklearn.config_context(array_api_dispatch=True):
        found = ESTIMATORS[name](*map(wf.asarray, samples))
    assert type(found) is wf.Tensor
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", SCORES)
def test_scikit_learn_scores_of_tensors_are_python_floats(name, samples):
    _, labels, targets = samples
    expected = SCORES[name](labels, targets)
    with sklearn.config_context(array_api_dispatch=True):
        found = SCORES[name](wf.asarray(labels), wf.asarray(targets))
    assert type(found) is float
    assert found == pytest.approx(float(expected), rel=1e-5)


EINOPS = {
    "rearrange": lambda e, x: e.rearrange(x, "a (b c) -> c a b", b=2),
    "reduce": lambda e, x: e.reduce(x, "a (b c) -> a b", "mean", c=3),
    "maximum": lambda e, x: e.reduce(x, "a b -> b", "max"),
    "repeat": lambda e, x: e.repeat(x, "a b -> a r b", r=3),
}


@pytest.mark.parametrize("library", [einops, einops.array_api], ids=["einops", "array_api"])
@pytest.mark.parametrize("name", EINOPS)
def test_einops_rearranges_tensors(name, library):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    found = EINOPS[name](library, wf.asarray(array))
    assert type(found) is wf.Tensor
    np.testing.assert_array_equal(found.numpy(), EINOPS[name](einops, array))


def test_einops_multiplies_packs_and_stacks_tensors():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = wf.asarray(array)
    found = einops.einsum(x, x, "a b, c b -> a c")
    np.testing.assert_array_equal(found.numpy(), array @ array.T)
    packed, shapes = einops.pack([x, x[0]], "* b")
    assert packed.shape == (3, 3)
    assert [part.shape for part in einops.unpack(packed, shapes, "* b")] == [(2, 3), (3,)]
    assert einops.rearrange([x, x], "n a b -> (n a) b").shape == (4, 3)
    assert einops.parse_shape(x, "a b") == {"a": 2, "b": 3}
    assert type(einops.asnumpy(x)) is np.ndarray


def test_einops_is_differentiable_and_batchable():
    x = wf.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))

    def total(x):
        return wf.sum(einops.rearrange(x, "a b -> b a") * wf.asarray([1.0, 2.0]))

    assert wf.grad(total)(x).tolist() == [[1.0] * 3, [2.0] * 3]
    sums = wf.vmap(lambda row: einops.reduce(row, "a -> ", "sum"))(x)
    assert sums.tolist() == [3.0, 12.0]


@pytest.mark.parametrize("order", ["import einops, weft as wf", "import weft as wf, einops"])
def test_einops_knows_tensors_whichever_library_loads_first(order):
    program = f"{order}\nprint(einops.rearrange(wf.ones((2, 3)), 'a b -> b a').shape)"
    assert run(program).strip() == "(3, 2)"


def test_weft_loads_none_of_its_neighbours():
    program = """
        import sys, weft
        print([n for n in ("einops", "sklearn", "jaxtyping", "torch", "jax") if n in sys.modules])
    """
    assert run(program).strip() == "[]"


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (jaxtyping.Float, wf.float32),
        (jaxtyping.Float32, wf.float32),
        (jaxtyping.Float64, wf.float64),
        (jaxtyping.BFloat16, wf.bfloat16),
        (jaxtyping.Int, wf.int64),
        (jaxtyping.UInt8, wf.uint8),
        (jaxtyping.Bool, wf.bool),
        (jaxtyping.Complex, wf.complex64),
        (jaxtyping.Inexact, wf.complex128),
        (jaxtyping.Num, wf.int8),
        (jaxtyping.Shaped, wf.bool),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_jaxtyping_annotations_check_dtype_and_shape(kind, dtype):
    annotation = kind[wf.Tensor, "rows 3"]
    assert isinstance(wf.zeros((2, 3), dtype=dtype), annotation)
    assert not isinstance(wf.zeros((2, 4), dtype=dtype), annotation)
    assert not isinstance(wf.zeros(3, dtype=dtype), annotation)
    assert not isinstance(np.zeros((2, 3)), annotation)


def test_jaxtyping_binds_axes_between_arguments():
    @jaxtyping.jaxtyped(typechecker=None)
    def fits(x: object, y: object) -> bool:
        left = isinstance(x, jaxtyping.Float[wf.Tensor, "a b"])
        return left and isinstance(y, jaxtyping.Float[wf.Tensor, "b"])

    assert fits(wf.zeros((2, 3)), wf.zeros(3))
    assert not fits(wf.zeros((2, 3)), wf.zeros(2))
    assert not isinstance(wf.zeros((2, 3), dtype=wf.int8), jaxtyping.Float[wf.Tensor, "a b"])
