"""One element of one result, in scalar instructions: how fused calls are computed.

`Pull` asks a call for its element at an index; the call's `body` or `at` asks for elements of its
operands, and so on, down to what memory holds. Views disappear on the way: they only move indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np

from weft.compiler.balanced import balanced, combined
from weft.compiler.build import Builder
from weft.compiler.complex_values import stand_in
from weft.compiler.index import Index, Part
from weft.compiler.loops import (
    BOOL,
    INDEX,
    LANES,
    Value,
    const,
    identity_of,
    integer,
    literal,
    value,
    values_in,
)
from weft.compiler.passes.spell import spelled
from weft.core.common import dtypes
from weft.core.common.frozen import freeze
from weft.core.common.types import DType, Shape, TensorType
from weft.core.graph.node import OutputRefs, Ref
from weft.errors import MissingRuleError, UnsupportedDTypeError, UnsupportedError
from weft.ops.base import Operation
from weft.ops.families import ElementwiseOperation, LogicalShapeOperation, ReduceOperation
from weft.ops.fft import FourierTransform
from weft.ops.gather import Scatter
from weft.ops.matrices import FewRowsOperation
from weft.ops.reduction import ArgExtremum
from weft.ops.sorting import Ordering
from weft.ops.view.join import Concat, Pad
from weft.ops.view.slice import SliceUpdate
from weft.ops.view.window import OverlapAdd, Window

Point: TypeAlias = tuple[Index, ...]
Source: TypeAlias = Callable[[Ref, Point], Value | None]

DTYPES = frozenset(
    map(np.dtype, ["?", "b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "e", "f", "d", "F", "D"])
) | {dtypes.bfloat16}
FEW_PIECES = 4  # of a join that are a choice for each of its elements
STACKED = 16  # elements of a row that is written out where its parts are joined
PART = 3  # elements of each such part, at most
SHARED = 64  # rows that threads can share among them,
UNSHARED = 1 << 14  # and elements that they need not
DIVISIONS = frozenset({"floor_divide", "remainder", "fmod"})
MOST_TAPS = 32  # elements of a window that are written out one by one
_BYTES = frozenset({dtypes.float8_e4m3, dtypes.float8_e5m2})  # moved, cast and multiplied only
_FLOAT = np.dtype(np.float32)
_FLOATS = frozenset({_FLOAT, np.dtype(np.float64)})
_ZERO = Index({}, 0)
_FREE = frozenset({"get", "const", "complex"})  # no instructions
_DECIDED = frozenset({"less", "less_equal", "equal", "min", "max"})


class Pull(Builder):
    """Computes elements of calls; `source` gives what memory or a register holds already."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self._known: dict[tuple[Ref, Point], Value] = {}

    def operand(self, x: Any) -> Any:
        """Indices become values where an instruction takes them."""
        return x.value if isinstance(x, Index) else x

    def _binary(self, op: str, x: Any, y: Any, dtype: DType | None = None) -> Value:
        left, right = self._operands(x, y)
        if op == "bit_and" and left.dtype == right.dtype == BOOL:
            for one, other in ((left, right), (right, left)):
                if one.op == "const":
                    return other if literal(one) else one
        if left.dtype == right.dtype == INDEX and op in _DECIDED:
            known = _decided(op, left, right)
            if known is not None:
                return known
        return super()._binary(op, left, right, dtype)

    def at(self, ref: Ref, index: Sequence[Part]) -> Value:
        """The element of a result at `index`, which may have leading axes the result lacks."""
        node, slot = ref
        shape = node.types[slot].shape
        index = index[len(index) - len(shape) :]
        point = tuple(
            _ZERO if size == 1 else inside(i, size) for i, size in zip(index, shape, strict=True)
        )
        key = (ref, point)
        found = self._known.get(key)
        if found is None:
            found = self._source(ref, point)
            if found is None:
                found = self.compute(node, point)
            self._known[key] = found
        return found

    def compute(self, node: OutputRefs, point: Point) -> Value:
        """The element of a call's only result, from its operands' elements."""
        op, types = node.op, tuple(source.types[slot] for source, slot in node.inputs)
        if isinstance(op, ReduceOperation):
            return self._reduced(node, point)
        narrow = op.widen and any(dtypes.is_narrow(t.dtype) for t in types)

        def read(operand: int, index: Sequence[Part]) -> Value:
            if operand == 1 and op.name in DIVISIONS:
                number = divisor(node.inputs[operand])
                if number is not None:
                    return number
            x = self.at(node.inputs[operand], index)
            return self.cast(x, _FLOAT) if narrow and dtypes.is_narrow(x.dtype) else x

        if op.has("at"):
            made = op.at(self, point, read, *types, **node.params)
        else:
            args = [read(i, point) for i in range(len(types))]
            made = op.body(self, *args, **node.params)
        return self.fit(made, node.types[0].dtype)

    def _reduced(self, node: OutputRefs, point: Point) -> Value:
        """A reduction of few elements, or of none."""
        if reduced_size(node) == 0 or isinstance(node.op, ArgExtremum):
            return nothing(node)
        source, slot = node.inputs[0]
        axes = reduced_axes(node)
        found = []
        for places in product(*(range(source.types[slot].shape[i]) for i in axes)):
            whole = list(point)
            for position, place in zip(axes, places, strict=True):
                whole.insert(position, Index({}, place))
            x = self.at(node.inputs[0], whole)
            found.append(self.cast(x, _FLOAT) if dtypes.is_narrow(x.dtype) else x)
        made = found[0] if len(found) == 1 else balanced(self, node.op.combine, found, LANES)
        return self.fit(made, node.types[0].dtype)

    def reduce(self, combine: str, extents: Shape, term: Callable[..., Any]) -> Any:
        """Terms of a few points met in order; a sum begins with zero, to which none is added."""
        found = [self.operand(term(*point)) for point in product(*map(range, extents))]
        total = found[0] if combine != "add" else self.const(0, found[0].dtype)
        found = found[1:] if combine != "add" else [x for x in found if x is not total]
        for x in found:
            total = combined(self, combine, total, x)
        return total

    def fit(self, x: Any, dtype: DType) -> Value:
        """`x` in the dtype of a result."""
        found: Value = self.operand(x)
        return found if found.dtype == dtype else self.cast(found, dtype)


