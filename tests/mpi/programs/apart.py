"""Ranks that do not do the same, while tensors lie over a mesh; run by `test_meshes`."""

import contextlib
import gc
import io
import os
import random
import signal
import sys
import time
from functools import partial

import numpy as np
import pytest

import weft as wf
from weft import P
from weft.errors import (
    RankFailedError,
    RankMismatchError,
    RankTimeoutError,
    ShardingError,
)
from weft.runtime.communicator import use, world
from weft.runtime.communicator.transport import State

first = world().rank
X = np.random.default_rng(0).normal(size=(8, 6))


def line():
    return wf.DeviceMesh("line", (world().size,), ("x",))


def loss(w, x):
    return wf.mean(wf.tanh(x @ w) ** 2)


def step(w, x):
    value, slope = wf.value_and_grad(loss)(w, x)
    return value, w - 0.1 * slope


def start():
    mesh = line()
    return wf.asarray(X[0, :, None] * X[1]).shard(mesh, P()), wf.asarray(X).shard(mesh, P("x"))


def together():
    """Every rank is still here, and they agree."""
    ranks = world()
    total = ranks.all_reduce(np.ones(1), "sum", tuple(range(ranks.size)))
    assert total[0] == ranks.size


def one_rank_may_look():
    """Reading, on one rank only, needs no other rank, or says so."""
    for run in (step, wf.compile(step)):
        w, x = start()
        square, one = x @ x.T, wf.asarray([3.0]).shard(line(), P("x"))
        for _ in range(3):
            value, w = run(w, x)
            if first == 0:
                shown = io.StringIO()
                with contextlib.redirect_stdout(shown):
                    print(f"loss {value} {float(value):.3f}", value, w, x, x.sharding)
                    print(repr(square), square.dual, x.dual.shards[0].tensor)
                assert "of which here" in shown.getvalue(), shown.getvalue()
                assert np.isfinite(w.numpy()).all()
                for read in (x.numpy, x.tolist, partial(np.asarray, square), partial(float, one)):
                    with pytest.raises(ShardingError, match=r"hint: x\.reshard"):
                        read()
                with pytest.raises(ShardingError, match="other processes"):
                    bool(one)
    together()


def collectors_run_when_they_like():
    chance = random.Random(first)
    gc.disable()
    w, x = start()
    compiled = wf.compile(step)
    for turn in range(40):
        value, w = (compiled if turn % 2 else step)(w, x)
        cycle = [w, x @ x.T, x.reshard(P(None, "x"))]
        cycle.append(cycle)
        if chance.random() < 0.3:
            gc.collect()
        if turn % 10 == first:
            float(value)
    del cycle
    gc.enable()
    world().check(f"{float(value)!r}")


def other_op(x):
    y = wf.sin(x)
    if first == 1:
        return y.reshard(P(None, "x"))  # the op of rank 1
    return y.reshard(P())  # the op of the others


def other_shape(x):
    y = x[:, :5] if first == 1 else x
    return wf.all_reduce(y.sum(axis=0))  # the shape


def other_order(x):
    a, b = x.sum(axis=0), x.sum(axis=1, keepdims=True).T @ x
    if first == 1:
        b = wf.all_reduce(b)  # the order of rank 1
        return b + wf.all_reduce(a)
    a = wf.all_reduce(a)  # the order of the others
    return a + wf.all_reduce(b)


def other_size(x):
    wide = wf.concat([x] * (39 if first == 1 else 40), axis=1)
    return wf.all_reduce(wide.T @ wide)  # the size


def other_whole(x):
    y = x[:, :5] if first == 1 else x
    return y.reshard(P())  # the whole


def other_columns(x):
    y = x[:, :4] if first == 1 else x
    return y.reshard(P(None, "x"))  # the columns


def divergence_is_told_with_lines():
    shown = {other_op: "the op of", other_shape: "# the shape", other_order: "the order of"}
    shown |= {other_size: "# the size", other_whole: "# the whole", other_columns: "# the columns"}
    for function, text in shown.items():
        for run in (function, wf.compile(function)):
            _, x = start()
            with pytest.raises(RankMismatchError) as caught:
                wf.realize(run(x))
                world().barrier()
            message = str(caught.value)
            assert message.count(text) == 2, message
            assert message.count("apart.py:") == 2, message
            use(world().shrink())
            together()


def the_late_are_named():
    """A collective of a compiled graph that times out names who has not come."""
    w, x = start()
    run = wf.compile(step)
    run(w, x)
    world().timeout = 0.5
    if first == 1:
        while world()._transport.told(0)[0] is State.RUNNING:
            time.sleep(0.01)
        with pytest.raises(RankTimeoutError, match="rank 0 gave up"):
            run(w, x)
            world().barrier()
    else:
        with pytest.raises(RankTimeoutError, match=r"rank 1 did not come in \d+\.\d s") as caught:
            run(w, x)
        assert caught.value.ranks == (1,)
        assert any("apart.py" in note for note in caught.value.__notes__)
    world().timeout = 20
    use(world().shrink())
    together()


def who_is_killed_is_missed():
    """Survivors of kill -9 in a training loop hear of it at once and go on with fewer devices."""
    w, x = start()
    run = wf.compile(step)
    wf.realize(run(w, x))
    last = world().size - 1
    end = time.monotonic() + 0.3
    while first == last:
        value, w = run(w, x)
        if time.monotonic() > end:
            os.kill(os.getpid(), signal.SIGKILL)
    now = time.monotonic()
    with pytest.raises(RankFailedError) as caught:
        while True:
            value, w = run(w, x)
            now = time.monotonic()
    assert time.monotonic() - now < world().timeout / 2
    assert caught.value.ranks == (last,)
    before = w.numpy()  # every rank has all of it
    old = x
    use(world().shrink())
    assert world().size == last
    with pytest.raises(ShardingError, match=r"no longer work together|cannot share"):
        old.reshard(P())
    w, x = wf.asarray(before).shard(line(), P()), wf.asarray(X).shard(line(), P("x"))
    for _ in range(3):
        value, w = run(w, x)
        eager, _ = step(w, x)
    assert float(value) > float(eager) > 0
    together()


def main():
    one_rank_may_look()
    collectors_run_when_they_like()
    if world().size == 2:
        divergence_is_told_with_lines()
        the_late_are_named()
    who_is_killed_is_missed()
    print(f"rank {first} is done", flush=True)


sys.exit(main())
