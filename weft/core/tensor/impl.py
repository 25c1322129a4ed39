"""`TensorImpl`: what stands behind a `Tensor` handle, fresh for every result.

It is one of three things: *realised* (it holds backend data), *recorded* (a result of a pending
node), or *owned* by a handler that keeps something of its own for it (a batched tensor, a tangent
pair, a node of a tape).
"""

from __future__ import annotations

import weakref
from math import prod
from typing import Any

from weft.core.common.device import Device
from weft.core.common.handler import Handler
from weft.core.common.types import DType, Shape, TensorType
from weft.core.graph.graph import GRAPH
from weft.core.graph.node import OutputRefs, Ref


class TensorImpl:
    """The state of one tensor value."""

    __slots__ = (
        "__weakref__",
        "data",
        "device",
        "dtype",
        "node",
        "owner",
        "payload",
        "shape",
        "shared",
        "slot",
        "spec",
        "traced",
    )

    def __init__(self, shape: Shape, dtype: DType, device: Device, data: Any = None) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.data = data  # the backend's array (NumPy's on CPU); None until realised
        self.owner: Handler | None = None
        self.node: OutputRefs | None = None
        self.shared = False  # memory is also seen by another library: readers run at the call
        self.traced = False  # uses are recorded even where they could run at once
        self.spec: Any = None  # how the tensor is laid out over a mesh; None on one device

    @classmethod
    def recorded(cls, node: OutputRefs, slot: int) -> TensorImpl:
        """The `slot`-th result of a recorded call."""
        kind = node.types[slot]
        impl = cls(kind.shape, kind.dtype, node.device)
        impl.node = node
        impl.slot = slot
        node.outputs.append(weakref.ref(impl))
        return impl

    @classmethod
    def owned(cls, kind: TensorType, device: Device, owner: Handler, payload: Any) -> TensorImpl:
        """A value that only `owner` can interpret."""
        impl = cls(kind.shape, kind.dtype, device)
        impl.owner = owner
        impl.payload = payload
        return impl

    @property
    def type(self) -> TensorType:
        """Shape and dtype."""
        return TensorType(self.shape, self.dtype)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_realized(self) -> bool:
        """Whether data is there, without running anything."""
        if self.data is None and self.node is not None and self.node.results is not None:
            self.data = self.node.results[self.slot]
        return self.data is not None

    @property
    def batch_dims(self) -> int:
        """How many hidden batch axes lead the physical shape (one for each level of `vmap`)."""
        count, impl = 0, self
        while impl.owner is not None:
            count += int(getattr(impl.owner, "hides_axis", False))
            inner = impl.owner.primal(impl.payload)
            if inner is None:
                break
            impl = inner._impl
        return count

    def realize(self) -> Any:
        """The backend's data, after running what is needed."""
        if self.data is None:
            assert self.node is not None, "an owned tensor is read through its owner"
            if self.node.results is None:
                GRAPH.realize((self.node,))
            assert self.node.results is not None
            self.data = self.node.results[self.slot]
        return self.data

    def ref(self) -> Ref:
        """This value as an input of a recorded call."""
        if self.node is None:
            self.node = OutputRefs.leaf(self.data, self.type, self.device)
            self.slot = 0
            self.node.outputs.append(weakref.ref(self))
        return self.node, self.slot
