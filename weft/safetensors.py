"""safetensors files: `wf.load_safetensors` and `wf.save_safetensors`.

A file is the length of a header, the header in JSON, and the bytes of the tensors. Nothing in it is
believed before it is checked against the file's own length; tensors are views of a memory map.
safetensors has no complex128 and old readers have no complex64: complex tensors are stored as pairs
of floats in a last axis of 2, and their names are listed in the metadata under `weft.complex`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import current_device
from weft.core.common.device import CPU, as_device
from weft.core.common.files import CHUNK, as_path, open_plain, reporting, write_atomically
from weft.core.common.lazy import LazyModule
from weft.core.common.parameters import LARGEST, shown
from weft.core.common.strict_json import parse_json
from weft.core.common.types import Array, DType, Shape
from weft.core.tensor.convert import to_tensor, wrap
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, FormatError, IndexingError

_json = LazyModule("json")

LONGEST_HEADER: Final = 100_000_000  # bytes, the limit of the format
_MOST_AXES: Final = 64
_ALIGNMENT: Final = 64  # of the first tensor, in bytes: a cache line
_METADATA: Final = "__metadata__"
_COMPLEX: Final = "weft.complex"
_LOAD: Final = "load_safetensors"
_SAVE: Final = "save_safetensors"
_ARCHIVE: Final = b"PK\x03\x04"  # how zip files begin
_ARCHIVE_HINT: Final = (
    "\nhint: this is an archive, such as torch.save and np.savez write:"
    " nn.load_state_dict(model, torch.load(file)) takes its tensors"
)

_DTYPES: Final[dict[str, DType]] = {
    "BOOL": dtypes.bool_,
    "I8": dtypes.int8,
    "I16": dtypes.int16,
    "I32": dtypes.int32,
    "I64": dtypes.int64,
    "U8": dtypes.uint8,
    "U16": dtypes.uint16,
    "U32": dtypes.uint32,
    "U64": dtypes.uint64,
    "F8_E4M3": dtypes.float8_e4m3,
    "F8_E5M2": dtypes.float8_e5m2,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "F32": dtypes.float32,
    "F64": dtypes.float64,
    "C64": dtypes.complex64,
}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}
_PARTS: Final = {dtypes.complex64: dtypes.float32, dtypes.complex128: dtypes.float64}
_WHOLE: Final = {part: whole for whole, part in _PARTS.items()}


class Entry(NamedTuple):
    """One tensor of a file: where its bytes begin and end in the file, and what they mean."""

    dtype: DType
    shape: Shape
    begin: int
    end: int


class SafetensorsFile:
    """A file whose header has been checked; `array(name)` is a view of its memory map.

    >>> sorted(SafetensorsFile.__slots__)
    ['_buffer', 'entries', 'metadata', 'path']
    """

    __slots__ = ("_buffer", "entries", "metadata", "path")

    def __init__(
        self, path: str | os.PathLike[str], *, follow: bool = True, folder: int | None = None
    ) -> None:
        self.path = as_path(_LOAD, path)
        with reporting(_LOAD, path):
            self._buffer = _mapped(self.path, follow, folder)
        self.metadata, self.entries = parse(self._buffer, str(path))

    @property
    def bytes(self) -> Array:
        """The whole file."""
        return self._buffer

    def array(self, name: str) -> Array:
        """The values of one tensor, without a copy where their place in the file allows it.

        Writing to them changes this process's memory, never the file.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise IndexingError(f"{_LOAD}: {self.path}: there is no tensor {name!r}")
        return view(self._buffer, entry, f"{self.path}: {name}")


def _mapped(path: Path, follow: bool, folder: int | None) -> Array:
    """The bytes of a file as private memory that is read from disk when it is touched."""
    file = open_plain(path, follow=follow, folder=folder)
    try:
        size = os.fstat(file).st_size
        if not size:
            raise FormatError(f"{_LOAD}: {path}: the file is empty")
        return np.frombuffer(mmap.mmap(file, size, access=mmap.ACCESS_COPY), np.uint8)
    finally:
        os.close(file)


