"""Pieces of tensors in files: what one process writes, and how pieces become tensors again.

A tensor may be cut along a grid, or held whole by several processes. Each process writes the pieces
it holds to a file of its own, with a record of what they are. Reading asks for any box of a tensor
and takes it from whatever pieces there are, so the grid that reads need not be the grid that wrote.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from weft.checkpoints.schema import digits, mapping, sequence, sizes, text
from weft.core.common import dtypes
from weft.core.common.files import read_file, reporting, write_file
from weft.core.common.parameters import LARGEST, as_integer, as_integers
from weft.core.common.strict_json import parse_json
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.errors import ArgumentError, DTypeError, FormatError, ShapeError, UnsupportedDTypeError
from weft.safetensors import SafetensorsFile, encode

LONGEST_RECORD: Final = 1 << 28  # bytes of JSON that a reader accepts
MOST_RANKS: Final = 99_999
_MOST_PIECES: Final = 1 << 16  # of one tensor
_FILE_NAME: Final = re.compile(r"pieces-[0-9]{5}\.safetensors")


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor: the values from `offset` on; `shape` is the shape of the whole tensor."""

    name: str
    offset: Shape
    array: Array
    shape: Shape

    @classmethod
    def whole(cls, name: str, array: Array) -> Piece:
        """A tensor in one piece."""
        return cls(name, (0,) * array.ndim, array, array.shape)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a box of a tensor is stored: under `key` in the file called `file`."""

    file: str
    key: str
    offset: Shape
    shape: Shape


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a checkpoint: what it is, and the boxes that make it up."""

    dtype: DType
    shape: Shape
    placements: tuple[Placement, ...]

    @property
    def type(self) -> TensorType:
        """Shape and dtype."""
        return TensorType(self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a checkpoint: its length in bytes and the SHA-256 of them."""

    size: int
    sha256: str


def file_name(rank: int) -> str:
    """The file that process number `rank` writes."""
    return f"pieces-{rank:05d}.safetensors"


def is_file_name(name: str) -> bool:
    """Whether a manifest may refer to this name: nothing that leaves the folder."""
    return _FILE_NAME.fullmatch(name) is not None


def write_pieces(
    folder: str | Path, pieces: Iterable[Piece], *, rank: int = 0
) -> dict[str, StoredTensor]:
    """Write the pieces that process `rank` holds into an unfinished checkpoint's folder.

    Every process calls this with a rank of its own; then one of them commits the folder. What was
    written is returned, and recorded in the folder for the one that commits.
    """
    number = as_integer("write_pieces", "rank", rank, 0, MOST_RANKS)
    name = file_name(number)
    arrays: dict[str, Array] = {}
    tensors: dict[str, StoredTensor] = {}
    for piece in pieces:
        _check_piece(piece)
        key = _key(piece, arrays)
        arrays[key] = piece.array
        placed = Placement(name, key, tuple(piece.offset), piece.array.shape)
        known = tensors.get(piece.name)
        if known is not None and known.type != TensorType(tuple(piece.shape), piece.array.dtype):
            raise ShapeError(f"write_pieces: {piece.name!r}: its pieces disagree on what it is")
        others = () if known is None else known.placements
        tensors[piece.name] = StoredTensor(piece.array.dtype, tuple(piece.shape), (*others, placed))
    folder = Path(folder)
    hashed = Hashed(encode(arrays, {}))
    with reporting("save", folder / name):
        size = write_file(folder / name, hashed)
    record = {
        "file": {"size": size, "sha256": hashed.digest.hexdigest()},
        "tensors": tensors_to_json(tensors),
    }
    path = folder / record_name(number)
    with reporting("save", path):
        write_file(path, [json.dumps(record).encode()])
    return tensors


def record_name(rank: int) -> str:
    """Where process `rank` says what it has written, until the checkpoint is committed."""
    return f"pieces-{rank:05d}.json"


def read_record(folder: Path, rank: int) -> tuple[StoredFile, dict[str, StoredTensor]]:
    """What process `rank` has written."""
    path = folder / record_name(rank)
    with reporting("save", path):
        raw = read_file(path, LONGEST_RECORD)
    record = mapping(parse_json(raw, f"save: {path}"), str(path), ("file", "tensors"))
    return file_from_json(record["file"], str(path)), tensors_from_json(
        record["tensors"], str(path)
    )


def _check_piece(piece: Piece) -> None:
    what = f"write_pieces: {piece.name!r}"
    try:
        dtypes.as_dtype(piece.array.dtype, op=what)
    except UnsupportedDTypeError as error:
        raise DTypeError(str(error)) from None
    check_box(what, piece.shape, piece.offset, piece.array.shape, ShapeError)


def check_box(
    what: str, whole: Sequence[int], offset: Sequence[int], shape: Sequence[int], error: type
) -> None:
    """Refuse a box that does not lie inside a tensor."""
    fits = len(whole) == len(offset) == len(shape) and all(
        begin >= 0 and size >= 0 and begin + size <= limit
        for begin, size, limit in zip(offset, shape, whole)
    )
    if not fits:
        raise error(
            f"{what}: a box of shape {tuple(shape)} at {tuple(offset)} is not inside a tensor"
            f" of shape {tuple(whole)}"
        )


def _key(piece: Piece, taken: dict[str, Array]) -> str:
    """A name in the file: the tensor's own if the piece is all of it."""
    whole = piece.array.shape == tuple(piece.shape)
    key = piece.name if whole else f"{piece.name}@{','.join(map(str, piece.offset))}"
    while key in taken or key == "__metadata__":
        key += "'"
    return key


class Hashed:
    """Parts of a file on their way to the disk; `digest` has seen what has passed."""

    def __init__(self, parts: Iterable[bytes | memoryview]) -> None:
        self._parts = parts
        self.digest = hashlib.sha256()

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for part in self._parts:
            self.digest.update(part)
            yield part


def tensors_to_json(tensors: dict[str, StoredTensor]) -> dict[str, Any]:
    """Stored tensors as JSON has them."""
    return {
        name: {
            "dtype": dtypes.name_of(found.dtype),
            "shape": list(found.shape),
            "pieces": [[p.file, p.key, list(p.offset), list(p.shape)] for p in found.placements],
        }
        for name, found in tensors.items()
    }


def tensors_from_json(found: Any, where: str) -> dict[str, StoredTensor]:
    """The opposite; nothing in `found` is believed."""
    if not isinstance(found, dict):
        raise FormatError(f"load: {where}: the tensors are no JSON object")
    return {name: _tensor_from_json(each, f"{where}: {name!r}") for name, each in found.items()}


def _tensor_from_json(found: Any, where: str) -> StoredTensor:
    fields = mapping(found, where, ("dtype", "shape", "pieces"))
    try:
        dtype = dtypes.as_dtype(text(fields["dtype"], where))
    except UnsupportedDTypeError as error:
        raise FormatError(f"load: {where}: {error}") from None
    shape = sizes(fields["shape"], where)
    if prod(size or 1 for size in shape) > LARGEST:
        raise FormatError(f"load: {where}: shape {shape} is larger than any memory")
    pieces = sequence(fields["pieces"], where)
    return StoredTensor(dtype, shape, tuple(_placement(each, shape, where) for each in pieces))


def _placement(found: Any, whole: Shape, where: str) -> Placement:
    file, key, offset, shape = sequence(found, where, 4)
    if not is_file_name(text(file, where)):
        raise FormatError(f"load: {where}: {file!r:.80} is no name of a file of pieces")
    placed = Placement(file, text(key, where), sizes(offset, where), sizes(shape, where))
    check_box(f"load: {where}", whole, placed.offset, placed.shape, FormatError)
    return placed


def file_to_json(found: StoredFile) -> dict[str, Any]:
    """A stored file as JSON has it."""
    return {"size": found.size, "sha256": found.sha256}


def file_from_json(found: Any, where: str) -> StoredFile:
    """The opposite; nothing in `found` is believed."""
    fields = mapping(found, where, ("size", "sha256"))
    (size,) = sizes([fields["size"]], where)
    return StoredFile(size, digits(fields["sha256"], where, 64))


def check_cover(name: str, tensor: StoredTensor, where: str) -> None:
    """Refuse pieces that leave out a part of their tensor, or that overlap without being equal."""
    if len(tensor.placements) > _MOST_PIECES:
        raise FormatError(f"load: {where}: {name!r} has {len(tensor.placements)} pieces")
    boxes = {(p.offset, p.shape) for p in tensor.placements if prod(p.shape)}
    held, needed = sum(prod(shape) for _, shape in boxes), prod(tensor.shape)
    if held < needed:
        raise FormatError(
            f"load: {where}: {name!r}: its pieces have {held} of {needed} elements"
            "\nhint: did every process write its pieces?"
        )
    if held > needed or (len(boxes) > 1 and _overlap(boxes)):
        raise FormatError(f"load: {where}: {name!r}: its pieces overlap")


def _overlap(boxes: set[tuple[Shape, Shape]]) -> bool:
    low = np.array([offset for offset, _ in boxes], np.int64)
    high = low + np.array([shape for _, shape in boxes], np.int64)
    order = np.argsort(low[:, 0], kind="stable")
    low, high = low[order], high[order]
    ends = np.searchsorted(low[:, 0], high[:, 0])  # later boxes begin past this one on axis 0
    return any(
        ((low[i] < high[i + 1 : end]) & (low[i + 1 : end] < high[i])).all(axis=1).any()
        for i, end in enumerate(ends)
    )


def assemble(
    tensor: StoredTensor, offset: Shape, shape: Shape, views: Iterable[tuple[Placement, Array]]
) -> Array:
    """A box of a tensor from the pieces it meets: a view where one piece holds all of it."""
    found = list(views)
    for placement, array in found:
        if _contains(placement, offset, shape):
            inside: list[Any] = [
                slice(begin - start, begin - start + size)
                for begin, start, size in zip(offset, placement.offset, shape)
            ]
            return array[*inside, ...]  # an array even if it has no axes
    made = np.empty(shape, tensor.dtype)
    for placement, array in found:
        low = [max(pair) for pair in zip(offset, placement.offset)]
        high = [
            min(begin + size, start + length)
            for begin, size, start, length in zip(offset, shape, placement.offset, placement.shape)
        ]
        target = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, offset))
        source = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, placement.offset))
        made[target] = array[source]
    return made


