"""What could go wrong between runs: memory, threads and errors that must not reach each other."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import weft as wf
from weft.compiler.gpu_program import call_of, single
from weft.compiler.gpu_steps import Block, Call, GpuProgram
from weft.core.common.device import as_device
from weft.core.common.types import TensorType
from weft.errors import IndexingError
from weft.ops.view.reshape import reshape_op
from weft.runtime.cuda import driver
from weft.runtime.gpu.array import GpuArray

A = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def x():
    return wf.tensor(A, device="cuda")


def test_what_lies_elsewhere_is_handed_on_as_it_is(x):
    given, captured = wf.tensor(A + 1), wf.tensor(A + 2)
    step = wf.compile(
        lambda x, y, s: (x * s, y, captured, wf.tensor([1.0, 2.0], device="cpu"), x + 1)
    )
    for _ in range(2):
        doubled, *others, more = step(x, given, 2)
        assert doubled.tolist() == (A * 2).tolist() and more.tolist() == (A + 1).tolist()
        assert isinstance(doubled.data(), GpuArray)
        assert [o.device.name for o in others] == ["cpu:0"] * 3
        for other, expected in zip(others, (A + 1, A + 2, [1.0, 2.0]), strict=True):
            assert (other + 1).tolist() == (np.asarray(expected) + 1).tolist()


def test_what_the_processor_computes_leaves_a_gpu_alone(x, gpu):
    constant = wf.tensor([7.0], device="cuda")
    step = wf.compile(lambda y, x, unused, s: (x, y * s, s, constant, y + 1), donate_argnums=0)
    for _ in range(3):
        there, here, number, held, more = step(wf.tensor(A), x, constant, 2.0)
        assert there.device is held.device is x.device and here.device.name == "cpu:0"
        assert there.tolist() == A.tolist() and held.tolist() == [7.0]
        assert here.tolist() == (A * 2).tolist() and more.tolist() == (A + 1).tolist()
        assert number.item() == 2.0


def test_a_constant_of_a_program_is_not_handed_out(x, gpu):
    constant = wf.compile(lambda x: (x * 2, wf.tensor([1.0, 2.0, 3.0], device="cuda")))
    branch = wf.compile(
        lambda x: wf.cond(
            x.sum() > 0,
            lambda x: wf.tensor([1.0, 2.0, 3.0], device="cuda"),
            lambda x: x[0, :3],
            x,
        )
    )
    for result in (lambda: constant(x)[1], lambda: branch(x)):
        made = result()
        made.data().hand_out()
        gpu.write(made.data().address, np.zeros(3, np.float32))  # as another library does
        assert made.tolist() == [0.0, 0.0, 0.0]
        assert result().tolist() == [1.0, 2.0, 3.0]


def test_a_callback_may_wait_for_another_thread_that_runs_the_same(x):
    found = []

    def again(value):
        if not found:
            found.append(None)
            other = threading.Thread(target=lambda: found.append(step(x + 1).tolist()), daemon=True)
            other.start()
            other.join(20)
            assert len(found) == 2, "the other thread waits for this one"
        return value

    step = wf.compile(lambda x: (x * 3) + wf.callback(again, ((3, 4), "float32"), x * 2))
    assert step(x).tolist() == (A * 5).tolist()
    assert found[1] == ((A + 1) * 5).tolist()


@pytest.mark.parametrize("kind", ["callback", "host", "while"])
def test_nothing_goes_on_after_a_position_out_of_range(x, kind):
    seen = []

    def observed(value):
        seen.append(value)
        return value

    def then(y):
        if kind == "callback":
            return wf.callback(observed, ((2, 4), "float32"), y)
        if kind == "host":
            return wf.call_custom_kernel(observed, y, result_type=y)
        return wf.while_loop(
            lambda y: wf.call_custom_kernel(
                lambda v: np.asarray(observed(v)).sum() < 1e3, y, result_type=((), "bool")
            ),
            lambda y: y + 100,
            y,
        )

    step = wf.compile(lambda x, i: then(wf.take(x * 2, i, axis=0)))
    good, bad = (wf.tensor(i, device="cuda") for i in ([1, 0], [0, 7]))
    step(x, good).host()
    assert seen
    seen.clear()
    with pytest.raises(IndexingError):
        step(x, bad).host()
    assert not seen


def test_a_reshape_by_itself_keeps_the_memory_it_shares():
    kinds = [TensorType(shape, np.dtype(np.float32)) for shape in ((2, 3), (6,))]
    node = call_of(reshape_op, kinds[:1], {"shape": (6,)}, (kinds[1],), as_device("cpu"))
    given, made = (Block(kind.dtype, kind.size) for kind in kinds)
    program = GpuProgram(single(node), [], [made], [Call(node, (given,), (made,))])
    assert program.passed() == [given]  # so that no other result is written there


def draws(place, explicit):
    device = place if explicit else None
    wf.random.seed(3)
    x = wf.tensor(A, device=place)
    noise = lambda shape: wf.normal(shape, device=device)  # noqa: E731
    with wf.default_device("cpu" if explicit else place):
        mapped = wf.vmap(lambda row: row + noise((4,)))(x)
        _, scanned = wf.scan(lambda c, row: (c + noise((4,)), c + row), x[0], x)
        compiled = wf.compile(lambda x: x + noise(x.shape))
        sloped = wf.grad(lambda x: (x * noise((3, 4))).sum())(x)
        return [mapped, scanned, sloped, compiled(x), compiled(x)]


@pytest.mark.parametrize("explicit", [True, False], ids=["device=", "default_device"])
def test_draws_inside_transforms_are_where_they_are_wanted(explicit):
    for there, here in zip(draws("cuda", explicit), draws("cpu", explicit), strict=True):
        assert there.device.name == "cuda:0"
        np.testing.assert_allclose(there.host(), here.host(), rtol=1e-5, atol=1e-6)


class Library:
    """A driver library that notes whose context is current at each call."""

    def __init__(self):
        self.stack, self.calls = [None], []

    def __getattr__(self, name):
        def call(*args):
            if name == "cuCtxPushCurrent_v2":
                self.stack.append(args[0])
            elif name == "cuCtxPopCurrent_v2":
                self.stack.pop()
            elif name == "cuCtxSetCurrent":
                self.stack[-1] = args[0]
            else:
                self.calls.append((name, self.stack[-1]))
            return 0

        return call


def test_a_finaliser_leaves_the_current_device_as_it_was(monkeypatch):
    monkeypatch.setattr(driver, "_IDLE", 0)
    library, gpus = Library(), []
    for number in range(2):
        gpu = driver.Gpu.__new__(driver.Gpu)
        driver.Driver.__init__(gpu, number)
        gpu.library, gpu._context, gpu._pool = library, f"context {number}", "pool"
        gpu._idle, gpu._idle_bytes = {}, 0
        gpus.append(gpu)
    owner = []
    made = gpus[1].allocate(8), gpus[1].borrow(0, 8, owner)
    gpus[0].enter()
    library.calls.clear()
    del made
    gpus[1].synchronize()
    assert sorted(library.calls) == [
        ("cuCtxSynchronize", "context 1"),
        ("cuMemFreeAsync", "context 1"),
        ("cuStreamSynchronize", "context 1"),
    ]
    assert library.stack == ["context 0"]
