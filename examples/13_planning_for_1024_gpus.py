"""Plan a training step for 1 024 GPUs on a laptop: `wf.plan` needs shapes, a mesh, and no device.

You learn to predict time, communication and memory before anything is rented: compare layouts
written by hand with the solver's, and ask what fits into less memory.
"""

import time

import numpy as np

import weft as wf
from weft import P

mesh = wf.DeviceMesh("cluster", (128, 8), ("data", "model"))
LINKS = {"data": "infiniband", "model": "nvlink"}
WIDTH, LAYERS, TOKENS = 4096, 4, 128 * 4096


def kind(*shape):
    """A tensor that is only a shape and a dtype."""
    return wf.TensorType(shape, np.dtype("float32"))


params = [{"up": kind(WIDTH, 4 * WIDTH), "down": kind(4 * WIDTH, WIDTH)} for _ in range(LAYERS)]
batch = kind(TOKENS, WIDTH)


def step(params, x):
    """Forward, backward and update of a stack of feed-forward blocks."""

    def loss(params):
        y = x
        for p in params:
            y = y + wf.relu(y @ p["up"]) @ p["down"]
        return wf.mean(y * y)

    value, gradients = wf.value_and_grad(loss)(params)
    return wf.tree_map(lambda p, g: p - 1e-3 * g, params, gradients), value


def predict(name, **options):
    start = time.perf_counter()
    found = wf.plan(step, mesh, params, batch, carry={0: 0}, links=LINKS, **options)
    spent = time.perf_counter() - start
    print(
        f"{name:24s} {found.seconds * 1e3:7.1f} ms a step, {found.communication * 1e3:6.1f} ms"
        f" of it communication, {found.memory / 2**30:5.1f} GiB a device (planned in {spent:.1f} s)"
    )
    return found


whole = [{"up": P(), "down": P()}] * LAYERS
split = [{"up": P(None, "model"), "down": P("model")}] * LAYERS
everything = ("data", "model")

data = predict("data parallel, by hand", in_specs=(whole, P(everything)), auto=False)
both = predict("data x model, by hand", in_specs=(split, P("data")), auto=False)
best = predict("the solver's choice", in_specs=(None, P("data")))
tight = predict("in less memory", in_specs=(None, P("data")), memory=0.7 * best.memory)

assert best.seconds <= 1.01 * min(data.seconds, both.seconds)
assert tight.memory <= 0.7 * best.memory and tight.seconds >= best.seconds

print("\nwhat the solver moves in a step:")
for row in best.collectives:
    print(f"  {row.calls} x {row.kind} over {row.mesh_axis}: {row.seconds * 1e3:.2f} ms")
print("and where it puts the first block:")
for each in best.inputs[:2]:
    print(f"  {each.path}: {each.type.shape} as {each.spec}, {each.local_shape} on one device")

# What cannot be is refused, with the least that would do.
try:
    wf.plan(step, mesh, params, batch, carry={0: 0}, links=LINKS, memory=2**20)
except wf.errors.ShardingError as error:
    print(f"\na mistake:\n{error}")
else:
    raise AssertionError("a training step in a MiB must be refused")
