"""`Loader`: order, batches, shards, positions, threads."""

from __future__ import annotations

import gc
import os
import threading
import time
import traceback
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from tests.torch_oracle import torch
from weft.data import Loader
from weft.errors import ArgumentError, ConversionError, DTypeError, ShapeError, TreeError


@wf.register_dataclass
@dataclass
class Example:
    image: Any
    label: Any


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("weft-loader")]


def wait_until_no_threads() -> None:
    end = time.monotonic() + 5
    while threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert threads() == []


def rows(loader: Loader) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def flat(loader: Loader) -> list[int]:
    return list(chain(*rows(loader)))


def test_batches_are_tensors_in_the_structure_of_the_data() -> None:
    x, y = np.arange(12.0).reshape(6, 2), wf.arange(6)
    found = list(Loader({"x": x, "y": (y,)}, 4, shuffle=False))
    assert len(found) == 2 and isinstance(found[0]["x"], wf.Tensor)
    assert found[0]["x"].tolist() == x[:4].tolist() and found[0]["x"].dtype == np.float64
    assert found[1]["y"][0].tolist() == [4, 5]
    pair = next(iter(Loader(Example(x, y), 2, shuffle=False)))
    assert isinstance(pair, Example) and pair.label.tolist() == [0, 1]


def test_items_are_stacked_leaf_by_leaf() -> None:
    items = [{"x": np.full(2, i), "n": i, "f": i / 2, "t": f"row {i}"} for i in range(5)]
    first, _, last = Loader(items, 2, shuffle=False)
    assert first["x"].tolist() == [[0, 0], [1, 1]] and first["n"].tolist() == [0, 1]
    assert first["f"].dtype == wf.float32 and first["t"] == ["row 0", "row 1"]
    assert last["n"].shape == (1,)


def test_an_epoch_has_every_row_once_and_the_next_one_another_order() -> None:
    loader = Loader(np.arange(100), 7, key=3)
    one, two = flat(loader), flat(loader)
    assert sorted(one) == sorted(two) == list(range(100)) and one != two
    assert loader.epoch == 2 and len(loader) == 15
    assert flat(Loader(np.arange(100), 10, key=wf.random.key(3))) == one
    assert flat(Loader(np.arange(100), 7, key=4)) != one


def test_the_key_comes_from_the_global_generator_if_none_is_given() -> None:
    wf.random.seed(11)
    first = rows(Loader(np.arange(20), 5))
    wf.random.seed(11)
    assert rows(Loader(np.arange(20), 5)) == first
    assert rows(Loader(np.arange(20), 5)) != first


def test_the_last_batch_can_be_left_out() -> None:
    assert [len(batch) for batch in Loader(np.arange(10), 4, drop_last=True)] == [4, 4]
    assert [len(batch) for batch in Loader(np.arange(10), 4)] == [4, 4, 2]


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 60), st.booleans())
def test_shards_are_parts_of_the_same_batches(
    count: int, part: int, length: int, shuffle: bool
) -> None:
    size = count * part
    if length < size:
        length += size
    whole = rows(Loader(np.arange(length), size, key=1, shuffle=shuffle, drop_last=True))
    parts = [
        rows(
            Loader(
                np.arange(length),
                size,
                key=1,
                shuffle=shuffle,
                drop_last=True,
                prefetch=0,
                shard=(index, count),
            )
        )
        for index in range(count)
    ]
    assert [list(chain(*together)) for together in zip(*parts)] == whole


@given(st.integers(0, 25), st.integers(0, 3), st.sampled_from([1, 2]))
def test_a_restored_loader_gives_the_batches_that_would_have_come(
    taken: int, prefetch: int, count: int
) -> None:
    data = np.arange(40)
    first = Loader(data, 4, key=5, prefetch=prefetch)
    endless = first.forever()
    for _ in range(taken):
        next(endless)
    state = first.state()
    assert all(type(value) is int for value in state.values())
    expected = [next(endless).tolist() for _ in range(12)]
    found = []
    for index in range(count):
        other = Loader(data, 4, key=0, prefetch=prefetch, shard=(index, count)).restore(state)
        batches = other.forever()
        found.append([next(batches).tolist() for _ in range(12)])
        batches.close()
    assert [list(chain(*together)) for together in zip(*found)] == expected


