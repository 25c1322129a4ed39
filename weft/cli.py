"""The command `weft`: `weft demo` trains a model, `weft info` says what it would run on."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence

import weft as wf
from weft import config
from weft.demo import options as demo
from weft.errors import WeftError
from weft.runtime.cpu import jit
from weft.runtime.cpu.code_folder import default_folder

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if all went well, 1 if it could not, 2 if it made no sense."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(words)
    try:
        return demo.main(options, words) if options.command == "demo" else info()
    except WeftError as error:
        print(f"weft: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"weft {options.command}: interrupted", file=sys.stderr)
        return _INTERRUPTED


def info() -> int:
    """Print versions, what there is to compute with, and all settings."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    rows = {
        "weft": wf.__version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "backends": ", ".join(wf.available_backends()),
        "compiler": "ready" if jit.available() else "cannot be loaded: graphs run call by call",
        "threads": f"{config.settings.threads or cores} of {cores} cores",
        "code cache": config.settings.cache_dir or default_folder(),
    }
    for name, value in rows.items():
        print(f"{name:<11} {value}")
    print("\nsettings (each is an environment variable, too)")
    config.show()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="weft", description="weft, a tensor library.")
    parser.add_argument("--version", action="version", version=f"weft {wf.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    told = "train a language model on Paradise Lost, and read what it writes"
    demo.add_arguments(
        commands.add_parser("demo", help=told, description=f"{told[0].upper()}{told[1:]}.")
    )
    commands.add_parser("info", help="versions, backends, threads, settings")
    return parser
