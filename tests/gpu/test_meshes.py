"""Meshes of GPUs: each piece lies on its own device, and results have the bits of a CPU mesh."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.gpu.comparison import agree
from weft import P
from weft.errors import DeviceError, DeviceMismatchError
from weft.testing.emulated_gpu import use_emulated_gpu

pytestmark = pytest.mark.slow  # every program has kernels for every GPU

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(8, 6)).astype(np.float32)
WEIGHTS = RNG.normal(size=(6, 4)).astype(np.float32)
COUNT = 4


@pytest.fixture(scope="module", autouse=True)
def gpus():
    """Four GPUs that the processor plays, wherever the tests run."""
    with use_emulated_gpu(COUNT) as found:
        yield found


def mesh_of(kind: str) -> wf.DeviceMesh:
    return wf.DeviceMesh("grid", (2, 2), ("data", "model"), [f"{kind}:{i}" for i in range(COUNT)])


def looped(x, w):
    return wf.scan(lambda c, r: (wf.tanh(c @ w @ w.T + r), c.sum(axis=0)), x, wf.arange(3.0))


PROGRAMS = {
    "product": lambda x, w: x @ w + 1,
    "gradients": wf.grad(lambda x, w: wf.mean(wf.tanh(x @ w) ** 2), argnums=(0, 1)),
    "softmax": lambda x, w: wf.softmax(x @ w, axis=0),
    "sort": lambda x, w: wf.sort(x, axis=0),
    "loop": looped,
    "gradients of a loop": wf.grad(lambda x, w: wf.sum(looped(x, w)[0]), argnums=(0, 1)),
    "while": lambda x, w: wf.while_loop(lambda c: wf.sum(c) < 500, lambda c: c * 2 + 1, wf.abs(x)),
    "cond": lambda x, w: wf.cond(wf.sum(x) > 0, lambda v: v * 2, lambda v: -v, x),
    "vmap": lambda x, w: wf.vmap(lambda r: wf.sin(r) @ w)(x),
    "views": lambda x, w: (x.T @ x, x.reshape(2, 4, 6).sum(axis=1), x[2:5] * 2),
    "joins": lambda x, w: wf.concat([x, x * 2]).reshard(P(None, "model")),
}


def results(kind: str, function, compiled: bool) -> list[np.ndarray]:
    mesh = mesh_of(kind)
    with wf.default_device(f"{kind}:0"):
        x = wf.shard(wf.tensor(ROWS, device="cpu"), mesh, P("data"))
        w = wf.shard(wf.tensor(WEIGHTS), mesh, P(None, "model"))
        found = wf.tree_leaves((wf.compile(function) if compiled else function)(x, w))
    for leaf in found:
        for shard in leaf.dual.shards:
            assert shard.device.kind == kind and shard.tensor.device is shard.device
    return [leaf.host() for leaf in found]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_the_bits_of_a_mesh_of_the_processor(name, compiled):
    found, expected = (results(kind, PROGRAMS[name], compiled) for kind in ("cuda", "cpu"))
    assert agree(found, expected, "cuda")


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_functions_of_pieces_run_on_each_gpu(compiled):
    def body(x, w):
        total = wf.all_reduce(wf.sum(x @ w), ("data", "model"))
        turned = wf.ppermute(x, "data", [(0, 1), (1, 0)])
        return wf.sin(turned) * total + wf.axis_index("data")

    made = []
    for kind in ("cuda", "cpu"):
        with wf.default_device(f"{kind}:0"):
            x, w = wf.tensor(ROWS), wf.tensor(WEIGHTS)
            step = wf.shard_map(
                body, mesh_of(kind), (P("data"), P(None, "model")), P("data"), manual=True
            )
            slope = wf.grad(lambda x, w, step=step: wf.sum(step(x, w) ** 2), argnums=(0, 1))
            both = lambda x, w, step=step, slope=slope: (step(x, w), slope(x, w))  # noqa: E731
            found = (wf.compile(both) if compiled else both)(x, w)
            made.append([leaf.host() for leaf in wf.tree_leaves(found)])
    assert agree(*made, "cuda")


def test_training_over_gpus_gives_the_bits_of_the_processor():
    made = []
    for kind in ("cuda", "cpu"):
        mesh = wf.DeviceMesh("line", (2,), ("data",), [f"{kind}:0", f"{kind}:1"])
        optimizer = wf.optim.adam(1e-2)
        with wf.default_device(f"{kind}:0"):
            model = wf.nn.Linear(6, 4, key=wf.random.key(0))
            model = wf.tree_map(lambda p, mesh=mesh: wf.shard(p, mesh, P()), model)
            state = optimizer.init(model)
            x = wf.shard(wf.tensor(ROWS), mesh, P("data"))

            @wf.compile
            def step(model, state, x, optimizer=optimizer):
                value, slopes = wf.value_and_grad(lambda m: wf.mean(m(x) ** 2))(model)
                changes, state = optimizer.update(slopes, state, model)
                return value, wf.optim.apply(model, changes), state

            for _ in range(3):
                value, model, state = step(model, state, x)
        made.append([leaf.host() for leaf in wf.tree_leaves((value, model))])
    assert agree(*made, "cuda")


def test_a_tensor_comes_from_anywhere_and_its_gradient_goes_back():
    x = wf.tensor(ROWS)  # of the processor
    slope = wf.grad(lambda x: wf.sum(wf.sin(wf.shard(x, mesh_of("cuda"), P("data"))) ** 2))(x)
    assert slope.device.name == "cpu:0"
    assert np.allclose(slope.host(), np.sin(2 * ROWS), atol=1e-6)


def test_a_part_goes_to_its_gpu_alone(gpus):
    before = [gpu.stats().live_bytes for gpu in gpus]
    x = wf.tensor(np.ones((400, 100), np.float32))
    x = wf.realize(wf.shard(x, mesh_of("cuda"), P(("data", "model"))))
    after = [gpu.stats().live_bytes for gpu in gpus]
    assert [b - a for a, b in zip(before, after, strict=True)] == [40_000] * COUNT
    assert x.sum().item() == 40_000.0


def test_what_does_not_fit_together_says_so():
    x = wf.shard(wf.tensor(ROWS), mesh_of("cuda"), P("data"))
    with pytest.raises(DeviceMismatchError, match=r"operand 1 is on cpu:0, others lie over mesh"):
        x + wf.tensor(ROWS)
    with pytest.raises(DeviceError, match="cuda:9: does not exist"):
        wf.shard(wf.tensor(ROWS), wf.DeviceMesh("m", (2,), ("x",), ["cuda:0", "cuda:9"]), P("x"))
    assert (x + wf.tensor(ROWS, device="cuda:1")).sum().item() == pytest.approx(2 * ROWS.sum())


def test_a_mesh_takes_what_is_on_one_of_its_devices():
    x, y = wf.shard(wf.tensor(ROWS), mesh_of("cuda"), P("data")), wf.tensor(ROWS, device="cuda:3")
    for function in (lambda x, y: y * x, wf.compile(lambda x, y: x * y)):
        assert np.array_equal(function(x, y).host(), ROWS * ROWS)


@wf.custom_vjp
def tripled(x):
    return wf.sin(x) + wf.zeros_like(x)


tripled.defvjp(lambda x: (tripled(x), x), lambda x, ct: (3 * wf.cos(x) * ct,))


def test_functions_with_derivatives_of_their_own_run_on_each_gpu():
    with wf.default_device("cuda"):
        x = wf.tensor(ROWS)
        spread = wf.shard_map(tripled, mesh_of("cuda"), P("data"), P("data"), manual=True)
        for slope in (wf.grad(lambda x: wf.sum(spread(x))), wf.grad(lambda x: wf.sum(tripled(x)))):
            assert np.array_equal(slope(x).host(), 3 * wf.cos(ROWS).host())
            assert np.array_equal(wf.compile(slope)(x).host(), 3 * wf.cos(ROWS).host())


def test_each_device_has_its_copy_of_a_whole_tensor():
    x = wf.shard(wf.tensor(ROWS), mesh_of("cuda"), P("data"))
    for shard in x.dual.shards:
        assert shard.tensor._impl.realize().gpu.number == shard.device.id
        assert np.array_equal((shard.tensor * 2).host(), 2 * ROWS[shard.index])


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_functions_of_pieces_call_back(kind):
    seen = []

    def body(x):
        wf.callback(lambda v: seen.append(float(v)) or (), (), wf.sum(x))
        return x * 2

    mesh = wf.DeviceMesh("line", (2,), ("data",), kind)
    wf.realize(wf.shard_map(body, mesh, P("data"), P("data"), manual=True)(wf.tensor(ROWS)))
    assert seen == [wf.sum(wf.tensor(half)).item() for half in (ROWS[:4], ROWS[4:])]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    "options", [{"manual": True}, {}, {"auto_sharding": True}], ids=["manual", "plain", "auto"]
)
def test_shard_map_takes_tensors_of_the_processor_to_gpus(options, compiled):
    made = []
    for kind in ("cuda", "cpu"):
        mesh = wf.DeviceMesh("line", (2,), ("data",), kind)

        def body(x, mesh=mesh):
            if options.get("manual"):
                x = x * (1 + wf.axis_index("data"))
            else:
                x = x + wf.with_sharding_constraint(wf.tanh(x) + 1, P(None, "data"), mesh)
            return wf.scan(lambda c, _: (c * 2 + wf.arange(6.0), None), x, None, length=2)[0]

        step = wf.shard_map(body, mesh, P("data"), P("data"), **options)
        made.append((wf.compile(step) if compiled else step)(wf.tensor(ROWS)))
        assert made[-1].sharding.mesh == mesh
    assert agree([made[0].host()], [made[1].host()], "cuda")


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_tensor_comes_back_from_a_mesh_of_gpus_to_one_of_the_processor(compiled):
    mesh = wf.DeviceMesh("line", (2,), ("data",))
    x = wf.shard(wf.tensor(ROWS), mesh_of("cuda"), P("data"))
    function = lambda x: wf.sin(wf.shard(x, mesh, P(None, "data"))) + wf.arange(6.0)  # noqa: E731
    back = (wf.compile(function) if compiled else function)(x)
    assert back.device.name == "cpu:0"
    assert all(isinstance(s.tensor._impl.realize(), np.ndarray) for s in back.dual.shards)
    assert np.array_equal(back.host(), function(wf.tensor(ROWS)).host())
    slope = wf.grad(lambda x: wf.sum(function(x)))(x)
    assert slope.sharding.mesh == mesh_of("cuda")
    assert np.array_equal(slope.host(), wf.cos(ROWS).host())


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_mesh_of_the_processor_takes_what_lies_on_a_gpu(compiled):
    def spread(x):
        return wf.shard(x, mesh_of("cpu"), P("data")) * 2

    found = (wf.compile(spread) if compiled else spread)(wf.tensor(ROWS, device="cuda:1"))
    assert found.device.kind == "cpu" and {s.tensor.device.kind for s in found.dual} == {"cpu"}
    assert np.array_equal(found.host(), 2 * ROWS)
