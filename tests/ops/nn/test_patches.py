"""`nn.unfold` and `nn.fold` are torch's."""

import numpy as np
import pytest

import weft as wf
from tests.torch_oracle import agrees, draw, torch
from weft import nn
from weft.errors import ShapeError

F = torch.nn.functional
WINDOWS = [
    (2, {}),
    ((3, 2), {"padding": (1, 0), "stride": 2}),
    (2, {"dilation": 2, "padding": 1}),
    (3, {"padding": 1, "stride": (1, 2)}),
]


@pytest.mark.parametrize(("window", "options"), WINDOWS, ids=str)
def test_patches_and_their_sums_are_torchs(window, options):
    x = draw(2, 3, 7, 8)
    agrees(lambda x: nn.unfold(x, window, **options), lambda x: F.unfold(x, window, **options), x)
    columns = F.unfold(torch.tensor(x), window, **options).numpy()
    agrees(
        lambda x: nn.fold(x, (7, 8), window, **options),
        lambda x: F.fold(x, (7, 8), window, **options),
        columns,
    )


def test_space_may_have_any_number_of_axes():
    x = np.arange(6.0).reshape(1, 1, 6)
    assert nn.unfold(x, 3, stride=3).tolist() == [[[0, 3], [1, 4], [2, 5]]]
    assert nn.fold(nn.unfold(x, 2), 6, 2).tolist() == [[[0, 2, 4, 6, 8, 5]]]
    cube = draw(1, 2, 3, 3, 3)
    columns = wf.compile(lambda x: nn.unfold(x, 3))(cube)
    assert columns.shape == (1, 54, 1) and wf.array_equal(columns.reshape(cube.shape), cube)


def test_shapes_that_do_not_fit_are_told():
    with pytest.raises(ShapeError, match=r"unfold: expected \(N, C, space…\), got \(3, 3\)"):
        nn.unfold(np.ones((3, 3)), 2)
    with pytest.raises(ShapeError, match=r"fold: expected \(N, C · 4, 4\) .*got \(1, 3, 4\)"):
        nn.fold(np.ones((1, 3, 4)), (3, 3), 2)
    with pytest.raises(ShapeError, match="a window of 4 does not fit size 3"):
        nn.unfold(np.ones((1, 1, 3, 3)), 4)
