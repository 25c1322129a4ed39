"""What is communicated, when it is decided, and what each device runs."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

import weft as wf
from tests.sharding.layouts import SQUARE, close, laid_out, log_of, same
from weft import P
from weft.core.common.events import watchers

TP = wf.DeviceMesh("line", (4,), ("tp",))
DP = wf.DeviceMesh("line", (4,), ("dp",))
RNG = np.random.default_rng(7)
X, TARGET = RNG.normal(size=(64, 16)), RNG.normal(size=(64, 16))
WEIGHTS = [
    RNG.normal(size=(16, 32)) / 4,
    RNG.normal(size=32),
    RNG.normal(size=(32, 16)) / 6,
    RNG.normal(size=16),
]
COLUMN_AND_ROW = [P(None, "tp"), P("tp"), P("tp", None), P()]


def mlp(weights, x):
    first, first_bias, second, second_bias = weights
    return wf.gelu(x @ first + first_bias) @ second + second_bias


def loss(weights, x, target):
    return wf.mean((mlp(weights, x) - target) ** 2)


def over(mesh, specs, arrays=WEIGHTS):
    return [laid_out(a, mesh, spec) for a, spec in zip(arrays, specs, strict=True)]


def large(log):
    """The collectives of the log that move tensors and not single numbers."""
    return [entry for entry in log if entry.shape != ()]


@contextmanager
def ops_that_run():
    """The names and result shapes of op runs in this block."""
    events, found = [], []
    watchers.append(events.append)
    try:
        yield found
    finally:
        watchers.remove(events.append)
        found += [
            (event.name, event.details()["shapes"]) for event in events if event.kind == "kernel"
        ]


@pytest.mark.promise("S2.8")
def test_a_pending_sum_becomes_an_all_reduce() -> None:
    x = laid_out(X, TP, P(None, "tp"))
    y, log = log_of(lambda: x @ laid_out(WEIGHTS[0], TP, P("tp")))
    assert y.sharding.pending == (("tp", "sum"),)
    assert not len(log)
    z, log = log_of(lambda: y + 1)
    assert log.kinds == ["all_reduce"]
    assert z.sharding.is_whole
    close(z, X @ WEIGHTS[0] + 1)


@pytest.mark.promise("S2.8")
def test_a_split_tensor_that_is_wanted_whole_becomes_an_all_gather() -> None:
    x = laid_out(X, TP, P("tp"))
    y, log = log_of(lambda: x.reshard(P()))
    assert log.kinds == ["all_gather"]
    assert y.sharding.is_whole
    same(y, X)
    _, log = log_of(lambda: wf.sort(x, axis=0))  # an op that needs the whole axis
    assert log.kinds == ["all_gather"]


@pytest.mark.promise("S2.8")
def test_a_mesh_axis_that_moves_to_another_axis_becomes_an_all_to_all() -> None:
    x = laid_out(X, TP, P("tp"))
    y, log = log_of(lambda: x.reshard(P(None, "tp")))
    assert log.kinds == ["all_to_all"]
    assert str(y.sharding) == "[·, tp]"
    same(y, X)
    z, log = log_of(lambda: laid_out(X, TP, P(None, "tp")) + x)
    assert log.kinds == ["all_to_all"]
    same(z, X + X)


def test_a_pending_sum_that_is_wanted_split_becomes_a_reduce_scatter() -> None:
    y = laid_out(X, TP, P(None, "tp")) @ laid_out(WEIGHTS[0], TP, P("tp"))
    z, log = log_of(lambda: y.reshard(P("tp")))
    assert log.kinds == ["reduce_scatter"]
    close(z, X @ WEIGHTS[0])


def test_a_whole_tensor_is_split_without_communication() -> None:
    x = laid_out(X, TP, P())
    _, log = log_of(lambda: x.reshard(P("tp")) + x)
    assert not len(log)


def test_what_is_settled_once_is_not_settled_again() -> None:
    total = wf.sum(laid_out(X, TP, P("tp")), axis=0)
    _, log = log_of(lambda: (wf.sin(total), wf.cos(total), total + 1))
    assert log.kinds == ["all_reduce"]


@pytest.mark.promise("S0.6")
def test_a_reshard_is_logged_at_the_call_with_its_line_before_data_is_read() -> None:
    x = laid_out(np.ones((400, 400)), SQUARE, P("x")) + 1
    y = laid_out(np.ones((400, 400)), SQUARE, P(None, "x")) + 1
    z, log = log_of(lambda: x + y)  # the line that asks for it
    assert not z.is_realized
    (entry,) = log
    assert (entry.kind, entry.axes, entry.shape) == ("all_to_all", ("x",), (400, 400))
    assert entry.bytes == 400 * 400 * 8 // 4  # half of the half that each device holds
    assert "the line that asks for it" in str(entry)
    assert "for add" in str(entry)


def test_bytes_are_those_of_a_ring() -> None:
    x = laid_out(X, TP, P("tp"))
    half = X.nbytes
    total = wf.sum(wf.stack([x, x]), axis=1)
    cases = [
        (lambda: x.reshard(P()), half * 3 // 4),
        (lambda: x.reshard(P(None, "tp")), half // 4 * 3 // 4),
        (lambda: total.reshard(P()), total.nbytes * 2 * 3 // 4),
        (lambda: wf.sum(wf.stack([x, x]), axis=1).reshard(P(None, "tp")), total.nbytes * 3 // 4),
    ]
    for run, sent in cases:
        assert log_of(run)[1].bytes == sent


@pytest.mark.promise("S0.7")
def test_a_kernel_runs_once_for_each_shard_on_local_data() -> None:
    x = laid_out(X, TP, P("tp"))
    with ops_that_run() as runs:
        wf.realize(wf.tanh(x))
    shapes = [shapes for name, shapes in runs if "tanh" in name]
    assert shapes == ["float64[16,16] -> float64[16,16]"] * 4


@pytest.mark.promise("S0.7")
def test_a_kernel_on_copies_runs_once() -> None:
    x = laid_out(X, SQUARE, P("x"))
    with ops_that_run() as runs:
        wf.realize(wf.tanh(x))
    assert [shapes for name, shapes in runs if "tanh" in name] == [
        "float64[32,16] -> float64[32,16]"
    ] * 2


@pytest.mark.promise("S0.14")
def test_a_sharded_tensor_has_one_shard_for_each_device() -> None:
    for spec in (P("x", "y"), P("x"), P(None, ("y", "x")), P()):
        x = laid_out(X[:5], SQUARE, spec)
        shards = x.dual.shards
        assert [shard.device for shard in shards] == list(SQUARE.devices)
        for shard in shards:
            same(shard.tensor, X[:5][shard.index])


@pytest.mark.promise("S2.13")
def test_a_column_and_a_row_split_pair_does_one_all_reduce_forward_and_one_backward() -> None:
    weights, x = over(TP, COLUMN_AND_ROW), laid_out(X, TP, P())
    y, log = log_of(lambda: mlp(weights, x))
    assert log.kinds == ["all_reduce"]
    close(y, mlp([wf.asarray(w) for w in WEIGHTS], wf.asarray(X)))

    def step():
        value, (slopes, slope) = wf.value_and_grad(loss, argnums=(0, 1))(
            weights, x, laid_out(TARGET, TP, P())
        )
        return value, slopes, slope + 0.0  # the layer below asks for it

    (_, slopes, slope), log = log_of(step)
    assert log.kinds == ["all_reduce", "all_reduce"]
    assert [str(s.sharding) for s in slopes] == ["[·, tp]", "[tp]", "[tp, ·]", "[·]"]
    expected = wf.grad(loss, argnums=(0, 1))(
        [wf.asarray(w) for w in WEIGHTS], wf.asarray(X), wf.asarray(TARGET)
    )
    close((slopes, slope), expected)


def test_data_parallel_training_does_one_all_reduce_for_each_parameter() -> None:
    weights, x, target = (
        over(DP, [P()] * 4),
        laid_out(X, DP, P("dp")),
        laid_out(TARGET, DP, P("dp")),
    )

    def step():
        slopes = wf.grad(loss)(weights, x, target)
        return [w - 0.1 * s for w, s in zip(weights, slopes, strict=True)]

    _, log = log_of(step)
    assert [(entry.kind, entry.shape) for entry in large(log)] == [
        ("all_reduce", w.shape) for w in WEIGHTS
    ]


def test_gradients_of_several_batches_are_reduced_once() -> None:
    weights, x, target = (
        over(DP, [P()] * 4),
        laid_out(X, DP, P("dp")),
        laid_out(TARGET, DP, P("dp")),
    )

    def accumulate():
        first, second = (wf.grad(loss)(weights, x * scale, target) for scale in (1.0, 0.5))
        return [w - 0.1 * (a + b) / 2 for w, a, b in zip(weights, first, second, strict=True)]

    _, log = log_of(accumulate)
    assert [entry.kind for entry in large(log)] == ["all_reduce"] * 4


def test_gradients_of_parameters_that_are_split_with_the_data_end_in_reduce_scatter() -> None:
    weights = over(DP, [P("dp")] * 4)
    x, target = laid_out(X, DP, P("dp")), laid_out(TARGET, DP, P("dp"))

    def gathered(weights, x, target):
        return loss([wf.all_gather(w) for w in weights], x, target)

    slopes, log = log_of(lambda: wf.grad(gathered)(weights, x, target))
    kinds = [entry.kind for entry in large(log)]
    assert kinds == ["all_gather"] * 4 + ["reduce_scatter"] * 4
    assert [s.sharding.axes[0] for s in slopes] == [("dp",)] * 4
    close(slopes, wf.grad(loss)(list(map(wf.asarray, WEIGHTS)), *map(wf.asarray, (X, TARGET))))


def test_split_optimizer_state_takes_gradients_by_reduce_scatter() -> None:
    weights, x, target = (
        over(DP, [P()] * 4),
        laid_out(X, DP, P("dp")),
        laid_out(TARGET, DP, P("dp")),
    )
    momenta = [wf.zeros_like(w).reshard(P("dp")) for w in weights]

    def step():
        slopes = wf.grad(loss)(weights, x, target)
        return [0.9 * m + s for m, s in zip(momenta, slopes, strict=True)]

    moved, log = log_of(step)
    assert [entry.kind for entry in large(log)] == ["reduce_scatter"] * 4
    assert all(m.sharding.axes[0] == ("dp",) for m in moved)


def test_explicit_collectives_change_the_layout_and_not_the_value() -> None:
    x = laid_out(X, SQUARE, P("x", "y"))
    for run, kind, layout in [
        (lambda: wf.all_gather(x), "all_gather", "[·, ·]"),
        (lambda: wf.all_gather(x, "y"), "all_gather", "[x, ·]"),
        (lambda: wf.all_to_all(x, "y", axis=0), "all_to_all", "[x+y, ·]"),
    ]:
        y, log = log_of(run)
        assert set(log.kinds) == {kind}
        assert str(y.sharding) == layout
        same(y, X)
    total = wf.sum(laid_out(np.stack([X, X]), SQUARE, P("x", "y")), axis=0)
    for run, kind, layout in [
        (lambda: wf.all_reduce(total), "all_reduce", "[y, ·]"),
        (lambda: wf.reduce_scatter(total, "x", axis=1), "reduce_scatter", "[y, x]"),
    ]:
        y, log = log_of(run)
        assert log.kinds == [kind]
        assert str(y.sharding) == layout
        same(y, X + X)


def test_a_replicated_axis_is_never_split_and_priority_decides_between_operands() -> None:
    rows, columns = laid_out(X, TP, P("tp")), laid_out(X, TP, P(None, "tp"))
    assert str((rows + columns).sharding) == "[tp, ·]"
    first = columns.reshard(P(None, "tp"), priority=-1)
    assert str((rows + first).sharding) == "[·, tp]"
    kept = wf.tensor(X).shard(TP, P(), replicated="tp")
    assert (rows + kept).sharding.is_whole
    same(rows + kept, X + X)


@pytest.mark.promise("S2.12")
def test_a_product_of_matrices_takes_any_of_its_factors_from_devices() -> None:
    x, y = RNG.normal(size=(8, 4)), RNG.normal(size=(4, 12))
    for left, right, layout in [
        (P("tp"), P(), "[tp, ·]"),
        (P(), P(None, "tp"), "[·, tp]"),
        (P(None, "tp"), P("tp"), "[·, ·] pending sum over tp"),
        (P(None, "tp"), P(), "[·, ·] pending sum over tp"),
        (P(), P("tp"), "[·, ·] pending sum over tp"),
    ]:
        a, b = laid_out(x, TP, left), laid_out(y, TP, right)
        z, log = log_of(partial(wf.matmul, a, b))
        assert str(z.sharding) == layout
        assert not len(log)
        close(z, x @ y)
    z = laid_out(x, SQUARE, P("x", "y")) @ laid_out(y, SQUARE, P("y"))
    assert str(z.sharding) == "[x, ·] pending sum over y"


@pytest.mark.promise("S2.13")
def test_elementwise_ops_keep_the_finest_layout_of_their_operands() -> None:
    x = laid_out(X, SQUARE, P("x", "y"))
    for other in (X, X[0], 2.0, laid_out(X, SQUARE, P("x")), laid_out(X[0], SQUARE, P())):
        z, log = log_of(partial(wf.maximum, other, x))
        assert str(z.sharding) == "[x, y]"
        assert not len(log)


IMAGES = RNG.normal(size=(8, 3, 6, 6))
MODELS = {
    "convolution": (lambda p, x: wf.relu(wf.conv2d(x, p, padding=1)), (5, 3, 3, 3)),
    "strided convolution": (lambda p, x: wf.conv2d(x, p, stride=2), (5, 3, 3, 3)),
    "pooling": (lambda p, x: wf.max_pool2d(x * p, 2), (6, 6)),
    "attention": (lambda p, x: wf.softmax(x @ p @ x.mT, axis=-1) @ x, (6, 6)),
    "layer norm": (
        lambda p, x: (
            (x - wf.mean(x, axis=-1, keepdims=True)) / wf.std(x, axis=-1, keepdims=True) * p
        ),
        (6,),
    ),
    "product of sums": (lambda p, x: wf.einsum("bchw,hk->bckw", x, p), (6, 4)),
    "slices": (lambda p, x: wf.concat([x[:, 1:] * p, wf.flip(x, axis=-1)], axis=1), (6, 6)),
    "sorted": (lambda p, x: wf.top_k(wf.sort(x * p, axis=-2), 2, axis=-1)[0], (6, 6)),
    "running sums": (lambda p, x: wf.cumulative_sum(x * p, axis=-1), (6, 6)),
    "transforms": (lambda p, x: wf.abs(wf.fft.rfft(x * p, axis=-1)), (6, 6)),
}


@pytest.mark.parametrize("name", MODELS)
def test_data_parallel_gradients_gather_nothing(name) -> None:
    function, shape = MODELS[name]
    weight = RNG.normal(size=shape)

    def mean_square(p, x):
        return wf.mean(function(p, x) ** 2)

    slope, log = log_of(
        lambda: wf.grad(mean_square)(laid_out(weight, DP, P()), laid_out(IMAGES, DP, P("dp")))
    )
    assert not large(log)
    assert slope.sharding.pending == (("dp", "sum"),)
    close(slope, wf.grad(mean_square)(wf.asarray(weight), wf.asarray(IMAGES)))


def test_a_collective_in_a_loop_is_entered_once_with_the_number_of_its_rounds() -> None:
    mesh = wf.DeviceMesh("line", (4,), ("x",))
    start = wf.shard(wf.ones((8, 2), dtype=wf.float64), mesh, P("x"))

    def step(c, _):
        return wf.ppermute(c, "x", [(i, (i + 1) % 4) for i in range(4)]), None

    with wf.communication_log() as log:
        wf.scan(lambda c, _: (wf.scan(step, c, None, length=3)[0], None), start, None, length=5)
    (entry,) = log
    assert (entry.kind, entry.times, entry.bytes) == ("ppermute", 15, 2 * 2 * 8)
    assert log.bytes == 15 * entry.bytes and "32 bytes 15 times" in str(log)
