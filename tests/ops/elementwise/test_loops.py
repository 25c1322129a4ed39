"""The loop form of every elementwise op is its NumPy meaning on every dtype, at the edges too."""

import numpy as np
import pytest

from tests.elementwise_oracle import values
from weft.core.common import dtypes
from weft.core.common.slots import OPS
from weft.ops.families import DOMAINS, BinaryOperation, UnaryOperation
from weft.testing.loops import run_loops

FORMS = [
    op for op in OPS.values() if isinstance(op, UnaryOperation | BinaryOperation) and op.has("body")
]


def operands(op, dtype):
    name = dtypes.name_of(dtype)
    if isinstance(op, UnaryOperation):
        return [values(name, 1)]
    left, right = values(name, 1), values(name, 2)
    right[::4] = left[::4]
    return [left, right]


@pytest.mark.parametrize("op", FORMS, ids=str)
def test_loops_agree_with_numpy_on_special_values(op):
    for dtype in DOMAINS[op.domain]:
        if dtypes.is_narrow(dtype):  # computed in float32
            continue
        arrays = operands(op, dtype)
        with np.errstate(all="ignore"):
            want, got = np.asarray(op.eval(*arrays)), np.asarray(run_loops(op, arrays, {}))
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7, err_msg=str(dtype))
        if got.dtype.kind == "f":
            zero = (got == 0) & (want == 0)
            np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))
