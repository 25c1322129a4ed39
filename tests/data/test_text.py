"""`CharText`: characters as numbers and windows over them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.data import CharText, Loader
from weft.errors import ArgumentError, DTypeError


@given(st.text(min_size=1))
def test_decoding_is_the_opposite_of_encoding(text: str) -> None:
    found = CharText(text)
    assert found.decode(found.ids) == text
    assert list(found.vocabulary) == sorted(set(text))
    assert [found.vocabulary[i] for i in found.ids] == list(text)


def test_windows_are_views_and_targets_come_one_character_later() -> None:
    text = CharText("the quick brown fox")
    inputs, targets = text.windows(5)
    assert inputs.shape == targets.shape == (14, 5)
    assert np.shares_memory(inputs, text.ids) and np.shares_memory(targets, text.ids)
    assert text.decode(inputs[0]) == "the q" and text.decode(targets[0]) == "he qu"
    assert text.decode(targets[-1]) == "n fox"
    apart = text.windows(5, stride=5)
    assert [text.decode(row) for row in apart[0]] == ["the q", "uick ", "brown"[:5]][
        : len(apart[0])
    ]
    assert len(apart[0]) == len(apart[1])


def test_windows_go_through_a_loader() -> None:
    text = CharText("abcdefgh" * 10)
    x, y = next(iter(Loader(text.windows(8), 4, key=0)))
    assert x.shape == (4, 8) and x.dtype == wf.int32
    assert text.decode(x[0, 1:]) == text.decode(y[0, :-1])


def test_parts_share_the_vocabulary() -> None:
    text = CharText("aaaaabbbbb")
    train, rest = text.split(0.5)
    assert train.decode(train.ids) == "aaaaa" and rest.decode(rest.ids) == "bbbbb"
    assert train.vocabulary == rest.vocabulary == "ab" and len(rest) == 5


def test_mistakes_are_told() -> None:
    text = CharText("abc")
    with pytest.raises(ArgumentError, match="'z' at position 1 is not in the vocabulary"):
        text.encode("azb")
    with pytest.raises(ArgumentError, match="from 0 to 2"):
        text.decode([3])
    with pytest.raises(DTypeError, match="integer numbers"):
        text.decode([0.5])
    with pytest.raises(ArgumentError, match="no window of 3"):
        text.windows(3)
    with pytest.raises(ArgumentError, match="no vocabulary"):
        CharText("")
    with pytest.raises(DTypeError, match="expected text"):
        CharText(b"abc")


def test_the_text_that_comes_with_weft_is_plain_and_whole() -> None:
    text = wf.data.paradise_lost()
    assert text.isascii() and 450_000 < len(text) < 460_000
    assert text.startswith("Book I\n\nOf Man's first disobedience")
    assert text.endswith("Through Eden took their solitary way.\n")
    assert len(CharText(text).vocabulary) < 70