def test_a_position_is_saved_in_a_checkpoint(tmp_path: Path) -> None:
    loader = Loader(np.arange(40), 4, key=2**40 + 7)
    for number, _ in enumerate(loader):
        if number == 3:
            break
    wf.checkpoints.save(tmp_path / "c", {"loader": loader.state()})
    rest = rows(loader)
    assert len(rest) == 6
    saved = wf.checkpoints.load(tmp_path / "c", like={"loader": loader.state()})
    assert rows(Loader(np.arange(40), 4).restore(saved["loader"])) == rest


def test_the_transform_sees_arrays_and_runs_ahead_in_a_thread() -> None:
    seen = []

    def double(batch: Any) -> Any:
        seen.append(threading.current_thread().name)
        assert isinstance(batch, np.ndarray)
        return {"twice": batch * 2, "name": "x"}

    batches = list(Loader(np.arange(6), 2, shuffle=False, transform=double))
    assert batches[1]["twice"].tolist() == [4, 6] and batches[1]["name"] == "x"
    assert all(name.startswith("weft-loader") for name in seen)
    wait_until_no_threads()


@pytest.mark.parametrize("shuffle", [True, False])
def test_what_a_transform_draws_is_drawn_again_after_a_restore(shuffle: bool) -> None:
    def noisy(batch: Any, rng: np.random.Generator) -> Any:
        time.sleep(rng.random() / 1000)
        return batch + rng.random(batch.shape)

    def made(workers: int = 3, part: int = 0, key: int = 5) -> Loader:
        shard, how = (part, 2), {"key": key, "shuffle": shuffle}
        return Loader(np.arange(12.0), 4, transform=noisy, workers=workers, shard=shard, **how)

    endless = made().forever()
    expected = [next(endless).tolist() for _ in range(7)]
    stopped = made(workers=1)
    assert [next(iter(stopped)).tolist() for _ in range(2)] == expected[:2]
    again = made(key=0).restore(stopped.state()).forever()
    assert [next(again).tolist() for _ in range(5)] == expected[2:]
    noise = np.mod([*expected, *made(part=1), *made(key=6)], 1)
    assert len(np.unique(noise)) == noise.size


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_transform_may_fill_the_same_array_for_each_batch(prefetch: int) -> None:
    buffer = np.zeros(2)

    def fill(rows: Any) -> Any:
        buffer[:] = rows
        return {"all": buffer, "first": buffer[0], "view": buffer[1:]}

    loader = Loader(np.arange(6), 2, shuffle=False, prefetch=prefetch, transform=fill)
    batches = list(loader)
    found = [[batch[name].tolist() for name in ("all", "first", "view")] for batch in batches]
    assert found == [[[n, n + 1], n, [n + 1]] for n in (0.0, 2.0, 4.0)]


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (np.ma.masked_array([1.0, 2.0], [0, 1]), ConversionError, "would lose its mask"),
        (np.array(["a", "b"]), DTypeError, "dtype <U1 is not supported"),
    ],
)
def test_arrays_that_are_no_tensors_are_told_wherever_they_come_from(
    made: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"Loader: data: .*{message}"):
        Loader(made, 2)
    with pytest.raises(error, match=f"Loader: items: .*{message}"):
        list(Loader([made, made], 2))
    with pytest.raises(error, match=f"Loader: the result of transform: .*{message}"):
        list(Loader(np.ones(2), 2, transform=lambda rows: made))


def test_no_more_is_prepared_than_asked_for() -> None:
    made: list[int] = []

    def note(batch: Any) -> Any:
        made.append(int(batch[0]))
        return batch

    batches = iter(Loader(np.arange(100), 1, shuffle=False, prefetch=3, transform=note))
    next(batches)
    time.sleep(0.2)
    assert made == [0, 1, 2, 3]
    batches.close()


