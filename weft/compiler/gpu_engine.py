"""What runs on a GPU: single calls, each prepared once for its kind, and whole traces."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from weft.compiler.gpu_calls import run_call
from weft.compiler.gpu_executable import GpuExecutable
from weft.compiler.gpu_program import call_of, single
from weft.core.common.frozen import freeze
from weft.core.common.locks import lock_for
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import Trace
from weft.ops.view.reshape import Reshape
from weft.runtime.gpu.array import GpuArray

MOST_CALLS = 4096  # kinds of calls that stay prepared

_lock = lock_for(sys.modules[__name__], "_lock")
_prepared: OrderedDict[Any, GpuExecutable] = OrderedDict()


def run(
    client: Any,
    op: Any,
    arrays: tuple[Any, ...],
    params: Mapping[str, Any],
    types: tuple[TensorType, ...],
) -> tuple[GpuArray, ...]:
    """The results of one call."""
    if not op.leaf or not op.pure or isinstance(op, Reshape):
        inside = not op.leaf and op.places(**params) is not None  # those place their operands
        given = tuple(
            a if inside or isinstance(a, GpuArray) else client.to_device(a) for a in arrays
        )
        return run_call(client, _node(client, op, given, params, types), given)
    kinds = tuple([(a.shape, a.dtype) for a in arrays])
    key = (client, op, kinds, freeze(params) if params else None)
    with _lock:
        found = _prepared.get(key)
        if found is None:
            trace = single(_node(client, op, arrays, params, types))
            found = _prepared[key] = GpuExecutable(trace, client)
            if len(_prepared) > MOST_CALLS:
                _prepared.popitem(last=False)
        else:
            _prepared.move_to_end(key)
    return found.run(arrays)


def executable(client: Any, trace: Trace) -> GpuExecutable:
    """A whole trace made ready to run."""
    return GpuExecutable(trace, client)


def _node(
    client: Any,
    op: Any,
    arrays: tuple[Any, ...],
    params: Mapping[str, Any],
    types: tuple[TensorType, ...],
) -> OutputRefs:
    kinds = [TensorType(a.shape, a.dtype) for a in arrays]
    return call_of(op, kinds, params, types, client.device)
