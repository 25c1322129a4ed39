"""Tensors over a mesh are saved in pieces, and loaded into whatever layout is asked for."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.checkpoints import Checkpoints, load, open_checkpoint, save
from weft.core.common.spec import P

MESHES = {
    "2x2": wf.DeviceMesh("square", (2, 2), ("dp", "tp")),
    "4x1": wf.DeviceMesh("column", (4, 1), ("dp", "tp")),
    "none": None,
}
VALUES = np.arange(7 * 10, dtype=np.float32).reshape(7, 10)


def tree_on(where: str, values: np.ndarray = VALUES) -> dict[str, Any]:
    mesh = MESHES[where]

    def lay(x: np.ndarray, spec: Any) -> wf.Tensor:
        return wf.tensor(x) if mesh is None else wf.shard(wf.tensor(x), mesh, spec)

    return {
        "cut": lay(values, P("tp", "dp")),
        "both": lay(values[0], P(("dp", "tp"))),
        "copied": lay(values[1], P()),
        "apart": wf.tensor(5),
        "count": 3,
    }


def check(found: dict[str, Any], where: str) -> None:
    like = tree_on(where)
    for name, rows in (("cut", VALUES), ("both", VALUES[0]), ("copied", VALUES[1])):
        assert found[name].sharding == like[name].sharding, name
        for shard in found[name].dual.shards:
            np.testing.assert_array_equal(shard.tensor.numpy(), rows[shard.index], name)
    assert (found["apart"].item(), found["count"]) == (5, 3)


@pytest.mark.parametrize("there", MESHES)
@pytest.mark.parametrize("here", MESHES)
def test_a_tree_saved_on_one_mesh_loads_on_another(here: str, there: str, tmp_path: Path) -> None:
    save(tmp_path / "x", tree_on(here))
    check(load(tmp_path / "x", tree_on(there, 0 * VALUES)), there)


def test_each_different_piece_is_written_once(tmp_path: Path) -> None:
    save(tmp_path / "x", tree_on("2x2"))
    stored = {
        name: t.placements for name, t in open_checkpoint(tmp_path / "x")._manifest.tensors.items()
    }
    assert {name: len(pieces) for name, pieces in stored.items()} == {
        "cut": 4, "both": 4, "copied": 1, "apart": 1,
    }  # fmt: skip
    assert sorted((p.offset, p.shape) for p in stored["cut"]) == [
        ((0, 0), (4, 5)), ((0, 5), (4, 5)), ((4, 0), (3, 5)), ((4, 5), (3, 5)),
    ]  # fmt: skip


def test_a_pending_sum_is_saved_as_the_sum(tmp_path: Path) -> None:
    mesh = MESHES["2x2"]
    a = wf.shard(wf.tensor(VALUES), mesh, P(None, "tp"))
    b = wf.shard(wf.tensor(VALUES.T.copy()), mesh, P("tp", None))
    product = a @ b
    assert product.sharding.pending
    save(tmp_path / "x", {"p": product})
    np.testing.assert_array_equal(load(tmp_path / "x")["p"].numpy(), product.numpy())


def test_a_save_in_the_background_keeps_what_is_donated_meanwhile(tmp_path: Path) -> None:
    step = wf.compile(lambda t: wf.tree_map(lambda x: x * 0 - 1, t), donate_argnums=0)
    tree = {name: tree_on("2x2")[name] for name in ("cut", "both", "copied")}
    tree = wf.compile(lambda t: wf.tree_map(lambda x: x * 1, t))(tree)
    saving = Checkpoints(tmp_path).save_async(1, tree)
    step(tree)
    saving.wait()
    found = load(saving.path)
    np.testing.assert_array_equal(found["cut"].numpy(), VALUES)
    np.testing.assert_array_equal(found["copied"].numpy(), VALUES[1])


def test_modules_keep_their_layouts_and_what_is_static(tmp_path: Path) -> None:
    def model(seed: int) -> Any:
        made = wf.nn.MultiHeadAttention(8, 2, key=wf.random.key(seed), is_causal=True)
        return wf.tree_map(lambda x: wf.shard(x, MESHES["2x2"], P("tp")), made)

    save(tmp_path / "x", model(0))
    found, wanted = load(tmp_path / "x", model(1)), model(0)
    for a, b in zip(wf.tree_leaves(found), wf.tree_leaves(wanted), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        assert a.sharding == b.sharding
    assert found.is_causal


RANKS = """
import sys
sys.path.insert(0, {folder!r})
from pathlib import Path
from test_sharded import MESHES, VALUES, check, tree_on
from weft.checkpoints import Checkpoints, load, save
from weft.errors import StorageError
from weft.runtime.communicator import world
path = Path({path!r})
check(load(path / "one", tree_on("2x2", 0 * VALUES)), "2x2")
store = Checkpoints(path / "many", keep=1)
for step in (1, 2):
    store.save_async(step, tree_on("2x2")).wait()
check(store.restore(tree_on("4x1", 0 * VALUES)), "4x1")
try:
    save(path / "file" / "x", tree_on("2x2"))
except StorageError as error:
    print("refused on", world().rank, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")
def test_ranks_write_their_own_pieces_and_fail_together(tmp_path: Path) -> None:
    save(tmp_path / "one", tree_on("none"))
    (tmp_path / "file").write_text("")
    script = tmp_path / "ranks.py"
    script.write_text(RANKS.format(folder=str(Path(__file__).parent), path=str(tmp_path)))
    command = [sys.executable, "-m", "weft.launch", "-n", "2", str(script)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "refused on 0" in ran.stdout and "refused on 1" in ran.stdout
    (folder,) = (tmp_path / "many").iterdir()
    assert sorted(p.name for p in folder.glob("*.safetensors")) == [
        "pieces-00000.safetensors",
        "pieces-00001.safetensors",
    ]
    check(load(folder, tree_on("4x1", 0 * VALUES)), "4x1")
