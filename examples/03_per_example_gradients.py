"""One gradient for each example, clipped, as differentially private training needs them.

You learn that `vmap(grad(f))` is all it takes: the function is written for one example, runs once,
and every example's gradient comes out of batched kernels.
"""

import weft as wf
from weft import nn

key = wf.random.key(0)
model_key, x_key, noise_key = wf.random.split(key, 3)
x = wf.random.normal(x_key, (256, 8))
y = wf.sin(x[:, 0]) + 0.5 * x[:, 1]
model = nn.MLP(8, (32,), 1, key=model_key)


def loss(model, x, y):
    """The squared error of one example."""
    return (model(x)[0] - y) ** 2


def norms(gradients):
    """The length of each example's gradient over all parameters."""
    squares = [wf.sum(g**2, axis=tuple(range(1, g.ndim))) for g in wf.tree_leaves(gradients)]
    return wf.sqrt(sum(squares))


each = wf.vmap(wf.grad(loss), in_axes=(None, 0, 0))(model, x, y)

# Row i is the gradient of example i alone, and the mean is the gradient of the batch.
alone = wf.grad(loss)(model, x[3], y[3])
batch = wf.grad(lambda m: wf.mean(wf.vmap(loss, in_axes=(None, 0, 0))(m, x, y)))(model)
for many, one, mean in zip(*map(wf.tree_leaves, (each, alone, batch)), strict=True):
    assert wf.allclose(many[3], one, atol=1e-5)
    assert wf.allclose(wf.mean(many, axis=0), mean, atol=1e-5)

limit = 1.0


@wf.compile
def private_step(model, key, rate):
    """Clip every example's gradient, average, add noise, descend."""
    each = wf.vmap(wf.grad(loss), in_axes=(None, 0, 0))(model, x, y)
    shrink = wf.minimum(1.0, limit / norms(each))
    clipped = wf.tree_map(lambda g: wf.tensordot(shrink, g, axes=1) / len(x), each)
    leaves, structure = wf.tree_flatten(clipped)
    keys = wf.random.split(key, len(leaves))
    noisy = [
        g + 0.02 * limit * wf.random.normal(k, g.shape) for g, k in zip(leaves, keys, strict=True)
    ]
    return wf.tree_map(lambda p, g: p - rate * g, model, wf.tree_unflatten(structure, noisy))


def mean_loss(model):
    return wf.mean((model(x)[:, 0] - y) ** 2).item()


before = mean_loss(model)
lengths = norms(each)
print(f"gradient lengths: smallest {lengths.min().item():.3f}, largest {lengths.max().item():.3f}")
for step in range(100):
    model = private_step(model, wf.random.fold_in(noise_key, step), 0.2)
after = mean_loss(model)
print(f"clipped to {limit}; loss {before:.3f} -> {after:.3f} in 100 private steps")
assert after < 0.35 * before
