"""`Tensor`: the handle users hold — one class, inside and outside every transform.

A handle points at a `TensorImpl`; assignment (`x[i] = v`, `x += y`) points it at another one.
Reading a value runs what was recorded for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from weft.core.common.device import Device
from weft.core.common.handler import Handler, current
from weft.core.common.slots import FUNCTIONS
from weft.core.common.spec import ShardingSpec
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.core.tensor.exchange import Exchange
from weft.core.tensor.impl import TensorImpl, Unread
from weft.core.tensor.layout import Layout
from weft.core.tensor.methods import Methods
from weft.core.tensor.operators import Operators
from weft.core.tensor.storage import Storage
from weft.errors import ConversionError

_ids = itertools.count(1)


class Tensor(Operators, Methods, Exchange):
    """A multi-dimensional array of one dtype on one device (or mesh).

    Make one with `wf.tensor`, `wf.zeros`, `wf.asarray`…; it follows NumPy's and the array API's
    rules for operators, broadcasting and indexing.
    """

    __slots__ = (
        "__weakref__",
        "_base",
        "_grad",
        "_hooks",
        "_id",
        "_impl",
        "_index",
        "_origin",
        "_scope",
        "_views",
        "_wants_grad",
    )

    _wants_grad: bool
    _hooks: list[Any]

    __array_ufunc__ = None  # `np.ones(3) * x` gives a tensor; `np.sin(x)` raises

    def __init__(self, impl: TensorImpl) -> None:
        if type(impl) is Unread:
            impl.settle()  # another handle may have it
        elif type(impl) is not TensorImpl:
            raise ConversionError(
                "Tensor: is not called directly\nhint: use wf.tensor(data) or wf.asarray(data)"
            )
        self._impl = impl
        scope = current()
        if scope is not None:  # assignments inside a transform are for tensors made inside it
            self._scope = scope

    @property
    def shape(self) -> Shape:
        """Sizes of the axes."""
        return self._impl.shape

    @property
    def dtype(self) -> DType:
        """The element type, a NumPy dtype."""
        return self._impl.dtype

    @property
    def device(self) -> Device:
        """Where the tensor lives."""
        return self._impl.device

    @property
    def type(self) -> TensorType:
        """Shape and dtype together."""
        return self._impl.type

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._impl.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self._impl.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._impl.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return prod(self._impl.shape) * self._impl.dtype.itemsize

    @property
    def id(self) -> int:
        """A number that no other tensor handle of this process has."""
        try:
            return self._id
        except AttributeError:
            self._id: int = next(_ids)
            return self._id

    @property
    def grad(self) -> Tensor | None:
        """What `backward` has added up for this tensor so far."""
        return getattr(self, "_grad", None)

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        self._grad = value

    @property
    def requires_grad(self) -> bool:
        """Whether `backward` finds gradients for this tensor; may be set."""
        return getattr(self, "_wants_grad", False)

    @requires_grad.setter
    def requires_grad(self, flag: bool) -> None:
        FUNCTIONS["requires_grad"](self, flag)

    @property
    def sharding(self) -> ShardingSpec:
        """How the tensor is laid out over a mesh; on a single device no axis is split."""
        tensor, hidden = self, 0
        while tensor._impl.spec is None and tensor._impl.owner is not None:
            owner = tensor._impl.owner
            hidden += owner.hides_axis
            found = owner.primal(tensor._impl.payload)
            if found is None:
                break
            tensor = found
        spec: ShardingSpec | None = tensor._impl.spec
        return ShardingSpec.whole(self.ndim) if spec is None else spec.inside(hidden)

    @property
    def dual(self) -> Any:
        """The physical side: one shard for each device of the mesh (`x.dual.shards`)."""
        return FUNCTIONS["dual_of"](self)

    @property
    def batch_dims(self) -> int:
        """How many hidden `vmap` axes lead the physical shape."""
        return self._impl.batch_dims

    @property
    def is_realized(self) -> bool:
        """Whether the value has been computed already."""
        impl = self._impl
        return impl.is_realized if impl.owner is None else impl.owner.is_realized(impl.payload)

    @property
    def owner(self) -> Handler | None:
        """The transform this tensor belongs to, if any."""
        return self._impl.owner

    def data(self) -> Any:
        """The backend's array, after running what is needed; outside every transform."""
        tensor = self
        while tensor._impl.owner is not None:
            tensor = tensor._impl.owner.read(tensor._impl.payload)
        return tensor._impl.realize()

    @property
    def layout(self) -> Layout:
        """Shape, strides (in elements) and offset in the storage; realises the tensor."""
        return Layout.of_array(self.host(), self.storage.ptr)

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements to step over along each axis; realises the tensor."""
        return self.layout.strides

    @property
    def storage(self) -> Storage:
        """The allocation the tensor lives in, shared by its views; realises the tensor."""
        return Storage.of_array(self.host(), self.device)

    def host(self) -> Array:
        """The value as a NumPy array: the tensor's own memory on CPU, a copy elsewhere."""
        data = self.data()
        return data if isinstance(data, np.ndarray) else data.to_host()

    def __len__(self) -> int:
        if not self.shape:
            raise ConversionError("len: a tensor with no axes has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise ConversionError("iter: a tensor with no axes cannot be iterated over")
        return (self[i] for i in range(self.shape[0]))

    def __contains__(self, value: Any) -> bool:
        equal = self == value
        return bool(FUNCTIONS["any"](equal) if isinstance(equal, Tensor) else equal)

    __hash__ = object.__hash__


__all__ = [
    "Tensor",
]
