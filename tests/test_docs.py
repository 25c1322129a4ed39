"""README, docs and docstrings run as written."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import weft

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(weft.__path__, "weft.")
    if info.name not in ("weft.demo",)
)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_of_a_page_run_in_order(page: Path, capsys) -> None:
    names: dict[str, object] = {}
    text = page.read_text()
    for block in re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M):
        line = text[: block.start()].count("\n") + 2
        code = compile("\n" * (line - 1) + block.group(1), str(page), "exec")
        exec(code, names)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str) -> None:
    result = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert result.failed == 0


def test_the_readme_is_short_and_names_commands_that_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 150
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make (\w+)", readme):
        assert re.search(rf"^{target}:", makefile, re.M), f"no make target {target}"
