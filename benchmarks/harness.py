"""Time weft and its peers side by side: alternating rounds, median of ratios.

A benchmark is a table of workloads; each workload gives one callable for each library. Libraries
that are not installed are left out, and the table says so.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

Workloads = dict[str, dict[str, Callable[[], Any]]]


def available(name: str) -> bool:
    """Whether a peer can be imported here, and was not left out with `--only`."""
    if "--only" in sys.argv and sys.argv[sys.argv.index("--only") + 1] != name:
        return False
    return importlib.util.find_spec(name) is not None


def once(function: Callable[[], Any], seconds: float) -> float:
    """Seconds of one call, from as many calls as fit into `seconds`."""
    function()
    calls, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        function()
        calls += 1
    return spent / calls


def measure(
    workload: dict[str, Callable[[], Any]], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Several rounds in which the libraries take turns, so that all see the same machine."""
    times: dict[str, list[float]] = {name: [] for name in workload}
    for _ in range(rounds):
        for name, function in workload.items():
            times[name].append(once(function, seconds))
    return times


def show(title: str, workloads: Workloads, rounds: int = 5, seconds: float = 0.2) -> dict[str, Any]:
    """Print one line a workload: microseconds of each library, and weft against the best peer."""
    print(f"{title}: median of {rounds} rounds, microseconds; ratio = best peer / weft")
    rows: dict[str, Any] = {}
    for name, workload in workloads.items():
        times = measure(workload, rounds, seconds)
        medians = {peer: statistics.median(found) * 1e6 for peer, found in times.items()}
        peers = [peer for peer in times if not peer.startswith("weft")]
        ratios = {
            peer: statistics.median(p / w for p, w in zip(times[peer], times["weft"], strict=True))
            for peer in peers
        }
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
    machine = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    print(machine)
    table = build()
    if options.only:
        table = {name: {options.only: row[options.only]} for name, row in table.items()}
    rows = show(title, table, options.rounds, options.seconds)
    more = extra() if extra and not options.only else {}
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"machine": machine, "rows": rows, **more}, indent=1))
