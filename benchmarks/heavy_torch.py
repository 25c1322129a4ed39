"""Steps of training as one writes them in torch: its own layers, losses and optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import compiler_steps as steps


def leaves_of(arrays: Any, device: str = "cpu") -> Any:
    """Arrays as tensors of torch that gradients reach."""
    import torch

    return [torch.from_numpy(a.copy()).to(device).requires_grad_() for a in arrays]


def descended(loss: Callable[[], Any], leaves: Any, rate: float) -> Callable[[], Any]:
    """A step of gradient descent, in place."""
    import torch

    optimizer = torch.optim.SGD(leaves, rate, foreach=True)

    def step() -> Any:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return value

    return step


def layers(parameters: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Leaves of a network, and its function."""
    import torch

    leaves = leaves_of([array for pair in parameters for array in pair])

    def run(x: Any) -> Any:
        for number in range(0, len(leaves), 2):
            x = torch.addmm(leaves[number + 1], x, leaves[number])
            x = torch.relu(x) if number + 2 < len(leaves) else x
        return x

    return leaves, run


def mlp_step(parameters: Any, images: Any, labels: Any) -> Callable[[], Any]:
    """A classifier's step."""
    import torch

    leaves, run = layers(parameters)
    x, y = torch.from_numpy(images), torch.from_numpy(labels).long()
    return descended(lambda: torch.nn.functional.cross_entropy(run(x), y), leaves, 0.1)


def nabla_step(parameters: Any, x: Any, y: Any) -> Callable[[], Any]:
    """A curve's step."""
    import torch

    leaves, run = layers(parameters)
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    return descended(lambda: torch.nn.functional.mse_loss(run(x), y), leaves, 0.01)


def gpt_step(*arguments: Any, device: str = "cpu") -> Callable[[], Any]:
    """A language model's step of AdamW."""
    import torch

    functional = torch.nn.functional
    arrays, _, _, _, words, following = arguments
    p = dict(zip(arrays, leaves_of(arrays.values(), device), strict=True))
    words = torch.from_numpy(words).to(device)
    following = torch.from_numpy(following).long().to(device)
    width, heads = steps.WIDTH, steps.HEADS

    def attended(x: Any, layer: int) -> Any:
        batch, length, _ = x.shape
        mixed = (x @ p[f"attend_{layer}"]).view(batch, length, 3, heads, width // heads)
        q, k, v = (mixed[:, :, i].transpose(1, 2) for i in range(3))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).reshape(batch, length, width) @ p[f"project_{layer}"]

    def loss() -> Any:
        x = functional.embedding(words, p["words"]) + p["places"]
        for layer in range(steps.LAYERS):
            x = x + attended(functional.layer_norm(x, (width,), p[f"norm1_{layer}"]), layer)
            wide = functional.layer_norm(x, (width,), p[f"norm2_{layer}"]) @ p[f"widen_{layer}"]
            x = x + functional.gelu(wide, approximate="tanh") @ p[f"narrow_{layer}"]
        logits = functional.layer_norm(x, (width,), p["norm"]) @ p["words"].T
        return functional.cross_entropy(logits.reshape(-1, steps.WORDS), following.reshape(-1))

    optimizer = torch.optim.AdamW(
        p.values(),
        steps.RATE,
        (steps.BETA1, steps.BETA2),
        steps.EPSILON,
        steps.DECAY,
        foreach=True,
    )

    def step() -> Any:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return value

    return step
