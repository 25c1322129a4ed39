"""`wf.plan`: predictions from shapes, for meshes of any size."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.core.sharding.profiles import DEVICES
from weft.errors import ArgumentError, ShardingError

GRID = wf.DeviceMesh("grid", (2, 4), ("data", "model"))
POD = wf.DeviceMesh("pod", (512, 8), ("data", "model"))


def tensor(*shape: int, dtype: str = "float32") -> wf.TensorType:
    return wf.TensorType(shape, np.dtype(dtype))


def layer(x: Any, p: dict[str, Any]) -> Any:
    return x + wf.relu(x @ p["up"]) @ p["down"]


def step(params: list[dict[str, Any]], x: Any) -> Any:
    def loss(params: list[dict[str, Any]]) -> Any:
        y = x
        for p in params:
            y = layer(y, p)
        return (y * y).mean()

    value, grads = wf.value_and_grad(loss)(params)
    return wf.tree_map(lambda p, g: p - 0.1 * g, params, grads), value


def weights(count: int = 2, size: int = 1024) -> list[dict[str, Any]]:
    return [{"up": tensor(size, 4 * size), "down": tensor(4 * size, size)} for _ in range(count)]


def test_propagation_alone_predicts_data_parallel_training() -> None:
    found = wf.plan(
        step,
        GRID,
        weights(),
        tensor(8192, 1024),
        in_specs=(None, wf.P("data")),
        auto=False,
        carry={0: 0},
    )
    assert [str(each.spec) for each in found.inputs[:5]] == ["[·, ·]"] * 4 + ["[data, ·]"]
    (row,) = found.collectives
    assert (row.kind, row.mesh_axis, row.calls) == ("all_reduce", "data", 5)
    # Over two devices a ring sends 2·(2-1)/2 of each gradient, and of the loss.
    assert row.bytes == 4 * (1024 * 4096 * 4) + 4
    assert found.seconds == found.compute + found.communication
    assert [each.spec for each in found.outputs[:4]] == [each.spec for each in found.inputs[:4]]


def test_propagation_alone_predicts_tensor_parallel_inference() -> None:
    specs = ({"up": wf.P(None, "model"), "down": wf.P("model", None)}, wf.P("data"))
    found = wf.plan(
        lambda p, x: layer(x, p), GRID, weights()[0], tensor(512, 1024), in_specs=specs, auto=False
    )
    (row,) = found.collectives
    assert (row.kind, row.mesh_axis, row.calls) == ("all_reduce", "model", 1)
    assert row.bytes == 2 * 3 / 4 * (512 // 2 * 1024 * 4)


def test_compute_time_is_arithmetic_over_the_devices_that_share_it() -> None:
    def product(x: Any, w: Any) -> Any:
        return x @ w

    args = tensor(8192, 4096), tensor(4096, 4096)
    found = wf.plan(product, GRID, *args, in_specs=(wf.P(("data", "model")), None), auto=False)
    flops = 2 * 8192 * 4096 * 4096 / 8
    assert found.flops == flops
    assert found.compute == pytest.approx(flops / DEVICES["h100"].peak("float32"))


def test_memory_counts_inputs_and_what_lives_beside_them() -> None:
    found = wf.plan(
        lambda x: wf.exp(x), GRID, tensor(1024, 1024), in_specs=(wf.P("model"),), auto=False
    )
    assert found.memory == 2 * 1024 * 1024 * 4 // 4


def test_the_solver_is_never_slower_than_propagation() -> None:
    args = weights(), tensor(8192, 1024)
    specs = (None, wf.P("data"))
    plain = wf.plan(step, GRID, *args, in_specs=specs, auto=False, carry={0: 0})
    solved = wf.plan(step, GRID, *args, in_specs=specs, carry={0: 0})
    assert solved.seconds <= plain.seconds * 1.01
    assert str(solved.inputs[4].spec) == "[data, ·]"
    assert solved.solution.gap <= 0.01


def test_nothing_grows_with_the_number_of_devices() -> None:
    start = time.perf_counter()
    found = wf.plan(
        step,
        POD,
        weights(8, 4096),
        tensor(1 << 20, 4096),
        carry={0: 0},
        links={"data": "infiniband", "model": "nvlink"},
    )
    assert time.perf_counter() - start < 30
    assert found.mesh.size == 4096
    assert found.memory < DEVICES["h100"].memory
    assert found.communication > 0


def test_tensors_serve_as_well_as_types_and_are_not_read() -> None:
    x = wf.ones((64, 32))
    assert wf.plan(wf.exp, GRID, x).inputs[0].type == tensor(64, 32)


def test_the_table_names_the_collective_and_the_line_it_is_for() -> None:
    found = wf.plan(
        step, GRID, weights(), tensor(8192, 1024), in_specs=(None, wf.P("data")), auto=False
    )
    text = str(found)
    assert "all_reduce" in text
    assert "data=2, model=4" in text
    assert "x @ p[" in text  # the forward line whose gradient is reduced
    assert "args[0][0]['down']" in text
    assert "predicted time" in text


def test_json_has_everything() -> None:
    found = wf.plan(step, GRID, weights(), tensor(8192, 1024), carry={0: 0})
    data = json.loads(found.to_json())
    assert data["seconds"] == found.seconds
    assert data["mesh"] == {"name": "grid", "shape": [2, 4], "axis_names": ["data", "model"]}
    assert len(data["inputs"]) == len(found.inputs)
    assert sum(each["bytes"] for each in data["transfers"]) == pytest.approx(
        sum(each.bytes for each in found.collectives)
    )


def test_the_page_needs_nothing_else(tmp_path: Any) -> None:
    found = wf.plan(
        step, GRID, weights(), tensor(8192, 1024), in_specs=(None, wf.P("data")), auto=False
    )
    found.html(tmp_path / "plan.html")
    text = (tmp_path / "plan.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "http" not in text and "<script" not in text
    assert "all_reduce" in text and "p[&quot;down&quot;]" in text


def test_a_tighter_limit_is_kept_or_refused() -> None:
    args = weights(), tensor(8192, 1024)
    free = wf.plan(step, GRID, *args, carry={0: 0})
    tight = wf.plan(step, GRID, *args, carry={0: 0}, memory=0.9 * free.memory)
    assert tight.memory <= 0.9 * free.memory
    with pytest.raises(ShardingError, match=r"grid.*data=2, model=4.*smallest achievable is"):
        wf.plan(layer, GRID, tensor(8192, 1024), weights()[0], memory=1e6)


def test_a_plan_that_does_not_fit_says_so() -> None:
    found = wf.plan(lambda x: x + x, GRID, tensor(1 << 18, 1 << 18), auto=False)
    assert "does not fit" in str(found)


def test_out_specs_are_kept() -> None:
    found = wf.plan(
        lambda x, w: x @ w,
        GRID,
        tensor(512, 512),
        tensor(512, 512),
        out_specs=wf.P(None, "model"),
    )
    assert str(found.outputs[0].spec) == "[·, model]"


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"in_specs": (wf.P("rows"),)}, ShardingError, "no axis 'rows'"),
        ({"in_specs": (wf.P("data", None, None),)}, ShardingError, "more entries"),
        ({"in_specs": (wf.P("data"), wf.P("data"))}, ArgumentError, "in_specs"),
        ({"in_specs": "data"}, ArgumentError, "in_specs"),
        ({"out_specs": {"a": wf.P("data")}}, ArgumentError, "out_specs"),
        ({"links": {"rows": "nvlink"}}, ShardingError, "no axis 'rows'"),
        ({"links": "rope"}, ArgumentError, "nvlink"),
        ({"device": "abacus"}, ArgumentError, "h100"),
        ({"carry": {3: 0}}, ArgumentError, "carry"),
        ({"memory": "much"}, ArgumentError, "memory"),
    ],
)
def test_mistakes_are_named(keywords: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        wf.plan(lambda x: wf.exp(x), GRID, tensor(64, 64), **keywords)


def test_a_mesh_is_needed() -> None:
    with pytest.raises(ShardingError, match="DeviceMesh"):
        wf.plan(wf.exp, (2, 4), tensor(64, 64))


def test_a_checkpointed_layer_is_planned_by_the_calls_inside() -> None:
    def slopes(wrap: Any) -> Any:
        def loss(p: list[dict[str, Any]], x: Any) -> Any:
            for each in p:
                x = wrap(layer)(x, each)
            return (x * x).mean()

        args, specs = (weights(4, 256), tensor(65536, 256)), (None, wf.P("data"))
        return wf.plan(wf.grad(loss), GRID, *args, in_specs=specs, auto=False)

    kept, computed_again = slopes(lambda f: f), slopes(wf.checkpoint)
    assert computed_again.collectives == kept.collectives
    assert computed_again.flops > kept.flops and computed_again.memory < kept.memory


PENDING = {
    "divide": lambda s: (s / 3.0) @ s[:, 0],
    "narrow cast": lambda s: wf.sin(s.astype(wf.float16)),
    "wide cast": lambda s: wf.sin(s.astype(wf.float64)),
    "stop_gradient": lambda s: wf.stop_gradient(s) + wf.cos(s),
}


@pytest.mark.parametrize("name", PENDING)
def test_pending_sums_are_predicted_to_pass_where_they_pass(name: str) -> None:
    def function(x: Any, w: Any) -> Any:
        return PENDING[name](x @ w)

    x, w = wf.ones((4, 8)), wf.ones((8, 4))
    specs = wf.P(None, "model"), wf.P("model", None)
    with wf.communication_log() as log:
        found = function(x.shard(GRID, specs[0]), w.shard(GRID, specs[1]))
        wf.reshard(found, wf.P())
    plan = wf.plan(function, GRID, x, w, in_specs=specs, out_specs=wf.P(), auto=False)
    assert sum(row.bytes for row in plan.collectives) == sum(each.bytes for each in log)
