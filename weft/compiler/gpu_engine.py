"""What runs on a GPU: single calls, each prepared once for its kind, and whole traces."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.compiler import gpu_panels
from weft.compiler.gpu_calls import run_call
from weft.compiler.gpu_code import language_of
from weft.compiler.gpu_executable import GpuExecutable
from weft.compiler.gpu_program import call_of, single
from weft.compiler.recompute import recompute
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
    return _call(client, op, arrays, params, types).run(arrays)


def prepared(
    client: Any,
    op: Any,
    operands: tuple[TensorType, ...],
    params: Mapping[str, Any],
    results: tuple[TensorType, ...],
) -> Callable[..., GpuArray] | None:
    """What gives the only result of calls on arrays of these kinds; None if there is no such."""
    if not op.leaf or not op.pure or op.multiple or op.moves or isinstance(op, Reshape):
        return None
    run = _call(client, op, operands, params, results).run
    return lambda *arrays: run(arrays)[0]


def _call(
    client: Any,
    op: Any,
    operands: Sequence[Any],
    params: Mapping[str, Any],
    types: tuple[TensorType, ...],
) -> GpuExecutable:
    """What runs a call on operands of these kinds, made the first time."""
    kinds = tuple([(a.shape, a.dtype) for a in operands])
    key = (client, op, kinds, freeze(params) if params else None)
    with _lock:
        found = _prepared.get(key)
        if found is None:
            trace = single(_node(client, op, operands, params, types))
            found = _prepared[key] = GpuExecutable(trace, client)
            if len(_prepared) > MOST_CALLS:
                _prepared.popitem(last=False)
        else:
            _prepared.move_to_end(key)
    return found


def executable(client: Any, trace: Trace) -> GpuExecutable:
    """A whole trace made ready to run, which computes again what is too large to be kept."""
    limits = language_of(client.gpu).limits(client.gpu)
    return GpuExecutable(recompute(trace, gpu_panels.terms(limits)), client)


def _node(
    client: Any,
    op: Any,
    operands: Sequence[Any],
    params: Mapping[str, Any],
    types: tuple[TensorType, ...],
) -> OutputRefs:
    kinds = [TensorType(a.shape, a.dtype) for a in operands]
    return call_of(op, kinds, params, types, client.device)
