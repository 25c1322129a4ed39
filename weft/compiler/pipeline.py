"""From a lowered kernel to one that says how it runs: the passes, in order.

Every pass keeps each bit of the results; `verify` and the interpreter of `weft.testing.ir` hold
between any two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from weft.compiler.loops import Kernel
from weft.compiler.passes.ahead import ahead
from weft.compiler.passes.beside import beside
from weft.compiler.passes.collapse import collapse
from weft.compiler.passes.pair import pair
from weft.compiler.passes.parallelize import parallelize
from weft.compiler.passes.ranges import ranges
from weft.compiler.passes.reduce import reduce
from weft.compiler.passes.search import search
from weft.compiler.passes.short import short
from weft.compiler.passes.simplify import renumber, shorten
from weft.compiler.passes.sink import sink
from weft.compiler.passes.spell import spell
from weft.compiler.passes.split import split
from weft.compiler.passes.tally import tally
from weft.compiler.passes.tile import tile
from weft.compiler.passes.unfold import unfold
from weft.compiler.passes.unroll import unroll
from weft.compiler.passes.vectorize import vectorize

Pass: TypeAlias = Callable[[Kernel], Kernel | tuple[Kernel, ...]]


def passes(vector_bytes: int, threads_wanted: bool) -> list[tuple[str, Pass]]:
    """The passes that every kernel goes through, by name."""
    return [
        ("spell", spell),
        ("unfold", unfold),
        ("simplify", shorten),
        ("short", short),
        ("collapse", collapse),
        ("beside", beside),
        ("split", lambda kernel: split(kernel) if threads_wanted else kernel),
        ("tally", lambda kernel: tally(kernel) if threads_wanted else kernel),
        ("ranges", lambda kernel: ranges(kernel) if threads_wanted else kernel),
        ("tile", tile),
        ("search", lambda kernel: search(kernel, vector_bytes)),
        ("parallelize", lambda kernel: parallelize(kernel, threads_wanted)),
        ("reduce", lambda kernel: reduce(kernel, vector_bytes=vector_bytes)),
        ("simplify again", shorten),
        ("sink", lambda kernel: _shorter(kernel, sink(kernel, vector_bytes))),
        ("vectorize", lambda kernel: _shorter(kernel, vectorize(kernel, vector_bytes))),
        ("renumber", renumber),
        ("pair", lambda kernel: pair(kernel, vector_bytes)),
        ("unroll", unroll),
        ("ahead", lambda kernel: ahead(kernel, vector_bytes)),
    ]


def _shorter(kernel: Kernel, made: Kernel) -> Kernel:
    """What a pass has made of a short kernel, short again."""
    return kernel if made is kernel else shorten(made)


def stages(
    kernel: Kernel, *, vector_bytes: int = 16, threads_wanted: bool = True
) -> Iterator[tuple[str, tuple[Kernel, ...]]]:
    """The kernel after each pass, with the pass's name."""
    kernels: tuple[Kernel, ...] = (kernel,)
    for name, run in passes(vector_bytes, threads_wanted):
        made = map(run, kernels)
        kernels = tuple(k for m in made for k in ((m,) if isinstance(m, Kernel) else m))
        yield name, kernels


def schedule(
    kernel: Kernel, *, vector_bytes: int = 16, threads_wanted: bool = True
) -> tuple[Kernel, ...]:
    """The kernels to run, one after another, for a lowered one.

    Each notes its number of `tasks`. If there are two, the first has one buffer more, its last
    one, which the second reads last; the first notes it as `partials`: (dtype, elements).
    """
    return tuple(one_by_one(kernel, passes(vector_bytes, threads_wanted)))


def one_by_one(kernel: Kernel, rest: Sequence[tuple[str, Pass]]) -> Iterator[Kernel]:
    """The kernels that these passes make of one, each as soon as it is ready."""
    for number, (_, run) in enumerate(rest):
        made = run(kernel)
        if not isinstance(made, Kernel):
            for each in made:
                yield from one_by_one(each, rest[number + 1 :])
            return
        kernel = made
    yield kernel
