"""`client.add(a, b)`: every public function as a method of a client, bound to its device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.common.context import default_device
from weft.core.common.device import Device
from weft.core.common.slots import FUNCTIONS
from weft.core.common.trees import tree_leaves
from weft.core.tensor.tensor import Tensor
from weft.errors import DeviceMismatchError


class NamedFunctions:
    """Gives a client weft's functions; tensors of another device are refused."""

    device: Any

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = FUNCTIONS.get(name)
        if function is None:
            raise AttributeError(f"client of {self.device}: there is no function {name!r}")

        def bound(*args: Any, **keywords: Any) -> Any:
            for leaf in tree_leaves((args, keywords)):
                if isinstance(leaf, Tensor):
                    check_device(name, leaf, self.device)
            with default_device(self.device):
                return function(*args, **keywords)

        bound.__name__ = name
        bound.__doc__ = function.__doc__
        return bound


def check_device(op: str, tensor: Tensor, device: Device) -> None:
    """Raise unless `tensor` lives on `device`."""
    if tensor.device is not device:
        raise DeviceMismatchError(
            f"{op}: a tensor is on {tensor.device}, but {device} is needed"
            f"\nhint: x.to_device({device.name!r}) moves it"
        )
