"""A text as numbers, one for each character, for language models that predict the next one."""

from __future__ import annotations

from importlib import resources
from typing import Any, Self

import numpy as np

from weft.core.common.parameters import as_integer, as_real, shown
from weft.core.common.types import Array
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError


class CharText:
    """A text, its vocabulary (its characters in order), and `ids`, its characters as numbers.

    >>> text = CharText("banana")
    >>> text.vocabulary, text.ids.tolist(), text.decode([1, 0, 2])
    ('abn', [1, 0, 2, 0, 2, 0], 'ban')
    """

    def __init__(self, text: str, vocabulary: str | None = None) -> None:
        _check_text("CharText", text)
        self.vocabulary = "".join(sorted(set(text if vocabulary is None else vocabulary)))
        if not self.vocabulary:
            raise ArgumentError("CharText: an empty text has no vocabulary")
        self._codes = _codes(self.vocabulary)
        self.ids = self.encode(text)
        self.ids.flags.writeable = False

    def __len__(self) -> int:
        return len(self.ids)

    def encode(self, text: str) -> Array:
        """The numbers of the characters, int32; a character not in the vocabulary is an error."""
        _check_text("encode", text)
        codes = _codes(text)
        places = np.searchsorted(self._codes, codes)
        known = self._codes[np.minimum(places, len(self._codes) - 1)] == codes
        if not known.all():
            where = int(np.argmin(known))
            raise ArgumentError(
                f"encode: {text[where]!r} at position {where} is not in the vocabulary"
                f" of {len(self.vocabulary)} characters"
            )
        return places.astype(np.int32)

    def decode(self, ids: Any) -> str:
        """The text that numbers stand for."""
        numbers = ids.numpy() if isinstance(ids, Tensor) else np.asarray(ids)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise DTypeError(f"decode: characters have integer numbers, got {numbers.dtype}")
        size = len(self.vocabulary)
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < size:
            raise ArgumentError(f"decode: numbers must be from 0 to {size - 1}")
        return "".join(self.vocabulary[number] for number in numbers.reshape(-1).tolist())

    def windows(self, length: int, stride: int = 1) -> tuple[Array, Array]:
        """Inputs and targets, (count, length) each: every window and the same one character later.

        They are views of `ids`; give them to a `Loader`.
        """
        size = as_integer("windows", "length", length, low=1)
        step = as_integer("windows", "stride", stride, low=1)
        if len(self.ids) <= size:
            raise ArgumentError(
                f"windows: a text of {len(self.ids)} characters has no window of {size} and a next"
                " character"
            )
        views = np.lib.stride_tricks.sliding_window_view(self.ids, size)
        return views[:-1:step], views[1::step]

    def split(self, fraction: float = 0.9) -> tuple[Self, Self]:
        """The beginning and the rest of the text, with one vocabulary: to train and to validate."""
        share = as_real("split", "fraction", fraction, 0.0, 1.0)
        cut = round(len(self.ids) * share)
        return self._part(self.ids[:cut]), self._part(self.ids[cut:])

    def _part(self, ids: Array) -> Self:
        made = type(self)("", self.vocabulary)
        made.ids = ids
        return made


def paradise_lost() -> str:
    """Milton's poem, 457 kB of plain ASCII in the public domain: a text to train a model on.

    >>> paradise_lost()[8:50]
    "Of Man's first disobedience, and the fruit"
    """
    return resources.files("weft.data").joinpath("texts/paradise_lost.txt").read_text("ascii")


def _check_text(op: str, text: Any) -> None:
    if not isinstance(text, str):
        raise DTypeError(f"{op}: expected text, got {shown(text)}")


def _codes(text: str) -> Array:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
