"""Make a trace smaller without changing a bit of what it computes.

One walk in the order of the calls: constants are computed, rules of algebra and movement applied,
equal calls shared; what nobody needs then is gone. A trace's `captures` are taken as constants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np

from weft.compiler.algebra import ALGEBRA, IDENTITIES
from weft.compiler.calls import GPUS, SMALL_BYTES, Call, Calls
from weft.compiler.movement import MOVEMENT
from weft.core.common.types import Array, TensorType
from weft.core.graph.graph import execute
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace
from weft.core.tensor.sharing import is_shared
from weft.core.tensor.tensor import Tensor
from weft.errors import WeftError

Values: TypeAlias = dict[Ref, Ref]  # results of the old trace, and what stands for them

_RULES = {**ALGEBRA, **MOVEMENT}
# Ops that IEEE 754 rounds once, or that do not round: one element tells what all elements are.
_EXACT = frozenset(
    ["add", "subtract", "multiply", "divide", "negative", "square", "sqrt", "abs", "cast", "where"]
    + ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "maximum", "minimum"]
    + ["floor", "ceil", "trunc", "round", "sign", "isnan", "isinf", "isfinite"]
    + ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_invert"]
)
# A number that is repeated stays a number: kernels need no memory for it.
_NOT_FOLDED = frozenset({"broadcast_to", *IDENTITIES})


@dataclass(slots=True)
class RewriteCounts:
    """What became of the calls of a trace, those of its loops and branches included."""

    dead: int = 0  # calls whose result nobody needs any more
    shared: int = 0  # calls that an equal one stands for
    folded: int = 0  # calls on constants, done once
    simplified: int = 0  # calls that a rule removed or replaced

    def add(self, other: RewriteCounts) -> None:
        """Count what another rewriting did too."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def rewrite(trace: Trace) -> tuple[Trace, RewriteCounts]:
    """A trace that computes the same bits with fewer calls, and what was done.

    Inputs that are no captures stay as they are, as do the number of outputs, the order of effects
    and the positions of calls. Captures are constants: unused ones go, computed ones are added. An
    output may become an input or a constant.
    """
    pairs = zip(_captured(trace), trace.captures, strict=True)
    known = {leaf: tensor.data() for leaf, tensor in pairs if _is_constant(tensor)}
    return _Rewriter(trace, known, makes_constants=True).result()


def _is_constant(tensor: Tensor) -> bool:
    """Whether a captured tensor has a value that nobody outside can change."""
    return tensor.owner is None and not tensor._impl.shared and not is_shared(tensor.data())


def _captured(trace: Trace) -> tuple[OutputRefs, ...]:
    return trace.inputs[len(trace.inputs) - len(trace.captures) :]


def _remembered(trace: Trace) -> Iterator[tuple[Ref, Ref]]:
    """Results that are computed again, each with what has kept their value (op `kept`)."""
    for node in trace.nodes:
        if node.op.name == "kept":
            value, made = node.inputs
            if value[0].types[value[1]] == made[0].types[made[1]]:
                yield made, value


