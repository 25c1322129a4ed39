"""Time weft and its peers side by side: alternating rounds, median of ratios.

A benchmark is a table of workloads; each workload gives one callable for each library. Libraries
that are not installed are left out, and the table says so. A `Row` is a workload with a goal, which
is built when its turn has come; `run` is the command line of a table of rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Workload: TypeAlias = dict[str, Callable[[], Any]]
Workloads: TypeAlias = dict[str, Workload]

LIBRARIES = ("weft", "numpy", "jax", "torch")
MARKS = {True: "ok", False: "MISS", None: "no peer"}
LONG = 0.1  # seconds of a call from which one before it is not needed to warm caches up
PATIENCE = 1.5  # seconds of a call that is made once, and counts for all rounds
NAP, MOST_NAPS = 0.01, 50  # seconds of sleep in which idle threads show, and how often to try


@dataclass(frozen=True)
class Row:
    """One line of a table."""

    name: str
    build: Callable[[], Workload]
    faster: float = 0.0  # than the best peer, at least
    most_us: float = 0.0  # microseconds, at most
    peer: str = ""  # the one that counts; all if empty
    steps: int = 1  # that a call takes; figures are for one
    goals: dict[str, float] = field(default_factory=dict)  # by peer, where they differ


def available(name: str) -> bool:
    """Whether a peer can be imported here, and was not left out with `--only`."""
    chosen = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else name
    if chosen in LIBRARIES and chosen != name:
        return False
    return importlib.util.find_spec(name) is not None


def hold(threads: int) -> None:
    """Make every library use this many threads of the CPU; to be done before they are imported."""
    for name in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{name}_NUM_THREADS"] = str(threads)
    os.environ["WEFT_THREADS"] = str(threads)
    os.environ["JAX_PLATFORMS"] = "cpu"  # or it would take a GPU where there is one
    if threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        os.environ["NPROC"] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def held() -> int:
    """How many threads every library may use, as `hold` has said."""
    return int(os.environ.get("WEFT_THREADS", "0")) or os.cpu_count() or 1


def once(function: Callable[[], Any], seconds: float, warm: bool = True) -> float:
    """Seconds of one call, from as many calls as fit into `seconds`; after one, to `warm` up."""
    now = time.process_time if "--cpu" in sys.argv else time.perf_counter
    if warm:
        start = now()
        function()
        if (spent := now() - start) > 2 * PATIENCE:
            return spent
    calls, start = 0, now()
    while not calls or (spent := now() - start) < seconds:
        function()
        calls += 1
    return spent / calls


def settle() -> None:
    """Wait until the threads of the library before are asleep; many wait actively for a while."""
    for _ in range(MOST_NAPS):
        start = time.process_time()
        time.sleep(NAP)
        if time.process_time() - start < NAP / 10:
            return


def measure(workload: Workload, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Several rounds in which the libraries take turns, so that all see the same machine."""
    times: dict[str, list[float]] = {name: [] for name in workload}
    for function in workload.values():
        function()  # compiles: a first call may take seconds that no other does
    for _ in range(rounds):
        for name, function in workload.items():
            last = times[name][-1] if times[name] else 0.0
            settle()
            times[name].append(last if last > PATIENCE else once(function, seconds, last < LONG))
    return times


def medians_of_ratios(times: dict[str, list[float]], peers: Iterable[str]) -> dict[str, float]:
    """For each peer the median, over rounds, of its time by weft's."""
    if "weft" not in times:
        return {}
    return {
        peer: statistics.median(p / w for p, w in zip(times[peer], times["weft"], strict=True))
        for peer in peers
        if peer in times
    }


