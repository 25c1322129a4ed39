"""The imperative front end: leaves, repeated passes, views, memory, threads, other transforms."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from typing import Any

import pytest

import weft as wf
from weft.core.autograd.imperative import AMBIENT
from weft.core.autograd.tape import TapeNode
from weft.errors import DifferentiationError, MutationError, ShapeError


def leaf(*values: float) -> wf.Tensor:
    return wf.requires_grad(wf.tensor(list(values)))


def tape_nodes() -> int:
    return sum(type(o) is TapeNode for o in gc.get_objects())


def test_a_tensor_may_be_made_to_require_a_gradient() -> None:
    w = wf.tensor([1.0, 2.0], requires_grad=True)
    assert w.requires_grad and not wf.tensor([1.0]).requires_grad
    (w * w).sum().backward()
    assert w.grad.tolist() == [2.0, 4.0]
    with pytest.raises(DifferentiationError, match="only floats and complex do"):
        wf.tensor([1, 2], requires_grad=True)


def test_a_graph_may_be_walked_back_twice() -> None:
    w = leaf(1.0, 2.0)
    loss = (w * w).sum()
    loss.backward()
    loss.backward()
    assert w.grad.tolist() == [4.0, 8.0]


def test_a_tensor_that_is_no_leaf_may_require_a_gradient() -> None:
    w = leaf(1.0, 2.0)
    y = wf.requires_grad(w * 3)
    store = (y * y).sum().backward()
    assert y.grad.tolist() == [6.0, 12.0]
    assert w.grad.tolist() == [18.0, 36.0]
    assert len(store) == 2


def test_one_of_several_results_may_require_a_gradient() -> None:
    x = wf.requires_grad(wf.tensor([[2.0, 0.0], [0.0, 3.0]]))
    vectors, values, _ = wf.linalg.svd(x, full_matrices=False)
    wf.requires_grad(values)
    wf.requires_grad(vectors)
    (values * values).sum().backward()
    assert values.grad.tolist() == [6.0, 4.0]
    assert vectors.grad is None


def test_a_gradient_that_is_asked_for_no_more_is_not_delivered() -> None:
    w = leaf(1.0, 2.0)
    v = leaf(3.0, 4.0)
    loss = (w * v).sum()
    w.requires_grad = False
    loss.backward()
    assert w.grad is None
    assert v.grad.tolist() == [1.0, 2.0]


def test_a_loss_with_axes_takes_the_gradient_that_flows_into_it() -> None:
    w = leaf(1.0, 2.0)
    (w * w).backward(gradient=wf.tensor([1.0, 10.0]))
    assert w.grad.tolist() == [2.0, 40.0]
    with pytest.raises(ShapeError, match=r"gradient of shape \(3,\) for a loss of \(2,\)"):
        (w * w).backward(gradient=wf.ones(3))
    with pytest.raises(DifferentiationError, match=r"shape \(2,\), not \(\)[\s\S]*gradient="):
        (w * w).backward()


def test_a_loss_made_inside_no_grad_has_nothing_to_walk() -> None:
    w = leaf(1.0, 2.0)
    with wf.no_grad():
        loss = (w * w).sum()
    with pytest.raises(DifferentiationError, match=r"requires a gradient[\s\S]*no_grad"):
        loss.backward()
    loss = (w * w).sum()
    with wf.no_grad():
        loss.backward()
    assert w.grad.tolist() == [2.0, 4.0]


def test_views_of_leaves_and_leaves_that_are_views() -> None:
    w = leaf(1.0, 2.0, 3.0)
    (w[1:] * w[1:]).sum().backward()
    assert w.grad.tolist() == [0.0, 4.0, 6.0]
    base = wf.tensor([1.0, 2.0, 3.0])
    view = base[1:]
    view.requires_grad = True
    (view * view).sum().backward()
    assert view.grad.tolist() == [4.0, 6.0]
    assert base.grad is None
    with wf.no_grad():
        view -= 1.0
    assert base.tolist() == [1.0, 1.0, 2.0]


def test_assigning_through_a_view_of_a_leaf_is_refused_outside_no_grad() -> None:
    w = leaf(1.0, 2.0, 3.0)
    for target in (w, w[:2]):
        with pytest.raises(MutationError, match="no_grad"):
            target[0] = 3.0
    y = w * 1
    y[0] = 5 * w[1]
    (y * y).sum().backward()
    assert w.grad.tolist() == [0.0, 104.0, 6.0]


@pytest.mark.slow
def test_a_thousand_steps_leave_no_nodes_behind() -> None:
    w = leaf(4.0, 5.0)
    gc.collect()
    before, most = tape_nodes(), 0
    gc.disable()  # reference counts alone must free the graph of a step
    try:
        for step in range(1000):
            loss = ((w - 1) ** 2).sum()
            w.grad = None
            loss.backward()
            with wf.no_grad():
                w -= 0.01 * w.grad
            if step % 100 == 99:
                most = max(most, tape_nodes() - before)
        assert most <= 8
        del loss
        assert tape_nodes() <= before
    finally:
        gc.enable()


def test_a_leaf_that_dies_is_forgotten() -> None:
    gc.collect()
    before = len(AMBIENT.leaves)
    w = leaf(1.0)
    assert len(AMBIENT.leaves) == before + 1
    del w
    gc.collect()
    assert len(AMBIENT.leaves) == before


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda w: wf.grad(lambda x: (x * w * w).sum())(wf.ones(2)).sum(), [2.0, 4.0]),
        (lambda w: wf.grad(lambda x: (x * x * x).sum())(w).sum(), [6.0, 12.0]),
        (lambda w: wf.vmap(lambda v: v * v)(w).sum(), [2.0, 4.0]),
        (lambda w: wf.vmap(lambda x: (x * w).sum())(wf.ones((3, 2))).sum(), [3.0, 3.0]),
        (lambda w: wf.jvp(lambda v: v * v * w, wf.ones(2), wf.ones(2))[1].sum(), [2.0, 2.0]),
        (lambda w: wf.checkpoint(lambda v: (v * v).sum())(w), [2.0, 4.0]),
        (lambda w: wf.checkpoint(lambda: (w * w).sum())(), [2.0, 4.0]),
        (lambda w: wf.scan(lambda c, v: (c * v, c), wf.tensor(1.0), w)[0], [2.0, 1.0]),
        (lambda w: wf.cond(w.sum() > 0, lambda v: (v * v).sum(), lambda v: v.sum(), w), [2, 4]),
        (lambda w: wf.trace(lambda v: v * w, wf.ones(2)).replay(wf.ones(2))[0].sum(), [1.0, 1.0]),
        (lambda w: wf.debug(lambda v: (v * v).sum(), sink=[])(w), [2.0, 4.0]),
    ],
)
def test_leaves_mix_with_every_transform(loss, expected) -> None:
    w = leaf(1.0, 2.0)
    loss(w).backward()
    assert w.grad.tolist() == expected


def test_the_imperative_style_inside_a_transform_keeps_to_its_own_tensors() -> None:
    def f(x):
        w = leaf(1.0, 2.0)
        (w * w).sum().backward()
        return (x * w.grad).sum()

    assert wf.grad(f)(wf.tensor([3.0, 4.0])).tolist() == [2.0, 4.0]

    def on_a_traced_tensor(x):
        return wf.requires_grad(x).sum()

    def through_the_transform(x):
        (x * leaf(1.0, 2.0)).sum().backward()
        return x.sum()

    for function in (on_a_traced_tensor, through_the_transform):
        with pytest.raises(DifferentiationError, match=r"transform that is running[\s\S]*wf.grad"):
            wf.grad(function)(wf.ones(2))


def test_threads_share_leaves() -> None:
    w = leaf(1.0, 2.0)

    def work() -> None:
        for _ in range(50):
            (w * w * leaf(1.0, 1.0)).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert w.grad.tolist() == [400.0, 800.0]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_deep_copy_is_a_leaf_of_its_own_and_so_is_a_pickle(copied: Any) -> None:
    x = wf.requires_grad(wf.ones(2))
    y = copied({"weight": x})["weight"]
    wf.backward(wf.sum(x + 3 * y))
    assert x.grad.tolist() == [1, 1] and y.grad.tolist() == [3, 3]
    with wf.no_grad():
        y += 1
    assert x.tolist() == [1, 1] and y.tolist() == [2, 2]


def test_each_gradient_may_be_assigned_to_alone() -> None:
    x, y = wf.requires_grad(wf.ones(2)), wf.requires_grad(wf.ones(2))

    def tenfold(gradient: wf.Tensor) -> None:
        gradient *= 10

    wf.register_hook(x, tenfold)
    wf.backward(wf.sum(x + y))
    assert x.grad.tolist() == [10, 10] and y.grad.tolist() == [1, 1]
    x.grad *= 0
    assert y.grad.tolist() == [1, 1]
