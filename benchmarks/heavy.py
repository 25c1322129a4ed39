"""Heavy work beside numpy, jax (jit) and torch: products of matrices, and steps of training.

    python benchmarks/heavy.py --threads 1
    python benchmarks/heavy.py --threads 2 --only matmul --json out.json

Each row has a goal: how many times faster than the best peer, or than each that is named. The other
files `heavy_….py` have rows of their own, in a function `rows`, and are part of the table.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness

OPTIONS = (
    harness.options_of(__doc__)
    if __name__ == "__main__"
    else argparse.Namespace(quick=True, threads=2, torch_compile=False)
)
harness.hold(OPTIONS.threads)

import compiler_steps as steps  # noqa: E402  what stands above must come first
import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
import peers  # noqa: E402
from harness import Row, Workload  # noqa: E402
from peers import gelu, jitted, libraries, normal, torched  # noqa: E402

import weft as wf  # noqa: E402

NABLA = (1, 16, 32, 64, 64, 64, 64, 32, 16, 1)
SAMPLES = 500
HOPELESS = 20.0  # seconds of a call for which a peer is left out


def size(full: int) -> int:
    """A size, or an eighth of it with `--quick`."""
    return max(full // 8, 1) if OPTIONS.quick else full


# Products of matrices.


def product(xp: Any, x: Any, y: Any) -> Any:
    """A product of matrices."""
    return x @ y


def dense(xp: Any, x: Any, w: Any, b: Any) -> Any:
    """A layer: product, bias, gelu."""
    return gelu(xp, x @ w + b, True)


def narrow(m: int) -> Workload:
    """bfloat16 in torch and jax; numpy has no such product."""
    arrays = normal(m, m), normal(m, m)
    x, y = (wf.tensor(a).astype(wf.bfloat16) for a in arrays)
    compiled = wf.compile(lambda x, y: x @ y)
    made: Workload = {"weft": lambda: compiled(x, y)}
    if harness.available("jax"):
        given = tuple(a.astype(ml_dtypes.bfloat16) for a in arrays)
        made["jax"] = jitted(lambda jnp: lambda x, y: x @ y, given)
    if harness.available("torch"):
        import torch

        one, other = (torch.from_numpy(a).to(torch.bfloat16) for a in arrays)
        few = min(m, 256)
        small = harness.once(lambda: one[:few, :few] @ other[:few, :few], 0.0)
        if small * (m / few) ** 3 < HOPELESS:  # some processors have no instructions for it
            made["torch"] = torched(lambda torch: one @ other, ())
    return made


def integers(m: int) -> Workload:
    """int8 times int8, added up in int32."""
    arrays = tuple(peers.RNG.integers(-128, 128, (m, m), np.int8) for _ in range(2))
    x, y = map(wf.tensor, arrays)
    compiled = wf.compile(lambda x, y: x.astype(wf.int32) @ y.astype(wf.int32))
    made: Workload = {"weft": lambda: compiled(x, y)}
    if harness.available("jax"):
        made["jax"] = jitted(
            lambda jnp: lambda x, y: jnp.matmul(x, y, preferred_element_type=jnp.int32), arrays
        )
    if harness.available("torch"):
        made["torch"] = torched(lambda torch, x, y: torch._int_mm(x, y), arrays)
    return made


def matmul(m: int, k: int, n: int, goal: float = 1.0, dtype: Any = np.float32) -> Row:
    """A product of an m × k and a k × n matrix."""
    name = f"matmul {np.dtype(dtype).name} " + (f"{m}³" if m == k == n else f"{m}×{k}×{n}")

    def build() -> Workload:
        arrays = tuple(normal(*shape).astype(dtype) for shape in ((m, k), (k, n)))
        return _wide(lambda: libraries(product, arrays))

    return Row(name, build, goal)


def _wide(build: Callable[[], Workload]) -> Workload:
    """A workload in which jax may use 64 bits."""
    if not harness.available("jax"):
        return build()
    import jax

    with jax.enable_x64(True):
        made = build()
    call = made["jax"]

    def wide() -> Any:
        with jax.enable_x64(True):
            return call()

    return {**made, "jax": wide}


def products() -> Iterator[Row]:
    """Large, batched, thin and narrow products."""
    for full in (1024, 2048, 4096):
        yield matmul(size(full), size(full), size(full))
    yield matmul(size(1024), size(1024), size(1024), dtype=np.float64)
    batch = (normal(64, size(256), 64), normal(64, 64, size(256)))
    yield Row(f"matmul 64×({size(256)}×64×{size(256)})", lambda: libraries(product, batch), 1.0)
    yield matmul(size(4096), 64, size(4096), 1.5)
    yield matmul(16, size(4096), size(4096), 1.2)
    m = size(8192)
    yield Row(f"matrix–vector {m}²", lambda: libraries(product, (normal(m, m), normal(m))), 1.0)
    m, n = size(1024), size(4096)
    layer = normal(m, m) / 32, normal(m, n), normal(n)
    yield Row(f"matmul + bias + gelu {m}×{m}×{n}", lambda: libraries(dense, layer), 1.3)
    m = size(2048)
    yield Row(f"matmul bfloat16 {m}³", lambda: narrow(m), goals={"torch": 0.9, "jax": 4.0})
    yield Row(f"matmul int8 → int32 {m}³", lambda: integers(m), 1.0)


# Steps of training.


def step_of(make: Any, arguments: tuple[Any, ...], torch: Callable[..., Any]) -> Workload:
    """A step of training; `torch` makes torch's own of the same arguments."""
    step = wf.compile(make(wf, wf.value_and_grad))
    tensors = wf.tree_map(wf.tensor, list(arguments))
    made: Workload = {"weft": lambda: step(*tensors)}
    if harness.available("jax"):
        import jax

        made["jax"] = jitted(lambda jnp: make(jnp, jax.value_and_grad), arguments)
    if harness.available("torch"):
        run = torch(*arguments)
        made["torch"] = torched(lambda _: run(), ())
    return made