def divisor(ref: Ref) -> Value | None:
    """The integer that a result is everywhere, if it is known: division by it is products then."""
    node, slot = ref
    while isinstance(node.op, LogicalShapeOperation) and len(node.inputs) == 1:  # a pad has two
        ((node, slot),) = node.inputs
    number = node.number
    return None if number in (None, 0, -1) else const(number, node.types[slot].dtype)


def reduced_axes(node: OutputRefs) -> tuple[int, ...]:
    """The axes a reduction takes away, counted from the left of its operand."""
    source, slot = node.inputs[0]
    rank = len(source.types[slot].shape)
    return tuple(sorted(axis + rank for axis in node.params["axes"]))


def reduced_size(node: OutputRefs) -> int:
    """How many elements go into each result of a reduction."""
    source, slot = node.inputs[0]
    return prod(source.types[slot].shape[i] for i in reduced_axes(node))


def nothing(node: OutputRefs) -> Value:
    """What a reduction of no element is: a sum is 0, not -0; the place of a lone element."""
    dtype = node.types[0].dtype
    if node.op.combine == "add":
        return Builder().const(0, dtype)
    return identity_of(node.op.combine, dtype)


def _decided(op: str, x: Value, y: Value) -> Value | None:
    """A comparison or choice of indices that their bounds decide."""
    left, right = Index.of(x).bounds, Index.of(y).bounds
    if left is None or right is None:
        return None
    if op == "less":
        return _known(left[1] < right[0], left[0] >= right[1])
    if op == "less_equal":
        return _known(left[1] <= right[0], left[0] > right[1])
    if op == "equal":
        return _known(
            left == right and left[0] == left[1], left[1] < right[0] or right[1] < left[0]
        )
    first, second = (x, y) if op == "min" else (y, x)
    if left[1] <= right[0]:
        return first
    return second if right[1] <= left[0] else None


