"""Calls of SciPy and scikit-learn on tensors and on NumPy arrays, compared.

`python -m tests.neighbour_calls` prints, for each call, the type that came back for tensors and
whether its values are those NumPy's arrays give. It needs `SCIPY_ARRAY_API=1` in its environment
from the start: SciPy decides when it is loaded whether it takes other arrays than NumPy's.
"""

import json
import warnings

import numpy as np
import sklearn
from scipy import differentiate, fft, integrate, ndimage, signal, special, stats
from scipy.cluster import hierarchy, vq
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

LINE, WAVE = np.linspace(0.1, 2, 12), np.cos(np.arange(12.0))
SCIPY = {
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

_DRAWS = np.random.default_rng(0).standard_normal((40, 4)).astype("float32")
_LABELS = (_DRAWS[:, 0] + _DRAWS[:, 1] > 0).astype("int64")
_TARGETS = (_DRAWS @ np.arange(4.0)).astype("float32")
SKLEARN = {
    "StandardScaler": lambda x, labels, y: StandardScaler().fit_transform(x),
    "MinMaxScaler": lambda x, labels, y: MinMaxScaler().fit_transform(x),
    "MaxAbsScaler": lambda x, labels, y: MaxAbsScaler().fit_transform(x),
    "Normalizer": lambda x, labels, y: Normalizer().fit_transform(x),
    "PolynomialFeatures": lambda x, labels, y: PolynomialFeatures(2).fit_transform(x),
    "LabelEncoder": lambda x, labels, y: LabelEncoder().fit_transform(labels),
    "PCA": lambda x, labels, y: PCA(2, svd_solver="full").fit_transform(x),
    "Ridge": lambda x, labels, y: Ridge(solver="svd").fit(x, y).predict(x),
    "LinearDiscriminantAnalysis": lambda x, labels, y: (
        LinearDiscriminantAnalysis().fit(x, labels).predict_proba(x)
    ),
    "GaussianMixture": lambda x, labels, y: (
        GaussianMixture(2, init_params="random_from_data", random_state=0).fit(x).predict_proba(x)
    ),
    "train_test_split": lambda x, labels, y: train_test_split(x, labels, random_state=0)[0],
    "euclidean_distances": lambda x, labels, y: metrics.pairwise.euclidean_distances(x),
    "confusion_matrix": lambda x, labels, y: metrics.confusion_matrix(labels, 1 - labels),
}
SCORES = {
    "r2_score": lambda x, labels, y: metrics.r2_score(y, y * 0.9),
    "mean_squared_error": lambda x, labels, y: metrics.mean_squared_error(y, y + 1),
    "accuracy_score": lambda x, labels, y: metrics.accuracy_score(labels, labels * 0 + 1),
    "f1_score": lambda x, labels, y: metrics.f1_score(labels, labels * 0 + 1),
    "log_loss": lambda x, labels, y: metrics.log_loss(labels, y * 0 + 0.25),
}


def report() -> dict[str, tuple[str, bool]]:
    """For each call: the type of its result on tensors, and whether its values are right."""
    found = {}
    for calls, data, tolerance in (
        (SCIPY, (LINE, WAVE), 1e-6),
        ({**SKLEARN, **SCORES}, (_DRAWS, _LABELS, _TARGETS), 1e-3),
    ):
        for name, call in calls.items():
            expected = call(*data)
            with sklearn.config_context(array_api_dispatch=True):
                answer = call(*map(wf.asarray, data))
            close = np.allclose(np.asarray(answer), expected, rtol=tolerance, atol=tolerance / 10)
            found[name] = (type(answer).__name__, bool(close))
    return found


if __name__ == "__main__":
    warnings.simplefilter("error")
    print(json.dumps(report()))
