"""Pipelines give what the dense network gives, and what a pipeline written in JAX gives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf
from weft import P
from weft.core.tensor.tracing import trace_tree

STAGES, COUNT, BATCH, WIDTH = 4, 5, 6, 8


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


PARAMS = {"weight": drawn(STAGES, WIDTH, WIDTH) / 3, "bias": drawn(STAGES, WIDTH)}
XS, TARGETS = drawn(COUNT, BATCH, WIDTH), drawn(BATCH, COUNT, WIDTH).swapaxes(0, 1)
LINE = wf.DeviceMesh("line", (STAGES,), ("stage",))
GRID = wf.DeviceMesh("grid", (2, STAGES), ("data", "stage"))


def stage(p, x):
    return wf.tanh(x @ p["weight"] + p["bias"])


def error(y, target):
    return wf.mean((y - target) ** 2)


def dense(params, xs):
    for s in range(STAGES):
        xs = stage({name: p[s] for name, p in params.items()}, xs)
    return xs


def dense_gradient(xs=XS, targets=TARGETS):
    params = wf.tree_map(wf.asarray, PARAMS)

    def loss(p):
        return sum(map(error, dense(p, wf.asarray(xs)), wf.asarray(targets)))

    return wf.value_and_grad(loss)(params)


def split(mesh):
    return wf.tree_map(lambda p: wf.shard(p, mesh, P("stage")), PARAMS)


def assert_close(found, wanted) -> None:
    for mine, theirs in zip(wf.tree_leaves(found), wf.tree_leaves(wanted), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-12, atol=1e-13)


def jax_pipeline(params, xs):
    """The same pipeline in JAX on one device: a map over stages, a shift, a scan."""

    def tick(arrived, new):
        arrived = arrived.at[0].set(new)
        made = jax.vmap(lambda p, x: jnp.tanh(x @ p["weight"] + p["bias"]))(params, arrived)
        return jnp.roll(made, 1, axis=0), made[-1]

    until_empty = jnp.concatenate([xs, jnp.zeros((STAGES - 1, *xs.shape[1:]))])
    start = jnp.zeros((STAGES, *xs.shape[1:]))
    return jax.lax.scan(tick, start, until_empty)[1][STAGES - 1 :]


def jax_gradient():
    def loss(p):
        return jnp.sum(jnp.mean((jax_pipeline(p, jnp.asarray(XS)) - TARGETS) ** 2, axis=(1, 2)))

    with jax.enable_x64(True):
        value, gradient = jax.value_and_grad(loss)(jax.tree.map(jnp.asarray, PARAMS))
        return np.asarray(value), jax.tree.map(np.asarray, gradient)


def by_gpipe(params, xs, targets, mesh):
    def loss(p):
        made = wf.gpipe(stage, p, xs, mesh)
        return wf.sum(wf.vmap(error)(made, targets))

    return wf.value_and_grad(loss)(params)


def by_one_forward_one_backward(params, xs, targets, mesh):
    return wf.one_forward_one_backward(stage, error, params, xs, targets, mesh)


SCHEDULES = [by_gpipe, by_one_forward_one_backward]


def test_a_pipeline_has_the_bits_of_the_dense_network() -> None:
    found = wf.gpipe(stage, split(LINE), XS, LINE)
    wanted = dense(wf.tree_map(wf.asarray, PARAMS), wf.asarray(XS))
    assert wf.all(found == wanted).item()


@pytest.mark.parametrize("count", [1, 2, STAGES, 2 * STAGES + 1])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_loss_and_gradients_are_those_of_the_dense_network(schedule, count) -> None:
    xs, targets = drawn(count, BATCH, WIDTH), drawn(count, BATCH, WIDTH) / 2
    found = schedule(split(LINE), wf.asarray(xs), wf.asarray(targets), LINE)
    assert_close(found, dense_gradient(xs, targets))
    assert found[1]["weight"].sharding.axes[0] == ("stage",)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_loss_and_gradients_are_those_of_a_pipeline_in_jax(schedule) -> None:
    value, gradient = schedule(split(LINE), wf.asarray(XS), wf.asarray(TARGETS), LINE)
    wanted, slopes = jax_gradient()
    np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-12)
    for name, slope in slopes.items():
        np.testing.assert_allclose(gradient[name].numpy(), slope, rtol=1e-11, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pipelines_beside_each_other_are_one_dense_network_and_meet_once(schedule) -> None:
    params = split(GRID)
    shape = (COUNT, 2, BATCH // 2, WIDTH)
    xs, targets = (wf.shard(x.reshape(shape), GRID, P(None, "data")) for x in (XS, TARGETS))
    with wf.communication_log() as log:
        values, each = wf.vmap(
            lambda x, y: schedule(params, x, y, GRID), in_axes=1, spmd_axis_name="data"
        )(xs, targets)
        gradient = wf.tree_map(lambda g: wf.all_reduce(wf.sum(g, axis=0) / 2), each)
    wanted, slopes = dense_gradient()
    assert_close((wf.sum(values) / 2, gradient), (wanted, slopes))
    over_data = [entry.kind for entry in log if "data" in entry.axes]
    assert over_data == ["all_reduce"] * len(PARAMS)
    jax_value, jax_slopes = jax_gradient()
    np.testing.assert_allclose(wf.sum(values).item() / 2, jax_value, rtol=1e-12)
    np.testing.assert_allclose(gradient["bias"].numpy(), jax_slopes["bias"], rtol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_compiled_pipeline_has_the_bits_of_the_plain_one(schedule) -> None:
    arguments = (split(LINE), wf.asarray(XS), wf.asarray(TARGETS))
    plain = schedule(*arguments, LINE)
    compiled = wf.compile(lambda p, x, y: schedule(p, x, y, LINE))(*arguments)
    for mine, theirs in zip(wf.tree_leaves(compiled), wf.tree_leaves(plain), strict=True):
        assert (mine.numpy() == theirs.numpy()).all()


def kept_by_loops(schedule, count: int) -> int:
    """Numbers that the loops of a schedule hand from tick to tick, or store at each tick."""
    xs = wf.zeros((count, BATCH, WIDTH), dtype=wf.float64)
    trace, _ = trace_tree(lambda p: schedule(p, xs, xs, LINE), (split(LINE),), {}, "test")
    loops = [node for node in trace.nodes if node.op.name == "scan"]
    assert loops
    return sum(kind.size for node in loops for kind in node.types)


def test_one_schedule_keeps_as_many_inputs_as_stages_the_other_as_microbatches() -> None:
    few, many = (kept_by_loops(by_one_forward_one_backward, n) for n in (10, 110))
    assert many - few == 100 * STAGES  # one loss for each tick and stage
    few, many = (kept_by_loops(by_gpipe, n) for n in (10, 110))
    assert many - few >= 100 * STAGES * BATCH * WIDTH


def test_a_stage_that_has_no_derivative_at_zero_keeps_finite_gradients() -> None:
    def stage_of_lengths(p, x):
        return x / wf.linalg.vector_norm(x, axis=-1, keepdims=True) + p["bias"]

    def run(schedule):
        return schedule(stage_of_lengths, split(LINE))

    one = run(lambda f, p: wf.one_forward_one_backward(f, error, p, XS, TARGETS, LINE))
    all_forward = run(
        lambda f, p: wf.value_and_grad(
            lambda p: wf.sum(wf.vmap(error)(wf.gpipe(f, p, XS, LINE), wf.asarray(TARGETS)))
        )(p)
    )
    assert np.isfinite(one[1]["bias"].numpy()).all()
    assert_close(one, all_forward)


def test_parameters_that_are_not_stacked_by_stage_are_refused() -> None:
    params = {"weight": PARAMS["weight"][:3], "bias": PARAMS["bias"]}
    with pytest.raises(wf.errors.ShapeError, match="does not lead with 4 stages"):
        wf.gpipe(stage, params, XS, LINE)
    with pytest.raises(wf.errors.ShardingError, match="no axis 'model'"):
        wf.gpipe(stage, PARAMS, XS, LINE, "model")


def test_a_batch_that_is_split_over_data_is_not_gathered_at_any_tick() -> None:
    params = split(GRID)
    xs, targets = (wf.shard(x, GRID, P(None, "data")) for x in (XS, TARGETS))
    with wf.communication_log() as log:
        made = wf.gpipe(stage, params, xs, GRID)
    assert made.sharding.axes == ((), ("data",), ())
    assert all(entry.axes == ("stage",) for entry in log)
    with wf.communication_log() as log:
        found = by_one_forward_one_backward(params, xs, targets, GRID)
    assert {entry.kind for entry in log if "data" in entry.axes} == {"all_reduce"}
    assert_close(found, dense_gradient())


def test_a_carry_is_cut_as_its_steps_give_it_unless_it_was_made_to_stay_whole() -> None:
    mesh = wf.DeviceMesh("grid", (2, 2), ("a", "b"))
    xs = wf.shard(wf.ones((3, 4, 4)), mesh, P(None, "a", "b"))

    def run(start):
        with wf.communication_log() as log:
            last = wf.scan(lambda c, x: (c + x, None), start, xs)[0]
        return last.sharding.axes, log.kinds

    assert run(wf.shard(wf.zeros((4, 4)), mesh, P("a"))) == ((("a",), ("b",)), [])
    pinned, moved = run(wf.shard(wf.zeros((4, 4)), mesh, P("a"), replicated=("b",)))
    assert pinned == (("a",), ()) and moved == ["all_gather"]
