import ml_dtypes
import numpy as np
import pytest
from scipy import signal

import weft as wf
from tests.torch_oracle import agrees, close, draw, torch
from weft.core.common.types import TensorType
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops.base import call
from weft.ops.nn import correlation

F = torch.nn.functional
SPACE = {1: (9,), 2: (7, 8), 3: (5, 6, 4)}
WINDOW = {1: (3,), 2: (3, 2), 3: (2, 3, 2)}
OPTIONS = [
    {},
    {"stride": 2},
    {"padding": 1},
    {"dilation": 2},
    {"groups": 2},
    {"stride": 2, "padding": 1, "dilation": 2, "groups": 2},
    {"padding": "same"},
    {"padding": "valid"},
]


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolution_is_torchs_with_its_gradients(rank, options):
    name = f"conv{rank}d"
    groups = options.get("groups", 1)
    x = draw(2, 4, *SPACE[rank])
    kernel = draw(6, 4 // groups, *WINDOW[rank], seed=1)
    if rank == 3 and options.get("dilation") == 2:
        x = draw(2, 4, 5, 6, 5)
    agrees(
        lambda x, k, b: getattr(wf, name)(x, k, b, **options),
        lambda x, k, b: getattr(F, name)(x, k, b, **options),
        x,
        kernel,
        draw(6, seed=2),
    )


TRANSPOSED = [
    {},
    {"stride": 2},
    {"padding": 1},
    {"padding": 2},
    {"dilation": 2},
    {"groups": 2},
    {"stride": 3, "padding": 1, "output_padding": 2, "dilation": 2, "groups": 2},
]


@pytest.mark.parametrize("options", TRANSPOSED, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolution_is_torchs_with_its_gradients(rank, options):
    name = f"conv_transpose{rank}d"
    groups = options.get("groups", 1)
    agrees(
        lambda x, k, b: getattr(wf, name)(x, k, b, **options),
        lambda x, k, b: getattr(F, name)(x, k, b, **options),
        draw(2, 4, *SPACE[rank]),
        draw(4, 6 // groups, *WINDOW[rank], seed=1),
        draw(6, seed=2),
    )


@pytest.mark.parametrize("padding", [0, (2, 1)])
@pytest.mark.parametrize("window", [(3, 4), (4, 4), (7, 2), (2, 1), (9, 5)])
@pytest.mark.parametrize("stride", [(3, 4), (4, 4), (9, 1)])
def test_large_strides_are_torchs_forward_turned_and_back(stride, window, padding):
    options = {"stride": stride, "padding": padding, "groups": 2}
    image, small = draw(2, 4, 14, 13), draw(2, 4, 5, 4)
    agrees(
        lambda x, k: wf.conv2d(x, k, **options),
        lambda x, k: F.conv2d(x, k, **options),
        image,
        draw(6, 2, *window, seed=1),
    )
    agrees(
        lambda x, k: wf.conv_transpose2d(x, k, **options),
        lambda x, k: F.conv_transpose2d(x, k, **options),
        small,
        draw(4, 3, *window, seed=1),
    )


def test_the_gradient_of_patches_takes_as_many_products_as_the_patches(monkeypatch):
    flops = []

    def noted(op, args, params):
        if op is correlation.conv_op:
            kinds = [TensorType(x.shape, x.dtype) for x in args]
            flops.append(op.cost(*kinds, **params).flops)
        return call(op, args, params)

    monkeypatch.setattr(correlation, "call", noted)
    kernel = wf.ones((8, 3, 16, 16))
    wf.grad(lambda x: wf.sum(wf.conv2d(x, kernel, stride=16) ** 2))(wf.ones((2, 3, 32, 32)))
    once = 2 * kernel.size * 2 * 2 * 2
    assert max(flops) == once and sum(flops) <= 2 * once  # by the image and, unused, by the kernel


def test_options_may_differ_between_axes():
    options = {"stride": (2, 1), "padding": (0, 1), "dilation": (1, 2)}
    agrees(
        lambda x, k: wf.conv2d(x, k, **options),
        lambda x, k: F.conv2d(x, k, **options),
        draw(2, 3, 7, 8),
        draw(4, 3, 2, 3, seed=1),
    )


def test_an_input_without_batch_gives_a_result_without_batch():
    agrees(wf.conv2d, F.conv2d, draw(3, 7, 8), draw(4, 3, 2, 3, seed=1))
    agrees(wf.conv_transpose1d, F.conv_transpose1d, draw(3, 7), draw(3, 2, 4, seed=1))


@pytest.mark.slow
def test_large_images_and_whole_windows_are_torchs():
    agrees(wf.conv2d, F.conv2d, draw(2, 3, 20, 21), draw(4, 3, 3, 3, seed=1))
    agrees(wf.conv2d, F.conv2d, draw(2, 3, 4, 5), draw(4, 3, 4, 5, seed=1))
    agrees(
        lambda x, k: wf.conv2d(x, k, groups=8),
        lambda x, k: F.conv2d(x, k, groups=8),
        draw(2, 8, 6, 6),
        draw(16, 1, 3, 3, seed=1),
    )


def test_conv_reads_the_number_of_space_axes_off_the_kernel():
    for rank in (1, 2, 3):
        x, kernel = draw(2, 4, *SPACE[rank]), draw(6, 4, *WINDOW[rank])
        want = getattr(wf, f"conv{rank}d")(x, kernel, padding=1)
        close(wf.conv(x, kernel, padding=1).numpy(), want.numpy())
    four = wf.conv(draw(1, 1, 3, 3, 3, 3), draw(1, 1, 2, 2, 2, 2))
    assert four.shape == (1, 1, 2, 2, 2, 2)


def test_padding_may_differ_below_and_above():
    x, kernel = draw(2, 3, 7), draw(4, 3, 3)
    want = F.conv1d(F.pad(torch.tensor(x), (2, 1)), torch.tensor(kernel))
    close(wf.conv1d(x, kernel, padding=((2, 1),)).numpy(), want.numpy())


@pytest.mark.parametrize(("size", "stride", "window"), [(7, 2, 3), (8, 3, 3), (9, 2, 4), (5, 3, 1)])
def test_same_padding_with_a_stride_gives_size_over_stride_places(size, stride, window):
    got = wf.conv1d(draw(1, 1, size), draw(1, 1, window), stride=stride, padding="same")
    assert got.shape == (1, 1, -(-size // stride))


@pytest.mark.parametrize("dtype", ["int8", "int32", "float16", "float32", "complex64", "bfloat16"])
def test_convolution_keeps_the_dtype(dtype):
    found = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    x = np.arange(12).reshape(1, 2, 6).astype(found)
    kernel = np.array([[[1, 2], [1, 0]]]).astype(found)
    got = wf.conv1d(x, kernel)
    assert got.dtype == np.dtype(found)
    want = wf.conv1d(x.astype(np.complex128), kernel.astype(np.complex128)).numpy()
    np.testing.assert_array_equal(got.numpy().astype(np.complex128), want)


def test_convolution_maps_over_kernels_and_images():
    x, kernels = draw(3, 2, 4, 8), draw(3, 5, 4, 3)
    got = wf.vmap(wf.conv1d)(x, kernels).numpy()
    for i in range(3):
        close(got[i], wf.conv1d(x[i], kernels[i]).numpy())
    shared = wf.vmap(wf.conv1d, in_axes=(None, 0))(x[0], kernels).numpy()
    close(shared[2], wf.conv1d(x[0], kernels[2]).numpy())


@pytest.mark.slow
def test_second_derivatives_are_torchs():
    def ours(x, k):
        return wf.sum(wf.conv1d(x, k, stride=2, padding=1) ** 3)

    def theirs(x, k):
        return (F.conv1d(x, k, stride=2, padding=1) ** 3).sum()

    agrees(
        lambda x, k: wf.grad(ours)(x, k),
        lambda x, k: torch.autograd.grad(theirs(x, k), x, create_graph=True)[0],
        draw(2, 3, 7),
        draw(2, 3, 3, seed=1),
        tolerance=1e-8,
    )


def test_an_empty_batch_is_allowed():
    assert wf.conv2d(np.ones((0, 3, 5, 5)), np.ones((2, 3, 2, 2))).shape == (0, 2, 4, 4)


@pytest.mark.parametrize(
    ("x", "kernel", "options", "error", "message"),
    [
        ((2, 3, 5), (4, 2, 3), {}, ShapeError, "operand 0 has 3 features, the kernel expects 2"),
        ((2, 3, 2), (4, 3, 3), {}, ShapeError, "a window of 3 does not fit size 2"),
        ((2, 3), (4, 3), {}, ShapeError, "a kernel has 3 axes"),
        ((2, 2, 3, 5), (4, 3, 3), {}, ShapeError, "expected .N, C, space"),
        ((2, 4, 5), (3, 2, 3), {"groups": 2}, ArgumentError, "3 features cannot be split into 2"),
        ((2, 3, 5), (4, 3, 3), {"stride": 0}, ArgumentError, "stride must be at least 1"),
        ((2, 3, 5), (4, 3, 3), {"padding": -1}, ArgumentError, "padding must be at least 0"),
        ((2, 3, 5), (4, 3, 3), {"padding": "full"}, ArgumentError, "'same', 'valid' or widths"),
        ((2, 3, 5), (4, 3, 3), {"stride": (1, 2)}, ArgumentError, "stride: 2 values for 1 axes"),
        ((2, 3, 5), (4, 3, 3), {"stride": 1.5}, DTypeError, "stride must be an integer"),
    ],
)
def test_mistakes_are_named(x, kernel, options, error, message):
    with pytest.raises(error, match=f"conv1d: .*{message}"):
        wf.conv1d(np.ones(x), np.ones(kernel), **options)


def test_mistakes_in_bias_and_output_padding_are_named():
    x, kernel = np.ones((1, 3, 5)), np.ones((4, 3, 3))
    with pytest.raises(ShapeError, match=r"conv1d: bias: expected shape \(4,\), got \(3,\)"):
        wf.conv1d(x, kernel, np.ones(3))
    with pytest.raises(ArgumentError, match=r"output_padding .* must be smaller than stride"):
        wf.conv_transpose1d(x, np.ones((3, 2, 3)), output_padding=1)
    with pytest.raises(ShapeError, match="conv_transpose1d: padding leaves nothing of"):
        wf.conv_transpose1d(x, np.ones((3, 2, 1)), padding=3)
    with pytest.raises(DTypeError, match="conv1d: bool is not a number"):
        wf.conv1d(x.astype(bool), kernel.astype(bool))


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize(("n", "m"), [(7, 3), (7, 4), (3, 7), (4, 7), (5, 5), (1, 1), (6, 2)])
@pytest.mark.parametrize("dtype", ["int32", "float64", "complex128"])
def test_convolve_and_correlate_are_numpys(n, m, mode, dtype):
    a, v = (draw(k).round(2) * 100 for k in (n, m))
    if dtype == "complex128":
        a, v = a + 1j * draw(n, seed=1), v - 1j * draw(m, seed=2)
    a, v = a.astype(dtype), v.astype(dtype)
    for name in ("convolve", "correlate"):
        want = getattr(np, name)(a, v, mode)
        got = getattr(wf, name)(a, v, mode)
        assert got.dtype == want.dtype
        close(got.numpy(), want)


def test_convolve_has_the_gradient_of_a_bilinear_map():
    a, v = draw(7), draw(3, seed=1)
    ct = draw(9, seed=2)
    _, pullback = wf.vjp(wf.convolve, a, v)
    by_a, by_v = pullback(ct)
    close(by_a.numpy(), signal.correlate(ct, v, "valid"))
    close(by_v.numpy(), signal.correlate(ct, a, "valid"))


def test_convolve_refuses_matrices_emptiness_and_unknown_modes():
    with pytest.raises(ShapeError, match="convolve: operand 0: expected a non-empty vector"):
        wf.convolve(np.ones((2, 2)), np.ones(2))
    with pytest.raises(ShapeError, match="correlate: operand 1: expected a non-empty vector"):
        wf.correlate(np.ones(2), np.ones(0))
    with pytest.raises(
        ArgumentError, match="mode must be one of 'full', 'same', 'valid', got 'wrap'"
    ):
        wf.convolve(np.ones(2), np.ones(2), "wrap")