def _contains(placement: Placement, offset: Shape, shape: Shape) -> bool:
    return all(
        start <= begin and begin + size <= start + length
        for begin, size, start, length in zip(offset, shape, placement.offset, placement.shape)
    )


def meets(placement: Placement, offset: Shape, shape: Shape) -> bool:
    """Whether a stored box and the box asked for have an element in common."""
    return all(
        max(begin, start) < min(begin + size, start + length)
        for begin, size, start, length in zip(offset, shape, placement.offset, placement.shape)
    )


def piece_of(file: SafetensorsFile, placement: Placement, dtype: DType) -> Array:
    """The values of a stored box; `FormatError` if the file holds something else."""
    entry = file.entries.get(placement.key)
    if entry is None or (entry.dtype, entry.shape) != (dtype, placement.shape):
        held = "nothing" if entry is None else str(TensorType(entry.shape, entry.dtype))
        raise FormatError(
            f"load: {file.path}: {placement.key!r} should be"
            f" {TensorType(placement.shape, dtype)}, the file holds {held}"
        )
    return file.array(placement.key)


def as_box(what: str, whole: Shape, offset: Any, shape: Any) -> tuple[Shape, Shape]:
    """The box a user asks for; without offset and shape, all of the tensor."""
    begin = (0,) * len(whole) if offset is None else as_integers(what, "offset", offset)
    rest = tuple(limit - start for limit, start in zip(whole, begin))
    size = rest if shape is None else as_integers(what, "shape", shape)
    check_box(what, whole, begin, size, ArgumentError)
    return begin, size