def _known(yes: bool, no: bool) -> Value | None:
    return const(yes, BOOL) if yes or no else None


def inside(i: Part, size: int) -> Index:
    """`i`, moved into the axis where it is not known to lie there."""
    index = Index.of(i)
    found = index.bounds
    if found is not None and found[0] >= 0 and found[1] < max(size, 1):
        return index
    low = value("max", (index.value, integer(0)), INDEX)
    return Index.of(value("min", (low, integer(max(size - 1, 0))), INDEX))


def kind_of(node: OutputRefs) -> str:
    """How a call is compiled, in one word: as a view, a map, a product of matrices, on the host…"""
    if not node.kind:
        node.kind = _kind_of(node)
    return node.kind


def _kind_of(node: OutputRefs) -> str:
    op = node.op
    if len(node.types) != 1 or op.multiple or not op.pure or not op.leaf:
        return "host"
    types, (made,) = tuple([source.types[slot] for source, slot in node.inputs]), node.types
    known = {made.dtype, *[t.dtype for t in types]}
    if node.device.kind == "cpu" and not known <= DTYPES:
        return _kind_of_rare(op, known)
    found = _kind(op, types, made, _Frozen(node.params) if node.params else _NONE)
    if found == "reduce" and (reduced_size(node) <= 1 or is_pool(node)):
        return "map"
    return found


def is_pool(node: OutputRefs) -> bool:
    """Whether a reduction is over the few elements of a window: then each is written out."""
    source, slot = node.inputs[0]
    if isinstance(node.op, ArgExtremum) or reduced_size(node) > MOST_TAPS:
        return False
    window = is_of_windows((source, slot))
    axes = sorted(node.params["axes"])
    return bool(window) and axes == list(range(-len(window), 0))


def is_of_windows(ref: Ref, depth: int = 4) -> Shape:
    """The sizes of the windows that a result is, or is computed of element by element; or none."""
    node, slot = ref
    if isinstance(node.op, Window):
        window: Shape = node.params["window"]
        return window
    if depth and isinstance(node.op, ElementwiseOperation):
        for source, k in node.inputs:
            if source.types[k].shape == node.types[slot].shape:
                found = is_of_windows((source, k), depth - 1)
                if found:
                    return found
    return ()


def _kind_of_rare(op: Operation, found: set[DType]) -> str:
    """How a call of dtypes that kernels do not compute with is compiled."""
    moves = isinstance(op, LogicalShapeOperation) and not isinstance(op, Pad | Concat | SliceUpdate)
    if moves or op.name == "matmul":
        whole = len(found) == 1 and found <= _BYTES
        return "host" if not whole else "view" if moves else "dot"
    return "map" if op.name == "cast" and found <= DTYPES | _BYTES else "host"


class _Frozen:
    """Parameters that can be a key."""

    __slots__ = ("_hash", "key", "params")

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params
        self.key = freeze(params)
        self._hash = hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and self.key == other.key

    def __hash__(self) -> int:
        return self._hash


def is_stack(node: OutputRefs) -> bool:
    """Whether a call puts rows of a few elements together, each of a few parts."""
    types = tuple(source.types[slot] for source, slot in node.inputs)
    return isinstance(node.op, Concat) and _stacks(types, node.types[0], node.params["axis"])


def _stacks(types: tuple[TensorType, ...], made: TensorType, axis: int) -> bool:
    few = made.rank > 1 and axis == -1 and made.shape[-1] <= STACKED
    return few and all(t.shape[-1] <= PART and t.rank == made.rank for t in types)


def joined_axis(node: OutputRefs) -> int | None:
    """The axis along which a call joins a few pieces, if many rows have parts of all of them."""
    if not isinstance(node.op, Concat) or len(node.inputs) > FEW_PIECES or is_stack(node):
        return None
    kind, axis = node.types[0], node.types[0].rank + node.params["axis"]
    rows = prod(kind.shape[:axis])
    return axis if rows >= SHARED or (rows > 1 and kind.size <= UNSHARED) else None


