"""`Specialization`: one traced and compiled version of a function, for one kind of call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.compiler.build_executable import build
from weft.compiler.capture import Program
from weft.compiler.donation import give
from weft.compiler.executable import Executable
from weft.compiler.flatten import Enter, Leave, make_enter, make_leave
from weft.compiler.partition import Partition, is_distributed, partition
from weft.compiler.signature import Call, Signature, in_objects
from weft.compiler.statistics import Counting
from weft.compiler.variables import Shapes
from weft.core.autograd.imperative import AMBIENT
from weft.core.common.device import Device
from weft.core.common.handler import Handler, current
from weft.core.common.source import blamed
from weft.core.common.spec import ShardingSpec
from weft.core.common.trees import tree_unflatten
from weft.core.graph.graph import GRAPH
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import Trace
from weft.core.sharding.pieces import generation, local_coordinates
from weft.core.tensor.convert import wrap
from weft.core.tensor.number import WIDE, Number
from weft.core.tensor.sharing import is_shared, own
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import CastError
from weft.ops.base import call as perform_call
from weft.ops.communication.mesh import MESH
from weft.ops.placement import to_device
from weft.ops.random.state import Generator, Threads, generator, own_key


class Specialization:
    """A traced function; `build` makes it ready to run on data."""

    enter: Enter
    leave: Leave
    executable: Executable
    run: Callable[[Sequence[Any]], tuple[Any, ...]]
    lower: Callable[[], Trace]
    parts: Partition | None  # over a mesh: the pieces that are compiled
    lasting: frozenset[int]  # inputs of which packed forms may be kept

    def __init__(
        self, signature: Signature, program: Program, paths: list[str], donated: tuple[bool, ...]
    ) -> None:
        self.signature = signature
        self.program = program
        self.paths = paths
        self.donated = donated
        self.hits = 0
        self.is_ready = False
        self._is_eased = False
        self.parts = None
        self._generation = generation()

    def fitting(self) -> list[Any] | None:
        """Captured tensors if they have the types, and devices the owners, of the trace."""
        if self.parts is not None and self._generation != generation():
            return None
        captured, changes = self.capture_changes()
        return None if changes else captured

    def capture_changes(self) -> tuple[list[Any], list[str]]:
        """What is captured now, and which of it has changed, in words."""
        captured, changes = [], []
        shapes = Shapes()
        for each in self.program.captures:
            now = each.current(shapes)
            captured.append(now)
            if not isinstance(now, Tensor):
                changes.append(f"captured tensor {each.name}: {each.variables[0].change()}")
            elif now.type != each.type:
                changes.append(f"captured tensor {each.name}: was {each.type}, now {now.type}")
            elif now._impl.spec != each.spec:
                changes.append(
                    f"captured tensor {each.name}: sharding was {each.spec}, now {now._impl.spec}"
                )
            elif now.device is not each.device:
                changes.append(
                    f"captured tensor {each.name}: device was {each.device}, now {now.device}"
                )
            elif other := each.parted(now, shapes):
                changes.append(f"captured tensor {each.name}: {other} is no longer the same one")
        return captured, changes

    def runs_plainly(self, call: Call, captured: Sequence[Any]) -> bool:
        """Whether a call can run on data: no transform wants to see what happens inside."""
        constant = _inside_no_grad()
        if not constant and current() is not None:
            return False
        tensors = [x for x in call.leaves if isinstance(x, Tensor)]
        tensors += captured
        return all(_is_plain(x, constant) for x in tensors)

    def build(self, counting: Counting, general: bool = False, own: bool = True) -> None:
        """Make the executable, and the code that leaves it; see `build_executable.build`."""
        trace = self.program.trace
        specs = self._specs()
        self.parts = None
        if is_distributed(trace, specs):
            self.parts = partition(trace, specs, self.program.structure)
            trace = self.parts.trace
        self._execute_by(trace, counting, general, own)
        if self.parts is not None:
            self.leave, self.enter = self.parts.leave, _refuse
            self.is_ready = True
            return
        self.leave, self.enter = make_leave(trace, self.program.structure), _refuse
        self.is_ready = True

    def ease(self, call: Call, arguments: Any) -> None:
        """Write the quick way in, once: for a function that is called again like that."""
        if not self._is_eased and self.parts is None:
            self._is_eased = True
            made = make_enter(
                call, arguments, self.program, self.kept, self._donations(), self.lasting
            )
            self.enter = _refuse if made is None else made

    def build_anew(self, counting: Counting, general: bool) -> None:
        """Make the executable once more, by the choices that hold now; calls go on meanwhile."""
        assert self.is_ready and self.parts is None
        self._execute_by(self.program.trace, counting, general, True, recalls=False)

    def _execute_by(
        self, trace: Trace, counting: Counting, general: bool, own: bool, recalls: bool = True
    ) -> None:
        given = [
            flag for flag, n in zip(self.donated, self._counts(), strict=False) for _ in range(n)
        ]
        rest = len(trace.inputs) - len(trace.captures) - len(given)
        donated = (*given, *(False,) * rest)
        self.lasting = frozenset() if self.parts is not None else self._lasting()
        built = build(
            trace,
            donated,
            general,
            counting.timed,
            own=own,
            recalls=recalls,
            lasting=tuple(i in self.lasting for i in range(len(donated))) if self.lasting else (),
        )
        GRAPH.counters.compilations += 1
        self.lower = built.lower
        self.executable = built.executable
        counting.add(compilations=1, **built.rewritten)
        counting.add_build(self.executable.counts)
        self.run = self.executable.run
        self.kept = built.passed_through

    def sample(self, call: Call) -> list[Any]:
        """Arrays as a call gives them, to try executables on: nothing is used up or drawn."""
        pairs = zip(call.leaves, self.program.limits, self.paths, strict=True)
        arrays = [np.array(self._array(x, limits, path, -1)) for x, limits, path in pairs]
        for node in self.program.trace.inputs[len(arrays) :][: 2 * len(self.program.slots)]:
            arrays.append(np.zeros(node.types[0].shape, node.types[0].dtype))
        captured = zip(self.program.captured(), self.program.captures, strict=True)
        return arrays + [self._array(x, None, each.name, -1) for x, each in captured]

    def gather(self, call: Call, captured: Sequence[Any]) -> list[Any] | None:
        """The arrays of a call, by the general path; None if a generator has to start anew."""
        arrays: list[Any] = []
        pairs = zip(call.leaves, self.program.limits, self.paths, strict=True)
        first = []  # where the pieces of each leaf begin
        for leaf, limits, path in pairs:
            first.append(len(arrays))
            for piece in pieces_of(leaf):
                arrays.append(self._array(piece, limits, path, len(arrays)))
        states: list[Any] = []
        for slot in self.program.slots:
            if slot.shares is None:
                states.append(_source(slot).reserve(slot.drawn))
            else:
                states.append(states[slot.shares])
            taken = states[-1]
            if taken is None:
                return None
            arrays += [_brought(taken[0], slot.device), np.array(taken[1], np.uint32)]
        for held, each in zip(captured, self.program.captures, strict=True):
            for piece in pieces_of(held):
                arrays.append(self._array(piece, None, each.name, len(arrays)))
        given = [
            (first[i] + k, piece, path)
            for i, path in self._donations()
            for k, piece in enumerate(pieces_of(call.leaves[i]))
        ]
        if given:
            give(arrays, given)
        return arrays

    def _specs(self) -> list[ShardingSpec | None]:
        """How each input of the trace lies over a mesh."""
        return [
            *(leaf.spec for leaf in self.signature.leaves),
            *(None for _ in self.program.slots for _ in range(2)),
            *(each.spec for each in self.program.captures),
        ]

    def _lasting(self) -> frozenset[int]:
        """Inputs that are the same arrays in most calls: weights, where they are not trained.

        Those are captured tensors of ours alone, and leaves of modules among the arguments, unless
        results have their shape, as gradients and new weights do.
        """
        made = [node.types[slot].shape for node, slot in self.program.trace.outputs]
        inside = in_objects(self.signature.structure)
        found = [
            place
            for place, (leaf, held) in enumerate(zip(self.signature.leaves, inside, strict=True))
            if held
            and not (isinstance(leaf.kind, type) or self.donated[place])
            and leaf.device.kind == "cpu"
            and not any(shape[-len(leaf.kind.shape) :] == leaf.kind.shape for shape in made)
        ]
        first = len(self.signature.leaves) + 2 * len(self.program.slots)
        for place, held in enumerate(self.program.captured(), first):
            if not isinstance(held, Tensor):
                continue  # another thread took it away just now
            tensor = _opened(held)
            data = tensor.data()
            if isinstance(data, np.ndarray) and not (tensor._impl.shared or is_shared(data)):
                found.append(place)
        return frozenset(found)

    def _counts(self) -> list[int]:
        """How many pieces each leaf has."""
        return [
            1 if leaf.spec is None else len(local_coordinates(leaf.spec.mesh, leaf.spec.varying))
            for leaf in self.signature.leaves
        ]

    def _donations(self) -> list[tuple[int, str]]:
        """Positions and names of the leaves that are given away."""
        return [(i, path) for i, path in enumerate(self.paths) if self.donated[i]]

    def _array(self, leaf: Any, limits: Any, path: str, position: int) -> Any:
        if not isinstance(leaf, Tensor):
            _check_range(leaf, limits, path)
            return np.array(leaf, WIDE[type(leaf)])
        opened = _opened(leaf)
        data = opened.data()
        if position in self.kept and (opened._impl.shared or is_shared(data)):
            return own(data)
        if position in self.lasting and opened._impl.shared:
            return data.view()  # nobody has seen this array before
        return data

    def replay(self, call: Call, captured: Sequence[Any], again: Callable[[], Any]) -> Any:
        """Perform the recorded calls in the current handler; `again` runs the function itself."""
        operands = [
            _operand(x, leaf.device, limits, path)
            for x, leaf, limits, path in zip(
                call.leaves, self.signature.leaves, self.program.limits, self.paths, strict=True
            )
        ]
        keepers: list[Any] = []
        states: list[Any] = []
        for slot in self.program.slots:
            if slot.shares is not None:
                keepers.append(keepers[slot.shares])
                states.append(states[slot.shares])
            else:
                source = _source(slot)
                keeper = source.keeper()
                first = 0 if keeper is None else keeper.drawn.get(source, 0)
                keepers.append((keeper, source, first))
                states.append(source.reserve_tensors(slot.drawn, slot.device))
            if states[-1] is None:
                return again()
            operands += _states_on(slot.device, states[-1], *keepers[-1])
        operands += captured
        trace = self.program.trace

        def step(node: OutputRefs, args: tuple[Any, ...]) -> tuple[Any, ...]:
            with blamed(node.position):
                if node in self.program.draws:
                    return (self._drawn(node, args, keepers),)
                result: Any = perform_call(node.op, args, node.params)
            return result if isinstance(result, tuple) else (result,)

        found = trace.walk((*operands, *trace.captures), step)
        return tree_unflatten(self.program.structure, map(alias, found))

    def _drawn(self, node: OutputRefs, args: tuple[Any, ...], keepers: list[Any]) -> Tensor:
        """A key as eager code would draw it here: its own for each slice of the maps around."""
        slot, number = self.program.draws[node]
        keeper, source, first = keepers[slot]
        if keeper is not None:
            key: Tensor = keeper.key(source, first + number, node.device)
            return key
        return own_key(perform_call(node.op, args, node.params), source)


def _refuse(args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """The quick way in for trees that only the general path can take apart: there is none."""


def _source(slot: Any) -> Generator:
    return generator() if slot.source is None else slot.source


def _brought(base: Tensor, device: Device) -> Any:
    """Data of a generator's key for a device; what is on the host is brought there by who runs."""
    if base.device is device or base.device.kind == "cpu":
        return base.data()
    return to_device(base, device).data()


