"""Run chains of kernels panel by panel: a large result lives only for the rows at hand.

A chain is a product of matrices whose result is large, what is computed of it row by row, and
products that take it as their left factor. All of them have the same rows, so they can run one
after another on a panel of rows, and then on the next one. Kernels stay what they are: they are
given the tasks of a panel, and pointers to scratch memory where its rows would be. Products that
sum over these rows join too: their sums wait in memory until the next panel, so then the panels of
a batch run in order, on one worker. No bit changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd, lcm, prod

import numpy as np

from weft.compiler import memory
from weft.compiler.entries import Entry, Rows, Share, kind_of, lead_of
from weft.compiler.fuse import Fusion
from weft.compiler.kernels import evaluate
from weft.compiler.loops import PIECE, Loop, Store, every, values_in
from weft.compiler.passes.contract_blocks import Block
from weft.compiler.polynomial import polynomial, without
from weft.compiler.steps import Call, Memory, Panels, Private, Step
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs, Ref
from weft.runtime.cpu.pool import pool

WORTH = 1 << 20  # bytes of results that need not be held whole for panels to pay
LARGE = 1 << 25  # bytes from which few panels are better than none
VAST = 32  # times a product is larger than its factors for which cores may be idle
FEW = 2  # panels of each core that leave some of them idle
SMALL = 1 << 10  # bytes of keys
HIGH = 128  # rows of a panel, if tiles can be cut otherwise
BLOCKS = range(6, 17)  # rows of blocks that tiles may be cut into for the sake of panels
LOW = 64  # the same if products pack nothing but these rows
FLAT = 32  # the same of tiles that end where a mask does, in panels
LONG = 4  # times as long as a panel is high: such rows have little hidden in a tile
_BYTE = np.dtype(np.uint8)


@dataclass
class _Chain:
    """Entries that run panel by panel, and those that must run before or after them."""

    rows: Rows
    members: list[Entry] = field(default_factory=list)
    sums: list[Entry] = field(default_factory=list)  # members that sum over the rows
    before: list[Entry] = field(default_factory=list)
    after: list[Entry] = field(default_factory=list)
    made: set[OutputRefs] = field(default_factory=set)  # by members
    late: set[OutputRefs] = field(default_factory=set)  # by what runs after them

    def take(self, entry: Entry) -> None:
        """Put the next entry where it belongs."""
        results = set(entry.group.members)
        if self._is_sum(entry):
            self.members.append(entry)
            self.sums.append(entry)
            self.late |= results
            return
        waits = bool(entry.reads & self.late or entry.other & self.made)
        wanted = bool(entry.local & self.made) or _is_large_product(entry) or _is_drawn(entry)
        if not waits and wanted and _may_share(entry, self.rows):
            self.members.append(entry)
            self.made |= results
        elif waits or entry.local & self.made:
            self.after.append(entry)
            self.late |= results
        else:
            self.before.append(entry)

    def _is_sum(self, entry: Entry) -> bool:
        """Whether an entry is a product that sums over the rows, of which members make factors.

        Panels of a batch then follow each other.
        """
        if entry.group.kind != "dot" or not entry.summed & self.made or entry.reads & self.late:
            return False
        if self.rows.batches < pool.cores and not self._is_vast():
            return False  # cores would be idle
        node = entry.group.members[0]
        *lead, depth, _ = kind_of(node.inputs[1]).shape
        fits = depth == self.rows.rows and prod(lead) == prod(lead_of(node)[:-1])
        if not fits or prod(lead) != self.rows.batches or (entry.reads - entry.summed) & self.made:
            return False
        call = entry.cut(min(depth, PIECE), 0)
        return call is not None and _batches(call) == self.rows.batches

    def _is_vast(self) -> bool:
        """Whether the first product is so much larger than its factors that it must not be held."""
        node = self.members[0].group.members[0]
        return node.types[0].nbytes >= VAST * max(kind_of(ref).nbytes for ref in node.inputs)


def with_panels(
    fusion: Fusion, entries: Sequence[Entry], places: dict[Ref, Memory]
) -> Iterator[Step]:
    """The steps of all entries, chains of them panel by panel; each as soon as it is certain."""
    left = _drawn_late(entries)
    while left:
        first, *rest = left
        found = panels = None
        is_read = any(entry.reads.intersection(first.group.members) for entry in rest)
        if is_read and _is_large_product(first):
            found = _chain(fusion, first, rest)
            panels = None if found is None else _panels(fusion, found, left, places)
        if found is None or panels is None:
            yield from first.steps
            left = rest
            continue
        for entry in found.before:
            yield from entry.steps
        yield panels
        left = found.after


def _drawn_late(entries: Sequence[Entry]) -> list[Entry]:
    """Entries with those that draw random numbers next to the first that read them."""
    made: list[Entry] = []
    waiting: list[Entry] = []
    for entry in entries:
        if _is_drawn(entry):
            waiting.append(entry)
            continue
        for each in [e for e in waiting if entry.reads.intersection(e.group.members)]:
            waiting.remove(each)
            made.append(each)
        made.append(entry)
    return made + waiting


def _is_drawn(entry: Entry) -> bool:
    """Whether an entry draws many random numbers, for which it reads next to nothing."""
    nodes = entry.group.members
    return (
        entry.group.kind == "loops"
        and any(node.name == "random_bits" for node in nodes)
        and sum(node.types[0].nbytes for node in nodes) >= WORTH
        and sum(kind.nbytes for node in entry.reads for kind in node.types) <= SMALL
    )


def _is_large_product(entry: Entry) -> bool:
    """Whether a product is larger than its factors, and too large for a cache.

    Its right factor may be any if it is packed already: then each panel only reads it.
    """
    if entry.group.kind != "dot":
        return False
    node = entry.group.members[0]
    nbytes = node.types[0].nbytes
    left, right = (kind_of(ref).nbytes < nbytes for ref in node.inputs)
    return nbytes >= WORTH and left and (right or _is_kept(entry))


def _is_kept(entry: Entry) -> bool:
    """Whether the right factor of a product was packed once for all runs."""
    call = entry.alone[0]
    return _is_packed(entry) and isinstance(call, Call) and call.memory[-1].role == "kept"


def _is_packed(entry: Entry) -> bool:
    """Whether a factor of a product is packed before its panels run."""
    call = entry.alone[0]
    if not isinstance(call, Call):
        return False
    compiled = call.request.compiled
    return compiled.functions < len(compiled.kernels)


def _chain(fusion: Fusion, first: Entry, rest: Sequence[Entry]) -> _Chain | None:
    """The chain that begins with a product: entries are taken until all it makes is used up."""
    found = _tiled(first)
    if found is None:
        return None
    chain = _Chain(Rows(found.batches, found.rows))
    chain.take(first)
    if not chain.members:
        return None
    readers: dict[OutputRefs, int] = {}
    for entry in rest:
        for node in entry.reads:
            readers[node] = readers.get(node, 0) + 1
    open_ = set(fusion.stored(first.group))
    for place, entry in enumerate(rest):
        if entry.group.kind == "host" or not any(readers.get(node) for node in open_):
            chain.after += rest[place:]
            break
        chain.take(entry)
        for node in entry.reads:
            readers[node] -= 1
        if chain.members[-1] is entry:
            open_ |= set(fusion.stored(entry.group))
    _set_free(chain, rest)
    return chain


def _set_free(chain: _Chain, rest: Sequence[Entry]) -> None:
    """Put large products that no member needs after the chain: they begin one of their own."""
    first, *others = chain.members
    size = first.group.members[0].types[0].size
    free: list[Entry] = []
    for entry in others:
        follows = any(entry.reads.intersection(each.group.members) for each in free)
        if _is_large_product(entry) or follows:
            free.append(entry)
    while True:
        bound = [e for e in chain.members if e not in free]
        needed = {node for entry in bound for node in entry.reads}
        whole = {n for e in bound for n in e.group.members if n.types[0].size == size}
        kept = [e for e in free if not (needed.intersection(e.group.members) or e.reads & whole)]
        if len(kept) == len(free):
            break
        free = kept
    late = {*chain.after, *free}
    chain.members, chain.after = bound, [entry for entry in rest if entry in late]
    chain.sums = [entry for entry in chain.sums if entry in bound]
    _set_early(chain)


def _set_early(chain: _Chain) -> None:
    """Put each sum next to what makes its terms: others may then write over them."""
    waiting, made, here = list(chain.sums), list[Entry](), set[OutputRefs]()
    for entry in (e for e in chain.members if e not in chain.sums):
        made.append(entry)
        here.update(entry.group.members)
        ready = [e for e in waiting if e.reads & chain.made <= here]
        made += ready
        waiting = [e for e in waiting if e not in ready]
    chain.members = made + waiting


def _panels(
    fusion: Fusion, chain: _Chain, entries: Sequence[Entry], places: dict[Ref, Memory]
) -> Panels | None:
    """The step that runs a chain, if that saves memory."""
    own = set(chain.members)
    outside = {node for entry in entries if entry not in own for node in entry.reads}
    inner = [
        places[node, 0]
        for entry in chain.members
        if entry not in chain.sums
        for node in fusion.stored(entry.group)
        if node not in outside and node not in fusion.kept
    ]
    inner = [m for m in inner if m.role == "temporary" and m.kind.size % chain.rows.count == 0]
    saved = sum(m.nbytes for m in inner)
    if saved < WORTH or len(chain.members) < 2:
        return None
    chain.members = [_by_rows(e, chain.rows) for e in chain.members]
    members = _as_tall_as_each_other(chain)
    shares = [share for e in members if e not in chain.sums and (share := _share(e, chain.rows))]
    if len(shares) + len(chain.sums) < len(members):
        return None  # tiles that cannot end where batches do
    height = min(lcm(*(share.rows for share in shares)), chain.rows.rows)
    members = [_with_flat_tiles(e, chain, height) for e in members]
    if chain.sums and chain.rows.rows > PIECE and height % PIECE:
        return None  # sums of pieces would be cut elsewhere than they must be
    count = chain.rows.batches * -(-chain.rows.rows // height)
    found = [pair for e in members if (pair := _call_and_share(e, chain, height))]
    calls = tuple(call for call, _ in found)
    if count == 1 or len(found) < len(members):
        return None
    row_bytes = {m: m.nbytes // chain.rows.count for m in inner}
    offsets, nbytes = _laid_out(calls, {m: n * height for m, n in row_bytes.items()})
    workers = min(pool.cores, chain.rows.batches if chain.sums else count)
    if saved < 2 * nbytes * workers or (saved < LARGE and count < FEW * pool.cores):
        return None
    for each in inner:
        each.role = "panel"
    return Panels(
        calls,
        tuple((share.tasks, share.tasks_of(height)) for _, share in found),
        tuple(Private(m, offsets[m], row_bytes[m]) for m in inner),
        Memory(TensorType((nbytes * workers,), _BYTE)),
        workers,
        chain.rows.batches,
        chain.rows.rows,
        height,
        bool(chain.sums),
    )


def _as_tall_as_each_other(chain: _Chain) -> list[Entry]:
    """The members of a chain, with products cut again so that all tiles have one height."""
    products = [e for e in chain.members if e.group.kind == "dot" and e not in chain.sums]
    tiles = {e: found for e in products if (found := _tiled(e))}
    packed = all(map(_is_packed, products))
    tall = _height(chain, list(tiles.values()), packed)
    made: list[Entry] = []
    for entry in chain.members:
        again = entry
        if tall and entry in tiles and tiles[entry].height != tall:
            call = entry.cut(0, tall)
            again = entry if call is None else entry.with_steps((call,))
        made.append(again if again is entry or _share(again, chain.rows) else entry)
    return made


def _with_flat_tiles(entry: Entry, chain: _Chain, height: int) -> Entry:
    """A product whose rows a mask ends early in tiles of few rows, which end as early as they do.

    Of long rows it is little that is left out so.
    """
    tiles = _tiled(entry) if entry.group.kind == "dot" and entry not in chain.sums else None
    if tiles is None or tiles.height != height or chain.rows.rows > LONG * height:
        return entry
    call = entry.alone[0]
    if not (isinstance(call, Call) and call.request.compiled.kernels[0].notes.get("fades")):
        return entry
    for tall in range(FLAT, height):
        if height % tall == 0 and _has_blocks(tall):
            flat = entry.cut(0, tall)
            again = entry if flat is None else entry.with_steps((flat,))
            share = _share(again, chain.rows)
            return again if share and share.rows == tall else entry
    return entry


def _height(chain: _Chain, tiles: Sequence[_Tiled], packed: bool) -> int:
    """The rows of all tiles of a chain, made up of whole blocks if they can be.

    They are also made up of whole tasks of the other members, and end where batches end; blocks can
    have other rows for that. Tiles whose factors are `packed` before may be as flat as is wanted.
    """
    rows = chain.rows.rows
    if chain.sums and rows > PIECE:
        return PIECE
    shares = (_share(e, chain.rows) for e in chain.members if e.group.kind != "dot")
    each = lcm(*(share.rows for share in shares if share))
    ends = gcd(*(_common(t, chain.rows) for t in tiles if t.batches != chain.rows.batches))
    step = lcm(*(t.step for t in tiles))
    most = LOW if packed else min([HIGH, *(t.height for t in tiles)])
    usual = most // step * step
    wanted: list[int] = [*range(usual, 0, -step), *range(most, 0, -1)]
    for tall in wanted:
        if ends % tall == 0 and (tall % each == 0 or tall >= rows) and _has_blocks(tall):
            return tall
    return usual


def _has_blocks(tall: int) -> bool:
    """Whether tiles of so many rows can be made up of blocks that are not too flat."""
    return any(tall % rows == 0 for rows in BLOCKS)


def _laid_out(calls: Sequence[Call], sizes: dict[Memory, int]) -> tuple[dict[Memory, int], int]:
    """Where private memory lies in a worker's scratch memory, and how much that takes."""
    numbers = {place: number for number, place in enumerate(sizes)}
    steps = [
        memory.Step(
            (),
            tuple(numbers[m] for m in dict.fromkeys(call.memory) if m in numbers),
            tuple((numbers[a], numbers[b]) for a, b in call.in_place if {a, b} <= numbers.keys()),
        )
        for call in calls
    ]
    found = memory.plan(steps, {numbers[m]: size for m, size in sizes.items()})
    return {m: found.offsets[number] for m, number in numbers.items()}, found.arena_bytes


