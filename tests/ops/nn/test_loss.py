from types import SimpleNamespace

import numpy as np
import pytest

import weft as wf
from tests.torch_oracle import agrees, close, draw, torch
from weft.compiler import panels
from weft.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from weft.ops.nn import loss

F = torch.nn.functional
REDUCTIONS = ["none", "sum", "mean"]
SIGNS = np.where(draw(4, 3, seed=9) > 0, 1.0, -1.0)
PAIRS = [
    ("mse_loss", {}),
    ("l1_loss", {}),
    ("smooth_l1_loss", {}),
    ("smooth_l1_loss", {"beta": 0.3}),
    ("smooth_l1_loss", {"beta": 0.0}),
    ("huber_loss", {}),
    ("huber_loss", {"delta": 0.4}),
]


NUMBERS = {
    "softplus": lambda x, p: wf.softplus(x, p),
    "celu": lambda x, p: wf.celu(x, p),
    "hardtanh": lambda x, p: wf.hardtanh(x, -p, p),
    "huber_loss": lambda x, p: wf.huber_loss(x, 0 * x, delta=p),
    "smooth_l1_loss": lambda x, p: wf.smooth_l1_loss(x, 0 * x, beta=p),
    "cross_entropy": lambda x, p: wf.cross_entropy(x, [0, 1, 2, 0], label_smoothing=p),
    "dropout": lambda x, p: wf.dropout(x, wf.astype(p, "float32"), wf.random.key(0)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_tensors_are_mapped_compiled_and_differentiated(name):
    x = wf.asarray(draw(4, 3, seed=5))

    def f(p):
        return wf.sum(NUMBERS[name](x, p))

    numbers = wf.tensor([0.3, 0.4], dtype="float64")
    each = [f(p) for p in numbers]
    np.testing.assert_allclose(each[0].numpy(), f(0.3).numpy(), rtol=1e-12)
    np.testing.assert_allclose(wf.vmap(f)(numbers), wf.stack(each), rtol=1e-12)
    assert wf.compile(f)(numbers[0]).tobytes() == each[0].tobytes()
    if name != "dropout":  # what it leaves out jumps
        slope = (f(0.3 + 1e-6).item() - f(0.3 - 1e-6).item()) / 2e-6
        assert wf.grad(f)(numbers[0]).item() == pytest.approx(slope, rel=1e-5)


def test_a_smooth_distance_by_a_tensor_of_0_is_the_absolute_one():
    f = lambda x, p: wf.smooth_l1_loss(x, 0 * x, beta=p)  # noqa: E731
    x, zero = wf.tensor([0.0, -2.0]), wf.tensor(0.0)
    assert f(x, zero).item() == wf.compile(f)(x, zero).item() == 1.0
    assert wf.grad(f)(x, zero).tolist() == [0.0, -0.5]
    with pytest.raises(ArgumentError, match="huber_loss: delta must be positive"):
        wf.huber_loss(x, x, delta=zero)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("name", "options"), PAIRS, ids=str)
def test_distances_are_torchs_with_their_gradients(name, options, reduction):
    agrees(
        lambda x, y: getattr(wf, name)(x, y, reduction=reduction, **options),
        lambda x, y: getattr(F, name)(x, y, reduction=reduction, **options),
        draw(4, 3),
        draw(4, 3, seed=1),
    )


CLASSES = np.array([0, 2, 1, -100])
WEIGHT = np.array([0.5, 1.0, 2.0])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"label_smoothing": 0.2},
        {"weight": WEIGHT},
        {"weight": WEIGHT, "label_smoothing": 0.2},
        {"ignore_index": 1},
    ],
    ids=str,
)
def test_cross_entropy_of_classes_is_torchs_with_its_gradient(options, reduction):
    classes = np.where(CLASSES < 0, 0, CLASSES) if "ignore_index" in options else CLASSES
    theirs = {k: torch.tensor(v) if k == "weight" else v for k, v in options.items()}
    agrees(
        lambda x: wf.cross_entropy(x, classes, reduction=reduction, **options),
        lambda x: F.cross_entropy(x, torch.tensor(classes), reduction=reduction, **theirs),
        draw(4, 3),
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_of_probabilities_is_torchs_with_its_gradients(
    weighted, smoothing, reduction
):
    options = {"label_smoothing": smoothing, "reduction": reduction}
    agrees(
        lambda x, p: wf.cross_entropy(x, p, weight=WEIGHT if weighted else None, **options),
        lambda x, p: F.cross_entropy(
            x, p, weight=torch.tensor(WEIGHT) if weighted else None, **options
        ),
        draw(4, 3, 2),
        np.abs(draw(4, 3, 2, seed=1)),
    )


def test_cross_entropy_takes_images_single_examples_and_any_class_axis():
    classes = np.arange(24).reshape(2, 3, 4) % 5
    agrees(
        lambda x: wf.cross_entropy(x, classes),
        lambda x: F.cross_entropy(x, torch.tensor(classes)),
        draw(2, 5, 3, 4),
    )
    agrees(
        lambda x: wf.cross_entropy(x, np.array(2)),
        lambda x: F.cross_entropy(x, torch.tensor(2)),
        draw(5),
    )
    last = wf.cross_entropy(np.moveaxis(draw(2, 5, 3, 4), 1, -1), classes, axis=-1)
    close(last.numpy(), wf.cross_entropy(draw(2, 5, 3, 4), classes).numpy())


def test_cross_entropy_of_large_logits_is_finite():
    got, gradient = wf.value_and_grad(lambda x: wf.cross_entropy(x, np.array([0])))(
        np.array([[1e4, -1e4]])
    )
    assert got.item() == 0
    np.testing.assert_allclose(gradient.numpy(), [[0.0, 0.0]])


def test_cross_entropy_maps():
    x, y = draw(5, 4, 3), np.arange(20).reshape(5, 4) % 3
    got = wf.vmap(wf.cross_entropy)(x, y).numpy()
    close(got[3], wf.cross_entropy(x[3], y[3]).numpy())


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nll_loss_is_torchs_with_its_gradient(reduction):
    agrees(
        lambda x: wf.nll_loss(x, CLASSES, weight=WEIGHT, reduction=reduction),
        lambda x: F.nll_loss(
            x, torch.tensor(CLASSES), weight=torch.tensor(WEIGHT), reduction=reduction
        ),
        draw(4, 3),
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_binary_cross_entropy_is_torchs_with_its_gradients(reduction):
    probability = 1 / (1 + np.exp(-draw(4, 3)))
    target = np.abs(np.sin(draw(4, 3, seed=1)))
    weight = np.abs(draw(4, 3, seed=2))
    agrees(
        lambda p: wf.binary_cross_entropy(p, target, weight=weight, reduction=reduction),
        lambda p: F.binary_cross_entropy(
            p, torch.tensor(target), weight=torch.tensor(weight), reduction=reduction
        ),
        probability,
    )
    agrees(
        lambda x, y: wf.binary_cross_entropy_with_logits(
            x, y, weight=weight, pos_weight=WEIGHT, reduction=reduction
        ),
        lambda x, y: F.binary_cross_entropy_with_logits(
            x,
            y,
            weight=torch.tensor(weight),
            pos_weight=torch.tensor(WEIGHT),
            reduction=reduction,
        ),
        draw(4, 3) * 20,
        target,
    )


def test_binary_cross_entropy_of_certainty_is_bounded():
    p, y = np.array([0.0, 1.0, 0.0]), np.array([0.0, 1.0, 1.0])
    want = F.binary_cross_entropy(torch.tensor(p), torch.tensor(y), reduction="none").numpy()
    np.testing.assert_allclose(wf.binary_cross_entropy(p, y, reduction="none").numpy(), want)


@pytest.mark.filterwarnings("ignore:reduction. 'mean'")
@pytest.mark.parametrize("reduction", [*REDUCTIONS, "batchmean"])
@pytest.mark.parametrize("log_target", [True, False])
def test_kl_div_is_torchs_with_its_gradients(log_target, reduction):
    target = draw(4, 3, seed=1) if log_target else np.abs(draw(4, 3, seed=1))
    options = {"log_target": log_target, "reduction": reduction}
    agrees(
        lambda x, y: wf.kl_div(x, y, **options),
        lambda x, y: F.kl_div(x, y, **options),
        draw(4, 3),
        target,
    )


def test_kl_div_of_probability_zero_is_zero():
    got = wf.kl_div(np.array([-1.0, -2.0]), np.array([0.0, 1.0]), reduction="none")
    np.testing.assert_allclose(got.numpy(), [0.0, 2.0])


def test_cosine_similarity_is_torchs_with_its_gradients():
    agrees(wf.cosine_similarity, F.cosine_similarity, draw(4, 3), draw(4, 3, seed=1))
    agrees(
        lambda a, b: wf.cosine_similarity(a, b, axis=-1),
        lambda a, b: F.cosine_similarity(a, b, dim=-1),
        draw(2, 4, 3),
        draw(4, 3, seed=1),
    )
    assert wf.cosine_similarity(np.zeros(2), np.ones(2), axis=0).item() == 0


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margins_are_torchs_with_their_gradients(reduction):
    sign, row = torch.tensor(SIGNS), SIGNS[:, 0]
    keep = {"reduction": reduction}
    agrees(
        lambda x: wf.hinge_embedding_loss(x, SIGNS, margin=0.7, **keep),
        lambda x: F.hinge_embedding_loss(x, sign, margin=0.7, **keep),
        draw(4, 3),
    )
    agrees(
        lambda x: wf.soft_margin_loss(x, SIGNS, **keep),
        lambda x: F.soft_margin_loss(x, sign, **keep),
        draw(4, 3),
    )
    agrees(
        lambda a, b: wf.margin_ranking_loss(a, b, SIGNS, margin=0.2, **keep),
        lambda a, b: F.margin_ranking_loss(a, b, sign, margin=0.2, **keep),
        draw(4, 3),
        draw(4, 3, seed=1),
    )
    agrees(
        lambda a, b: wf.cosine_embedding_loss(a, b, row, margin=0.1, **keep),
        lambda a, b: F.cosine_embedding_loss(a, b, torch.tensor(row), margin=0.1, **keep),
        draw(4, 3),
        draw(4, 3, seed=1),
        tolerance=1e-8,
    )
    for swap in (False, True):
        agrees(
            lambda a, p, n, flag=swap: wf.triplet_margin_loss(a, p, n, swap=flag, **keep),
            lambda a, p, n, flag=swap: F.triplet_margin_loss(a, p, n, swap=flag, **keep),
            draw(4, 3),
            draw(4, 3, seed=1),
            draw(4, 3, seed=2),
        )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margins_of_classes_are_torchs_with_their_gradients(reduction):
    classes, weight = np.array([2, 0, 1, 1]), np.array([0.5, 2.0, 1.0])
    for options in ({}, {"p": 2, "margin": 0.3}):
        agrees(
            lambda x, o=options: wf.multi_margin_loss(
                x, classes, weight=weight, reduction=reduction, **o
            ),
            lambda x, o=options: F.multi_margin_loss(
                x, torch.tensor(classes), weight=torch.tensor(weight), reduction=reduction, **o
            ),
            draw(4, 3),
        )
    yes = (SIGNS + 1.0) / 2
    agrees(
        lambda x: wf.multilabel_soft_margin_loss(x, yes, weight=weight, reduction=reduction),
        lambda x: F.multilabel_soft_margin_loss(
            x, torch.tensor(yes), weight=torch.tensor(weight), reduction=reduction
        ),
        draw(4, 3),
    )


@pytest.mark.parametrize("options", [{}, {"p": 1.0, "eps": 1e-3}, {"keepdims": True}])
def test_distances_of_pairs_are_torchs_with_their_gradients(options):
    named = {"keepdim" if k == "keepdims" else k: v for k, v in options.items()}
    agrees(
        lambda a, b: wf.pairwise_distance(a, b, **options),
        lambda a, b: F.pairwise_distance(a, b, **named),
        draw(4, 3),
        draw(4, 3, seed=1),
    )


def test_weights_and_targets_never_make_more_losses_than_there_are():
    column, row, pairs = wf.ones((4, 1)), wf.ones(4), wf.ones((4, 3))
    for call, name in (
        (lambda: wf.binary_cross_entropy(column / 2, column, weight=row), "weight"),
        (lambda: wf.binary_cross_entropy_with_logits(column, column, weight=row), "weight"),
        (lambda: wf.binary_cross_entropy_with_logits(column, column, pos_weight=row), "pos_weight"),
        (lambda: wf.margin_ranking_loss(column, column, row), "target"),
        (lambda: wf.cosine_embedding_loss(pairs, pairs, column), "target"),
    ):
        with pytest.raises(ShapeError, match=f": {name}: .* would make more"):
            call()
    wf.binary_cross_entropy_with_logits(pairs, pairs, weight=column, pos_weight=wf.ones(3))
    wf.margin_ranking_loss(pairs, pairs, 1.0)


@pytest.mark.parametrize("function", [wf.cross_entropy, wf.nll_loss])
def test_a_target_that_does_not_fit_says_what_may_have_been_meant(function):
    scores = wf.ones((4, 5, 3))
    for shape, hint in (
        ((4, 5), r"\nhint: classes are axis 1 unless axis=-1 says that they come last"),
        ((4, 5, 3), r"\nhint: a target has one integer for each row"),
        ((5,), r"\(4, 3\)$"),
    ):
        with pytest.raises(ShapeError, match=hint):
            function(scores, wf.zeros(shape, dtype="int64"))


def test_hinge_loss_is_its_formula():
    x = draw(4, 3)
    got = wf.hinge_loss(x, SIGNS, reduction="none").numpy()
    close(got, np.maximum(0, 1 - x * SIGNS))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("full", [True, False])
def test_likelihoods_are_torchs_with_their_gradients(full, reduction):
    counts = np.round(np.abs(draw(4, 3, seed=1)) * 3)
    options = {"full": full, "reduction": reduction}
    for log_input in (True, False):
        agrees(
            lambda x, flag=log_input: wf.poisson_nll_loss(x, counts, log_input=flag, **options),
            lambda x, flag=log_input: F.poisson_nll_loss(
                x, torch.tensor(counts), log_input=flag, **options
            ),
            np.abs(draw(4, 3)) + 0.1,
        )
    for shape in ((4, 4), (4, 1), (4,)):
        agrees(
            lambda x, y, v: wf.gaussian_nll_loss(x, y, v, **options),
            lambda x, y, v: F.gaussian_nll_loss(x, y, v, **options),
            draw(4, 4),
            draw(4, 4, seed=1),
            np.abs(draw(*shape, seed=2)) + 0.1,
        )


@pytest.mark.parametrize("reduced", [wf.cross_entropy, wf.nll_loss])
def test_a_class_that_there_is_not_is_an_error_unless_it_is_ignored(reduced, monkeypatch):
    x, classes, above = wf.tensor(draw(3, 4)), wf.tensor([-1, 0, 1]), wf.tensor([0, 4, 1])
    said = f"^{reduced.__name__}: target: index {{}} is out of range for an axis of size 4"
    for many in (loss._MANY, 0):
        monkeypatch.setattr(loss, "_MANY", many)
        for call in (reduced, wf.compile(reduced)):
            with pytest.raises(IndexingError, match=said.format(-1)):
                call(x, classes).numpy()
            with pytest.raises(IndexingError, match=said.format(4)):
                call(x, above).numpy()
    expected = reduced(x[1:], classes[1:]).item()
    assert reduced(x, classes, ignore_index=-1).item() == expected
    with pytest.raises(DTypeError, match=r"ignore_index must be an integer, got 1\.5"):
        reduced(x, classes, ignore_index=1.5)


def test_classes_may_be_of_any_integer_dtype():
    x = wf.tensor(draw(3, 4))
    expected = wf.cross_entropy(x, wf.tensor([3, 0, 1])).item()
    for dtype in ("uint8", "int8", "uint64"):
        assert wf.cross_entropy(x, wf.tensor([3, 0, 1], dtype=dtype)).item() == expected


def test_means_of_many_narrow_losses_are_finite():
    count, options = 100_000, {"dtype": "float16"}
    zeros, halves = wf.zeros(count, **options), wf.full(count, 0.5, **options)
    close(wf.mse_loss(wf.full(count, 8.0, **options), zeros).item(), 64.0)
    close(wf.binary_cross_entropy_with_logits(zeros, halves).item(), np.log(2), 1e-3)
    close(
        wf.kl_div(zeros - 0.5, halves, reduction="batchmean").item(), 0.5 * (0.5 - np.log(2)), 1e-3
    )
    scores = wf.zeros((count, 4), **options)
    mean = wf.cross_entropy(scores, wf.zeros(count, dtype="int64"))
    assert mean.dtype == wf.float16
    close(mean.item(), np.log(4), 1e-3)


def test_infinite_differences_have_the_slope_of_large_ones():
    x = wf.tensor([np.inf, -np.inf, 0.5])
    for loss_of in (wf.huber_loss, wf.smooth_l1_loss):
        found = wf.grad(lambda t, f=loss_of: f(t, wf.zeros(3), reduction="sum"))(x)
        assert found.tolist() == [1.0, -1.0, 0.5]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda x: wf.mse_loss(x, x[:1]),
            ShapeError,
            "mse_loss: prediction .* and target .* differ",
        ),
        (
            lambda x: wf.mse_loss(x, x, reduction="avg"),
            ArgumentError,
            "reduction must be one of 'mean'",
        ),
        (lambda x: wf.huber_loss(x, x, delta=0), ArgumentError, "delta must be positive"),
        (lambda x: wf.smooth_l1_loss(x, x, beta=-1), ArgumentError, "beta must be at least 0"),
        (lambda x: wf.cross_entropy(x, np.array([0, 1])), ShapeError, "target .* for 3 classes"),
        (lambda x: wf.cross_entropy(x, x[:, :2]), ShapeError, "target .* for logits"),
        (
            lambda x: wf.cross_entropy(x, x, label_smoothing=2),
            ArgumentError,
            "label_smoothing must be from 0 to 1",
        ),
        (lambda x: wf.cross_entropy(x, np.array([0, 1, 2, 3])), IndexingError, "out of range"),
        (
            lambda x: wf.multi_margin_loss(x, np.array([0, 1, 2, 3])),
            IndexingError,
            "target: index 3",
        ),
        (lambda x: wf.multi_margin_loss(x, np.array([0, 1])), ShapeError, "scores .N, C., target"),
        (lambda x: wf.multi_margin_loss(x, np.ones(4, int), p=3), ArgumentError, "p must be"),
        (lambda x: wf.nll_loss(x, x[:, 0]), DTypeError, "target classes are integers"),
        (
            lambda x: wf.cross_entropy(x, np.zeros(4, int), weight=np.ones(2)),
            ShapeError,
            "weight: expected shape",
        ),
        (
            lambda x: wf.gaussian_nll_loss(x, x, np.ones(3)),
            ShapeError,
            r"variance \(3,\) for a mean \(4, 3\)\nhint: expected \(4, 3\), or \(4,\)",
        ),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call(np.ones((4, 3)))


@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.2}, {"axis": -1}, {"reduction": "none"}], ids=str
)
def test_scores_picked_in_their_rows_have_the_bits_of_those_that_are_gathered(options, monkeypatch):
    logits = np.moveaxis(draw(6, 5, 4).astype(np.float32), 1, options.get("axis", 1))
    classes = np.array([[0, 4, 2, -100], [1, 1, 3, 0]] * 3)

    def both():
        def mean(x):
            found = wf.cross_entropy(x, classes, **options)
            return wf.sum(found), found

        (_, found), gradient = wf.value_and_grad(mean, has_aux=True)(wf.tensor(logits))
        return found.numpy().tobytes(), gradient.numpy() + 0.0  # ±0 where a row is ignored

    gathered = both()
    monkeypatch.setattr(loss, "_MANY", 0)
    picked = both()
    assert gathered[0] == picked[0]
    np.testing.assert_array_equal(gathered[1], picked[1])


