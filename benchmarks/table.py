"""One table of weft beside NumPy, JAX and torch on this machine, as text, JSON and a picture.

    python benchmarks/table.py --out out

runs the benchmark files one after the other, each in a process of its own, and puts what they found
into `bench.json` and `bench.png`. `--quick` takes fewer rounds. Ratios are medians over rounds in
which the libraries take turns; above 1 weft is faster than the best of the others.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
LIBRARIES = ("weft", "numpy", "jax", "torch")


def ran(name: str, *options: str) -> dict[str, Any]:
    """What one benchmark file writes; what it prints is shown as it comes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.json")
        print(f"\n=== {name}", flush=True)
        done = subprocess.run(
            [sys.executable, str(FOLDER / f"{name}.py"), *options, "--json", str(path)], check=False
        )
        if done.returncode or not path.exists():
            raise SystemExit(f"bench: {name} failed (exit code {done.returncode})")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def rows_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Rows of a file in milliseconds, by name."""
    rows = {}
    for name, row in found["rows"].items():
        if not row:
            continue
        times = row.get("milliseconds") or {k: v / 1e3 for k, v in row["microseconds"].items()}
        kept = {peer: ms for peer, ms in times.items() if peer in LIBRARIES}
        ratios = [r for peer, r in row["ratios"].items() if peer in LIBRARIES]
        rows[name] = {"milliseconds": kept, "ratio": min(ratios, default=None)}
    return rows


def printed(rows: dict[str, dict[str, Any]]) -> str:
    """The table as Markdown."""
    lines = [
        f"| workload | {' | '.join(LIBRARIES)} | best peer / weft |",
        "|---|" + "---|" * (len(LIBRARIES) + 1),
    ]
    for name, row in rows.items():
        times = row["milliseconds"]
        cells = [shown(times[peer]) if peer in times else "–" for peer in LIBRARIES]
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.2f}"
        lines.append(f"| {name} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines)


def shown(milliseconds: float) -> str:
    return f"{milliseconds:.1f} ms" if milliseconds >= 1 else f"{milliseconds * 1e3:.2f} µs"


def draw(rows: dict[str, dict[str, Any]], title: str, path: Path) -> None:
    """The ratios as bars: to the right of 1 weft is faster."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = [(name, row["ratio"]) for name, row in rows.items() if row["ratio"]]
    names, ratios = [n for n, _ in reversed(found)], [r for _, r in reversed(found)]
    figure, axes = pyplot.subplots(figsize=(9, 0.28 * len(found) + 1.2))
    colours = ["#2a6f97" if ratio >= 1 else "#c1666b" for ratio in ratios]
    axes.barh(names, [ratio - 1 for ratio in ratios], left=1, color=colours)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("best of NumPy, JAX and torch / weft")
    axes.set_title(title, fontsize=9)
    axes.tick_params(labelsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    fewer = ["--rounds", "3", "--seconds", "0.05"] if options.quick else []
    rows: dict[str, dict[str, Any]] = {}
    for name in ("dispatch", "transforms"):
        rows |= rows_of(ran(name, *fewer))
    for name in ("compiler", "heavy"):
        quick = ["--quick"] if options.quick else []
        rows |= rows_of(ran(name, "--threads", str(options.threads), *quick))
    machine = f"{platform.machine()}, {options.threads} threads, Python {platform.python_version()}"
    title = f"{date.today().isoformat()}, {machine}"
    print(f"\n{title}\n\n{printed(rows)}")
    options.out.mkdir(parents=True, exist_ok=True)
    data = {"date": date.today().isoformat(), "machine": machine, "rows": rows}
    (options.out / "bench.json").write_text(json.dumps(data, indent=1))
    print(f"\nwrote {options.out / 'bench.json'}")
    if importlib.util.find_spec("matplotlib") is None:
        print("matplotlib is not installed: no picture")
        return
    draw(rows, title, options.out / "bench.png")
    print(f"wrote {options.out / 'bench.png'}")


if __name__ == "__main__":
    main()
