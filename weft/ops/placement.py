"""Copies, and moves between devices: `to_device` is an op where a transform or a graph sees it."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.config import settings
from weft.core.common import dtypes
from weft.core.common.context import default_float
from weft.core.common.device import Device, as_device
from weft.core.common.parameters import as_flag
from weft.core.common.slots import public
from weft.core.common.types import Array, TensorType
from weft.core.tensor.convert import to_tensor, wrap
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DeviceError, OutOfMemoryError
from weft.ops.base import Example, Linear, Operation, Tangents, call
from weft.ops.families import cast
from weft.runtime.registry import client


class Copy(Operation):
    """The same elements in memory of their own, in row-major order."""

    factors = "... -> ..."
    linear = Linear.JOINTLY
    work = 0
    widen = False

    def eval(self, x: Array, **params: Any) -> Array:
        try:
            return np.array(x, order="C", copy=True)
        except MemoryError:
            raise OutOfMemoryError(
                f"copy: no memory for {x.size * x.itemsize} bytes (shape {x.shape}, {x.dtype})"
            ) from None

    def write(self, out: Array, x: Array, **params: Any) -> None:
        out[...] = x

    def body(self, s: Any, x: Any, **params: Any) -> Any:
        return x

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (ct,)


class Transfer(Copy):
    """The same elements on another device."""

    moves = True
    examples = (Example({"device": as_device("cpu")}),)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (call(self, (ct,), {"device": primals[0].device}),)


copy_op, transfer_op = Copy(), Transfer()


@public
def copy_of(x: Any, /) -> Tensor:
    """A copy in memory of its own."""
    return call(copy_op, (to_tensor(x, op="copy_of"),), {})


def copied(data: Array, device: Device) -> Tensor:
    """A copy of an array; a large one begins where vectors and lines of caches do."""
    if device.kind == "cpu" and data.nbytes >= settings.cache_threshold:
        kind = TensorType(data.shape, data.dtype)
        (made,) = client(device).execute(copy_op, (data,), {}, (kind,))
        return wrap(made, device)
    return placed(np.array(data, order="C", copy=True), device)


def placed(data: Array, device: Device) -> Tensor:
    """An array that nobody else holds, as a tensor of a device."""
    if device.kind == "cpu":
        client(device)
        return wrap(data, device)
    moved = client(device).to_device(data)
    return Tensor(TensorImpl(data.shape, data.dtype, device, moved))


@public
def to(x: Any, target: Any, /, *, copy: bool = False) -> Tensor:
    """The tensor in another dtype, or on another device: `x.to("float64")`, `x.to("cpu:1")`."""
    tensor = to_tensor(x, op="to")
    if isinstance(target, Tensor):
        moved = to_device(cast(tensor, target.dtype, "to"), target.device)
    elif isinstance(target, Device) or (isinstance(target, str) and _names_device(target)):
        moved = to_device(tensor, target)
    else:
        dtype = dtypes.as_dtype(target, op="to", default_float=default_float())
        moved = cast(tensor, dtype, "to")
    return copy_of(moved) if as_flag("to", "copy", copy) and moved is tensor else moved


def _names_device(text: str) -> bool:
    return text.partition(":")[0] in ("cpu", "cuda", "webgpu")


@public
def to_device(x: Any, device: Any, /, *, stream: Any = None) -> Tensor:
    """The tensor on another device; a copy unless it is there already."""
    if stream is not None:
        raise ArgumentError(f"to_device: streams are not used here, got {stream!r}")
    tensor = to_tensor(x, op="to_device")
    place = as_device(device)
    if tensor.device is place:
        return tensor
    mesh = tensor.sharding.mesh
    if mesh is not None:
        raise DeviceError(
            f"to_device: the tensor lies over the devices of mesh {mesh}"
            "\nhint: x.shard(mesh, spec) moves it to another mesh; wf.tensor(x.host()) is on one"
            " device"
        )
    if tensor.owner is not None:
        client(place)  # which must be there
        return call(transfer_op, (tensor,), {"device": place})
    return copied(tensor.host(), place)


__all__ = ["copy_of", "to", "to_device"]