@lru_cache(4096)
def _kind(op: Operation, types: tuple[TensorType, ...], made: TensorType, params: _Frozen) -> str:
    if any(t.dtype not in DTYPES for t in (*types, made)):
        return "host"
    if any(dtypes.is_complex(t.dtype) for t in types) and not _takes_complex(op):
        return "host"
    if isinstance(op, Scatter):
        return "scatter"
    if isinstance(op, Ordering):
        return "order"
    if isinstance(op, FourierTransform):
        return "fourier" if op.is_smooth(*types, **params.params) else "host"
    if isinstance(op, Concat) and len(types) > FEW_PIECES:
        return "map" if _stacks(types, made, params.params["axis"]) else "join"
    if isinstance(op, LogicalShapeOperation):
        return "map" if isinstance(op, Pad | Concat | SliceUpdate) else "view"
    if isinstance(op, ArgExtremum):
        return "reduce"
    if op.name == "conv":
        return "conv"
    if isinstance(op, FewRowsOperation):
        return "few" if made.dtype in _FLOATS and op.is_few(*(t.shape for t in types)) else "host"
    if op.has("at"):
        wide = (
            isinstance(op, OverlapAdd)
            and prod(types[0].shape[-len(params.params["space"]) :]) > MOST_TAPS
        )
        return "host" if wide else "map"
    if not op.has("body"):
        return "host"
    if getattr(op, "ordered", ""):
        return "ordered"
    if isinstance(op, ReduceOperation):
        return "reduce"
    if op.name == "matmul":
        return "dot"
    return "map" if _has_kernel(op, tuple(t.dtype for t in types), params) else "host"


def _takes_complex(op: Operation) -> bool:
    """Whether an op that is no function of each element has a kernel for complex numbers."""
    if isinstance(op, ReduceOperation | Scatter) or hasattr(op, "ordered"):
        return op.combine in ("add", "last")  # of each part
    return not isinstance(op, Ordering) and op.name != "conv"


@lru_cache(4096)
def _has_kernel(op: Operation, found: tuple[DType, ...], params: _Frozen) -> bool:
    """Whether the body is made of instructions there are for these dtypes."""
    try:
        _body(op, found, params)
    except (UnsupportedError, UnsupportedDTypeError, MissingRuleError):
        return False
    return True


def body(op: Operation, found: tuple[DType, ...], params: dict[str, Any]) -> Any:
    """An op's body on stand-ins: what it is made of."""
    narrow = op.widen and any(map(dtypes.is_narrow, found))
    wide = (_FLOAT if narrow and dtypes.is_narrow(d) else d for d in found)
    args = [stand_in(i, d) for i, d in enumerate(wide)]
    return op.body(Pull(lambda ref, point: None), *args, **params)


@lru_cache(64)  # those who ask do so one soon after the other
def _body(op: Operation, found: tuple[DType, ...], params: _Frozen) -> Any:
    return body(op, found, params.params)


def weight(node: OutputRefs) -> int:
    """About how many instructions one element of a call takes; `fma` counts as the two it does."""
    op = node.op
    if isinstance(op, ReduceOperation) and reduced_size(node) > 1:
        return 2 * reduced_size(node)
    if isinstance(op, OverlapAdd):
        source, slot = node.inputs[0]
        return 8 * prod(source.types[slot].shape[-len(node.params["space"]) :])
    if op.has("at") or not op.has("body"):
        return 100 if op.work >= 50 else 4 if node.inputs else 2
    found = tuple([source.types[slot].dtype for source, slot in node.inputs])
    return _weight(op, found, _Frozen(node.params) if node.params else _NONE)


_NONE = _Frozen({})


@lru_cache(4096)
def _weight(op: Operation, found: tuple[DType, ...], params: _Frozen) -> int:
    made = _body(op, found, params)
    return sum([1 + (v.op == "fma") for v in values_in(spelled(made)) if v.op not in _FREE])


__all__ = ["DTYPES", "Point", "Pull", "body", "inside", "kind_of", "weight"]
