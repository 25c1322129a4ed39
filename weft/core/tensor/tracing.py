"""Run a function on shapes alone: `trace` captures its graph, `eval_shape` its result types.

Inside, tensors have shape and dtype but no value; outer tensors the function uses become captures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.common import dtypes
from weft.core.common.context import current_device
from weft.core.common.frozen import freeze
from weft.core.common.handler import Handler, installed, perform
from weft.core.common.parameters import as_function
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.source import describe, user_position
from weft.core.common.trees import PyTreeDef, tree_flatten, tree_leaves, tree_map, tree_unflatten
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace
from weft.core.tensor.convert import PYTHON_SCALARS, to_tensor
from weft.core.tensor.impl import TensorImpl, check_running, common_device, leaked
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import ArgumentError, ConcretizationError, ConversionError


def without_reading(kind: TensorType) -> str:
    """How to write what reads values of this type, where there are none."""
    if kind.shape and dtypes.is_bool(kind.dtype):
        return (
            "how many elements a mask picks is not known here: keep all, wf.where(mask, x, 0.0),"
            " or say how many, x[wf.nonzero(mask, size=…)]"
        )
    return "use wf.where, wf.cond or wf.while_loop instead of Python's if and while"


def read_for_size(x: Tensor, instead: str) -> Any:
    """The values of `x`, which decide a size; where none can be read, what to give `instead`."""
    try:
        return x.host()
    except ConcretizationError as error:
        raise ConcretizationError(
            f"{error}".partition("\nhint: ")[0] + f"\nhint: {instead}"
        ) from None


class Recorder(Handler):
    """Records every op as a node; equal calls are one node.

    A `partial` recorder lets ops on outer tensors alone run outside, and records only the others.
    """

    def __init__(self, partial: bool = False, label: str = "trace") -> None:
        super().__init__()
        self.label = label
        self.partial = partial
        self.inputs: list[OutputRefs] = []
        self.captures: dict[TensorImpl, OutputRefs] = {}
        self.captured: list[Tensor] = []
        self.effects: list[OutputRefs] = []
        self._table: dict[Any, OutputRefs] = {}
        self._types: dict[Any, tuple[TensorType, ...]] = {}

    def input(self, kind: TensorType, device: Any, spec: Any = None) -> Tensor:
        """A new input of the trace."""
        node = OutputRefs.leaf(None, kind, device)
        if spec is not None:
            node.specs = (spec,)
        self.inputs.append(node)
        return self._tensor(node, 0)

    def _tensor(self, node: OutputRefs, slot: int) -> Tensor:
        impl = TensorImpl.owned(node.types[slot], node.place(slot), self, (node, slot))
        if node.specs is not None:
            impl.spec = node.specs[slot]
        return Tensor(impl)

    def ref(self, x: Tensor) -> Ref:
        """`x` as an input of a recorded call; an outer tensor is captured."""
        impl = x._impl
        if impl.owner is self:
            result: Ref = impl.payload
            return result
        if impl not in self.captures:
            self.captures[impl] = OutputRefs.leaf(None, x.type, x.device)
            self.captured.append(x)
        return self.captures[impl], 0

    def _is_outside(self, owner: Handler | None) -> bool:
        """Whether tensors of `owner` can be captured: it runs outside this recorder."""
        handler = self.outer
        while handler is not None and handler is not owner:
            handler = handler.outer
        return handler is owner or (owner is not None and owner.ambient)

    def handle(self, op: Any, args: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
        if self.partial and all(a._impl.owner is not self for a in args):
            with installed(self.outer):
                return perform(op, args, params)
        impls = tuple([a._impl for a in args])
        for position, impl in enumerate(impls):
            if impl.owner is not self and not self._is_outside(impl.owner):
                raise leaked(op, position, impl)
        frozen = freeze(params) if params else ()
        types = self._inferred(op, impls, params, frozen)
        refs = tuple([self.ref(a) for a in args])
        key = (op, refs, frozen)
        node = self._table.get(key) if op.pure else None
        if node is None:
            device = common_device(op, impls, params)
            node = OutputRefs(op, refs, params, types, device, user_position(2))
            if op.home is not None or any([impl.spec is not None for impl in impls]):
                node.specs = FUNCTIONS["result_layouts"](op, impls, params)
            self._table[key] = node
            if not op.pure:
                self.effects.append(node)
        if not op.multiple:
            return self._tensor(node, 0)
        return tuple([self._tensor(node, slot) for slot in range(len(types))])

    def _inferred(
        self, op: Any, impls: tuple[TensorImpl, ...], params: dict[str, Any], frozen: Any
    ) -> tuple[TensorType, ...]:
        """The types of a call's results: layers of one shape ask the same many times over."""
        given = tuple([impl.type for impl in impls])
        key = (op, given, frozen)
        types = self._types.get(key)
        if types is None:
            inferred = op.infer(*given, **params)
            types = (inferred,) if isinstance(inferred, TensorType) else tuple(inferred)
            self._types[key] = types
        return types

    def read(self, payload: Ref) -> Any:
        check_running(self)
        node, _ = payload
        raise ConcretizationError(
            f"{node.name}: a value ({node.types[payload[1]]}) was read where only shapes are known,"
            f" at {describe(user_position(2))}\nhint: {without_reading(node.types[payload[1]])}"
        )

    @property
    def made(self) -> int:
        """How many different calls were recorded."""
        return len(self._table)

    def finish(self, outputs: list[Tensor], name: str) -> Trace:
        """The trace that computes `outputs`."""
        refs = tuple(map(self.ref, outputs))
        inputs = (*self.inputs, *self.captures.values())
        return Trace(inputs, refs, tuple(self.effects), self._as_they_were(), name)

    def _as_they_were(self) -> tuple[Tensor, ...]:
        """What was captured, whatever its handles are assigned meanwhile and later."""
        pairs = zip(self.captures, self.captured, strict=True)
        return tuple(alias(x) if x._impl is impl else Tensor(impl) for impl, x in pairs)


