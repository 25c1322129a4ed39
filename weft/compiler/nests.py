"""The loops around everything a kernel does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from math import prod

from weft.compiler.index import axis, flat
from weft.compiler.loops import Kernel, Loop, integer
from weft.compiler.polynomial import known
from weft.compiler.rebuild import substitute


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


def nested(kernel: Kernel, extents: Sequence[int]) -> Kernel | None:
    """The kernel with loops of these extents around it; one loop may stand for the last of them."""
    loops = around(kernel)
    same = takewhile(lambda pair: pair[0] == turns(pair[1]), zip(extents, loops, strict=False))
    count = len(list(same))
    if count == len(extents):
        return kernel
    if count == len(loops):
        return None
    loop, wanted = loops[count], extents[count:]
    each, rest = divmod(turns(loop), prod(wanted))
    if rest:
        return None
    axes = [axis(f"q{k}", n) for k, n in enumerate((*wanted, each))]
    body = substitute(loop.body, {loop.variable: flat(axes, (*wanted, each)).value})
    for point, n in reversed(list(zip(axes, (*wanted, each), strict=True))):
        body = (Loop(point.value, integer(0), integer(n), body),)
    for outer in reversed(loops_of(kernel)[: loops_of(kernel).index(loop)]):
        body = (replace(outer, body=body),)
    return replace(kernel, body=body)
