"""Every op on operands over a mesh gives what it gives on one device, however they are split."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.sharding.layouts import (
    HALVES,
    LONG,
    SQUARE,
    THIRDS,
    close,
    laid_out,
    log_of,
    one_axis,
    random_spec,
)
from weft import P
from weft.core.common.slots import OPS
from weft.core.common.types import TensorType
from weft.ops.base import call
from weft.testing.samples import calls, operands

CASES = [
    pytest.param(op, example, id=f"{op}-{number}")
    for op in OPS.values()
    for number, example in enumerate(calls(op))
]
each_op = pytest.mark.parametrize(("op", "example"), CASES)
REDUCTIONS = {"sum": wf.sum, "max": wf.max, "min": wf.min, "prod": wf.prod}


def drawn(op, example, lead=()):
    rng = np.random.default_rng(sum(map(ord, op.name)))
    arrays = operands(op, example, rng, lead)
    if not arrays:
        pytest.skip("has no operands")
    return arrays, rng


def check(op, example, arrays, operands_over_mesh) -> None:
    expected = call(op, tuple(map(wf.asarray, arrays)), example.params)
    for tensors in operands_over_mesh:
        found = call(op, tuple(tensors), example.params)
        layouts = ", ".join(f"{x.shape} {x.sharding}" for x in tensors)
        try:
            close(found, expected, 1e-12)
        except AssertionError as error:
            error.add_note(f"operands: {layouts}")
            raise


@each_op
@pytest.mark.promise("S0.5")
def test_any_one_axis_of_any_operand_may_be_split(op, example) -> None:
    arrays, _ = drawn(op, example, (5,))

    def layouts():
        for place, array in enumerate(arrays):
            for axis in range(array.ndim):
                for mesh in (THIRDS, LONG) if axis else (HALVES, THIRDS, LONG):
                    yield [
                        laid_out(a, mesh, one_axis(a.ndim, axis) if i == place else None)
                        for i, a in enumerate(arrays)
                    ]

    check(op, example, arrays, layouts())


@each_op
def test_any_factor_may_be_split_in_all_operands_together(op, example) -> None:
    arrays, _ = drawn(op, example, (4,))
    factors = op.sharding_rule(*(TensorType(a.shape, a.dtype) for a in arrays), **example.params)

    def split(term, name):
        axes = [k for k, names in enumerate(term) if name in names][:1]
        return one_axis(len(term), axes[0]) if axes else P()

    def layouts():
        for name in factors.names:
            for mesh in (HALVES, THIRDS):
                yield [
                    laid_out(a, mesh, split(term, name))
                    for a, term in zip(arrays, factors.inputs, strict=True)
                ]

    check(op, example, arrays, layouts())


@each_op
def test_operands_may_be_split_over_two_mesh_axes_each_in_its_own_way(op, example) -> None:
    arrays, rng = drawn(op, example, (3,))
    layouts = [laid_out(a, SQUARE, random_spec(rng, SQUARE, a.ndim)) for a in arrays]
    check(op, example, arrays, [layouts])
    alone = [laid_out(a, SQUARE, random_spec(rng, SQUARE, a.ndim)) for a in arrays[:1]]
    check(op, example, arrays, [[*alone, *map(wf.asarray, arrays[1:])]])


def pending(array: np.ndarray, kind: str, split: bool) -> wf.Tensor:
    """`array` as a tensor whose reduction over the mesh axis x is still to be done."""
    if array.dtype == bool:
        terms, reduce = [array, np.zeros_like(array)], wf.any
    else:
        reduce = REDUCTIONS[kind]
        terms = {
            "sum": [array - array // 2, array // 2] if array.dtype.kind != "c" else [array / 2] * 2,
            "prod": [array, np.ones_like(array)],
            "max": [array, array - (np.abs(array) > 0.1)] if array.dtype.kind != "c" else [],
            "min": [array, array + (np.abs(array) > 0.1)] if array.dtype.kind != "c" else [],
        }[kind]
    if not terms:
        return wf.asarray(array)
    spec = P("x", "y") if split and array.ndim else P("x")
    stacked = wf.asarray(np.stack(terms).astype(array.dtype)).shard(SQUARE, spec)
    if reduce in (wf.sum, wf.prod):
        return reduce(stacked, axis=0, dtype=array.dtype)
    return reduce(stacked, axis=0)


@each_op
@pytest.mark.promise("S2.12")
def test_reductions_that_are_pending_in_operands_come_out_right(op, example) -> None:
    arrays, _ = drawn(op, example, (3,))

    def layouts():
        for number, kind in enumerate(REDUCTIONS):
            yield [pending(a, kind, split=bool(number % 2)) for a in arrays]
            for place in range(len(arrays)):
                yield [
                    pending(a, kind, split=not number % 2) if i == place else wf.asarray(a)
                    for i, a in enumerate(arrays)
                ]

    check(op, example, arrays, layouts())


@each_op
@pytest.mark.promise("S0.8")
def test_leading_axes_stay_split_and_nothing_is_communicated(op, example) -> None:
    arrays, _ = drawn(op, example, (4,))
    tensors = tuple(laid_out(a, HALVES, P("x")) for a in arrays)
    made, log = log_of(lambda: call(op, tensors, example.params))
    assert not len(log), str(log)
    for x in made if isinstance(made, tuple) else (made,):
        assert x.sharding.axes[0] == ("x",)
        assert x.sharding.mesh == HALVES


def test_a_layout_has_the_values_of_its_time() -> None:
    mesh = wf.DeviceMesh("pair", (2,), ("x",))
    same = wf.shard_map(lambda a: a, mesh, in_specs=P(), out_specs=P())
    manual = wf.shard_map(lambda a: a, mesh, in_specs=P(), out_specs=P(), manual=True)
    for lay in (lambda x: wf.shard(x, mesh, P()), same, manual):
        x = wf.ones(4)
        y = lay(x)
        x[0] = 5.0
        y.dual.shards[0].tensor[1] = 6.0
        assert y.tolist() == [1, 1, 1, 1]
        assert x.tolist() == [5, 1, 1, 1]
    x.dual.shards[0].tensor[0] = 7.0
    assert x.tolist() == [5, 1, 1, 1]
