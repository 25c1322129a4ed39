"""Small calls that come again: what runs one is looked up by shapes and dtype, not worked out.

A call that is not in the table is looked at once: either NumPy's ufunc is the op, or a compiled
kernel, or it is none of these and goes the long way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import numpy as np

from weft.config import settings
from weft.core.common.device import Device
from weft.core.common.events import watchers
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.runtime.cpu.client import kernel_of, quietly, thread, watched
from weft.runtime.registry import client

# What runs it (None: the ufunc), the result's type, and the elements it touches at most.
Ready: TypeAlias = tuple[Callable[..., "Array | None"] | None, TensorType, int]

LIGHT = 8  # times as many elements of a call that goes over them once are few
_MOST = 4096  # calls that are remembered
CALLS: dict[Any, Ready] = {}  # by op, shapes and dtype
_new = object.__new__


def light_elements() -> int:
    """Elements up to which one pass runs at once: to note it down takes longer."""
    return settings.small_elements * LIGHT


def most_at_once(op: Any) -> int:
    """Elements up to which a call of an op runs at once."""
    return light_elements() if op.light else settings.small_elements


class Pairs:
    """Ops of two operands: `directly` runs a call on small data of one dtype that is there."""

    ufunc: ClassVar[Any]
    light: ClassVar[bool]

    def look(self, shapes: tuple[Shape, ...], dtype: DType) -> Ready:
        """How a call on operands of these shapes runs; only asked the first time."""
        return look(self, shapes, dtype)

    def directly(self, x1: Tensor, x2: Tensor) -> Tensor | None:
        """The result where one kernel on small data is all there is to do, else None."""
        a, b = x1._impl, x2._impl
        left, right, dtype = a.data, b.data, a.dtype
        if (
            type(left) is not np.ndarray
            or type(right) is not np.ndarray
            or dtype is not b.dtype
            or a.device is not b.device
        ):
            return None
        key = (self, a.shape, b.shape, dtype)
        found = CALLS.get(key)
        if found is None:
            found = remember(key, self.look((a.shape, b.shape), dtype))
        kernel, kind, size = found
        if size > most_at_once(self):
            return None
        if kernel is not None:
            array = kernel(left, right)
            return None if array is None else made(array, kind, a.device)
        if watchers:
            return made(told(self, dtype, kind, left, right), kind, a.device)
        if size > settings.small_elements:
            return made(filled(self.ufunc, kind, a.device, left, right), kind, a.device)
        try:
            return made(thread.run(self.ufunc, left, right), kind, a.device)
        except (AttributeError, RuntimeError):  # this thread's first kernel, or one in another
            return made(quietly()(self.ufunc, left, right), kind, a.device)


def look(op: Any, shapes: tuple[Shape, ...], dtype: DType) -> Ready:
    """How a call of an elementwise op on operands of one dtype runs, if it may run at once."""
    kinds = tuple(TensorType(shape, dtype) for shape in shapes)
    never = (None, kinds[0], sys.maxsize)
    if op.ufunc is None or dtype.char not in op.direct:
        return never
    try:
        shape = np.broadcast_shapes(*shapes)
    except (ValueError, RuntimeError):  # the long way says so in our words, or has more axes
        return never
    kind = TensorType(shape, op.dtype(*[dtype for _ in shapes]))
    size = max(each.size for each in (*kinds, kind))
    if op.is_exact(*[dtype for _ in shapes]):
        return None, kind, size
    lacking = [each for each in shapes if each != shape]
    if any(not each or each != shape[len(shape) - len(each) :] for each in lacking):
        return never
    kernel = kernel_of(op, kinds, {}, (kind,))
    return never if kernel is None and len(shapes) > 1 else (kernel, kind, size)


def remember(key: Any, found: Ready) -> Ready:
    """Enter a call into the table."""
    if len(CALLS) >= _MOST:
        CALLS.clear()
    CALLS[key] = found
    return found


def made(array: Any, kind: TensorType, device: Device) -> Tensor:
    """The result of a call that ran at once, as a tensor."""
    if type(array) is not np.ndarray:
        array = np.asarray(array)
    # Objects are made and filled here: the calls of `__init__` would take a tenth of the time.
    tensor = _new(Tensor)
    impl = tensor._impl = _new(TensorImpl)
    impl.shape, impl.dtype = impl._kind = kind
    impl.device, impl.data = device, array
    impl.owner = impl.node = impl.spec = None
    impl.shared = impl.traced = False
    return tensor


def filled(ufunc: Any, kind: TensorType, device: Device, *operands: Any) -> Array:
    """What the ufunc makes of operands, in memory that is used again."""
    memory: Any = client(device)
    out: Array = memory.allocator.empty(kind.shape, kind.dtype)
    quietly()(ufunc, *operands, out=out)
    return out


def told(op: Any, dtype: DType, kind: TensorType, *operands: Any) -> Any:
    """What the ufunc makes of operands; watchers are told of it."""
    kinds = tuple(TensorType(np.shape(x), dtype) for x in operands)
    with watched(op, kinds, (kind,), lambda: op.work * kind.size):
        return quietly()(op.ufunc, *operands)
