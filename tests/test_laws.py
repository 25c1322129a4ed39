"""Every op obeys every law. Adding an op adds its tests: there is nothing to write here."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.core.common import dtypes
from weft.core.common.slots import OPS
from weft.core.common.types import TensorType
from weft.ops.base import Example, Linear, Operation, call
from weft.testing.loops import run_loops
from weft.testing.samples import calls, operands
from weft.transforms.jvp import jvp
from weft.transforms.vjp import vjp
from weft.transforms.vmap import vmap

CASES = [
    pytest.param(op, example, id=f"{op}-{number}")
    for op in OPS.values()
    for number, example in enumerate(calls(op))
]
each_op = pytest.mark.parametrize(("op", "example"), CASES)


def evaluate(op: Operation, arrays, params):
    with np.errstate(all="ignore"):
        result = op.eval(*arrays, **params)
    return result if isinstance(result, tuple) else (np.asarray(result),)


def results(x):
    return x if isinstance(x, tuple) else (x,)


def rng_of(op: Operation) -> np.random.Generator:
    return np.random.default_rng(sum(map(ord, op.name)))


def perform(op, params):
    return lambda *tensors: call(op, tuple(map(wf.asarray, tensors)), params)


def close(a, b, tolerance=1e-9):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def differentiable_places(op, arrays):
    return [i for i, a in enumerate(arrays) if a.dtype.kind in "fc" and i not in op.constants]


@each_op
def test_inferred_type_is_the_reference_type(op: Operation, example: Example) -> None:
    arrays = operands(op, example, rng_of(op))
    inferred = op.infer(*(TensorType(a.shape, a.dtype) for a in arrays), **example.params)
    for kind, value in zip(
        (inferred,) if isinstance(inferred, TensorType) else inferred,
        evaluate(op, arrays, example.params),
        strict=True,
    ):
        assert kind.shape == value.shape
        assert kind.dtype == value.dtype


@each_op
def test_loop_form_computes_the_reference(op: Operation, example: Example) -> None:
    if not any(op.has(rule) for rule in ("body", "at", "into")):
        pytest.skip(op.reasons["kernel"])
    for lead in ((), (2,)):
        arrays = operands(op, example, rng_of(op), lead)
        (expected,) = evaluate(op, arrays, example.params)
        close(run_loops(op, arrays, example.params), expected, 1e-6)


@each_op
def test_leading_axes_are_batch(op: Operation, example: Example) -> None:
    arrays = operands(op, example, rng_of(op), lead=(3,))
    if not arrays:
        pytest.skip("has no operands")
    rows = [evaluate(op, [a[i] for a in arrays], example.params) for i in range(3)]
    whole = evaluate(op, arrays, example.params)
    mapped = results(vmap(perform(op, example.params))(*arrays))
    for slot, value in enumerate(whole):
        close(value, np.stack([row[slot] for row in rows]))
        close(mapped[slot].numpy(), value)


@each_op
def test_an_operand_may_lack_leading_axes(op: Operation, example: Example) -> None:
    arrays = operands(op, example, rng_of(op), lead=(3,))
    if len(arrays) < 2:
        pytest.skip("has fewer than two operands")
    for missing in range(len(arrays)):
        mixed = [a[0] if i == missing else a for i, a in enumerate(arrays)]
        full = [np.broadcast_to(m, a.shape) for m, a in zip(mixed, arrays, strict=True)]
        for got, want in zip(
            evaluate(op, mixed, example.params), evaluate(op, full, example.params), strict=True
        ):
            close(got, want)
        axes = tuple(None if i == missing else 0 for i in range(len(arrays)))
        mapped = results(vmap(perform(op, example.params), in_axes=axes)(*mixed))
        for got, want in zip(mapped, evaluate(op, full, example.params), strict=True):
            close(got.numpy(), want)


@each_op
def test_nested_maps_over_different_operands_give_an_outer_product(
    op: Operation, example: Example
) -> None:
    arrays = operands(op, example, rng_of(op), lead=(2,))
    if len(arrays) < 2:
        pytest.skip("has fewer than two operands")
    first, rest = arrays[0], [a[0] for a in arrays[2:]]
    function = perform(op, example.params)
    outer = vmap(lambda a: vmap(lambda b: function(a, b, *rest))(arrays[1]))(first)
    for i in range(2):
        for j in range(2):
            want = evaluate(op, [first[i], arrays[1][j], *rest], example.params)
            for got, value in zip(results(outer), want, strict=True):
                close(got.numpy()[i, j], value)


@each_op
def test_jvp_is_the_finite_difference(op: Operation, example: Example) -> None:
    arrays, tangents, places = _differentiated(op, example)
    step = 1e-6

    def moved(sign):
        shifted = [
            a + sign * step * t if i in places else a
            for i, (a, t) in enumerate(zip(arrays, tangents, strict=True))
        ]
        return evaluate(op, shifted, example.params)

    _, pushed = jvp(*_at_places(op, example, arrays, places, tangents))
    for got, up, down in zip(results(pushed), moved(1), moved(-1), strict=True):
        close(got.numpy(), (up - down) / (2 * step), 2e-5)


@each_op
def test_vjp_is_the_transpose_of_jvp(op: Operation, example: Example) -> None:
    arrays, tangents, places = _differentiated(op, example)
    function, points, moves = _at_places(op, example, arrays, places, tangents)
    out, pushed = jvp(function, points, moves)
    cotangents = [wf.asarray(np.sin(1 + x.numpy()).astype(x.dtype)) for x in results(out)]
    _, pullback = vjp(function, *points)
    pulled = pullback(tuple(cotangents) if isinstance(out, tuple) else cotangents[0])
    left = sum(float(np.real(np.sum(p.numpy() * t))) for p, t in zip(pulled, moves, strict=True))
    right = sum(
        float(np.real(np.sum(c.numpy() * t.numpy())))
        for c, t in zip(cotangents, results(pushed), strict=True)
    )
    assert left == pytest.approx(right, rel=1e-9, abs=1e-9)


def _differentiated(op: Operation, example: Example):
    if "jvp" in op.reasons:
        pytest.skip(op.reasons["jvp"])
    arrays = operands(op, example, rng_of(op))
    places = differentiable_places(op, arrays)
    if not places:
        pytest.skip("has no operand that carries a derivative")
    return arrays, [np.cos(1 + 3 * a) if a.dtype.kind in "fc" else a for a in arrays], places


def _at_places(op, example, arrays, places, tangents):
    def function(*values):
        full = list(arrays)
        for place, value in zip(places, values, strict=True):
            full[place] = value
        return perform(op, example.params)(*full)

    return function, tuple(arrays[i] for i in places), tuple(tangents[i] for i in places)


@each_op
def test_any_factor_that_is_not_whole_can_be_split_over_devices(
    op: Operation, example: Example
) -> None:
    arrays = operands(op, example, rng_of(op), lead=(2,))
    types = [TensorType(a.shape, a.dtype) for a in arrays]
    factors = op.sharding_rule(*types, **example.params)
    simple = {
        n
        for term in (*factors.inputs, *factors.outputs)
        for axis in term
        if len(axis) == 1
        for n in axis
    }
    compound = {
        n
        for term in (*factors.inputs, *factors.outputs)
        for axis in term
        if len(axis) > 1
        for n in axis
    }
    names = (simple - compound) - factors.whole - set(factors.extents)
    sizes = factors.sizes([a.shape for a in arrays])
    for name in sorted(n for n in names if sizes[n] % 2 == 0 and sizes[n]):
        shards = [
            [
                np.array_split(a, 2, term.index((name,)))[device] if (name,) in term else a
                for a, term in zip(arrays, factors.inputs, strict=True)
            ]
            for device in range(2)
        ]
        if op.base is not None and not any((name,) in term for term in factors.outputs):
            shards[1][op.base] = np.zeros_like(shards[1][op.base])
        parts = [evaluate(op, shard, example.params) for shard in shards]
        for slot, whole in enumerate(evaluate(op, arrays, example.params)):
            term = factors.outputs[slot]
            left, right = parts[0][slot], parts[1][slot]
            if (name,) in term:
                joined = np.concatenate([left, right], term.index((name,)))
            else:
                joined = {
                    "add": np.add,
                    "max": np.maximum,
                    "min": np.minimum,
                    "mul": np.multiply,
                    "and": np.logical_and,
                    "or": np.logical_or,
                }[op.combine](left, right)
            close(joined, whole)


@each_op
def test_declared_linearity_holds(op: Operation, example: Example) -> None:
    arrays = operands(op, example, rng_of(op))
    places = differentiable_places(op, arrays)
    if op.linear is Linear.NO or not places:
        pytest.skip("not linear")
    moving = places if op.linear is Linear.JOINTLY else places[:1]

    def at(scale):
        scaled = [a * scale if i in moving else a for i, a in enumerate(arrays)]
        return evaluate(op, scaled, example.params)

    for whole, a, b in zip(at(1.0), at(0.25), at(0.75), strict=True):
        close(a + b, whole)


@each_op
def test_cost_counts_work_and_bytes(op: Operation, example: Example) -> None:
    arrays = operands(op, example, rng_of(op))
    cost = op.cost(*(TensorType(a.shape, a.dtype) for a in arrays), **example.params)
    assert cost.flops >= 0
    assert cost.bytes >= sum(a.nbytes for a in arrays)


def test_matmul_costs_two_flops_for_each_point() -> None:
    f32 = dtypes.float32
    cost = OPS["matmul"].cost(TensorType((8, 4), f32), TensorType((4, 16), f32))
    assert cost.flops == 2 * 8 * 4 * 16


@pytest.mark.parametrize("op", OPS.values(), ids=str)
def test_every_op_has_its_rules_or_says_why_not(op: Operation) -> None:
    assert op.__doc__
    assert any(op.has(rule) for rule in ("body", "at", "into")) or op.reasons.get("kernel")
    for rule in ("vjp", "jvp"):
        assert op.has(rule) or op.reasons.get(rule), f"{op} has no {rule} and gives no reason"
    assert op.factors or type(op).index is not Operation.index or op.reasons.get("notation")
