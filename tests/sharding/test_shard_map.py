"""`shard_map`: single-device code over a mesh, by replay, by a solver, or by hand on pieces."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft import P
from weft.core.common.events import watchers
from weft.core.common.slots import OPS
from weft.errors import ArgumentError, ShardingError, TreeError
from weft.ops.communication import mesh as over_mesh

GRID = wf.DeviceMesh("grid", (2, 2), ("dp", "tp"))


def data(seed: int = 0):
    rng = np.random.default_rng(seed)
    shapes = ((4, 6), (6, 8), (8, 6))
    return [wf.tensor(rng.normal(size=shape)) for shape in shapes]


def network(x, w, v):
    return wf.tanh(x @ w) @ v


SPECS = (P("dp"), P(None, "tp"), P("tp"))


@pytest.mark.promise("S3.2")
def test_single_device_code_runs_over_a_mesh() -> None:
    x, w, v = data()
    found = wf.shard_map(network, GRID, SPECS, P("dp"))(x, w, v)
    assert str(found.sharding) == "[dp, ·]"
    np.testing.assert_allclose(found.numpy(), network(x, w, v).numpy(), rtol=1e-12)


@pytest.mark.promise("S3.3")
def test_a_function_may_lay_its_values_out_itself() -> None:
    x, w, v = data()

    def inside(x, w, v):
        return network(x.shard(GRID, P("dp")), w, v).reshard(P(None, "tp"))

    found = wf.shard_map(inside, GRID)(x, w, v)
    assert str(found.sharding) == "[·, tp]"
    np.testing.assert_allclose(found.numpy(), network(x, w, v).numpy(), rtol=1e-12)


@pytest.mark.promise("S3.10")
def test_the_users_python_runs_once() -> None:
    calls = []

    def counted(x):
        calls.append(x.shape)
        return x * 2

    wf.shard_map(counted, GRID, P("dp"))(data()[0])
    assert calls == [(4, 6)]


@pytest.mark.promise("S3.9")
def test_the_result_is_a_graph_of_ops_on_shards() -> None:
    seen = []
    x, w, v = data()
    watcher = seen.append
    watchers.append(watcher)
    try:
        wf.realize(wf.shard_map(network, GRID, SPECS)(x, w, v))
    finally:
        watchers.remove(watcher)
    assert sum(e.kind == "run" and "tanh" in e.name for e in seen) == GRID.size


@pytest.mark.promise("S3.7")
def test_a_solver_chooses_layouts_and_replay_enforces_them() -> None:
    x, w, v = data()
    chosen = wf.shard_map(network, GRID, (P("dp"), None, None), auto_sharding=True)
    found = chosen(x, w, v)
    np.testing.assert_allclose(found.numpy(), network(x, w, v).numpy(), rtol=1e-12)
    fixed = wf.shard_map(network, GRID, auto_sharding=True, out_specs=P("tp", "dp"))
    assert str(fixed(x, w, v).sharding) == "[tp, dp]"


def doubled_slope(x, w, v):
    """The network, with twice the derivative it has."""
    wrapped = wf.custom_vjp(network)
    wrapped.defvjp(lambda *a: (network(*a), a), lambda a, ct: wf.vjp(network, *a)[1](2 * ct))
    return wrapped(x, w, v)


@pytest.mark.parametrize("inner", [wf.checkpoint(network), doubled_slope])
def test_a_solver_chooses_layouts_around_captured_functions(inner) -> None:
    x, w, v = data()
    step = lambda *a: wf.sin(inner(*a)).sum()  # noqa: E731
    chosen = wf.shard_map(step, GRID, (P("dp"), None, None), auto_sharding=True)
    for f in (lambda run: run, lambda run: wf.grad(run, argnums=(0, 1, 2))):
        for found, right in zip(
            wf.tree_leaves(f(chosen)(x, w, v)), wf.tree_leaves(f(step)(x, w, v)), strict=True
        ):
            np.testing.assert_allclose(found.numpy(), right.numpy(), rtol=1e-10)


@pytest.mark.promise("S3.25")
def test_compute_and_communication_compile_together() -> None:
    x, w, v = data()

    def body(x, w, v):
        return wf.all_reduce(network(x, w, v), "tp")

    run = wf.compile(wf.shard_map(body, GRID, SPECS, P("dp"), manual=True))
    np.testing.assert_allclose(run(x, w, v).numpy(), network(x, w, v).numpy(), rtol=1e-12)
    assert "host calls 0" in run.explain(x, w, v)
    assert run.stats.traces == 1


@pytest.mark.promise("S2.5")
def test_a_call_is_validated_before_anything_is_planned() -> None:
    x, w, _ = (t.shard(GRID, P("dp")) for t in data())
    known = len(over_mesh._plans)
    with pytest.raises(wf.errors.ShapeError, match="matmul"):
        wf.matmul(x, x)
    assert len(over_mesh._plans) == known
    assert (x @ w).shape == (4, 8)


@pytest.mark.promise("S2.6")
@pytest.mark.promise("S2.7")
@pytest.mark.promise("S2.9")
def test_rule_propagation_and_parameters_of_pieces_can_be_seen() -> None:
    x, w, _ = data()
    matmul = OPS["matmul"]
    assert str(matmul.sharding_rule(x.type, w.type)) == "m k, k n -> m n"
    laid = x.shard(GRID, P("dp")), w.shard(GRID, P(None, "tp"))
    plan = over_mesh.plan_of(matmul, [over_mesh.opened(t) for t in laid], {})
    assert [str(spec) for spec in plan.inputs] == ["[dp, ·]", "[·, tp]"]
    assert [str(spec) for spec in plan.outputs] == ["[dp, tp]"]
    assert len(plan.params) == GRID.size


@pytest.mark.parametrize("manual", [False, True])
def test_gradients_flow_through(manual: bool) -> None:
    x, w, v = data()

    def body(x, w, v):
        y = network(x, w, v)
        if manual:
            y = wf.all_reduce(y, "tp")
        total = (y**2).sum()
        return wf.all_reduce(total, "dp") if manual else total

    run = wf.shard_map(body, GRID, SPECS, P(), manual=manual)
    expected = wf.grad(lambda *a: (network(*a) ** 2).sum(), argnums=(0, 1, 2))(x, w, v)
    for found, right in zip(wf.grad(run, argnums=(0, 1, 2))(x, w, v), expected, strict=True):
        np.testing.assert_allclose(found.numpy(), right.numpy(), rtol=1e-10)
    pushed = wf.jvp(run, (x, w, v), (x, w, v))[1]
    slope = sum(float((g * t).sum()) for g, t in zip(expected, (x, w, v), strict=True))
    assert float(pushed) == pytest.approx(slope, rel=1e-10)


def test_every_collective_by_axis_name() -> None:
    x = data()[0]

    def body(v):
        whole = wf.all_gather(v, "dp", axis=0)
        return (
            whole,
            wf.reduce_scatter(whole, "dp", axis=0),
            wf.ppermute(v, "dp", [(0, 1), (1, 0)]),
            wf.all_reduce(v, "tp", "max"),
            wf.psum(v, "dp"),
            v + wf.axis_index("dp"),
            wf.all_to_all(whole, "tp", split=0, axis=1),
        )

    grid = P("dp", "tp")
    specs = (P(None, "tp"), grid, grid, P("dp"), P(None, "tp"), grid, P("tp"))
    found = wf.shard_map(body, GRID, grid, specs, manual=True)(x)
    a = x.numpy()
    halves = a.reshape(2, 2, 6)
    left, right = a[:, :3], a[:, 3:]
    expected = (
        a,
        2 * a,
        halves[::-1].reshape(4, 6),
        np.maximum(left, right),
        halves.sum(0),
        a + np.repeat([0, 1], 2)[:, None],
        a,
    )
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got.numpy(), want)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda v: wf.sum(wf.reduce_scatter(v, "dp", axis=1)), "reduce_scatter: axis 1"),
        (lambda v: wf.sum(wf.all_to_all(v, "dp", axis=0, split=-1)), "all_to_all: axis 1"),
    ],
)
def test_devices_never_get_pieces_of_different_shapes(body, text) -> None:
    with pytest.raises(wf.errors.ShapeError, match=rf"{text} of a piece .*2 equal parts"):
        wf.shard_map(lambda v: body(v)[None], GRID, P(), P("dp"), manual=True)(wf.ones((4, 5)))


def test_a_result_that_differs_must_be_named() -> None:
    with pytest.raises(ShardingError, match=r"differs between devices along dp.*\n.*all_reduce"):
        wf.shard_map(lambda v: v, GRID, P("dp"), P(), manual=True)(data()[0])


def test_values_that_differ_between_devices_cannot_be_read() -> None:
    def body(v):
        return v if v.sum() > 0 else -v

    with pytest.raises(wf.errors.ConcretizationError, match="differs between devices"):
        wf.shard_map(body, GRID, P("dp"), P("dp"), manual=True)(data()[0])


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda x: wf.shard_map(wf.sin, None)(x), ArgumentError, "DeviceMesh"),
        (lambda x: wf.shard_map(wf.sin, GRID, P("z"))(x), ShardingError, "no axis 'z'"),
        (lambda x: wf.shard_map(wf.sin, GRID, (P(), P()))(x), TreeError, "2 entries"),
        (
            lambda x: wf.shard_map(wf.sin, GRID, P(None, ("dp", "tp")), P(), manual=True)(x),
            ShardingError,
            "equal pieces",
        ),
        (
            lambda x: wf.shard_map(wf.sin, GRID, manual=True, auto_sharding=True)(x),
            ArgumentError,
            "exclude",
        ),
        (lambda x: wf.shard_map(wf.sin, GRID, memory=1)(x), ArgumentError, "auto_sharding"),
        (
            lambda x: wf.shard_map(lambda v: wf.all_gather(v, "z"), GRID, P(), P(), manual=True)(x),
            ShardingError,
            "all_gather: 'z' is no axis of mesh grid",
        ),
    ],
)
def test_bad_arguments_say_what_is_legal(call, kind, text: str) -> None:
    with pytest.raises(kind, match=text):
        call(data()[0])


@pytest.mark.promise("S2.10")
def test_results_are_packaged_as_one_tensor_of_global_shape() -> None:
    x, w, _ = data()
    found = x.shard(GRID, P("dp")) @ w.shard(GRID, P(None, "tp"))
    assert isinstance(found, wf.Tensor) and found.shape == (4, 8)
    assert [shard.tensor.shape for shard in found.dual] == [(2, 4)] * GRID.size
    assert [shard.device for shard in found.dual] == list(GRID.devices)


@pytest.mark.promise("S2.11")
def test_a_call_over_a_mesh_is_recorded_as_one_logical_node() -> None:
    x, w, _ = data()
    laid = x.shard(GRID, P("dp")), w.shard(GRID, P(None, "tp"))
    (node,) = wf.trace(wf.matmul, *laid).nodes
    assert node.name == "matmul" and node.types[0].shape == (4, 8)
    assert [str(spec) for spec in node.specs] == ["[dp, tp]"]


def test_one_device_gives_its_piece_to_the_others() -> None:
    x = data()[0]
    found = wf.shard_map(
        lambda v: wf.broadcast(v, "dp", 1), GRID, P("dp", "tp"), P(None, "tp"), manual=True
    )(x)
    np.testing.assert_array_equal(found.numpy(), x.numpy()[2:])
    with pytest.raises(wf.errors.WeftError, match="root"):
        wf.shard_map(lambda v: wf.broadcast(v, "dp", 2), GRID, P("dp"), P(), manual=True)(x)
    assert wf.broadcast(x.shard(GRID, P("dp")), "dp").sharding.is_whole


def rows_of(v, w):
    rows = wf.scan(lambda c, r: (c + wf.sum(w * r), c), wf.sum(v), v[:, 0])[1]
    return v @ w + rows[:, None] + wf.zeros_like(w)[0]


@pytest.mark.parametrize("spec", [None, P("dp"), P("tp", "dp")], ids=str)
def test_a_tensor_from_outside_is_whole_on_every_device(spec) -> None:
    x, w, _ = data()

    def alone(w):
        return wf.concat([rows_of(x[:2], w), rows_of(x[2:], w)])

    def spread(w):
        return wf.shard_map(lambda v: rows_of(v, w), GRID, P("dp"), P("dp"), manual=True)(x)

    def slope(function):
        return wf.grad(lambda w: wf.sum(wf.sin(function(w))))

    laid = w if spec is None else w.shard(GRID, spec)
    for found in (spread(laid), wf.compile(spread)(laid)):
        np.testing.assert_allclose(found.numpy(), alone(w).numpy(), rtol=1e-12)
    for found in (slope(spread)(laid), wf.compile(slope(spread))(laid)):
        np.testing.assert_allclose(found.numpy(), slope(alone)(w).numpy(), rtol=1e-10)


def test_a_piece_lies_on_one_device() -> None:
    x = data()[0]
    inner = wf.shard_map(wf.sin, GRID, P("tp"))
    for body in (lambda v: wf.sin(v.shard(GRID, P("tp"))), inner):
        found = wf.shard_map(body, GRID, P("dp"), P("dp"), manual=True)(x)
        np.testing.assert_array_equal(found.numpy(), wf.sin(x).numpy())
    inner = wf.shard_map(wf.sin, GRID, P("tp"), P("tp"), manual=True)
    with pytest.raises(ShardingError, match=r"cannot be split over grid.*manual=True"):
        wf.shard_map(inner, GRID, P("dp"), P("dp"), manual=True)(x)


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "prod"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "float32"])
def test_numbers_of_devices_are_combined_as_those_of_a_tensor(kind, dtype) -> None:
    x = wf.asarray([[1, 0, 100, 1], [1, 0, 100, 0]]).astype(dtype)
    expected = getattr(wf, kind)(x, axis=0, keepdims=True)

    def by_hand(body, out):
        return wf.shard_map(body, GRID, P("dp"), out, manual=True)(x)

    found = [by_hand(lambda v: wf.all_reduce(v, "dp", kind), P())]
    if kind == "sum":
        found += [
            by_hand(lambda v: wf.reduce_scatter(v, "dp", axis=1), P(None, "dp")),
            wf.vmap(lambda v: wf.psum(v, "rows"), axis_name="rows", out_axes=None)(x)[None],
        ]
    for each in found:
        assert each.dtype == expected.dtype
        assert each.tolist() == expected.tolist()


def test_complex_numbers_of_devices_have_no_largest() -> None:
    with pytest.raises(wf.errors.DTypeError, match="all_reduce: max: complex"):
        body = lambda v: wf.all_reduce(v, "dp", "max")  # noqa: E731
        wf.shard_map(body, GRID, P("dp"), P(), manual=True)(data()[0] + 1j)


@pytest.mark.parametrize("axes", ["dp", ("tp", "dp")])
def test_derivatives_of_a_product_over_devices_are_right_at_zero(axes) -> None:
    x, spec = data()[0].at[:2, 1].set(0.0), P(("dp", "tp"))

    def product(v):
        return wf.sin(wf.all_reduce(v, axes, "prod"))

    outside = wf.shard_map(product, GRID, spec, spec, manual=True)
    inside = {
        "vjp": lambda v: wf.grad(lambda v: wf.sum(product(v)))(v),
        "jvp": lambda v: wf.jvp(product, (v,), (wf.cos(v),))[1],
    }
    expected = {
        "vjp": wf.grad(lambda x: wf.sum(outside(x)))(x),
        "jvp": wf.jvp(outside, (x,), (wf.cos(x),))[1],
    }
    for name, body in inside.items():
        found = wf.shard_map(body, GRID, spec, spec, manual=True)(x)
        np.testing.assert_allclose(found.numpy(), expected[name].numpy(), rtol=1e-12, atol=1e-14)


def test_a_function_that_sees_pieces_is_not_planned() -> None:
    x = data()[0]
    by_hand = wf.shard_map(wf.sin, GRID, P("dp"), P("dp"), manual=True)
    for planned in (
        lambda: wf.plan(by_hand, GRID, x),
        lambda: wf.shard_map(by_hand, GRID, auto_sharding=True)(x),
    ):
        with pytest.raises(ShardingError, match="manual=True has no layouts to choose"):
            planned()
