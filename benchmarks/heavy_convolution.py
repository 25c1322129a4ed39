"""Convolutions, pools and a ResNet-18 beside torch and jax, as rows of `heavy.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import harness
import numpy as np
from harness import Row, Workload
from peers import normal

import weft as wf

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # features and stride of each pair of blocks


class Weft:
    """What the programs here are written with, in weft."""

    maximum, mean = wf.maximum, wf.mean

    @staticmethod
    def conv(x: Any, w: Any, stride: int, padding: int, groups: int = 1) -> Any:
        return wf.conv2d(x, w, stride=stride, padding=padding, groups=groups)

    @staticmethod
    def pool(x: Any) -> Any:
        return wf.max_pool2d(x, 3, 2, 1)


def _jax() -> Any:
    import jax
    import jax.numpy as jnp

    class Jax:
        maximum, mean = jnp.maximum, jnp.mean

        @staticmethod
        def conv(x: Any, w: Any, stride: int, padding: int, groups: int = 1) -> Any:
            return jax.lax.conv_general_dilated(
                x, w, (stride,) * 2, [(padding, padding)] * 2, feature_group_count=groups
            )

        @staticmethod
        def pool(x: Any) -> Any:
            edges = [(0, 0), (0, 0), (1, 1), (1, 1)]
            return jax.lax.reduce_window(
                x, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), edges
            )

    return Jax


def _torch() -> Any:
    import torch

    torch.set_num_threads(harness.held())

    class Torch:
        mean = torch.mean

        @staticmethod
        def maximum(x: Any, y: Any) -> Any:
            return torch.clamp_min(x, y)

        @staticmethod
        def conv(x: Any, w: Any, stride: int, padding: int, groups: int = 1) -> Any:
            return torch.nn.functional.conv2d(x, w, stride=stride, padding=padding, groups=groups)

        @staticmethod
        def pool(x: Any) -> Any:
            return torch.nn.functional.max_pool2d(x, 3, 2, 1)

    return Torch


Program = Callable[..., Any]  # of a library's functions and arrays


def forward(program: Program, arrays: tuple[Any, ...]) -> Workload:
    """A program in every library."""
    tensors = [wf.tensor(a) for a in arrays]
    compiled = wf.compile(lambda *xs: program(Weft, *xs))
    made: Workload = {"weft": lambda: compiled(*tensors)}
    if harness.available("jax"):
        import jax

        functions = _jax()
        jitted = jax.jit(lambda *xs: program(functions, *xs))
        given = tuple(jax.numpy.asarray(a) for a in arrays)
        made["jax"] = lambda: jax.block_until_ready(jitted(*given))
    if harness.available("torch"):
        import torch

        library = _torch()
        leaves = [torch.from_numpy(a) for a in arrays]

        def run() -> Any:
            with torch.inference_mode():
                return program(library, *leaves)

        made["torch"] = run
    return made


def gradient(program: Program, arrays: tuple[Any, ...], position: int) -> Workload:
    """What a cotangent of ones, and one that varies, gives one of the arguments."""
    shape = wf.eval_shape(lambda *xs: program(Weft, *xs), *map(wf.tensor, arrays)).shape
    ct = normal(*shape)
    tensors = [wf.tensor(a) for a in (*arrays, ct)]
    compiled = wf.compile(
        lambda *xs: wf.vjp(lambda *p: program(Weft, *p), *xs[:-1])[1](xs[-1])[position]
    )
    made: Workload = {"weft": lambda: compiled(*tensors)}
    if harness.available("jax"):
        import jax

        functions = _jax()
        jitted = jax.jit(
            lambda *xs: jax.vjp(lambda *p: program(functions, *p), *xs[:-1])[1](xs[-1])[position]
        )
        given = tuple(jax.numpy.asarray(a) for a in (*arrays, ct))
        made["jax"] = lambda: jax.block_until_ready(jitted(*given))
    if harness.available("torch"):
        import torch

        library = _torch()
        leaves = [torch.from_numpy(a).requires_grad_() for a in arrays]
        out, seed = program(library, *leaves), torch.from_numpy(ct)
        made["torch"] = lambda: torch.autograd.grad(out, leaves[position], seed, retain_graph=True)
    return made


def convolution(f: Any, x: Any, w: Any) -> Any:
    """3 × 3, padded by one."""
    return f.conv(x, w, 1, 1)


def depthwise(f: Any, x: Any, w: Any) -> Any:
    """3 × 3, each feature on its own."""
    return f.conv(x, w, 1, 1, x.shape[1])


def layer(f: Any, x: Any, w: Any, b: Any) -> Any:
    """Convolution, bias and relu."""
    return f.maximum(f.conv(x, w, 1, 1) + b.reshape((-1, 1, 1)), 0.0)


def pool(f: Any, x: Any) -> Any:
    """The largest of 3 × 3, every second one."""
    return f.pool(x)


def resnet_weights() -> list[Any]:
    """Kernel, scale and shift of each convolution of a ResNet-18, then the last layer."""
    made: list[Any] = []

    def add(outputs: int, inputs: int, window: int) -> None:
        made.append(normal(outputs, inputs, window, window) * (2 / inputs) ** 0.5 / window)
        made.append(np.abs(normal(outputs, 1, 1)) * 0.5)
        made.append(normal(outputs, 1, 1) * 0.1)

    add(64, 3, 7)
    inputs = 64
    for features, _ in STAGES:
        for number in range(2):
            add(features, inputs, 3)
            add(features, features, 3)
            if number == 0 and inputs != features:
                add(features, inputs, 1)
            inputs = features
    return [*made, normal(512, 1000) * 0.05, normal(1000) * 0.1]


def resnet(f: Any, x: Any, *weights: Any) -> Any:
    """ResNet-18 at inference: batch norm is a scale and a shift for each feature."""
    left = iter(weights)

    def norm(x: Any, stride: int, padding: int) -> Any:
        kernel, scale, shift = next(left), next(left), next(left)
        return f.conv(x, kernel, stride, padding) * scale + shift

    x = f.pool(f.maximum(norm(x, 2, 3), 0.0))
    for features, step in STAGES:
        for number in range(2):
            stride = step if number == 0 else 1
            y = f.maximum(norm(x, stride, 1), 0.0)
            y = norm(y, 1, 1)
            short = x if x.shape[1] == features else norm(x, stride, 0)
            x = f.maximum(y + short, 0.0)
    return f.mean(x, (2, 3)) @ next(left) + next(left)


def _image() -> Any:
    return normal(32, 64, 56, 56)


def _kernel() -> Any:
    return normal(64, 64, 3, 3) / 24


WORKLOADS: tuple[tuple[str, float, Callable[[], Workload]], ...] = (
    ("conv2d 32×64×56², 3×3×64", 1.0, lambda: forward(convolution, (_image(), _kernel()))),
    ("its gradient by image", 1.0, lambda: gradient(convolution, (_image(), _kernel()), 0)),
    ("its gradient by kernel", 1.0, lambda: gradient(convolution, (_image(), _kernel()), 1)),
    (
        "conv2d + bias + relu",
        1.0,
        lambda: forward(layer, (_image(), _kernel(), normal(64))),
    ),
    ("depthwise 32×64×56², 3×3", 1.0, lambda: forward(depthwise, (_image(), normal(64, 1, 3, 3)))),
    ("max_pool2d 8×64×112², 3×3 by 2", 1.0, lambda: forward(pool, (normal(8, 64, 112, 112),))),
    (
        "ResNet-18 forward, batch 8",
        1.0,
        lambda: forward(resnet, (normal(8, 3, 224, 224), *resnet_weights())),
    ),
)


def rows() -> Iterator[Row]:
    """Each with its goal: how many times faster than the best peer."""
    for name, goal, build in WORKLOADS:
        yield Row(name, build, goal)
