import numpy as np
import pytest

import weft as wf
from tests.torch_oracle import agrees, close, draw, torch
from weft.errors import ArgumentError, DTypeError, ShapeError

F = torch.nn.functional
SPACE = {1: (7,), 2: (5, 7), 3: (3, 5, 4)}
MODES = [
    ("nearest", 1),
    ("nearest", 2),
    ("nearest", 3),
    ("nearest-exact", 2),
    ("area", 1),
    ("area", 2),
    ("area", 3),
    ("linear", 1),
    ("bilinear", 2),
    ("bicubic", 2),
    ("trilinear", 3),
]


@pytest.mark.parametrize("size", [1, 3, 5, 8, 14])
@pytest.mark.parametrize("align", [None, True, False])
@pytest.mark.parametrize(("mode", "rank"), MODES)
def test_interpolation_to_a_size_is_torchs_with_its_gradient(mode, rank, align, size):
    corners = {} if align is None else {"align_corners": align}
    if corners and (mode.startswith("nearest") or mode == "area"):
        with pytest.raises(ArgumentError, match="align_corners has no meaning"):
            wf.interpolate(draw(2, 2, *SPACE[rank]), size, mode=mode, align_corners=True)
        return
    agrees(
        lambda x: wf.interpolate(x, size, mode=mode, **corners),
        lambda x: F.interpolate(x, size, mode=mode, **corners),
        draw(2, 2, *SPACE[rank]),
    )


@pytest.mark.parametrize("factor", [2, 0.6, 1.7])
@pytest.mark.parametrize(("mode", "rank"), MODES)
def test_interpolation_by_a_factor_is_torchs_with_its_gradient(mode, rank, factor):
    agrees(
        lambda x: wf.interpolate(x, scale_factor=factor, mode=mode),
        lambda x: F.interpolate(x, scale_factor=factor, mode=mode),
        draw(2, 2, *SPACE[rank]),
    )


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_whole_factors_of_nearest_elements_need_no_positions(mode):
    trace = wf.trace(lambda x: wf.interpolate(x, (10, 21), mode=mode), draw(2, 3, 5, 7))
    assert "gather" not in str(trace)
    agrees(
        lambda x: wf.interpolate(x, (10, 21), mode=mode),
        lambda x: F.interpolate(x, (10, 21), mode=mode),
        draw(2, 3, 5, 7),
    )


def test_sizes_may_differ_between_axes():
    agrees(
        lambda x: wf.interpolate(x, (3, 9), mode="bilinear"),
        lambda x: F.interpolate(x, (3, 9), mode="bilinear"),
        draw(2, 2, 5, 7),
    )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("options", [{"size": (3, 9)}, {"size": (2, 2)}, {"scale_factor": 0.4}])
def test_interpolation_without_aliasing_is_torchs_with_its_gradient(options, mode):
    agrees(
        lambda x: wf.interpolate(x, mode=mode, antialias=True, **options),
        lambda x: F.interpolate(x, mode=mode, antialias=True, **options),
        draw(2, 2, 11, 7),
    )


def test_nearest_takes_integers_and_linear_keeps_narrow_floats():
    x = np.arange(4).reshape(1, 1, 4)
    np.testing.assert_array_equal(wf.interpolate(x, 8).numpy(), [[[0, 0, 1, 1, 2, 2, 3, 3]]])
    assert wf.interpolate(x.astype(np.float16), 8, mode="linear").dtype == np.float16


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_pixel_shuffle_and_its_inverse_are_torchs(lead):
    x = draw(*lead, 8, 3, 5)
    agrees(lambda x: wf.pixel_shuffle(x, 2), lambda x: F.pixel_shuffle(x, 2), x)
    y = draw(*lead, 2, 6, 9)
    agrees(lambda y: wf.pixel_unshuffle(y, 3), lambda y: F.pixel_unshuffle(y, 3), y)
    close(wf.pixel_unshuffle(wf.pixel_shuffle(x, 2), 2).numpy(), x)


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample_is_torchs_with_its_gradients(mode, padding, align):
    agrees(
        lambda x, g: wf.grid_sample(x, g, mode, padding, align),
        lambda x, g: F.grid_sample(x, g, mode, padding, align),
        draw(2, 3, 5, 4),
        draw(2, 6, 7, 2, seed=1),
    )


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_grid_sample_of_volumes_is_torchs_with_its_gradients(mode, padding, align):
    agrees(
        lambda x, g: wf.grid_sample(x, g, mode, padding, align),
        lambda x, g: F.grid_sample(x, g, mode, padding, align),
        draw(2, 3, 5, 4, 3),
        draw(2, 2, 6, 7, 3, seed=1),
    )