def timed(row: Row, rounds: int, seconds: float) -> dict[str, Any]:
    """Run one row, print it, and give what was found."""
    workload = {name: call for name, call in row.build().items() if available(name)}
    if not workload:
        return {}
    times = measure(workload, rounds, seconds)
    medians = {name: statistics.median(found) / row.steps for name, found in times.items()}
    peers = (
        [row.peer] if row.peer else list(row.goals) or [name for name in times if name != "weft"]
    )
    ratios = medians_of_ratios(times, peers)
    best = min(ratios.values(), default=float("nan"))
    if row.most_us:
        ok = medians.get("weft", 0.0) * 1e6 <= row.most_us
        goal = f"goal ≤ {row.most_us:.0f} µs"
    elif row.goals:
        ok = all(x >= row.goals[peer] for peer, x in ratios.items()) if ratios else None
        goal = "goals " + ", ".join(f"{peer} ≥ {x:g}" for peer, x in row.goals.items())
    else:
        ok = best >= row.faster if ratios else None
        goal = f"goal ≥ {row.faster:g}"
    scale, unit = (1e6, "µs") if max(medians.values()) < 1e-3 else (1e3, "ms")
    listed = "  ".join(f"{name} {value * scale:8.2f}" for name, value in medians.items())
    told = f"{best:.2f}"
    if row.goals:
        told = ", ".join(f"{peer} {x:.2f}" for peer, x in ratios.items())
    print(f"  {row.name:36} {listed} {unit}   ratio {told}   {goal}   {MARKS[ok]}", flush=True)
    milliseconds = {name: value * 1e3 for name, value in medians.items()}
    return {"milliseconds": milliseconds, "ratios": ratios, "goal": goal, "ok": ok}


def options_of(text: str | None, argv: list[str] | None = None) -> argparse.Namespace:
    """The command line of a table of rows."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument(
        "--only", default="", help="run one library alone, or the rows whose names hold this text"
    )
    parser.add_argument("--rows", default="", help="run the rows whose names hold this text")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer rounds")
    parser.add_argument("--torch-compile", action="store_true")
    parser.add_argument(
        "--cpu", action="store_true", help="count processor time: one thread on a busy machine"
    )
    parser.add_argument("--json", type=Path, default=None)
    found = parser.parse_args(argv)
    if found.only and found.only not in LIBRARIES:
        found.rows = found.rows or found.only
    if found.quick:
        found.rounds = min(found.rounds, 3)
    return found


def run(rows: Iterable[Row], options: argparse.Namespace) -> dict[str, Any]:
    """Print a table, row by row, and give what was found."""
    found = {}
    for row in rows:
        if options.rows in row.name:
            found[row.name] = timed(row, options.rounds, options.seconds)
    return found


def machine() -> dict[str, Any]:
    """What figures belong to."""
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": held(),
        "python": platform.python_version(),
    }


def keep(path: Path | None, **data: Any) -> None:
    """Write what was found where `--json` says."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"machine": machine(), **data}, indent=1))


def show(title: str, workloads: Workloads, rounds: int = 5, seconds: float = 0.2) -> dict[str, Any]:
    """Print one line a workload: microseconds of each library, and weft against the best peer."""
    print(f"{title}: median of {rounds} rounds, microseconds; ratio = best peer / weft")
    rows: dict[str, Any] = {}
    for name, workload in workloads.items():
        times = measure(workload, rounds, seconds)
        medians = {peer: statistics.median(found) * 1e6 for peer, found in times.items()}
        peers = [peer for peer in times if not peer.startswith("weft")]
        ratios = medians_of_ratios(times, peers)
        best = min(ratios.values()) if ratios else float("nan")
        listed = "  ".join(f"{peer} {value:10.2f}" for peer, value in medians.items())
        print(f"  {name:34} {listed}   ratio {best:.2f}", flush=True)
        rows[name] = {"microseconds": medians, "ratios": ratios}
    return rows


def main(
    title: str, build: Callable[[], Workloads], extra: Callable[[], dict[str, Any]] | None = None
) -> None:
    """Command line of a benchmark file: `--rounds`, `--seconds`, `--json PATH`."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--only", default=None, help="run one library alone")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    print(machine())
    table = build()
    if options.only:
        table = {name: {options.only: row[options.only]} for name, row in table.items()}
    rows = show(title, table, options.rounds, options.seconds)
    more = extra() if extra and not options.only else {}
    keep(options.json, rows=rows, **more)
