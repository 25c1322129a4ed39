"""What hardware can do, in numbers: named links between devices, and `DeviceProfile` of one.

Named entries are rounded data-sheet figures; give your own where you have measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from weft.core.common.parameters import shown
from weft.core.common.spec import Link
from weft.errors import ArgumentError


def _number(where: str, name: str, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e300:
        raise ArgumentError(f"{where}: {name} must be a positive number, got {shown(value)}")


LINKS: Mapping[str, Link] = {
    "nvlink": Link(bandwidth=450e9, latency=2e-6),
    "pcie": Link(bandwidth=25e9, latency=5e-6),
    "infiniband": Link(bandwidth=50e9, latency=5e-6),
    "ethernet": Link(bandwidth=3e9, latency=30e-6),
    "shared memory": Link(bandwidth=10e9, latency=5e-6),
}


@dataclass(frozen=True)
class DeviceProfile:
    """One device: operations a second by dtype, memory bytes a second, memory bytes.

    A dtype that `flops` does not name runs at the rate of `"float32"`.

    >>> DEVICES["h100"].peak("bfloat16") > DEVICES["h100"].peak("float64")
    True
    """

    name: str
    flops: Mapping[str, float]
    bandwidth: float
    memory: int

    def __post_init__(self) -> None:
        rates: Any = self.flops
        if not isinstance(rates, Mapping) or "float32" not in rates:
            raise ArgumentError(
                f"device profile: flops must map dtypes, with float32, got {shown(rates)}"
            )
        for name, rate in rates.items():
            _number("device profile", f"flops[{name!r}]", rate)
        _number("device profile", "bandwidth", self.bandwidth)
        _number("device profile", "memory", self.memory)

    def peak(self, dtype: str) -> float:
        """Operations a second on this dtype."""
        return self.flops.get(dtype, self.flops["float32"])

    def seconds(self, flops: float, traffic: float, dtype: str) -> float:
        """How long a kernel takes: arithmetic or memory traffic, whichever is slower."""
        return max(flops / self.peak(dtype), traffic / self.bandwidth)


_GIB = 2**30

DEVICES: Mapping[str, DeviceProfile] = {
    "h100": DeviceProfile(
        "h100",
        {"bfloat16": 989e12, "float16": 989e12, "float32": 67e12, "float64": 34e12},
        3.35e12,
        80 * _GIB,
    ),
    "a100": DeviceProfile(
        "a100",
        {"bfloat16": 312e12, "float16": 312e12, "float32": 19.5e12, "float64": 9.7e12},
        2.0e12,
        80 * _GIB,
    ),
    "cpu": DeviceProfile("cpu", {"float32": 5e10, "float64": 2.5e10}, 2e10, 8 * _GIB),
}


def as_link(where: str, value: Any) -> Link:
    """A link as users write it: a `Link`, or the name of one."""
    return _named(where, "link", LINKS, value)


def as_profile(where: str, value: Any) -> DeviceProfile:
    """A device profile as users write it: a `DeviceProfile`, or the name of one."""
    return _named(where, "device", DEVICES, value)


_Named = TypeVar("_Named")


def _named(where: str, what: str, table: Mapping[str, _Named], value: Any) -> _Named:
    kind = type(next(iter(table.values())))
    if isinstance(value, kind):
        return value
    if isinstance(value, str) and value in table:
        return table[value]
    raise ArgumentError(
        f"{where}: {what} must be a {kind.__name__} or one of {', '.join(table)},"
        f" got {shown(value)}"
    )
