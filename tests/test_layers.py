"""Imports point down, and each part of the core stands on its own."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from weft.core.autograd.tape import Tape
from weft.core.common.handler import Handler
from weft.transforms.debug import Debug
from weft.transforms.jvp import Jvp
from weft.transforms.vmap import Vmap

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(weft.__file__).parent


@pytest.mark.promise("S0.2")
def test_the_import_contract_holds() -> None:
    command = [Path(sys.executable).parent / "lint-imports", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promise("S0.1")
@pytest.mark.parametrize("part", ["common", "graph", "tensor", "sharding", "autograd"])
def test_a_part_of_the_core_imports_alone(part: str) -> None:
    subprocess.run([sys.executable, "-c", f"import weft.core.{part}"], check=True, cwd=ROOT)


@pytest.mark.slow
def test_no_import_hides_inside_a_function() -> None:
    hidden = [
        f"{path.name}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not hidden


@pytest.mark.promise("S1.6")
def test_there_are_handlers_for_reverse_forward_map_and_debug() -> None:
    assert all(issubclass(kind, Handler) for kind in (Tape, Jvp, Vmap, Debug))


@pytest.mark.promise("S2.15")
def test_the_dispatcher_is_where_the_documents_say() -> None:
    assert weft.ops.dispatch.execute_operation is weft.ops.execute_operation
