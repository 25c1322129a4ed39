"""Training steps written out by hand, and what their first calls take in a process of their own.

`python benchmarks/compiler_steps.py NAME` prints the seconds of the first call of one program after
a single addition was compiled, so that LLVM and the compiler are loaded; `gpt-warm` starts from
`import weft` alone. The code cache is where `WEFT_CACHE_DIR` says.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

LAYERS, WIDTH, LENGTH, BATCH, HEADS, WORDS = 4, 128, 128, 16, 4, 256
RATE, BETA1, BETA2, EPSILON, DECAY = 3e-4, 0.9, 0.95, 1e-8, 0.1


def mlp_data() -> tuple[Any, Any, Any]:
    """Parameters of a 784-512-512-10 network, images and labels."""
    rng = np.random.default_rng(0)
    sizes = (784, 512, 512, 10)
    parameters = [
        (rng.normal(size=(m, n)).astype(np.float32) / m**0.5, np.zeros(n, np.float32))
        for m, n in itertools.pairwise(sizes)
    ]
    images = rng.normal(size=(128, 784)).astype(np.float32)
    return parameters, images, rng.integers(0, 10, 128).astype(np.int32)


def log_likelihood(xp: Any, logits: Any, labels: Any) -> Any:
    """The logarithm of the probability of each label."""
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    own = xp.arange(logits.shape[-1]) == labels[..., None]
    total = xp.log(xp.sum(xp.exp(shifted), axis=-1))
    return xp.sum(xp.where(own, shifted, 0.0), axis=-1) - total


def mlp_step(xp: Any, value_and_grad: Any) -> Callable[..., Any]:
    """One step of gradient descent: (parameters, images, labels) -> (loss, parameters)."""

    def loss(parameters: Any, x: Any, labels: Any) -> Any:
        *hidden, (w, b) = parameters
        for weight, bias in hidden:
            x = xp.maximum(x @ weight + bias, 0.0)
        return -xp.mean(log_likelihood(xp, x @ w + b, labels))

    def step(parameters: Any, x: Any, labels: Any) -> Any:
        value, slopes = value_and_grad(loss)(parameters, x, labels)
        moved = [
            tuple(p - 0.1 * g for p, g in zip(pair, slope, strict=True))
            for pair, slope in zip(parameters, slopes, strict=True)
        ]
        return value, moved

    return step


def gpt_data() -> tuple[Any, Any, Any]:
    """Parameters of a small language model, words, and the words that follow."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return (0.02 * rng.normal(size=shape)).astype(np.float32)

    def scale() -> Any:
        return np.ones(WIDTH, np.float32)

    parameters = {"words": normal(WORDS, WIDTH), "places": normal(LENGTH, WIDTH), "norm": scale()}
    for layer in range(LAYERS):
        parameters |= {
            f"norm1_{layer}": scale(),
            f"attend_{layer}": normal(WIDTH, 3 * WIDTH),
            f"project_{layer}": normal(WIDTH, WIDTH),
            f"norm2_{layer}": scale(),
            f"widen_{layer}": normal(WIDTH, 4 * WIDTH),
            f"narrow_{layer}": normal(4 * WIDTH, WIDTH),
        }
    words = rng.integers(0, WORDS, (BATCH, LENGTH + 1)).astype(np.int32)
    return parameters, words[:, :-1].copy(), words[:, 1:].copy()


def _normalized(xp: Any, x: Any, scale: Any) -> Any:
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    spread = xp.mean(centred * centred, axis=-1, keepdims=True)
    return centred / xp.sqrt(spread + 1e-5) * scale


