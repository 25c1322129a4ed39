"""Trace a function for compilation: what it is given, what it captures, what it draws.

Everything that may differ at the next call becomes an input of the trace: arguments, numbers, outer
tensors (with the variable they were found in), and the states of random generators. What the
function makes itself is constant; `Trace.captures` of such a trace holds constants alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.compiler.holders import find_variables
from weft.compiler.variables import Shapes, Variable
from weft.core.common import dtypes
from weft.core.common.context import current_device
from weft.core.common.device import Device
from weft.core.common.handler import Handler, installed
from weft.core.common.parameters import shown
from weft.core.common.source import describe, user_position
from weft.core.common.trees import PyTreeDef, tree_flatten, tree_paths
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs, Ref
from weft.core.graph.trace import Trace
from weft.core.tensor.convert import PYTHON_SCALARS, to_tensor, wrap
from weft.core.tensor.impl import TensorImpl, check_running
from weft.core.tensor.number import WIDE, Number
from weft.core.tensor.sharing import count_on, is_shared, own
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import Recorder, without_reading
from weft.core.tensor.views import origin_of
from weft.errors import ConcretizationError, ConversionError
from weft.ops.random.state import Generator, Threads, derive, generator, own_key, threaded

KEY = TensorType((2,), dtypes.uint32)
COUNT = TensorType((), dtypes.uint32)


class Compile(Recorder):
    """Records a function; tells constants it makes from outer tensors it captures."""

    def __init__(self, name: str) -> None:
        super().__init__(label="compile")
        self.name = name
        self.handles: dict[tuple[Tensor, TensorImpl], OutputRefs] = {}
        self.constants: dict[TensorImpl, tuple[OutputRefs, Tensor]] = {}
        self.numbers: dict[OutputRefs, list[Any]] = {}
        self.calls = 0

    def handle(self, op: Any, args: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
        self.calls += 1
        return super().handle(op, args, params)

    def number(self, kind: type, device: Any) -> Number:
        """An input that stands for a Python number."""
        wide = self.input(TensorType((), WIDE[kind]), device)
        used: list[Any] = []
        self.numbers[wide._impl.payload[0]] = used
        return Number.of(kind, wide, used)

    def ref(self, x: Tensor) -> Ref:
        impl = x._impl
        if impl.owner is self:
            result: Ref = impl.payload
            return result
        handle = origin_of(x)
        if self.made_inside(handle) and impl.owner is None:
            if impl not in self.constants:
                leaf = OutputRefs.leaf(None, impl.type, impl.device)
                self.constants[impl] = leaf, _frozen(x)
            return self.constants[impl][0], 0
        key = (handle, impl)
        if key not in self.handles:
            self.handles[key] = OutputRefs.leaf(None, impl.type, impl.device)
        return self.handles[key], 0

    def made_inside(self, x: Tensor) -> bool:
        """Whether a handle was made while this recorder ran."""
        scope: Handler | None = getattr(x, "_scope", None)
        while scope is not None and scope is not self:
            scope = scope.outer
        return scope is self

    def read(self, payload: Ref) -> Any:
        check_running(self)
        node, slot = payload
        is_number = any(source in self.numbers for source in (node, *(n for n, _ in node.inputs)))
        hint = (
            "mark the argument static (static_argnames=…) to use its value in Python"
            if is_number
            else f"{without_reading(node.types[slot])}; wf.print prints"
        )
        raise ConcretizationError(
            f"compile: {self.name}: {node.name}: a value ({node.types[slot]}) was read where only"
            f" shapes are known, at {describe(user_position(2))}\nhint: {hint}"
        )


def _frozen(x: Tensor) -> Tensor:
    """A constant that stays: nobody else can change its memory, nor assign to its handle."""
    data = x.data()
    if x._impl.shared or is_shared(data):
        data = own(data)
        x = Tensor(TensorImpl.realized(data, x.type, x.device))
    count_on(data)
    return Tensor(x._impl)


@dataclass
class Slot:
    """The state of one generator on one device as inputs of a trace.

    It takes as many keys as were drawn on all devices; states elsewhere share what it has taken.
    """

    source: Generator | None  # None: the one that is chosen where the compiled function is called
    device: Device
    drawn: int = 0
    shares: int | None = None  # the slot of the same generator that takes the keys


class Threaded(Threads):
    """Gives generators traced states, made when first drawn from."""

    def __init__(self, recorder: Compile) -> None:
        super().__init__()
        self.recorder = recorder
        self.chosen = generator()
        self.slots: dict[tuple[Generator, Device], Slot] = {}
        self.inputs: dict[tuple[Generator, Device], tuple[Tensor, Tensor]] = {}
        self.draws: dict[OutputRefs, tuple[tuple[Generator, Device], int]] = {}

    def on(self, source: Generator, device: Device | None) -> tuple[Generator, Device]:
        """Where the traced state of a generator is found, on a device or where draws are wanted."""
        if device is None:
            device = current_device()  # a state of the host is copied there
            device = source.get_device() if device.kind == "cpu" else device
        place = source, device
        if place not in self.slots:
            with installed(self.recorder):
                key = self.recorder.input(KEY, device)
                self.inputs[place] = key, self.recorder.input(COUNT, device)
            first = next((k for k, (s, _) in enumerate(self.slots) if s is source), None)
            mine = None if source is self.chosen else source
            self.slots[place] = Slot(mine, device, shares=first)
        return place

    def state_at(
        self, source: Generator, number: int, device: Device | None = None
    ) -> tuple[Tensor, Tensor]:
        key, count = self.inputs[self.on(source, device)]
        with installed(self.recorder):
            return key, count + number

    def key(self, source: Generator, number: int, device: Device | None = None) -> Tensor:
        # Made here, not inside the function's own loops and maps: each run draws it once, as the
        # traced function does, and maps around the compiled function can find it (`draws`).
        place = self.on(source, device)
        base, count = self.inputs[place]
        with installed(self.recorder):
            key = derive(base, count + number)
        self.draws[key._impl.payload[0]] = place, number
        return own_key(key, source, until=self.recorder)

    def taken(self) -> tuple[Slot, ...]:
        """All states, the first one of each generator with the number of keys that were drawn."""
        for (source, _), slot in self.slots.items():
            slot.drawn = self.drawn.get(source, 0) if slot.shares is None else 0
        return tuple(self.slots.values())


@dataclass(frozen=True, eq=False)
class Capture:
    """An outer tensor the function uses, and the variables that held it, if any did."""

    handle: Tensor | None  # if no variable held it
    type: TensorType
    device: Device
    variables: tuple[Variable, ...]
    spec: Any = None  # how it lay over a mesh

    def current(self, shapes: Shapes) -> Any:
        """What the variables hold now."""
        return self.variables[0].read(shapes) if self.variables else self.handle

    def parted(self, held: Any, shapes: Shapes) -> str:
        """The name of a variable that holds another tensor than the first one; empty if none."""
        others = self.variables[1:]
        return next((each.path for each in others if each.read(shapes) is not held), "")

    @property
    def name(self) -> str:
        """How messages call it."""
        return self.variables[0].path if self.variables else "a captured tensor"


@dataclass(frozen=True, eq=False)
class Program:
    """A traced function: inputs are leaves, generator states, captures; then constants."""

    trace: Trace
    structure: PyTreeDef
    captures: tuple[Capture, ...]
    slots: tuple[Slot, ...]
    draws: dict[OutputRefs, tuple[int, int]]  # keys drawn: which slot, which number
    limits: tuple[tuple[int, int] | None, ...]  # for each leaf, the range an integer must be in
    lasting: bool  # false if it captured tensors of a transform that will end
    calls: int  # that the function made
    shared: int  # of them, repetitions of an equal one

    def captured(self) -> list[Any]:
        """What is captured now."""
        shapes = Shapes()
        return [each.current(shapes) for each in self.captures]


def capture(
    function: Callable[..., Any], name: str, leaves: Sequence[Any], build: Any
) -> tuple[Program, list[Tensor]]:
    """Run `function` once on abstract leaves: types of tensors, or Python's number types.

    `build` puts leaves into positional and keyword arguments. With the program come the tensors
    that it captured.
    """
    with Compile(name) as recorder:
        assert isinstance(recorder, Compile)
        threads = Threaded(recorder)
        with threaded(threads):
            inputs = [
                recorder.number(kind, device)
                if isinstance(kind, type)
                else recorder.input(kind, device, spec)
                for kind, device, spec in leaves
            ]
            args, keywords = build(inputs)
            result = function(*args, **keywords)
            outputs, structure = tree_flatten(result)
            tensors = [_output(name, x, result, place) for place, x in enumerate(outputs)]
    refs = tuple(map(recorder.ref, tensors))
    given = (*args, *keywords.values())
    handles = [handle for handle, _ in recorder.handles]
    variables = find_variables(function, handles, given)
    return _program(recorder, threads, variables, refs, structure, inputs), handles


def _program(
    recorder: Compile,
    threads: Threaded,
    variables: dict[int, tuple[Variable, ...]],
    refs: tuple[Ref, ...],
    structure: PyTreeDef,
    leaves: list[Tensor],
) -> Program:
    captures = tuple(
        Capture(None if held else handle, impl.type, impl.device, held, impl.spec)
        for handle, impl in recorder.handles
        for held in (variables[id(handle)],)
    )
    constants = recorder.constants.values()
    slots = {place: number for number, place in enumerate(threads.slots)}
    inputs = (*recorder.inputs, *recorder.handles.values(), *(leaf for leaf, _ in constants))
    kept = tuple(tensor for _, tensor in constants)
    trace = Trace(inputs, refs, tuple(recorder.effects), kept, recorder.name)
    owners = [impl.owner for _, impl in recorder.handles]
    return Program(
        trace,
        structure,
        captures,
        threads.taken(),
        {node: (slots[place], n) for node, (place, n) in threads.draws.items()},
        tuple(_limits(x) for x in leaves),
        all(owner is None or owner.ambient for owner in owners),
        recorder.calls,
        recorder.calls - recorder.made,
    )


def _limits(leaf: Tensor) -> tuple[int, int] | None:
    """The integers that fit every dtype an integer argument was used as."""
    if type(leaf) is not Number or leaf.python is not int:
        return None
    used = [np.iinfo(d) for d in (*(leaf.used or ()), WIDE[int]) if d.kind in "iu"]
    return max(int(i.min) for i in used), min(int(i.max) for i in used)


def _output(name: str, x: Any, result: Any, place: int) -> Tensor:
    if isinstance(x, Tensor):
        return x
    if type(x) in PYTHON_SCALARS or isinstance(x, np.ndarray | np.generic):
        made = to_tensor(x, op="compile")
        return wrap(np.array(made.host()), made.device)
    path = tree_paths(result)[place]
    raise ConversionError(
        f"compile: {name}: result{path}: expected tensors and numbers, got {shown(x)}"
        "\nhint: return what Python needs separately, outside the compiled function"
    )
