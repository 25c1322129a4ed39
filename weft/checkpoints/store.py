"""Saving a tree to a folder and loading it again; `Draft` is the same in steps, for many processes.

A draft collects files under a hidden name. Committing it checks that all pieces are there, writes
the manifest, and renames the folder: a checkpoint is complete or does not exist.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import finalize

from weft.checkpoints.manifest import NAME, Manifest, read_manifest, write_manifest
from weft.checkpoints.pieces import (
    Piece,
    StoredTensor,
    as_box,
    assemble,
    file_name,
    meets,
    piece_of,
    read_record,
    record_name,
    write_pieces,
)
from weft.checkpoints.restore import restored
from weft.checkpoints.sharded import pieces_of
from weft.checkpoints.structure import describe
from weft.checkpoints.together import together, told_by_first
from weft.core.common.files import CHUNK, Partial, as_path, open_folder, reporting, sync_folder
from weft.core.common.parameters import as_flag, as_integer, shown
from weft.core.common.types import Array, TensorType
from weft.errors import ArgumentError, FormatError, IndexingError, ShapeError, StorageError
from weft.runtime.communicator import world
from weft.safetensors import SafetensorsFile

PathLike = str | os.PathLike[str]


class Draft:
    """A checkpoint being written: processes write pieces to `folder`, then one calls `commit`.

    One process makes the draft and tells the others its `folder`; each calls
    `write_pieces(folder, pieces, rank=…)`; when all have returned, the first one commits. Leaving
    the `with` block without a commit removes everything.
    """

    def __init__(self, path: PathLike) -> None:
        self.target = Path(os.path.abspath(as_path("save", path)))
        with reporting("save", self.target):
            _check_replaceable(self.target)
            self._partial = Partial(self.target, folder=True)

    @property
    def folder(self) -> Path:
        """Where pieces are written until the commit."""
        return self._partial.path

    def commit(
        self,
        tree: Any,
        *,
        ranks: int = 1,
        step: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the checkpoint complete: `ranks` processes have written the pieces of its tensors.

        `tree` is the tree in the form that `describe(tree).structure` gives.
        """
        manifest = self._merged(tree, ranks, step, metadata)
        write_manifest(self.folder, manifest)
        with reporting("save", self.target):
            for rank in range(ranks):
                os.unlink(self.folder / record_name(rank))
            sync_folder(self.folder)
            self._partial.commit()

    def _merged(
        self, tree: Any, ranks: int, step: int | None, metadata: Mapping[str, Any] | None
    ) -> Manifest:
        files = {}
        tensors: dict[str, StoredTensor] = {}
        for rank in range(ranks):
            files[file_name(rank)], held = read_record(self.folder, rank)
            for name, found in held.items():
                known = tensors.setdefault(name, found)
                if known is found:
                    continue
                if known.type != found.type:
                    raise ShapeError(
                        f"save: {name!r}: process {rank} has pieces of {found.type},"
                        f" others of {known.type}"
                    )
                tensors[name] = StoredTensor(
                    found.dtype, found.shape, known.placements + found.placements
                )
        number = None if step is None else as_integer("save", "step", step, low=0)
        return Manifest(number, checked_metadata(metadata), tree, tensors, files)

    def close(self) -> None:
        """Remove what was not committed."""
        self._partial.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_replaceable(target: Path) -> None:
    """Refuse to replace what is no checkpoint."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ArgumentError(f"save: {target}: is no folder\nhint: choose another path")
    if target.is_dir() and not (target / NAME).is_file() and os.listdir(target):
        raise ArgumentError(
            f"save: {target}: is a folder that holds something other than a checkpoint"
            "\nhint: choose another path, such as a folder inside it"
        )


def checked_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata as it will be loaded, a copy: what JSON cannot hold is refused, not changed."""
    given = {} if metadata is None else metadata
    made: Any = None
    if isinstance(given, Mapping):
        with suppress(TypeError, ValueError, RecursionError):
            made = json.loads(json.dumps(dict(given), allow_nan=False))
    if made is None or made != given:
        raise ArgumentError(
            f"save: metadata must be what JSON can hold, got {shown(given)}"
            "\nhint: put tensors and other values into the tree"
        )
    found: dict[str, Any] = made
    return found


