"""Put a graph together: kernels and host calls in order, and the memory they pass results in."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from weft.compiler.alike import Alike
from weft.compiler.convolution import products_of
from weft.compiler.entries import Entry, entry_of
from weft.compiler.fourier.lower import lower_fourier
from weft.compiler.fuse import PACKED, PRODUCTS, Fusion
from weft.compiler.groups import Group
from weft.compiler.kernels import OFTEN, STORE, Compiled, Cut, Request, evaluate
from weft.compiler.loops import INDEX, Kernel
from weft.compiler.lower import Lowered, levels
from weft.compiler.merge import flat_copy
from weft.compiler.order.lower import lower_order
from weft.compiler.order.rows import Made
from weft.compiler.panels import with_panels
from weft.compiler.point import kind_of
from weft.compiler.small import is_small, is_small_scan, lower_scan, lower_small
from weft.compiler.statistics import Clock
from weft.compiler.steps import (
    Call,
    Carry,
    Choice,
    Copy,
    HostCall,
    Memory,
    Panels,
    Repeat,
    Reserve,
    ScanLoop,
    Step,
)
from weft.compiler.streams import large_results, with_streams
from weft.compiler.translate import touched
from weft.config import settings
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace
from weft.ops.communication.remote import ShareWorld
from weft.ops.control.branches import Switch
from weft.ops.control.graph_call import GraphCall
from weft.ops.control.loop_ops import Scan, WhileLoop

Environment: TypeAlias = dict[Ref, Memory]
_Lasting: TypeAlias = tuple[Compiled, tuple[int, ...], tuple[Memory, ...]]  # what packs it, of what
Lower: TypeAlias = Callable[[OutputRefs, Memory, Memory], list[Made]]
_SHARED_COPY = 1 << 20  # bytes of a copy that threads share
# A kernel, cut so, of what lasts, which of its results are streams, and how many times it runs.
_Asked: TypeAlias = tuple[int, Cut | None, frozenset[int], frozenset[int], int]


@dataclass
class Assembler:
    """Collects what a program is made of."""

    general: bool = False  # whether kernels are for all sizes from the start
    own: bool = False  # whether long products have kernels for their very sizes
    drafts: bool = False  # whether drafts of kernels are made first
    strides: dict[Ref, tuple[int, ...]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    status: Memory = field(default_factory=lambda: Memory(TensorType((2,), INDEX), "status"))
    groups: int = 0
    # Calls that pack what lasts; those of a loop first, while its body is put together.
    kept: ChainMap[_Lasting, Call] = field(default_factory=ChainMap)
    _packed: dict[_Lasting, Call] = field(default_factory=dict)  # for panels, in each run
    _times: int = 1  # that the loops around run what is put together
    _reserved: list[Step] = field(default_factory=list)
    _alike: Alike = field(default_factory=Alike)
    _asked: dict[_Asked, tuple[Request, Kernel]] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)

    def block(
        self, nodes: Sequence[OutputRefs], outputs: Sequence[Ref], memory: Environment
    ) -> tuple[Step, ...]:
        """Steps that compute `outputs`; `memory` knows inputs, and where results must go."""
        if is_small(nodes, outputs):
            made = [ref for ref in dict.fromkeys(outputs) if ref[0].op is not None]
            call = self._call(lower_small(nodes, made), nodes[-1], memory, 1, len(nodes))
            reads = [place for place in call.memory if place not in call.written]
            pairs = tuple((r, w) for w in call.written for r in reads)  # all is read before
            return (replace(call, in_place=pairs, members=tuple(nodes)),)
        with self.clock("fuse"):
            fusion = Fusion(nodes, outputs)
        entries = [self._entry(fusion, group, memory) for group in fusion.groups]
        steps: list[Step] = []
        for step in with_panels(fusion, entries, memory):
            steps.append(step)
            calls = step.calls if isinstance(step, Panels) else ()
            self._ask_for(calls)
            calls = (step,) if isinstance(step, Call) else calls
            STORE.begin([call.request for call in calls], self.clock)
        STORE.begin(self.requests, self.clock)
        reserved, self._reserved = self._reserved, []
        return (*reserved, *self._with_packs(steps))

    def _entry(self, fusion: Fusion, group: Group, memory: Environment) -> Entry:
        """A group with its steps, and how to cut a product otherwise.

        A product's own steps are made when it is known that it runs in no panel.
        """

        def make() -> tuple[Step, ...]:
            return tuple(self._steps(fusion, group, memory))

        def cut(pieces: int, tall: int) -> Call | None:
            requests = len(self.requests)
            (call,) = self._calls(fusion, group, memory, (pieces, tall))
            del self.requests[requests:]
            given = call.request.compiled.kernels[0].notes.get("pieces") == pieces
            return call if given or group.kind == "loops" else None

        entry = entry_of(fusion, group, make, cut)
        self.groups += group.kind not in PACKED
        if group.kind != "dot":
            return entry.with_steps(make())
        for node in fusion.stored(group):
            memory.setdefault((node, 0), Memory(node.types[0]))
        return entry

    def _with_packs(self, steps: Sequence[Step]) -> list[Step]:
        """The steps, and before those that run panel by panel what packs the factors they read."""
        packs = {call.written[0]: call for call in self._packed.values()}
        made: dict[Step, None] = {}
        for step in steps:
            if isinstance(step, Panels):
                places = [m for call in step.calls for m in call.memory]
                made |= {packs[m]: None for m in places if m in packs}
            made[step] = None
        return list(made)

    def _ask_for(self, calls: Sequence[Call]) -> None:
        """Have the kernels of products compiled that were cut for panels."""
        asked = set(map(id, self.requests))
        self.requests += [call.request for call in calls if id(call.request) not in asked]

    def _steps(self, fusion: Fusion, group: Group, memory: Environment) -> list[Step]:
        node = group.members[0]
        if group.kind not in PACKED:
            return list(self._calls(fusion, group, memory))
        if isinstance(node.op, ShareWorld):
            return self._shared(node, memory)
        inputs = tuple(self._operand(ref, memory) for ref in node.inputs)
        outputs = tuple(
            memory.setdefault((node, slot), Memory(kind)) for slot, kind in enumerate(node.types)
        )
        if group.kind == "order":
            return self._ready(node, inputs[0], outputs[0], lower_order)
        if group.kind == "fourier":
            return self._ready(node, inputs[0], outputs[0], lower_fourier)
        if isinstance(node.op, Scan):
            return self._scan(node, inputs, outputs)
        if isinstance(node.op, WhileLoop):
            return self._while(node, inputs, outputs)
        if isinstance(node.op, Switch):
            return self._switch(node, inputs, outputs)
        if isinstance(node.op, GraphCall):
            return self._within(node.params["trace"], inputs, outputs)
        return [HostCall(node, inputs, outputs)]

    def _shared(self, node: OutputRefs, memory: Environment) -> list[Step]:
        """A meeting, before which this process's terms were written where all members see them."""
        steps: list[Step] = []
        own: list[Memory] = []
        for ref in node.inputs:
            place = memory[ref]
            if place.role != "temporary":  # it lies elsewhere already
                copied = Memory(place.kind, "shared")
                steps.append(Copy(place, copied))
                place = copied
            place.role = "shared"
            own.append(place)
        count, position = len(node.params["members"]), node.params["position"]
        others: list[Memory] = []
        for slot, kind in enumerate(node.types):
            term, member = divmod(slot, count)
            memory[node, slot] = own[term] if member == position else Memory(kind, "shared")
            if member != position:
                others.append(memory[node, slot])
        self._reserved.append(Reserve(node, (*own, *others)))
        return [*steps, HostCall(node, (), ())]

    @staticmethod
    def _operand(ref: Ref, memory: Environment) -> Memory:
        return memory[ref]

    def _calls(
        self, fusion: Fusion, group: Group, memory: Environment, cut: Cut | None = None
    ) -> list[Call]:
        """A group's kernels as calls; a product may be cut, see `KernelStore.request`."""
        with self.clock("lower"):
            found = self._alike.lower(fusion, group, self.strides)
        made: list[Call] = []
        for each in found:
            node, work = group.members[-1], _work(group)
            made += self._split(each, node, memory, each.points or group.size, work, cut)
        members = (*group.members, *fusion.pulled(group))
        packs = bool(made) and made[0].request.compiled.kernels[0].notes.get("packs", False)
        made = [replace(c, members=members) if c.number == packs else c for c in made]
        if group.kind == "join":
            made = [
                replace(c, is_part=True, members=() if k else members) for k, c in enumerate(made)
            ]
        waits = cut is not None and cut[0] > 0  # sums of a piece do, where the result will be
        if group.kind in ("loops", "dot") and len(made) == 1 and not waits:
            pairs = tuple((memory[a], memory[b]) for a, b in in_place(fusion, group) if a in memory)
            made[0] = replace(made[0], in_place=pairs)
        return made

    def _call(
        self, lowered: Lowered, node: OutputRefs, memory: Environment, points: int, work: int
    ) -> Call:
        self.groups += 1
        (call,) = self._split(lowered, node, memory, points, work)
        return call

    def _split(
        self,
        lowered: Lowered,
        node: OutputRefs,
        memory: Environment,
        points: int,
        work: int,
        cut: Cut | None = None,
    ) -> list[Call]:
        """A kernel's functions: one, or two where a reduction over few rows is shared out."""
        places = [memory.setdefault(ref, Memory(_kind(ref))) for ref in lowered.refs]
        streams = large_results(lowered.kernel, places)
        request = self._request(lowered.kernel, cut, self._lasting(places), streams)
        self.requests.append(request)
        written = [memory[ref] for ref in lowered.written]
        if lowered.reports:
            places.append(self.status)
        partials: list[Memory] = []
        first = request.compiled.kernels[0]
        if "partials" in first.notes:
            dtype, count = first.notes["partials"]
            elements = count if isinstance(count, int) else evaluate(count, request.parameters)
            partials = [Memory(TensorType((elements,), dtype))]
        name, between = lowered.kernel.name, sum(m.kind.size for m in partials)
        memories = (*places, *partials)
        if "kept" in request.compiled.kernels[-1].notes:
            memories = self._keep(request, name, memories, node)
        if first.notes.get("packs"):
            pack = Call(f"{name}_pack", request, 0, memories, tuple(partials), between, 1, node)
            return [pack, Call(name, request, 1, memories, tuple(written), points, work, node)]
        return [
            Call(
                name + ("" if number == 0 else "_end"),
                request,
                number,
                memories,
                (*written, *partials) if number == 0 else tuple(written),
                points if number == 0 else between,
                1 if number and "contract" in first.notes else work,
                node,
                in_place=((places[0], places[1]),) if lowered.copies else (),
                copies=lowered.copies,
            )
            for number in range(request.compiled.functions)
        ]

    def _lasting(self, places: Sequence[Memory]) -> frozenset[int]:
        """Buffers whose values last, as far as there is room to keep what is packed of them."""
        found = [i for i, m in enumerate(places) if m.lasts or m.role == "constant"]
        packed = {m for _, _, sources in self.kept for m in sources} | {places[i] for i in found}
        total = sum(m.nbytes for m in packed)
        return frozenset(found if total <= settings.kept_bytes else ())

    def _keep(
        self, request: Request, name: str, places: tuple[Memory, ...], node: OutputRefs
    ) -> tuple[Memory, ...]:
        """The memory of a product's kernels, one of which packs what lasts: it is called apart."""
        last = request.compiled.functions
        notes, spared = (request.compiled.kernels[n].notes for n in (last, last - 1))
        reads: frozenset[int] = notes["reads"]
        sources = tuple(places[i] for i in sorted(reads))
        key = (request.compiled, request.parameters, sources)
        lasting = all(m.lasts or m.role == "constant" for m in sources)
        known = self.kept if lasting else self._packed
        if key not in known:
            dtype, count = notes["kept"]
            elements = evaluate(count, request.parameters)
            kept = Memory(TensorType((elements,), dtype), "kept" if lasting else "temporary")
            # Buffers that a kernel does not touch may be any memory.
            given = (*(m if i in reads else kept for i, m in enumerate(places)), kept)
            ending = "keep" if lasting else "pack"
            call = Call(f"{name}_{ending}", request, last, given, (kept,), elements, 1, node)
            known[key] = call
        (kept,) = known[key].written
        return (*(kept if i in spared["spared"] else m for i, m in enumerate(places)), kept)

    def _request(
        self,
        kernel: Kernel,
        cut: Cut | None,
        lasting: frozenset[int],
        streams: frozenset[int],
    ) -> Request:
        """What runs a kernel, asked for once."""
        key = (id(kernel), cut, lasting, streams, self._times)
        if key not in self._asked:
            found = STORE.request(
                with_streams(kernel, streams),
                self.clock,
                self.general,
                cut,
                own=self.own,
                lasting=lasting,
                times=self._times,
                drafts=self.drafts,
            )
            self._asked[key] = found, kernel
        return self._asked[key][0]

    def _ready(self, node: OutputRefs, source: Memory, target: Memory, lower: Lower) -> list[Step]:
        """The kernels of a call that is lowered by itself: a sort, or a Fourier transform."""
        with self.clock("lower"):
            found = lower(node, source, target)
        self.groups += bool(found)
        calls: list[Step] = []
        for each in found:
            request = STORE.request(each.kernel, self.clock, self.general and not each.own)
            self.requests.append(request)
            memory, size = (each.memory, each.written), source.kind.size
            members = () if calls else (node,)
            made = Call(each.kernel.name, request, 0, *memory, size, each.work, node)
            calls.append(replace(made, members=members))
        return calls

    # -- subgraphs -------------------------------------------------------------------------

    def _within(
        self, trace: Trace, inputs: Sequence[Memory], outputs: Sequence[Memory]
    ) -> list[Step]:
        """The steps of a subgraph that reads and writes given memory."""
        memory: Environment = {
            (node, 0): place for node, place in zip(trace.inputs, inputs, strict=True)
        }
        for node in leaves(trace):
            memory[node, 0] = constant(node)
        copies: list[Step] = []
        for ref, target in zip(trace.outputs, outputs, strict=True):
            if ref in memory:
                copies.append(self._copied(memory[ref], target, ref[0]))
            else:
                memory[ref] = target
        return [*self.block(trace.nodes, trace.outputs, memory), *copies]

    def _scan(
        self, node: OutputRefs, inputs: tuple[Memory, ...], outputs: tuple[Memory, ...]
    ) -> list[Step]:
        if is_small_scan(node):
            memory = dict(zip(node.inputs, inputs, strict=True))
            memory |= {(node, slot): place for slot, place in enumerate(outputs)}
            work = len(node.params["body"].nodes)
            call = self._call(lower_scan(node), node, memory, node.params["length"], work)
            return [replace(call, members=(node,))]
        body: Trace = node.params["body"]
        consts, count = node.params["consts"], node.params["carries"]
        fixed, init, xs = inputs[:consts], inputs[consts : consts + count], inputs[consts + count :]
        kinds = [inner.types[0] for inner in body.inputs[consts + count :]]
        rows = tuple((Memory(kind, "slice"), x) for kind, x in zip(kinds, xs, strict=True))
        made = body.output_types[count:]
        ys = tuple((Memory(k, "slice"), y) for k, y in zip(made, outputs[count:], strict=True))
        heads = ((inner, 0) for inner in body.inputs[consts + count :])
        parts = dict(zip(body.outputs[count:], (row for row, _ in ys), strict=True))
        parts |= dict(zip(heads, (row for row, _ in rows), strict=True))
        carries = [
            Carry(Memory(kind, "slice"), parts[ref], Memory(kind))
            if ref in parts
            else Carry(first := Memory(kind), Memory(kind), first)
            for ref, kind in zip(body.outputs, body.output_types[:count], strict=False)
        ]
        arguments = (*fixed, *(c.now for c in carries), *(row for row, _ in rows))
        results = (*(c.then for c in carries), *(row for row, _ in ys))
        new = [i for i in range(len(results)) if i >= count or carries[i].changes]
        inner = replace(body, outputs=tuple(body.outputs[i] for i in new))
        length = node.params["length"]
        before, steps = self._repeated(
            length, fixed, lambda: self._within(inner, arguments, [results[i] for i in new])
        )
        reverse = node.params["reverse"]
        loop = ScanLoop(node, length, reverse, tuple(carries), rows + ys, tuple(steps))
        start = [self._copied(x, c.home, node) for x, c in zip(init, carries, strict=True)]
        ends = zip(carries, outputs[:count], strict=True)
        end = [self._copied(c.home, y, node) for c, y in ends]
        return [*start, *before, loop, *end]

    def _copied(self, source: Memory, target: Memory, node: OutputRefs) -> Step:
        """A copy; a kernel where it is so large that threads share it."""
        kind = source.kind
        if kind.nbytes < _SHARED_COPY or kind.dtype.kind not in "fiu" or kind != target.kind:
            return Copy(source, target)
        request = STORE.request(flat_copy(kind.dtype, kind.size), self.clock, self.general)
        self.requests.append(request)
        pair = (source, target)
        return Call("copy", request, 0, pair, (target,), kind.size, 1, node, copies=True)

    def _repeated(
        self, times: int, fixed: Sequence[Memory], assemble: Callable[[], list[Step]]
    ) -> tuple[list[Step], list[Step]]:
        """The steps of a loop's body that does not change what is `fixed`, and those before it."""
        outside, self._times = self._times, self._times * times
        try:
            if times < OFTEN:
                return [], assemble()
            return self._packed_before(fixed, assemble)
        finally:
            self._times = outside

    def _packed_before(
        self, fixed: Sequence[Memory], assemble: Callable[[], list[Step]]
    ) -> tuple[list[Step], list[Step]]:
        """The steps of a body that runs often, and those that pack what is `fixed`."""
        lasting = [m for m in fixed if not m.lasts]
        for each in lasting:
            each.lasts = True
        self.kept = self.kept.new_child()
        steps = assemble()
        packed, self.kept = self.kept.maps[0], self.kept.parents
        used = {m for step in steps for m in touched(step)}
        before: list[Step] = []
        for key, call in packed.items():
            if any(m in lasting for m in key[2]):
                call.written[0].role = "temporary"
                before += [call] if call.written[0] in used else []
            else:
                self.kept[key] = call
        for each in lasting:
            each.lasts = False
        return before, steps

    def _while(
        self, node: OutputRefs, inputs: tuple[Memory, ...], outputs: tuple[Memory, ...]
    ) -> list[Step]:
        consts = node.params["consts"]
        condition, body = node.params["condition"], node.params["body"]
        fixed, init = inputs[:consts], inputs[consts:]
        carries = [Carry(first := Memory(m.kind), Memory(m.kind), first) for m in outputs]
        now = (*fixed, *(c.now for c in carries))
        holds = Memory(condition.output_types[0])
        asked = self._within(condition, now, (holds,))
        steps = self._within(body, now, tuple(c.then for c in carries))
        loop = Repeat(node, tuple(carries), tuple(asked), holds, tuple(steps))
        start = [self._copied(x, c.home, node) for x, c in zip(init, carries, strict=True)]
        end = [self._copied(c.home, y, node) for c, y in zip(carries, outputs, strict=True)]
        return [*start, loop, *end]

    def _switch(
        self, node: OutputRefs, inputs: tuple[Memory, ...], outputs: tuple[Memory, ...]
    ) -> list[Step]:
        index, *operands = inputs
        blocks = [
            tuple(self._within(branch, operands, outputs)) for branch in node.params["branches"]
        ]
        return [Choice(node, index, tuple(blocks))]


