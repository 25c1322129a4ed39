"""The site: `make docs` builds it into build/docs."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import api_pages  # noqa: E402

api_pages.write()

project = "weft"
author = "the authors of weft"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = "weft"
myst_heading_anchors = 3
# Python's own types in signatures have no page here.
nitpick_ignore_regex = [(r"py:.*", r".*")]
python_maximum_signature_line_length = 88
python_display_short_literal_types = True
