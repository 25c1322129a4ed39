"""`Calls`: a graph under construction in which equal calls are one and constants are known.

Rules of algebra ask it what is known about an operand and make calls through it, so that what a
rule makes is simplified and shared in its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.core.common.device import Device
from weft.core.common.frozen import freeze
from weft.core.common.slots import OPS
from weft.core.common.types import Array, TensorType
from weft.core.graph.graph import execute
from weft.core.graph.node import OutputRefs, Ref
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.sharing import count_on
from weft.core.tensor.tensor import Tensor
from weft.runtime.gpu.array import GpuArray
from weft.runtime.registry import client

SMALL_BYTES = 64 * 1024  # constants up to this size are compared, and made without asking
# x1 op x2 has the bits of x2 op x1; not so maximum, which keeps the first of -0.0 and 0.0.
COMMUTATIVE = frozenset(
    ["add", "multiply", "equal", "not_equal", "bitwise_and", "bitwise_or", "bitwise_xor"]
)
GPUS = frozenset({"cuda", "webgpu"})
_MOVES = frozenset({"broadcast_to", "reshape", "permute", "slice", "flip"})


class Call(NamedTuple):
    """A call of an op with one result, not yet made; `like` is the recorded call it comes from."""

    op: Any
    inputs: tuple[Ref, ...]
    params: Mapping[str, Any]
    kind: TensorType
    like: OutputRefs

    def source_kind(self, operand: int) -> TensorType:
        """Shape and dtype of an operand."""
        node, slot = self.inputs[operand]
        return node.types[slot]


Rule: TypeAlias = "Callable[[Calls, Call], Ref | None]"


class Calls:
    """Makes calls. With `makes_constants` false no new constants appear, as in a loop's body."""

    def __init__(
        self,
        rules: Mapping[str, tuple[Rule, ...]],
        makes_constants: bool = True,
        readers: Mapping[OutputRefs, int] | None = None,
    ) -> None:
        self.makes_constants = makes_constants
        self._readers = readers or {}  # how often recorded calls are read
        self.tensors: dict[OutputRefs, Tensor] = {}  # the constants, as captured tensors
        self._rules = rules
        self._table: dict[Any, OutputRefs] = {}
        self._numbers: dict[OutputRefs, int] = {}
        self._data: dict[OutputRefs, Array] = {}
        self._leaves: dict[Any, OutputRefs] = {}
        self._uniform: dict[OutputRefs, Array | None] = {}

    # -- what is known ---------------------------------------------------------------------

    def know(self, leaf: OutputRefs, data: Any) -> Ref:
        """Take an input as a constant; the result is the leaf that stands for equal ones."""
        if not isinstance(data, np.ndarray):
            if isinstance(data, GpuArray) and data.size == 1:
                self._uniform[leaf] = data.to_host().reshape(())
            return leaf, 0
        self._data[leaf] = data
        if data.nbytes > SMALL_BYTES:
            return leaf, 0
        return self._leaves.setdefault(_key(data, leaf.device), leaf), 0

    def constant(self, data: Any, kind: TensorType, device: Device) -> Ref | None:
        """A constant with these values; None where no new one may be made."""
        small = isinstance(data, np.ndarray) and data.nbytes <= SMALL_BYTES
        found = self._leaves.get(_key(data, device)) if small else None
        if found is not None:
            return found, 0
        if not self.makes_constants:
            return None
        count_on(data)
        leaf = OutputRefs.leaf(None, kind, device)
        if device.kind not in GPUS:
            self.tensors[leaf] = Tensor(TensorImpl.realized(data, kind, device))
            return self.know(leaf, data)
        there = client(device).to_device(data)
        self.tensors[leaf] = Tensor(TensorImpl.realized(there, kind, device))
        self._uniform[leaf] = _uniform(data)
        return self._leaves.setdefault(_key(data, device), leaf), 0

    def number_of(self, value: Any, like: Ref, device: Device) -> Ref | None:
        """A number in the dtype of `like`, as a constant with no axes."""
        dtype = like[0].types[like[1]].dtype
        return self.constant(np.array(value, dtype), TensorType((), dtype), device)

    def data(self, ref: Ref) -> Array | None:
        """The values of a constant; also of one that is repeated, if that is small."""
        node = ref[0]
        if node.op is None or node.op.name != "broadcast_to" or node.types[0].nbytes > SMALL_BYTES:
            return self._data.get(node)
        source = self._data.get(node.inputs[0][0])
        if source is None:
            return None
        repeated: Array = execute(node, (source,))[0]
        return repeated

    def number(self, ref: Ref) -> Array | None:
        """The one value that all elements of a result are known to have, with no axes."""
        node = ref[0]
        while node.op is not None and node.op.name in _MOVES:
            node = node.inputs[0][0]
        if node not in self._uniform:
            self._uniform[node] = _uniform(self._data.get(node))
        return self._uniform[node]

    def made_by(self, ref: Ref, *names: str) -> OutputRefs | None:
        """The call behind a result, if it is one of these ops."""
        node = ref[0]
        return node if node.op is not None and node.op.name in names else None

    def is_read_once(self, call: Call) -> bool:
        """Whether what a recorded call with one operand reads has no other reader."""
        return call.like.op is call.op and self._readers.get(call.like.inputs[0][0]) == 1

    # -- making calls ----------------------------------------------------------------------

    def call(
        self, op: str, inputs: tuple[Ref, ...], params: Mapping[str, Any], like: OutputRefs
    ) -> Ref:
        """The result of a call in the place of `like`, simplified if a rule holds."""
        found = OPS[op]
        kind = found.infer(*(node.types[slot] for node, slot in inputs), **params)
        call = Call(found, inputs, params, kind, like)
        simpler = self.simplified(call)
        if simpler is not None:
            return simpler
        node = OutputRefs(found, inputs, dict(params), (kind,), like.device, like.position)
        return self.shared(node), 0

    def simplified(self, call: Call) -> Ref | None:
        """What gives the same bits for less, by the first rule that holds."""
        for rule in self._rules.get(call.op.name, ()):
            found = rule(self, call)
            if found is not None:
                return found
        return None

    def fitted(self, ref: Ref, call: Call) -> Ref | None:
        """`ref` in the shape of the call's result; None if its dtype is another."""
        kind = ref[0].types[ref[1]]
        if kind == call.kind:
            return ref
        if kind.dtype != call.kind.dtype:
            return None
        params = {"rank": len(kind.shape), "shape": call.kind.shape}
        return self.call("broadcast_to", (ref,), params, call.like)

    def filled(self, value: Any, call: Call) -> Ref | None:
        """The call's result if all its elements are `value`."""
        ref = self.constant(
            np.array(value, call.kind.dtype), TensorType((), call.kind.dtype), call.like.device
        )
        return None if ref is None else self.fitted(ref, call)

    def shared(self, node: OutputRefs) -> OutputRefs:
        """The first of the calls that equal this one, which must have no effects."""
        inputs = node.inputs
        if node.op.name in COMMUTATIVE:
            inputs = tuple(sorted(inputs, key=self._number))
        key = (node.op, inputs, freeze(node.params), node.device, node.specs)
        return self._table.setdefault(key, node)

    def _number(self, ref: Ref) -> tuple[int, int]:
        return self._numbers.setdefault(ref[0], len(self._numbers)), ref[1]


def _key(data: Array, device: Device) -> Any:
    """What tells constants apart: every bit, so 0.0 and -0.0 too."""
    return data.dtype, data.shape, data.tobytes(), device


def _uniform(data: Array | None) -> Array | None:
    if data is None or not 0 < data.nbytes <= SMALL_BYTES:
        return None
    if data.ndim == 0:
        return data
    raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8).reshape(data.size, -1)
    return data.reshape(-1)[0:1].reshape(()) if (raw == raw[0]).all() else None
