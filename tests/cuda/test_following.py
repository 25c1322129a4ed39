"""Composed functions, layers, optimisers and files on a GPU: nothing else is used beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.device_calls import CALLS, Call, legal_calls
from weft.config import settings
from weft.core.common.slots import FUNCTIONS
from weft.core.graph import GRAPH
from weft.errors import DeviceMismatchError

V = np.array([0.2, 0.5, 0.9, 0.4], np.float32)
M = np.linspace(0.1, 0.9, 12, dtype=np.float32).reshape(4, 3)


def on_gpu(array: Any) -> wf.Tensor:
    return wf.tensor(array, device="cuda")


def check(found: Any, want: Any) -> None:
    """Tensors of the same values, all on the GPU."""
    pairs = zip(wf.tree_leaves(found), wf.tree_leaves(want), strict=True)
    for x, y in pairs:
        if isinstance(x, wf.Tensor):
            assert x.device.name == "cuda:0"
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-5, atol=1e-6)


FOLLOWING = (
    "bincount cross_entropy nll_loss multi_margin_loss ediff1d gradient histogram2d median"
    " nanquantile percentile poly polyadd polydiv polyint roots trapezoid ldexp prelu interp where"
    " select choose insert take_along_axis cov average pad unique nonzero isin setxor1d einsum"
    " scan cond vmap jvp ctc_loss grid_sample kaiser linspace".split()
)


@pytest.mark.parametrize("name", FOLLOWING)
def test_a_function_follows_its_operands(name: str) -> None:
    function = FUNCTIONS[name]
    calls: list[Call] = (CALLS.get(name) or legal_calls(function))[:2]
    assert calls
    for call in calls:
        check(call.run(function, "cuda"), call.run(function, "cpu:0"))


def test_random_draws_are_where_the_key_is() -> None:
    for name, args in {
        "poisson": (3.0, (50,)),
        "binomial": (20, 0.4, (50,)),
        "wishart": (5.0, [[2.0, 0.5], [0.5, 1.0]]),
        "choice": ([1.0, 2.0, 3.0], (4,)),
        "permutation": (7,),
    }.items():
        draw = getattr(wf.random, name)
        check(draw(wf.random.key(3, device="cuda"), *args), draw(wf.random.key(3), *args))


def test_a_generator_on_a_gpu_goes_on_from_its_state() -> None:
    source = wf.random.Generator(wf.random.key(0, device="cuda"))
    source.normal((3,))
    state = source.get_state()
    first = source.normal((3,))
    source.set_state(state)
    assert first.device.name == state.device.name == "cuda:0"
    assert source.normal((3,)).tolist() == first.tolist()


def test_layers_are_where_their_key_is() -> None:
    def made(device: str) -> Any:
        key = wf.random.key(0, device=device)
        layer = wf.nn.inference(wf.nn.TransformerEncoderLayer(8, 2, key=key))
        x = wf.tensor(np.linspace(0, 1, 48, dtype=np.float32).reshape(1, 6, 8), device=device)
        return layer(x, mask=np.eye(6, dtype=bool)), layer

    check(made("cuda"), made("cpu:0"))


def test_an_lstm_takes_lengths_and_states() -> None:
    def made(device: str) -> Any:
        layer = wf.nn.LSTM(3, 4, key=wf.random.key(0, device=device))
        x = wf.tensor(np.linspace(0, 1, 30, dtype=np.float32).reshape(2, 5, 3), device=device)
        start = np.zeros((1, 2, 4), np.float32)
        return layer(x, (start, start), lengths=[3, 5])

    check(made("cuda"), made("cpu:0"))


@pytest.mark.parametrize("name", ["adam", "radam", "nadam", "adafactor", "lbfgs", "muon"])
def test_optimisers_are_where_the_parameters_are(name: str) -> None:
    def made(device: str) -> Any:
        transform = getattr(wf.optim, name)(0.1)
        params = {"w": wf.tensor(M, device=device)}
        state = transform.init(params)
        for _ in range(2):
            updates, state = transform.update(wf.tree_map(lambda p: p * 2, params), state, params)
            params = wf.optim.apply(params, updates)
        return params, state

    check(made("cuda"), made("cpu:0"))


def test_a_search_runs_there() -> None:
    found = wf.optim.minimize(lambda x: wf.sum((x - 0.5) ** 2), on_gpu(V))
    assert found.x.device.name == "cuda:0"
    np.testing.assert_allclose(found.x.numpy(), 0.5, atol=1e-3)


def test_files_are_written_and_read(tmp_path: Any) -> None:
    tree = {"w": on_gpu(M), "n": on_gpu(np.array([1, 2, 3]))}
    wf.checkpoints.save(tmp_path / "all", tree)
    check(wf.checkpoints.load(tmp_path / "all", like=tree), tree)
    wf.save_safetensors(tmp_path / "w.safetensors", tree)
    check(wf.load_safetensors(tmp_path / "w.safetensors", device="cuda"), tree)


def test_a_state_dict_is_taken_where_the_layer_is() -> None:
    layer = wf.nn.Linear(3, 4, key=wf.random.key(0, device="cuda"))
    arrays = {name: x.numpy() for name, x in wf.nn.state_dict(layer).items()}
    check(wf.nn.load_state_dict(layer, arrays), layer)


def test_batches_are_on_the_default_device() -> None:
    with wf.default_device("cuda"):
        batches = list(wf.data.Loader({"x": M}, 2, shuffle=True, key=0))
    want = list(wf.data.Loader({"x": M}, 2, shuffle=True, key=0))
    check(batches, want)


def test_batches_of_tensors_are_where_the_tensors_are() -> None:
    def options(**more: Any) -> dict[str, Any]:
        return {"batch_size": 2, "key": 0, **more}

    here = [(row, i) for i, row in enumerate(M)]
    there = [(on_gpu(row), i) for row, i in here]
    for more in ({}, {"prefetch": 0}, {"transform": lambda x: x * 2}):
        want = list(wf.data.Loader(M, **options(**more)))
        check(list(wf.data.Loader(on_gpu(M), **options(**more))), want)
    for x, n in wf.data.Loader(there, **options()):
        assert (x.device.kind, n.device.kind) == ("cuda", "cpu")
    for x, n in wf.data.Loader((on_gpu(M), np.arange(len(M))), **options()):
        assert (x.device.kind, n.device.kind) == ("cuda", "cpu")
        assert x.tolist() == M[n.numpy()].tolist()
    with wf.default_device("cuda"):
        found = next(iter(wf.data.Loader(wf.tensor(M, device="cpu"), **options())))
        assert found.device.kind == "cpu"
    with pytest.raises(DeviceMismatchError, match="one batch are on cuda:0 and cpu:0"):
        list(wf.data.Loader([on_gpu(M), wf.tensor(M)], 2, shuffle=False))


def _drawn_on_two(x: Any, y: Any) -> Any:
    first, second = wf.randn(3, device=x.device), wf.uniform((3,), device=y.device)
    return x * first + wf.randn(3, device=x.device), y * second


@pytest.mark.parametrize("places", [("cuda:0", "cpu:0"), ("cpu:0", "cpu:1")])
def test_a_compiled_function_draws_on_two_devices_what_a_plain_one_does(places: Any) -> None:
    x, y = (wf.ones(3, device=place) for place in places)
    step = wf.compile(_drawn_on_two)
    ways = [_drawn_on_two, step, lambda x, y: wf.vjp(step, x, y)[0]]
    ways += [wf.compile(lambda x, y: step(x, y))]
    for seed in (7, wf.random.key(7, device="cuda:0")):
        found = []
        for way in ways:
            wf.random.seed(seed)
            found.append([[t.tolist() for t in way(x, y)] for _ in range(2)])
        wf.random.seed(0)
        assert found[1:] == found[:1] * 3


def test_one_graph_runs_on_each_device_it_comes_from(monkeypatch: Any) -> None:
    monkeypatch.setattr(settings, "compile_after", 0)
    monkeypatch.setattr(settings, "small_elements", 0)
    before = GRAPH.counters.compilations
    for device in ("cpu:0", "cuda", "cpu:0", "cuda"):
        x = wf.tensor(M, device=device)
        found = wf.sum(wf.tanh(x * 2) + x, axis=0)
        assert isinstance(found.data(), np.ndarray) is (device == "cpu:0")
        np.testing.assert_allclose(found.numpy(), (np.tanh(M * 2) + M).sum(0), rtol=1e-5)
    assert GRAPH.counters.compilations == before + 2


def test_a_compiled_function_runs_on_each_device_it_is_called_with() -> None:
    run = wf.compile(lambda x: wf.median(x, axis=0) * 2)
    for device in ("cpu:0", "cuda", "cpu:0", "cuda"):
        found = run(wf.tensor(M, device=device))
        assert isinstance(found.data(), np.ndarray) is (device == "cpu:0")
        np.testing.assert_allclose(found.numpy(), np.median(M, axis=0) * 2, rtol=1e-6)


def test_assignments_and_views_follow() -> None:
    def made(device: str) -> wf.Tensor:
        x = wf.tensor(M, device=device)
        x[0] = [1.0, 2.0, 3.0]
        x[:, 1] += 2
        x[x > 2.5] = 0
        row = x[2]
        row[0] = 7
        return x

    check(made("cuda"), made("cpu:0"))


def test_imperative_gradients_are_there() -> None:
    x = on_gpu(V)
    x.requires_grad = True
    wf.sum(wf.sort(x) * np.arange(4, dtype=np.float32)).backward()
    assert x.grad.device.name == "cuda:0"
    assert x.grad.tolist() == [0.0, 2.0, 3.0, 1.0]


def test_a_scan_backwards_makes_the_same_graph() -> None:
    def made(device: str) -> Any:
        w, xs = wf.tensor(np.eye(3, dtype=np.float32), device=device), wf.tensor(M, device=device)

        def loss(w: wf.Tensor) -> wf.Tensor:
            return wf.sum(wf.scan(lambda c, x: (wf.tanh(c @ w + x), c), xs[0], xs)[0])

        return wf.grad(loss)(w)

    check(made("cuda"), made("cpu:0"))
