"""The bottom of the handler stack: an op that no transform claims is run or recorded here.

Views of data and ops on small data run at once; everything else is recorded and runs when a value
is read. Types are inferred before either, so a mistake is reported at the call that made it.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

import numpy as np

from weft.core.common.device import Device
from weft.core.common.events import watchers
from weft.core.common.frozen import frozen_items
from weft.core.common.handler import install_bottom
from weft.core.common.parameters import check_axes
from weft.core.common.slots import install_placement, public
from weft.core.common.source import blamed
from weft.core.common.trees import tree_leaves
from weft.core.common.types import TensorType
from weft.core.graph.graph import GRAPH, in_physical_context, install_executor
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import home_of
from weft.core.tensor.impl import TensorImpl, common_device, leaked
from weft.core.tensor.sharing import is_shared
from weft.core.tensor.tensor import Tensor
from weft.ops.base import Operation
from weft.ops.ready import made, most_at_once
from weft.runtime.cpu.client import CpuRuntime, watched
from weft.runtime.registry import client, place_on, register_runtime

_impl_of = attrgetter("_impl")
_type_of = attrgetter("type")
_plans: dict[Any, _Plan] = {}
_PLANS_LIMIT = 65_536
_PREPARED_LIMIT = 1_024
_prepared: list[_Plan] = []  # those that have something to run


def execute_operation(op: Operation, args: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
    """Run or record `op`: choose the device, infer types, then either execute or make a node."""
    found = op.directly(*args)
    if found is not None:
        return found
    plan, key, arrays = _known(op, args, params)
    if plan is not None and not watchers and plan.size <= most_at_once(op):
        found = plan.result(args, arrays)
        if found is not None:
            return found
    home = home_of(op, params)
    if home is not None:
        return home.handle(op, args, params)
    impls = tuple(map(_impl_of, args))
    for position, impl in enumerate(impls):
        if impl.owner is not None:
            if impl.owner.ambient:
                return impl.owner.handle(op, args, params)
            raise leaked(op, position, impl)
    if plan is None:
        plan = _Plan(key, op, impls, params)
    types, device = plan.types, plan.device
    if runs_at_once(op, impls, types, params):
        if plan.run is None and key is not None and not watchers:
            plan.prepare(op, impls, params)
        operands = tuple(map(TensorImpl.realize, impls))
        results = _execute(device, op, operands, params, types)
        places = (None if op.leaf else op.places(**params)) or (device,) * len(types)
        new = list(map(TensorImpl.realized, results, types, places))
        if op.view:
            for impl in new:
                impl.shared = impls[0].shared
    else:
        node = GRAPH.record(op, tuple([impl.ref() for impl in impls]), params, types, device)
        new = [TensorImpl.recorded(node, slot) for slot in range(len(types))]
        for impl in impls:
            if impl.traced:
                for each in new:
                    each.traced = True
    tensors = tuple(map(Tensor, new))
    return tensors if op.multiple else tensors[0]


def _known(
    op: Operation, args: tuple[Tensor, ...], params: dict[str, Any]
) -> tuple[_Plan | None, Any, list[Any]]:
    """The plan for a call, if there is one, the key it has or will have, and what data is there."""
    if not op.leaf:  # parameters may hold whole graphs: nothing to keep alive
        return None, None, []
    key: list[Any] = [op, frozen_items(params)] if params else [op]
    arrays = []
    for x in args:
        impl = x._impl
        key += (impl.shape, impl.dtype, impl.device)
        arrays.append(impl.data)
    known = tuple(key)
    return _plans.get(known), known, arrays


class _Plan:
    """What is known of calls of one kind: the types of their results, and what runs small ones.

    A plan is made on a device that can run the op, and remembered under `key`: programs repeat.
    """

    __slots__ = ("_client", "_holds", "_is_view", "device", "run", "size", "types")

    def __init__(
        self, key: Any, op: Operation, impls: tuple[TensorImpl, ...], params: dict[str, Any]
    ) -> None:
        self.device = common_device(op, impls, params)
        types = tuple(map(_type_of, impls))
        result = op.infer(*types, **params)
        self.types = (result,) if isinstance(result, TensorType) else result
        for kind in self.types:
            check_axes(op, kind.shape)
        self.run: Any = None  # a function of arrays, once a call has run at once
        self.size = sys.maxsize  # elements that `run` touches at most
        self._is_view = op.view
        self._holds: type = np.ndarray  # what data is to be, so that `run` takes it
        client(self.device).check(op, types, params, self.types)
        if key is not None:
            if len(_plans) >= _PLANS_LIMIT:
                _plans.clear()
            _plans[key] = self

    def prepare(self, op: Operation, impls: tuple[TensorImpl, ...], params: dict[str, Any]) -> None:
        """Find what runs the calls that come again: the best there is, or what asks the client."""
        runs: Any = client(self.device)
        self._client = runs
        types = tuple(map(_type_of, impls))
        holds = getattr(runs, "holds", None)  # a backend may have no such calls
        found = None if holds is None else runs.prepared(op, types, params, self.types)
        self._holds = holds or np.ndarray
        if len(_prepared) >= _PREPARED_LIMIT:  # each may hold a program
            for plan in _prepared:
                plan.run, plan.size = None, sys.maxsize
            _prepared.clear()
        _prepared.append(self)
        self.run = found or _asks
        if found is not None:
            self.size = max(kind.size for kind in (*types, *self.types))

    def result(self, args: tuple[Tensor, ...], arrays: list[Any]) -> Tensor | None:
        """The result on small data that is there; None where the call has to be looked at."""
        for array in arrays:
            if type(array) is not self._holds:
                return None
        if self._holds is not np.ndarray:
            apart = any([x._impl.traced or x._impl.shared for x in args])
            if apart or client(self.device) is not self._client:
                return None
            return Tensor(TensorImpl.realized(self.run(*arrays), self.types[0], self.device))
        found = self.run(*arrays)
        if found is None:
            return None
        tensor = made(found, self.types[0], self.device)
        if self._is_view:
            tensor._impl.shared = args[0]._impl.shared
        return tensor


def _asks(*arrays: Any) -> None:
    """The call that is like no other: the client has to be asked."""


def runs_at_once(
    op: Operation,
    impls: tuple[TensorImpl, ...],
    types: tuple[TensorType, ...],
    params: dict[str, Any],
) -> bool:
    """Whether data is there and waiting would gain nothing (or would be wrong)."""
    if in_physical_context() or not op.pure:
        return True
    if op.moves and not any([impl.traced for impl in impls]):
        return True  # so that what is recorded is of one device
    waiting = False
    small = True
    limit = most_at_once(op)
    for impl in impls:
        if not impl.is_realized:
            waiting = True
        elif impl.shared or is_shared(impl.data):
            return True
        elif impl.traced:
            waiting = True
        elif impl.data.size > limit:
            small = False
    if waiting:
        return False
    for kind in types:
        small = small and kind.size <= limit
    if small:
        return op.leaf  # what is inside of others may be long, and is compiled when it comes again
    data = impls[0].data if op.view else None
    return isinstance(data, np.ndarray) and op.is_view(data, **params)


@public
def realize(*trees: Any) -> Any:
    """Compute what is recorded for the tensors in these trees, wait for it, and give them back.

    >>> realize(client("cpu").ones((300, 300)) + 1).is_realized
    True
    """
    found = [
        value._impl
        for x in tree_leaves(trees)
        if isinstance(x, Tensor)
        for value in (x.owner.values(x._impl.payload) if x.owner else (x,))
    ]
    GRAPH.realize([impl.node for impl in found if not impl.is_realized and impl.node is not None])
    for device in dict.fromkeys(impl.device for impl in found):
        client(device).synchronize()
    return trees[0] if len(trees) == 1 else trees


def _execute_node(node: OutputRefs, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    if watchers:  # they are told the line that recorded the call, not the one that needs it
        with blamed(node.position):
            return _execute(node.device, node.op, arrays, node.params, node.types)
    return _execute(node.device, node.op, arrays, node.params, node.types)


def _execute(
    device: Device,
    op: Operation,
    arrays: tuple[Any, ...],
    params: dict[str, Any],
    types: tuple[TensorType, ...],
) -> tuple[Any, ...]:
    """Run one op on a device; an op that moves its operand has it brought there."""
    if op.moves:
        with watched(op, types, types, lambda: 0) if watchers else nullcontext():
            moved = place_on(arrays[0], device)
        if moved is not arrays[0]:
            return (moved,)
    return client(device).execute(op, arrays, params, types)


register_runtime(CpuRuntime())
install_bottom(execute_operation)
install_executor(_execute_node)
install_placement(place_on)

__all__ = ["realize"]
