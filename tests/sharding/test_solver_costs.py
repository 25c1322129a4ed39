"""Costs of communication: ring collectives, and the steps from one sharding to another."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from weft.core.common.spec import DeviceMesh, Link, P, ShardingSpec
from weft.core.sharding.cost import (
    Fabric,
    collective_bytes,
    collective_seconds,
    reshard_cost,
    reshard_steps,
    spec_of,
)
from weft.core.sharding.profiles import DEVICES, LINKS, as_link, as_profile
from weft.core.sharding.steps import Layout, Step
from weft.errors import ArgumentError, ShardingError

MESH = DeviceMesh("grid", (2, 4), ("x", "y"))
SHAPE = (64, 32)


def spec(*axes: str | tuple[str, ...] | None, pending: tuple[tuple[str, str], ...] = ()):
    made = ShardingSpec.of(MESH, P(*axes), len(axes))
    return ShardingSpec(MESH, made.axes, pending)


@pytest.mark.promise("S2.27")
@pytest.mark.parametrize(
    ("kind", "factor"),
    [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1), ("all_to_all", 1), ("slice", 0)],
)
def test_a_ring_sends_its_share_of_the_bytes(kind: str, factor: int) -> None:
    assert collective_bytes(kind, 8, 800) == factor * 7 / 8 * 800


@pytest.mark.promise("S2.27")
def test_one_device_sends_nothing() -> None:
    assert collective_seconds("all_reduce", 1, 1e9, LINKS["nvlink"]) == 0


@pytest.mark.promise("S2.27")
def test_twice_the_bandwidth_takes_half_the_time() -> None:
    slow, fast = (collective_seconds("all_gather", 4, 1e6, Link(b, 0.0)) for b in (1e9, 2e9))
    assert slow == pytest.approx(2 * fast)


def test_every_round_pays_the_latency() -> None:
    assert collective_seconds("all_gather", 8, 0, Link(1e9, 1e-3)) == pytest.approx(3e-3)
    assert collective_seconds("all_reduce", 8, 0, Link(1e9, 1e-3)) == pytest.approx(6e-3)
    assert collective_seconds("all_to_all", 8, 0, Link(1e9, 1e-3)) == pytest.approx(3e-3)


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [
        (spec("x", None), spec("x", None), []),
        (spec(None, None), spec("x", "y"), ["slice", "slice"]),
        (spec("x", None), spec(None, None), ["all_gather"]),
        (spec("x", None), spec(None, "x"), ["all_to_all"]),
        (spec(None, None, pending=(("x", "sum"),)), spec(None, None), ["all_reduce"]),
        (spec(None, None, pending=(("x", "sum"),)), spec("x", None), ["reduce_scatter"]),
        (spec("y", None, pending=(("x", "sum"),)), spec(None, "x"), ["reduce_scatter"]
         + ["all_gather"]),
        (spec(("x", "y"), None), spec("x", None), ["all_gather"]),
        (spec(("x", "y"), None), spec("x", "y"), ["all_to_all"]),
    ],
)  # fmt: skip
def test_a_change_of_sharding_takes_the_expected_collectives(source, target, kinds) -> None:
    assert [s.kind for s in reshard_cost(source, target, SHAPE, "float32").steps] == kinds


def layouts() -> list[Layout]:
    found = []
    for places in product((None, "pending", 0, 1), repeat=2):
        for order in permutations(("x", "y")):
            axes: list[list[str]] = [[], []]
            waiting = []
            for name in order:
                place = places[("x", "y").index(name)]
                if place == "pending":
                    waiting.append((name, "sum"))
                elif isinstance(place, int):
                    axes[place].append(name)
            found.append(Layout(tuple(map(tuple, axes)), tuple(sorted(waiting))))
    return list(dict.fromkeys(found))


def applied(layout: Layout, steps: tuple[Step, ...] | list[Step]) -> Layout:
    axes, pending = [list(a) for a in layout.axes], dict(layout.pending)
    for step in steps:
        if step.source is not None:
            assert axes[step.source].pop() == step.axis, "only the innermost cut can go"
        if step.kind in ("all_reduce", "reduce_scatter"):
            del pending[step.axis]
        if step.target is not None:
            assert step.axis not in {a for each in axes for a in each}
            axes[step.target].append(step.axis)
    return Layout(tuple(map(tuple, axes)), tuple(pending.items()))


def test_the_steps_lead_from_any_layout_to_any_other() -> None:
    fabric = Fabric.of(MESH)
    for source, target in product(layouts(), repeat=2):
        if set(target.pending) <= set(source.pending):
            steps = fabric.steps(source, target, SHAPE, 4)
            assert applied(source, steps) == target
            assert fabric.reshard_seconds(source, target, SHAPE, 4) == sum(
                map(fabric.seconds, steps)
            )
        else:
            assert fabric.reshard_seconds(source, target, SHAPE, 4) is None


def test_bytes_are_those_of_the_pieces() -> None:
    # y first gathers a quarter into a half (x still cuts it), then x the half into the whole.
    cost = reshard_cost(spec(("x", "y"), None), spec(None, None), SHAPE, "float32")
    whole = 64 * 32 * 4
    assert cost.bytes == 3 / 4 * whole / 2 + 1 / 2 * whole


def test_each_mesh_axis_has_its_own_link() -> None:
    slow = {"x": Link(1e6), "y": "nvlink"}
    along_x = reshard_cost(spec("x", None), spec(None, None), SHAPE, "float32", slow)
    along_y = reshard_cost(spec("y", None), spec(None, None), SHAPE, "float32", slow)
    assert along_x.seconds > 100 * along_y.seconds


def test_pending_results_cannot_be_asked_for() -> None:
    with pytest.raises(ShardingError, match="pending"):
        reshard_cost(spec(None), spec(None, pending=(("x", "sum"),)), (8,), "float32")


def test_names_that_do_not_exist_are_refused_with_those_that_do() -> None:
    with pytest.raises(ArgumentError, match="nvlink"):
        as_link("here", "string")
    with pytest.raises(ArgumentError, match="h100"):
        as_profile("here", "abacus")
    with pytest.raises(ShardingError, match="no axis 'z'"):
        reshard_cost(spec(None), spec(None), (8,), "float32", {"z": "nvlink"})
    assert as_profile("here", "a100") is DEVICES["a100"]


def test_what_is_planned_is_what_is_run() -> None:
    fabric, shape = Fabric.of(MESH), (4096, 4096)
    for source, target in product(layouts(), repeat=2):
        if set(target.pending) <= set(source.pending):
            run = reshard_steps(spec_of(MESH, source), spec_of(MESH, target), shape, 4)
            assert run == fabric.steps(source, target, shape, 4)
            assert sum(map(fabric.seconds, run)) == fabric.reshard_seconds(source, target, shape, 4)


def test_a_longer_way_is_taken_where_it_is_cheaper() -> None:
    """Over a slow link it pays to gather along the fast one and to cut again."""
    source, target = spec(None, ("x", "y")), spec("x", "y")
    slow = {"x": Link(1e6), "y": Link(1e12)}
    kinds = [step.kind for step in reshard_cost(source, target, SHAPE, "float32", slow).steps]
    assert kinds == ["all_gather", "all_to_all", "slice"]
