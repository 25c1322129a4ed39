"""Trees saved and loaded: what comes back, what is refused, and what a full disk costs."""

from __future__ import annotations

import errno
import math
import os
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optree
import pytest

import weft as wf
from weft.checkpoints import Checkpoints, load, manager, open_checkpoint, save, save_async, store
from weft.core.common import files
from weft.errors import ArgumentError, FormatError, StorageError, TreeError


@wf.register_dataclass
@dataclass
class Layer:
    weight: Any
    bias: Any


class Pair(NamedTuple):
    first: Any
    second: Any


def model(scale: float = 1.0) -> dict[str, Any]:
    return {
        "layers": [Layer(wf.ones((3, 4)) * scale, None), Layer(wf.zeros((2,)), wf.arange(3))],
        "pair": Pair(wf.tensor(2.0), (1, 2.5)),
    }


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_tree_comes_back_with_its_values_and_types(tmp_path: Path) -> None:
    tree = {
        "tensor": wf.tensor([[1.5, 2.5]], dtype="bfloat16"),
        "complex": wf.tensor([1 + 2j]),
        "flags": wf.tensor([True, False]),
        "array": np.arange(3, dtype=np.int16),
        "scalar": np.float32(0.1),
        "numbers": (1, -(2**70), 0.1, -math.inf, True, "text \ud800 ü", None, [], {}, ()),
        3: {"a.b": wf.tensor(1), "a": {"b": wf.tensor(2)}, 0: wf.tensor(3), "0": wf.tensor(4)},
        "__metadata__": wf.tensor(5),
    }
    save(tmp_path / "c", tree, step=7, metadata={"note": [1, "two"]})
    found = load(tmp_path / "c")
    assert found.keys() == tree.keys()
    for name in ("tensor", "complex", "flags"):
        assert isinstance(found[name], wf.Tensor) and found[name].dtype == tree[name].dtype
        assert found[name].tolist() == tree[name].tolist()
    assert type(found["array"]) is np.ndarray and found["array"].dtype == np.int16
    assert type(found["scalar"]) is np.float32 and found["scalar"] == np.float32(0.1)
    assert found["numbers"] == tree["numbers"]
    assert list(map(type, found["numbers"])) == list(map(type, tree["numbers"]))
    inner = {k: v.item() for k, v in found[3].items() if k != "a"}
    assert inner == {"a.b": 1, 0: 3, "0": 4} and found[3]["a"]["b"].item() == 2
    opened = open_checkpoint(tmp_path / "c")
    assert opened.step == 7 and opened.metadata == {"note": [1, "two"]}
    assert names_in(tmp_path) == ["c"]


def test_not_a_number_is_saved_too(tmp_path: Path) -> None:
    save(tmp_path / "c", [math.nan])
    assert math.isnan(load(tmp_path / "c")[0])


def test_a_single_leaf_is_a_tree(tmp_path: Path) -> None:
    save(tmp_path / "c", wf.arange(3))
    assert load(tmp_path / "c").tolist() == [0, 1, 2]
    save(tmp_path / "d", None)
    assert load(tmp_path / "d") is None


def test_tensors_are_named_as_other_libraries_name_weights(tmp_path: Path) -> None:
    save(tmp_path / "c", model())
    assert set(open_checkpoint(tmp_path / "c").types) == {
        "layers.0.weight",
        "layers.1.weight",
        "layers.1.bias",
        "pair.first",
    }
    weights = wf.load_safetensors(tmp_path / "c" / "pieces-00000.safetensors")
    assert weights["layers.1.bias"].tolist() == [0, 1, 2]


def test_classes_come_back_in_the_structure_of_like(tmp_path: Path) -> None:
    save(tmp_path / "c", model(5.0))
    found = load(tmp_path / "c", like=model())
    assert isinstance(found["layers"][0], Layer) and found["layers"][0].bias is None
    assert found["layers"][0].weight.tolist() == (5.0 * np.ones((3, 4))).tolist()
    assert isinstance(found["pair"], Pair) and found["pair"].second == (1, 2.5)
    plain = load(tmp_path / "c")
    assert plain["layers"][0]["bias"] is None and set(plain["pair"]) == {"first", "second"}


