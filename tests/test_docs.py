"""README, docs and docstrings run as written; generated pages are up to date and complete."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from tools import api_pages, op_table
from tools.pages import PAGES, ROOT, PageError, blocks, differences, run

MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(weft.__path__, "weft.")
    if info.name not in ("weft.demo",)
)
# Pages whose code starts processes with `weft.launch`.
WITH_RANKS = ("errors.md", "sharding.md")
CELLS = {"from_numpy.md": 60, "from_jax.md": 60, "from_pytorch.md": 60}  # at the least


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_of_a_page_run_in_order_and_print_what_it_says(page: Path) -> None:
    if page.name in WITH_RANKS and importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    assert differences(page) == []


def test_a_page_that_says_what_is_not_so_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n```output\n3\n```\n")
    assert differences(page) == ["page.md:5: the code prints\n2\n"]
    assert run(page) == "```python\nprint(1 + 1)\n```\n```output\n2\n```\n"
    page.write_text("```python\nprint(2.5)\n```\n```output varies\n3.25\n```\n")
    assert differences(page) == []
    page.write_text("```python raises\nprint(1)\n```\n")
    with pytest.raises(PageError, match=r"page.md:2: this block should raise"):
        run(page)
    page.write_text("| a | weft |\n|---|---|\n| b | `nothing_of_this_name` |\n")
    with pytest.raises(NameError):
        run(page)


@pytest.mark.parametrize("name", CELLS)
def test_pages_for_users_of_other_libraries_have_their_tables(name: str) -> None:
    page = (ROOT / "docs" / name).read_text()
    cells = [block for block in blocks(page) if block.kind == "cell"]
    assert len(cells) >= CELLS[name]
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert all(len(re.split(r"(?<!\\)\|", row)) == 5 for row in rows)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M)
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", prose):
        made = target.startswith("api/")  # written when the site is built
        assert made or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_no_page_names_a_folder_of_the_machine_that_wrote_it() -> None:
    for page in PAGES:
        assert not re.search(r"(?<![\w~.])/(tmp|home|work|root|Users)/", page.read_text()), (
            page.name
        )


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


def test_every_exception_is_in_the_index_of_errors_and_is_raised_there() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    classes = {name for name, value in vars(weft.errors).items() if inspect.isclass(value)}
    assert sections.keys() == classes
    for name, text in sections.items():
        printed = "".join(block.text for block in blocks(text) if block.kind == "output")
        assert re.search(rf"^{name}: ", printed, re.M), f"the example of {name} does not raise it"
        assert text.rstrip()[-1] in ".)", f"{name} ends without a remedy"


def test_every_example_is_on_its_page() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    included = re.findall(r"literalinclude} \.\./examples/(\S+)", page)
    assert included == sorted(path.name for path in ROOT.glob("examples/[0-9]*.py"))


def test_the_table_of_ops_is_up_to_date() -> None:
    assert op_table.PAGE.read_text() == op_table.page(), "run python tools/op_table.py"


@pytest.mark.parametrize("space", api_pages.NAMESPACES, ids=lambda space: space.file)
def test_every_public_name_of_a_namespace_has_a_docstring(space: api_pages.Namespace) -> None:
    assert space.names()
    for name in space.names():
        value = space.value(name)
        if callable(value) and not api_pages.is_alias(value):
            own = inspect.getdoc(value)
            assert own and own[0] != "(", f"{space.prefix}.{name} says nothing of itself"


def test_the_reference_has_every_public_name() -> None:
    listed = {
        name for space in api_pages.NAMESPACES if space.prefix == "wf" for name in space.names()
    }
    public = {name for name in dir(weft) if not name.startswith("_")}
    modules = {name for name in public if inspect.ismodule(getattr(weft, name))}
    assert listed == public - modules


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    if importlib.util.find_spec("sphinx") is None:
        pytest.skip("sphinx is not installed: make docs")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, "docs", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists()
