"""Bad input is met with an error of ours, at the call, and the next call works."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.errors import (
    ArgumentError,
    AxisError,
    BackendError,
    CastError,
    ConversionError,
    DeviceError,
    DTypeError,
    IndexingError,
    OutOfMemoryError,
    ShapeError,
    TreeError,
    UnsupportedDTypeError,
    WeftError,
)

X = wf.tensor(np.arange(6.0, dtype=np.float32).reshape(2, 3))
BIG = wf.tensor(np.ones((300, 300), np.float32))
N = wf.arange(4)
NAN, INF = float("nan"), float("inf")

BAD = [
    # shapes
    (lambda: X + wf.ones((4, 5)), ShapeError, "add: operand 1, axis -2: size 4"),
    (lambda: X @ X, ShapeError, "matmul"),
    (lambda: BIG @ wf.ones((301, 2)), ShapeError, "301"),
    (lambda: X.reshape(4, 2), ShapeError, r"6 elements of shape \(2, 3\)"),
    (lambda: X.reshape(-1, -1), ShapeError, "only one size"),
    (lambda: X.broadcast_to((5, 3)), ShapeError, "broadcast_to"),
    (lambda: wf.concat([X, wf.ones((2, 4))]), ShapeError, "concat"),
    (lambda: wf.stack([X, wf.ones(3)]), ShapeError, "stack"),
    (lambda: wf.zeros((2, -1)), ShapeError, "negative"),
    (lambda: wf.zeros((2, 1.5)), ShapeError, "integers"),
    (lambda: wf.zeros("ab"), ShapeError, "integers"),
    (lambda: X.squeeze(0), ShapeError, "squeeze"),
    (lambda: wf.ones((1,) * 65), ShapeError, "ones: a tensor has at most 64 axes, .* have 65"),
    (lambda: X[(None,) * 63], ShapeError, "at most 64 axes"),
    (lambda: (BIG + 1)[(None,) * 63], ShapeError, "at most 64 axes"),
    (lambda: wf.vmap(lambda a, b: a + b)(wf.ones(2), wf.ones(3)), ShapeError, "differ in size"),
    (lambda: X.T.T.mT.reshape(2, 3).unflatten(0, (3, 3)), ShapeError, "unflatten"),
    # axes
    (lambda: X.sum(axis=2), AxisError, "sum"),
    (lambda: X.sum(axis=(0, 0)), AxisError, "sum"),
    (lambda: X.sum(axis=-3), AxisError, "sum"),
    (lambda: BIG.max(axis=7), AxisError, "max"),
    (lambda: wf.flip(X, axis=5), AxisError, "flip"),
    (lambda: X.permute(0, 0), AxisError, "permute"),
    (lambda: X.expand_dims(9), AxisError, "expand_dims"),
    (lambda: wf.vmap(wf.sin, in_axes=3)(X), AxisError, "axis 3"),
    (lambda: wf.vmap(wf.sin)(1.0), AxisError, "vmap"),
    # dtypes
    (lambda: wf.zeros(2, dtype="float128x"), UnsupportedDTypeError, "float128x"),
    (lambda: wf.zeros(2, dtype=object), UnsupportedDTypeError, "object"),
    (lambda: X.astype("M8[s]"), UnsupportedDTypeError, "datetime64"),
    (lambda: X & X, DTypeError, "bitwise_and"),
    (lambda: X << 1, DTypeError, "shift"),
    (lambda: wf.tensor([1j]) < 2, DTypeError, "less"),
    (lambda: wf.tensor([True]) + wf.tensor([True]), DTypeError, "bool is not a number"),
    (lambda: N.astype("uint64") + N, DTypeError, "uint64"),
    (lambda: wf.grad(lambda v: v.sum())(N), WeftError, "int64"),
    # values
    (lambda: wf.tensor([300], dtype="uint8"), CastError, "300"),
    (lambda: wf.tensor([-1], dtype="uint32"), CastError, "-1"),
    (lambda: wf.tensor([NAN], dtype="int32"), CastError, "NaN"),
    (lambda: wf.tensor([INF, 1.0], dtype="int64"), CastError, "infinity"),
    (lambda: wf.tensor(1e20, dtype="int32"), CastError, "int32"),
    (lambda: wf.tensor([1j], dtype="float32"), DTypeError, "complex"),
    (lambda: wf.full(3, NAN, dtype="int8"), CastError, "nan|NaN"),
    (lambda: wf.full(3, 1000, dtype="int8"), CastError, "1000"),
    (lambda: N.astype("uint8") + 1000, CastError, "1000"),
    (lambda: X * 10**400, CastError, "bits"),
    (lambda: wf.arange(0, 10, 0), ArgumentError, "step"),
    (lambda: wf.arange(10**18), OutOfMemoryError, "arange"),
    (lambda: wf.arange(0, INF), WeftError, "arange"),
    (lambda: wf.arange(0, NAN), WeftError, "arange"),
    # indices
    (lambda: X[2], IndexingError, "2"),
    (lambda: X[0, 3], IndexingError, "3"),
    (lambda: X[0, 0, 0], IndexingError, "ind"),
    (lambda: X["a"], IndexingError, "."),
    (lambda: X[1.5], IndexingError, "."),
    (lambda: X[wf.tensor([5])].numpy(), IndexingError, "5"),
    (lambda: X[wf.tensor([True, False, True])], IndexingError, "."),
    (lambda: X[::0], IndexingError, "."),
    (lambda: X.narrow(0, 1, 5), IndexingError, "narrow"),
    (lambda: wf.take(X, wf.tensor([9]), axis=1).numpy(), IndexingError, "9"),
    # construction
    (lambda: wf.tensor([[1, 2], [3]]), ConversionError, "ragged"),
    (lambda: wf.tensor(["a"]), WeftError, "."),
    (lambda: wf.tensor(object()), ConversionError, "object"),
    (lambda: wf.sin("text"), WeftError, "."),
    (lambda: wf.Tensor([1, 2]), ConversionError, "wf.tensor"),
    (lambda: wf.add(X, None), WeftError, "."),
    (lambda: wf.asarray([1, 2], copy=False), ArgumentError, "copy"),
    # devices and backends
    (lambda: wf.zeros(3, device="cpu:99"), DeviceError, "cpu:99"),
    (lambda: wf.zeros(3, device="tpu"), BackendError, "hint"),
    (lambda: wf.zeros(3, device=17), DeviceError, "17"),
    (lambda: X.to_device("cuda:0"), BackendError, "cuda"),
    # sizes
    (lambda: wf.zeros((2**40, 2**40)), OutOfMemoryError, "zeros"),
    (lambda: wf.ones(2**62), OutOfMemoryError, "ones"),
    (lambda: (wf.broadcast_to(wf.ones(()), (2**22, 2**20)) + 1).numpy(), OutOfMemoryError, "."),
    # trees
    (lambda: wf.tree_map(lambda a, b: a, {"a": 1}, {"b": 1}), TreeError, "tree 1"),
    (lambda: wf.tree_unflatten(wf.tree_structure((1, 2)), [1]), TreeError, "2 leaves"),
    (lambda: wf.jvp(wf.sin, (X,), (wf.ones(3),)), WeftError, "."),
]  # fmt: skip


@pytest.mark.promise("S0.4")
@pytest.mark.parametrize(("attempt", "error", "text"), BAD, ids=map(str, range(len(BAD))))
def test_bad_input_raises_an_error_of_ours_and_the_next_call_works(attempt, error, text):
    with pytest.raises(error, match=text) as caught:
        attempt()
    assert isinstance(caught.value, WeftError)
    assert str(caught.value).strip()
    assert (X + 1).sum().item() == 21
    assert (BIG + 1).numpy()[0, 0] == 2


def test_mixed_dtypes_promote_and_shapes_broadcast():
    y = wf.ones((2, 1), dtype="int32") + wf.ones(3, dtype="float16")
    assert y.dtype == np.float16 and y.shape == (2, 3)


def test_a_tensor_may_have_as_many_axes_as_an_array():
    x = wf.ones((1,) * 63 + (2,))
    assert (wf.exp(x) + x * 2 - wf.exp(x)).reshape(-1).tolist() == [2.0, 2.0]
