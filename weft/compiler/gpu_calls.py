"""Calls that are no kernels of a GPU: loops and branches go step by step, others run elsewhere.

What a loop or a branch needs to know is read from the GPU; its graphs run there. A call that weft
has no kernel for runs on the host, with copies there and back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from weft.compiler.build_executable import build
from weft.compiler.several import homes
from weft.compiler.statistics import Clock
from weft.core.common.device import CPU, Device
from weft.core.common.types import DType, Shape
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import Trace
from weft.ops.control.branches import Switch
from weft.ops.control.graph_call import GraphCall
from weft.ops.control.loop_ops import Scan, WhileLoop
from weft.ops.control.subgraphs import grouped, number_of, owned_results, row_of
from weft.ops.view.reshape import Reshape
from weft.runtime.gpu.array import GpuArray
from weft.runtime.registry import client as client_of

Arrays = tuple[Any, ...]
_executables: WeakKeyDictionary[Trace, dict[Any, Any]] = WeakKeyDictionary()


def run_call(client: Any, node: OutputRefs, arrays: Arrays) -> Arrays:
    """The results of a call, on the GPU."""
    for kind, run in _WAYS.items():
        if isinstance(node.op, kind):
            results = run(client, node, arrays)
            if kind is Reshape:
                return results
            return tuple(_owned(x, arrays) for x in results)
    made = run_on_host(node, tuple(array.to_host() for array in arrays))
    return tuple(map(client.to_device, made))


def is_on_host(node: OutputRefs) -> bool:
    """Whether `run_call` has no way of its own for a call."""
    return not isinstance(node.op, tuple(_WAYS))


def run_alone(client: Any, node: OutputRefs, arrays: Arrays) -> Arrays:
    """The results of a call that is a kernel, but not together with its neighbours."""
    results: Arrays = client.execute(node.op, arrays, node.params, node.types)
    return results


def run_on_host(node: OutputRefs, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results of a call on arrays of the host."""
    results: tuple[Any, ...] = client_of(CPU).execute(node.op, arrays, node.params, node.types)
    return results


def run_trace(client: Any, trace: Trace, arrays: Arrays) -> Arrays:
    """The outputs of a graph that is part of a call: captured tensors are among the arrays."""
    known = _executables.setdefault(trace, {})
    found = known.get(client)
    if found is None:
        bare = replace(trace, captures=())
        ends = {node.device for node in bare.inputs}.union(bare.output_devices)
        if homes(bare) | ends <= {client.device}:
            found = client.executable(bare)
        else:
            found = build(bare, (False,) * len(bare.inputs), False, Clock()).executable
        known[client] = found
    results: Arrays = found.run(arrays)
    return results


def _reshape(client: Any, node: OutputRefs, arrays: Arrays) -> Arrays:
    return (arrays[0].reshaped(node.types[0].shape),)


def _graph(client: Any, node: OutputRefs, arrays: Arrays) -> Arrays:
    return run_trace(client, node.params["trace"], arrays)


def _switch(client: Any, node: OutputRefs, arrays: Arrays) -> Arrays:
    branches = node.params["branches"]
    index = min(max(number_of(arrays[0]), 0), len(branches) - 1)
    return run_trace(client, branches[index], arrays[1:])


def _while(client: Any, node: OutputRefs, arrays: Arrays) -> Arrays:
    condition, body, consts = (node.params[name] for name in ("condition", "body", "consts"))
    fixed, carry = arrays[:consts], arrays[consts:]
    while number_of(run_trace(client, condition, (*fixed, *carry))[0]):
        carry = run_trace(client, body, (*fixed, *carry))
    return carry


def _scan(client: Any, node: OutputRefs, arrays: Arrays) -> Arrays:
    params = node.params
    body, carries, length = (params[name] for name in ("body", "carries", "length"))
    fixed, carry, xs = grouped(arrays, (params["consts"], carries))
    ys = [
        _empty(device, (length, *kind.shape), kind.dtype)
        for kind, device in zip(body.output_types[carries:], body.output_devices[carries:])
    ]
    steps = range(length)
    for i in reversed(steps) if params["reverse"] else steps:
        results = run_trace(client, body, (*fixed, *carry, *(row_of(x, i) for x in xs)))
        carry = results[:carries]
        for y, result in zip(ys, results[carries:], strict=True):
            if isinstance(y, GpuArray):
                y.put(result, i)
            else:
                y[i] = result
    return (*carry, *ys)


def _empty(device: Device, shape: Shape, dtype: DType) -> Any:
    if device.kind == "cpu":
        return np.empty(shape, dtype)
    gpu: Any = client_of(device)
    return GpuArray.empty(gpu.gpu, shape, dtype)


def _owned(x: Any, arrays: Arrays) -> Any:
    """A result, which may be an operand that was handed through and others may write to."""
    if isinstance(x, GpuArray):
        return x.copied() if x.is_shared else x
    return owned_results((x,), arrays)[0]


_WAYS: dict[type, Callable[[Any, OutputRefs, Arrays], Arrays]] = {
    Reshape: _reshape,
    GraphCall: _graph,
    Switch: _switch,
    WhileLoop: _while,
    Scan: _scan,
}
