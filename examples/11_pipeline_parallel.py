"""Pipeline parallelism: stages on different devices, microbatches that flow through them.

You learn two schedules, both built from `vmap`, `ppermute` and `scan`. GPipe runs all microbatches
forward and is differentiated like any function. 1F1B runs one forward and one backward of every
stage at each tick, and keeps O(stages) inputs. Both give the gradients of the dense network.
"""

import weft as wf
from weft import P

STAGES, MICROBATCHES, BATCH, WIDTH = 4, 6, 8, 16


def stage(params, x):
    """What one stage does to one microbatch."""
    weight, bias = params
    return wf.tanh(x @ weight + bias)


def error(y, target):
    """What one microbatch adds to the loss."""
    return wf.sum((y - target) ** 2)


def dense(params, xs):
    """The same network on one device: one stage after the other."""
    return wf.scan(lambda x, p: (stage(p, x), None), xs, params)[0]


def by_hand(params, xs, mesh):
    """GPipe written out: what `wf.gpipe` does. Stage s works on microbatch t - s at tick t."""
    onwards = [(s, s + 1) for s in range(STAGES - 1)]

    def work(params, number, arrived, new):
        return stage(params, wf.where(number == 0, new, arrived))

    everywhere = wf.vmap(work, in_axes=(0, 0, 0, None), spmd_axis_name="stage")

    def tick(arrived, new):
        made = everywhere(params, wf.arange(STAGES), arrived, new)
        return wf.ppermute(made, "stage", onwards), made

    nothing = wf.zeros_like(xs[:STAGES]).shard(mesh, P("stage"))
    until_empty = wf.pad(xs, [(0, STAGES - 1), (0, 0), (0, 0)])
    made = wf.scan(tick, nothing, until_empty)[1]
    return made[STAGES - 1 :, -1]


def draw(number, *shape):
    key = wf.random.fold_in(wf.random.key(0), number)
    return wf.random.normal(key, shape, dtype=wf.float64)


# The parameters of all stages are stacked along axis 0.
params = (draw(0, STAGES, WIDTH, WIDTH) / 4, draw(1, STAGES, WIDTH))
xs, targets = draw(2, MICROBATCHES, BATCH, WIDTH), draw(3, MICROBATCHES, BATCH, WIDTH)
wanted, gradients = wf.value_and_grad(lambda p: error(dense(p, xs), targets))(params)


def check(name, value, found):
    assert abs(value.item() - wanted.item()) < 1e-10
    for mine, theirs in zip(found, gradients, strict=True):
        assert wf.allclose(mine, theirs, rtol=1e-12, atol=1e-12)
    print(f"{name}: loss {value.item():.6f}, gradients equal those of the dense run")


mesh = wf.DeviceMesh("line", (STAGES,), ("stage",))
split = tuple(p.shard(mesh, P("stage")) for p in params)

for run in (by_hand, lambda p, x, m: wf.gpipe(stage, p, x, m)):
    assert wf.all(run(split, xs, mesh) == dense(params, xs)).item()
    check("GPipe", *wf.value_and_grad(lambda p, run=run: error(run(p, xs, mesh), targets))(split))
check("1F1B", *wf.one_forward_one_backward(stage, error, split, xs, targets, mesh))

# Two pipelines beside each other: a part of each microbatch goes to each, by one more `vmap`.
grid = wf.DeviceMesh("grid", (2, STAGES), ("data", "stage"))
split = tuple(p.shard(grid, P("stage")) for p in params)
halves = [
    x.reshape(MICROBATCHES, 2, BATCH // 2, WIDTH).shard(grid, P(None, "data"))
    for x in (xs, targets)
]


@wf.vmap(in_axes=1, spmd_axis_name="data")
def each_pipeline(x, y):
    return wf.one_forward_one_backward(stage, error, split, x, y, grid)


with wf.communication_log() as log:
    values, each = each_pipeline(*halves)
    found = [wf.all_reduce(g.sum(axis=0)) for g in each]
check("1F1B x data", values.sum(), found)
print(log)
assert log.count("all_reduce") == len(params), "gradients meet once, after the last tick"
