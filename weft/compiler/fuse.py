"""Decide what runs together: recorded calls become groups, each one loop nest over one space.

A group is a set of rows of `inner` elements each (or, without a reduction, just elements). Its
members compute either every element of the space (*full*) or one value for each row (*row*: a
reduction over the row, or what is made of such). A call joins the group of its operands when it
reads them at its own point, or its own row, and when nothing in between would have to wait. Views
belong to no group: whoever reads one reads through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod

from weft.compiler.complex_values import loaded
from weft.compiler.folds import folded
from weft.compiler.groups import Group, Read
from weft.compiler.index import Index, axis, flat
from weft.compiler.loops import Value, integer
from weft.compiler.point import (
    Point,
    Pull,
    is_stack,
    joined_axis,
    kind_of,
    reduced_axes,
    reduced_size,
    weight,
)
from weft.compiler.positions import are_late, is_checked
from weft.compiler.updates import Changes, put_into_copies
from weft.core.common import dtypes
from weft.core.common.types import Shape
from weft.core.graph.node import OutputRefs, Ref
from weft.ops.families import ElementwiseOperation

MOST_WORK = 600  # instructions for one element beyond which a kernel is not made larger
DOT_WORK = 24  # instructions that the sums of a matrix product leave registers for
CHEAP = 6  # instructions that are rather computed again than written and read,
FREE = 24  # and those that read no memory: masks of positions
MASKED_ROW = 512  # elements of a row that is worth asking where a mask hides it
SPREAD = 16  # times that each number of an operand is used, which is then near whenever it is read
PACKED = ("host", "order", "fourier")  # calls that read whole operands from memory, row by row
_LOOPS = ("map", "reduce")
PRODUCTS = frozenset({"dot", "conv"})  # kernels of sums of products, which take an epilogue


class Fusion:
    """The groups of a graph, in an order in which they can run.

    Where nothing `merges` copies with what they are of, updates are computed at every element.
    `kinds` says how calls are compiled, where `kind_of` does not.
    """

    def __init__(
        self,
        nodes: Sequence[OutputRefs],
        kept: Iterable[Ref],
        merges: bool = True,
        kinds: Mapping[OutputRefs, str] | None = None,
    ) -> None:
        self.kept = {node for node, _ in kept}
        self.kinds = dict(kinds or {node: kind_of(node) for node in nodes})
        for node in reversed(nodes):
            if self.kinds[node] in PACKED:
                self.kept.update(source for source, _ in node.inputs if source in self.kinds)
        self._points: dict[Shape, tuple[Point, Index]] = {}
        self._direct: dict[tuple[Shape, Shape], tuple[Point, int]] = {}
        self.kinds.update(dict.fromkeys(folded(nodes, self.kinds, self.kept), "view"))
        few = put_into_copies(nodes, self.kinds, self.kept) if merges else ()
        self.kinds.update(dict.fromkeys(few, "scatter"))
        self._checked = {node for node in nodes if is_checked(node)}
        self._changes = Changes(nodes, self.kinds, self.roots)
        self.order = {node: position for position, node in enumerate(nodes)}
        self.group: dict[OutputRefs, Group] = {}
        self.reads: dict[OutputRefs, tuple[Read, ...]] = {}
        self.inline: set[OutputRefs] = set()
        self.hiding: set[OutputRefs] = set()  # stored masks whose condition their readers look at
        self.unread: set[OutputRefs] = set()  # those of which nobody reads what they hide
        self.groups: list[Group] = []
        self._effects: list[Group] = []  # which stay in their order
        for node in nodes:
            self._place(node)
        self._choose_inline(nodes)
        self._take_parts(nodes)
        self._pulled = {group: self._pulled_by(group) for group in self.groups}
        self._wanted = self._find_wanted()
        self.groups = self._sorted()

    # -- placing one call ------------------------------------------------------------------

    def _place(self, node: OutputRefs) -> None:
        kind = self.kinds[node]
        if kind == "view":
            if node in self.kept:
                self.kinds[node] = kind = "map"
            else:
                return
        self.reads[node] = reads = self._reads_of(node)
        group = self._join(node, reads) if kind in _LOOPS else None
        if group is None:
            group = self._open(node, kind)
        self._add(group, node, reads)
        if kind in _LOOPS:
            self._unite(group, reads)
        if not node.op.pure:
            group.needs.update(self._effects[-1:])
            self._effects.append(group)

    def _open(self, node: OutputRefs, kind: str) -> Group:
        group = Group("loops" if kind in _LOOPS else kind, self.space_of(node))
        group.position = len(self.groups)
        self.groups.append(group)
        return group

    def _add(self, group: Group, node: OutputRefs, reads: tuple[Read, ...]) -> None:
        group.members.append(node)
        group.work += weight(node) if self.kinds[node] == "map" else 4
        if self.kinds[node] == "reduce":
            group.rows.add(node)
            axes = reduced_axes(node)
            rank = len(self.space_of(node))  # which may be less than the group's: axes of size 1
            trailing = axes == tuple(range(rank - len(axes), rank))
            if group.inner == 0:
                group.inner = reduced_size(node)
                group.columns = () if trailing else axes
        elif (group.inner and prod(self.space_of(node)) != group.size) or (
            group.columns and group.rows.intersection(r.node for r in reads)
        ):
            group.rows.add(node)
        self.group[node] = group
        group.needs |= {self.group[r.node] for r in reads if r.node in self.group} - {group}

    def space_of(self, node: OutputRefs) -> Shape:
        """The shape of the loops a call runs over."""
        if self.kinds[node] == "reduce":
            source, slot = node.inputs[0]
            return source.types[slot].shape
        return node.types[0].shape if node.types else ()

    def _reads_of(self, node: OutputRefs) -> tuple[Read, ...]:
        """What a call reads, through views, and whether it reads in order."""
        if self.kinds[node] not in _LOOPS:
            return tuple(Read(ref, (), 0) for ref in self.roots(node.inputs))
        space = self.space_of(node)
        point, here = self._point_of(space)
        found: dict[tuple[Ref, Point], Read] = {}

        def source(ref: Ref, index: Point) -> Value | None:
            if self.kinds.get(ref[0]) == "view":
                return None
            found[ref, index] = Read(ref, index, in_order(ref, index, here, prod(space)))
            kind = ref[0].types[ref[1]]
            return loaded(self.order.get(ref[0], -1), flat(index, kind.shape), kind.dtype)

        pull = Pull(source)
        if self.kinds[node] != "reduce" and not isinstance(node.op, ElementwiseOperation):
            pull.compute(node, point)
            return tuple(found.values())
        # What it computes of them does not matter here.
        for ref in node.inputs[:1] if self.kinds[node] == "reduce" else node.inputs:
            if self.kinds.get(ref[0]) == "view":
                pull.at(ref, point)
            else:
                read = self._read_directly(ref, space)
                found[ref, read.point] = read
        return tuple(found.values())

    def _point_of(self, space: Shape) -> tuple[Point, Index]:
        """A point of a space, and its row-major position."""
        known = self._points.get(space)
        if known is None:
            point = tuple(axis(f"p{k}", size) for k, size in enumerate(space))
            known = self._points[space] = point, flat(point, space)
        return known

    def _read_directly(self, ref: Ref, space: Shape) -> Read:
        """A result, not a view, read at a point of `space`: it depends on the shapes alone."""
        shape = ref[0].types[ref[1]].shape
        known = self._direct.get((shape, space))
        if known is None:
            point, here = self._point_of(space)
            seen: list[Read] = []

            def source(ref: Ref, index: Point) -> Value:
                seen.append(Read(ref, index, in_order(ref, index, here, prod(space))))
                return integer(0)

            Pull(source).at(ref, point)
            known = self._direct[shape, space] = seen[0].point, seen[0].step
        return Read(ref, *known)

    def roots(self, refs: Iterable[Ref]) -> list[Ref]:
        """The results behind views that these refer to."""
        found: dict[Ref, None] = {}
        stack = list(refs)
        while stack:
            ref = stack.pop()
            if self.kinds.get(ref[0]) == "view":
                stack.extend(ref[0].inputs)
            else:
                found[ref] = None
        return list(found)

    # -- joining ---------------------------------------------------------------------------

    def _join(self, node: OutputRefs, reads: tuple[Read, ...]) -> Group | None:
        """The latest group of the operands that the call fits, if there is one."""
        near = {self.group[r.node] for r in reads if r.node in self.group}
        for group in sorted(near, key=lambda g: -g.position):
            takes = group.kind == "loops" or group.kind in PRODUCTS
            fits = takes and self._fits(node, reads, group) and not self._meets(reads, group)
            fits = fits and not self._checks_late([*group.members, node])
            if fits and not depend(near - {group}, {group}):
                return group
        return None

    def _checks_late(self, members: list[OutputRefs]) -> bool:
        """Whether one kernel of these calls would have to check positions that it makes itself."""
        members.sort(key=self.order.__getitem__)
        return are_late(members, self._checked, self.kinds, self.roots)

    def _meets(self, reads: Sequence[Read], group: Group) -> bool:
        """Whether a call and a group would read something before and after it is changed."""
        if not self._changes:
            return False
        every = [*reads, *(r for member in group.members for r in self.reads[member])]
        return self._changes.meet([r.ref for r in every])

    def _fits(self, node: OutputRefs, reads: tuple[Read, ...], group: Group) -> bool:
        if group.work > MOST_WORK:
            return False
        size = prod(self.space_of(node))
        mine = [r for r in reads if self.group.get(r.node) is group]
        if group.kind in PRODUCTS:
            plain = self.kinds[node] == "map" and size == group.size
            light = plain and group.work + weight(node) <= DOT_WORK
            is_complex = dtypes.is_complex(group.members[0].types[0].dtype)
            return light and not is_complex and all(r.step == 1 for r in mine)
        if self.kinds[node] == "reduce":
            return self._fits_reduction(node, mine, group, size)
        if size == group.size and not (group.columns and any(r.node in group.rows for r in mine)):
            return self._reads_full(mine, group, group.inner)
        if group.inner and size * group.inner == group.size:
            return all(r.node in group.rows and r.step == 1 for r in mine)
        return False

    def _fits_reduction(self, node: OutputRefs, mine: list[Read], group: Group, size: int) -> bool:
        space, axes = self.space_of(node), reduced_axes(node)
        trailing = axes == tuple(range(len(space) - len(axes), len(space)))
        inner = reduced_size(node)
        if size != group.size or not trailing or group.columns:
            return False
        return group.inner in (0, inner) and self._reads_full(mine, group, inner)

    def _reads_full(self, mine: list[Read], group: Group, inner: int) -> bool:
        """Whether these reads are of the reader's own element, or of its own row's result."""
        if group.inner and group.inner != inner:
            return False
        for r in mine:
            if r.node in group.rows:
                if r.step != inner or group.is_closed(inner):
                    return False
            elif r.step != 1:
                return False
        return True

    def _unite(self, group: Group, reads: tuple[Read, ...]) -> None:
        """Take over the groups of other operands where that is possible."""
        for other in sorted(
            {self.group[r.node] for r in reads if r.node in self.group} - {group},
            key=lambda g: g.position,
        ):
            if self._can_unite(group, other):
                self._merge(group, other)

    def _can_unite(self, group: Group, other: Group) -> bool:
        if (
            group.kind in PRODUCTS
            or other.kind != "loops"
            or group.columns
            or other.columns
            or group.size != other.size
        ):
            return False
        if group.inner and other.inner and group.inner != other.inner:
            return False
        if self._meets([r for member in other.members for r in self.reads[member]], group):
            return False
        inner = group.inner or other.inner
        if group.work + other.work > MOST_WORK or (inner and group.is_closed(inner)):
            return False
        for members, theirs in ((group, other), (other, group)):
            for node in members.members:
                mine = [r for r in self.reads[node] if self.group.get(r.node) is theirs]
                ok = node not in members.rows or self.kinds[node] == "reduce"
                if mine and not (ok and self._reads_across(mine, theirs, inner)):
                    return False
        both = {group, other}
        late = self._checks_late([*group.members, *other.members])
        return not late and not depend((group.needs | other.needs) - both, both)

    @staticmethod
    def _reads_across(mine: list[Read], theirs: Group, inner: int) -> bool:
        return all(r.step == (inner if r.node in theirs.rows else 1) for r in mine)

    def _merge(self, group: Group, other: Group) -> None:
        nodes = sorted({*group.members, *other.members}, key=self.order.__getitem__)
        group.members, group.inner = nodes, group.inner or other.inner
        group.rows |= other.rows
        group.work += other.work
        group.needs = (group.needs | other.needs) - {group, other}
        if len(other.space) > len(group.space):
            group.space = other.space
        for node in other.members:
            self.group[node] = group
        for each in self.groups:
            if other in each.needs:
                each.needs = each.needs - {other} | {group}
        self.groups.remove(other)

    # -- what is written and what is computed again ----------------------------------------

    def _choose_inline(self, nodes: Sequence[OutputRefs]) -> None:
        """Cheap calls that other groups use are computed there again instead of being stored."""
        users = self._users()
        fused = [node for node in nodes if node in self.group]
        again, masks = self._again(fused)
        in_loops, _ = self._again(fused, near=True)  # a product may read its factors many times
        for node in reversed(fused):
            outside = users.get(node, set()) - {self.group[node]}
            stays = self._is_written(node, users) or self._is_made_once(node, outside)
            cheap = in_loops if all(g.kind == "loops" for g in outside) else again
            refs = [r.ref for r in self.reads[node]]
            stays |= node in self.kept or any(g.kind == "host" for g in outside)
            inline = node in cheap and not (stays or self._changes.has_part(node, refs))
            in_dots = any(g.kind == "dot" for g in outside)  # which read what tiles hide, too
            hides = node in masks and (in_dots or not inline) and all(map(self.looks, outside))
            if outside and hides and self._ends_group(node, users):
                self.hiding.add(node)
                if not in_dots and node not in self.kept:
                    self.unread.add(node)
                refs.remove(node.inputs[1])
            elif outside and inline:
                self.inline.add(node)
            else:
                continue
            for source, _ in refs:
                users.setdefault(source, set()).update(outside)

    def _users(self) -> dict[OutputRefs, set[Group]]:
        """The groups that read each call."""
        users: dict[OutputRefs, set[Group]] = {}
        for node, r in ((node, r) for node, reads in self.reads.items() for r in reads):
            users.setdefault(r.node, set()).add(self.group[node])
        return users

    def _take_parts(self, nodes: Sequence[OutputRefs]) -> None:
        """What a row is put together of is computed there, if nobody else needs it."""
        own = [n for n in nodes if n in self.group and n not in self.inline]
        rows = [n for n in own if is_stack(n) or self._has_pieces(n)]
        users = self._users() if rows else {}
        whole: set[Group] = set()  # groups that have to be computed piece by piece
        for node in rows:
            home, again = self.group[node], self._read_again(node)
            parts = {self.group[r.node] for r in self.reads[node] if r.node in self.group} - whole
            for part in sorted(parts, key=lambda g: g.position):
                if again.isdisjoint(part.members) and self._can_take(home, part, users):
                    self.inline.update(part.members)
                    home.work += part.work
                    whole |= set() if is_stack(node) else {home}

    def _has_pieces(self, node: OutputRefs) -> bool:
        """Whether the loops of a call are those over the pieces that it joins."""
        return joined_axis(node) is not None and self.group[node].space == node.types[0].shape

    def _read_again(self, stack: OutputRefs) -> set[OutputRefs]:
        """The calls that a row reads more elements of than there are: some would be done again."""
        counts: dict[Ref, int] = {}
        for source, slot in stack.inputs:
            for ref in self.roots([(source, slot)]):
                counts[ref] = counts.get(ref, 0) + source.types[slot].size
        return {node for (node, slot), n in counts.items() if n > node.types[slot].size}

    def _can_take(self, home: Group, part: Group, users: dict[OutputRefs, set[Group]]) -> bool:
        if part is home or any(g.kind != "loops" or g.inner for g in (home, part)):
            return False
        alone = all(users.get(node, set()) <= {home, part} for node in part.members)
        light = home.work + part.work <= MOST_WORK
        return alone and light and self.kept.isdisjoint(part.members)

    def _ends_group(self, node: OutputRefs, users: dict[OutputRefs, set[Group]]) -> bool:
        """Whether what a mask shows is computed with it, and nobody else needs that.

        In the place of what it hides there is one number.
        """
        _, (shown, slot), hidden = node.inputs
        group = self.group[node]
        return (
            all(source.types[k].size == 1 for source, k in self.roots([hidden]))
            and self.group.get(shown) is group
            and users.get(shown) == {group}
            and shown.types[slot].shape == node.types[0].shape
            and not self.kept.intersection(r.node for r in self.reads[node])
        )

    def _is_written(self, node: OutputRefs, users: dict[OutputRefs, set[Group]]) -> bool:
        """Whether a call ends a product, not wider, or has narrower floats, best for products."""
        group = self.group[node]
        within = [r for r in self.reads[node] if self.group.get(r.node) is group]
        needed = any(users[r.node] != {group} or r.node in self.kept for r in within)
        kinds = [(r.node.types[r.ref[1]], kind) for r in within for kind in node.types]
        if any(x.nbytes > y.nbytes and dtypes.is_narrow(y.dtype) for x, y in kinds):
            return not needed or any(g.kind == "dot" for g in users.get(node, set()) - {group})
        widened = any(x.nbytes < y.nbytes and dtypes.is_narrow(x.dtype) for x, y in kinds)
        return not needed and group.kind == "dot" and not widened

    def _is_made_once(self, node: OutputRefs, outside: set[Group]) -> bool:
        """Whether a call makes something of a row's result that others read for many elements."""
        if node not in self.group[node].rows:
            return False
        return all(group.size >= SPREAD * node.types[0].size for group in outside)

    def _again(
        self, nodes: Sequence[OutputRefs], near: bool = False
    ) -> tuple[dict[OutputRefs, int], set[OutputRefs]]:
        """What computing a call again would take, with all that goes into it: instructions.

        It reads one operand at most; but with `near`, also others that caches keep. Second are
        calls that hide elements by their positions.
        """
        found: dict[OutputRefs, int] = {}
        masks: set[OutputRefs] = set()
        large: dict[OutputRefs, set[Ref]] = {}
        for node in nodes:
            if self.kinds[node] != "map" or node not in self.group:
                continue
            cost, loads = weight(node), set[Ref]()
            for r in self.reads[node]:
                if r.node in found:
                    # A mask of positions costs nothing: a product looks at it tile by tile.
                    is_real = not dtypes.is_complex(node.types[0].dtype)
                    is_mask = is_real and node.op.name == "where" and not large[r.node]
                    cost += 0 if is_mask else found[r.node]
                    masks |= {node} if is_mask and r.node.types[0].dtype == bool else set()
                    loads |= large[r.node]
                elif r.node.types[r.ref[1]].size > 1:
                    loads.add(r.ref)
            often = node.types[0].size // SPREAD  # so that each number is near when it is read
            far = [(n, slot) for n, slot in loads if not near or n.types[slot].size > often]
            if cost <= (CHEAP if loads else FREE) and len(far) <= 1:
                found[node], large[node] = cost, loads
        return found, masks

    def stored(self, group: Group) -> list[OutputRefs]:
        """Members whose results other groups or the caller need in memory."""
        return [node for node in group.members if node in self._wanted]

    def _find_wanted(self) -> set[OutputRefs]:
        wanted = set(self.kept)
        for group in self.groups:
            for node in (*group.members, *self.pulled(group)):
                wanted |= {
                    r.node
                    for r in self._seen(group, node)
                    if self.group.get(r.node) is not group and r.node not in self.inline
                }
        return wanted

    def pulled(self, group: Group) -> tuple[OutputRefs, ...]:
        """Calls of other groups that this one computes for itself."""
        return self._pulled[group]

    def _pulled_by(self, group: Group) -> tuple[OutputRefs, ...]:
        found: dict[OutputRefs, None] = {}
        stack = list(group.members)
        while stack:
            for r in self._seen(group, stack.pop()):
                elsewhere = r.node in self.inline and self.group[r.node] is not group
                if elsewhere and r.node not in found:
                    found[r.node] = None
                    stack.append(r.node)
        return tuple(found)

    def _seen(self, group: Group, node: OutputRefs) -> Sequence[Read]:
        """What a call reads, with the conditions of masks that its kernel looks at."""
        found = list(self.reads[node])
        for r in self.reads[node] if self.looks(group) else ():
            seen = self.roots(self.looked_at(group, r.node))
            found += [m for m in self.reads.get(r.node, ()) if m.ref in seen]
        return found

    def looked_at(self, group: Group, node: OutputRefs) -> tuple[Ref, ...]:
        """What a kernel sees of a stored mask beside its elements: all but what it shows."""
        if not self.looks(group) or node not in self.hiding or self.group[node] is group:
            return ()
        return tuple(ref for ref in node.inputs if ref != node.inputs[1])

    def looks(self, group: Group) -> bool:
        """Whether a kernel may gain by the mask that an element was stored under."""
        return group.kind == "dot" or (group.inner >= MASKED_ROW and not group.columns)

    def _sorted(self) -> list[Group]:
        """Groups that compute something needed, operands first."""
        needs = {
            g: {
                self.group[r.node]
                for n in (*g.members, *self.pulled(g))
                for r in self.reads[n]
                if r.node in self.group
            }
            - {g}
            for g in self.groups
        }
        for earlier, later in pairwise(self._effects):
            needs[later].add(earlier)
        self._read_first(needs)
        made: list[Group] = []
        state: dict[Group, bool] = {}
        for root in sorted(self.groups, key=lambda g: self.order[g.members[-1]]):
            stack = [(root, False)]
            while stack:
                group, ready = stack.pop()
                if ready:
                    made.append(group)
                elif group not in state:
                    state[group] = True
                    stack.append((group, True))
                    stack.extend(
                        (g, False) for g in sorted(needs[group], key=lambda g: -g.position)
                    )
        self.groups = made
        return [g for g in made if g.kind != "loops" or self.stored(g)]

    def _read_first(self, needs: dict[Group, set[Group]]) -> None:
        """Let groups that read what another one changes come before it, where they can."""
        for node, refs in self._changes.operands.items():
            change = self.group[node]
            for group in self.groups:
                every = (*group.members, *self.pulled(group))
                reads = any(r.ref in refs for n in every for r in self.reads[n])
                if reads and group is not change and not depend({group}, {change}, needs):
                    needs[change].add(group)


def in_order(ref: Ref, index: Point, here: Index, size: int) -> int:
    """How many elements of the reader's space go with each element read; 0 if out of order."""
    shape = ref[0].types[ref[1]].shape
    count = prod(shape)
    if not count or size % count:
        return 0
    step = size // count
    return step if flat(index, shape) == here // step else 0


def depend(
    groups: set[Group], on: set[Group], needs: Mapping[Group, set[Group]] | None = None
) -> bool:
    """Whether any of some groups needs one of others, directly or through more of them."""
    seen = set(groups)
    stack = list(groups)
    while stack:
        group = stack.pop()
        fresh = (group.needs if needs is None else needs[group]) - seen
        if not fresh.isdisjoint(on):
            return True
        seen |= fresh
        stack.extend(fresh)
    return False
