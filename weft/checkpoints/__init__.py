"""Checkpoints: trees of tensors on disk that are complete or not there, whatever is killed when.

| file | what lives in it |
|---|---|
| `store` | `save`, `load`, `open_checkpoint`; `Draft` for many processes |
| `manager` | `Checkpoints`: a folder of them, by step |
| `background` | `save_async` |
| `pieces` | `Piece`, `write_pieces`: parts of tensors in files |
| `sharded` | tensors over a mesh as pieces, and back into any layout |
| `together` | processes that save the same checkpoint |
| `manifest` | what a checkpoint holds, and the proof that it is whole |
| `structure` | trees as JSON |
| `restore` | saved leaves in the places of a tree's own |
| `schema` | checks on JSON that nobody vouches for |
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from weft.checkpoints.background import Saving, save_async
from weft.checkpoints.manager import Checkpoints
from weft.checkpoints.pieces import Piece, write_pieces
from weft.checkpoints.store import Draft, OpenCheckpoint, load, open_checkpoint, save
from weft.checkpoints.structure import describe
from weft.core.common.peers import refuse as _refuse

__all__ = [
    "Checkpoints",
    "Draft",
    "OpenCheckpoint",
    "Piece",
    "Saving",
    "describe",
    "load",
    "open_checkpoint",
    "save",
    "save_async",
    "write_pieces",
]

if not _TYPE_CHECKING:  # checkers know which names there are
    __getattr__ = _refuse("weft.checkpoints")
