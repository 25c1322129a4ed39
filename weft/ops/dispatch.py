"""The bottom of the handler stack: an op that no transform claims is run or recorded here.

Views of data and ops on small data run at once; everything else is recorded and runs when a value
is read. Types are inferred before either, so a mistake is reported at the call that made it.
"""

from __future__ import annotations

from typing import Any

from weft.config import settings
from weft.core.common.device import Device
from weft.core.common.handler import current, install_bottom
from weft.core.common.types import TensorType
from weft.core.graph.graph import GRAPH, in_physical_context, install_executor
from weft.core.graph.node import OutputRefs, freeze
from weft.core.tensor.impl import TensorImpl
from weft.core.tensor.tensor import Tensor
from weft.errors import DeviceMismatchError, LeakedTensorError
from weft.ops.base import Operation
from weft.runtime.cpu.client import CpuRuntime
from weft.runtime.registry import client, register_runtime

_inferred: dict[Any, tuple[TensorType, ...]] = {}
_INFERRED_LIMIT = 65_536


def execute_operation(op: Operation, args: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
    """Run or record `op`: infer types, choose the device, then either execute or make a node."""
    impls = tuple(a._impl for a in args)
    for position, impl in enumerate(impls):
        if impl.owner is not None:
            raise _leaked(op, position, impl)
    types = infer(op, tuple(impl.type for impl in impls), params)
    device = _common_device(op, impls, params)
    if runs_at_once(op, impls, types, params):
        arrays = tuple(impl.realize() for impl in impls)
        results = client(device).execute(op, arrays, params, types)
        made = [_realized(r, t, device) for r, t in zip(results, types, strict=True)]
        if op.view:
            for impl in made:
                impl.shared = impls[0].shared
    else:
        node = GRAPH.record(op, tuple(impl.ref() for impl in impls), params, types, device)
        made = [TensorImpl.recorded(node, slot) for slot in range(len(types))]
        if any(impl.traced for impl in impls):
            for impl in made:
                impl.traced = True
    tensors = tuple(map(Tensor, made))
    return tensors if len(tensors) > 1 or op.multiple else tensors[0]


def infer(
    op: Operation, types: tuple[TensorType, ...], params: dict[str, Any]
) -> tuple[TensorType, ...]:
    """The types of the results; remembered, since programs repeat themselves."""
    key = (op, types, freeze(params) if params else None)
    found = _inferred.get(key)
    if found is None:
        result = op.infer(*types, **params)
        found = (result,) if isinstance(result, TensorType) else result
        if len(_inferred) >= _INFERRED_LIMIT:
            _inferred.clear()
        _inferred[key] = found
    return found


def runs_at_once(
    op: Operation,
    impls: tuple[TensorImpl, ...],
    types: tuple[TensorType, ...],
    params: dict[str, Any],
) -> bool:
    """Whether data is there and waiting would gain nothing (or would be wrong)."""
    if in_physical_context() or not op.pure:
        return True
    if any(impl.shared for impl in impls):
        return True
    if any(impl.traced or not impl.is_realized for impl in impls):
        return False
    limit = settings.small_elements
    if all(t.size <= limit for t in (*types, *impls)):
        return True
    return op.view and op.is_view(impls[0].data, **params)


def _common_device(op: Operation, impls: tuple[TensorImpl, ...], params: dict[str, Any]) -> Device:
    if not impls:
        return params["device"]  # type: ignore[no-any-return]
    device = impls[0].device
    for position, impl in enumerate(impls):
        if impl.device is not device:
            raise DeviceMismatchError(
                f"{op}: operand {position} is on {impl.device}, operand 0 on {device}"
                f"\nhint: x.to_device({device.name!r}) moves it; weft never copies in silence"
            )
    return device


def _realized(array: Any, kind: TensorType, device: Device) -> TensorImpl:
    return TensorImpl(kind.shape, kind.dtype, device, array)


def _leaked(op: Operation, position: int, impl: TensorImpl) -> LeakedTensorError:
    name = type(impl.owner).__name__.lower()
    where = "" if current() is None else f" inside {type(current()).__name__.lower()}"
    return LeakedTensorError(
        f"{op}: operand {position} ({impl.type}) was made inside a {name} that has ended{where}"
        f"\nhint: return values from the transformed function instead of storing them elsewhere"
    )


def _execute_node(node: OutputRefs, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    return client(node.device).execute(node.op, arrays, node.params, node.types)


register_runtime(CpuRuntime())
install_bottom(execute_operation)
install_executor(_execute_node)
