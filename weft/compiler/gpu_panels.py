"""Run chains of a GPU's kernels panel by panel: what is large between them never exists whole.

A chain begins with a kernel that makes something large for later kernels. Those whose outermost
loops are the same, and which read what others of the chain make at the same turn of these loops,
can run on some turns, a *panel*, and then on the next ones. What only they read has memory for one
panel. Their kernels are those of all turns with shorter loops; where a panel begins, they read from
memory, so that one kernel serves all panels. No bit changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import prod

import numpy as np

from weft.compiler.gpu_steps import Block, Launch, Step, Work
from weft.compiler.index import axis
from weft.compiler.loops import (
    INDEX,
    Buffer,
    Kernel,
    Loop,
    Statement,
    Store,
    Value,
    every,
    integer,
    load,
    value,
)
from weft.compiler.nests import around, loops_of, nested, turns
from weft.compiler.passes.items import Limits
from weft.compiler.polynomial import add, number, stride
from weft.compiler.rebuild import Statements, leaves_in, substitute, substitute_value, with_body
from weft.compiler.recompute import Terms
from weft.compiler.weave import attention_products

LARGE = 2  # times the bytes that a panel may have: results that need not be held whole
SQUARE = 4  # of a panel: such squares are computed again, and not kept
MOST = 32  # kernels of a chain
_START = np.dtype(np.int32)  # every GPU has such numbers


def terms(limits: Limits) -> Terms:
    """Which squares a GPU does not keep.

    Sums along columns are added up where there is room for a batch.
    """
    room = limits.panel
    return Terms(
        room // SQUARE,
        True,
        lambda kind: kind.nbytes <= room * prod(kind.shape[:-2]),
        attention_products if limits.squares else lambda trace: frozenset(),
    )


@dataclass
class _Chain:
    """Kernels that run panel by panel along their outermost loops, and what goes around them."""

    extents: tuple[int, ...]  # of these loops
    room: int  # bytes that a panel may have
    shared: frozenset[Block]  # what several steps write
    members: list[Work] = field(default_factory=list)
    before: list[Step] = field(default_factory=list)
    after: list[Step] = field(default_factory=list)
    made: set[Block] = field(default_factory=set)  # by members, turn by turn
    large: set[Block] = field(default_factory=set)  # what the chain is for
    late: set[Block] = field(default_factory=set)  # what is there when all panels are done
    private: set[Block] = field(default_factory=set)  # what only members read

    @property
    def turns(self) -> int:
        """Of all its loops together."""
        return prod(self.extents)

    @property
    def held(self) -> int:
        """Bytes that need not be held whole."""
        return sum(block.nbytes for block in self.private)

    @property
    def points(self) -> int:
        """Turns of the last loop in a panel: all panels are about as large."""
        extent = self.extents[-1]
        most = max(1, self.room * self.turns // self.held)
        return -(-extent // -(-extent // most))

    @property
    def saved(self) -> int:
        """Bytes that panels save."""
        if not self.private:
            return 0
        return self.held - self.held * min(self.points, self.extents[-1]) // self.turns

    def take(self, work: Work) -> None:
        """Put the next kernel where it belongs."""
        waits = work.reads & self.late or work.writes & self.shared
        large = _large(work, self.made, self.room)
        wanted = work.reads & self.made or large
        member = self._by_turns(work) if wanted and not waits else None
        if member is not None:
            self.members.append(member)
            turned = {block for block in work.writes if self._has_turns(member, block)}
            self.made |= turned
            self.large |= large & turned
            self.late |= work.writes - turned
        elif waits or work.reads & self.made:
            self.after.append(work)
            self.late |= work.writes
        else:
            self.before.append(work)

    def _by_turns(self, work: Work) -> Work | None:
        """A kernel with the loops of this chain, if it reads what all of them make turn by turn."""
        kernel = nested(work.kernel, self.extents)
        if kernel is None:
            return None
        made = replace(work, kernel=kernel)
        read = work.reads & (self.made | work.writes)
        return made if all(self._has_turns(made, block) for block in read) else None

    def _has_turns(self, work: Work, block: Block) -> bool:
        """Whether each turn of a kernel touches its own part of a result, row by row."""
        variables = [loop.variable for loop in around(work.kernel)[: len(self.extents)]]
        each, rest = divmod(block.size, self.turns)
        if rest:
            return False
        steps = [each * prod(self.extents[k + 1 :]) for k in range(len(variables))]
        return all(
            [number(stride(index, v)) for v in variables] == steps
            for k, index in _places(work.kernel)
            if work.memory[k] is block
        )


def with_panels(steps: Sequence[Step], outputs: frozenset[Block], room: int) -> Iterator[Step]:
    """All steps, chains of them panel by panel, each of which has so many bytes."""
    left = list(steps)
    writers = Counter(b for step in steps if isinstance(step, Work) for b in step.writes)
    shared = frozenset(block for block, count in writers.items() if count > 1)
    while left:
        first, *rest = left
        chain = None
        if isinstance(first, Work) and _large(first, set(), room):
            chain = _chain(partial(_Chain, room=room, shared=shared), first, rest, outputs)
        if chain is None:
            yield first
            left = rest
            continue
        yield from chain.before
        yield from _panels(chain)
        left = chain.after


def _chain(
    make: Callable[..., _Chain], first: Work, rest: Sequence[Step], outputs: frozenset[Block]
) -> _Chain | None:
    """The chain that begins with a kernel, along as few loops as will do; None if none pays."""
    extents = [turns(loop) for loop in around(first.kernel)]
    found = [
        _taken(make(tuple(extents[: k + 1])), first, rest, outputs) for k in range(len(extents))
    ]
    most = max((chain.saved for chain in found), default=0)
    best = [chain for chain in found if chain.saved >= most - chain.room]
    return best[0] if best and most >= (LARGE - 1) * best[0].room else None


def _taken(chain: _Chain, first: Work, rest: Sequence[Step], outputs: frozenset[Block]) -> _Chain:
    """A chain with everything in its place, until all that is large in it is used up.

    It has nothing to save if that takes too long: then it would be most of a program.
    """
    readers = Counter(block for step in rest for block in _reads(step))
    chain.take(first)
    for place, step in enumerate(rest):
        is_open = any(readers[block] for block in chain.large)
        if not is_open or not isinstance(step, Work):
            chain.after += rest[place:]
            break
        if len(chain.members) == MOST:
            return chain
        chain.take(step)
        for block in step.reads:
            readers[block] -= 1
    others = {block for step in (*chain.before, *chain.after) for block in _reads(step)}
    chain.private = chain.made - others - outputs
    return chain


def _large(work: Work, made: set[Block], room: int) -> set[Block]:
    """What a kernel makes that is large, and larger than what it reads that was there before."""
    most = max((block.nbytes for block in work.reads - work.writes - made), default=0)
    return {block for block in work.writes if block.nbytes >= room and block.nbytes > most}


def _reads(step: Step) -> Iterable[Block]:
    """What a step reads, or may read."""
    return step.memory if isinstance(step, Launch) else step.reads


def _panels(chain: _Chain) -> Iterator[Work]:
    """The kernels of all panels, one panel after another."""
    *outer, extent = chain.extents
    sizes = {min(chain.points, extent), extent % chain.points or extent}
    kernels = {n: [_shorter(work, chain, n) for work in chain.members] for n in sizes}
    starts = list(product(*map(range, outer), range(0, extent, chain.points)))
    for place, start in enumerate(starts):
        n = min(chain.points, extent - start[-1])
        own = {b: Block(b.dtype, b.size // chain.turns * n) for b in chain.private}
        begins = Block(_START, len(start), np.array(start, _START))
        for work, kernel in zip(chain.members, kernels[n], strict=True):
            memory = (*(own.get(b, b) for b in work.memory), begins)
            yield Work(kernel, memory, work.calls, work.group, (place, len(starts)))


def _shorter(work: Work, chain: _Chain, points: int) -> Kernel:
    """The kernel of a panel, which is given the numbers of its first turns."""
    kernel = work.kernel
    loops = around(kernel)[: len(chain.extents)]
    inner = axis("p", points)
    here = [*[integer(0)] * (len(loops) - 1), inner.value]
    begins = [
        value("cast", (load(len(kernel.buffers), integer(k), _START),), INDEX)
        for k in range(len(loops))
    ]
    outer = loops_of(kernel)
    single = (loop for loop in outer[: outer.index(loops[-1])] if turns(loop) == 1)
    ones = {loop.variable: integer(0) for loop in single}
    local = {loop.variable: x for loop, x in zip(loops, here, strict=True)}
    whole = {v: add(x, begin) for (v, x), begin in zip(local.items(), begins, strict=True)}
    private = {k for k, block in enumerate(work.memory) if block in chain.private}
    body = _within(substitute(loops[-1].body, ones), private, local)
    for x in leaves_in(body):
        if x.op == "load" and x.data in private:
            whole[x] = load(x.data, substitute_value(x.args[0], local), x.dtype)
    body = substitute(body, whole)
    return replace(
        kernel,
        buffers=(*kernel.buffers, Buffer("begins", _START)),
        body=(Loop(inner.value, integer(0), integer(points), body),),
    )


def _within(statements: Statements, private: set[int], local: dict[Value, Value]) -> Statements:
    """Statements that store to private memory as a panel counts its turns."""
    made: list[Statement] = []
    for s in statements:
        if isinstance(s, Store) and s.buffer in private:
            made.append(replace(s, index=substitute_value(s.index, local)))
        else:
            made.append(with_body(s, _within(s.body, private, local)) if s.body else s)
    return tuple(made)


def _places(kernel: Kernel) -> Iterator[tuple[int, Value]]:
    """The buffers a kernel touches, with the index of each access."""
    for x in leaves_in(kernel.body):
        if x.op == "load":
            yield x.data, x.args[0]
    for s in every(kernel.body):
        if isinstance(s, Store):
            yield s.buffer, s.index
