"""Find a backend by name: built in, registered, or installed as an entry point.

The group of entry points is `weft.backends`; an entry gives a callable that makes the `Runtime`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.common.context import current_device
from weft.core.common.device import Device, as_device
from weft.core.common.lazy import LazyModule
from weft.errors import BackendError, DeviceError
from weft.runtime.interface import Runtime, RuntimeClient

metadata = LazyModule("importlib.metadata")
_BUILT_IN = {  # beside the processor's: modules, and the classes of their backends
    "cuda": (LazyModule("weft.runtime.cuda.client"), "CudaRuntime"),
    "webgpu": (LazyModule("weft.runtime.webgpu.client"), "WebGpuRuntime"),
}
_GROUP = "weft.backends"
_runtimes: dict[str, Runtime] = {}
_clients: dict[Device, RuntimeClient] = {}


def register_runtime(runtime: Runtime) -> None:
    """Make a backend available under its name."""
    _runtimes[runtime.name] = runtime


def runtime(kind: str) -> Runtime:
    """The backend called `kind`, loaded on first use; `BackendError` says what is missing."""
    found = _runtimes.get(kind)
    if found is not None:
        return found
    if kind in _BUILT_IN:
        register_runtime(_built_in(kind)())  # raises where what it needs is missing
        return _runtimes[kind]
    matching = metadata.entry_points(group=_GROUP, name=kind)
    if not matching:
        raise BackendError(
            f"backend {kind!r}: not installed (there are {', '.join(available_backends())})"
            f"\nhint: pip install weft[{kind}], or a package with an entry point in {_GROUP!r}"
        )
    entry = next(iter(matching))
    try:
        made = entry.load()()
    except (ImportError, AttributeError) as error:
        raise BackendError(f"backend {kind!r}: {entry.value} cannot be loaded ({error})") from error
    if not isinstance(made, Runtime) or made.name != kind:
        raise BackendError(f"backend {kind!r}: {entry.value} gives no Runtime of this name")
    register_runtime(made)
    return made


def _built_in(kind: str) -> Any:
    module, name = _BUILT_IN[kind]
    return getattr(module, name)


def registered_runtimes() -> tuple[Runtime, ...]:
    """The backends that are loaded."""
    return tuple(_runtimes.values())


def memory_elsewhere() -> int:
    """Bytes of the largest device in use that has memory of its own."""
    gpus = (getattr(each, "gpu", None) for each in tuple(_clients.values()))
    return max((getattr(gpu, "nbytes", 0) for gpu in gpus), default=0)


def place_on(array: Any, device: Device) -> Any:
    """An array as data of `device`: what lies on another one goes by way of the host."""
    return client(device).to_device(array if isinstance(array, np.ndarray) else array.to_host())


def available_backends() -> tuple[str, ...]:
    """Names of the backends that can be used here."""
    built_in = [kind for kind in _BUILT_IN if _built_in(kind).is_available()]
    installed = [e.name for e in metadata.entry_points(group=_GROUP)]
    return tuple(dict.fromkeys([*_runtimes, *built_in, *installed]))


def client(device: str | Device | None = None) -> RuntimeClient:
    """The client of a device (the default device when none is named): `client("cpu").add(a, b)`."""
    found = _clients.get(device) if isinstance(device, Device) else None
    if found is None:
        where = current_device() if device is None else as_device(device)
        found = _clients.get(where)
    if found is None:
        backend = runtime(where.kind)
        legal = backend.devices()
        if where not in legal:
            raise DeviceError(
                f"device {where}: does not exist (there are {', '.join(map(str, legal))})"
            )
        found = _clients[where] = backend.default_client(where)
    return found


__all__ = [
    "available_backends",
    "client",
    "register_runtime",
]
