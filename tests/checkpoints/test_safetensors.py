"""safetensors files: round trips, other readers and writers, and files that break the rules."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.core.common import dtypes
from weft.errors import ArgumentError, FormatError, StorageError
from weft.safetensors import SafetensorsFile, encode, parse, view

SAMPLE = {dtypes.name_of(dt): np.arange(6).reshape(2, 3).astype(dt) for dt in dtypes.ALL_DTYPES}


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one(**changes: Any) -> Any:
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


def read(raw: bytes) -> dict[str, np.ndarray]:
    buffer = np.frombuffer(raw, np.uint8)
    _, entries = parse(buffer, "file")
    return {name: view(buffer, entry, name) for name, entry in entries.items()}


def test_every_dtype_comes_back_with_its_bits(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    extra = {"none": np.zeros((0, 3), np.float32), "number": np.array(2.5), "ünï": np.ones(1)}
    given = SAMPLE | extra
    wf.save_safetensors(path, {name: wf.tensor(x) for name, x in given.items()}, {"who": "me"})
    found = wf.load_safetensors(path)
    assert found.keys() == given.keys()
    for name, array in given.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
        assert found[name].numpy().tobytes() == array.tobytes()
    assert SafetensorsFile(path).metadata["who"] == "me"
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_tensors_are_views_of_the_map_and_writing_to_them_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    wf.save_safetensors(path, {"x": np.arange(4.0), "y": np.arange(3, dtype=np.int8)})
    before = path.read_bytes()
    found = SafetensorsFile(path)
    assert np.shares_memory(found.array("x"), found.bytes)
    x = wf.load_safetensors(path)["x"]
    x[0] = 7.0
    x += 1
    assert x.tolist() == [8.0, 2.0, 3.0, 4.0]
    assert path.read_bytes() == before


def test_views_of_any_strides_are_saved_by_their_values(tmp_path: Path) -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    wf.save_safetensors(tmp_path / "a", {"a": x[:, ::-1], "b": x.T, "c": wf.tensor(x)[0, :, 1:3]})
    found = wf.load_safetensors(tmp_path / "a")
    assert (found["a"].numpy() == x[:, ::-1]).all() and (found["b"].numpy() == x.T).all()
    assert (found["c"].numpy() == x[0, :, 1:3]).all()


def test_a_mapped_file_may_be_replaced(tmp_path: Path) -> None:
    wf.save_safetensors(tmp_path / "a", {"x": np.arange(1000.0)})
    old = wf.load_safetensors(tmp_path / "a")["x"]
    wf.save_safetensors(tmp_path / "a", {"x": np.zeros(1)})
    assert old.sum().item() == 499500.0
    assert wf.load_safetensors(tmp_path / "a")["x"].shape == (1,)


def test_unaligned_tensors_are_read_too() -> None:
    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    raw = file_of(header, b"\x05" + np.array([1.5, 2.5], np.float32).tobytes())
    assert read(raw)["b"].tolist() == [1.5, 2.5]


def test_the_other_library_reads_what_we_write(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    raw = b"".join(encode(SAMPLE, {"k": "v"}))
    found = dict(safetensors.deserialize(raw))
    assert found.keys() == SAMPLE.keys()
    for name, array in SAMPLE.items():
        assert bytes(found[name]["data"]) == array.tobytes()
    assert found["complex64"]["shape"] == [2, 3, 2]


def test_we_read_what_the_other_library_writes(tmp_path: Path) -> None:
    other = pytest.importorskip("safetensors.numpy")
    plain = "bool int8 int64 uint16 float16 float32 float64".split()
    given = {name: SAMPLE[name] for name in plain}
    other.save_file(given, tmp_path / "a", {"k": "v"})
    found = wf.load_safetensors(tmp_path / "a")
    assert all((found[name].numpy() == given[name]).all() for name in plain)
    assert SafetensorsFile(tmp_path / "a").metadata == {"k": "v"}


@pytest.mark.slow
@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda name: name != "__metadata__"),
        hnp.arrays(
            st.sampled_from([dt for dt in dtypes.ALL_DTYPES if dt.isbuiltin == 1]),
            hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3),
        ),
        max_size=5,
    )
)
def test_what_is_encoded_is_what_is_read(arrays: dict[str, np.ndarray]) -> None:
    found = read(b"".join(encode(arrays, {})))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()
        assert found[name].flags.aligned


HOSTILE = {
    "too few": b"\0\0\0",
    "is said to have": struct.pack("<Q", 2**63) + b"{}",
    "is said to have 9 bytes": struct.pack("<Q", 9) + b"{}",
    "no JSON object": file_of(b"[]"),
    "no JSON:": file_of(b"{'x': 1}"),
    "'utf-8' codec": file_of(b'{"\xff": 1}'),
    "'x' occurs twice": file_of(b'{"x":{},"x":{}}'),
    "NaN is no JSON": file_of(b'{"x":NaN}'),
    "nested too deeply": file_of(b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "needs dtype": file_of({"x": {"dtype": "F32", "shape": [2]}}, bytes(8)),
    "weft has no dtype": file_of(one(dtype="F33"), bytes(8)),
    "weft has no dtype 7": file_of(one(dtype=7), bytes(8)),
    "-2] is no shape": file_of(one(shape=[-2]), bytes(8)),
    "True, 2] is no shape": file_of(one(shape=[True, 2]), bytes(8)),
    "2.0] is no shape": file_of(one(shape=[2.0]), bytes(8)),
    "is no shape": file_of(one(shape=[1] * 65), bytes(8)),
    "-8, 0] are no offsets": file_of(one(data_offsets=[-8, 0]), bytes(8)),
    "are no offsets": file_of(one(data_offsets=[0, 4, 8]), bytes(8)),
    "its offsets hold -8": file_of(one(data_offsets=[8, 0]), bytes(8)),
    "needs 8 bytes": file_of(one(data_offsets=[0, 4]), bytes(8)),
    "larger than any memory": file_of(one(shape=[2**40, 2**40]), bytes(8)),
    "is larger than any memory": file_of(one(shape=[0, 2**62], data_offsets=[0, 0])),
    "tensors end at byte 8 of 9": file_of(one(), bytes(9)),
    "tensors end at byte 8 of 7": file_of(one(), bytes(7)),
    "share bytes": file_of(one() | {"y": one()["x"]}, bytes(8)),
    "leave a gap": file_of(one(data_offsets=[4, 12]), bytes(12)),
    "must map names to text": file_of({"__metadata__": {"a": 1}}),
    "no tensor of complex pairs": file_of(
        one() | {"__metadata__": {"weft.complex": '["q"]'}}, bytes(8)
    ),
    "list of names": file_of({"__metadata__": {"weft.complex": "7"}}),
    "weft.complex: is no JSON": file_of({"__metadata__": {"weft.complex": "["}}),
    "a bool is stored as 2": file_of(one(dtype="BOOL", shape=[1], data_offsets=[0, 1]), b"\x02"),
    "digit": file_of(b'{"x":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,8]}}'),
}


@pytest.mark.parametrize("message", HOSTILE)
def test_a_file_that_breaks_a_rule_is_refused_in_words(message: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        read(HOSTILE[message])
    assert message in str(caught.value)
    assert len(str(caught.value)) < 600
    path = tmp_path / "bad"
    path.write_bytes(HOSTILE[message])
    with pytest.raises(FormatError, match="bad"):
        wf.load_safetensors(path)


@pytest.mark.slow
def test_a_hundred_thousand_mutations_give_values_or_errors_of_ours(fresh_seed: int) -> None:
    small = {name: SAMPLE[name] for name in "float32 bool complex64 int8 bfloat16".split()}
    good = b"".join(encode(small | {"a.b": np.ones((2, 0))}, {"k": "v"}))
    draw = random.Random(fresh_seed)
    begin = 8 + int.from_bytes(good[:8], "little")
    accepted = 0
    for _ in range(100_000):
        try:
            found = read(mutated(good, begin, draw))
        except FormatError:
            continue
        accepted += 1
        assert sum(array.nbytes for array in found.values()) <= 2 * len(good)
    assert accepted > 100  # flips in the values of tensors change no rule


def mutated(good: bytes, begin: int, draw: random.Random) -> bytes:
    raw = bytearray(good)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        where = draw.randrange(len(raw) if draw.random() < 0.2 else min(begin, len(raw)))
        match draw.randrange(5):
            case 0:
                raw[where] ^= 1 << draw.randrange(8)
            case 1:
                raw[where] = draw.choice(b'0123456789-[]{}",:.eE ')
            case 2:
                del raw[where : where + draw.randrange(1, 9)]
            case 3:
                raw[where:where] = draw.choice((b"9", b"-", b"[", b'"x":', b"null", b"\0"))
            case 4:
                other = draw.randrange(len(raw))
                raw[where : where + 4] = raw[other : other + 4]
        if len(raw) < 2:
            break
    if draw.random() < 0.5 and len(raw) > 8:  # most damage is seen behind a length that fits
        raw[:8] = struct.pack("<Q", max(0, begin - 8 + len(raw) - len(good)))
    return bytes(raw)


def test_an_archive_of_another_library_is_told_how_to_be_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", weight=np.ones(3))
    with pytest.raises(FormatError, match=r"hint: this is an archive.*torch\.load\(file\)"):
        wf.load_safetensors(tmp_path / "model.npz")


def test_pipes_folders_and_absent_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="not a plain file"):
        wf.load_safetensors(tmp_path / "pipe")
    with pytest.raises(FormatError, match="not a plain file"):
        wf.load_safetensors(tmp_path)
    with pytest.raises(StorageError, match="hint: nothing is there"):
        wf.load_safetensors(tmp_path / "absent")
    (tmp_path / "empty").touch()
    with pytest.raises(FormatError, match="empty"):
        wf.load_safetensors(tmp_path / "empty")


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ([1], None, "must be a dict"),
        ({1: np.ones(1)}, None, "cannot be the name"),
        ({"__metadata__": np.ones(1)}, None, "cannot be the name"),
        ({"\ud83d\ude00": np.ones(1)}, None, "cannot be the name"),
        ({"x": [1, 2]}, None, "expected a tensor"),
        ({"x": np.ones(1)}, {"a": 1}, "metadata must map names to text"),
        ({"x": np.ones(1)}, {"weft.complex": "[]"}, "metadata must map"),
    ],
)
def test_mistakes_in_saving_are_told(
    tensors: Any, metadata: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=message):
        wf.save_safetensors(tmp_path / "a", tensors, metadata)
    assert os.listdir(tmp_path) == []