def save(
    path: PathLike,
    tree: Any,
    *,
    step: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Save a tree of tensors, numbers and text as the checkpoint `path`, a folder.

    It appears when it is complete; a checkpoint that was there is replaced in the same instant.
    `metadata` is anything JSON holds, for `open_checkpoint(path).metadata`. Where several processes
    run, all of them call this, and each writes the pieces it holds of tensors over a mesh.
    """
    described = describe(tree)
    pieces = pieces_of(described.tensors)
    write(path, pieces, described.structure, step=step, metadata=metadata)


def write(
    path: PathLike,
    pieces: Iterable[Piece],
    structure: Any,
    *,
    step: int | None,
    metadata: Mapping[str, Any] | None,
) -> None:
    """Save the pieces that each process holds: all of them call this, with the same path."""
    notes, ranks = checked_metadata(metadata), world()
    ranks.check(f"save {os.path.abspath(as_path('save', path))}")
    with ExitStack() as stack:
        with together("save"):
            draft = stack.enter_context(Draft(path)) if ranks.rank == 0 else None
        folder = told_by_first("" if draft is None else str(draft.folder))
        with together("save"):
            write_pieces(folder, pieces, rank=ranks.rank)
        with together("save"):
            if draft is not None:
                draft.commit(structure, ranks=ranks.size, step=step, metadata=notes)


class _Replaced(StorageError):
    """The folder being read has lost its name to another checkpoint, or to none."""


class OpenCheckpoint:
    """A checkpoint whose manifest has been read; `read_slice` gives any box of any tensor.

    A file is opened when a piece of it is needed; with `verify` its hash is checked then. Where
    another checkpoint has taken the name meanwhile, nothing of that one is read.
    """

    def __init__(self, path: PathLike, *, verify: bool = True) -> None:
        self.path = as_path("load", path)
        with reporting("load", self.path):
            self._folder = open_folder(self.path)
        finalize(self, os.close, self._folder)
        with self._unless_replaced():
            self._manifest = read_manifest(self.path, self._folder)
        self._verify = verify
        self._files: dict[str, SafetensorsFile] = {}

    @contextmanager
    def _unless_replaced(self) -> Iterator[None]:
        """Inside, a file that is gone because the folder is gone tells that."""
        try:
            yield
        except StorageError as error:
            if error.errno != errno.ENOENT or self._has_its_name():
                raise
            raise _Replaced(
                f"load: {self.path}: was replaced or removed while it was read\nhint: open it again"
            ) from error

    def _has_its_name(self) -> bool:
        with suppress(FileNotFoundError):
            return os.path.samestat(os.stat(self.path), os.fstat(self._folder))
        return False

    @property
    def step(self) -> int | None:
        """The step it was saved with."""
        return self._manifest.step

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata it was saved with."""
        return self._manifest.metadata

    @property
    def structure(self) -> Any:
        """The tree as JSON."""
        return self._manifest.tree

    @property
    def types(self) -> dict[str, TensorType]:
        """Shape and dtype of every tensor by name."""
        return {name: tensor.type for name, tensor in self._manifest.tensors.items()}

    def read_slice(self, name: str, offset: Any = None, shape: Any = None) -> Array:
        """The box of `shape` that begins at `offset`; without them, the whole tensor.

        It is a view of the file where one stored piece holds all of it.
        """
        tensor = self._manifest.tensors.get(name)
        if tensor is None:
            raise IndexingError(f"read_slice: {self.path}: there is no tensor {name!r:.80}")
        begin, size = as_box(f"read_slice: {name!r}", tensor.shape, offset, shape)
        pieces = [
            (placement, piece_of(self._file(placement.file), placement, tensor.dtype))
            for placement in tensor.placements
            if meets(placement, begin, size)
        ]
        return assemble(tensor, begin, size, pieces)

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self._files:
            # A link could lead out of the folder: only plain files are opened.
            with self._unless_replaced():
                found = SafetensorsFile(self.path / name, follow=False, folder=self._folder)
            self._check(found, name)
            self._files[name] = found
        return self._files[name]

    def _check(self, file: SafetensorsFile, name: str) -> None:
        listed = self._manifest.files[name]
        if file.bytes.size != listed.size:
            raise FormatError(
                f"load: {file.path}: has {file.bytes.size} bytes, {listed.size} were written"
            )
        if not self._verify:
            return
        digest = hashlib.sha256()
        for begin in range(0, listed.size, CHUNK):
            digest.update(file.bytes[begin : begin + CHUNK].data)
        if digest.hexdigest() != listed.sha256:
            raise FormatError(
                f"load: {file.path}: its contents are not what was written (the hash differs)"
                "\nhint: restore an older checkpoint"
            )


def open_checkpoint(path: PathLike, *, verify: bool = True) -> OpenCheckpoint:
    """Open a checkpoint to read its step, its metadata, or single tensors and parts of them."""
    while True:
        with suppress(_Replaced):
            return OpenCheckpoint(path, verify=verify)


def load(path: PathLike, like: Any = None, *, verify: bool = True, strict: bool = True) -> Any:
    """Load the tree that was saved as `path`.

    With `like`, a tree of the same structure (a model, say), its leaves are replaced by the saved
    ones: same shapes and dtypes, on the devices and in the layouts of `like`. With `strict=False`
    leaves of `like` that were not saved stay, and saved ones that it lacks are not read: a model
    alone, or with a new head. Without `like`, dicts, lists and tuples come back as they were and
    classes as dicts of their fields. `verify=False` skips the hashes.
    """
    exactly = as_flag("load", "strict", strict)
    while True:
        with suppress(_Replaced):  # then the newer one is read
            return restored(open_checkpoint(path, verify=verify), like, exactly)


def is_complete(path: Path) -> bool:
    """Whether a folder is a checkpoint with all its files, by their sizes."""
    with suppress(FormatError, OSError):
        manifest = read_manifest(path)
        return all(
            os.stat(path / name, follow_symlinks=False).st_size == file.size
            for name, file in manifest.files.items()
        )
    return False
