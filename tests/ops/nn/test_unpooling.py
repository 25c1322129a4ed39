import numpy as np
import pytest

import weft as wf
from tests.torch_oracle import agrees, close, draw, torch
from weft.errors import ArgumentError, DTypeError, IndexingError, ShapeError

F = torch.nn.functional
SPACE = {1: (11,), 2: (9, 8), 3: (5, 6, 4)}
X = draw(1, 2, 4)


@pytest.mark.parametrize(
    ("window", "options"),
    [
        (2, {}),
        (3, {"stride": 2, "padding": 1}),
        (2, {"stride": 2, "dilation": 2}),
        (3, {"stride": 2, "padding": 1, "ceil_mode": True}),
    ],
)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_positions_of_a_max_pool_are_torchs(rank, window, options):
    x = np.round(draw(2, 2, *SPACE[rank]))  # with equal elements in windows
    x[0, 0] = -np.inf  # as is what stands around
    name = f"max_pool{rank}d"
    found = getattr(wf, name)(x, window, **options, return_indices=True)
    want = getattr(F, name)(torch.tensor(x), window, **options, return_indices=True)
    for ours, theirs in zip(found, want, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert found[1].dtype == np.int64


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_unpooling_is_torchs_with_its_gradient(rank):
    x, name = draw(2, 2, *SPACE[rank]), f"max_unpool{rank}d"
    top, places = getattr(wf, f"max_pool{rank}d")(x, 2, return_indices=True)
    given = torch.tensor(places.numpy())
    for size in (None, SPACE[rank], x.shape):
        agrees(
            lambda v: getattr(wf, name)(v, places, 2, output_size=size),  # noqa: B023
            lambda v: getattr(F, name)(v, given, 2, output_size=size),  # noqa: B023
            top.numpy(),
        )


def test_elements_of_windows_that_overlap_are_put_back_once():
    x = draw(2, 2, 9, 8)
    top, places = wf.max_pool2d(x, (3, 2), (2, 1), (1, 0), return_indices=True)
    found = wf.max_unpool2d(top, places, (3, 2), (2, 1), (1, 0))
    given = (torch.tensor(t.numpy()) for t in (top, places))
    close(found.numpy(), F.max_unpool2d(*given, (3, 2), (2, 1), (1, 0)).numpy())


def test_unpooling_compiles_maps_and_takes_no_batch():
    def both(x):
        top, places = wf.max_pool2d(x, 2, return_indices=True)
        return wf.max_unpool2d(top, places, 2)

    x = wf.asarray(draw(3, 2, 4, 6))
    want = np.where(np.isin(x.numpy(), wf.max_pool2d(x, 2).numpy()), x.numpy(), 0)
    close(both(x).numpy(), want)
    close(wf.compile(both)(x).numpy(), want)
    close(wf.vmap(both)(x).numpy(), want)
    assert wf.max_pool1d([[np.nan, 1.0, np.nan]], 3, return_indices=True)[1].tolist() == [[0]]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: wf.max_unpool1d(X, X, 2), DTypeError, "(?s)must be integers.*max_pool1d"),
        (lambda: wf.max_unpool1d(X, [1], 2), ShapeError, "max_unpool1d: indices of shape"),
        (lambda: wf.max_unpool2d(X[0, 0], [1], 2), ShapeError, "2 space axes"),
        (lambda: wf.max_unpool1d(X, X.astype(int) + 8, 2), IndexingError, "max_unpool1d: indices"),
        (lambda: wf.max_unpool1d(X, X.astype(int) - 9, 2), IndexingError, "max_unpool1d: indices"),
        (
            lambda: wf.max_unpool1d(X, np.zeros((1, 2, 4), int), 2, output_size=20),
            ArgumentError,
            "20 is not within a stride, 2, of 8",
        ),
        (
            lambda: wf.max_unpool2d(X, np.zeros((1, 2, 4), int), 2, output_size=(4,)),
            ArgumentError,
            "for 2 space axes",
        ),
        (lambda: wf.max_pool1d(X, 2, return_indices="x"), DTypeError, "return_indices must be"),
    ],
)
def test_mistakes_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call().numpy()
