"""All-reduce between processes: weft beside plain mpi4py and torch's gloo, in the same run.

    python -m weft.launch -n 2 benchmarks/mesh_communication.py

Started without the launcher it starts itself with two ranks. Libraries take turns in short batches;
a row shows the best batch of each, and the ratio of the two bests (above 1: weft is faster). weft
returns a new array each time, compares what every rank is doing, and watches for timeouts and dead
ranks; the others write into an array that is there and do none of this.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import available

from weft import launch
from weft.runtime.communicator import Communicator, world

SIZES = {"4 B": (4, 40, 100), "1 MiB": (1 << 20, 4, 50), "64 MiB": (64 << 20, 1, 12)}
GOALS = {"4 B": "within 5 µs of mpi4py", "1 MiB": "ratio ≥ 0.9", "64 MiB": "ratio ≥ 0.9"}


def peers(ranks: Communicator, elements: int) -> dict[str, Callable[[], Any]]:
    from mpi4py import MPI

    members = tuple(range(ranks.size))
    given = np.ones(elements, np.float32)
    target = np.empty_like(given)
    calls: dict[str, Callable[[], Any]] = {
        "weft": lambda: ranks.all_reduce(given, "sum", members),
        "mpi4py": lambda: MPI.COMM_WORLD.Allreduce(given, target),
    }
    if available("torch"):
        import torch

        tensor = torch.ones(elements)
        calls["gloo"] = lambda: torch.distributed.all_reduce(tensor)
    return calls


def start_gloo(ranks: Communicator) -> None:
    import torch

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    folder = tempfile.mkdtemp() if ranks.rank == 0 else ""
    own = np.frombuffer(folder.encode(), np.uint8) if ranks.rank == 0 else None
    path = ranks.broadcast(own, 0, tuple(range(ranks.size))).tobytes().decode()
    store = torch.distributed.FileStore(f"{path}/store", ranks.size)
    torch.distributed.init_process_group(
        "gloo", store=store, rank=ranks.rank, world_size=ranks.size
    )


def seconds(ranks: Communicator, call: Callable[[], Any], count: int) -> float:
    """Seconds of one call, from a batch that all ranks begin together."""
    ranks.barrier()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def row(ranks: Communicator, nbytes: int, count: int, batches: int) -> dict[str, float]:
    """Microseconds of the best batch of each library."""
    calls = peers(ranks, nbytes // 4)
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(batches):
        for name, call in calls.items():
            best[name] = min(best[name], seconds(ranks, call, count))
    return {name: value * 1e6 for name, value in best.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--batches", type=float, default=1.0, help="more or fewer of them")
    parser.add_argument("--only", default=None, help="a peer beside mpi4py, such as torch or none")
    options = parser.parse_args()
    ranks = world()
    if ranks.size == 1:
        return launch.main(["-n", "2", *sys.argv])
    if available("torch"):
        start_gloo(ranks)
    rows = {}
    if ranks.rank == 0:
        print(f"all-reduce of float32 between {ranks.size} ranks: best batch, microseconds")
    for name, (nbytes, count, batches) in SIZES.items():
        found = row(ranks, nbytes, count, max(3, int(batches * options.batches)))
        ratios = {peer: value / found["weft"] for peer, value in found.items() if peer != "weft"}
        rows[name] = {"microseconds": found, "ratios": ratios}
        if ranks.rank == 0:
            listed = "  ".join(f"{peer} {value:10.2f}" for peer, value in found.items())
            against = "  ".join(f"/ {peer} {value:.2f}" for peer, value in ratios.items())
            print(f"  {name:7} {listed}   {against}   ({GOALS[name]})", flush=True)
    if ranks.rank == 0 and options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"ranks": ranks.size, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