def in_place(fusion: Fusion, group: Group) -> list[tuple[Ref, Ref]]:
    """Operands that are read only where the kernel is about to write, with what is written.

    Factors of a product never are: they are in no order of its elements.
    """
    inline = fusion.pulled(group)
    reads = [r for n in (*group.members, *inline) for r in fusion.reads[n]]
    moved = {r.node for r in reads if r.step != 1}  # whose own reads are out of order here
    for node in sorted(inline, key=fusion.order.__getitem__, reverse=True):
        if node in moved:
            moved |= {r.node for r in fusion.reads[node]}
    scattered = {r.ref for r in reads if r.step != 1 or r.node in moved}
    size = group.size
    stage = levels(fusion, group)
    last = max(
        (stage[n] - (fusion.kinds[n] == "reduce") for n in group.members if _is_whole(group, n)),
        default=0,
    )
    stored = fusion.stored(group)
    found = []
    for place, node in enumerate(stored):
        if stage[node] < last:  # later stages read operands again
            continue
        later = [*stored[place + 1 :], *_reduced_after(fusion, node, stage)]
        again = _read_after(fusion, node, later, stage)
        itemsize = node.types[0].dtype.itemsize
        for r in reads:
            same = r.node.types[r.ref[1]].dtype.itemsize == itemsize
            whole = r.node.types[r.ref[1]].size == size == node.types[0].size
            outside = fusion.group.get(r.node) is not group and r.ref not in again
            if r.ref not in scattered and same and whole and outside:
                found.append((r.ref, (node, 0)))
    return found


