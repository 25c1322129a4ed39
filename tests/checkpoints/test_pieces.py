"""Tensors cut along one grid and read along another."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.checkpoints import Draft, Piece, describe, open_checkpoint, write_pieces
from weft.core.common import dtypes
from weft.errors import (
    ArgumentError,
    DTypeError,
    FormatError,
    IndexingError,
    ShapeError,
    StorageError,
)

Box = tuple[tuple[int, ...], tuple[int, ...]]


@st.composite
def grids(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Boxes (offset, shape) that cut each axis at random places."""
    axes = []
    for size in shape:
        inner = draw(st.lists(st.integers(0, size), max_size=3))
        cuts = sorted({0, size, *inner})
        axes.append(list(itertools.pairwise(cuts)) or [(0, size)])
    return [
        (tuple(a for a, _ in cell), tuple(b - a for a, b in cell))
        for cell in itertools.product(*axes)
    ]


def part(array: np.ndarray, box: Box) -> np.ndarray:
    return array[tuple(slice(o, o + s) for o, s in zip(*box))]


def save_in_pieces(path: Path, tree: Any, pieces: list[list[Piece]]) -> None:
    with Draft(path) as draft:
        for rank, held in enumerate(pieces):
            write_pieces(draft.folder, held, rank=rank)
        draft.commit(describe(tree).structure, ranks=len(pieces))


@given(st.data())
def test_what_is_saved_on_one_grid_is_read_on_another(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
    dtype = data.draw(st.sampled_from(dtypes.ALL_DTYPES))
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    written = data.draw(grids(shape))
    ranks = data.draw(st.integers(1, 3))
    owners = [data.draw(st.integers(0, ranks - 1)) for _ in written]
    twice = data.draw(st.booleans())  # a replicated piece, held by the next process as well
    pieces: list[list[Piece]] = [[] for _ in range(ranks)]
    for number, (box, owner) in enumerate(zip(written, owners)):
        piece = Piece("x", box[0], part(array, box), shape)
        pieces[owner].append(piece)
        if twice and number == 0:
            pieces[(owner + 1) % ranks].append(piece)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c"
        save_in_pieces(path, {"x": wf.tensor(array)}, pieces)
        found = open_checkpoint(path)
        for box in data.draw(grids(shape)):
            read = found.read_slice("x", *box)
            assert read.dtype == dtype and read.shape == box[1]
            assert read.tobytes() == part(array, box).tobytes()
        assert (wf.checkpoints.load(path)["x"].numpy() == array).all()


def test_a_box_inside_one_piece_is_a_view(tmp_path: Path) -> None:
    x = np.arange(12.0).reshape(4, 3)
    halves = [[Piece("x", (0, 0), x[:2], x.shape)], [Piece("x", (2, 0), x[2:], x.shape)]]
    save_in_pieces(tmp_path / "c", {"x": x}, halves)
    found = open_checkpoint(tmp_path / "c")
    assert not found.read_slice("x", (1, 0), (1, 2)).flags.owndata
    assert found.read_slice("x", (1, 1), (2, 2)).tolist() == x[1:3, 1:].tolist()
    assert found.types["x"].shape == (4, 3)


def test_only_the_files_that_are_needed_are_read(tmp_path: Path) -> None:
    x = np.arange(4.0)
    halves = [[Piece("x", (0,), x[:2], x.shape)], [Piece("x", (2,), x[2:], x.shape)]]
    save_in_pieces(tmp_path / "c", {"x": x}, halves)
    (tmp_path / "c" / "pieces-00001.safetensors").unlink()
    found = open_checkpoint(tmp_path / "c")
    assert found.read_slice("x", (0,), (2,)).tolist() == [0.0, 1.0]
    with pytest.raises(StorageError, match="pieces-00001"):
        found.read_slice("x")


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ([(0, 2)], "2 of 4 elements.*\nhint: did every process"),
        ([(0, 2), (2, 2), (1, 2)], "overlap"),
        ([(0, 3), (2, 1)], "overlap"),
        ([], "no tensor 'x'"),
    ],
)
def test_a_commit_refuses_pieces_that_do_not_make_a_tensor(
    boxes: list[tuple[int, int]], message: str, tmp_path: Path
) -> None:
    x = np.arange(4.0)
    pieces = [Piece("x", (o,), x[o : o + n], x.shape) for o, n in boxes]
    with pytest.raises(FormatError, match=message):
        save_in_pieces(tmp_path / "c", {"x": x}, [pieces])
    assert list(tmp_path.iterdir()) == []


def test_a_commit_refuses_when_a_process_has_not_written(tmp_path: Path) -> None:
    with Draft(tmp_path / "c") as draft:
        write_pieces(draft.folder, [Piece.whole("x", np.ones(2))])
        with pytest.raises(StorageError, match="pieces-00001"):
            draft.commit(describe({"x": np.ones(2)}).structure, ranks=2)
    assert list(tmp_path.iterdir()) == []


def test_processes_that_disagree_are_told(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=r"process 1 has pieces of float64\[3\]"):
        save_in_pieces(
            tmp_path / "c",
            {"x": np.ones(2)},
            [[Piece.whole("x", np.ones(2))], [Piece.whole("x", np.ones(3))]],
        )


@pytest.mark.parametrize("offset", [(3,), (-1,), (0, 0)])
def test_boxes_outside_a_tensor_are_refused(offset: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="is not inside a tensor of shape"):
        write_pieces(tmp_path, [Piece("x", offset, np.ones(2), (4,))])
    wf.checkpoints.save(tmp_path / "c", {"x": np.ones(4)})
    with pytest.raises(ArgumentError, match="is not inside a tensor of shape"):
        open_checkpoint(tmp_path / "c").read_slice("x", offset, (2,))
    with pytest.raises(IndexingError, match="no tensor 'y'"):
        open_checkpoint(tmp_path / "c").read_slice("y")
    with pytest.raises(DTypeError, match="offset must be an integer"):
        open_checkpoint(tmp_path / "c").read_slice("x", (0.5,))
