"""Find a backend by name: built in, registered, or installed under the entry point `weft.backends`."""

from __future__ import annotations

from importlib.metadata import entry_points

from weft.core.common.context import current_device
from weft.core.common.device import Device, as_device
from weft.errors import BackendError, DeviceError
from weft.runtime.interface import Runtime, RuntimeClient

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
    matching = entry_points(group=_GROUP, name=kind)
    if not matching:
        raise BackendError(
            f"backend {kind!r}: not installed (there are {', '.join(available_backends())})"
            f"\nhint: pip install weft[{kind}], or a package with an entry point in {_GROUP!r}"
        )
    register_runtime(next(iter(matching)).load()())
    return _runtimes[kind]


def available_backends() -> tuple[str, ...]:
    """Names of the backends that can be used here."""
    return tuple(dict.fromkeys([*_runtimes, *(e.name for e in entry_points(group=_GROUP))]))


def client(device: str | Device | None = None) -> RuntimeClient:
    """The client of a device (the default device when none is named): `client("cpu").add(a, b)`."""
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
