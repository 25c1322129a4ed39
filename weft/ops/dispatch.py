"""The bottom of the handler stack: an op that no transform claims is run or recorded here.

Views of data and ops on small data run at once; everything else is recorded and runs when a value
is read. Types are inferred before either, so a mistake is reported at the call that made it.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from weft.config import settings
from weft.core.common.device import Device
from weft.core.common.events import watchers
from weft.core.common.handler import install_bottom
from weft.core.common.slots import install_placement, public
from weft.core.common.source import blamed
from weft.core.common.trees import tree_leaves
from weft.core.common.types import TensorType
from weft.core.graph.graph import GRAPH, in_physical_context, install_executor
from weft.core.graph.node import OutputRefs, freeze
from weft.core.tensor.impl import TensorImpl, common_device, leaked
from weft.core.tensor.sharing import is_shared
from weft.core.tensor.tensor import Tensor
from weft.ops.base import Operation
from weft.runtime.cpu.client import CpuClient, CpuRuntime
from weft.runtime.registry import client, place_on, register_runtime

_impl_of = attrgetter("_impl")
_type_of = attrgetter("type")
_plans: dict[Any, _Plan] = {}
_PLANS_LIMIT = 65_536
_PREPARED_LIMIT = 1_024
_prepared: list[_Plan] = []  # those that have something to run


def execute_operation(op: Operation, args: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
    """Run or record `op`: choose the device, infer types, then either execute or make a node."""
    made_directly = op.directly(*args)
    if made_directly is not None:
        return made_directly
    if op.home is not None:
        return op.home.handle(op, args, params)
    impls = tuple(map(_impl_of, args))
    for position, impl in enumerate(impls):
        if impl.owner is not None:
            if impl.owner.ambient:
                return impl.owner.handle(op, args, params)
            raise leaked(op, position, impl)
    device = common_device(op, impls, params)
    kinds = tuple(map(_type_of, impls))
    # The parameters of other ops may hold whole graphs: nothing to keep alive here.
    key = (op, kinds, freeze(params) if params else None, device) if op.leaf else None
    plan = _plans.get(key) or _Plan(key, op, kinds, params, device)
    types = plan.types
    if runs_at_once(op, impls, types, params):
        arrays = tuple(map(TensorImpl.realize, impls))
        run = None if watchers or key is None else plan.run or plan.prepare(op, kinds, params)
        results = None if run is None else run(*arrays)
        if results is None:
            results = client(device).execute(op, arrays, params, types)
        if len(types) == 1 and not (op.view or op.multiple):
            return Tensor(TensorImpl.realized(results[0], types[0], device))
        made = [TensorImpl.realized(r, t, device) for r, t in zip(results, types, strict=True)]
        if op.view:
            for impl in made:
                impl.shared = impls[0].shared
    else:
        node = GRAPH.record(op, tuple([impl.ref() for impl in impls]), params, types, device)
        made = [TensorImpl.recorded(node, slot) for slot in range(len(types))]
        for impl in impls:
            if impl.traced:
                for each in made:
                    each.traced = True
    tensors = tuple(map(Tensor, made))
    return tensors if op.multiple else tensors[0]


class _Plan:
    """What is known of calls of one kind: the types of their results, and what runs them.

    A plan is made on a device that can run the op, and remembered under `key`: programs repeat.
    """

    __slots__ = ("_client", "run", "types")

    def __init__(
        self,
        key: Any,
        op: Operation,
        types: tuple[TensorType, ...],
        params: dict[str, Any],
        device: Device,
    ) -> None:
        result = op.infer(*types, **params)
        self.types = (result,) if isinstance(result, TensorType) else result
        self.run: Any = None  # a function of arrays, once a call has run at once
        self._client: Any = client(device)
        self._client.check(op, types, params, self.types)
        if key is not None:
            if len(_plans) >= _PLANS_LIMIT:
                _plans.clear()
            _plans[key] = self

    def prepare(self, op: Operation, types: tuple[TensorType, ...], params: dict[str, Any]) -> Any:
        """What runs these calls: the best there is, or what asks the client each time."""
        made = None
        if isinstance(self._client, CpuClient):
            made = self._client.prepared(op, types, params, self.types)
        if len(_prepared) >= _PREPARED_LIMIT:  # each may hold a program
            for plan in _prepared:
                plan.run = None
            _prepared.clear()
        _prepared.append(self)
        self.run = made or _asks
        return self.run


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
    waiting = False
    small = True
    limit = settings.small_elements
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
        return True
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
            return client(node.device).execute(node.op, arrays, node.params, node.types)
    return client(node.device).execute(node.op, arrays, node.params, node.types)


register_runtime(CpuRuntime())
install_bottom(execute_operation)
install_executor(_execute_node)
install_placement(place_on)

__all__ = ["realize"]
