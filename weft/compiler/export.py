"""Compiled functions as files: `save` writes one, `load_compiled` reads it in another process.

A file is a line that says what it is, a digest, a JSON header and raw arrays. Reading runs no code
that the file brings: ops are found by name, everything is checked, damage is a `FormatError`.
"""

from __future__ import annotations

from typing import Any

from weft.compiler.capture import Program, Slot
from weft.compiler.encoding import (
    Decoder,
    Encoder,
    number,
    pack,
    require,
    sequence,
    text,
    unpack,
)
from weft.compiler.signature import Call, Leaf, Parameters, Signature, differences
from weft.compiler.specialization import Specialization
from weft.compiler.statistics import Counting
from weft.core.common.context import current_device, default_float
from weft.core.common.device import as_device
from weft.core.common.files import as_path, write_atomically
from weft.core.common.handler import current
from weft.core.common.lazy import LazyModule
from weft.core.common.slots import public
from weft.core.common.trees import PyTreeDef, tree_structure, tree_unflatten
from weft.core.graph.trace import Trace
from weft.core.tensor.number import WIDE
from weft.errors import ArgumentError, FormatError, UnsupportedError

_MAGIC = b"weft compiled function 1\n"
_DIGEST = 32  # bytes of a SHA-256
_hashlib = LazyModule("hashlib")
_NUMBERS = {kind.__name__: kind for kind in WIDE}
_MALFORMED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


def save(path: Any, program: Program, signature: Signature, paths: list[str]) -> None:
    """Write a traced function; captured tensors are written with their present values."""
    target = as_path("export", path)
    name = program.trace.name
    if any(slot.source is not None for slot in program.slots):
        raise UnsupportedError(
            f"export: {name}: draws from a generator of its own, which a file cannot hold"
            "\nhint: draw from the global generator, or pass keys"
        )
    encoder = Encoder(name)
    trace = program.trace
    numbers = {node: i for i, node in enumerate((*trace.inputs, *trace.nodes))}
    held = tuple(program.captured())
    header = {
        "trace": encoder.trace(trace, (*held, *trace.captures)),
        "arguments": _structure(name, signature.structure),
        "result": _structure(name, program.structure),
        "leaves": [_leaf(encoder, name, each) for each in signature.leaves],
        "paths": paths,
        "limits": [None if each is None else list(each) for each in program.limits],
        "drawn": [slot.drawn for slot in program.slots],
        "draws": [
            [numbers[node], *drawn] for node, drawn in program.draws.items() if node in numbers
        ],
    }
    body = pack(header, encoder.blobs)
    write_atomically("export", target, (_MAGIC, _hashlib.sha256(body).digest(), body))


def _leaf(encoder: Encoder, name: str, leaf: Leaf) -> list[Any]:
    if leaf.spec is not None:
        raise UnsupportedError(f"export: {name}: has sharded arguments, which a file cannot hold")
    kind = leaf.kind.__name__ if isinstance(leaf.kind, type) else encoder.type(leaf.kind)
    return [kind, leaf.device.name]


def _structure(name: str, structure: PyTreeDef) -> Any:
    """A tree's structure in JSON: 0 for a leaf."""
    waiting = [structure]
    while waiting:
        each = waiting.pop()
        if each.kind.name not in ("LEAF", "NONE", "TUPLE", "LIST", "DICT"):
            raise _no_form(name, each.type)
        waiting += each.children()
    return _described(name, tree_unflatten(structure, [0] * structure.num_leaves))


def _described(name: str, sample: Any) -> Any:
    if sample is None or sample == 0:
        return sample
    if isinstance(sample, dict):
        if not all(type(key) in (str, int) for key in sample):
            raise _no_form(name, dict)
        return {"dict": [[key, _described(name, child)] for key, child in sample.items()]}
    return {type(sample).__name__: [_described(name, child) for child in sample]}


def _no_form(name: str, kind: Any) -> UnsupportedError:
    return UnsupportedError(
        f"export: {name}: a tree with a node of {kind} cannot be saved"
        "\nhint: export functions of tuples, lists and dicts with text or integers as keys"
    )


def _sample(data: Any) -> Any:
    """A tree of the described structure, with 0 as leaves."""
    if data is None or (type(data) is int and data == 0):
        return data
    ((kind, inner),) = dict(data).items()
    if kind == "dict":
        pairs = [sequence(each) for each in sequence(inner)]
        require(all(type(key) in (str, int) for key, _ in pairs), "a key")
        return {key: _sample(child) for key, child in pairs}
    require(kind in ("tuple", "list"), "a structure")
    children = [_sample(each) for each in sequence(inner)]
    return tuple(children) if kind == "tuple" else children


