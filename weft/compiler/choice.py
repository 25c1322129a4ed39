"""`Choice`: what may be decided otherwise about a heavy kernel without changing a bit of it.

The model takes the defaults; `tune` measures others. A new way to run a kernel becomes a field here
and, where it is worth measuring, a line of `ALTERNATIVES`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Choice:
    """How a matrix product is cut, in bytes, points and registers; how wide other loops step.

    What is 0 is left to the pass that cuts.
    """

    panels: int = 0  # bytes of one panel of each factor, which the first cache holds
    deep: int = 0  # points of the depth in one piece, at most
    right: int = 0  # bytes of the right factor that a tile packs: part of the second cache
    sums: int = 0  # bytes of sums that wait for the next piece of the depth
    tall: int = 0  # rows of a tile, at most
    rows: int = 0  # of the block of sums in registers that large products take
    vectors: int = 0  # in a row of such a block
    tasks: int = 0  # tiles, at least, if rows are many enough: some for each thread
    step: int = 1  # vectors that a turn of a loop takes at once, where there is no product

    def __str__(self) -> str:
        usual = asdict(USUAL)
        told = [f"{name} {value}" for name, value in asdict(self).items() if value != usual[name]]
        return ", ".join(told) or "usual"


USUAL = Choice()

ALTERNATIVES = (
    Choice(rows=12, vectors=2),
    Choice(rows=6, vectors=4),
    Choice(rows=4, vectors=3),
    Choice(right=1 << 18),
    Choice(right=1 << 20),
    Choice(deep=256),
    Choice(deep=1024, panels=81_920),
    Choice(tall=256),
    Choice(tall=512),
    Choice(tall=64),
    Choice(right=1 << 18, deep=256, tall=256),
    Choice(step=2),
)