def test_several_workers_prepare_the_same_batches_at_once() -> None:
    meeting = threading.Barrier(3)

    def together(batch: Any) -> Any:
        meeting.wait(timeout=60)  # raises unless three batches are prepared at the same time
        time.sleep(0.01 * (batch[0] % 3))
        return batch

    data = np.arange(24)
    many = Loader(data, 4, key=1, workers=3, transform=together)
    assert rows(many) == rows(Loader(data, 4, key=1))
    wait_until_no_threads()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_exception_arrives_with_its_traceback_and_the_number_of_the_batch(prefetch: int) -> None:
    def broken(batch: Any) -> Any:
        if batch[0] == 4:
            raise KeyError("lost")
        return batch

    loader = Loader(np.arange(8), 2, shuffle=False, transform=broken, prefetch=prefetch)
    seen = []
    with pytest.raises(KeyError, match="lost") as caught:
        for batch in loader:
            seen.append(batch.tolist())
    assert seen == [[0, 1], [2, 3]]
    text = "".join(traceback.format_exception(caught.value))
    assert "in broken" in text and "while batch 2 of epoch 0 was prepared" in text
    assert loader.state()["batch"] == 2
    wait_until_no_threads()


def test_a_stop_iteration_of_the_data_does_not_end_the_epoch_in_silence() -> None:
    def broken(batch: Any) -> Any:
        return next(iter([]))

    with pytest.raises(ArgumentError, match="batch 0: the data raised StopIteration"):
        list(Loader(np.arange(4), 2, transform=broken))


def test_a_loop_that_is_left_leaves_no_thread() -> None:
    loader = Loader(np.arange(100), 2, shuffle=False)
    for _ in loader:
        break
    wait_until_no_threads()
    assert next(iter(loader)).tolist() == [2, 3]  # goes on where the loop was left
    del loader
    gc.collect()
    wait_until_no_threads()


def test_a_second_loop_ends_the_first() -> None:
    loader = Loader(np.arange(6), 2, shuffle=False)
    first = iter(loader)
    assert next(first).tolist() == [0, 1]
    assert rows(loader) == [[2, 3], [4, 5]]
    assert list(first) == []
    wait_until_no_threads()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork")  # other tests of this process may have loaded JAX
