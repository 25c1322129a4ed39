"""Each subpackage says what lives in it, and says it truly."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "weft"
PACKAGES = sorted(path.parent for path in ROOT.rglob("__init__.py") if path.parent != ROOT)


def mapped(package: Path) -> list[str]:
    """The names in the first column of the table in a package's docstring."""
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    rows = [line for line in docstring.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


def present(package: Path) -> list[str]:
    files = [p.stem for p in package.glob("*.py") if p.stem != "__init__"]
    folders = [f"{p.parent.name}/" for p in package.glob("*/__init__.py")]
    return files + folders


@pytest.mark.promise("S0.3")
@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: str(p.relative_to(ROOT.parent)))
def test_the_component_map_names_exactly_the_files(package):
    assert sorted(mapped(package)) == sorted(present(package))