def abstract(recorder: Recorder, leaf: Any) -> Tensor:
    """An input like `leaf`: a tensor, a `TensorType`, or a number."""
    if isinstance(leaf, TensorType):
        return recorder.input(leaf, current_device())
    if isinstance(leaf, Tensor):
        return recorder.input(leaf.type, leaf.device, _layout(leaf))
    tensor = to_tensor(leaf, op="trace")
    return recorder.input(tensor.type, tensor.device)


def _layout(x: Tensor) -> Any:
    """How a tensor lies over a mesh; None if it does not."""
    spec = x.sharding
    return None if spec.mesh is None else spec


def is_type(leaf: Any) -> bool:
    """Whether a tree node is a `TensorType`, which is a leaf though it is a tuple."""
    return isinstance(leaf, TensorType)


def trace_tree(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    label: str = "trace",
) -> tuple[Trace, PyTreeDef]:
    """The trace of a function of trees, and the structure of its result."""
    as_function(label, "function", function)
    leaves, structure = tree_flatten((args, keywords), is_leaf=is_type)
    with Recorder(label=label) as recorder:
        assert isinstance(recorder, Recorder)
        inputs = [abstract(recorder, leaf) for leaf in leaves]
        positional, named = tree_unflatten(structure, inputs)
        outputs, shape = tree_flatten(function(*positional, **named))
        tensors = [_output(x, inputs) for x in outputs]
    return recorder.finish(tensors, getattr(function, "__name__", "trace")), shape


def _output(x: Any, inputs: list[Tensor]) -> Tensor:
    if isinstance(x, Tensor) or type(x) in PYTHON_SCALARS:
        return to_tensor(x, beside=tuple(inputs))
    raise ConversionError(f"trace: the function returned {type(x).__name__}, not tensors")


@public
def trace(function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Trace:
    """Capture `function` as a graph by running it once on shapes: `print(trace(f, x))`."""
    if isinstance(function, Tensor):
        raise ArgumentError(
            f"trace: captures a function, got {function.type}"
            "\nhint: wf.linalg.trace is the sum of a diagonal"
        )
    return trace_tree(function, args, keywords)[0]


@public
def eval_shape(function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Any:
    """The shapes and dtypes `function` would return, without computing anything."""
    traced, structure = trace_tree(function, args, keywords)
    return tree_unflatten(structure, traced.output_types)


@public
def tensor_leaves(tree: Any) -> list[Tensor]:
    """The tensors in a tree, from left to right."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@public
def traced(tree: Any) -> Any:
    """The same tensors, but everything done with them is recorded, however small they are."""

    def mark(x: Any) -> Any:
        if not isinstance(x, Tensor) or x.owner is not None:
            return x
        node, slot = x._impl.ref()
        made = Tensor(TensorImpl.recorded(node, slot))
        made._impl.traced = True
        made._impl.shared = x._impl.shared
        return made

    return tree_map(mark, tree)


@public
def untraced(tree: Any) -> Any:
    """The same values, computed, and recorded no more than any other tensor."""

    def settle(x: Any) -> Any:
        if not isinstance(x, Tensor) or x.owner is not None:
            return x
        made = Tensor(TensorImpl(x.shape, x.dtype, x.device, x.data()))
        made._impl.shared = x._impl.shared
        return made

    return tree_map(settle, tree)


__all__ = [
    "eval_shape",
    "tensor_leaves",
    "trace",
    "traced",
    "untraced",
]