def per_example() -> Workload:
    """The gradient of every example of a batch on its own."""
    weights = tuple(0.1 * normal(*shape) for shape in ((64, 128), (128, 10)))
    batch = normal(512, 64)

    def network(xp: Any) -> Callable[..., Any]:
        return lambda w, x: (xp.tanh(x @ w[0]) @ w[1]).sum()

    each = wf.compile(wf.vmap(wf.grad(network(wf)), in_axes=(None, 0)))
    given = wf.tree_map(wf.tensor, [weights, batch])
    made: Workload = {"weft": lambda: each(*given)}
    if harness.available("jax"):
        import jax

        made["jax"] = jitted(
            lambda jnp: jax.vmap(jax.grad(network(jnp)), in_axes=(None, 0)), (weights, batch)
        )
    if harness.available("torch"):

        def slopes(torch: Any, *given: Any) -> Any:
            *w, x = given
            return torch.func.vmap(torch.func.grad(network(torch)), in_dims=(None, 0))(tuple(w), x)

        made["torch"] = torched(slopes, (*weights, batch))
    return made


def nabla_data() -> tuple[Any, Any, Any]:
    """Parameters of a deep, thin network, and points of a curve."""
    parameters = [
        (normal(m, n) * (2 / m) ** 0.5, np.zeros(n, np.float32))
        for m, n in itertools.pairwise(NABLA)
    ]
    x = np.linspace(0, 1, SAMPLES, dtype=np.float32)[:, None]
    return parameters, x, np.sin(8 * np.pi * x) / 2 + 0.5


def nabla_step(xp: Any, value_and_grad: Any) -> Callable[..., Any]:
    """One step of gradient descent on a curve."""

    def loss(parameters: Any, x: Any, y: Any) -> Any:
        *hidden, (w, b) = parameters
        for weight, bias in hidden:
            x = xp.maximum(x @ weight + bias, 0.0)
        return xp.mean((x @ w + b - y) ** 2)

    def step(parameters: Any, x: Any, y: Any) -> Any:
        value, slopes = value_and_grad(loss)(parameters, x, y)
        moved = [
            tuple(p - 0.01 * g for p, g in zip(pair, slope, strict=True))
            for pair, slope in zip(parameters, slopes, strict=True)
        ]
        return value, moved

    return step


def training() -> Iterator[Row]:
    """Whole steps of training."""

    def own(name: str) -> Callable[..., Any]:  # torch is imported when a row asks for it
        return lambda *given: getattr(importlib.import_module("heavy_torch"), name)(*given)

    yield Row(
        "MLP 784-512-512-10 step",
        lambda: step_of(steps.mlp_step, steps.mlp_data(), own("mlp_step")),
        1.15,
    )
    yield Row("per-example gradients 64-128-10, 512", per_example, 1.3)
    yield Row(
        "MLP 1-16-32-64⁴-32-16-1 step",
        lambda: step_of(nabla_step, nabla_data(), own("nabla_step")),
        1.3,
    )
    yield Row(
        "GPT step, 4 layers of 128",
        lambda: step_of(steps.gpt_step, steps.gpt_arguments(), own("gpt_step")),
        goals={"torch": 1.4, "jax": 4.0},
    )


def others() -> Iterator[Row]:
    """The rows of the files beside this one."""
    for path in sorted(Path(__file__).parent.glob("heavy_*.py")):
        yield from getattr(importlib.import_module(path.stem), "rows", list[Row])()


def main() -> None:
    """Print the table, and write it where `--json` says."""
    peers.TORCH_COMPILE = OPTIONS.torch_compile
    print(harness.machine())
    table = (row for group in (products, training, others) for row in group())
    harness.keep(OPTIONS.json, rows=harness.run(table, OPTIONS))


if __name__ == "__main__":
    main()