@dataclass
class _Rewriter:
    """Rewrites one trace; `known` has the values of those inputs that are constants."""

    trace: Trace
    known: Mapping[OutputRefs, Any]
    makes_constants: bool
    counts: RewriteCounts = field(default_factory=RewriteCounts)

    def __post_init__(self) -> None:
        trace = self.trace
        read = [ref for node in trace.nodes for ref in node.inputs]
        readers = Counter(node for node, _ in (*read, *trace.outputs))
        self.calls = Calls(_RULES, self.makes_constants, readers)
        self.kept: list[OutputRefs] = []  # calls that are still there, in other places perhaps
        self.bodies: dict[Any, Trace] = {}
        self.effects: dict[OutputRefs, OutputRefs] = {}
        self.remembered = dict(_remembered(trace))

    def result(self) -> tuple[Trace, RewriteCounts]:
        """The new trace, or the old one if nothing changed."""
        trace = self.trace
        values: Values = {(leaf, 0): (leaf, 0) for leaf in trace.inputs}
        for leaf, data in self.known.items():
            values[leaf, 0] = self.calls.know(leaf, data)
        effects = set(trace.effects)
        for node in trace.nodes:
            self._place(node, values, fixed=node in effects)
        outputs = tuple(values[ref] for ref in trace.outputs)
        made = self._trace(outputs)
        alive = set(made.nodes)
        self.counts.dead += sum(node not in alive for node in self.kept)
        unchanged = made.nodes == trace.nodes and outputs == trace.outputs
        return (trace if unchanged else made), self.counts

    def _trace(self, outputs: tuple[Ref, ...]) -> Trace:
        trace, effects = self.trace, tuple(self.effects[node] for node in self.trace.effects)
        if not self.makes_constants:
            return Trace(trace.inputs, outputs, effects, trace.captures, trace.name)
        old = dict(zip(_captured(trace), trace.captures, strict=True))
        given = trace.inputs[: len(trace.inputs) - len(old)]
        draft = Trace(given, outputs, effects, (), trace.name)
        used = {source for node in draft.nodes for source, _ in node.inputs}
        used |= {node for node, _ in outputs}
        constants = {leaf: x for leaf, x in {**old, **self.calls.tensors}.items() if leaf in used}
        captures = tuple(constants.values())
        return Trace((*given, *constants), outputs, effects, captures, trace.name)

    # -- one call --------------------------------------------------------------------------

    def _place(self, node: OutputRefs, values: Values, fixed: bool, counted: bool = True) -> None:
        """Decide what stands for a call's results."""
        inputs = tuple(values[ref] for ref in node.inputs)
        fixed = fixed or not node.op.pure
        plain = node.specs is None and not fixed
        found, how = self._simpler(node, inputs) if plain else (None, "")
        if found is None:
            made = self._remade(node, inputs)
            first = made if fixed else self.calls.shared(made)
            if fixed:
                self.effects[node] = made
            found = tuple((first, slot) for slot in range(len(node.types)))
            how = "shared" if first is not made else ""
            if counted and not how:
                self.kept.append(made)
        if counted and how:
            setattr(self.counts, how, getattr(self.counts, how) + 1)
        for slot, ref in enumerate(found):
            known = self.remembered.get((node, slot))
            values[node, slot] = ref if known is None else values.get(known, ref)

    def _simpler(
        self, node: OutputRefs, inputs: tuple[Ref, ...]
    ) -> tuple[tuple[Ref, ...] | None, str]:
        folded = self._folded(node, inputs)
        if folded is not None:
            return folded, "folded"
        if node.op.name == "switch":
            chosen = self._chosen_branch(node, inputs)
            if chosen is not None:
                return chosen, "simplified"
        if len(node.types) == 1 and not node.op.multiple:
            call = Call(node.op, inputs, node.params, node.types[0], node)
            simpler = self.calls.simplified(call)
            if simpler is not None:
                return (simpler,), "simplified"
        return None, ""

    def _remade(self, node: OutputRefs, inputs: tuple[Ref, ...]) -> OutputRefs:
        """The same call on what stands for its operands: the very node where nothing changed."""
        params = node.params if node.op.leaf else self._rewritten_bodies(node, inputs)
        if inputs == node.inputs and params is node.params:
            return node
        made = OutputRefs(node.op, inputs, params, node.types, node.device, node.position)
        made.specs = node.specs
        return made

    # -- constants -------------------------------------------------------------------------

    def _folded(self, node: OutputRefs, inputs: tuple[Ref, ...]) -> tuple[Ref, ...] | None:
        """The results as constants, if the operands are; what fails is left for the run to tell."""
        may = self.makes_constants and inputs and node.op.leaf and node.device.kind not in GPUS
        if not may or node.op.name in _NOT_FOLDED:
            return None
        try:
            return self._repeated(node, inputs) or self._computed(node, inputs)
        except (WeftError, ArithmeticError, ValueError):
            return None

    def _repeated(self, node: OutputRefs, inputs: tuple[Ref, ...]) -> tuple[Ref, ...] | None:
        """One element, if every operand has one value throughout."""
        numbers = [self.calls.number(ref) for ref in inputs]
        arrays = tuple(number for number in numbers if number is not None)
        if node.op.name not in _EXACT or len(arrays) < len(numbers):
            return None
        kind = TensorType((), node.types[0].dtype)
        single = OutputRefs(node.op, inputs, node.params, (kind,), node.device)
        (value,) = execute(single, arrays)
        ref = self.calls.constant(_owned(value), kind, node.device)
        call = Call(node.op, inputs, node.params, node.types[0], node)
        fitted = None if ref is None else self.calls.fitted(ref, call)
        return None if fitted is None else (fitted,)

    def _computed(self, node: OutputRefs, inputs: tuple[Ref, ...]) -> tuple[Ref, ...] | None:
        """All elements, if they are few or no more than those of the operands."""
        arrays = [self.calls.data(ref) for ref in inputs]
        found = tuple(array for array in arrays if array is not None)
        size = sum(kind.nbytes for kind in node.types)
        if len(found) < len(arrays) or size > max(SMALL_BYTES, sum(a.nbytes for a in found)):
            return None
        refs = [
            self.calls.constant(_owned(value), kind, node.device)
            for value, kind in zip(execute(node, found), node.types, strict=True)
        ]
        return tuple(ref for ref in refs if ref is not None)

    # -- subgraphs -------------------------------------------------------------------------

    def _chosen_branch(self, node: OutputRefs, inputs: tuple[Ref, ...]) -> tuple[Ref, ...] | None:
        """The calls of the branch that a constant chooses, in place of the choice."""
        number = self.calls.number(inputs[0])
        if number is None:
            return None
        branches = node.params["branches"]
        branch = branches[min(max(int(number), 0), len(branches) - 1)]
        values: Values = {
            (leaf, 0): ref for leaf, ref in zip(branch.inputs, inputs[1:], strict=True)
        }
        for each in branch.nodes:
            self._place(each, values, fixed=False, counted=False)
        return tuple(values[ref] for ref in branch.outputs)

    def _rewritten_bodies(self, node: OutputRefs, inputs: tuple[Ref, ...]) -> dict[str, Any]:
        """The parameters with every trace in them rewritten; the same object if none changed."""
        numbers = [self.calls.number(ref) for ref in _unchanging(node, inputs)]
        params: dict[str, Any] = {}
        for name, value in node.params.items():
            if isinstance(value, Trace):
                params[name] = self._body(value, numbers)
            elif isinstance(value, tuple) and value and isinstance(value[0], Trace):
                found = tuple(self._body(each, numbers) for each in value)
                params[name] = value if found == value else found
            else:
                params[name] = value
        unchanged = all(params[name] is value for name, value in node.params.items())
        return node.params if unchanged else params

    def _body(self, body: Trace, numbers: Sequence[Array | None]) -> Trace:
        known = {leaf: n for leaf, n in zip(body.inputs, numbers, strict=False) if n is not None}
        whole = {leaf: n for leaf, n in known.items() if leaf.types[0].shape == ()}
        key = (body, tuple((leaf, n.tobytes()) for leaf, n in whole.items()))
        if key not in self.bodies:
            self.bodies[key], counts = _Rewriter(body, whole, makes_constants=False).result()
            self.counts.add(counts)
        return self.bodies[key]


def _unchanging(node: OutputRefs, inputs: tuple[Ref, ...]) -> tuple[Ref, ...]:
    """The operands that are the first inputs of a call's subgraphs, the same at every step."""
    if "branches" in node.params:
        return inputs[1:]
    if "consts" in node.params:
        return inputs[: node.params["consts"]]
    return inputs if "trace" in node.params else ()


def _owned(value: Any) -> Any:
    """A result that shares no memory, in row-major order."""
    return np.array(value, order="C") if isinstance(value, np.ndarray) else value
