import numpy as np
import pytest

import weft as wf
from tests.torch_oracle import agrees, close, draw, torch
from weft.errors import ArgumentError, AxisError, DTypeError, ShapeError

F = torch.nn.functional
SPACE = {1: (11,), 2: (9, 10), 3: (5, 6, 7)}


@pytest.mark.parametrize(
    ("window", "options"),
    [
        (2, {}),
        (3, {"stride": 2}),
        (3, {"stride": 2, "padding": 1}),
        (3, {"stride": 1, "padding": 1}),
        (2, {"stride": 2, "dilation": 2}),
        (3, {"stride": 2, "padding": 1, "ceil_mode": True}),
        (2, {"stride": 3, "padding": 1, "ceil_mode": True}),
    ],
)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_max_pool_is_torchs_with_its_gradient(rank, window, options):
    name = f"max_pool{rank}d"
    agrees(
        lambda x: getattr(wf, name)(x, window, **options),
        lambda x: getattr(F, name)(x, window, **options),
        draw(2, 3, *SPACE[rank]),
    )


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize(
    ("window", "options"),
    [
        (2, {}),
        (3, {"stride": 2}),
        (3, {"stride": 2, "padding": 1}),
        (3, {"stride": 2, "padding": 1, "ceil_mode": True}),
        (2, {"stride": 3, "padding": 1, "ceil_mode": True}),
        (4, {"stride": 3, "padding": 2, "ceil_mode": True}),
    ],
)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_avg_pool_is_torchs_with_its_gradient(rank, window, options, include):
    name = f"avg_pool{rank}d"
    agrees(
        lambda x: getattr(wf, name)(x, window, count_include_pad=include, **options),
        lambda x: getattr(F, name)(x, window, count_include_pad=include, **options),
        draw(2, 3, *SPACE[rank]),
    )


@pytest.mark.parametrize("kind", ["avg", "max"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 13])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_adaptive_pools_are_torchs_with_their_gradients(rank, size, kind):
    name = f"adaptive_{kind}_pool{rank}d"
    agrees(
        lambda x: getattr(wf, name)(x, size),
        lambda x: getattr(F, name)(x, size),
        draw(2, 2, *SPACE[rank]),
    )


def test_adaptive_pools_keep_an_axis_given_as_none():
    agrees(
        lambda x: wf.adaptive_avg_pool2d(x, (None, 3)),
        lambda x: F.adaptive_avg_pool2d(x, (None, 3)),
        draw(2, 3, 5, 7),
    )


def test_windows_and_strides_may_differ_between_axes_and_batch_may_be_absent():
    agrees(
        lambda x: wf.max_pool2d(x, (2, 3), (1, 2), (1, 0)),
        lambda x: F.max_pool2d(x, (2, 3), (1, 2), (1, 0)),
        draw(3, 7, 8),
    )
    agrees(lambda x: wf.avg_pool1d(x, 3), lambda x: F.avg_pool1d(x, 3), draw(3, 7))


def test_max_pool_keeps_integers_and_passes_nan_on():
    x = np.arange(8).reshape(1, 8).astype(np.int8) - 100
    got = wf.max_pool1d(x, 3, 2, 1)
    assert got.dtype == np.int8
    np.testing.assert_array_equal(got.numpy(), [[-99, -97, -95, -93]])
    assert np.isnan(wf.max_pool1d(np.array([[np.nan, 1.0]]), 2).numpy()).all()


def test_infinity_outside_an_adaptive_window_does_not_reach_its_mean():
    x = np.array([[np.inf, 1.0, 2.0, 3.0, 4.0]])
    np.testing.assert_allclose(wf.adaptive_avg_pool1d(x, 2).numpy(), [[np.inf, 3.0]])


@pytest.mark.parametrize(
    "mean",
    [
        lambda x: wf.avg_pool2d(x, 32),
        lambda x: wf.avg_pool2d(x, 32, padding=16, count_include_pad=False)[..., :1, :1],
        lambda x: wf.adaptive_avg_pool2d(x, 1),
        lambda x: wf.interpolate(x, size=(1, 1), mode="area"),
    ],
)
def test_sums_of_a_mean_may_be_past_what_the_dtype_holds(mean):
    x = wf.full((1, 1, 32, 32), 4000.0, dtype="float16")
    for run in (mean, wf.compile(mean)):
        assert run(x).dtype == wf.float16 and run(x).item() == 4000


def test_pools_map():
    x = draw(4, 2, 3, 9)
    got = wf.vmap(lambda image: wf.max_pool1d(image, 3, 2, 1))(x).numpy()
    close(got[1], wf.max_pool1d(x[1], 3, 2, 1).numpy())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: wf.max_pool1d(x, 6), ShapeError, "a window of 6 does not fit size 5"),
        (lambda x: wf.max_pool2d(x[0], 2), ShapeError, "2 space axes, got shape"),
        (lambda x: wf.max_pool1d(x, 2, padding=2), ArgumentError, "more than half of the window"),
        (lambda x: wf.max_pool1d(x, 0), ArgumentError, "window must be at least 1"),
        (lambda x: wf.max_pool1d(x + 0j, 2), DTypeError, "no order"),
        (lambda x: wf.avg_pool1d(x.astype(int), 2), DTypeError, "a mean needs floats"),
        (lambda x: wf.adaptive_avg_pool1d(x, 0), ArgumentError, "size must be at least 1"),
        (lambda x: wf.adaptive_max_pool1d(x[..., :0], 1), ShapeError, "space axis 0 is empty"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call(np.ones((2, 3, 5)))


def test_sliding_windows_are_numpys():
    x = draw(4, 6, 7)
    view = np.lib.stride_tricks.sliding_window_view
    close(wf.sliding_windows(x, (2, 3), (0, 2)).numpy(), view(x, (2, 3), (0, 2)))
    close(wf.sliding_windows(x, (3, 2), (2, 0)).numpy(), view(x, (3, 2), (2, 0)))
    close(wf.sliding_windows(x, 2).numpy(), view(x, (2, 2, 2)))
    close(
        wf.sliding_windows(x, 2, -1, stride=2, dilation=3).numpy(),
        view(x, 4, 2)[..., ::2, ::3],
    )


def test_overlapping_windows_add_up_in_the_gradient():
    counted = wf.grad(lambda x: wf.sum(wf.sliding_windows(x, 3)))(np.zeros(6))
    np.testing.assert_array_equal(counted.numpy(), [1, 2, 3, 3, 2, 1])


def test_mistakes_of_sliding_windows_are_named():
    with pytest.raises(ShapeError, match="a window of 4 does not fit size 3"):
        wf.sliding_windows(np.ones(3), 4)
    with pytest.raises(AxisError, match="no axis to slide along"):
        wf.sliding_windows(np.ones(()), 1)
    with pytest.raises(ArgumentError, match="window: 2 values for 1 axes"):
        wf.sliding_windows(np.ones(3), (1, 2))
