"""Checkpoints that somebody changed: an error of ours that says so, and nothing else."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.checkpoints import load, open_checkpoint, save
from weft.checkpoints.manifest import _hash
from weft.errors import FormatError, StorageError, WeftError

FILE = "pieces-00000.safetensors"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "c"
    save(path, {"x": wf.arange(6.0).reshape(2, 3), "n": [1, 2.5, "t", None], "b": wf.ones(2) > 0})
    return path


def change(path: Path, edit: Callable[[Any], Any]) -> None:
    """Edit the body of a manifest and make its hash right again."""
    whole = json.loads((path / "manifest.json").read_text())
    edit(whole["body"])
    whole["sha256"] = _hash(whole["body"])
    (path / "manifest.json").write_text(json.dumps(whole))


@pytest.mark.parametrize("name", ["manifest.json", FILE])
def test_a_flipped_bit_anywhere_is_noticed(name: str, saved: Path) -> None:
    good = (saved / name).read_bytes()
    for where in range(0, len(good), 3):
        raw = bytearray(good)
        raw[where] ^= 1 << where % 8
        if raw.split() == good.split():  # white space between parts of JSON says nothing
            continue
        (saved / name).write_bytes(raw)
        with pytest.raises(FormatError):
            load(saved)
    (saved / name).write_bytes(good)
    assert load(saved)["x"].sum().item() == 15.0


@pytest.mark.parametrize("name", ["manifest.json", FILE])
def test_a_file_cut_anywhere_is_noticed(name: str, saved: Path) -> None:
    good = (saved / name).read_bytes()
    for length in range(0, len(good), 7):
        (saved / name).write_bytes(good[:length])
        with pytest.raises(FormatError):
            load(saved)


def rename_file(name: str) -> Callable[[Any], None]:
    def edit(body: Any) -> None:
        body["files"][name] = body["files"].pop(FILE)
        for tensor in body["tensors"].values():
            tensor["pieces"][0][0] = name

    return edit


@pytest.mark.parametrize(
    "name", ["../c/" + FILE, "/etc/passwd", "..", ".", "", "a/b.safetensors", FILE + "\n", "x\0y"]
)
def test_names_that_leave_the_folder_are_refused(name: str, saved: Path) -> None:
    change(saved, rename_file(name))
    with pytest.raises(FormatError, match="is no name of a file of pieces"):
        load(saved)


def test_links_and_pipes_are_refused(saved: Path, tmp_path: Path) -> None:
    for name in (FILE, "manifest.json"):
        copied = tmp_path / f"copy-{name}"
        shutil.copytree(saved, copied)
        shutil.move(copied / name, tmp_path / "elsewhere")
        (copied / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(FormatError, match="is a link"):
            load(copied)
        (copied / name).unlink()
        os.mkfifo(copied / name)
        with pytest.raises(FormatError, match="not a plain file"):
            load(copied)
        (copied / name).unlink()
        with pytest.raises(StorageError, match="nothing is there"):
            load(copied)


EDITS: dict[str, Callable[[Any], Any]] = {
    "is larger than any memory": lambda b: b["tensors"]["x"].update(shape=[2**40, 2**40]),
    "0 elements|of 6000000": lambda b: b["tensors"]["x"].update(shape=[2_000_000, 3]),
    "should be float64": lambda b: b["tensors"]["x"].update(dtype="float64"),
    "names no dtype": lambda b: b["tensors"]["x"].update(dtype="float7"),
    "is no text": lambda b: b["tensors"]["x"].update(dtype=3),
    "is no list of sizes": lambda b: b["tensors"]["x"].update(shape=[-1]),
    "there is no tensor 'y'": lambda b: b.update(tree={"tensor": "y"}),
    "is no part of a tree": lambda b: b.update(tree={"pickle": "y"}),
    "is no part of a tree .7": lambda b: b.update(tree=7),
    "occurs twice": lambda b: b.update(tree={"dict": [["a", None], ["a", None]]}),
    "is no key": lambda b: b.update(tree={"dict": [[[], None]]}),
    "no number of a step": lambda b: b.update(step=-1),
    "were written": lambda b: b["files"][FILE].update(size=1),
    "is no number of 64 digits": lambda b: b["files"][FILE].update(sha256="zz"),
    "hash differs": lambda b: b["files"][FILE].update(sha256="0" * 64),
    "is not listed": lambda b: b["tensors"]["x"]["pieces"][0].__setitem__(
        0, "pieces-00007.safetensors"
    ),
    "the file holds nothing": lambda b: b["tensors"]["x"]["pieces"][0].__setitem__(1, "q"),
    "is not inside a tensor": lambda b: b["tensors"]["x"]["pieces"][0].__setitem__(2, [1, 0]),
    "list of the right length": lambda b: b["tensors"]["x"]["pieces"].append([1]),
    "overlap": lambda b: b["tensors"]["x"]["pieces"].append([FILE, "x", [0, 0], [1, 3]]),
    "needs files": lambda b: b.pop("tree"),
    "metadata and files": lambda b: b.update(metadata=[]),
    "tensors are no JSON object": lambda b: b.update(tensors=[]),
}


@pytest.mark.parametrize("message", EDITS)
def test_a_manifest_that_makes_no_sense_is_refused_in_words(message: str, saved: Path) -> None:
    change(saved, EDITS[message])
    with pytest.raises(FormatError, match=message) as caught:
        load(saved)
    assert len(str(caught.value)) < 800


def test_a_manifest_of_a_later_version_is_refused(saved: Path) -> None:
    whole = json.loads((saved / "manifest.json").read_text())
    (saved / "manifest.json").write_text(json.dumps(whole | {"version": 2}))
    with pytest.raises(FormatError, match="has version 2, this weft reads 1"):
        load(saved)
    (saved / "manifest.json").write_text('{"format": "other"}')
    with pytest.raises(FormatError, match="no manifest of a checkpoint"):
        load(saved)


def test_deep_and_huge_json_is_refused(saved: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    (saved / "manifest.json").write_text(deep)
    with pytest.raises(FormatError, match="nested too deeply"):
        load(saved)
    with open(saved / "manifest.json", "wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no space on disk
    with pytest.raises(FormatError, match="more than the"):
        load(saved)


def test_hashes_can_be_left_out(saved: Path) -> None:
    change(saved, EDITS["hash differs"])
    assert load(saved, verify=False)["x"].sum().item() == 15.0
    assert open_checkpoint(saved, verify=False).read_slice("x", (1, 0), (1, 3)).sum() == 12.0


def test_random_edits_of_a_signed_manifest_give_values_or_errors_of_ours(
    saved: Path, fresh_seed: int
) -> None:
    draw = random.Random(fresh_seed)
    original = (saved / "manifest.json").read_text()
    strange = [None, -1, 0, 2**80, 1.5, True, "", "..", "x", [], [[]], {}, {"list": []}, "inf"]
    refused = 0
    for _ in range(600):
        whole = json.loads(original)
        for _ in range(draw.choice((1, 2))):
            put(whole["body"], draw, copy.deepcopy(draw.choice(strange)))
        whole["sha256"] = _hash(whole["body"])
        (saved / "manifest.json").write_text(json.dumps(whole))
        try:
            found = load(saved)
        except WeftError:
            refused += 1
            continue
        assert all(x.nbytes < 1000 for x in wf.tree_leaves(found) if isinstance(x, wf.Tensor))
    assert refused > 200


def put(body: Any, draw: random.Random, value: Any) -> None:
    """Replace a random part of a JSON value."""
    node = body
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = draw.choice(keys)
        inner = node[key]
        if not isinstance(inner, dict | list) or not inner or draw.random() < 0.2:
            node[key] = value
            return
        node = inner


def test_nothing_of_a_checkpoint_is_run_or_imported(tmp_path: Path) -> None:
    save(tmp_path / "c", {"x": np.ones(2)})
    change(
        tmp_path / "c", lambda b: b.update(tree={"object": "os.system", "fields": [["x", None]]})
    )
    assert load(tmp_path / "c") == {"x": None}