def _attended(xp: Any, x: Any, parameters: Any, layer: int) -> Any:
    batch, length, _ = x.shape
    mixed = (x @ parameters[f"attend_{layer}"]).reshape(batch, length, 3, HEADS, WIDTH // HEADS)
    q, k, v = (xp.moveaxis(mixed[:, :, i], 2, 1) for i in range(3))
    scores = q @ xp.swapaxes(k, -1, -2) * (WIDTH // HEADS) ** -0.5
    seen = xp.arange(length)[:, None] >= xp.arange(length)[None, :]
    scores = xp.where(seen, scores, -1e9)
    weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    weights = weights / xp.sum(weights, axis=-1, keepdims=True)
    out = xp.moveaxis(weights @ v, 1, 2).reshape(batch, length, WIDTH)
    return out @ parameters[f"project_{layer}"]


def _gelu(xp: Any, x: Any) -> Any:
    return 0.5 * x * (1.0 + xp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def gpt_loss(xp: Any) -> Callable[..., Any]:
    """The model's loss: (parameters, words, following) -> number."""

    def loss(parameters: Any, words: Any, following: Any) -> Any:
        x = xp.take(parameters["words"], words, axis=0) + parameters["places"]
        for layer in range(LAYERS):
            x = x + _attended(
                xp, _normalized(xp, x, parameters[f"norm1_{layer}"]), parameters, layer
            )
            wide = _normalized(xp, x, parameters[f"norm2_{layer}"]) @ parameters[f"widen_{layer}"]
            x = x + _gelu(xp, wide) @ parameters[f"narrow_{layer}"]
        logits = _normalized(xp, x, parameters["norm"]) @ xp.swapaxes(parameters["words"], 0, 1)
        return -xp.mean(log_likelihood(xp, logits, following))

    return loss


def gpt_step(xp: Any, value_and_grad: Any) -> Callable[..., Any]:
    """One step of AdamW: (parameters, first, second, count, words, following) -> the same anew."""
    loss = gpt_loss(xp)

    def step(p: Any, first: Any, second: Any, count: Any, words: Any, following: Any) -> Any:
        value, slopes = value_and_grad(loss)(p, words, following)
        count = count + 1.0
        first = {k: BETA1 * m + (1 - BETA1) * slopes[k] for k, m in first.items()}
        second = {k: BETA2 * v + (1 - BETA2) * slopes[k] * slopes[k] for k, v in second.items()}
        one, two = 1.0 - BETA1**count, 1.0 - BETA2**count
        moved = {
            k: x - RATE * (first[k] / one / (xp.sqrt(second[k] / two) + EPSILON) + DECAY * x)
            for k, x in p.items()
        }
        return value, moved, first, second, count

    return step


def first_call(name: str) -> float:
    """Seconds of the first call of `fused`, `mlp` or `gpt` in this process."""
    import weft as wf

    if name != "gpt-warm":  # load LLVM and the compiler, which takes longer than small kernels do
        wf.compile(lambda x: x + 1.0)(wf.ones(4)).data()
    tensors = [wf.tree_map(wf.tensor, data) for data in _arguments(name)]
    start = time.perf_counter()
    if name == "fused":
        wf.compile(lambda a, b, c: wf.tanh(a * b + c).sum())(*tensors).data()
    elif name == "mlp":
        wf.compile(mlp_step(wf, wf.value_and_grad))(*tensors)[0].data()
    else:
        wf.compile(gpt_step(wf, wf.value_and_grad))(*tensors)[0].data()
    return time.perf_counter() - start


def _arguments(name: str) -> tuple[Any, ...]:
    if name == "fused":
        return tuple(np.ones(1_000_000, np.float32) for _ in range(3))
    return mlp_data() if name == "mlp" else gpt_arguments()


def gpt_arguments() -> tuple[Any, ...]:
    """Everything that a step of the language model is given."""
    parameters, words, following = gpt_data()
    zeros = [{k: np.zeros_like(v) for k, v in parameters.items()} for _ in range(2)]
    return parameters, *zeros, np.float32(0.0), words, following


if __name__ == "__main__" and len(sys.argv) > 1:
    print(first_call(sys.argv[1]))
