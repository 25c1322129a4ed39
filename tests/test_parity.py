"""Every op × dtype against its reference in wide arithmetic, on awkward memory and shapes.

An op either computes a dtype or refuses it by name. What it computes agrees with the reference in
float64 (int64, complex128) to the precision of the dtype, and does not depend on strides; empty and
size-1 batches have the inferred shape.
"""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.core.common import dtypes
from weft.core.common.slots import OPS
from weft.core.common.types import TensorType
from weft.errors import DTypeError
from weft.ops.base import Example, Operation, call
from weft.ops.families import ElementwiseOperation, LogicalShapeOperation
from weft.testing.samples import calls, operands

pytestmark = pytest.mark.slow

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 1.0, -1.5]


def legal(op: Operation) -> tuple[np.dtype, ...]:
    """The dtypes an op may be asked for without its public function before it."""
    if isinstance(op, ElementwiseOperation | LogicalShapeOperation):
        return dtypes.ALL_DTYPES
    return (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)


CASES = [
    pytest.param(op, example, dtype, id=f"{op}-{number}-{dtypes.name_of(dtype)}")
    for op in OPS.values()
    if not op.reasons.get("kernel")
    for number, example in enumerate(calls(op))
    for dtype in legal(op)
    if "dtype" not in example.params
]


def run(op: Operation, arrays, params):
    tensors = tuple(map(wf.asarray, arrays))
    if isinstance(op, ElementwiseOperation) and not params:
        return op(*tensors)
    return call(op, tensors, params)


def narrowed(arrays, dtype):
    """Floats of the example as this dtype; positions, masks and keys stay."""
    return [
        (np.abs(a) if dtype.kind == "u" else a).astype(dtype) if a.dtype.kind == "f" else a
        for a in arrays
    ]


def wide(array):
    if array.dtype.kind in "biu":
        return array.astype(np.int64) if array.dtype.kind != "b" else array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def rng_of(op: Operation) -> np.random.Generator:
    return np.random.default_rng(sum(map(ord, op.name)) + 1)


@pytest.mark.parametrize(("op", "example", "dtype"), CASES)
def test_an_op_computes_a_dtype_or_refuses_it_by_name(
    op: Operation, example: Example, dtype
) -> None:
    arrays = narrowed(operands(op, example, rng_of(op)), dtype)
    try:
        found = run(op, arrays, example.params).numpy()
    except DTypeError as error:
        assert op.name in str(error) and dtypes.name_of(dtype) in str(error)
        return
    turned = [np.flip(np.flip(a).copy()) for a in arrays]  # the same values, backwards in memory
    np.testing.assert_array_equal(run(op, turned, example.params).numpy(), found)
    if found.dtype.kind in "biu" or dtype.kind in "biu":
        return  # wrapping, saturation and division are each op's own tests
    with np.errstate(all="ignore"):
        expected = np.asarray(op.eval(*map(wide, arrays), **example.params))
    eps = float(wf.finfo(dtype).eps)
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    least = 2.0**-16 if op.name == "short_power" else 0  # which has so many digits after the point
    atol = max(16 * eps, least)
    np.testing.assert_allclose(
        wide(found) / scale, expected / scale, rtol=64 * eps, atol=atol, equal_nan=True
    )


@pytest.mark.parametrize(
    ("op", "example", "dtype"),
    [case for case in CASES if case.values[2] in (dtypes.float32, dtypes.bfloat16)],
)
@pytest.mark.parametrize("lead", [(0,), (1,)], ids=["empty", "one"])
def test_empty_and_size_one_batches_have_the_inferred_type(
    op: Operation, example: Example, dtype, lead
) -> None:
    arrays = narrowed(operands(op, example, rng_of(op), lead), dtype)
    if not arrays:
        pytest.skip("has no operands")
    try:
        found = run(op, arrays, example.params)
    except DTypeError:
        return
    kinds = [TensorType(a.shape, a.dtype) for a in arrays]
    inferred = op.infer(*kinds, **example.params)
    assert found.shape == inferred.shape
    assert found.numpy().shape == inferred.shape


@pytest.mark.parametrize(
    "op", [o for o in OPS.values() if isinstance(o, wf.ops.UnaryOperation)], ids=str
)
@pytest.mark.parametrize("dtype", [wf.float32, wf.float64], ids=str)
def test_special_values_reach_the_reference_unchanged(op: Operation, dtype) -> None:
    array = np.array(SPECIAL, dtype)
    try:
        found = op(wf.asarray(array)).numpy()
    except DTypeError:
        return
    with np.errstate(all="ignore"):
        expected = np.asarray(op.eval(array))
    if op.is_exact(array.dtype):
        np.testing.assert_array_equal(found, expected)
    else:  # weft's own functions: as good as the reference, rounded in their own way
        known = array != -np.inf if op.name == "lgamma" else slice(None)  # there C says +inf
        limit = 4 * np.finfo(dtype).eps
        least = limit / 4 if op.name.endswith("_share") else 0  # they have the digits of 1
        np.testing.assert_allclose(found[known], expected[known], rtol=limit, atol=least)
