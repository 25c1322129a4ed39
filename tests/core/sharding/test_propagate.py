"""Factor propagation: what an op needs of its operands, and what its results become."""

from __future__ import annotations

import pytest

import weft as wf
from weft.core.common.factors import Factors
from weft.core.common.slots import OPS
from weft.core.common.types import TensorType
from weft.core.sharding import DeviceMesh, P, ShardingSpec, propagate
from weft.errors import ShardingError

MESH = DeviceMesh("grid", (2, 4), ("x", "y"))


def spec(*axes: str | None) -> ShardingSpec:
    return ShardingSpec.of(MESH, P(*axes), len(axes))


def run(text: str, sizes: dict[str, int], *specs: ShardingSpec, whole: str = ""):
    ranks = [len(s.axes) for s in specs]
    return propagate(Factors.parse(text, ranks, whole=whole), sizes, specs)


def test_elementwise_results_inherit_the_split() -> None:
    done = run("i j, i j -> i j", {"i": 8, "j": 8}, spec("x", None), spec("x", None))
    assert done.outputs == (spec("x", None),)
    assert done.inputs == (spec("x", None), spec("x", None))


def test_an_operand_that_is_not_split_is_asked_to_be() -> None:
    done = run("i j, i j -> i j", {"i": 8, "j": 8}, spec("x", None), spec(None, None))
    assert done.inputs[1] == spec("x", None)


def test_a_contracted_split_leaves_a_pending_sum() -> None:
    done = run("m k, k n -> m n", {"m": 8, "k": 8, "n": 8}, spec(None, "x"), spec("x", None))
    assert done.outputs[0].pending == (("x", "sum"),)


def test_column_parallel_matmul_needs_no_communication() -> None:
    done = run("m k, k n -> m n", {"m": 8, "k": 8, "n": 8}, spec("x", None), spec(None, "y"))
    assert done.outputs == (spec("x", "y"),)
    assert not done.outputs[0].pending


def test_one_mesh_axis_serves_one_factor() -> None:
    done = run("m k, k n -> m n", {"m": 8, "k": 8, "n": 8}, spec("x", None), spec(None, "x"))
    (out,) = done.outputs
    assert [a for axes in out.axes for a in axes].count("x") == 1


def test_a_whole_factor_is_gathered() -> None:
    done = run("i n -> i n", {"i": 8, "n": 8}, spec("x", "y"), whole="n")
    assert done.inputs == (spec("x", None),)


def test_a_split_axis_stays_split_through_reshape() -> None:
    op = OPS["reshape"]
    kind = TensorType((8, 6), wf.zeros(()).dtype)
    factors = op.sharding_rule(kind, rank=2, shape=(2, 4, 6))
    done = propagate(factors, factors.sizes([kind.shape]), (spec("x", None),))
    assert done.outputs[0].axes == (("x",), (), ())


def test_local_shapes_round_up() -> None:
    assert spec("x", "y").local_shape((5, 8)) == (3, 2)


@pytest.mark.promise("S0.8")
def test_results_carry_sharding_metadata() -> None:
    x = wf.ones((2, 3))
    y = x + x
    assert y is not x
    assert y.sharding == ShardingSpec.whole(2)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DeviceMesh("m", (2,), ("x", "y")), "axis names"),
        (lambda: MESH.axis_size("z"), "no axis 'z'"),
        (lambda: ShardingSpec.of(MESH, P("x", "x"), 2), "twice"),
        (lambda: ShardingSpec.of(MESH, P("x", None, None), 2), "more entries"),
    ],
)
def test_bad_meshes_and_specs_say_what_is_legal(make, text: str) -> None:
    with pytest.raises(ShardingError, match=text):
        make()
