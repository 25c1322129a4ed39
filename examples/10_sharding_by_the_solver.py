"""Let a solver choose the layouts: `shard_map(f, mesh, auto_sharding=True)`.

You learn that no layout need be written: from the graph, the mesh and what links cost, an exact
solver finds data parallelism for a long batch and tensor parallelism for wide weights.
"""

import weft as wf
from weft import P

mesh = wf.DeviceMesh("grid", (2, 2), ("x", "y"))


def mlp(x, up, down):
    return wf.relu(x @ up) @ down


def draw(number, *shape):
    key = wf.random.fold_in(wf.random.key(0), number)
    return wf.random.normal(key, shape, dtype=wf.float64) / shape[0] ** 0.5


def show(name, x, up, down):
    """Solve, run, compare with one device, and say what was chosen."""
    mapped = wf.shard_map(mlp, mesh, auto_sharding=True, device="cpu")
    with wf.communication_log() as log:
        y = wf.all_reduce(mapped(x, up, down))
    assert wf.allclose(y, mlp(x, up, down))
    chosen = wf.plan(mlp, mesh, x, up, down, device="cpu")
    layouts = ", ".join(f"{n} {each.spec}" for n, each in zip(("x", "up", "down"), chosen.inputs))
    print(f"{name}: {layouts}; {chosen.seconds * 1e3:.3f} ms predicted; moved: {log.bytes} bytes")
    return chosen, log


# A long batch and small weights: split the batch over all devices, move nothing.
chosen, log = show("long batch ", draw(0, 4096, 64), draw(1, 64, 64), draw(2, 64, 64))
assert set(chosen.inputs[0].spec.axes[0]) == {"x", "y"} and chosen.communication == 0
assert log.bytes == 0

# A short batch and wide weights: split the weights, sum the little that comes out.
chosen, log = show("wide weights", draw(0, 8, 256), draw(1, 256, 2048), draw(2, 2048, 256))
assert chosen.inputs[1].spec.axes[1] and chosen.inputs[2].spec.axes[0]
assert set(log.kinds) <= {"all_reduce", "reduce_scatter", "all_gather"}

# What you fix stays fixed; the solver chooses the rest around it.
fixed = wf.shard_map(
    mlp, mesh, in_specs=(P("x"), None, None), out_specs=P("x"), auto_sharding=True, device="cpu"
)
x, up, down = draw(0, 64, 32), draw(1, 32, 512), draw(2, 512, 32)
y = fixed(x, up, down)
print(f"\nfixed rows: result lies as {y.sharding}")
assert y.sharding.axes == (("x",), ()) and wf.allclose(y, mlp(x, up, down))


# A whole training step: the solver sees forward, backward and update as one graph.
def step(params, x, y):
    def loss(params):
        return wf.mean((mlp(x, *params) - y) ** 2)

    value, gradients = wf.value_and_grad(loss)(params)
    return [p - 0.1 * g for p, g in zip(params, gradients, strict=True)], value


params, y = [up, down], draw(3, 64, 32)
mapped = wf.shard_map(step, mesh, auto_sharding=True, device="cpu")
(found, value), (wanted, plain) = mapped(params, x, y), step(params, x, y)
assert abs(value.item() - plain.item()) < 1e-12
assert all(wf.allclose(a, b) for a, b in zip(found, wanted, strict=True))
print(f"training step: loss {value.item():.6f}, weights lie as {[str(p.sharding) for p in found]}")
