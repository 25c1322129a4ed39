"""What meshes cost: ranks beside threads, collectives beside plain mpi4py, sharded calls, solving.

    python benchmarks/mesh.py [--only mlp small]

starts itself with two ranks. Training steps alternate between two ranks of one thread each (batch
split over the ranks) and one process with two threads, whose partner sleeps meanwhile; collectives
inside a compiled step alternate with `Allreduce` of mpi4py. Ratios are medians over rounds; above 1
the mesh is faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compiler_steps as steps
import mesh_communication
import numpy as np

import weft as wf
from weft import P, launch
from weft.runtime.communicator import Communicator, world

PARTS = ("eager", "mlp", "gpt", "small", "sizes", "solver")
CHAIN = 32  # collectives of one compiled call


def seconds(call: Callable[[], Any], count: int) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    for _ in range(count):
        wf.realize(call())
    return (time.perf_counter() - start) / count


def training(name: str) -> tuple[Callable[..., Any], list[Any], int]:
    """A compiled step, its arguments, and how many of them (the last) are split over ranks."""
    if name == "mlp":
        step = wf.compile(steps.mlp_step(wf, wf.value_and_grad))
        return step, [wf.tree_map(wf.tensor, x) for x in steps.mlp_data()], 2
    step = wf.compile(steps.gpt_step(wf, wf.value_and_grad))
    return step, [wf.tree_map(wf.tensor, x) for x in steps.gpt_arguments()], 2


def ranks_beside_threads(ranks: Communicator, name: str, rounds: int) -> dict[str, float]:
    """Milliseconds of a step on two ranks and on two threads, and the median of the ratios."""
    mesh = wf.DeviceMesh("ranks", (ranks.size,), ("dp",))
    step, given, split = training(name)
    place = [*[P()] * (len(given) - split), *[P("dp")] * split]
    spread = [
        wf.tree_map(lambda t, s=spec: t.shard(mesh, s), x)
        for x, spec in zip(given, place, strict=True)
    ]
    wf.config.settings.threads = 1
    wf.realize(step(*spread))
    count = 20 if name == "mlp" else 3
    found: list[tuple[float, float]] = []
    for turn in range(rounds + 1):
        wf.config.settings.threads = 1
        ranks.barrier()
        together = seconds(lambda: step(*spread), count)
        ranks.barrier()
        if ranks.rank == 0:
            wf.config.settings.threads = ranks.size
            alone = seconds(lambda: step(*given), count)
            if turn:  # the first round compiles
                found.append((together, alone))
        ranks.barrier()
    if ranks.rank:
        return {}
    return {
        "ranks_ms": statistics.median(a for a, _ in found) * 1e3,
        "threads_ms": statistics.median(b for _, b in found) * 1e3,
        "ratio": statistics.median(b / a for a, b in found),
    }


def small_collective(ranks: Communicator, rounds: int) -> dict[str, float]:
    """Microseconds of an all-reduce of 4 B inside a compiled call, and of mpi4py's own."""
    from mpi4py import MPI

    mesh = wf.DeviceMesh("ranks", (ranks.size,), ("dp",))

    def body(x: Any) -> Any:
        for _ in range(CHAIN):
            x = wf.all_reduce(x, "dp") * 0.5
        return x

    run = wf.compile(wf.shard_map(body, mesh, in_specs=P("dp"), out_specs=P(), manual=True))
    x = wf.ones(ranks.size).shard(mesh, P("dp"))
    given, target = np.ones(1, np.float32), np.empty(1, np.float32)
    found = []
    for turn in range(rounds + 1):
        ranks.barrier()
        ours = seconds(lambda: run(x), 20) / CHAIN
        ranks.barrier()
        start = time.perf_counter()
        for _ in range(20 * CHAIN):
            MPI.COMM_WORLD.Allreduce(given, target)
        theirs = (time.perf_counter() - start) / 20 / CHAIN
        if turn:
            found.append((ours * 1e6, theirs * 1e6))
    return {
        "compiled_us": min(a for a, _ in found),
        "mpi4py_us": min(b for _, b in found),
        "over_us": statistics.median(a - b for a, b in found),
    }


def sharded_call(rounds: int) -> dict[str, float]:
    """Microseconds of `x + y` on four devices of one process, beside four calls on pieces."""
    mesh = wf.DeviceMesh("line", (4,), ("x",))
    pieces = [wf.ones((2, 8)) for _ in range(4)]
    x = wf.ones((8, 8)).shard(mesh, P("x"))
    found = []
    for _ in range(rounds):
        sharded = seconds(lambda: x + x, 200)
        dense = seconds(lambda: [piece + piece for piece in pieces], 200)
        found.append((sharded * 1e6, dense * 1e6))
    return {
        "sharded_us": statistics.median(a for a, _ in found),
        "pieces_us": statistics.median(b for _, b in found),
        "overhead": statistics.median(a / b for a, b in found),
    }


def solved(layers: int) -> str:
    """What the solver's own benchmark prints."""
    command = [sys.executable, str(Path(__file__).with_name("mesh_solver.py"))]
    done = subprocess.run(
        [*command, "--layers", str(layers)], capture_output=True, text=True, check=True
    )
    return done.stdout


def alone(options: argparse.Namespace) -> int:
    """What one process measures, and the ranks it starts in between."""
    if "eager" in options.only:
        sharded = sharded_call(options.rounds)
        print(f"sharded eager call: {show(sharded)}   (goal: overhead at most 3)", flush=True)
    code = launch.main(["-n", "2", *sys.argv])
    if "solver" in options.only:
        print(solved(options.layers), end="")
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layers", type=int, default=24, help="of the transformer that is solved")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="some parts alone")
    options = parser.parse_args()
    ranks = world()
    if ranks.size == 1:
        return alone(options)
    rows: dict[str, Any] = {}
    for name in ("mlp", "gpt"):
        if name in options.only:
            rows[name] = ranks_beside_threads(ranks, name, options.rounds)
            tell(ranks, f"{name} step, 2 ranks beside 2 threads", rows[name], "ratio at least 0.9")
    if "small" in options.only:
        rows["4 B"] = small_collective(ranks, options.rounds)
        tell(ranks, "all-reduce of 4 B, compiled", rows["4 B"], "at most 5 µs over mpi4py")
    if "sizes" in options.only and mesh_communication.available("torch"):
        mesh_communication.start_gloo(ranks)
    sizes = mesh_communication.SIZES if "sizes" in options.only else {}
    for name, (nbytes, count, batches) in sizes.items():
        found = mesh_communication.row(ranks, nbytes, count, batches)
        rows[f"all-reduce {name}"] = found
        tell(ranks, f"all-reduce of {name}, µs", found, mesh_communication.GOALS[name])
    if ranks.rank == 0 and options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


def show(row: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.2f}" for name, value in row.items())


def tell(ranks: Communicator, title: str, row: dict[str, float], goal: str) -> None:
    if ranks.rank == 0:
        print(f"{title}: {show(row)}   (goal: {goal})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
