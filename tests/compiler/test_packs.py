"""Weights that last are packed once: what is kept is as good as what is packed in each run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.test_contract import Case, arrays, product
from weft.compiler import assemble, panels
from weft.compiler.kernels import evaluate
from weft.compiler.narrow import narrow_combine
from weft.compiler.native import Native
from weft.compiler.packs import Packs
from weft.compiler.passes.contract_blocks import using_path
from weft.compiler.passes.contract_shared import Packing, contract_shared
from weft.compiler.steps import ScanLoop
from weft.compiler.verify import verify
from weft.config import settings
from weft.testing.ir import run_kernel

RANDOM = np.random.default_rng(11)
OUT = wf.tensor(RANDOM.standard_normal((2048, 40)).astype(np.float32))


def normal(*shape: int, dtype: Any = "float32") -> wf.Tensor:
    return wf.tensor(RANDOM.standard_normal(shape).astype(dtype))


def packs_of(function: Any, *args: Any) -> Packs | None:
    found: Packs | None = function.prepared(args, {}).executable.packs
    return found


def runs_of(function: Any, *args: Any) -> int:
    """How often the weights of a compiled function were packed."""
    packs = packs_of(function, *args)
    assert packs is not None
    return packs.runs


def plainly(function: Callable[..., Any], *args: Any) -> bytes:
    """The bits of the same products with weights as arguments."""
    return bytes(wf.compile(function)(*args).numpy().tobytes())


@pytest.mark.parametrize("rows", [1, 2, 7, 33, 70, 300])
@pytest.mark.parametrize("turned", [False, True])
def test_any_number_of_rows_has_the_bits_of_weights_that_are_arguments(
    rows: int, turned: bool
) -> None:
    weight = normal(301, 277) if turned else normal(277, 301)
    bias, x = normal(301), normal(rows, 277)

    def layer(x: wf.Tensor, weight: wf.Tensor, bias: wf.Tensor) -> wf.Tensor:
        return wf.maximum(x @ (weight.T if turned else weight) + bias, 0)

    compiled = wf.compile(lambda x: layer(x, weight, bias))
    for _ in range(3):
        assert compiled(x).numpy().tobytes() == plainly(layer, x, weight, bias)
    assert runs_of(compiled, x) == 1


@pytest.mark.parametrize("dtype", ["float64", "int32", "int8", "bfloat16"])
def test_other_dtypes_are_kept_too(dtype: str) -> None:
    weight, x = ((normal(*shape) * 20).astype(dtype) for shape in ((700, 600), (9, 700)))
    compiled = wf.compile(lambda x: x @ weight)
    compiled(x)
    assert compiled(x).numpy().tobytes() == plainly(lambda x, w: x @ w, x, weight)
    if narrow_combine(weight.dtype):
        return  # tiles are packed in each call
    assert runs_of(compiled, x) == 1


def test_a_factor_on_the_left_is_kept_too() -> None:
    weight, x = normal(500, 300), normal(300, 40)
    compiled = wf.compile(lambda x: weight @ x)
    assert compiled(x).numpy().tobytes() == plainly(lambda w, x: w @ x, weight, x)
    compiled(x)
    assert runs_of(compiled, x) == 1


def test_weights_of_another_dtype_are_kept_as_factors() -> None:
    weight, x = normal(400, 300).astype("bfloat16"), normal(5, 400)
    compiled = wf.compile(lambda x: x @ weight.astype("float32"))
    compiled(x)
    wanted = plainly(lambda x, w: x @ w.astype("float32"), x, weight)
    assert compiled(x).numpy().tobytes() == wanted
    assert runs_of(compiled, x) == 1


def test_a_model_packs_its_weights_at_the_first_call_alone() -> None:
    class Model(wf.nn.Module):
        first: wf.nn.Linear
        second: wf.nn.Linear

        def __call__(self, x: wf.Tensor) -> wf.Tensor:
            return self.second(wf.relu(self.first(x)))

    key = wf.random.key(3)
    model = Model(wf.nn.Linear(256, 512, key=key), wf.nn.Linear(512, 256, key=key))
    compiled, x = wf.compile(model), normal(12, 256)
    for _ in range(3):
        assert np.array_equal(compiled(x).numpy(), model(x).numpy())
    assert runs_of(compiled, x) == 1
    assert compiled.stats.bytes_kept >= 2 * 4 * 256 * 512
    assert "packed once for all calls: factors 2" in compiled.explain(x)


def test_a_tensor_that_was_assigned_to_is_packed_again() -> None:
    weight, x = normal(400, 300), normal(5, 400)
    compiled = wf.compile(lambda x: x @ weight)
    compiled(x)
    weight[3] = 7.0
    assert compiled(x).numpy().tobytes() == plainly(lambda x, w: x @ w, x, weight)
    assert runs_of(compiled, x) == 2


def test_a_variable_that_was_bound_to_another_tensor_is_packed_again() -> None:
    weight, x = normal(400, 300), normal(5, 400)

    def function(x: wf.Tensor) -> wf.Tensor:
        return x @ weight

    compiled = wf.compile(function)
    old = compiled(x).numpy().tobytes()
    weight = normal(400, 300)
    assert compiled(x).numpy().tobytes() == plainly(lambda x, w: x @ w, x, weight) != old


def test_memory_that_was_given_away_is_packed_again() -> None:
    weight, x = normal(400, 300), normal(5, 400)

    def function(x: wf.Tensor) -> wf.Tensor:
        return x @ weight

    compiled = wf.compile(function)
    old = compiled(x).numpy().tobytes()
    step = wf.compile(lambda w: w * 2.0, donate_argnums=0)
    for _ in range(2):  # the result is in the memory of the argument
        weight = step(weight)
    assert compiled(x).numpy().tobytes() == plainly(lambda x, w: x @ w, x, weight) != old


def test_memory_that_others_can_write_to_is_read_in_each_call() -> None:
    weight, x = normal(400, 300), normal(5, 400)
    compiled = wf.compile(lambda x: x @ weight)
    compiled(x)
    handed_out = np.from_dlpack(weight)
    for value in (2.0, 3.0):
        handed_out[:] = value
        assert compiled(x).numpy().tobytes() == plainly(lambda x, w: x @ w, x, weight)


def test_memory_of_other_libraries_is_not_kept() -> None:
    foreign = RANDOM.standard_normal((400, 300)).astype(np.float32)
    weight, x = wf.from_numpy(foreign), normal(5, 400)

    def function(x: wf.Tensor) -> wf.Tensor:
        return x @ weight

    compiled = wf.compile(function)
    compiled(x)
    assert packs_of(compiled, x) is None
    weight = wf.tensor(foreign)  # ours, where the function was compiled for one that is not
    assert compiled(x).numpy().tobytes() == plainly(lambda x, w: x @ w, x, weight)


def test_a_variable_that_gets_memory_of_others_is_packed_in_each_call() -> None:
    weight, x = normal(400, 300), normal(5, 400)

    def function(x: wf.Tensor) -> wf.Tensor:
        return x @ weight

    compiled = wf.compile(function)
    compiled(x)
    foreign = RANDOM.standard_normal((400, 300)).astype(np.float32)
    weight = wf.from_numpy(foreign)
    for value in (2.0, 3.0):
        foreign[:] = value
        assert compiled(x).numpy().tobytes() == plainly(lambda x, w: x @ w, x, wf.tensor(foreign))


def test_weights_that_turn_out_to_change_in_each_call_are_not_kept() -> None:
    weight, x = normal(400, 300), normal(5, 400)

    def function(x: wf.Tensor) -> wf.Tensor:
        return x @ weight

    compiled = wf.compile(function)
    for _ in range(8):
        weight = normal(400, 300)
        assert compiled(x).numpy().tobytes() == plainly(lambda x, w: x @ w, x, weight)
    assert runs_of(compiled, x) == 4
    again = wf.compile(function)
    for _ in range(8):
        weight = normal(400, 300)
        for _ in range(2):
            assert again(x).numpy().tobytes() == plainly(lambda x, w: x @ w, x, weight)
    assert runs_of(again, x) == 8


@pytest.mark.parametrize("lead", [(3, 7), (1, 5), (1, 1), (1, 1, 9)])
def test_batches_of_rows_share_what_is_kept(lead: tuple[int, ...]) -> None:
    weight, x = normal(400, 300), normal(*lead, 400)
    compiled = wf.compile(lambda x: x @ weight)
    assert compiled(x).numpy().tobytes() == plainly(lambda x, w: x @ w, x, weight)
    assert runs_of(compiled, x) == 1


def test_a_profile_of_a_program_from_disk_packs_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "cache_dir", str(tmp_path))
    weight, x = normal(400, 300), normal(5, 400)
    first, second = (wf.compile(lambda x: x @ weight) for _ in range(2))
    wanted = first(x).numpy().tobytes()
    assert second(x).numpy().tobytes() == wanted
    with wf.profile():
        assert second(x).numpy().tobytes() == wanted
    assert second.stats.from_disk == 1


def test_what_changes_in_most_calls_is_packed_in_each() -> None:
    arguments = normal(5, 400), normal(400, 300)
    compiled = wf.compile(lambda x, w: x @ w)
    compiled(*arguments)
    assert packs_of(compiled, *arguments) is None


def test_an_exported_function_packs_its_weights_once(tmp_path: Path) -> None:
    weight, x = normal(400, 300), normal(5, 400)
    compiled = wf.compile(lambda x: x @ weight)
    wanted = compiled(x).numpy().tobytes()
    compiled.export(tmp_path / "layer", x)
    loaded = wf.load_compiled(tmp_path / "layer")
    assert [loaded(x).numpy().tobytes() for _ in range(3)] == [wanted] * 3
    packs: Any = loaded._compiled.executable
    assert packs.packs.runs == 1


def test_a_program_from_disk_packs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "cache_dir", str(tmp_path))
    weight, x = normal(400, 300), normal(5, 400)
    first, second = (wf.compile(lambda x: x @ weight) for _ in range(2))
    assert first(x).numpy().tobytes() == second(x).numpy().tobytes()
    assert second.stats.from_disk == 1
    assert second.stats.bytes_kept == first.stats.bytes_kept > 0
    assert runs_of(second, x) == 1


def test_weights_inside_a_loop_are_packed_outside_of_it() -> None:
    weight, x = normal(300, 300) * 0.05, normal(5, 300)

    def repeated(x: wf.Tensor, weight: wf.Tensor) -> wf.Tensor:
        return wf.scan(lambda h, _: (wf.tanh(h @ weight), None), x, None, length=4)[0]

    compiled = wf.compile(lambda x: repeated(x, weight))
    compiled(x)
    assert compiled(x).numpy().tobytes() == plainly(repeated, x, weight)
    assert runs_of(compiled, x) == 1


def test_no_more_is_kept_than_the_setting_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, x = normal(512, 256), normal(256, 512), normal(5, 512)
    room = 4 * 512 * 300  # for one of them, padded
    for limit, most in ((0, 0), (room, room), (1 << 32, 2 * room)):
        monkeypatch.setattr(settings, "kept_bytes", limit)
        compiled = wf.compile(lambda x: x @ first @ second)
        compiled(x)
        assert most // 2 < compiled.stats.bytes_kept + (not most) <= most + (not most)


def test_what_is_kept_is_in_the_report_of_memory() -> None:
    weight, x = normal(900, 700), normal(5, 900)
    compiled = wf.compile(lambda x: x @ weight)
    compiled(x)
    held = [each.nbytes for each in wf.memory_report().allocations]
    assert compiled.stats.bytes_kept in held


@pytest.mark.parametrize("vector_bytes, registers", [(16, 32), (32, 16), (64, 32)])
@pytest.mark.parametrize("lasting", [{0}, {1}, {0, 1}])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("rows", [15, 1])
def test_every_vector_width_gives_the_bits_of_plain_loops(
    vector_bytes: int, registers: int, lasting: set[int], shared: bool, rows: int
) -> None:
    case = Case(rows, 17, 9, lifted=shared and rows > 1).transposed(shared, not shared)
    kernel, numbers = product(case), case.parameters
    packing = Packing((shared, shared), frozenset(lasting))
    with using_path("shared"):
        made = contract_shared(kernel, vector_bytes, registers, packing=packing)
    *runs, keeps = made
    assert len(runs) == 1 + (shared and len(lasting) == 1)
    dtype, count = keeps.notes["kept"]
    given = arrays(case)
    if len(runs) == 2:
        count_packed = evaluate(runs[0].notes["partials"][1], numbers)
        given = [*given, np.full(count_packed, np.nan, dtype)]
    given = [*given, np.full(evaluate(count, numbers), np.nan, dtype)]
    for each in (keeps, *runs):
        given = run_kernel(verify(each, True), given, numbers, False)
    wanted = run_kernel(kernel, arrays(case), numbers)
    for x, y in zip(wanted, given, strict=False):
        assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize(
    "after",
    [
        lambda y: wf.max(y, axis=-1),
        lambda y: wf.argmax(y, axis=-1),
        lambda y: wf.sum(y, axis=-1),
        lambda y: wf.logsumexp(y, axis=-1),
        lambda y: wf.relu(y) @ OUT,
    ],
    ids=["max", "argmax", "sum", "logsumexp", "product"],
)
def test_rows_of_a_kept_product_that_are_used_up_are_never_all_there(
    after: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panels, "pool", SimpleNamespace(cores=2))
    weight, bias, x = normal(128, 2048), normal(2048), normal(500, 128)

    def function(x: wf.Tensor, weight: wf.Tensor, bias: wf.Tensor) -> wf.Tensor:
        return after(x @ weight + bias)

    compiled = wf.compile(lambda x: function(x, weight, bias))
    got = compiled(x).numpy().tobytes()
    with using_path("packed"):
        assert got == plainly(function, x, weight, bias)
    assert "panels of" in compiled.explain(x)
    assert compiled.stats.bytes_planned < 4 * 500 * 2048 // 2
    compiled(x)
    assert runs_of(compiled, x) == 1


def recurrent(h: wf.Tensor, weight: wf.Tensor, xs: wf.Tensor) -> wf.Tensor:
    return wf.scan(lambda h, x: (wf.tanh(h @ weight + x), None), h, xs)[0]


def nested(h: wf.Tensor, weight: wf.Tensor, xs: wf.Tensor) -> wf.Tensor:
    return wf.scan(lambda h, _: (recurrent(h, weight, xs), None), h, None, length=9)[0]


@pytest.mark.parametrize("function", [recurrent, nested])
@pytest.mark.parametrize("rows", [1, 30])
def test_a_loop_packs_what_it_does_not_change_before_it_begins(
    function: Any, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    h, weight, xs = normal(rows, 300), normal(300, 300) * 0.05, normal(9, rows, 300)
    gradient = wf.value_and_grad(lambda *args: function(*args).sum(), argnums=(0, 1))
    made: list[list[bytes]] = []
    for often in (assemble.OFTEN, 1 << 30):
        monkeypatch.setattr(assemble, "OFTEN", often)
        monkeypatch.setattr(settings, "cache_bytes", 0)
        compiled = [wf.compile(f) for f in (function, gradient)]
        found = wf.tree_leaves([f(h, weight, xs) for f in compiled])
        made.append([x.numpy().tobytes() for x in found])
        loop, text = "scan, 9 times", compiled[0].explain(h, weight, xs)
        before, after = text.split(loop, 1)
        assert ("_keep" in before) == (often < 1 << 30)
        assert "_keep" not in after
    assert made[0] == made[1]


def test_a_loop_packs_small_weights_and_reads_its_vector_where_it_lies() -> None:
    h, weight, xs = normal(64), normal(64, 64) * 0.1, normal(20, 64)
    steps = Native(wf.trace(recurrent, h, weight, xs)).steps
    (loop,) = (step for step in steps if isinstance(step, ScanLoop))
    (call,) = (each for each in loop.body if "matmul" in each.name)
    kernel = call.request.compiled.kernels[call.number]
    assert "spared" in kernel.notes  # what it reads instead was packed before
    assert not kernel.notes["contract"].pack_left
    small = Native(wf.trace(recurrent, normal(32), normal(32, 32), normal(20, 32))).steps
    assert not any("_keep" in getattr(step, "name", "") for step in small)


def test_short_loops_pack_nothing_beforehand() -> None:
    arguments = normal(5, 300), normal(300, 300), normal(3, 5, 300)
    assert "_keep" not in wf.compile(recurrent).explain(*arguments)


class Layer(wf.nn.Module):
    weight: wf.Tensor

    def __call__(self, x: wf.Tensor) -> wf.Tensor:
        return x @ self.weight


def test_a_module_that_comes_again_and_again_is_packed_once() -> None:
    layer, x = Layer(normal(400, 300)), normal(5, 400)
    compiled = wf.compile(lambda layer, x: layer(x))
    for _ in range(3):
        assert compiled(layer, x).numpy().tobytes() == plainly(wf.matmul, x, layer.weight)
    assert runs_of(compiled, layer, x) == 1
    other = Layer(normal(400, 300))
    assert compiled(other, x).numpy().tobytes() == plainly(wf.matmul, x, other.weight)
    assert runs_of(compiled, layer, x) == 2


def test_a_module_whose_arrays_others_write_to_is_read_in_each_call() -> None:
    foreign, x = RANDOM.standard_normal((400, 300)).astype(np.float32), normal(5, 400)
    compiled = wf.compile(lambda layer, x: layer(x))
    for given in (wf.from_numpy, lambda array: array):
        layer = Layer(given(foreign))
        for _ in range(6):
            foreign += 1
            assert compiled(layer, x).numpy().tobytes() == plainly(wf.matmul, x, wf.tensor(foreign))


def test_a_module_that_is_trained_is_not_kept() -> None:
    layer, x = Layer(normal(400, 300)), normal(5, 400)
    step = wf.compile(wf.value_and_grad(lambda layer, x: layer(x).sum()))
    step(layer, x)
    assert packs_of(step, layer, x) is None
    each = wf.compile(wf.vmap(wf.grad(lambda layer, x: layer(x).sum()), in_axes=(None, 0)))
    each(layer, x)
    assert packs_of(each, layer, x) is None


def test_what_is_kept_has_no_room_for_points_that_there_are_not() -> None:
    weight, x = normal(300, 480), normal(5, 300)  # the depth is a piece of 256 and a part
    compiled = wf.compile(lambda x: x @ weight)
    compiled(x)
    assert compiled.stats.bytes_kept <= 4 * 300 * (480 + 64)


def test_threads_that_change_weights_and_run_see_whole_ones() -> None:
    weights = [wf.full((400, 300), float(value)) for value in (1, 2)]
    weight, x = weights[0], wf.ones((5, 400))

    def function(x: wf.Tensor) -> wf.Tensor:
        return x @ weight

    compiled = wf.compile(function)
    compiled(x)
    seen: list[set[float]] = []

    def run() -> None:
        seen.extend(set(compiled(x).numpy().ravel().tolist()) for _ in range(50))

    threads = [Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(200):
        weight = weights[turn % 2]
    for thread in threads:
        thread.join()
    assert len(seen) == 150
    assert all(values in ({400.0}, {800.0}) for values in seen)


def test_a_loop_turns_a_small_weight_once_before_it_begins() -> None:
    weight, x = normal(64, 64) * 0.1, normal(64)

    def repeated(x: wf.Tensor, weight: wf.Tensor) -> wf.Tensor:
        return wf.scan(lambda h, _: (weight @ h, None), x, None, length=9)[0]

    compiled = wf.compile(repeated)
    assert compiled(x, weight).numpy().tobytes() == plainly(repeated, x, weight)
    assert "_keep" in compiled.explain(x, weight)
    assert "_keep" not in wf.compile(lambda x, weight: weight @ x).explain(x, weight)
