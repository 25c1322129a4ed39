"""Arrays and tensors that native routines make: like those of NumPy and weft, counted alike."""

import gc
import sys
import weakref

import numpy as np
import pytest

from weft.core.common.device import CPU
from weft.core.common.types import TensorType
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.runtime.cpu import handles
from weft.runtime.cpu.handles import array_maker, tensor_maker

FLOAT = TensorType((2, 3), np.dtype(np.float32))
NUMBER = TensorType((), np.dtype(np.int64))
EMPTY = TensorType((0, 4), np.dtype(bool))
KINDS = [FLOAT, NUMBER, EMPTY]


@pytest.fixture(params=["native", "python"])
def way(request, monkeypatch):
    if request.param == "python":
        monkeypatch.setattr(handles, "has_builtins", lambda: False)
    return request.param


def test_arrays_have_the_kinds_asked_for_and_memory_of_their_own(way):
    make = array_maker(KINDS)
    first, second = make(), make()
    assert [TensorType(a.shape, a.dtype) for a in first] == KINDS
    for array in (*first, *second):
        assert type(array) is np.ndarray
        assert array.flags.c_contiguous and array.flags.owndata and array.flags.writeable
    first[0][:] = 1
    second[0][:] = 2
    assert (first[0] == 1).all()


def test_tensors_have_every_field_that_a_tensor_has(way):
    arrays = [np.zeros(kind.shape, kind.dtype) for kind in KINDS]
    made = tensor_maker([(kind, CPU) for kind in KINDS])(*arrays)
    for tensor, array, kind in zip(made, arrays, KINDS, strict=True):
        assert type(tensor) is Tensor and tensor.data() is array and tensor.type == kind
        plain = TensorImpl(kind.shape, kind.dtype, CPU, array)
        for field in TensorImpl.__slots__:
            if field not in ("__weakref__", "_kind"):
                assert getattr(tensor._impl, field, "unset") is getattr(plain, field, "unset")


def test_tensors_of_one_call_are_independent(way):
    make = tensor_maker([(FLOAT, CPU), (FLOAT, CPU)])
    array = np.ones(FLOAT.shape, FLOAT.dtype)
    one, two = make(array, array)
    one += 1
    assert (two.numpy() == 1).all() and (one.numpy() == 2).all()


def test_a_wrong_number_of_arrays_raises(way):
    with pytest.raises((SystemError, ValueError)):
        tensor_maker([(FLOAT, CPU)])()


def test_everything_is_freed_and_nothing_too_often(way):
    dtype = np.dtype([("a", np.float32)])  # one that nothing else refers to
    kind = TensorType((2,), dtype)
    arrays, tensors = array_maker([kind]), tensor_maker([(kind, CPU)])
    watched = (dtype, kind.shape, CPU, TensorImpl, Tensor)
    before = [*map(sys.getrefcount, watched)]
    for _ in range(1000):
        (tensor,) = tensors(*arrays())
    gone = weakref.ref(tensor), weakref.ref(tensor._impl), weakref.ref(tensor._impl.data)
    assert all(ref() is not None for ref in gone)
    assert gc.is_tracked(tensor) and gc.is_tracked(tensor._impl)
    del tensor
    assert all(ref() is None for ref in gone)
    after = map(sys.getrefcount, watched)
    # Others may hold or let go of some meanwhile: a mistake here would count in thousands.
    assert all(abs(was - now) < 500 for was, now in zip(before, after, strict=True))


def test_makers_outlive_what_they_were_made_from(way):
    make = tensor_maker([(TensorType((7, 11), np.dtype(np.float64)), CPU)])
    new = array_maker([TensorType((7, 11), np.dtype(np.float64))])
    assert make(*new())[0].shape == (7, 11)
