"""Programs on disk: what one process has compiled, the next one only reads and links.

An entry lies in the folder of compiled code, with its safety: it holds the instructions of a
program, names of kernels in modules that are entries of their own, and constants — no Python. What
an error message or a listing needs is made from the trace, when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.compiler.encoding import Decoder, Encoder, pack, unpack
from weft.compiler.executable import Interpreted
from weft.compiler.host import HostCalls
from weft.compiler.packs import Packs
from weft.compiler.prepared import Interface, Prepared, failure_of
from weft.compiler.program_key import Namer, program_key
from weft.compiler.statistics import BuildCounts
from weft.core.common.lazy import LazyModule
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import Trace, subgraphs
from weft.runtime.cpu.code_cache import code_cache, linked
from weft.runtime.cpu.jit import Loaded
from weft.runtime.cpu.program import Encoded, HostCall, Program, aligned_words

if TYPE_CHECKING:
    from weft.compiler.native import Native

_native = LazyModule("weft.compiler.native")
_rewriting = LazyModule("weft.compiler.rewrite")
_recompute = LazyModule("weft.compiler.recompute")


@dataclass(eq=False, repr=False)
class Origin:
    """What a program is made from, and the name it is kept under."""

    trace: Trace
    donated: tuple[bool, ...]
    general: bool
    own: bool
    lasting: tuple[bool, ...]
    key: str
    opaque: int  # calls of Python functions, which no name holds

    @cached_property
    def lowered(self) -> Trace:
        """The trace after it was simplified."""
        found: Trace = _recompute.recompute(_rewriting.rewrite(self.trace)[0])
        return found


def origin_of(
    trace: Trace,
    donated: tuple[bool, ...],
    general: bool,
    own: bool,
    lasting: tuple[bool, ...] = (),
) -> Origin | None:
    """The name of a program, if it can be kept at all."""
    if not code_cache().folder.is_used:
        return None
    key, opaque = program_key(trace, donated, general, own, lasting)
    return None if key is None else Origin(trace, donated, general, own, lasting, key, len(opaque))


class Stored(Prepared):
    """A program that an earlier compilation left."""

    def __init__(
        self,
        origin: Origin,
        program: Program,
        packs: Packs | None,
        data: dict[str, Any],
        new: bool,
    ) -> None:
        self._origin = origin
        decoder: Decoder = data["decoder"]
        interface = Interface(
            strided=tuple(data["strided"]),
            outputs=tuple(map(decoder.type, data["outputs"])),
            reused=dict(data["reused"]),
            places=tuple(data["results"]),
            arena=data["arena"],
        )
        captures = origin.trace.captures
        constants = [
            captures[each].data() if type(each) is int else decoder.array(each)
            for each in data["captures"]
        ]
        self._connect(program, interface, constants, packs)
        self.counts = BuildCounts(**data["counts"], native_compilations=int(new), from_disk=1)
        self.rewritten: dict[str, int] = data["rewritten"]
        self.passed_through = frozenset(data["passed_through"])

    @cached_property
    def whole(self) -> Native:
        """The same compiled here, with all that can be told about it."""
        origin = self._origin
        made: Native = _native.Native(
            origin.lowered,
            origin.donated,
            general=origin.general,
            own=origin.own,
            lasting=origin.lasting,
        )
        return made

    def _retell(self, arrays: Sequence[Any]) -> None:
        Interpreted(self._origin.lowered).retell(arrays)

    def _run_watched(self, arrays: Sequence[Any], threads: int) -> tuple[Any, ...]:
        return self.whole._run_watched(arrays, threads)

    def explain(self, *, loops: bool = False) -> str:
        return self.whole.explain(loops=loops)


def recall(origin: Origin) -> Stored | None:
    """The program kept under this name, linked and ready to run."""
    entry = code_cache().folder.read(origin.key)  # once read it is not needed again
    if entry is None:
        return None
    data, blobs = unpack(entry)
    modules: list[Loaded] = []
    new = False
    for key in data["modules"]:
        module, is_new = linked(key)
        if module is None:
            return None
        modules.append(module)
        new |= is_new
    addresses = [modules[number].address(symbol) for number, symbol in data["kernels"]]
    decoder = data["decoder"] = Decoder(blobs)
    constants = [decoder.array(each) for each in data["constants"]]
    parts = _Parts(addresses, constants, blobs, (constants, modules))
    program = parts.program(
        origin.trace.name, data["program"], _hosts(origin, data["hosts"], decoder)
    )
    packs = None
    if data["packs"] is not None:
        told = data["packs"]
        name = f"{origin.trace.name}, packing"
        packs = Packs(parts.program(name, told["program"]), told["sources"], told["nbytes"])
    return Stored(origin, program, packs, data, new)


class _Parts(NamedTuple):
    """What programs are put together from: kernels, constants, code, and what keeps them alive."""

    addresses: list[int]
    constants: list[Any]
    blobs: Sequence[bytes]
    keep_alive: Any

    def program(self, name: str, data: dict[str, Any], hosts: Iterable[HostCall] = ()) -> Program:
        """A program as `_told_program` wrote it down."""
        words = np.frombuffer(self.blobs[data["code"]], np.int64)
        code = aligned_words(len(words))
        code[:] = words
        for word, number in data["kernel_words"]:
            code[word] = self.addresses[number]
        for word, number in data["constant_words"]:
            code[word] = self.constants[number].ctypes.data
        return Program(
            Encoded(
                code=code,
                **data["sizes_of_frame"],
                hosts=tuple(hosts),
                names=tuple(data["names"]),
                chunks=tuple(data["chunks"]),
                kernels=tuple(word for word, _ in data["kernel_words"]),
                constants=tuple(word for word, _ in data["constant_words"]),
                is_brief=data["is_brief"],
                failure=failure_of(name),
                keep_alive=self.keep_alive,
            )
        )


def _hosts(origin: Origin, data: Sequence[Any], decoder: Decoder) -> Iterator[HostCall]:
    if not data:
        return
    nodes = list(_every(origin.lowered))
    calls = HostCalls()
    for number, kinds, slots, results in data:
        node, inputs = nodes[number], tuple(map(decoder.type, kinds))
        function = calls.reserve(node) if results else calls.call(node, inputs)
        yield HostCall(function, tuple(slots), tuple(results))


_FRAME = ("slots", "registers", "arguments", "scratch_bytes")  # sizes that a run needs


def keep(
    origin: Origin,
    made: Native,
    lowered: Trace,
    rewritten: dict[str, int],
    passed_through: frozenset[int],
) -> None:
    """Write a program down for other processes, if nothing in it is of this one alone."""
    if not _is_whole(origin, made, lowered):
        return
    encoder = Encoder(lowered.name)
    modules = list(dict.fromkeys(module for each in made.code for module in each.modules))
    kernels = {
        address: (modules.index(module), kernel.name)
        for each in made.code
        for kernel, module, address in zip(each.kernels, each.modules, each.addresses, strict=True)
    }
    numbers = {address: number for number, address in enumerate(kernels)}
    places = {array.ctypes.data: number for number, array in enumerate(made.held)}
    told = partial(_told_program, encoder, numbers, places)
    packs = made.packs
    known = {id(tensor): number for number, tensor in enumerate(origin.trace.captures)}
    interface = made.interface
    header = {
        "program": told(made.program.encoded),
        "packs": None
        if packs is None
        else {
            "program": told(packs.program.encoded),
            "sources": packs.sources,
            "nbytes": packs.nbytes,
        },
        "modules": modules,
        "kernels": list(kernels.values()),
        "constants": [encoder.array(array) for array in made.held],
        "captures": [
            known[id(x)] if id(x) in known else encoder.array(x.host()) for x in lowered.captures
        ],
        "hosts": list(_told_hosts(made, lowered, encoder)),
        "strided": interface.strided,
        "outputs": [encoder.type(kind) for kind in interface.outputs],
        "reused": list(interface.reused.items()),
        "results": interface.places,
        "arena": interface.arena,
        "counts": {
            "kernels": made.counts.kernels,
            "regions": made.counts.regions,
            "bytes_planned": made.counts.bytes_planned,
            "bytes_kept": made.counts.bytes_kept,
        },
        "rewritten": rewritten,
        "passed_through": sorted(passed_through),
    }
    code_cache().folder.write(origin.key, pack(header, encoder.blobs))


def _told_program(
    encoder: Encoder, numbers: dict[int, int], places: dict[int, int], encoded: Encoded
) -> dict[str, Any]:
    """A program whose addresses of kernels and constants are written as numbers of them."""
    code = encoded.code.copy()
    kernel_words = [(word, numbers[int(code[word])]) for word in encoded.kernels]
    constant_words = [(word, places[int(code[word])]) for word in encoded.constants]
    code[[word for word, _ in (*kernel_words, *constant_words)]] = 0
    encoder.blobs.append(code.tobytes())
    return {
        "code": len(encoder.blobs) - 1,
        "kernel_words": kernel_words,
        "constant_words": constant_words,
        "names": encoded.names,
        "chunks": encoded.chunks,
        "is_brief": encoded.is_brief,
        "sizes_of_frame": {name: getattr(encoded, name) for name in _FRAME},
    }


def _is_whole(origin: Origin, made: Native, lowered: Trace) -> bool:
    """Whether the name says all that made the program: functions it does not are only called."""
    if not all(each.modules for each in made.code):
        return False
    if not origin.opaque:
        return True
    namer = Namer()
    namer.trace(lowered)
    return len(namer.opaque) == origin.opaque and set(made.hosts).issuperset(namer.opaque)


def _told_hosts(made: Native, lowered: Trace, encoder: Encoder) -> Iterator[Any]:
    if not made.hosts:
        return
    numbers: dict[OutputRefs, int] = {}
    for number, node in enumerate(_every(lowered)):
        numbers.setdefault(node, number)
    for node, call in zip(made.hosts, made.program.encoded.hosts, strict=True):
        kinds = [encoder.type(source.types[slot]) for source, slot in node.inputs]
        yield numbers[node], kinds, call.slots, call.results


def _every(trace: Trace) -> Iterator[OutputRefs]:
    """The calls of a graph and of the graphs inside them, always in the same order."""
    for node in trace.nodes:
        yield node
        for inner in subgraphs(node.params):
            yield from _every(inner)
