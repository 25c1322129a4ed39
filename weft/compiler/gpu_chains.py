"""`Chains`: the launches of a program by one call, where its memory lies as it did before.

A training loop gives its memory back and gets it again, so after a few steps addresses repeat. A
driver can then keep all launches of a program as one chain, with the addresses in it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from weft.runtime.gpu.interface import Driver

LEAST = 8  # launches that are worth a chain
MOST = 8  # chains of a program that are kept
SEEN = 64  # addresses of runs that are remembered
USES = 4  # of each chain, on the average, without which there are no more of them


class Chains:
    """Starts the launches of a program on the addresses in its table."""

    def __init__(self, gpu: Driver, starts: Sequence[Callable[[], int]], table: Any) -> None:
        self._gpu, self._starts, self._table = gpu, starts, table
        self._known: OrderedDict[bytes, Callable[[], int]] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._worth = gpu.chains and len(starts) >= LEAST
        self._made = self._used = 0

    def run(self) -> None:
        """Start them all, in order."""
        chain = self._chain() if self._worth else None
        for start in self._starts if chain is None else (chain,):
            code = start()
            if code:
                self._gpu.refuse(code)

    def _chain(self) -> Callable[[], int] | None:
        """The chain for the addresses as they are; None where they are new."""
        key = bytes(self._table)
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
            self._used += 1
            return found
        if key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > SEEN:
                self._seen.popitem(last=False)
            return None
        if self._made >= MOST and self._used < USES * self._made:
            return None  # memory lies elsewhere too often
        found = self._known[key] = self._gpu.chain(self._starts)
        self._made += 1
        if len(self._known) > MOST:
            self._known.popitem(last=False)
        return found