class LoadedFunction:
    """A compiled function read from a file: call it with arguments of the kind it was made for."""

    def __init__(self, program: Program, signature: Signature, paths: list[str]) -> None:
        if not isinstance(program, Program):
            raise ArgumentError("LoadedFunction: is made by wf.load_compiled, not by its own name")
        self.__name__ = self.name = program.trace.name
        nothing: dict[str, Any] = {"static": (), "donate": ()}
        self._parameters = Parameters(_anything, self.name, nothing, nothing)
        self._compiled = Specialization(signature, program, paths, (False,) * len(paths))

    def __repr__(self) -> str:
        return f"<loaded {self.name}>"

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        compiled = self._compiled
        if compiled.is_ready and current() is None:
            arrays = compiled.enter(args, keywords)
            if arrays is not None:
                return compiled.leave(compiled.run(arrays))
        call = self._parameters.call(args, keywords)
        self._check(call, args, keywords)
        captured = compiled.program.captured()
        if not compiled.runs_plainly(call, captured):
            return compiled.replay(call, captured, self._exhausted)
        if compiled.is_ready:
            compiled.ease(call, (args, keywords))
        else:
            compiled.build(Counting())
        arrays = compiled.gather(call, captured)
        return self._exhausted() if arrays is None else compiled.leave(compiled.run(arrays))

    def _check(self, call: Call, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        old, new = self._compiled.signature, call.signature
        if old.leaves == new.leaves and old.structure == new.structure:
            return
        paths = self._parameters.paths(args, keywords)
        label = self._parameters.label
        reasons = differences(old, new, self._compiled.paths, paths, label)
        raise ArgumentError(
            f"{self.name}: was exported for arguments of another kind ({'; '.join(reasons)})"
        )

    def _exhausted(self) -> Any:
        raise ArgumentError(
            f"{self.name}: the random generator has given all keys of its seed"
            "\nhint: wf.random.seed starts it anew"
        )


def _anything(*args: Any, **keywords: Any) -> None:
    """Stands for a function whose parameters are not known."""


@public
def load_compiled(path: Any) -> LoadedFunction:
    """Read a function that `compile(f).export(path, …)` wrote; it runs without its Python source.

    The file holds no code, and what it says is checked, so a damaged one is a `FormatError`.
    """
    name = str(as_path("load_compiled", path))
    try:
        with open(name, "rb") as file:
            content = file.read()
    except OSError as error:
        raise ArgumentError(f"load_compiled: {name!r}: {error.strerror}") from error
    if not content.startswith(_MAGIC):
        raise FormatError(f"load_compiled: {name!r} holds no compiled function")
    start = len(_MAGIC) + _DIGEST
    body = content[start:]
    require(content[len(_MAGIC) : start] == _hashlib.sha256(body).digest(), "its digest")
    try:
        return _read(body)
    except FormatError:
        raise
    except _MALFORMED as error:
        raise FormatError(f"load_compiled: the file is damaged ({error})") from error


def _read(body: bytes) -> LoadedFunction:
    header, blobs = unpack(body)
    decoder = Decoder(blobs)
    trace = decoder.trace(header["trace"])
    leaves = tuple(_read_leaf(decoder, each) for each in sequence(header["leaves"]))
    arguments = tree_structure(_sample(header["arguments"]))
    result = tree_structure(_sample(header["result"]))
    drawn = [number(each, 1 << 32) for each in sequence(header["drawn"])]
    _check_shape(trace, leaves, arguments, result, len(drawn))
    signature = Signature(arguments, leaves, (), default_float(), current_device(), ())
    devices = [node.device for node in trace.inputs[len(leaves) :: 2]]
    slots = tuple(  # all are of the generator that is chosen, so the first one takes the keys
        Slot(None, devices[k], each, 0 if k else None) for k, each in enumerate(drawn)
    )
    nodes = (*trace.inputs, *trace.nodes)
    draws = {}
    for each in sequence(header["draws"]):
        node, slot, count = sequence(each)
        place = (number(slot, len(drawn)), number(count, 1 << 32))
        draws[nodes[number(node, len(nodes))]] = place
    paths = [text(each) for each in sequence(header["paths"])]
    limits = tuple(map(_read_limits, sequence(header["limits"])))
    require(len(paths) == len(limits) == len(leaves), "the number of arguments")
    program = Program(trace, result, (), slots, draws, limits, True, len(trace.nodes), 0)
    return LoadedFunction(program, signature, paths)


def _read_leaf(decoder: Decoder, data: Any) -> Leaf:
    kind, device = sequence(data)
    found = _NUMBERS[kind] if type(kind) is str else decoder.type(kind)
    return Leaf(found, as_device(text(device)))


def _read_limits(data: Any) -> tuple[int, int] | None:
    if data is None:
        return None
    low, high = sequence(data)
    require(type(low) is int and type(high) is int, "a limit")
    return low, high


def _check_shape(
    trace: Trace, leaves: tuple[Leaf, ...], arguments: PyTreeDef, result: PyTreeDef, slots: int
) -> None:
    """The trace must take and give what the trees around it say."""
    given = len(trace.inputs) - len(trace.captures)
    require(arguments.num_leaves == len(leaves), "the arguments")
    require(given == len(leaves) + 2 * slots, "the inputs")
    require(result.num_leaves == len(trace.outputs), "the results")
    positional, keywords = arguments.children()
    require((positional.type, keywords.type) == (tuple, dict), "the arguments")
    for leaf, kind in zip(leaves, trace.input_types, strict=False):
        expected = WIDE[leaf.kind] if isinstance(leaf.kind, type) else leaf.kind.dtype
        shape = () if isinstance(leaf.kind, type) else leaf.kind.shape
        require(kind.shape == shape and kind.dtype == expected, "an argument's type")
