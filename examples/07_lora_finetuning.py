"""LoRA: adapt a trained model by two thin matrices beside each weight; everything else is frozen.

You learn `nn.lora`, `nn.partition` and `nn.combine` — which leaves of a model are trained is a
choice by name — and that the adapters merge into plain weights when training is done.
"""

import weft as wf
from weft import nn, optim

x_key, model_key, lora_key = wf.random.split(wf.random.key(0), 3)
x = wf.random.uniform(x_key, (512, 4), minval=-2.0, maxval=2.0)
before, after = wf.sin(x.sum(axis=1)), wf.sin(x.sum(axis=1)) + 0.5 * x[:, 0]


def loss(model, y):
    return nn.losses.mse(model(x)[:, 0], y)


def train(trained, frozen, y, rate, steps):
    """Train one part of a model; the other takes no gradient and no optimiser state."""
    optimizer = optim.adam(rate)
    state = optimizer.init(trained)

    @wf.compile
    def step(trained, state):
        value, gradient = wf.value_and_grad(lambda t: loss(nn.combine(t, frozen), y))(trained)
        updates, state = optimizer.update(gradient, state, trained)
        return value, optim.apply(trained, updates), state

    for _ in range(steps):
        _, trained, state = step(trained, state)
    return nn.combine(trained, frozen)


base = nn.MLP(4, (64, 64), 1, activation=wf.tanh, key=model_key)
base = train(*nn.partition(base), before, 5e-3, 300)
old, new = loss(base, before).item(), loss(base, after).item()
print(f"base model: loss {old:.4f}, on the new task {new:.4f}")

# Adapters start at zero: the model gives what it gave.
model = nn.lora(base, rank=4, key=lora_key)
assert wf.all(model(x) == base(x)).item()

trained, frozen = nn.partition(model, nn.is_lora)
small, all_of_it = nn.parameter_count(trained), nn.parameter_count(base)
model = train(trained, frozen, after, 1e-2, 300)
print(f"adapters: {small} of {all_of_it} numbers trained, loss {loss(model, after).item():.4f}")

# Nothing but adapters has changed, and merged they are a plain model of the old structure.
_, kept = nn.partition(model, nn.is_lora)
assert all(
    wf.all(a == b).item() for a, b in zip(wf.tree_leaves(kept), wf.tree_leaves(frozen), strict=True)
)
merged = nn.merge_lora(model)
assert wf.tree_structure(merged) == wf.tree_structure(base)
assert wf.allclose(merged(x), model(x), atol=1e-4)
assert loss(merged, after).item() < 0.3 * new
print(f"merged: loss {loss(merged, after).item():.4f}, as many layers as before")
