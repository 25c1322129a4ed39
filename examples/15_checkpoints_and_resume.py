"""A training loop that may be killed at any instant and goes on where it was, bit for bit.

You learn to keep model, optimiser, loader position and random key in one tree, to save it in the
background, and to resume: a run that was interrupted ends in the very bits of one that was not.
"""

import tempfile

import weft as wf
from weft import checkpoints, data, nn, optim

STEPS, EVERY = 60, 10
text = data.CharText(data.paradise_lost())
inputs, following = text.windows(8, stride=3)


class Model(nn.Module):
    """The next letter from the eight before it."""

    table: nn.Embedding
    hidden: nn.Linear
    drop: nn.Dropout
    last: nn.Linear

    def __call__(self, tokens, *, key):
        x = self.table(tokens).reshape(*tokens.shape[:-1], -1)
        return self.last(self.drop(wf.gelu(self.hidden(x)), key=key))


def new_model(key):
    a, b, c = wf.random.split(key, 3)
    return Model(
        nn.Embedding(len(text.vocabulary), 16, key=a),
        nn.Linear(8 * 16, 64, key=b),
        nn.Dropout(0.1),
        nn.Linear(64, len(text.vocabulary), key=c),
    )


optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(3e-3))


@wf.compile
def step(model, state, x, y, key):
    def loss(model):
        return nn.losses.cross_entropy(model(x, key=key), y)

    value, gradients = wf.value_and_grad(loss)(model)
    updates, state = optimizer.update(gradients, state, model)
    return value, optim.apply(model, updates), state


def train(folder, stop_after=None):
    """Train to STEPS, from the newest checkpoint in `folder` if there is one."""
    saved = checkpoints.Checkpoints(folder, keep=2)
    loader = data.Loader((inputs, following[:, -1]), 64, key=wf.random.key(1), drop_last=True)
    model = new_model(wf.random.key(0))
    run = {"model": model, "optimizer": optimizer.init(model), "loader": loader.state()}
    first = saved.latest() or 0
    if first:
        run = saved.restore(like=run)
        loader.restore(run["loader"])
        print(f"  resumed at step {first}, epoch {loader.epoch}")
    model, state, batches = run["model"], run["optimizer"], loader.forever()
    for number in range(first, STEPS):
        key = wf.random.fold_in(wf.random.key(2), number)
        value, model, state = step(model, state, *next(batches), key)
        if (number + 1) % EVERY == 0:
            run = {"model": model, "optimizer": state, "loader": loader.state()}
            saved.save_async(number + 1, run, metadata={"loss": value.item()})
            print(f"  step {number + 1}: loss {value.item():.4f}")
        if number + 1 == stop_after:
            saved.wait()
            return None
    saved.wait()
    return model


with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
    print("in one go")
    whole = train(one)
    print("stopped in between two checkpoints, and started again")
    assert train(two, stop_after=35) is None
    resumed = train(two)
    pairs = zip(wf.tree_leaves(whole), wf.tree_leaves(resumed), strict=True)
    assert all(wf.all(a == b).item() for a, b in pairs)
    print(f"the same bits; kept: steps {checkpoints.Checkpoints(two).steps()}")