# -- which tasks of a kernel compute which rows ------------------------------------------------


def _call_and_share(entry: Entry, chain: _Chain, height: int) -> tuple[Call, Share] | None:
    """A member's call, and how its tasks go with the rows of a panel; None for a sum cut elsewhere.

    Sums for all sizes are cut at whole pieces alone.
    """
    if entry not in chain.sums:
        (call,), share = entry.alone, _share(entry, chain.rows)
        assert isinstance(call, Call) and share is not None
        return call, share
    pieces = _part_of(height, chain.rows.rows)
    made = entry.cut(pieces, 0)
    if made is None:
        return None
    tasks = made.request.tasks(0) // chain.rows.batches
    return made, Share(tasks, pieces, tasks // -(-chain.rows.rows // pieces))


def _part_of(height: int, rows: int) -> int:
    """How many rows of a panel are summed in one go: as many as may be."""
    if height == rows:
        return min(rows, PIECE)
    return max(n for n in range(1, PIECE + 1) if height % n == 0)


def _batches(call: Call) -> int:
    """The batches of a product as its kernel has them."""
    request = call.request
    return evaluate(request.compiled.kernels[0].notes["batches"], request.parameters)


def _share(entry: Entry, rows: Rows) -> Share | None:
    """How the tasks of an entry's kernel go with rows; None if they do not."""
    if rows not in entry.shares:
        entry.shares[rows] = _share_of(entry, rows)
    return entry.shares[rows]


def _share_of(entry: Entry, rows: Rows) -> Share | None:
    if len(entry.alone) != 1:
        return None
    (call,) = entry.alone
    if not isinstance(call, Call) or call.request.compiled.functions != 1:
        return None
    if entry.group.kind == "dot":
        return _share_of_product(entry, rows)
    tasks = call.request.tasks(0)
    if entry.group.kind != "loops" or entry.group.columns or tasks % rows.batches:
        return None
    return _in_order(call, tasks, rows)


@dataclass(frozen=True)
class _Tiled:
    """How a product is cut: `wide` tasks for each tile of some rows, in each of its batches.

    The height of tiles is a multiple of `step`.
    """

    batches: int
    rows: int
    height: int
    wide: int
    step: int


def _tiled(entry: Entry) -> _Tiled | None:
    """How the kernel of a product is cut; it may have fewer batches than the call, of more rows."""
    call = entry.alone[0]
    if len(entry.alone) != 1 or not isinstance(call, Call):
        return None
    notes, parameters = call.request.compiled.kernels[0].notes, call.request.parameters
    if notes.get("rows") is None:
        return None
    block: Block = notes["contract"]
    rows = evaluate(notes["rows"], parameters)
    count = prod(lead_of(entry.group.members[0]))
    if not rows or count % rows:
        return None
    batches, tiles = count // rows, -(-rows // block.tile_rows)
    wide, rest = divmod(call.request.tasks(0), batches * tiles)
    return None if rest else _Tiled(batches, rows, block.tile_rows, wide, block.rows)


def _share_of_product(entry: Entry, rows: Rows) -> Share | None:
    found = _tiled(entry)
    if found is None or found.batches * found.rows != rows.count:
        return None
    even = rows.rows % found.height == 0 and found.rows % found.height == 0
    if found.batches != rows.batches and not even:
        return None
    tiles = -(-rows.rows // found.height)
    return Share(tiles * found.wide, found.height, found.wide)


def _by_rows(entry: Entry, rows: Rows) -> Entry:
    """An entry whose tasks go with rows, if they do once they are a row each."""
    again = None if _share(entry, rows) is not None else entry.by_rows
    return entry if again is None or _share(again, rows) is None else again


def _may_share(entry: Entry, rows: Rows) -> bool:
    """Whether the tasks of an entry's kernel go with rows, perhaps once its tiles are cut again."""
    if _share(_by_rows(entry, rows), rows) is not None:
        return True
    found = _tiled(entry) if entry.group.kind == "dot" else None
    if found is None or found.batches * found.rows != rows.count:
        return False
    return _has_blocks(_common(found, rows))


def _common(tiles: _Tiled, rows: Rows) -> int:
    """What the rows of a product's batches and those of others have in common."""
    return gcd(tiles.rows, rows.rows)


def _in_order(call: Call, tasks: int, rows: Rows) -> Share | None:
    """How the tasks go with rows if each computes as much as any other, one after another."""
    sizes = {m.kind.size for m in call.written}
    if any(size % tasks or size % rows.count for size in sizes) or not _is_in_order(call, tasks):
        return None
    in_batch = tasks // rows.batches
    if in_batch >= rows.rows:
        return Share(in_batch, 1, in_batch // rows.rows) if in_batch % rows.rows == 0 else None
    return Share(in_batch, rows.rows // in_batch, 1) if rows.rows % in_batch == 0 else None


def _is_in_order(call: Call, tasks: int) -> bool:
    """Whether task t writes from element t / tasks on of each result."""
    kernel = call.request.compiled.kernels[0]
    loop = kernel.parallel
    if loop is None or len(kernel.body) != 1:
        return False
    stores = [s for s in every(loop.body) if isinstance(s, Store)]
    first = {s.variable: 0 for s in every(loop.body) if isinstance(s, Loop)}
    probes = sorted({t for k in range(tasks.bit_length()) for t in ((1 << k) - 1, 1 << k)})
    begun = set[int]()  # buffers of which a task writes its first element
    for store in stores:
        size = call.memory[store.buffer].kind.size
        places = {*first, loop.variable}
        terms = without(polynomial(store.index), first)
        further = terms.pop((), 0)
        if tasks > 1 and terms == {(loop.variable,): size // tasks}:
            begun |= {store.buffer} if further == 0 else set()
            if 0 <= further < size // tasks:
                continue
        if not all(v.op in _KNOWN or v in places for v in values_in(store.index)):
            return False
        for task in (t for t in (*probes, tasks - 1) if t < tasks):
            at = evaluate(store.index, call.request.parameters, {**first, loop.variable: task})
            if at != task * (size // tasks):
                return False
        begun.add(store.buffer)
    return bool(stores) and begun == {store.buffer for store in stores}


_KNOWN = frozenset(["const", "parameter", "add", "sub", "mul", "floordiv", "rem", "min", "max"])
