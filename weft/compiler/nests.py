"""The loops around everything a kernel does."""

from __future__ import annotations

from weft.compiler.loops import Kernel, Loop
from weft.compiler.polynomial import known


def loops_of(kernel: Kernel) -> list[Loop]:
    """Them all, from the outside in, as far as they count from 0 by 1 to a known number."""
    found: list[Loop] = []
    body = kernel.body
    while len(body) == 1 and isinstance(loop := body[0], Loop) and turns(loop):
        found.append(loop)
        body = loop.body
    return found


def around(kernel: Kernel) -> list[Loop]:
    """Those of them that have several turns."""
    return [loop for loop in loops_of(kernel) if turns(loop) > 1]


def turns(loop: Loop) -> int:
    """How many turns a plain loop has; 0 if that is not known."""
    plain = loop.kind == "serial" and known(loop.start) == 0 and loop.step == 1
    return (known(loop.stop) or 0) if plain else 0
