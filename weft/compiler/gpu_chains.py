"""`Chains`: the launches of a program by one call, where its memory lies as it did before.

A training loop gives its memory back and gets it again, so after a few steps addresses repeat. A
driver can then keep all launches of a program as one chain, with the addresses in it. Launches that
touch other memory need not wait for each other there: a GPU that has room runs them side by side.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from weft.runtime.gpu.interface import Driver

LEAST = 8  # launches that are worth a chain
MOST = 8  # chains of a program that are kept
SEEN = 64  # addresses of runs that are remembered
USES = 4  # of each chain, on the average, without which there are no more of them


Slots: TypeAlias = tuple[tuple[int, int], ...]  # of a table, and how many bytes lie there
Place: TypeAlias = tuple[int, int]  # an address, and how many bytes


@dataclass(frozen=True)
class Link:
    """A launch of a chain."""

    start: Callable[[], int]
    reads: Slots
    writes: Slots


class Chains:
    """Starts the launches of a program on the addresses in its table."""

    def __init__(self, gpu: Driver, links: Sequence[Link], table: Any) -> None:
        self._gpu, self._links, self._table = gpu, links, table
        self._starts = [link.start for link in links]
        self._known: OrderedDict[bytes, Callable[[], int]] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._worth = gpu.chains and len(links) >= LEAST
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
        found = self._known[key] = self._gpu.chain(self._starts, waits(self._links, self._table))
        self._made += 1
        if len(self._known) > MOST:
            self._known.popitem(last=False)
        return found


def waits(links: Sequence[Link], table: Sequence[int]) -> list[list[int]]:
    """The launches before each launch that must be done, and that no other of them waits for.

    They have written what it reads, or read or written what it writes.
    """
    reads = [[(table[slot], nbytes) for slot, nbytes in link.reads if nbytes] for link in links]
    writes = [[(table[slot], nbytes) for slot, nbytes in link.writes if nbytes] for link in links]
    meeting = _meeting({place for places in (*reads, *writes) for place in places})
    writers: dict[Place, int] = {}
    readers: defaultdict[Place, list[int]] = defaultdict(list)  # since it was written
    done: list[int] = []  # bits: what a launch has waited for, by whatever way
    found: list[list[int]] = []
    for number, (read, written) in enumerate(zip(reads, writes, strict=True)):
        near = [other for place in (*read, *written) for other in meeting[place]]
        needed = {writers[other] for other in near if other in writers}
        needed.update(k for place in written for other in meeting[place] for k in readers[other])
        kept: list[int] = []
        covered = 0
        for k in sorted(needed, reverse=True):
            if not covered >> k & 1:
                kept.append(k)
                covered |= done[k] | 1 << k
        found.append(kept)
        done.append(covered)
        for place in read:
            readers[place].append(number)
        for place in written:
            writers[place] = number
            readers[place].clear()
    return found


def _meeting(places: set[Place]) -> dict[Place, list[Place]]:
    """The places that have bytes in common with each, itself among them."""
    ordered = sorted(places)
    met: dict[Place, list[Place]] = {place: [place] for place in ordered}
    for k, place in enumerate(ordered):
        end = bisect_left(ordered, (sum(place), 0), k + 1)
        for other in ordered[k + 1 : end]:
            met[place].append(other)
            met[other].append(place)
    return met
