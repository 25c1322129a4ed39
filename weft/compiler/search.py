"""A search that can only improve: candidates beside the usual one, in turns, within a time.

`search` knows nothing of kernels. It is given candidates and a function that runs one of them and
says what each part took; it runs the usual one and another in turns, so that both see the same
machine, and names for each part the candidate that was reliably faster, if any was.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, TypeVar

ROUNDS = 11  # in which a candidate and the usual one take turns, at most
LEAST_ROUNDS = 5  # before anything is believed
GAIN = 1.02  # how much faster three rounds of four must have been
HOPE = {2: 0.97, LEAST_ROUNDS: 1.01}  # by its median a candidate must be as good, or is dropped

C = TypeVar("C", bound=Hashable)
P = TypeVar("P", bound=Hashable)


@dataclass
class Found(Generic[C, P]):
    """What a search has seen: for each candidate and part, ratios of the usual time to its own."""

    ratios: dict[C, dict[P, list[float]]] = field(default_factory=dict)
    usual: dict[P, list[float]] = field(default_factory=dict)  # times of the usual one
    rounds: int = 0  # of all candidates together

    def best(self, part: P) -> tuple[C, float] | None:
        """The candidate that is reliably faster for a part, and by what factor; None if none is."""
        sure = [
            (median(found[part]), candidate)
            for candidate, found in self.ratios.items()
            if part in found and is_faster(found[part])
        ]
        if not sure:
            return None
        factor, candidate = max(sure, key=lambda pair: pair[0])
        return candidate, factor


def is_faster(ratios: Sequence[float]) -> bool:
    """Whether ratios of turns say it beyond doubt: enough of them, and nearly all above one."""
    return len(ratios) >= LEAST_ROUNDS and sorted(ratios)[len(ratios) // 4] >= GAIN


def search(
    candidates: Sequence[C],
    usual: C,
    run: Callable[[C], Mapping[P, float]],
    clock: Callable[[], float],
    end: float,
) -> Found[C, P]:
    """Measure candidates, one after another, beside the usual one; until `end` on the clock.

    `run` leaves out the parts that a candidate does not change; the first run of each does not
    count. A run is begun only where one as long as the longest before would end in time.
    """
    found: Found[C, P] = Found()
    longest = 0.0

    def timed(candidate: C) -> Mapping[P, float] | None:
        nonlocal longest
        start = clock()
        if start + longest >= end:
            return None
        spent = run(candidate)
        longest = max(longest, clock() - start)
        return spent

    for candidate in candidates:
        first = timed(candidate)
        if first is None:
            break
        if not first:
            continue
        ratios = found.ratios[candidate] = {}
        for number in range(1, ROUNDS + 1):
            before, after = timed(usual), timed(candidate)
            if before is None or after is None:
                return found
            _note(found, ratios, before, after)
            if not any(_hopeful(each, number) for each in ratios.values()):
                break
    return found


def _note(
    found: Found[C, P],
    ratios: dict[P, list[float]],
    before: Mapping[P, float],
    after: Mapping[P, float],
) -> None:
    found.rounds += 1
    for part, spent in before.items():
        found.usual.setdefault(part, []).append(spent)
        if after.get(part, 0.0) > 0.0:
            ratios.setdefault(part, []).append(spent / after[part])


def _hopeful(ratios: Sequence[float], number: int) -> bool:
    """Whether more rounds may find a gain, or must make sure of one."""
    return number not in HOPE or median(ratios) >= HOPE[number]
