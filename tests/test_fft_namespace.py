"""`wf.fft`: the array API's and NumPy's functions, by value, by signature and by message."""

from __future__ import annotations

import inspect

import array_api_strict
import numpy as np
import pytest
import scipy.fft
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.errors import ArgumentError, AxisError, DTypeError

F = wf.fft
ONE_AXIS = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
SEVERAL = ["fftn", "ifftn", "rfftn", "irfftn"]
TWO = ["fft2", "ifft2", "rfft2", "irfft2"]
NEED_REAL = {"rfft", "ihfft", "rfftn", "rfft2"}
NORMS = ["backward", "ortho", "forward", None]


def drawn(*shape, dtype=np.complex128):
    rng = np.random.default_rng(0)
    real = rng.uniform(-4, 4, shape)
    if np.issubdtype(dtype, np.complexfloating):
        real = real + 1j * rng.uniform(-4, 4, shape)
    return real.astype(dtype)


def suited(name, *shape):
    return drawn(*shape, dtype=np.float64 if name in NEED_REAL else np.complex128)


def close(a, b, tolerance=1e-10):
    found = a.numpy() if isinstance(a, wf.Tensor) else np.asarray(a)
    assert found.shape == np.shape(b)
    np.testing.assert_allclose(found, np.asarray(b), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", array_api_strict.fft.__all__)
def test_every_function_of_the_standard_takes_the_standards_arguments(name):
    wanted = inspect.signature(getattr(array_api_strict.fft, name)).parameters
    found = inspect.signature(getattr(F, name)).parameters
    assert list(found) == list(wanted)
    assert [p.default for p in found.values()] == [p.default for p in wanted.values()]


@pytest.mark.parametrize("name", F.__all__)
def test_every_public_name_is_documented_and_numpys(name):
    assert getattr(F, name).__doc__
    assert hasattr(np.fft, name) or name in ("istft", "stft")  # torch has these


@pytest.mark.parametrize("name", ONE_AXIS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("n", [None, 1, 4, 7, 10])
def test_transforms_along_one_axis_are_numpys(name, norm, axis, n):
    x = suited(name, 6, 7)
    got = getattr(F, name)(x, n=n, axis=axis, norm=norm)
    close(got, getattr(np.fft, name)(x, n=n, axis=axis, norm=norm))


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "options",
    [{}, {"axes": (0, 2)}, {"axes": (2, 0)}, {"s": (5, 3, 6)}, {"s": (4, 6), "axes": (1, 0)}],
    ids=str,
)
def test_transforms_along_several_axes_are_scipys(name, norm, options):
    x = suited(name, 3, 4, 5)
    got = getattr(F, name)(x, norm=norm, **options)
    close(got, getattr(scipy.fft, name)(x, norm=norm, **options))


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("options", [{}, {"s": (5, 6)}, {"axes": (0, 1)}], ids=str)
def test_transforms_along_two_axes_are_numpys(name, options):
    x = suited(name, 3, 4, 5)
    if "s" in options:
        options = {**options, "axes": (-2, -1)}
    close(getattr(F, name)(x, **options), getattr(np.fft, name)(x, **options))


@pytest.mark.slow
@given(n=st.integers(1, 33), norm=st.sampled_from(["backward", "ortho", "forward"]))
def test_every_transform_comes_back(n, norm):
    x = drawn(2, n)
    close(F.ifft(F.fft(x, norm=norm), norm=norm), x)
    close(F.irfft(F.rfft(x.real, norm=norm), n=n, norm=norm), x.real)
    close(F.hfft(F.ihfft(x.real, norm=norm), n=n, norm=norm), x.real)


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (np.int32, np.complex64),
        (np.uint8, np.complex64),
        (np.float16, np.complex64),
        (np.float32, np.complex64),
        (np.float64, np.complex128),
        (np.complex64, np.complex64),
        (np.complex128, np.complex128),
    ],
)
def test_dtypes_follow_the_standard(dtype, wide):
    x = np.arange(6).astype(dtype)
    assert F.fft(x).dtype == F.ifftn(x).dtype == wide
    assert F.irfft(x).dtype == F.hfft(x).dtype == np.zeros((), wide).real.dtype
    if not np.issubdtype(dtype, np.complexfloating):
        assert F.rfft(x).dtype == F.ihfft(x).dtype == wide
    close(F.fft(x), np.fft.fft(x.astype(np.complex128)), 1e-5)


@pytest.mark.parametrize("n", [1, 2, 7, 8])
@pytest.mark.parametrize("d", [1.0, 0.25])
def test_frequencies_are_numpys(n, d):
    close(F.fftfreq(n, d=d, dtype=np.float64), np.fft.fftfreq(n, d))
    close(F.rfftfreq(n, d=d, dtype=np.float64), np.fft.rfftfreq(n, d))
    assert F.fftfreq(n).dtype == F.rfftfreq(n).dtype == np.float32


@pytest.mark.parametrize("axes", [None, 0, -1, (0, 1), ()])
@pytest.mark.parametrize("shape", [(4, 5), (1, 3), (0, 2)])
def test_shifts_are_numpys_and_undo_each_other(axes, shape):
    x = drawn(*shape)
    close(F.fftshift(x, axes=axes), np.fft.fftshift(x, axes))
    close(F.ifftshift(x, axes=axes), np.fft.ifftshift(x, axes))
    close(F.ifftshift(F.fftshift(x, axes=axes), axes=axes), x)


