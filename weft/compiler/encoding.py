"""Traces as plain data: JSON for what is called, raw bytes for constants, and back.

Ops are written by name and found again in the table of ops; nothing is imported or evaluated. What
a file says is checked: every type is inferred anew and compared.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.device import Device, as_device
from weft.core.common.lazy import LazyModule
from weft.core.common.parameters import LARGEST, shown
from weft.core.common.slots import OPS
from weft.core.common.types import DType, TensorType
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace
from weft.core.tensor.convert import wrap
from weft.core.tensor.sharing import count_on
from weft.errors import DifferentiationError, FormatError, UnsupportedError

_LENGTH = struct.Struct("<Q")
_json = LazyModule("json")


def pack(header: dict[str, Any], blobs: Sequence[bytes]) -> bytes:
    """A header that JSON can hold, and raw bytes after it."""
    encoded = _json.dumps({**header, "sizes": [len(blob) for blob in blobs]}).encode()
    return b"".join((_LENGTH.pack(len(encoded)), encoded, *blobs))


def unpack(body: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """What `pack` has put together."""
    (length,) = _LENGTH.unpack_from(body)
    start = _LENGTH.size + number(length, len(body))
    header = _json.loads(body[_LENGTH.size : start])
    sizes = [number(size, len(body) + 1) for size in sequence(header["sizes"])]
    require(start + sum(sizes) == len(body), "its length")
    blobs = []
    for size in sizes:
        blobs.append(body[start : start + size])
        start += size
    return header, blobs


class Encoder:
    """Turns traces into JSON values; arrays go to `blobs`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.blobs: list[bytes] = []

    def trace(self, trace: Trace, constants: tuple[Any, ...] = ()) -> dict[str, Any]:
        """A trace whose last inputs are `constants` (tensors)."""
        nodes = (*trace.inputs, *trace.nodes)
        numbers = {node: number for number, node in enumerate(nodes)}
        return {
            "name": trace.name,
            "inputs": [[*self.type(n.types[0]), n.device.name] for n in trace.inputs],
            "constants": [self.array(x.host()) for x in constants],
            "nodes": [self._node(node, numbers) for node in trace.nodes],
            "outputs": [[numbers[node], slot] for node, slot in trace.outputs],
            "effects": [numbers[node] for node in trace.effects],
        }

    def _node(self, node: OutputRefs, numbers: dict[OutputRefs, int]) -> dict[str, Any]:
        params = {}
        for name, value in node.params.items():
            if name in node.op.given:  # Python code, which only derivatives need
                continue
            try:
                params[name] = self.value(value)
            except TypeError:
                raise UnsupportedError(
                    f"export: {self.name}: {node.name}: parameter {name} is {shown(value)}, which a"
                    " file cannot hold\nhint: export functions that neither call back into Python"
                    " nor lay tensors out over a mesh"
                ) from None
        return {
            "op": node.op.name,
            "inputs": [[numbers[source], slot] for source, slot in node.inputs],
            "params": params,
            "types": [self.type(kind) for kind in node.types],
            "device": node.device.name,
        }

    def type(self, kind: TensorType) -> list[Any]:
        """Shape and dtype."""
        return [list(kind.shape), dtypes.name_of(kind.dtype)]

    def array(self, array: Any) -> list[Any]:
        """Shape, dtype, and the number of the blob with the values."""
        self.blobs.append(np.ascontiguousarray(array).tobytes())
        return [list(array.shape), dtypes.name_of(array.dtype), len(self.blobs) - 1]

    def value(self, value: Any) -> Any:
        """A parameter, tagged with its type where JSON has no such; TypeError if it has no form."""
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return {"float": value.hex()}
        if type(value) is complex:
            return {"complex": [value.real.hex(), value.imag.hex()]}
        if isinstance(value, TensorType):
            return {"type": self.type(value)}
        if type(value) in (tuple, list):
            return {type(value).__name__: [self.value(each) for each in value]}
        if isinstance(value, np.dtype):
            return {"dtype": dtypes.name_of(value)}
        if isinstance(value, Device):
            return {"device": value.name}
        if isinstance(value, Trace):
            return {"trace": self.trace(value)}
        if isinstance(value, np.ndarray):
            return {"array": self.array(value)}
        raise TypeError


class _LeftOut:
    """Stands for a user's rule that a file does not hold."""

    def __init__(self, op: str) -> None:
        self.op = op

    def __call__(self, *args: Any) -> Any:
        raise DifferentiationError(
            f"{self.op}: the derivative is a rule in Python, which a file of a compiled function"
            " does not hold\nhint: export the derivative, too: wf.compile(wf.grad(f)).export(...)"
        )