@pytest.mark.parametrize("busy", [False, True])
def test_a_fork_goes_on_with_the_same_batches(busy: bool) -> None:
    def slow(batch: Any) -> Any:
        time.sleep(0.02 if busy else 0.0)  # the thread is at work when the fork comes
        return batch

    batches = iter(Loader(np.arange(40), 2, shuffle=False, transform=slow))
    next(batches)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = ";".join(str(batch.tolist()) for batch in batches)
            os.write(writer, text.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    assert found == ";".join(str(batch.tolist()) for batch in batches)
    assert found.startswith("[2, 3];[4, 5]")


def test_the_thread_sees_the_settings_of_the_caller() -> None:
    items = [1.5, 2.5]
    with wf.default_dtype("float64"):
        batches = list(Loader(items, 2, shuffle=False))
    assert batches[0].dtype == np.float64


class OfTorch:
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        x = torch.full((2,), index, dtype=torch.bfloat16)
        return {"x": x, "y": torch.tensor(index), "n": 1}


def test_arrays_of_other_libraries_are_rows_and_items() -> None:
    rows = torch.arange(12.0).reshape(6, 2)
    for data in (rows, (rows,), {"x": rows}):
        (batch,) = wf.tree_leaves(next(iter(Loader(data, 4, shuffle=False))))
        assert isinstance(batch, wf.Tensor) and batch.tolist() == rows[:4].tolist()
    batch = next(iter(Loader(OfTorch(), 4, shuffle=False)))
    assert batch["x"].dtype == wf.bfloat16 and batch["x"].shape == (4, 2)
    assert batch["y"].tolist() == [0, 1, 2, 3] and batch["n"].tolist() == [1] * 4
    assert next(iter(Loader((jnp.ones((3, 2)),), 2)))[0].shape == (2, 2)


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        ((np.ones(3), np.ones(4)), {}, ShapeError, r"different numbers of rows \(\[0\] 3, \[1\] 4"),
        (np.array(1.0), {}, ShapeError, "has no rows"),
        ((1, 2), {}, DTypeError, r"data\[0\]: 1 is no array"),
        (np.array(["a", "b"]), {}, DTypeError, "not supported"),
        (7, {}, ArgumentError, "must be arrays or a dataset"),
        (None, {}, ArgumentError, "must be arrays or a dataset"),
        ({}, {}, ArgumentError, "must be arrays or a dataset"),
        ([], {}, ArgumentError, "must be arrays or a dataset"),
        (np.ones(8), {"batch_size": 0}, ArgumentError, "batch_size must be at least 1"),
        (np.ones(8), {"shard": (2, 2)}, ArgumentError, "index of shard"),
        (np.ones(8), {"shard": 2}, ArgumentError, "must be .index, count"),
        (np.ones(8), {"batch_size": 3, "shard": (0, 2)}, ArgumentError, "not divisible by 2"),
        (np.ones(9), {"batch_size": 4, "shard": (0, 2)}, ArgumentError, "drop_last=True leaves"),
        (np.ones(3), {"drop_last": True}, ArgumentError, "3 rows make no batch of 4"),
        (np.ones(0), {}, ArgumentError, "0 rows make no batch"),
        (np.ones(8), {"key": "seed"}, DTypeError, "key must be an integer"),
        (np.ones(8), {"workers": 0}, ArgumentError, "workers must be at least 1"),
        (np.ones(8), {"workers": 3, "prefetch": 1}, ArgumentError, "leaves some of 3 workers idle"),
        (np.ones(8), {"transform": 3}, ArgumentError, "transform must be a function"),
    ],
)
def test_mistakes_are_told_when_the_loader_is_made(
    data: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Loader(data, **({"batch_size": 4} | options))


@pytest.mark.parametrize(
    ("items", "error", "message"),
    [
        ([np.ones(2), np.ones(3)], ShapeError, "shapes or dtypes differ"),
        ([{"a": 1}, {"b": 1}], TreeError, "item 1 of a batch has structure"),
        ([object(), object()], DTypeError, "cannot be put into a batch"),
        (["a", 1], DTypeError, "items: 1 is in a batch of text"),
    ],
)
def test_items_that_do_not_stack_are_told(
    items: list[Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        list(Loader(items, 2, shuffle=False))


def test_items_of_several_sizes_are_joined_by_a_function() -> None:
    texts = [np.arange(size) for size in (3, 1, 4, 2, 5)]
    room = np.zeros((2, 5), int)

    def padded(items: list[Any]) -> Any:
        room[:] = -1  # the same array for each batch
        for row, item in zip(room, items, strict=False):
            row[: len(item)] = item
        longest = max(map(len, items))
        return {"text": room[: len(items), :longest], "sizes": wf.tensor([len(x) for x in items])}

    loader = Loader(texts, 2, shuffle=False, collate=padded, workers=1)
    first, second, last = list(loader)
    assert isinstance(first["text"], wf.Tensor) and first["sizes"].tolist() == [3, 1]
    assert first["text"].tolist() == [[0, 1, 2], [0, -1, -1]]
    assert second["text"].tolist() == [[0, 1, 2, 3], [0, 1, -1, -1]]
    assert last["text"].tolist() == [[0, 1, 2, 3, 4]]
    joined = Loader(texts, 5, shuffle=False, collate=np.concatenate, transform=lambda x: x[::-1])
    assert next(iter(joined)).shape == (15,)
    with pytest.raises(ArgumentError, match=r"Loader: collate: the data are arrays.*\nhint"):
        Loader(np.ones((3, 2)), 1, collate=padded)
    with pytest.raises(ArgumentError, match="Loader: collate must be a function, got 3"):
        Loader(texts, 1, collate=3)  # type: ignore[arg-type]


def test_a_state_of_other_data_is_refused() -> None:
    state = Loader(np.arange(8), 2, key=0).state()
    for loader, message in (
        (Loader(np.arange(9), 2), "rows was 8 when the state was taken, here it is 9"),
        (Loader(np.arange(8), 4), "batch_size was 2"),
        (Loader(np.arange(8), 2, shuffle=False), "shuffle was 1"),
    ):
        with pytest.raises(ArgumentError, match=message):
            loader.restore(state)
    loader = Loader(np.arange(8), 2)
    wrong = [{"more": 1}, {"batch": 4}, {"epoch": -1}, {"epoch": 1 << 32}, {"key_high": 1 << 32}]
    for bad in ({}, None, *(state | change for change in wrong)):
        with pytest.raises(ArgumentError, match="restore"):
            loader.restore(bad)