def test_no_axes_are_the_identity():
    x = drawn(2, 3)
    close(F.fftn(x, axes=()), x)
    assert F.fftn(np.float32(2)).item() == 2


def test_nan_spreads_and_minus_zero_is_kept_apart_from_errors():
    assert np.isnan(F.fft(np.array([1.0, np.nan, 2.0])).numpy()).all()
    assert F.fft(np.array([-0.0])).numpy()[0] == 0


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: F.fft(np.ones(4), n=0),
            ArgumentError,
            "fft: axis 0: the length must be at least 1",
        ),
        (lambda: F.fft(np.ones(4), n=2.5), DTypeError, "the length must be an integer"),
        (lambda: F.fft(np.ones((2, 0))), ArgumentError, "fft: axis 1: the length must be at least"),
        (lambda: F.irfft(np.ones(1)), ArgumentError, "irfft: axis 0: the length must be at least"),
        (
            lambda: F.fft(np.ones(4), norm="both"),
            ArgumentError,
            "fft: norm must be one of 'backward'",
        ),
        (lambda: F.hfft(np.ones(4), norm="both"), ArgumentError, "hfft: norm must be one of"),
        (lambda: F.fft(np.ones(4), axis=1), AxisError, "fft: axis 1 is out of range for 1 axes"),
        (lambda: F.fft(1.0), AxisError, "fft: axis -1 is out of range for 0 axes"),
        (lambda: F.fftn(np.ones((2, 2)), axes=(0, 0)), AxisError, "fftn: an axis is given twice"),
        (lambda: F.fftn(np.ones(2), s=(2, 2)), AxisError, "fftn: 2 lengths for 1 axes"),
        (lambda: F.fftn(np.ones((2, 2)), s=(2,), axes=(0, 1)), ArgumentError, "1 lengths for 2"),
        (lambda: F.rfftn(np.ones((2, 2)), axes=()), AxisError, "at least one axis is needed"),
        (lambda: F.rfft(np.ones(4, complex)), DTypeError, "rfft: takes real tensors"),
        (lambda: F.fft(np.ones(4, bool)), DTypeError, "fft: bool is not a number"),
        (lambda: F.fftfreq(0), ArgumentError, "fftfreq: the length must be at least 1"),
        (
            lambda: F.fftfreq(4, d=0),
            ArgumentError,
            "fftfreq: the distance d of the samples must not be 0",
        ),
        (lambda: F.rfftfreq(4, dtype=np.int32), DTypeError, "dtype must be a real float"),
        (lambda: F.fftshift(np.ones(4), axes=3), AxisError, "fftshift: axis 3 is out of range"),
    ],
)
def test_mistakes_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize(("size", "hop", "count"), [(8, 3, 8), (7, 2, 5), (6, 6, 6), (1, 1, 1)])
def test_stft_transforms_frames_and_istft_undoes_it(size, hop, count, center):
    rng = np.random.default_rng(size)
    x, window = rng.normal(size=(2, 40)), rng.uniform(0.2, 1, count)
    made = wf.fft.stft(x, size, hop, count, window, center=center)
    edge, before = size // 2 if center else 0, (size - count) // 2
    frame = np.pad(window, (before, size - count - before))
    wide = np.pad(x, ((0, 0), (edge, edge)), mode="reflect")
    starts = range(0, wide.shape[-1] - size + 1, hop)
    expected = [np.fft.rfft(wide[:, i : i + size] * frame) for i in starts]
    np.testing.assert_allclose(made.numpy(), np.stack(expected, axis=-1), atol=1e-12)
    whole = wf.fft.stft(x, size, hop, count, window, center=center, onesided=False, normalized=True)
    np.testing.assert_allclose(whole.numpy()[:, : size // 2 + 1], made.numpy() / size**0.5)
    if count == size or center:
        options = {"center": center, "length": 36}
        back = wf.fft.istft(made, size, hop, count, window, **options)
        np.testing.assert_allclose(back.numpy()[:, :30], x[:, :30], atol=1e-12)
        assert back.shape == (2, 36)


def test_a_signal_that_went_there_and_back_has_the_identity_for_derivative():
    window = wf.hamming(8)

    def there_and_back(x):
        return wf.fft.istft(wf.fft.stft(x, 8, 3, window=window), 8, 3, window=window, length=20)

    x = wf.random.normal(wf.random.key(0), (3, 20), dtype="float64")
    np.testing.assert_allclose(wf.jacrev(there_and_back)(x[0]).numpy(), np.eye(20), atol=1e-12)
    np.testing.assert_allclose(wf.compile(wf.vmap(there_and_back))(x).numpy(), x, atol=1e-12)
    with pytest.raises(wf.errors.ArgumentError, match="istft: the windows leave samples"):
        wf.fft.istft(wf.ones((5, 3)), 8, 10, center=False)
    with pytest.raises(wf.errors.ArgumentError, match="istft: the windows leave samples"):
        wf.fft.istft(wf.ones((8193, 3)), 16384, 20000, center=False)
    with pytest.raises(wf.errors.ShapeError, match="has no frame of n_fft = 8"):
        wf.fft.stft(wf.ones(3), 8, center=False)
