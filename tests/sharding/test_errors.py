"""Mistakes about meshes and layouts raise `ShardingError` at the line, and say what is legal."""

from __future__ import annotations

import traceback

import numpy as np
import pytest

import weft as wf
from weft import P
from weft.errors import ShardingError

MESH = wf.DeviceMesh("grid", (2, 2), ("data", "model"))
LINE = wf.DeviceMesh("line", (4,), ("z",))
TURNED = wf.DeviceMesh("grid", (2, 2), ("data", "model"), tuple(f"cpu:{3 - i}" for i in range(4)))
X = wf.tensor(np.ones((4, 6)))
SHOWN = ("(4, 6)", "grid(data=2, model=2)")

LAYOUTS = {
    "an unknown axis": (lambda: X.shard(MESH, P("rows")), ("P('rows')", "'rows'", "data, model")),
    "an axis twice": (lambda: X.shard(MESH, P("data", "data")), ("P('data', 'data')", "twice")),
    "an axis twice in one entry": (lambda: X.shard(MESH, P(("data", "data"))), ("twice",)),
    "too many entries": (lambda: X.shard(MESH, P(None, None, "data")), ("more entries", "(2)")),
    "an entry that is no name": (lambda: X.shard(MESH, P(3)), ("P(3)", "name of a mesh axis")),
    "a partition that is none": (lambda: X.shard(MESH, {"data": 0}), ("name of a mesh axis",)),
    "a set as entry": (lambda: X.shard(MESH, P({"data"})), ("tuple of names",)),
    "an unknown replicated axis": (
        lambda: X.shard(MESH, P("data"), replicated="rows"),
        ("'rows'", "data, model"),
    ),
    "a split replicated axis": (lambda: X.shard(MESH, P("data"), replicated="data"), ("twice",)),
    "replicated of a wrong type": (lambda: X.shard(MESH, P("data"), replicated=5), ("5",)),
    "priority of a wrong type": (lambda: X.shard(MESH, P("data"), priority="first"), ("integer",)),
    "a spec of another mesh": (
        lambda: X.shard(MESH, X.shard(LINE, P("z")).sharding),
        ("[z, ·]", "line(z=4)"),
    ),
    "a spec of another rank": (
        lambda: X.shard(MESH, X[0].shard(MESH, P("data")).sharding),
        ("[data]",),
    ),
    "reshard to an unknown axis": (
        lambda: X.shard(MESH, P("data")).reshard(P("rows")),
        ("reshard", "'rows'"),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_wrong_layout_is_refused_with_mesh_shape_and_what_is_legal(name) -> None:
    wrong, texts = LAYOUTS[name]
    with pytest.raises(ShardingError) as caught:
        wrong()
    for text in (*SHOWN, *texts):
        assert text in str(caught.value)
    user = [frame for frame in traceback.extract_tb(caught.tb) if frame.filename == __file__]
    assert "shard" in user[-1].line


OTHERS = {
    "no mesh": (lambda: X.shard("grid", P("data")), ("DeviceMesh", "'grid'", "hint")),
    "no mesh at all": (lambda: X.shard(None), ("DeviceMesh", "None")),
    "a tensor on no mesh": (lambda: X.reshard(P("data")), ("on no mesh", "wf.shard")),
    "a constraint on no mesh": (
        lambda: wf.with_sharding_constraint(X, P("data")),
        ("on no mesh", "with_sharding_constraint"),
    ),
    "a number": (lambda: wf.tensor(1.0).shard(MESH, P("data")), ("shape ()", "(0)")),
    "gathering over an unknown axis": (
        lambda: wf.all_gather(X.shard(MESH, P("data")), "rows"),
        ("all_gather", "'rows'", "data, model", "[data, ·]"),
    ),
    "reducing over an unknown axis": (
        lambda: wf.all_reduce(X.shard(MESH, P("data")), "rows"),
        ("all_reduce", "'rows'", "data, model"),
    ),
    "scattering over an unknown axis": (
        lambda: wf.reduce_scatter(X.shard(MESH, P("data")), "rows"),
        ("reduce_scatter", "'rows'", "data, model"),
    ),
    "redistributing over an unknown axis": (
        lambda: wf.all_to_all(X.shard(MESH, P("data")), "rows", axis=1),
        ("all_to_all", "'rows'", "data, model"),
    ),
    **{
        f"{name} of a tensor on no mesh": (lambda f=f: f(X, "rows"), ("on no mesh", "'rows'"))
        for name, f in {
            "all_gather": wf.all_gather,
            "all_reduce": wf.all_reduce,
            "reduce_scatter": wf.reduce_scatter,
            "all_to_all": wf.all_to_all,
            "broadcast": wf.broadcast,
            "a compiled all_gather": lambda x, axis: wf.compile(lambda x: wf.all_gather(x, axis))(
                x
            ),
        }.items()
    },
    "an axis twice": (
        lambda: wf.all_gather(X.shard(MESH, P("data")), ("data", "data")),
        ("all_gather", "('data', 'data')", "twice"),
    ),
    "a map spread over no name": (
        lambda: wf.vmap(wf.sin, spmd_axis_name=3)(X.shard(MESH, P())),
        ("vmap", "3"),
    ),
    **{
        f"a map spread over an axis that {title}": (
            lambda name=name: wf.vmap(wf.sin, spmd_axis_name=name)(X.shard(MESH, P())),
            ("vmap: spmd_axis_name", "'dat'", str(MESH)),
        )
        for title, name in {"is on no mesh": "dat", "is half on a mesh": ("data", "dat")}.items()
    },
    "an axis that is no name": (lambda: wf.all_gather(X.shard(MESH, P("data")), 4), ("4",)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_wrong_calls_are_refused_by_name(name) -> None:
    wrong, texts = OTHERS[name]
    with pytest.raises(ShardingError) as caught:
        wrong()
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    "lay",
    [
        lambda mesh: X.shard(mesh, P("data")),
        lambda mesh: wf.with_sharding_constraint(X, P(), mesh),
        lambda mesh: wf.shard_map(wf.sin, mesh, P("data"))(X),
        lambda mesh: wf.shard_map(wf.sin, mesh, P("data"), P("data"), manual=True)(X),
    ],
)
def test_nothing_lies_on_devices_that_are_not_there(lay) -> None:
    mesh = wf.DeviceMesh("pair", (2,), ("data",), devices=["cpu:0", "cuda:0"])
    with pytest.raises(wf.errors.DeviceError, match=r"pair\(data=2\) has the device cuda:0"):
        lay(mesh)
    assert wf.plan(wf.sin, mesh, X).seconds > 0


MIXED = {
    "add": lambda x, y: x + y,
    "matmul": lambda x, y: x @ y.mT,
    "where": lambda x, y: wf.where(x > 0, x, y),
    "concat": lambda x, y: wf.concat([x, y]),
    "setitem": lambda x, y: x.__setitem__(0, y[0]),
}


@pytest.mark.parametrize("name", MIXED)
def test_operands_on_different_meshes_are_refused_with_both_layouts(name) -> None:
    with pytest.raises(ShardingError, match="different meshes") as caught:
        MIXED[name](X.shard(MESH, P("data")), X.shard(LINE, P(None, "z")))
    for text in ("grid(data=2, model=2)", "line(z=4)", "hint: x.shard"):
        assert text in str(caught.value)


def test_equal_meshes_of_other_devices_are_told_apart() -> None:
    with pytest.raises(ShardingError, match="cpu:3"):
        X.shard(MESH, P("data")) + X.shard(TURNED, P("data"))


def test_equal_meshes_made_twice_are_one_mesh() -> None:
    twin = wf.DeviceMesh("grid", (2, 2), ("data", "model"))
    assert (X.shard(MESH, P("data")) + X.shard(twin, P("data"))).sharding.mesh == MESH


def test_mistakes_in_shapes_are_reported_as_on_one_device() -> None:
    for wrong in (lambda x: x + wf.ones(5), lambda x: x @ x, lambda x: x.reshape(5, 5)):
        with pytest.raises(wf.errors.ShapeError) as dense:
            wrong(X)
        with pytest.raises(wf.errors.ShapeError) as spread:
            wrong(X.shard(MESH, P("data")))
        assert str(spread.value) == str(dense.value)


def test_a_tensor_over_a_mesh_is_not_moved_to_one_device() -> None:
    with pytest.raises(wf.errors.DeviceError, match=r"lies over .* grid\(data=2, model=2\)"):
        X.shard(MESH, P("data")).to_device("cpu:1")


def test_a_failed_call_leaves_its_operands_as_they_were() -> None:
    x = X.shard(MESH, P("data"))
    with pytest.raises(ShardingError):
        x += X.shard(LINE, P("z"))
    assert str(x.sharding) == "[data, ·]"
    assert x.tolist() == X.tolist()


def test_a_sum_over_one_mapped_axis_may_name_it_in_a_tuple() -> None:
    total = wf.vmap(lambda x: wf.all_reduce(x, ("rows",)), axis_name="rows", out_axes=None)
    assert total(X).tolist() == X.sum(axis=0).tolist()


def test_a_sum_may_go_over_several_mapped_axes_and_axes_of_a_mesh() -> None:
    def twice(f):
        return wf.vmap(wf.vmap(f, axis_name="columns"), axis_name="rows")

    x = wf.arange(8.0).reshape(2, 4)
    for total in (wf.psum, wf.all_reduce):
        mapped = twice(lambda v, total=total: total(v, ("rows", "columns")))(x)
        assert mapped.tolist() == [[28.0] * 4] * 2
    assert twice(lambda v: wf.pmax(v, ["rows", "columns"]))(x).tolist() == [[7.0] * 4] * 2
    body = wf.vmap(lambda v: wf.psum(v, ("data", "rows", "model")), axis_name="rows")
    by_hand = wf.shard_map(body, MESH, P("data", "model"), P(), manual=True)
    assert by_hand(x).tolist() == [[12.0, 16.0]]
    with pytest.raises(wf.errors.ArgumentError, match="psum: no axis is called 'z'"):
        twice(lambda v: wf.psum(v, ("rows", "z")))(x)
    with pytest.raises(ShardingError, match=r"psum: .* names an axis twice"):
        twice(lambda v: wf.psum(v, ("rows", "rows")))(x)


def test_a_kind_of_reduction_that_would_be_ignored_is_told():
    for x in (X, X.shard(MESH, P("data"))):
        with pytest.raises(ShardingError, match="all_reduce: op: 'max' has no meaning outside"):
            wf.all_reduce(x, op="max")
