"""The linalg and fft extensions give what array_api_strict gives, on random arrays."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from tests.array_api import draws as d
from tests.array_api.draws import COMPLEX, FLOATS, INEXACT, NUMERIC

pytestmark = pytest.mark.slow

NORMS = ["backward", "ortho", "forward"]


def check(part: str, name: str, *args: Any, values: bool = True, **keywords: Any) -> Any:
    with np.errstate(all="ignore"):  # NumPy's LAPACK leaves stray flags behind
        found, expected = d.results(name, args, keywords, part)
    d.assert_same(found, expected, values=values)
    return found


@st.composite
def matrices(draw: Any, square: bool = False, names: Any = INEXACT) -> np.ndarray:
    """Stacks of matrices that are far from singular."""
    stack = draw(d.shapes(max_dims=1, max_side=2))
    rows = draw(st.integers(1, 4))
    columns = rows if square else draw(st.integers(1, 4))
    x = draw(d.arrays(names, (*stack, rows, columns)))
    return x + 12 * rows * np.eye(rows, columns, dtype=x.dtype)


def adjoint(x: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(x, -1, -2))


@given(data=st.data())
def test_functions_of_square_matrices_agree(data):
    x = data.draw(matrices(square=True))
    check("linalg", "det", x)
    check("linalg", "inv", x)
    check("linalg", "slogdet", x)
    check("linalg", "matrix_power", x, data.draw(st.integers(-2, 3)))
    check("linalg", "solve", x, x)
    check("linalg", "solve", x, np.ones(x.shape[-1], x.dtype))


@given(data=st.data())
def test_cholesky_agrees(data):
    x = data.draw(matrices(square=True))
    upper = data.draw(st.booleans())
    check("linalg", "cholesky", (x @ adjoint(x)).astype(x.dtype), upper=upper)


@given(data=st.data())
def test_eigenvalues_agree_and_eigenvectors_rebuild_the_matrix(data):
    x = data.draw(matrices(square=True))
    hermitian = ((x + adjoint(x)) / 2).astype(x.dtype)
    check("linalg", "eigvalsh", hermitian)
    found = check("linalg", "eigh", hermitian, values=False)
    vectors = found.eigenvectors.numpy()
    rebuilt = vectors * found.eigenvalues.numpy()[..., np.newaxis, :] @ adjoint(vectors)
    d.assert_close(rebuilt.astype(x.dtype), hermitian)
    check("linalg", "eigvals", x, values=False)
    values, vectors = check("linalg", "eig", x, values=False)
    wide = x.astype(vectors.dtype)
    d.assert_close(wide @ vectors.numpy(), vectors.numpy() * values.numpy()[..., np.newaxis, :])


@given(data=st.data())
def test_factorisations_have_the_right_parts_and_rebuild_the_matrix(data):
    x = data.draw(matrices())
    q, r = check("linalg", "qr", x, mode=data.draw(st.sampled_from(["reduced", "complete"])),
                 values=False)  # fmt: skip
    d.assert_close((q @ r).numpy(), x)
    check("linalg", "svd", x, full_matrices=True, values=False)
    u, s, vh = check("linalg", "svd", x, full_matrices=False, values=False)
    d.assert_close(((u * s[..., None, :]) @ vh).numpy(), x)
    check("linalg", "svdvals", x)
    check("linalg", "pinv", x)
    check("linalg", "matrix_rank", x)
    check("linalg", "matrix_rank", x, rtol=0.5)


@given(data=st.data())
def test_norms_agree(data):
    x = data.draw(matrices())
    keepdims = data.draw(st.booleans())
    ord_ = data.draw(st.sampled_from(["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf]))
    check("linalg", "matrix_norm", x, ord=ord_, keepdims=keepdims)
    orders = [1, 2, 3, 0.5, 0, np.inf, *([-np.inf] if x.size else [])]
    ord_ = data.draw(st.sampled_from(orders))
    axis = data.draw(d.axes(x.ndim).filter(lambda axis: axis != ()))
    check("linalg", "vector_norm", x, axis=axis, ord=ord_, keepdims=keepdims)


@given(data=st.data())
def test_diagonals_and_products_agree(data):
    x = data.draw(d.arrays(NUMERIC, d.shapes(min_dims=2)))
    offset = data.draw(st.integers(-5, 5))
    check("linalg", "diagonal", x, offset=offset)
    check("linalg", "trace", x, offset=offset)
    check("linalg", "matrix_transpose", x)
    check("linalg", "matmul", x, np.swapaxes(x, -1, -2))
    check("linalg", "vecdot", x, x, axis=-1)
    check("linalg", "tensordot", x, x, axes=0)
    line = data.draw(d.arrays((x.dtype.name,), d.shapes(1, 1)))
    check("linalg", "outer", line, line)
    triples = data.draw(d.partners(d.REAL))
    check("linalg", "cross", *(np.stack([t, t * 0, t + 1], -1).astype(t.dtype) for t in triples))


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
@given(data=st.data())
def test_transforms_of_one_axis_agree(name, data):
    names = FLOATS if name in ("rfft", "ihfft") else COMPLEX
    x = data.draw(d.arrays(names, d.shapes(min_dims=1, min_side=2)))
    check(
        "fft",
        name,
        x,
        n=data.draw(st.none() | st.integers(2, 6)),
        axis=data.draw(st.integers(-x.ndim, x.ndim - 1)),
        norm=data.draw(st.sampled_from(NORMS)),
    )


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
@given(data=st.data())
def test_transforms_of_several_axes_agree(name, data):
    x = data.draw(d.arrays(FLOATS if name == "rfftn" else COMPLEX, d.shapes(2, 3, 2)))
    sides = data.draw(st.none() | st.just((3, 4)))
    chosen = (0, 1) if sides else data.draw(st.sampled_from([None, (-1,), (0, -1)]))
    check("fft", name, x, s=sides, axes=chosen, norm=data.draw(st.sampled_from(NORMS)))


@given(data=st.data())
def test_frequencies_and_shifts_agree(data):
    dtype = np.dtype(data.draw(st.sampled_from(FLOATS)))
    n = data.draw(st.integers(1, 9))
    check("fft", "fftfreq", n, d=0.5, dtype=dtype)
    check("fft", "rfftfreq", n, d=2.0, dtype=dtype)
    x = data.draw(d.arrays(INEXACT, d.shapes(min_dims=1)))
    chosen = data.draw(d.axes(x.ndim))
    check("fft", "fftshift", x, axes=chosen)
    check("fft", "ifftshift", x, axes=chosen)


def test_frequencies_have_the_default_float():
    assert wf.fft.fftfreq(4).dtype == wf.fft.rfftfreq(4).dtype == wf.float32
