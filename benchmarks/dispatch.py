"""What one small call costs: `x + y` on 4, 1 000 and 1 000 000 elements, and importing weft."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from typing import Any

import harness
import numpy as np

import weft as wf


def workloads() -> harness.Workloads:
    """Eager additions in every library that is installed."""
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
    return table


def _torch(a: Any, b: Any) -> Any:
    torch = __import__("torch")
    p, q = torch.from_numpy(a), torch.from_numpy(b)
    return lambda: p + q


def _jax(a: Any, b: Any) -> Any:
    jnp = __import__("jax.numpy").numpy
    u, v = jnp.asarray(a), jnp.asarray(b)
    return lambda: (u + v).block_until_ready()


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