def _is_whole(group: Group, node: OutputRefs) -> bool:
    """Whether a member reads every element of the space, to have one for each or to reduce them."""
    return node not in group.rows or kind_of(node) == "reduce"


def _reduced_after(
    fusion: Fusion, node: OutputRefs, stage: dict[OutputRefs, int]
) -> list[OutputRefs]:
    """The reductions that meet their elements once a member's element is stored."""
    return [n for n in stage if fusion.kinds[n] == "reduce" and stage[n] == stage[node] + 1]


def _read_after(
    fusion: Fusion, node: OutputRefs, later: Sequence[OutputRefs], stage: dict[OutputRefs, int]
) -> set[Ref]:
    """What calls read after a member was stored; if it is reduced, they find it in a register."""
    found: set[Ref] = set()
    reduced = bool(_reduced_after(fusion, node, stage))
    stack, seen = list(later), {*later, *([node] if reduced else ())}
    while stack:
        for r in fusion.reads[stack.pop()]:
            found.add(r.ref)
            early = fusion.kinds.get(r.node) == "reduce" and stage.get(r.node, 0) <= stage[node]
            here = r.node in stage or r.node in fusion.inline
            if here and not early and r.node not in seen:
                seen.add(r.node)
                stack.append(r.node)
    return found


def _work(group: Group) -> int:
    """Instructions at each point; a product of matrices takes one for each of the elements met."""
    if group.kind not in PRODUCTS:
        return group.work
    node = group.members[0]
    if group.kind == "conv":
        return group.work + products_of(node)
    source, slot = node.inputs[0]
    return group.work + source.types[slot].shape[-1]


def _kind(ref: Ref) -> TensorType:
    return ref[0].types[ref[1]]


def constant(leaf: OutputRefs) -> Memory:
    """The memory of a node that holds data."""
    assert leaf.results is not None
    return Memory(leaf.types[0], "constant", data=leaf.results[0])


def leaves(trace: Trace) -> list[OutputRefs]:
    """Constants inside a trace: nodes that hold data and are no inputs."""
    inputs = set(trace.inputs)
    refs = [ref for node in trace.nodes for ref in node.inputs] + list(trace.outputs)
    found = {node: None for node, _ in refs if node.op is None and node not in inputs}
    return list(found)