class Decoder:
    """Turns JSON values into traces; raises `FormatError` or a plain error on what is no trace."""

    def __init__(self, blobs: list[bytes]) -> None:
        self.blobs = blobs

    def trace(self, data: Any) -> Trace:
        """A trace, its constants as captures."""
        inputs = [
            OutputRefs.leaf(None, self.type(kind[:2]), as_device(text(kind[2])))
            for kind in sequence(data["inputs"])
        ]
        arrays = [self.array(each) for each in sequence(data["constants"])]
        needed = inputs[len(inputs) - len(arrays) :]
        for node, array in zip(needed, arrays, strict=True):
            require(node.types[0] == TensorType(array.shape, array.dtype), "a constant's type")
        nodes = list(inputs)
        for each in sequence(data["nodes"]):
            nodes.append(self._node(each, nodes))
        outputs = tuple(self._ref(each, nodes) for each in sequence(data["outputs"]))
        effects = tuple(nodes[number(each, len(nodes))] for each in sequence(data["effects"]))
        require(all(node.op is not None for node in effects), "an effect")
        constants = tuple(
            wrap(array, node.device) for node, array in zip(needed, arrays, strict=True)
        )
        return Trace(tuple(inputs), outputs, effects, constants, text(data["name"]))

    def _node(self, data: Any, nodes: list[OutputRefs]) -> OutputRefs:
        op = OPS.get(text(data["op"]))
        if op is None:
            raise FormatError(f"load_compiled: there is no op {data['op']!r} in this version")
        refs = tuple(self._ref(each, nodes) for each in sequence(data["inputs"]))
        params = {text(name): self.value(each) for name, each in dict(data["params"]).items()}
        params |= {name: _LeftOut(op.name) for name in op.given}
        types = tuple(self.type(each) for each in sequence(data["types"]))
        inferred = op.infer(*(source.types[slot] for source, slot in refs), **params)
        found = (inferred,) if isinstance(inferred, TensorType) else tuple(inferred)
        if found != types:
            told = " and ".join(", ".join(map(str, each)) for each in (types, found))
            raise FormatError(f"load_compiled: {op}: the file and the op differ in type ({told})")
        return OutputRefs(op, refs, params, types, as_device(text(data["device"])))

    def _ref(self, data: Any, nodes: list[OutputRefs]) -> Ref:
        source, slot = sequence(data)
        node = nodes[number(source, len(nodes))]
        return node, number(slot, len(node.types))

    def type(self, data: Any) -> TensorType:
        """Shape and dtype."""
        shape, name = sequence(data)
        sizes = tuple(number(size, LARGEST) for size in sequence(shape))
        kind = TensorType(sizes, self._dtype(name))
        require(len(sizes) <= 64 and kind.size <= LARGEST, "a shape")
        return kind

    def _dtype(self, name: Any) -> DType:
        return dtypes.as_dtype(text(name), op="load_compiled")

    def array(self, data: Any) -> Any:
        """An array with memory of its own, which stays as it is."""
        kind = self.type(data[:2])
        blob = self.blobs[number(data[2], len(self.blobs))]
        require(len(blob) == kind.nbytes, "the size of a constant")
        array = np.frombuffer(bytearray(blob), kind.dtype).reshape(kind.shape)
        count_on(array)
        return array

    def value(self, data: Any) -> Any:
        """A parameter."""
        if data is None or type(data) in (bool, int, str):
            return data
        ((tag, inner),) = dict(data).items()
        if tag == "float":
            return float.fromhex(text(inner))
        if tag == "complex":
            real, imaginary = sequence(inner)
            return complex(float.fromhex(text(real)), float.fromhex(text(imaginary)))
        if tag in ("tuple", "list"):
            values = [self.value(each) for each in sequence(inner)]
            return tuple(values) if tag == "tuple" else values
        readers = {
            "type": self.type,
            "dtype": self._dtype,
            "device": as_device,
            "trace": self.trace,
            "array": self.array,
        }
        return readers[tag](inner)


def require(condition: bool, what: str) -> None:
    """Refuse a file in which `what` is wrong."""
    if not condition:
        raise FormatError(f"load_compiled: the file is damaged: {what} is wrong")


def sequence(data: Any) -> list[Any]:
    """A JSON list."""
    require(type(data) is list, "a list")
    found: list[Any] = data
    return found


def text(data: Any) -> str:
    """A JSON string."""
    require(type(data) is str, "a text")
    return str(data)


def number(data: Any, limit: int) -> int:
    """A JSON integer from 0 to below `limit`."""
    require(type(data) is int and 0 <= data < limit, "a number")
    return int(data)