def test_types_can_stand_for_tensors_in_like(tmp_path: Path) -> None:
    save(tmp_path / "c", {"x": wf.arange(3)})
    found = load(tmp_path / "c", like=wf.eval_shape(lambda: {"x": wf.arange(3)}))
    assert found["x"].tolist() == [0, 1, 2]


def test_leaves_of_like_choose_what_comes_back(tmp_path: Path) -> None:
    save(tmp_path / "c", {"x": wf.tensor(1.5), "y": np.arange(2)})
    weight = wf.tensor(0.0)
    weight.requires_grad = True
    found = load(tmp_path / "c", like={"x": np.float32(0), "y": wf.arange(2)})
    assert type(found["x"]) is np.float32 and isinstance(found["y"], wf.Tensor)
    assert load(tmp_path / "c", like={"x": weight, "y": np.arange(2)})["x"].requires_grad


def test_every_leaf_that_does_not_fit_is_named(tmp_path: Path) -> None:
    save(tmp_path / "c", {"a": wf.zeros(2), "b": 1, "c": 2.0, "same": wf.zeros(3), "d": "x"})
    like = {"a": wf.zeros(3), "b": True, "same": wf.zeros(3), "d": wf.zeros(1), "e": [0]}
    with pytest.raises(TreeError) as caught:
        load(tmp_path / "c", like=like)
    text = str(caught.value)
    assert "['a']: is float32[2] in the checkpoint, float32[3] in `like`" in text
    assert "['b']: is int in the checkpoint, bool in `like`" in text
    assert "['c']: is in the checkpoint, not in `like`" in text
    assert "['d']: is str in the checkpoint, float32[1] in `like`" in text
    assert "['e'][0]: is not in the checkpoint" in text
    assert "same" not in text and "(5 leaves)" in text and "hint:" in text


def test_leaves_that_both_trees_have_are_filled_if_that_is_asked_for(tmp_path: Path) -> None:
    body, head = wf.arange(3.0), wf.ones(2)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"model": {"body": body, "head": head}, "state": wf.zeros(3), "n": 7})
        like = {"model": {"body": wf.zeros(3), "new": wf.ones(5)}, "note": "kept"}
        found = checkpoints.restore(like, strict=False)
        assert found["model"]["body"].tolist() == [0.0, 1.0, 2.0]
        assert found["model"]["new"] is like["model"]["new"] and found["note"] == "kept"
        with pytest.raises(TreeError, match=r"\['head'\]: is float32\[2\] in the checkpoint"):
            checkpoints.restore({"model": {"body": body, "head": body}}, strict=False)
        with pytest.raises(TreeError, match=r"\['n'\]: is in the checkpoint, not in `like`"):
            checkpoints.restore({"modle": {"body": body}}, strict=False)
        with pytest.raises(TreeError, match=r"\['new'\]: is not in the checkpoint"):
            checkpoints.restore({"n": 1, "new": wf.eval_shape(lambda: body)}, strict=False)


