"""What one small call costs: `x + y` on 4, 1 000 and 1 000 000 elements, a hundred assignments to
elements one after another, composed functions of 64 numbers, programs without `compile` on matrices
of 200 × 300, and importing weft.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import harness
import numpy as np

import weft as wf

COMPOSED: dict[str, Callable[[Any, Any], Any]] = {
    "median": lambda xp, x: xp.median(x),
    "interp": lambda xp, x: xp.interp(x, x, x),
    "std": lambda xp, x: xp.std(x),
    "gradient": lambda xp, x: xp.gradient(x),
    "roll": lambda xp, x: xp.roll(x, 1),
}


def normalized(xp: Any, x: Any, y: Any) -> Any:
    """Rows brought to mean 0 and deviation 1."""
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    return centred / xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)


def moved(xp: Any, x: Any, y: Any) -> Any:
    """A step of Adam."""
    first, second = 0.9 * y + 0.1 * x, 0.99 * y * y + 0.01 * x * x
    return x - 0.1 * first / (xp.sqrt(second) + 1e-8)


PLAIN: dict[str, Callable[[Any, Any, Any], Any]] = {
    "0.5 * x + y": lambda xp, x, y: 0.5 * x + y,
    "rows of mean 0 and deviation 1": normalized,
    "step of Adam": moved,
    "where(x > y, x, y)": lambda xp, x, y: xp.where(x > y, x, y),
    "sum of tanh(x) * y": lambda xp, x, y: (xp.tanh(x) * y).sum(),
}


def workloads() -> harness.Workloads:
    """Eager calls in every library that is installed."""
    table: harness.Workloads = {}
    for size in (4, 1_000, 1_000_000):
        a, b = np.ones(size, np.float32), np.full(size, 2, np.float32)
        x, y = wf.asarray(a, copy=True), wf.asarray(b, copy=True)
        row: dict[str, Any] = {
            "weft": lambda x=x, y=y: (x + y).data(),
            "numpy": lambda a=a, b=b: a + b,
        }
        if harness.available("torch"):
            row["torch"] = _torch(a, b)
        if harness.available("jax"):
            row["jax"] = _jax(a, b)
        table[f"x + y, {size:,} elements"] = row
    for size in (4_000, 1_000_000):
        zeros = {"weft": wf.zeros(size), "numpy": np.zeros(size, np.float32)}
        if harness.available("torch"):
            zeros["torch"] = __import__("torch").zeros(size)
        for name, program in (("x[i] = 1.0", set_elements), ("x[i + 1] = x[i] + 1.0", add_up)):
            table[f"{name}, 100 times, {size:,} elements"] = {
                library: lambda x=x, program=program: program(x) for library, x in zeros.items()
            }
    return table | composed() | plain()


def plain() -> harness.Workloads:
    """Programs without `compile`, on tensors of some ten thousand elements."""
    rng, table = np.random.default_rng(0), harness.Workloads()
    arrays = [rng.standard_normal((200, 300)).astype(np.float32) for _ in range(2)]
    tensors = [wf.tensor(a) for a in arrays]
    for name, function in PLAIN.items():
        row: dict[str, Any] = {
            "weft": lambda f=function: f(wf, *tensors).data(),
            "numpy": lambda f=function: f(np, *arrays),
        }
        if harness.available("torch"):
            torch = __import__("torch")
            given = [torch.from_numpy(a) for a in arrays]
            row["torch"] = lambda f=function, t=torch, given=given: f(t, *given)
        if harness.available("jax"):
            row["jax"] = _composed_by_jax(function, *arrays)
        table[f"{name}, 200 × 300"] = row
    return table


def composed() -> harness.Workloads:
    """Functions of many ops, called on a few numbers."""
    given = np.arange(64, dtype=np.float32)
    x, table = wf.tensor(given), harness.Workloads()
    for name, function in COMPOSED.items():
        row: dict[str, Any] = {
            "weft": lambda f=function: f(wf, x).data(),
            "numpy": lambda f=function: f(np, given),
        }
        if harness.available("jax"):
            row["jax"] = _composed_by_jax(function, given)
        table[f"{name}, 64 elements"] = row
    return table


def set_elements(x: Any) -> float:
    """Elements of a tensor, one after another."""
    for i in range(100):
        x[i] = 1.0
    return float(x[7])


def add_up(x: Any) -> float:
    """Each element from the one before."""
    x[0] = 0.0
    for i in range(100):
        x[i + 1] = x[i] + 1.0
    return float(x[100])


def _torch(a: Any, b: Any) -> Any:
    torch = __import__("torch")
    p, q = torch.from_numpy(a), torch.from_numpy(b)
    return lambda: p + q


def _jax(a: Any, b: Any) -> Any:
    jnp = __import__("jax.numpy").numpy
    u, v = jnp.asarray(a), jnp.asarray(b)
    return lambda: (u + v).block_until_ready()


def _composed_by_jax(function: Callable[..., Any], *given: Any) -> Any:
    jnp = __import__("jax.numpy").numpy
    arrays = [jnp.asarray(a) for a in given]
    return lambda: function(jnp, *arrays).block_until_ready()


def import_time() -> dict[str, Any]:
    """Seconds to import each library in a fresh process, NumPy's share included."""
    found = {}
    cached = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    for name in ("numpy", "weft", "jax", "torch"):
        if harness.available(name):
            code = (
                f"import time; start = time.perf_counter(); import {name};"
                " print(time.perf_counter() - start)"
            )
            runs = [
                float(
                    subprocess.run(
                        [sys.executable, "-c", code], capture_output=True, check=True, env=cached
                    ).stdout
                )
                for _ in range(5)
            ]
            found[name] = statistics.median(runs)
    print("import, seconds: " + "  ".join(f"{name} {value:.3f}" for name, value in found.items()))
    return {"import_seconds": found}


if __name__ == "__main__":
    harness.main("dispatch", workloads, import_time)
