"""Tensors over a mesh: lay out the weights, write the same code, watch what moves.

You learn `DeviceMesh`, `P` and `x.shard`, and see Megatron's trick: a column-split weight followed
by a row-split one needs exactly one all-reduce. Devices here are logical; the values are the same.
"""

import weft as wf
from weft import P

mesh = wf.DeviceMesh("grid", (2, 4), ("data", "model"))


def mlp(x, up, down):
    """Two layers, as for one device; nothing here knows of a mesh."""
    return wf.gelu(x @ up) @ down


k0, k1, k2 = wf.random.split(wf.random.key(0), 3)
x = wf.random.normal(k0, (32, 64), dtype=wf.float64)
up = wf.random.normal(k1, (64, 256), dtype=wf.float64) / 8
down = wf.random.normal(k2, (256, 64), dtype=wf.float64) / 16

xs = x.shard(mesh, P("data"))  # rows of the batch over "data"
ups = up.shard(mesh, P(None, "model"))  # columns of the first weight over "model"
downs = down.shard(mesh, P("model"))  # rows of the second
print(f"x    {xs.shape} lies as {xs.sharding}; one device has {xs.dual.shape}")
print(f"up   {ups.shape} lies as {ups.sharding}; one device has {ups.dual.shape}")

with wf.communication_log() as log:
    y = mlp(xs, ups, downs)
    print(f"y    {y.shape} lies as {y.sharding}")
    y = wf.all_reduce(y)  # settle the sum that is pending; any op that needs it would do so
print(f"\nforward:\n{log}")
assert log.kinds == ["all_reduce"] and log.entries[0].axes == ("model",)
assert wf.allclose(y, mlp(x, up, down))


def loss(up, down, x):
    return wf.mean(mlp(x, up, down) ** 2)


# Gradients lie as their weights do; each is summed over "data" once, when it is needed.
with wf.communication_log() as log:
    gradients = wf.grad(loss, argnums=(0, 1))(ups, downs, xs)
    print(f"\nthe gradient of up lies as {gradients[0].sharding}")
    gradients = tuple(map(wf.all_reduce, gradients))
print(f"\ngradient:\n{log}")
plain = wf.grad(loss, argnums=(0, 1))(up, down, x)
for found, wanted, weight in zip(gradients, plain, (ups, downs), strict=True):
    assert found.sharding == weight.sharding
    assert wf.allclose(found, wanted)

# Another layout of the same tensor is one call, and the log has its price.
with wf.communication_log() as log:
    turned = xs.reshard(P(None, "data"))
print(f"\nreshard {xs.sharding} to {turned.sharding}:\n{log}")
assert log.kinds == ["all_to_all"] and wf.all(turned == x).item()

# A split that cannot be is refused, with the reason.
try:
    x.shard(mesh, P("data", "data"))
except wf.errors.ShardingError as error:
    print(f"\na mistake:\n{error}")
else:
    raise AssertionError("one mesh axis cannot split two axes of a tensor")
