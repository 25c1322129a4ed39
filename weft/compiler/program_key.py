"""The name of a traced function: equal names mean that the same program computes both.

A name is a hash of all calls — ops, parameters by type and bits, types, connections — of the data
of constants, and of everything else that decides what the compiler makes of them.
"""

from __future__ import annotations

import hashlib
import marshal
import struct
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

import numpy as np

from weft.config import settings
from weft.core.common.device import Device
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import Trace
from weft.core.tensor.sharing import is_shared
from weft.runtime.cpu.code_cache import package_fingerprint
from weft.runtime.cpu.jit import chosen_target, host_target
from weft.runtime.cpu.pool import pool

MOST_CONSTANT_BYTES = 1 << 24  # more would take longer to hash than most graphs to compile
_FORMAT = "program 2"
_NO_REFERENCES = 2  # the version of `marshal` that writes equal values alike, shared or not
_PLAIN = frozenset({int, str, bool, bytes, type(None)})  # whose `repr` says type and value


class _Nameless(Exception):
    """There is something in a graph that no name can hold."""


class Namer:
    """Writes graphs as nested tuples of numbers and texts, which are hashed.

    Python functions have no name that lasts: `opaque` collects the calls that are given one. Such
    calls are the same if their functions are equal in the same places.
    """

    def __init__(self) -> None:
        self.opaque: dict[OutputRefs, None] = {}
        self._functions: dict[Any, int] = {}
        self._types: dict[TensorType, str] = {}
        self._bytes = 0

    def trace(self, trace: Trace) -> tuple[Any, ...]:
        """A graph: its inputs, constants, calls, results and effects."""
        numbers: dict[OutputRefs, int] = {}
        inputs = []
        for node in trace.inputs:
            numbers[node] = len(numbers)
            inputs.append((self._type(node.types[0]), node.device.name))
        rows = [self._node(node, numbers) for node in trace.nodes]
        return (
            tuple(inputs),
            tuple(self._constant(x) for x in trace.captures),
            rows,
            [(numbers[node], slot) for node, slot in trace.outputs],
            [numbers[node] for node in trace.effects],
        )

    def _node(self, node: OutputRefs, numbers: dict[OutputRefs, int]) -> tuple[Any, ...]:
        if node.specs is not None or not type(node.op).__module__.startswith("weft."):
            raise _Nameless  # an op of the user's own; or one spread over a mesh
        refs = []
        for source, slot in node.inputs:
            number = numbers.get(source)
            refs.append((self._leaf(source, numbers) if number is None else number, slot))
        params = [
            (name, value if type(value) in _PLAIN else self._value(value, node))
            for name, value in node.params.items()
        ]
        numbers[node] = len(numbers)
        kinds = [self._type(kind) for kind in node.types]
        return (node.op.name, refs, params, kinds, node.device.name)

    def _leaf(self, node: OutputRefs, numbers: dict[OutputRefs, int]) -> Any:
        """A constant inside a graph: its data, the first time it is met."""
        if node.results is None:
            raise _Nameless
        numbers[node] = len(numbers)
        return (numbers[node], self._array(np.asarray(node.results[0])))

    def _type(self, kind: TensorType) -> str:
        found = self._types.get(kind)
        if found is None:
            found = self._types[kind] = f"{_dtype(kind.dtype)}{kind.shape}"
        return found

    def _constant(self, tensor: Any) -> Any:
        if tensor.owner is not None or tensor._impl.shared or is_shared(tensor.data()):
            raise _Nameless  # whose data may still change
        return (tensor.device.name, self._array(tensor.host()))

    def _array(self, array: Any) -> Any:
        self._bytes += array.nbytes
        if self._bytes > MOST_CONSTANT_BYTES or array.dtype.hasobject:
            raise _Nameless
        data = np.ascontiguousarray(array).tobytes()
        short = data if len(data) <= 64 else hashlib.sha256(data).digest()
        return (_dtype(array.dtype), array.shape, short)

    def _value(self, value: Any, node: OutputRefs) -> Any:
        """A parameter; tags keep apart what would otherwise look the same."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is float:
            return ("float", struct.pack("<d", value))
        if kind is tuple and _PLAIN.issuperset(map(type, value)):
            return ("tuple", value)
        if kind is tuple or kind is list:
            return (kind.__name__, [self._value(each, node) for each in value])
        if kind is TensorType:
            return ("type", self._type(value))
        if isinstance(value, np.dtype):
            return ("dtype", _dtype(value))
        if isinstance(value, Trace):
            return ("trace", self.trace(value))
        return self._rare(value, node)

    def _rare(self, value: Any, node: OutputRefs) -> Any:
        kind = type(value)
        if kind is complex:
            return ("complex", struct.pack("<dd", value.real, value.imag))
        if kind is dict:
            pairs = [(self._value(k, node), self._value(v, node)) for k, v in value.items()]
            return ("dict", pairs)
        if isinstance(value, np.ndarray | np.generic):
            return (kind.__name__, self._array(np.asarray(value)))
        if isinstance(value, Device):
            return ("device", value.name)
        if isinstance(value, Enum) and kind.__module__.startswith("weft."):
            return ("enum", kind.__qualname__, value.name)
        if is_dataclass(value) and kind.__module__.startswith("weft."):
            parts = [self._value(getattr(value, each.name), node) for each in fields(value)]
            return ("record", f"{kind.__module__}.{kind.__qualname__}", parts)
        self.opaque[node] = None
        try:
            return ("opaque", self._functions.setdefault(value, len(self._functions)))
        except TypeError:  # it has no hash: nothing is known to be the same
            raise _Nameless from None


@cache
def _dtype(dtype: Any) -> str:
    return str(dtype.name)  # which NumPy makes anew each time


def program_key(
    trace: Trace,
    donated: Sequence[bool],
    general: bool,
    own: bool = False,
    lasting: Sequence[bool] = (),
) -> tuple[str | None, dict[OutputRefs, None]]:
    """The name of what compiles `trace`, or None if it has none; and calls of unnamed functions."""
    namer = Namer()
    try:
        graph = namer.trace(trace)
    except _Nameless:
        return None, {}
    targets = [
        (t.triple, t.cpu, t.features, t.vector_bytes) for t in (chosen_target(), host_target())
    ]
    limits = settings.check_bounds > 0, settings.kept_bytes
    shared = pool.cores, settings.threads  # among which work is
    made = (tuple(donated), general, own, tuple(lasting), limits, shared)
    whole = (_FORMAT, package_fingerprint(), targets, made, graph)
    return hashlib.sha256(_spelled(whole)).hexdigest(), namer.opaque


def _spelled(whole: tuple[Any, ...]) -> bytes:
    """Nested tuples as bytes that say what they are, and nothing of how they lie in memory."""
    try:
        return marshal.dumps(whole, _NO_REFERENCES)
    except ValueError:  # something that is no plain number or text
        return repr(whole).encode()
