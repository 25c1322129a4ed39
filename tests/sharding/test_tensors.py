"""What users do with a tensor on one device, done with one over a mesh."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import weft as wf
from tests.sharding.layouts import (
    HALVES,
    MESHES,
    SQUARE,
    UNEVEN,
    close,
    laid_out,
    log_of,
    random_spec,
    same,
)
from weft import P

TABLE = np.random.default_rng(0).uniform(-2, 2, (6, 4))
POSITIVE = np.abs(TABLE) + 0.1
EACH_SPEC = [P("x"), P("y", "x"), P(None, ("x", "y")), P(("y", "x")), P()]
each_spec = pytest.mark.parametrize("spec", EACH_SPEC, ids=repr)


BOTH = P("x", "y")


def table(spec=BOTH) -> wf.Tensor:
    return wf.tensor(TABLE).shard(SQUARE, spec)


INDICES = [
    0,
    -1,
    (slice(None), 1),
    slice(None, None, 2),
    (slice(1, 5), slice(None, None, -1)),
    None,
    (..., None, 0),
    [0, 3, 3],
    (slice(None), np.array([[0, 1], [2, 3]])),
    (np.array([0, 5]), np.array([1, 2])),
    TABLE[:, 0] > 0,
    TABLE > 0,
    slice(2, 2),
]


@pytest.mark.parametrize("index", INDICES, ids=repr)
@each_spec
def test_indexing_reads_the_same_elements(index, spec) -> None:
    same(table(spec)[index], TABLE[index])


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_assignment_changes_the_same_elements(index) -> None:
    for spec in EACH_SPEC:
        y, expected = table(spec), TABLE.copy()
        y[index] = 7.0
        expected[index] = 7.0
        same(y, expected)
        y[index] += 1.0
        expected[index] += 1.0
        same(y, expected)


@each_spec
def test_assignment_reaches_the_base_of_a_view_and_every_view_of_it(spec) -> None:
    base, expected = table(spec), TABLE.copy()
    row, column = base[2], base[:, 1]
    row[1] = 9.0
    expected[2, 1] = 9.0
    base *= 2.0
    expected *= 2.0
    column += 1.0
    expected[:, 1] += 1.0
    same(base, expected)
    same(row, expected[2])
    same(column, expected[:, 1])


def test_assigned_values_may_be_sharded_and_targets_whole_or_the_other_way_round() -> None:
    target, expected = wf.tensor(TABLE), TABLE.copy()
    target[0] = table()[1]
    target[2:4] = table(P("y"))[:2] * 2
    expected[0], expected[2:4] = TABLE[1], TABLE[:2] * 2
    same(target, expected)
    spread = table()
    spread[1] = wf.tensor(TABLE[0])
    expected = TABLE.copy()
    expected[1] = TABLE[0]
    same(spread, expected)


def test_an_axis_that_an_assignment_covers_stays_split() -> None:
    x = table()
    _, log = log_of(lambda: x.__setitem__((slice(None), 1), 5.0))
    assert x.sharding.axes[0] == ("x",)
    assert {entry.axes for entry in log} <= {("y",)}


@pytest.mark.parametrize("index", INDICES, ids=repr)
@each_spec
def test_assignment_to_a_part_keeps_the_layout(index, spec) -> None:
    def assigned(y):
        y = wf.copy(y)
        y[index] = 7.0
        return y

    x = table(spec)
    wanted, laid = x.sharding, wf.copy(x)
    laid[index] = 7.0
    slope = wf.grad(lambda y: wf.sum(assigned(y) * y))(x)
    for found in (laid, wf.compile(assigned)(x), slope):
        assert found.sharding.settled == wanted.settled


FUNCTIONS = {
    "mean": lambda x: wf.mean(x, axis=0),
    "var": lambda x: wf.var(x, axis=0),
    "std of all": wf.std,
    "softmax": lambda x: wf.softmax(x, axis=0),
    "log_softmax": lambda x: wf.log_softmax(x, axis=-1),
    "logsumexp": lambda x: wf.logsumexp(x, axis=0),
    "argmax": lambda x: wf.argmax(x, axis=0),
    "argmin of all": wf.argmin,
    "sort": lambda x: wf.sort(x, axis=0),
    "cumsum": lambda x: wf.cumulative_sum(x, axis=0),
    "cumprod": lambda x: wf.cumulative_prod(x, axis=1),
    "median": lambda x: wf.median(x, axis=0),
    "top_k": lambda x: wf.top_k(x, 2, axis=0),
    "gather": lambda x: wf.take_along_axis(x, wf.argsort(x, axis=0), axis=0),
    "scatter": lambda x: x.at[wf.asarray([0, 0, 5])].add(wf.sin(x[:3])),
    "one_hot": lambda x: wf.one_hot(wf.argmax(x, axis=1), 5, dtype=x.dtype) * wf.sum(x),
    "embedding": lambda x: wf.embedding(x, wf.asarray([[0, 5], [2, 2]])),
    "matmul": lambda x: x @ wf.matrix_transpose(x) @ x,
    "einsum": lambda x: wf.einsum("ij,kj,kl->il", x, wf.sin(x), x),
    "conv": lambda x: wf.conv1d(x[None], wf.stack([x[:, :2], wf.cos(x[:, 1:3])])),
    "norm": lambda x: wf.linalg.vector_norm(x, axis=0),
    "svd": lambda x: wf.linalg.svdvals(x),
    "solve": lambda x: wf.linalg.solve(x.mT @ x + 3 * wf.eye(4, dtype=x.dtype), x.mT),
    "fft": lambda x: wf.fft.fft(x, axis=0),
    "chained maxima": lambda x: wf.max(x, axis=0)[::2].reshape(1, 2) + 1,
    "minimum of maxima": lambda x: wf.min(wf.max(x, axis=0)),
    "sum of maxima": lambda x: wf.sum(wf.max(x, axis=0)),
    "maximum of sums": lambda x: wf.max(wf.sum(x, axis=0)),
    "product of sums": lambda x: wf.prod(wf.sum(x, axis=1)),
    "sums through linear ops": lambda x: (2 * wf.sum(x, axis=0) - wf.sum(x * x, axis=0)) / 3,
    "square of sums": lambda x: wf.sum(x, axis=0) * wf.sum(x, axis=0),
    "quotient of sums": lambda x: wf.sum(x, axis=0) / (3 + wf.sum(x * x, axis=0)),
    "sum with a number": lambda x: wf.sum(x, axis=0) + 1,
    "any": lambda x: wf.any(x > 1.5, axis=0),
    "all and any": lambda x: wf.all(wf.any(x > 0, axis=0)),
    "not all": lambda x: ~wf.all(x > -3, axis=0),
    "where of pending": lambda x: wf.where(wf.sum(x, axis=0) > 0, wf.max(x, axis=0), 0.0),
    "stack of pending": lambda x: wf.stack([wf.sum(x, axis=0), wf.max(x, axis=0)]),
    "clip": lambda x: wf.clip(wf.sum(x, axis=0), -1, 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.promise("S2.14")
def test_functions_give_what_they_give_on_one_device(name) -> None:
    expected = FUNCTIONS[name](wf.asarray(TABLE))
    rng = np.random.default_rng(len(name))
    for mesh in MESHES:
        close(FUNCTIONS[name](laid_out(TABLE, mesh, random_spec(rng, mesh, 2))), expected)


def test_a_split_reduction_waits_with_its_own_kind() -> None:
    x = laid_out(POSITIVE, HALVES, P("x"))
    kinds = {"sum": wf.sum, "max": wf.max, "min": wf.min, "prod": wf.prod}
    for kind, reduce in kinds.items():
        assert reduce(x, axis=0).sharding.pending == (("x", kind),)
    assert wf.any(x > 1, axis=0).sharding.pending == (("x", "any"),)
    assert wf.all(x > 1, axis=0).sharding.pending == (("x", "all"),)


def test_sums_wait_through_what_is_linear_and_through_nothing_else() -> None:
    x = laid_out(TABLE, HALVES, P("x"))
    waits = (("x", "sum"),)
    total = wf.sum(x, axis=0)
    for y in (total * 2, -total, total / 3, total[::2], total + total, total.reshape(2, 2)):
        assert y.sharding.pending == waits
    for y in (total + 1, wf.sin(total), total * total, 1 / total, abs(total), total > 0):
        assert not y.sharding.pending
    assert not (-wf.max(x, axis=0)).sharding.pending


def test_a_sum_over_zeros_is_settled_first() -> None:
    terms = np.array([[1.0, -1.0, 0.0], [2.0, 3.0, 0.0]], np.float32)
    total = wf.sum(laid_out(terms, HALVES, P("x")), axis=0)
    made = total / wf.tensor([0.0, 0.0, 0.0])
    np.testing.assert_array_equal(made.numpy(), [np.inf, np.inf, np.nan])


def test_a_wide_cast_of_a_sum_that_wraps_around_is_done_after_the_sum() -> None:
    x = laid_out(np.full((2, 3), 100, np.int8), HALVES, P("x"))
    total = wf.sum(x, axis=0, dtype=wf.int8)
    assert total.sharding.pending
    assert total.astype(wf.uint8).sharding.pending
    assert total.astype(wf.uint8).tolist() == [200] * 3
    assert total.astype(wf.int32).tolist() == [-56] * 3


@pytest.mark.parametrize("draw", [wf.random.normal, wf.random.uniform])
def test_draws_from_a_key_do_not_depend_on_the_layout(draw) -> None:
    key = wf.random.key(3)
    expected = draw(key, (6, 4))
    same(draw(key, (6, 4)).shard(UNEVEN, P("y", "x")), expected)
    same(draw(key.shard(SQUARE, P()), (6, 4)), expected)
    keys = wf.random.split(key, 4)
    each = wf.vmap(lambda k: draw(k, (3,)))
    same(each(keys.shard(SQUARE, P("x"))), each(keys))


def test_backward_fills_the_gradients_of_sharded_parameters() -> None:
    for spec in EACH_SPEC:
        weight, bias = table(spec), wf.tensor(TABLE[0]).shard(SQUARE, P("y"))
        weight.requires_grad = bias.requires_grad = True
        wf.sum(wf.tanh(weight * 2 + bias) ** 2).backward()
        slope = wf.grad(lambda w, b: wf.sum(wf.tanh(w * 2 + b) ** 2), argnums=(0, 1))
        close((weight.grad, bias.grad), slope(wf.asarray(TABLE), wf.asarray(TABLE[0])))


def test_backward_goes_through_shard_to_a_parameter_on_one_device() -> None:
    weight = wf.tensor(TABLE)
    weight.requires_grad = True
    wf.sum(weight.shard(SQUARE, P("x", "y")) ** 3).backward()
    close(weight.grad, 3 * TABLE**2)


def test_steps_in_place_keep_the_layout_of_parameters() -> None:
    weight, plain = table(), wf.tensor(TABLE)
    for parameter in (weight, plain):
        parameter.requires_grad = True
        for _ in range(3):
            wf.sum(wf.tanh(parameter) ** 2).backward()
            with wf.no_grad():
                parameter -= 0.1 * parameter.grad
            parameter.grad = None
    same(weight.detach(), plain.detach())
    assert str(weight.sharding) == "[x, y]"


def test_reading_gives_numbers_arrays_and_text() -> None:
    x = table()
    assert float(wf.sum(x)) == pytest.approx(TABLE.sum())
    assert bool(wf.all(x < 3)) is True
    assert int(wf.argmax(x)) == TABLE.argmax()
    assert x[1, 2].item() == TABLE[1, 2]
    assert x.tolist() == TABLE.tolist()
    assert len(x) == 6
    assert [float(row[0]) for row in x] == TABLE[:, 0].tolist()
    same(np.asarray(x), TABLE)
    same(np.from_dlpack(x), TABLE)
    assert repr(x) == repr(wf.tensor(TABLE))[:-1] + ", sharding=[x, y])"
    assert "pending sum over x" in repr(wf.sum(x, axis=0))
    assert f"{wf.sum(x):.3f}" == f"{TABLE.sum():.3f}"


def test_copies_keep_the_layout_and_pickles_the_value() -> None:
    x = table()
    for twin in (copy.copy(x), copy.deepcopy(x), wf.asarray(x, copy=True)):
        assert str(twin.sharding) == "[x, y]"
        same(twin, TABLE)
    twin = copy.deepcopy(x)
    twin[0] = 0.0
    same(x, TABLE)
    same(pickle.loads(pickle.dumps(x)), TABLE)


@pytest.mark.promise("S0.13")
def test_a_sharded_tensor_shows_its_global_shape_and_type() -> None:
    for mesh in MESHES:
        x = laid_out(TABLE, mesh, P("x"))
        assert (x.shape, x.ndim, x.size, x.nbytes) == ((6, 4), 2, 24, 192)
        assert x.dtype == wf.float64
        assert wf.eval_shape(lambda t: t @ t.mT, x).shape == (6, 6)
        assert x.to_device("cpu").shape == (6, 4)


def test_tensors_made_like_a_sharded_one_lie_as_it_does() -> None:
    x = table()
    total = wf.sum(x, axis=1)
    for like in (wf.zeros_like, wf.ones_like, wf.empty_like, lambda t: wf.full_like(t, 3)):
        assert str(like(x).sharding) == "[x, y]"
        assert str(like(total).sharding) == "[x]"
        same(like(x), like(wf.tensor(TABLE)))


def test_realize_computes_every_piece() -> None:
    x = wf.tensor(np.ones((600, 600))).shard(SQUARE, P("x", "y")) + 1
    assert not x.is_realized
    wf.realize(x)
    assert x.is_realized
    same(x, np.full((600, 600), 2.0))


def test_debug_reports_logical_ops_with_their_statistics() -> None:
    reports = []
    wf.debug(lambda x: wf.sum(wf.sin(x)), sink=reports)(table())
    assert [report.op for report in reports] == ["sin", "reduce_sum"]
    assert reports[0].statistics["max"] == pytest.approx(np.sin(TABLE).max())


@pytest.mark.parametrize("where", ["plain", "grad", "vmap"])
def test_debug_nans_names_the_op_and_the_line(where) -> None:
    def broken(x):
        y = x * 2
        return wf.sum(wf.log(y))  # the line at fault

    wrapped = {"plain": broken, "grad": wf.grad(broken), "vmap": wf.vmap(broken)}[where]
    message = r"log: \d+ of 24 elements are NaN .*the line at fault"
    with pytest.raises(wf.errors.NotFiniteError, match=message), wf.debug_nans():
        wrapped(table())


def test_higher_derivatives_and_their_products_are_those_of_one_device() -> None:
    def energy(x):
        return wf.sum(wf.sin(x) * wf.sum(x * x, axis=0))

    dense, spread = wf.tensor(TABLE[:3]), wf.tensor(TABLE[:3]).shard(UNEVEN, P("y", "x"))
    close(wf.hessian(energy)(spread), wf.hessian(energy)(dense))
    close(
        wf.grad(lambda x: wf.sum(wf.grad(energy)(x) ** 2))(spread),
        wf.grad(lambda x: wf.sum(wf.grad(energy)(x) ** 2))(dense),
    )
    close(wf.vmap(wf.grad(lambda r: wf.sum(wf.exp(r))))(spread), np.exp(TABLE[:3]))


@pytest.mark.promise("S2.17")
def test_a_custom_kernel_takes_sharded_tensors_is_mapped_and_differentiated() -> None:
    def cube(x, shape):
        return wf.call_custom_kernel(
            lambda a: a**3,
            x,
            result_type=(shape, "float64"),
            vjp=lambda primals, out, ct: (3 * primals[0] ** 2 * ct,),
        )

    for spec in EACH_SPEC:
        x = table(spec)
        same(cube(x, (6, 4)), TABLE**3)
        same(wf.vmap(lambda row: cube(row, (4,)))(x), TABLE**3)
        close(wf.grad(lambda x: wf.sum(cube(x, (6, 4))))(x), 3 * TABLE**2)


@pytest.mark.parametrize("size", [8, 6, 3])
def test_a_mesh_whose_axis_was_split_mixes_with_the_one_it_was_made_of(size) -> None:
    line = wf.DeviceMesh("line", (4,), ("z",))
    finer = line.split_axis("z", outer=2, inner=2)
    array = np.arange(size * 4.0).reshape(size, 4)
    coarse = laid_out(array, line, P("z"))
    for spec in (P("outer", "inner"), P(("outer", "inner")), P("inner")):
        fine = laid_out(array, finer, spec)
        for total in (coarse + fine, fine + coarse):
            same(total, array + array)
            assert total.sharding.mesh == finer
        close(wf.sum(coarse, axis=0) @ fine.mT, array.sum(axis=0) @ array.T)
    if size == 8:
        _, log = log_of(lambda: coarse + laid_out(array, finer, P(("outer", "inner"))))
        assert not len(log)


def test_a_cotangent_that_no_map_reaches_is_laid_out_like_one_that_varies() -> None:
    def total(x):
        y = x * 1
        y[2] = 2 * x[0]  # the assigned row is laid out as the rest
        return wf.sum(y @ weight)  # the cotangent of y does not depend on y

    x, weight = wf.asarray(TABLE[:3]), wf.arange(4, dtype="float64")
    wanted = wf.grad(total)(x)
    spread = x.shard(UNEVEN, P("y"))
    found = wf.vmap(lambda scale: wf.grad(total)(spread * scale))(wf.tensor([1.0, 0.5]))
    for row in (found[0], found[1]):
        close(row, wanted.numpy())
