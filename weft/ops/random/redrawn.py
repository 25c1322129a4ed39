"""Functions with rules of their own: what the function drew without a key, its rules draw again.

A rule may run long after the function, or instead of it, and a derivative is that of the value. So
the keys that the function drew are operands of its call, and rules are given them in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from weft.core.common.device import Device
from weft.core.common.handler import current, installed
from weft.core.tensor.tensor import Tensor
from weft.ops.placement import to_device
from weft.ops.random.state import Generator, Threads, own_key, threaded, threads_here

Places: TypeAlias = dict[Generator, list[int | None]]


class Redrawn(Threads):
    """Has generators give keys that are known, and where these end, the next ones from outside."""

    def __init__(self, known: dict[Generator, list[Tensor | None]] | None = None) -> None:
        super().__init__()
        self._keys = known or {}
        self._handler = current()
        self._outside = threads_here()

    def key(self, source: Generator, number: int, device: Device | None = None) -> Tensor:
        keys = self._keys.setdefault(source, [])
        keys += [None] * (number + 1 - len(keys))
        found = keys[number]
        if found is None:
            with installed(self._handler), threaded(self._outside):
                keys[number] = found = source.next_key(device)
        place = found.device if device is None else device
        return own_key(to_device(found, place), source, until=self._handler)

    def state_at(
        self, source: Generator, number: int, device: Device | None = None
    ) -> tuple[Tensor, Tensor]:
        with installed(self._handler), threaded(self._outside):
            taken = source.reserve_tensors(0, device)
        assert taken is not None  # nothing was taken
        return taken

    def places(self, operands: Sequence[Tensor]) -> Places:
        """Where the keys are among the operands of a call; None for those that it does not use."""
        found = {x._impl: place for place, x in enumerate(operands)}
        return {
            source: [None if key is None else found.get(key._impl) for key in keys]
            for source, keys in self._keys.items()
        }


def redrawing(places: Places, operands: Sequence[Tensor]) -> threaded:
    """Inside, draw again what the function of this call drew."""
    known = {
        source: [None if place is None else operands[place] for place in found]
        for source, found in places.items()
    }
    return threaded(Redrawn(known))