def test_the_dtype_must_be_the_same_too(tmp_path: Path) -> None:
    save(tmp_path / "c", [wf.zeros(2)])
    with pytest.raises(TreeError, match=r"float32.2. in the checkpoint, float64"):
        load(tmp_path / "c", like=[wf.zeros(2, dtype="float64")])


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (object(), "object cannot be saved"),
        (b"bytes", "bytes cannot be saved"),
        (1j, "complex cannot be saved"),
        (np.array(["text"]), "not supported"),
        (np.array([object()]), "not supported"),
        (np.datetime64("2020"), "not supported"),
        (np.ones(2, ">f4"), "byte order"),
        (np.ma.masked_array([1.0], [True]), "mask"),
        (1 << 5000, "too large"),
        ({(1, 2): 1}, "neither text nor an integer"),
        ({1 << 5000: 1}, "key an integer of 5001 bits is too large"),
    ],
)
def test_other_leaves_are_refused_with_their_path(leaf: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(TreeError, match=message) as caught:
        save(tmp_path / "c", {"state": [0, leaf]})
    assert "['state'][1]" in str(caught.value)
    assert names_in(tmp_path) == []


def test_a_very_deep_tree_is_refused(tmp_path: Path) -> None:
    tree: Any = 1
    for _ in range(90):
        tree = [tree]
    save(tmp_path / "c", tree)
    assert load(tmp_path / "c") == tree
    for _ in range(20):
        tree = [tree]
    with pytest.raises(TreeError, match="100 levels"):
        save(tmp_path / "d", tree)


@pytest.mark.parametrize("metadata", [{"x": {1, 2}}, {"x": math.nan}, {1: 2}, {"x": (1,)}, [1]])
def test_metadata_that_json_would_change_is_refused(metadata: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="metadata must be what JSON can hold"):
        save(tmp_path / "c", {}, metadata=metadata)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("step", [np.int64(7), wf.tensor(7)])
def test_a_step_is_any_integer(step: Any, tmp_path: Path) -> None:
    save(tmp_path / "c", {}, step=step)
    save_async(tmp_path / "d", {}, step=step).wait()
    Checkpoints(tmp_path / "all").save(step, {})
    assert [open_checkpoint(tmp_path / name).step for name in "cd"] == [7, 7]
    assert Checkpoints(tmp_path / "all").steps() == [7]


@pytest.mark.parametrize("path", [3, b"c", "a\0b", None])
def test_what_is_no_path_is_refused(path: Any) -> None:
    for use in (lambda: save(path, {}), lambda: load(path), lambda: Checkpoints(path)):
        with pytest.raises(ArgumentError, match="path: expected the name of a file or folder"):
            use()


def test_saving_over_a_checkpoint_replaces_it(tmp_path: Path) -> None:
    save(tmp_path / "c", {"x": wf.ones(2)})
    old = load(tmp_path / "c")
    save(tmp_path / "c", {"y": wf.zeros(2)})
    assert load(tmp_path / "c")["y"].tolist() == [0.0, 0.0]
    assert old["x"].tolist() == [1.0, 1.0]
    assert names_in(tmp_path) == ["c"]


def test_what_is_replaced_while_it_is_read_is_never_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "c", {"x": wf.ones(2)}, step=1)
    opened = open_checkpoint(tmp_path / "c", verify=False)
    save(tmp_path / "c", {"x": wf.zeros(2)}, step=2)
    with pytest.raises(StorageError, match="was replaced or removed while it was read"):
        opened.read_slice("x")
    newer = [3, 4]

    def replaced(*args: Any, **keywords: Any) -> Any:
        found = read_manifest(*args, **keywords)
        if newer:
            step = newer.pop()
            save(tmp_path / "c", {"x": wf.full(2, step)}, step=step)
        return found

    read_manifest = store.read_manifest
    monkeypatch.setattr(store, "read_manifest", replaced)
    assert load(tmp_path / "c", verify=False)["x"].tolist() == [3, 3]
    (tmp_path / "c" / "pieces-00000.safetensors").unlink()
    with pytest.raises(StorageError, match="No such file"):
        load(tmp_path / "c")


def test_writers_of_one_name_do_not_disturb_each_other(tmp_path: Path) -> None:
    barrier = threading.Barrier(3)

    def write(number: int) -> None:
        for turn in range(20):
            barrier.wait(60)
            save(tmp_path / f"c{turn}", {"x": wf.full(2, number)})
            wf.save_safetensors(tmp_path / "s", {"x": wf.ones(2)})

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    assert names_in(tmp_path) == sorted([*(f"c{turn}" for turn in range(20)), "s"])
    assert all(load(tmp_path / f"c{turn}")["x"].shape == (2,) for turn in range(20))


