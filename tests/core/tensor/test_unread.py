"""Assignment again and again: written on the data, until somebody has seen it."""

import copy
import pickle
import sys
import threading
import time

import numpy as np
import pytest

import weft as wf
from weft.core.tensor.impl import TensorImpl, Unread
from weft.errors import DTypeError, IndexingError, ShapeError

SIZES = (6, 100_000)  # of data that calls take at once, and of data whose uses are recorded


def written(size):
    """A tensor that was assigned to so often that it is written on, and its values."""
    x = wf.zeros(size)
    for i in range(12):
        x[i % 5] = float(i)
    assert type(x._impl) is Unread
    values = np.zeros(size, np.float32)
    values[:5] = (10, 11, 7, 8, 9)
    return x, values


LOOKS = {
    "data": lambda x: x.data(),
    "numpy": lambda x: np.asarray(x),
    "dlpack": lambda x: np.from_dlpack(x),
    "alias": lambda x: +x,
    "function": lambda x: wf.asarray(x, copy=True),
    "view": lambda x: x[...],
    "copy": copy.copy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "sum": lambda x: x + 0,
    "recorded": lambda x: wf.concat([x, x])[: x.shape[0]],
    "updated": lambda x: x.at[5].set(0.0),
    "compiled": lambda x: wf.compile(lambda: x + 0)(),
    "mapped": lambda x: wf.vmap(lambda i: x + i)(wf.zeros(1))[0],
    "pulled": lambda x: wf.vjp(lambda y: y * x, wf.ones(x.shape))[1](wf.ones(x.shape))[0],
    "looped": lambda x: wf.fori_loop(0, 1, lambda i, c: c + x, wf.zeros(x.shape)),
    "stopped": wf.stop_gradient,
    "reshaped": lambda x: wf.reshape(x, (2, -1)),
    "assigned": lambda x: _assigned(x),
}


def _assigned(x):
    y = wf.ones(x.shape)
    y[...] = x
    return y


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("look", LOOKS)
def test_what_was_seen_does_not_change(look, size):
    x, values = written(size)
    seen = LOOKS[look](x)
    if look == "view":
        assert np.array_equal(np.asarray(seen), values)
        x[0] = -1.0
        values[0] = -1  # a view follows
    else:
        for i in range(12):
            x[i % 5] = -1.0
    assert np.array_equal(np.asarray(seen).reshape(-1), values)
    assert float(x[0]) == -1


@pytest.mark.parametrize("size", SIZES)
def test_elements_are_read_between_assignments(size):
    x, values = written(size)
    impl = x._impl
    for i in range(20):
        x[i % 5 + 1] = x[i % 5] + 1.0
        values[i % 5 + 1] = values[i % 5] + 1
    assert x._impl is impl
    assert type(impl) is Unread
    assert np.array_equal(np.asarray(x), values)
    assert type(impl) is TensorImpl


@pytest.mark.parametrize("size", SIZES)
def test_parts_are_changed_in_place(size):
    x, values = written(size)
    impl = x._impl
    x[1:4] += 2.0
    x[4] *= 3.0
    x[2:0:-1] = wf.tensor(np.array([5, 6], np.float32))
    x[None, 3] = np.float32(8)
    values[1:4] += 2
    values[4] *= 3
    values[2:0:-1] = (5, 6)
    values[3] = 8
    assert x._impl is impl
    assert np.array_equal(np.asarray(x), values)


@pytest.mark.parametrize("size", SIZES)
def test_views_and_their_base_follow_each_other(size):
    x, values = written(size)
    few, rest = x[1:4], x[2:]
    x[2] = 40.0
    assert few.tolist() == [11, 40, 8]
    assert float(rest[0]) == 40
    few[0] = 50.0
    assert float(x[1]) == 50
    rest[0] = 60.0
    assert few.tolist() == [50, 60, 8]
    values[1:3] = (50, 60)
    assert np.array_equal(np.asarray(x), values)


@pytest.mark.parametrize("size", SIZES)
def test_mistakes_are_told_and_leave_the_values(size):
    x, values = written(size)
    with pytest.raises(IndexingError, match="out of range for axis 0"):
        x[size] = 1.0
    with pytest.raises(ShapeError, match="size 2 does not broadcast with 3"):
        x[1:3] = wf.ones(3)
    with pytest.raises(DTypeError):
        x[0] = 1j
    with pytest.raises(DTypeError):
        x[0] = np.float64(1)
    with pytest.raises(IndexingError):
        x[0.0:2.0] = x[0:2]
    x[0] = 1.0
    values[0] = 1
    assert np.array_equal(np.asarray(x), values)


@pytest.mark.parametrize("size", SIZES)
def test_an_index_may_look_while_it_is_asked(size):
    x, values = written(size)
    seen = []

    class Looks:
        def __index__(self):
            seen.append(np.asarray(x))
            return 1

    x[Looks()] = -1.0
    x[Looks() : 3] = -2.0
    assert np.array_equal(seen[0], values)
    assert seen[-1][1] == -1
    assert x[:3].tolist() == [10, -2, -2]


def test_an_assignment_inside_a_transform_is_not_written_on_outer_data():
    x, values = written(SIZES[0])

    def f(y):
        x[0] = y
        return y

    with pytest.raises(wf.errors.MutationError):
        wf.grad(f)(wf.asarray(1.0))
    assert np.array_equal(np.asarray(x), values)


def test_a_tensor_that_wants_its_gradient_is_differentiated():
    x, _ = written(SIZES[0])
    v = wf.tensor(3.0)
    v.requires_grad = True
    x[0] = v
    (x * x).sum().backward()
    assert float(v.grad) == 6


def test_a_place_of_a_tensor_that_requires_a_gradient_is_not_assigned_to_in_silence():
    x = wf.ones(4)
    x.requires_grad = True
    view = x[0:2]
    with pytest.raises(wf.errors.MutationError):
        x[0:2] = view


def test_few_assignments_stay_recorded_with_what_follows():
    x = wf.zeros(SIZES[1])
    for i in range(4):
        x[i] = 1.0
    assert not x.is_realized


def test_memory_that_is_written_on_is_reported():
    x, _ = written(SIZES[1])
    report = wf.memory_report()
    assert type(x._impl) is Unread
    assert any(a.nbytes == x.nbytes and "test_unread" in str(a) for a in report.allocations)


def test_threads_write_and_look_at_once():
    x, _ = written(SIZES[1])
    wrong = []

    def look():
        for _ in range(200):
            seen = np.asarray(x + 0)
            wrong.extend(seen[5:7][seen[5:7] != 0].tolist())

    reader = threading.Thread(target=look)
    reader.start()
    for i in range(2000):
        x[i % 5] = float(i)
    reader.join()
    assert not wrong
    assert np.asarray(x)[:5].tolist() == [1995, 1996, 1997, 1998, 1999]


@pytest.fixture
def restless():
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_what_a_thread_has_seen_does_not_change_under_it():
    x = wf.zeros(16_000)
    changed, done = [], threading.Event()

    def look():
        while not done.is_set():
            seen = x.data()
            then = seen.tobytes()
            time.sleep(0)
            changed.extend([seen.tobytes() != then, seen[0] != seen[-1]])

    reader = threading.Thread(target=look)
    reader.start()
    values = [wf.full(x.shape, float(i)) for i in range(2)]
    for i in range(20_000):
        x[:] = values[i % 2]
    done.set()
    reader.join()
    assert not any(changed)
