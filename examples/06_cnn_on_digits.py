"""A convolutional network reads handwritten digits: model, optimiser, loader, one compiled step.

You learn how `weft.nn`, `weft.optim` and `weft.data` fit together; 1 437 images train it, 360 that
it has not seen test it. (Without scikit-learn it reads drawn bars instead.)
"""

import time

import numpy as np

import weft as wf
from weft import data, nn, optim

try:
    from sklearn.datasets import load_digits
except ImportError:
    load_digits = None


def bars(key, count=1800):
    """Images of 8 x 8 with one bright row or column and noise; the class says which of ten."""
    labels = wf.random.randint(key, (count,), 0, 10)
    rows = wf.arange(8)[:, None] == (labels // 2 + 2)[:, None, None]
    columns = wf.arange(8) == (labels // 2 + 2)[:, None, None]
    image = wf.where((labels % 2 == 0)[:, None, None], rows, columns)
    return 12.0 * image + wf.random.normal(wf.random.fold_in(key, 1), (count, 8, 8)), labels


def dataset():
    if load_digits is None:
        images, labels = bars(wf.random.key(3))
        images, labels = images.numpy(), labels.numpy()
    else:
        images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    order = wf.random.permutation(wf.random.key(4), len(images)).numpy()
    train, test = order[:1437], order[1437:]
    return (images[train], labels[train]), (images[test], labels[test])


class Net(nn.Module):
    """Two convolutions, each with a pooling, and a linear layer over what is left."""

    first: nn.Conv2d
    second: nn.Conv2d
    last: nn.Linear

    def __call__(self, x):
        x = nn.max_pool2d(nn.relu(self.first(x)), 2)
        x = nn.max_pool2d(nn.relu(self.second(x)), 2)
        return self.last(x.reshape(len(x), -1))


def make_model(key):
    a, b, c = wf.random.split(key, 3)
    return Net(
        nn.Conv2d(1, 16, 3, padding=1, key=a),
        nn.Conv2d(16, 32, 3, padding=1, key=b),
        nn.Linear(32 * 4, 10, key=c),
    )


(train_x, train_y), (test_x, test_y) = dataset()
epochs, batch = 5, 32
loader = data.Loader((train_x, train_y), batch, key=wf.random.key(1), drop_last=True)
model = make_model(wf.random.key(0))
optimizer = optim.adamw(optim.schedules.warmup_cosine(1.5e-2, 10, epochs * len(loader)))
state = optimizer.init(model)
print(nn.summary(model))


def loss(model, x, y):
    return nn.losses.cross_entropy(model(x), y)


@wf.compile
def step(model, state, x, y):
    value, gradients = wf.value_and_grad(loss)(model, x, y)
    updates, state = optimizer.update(gradients, state, model)
    return value, optim.apply(model, updates), state


@wf.compile
def accuracy(model, x, y):
    found = wf.argmax(model(x), axis=1)
    return wf.mean(wf.astype(found == y, wf.float32))


start = time.perf_counter()
for epoch in range(epochs):
    for x, y in loader:
        value, model, state = step(model, state, x, y)
    seconds = time.perf_counter() - start
    print(f"epoch {epoch}: loss {value.item():.4f}, {seconds:.1f} s")

right = accuracy(model, test_x, test_y).item()
print(f"accuracy on unseen images: {right:.1%}")
assert right > 0.95
assert step.stats.traces == 1, "one trace serves all steps"
