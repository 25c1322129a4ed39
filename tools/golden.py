"""Golden files: what the compiler makes of a few programs, kept as text that a reviewer reads.

    python tools/golden.py                 what differs from the files
    python tools/golden.py --update ptx    write the files of a suite again, or of all

A suite is a folder of `tests/compiler/golden` and a function that gives its files' names and texts.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import llvmlite.binding as llvm

from weft.compiler.emit_ptx import emit_ptx, gpu_target
from weft.compiler.emit_wgsl import emit_wgsl
from weft.compiler.pipeline_gpu import CUDA, WEBGPU
from weft.testing import loop_programs
from weft.testing.gpu_programs import PROGRAMS, planned

ROOT = Path(__file__).parent.parent / "tests" / "compiler" / "golden"
GPU = ("chain", "gelu", "softmax", "layer_norm", "sum", "transpose")
LLVM = llvm.llvm_version_info[0]  # another version may write other PTX, and be right


def ptx() -> Iterator[tuple[str, str]]:
    """Kernels for compute capability 9.0."""
    for name in GPU:
        kernels = planned(PROGRAMS[name].trace(), CUDA).kernels
        yield f"{name}.ptx", f"// LLVM {LLVM}\n{emit_ptx(kernels, gpu_target((9, 0)))}"


def wgsl() -> Iterator[tuple[str, str]]:
    """Shaders; a program of several kernels has several files."""
    for name in GPU:
        for number, kernel in enumerate(planned(PROGRAMS[name].trace(), WEBGPU).kernels):
            yield f"{name}{number or ''}.wgsl", emit_wgsl(kernel)


def loops() -> Iterator[tuple[str, str]]:
    """Kernels for the CPU in the loop IR, lowered and scheduled."""
    for name in loop_programs.PROGRAMS:
        yield f"{name}.loops", loop_programs.text_of(name)


SUITES: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "ptx": ptx,
    "wgsl": wgsl,
    "loops": loops,
}


def files_of(suite: str) -> list[Path]:
    """The files a suite has now."""
    return sorted(path for path in (ROOT / suite).glob("*") if path.is_file())


def differences(suite: str) -> list[str]:
    """What a suite's files and the compiler disagree on, as lines of a diff."""
    found: list[str] = []
    made = dict(SUITES[suite]())
    for path in files_of(suite):
        if path.name not in made:
            found.append(f"{path.name}: nothing makes this file any more")
    for name, text in made.items():
        path = ROOT / suite / name
        old = path.read_text().splitlines() if path.exists() else []
        found += difflib.unified_diff(old, text.splitlines(), str(path), "now", lineterm="", n=1)
    return found


def update(suite: str) -> int:
    """Write a suite's files again; gives how many there are."""
    folder = ROOT / suite
    folder.mkdir(parents=True, exist_ok=True)
    made = dict(SUITES[suite]())
    for path in files_of(suite):
        path.unlink()
    for name, text in made.items():
        (folder / name).write_text(text)
    return len(made)


def main() -> int:
    """Show what differs, or write the files."""
    parser = argparse.ArgumentParser(description="golden files of the compiler")
    parser.add_argument("--update", action="store_true", help="write the files")
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(SUITES)}; all if none is named")
    given = parser.parse_args()
    unknown = [name for name in given.suites if name not in SUITES]
    if unknown:
        parser.error(f"no suite {', '.join(unknown)}")
    suites = given.suites or list(SUITES)
    if given.update:
        print("\n".join(f"{suite}: {update(suite)} files" for suite in suites))
        return 0
    lines = [line for suite in suites for line in differences(suite)]
    print("\n".join(lines) if lines else "golden: nothing differs")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
