"""`shard_map` runs single-device code over a mesh, by propagation or by hand.

You learn both: give layouts of arguments and let them propagate through the code, or write what one
device does with its pieces and call collectives by axis name, here for softmax of a split row.
"""

import weft as wf
from weft import P

mesh = wf.DeviceMesh("grid", (2, 4), ("data", "model"))
k0, k1 = wf.random.split(wf.random.key(0), 2)
x = wf.random.normal(k0, (8, 16), dtype=wf.float64)
w = wf.random.normal(k1, (16, 32), dtype=wf.float64)


def attention_like(x, w):
    """Plain code for one device."""
    return wf.softmax(x @ w, axis=-1)


wanted = attention_like(x, w)

# Automatic: layouts propagate from op to op, and collectives appear where they are needed.
automatic = wf.shard_map(
    attention_like, mesh, in_specs=(P("data"), P(None, "model")), out_specs=P("data", "model")
)
with wf.communication_log() as log:
    found = automatic(x, w)
print(f"automatic, {found.sharding}:\n{log}\n")
assert wf.allclose(found, wanted)
assert log.kinds == ["all_reduce", "all_reduce"], "a maximum and a sum"


# Manual: the function sees one device's pieces; collectives go by axis name.
def by_hand(x, w):
    assert x.shape == (4, 16) and w.shape == (16, 8)
    logits = x @ w
    top = wf.pmax(wf.max(logits, axis=-1, keepdims=True), "model")
    weights = wf.exp(logits - wf.stop_gradient(top))
    return weights / wf.psum(wf.sum(weights, axis=-1, keepdims=True), "model")


manual = wf.shard_map(
    by_hand,
    mesh,
    in_specs=(P("data"), P(None, "model")),
    out_specs=P("data", "model"),
    manual=True,
)
with wf.communication_log() as log:
    found = manual(x, w)
print(f"manual, {found.sharding}:\n{log}\n")
assert wf.allclose(found, wanted)

# Both are functions like any other: they differentiate and compile.
for mapped in (automatic, manual):
    gradient = wf.grad(lambda w, mapped=mapped: wf.sum(mapped(x, w) ** 2))(w)
    assert wf.allclose(gradient, wf.grad(lambda w: wf.sum(attention_like(x, w) ** 2))(w))
    assert wf.all(wf.compile(mapped)(x, w) == mapped(x, w)).item()


# A ring: each device hands its piece on, and after a full round everybody has seen all of them.
def ring_sum(x):
    count = wf.axis_size("model")
    total, piece = x, x
    for _ in range(count - 1):
        piece = wf.ppermute(piece, "model", [(i, (i + 1) % count) for i in range(count)])
        total = total + piece
    return total


around = wf.shard_map(ring_sum, mesh, P(None, "model"), P(None, "model"), manual=True)(x)
assert wf.allclose(around[:, :4], x.reshape(8, 4, 4).sum(axis=1))

# A result that differs between devices cannot be called the same everywhere.
try:
    wf.shard_map(lambda x: x, mesh, P("data"), P(), manual=True)(x)
except wf.errors.ShardingError as error:
    print(f"a mistake:\n{error}")
else:
    raise AssertionError("out_specs that drop an axis must be refused")