def test_grid_sample_of_volumes_maps_and_compiles():
    x, grids = draw(2, 3, 5, 4, 3), draw(4, 2, 2, 3, 2, 3)
    want = [F.grid_sample(torch.tensor(x), torch.tensor(g), align_corners=False) for g in grids]
    found = wf.compile(wf.vmap(lambda g: wf.grid_sample(x, g)))(grids)
    close(found.numpy(), torch.stack(want).numpy())
    step = draw(2, 2, 3, 2, 3, seed=2)
    ahead = wf.jvp(lambda g: wf.grid_sample(x, g), (grids[0],), (step,))[1]
    near = [wf.grid_sample(x, grids[0] + e * step).numpy() for e in (1e-7, -1e-7)]
    close(ahead.numpy(), (near[0] - near[1]) / 2e-7, 1e-5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: wf.interpolate(x, 4, mode="cubic"), ArgumentError, "mode must be one of"),
        (lambda x: wf.interpolate(x, 4, mode="linear"), ShapeError, "mode 'linear' takes"),
        (lambda x: wf.interpolate(x, 4, antialias=True), ArgumentError, "antialias has no meaning"),
        (
            lambda x: wf.interpolate(x, 4, None, "bilinear", True, True),
            ArgumentError,
            "antialias and align_corners exclude each other",
        ),
        (lambda x: wf.interpolate(x), ArgumentError, "either size or scale_factor"),
        (lambda x: wf.interpolate(x, 4, 2), ArgumentError, "either size or scale_factor"),
        (lambda x: wf.interpolate(x, scale_factor=0.01), ArgumentError, "leaves nothing"),
        (lambda x: wf.interpolate(x, scale_factor=-1), ArgumentError, "scale_factor -1"),
        (lambda x: wf.interpolate(x.astype(int), 4, mode="area"), DTypeError, "needs floats"),
        (lambda x: wf.interpolate(x[:, :, :0], 4), ShapeError, "a space axis is empty"),
        (lambda x: wf.pixel_shuffle(x, 2), ShapeError, "3 features are no multiple of 2²"),
        (lambda x: wf.pixel_unshuffle(x, 2), ShapeError, "5 × 4 is no multiple of 2"),
        (lambda x: wf.pixel_shuffle(x[0, 0], 1), ShapeError, "expected .…, C, H, W."),
        (lambda x: wf.pixel_shuffle(x, 0), ArgumentError, "factor must be at least 1"),
        (lambda x: wf.grid_sample(x, x), ShapeError, "grid_sample: expected .N, C, H, W. and"),
        (lambda x: wf.grid_sample(x[None], x[None]), ShapeError, "grid_sample: expected"),
        (
            lambda x: wf.grid_sample(x[:, None], np.ones((2, 1, 1, 1, 3)), "bicubic"),
            ArgumentError,
            "mode 'bicubic' is for images",
        ),
        (lambda x: wf.grid_sample(x, np.ones((1, 2, 2, 2))), ShapeError, "batches 2 and 1 differ"),
        (lambda x: wf.grid_sample(x, np.ones((2, 2, 2, 2)), "cubic"), ArgumentError, "cubic"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call(np.ones((2, 3, 5, 4)))


@pytest.mark.parametrize("align_corners", [False, True])
def test_affine_grid_is_torchs_with_its_gradient(align_corners):
    agrees(
        lambda theta: wf.affine_grid(theta, (2, 3, 4, 5), align_corners),
        lambda theta: F.affine_grid(theta, (2, 3, 4, 5), align_corners=align_corners),
        draw(2, 2, 3),
    )
    agrees(
        lambda theta: wf.affine_grid(theta, (2, 3, 4, 5, 6), align_corners),
        lambda theta: F.affine_grid(theta, (2, 3, 4, 5, 6), align_corners=align_corners),
        draw(2, 3, 4),
    )
    for theta, size in ((np.ones((2, 3)), (2, 3, 4, 5)), (np.ones((2, 2, 3)), (2, 3, 4, 5, 6))):
        with pytest.raises(ShapeError, match=r"affine_grid: expected theta \(N, 2, 3\)"):
            wf.affine_grid(theta, size)
