"""`ctc_loss` is torch's, with the gradient that torch gives through `log_softmax`."""

import numpy as np
import pytest

import weft as wf
from tests.torch_oracle import agrees, close, torch
from weft.errors import ArgumentError, DTypeError, IndexingError, ShapeError

F = torch.nn.functional
SIZES = [(12, 3, 6, 4), (5, 2, 4, 1), (4, 3, 5, 3), (6, 2, 3, 0), (1, 2, 3, 1)]


def drawn(steps, rows, classes, labels, blank):
    rng = np.random.default_rng(steps)
    scores = rng.normal(size=(steps, rows, classes))
    targets = rng.integers(0, classes - 1, (rows, labels)) + (blank == 0)
    return scores, targets, rng.integers((steps + 1) // 2, steps + 1, rows)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("last", [False, True], ids=["blank first", "blank last"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_values_and_gradients_are_torchs(sizes, last, reduction):
    blank = sizes[2] - 1 if last else 0
    scores, targets, ends = drawn(*sizes, blank)
    counts = np.minimum(np.arange(sizes[1]), sizes[3])
    options = {"blank": blank, "reduction": reduction, "zero_infinity": True}
    agrees(
        lambda x: wf.ctc_loss(wf.log_softmax(x), targets, ends, counts, **options),
        lambda x: F.ctc_loss(
            torch.log_softmax(x, -1), *map(torch.tensor, (targets, ends, counts)), **options
        ),
        scores,
    )


def test_labels_that_do_not_fit_are_infinitely_unlikely():
    scores = np.zeros((3, 2, 4))
    found = wf.ctc_loss(wf.log_softmax(scores), [[1, 1], [1, 2]], reduction="none")
    assert np.isfinite(found.numpy()).all()
    found = wf.ctc_loss(wf.log_softmax(scores[:2]), [[1, 1], [1, 2]], reduction="none")
    assert np.isinf(found.numpy()).tolist() == [True, False]
    options = {"reduction": "none", "zero_infinity": True}
    assert wf.ctc_loss(wf.log_softmax(scores[:2]), [[1, 1], [1, 2]], **options)[0].item() == 0
    assert wf.ctc_loss(scores, [[1], [1]], [0, 3], [0, 1], reduction="none")[0].item() == 0


def test_rows_of_labels_may_be_filled_up_with_anything():
    scores = wf.log_softmax(drawn(6, 2, 5, 3, 0)[0])
    expected = wf.ctc_loss(scores, [[1, 2, 0], [3, 0, 0]], None, [2, 1], reduction="none")
    found = wf.ctc_loss(scores, [[1, 2, 99], [3, -1, -1]], None, [2, 1], reduction="none")
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("counts", [[3, 0, 2], [0, 0, 0]], ids=str)
def test_labels_of_all_rows_may_stand_behind_each_other(counts):
    scores, targets, ends = drawn(12, 3, 6, 3, 0)
    joined = np.concatenate([row[:n] for row, n in zip(targets, counts, strict=True)])
    agrees(
        lambda x: wf.ctc_loss(wf.log_softmax(x), joined, ends, counts),
        lambda x: F.ctc_loss(
            torch.log_softmax(x, -1), *map(torch.tensor, (joined, ends, np.array(counts)))
        ),
        scores,
    )
    lengths = wf.asarray(counts)
    losses = [wf.ctc_loss(scores, each, None, lengths).item() for each in (targets, joined)]
    assert losses[0] == losses[1]
    assert wf.compile(wf.ctc_loss)(scores, wf.asarray(joined), None, lengths).item() == losses[0]


def test_compiled_mapped_narrow_and_split_losses_are_the_plain_ones():
    scores, targets, ends = drawn(6, 4, 5, 2, 0)

    def loss(x, targets=targets):
        return wf.ctc_loss(wf.log_softmax(x), targets, ends)

    x = wf.asarray(scores)
    value, slope = wf.value_and_grad(loss)(x)
    again, same = wf.compile(wf.value_and_grad(loss))(x)
    assert value.item() == again.item() and slope.tolist() == same.tolist()
    close(wf.vmap(loss)(wf.stack([x, 2 * x]))[0], value)
    assert wf.allclose(loss(x.astype("float16")), value.astype("float16"), rtol=1e-2)
    mesh = wf.DeviceMesh("line", (2,), ("i",))
    parts = wf.shard(x, mesh, wf.P(None, "i")), wf.shard(wf.asarray(targets), mesh, wf.P("i"))
    close(loss(*parts), value)


@pytest.mark.parametrize(
    ("args", "options", "error", "text"),
    [
        ((np.ones((3, 2, 4)), np.ones(4, int)), {}, ShapeError, r"\(T, N, C\).*\n.*target_lengths"),
        ((np.ones((3, 2, 4)), np.ones(4, int), None, [1, 2]), {}, ShapeError, "sum is 3 for 4"),
        ((np.ones((3, 2, 4)), np.ones(4, int), None, [5, -1]), {}, IndexingError, "lengths: index"),
        ((np.ones((3, 2, 4)), np.ones((2, 2))), {}, DTypeError, "integer targets"),
        ((np.ones((3, 2, 4)), np.ones((2, 2), int)), {"blank": 4}, ArgumentError, "blank"),
        ((np.ones((3, 2, 4)), np.ones((2, 2), int), [3]), {}, ShapeError, "lengths: expected 2"),
        ((np.ones((3, 2, 4)), np.ones((2, 2), int), [3, 4]), {}, IndexingError, "input.*index 4"),
        ((np.ones((3, 2, 4)), np.ones((2, 2), int), [3, -1]), {}, IndexingError, "index -1"),
        ((np.ones((3, 2, 4)), np.full((2, 2), 7)), {}, IndexingError, "ctc_loss: targets: index 7"),
    ],
)  # fmt: skip
def test_mistakes_are_named(args, options, error, text):
    with pytest.raises(error, match=text):
        wf.ctc_loss(*args, **options).item()
