"""How long the sharding solver takes: training steps of transformers, from shapes alone.

python benchmarks/mesh_solver.py --layers 24 --mesh 4 8
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.transforms.planning import SimpleSolver, problem_of

FLOAT, TOKEN = np.dtype("float32"), np.dtype("int64")


def parameters(layers: int, width: int, vocabulary: int, length: int) -> dict[str, Any]:
    """The types of a transformer's parameters."""

    def types(**shapes: tuple[int, ...]) -> dict[str, Any]:
        return {name: wf.TensorType(shape, FLOAT) for name, shape in shapes.items()}

    d, f = width, 4 * width
    square = {name: (d, d) for name in ("query", "key", "value", "out")}
    vectors = {name: (d,) for name in ("scale1", "shift1", "scale2", "shift2", "bias2")}
    layer = types(**square, **vectors, up=(d, f), bias1=(f,), down=(f, d))
    return {"layers": [layer] * layers, **types(embed=(vocabulary, d), position=(length, d))}


def normalize(x: Any, scale: Any, shift: Any) -> Any:
    """Layer normalisation."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return centred / wf.sqrt(variance + 1e-5) * scale + shift


def block(p: dict[str, Any], x: Any, heads: int) -> Any:
    """One layer: attention and a two-layer network, each beside the residual stream."""
    batch, length, width = x.shape
    h = normalize(x, p["scale1"], p["shift1"])

    def split(t: Any) -> Any:
        return t.reshape((batch, length, heads, width // heads)).transpose((0, 2, 1, 3))

    query, key, value = (split(h @ p[name]) for name in ("query", "key", "value"))
    scores = query @ key.transpose((0, 1, 3, 2)) * (width // heads) ** -0.5
    mixed = (wf.softmax(scores, axis=-1) @ value).transpose((0, 2, 1, 3))
    x = x + mixed.reshape((batch, length, width)) @ p["out"]
    h = normalize(x, p["scale2"], p["shift2"])
    return x + wf.gelu(h @ p["up"] + p["bias1"]) @ p["down"] + p["bias2"]


def training_step(p: Any, momentum: Any, tokens: Any, targets: Any, heads: int = 16) -> Any:
    """Loss, gradients, momentum, update."""

    def loss(p: Any) -> Any:
        x = p["embed"][tokens] + p["position"]
        for layer in p["layers"]:
            x = block(layer, x, heads)
        logits = x @ p["embed"].T
        logits = logits - wf.logsumexp(logits, axis=-1, keepdims=True)
        return -wf.take_along_axis(logits, targets[..., None], axis=-1).mean()

    value, grads = wf.value_and_grad(loss)(p)
    momentum = wf.tree_map(lambda m, g: 0.9 * m + g, momentum, grads)
    return wf.tree_map(lambda p, m: p - 0.01 * m, p, momentum), momentum, value


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Trace, describe and solve one step; seconds of each."""
    names = tuple(f"axis{i}" for i in range(len(options.mesh)))
    mesh = wf.DeviceMesh("benchmark", tuple(options.mesh), names)
    p = parameters(options.layers, options.width, 32000, options.length)
    tokens = wf.TensorType((options.batch, options.length), TOKEN)
    start = time.perf_counter()
    trace = wf.trace(training_step, p, p, tokens, tokens)
    traced = time.perf_counter()
    carried = 2 * (12 * options.layers + 2)  # parameters and momenta come out as they went in
    problem = problem_of(trace, mesh, ties=[(i, i) for i in range(carried)])
    described, used = time.perf_counter(), time.process_time()
    memory = None if options.memory is None else options.memory * 2**30
    found = SimpleSolver(memory=memory).solve(problem)
    return {
        "layers": options.layers,
        "mesh": options.mesh,
        "calls": len(trace.nodes),
        "trace_seconds": traced - start,
        "describe_seconds": described - traced,
        "solve_seconds": found.solve_seconds,
        "solve_processor_seconds": time.process_time() - used,
        "gap": found.gap,
        "predicted_seconds": found.seconds,
        "memory_GiB": found.memory / 2**30,
    }


def main() -> None:
    """Command line: sizes of the model and of the mesh."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--mesh", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--memory", type=float, default=None, help="GiB a device")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    print({"machine": platform.machine(), "python": platform.python_version()})
    row = measure(options)
    for name, value in row.items():
        print(f"  {name:24} {value:.4g}" if isinstance(value, float) else f"  {name:24} {value}")
    if options.json:
        options.json.write_text(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
