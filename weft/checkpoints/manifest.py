"""The manifest: one JSON file that says what a checkpoint holds and proves that it is whole.

It lists the tree, the tensors with the boxes each file holds of them, and every file with its size
and SHA-256; a hash over all of this guards the manifest itself.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from weft.checkpoints.pieces import (
    LONGEST_RECORD,
    StoredFile,
    StoredTensor,
    check_cover,
    file_from_json,
    file_to_json,
    is_file_name,
    tensors_from_json,
    tensors_to_json,
)
from weft.checkpoints.schema import digits, mapping
from weft.checkpoints.structure import leaves_of
from weft.core.common.files import read_file, reporting, write_file
from weft.core.common.lazy import LazyModule
from weft.core.common.strict_json import parse_json
from weft.errors import FormatError

_weft = LazyModule("weft")

NAME: Final = "manifest.json"
_FORMAT: Final = "weft checkpoint"
_VERSION: Final = 1
_FIELDS: Final = ("files", "library", "metadata", "step", "tensors", "tree")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint holds."""

    step: int | None
    metadata: dict[str, Any]
    tree: Any
    tensors: dict[str, StoredTensor]
    files: dict[str, StoredFile]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a checkpoint whose files are all there."""
    check(manifest, str(folder))
    body = {
        "files": {name: file_to_json(file) for name, file in manifest.files.items()},
        "library": _weft.__version__,
        "metadata": manifest.metadata,
        "step": manifest.step,
        "tensors": tensors_to_json(manifest.tensors),
        "tree": manifest.tree,
    }
    whole = {"format": _FORMAT, "version": _VERSION, "sha256": _hash(body), "body": body}
    with reporting("save", folder / NAME):
        write_file(folder / NAME, [json.dumps(whole).encode()])


def _hash(body: Any) -> str:
    """SHA-256 of the one way to spell a JSON value."""
    spelled = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(spelled.encode()).hexdigest()


def read_manifest(folder: Path, descriptor: int | None = None) -> Manifest:
    """The manifest of a checkpoint; `FormatError` if it is not what was written."""
    path = folder / NAME
    with reporting("load", path):
        raw = read_file(path, LONGEST_RECORD, descriptor)
    found = parse_json(raw, f"load: {path}")
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise FormatError(f"load: {path}: is no manifest of a checkpoint")
    if found.get("version") != _VERSION:
        raise FormatError(
            f"load: {path}: has version {found.get('version')!r:.20}, this weft reads {_VERSION}"
        )
    where = str(path)
    whole = mapping(found, where, ("format", "version", "sha256", "body"))
    body = mapping(whole["body"], where, _FIELDS)
    try:
        seen = _hash(body)
    except RecursionError:
        raise FormatError(f"load: {where}: is nested too deeply") from None
    if seen != digits(whole["sha256"], where, 64):
        raise FormatError(
            f"load: {where}: its contents are not what was written (the hash differs)"
            "\nhint: restore an older checkpoint"
        )
    return _read_body(body, where)


def _read_body(body: dict[str, Any], where: str) -> Manifest:
    step, metadata, files = body["step"], body["metadata"], body["files"]
    if not (step is None or (type(step) is int and step >= 0)):
        raise FormatError(f"load: {where}: the step {step!r:.40} is no number of a step")
    if not isinstance(metadata, dict) or not isinstance(files, dict):
        raise FormatError(f"load: {where}: metadata and files must be JSON objects")
    manifest = Manifest(
        step,
        metadata,
        body["tree"],
        tensors_from_json(body["tensors"], where),
        {name: file_from_json(file, where) for name, file in files.items()},
    )
    check(manifest, where)
    return manifest


def check(manifest: Manifest, where: str) -> None:
    """Refuse a manifest whose parts do not fit together."""
    for name in manifest.files:
        if not is_file_name(name):
            raise FormatError(f"load: {where}: {name!r:.80} is no name of a file of pieces")
    for name, tensor in manifest.tensors.items():
        check_cover(name, tensor, where)
        for placement in tensor.placements:
            if placement.file not in manifest.files:
                raise FormatError(f"load: {where}: {name!r}: {placement.file} is not listed")
    for leaf in leaves_of(manifest.tree, where):
        if leaf.kind != "value" and leaf.value not in manifest.tensors:
            raise FormatError(f"load: {where}: there is no tensor {leaf.value!r:.80}")
