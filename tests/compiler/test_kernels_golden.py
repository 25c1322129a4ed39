"""The loops of about thirty programs, as they are lowered and scheduled, are the ones on file.

`python tools/golden.py --update loops` writes the files again; a reviewer reads the difference.
"""

from __future__ import annotations

import pytest

from tools.golden import ROOT, files_of
from weft.compiler.verify import verify
from weft.testing.loop_programs import PROGRAMS, lowered, text_of


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_the_loops_on_file(name: str) -> None:
    found = text_of(name)
    assert found == (ROOT / "loops" / f"{name}.loops").read_text(), (
        "read the difference, then: python tools/golden.py --update loops"
    )
    assert text_of(name) == found  # whatever was lowered before


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_lowered_is_well_formed(name: str) -> None:
    for kernel in lowered(name):
        verify(kernel)


def test_every_file_belongs_to_a_program() -> None:
    assert len(PROGRAMS) >= 30
    assert {path.stem for path in files_of("loops")} == set(PROGRAMS)
