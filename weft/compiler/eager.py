"""Single calls on weft's own kernels: what runs one by one where IEEE 754 leaves a choice.

A kernel serves every shape of its op and dtype: sizes are parameters. The compiled tier computes
with the same instructions in the same order, so the two give the same bits.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from weft.compiler.native import Native
from weft.compiler.point import kind_of
from weft.compiler.prepared import KernelFailure
from weft.compiler.rewrite import rewrite
from weft.core.common.device import CPU
from weft.core.common.frozen import freeze
from weft.core.common.locks import lock_for
from weft.core.common.types import Array, TensorType
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import Trace
from weft.runtime.cpu import jit

MOST_CALLS = 1024  # kinds of calls that stay prepared

_lock = lock_for(sys.modules[__name__], "_lock")
_prepared: OrderedDict[Any, Native | None] = OrderedDict()


def run(
    op: Any, arrays: tuple[Array, ...], params: dict[str, Any], types: tuple[TensorType, ...]
) -> tuple[Array, ...] | None:
    """The results of one call by its kernel; None where it has none."""
    key = (op, tuple([(a.shape, a.dtype) for a in arrays]), freeze(params) if params else None)
    found = _prepared.get(key, _prepared)
    if found is _prepared:
        operands = tuple(TensorType(a.shape, a.dtype) for a in arrays)
        found = _prepare(key, op, operands, params, types)
    if found is None:
        return None
    try:
        return found.run(arrays)  # type: ignore[union-attr]
    except KernelFailure:
        return None  # the reference says what is wrong


def kernel_of(
    op: Any,
    operands: tuple[TensorType, ...],
    params: dict[str, Any],
    results: tuple[TensorType, ...],
) -> Callable[..., Array | None] | None:
    """The kernel of an op of one result as a function of arrays; None where it has none."""
    key = (op, operands, freeze(params) if params else None)
    found = _prepared.get(key, _prepared)
    if found is _prepared:
        found = _prepare(key, op, operands, params, results)
    return None if found is None else found.as_function()  # type: ignore[union-attr]


def _prepare(
    key: Any,
    op: Any,
    operands: tuple[TensorType, ...],
    params: dict[str, Any],
    types: tuple[TensorType, ...],
) -> Native | None:
    inputs = tuple(OutputRefs.leaf(None, kind, CPU) for kind in operands)
    node = OutputRefs(op, tuple((x, 0) for x in inputs), params, types, CPU)
    with _lock:
        made, kind = None, kind_of(node)
        if kind != "host" and jit.available():
            trace = Trace(inputs, ((node, 0),), name=str(op))
            trace = rewrite(trace)[0] if kind == "reduce" else trace
            made = Native(trace, general=True, retells=False)
        _prepared[key] = made
        if len(_prepared) > MOST_CALLS:
            _prepared.popitem(last=False)
        return made