def _states_on(
    device: Device, state: tuple[Tensor, Tensor], keeper: Threads | None, source: Any, first: int
) -> tuple[Tensor, ...]:
    """A state that was taken, as operands on a device."""
    if state[0].device is device:
        return state
    if keeper is not None:
        return keeper.state_at(source, first, device)
    return tuple(to_device(x, device) for x in state)


def _inside_no_grad() -> bool:
    """Whether there are handlers here, and all only keep derivatives out."""
    handler: Handler | None = current()
    if handler is None:
        return False
    while handler is not None and handler.constant:
        handler = handler.outer
    return handler is None


def _is_plain(x: Any, constant: bool) -> bool:
    """Whether a tensor has data of its own: `requires_grad` counts only outside `no_grad`."""
    owner = x._impl.owner
    return owner is None or owner is MESH or (constant and owner is AMBIENT)


def pieces_of(x: Any) -> Sequence[Any]:
    """A leaf as what the executable takes: itself, or the pieces of a sharded tensor."""
    if isinstance(x, Tensor) and x._impl.owner is not None:
        x = _opened(x)
        if x._impl.owner is MESH:
            return list(x._impl.payload.pieces.parts.values())
    return (x,)


def _opened(x: Tensor) -> Tensor:
    """A tensor's value outside the tape that `requires_grad` keeps."""
    while x._impl.owner is not None and x._impl.owner is not MESH:
        x = x._impl.owner.read(x._impl.payload)
    return x


def _check_range(value: Any, limits: tuple[int, int] | None, path: str) -> None:
    if limits is not None and not limits[0] <= value <= limits[1]:
        raise CastError(
            f"compile: argument {path}: {value} does not fit the integers it is used as"
            f" (from {limits[0]} to {limits[1]})"
        )


def _operand(x: Any, device: Any, limits: Any, path: str) -> Tensor:
    """A leaf as an operand of the trace."""
    if type(x) is Number:
        return x.wide
    if isinstance(x, Tensor):
        return x
    _check_range(x, limits, path)
    return wrap(np.array(x, WIDE[type(x)]), device)
