"""`python -m weft.demo`: fit a small network to two spirals, and show what it learned.

The model is a function of its parameters; `value_and_grad` differentiates it, `vmap` draws the
decision map. Nothing is downloaded, and the same numbers come out on every machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import weft as wf


def spirals(key: wf.Tensor, count: int) -> tuple[wf.Tensor, wf.Tensor]:
    """Points on two interleaved spirals, and which spiral each is on."""
    turn = wf.random.uniform(key, (count,)) ** 0.5 * 2.5 * wf.pi
    label = wf.arange(count) % 2
    angle = turn + wf.astype(label, wf.float32) * wf.pi
    noise = 0.1 * wf.random.normal(wf.random.fold_in(key, 1), (count, 2))
    points = wf.stack([wf.cos(angle), wf.sin(angle)], axis=1) * wf.expand_dims(turn, 1) / 8
    return points + noise / 4, label


def initial(key: wf.Tensor, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Weights scaled to keep activations of unit size, and zero biases."""
    keys = wf.random.split(key, len(sizes) - 1)
    return [
        {"w": wf.random.normal(k, (m, n)) * (2 / m) ** 0.5, "b": wf.zeros(n)}
        for k, m, n in zip(keys, sizes, sizes[1:], strict=False)
    ]


def model(params: list[dict[str, Any]], x: wf.Tensor) -> wf.Tensor:
    """Logits of the two classes for one point or a batch of them."""
    for layer in params[:-1]:
        x = wf.tanh(x @ layer["w"] + layer["b"])
    logits: wf.Tensor = x @ params[-1]["w"] + params[-1]["b"]
    return logits


def loss(params: list[dict[str, Any]], x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
    """Mean cross entropy."""
    return wf.cross_entropy(model(params, x), y)


def train(steps: int, seed: int) -> tuple[list[dict[str, Any]], float, float]:
    """Full-batch gradient descent with momentum; returns parameters, final loss and accuracy."""
    key = wf.random.key(seed)
    x, y = spirals(key, 400)
    params = initial(wf.random.fold_in(key, 2), (2, 48, 48, 2))
    velocity = wf.tree_map(wf.zeros_like, params)
    step = wf.value_and_grad(loss)
    start, value = time.perf_counter(), 0.0
    for i in range(steps):
        found, gradient = step(params, x, y)
        velocity = wf.tree_map(lambda v, g: 0.9 * v + g, velocity, gradient)
        params = wf.tree_map(lambda p, v: p - 0.1 * v, params, velocity)
        if i % max(steps // 10, 1) == 0 or i == steps - 1:
            value = found.item()
            speed = (i + 1) / (time.perf_counter() - start)
            print(f"step {i:4d}   loss {value:.4f}   {speed:.0f} steps/s", flush=True)
    right = wf.argmax(model(params, x), axis=1) == y
    return params, value, wf.mean(wf.astype(right, wf.float32)).item()


def decision_map(params: list[dict[str, Any]], rows: int = 24, columns: int = 60) -> str:
    """The plane as text: which spiral the model sees where, drawn by `vmap` over `vmap`."""
    across, down = wf.linspace(-1.1, 1.1, columns), wf.linspace(1.1, -1.1, rows)

    def row(v: wf.Tensor) -> Any:
        return wf.vmap(lambda u: wf.argmax(model(params, wf.stack([u, v]))))(across)

    grid = wf.vmap(row)(down)
    return "\n".join("".join("·#"[c] for c in row) for row in grid.tolist())


def main(arguments: list[str] | None = None) -> int:
    """Train, print the result, and say whether it is good."""
    parser = argparse.ArgumentParser(prog="python -m weft.demo", description=__doc__)
    parser.add_argument("--steps", type=int, default=1500, help="gradient steps (default 1500)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default 0)")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    params, value, accuracy = train(options.steps, options.seed)
    print(decision_map(params))
    print(f"final loss {value:.4f}, accuracy {accuracy:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
