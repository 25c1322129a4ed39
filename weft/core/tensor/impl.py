"""`TensorImpl`: what stands behind a `Tensor` handle, fresh for every result.

It is one of three things: *realised* (it holds backend data), *recorded* (a result of a pending
node), or *owned* by a handler that keeps something of its own for it (a batched tensor, a tangent
pair, a node of a tape). What is assigned to element by element is *unread*: realised, and changed
in place until somebody looks.
"""

from __future__ import annotations

import sys
import weakref
from math import prod
from typing import Any, NamedTuple

import numpy as np

from weft.core.common.device import Device
from weft.core.common.handler import Handler, current, is_running
from weft.core.common.locks import lock_for
from weft.core.common.source import Position, user_position
from weft.core.common.types import DType, Shape, TensorType
from weft.core.graph.graph import GRAPH
from weft.core.graph.node import OutputRefs, Ref
from weft.errors import DeviceMismatchError, LeakedTensorError

_scalars: weakref.WeakValueDictionary[Any, OutputRefs] = weakref.WeakValueDictionary()
WORTH_A_LINE = 64 * 1024  # bytes from which a tensor remembers the user's line that made it


class TensorImpl:
    """The state of one tensor value."""

    __slots__ = (
        "__weakref__",
        "_kind",
        "data",
        "device",
        "dtype",
        "node",
        "owner",
        "payload",
        "position",
        "shape",
        "shared",
        "slot",
        "spec",
        "traced",
    )
    payload: Any
    position: Position | None
    slot: int

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
    def realized(cls, data: Any, kind: TensorType, device: Device) -> TensorImpl:
        """A value that is there; a large one remembers who made it."""
        impl = cls(kind.shape, kind.dtype, device, data)
        impl._kind = kind
        if kind.nbytes >= WORTH_A_LINE:
            impl.position = user_position(2)
        return impl

    @classmethod
    def recorded(cls, node: OutputRefs, slot: int) -> TensorImpl:
        """The `slot`-th result of a recorded call."""
        kind = node.types[slot]
        impl = cls(kind.shape, kind.dtype, node.place(slot))
        impl._kind = kind
        impl.node = node
        impl.slot = slot
        node.hand_out(impl)
        return impl

    @classmethod
    def owned(cls, kind: TensorType, device: Device, owner: Handler, payload: Any) -> TensorImpl:
        """A value that only `owner` can interpret."""
        impl = cls(kind.shape, kind.dtype, device)
        impl._kind = kind
        impl.owner = owner
        impl.payload = payload
        return impl

    @property
    def type(self) -> TensorType:
        """Shape and dtype."""
        try:
            return self._kind
        except AttributeError:
            self._kind: TensorType = TensorType(self.shape, self.dtype)
            return self._kind

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_realized(self) -> bool:
        """Whether data is there, without running anything."""
        if self.data is None and self.node is not None and self.node.results is not None:
            if self.traced:  # keeps no data of its own, so that no fast path takes it
                return True
            self._take(self.node)
        return self.data is not None

    def _take(self, node: OutputRefs) -> None:
        assert node.results is not None
        self.data = node.results[self.slot]
        self.position = node.position
        if len(node.types) > 1:
            self.node = None  # the node would keep the other results alive

    @property
    def maker(self) -> Position | None:
        """The user's line that made this value, where it is known."""
        known: Position | None = getattr(self, "position", None)
        return known if known is not None or self.node is None else self.node.position

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
            if self.traced and self.node.results is not None:
                return self.node.results[self.slot]
            self._take(self.node)
        return self.data

    def settle(self) -> None:
        """Have the value stay as it is; all but an `Unread` one do."""

    def innermost(self) -> TensorImpl | None:
        """The impl outside every transform that this one stands on, or None if there is none."""
        impl = self
        while impl.owner is not None:
            outside = impl.owner.primal(impl.payload)
            if outside is None:
                return None
            impl = outside._impl
        return impl

    def ref(self) -> Ref:
        """This value as an input of a recorded call."""
        if self.node is None:
            self.node = self._scalar_leaf() if self.shape == () else self._leaf()
            self.slot = 0
            self.node.hand_out(self)
        return self.node, self.slot

    def _leaf(self) -> OutputRefs:
        return OutputRefs.leaf(self.data, self.type, self.device)

    def _scalar_leaf(self) -> OutputRefs:
        """One leaf for equal numbers, so that `x * 2` is the same call as `x * 2` elsewhere."""
        if not isinstance(self.data, np.ndarray):
            return self._leaf()
        key = (self.dtype, self.data.tobytes(), self.device)
        found = _scalars.get(key)
        if found is None:
            found = _scalars[key] = self._leaf()
        return found


