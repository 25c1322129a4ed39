import numpy as np
import pytest

import weft as wf
from tests.torch_oracle import agrees, draw, torch
from weft.errors import ArgumentError, DTypeError, IndexingError, ShapeError

F = torch.nn.functional
TABLE = draw(6, 3)
IDS = np.array([[0, 5, 2], [2, 2, 4], [2, 2, 2]])
ROW, OFFSETS = IDS.ravel(), np.array([0, 2, 2, 7])


@pytest.mark.parametrize("padding", [None, 2, -1])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_are_torchs_with_their_gradients(mode, padding):
    options = {"mode": mode, "padding_idx": padding}
    agrees(
        lambda t: wf.embedding_bag(t, IDS, **options),
        lambda t: F.embedding_bag(torch.tensor(IDS), t, **options),
        TABLE,
    )
    ends = np.append(OFFSETS, len(ROW))
    for starts, last in ((OFFSETS, False), (ends, True)):
        keywords = options | {"include_last_offset": last}
        agrees(
            lambda t, s=starts, k=keywords: wf.embedding_bag(t, ROW, s, **k),
            lambda t, s=starts, k=keywords: F.embedding_bag(
                torch.tensor(ROW), t, torch.tensor(s), **k
            ),
            TABLE,
        )


def test_weights_of_a_sum_are_torchs_with_their_gradients():
    agrees(
        lambda t, w: wf.embedding_bag(t, IDS, mode="sum", per_sample_weights=w),
        lambda t, w: F.embedding_bag(torch.tensor(IDS), t, mode="sum", per_sample_weights=w),
        TABLE,
        draw(3, 3, seed=1),
    )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_compile_and_map(mode):
    def bags(t, ids, offsets):
        return wf.embedding_bag(t, ids, offsets, mode, padding_idx=0)

    table, ids, offsets = wf.asarray(TABLE), wf.asarray(ROW), wf.asarray(OFFSETS)
    want = bags(table, ids, offsets).numpy()
    np.testing.assert_allclose(wf.compile(bags)(table, ids, offsets).numpy(), want, 1e-12)
    mapped = wf.vmap(bags, in_axes=(None, 0, 0))(
        table, wf.stack([ids, ids[::-1]]), wf.stack([offsets, offsets])
    )
    np.testing.assert_allclose(mapped[0].numpy(), want, 1e-12)


def test_bags_of_narrow_floats_are_added_in_float32_and_empty_ones_are_zeros():
    table = wf.asarray([[1.0], [2.0**-9]], dtype=wf.bfloat16)
    found = wf.embedding_bag(table, np.array([[0, 1, 1, 1, 1]]), mode="sum")
    assert found.dtype == wf.bfloat16 and found.item() == 1 + 2.0**-7
    for mode in ("sum", "mean", "max"):
        assert wf.embedding_bag(TABLE, np.zeros((2, 0), int), mode=mode).tolist() == [[0.0] * 3] * 2
        assert wf.embedding_bag(TABLE, [], [0], mode).tolist() == [[0.0] * 3]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: wf.embedding_bag(TABLE, ROW), ShapeError, "(?s)are no bags.*hint: give offsets"),
        (lambda: wf.embedding_bag(TABLE, IDS, [0]), ShapeError, "ids in one row, got"),
        (lambda: wf.embedding_bag(TABLE, IDS * 1.0), DTypeError, "ids must be integers"),
        (lambda: wf.embedding_bag(TABLE[0], IDS), DTypeError, "expected a matrix of floats"),
        (lambda: wf.embedding_bag(TABLE, IDS, mode="min"), ArgumentError, "mode must be one of"),
        (lambda: wf.embedding_bag(TABLE, IDS + 9), IndexingError, "out of range"),
        (lambda: wf.embedding_bag(TABLE, ROW, [1, 2]), ArgumentError, "go up from 0 to 9"),
        (lambda: wf.embedding_bag(TABLE, ROW, [0, 4, 3]), ArgumentError, "got .*0, 4, 3"),
        (lambda: wf.embedding_bag(TABLE, ROW, [0, 10]), ArgumentError, "at the most"),
        (lambda: wf.embedding_bag(TABLE, ROW, [0.5]), DTypeError, "offsets: expected integers"),
        (lambda: wf.embedding_bag(TABLE, ROW, [0], include_last_offset=True), ShapeError, "begin"),
        (
            lambda: wf.embedding_bag(TABLE, ROW, [0, 4], include_last_offset=True),
            ArgumentError,
            "number of ids, got",
        ),
        (lambda: wf.embedding_bag(TABLE, IDS, include_last_offset=True), ArgumentError, "without"),
        (
            lambda: wf.embedding_bag(TABLE, IDS, per_sample_weights=IDS * 1.0),
            ArgumentError,
            "are for the mode 'sum', not 'mean'",
        ),
        (
            lambda: wf.embedding_bag(TABLE, IDS, mode="sum", per_sample_weights=[1.0]),
            ShapeError,
            "per_sample_weights of shape",
        ),
        (lambda: wf.embedding_bag(TABLE, IDS, padding_idx=6), ArgumentError, "padding_idx"),
    ],
)
def test_mistakes_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call().numpy()
