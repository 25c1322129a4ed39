"""What tracking costs, eager: a chain of 100 sines, per-example gradients, a Hessian."""

from __future__ import annotations

from typing import Any

import harness
import numpy as np

import weft as wf

RNG = np.random.default_rng(0)
CHAIN = RNG.normal(size=64).astype(np.float32)
W1, W2 = (RNG.normal(size=s).astype(np.float32) * 0.1 for s in ((64, 128), (128, 10)))
X = RNG.normal(size=(512, 64)).astype(np.float32)
POINT = RNG.normal(size=100).astype(np.float32)


def chain(sin: Any) -> Any:
    """A hundred sines."""

    def run(x: Any) -> Any:
        for _ in range(100):
            x = sin(x)
        return x.sum()

    return run


def network(tanh: Any) -> Any:
    """A two-layer network's loss on one example."""
    return lambda w, x: (tanh(x @ w[0]) @ w[1]).sum()


def quartic(x: Any) -> Any:
    """A function with a full Hessian."""
    return ((x * x).sum()) ** 2 + (x**3).sum()


def workloads() -> harness.Workloads:
    """The same programs in weft, eager jax and torch.func."""
    x, w, batch, p = (
        wf.asarray(CHAIN),
        (wf.asarray(W1), wf.asarray(W2)),
        wf.asarray(X),
        wf.asarray(POINT),
    )
    f, net = chain(wf.sin), network(wf.tanh)
    per_example = wf.vmap(wf.grad(net), in_axes=(None, 0))
    table: harness.Workloads = {
        "100 sines of 64, forward": {"weft": lambda: f(x).data()},
        "100 sines of 64, on the tape": {"weft": lambda: wf.vjp(f, x)[0].data()},
        "100 sines of 64, gradient": {"weft": lambda: wf.grad(f)(x).data()},
        "per-example gradients 64-128-10, 512": {"weft": lambda: wf.realize(per_example(w, batch))},
        "Hessian, n = 100": {"weft": lambda: wf.hessian(quartic)(p).data()},
    }
    for name, build in (("jax", _jax), ("torch", _torch)):
        if harness.available(name):
            for row, function in zip(table.values(), build(), strict=True):
                row[name] = function
    return table


def _jax() -> list[Any]:
    import jax
    import jax.numpy as jnp

    x, w, batch, p = (
        jnp.asarray(CHAIN),
        (jnp.asarray(W1), jnp.asarray(W2)),
        jnp.asarray(X),
        jnp.asarray(POINT),
    )
    f, net = chain(jnp.sin), network(jnp.tanh)
    per_example = jax.vmap(jax.grad(net), in_axes=(None, 0))
    wait = jax.block_until_ready
    return [
        lambda: wait(f(x)),
        lambda: wait(jax.vjp(f, x)[0]),
        lambda: wait(jax.grad(f)(x)),
        lambda: wait(per_example(w, batch)),
        lambda: wait(jax.hessian(quartic)(p)),
    ]


def _torch() -> list[Any]:
    import torch

    x, w, batch, p = (
        torch.from_numpy(CHAIN),
        (torch.from_numpy(W1), torch.from_numpy(W2)),
        torch.from_numpy(X),
        torch.from_numpy(POINT),
    )
    f, net = chain(torch.sin), network(torch.tanh)
    per_example = torch.func.vmap(torch.func.grad(net), in_dims=(None, 0))
    return [
        lambda: f(x),
        lambda: torch.func.vjp(f, x)[0],
        lambda: torch.func.grad(f)(x),
        lambda: per_example(w, batch),
        lambda: torch.func.hessian(quartic)(p),
    ]


if __name__ == "__main__":
    harness.main("transforms", workloads)
