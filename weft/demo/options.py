"""The command line of the demo: what may be asked, and a plain answer to what may not."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import weft as wf
from weft import launch
from weft.demo.runs import run
from weft.demo.training import Settings
from weft.errors import ArgumentError, BackendError

DEVICES = ("cpu", "cuda", "webgpu")
DTYPES = ("float32", "bfloat16", "float64")
_MEANINGS = {
    "steps": "steps of training",
    "batch": "texts in a step",
    "layers": "blocks of the model",
    "width": "features of a character",
    "heads": "heads of attention",
    "context": "characters the model looks back",
    "rate": "highest learning rate",
    "seed": "where random numbers begin",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Teach a parser the options of the demo."""
    defaults = {field.name: field.default for field in fields(Settings)}
    for name, meaning in _MEANINGS.items():
        value: Any = defaults[name]
        told = f"{meaning} (default {value})"
        parser.add_argument(f"--{name}", type=type(value), default=value, help=told, metavar="N")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="dtype of computation")
    parser.add_argument(
        "--mesh", type=mesh_shape, default=0, metavar="AxB",
        help="devices: data parallel × tensor parallel, or 1 for none (default 2x2 of the cpu)",
    )  # fmt: skip
    parser.add_argument(
        "--ranks", type=int, default=1, metavar="N", help="processes that share the mesh, over MPI"
    )
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="what to compute on")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder (default out)")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--fresh", action="store_true", help="begin anew, whatever is in --out")
    either.add_argument("--sample-only", action="store_true", help="train no further, only write")


def mesh_shape(text: str) -> tuple[int, int] | None:
    """`2x2` as (2, 2); `1` as None.

    >>> mesh_shape("4x1"), mesh_shape("1")
    ((4, 1), None)
    """
    if text == "1":
        return None
    found = re.fullmatch(r"([1-9][0-9]?)[x×]([1-9][0-9]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected 1, or two sizes such as 2x2, got {text!r}")
    return int(found[1]), int(found[2])


def main(options: argparse.Namespace, arguments: list[str]) -> int:
    """Run the demo; `arguments` are the words the options were read from."""
    names = [field.name for field in fields(Settings)]
    settings = Settings(**{name: getattr(options, name) for name in names})
    _check_device(options.device)
    shape = options.mesh
    if shape == 0:  # nobody asked
        shape = (2, 2) if options.device == "cpu" else None
    kind = options.device.partition(":")[0]
    mesh = None if shape is None else wf.DeviceMesh("demo", shape, ("dp", "tp"), kind)
    if options.ranks != 1:
        _check_ranks(options.ranks, mesh)
        words = ["-n", str(options.ranks), "-m", "weft", *_without_ranks(arguments)]
        status = launch.main(words)
        if status in (130, 143):  # the ranks are not heard any more when they say so
            print(f"interrupted, and saved in {options.out}; the same command goes on from there")
        return status
    with wf.default_device(options.device):
        return run(
            settings, options.out, mesh, fresh=options.fresh, sample_only=options.sample_only
        )


def _check_device(device: str) -> None:
    there = wf.available_backends()
    if device not in there:
        raise BackendError(
            f"--device {device}: no backend here keeps tensors there (there are"
            f" {', '.join(there)})\nhint: --device cpu; cuda needs an NVIDIA GPU and its driver,"
            " webgpu pip install 'weft[webgpu]'"
        )


def _check_ranks(ranks: int, mesh: wf.DeviceMesh | None) -> None:
    if ranks < 1:
        raise ArgumentError(f"--ranks: at least 1, got {ranks}")
    devices = 1 if mesh is None else mesh.size
    if devices % ranks:
        raise ArgumentError(
            f"--ranks {ranks}: processes share the devices of the mesh evenly, and there are"
            f" {devices}\nhint: --mesh {ranks}x1 gives each process one device"
        )


def _without_ranks(arguments: list[str]) -> list[str]:
    """The command line of one rank.

    >>> _without_ranks(["demo", "--ranks", "2", "--fresh", "--ranks=2"])
    ['demo', '--fresh']
    """
    kept = list(arguments)
    while "--ranks" in kept:
        at = kept.index("--ranks")
        del kept[at : at + 2]
    return [word for word in kept if not word.startswith("--ranks=")]
