"""Data for training: batches in an order that depends on a key alone, and text as characters.

| file | what lives in it |
|---|---|
| `loader` | `Loader`: shuffled, prefetched, sharded batches, at a position that can be saved |
| `source` | `Dataset`; trees of arrays and sequences of items as rows to choose from |
| `text` | `CharText`: a text as numbers, for language models on characters; a poem to begin with |
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from weft.core.common.peers import refuse as _refuse
from weft.data.loader import Loader
from weft.data.source import Dataset
from weft.data.text import CharText, paradise_lost

__all__ = ["CharText", "Dataset", "Loader", "paradise_lost"]

if not _TYPE_CHECKING:  # checkers know which names there are
    __getattr__ = _refuse("weft.data")