class Unread(TensorImpl):
    """A value that nobody has read since it was written, so that its one handle may write on it.

    The array lies in `payload`. Whoever asks for `data` makes it a value like any other, and so
    does a second handle.
    """

    __slots__ = ()

    @classmethod
    def of(cls, array: Any, like: TensorImpl) -> Unread:
        """A value in memory of its own, of the type of another one."""
        impl = cls(like.shape, like.dtype, like.device)
        impl.payload = array
        if array.nbytes >= WORTH_A_LINE:
            impl.position = user_position(2)
        return impl

    def settle(self) -> None:
        """Have it stay as it is."""
        with _writing:
            array = self.payload
            if array is not None:
                _slot.__set__(self, array)
                self.__class__ = TensorImpl  # type: ignore[assignment]
                self.payload = None

    @property
    def data(self) -> Any:
        """The array; nothing is written on it any more."""
        self.settle()
        return _slot.__get__(self)

    @data.setter
    def data(self, array: Any) -> None:
        _slot.__set__(self, array)


_slot: Any = vars(TensorImpl)["data"]  # where `Unread` values keep what is read of them
# So that whoever looks sees an assignment of another thread whole, or not.
_writing = lock_for(sys.modules[__name__], "_writing")


def write_unread(impl: TensorImpl, where: Any, values: Any) -> bool:
    """Write on a value that was `Unread` a moment ago; False where somebody has read it since."""
    with _writing:
        array = impl.payload
        if array is None:
            return False
        array[where] = values
    return True


def copy_unread(impl: TensorImpl, where: Any, limit: int) -> Any:
    """A copy of up to `limit` elements of such a value; None where it cannot be had."""
    try:
        with _writing:
            array = impl.payload[where]
            return np.array(array, order="C") if array.size <= limit else None
    except (IndexError, TypeError, ValueError, OverflowError):
        return None


class DriverTensorType(NamedTuple):
    """What a backend sees of a tensor: the physical shape, the dtype, and the device."""

    shape: Shape
    dtype: DType
    device: Device

    def __str__(self) -> str:
        return f"{TensorType(self.shape, self.dtype)} on {self.device}"


def driver_tensor_type(value: Any) -> DriverTensorType:
    """The type a backend's driver sees of a tensor or impl; hidden batch axes are part of it."""
    impl: TensorImpl = value if isinstance(value, TensorImpl) else value._impl
    seen = impl.innermost() or impl
    return DriverTensorType(seen.shape, seen.dtype, seen.device)


def common_device(op: Any, impls: tuple[TensorImpl, ...], params: dict[str, Any]) -> Device:
    """The device all operands live on; an op that has none, or moves one, names it itself."""
    if not impls or op.moves:
        result: Device = params["device"]
        return result
    if op.follows is not None:
        followed: TensorImpl = impls[op.follows]
        return followed.device
    inside: tuple[Device, ...] | None = op.places(**params)
    if inside:
        return next((device for device in inside if device.kind != "cpu"), inside[0])
    device = impls[0].device
    for position, impl in enumerate(impls):
        if impl.device is not device and inside is None:
            over = [x for x in impls if x.spec is not None and x.spec.mesh is not None]
            if over and all(x in over or x.device in over[0].spec.mesh.devices for x in impls):
                return over[0].device  # a mesh takes what is on one of its devices
            raise DeviceMismatchError(
                f"{op}: operand {position} is on {impl.device}, operand 0 on {device}"
                f"\nhint: x.to_device({device.name!r}) moves it; weft never copies in silence"
            )
    return device


def check_running(handler: Handler) -> None:
    """Raise if a value is read whose transform is not running any more."""
    if not is_running(handler):
        raise LeakedTensorError(
            f"{handler.title}: a tensor made inside was read after it had ended; it has no value"
            " outside"
            "\nhint: return values from the transformed function instead of storing them elsewhere"
        )


def leaked(op: Any, position: int, impl: TensorImpl) -> LeakedTensorError:
    """The error for an operand whose transform is not running any more."""
    inside, owner = current(), impl.owner
    assert owner is not None
    where = "" if inside is None else f" and is used inside {inside.title}"
    return LeakedTensorError(
        f"{op}: operand {position} ({impl.type}) was made inside a {owner.title} that has"
        f" ended{where}"
        f"\nhint: return values from the transformed function instead of storing them elsewhere"
    )
