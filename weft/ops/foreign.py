"""Tensors over memory of a GPU that belongs to another library."""

from __future__ import annotations

from typing import Any

from weft.core.common.device import Device, as_device
from weft.core.common.handler import installed
from weft.core.common.slots import FUNCTIONS
from weft.core.common.types import TensorType
from weft.core.tensor import dlpack
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.layout import Layout
from weft.core.tensor.tensor import Tensor
from weft.errors import BackendError, DeviceError, InteropError
from weft.runtime.registry import client


def gpu_of(source: Any) -> Device | None:
    """The CUDA device that another library's array is on; None where weft does not see it."""
    kind, number = dlpack.device_of(source)
    if kind != dlpack.CUDA_KIND:
        return None
    try:
        return client(as_device(f"cuda:{number}")).device
    except (BackendError, DeviceError):
        return None


def from_gpu(source: Any, home: Device, place: Device | None, copy: bool | None) -> Tensor:
    """A tensor over another library's memory on the GPU `home`, or a copy on the device `place`.

    What does not lie row by row, or where kernels cannot read it, is copied by the GPU; elements
    that are strided are gathered, with a position of 8 bytes for each.
    """
    moves = place is not None and place is not home
    if moves and copy is False:
        raise InteropError(f"from_dlpack: from {home} to {place} is a copy, and copy=False")
    with installed(None):  # a transform around this sees the values, not how they came
        driver: Any = client(home)
        array, layout = driver.from_dlpack(source)
        in_place = layout.is_contiguous and (array.is_shared or not array.size)
        if copy is False and not in_place:
            raise InteropError(
                f"from_dlpack: these elements (strides {layout.strides}) need a copy, and"
                " copy=False"
                "\nhint: memory that is packed row by row, from an address that divides by 16, is"
                " used where it lies"
            )
        if layout.is_contiguous:
            packed = array.copied() if copy and array.is_shared else array
            found = _tensor(packed.reshaped(layout.shape), home)
        else:
            found = _gathered(_tensor(array, home), layout)
        found = FUNCTIONS["to_device"](found, place) if moves else found
    return Tensor(found._impl)


def _tensor(array: Any, device: Device) -> Tensor:
    kind = TensorType(array.shape, array.dtype)
    return Tensor(TensorImpl.realized(array, kind, device))


def _gathered(flat: Tensor, layout: Layout) -> Tensor:
    """The elements of a layout of some memory, in row-major order."""
    places: Any = layout.offset
    for axis, (size, stride) in enumerate(zip(layout.shape, layout.strides, strict=True)):
        steps = FUNCTIONS["arange"](size, dtype="int64", device=flat.device) * stride
        places = steps.reshape((size,) + (1,) * (layout.rank - axis - 1)) + places
    found: Tensor = FUNCTIONS["take"](flat, places, mode="clip")
    return found
