"""Tensors in notebooks: type, place, bytes, and few values; whatever they are, no markup."""

from __future__ import annotations

import re

import numpy as np
import pytest

import weft as wf
from weft.core.common.dtypes import ALL_DTYPES
from weft.core.common.markup import Markup, element, joined, markup, tree


def cells(page: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]


def test_a_matrix_is_a_table_with_its_positions() -> None:
    page = wf.tensor([[1.0, -2.5], [3.0, float("nan")]])._repr_html_()
    assert cells(page) == [["", "0", "1"], ["0", "1", "-2.5"], ["1", "3", "nan"]]
    assert "float32" in page and "2 × 2" in page and "cpu:0" in page and "16 bytes" in page


def test_of_more_than_ten_rows_or_columns_the_middle_is_left_out() -> None:
    page = wf.arange(11 * 30).reshape((11, 30))._repr_html_()
    table = cells(page)
    assert len(table) == 11 and all(len(row) == 11 for row in table)
    assert table[0] == ["", "0", "1", "2", "3", "4", "…", "26", "27", "28", "29"]
    assert table[6] == ["…"] * 11
    assert table[10][-1] == "329"
    ten = cells(wf.ones((10, 10))._repr_html_())
    assert len(ten) == 11 and not any("…" in row for row in ten)


def test_other_ranks_show_what_fits() -> None:
    assert cells(wf.tensor(2.5)._repr_html_()) == [["2.5"]]
    assert cells(wf.tensor([True, False])._repr_html_()) == [["0", "1"], ["True", "False"]]
    deep = wf.arange(24).reshape((2, 3, 4))._repr_html_()
    assert "[0, :, :]" in deep and len(cells(deep)) == 4
    empty = wf.zeros((0, 3))._repr_html_()
    assert "0 × 3" in empty and "<table" not in empty


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=lambda d: d.name)
def test_every_dtype_can_be_shown(dtype: np.dtype) -> None:
    assert "<td" in wf.ones((2, 2)).astype(dtype)._repr_html_()


def test_what_has_no_value_shows_what_it_stands_for() -> None:
    pages = []
    wf.vmap(lambda x: pages.append(x._repr_html_()) or x)(wf.ones((2, 3)))
    assert "<pre>tensor&lt;float32[3], inside vmap&gt;</pre>" in pages[0]
    wf.grad(lambda x: pages.append(x._repr_html_()) or x.sum())(wf.ones((2, 3)))
    assert "<table>" in pages[1]


def test_a_layout_over_a_mesh_is_told_and_escaped() -> None:
    mesh = wf.DeviceMesh("<i>", (2,), ("x",))
    page = wf.ones((4, 2)).shard(mesh, wf.P("x"))._repr_html_()
    assert "[x, ·] over &lt;i&gt;(x=2)" in page and "<i>" not in page


def test_markup_escapes_all_that_is_not_markup() -> None:
    assert element("a", "<b>", 3, title='"x"') == '<a title="&quot;x&quot;">&lt;b&gt;3</a>'
    assert element("p", element("b", "x"), hidden=None) == "<p><b>x</b></p>"
    assert markup(Markup("<br>")) == "<br>" and joined(["<", Markup("<br>")]) == "&lt;<br>"


def test_a_tree_folds_what_has_children() -> None:
    page = tree("model", [tree("<weight>"), tree("layer", [tree("bias")])], opened=True)
    assert page.startswith('<details open=""><summary>model</summary>')
    assert page.count("<details") == 2 and "&lt;weight&gt;" in page