def test_nothing_but_a_checkpoint_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.txt").write_text("years")
    (tmp_path / "file").write_text("text")
    for name in ("work", "file"):
        with pytest.raises(ArgumentError, match=name):
            save(tmp_path / name, {})
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty", {})
    assert names_in(tmp_path) == ["empty", "file", "work"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("failing", ["write", "mkdir", "fsync", "rename"])
def test_a_disk_that_refuses_loses_nothing(
    code: int, failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"x": wf.ones(3)})

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(files.os, failing, refuse)
        with pytest.raises(StorageError) as caught:
            checkpoints.save(2, {"x": wf.zeros(3)})
    assert str(tmp_path) in str(caught.value) and "hint: " in str(caught.value)
    assert caught.value.errno == code and isinstance(caught.value, OSError)
    assert names_in(tmp_path) == ["step-000000001"]
    assert checkpoints.restore()["x"].tolist() == [1.0, 1.0, 1.0]
    checkpoints.save(2, {"x": wf.zeros(3)})
    assert checkpoints.latest() == 2


def test_a_limit_on_file_sizes_gives_an_error_and_loses_nothing(tmp_path: Path) -> None:
    save(tmp_path / "c", {"x": wf.ones(3)})
    code = f"""
import resource, weft as wf
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    wf.checkpoints.save({str(tmp_path / "c")!r}, {{"x": wf.zeros(100_000)}})
except wf.errors.StorageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "hint: a limit on file sizes was met" in done.stdout, done.stderr
    assert names_in(tmp_path) == ["c"]
    assert load(tmp_path / "c")["x"].tolist() == [1.0, 1.0, 1.0]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 4096


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_gives_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="hint: this user may not"):
        save(tmp_path / "c", {})
    tmp_path.chmod(0o700)


def test_absent_checkpoints_are_errors_that_say_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="hint: nothing is there"):
        load(tmp_path / "c")
    with pytest.raises(StorageError, match="there is no checkpoint"):
        Checkpoints(tmp_path).restore()
    with pytest.raises(StorageError, match="hint: nothing is there"):
        save(tmp_path / "absent" / "c", {})
    assert Checkpoints(tmp_path / "new" / "folder").latest() is None


def test_the_newest_steps_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 5, 3, 10**10):
        checkpoints.save(step, {"step": step})
    assert checkpoints.steps() == [5, 10**10] and checkpoints.latest() == 10**10
    assert checkpoints.restore(step=5) == {"step": 5}
    checkpoints.save(2, {"step": 2})  # a run that starts again from an earlier step
    assert checkpoints.steps() == [2, 10**10]
    with pytest.raises(StorageError, match=r"no checkpoint of step 5 \(there are \[2, 10000"):
        checkpoints.restore(step=5)
    everything = Checkpoints(tmp_path / "all", keep=None)
    for step in range(5):
        everything.save(step, {})
    assert len(everything.steps()) == 5


def test_the_newest_is_restored_while_others_save_and_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, {"x": 1})
    newer = [3, 2]

    def overtaken(path: Path, *args: Any, **keywords: Any) -> Any:
        if newer:
            step = newer.pop()
            Checkpoints(tmp_path, keep=1).save(step, {"x": step})
        return checked(path, *args, **keywords)

    for name in ("is_complete", "load"):
        checked = getattr(manager, name)
        with monkeypatch.context() as patched:
            patched.setattr(manager, name, overtaken)
            assert checkpoints.restore() == {"x": checkpoints.steps()[-1]}
        newer.extend([5, 4])
    assert checkpoints.steps() == [5]


def test_what_dead_writers_left_is_cleared_and_what_live_ones_write_is_not(tmp_path: Path) -> None:
    dead = tmp_path / ".step-000000001.0011aabbccdd.partial"
    dead.mkdir()
    (dead / "pieces-00000.safetensors").write_bytes(b"half")
    live = files.Partial(tmp_path / "step-000000002", folder=True)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is None
    checkpoints.save(3, {"x": 1})
    assert not dead.exists() and live.path.exists()
    live.close()
    assert names_in(tmp_path) == ["step-000000003"]


def test_an_incomplete_folder_is_not_the_latest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"x": wf.ones(3)})
    checkpoints.save(2, {"x": wf.ones(3)})
    os.truncate(tmp_path / "step-000000002" / "pieces-00000.safetensors", 10)
    (tmp_path / "step-000000003").mkdir()
    assert checkpoints.latest() == 1 and checkpoints.steps() == [1]
    with pytest.raises(FormatError):
        checkpoints.restore(step=2)


def test_saving_in_the_background_keeps_the_values_of_the_call(tmp_path: Path) -> None:
    x, array = wf.arange(1000), np.arange(1000)
    view = wf.asarray(array)
    started, go = threading.Event(), threading.Event()
    write = files.write_file

    def slow(*args: Any, **keywords: Any) -> int:
        started.set()
        assert go.wait(10)
        return write(*args, **keywords)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("weft.checkpoints.pieces.write_file", slow)
        step, notes = np.array(4), {"seen": [1]}
        tree = {"x": x, "array": array, "view": view}
        saving = save_async(tmp_path / "c", tree, step=step, metadata=notes)
        assert started.wait(10) and not saving.done
        x[:] = 0
        array[:] = 0
        step[...] = 0
        notes["seen"].append(2)
        with pytest.raises(StorageError, match="not saved after"):
            saving.wait(0.01)
        go.set()
        assert saving.wait(10) == tmp_path / "c" and saving.done
    opened = open_checkpoint(tmp_path / "c")
    assert (opened.step, opened.metadata) == (4, {"seen": [1]})
    found = load(tmp_path / "c")
    expected = list(range(1000))
    assert found["x"].tolist() == found["view"].tolist() == found["array"].tolist() == expected


def test_a_failure_in_the_background_reaches_the_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path / "c")
    (tmp_path / "c").rmdir()
    saving = checkpoints.save_async(1, {"x": wf.ones(2)})
    with pytest.raises(StorageError, match="nothing is there"):
        saving.wait()
    assert "in the background failed" in caplog.text
    with pytest.raises(StorageError):
        checkpoints.save(2, {})


def test_a_block_ends_when_what_it_saves_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = manager.write

    def slow(*args: Any, **options: Any) -> None:
        time.sleep(0.2)
        write(*args, **options)

    monkeypatch.setattr(manager, "write", slow)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save_async(1, {"x": wf.ones(2)})
        assert checkpoints.latest() is None
    assert checkpoints.latest() == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_save_that_breaks_off_for_any_reason_is_not_taken_for_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*args: Any, **keywords: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("weft.checkpoints.pieces.write_file", out_of_memory)
    with pytest.raises(StorageError, match="broke off before the checkpoint was complete"):
        save_async(tmp_path / "c", {"x": wf.ones(2)}).wait()
    assert names_in(tmp_path) == []


def test_the_state_of_generators_is_a_leaf(tmp_path: Path) -> None:
    source = wf.random.Generator(3)
    source.normal((2,))
    save(tmp_path / "c", {"random": source.get_state()})
    expected = source.normal((4,)).tolist()
    other = wf.random.Generator(0)
    other.set_state(load(tmp_path / "c")["random"])
    assert other.normal((4,)).tolist() == expected


def test_deep_structures_of_optree_are_the_same_trees(tmp_path: Path) -> None:
    tree = model()
    save(tmp_path / "c", tree)
    found = load(tmp_path / "c", like=tree)
    assert optree.tree_structure(found, namespace="weft") == optree.tree_structure(
        tree, namespace="weft"
    )


def test_nothing_of_this_is_loaded_before_it_is_used() -> None:
    code = (
        "import sys, weft as wf; late = ('weft.checkpoints', 'weft.data', 'weft.safetensors');"
        "assert not set(late) & set(sys.modules); wf.load_safetensors, wf.data, wf.checkpoints;"
        "assert set(late) <= set(sys.modules) and {'data', 'save_safetensors'} <= set(dir(wf))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_transform_keeps_its_name_beside_the_namespace() -> None:
    assert callable(wf.checkpoint) and wf.checkpoints.save is save