def view(buffer: Array, entry: Entry, where: str) -> Array:
    """The tensor that `entry` describes: a view of `buffer`, or a copy if it is not aligned."""
    raw = buffer[entry.begin : entry.end]
    if entry.dtype == dtypes.bool_ and raw.size and raw.max() > 1:
        raise FormatError(f"{_LOAD}: {where}: a bool is stored as {raw.max()}, not as 0 or 1")
    if entry.begin % entry.dtype.alignment:
        raw = raw.copy()
    return raw.view(entry.dtype).reshape(entry.shape)


def parse(buffer: Array, where: str) -> tuple[dict[str, str], dict[str, Entry]]:
    """Metadata and entries of a file given as bytes; `FormatError` unless every rule is kept.

    Tensors must fill the bytes after the header without a gap and without sharing any.
    """
    total = buffer.size
    if total < 8:
        raise FormatError(f"{_LOAD}: {where}: {total} bytes are too few for a header")
    length = int.from_bytes(buffer[:8].tobytes(), "little")
    if length > LONGEST_HEADER or length > total - 8:
        raise FormatError(
            f"{_LOAD}: {where}: the header is said to have {length} bytes"
            f" (the file has {total}, at most {LONGEST_HEADER} are allowed)"
            + (_ARCHIVE_HINT if buffer[:4].tobytes() == _ARCHIVE else "")
        )
    header = _header(buffer[8 : 8 + length].tobytes(), where)
    metadata = _checked_metadata(header.pop(_METADATA, {}), where)
    start = 8 + length
    entries = {name: _entry(found, f"{where}: {name!r}") for name, found in header.items()}
    reached = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1][2:]):
        if entry.begin != reached:
            what = "share bytes" if entry.begin < reached else "leave a gap"
            raise FormatError(
                f"{_LOAD}: {where}: {name!r}: tensors {what}"
                f" (it begins at {entry.begin}, what is before it ends at {reached})"
            )
        reached = entry.end
    if reached != total - start:
        raise FormatError(
            f"{_LOAD}: {where}: tensors end at byte {reached} of {total - start}"
            "\nhint: the file was cut off, or something was appended to it"
        )
    placed = {
        name: entry._replace(begin=entry.begin + start, end=entry.end + start)
        for name, entry in entries.items()
    }
    return metadata, _with_complex(metadata, placed, where)


def _header(raw: bytes, where: str) -> dict[str, Any]:
    if not raw.startswith(b"{"):
        raise FormatError(f"{_LOAD}: {where}: the header is no JSON object")
    found: dict[str, Any] = parse_json(raw, f"{_LOAD}: {where}: the header")
    return found


def _checked_metadata(found: Any, where: str) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise FormatError(f"{_LOAD}: {where}: {_METADATA} must map names to text")
    return found


def _entry(found: Any, where: str) -> Entry:
    if not isinstance(found, dict) or found.keys() != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"{_LOAD}: {where}: needs dtype, shape and data_offsets, nothing else")
    name, shape, offsets = found["dtype"], found["shape"], found["data_offsets"]
    if not isinstance(name, str) or name not in _DTYPES:
        raise FormatError(
            f"{_LOAD}: {where}: weft has no dtype {shown(name)} (it has {', '.join(_DTYPES)})"
        )
    if not _are_sizes(shape) or len(shape) > _MOST_AXES:
        raise FormatError(f"{_LOAD}: {where}: {shown(shape)} is no shape")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise FormatError(f"{_LOAD}: {where}: {shown(offsets)} are no offsets")
    dtype = _DTYPES[name]
    if prod(size or 1 for size in shape) > LARGEST:
        raise FormatError(f"{_LOAD}: {where}: shape {shown(shape)} is larger than any memory")
    needed, held = prod(shape) * dtype.itemsize, offsets[1] - offsets[0]
    if needed != held:
        raise FormatError(
            f"{_LOAD}: {where}: {name} of shape {shown(shape)} needs {needed} bytes,"
            f" its offsets hold {shown(held)}"
        )
    return Entry(dtype, tuple(shape), offsets[0], offsets[1])


def _are_sizes(found: Any) -> bool:
    """Whether this is a list of integers from 0 on; True and 1.0 are none."""
    return isinstance(found, list) and all(type(size) is int and size >= 0 for size in found)


