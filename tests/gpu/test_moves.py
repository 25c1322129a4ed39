"""`to_device` is an op like any other: programs over several devices, under every transform."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.gpu.comparison import agree
from weft.errors import DeviceError, DeviceMismatchError

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(5, 4)).astype(np.float32)
WEIGHTS = [RNG.normal(size=s).astype(np.float32) for s in ((4, 3), (3, 6), (6,))]
HERE = ("cpu", "cpu:1", "cpu")


@pytest.fixture
def second(gpus) -> str:
    """Another GPU, if there is one."""
    return f"cuda:{len(gpus) > 1:d}"


@pytest.fixture
def there(second) -> tuple[str, ...]:
    """Places like `HERE`, on GPUs."""
    return ("cuda:0", second, "cpu")


def there_and_back(x, a, b, home):
    h = wf.tanh(x.to_device(a) * 2)
    k = wf.sum(h.to_device(b) ** 2, axis=0)
    return (k.to_device(home) + x.sum(axis=0)).sum()


def layers(x, a, b, home):
    first, second, third = (
        wf.tensor(w, device=d) for w, d in zip(WEIGHTS, (home, a, b), strict=True)
    )

    def loss(weights):
        h = wf.relu(x @ weights[0]).to_device(a) @ weights[1]
        return wf.mean(h.to_device(b) ** 2 * weights[2]).to_device(home)

    return wf.value_and_grad(loss)((first, second, third))


def looped(x, a, b, home):
    def body(carry, row):
        carry = wf.sin(carry.to_device(a) * 2).to_device(b).to_device(home) + row
        return carry, carry * 2

    return wf.scan(body, x[0], x)


def spread_loop(x, a, b, home):
    """Weights, carries and what is stacked on three devices."""
    w = wf.ones((4,), device=b) * 0.5

    def body(carry, row):
        here, there = carry
        there = wf.tanh(there + row.to_device(a))
        here = here + (w * there.to_device(b)).to_device(home)
        return (here, there), (here, there * 2, there.to_device(b))

    return wf.scan(body, (x[0], x[1].to_device(a)), x)


def spread_gradient(x, a, b, home):
    def loss(w, v):
        def body(carry, row):
            return wf.sin(carry * w).to_device(b).to_device(a) + row.to_device(a), None

        return wf.sum(wf.scan(body, v[0].to_device(a), v)[0]).to_device(home)

    return wf.grad(loss, argnums=(0, 1))(wf.ones((4,), device=a), x)


PROGRAMS = {
    "a loop over devices": spread_loop,
    "its gradient": spread_gradient,
    "a mapped loop": lambda x, *d: wf.vmap(lambda v: spread_loop(v * x, *d))(x),
    "a condition elsewhere": lambda x, a, b, home: wf.while_loop(
        lambda c: wf.sum(c[1].to_device(b)) < 99,
        lambda c: (c[0] + 1, c[1] * 2 + 1),
        (x, wf.abs(x).to_device(a)),
    ),
    "there and back": there_and_back,
    "gradient": lambda x, *d: wf.grad(lambda v: there_and_back(v, *d))(x),
    "gradients of layers": layers,
    "hessian": lambda x, *d: wf.hessian(lambda v: there_and_back(v[None] * x, *d))(x[0]),
    "vmap": lambda x, *d: wf.vmap(lambda v: there_and_back(v[None], *d))(x),
    "gradients of rows": lambda x, *d: wf.vmap(wf.grad(lambda v: there_and_back(v[None], *d)))(x),
    "jvp": lambda x, *d: wf.jvp(lambda v: there_and_back(v, *d), (x,), (x,)),
    "scan": looped,
    "gradient of scan": lambda x, *d: wf.grad(lambda v: wf.sum(looped(v, *d)[1]))(x),
    "scan elsewhere": lambda x, a, b, home: looped(x.to_device(a), home, b, a)[1].to_device(home),
    "while": lambda x, a, b, home: wf.while_loop(
        lambda c: wf.sum(c.to_device(a)).to_device(home) < 100,
        lambda c: (c.to_device(b) * 2).to_device(home) + 1,
        wf.abs(x),
    ),
    "a branch that hands on": lambda x, a, b, home: wf.cond(
        wf.sum(x) > 0, lambda u, v: (u, v), lambda u, v: (u, v * 2), x.to_device(a), x.to_device(b)
    ),
    "a loop that hands on": lambda x, a, b, home: wf.scan(
        lambda c, _: ((c[0], wf.sin(c[1])), None), (x.to_device(a), x.to_device(b)), None, length=2
    ),
    "a count elsewhere": lambda x, a, b, home: wf.while_loop(
        lambda c: c[1] < 3, lambda c: (c[0] * 2, c[1] + 1), (x.to_device(a), wf.tensor(0, device=b))
    ),
    "mapped choices": lambda x, a, b, home: wf.vmap(
        lambda v: wf.cond(
            wf.sum(v) > 0, lambda u: u.to_device(a), lambda u: wf.sin(u).to_device(a), v
        )
    )(x),
    "a loop that is computed again": lambda x, a, b, home: wf.grad(
        lambda v: sum(
            wf.sum(r).to_device(home)
            for r in wf.scan(
                wf.checkpoint(lambda c, r: (wf.sin(c + r.to_device(home)), c.to_device(a))),
                v[0],
                v.to_device(b),
            )
        )
    )(x),
    "numbers": lambda x, a, b, home: wf.compile(lambda v, n: ((v * n).to_device(a) * n, n, v))(
        x, 3.0
    ),
    "cond": lambda x, a, b, home: wf.cond(
        wf.sum(x) > 0, lambda v: v.to_device(a) * 3, lambda v: wf.sin(v).to_device(a), x
    ).to_device(home),
    "checkpoint": lambda x, a, b, home: wf.grad(
        lambda v: wf.checkpoint(lambda u: wf.sum(wf.sin(u.to_device(a))))(v)
    )(x),
    "compiled inside": lambda x, a, b, home: wf.compile(
        lambda v: v.to_device(a) @ v.to_device(a).T
    )(x).to_device(home),
    "effects in order": lambda x, a, b, home: wf.print("{}", x[0, 0].to_device(a)) or x * 2,
}


def results(function, places):
    x = wf.tensor(ROWS, device=places[2])
    found = wf.tree_leaves(function(x, *places))
    for leaf in found:
        assert (leaf.device.kind == "cpu") is isinstance(leaf._impl.realize(), np.ndarray)
    return [leaf.host() for leaf in found]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_over_several_devices_give_the_bits_of_one(name, compiled, there):
    def run(x, *places):
        function = lambda v: PROGRAMS[name](v, *places)  # noqa: E731
        return (wf.compile(function) if compiled else function)(x)

    assert agree(results(run, there), results(run, HERE), "cuda")


@pytest.mark.parametrize(
    "name", [n for n in PROGRAMS if "hands on" in n or "again" in n or n == "numbers"]
)
def test_programs_begin_on_a_gpu_too(name, second):
    function = wf.compile(PROGRAMS[name], static_argnums=(1, 2, 3))
    others = ("cuda:0", "cpu", second)
    assert agree(results(function, others), results(function, ("cpu:1", "cpu:2", "cpu")), "cuda")


def test_gradients_are_where_their_weights_are(there, second):
    _, slopes = layers(wf.tensor(ROWS), *there)
    assert [x.device.name for x in slopes] == ["cpu:0", "cuda:0", second]


def test_a_loop_over_several_devices_is_named_as_such(there):
    step = wf.compile(lambda x: spread_loop(x, *there))
    assert "scan over several devices" in step.explain(wf.tensor(ROWS))


def test_the_tape_goes_through_a_move():
    x = wf.tensor(ROWS)
    x.requires_grad = True
    wf.backward(wf.sum(wf.sin(x.to_device("cuda"))))
    assert x.grad.device.name == "cpu:0" and np.array_equal(x.grad.host(), wf.cos(ROWS).host())


def test_calls_of_one_device_are_compiled_together():
    step = wf.compile(lambda x: wf.sum(wf.exp(x.to_device("cuda") * 2 + 1) * 3).to_device("cpu"))
    step(wf.tensor(ROWS))
    lines = [line.split()[0] for line in step.explain(wf.tensor(ROWS)).splitlines()]
    assert lines.count("transfer") == 2 and lines.count("kernel") == 1
    with wf.profile() as profile:
        step(wf.tensor(ROWS))
    assert {row.kind: row.calls for row in profile.rows if row.name == "transfer"} == {"op": 2}


def test_shaders_and_the_processor_share_a_program(device):
    x = wf.tensor(ROWS)
    step = wf.compile(wf.grad(lambda x: (wf.sin(x.to_device(device)) * 2).sum().to_device("cpu")))
    assert agree([step(x).host()], [2 * wf.cos(x).host()], device)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda x: x.to_device("cuda:7"), DeviceError, "cuda:7: does not exist"),
        (lambda x: x.to_device("cuda") + x, DeviceMismatchError, "never copies in silence"),
        (
            lambda x: wf.cond(wf.sum(x) > 0, lambda v: v.to_device("cuda"), lambda v: v, x),
            DeviceMismatchError,
            "switch: result 0 is on cuda:0, in another branch on cpu:0",
        ),
        (
            lambda x: wf.scan(lambda c, r: ((c + r).to_device("cuda"), None), x[0], x),
            DeviceMismatchError,
            "scan: carry 0 is on cpu:0, after a step on cuda:0",
        ),
    ],
)
def test_what_cannot_be_moved_says_why(function, error, text, compiled):
    function = wf.compile(function) if compiled else function
    with pytest.raises(error, match=text):
        wf.grad(lambda x: wf.tree_leaves(function(x))[0].sum())(wf.tensor(ROWS))


OPTIMIZERS = {
    "adam, clipped": lambda o: o.chain(o.clip_by_global_norm(0.1), o.adam(1e-2, amsgrad=True)),
    "a schedule": lambda o: o.sgd(o.schedules.cosine(0.1, 9), momentum=0.9),
    "nadam": lambda o: o.nadam(1e-2),
    "radam": lambda o: o.radam(1e-2),
    "adamax": lambda o: o.adamax(1e-2),
    "adafactor": lambda o: o.adafactor(weight_decay=0.1),
    "muon": lambda o: o.muon(1e-2),
    "scaled losses": lambda o: o.loss_scaled(o.adam(1e-2)),
    "plateaus": lambda o: o.reduce_on_plateau(o.adam(1e-2)),
    "accumulated": lambda o: o.accumulate(o.adam(1e-2), 2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_take_parameters_of_several_devices(name, second):
    optimizer, average = OPTIMIZERS[name](wf.optim), wf.optim.ema(0.9, warmup=True)

    def trained(places):
        weights = {d: wf.tensor(ROWS * (k + 1), device=d) for k, d in enumerate(places)}
        state, mean = optimizer.init(weights), average.init(weights)
        for _ in range(2):
            updates, state = optimizer.update(weights, state, weights)
            weights = wf.optim.apply(weights, updates)
            mean = average.update(weights, mean)
        assert all(x.device.name == d for d in places for x in (weights[d], mean.value[d]))
        return [x.host() for each in (weights, mean.value) for x in each.values()]

    others = ("cuda:0", "cpu:0" if second == "cuda:0" else second)
    assert agree(trained(others), trained(("cpu:0", "cpu:1")), "cuda")
