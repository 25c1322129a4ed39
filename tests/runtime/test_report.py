"""What is alive and who made it; memory goes back when the last view of it is dropped."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import weft as wf
from weft.core.graph import GRAPH
from weft.errors import OutOfMemoryError
from weft.runtime.registry import runtime
from weft.runtime.report import show_bytes

SIDE = 300


def large(value: float = 1.0) -> wf.Tensor:
    return wf.realize(wf.tensor(np.full((SIDE, SIDE), value, np.float32)) * 1)


def live_bytes() -> int:
    return runtime("cpu").allocator.stats().live_bytes


@pytest.fixture(autouse=True)
def settled():
    gc.collect()
    GRAPH.flush()


def test_the_report_names_a_large_tensor_its_views_and_the_line_that_made_it():
    x = wf.tensor(np.ones((SIDE, SIDE, 2), np.float64))  # made on this line
    y = x[10:20].mT
    (entry,) = [a for a in wf.memory_report().allocations if x.type in a.tensors]
    assert entry.nbytes == x.nbytes and entry.device == "cpu:0"
    assert y.type in entry.tensors
    assert "test_report.py" in str(entry) and "# made on this line" in str(entry)


def test_the_report_names_the_line_of_a_recorded_result():
    x = large()
    y = wf.sin(x)  # the sine
    y.numpy()
    (entry,) = [a for a in wf.memory_report().allocations if "# the sine" in str(a)]
    assert entry.tensors == (y.type,)


def test_the_report_sums_up_shortens_and_counts_what_waits():
    kept = [wf.tensor(np.full(1000 + i, 1.0)) for i in range(30)]
    pending = [large() + 1, large() * 2]
    report = wf.memory_report()
    text = str(report)
    assert report.nbytes >= sum(x.nbytes for x in kept)
    assert report.pending >= len(pending)
    assert [a.nbytes for a in report.allocations] == sorted(
        (a.nbytes for a in report.allocations), reverse=True
    )
    assert "alive in" in text and "recorded calls pending" in text and "… " in text
    assert "allocator of cpu:" in text
    allocators = [line for line in text.splitlines() if line.startswith("allocator of ")]
    assert len(allocators) == len(report.allocators)  # more than one where GPUs are in use
    assert len(report.head(3).splitlines()) == 5 + len(allocators)


def test_the_report_counts_data_that_only_recorded_calls_need():
    y = wf.tensor(np.ones((SIDE, SIDE + 1), np.float32)) + 1
    assert any(
        t.shape == (SIDE, SIDE + 1) for a in wf.memory_report().allocations for t in a.tensors
    )
    y.numpy()
    gc.collect()
    sizes = [len(a.tensors) for a in wf.memory_report().allocations if y.type in a.tensors]
    assert sizes == [1]


def test_bytes_are_shown_as_people_read_them():
    assert [show_bytes(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30, 2 << 40)] == [
        "0 B", "1023 B", "1.5 KiB", "5.0 MiB", "3.0 GiB", "2.0 TiB",
    ]  # fmt: skip


def test_running_out_of_memory_lists_what_is_alive():
    x = wf.tensor(np.ones((SIDE, SIDE, 3)))  # the culprit
    y = wf.broadcast_to(wf.zeros(()), (2**20, 2**20))
    with pytest.raises(OutOfMemoryError, match="cannot have") as caught:
        (y + 1).numpy()
    assert "alive in" in str(caught.value) and "# the culprit" in str(caught.value)
    assert any("test_report.py" in note for note in caught.value.__notes__)
    with pytest.raises(OutOfMemoryError, match="alive in"):
        (y @ y).numpy()
    assert (x + 1).sum().item() == 2 * x.size


@pytest.mark.promise("S4.9")
def test_a_tensor_is_an_id_a_storage_and_a_layout():
    x = large()
    y = x[1:, ::2]
    assert x.id != y.id and x.id == x.id
    assert y.layout.shape == (SIDE - 1, SIDE // 2)
    assert y.strides == (SIDE, 2)
    assert y.layout.offset == SIDE
    assert x.storage.nbytes >= x.nbytes


@pytest.mark.promise("S4.10")
def test_views_share_one_allocation():
    x = large()
    before = live_bytes()
    views = [x.T, x[3], x.reshape(-1), x.flip(), x.broadcast_to((5, SIDE, SIDE)), x[None]]
    assert all(v.storage == x.storage for v in views)
    assert live_bytes() == before


@pytest.mark.promise("S4.11")
def test_borrowed_memory_is_never_freed_by_weft():
    array = np.ones((SIDE, SIDE), np.float32)
    before = live_bytes()
    x = wf.from_dlpack(array)
    assert not x.storage.owned
    view = x[2:]
    del x, view
    gc.collect()
    assert live_bytes() == before
    array += 1
    assert array[0, 0] == 2


@pytest.mark.promise("S4.12")
def test_owned_memory_is_freed_exactly_when_the_last_view_drops():
    gc.disable()  # reference counts alone must do it
    try:
        before = live_bytes()
        x = large()
        assert x.storage.owned
        size = live_bytes() - before
        assert size >= x.nbytes
        view = x.T[5:]
        array = view.numpy()
        exported = np.from_dlpack(view)
        del x
        assert live_bytes() - before == size
        del view
        assert live_bytes() - before == size
        del array
        assert live_bytes() - before == size
        assert exported[0, 0] == 1
        del exported
        assert live_bytes() == before
    finally:
        gc.enable()


@pytest.mark.slow
def test_gradients_leave_nothing_behind():
    x = large()
    wf.grad(lambda v: wf.sum(wf.sin(v) * v))(x).numpy()
    gc.collect()
    before = live_bytes()
    for _ in range(5):
        wf.grad(lambda v: wf.sum(wf.sin(v) * v))(x).numpy()
    gc.collect()
    assert live_bytes() == before