def _with_complex(
    metadata: dict[str, str], entries: dict[str, Entry], where: str
) -> dict[str, Entry]:
    listed = metadata.get(_COMPLEX)
    if listed is None:
        return entries
    names = parse_json(listed.encode(errors="replace"), f"{_LOAD}: {where}: {_COMPLEX}")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FormatError(f"{_LOAD}: {where}: {_COMPLEX} must be a list of names")
    for name in set(names):
        entry = entries.get(name)
        if entry is None or entry.dtype not in _WHOLE or entry.shape[-1:] != (2,):
            raise FormatError(f"{_LOAD}: {where}: {name!r:.80} is no tensor of complex pairs")
        entries[name] = entry._replace(dtype=_WHOLE[entry.dtype], shape=entry.shape[:-1])
    return entries


def encode(
    arrays: Mapping[str, Array], metadata: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    """The bytes of a file in parts; wide dtypes come first, so that every tensor is aligned."""
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    complex_names = [name for name in order if arrays[name].dtype in _PARTS]
    notes = dict(metadata)
    if complex_names:
        notes[_COMPLEX] = _json.dumps(complex_names)
    header: dict[str, Any] = {_METADATA: notes} if notes else {}
    reached = 0
    for name in order:
        array = arrays[name]
        stored = _PARTS.get(array.dtype, array.dtype)
        shape = [*array.shape, 2] if array.dtype in _PARTS else list(array.shape)
        offsets = [reached, reached + array.nbytes]
        header[name] = {"dtype": _NAMES[stored], "shape": shape, "data_offsets": offsets}
        reached += array.nbytes
    text = _json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    if len(text) > LONGEST_HEADER:
        raise ArgumentError(
            f"{_SAVE}: names and shapes take {len(text)} bytes, too many for a file"
        )
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        raw = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data
        for begin in range(0, len(raw), CHUNK):
            yield raw[begin : begin + CHUNK]


def load_safetensors(path: str | os.PathLike[str], *, device: Any = None) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, in the file's order.

    On CPU they are views of a memory map: values are read from disk when they are used, and the
    file must not be cut short meanwhile (`save_safetensors` replaces files, it never changes one).
    A file that breaks a rule of the format raises `FormatError`.
    """
    place = current_device() if device is None else as_device(device)
    found = SafetensorsFile(path)
    return {name: wrap(found.array(name), place) for name in found.entries}


def save_safetensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors (or NumPy arrays) to a safetensors file, which appears when it is complete.

    `metadata` maps names to text. Complex tensors are stored as pairs of floats.
    """
    arrays = {name: as_array(_SAVE, name, value) for name, value in _items(tensors)}
    notes = dict({} if metadata is None else metadata)
    for name, text in notes.items():
        if type(name) is not str or type(text) is not str or name == _COMPLEX:
            raise ArgumentError(
                f"{_SAVE}: metadata must map names to text, got {shown(name)}: {shown(text)}"
            )
    write_atomically(_SAVE, as_path(_SAVE, path), encode(arrays, notes))


def _items(tensors: Any) -> list[tuple[str, Any]]:
    if not isinstance(tensors, Mapping):
        raise ArgumentError(
            f"{_SAVE}: tensors must be a dict, got {shown(tensors)}"
            "\nhint: wf.checkpoints.save takes any tree"
        )
    for name in tensors:
        if type(name) is not str or name == _METADATA or not _is_unicode(name):
            raise ArgumentError(f"{_SAVE}: {shown(name)} cannot be the name of a tensor")
    return list(tensors.items())


def _is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: halves of surrogate pairs cannot."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def as_array(op: str, name: str, value: Any) -> Array:
    """The values of a tensor or of anything that `wf.asarray` takes, as they are stored."""
    if not isinstance(value, Tensor | np.ndarray):
        raise ArgumentError(f"{op}: {name!r}: expected a tensor, got {shown(value)}")
    return to_tensor(value, like=CPU, op=f"{op}: {name!r}").host()


__all__ = ["load_safetensors", "save_safetensors"]