def test_a_class_that_there_is_not_is_an_error_in_rows_too(monkeypatch):
    monkeypatch.setattr(loss, "_MANY", 0)
    for compiled in (lambda f: f, wf.compile):
        with pytest.raises(IndexingError):
            compiled(wf.cross_entropy)(wf.zeros((2, 3)), wf.tensor([0, 3])).numpy()


def test_losses_of_a_product_never_have_all_scores(monkeypatch):
    monkeypatch.setattr(panels, "pool", SimpleNamespace(cores=2))
    rows, depth, count = 2048, 64, 2048
    x, weight = wf.zeros((rows, depth)), wf.zeros((depth, count))
    classes = wf.zeros((rows,), dtype=wf.int32)
    compiled = wf.compile(lambda x, w: wf.cross_entropy(x @ w, classes))
    assert np.isclose(compiled(x, weight).item(), np.log(count))
    assert compiled.stats.bytes_planned < 4 * rows * count / 2


def test_the_gradient_of_losses_of_a_product_runs_on_all_cores(monkeypatch):
    monkeypatch.setattr(panels, "pool", SimpleNamespace(cores=2))
    arguments = wf.zeros((2048, 256)), wf.zeros((256, 8192))
    classes = wf.zeros((2048,), dtype=wf.int32)
    gradient = wf.value_and_grad(lambda x, w: wf.cross_entropy(x @ w, classes), argnums=(0, 1))
    text = wf.compile(gradient).explain(*arguments)
    assert "panels of" in text and "for 2 workers" in text
