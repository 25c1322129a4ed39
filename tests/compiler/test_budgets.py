"""What compiled programs may cost: regions, bytes moved, memory kept, compilations.

Counts, not times: they are the same on every machine, and a change that breaks fusion shows here.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler import build_executable
from weft.compiler.kernels import STORE
from weft.compiler.native import Native
from weft.compiler.rewrite import rewrite
from weft.compiler.steps import Call, ScanLoop
from weft.runtime.registry import runtime

ROOT = Path(__file__).parents[2]


def softmax(x):
    e = wf.exp(x - wf.max(x, axis=-1, keepdims=True))
    return e / wf.sum(e, axis=-1, keepdims=True)


def layer_norm(x, scale, shift):
    centred = x - wf.mean(x, axis=-1, keepdims=True)
    spread = wf.mean(centred * centred, axis=-1, keepdims=True)
    return centred / wf.sqrt(spread + 1e-5) * scale + shift


def adam(parameters, gradients, first, second, rate):
    new = []
    for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        new.append((p - rate * m / (wf.sqrt(v) + 1e-8), m, v))
    return new


def made(function: Any, *arrays: Any) -> Native:
    trace, _ = rewrite(wf.trace(function, *arrays))
    return Native(trace)


def moved(program: Native) -> int:
    """Bytes of everything that the kernels read and write."""
    calls = [step for step in program.steps if isinstance(step, Call)]
    assert len(calls) == len(program.steps)
    return sum(place.nbytes for call in calls for place in dict.fromkeys(call.memory))


def least(program: Native) -> int:
    """Bytes of what goes in and comes out."""
    places = {*program._inputs, *program._outputs}
    used = {place for step in program.steps for place in step.memory}
    return sum(place.nbytes for place in places & used)


def ones(*shape: int) -> Any:
    return wf.tensor(np.ones(shape, np.float32))


def adam_state(count: int) -> Any:
    shapes = [(17 + i, 33) for i in range(count)]
    return [[ones(*shape) for shape in shapes] for _ in range(4)]


PROGRAMS = {
    "layer norm": lambda: made(layer_norm, ones(256, 1024), ones(1024), ones(1024)),
    "softmax": lambda: made(softmax, ones(256, 1024)),
    "chain": lambda: made(lambda x, y: wf.tanh(x * y + 1) - x, ones(512, 512), ones(512, 512)),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_one_region_reads_inputs_and_writes_outputs_once(program: Any) -> None:
    built = program()
    assert built.counts.regions == 1
    assert built.counts.bytes_planned == 0
    assert moved(built) <= 1.05 * least(built)


def test_adam_over_a_hundred_parameters_runs_in_two_regions() -> None:
    state = adam_state(100)
    built = made(adam, *state, wf.tensor(np.float32(1e-3)))
    assert built.counts.regions <= 2
    assert moved(built) <= 1.05 * least(built)


def test_sums_of_a_hundred_tensors_run_beside_each_other() -> None:
    tensors = adam_state(100)[0]
    built = made(lambda xs: [wf.sum(x * x) for x in xs], tensors)
    assert built.counts.regions == 2  # parts of sums, then sums of parts
    assert built.counts.bytes_planned < 1 << 18


def test_a_layer_and_its_activation_are_one_kernel() -> None:
    built = made(lambda x, w, b: wf.relu(x @ w + b), ones(64, 128), ones(128, 96), ones(96))
    assert built.counts.regions == 1
    assert moved(built) <= 1.05 * least(built)


def loss(weights, x):
    for w in weights:
        x = wf.tanh(x @ w)
    return wf.mean(x * x)


def test_live_bytes_return_to_the_baseline_after_a_step_of_training() -> None:
    weights = [ones(128, 128) * 0.01 for _ in range(4)]
    x = ones(256, 128)
    wf.realize([weights, x])
    step = wf.compile(lambda w, x: wf.value_and_grad(loss)(w, x))
    step(weights, x)
    gc.collect()
    gc.disable()
    try:
        baseline = runtime("cpu").allocator.stats().live_bytes
        for _ in range(5):
            value, gradients = step(weights, x)
            wf.realize([value, gradients])
            del value, gradients
        assert runtime("cpu").allocator.stats().live_bytes == baseline
        for _ in range(3):  # and so it does where calls are recorded, first interpreted
            value, gradients = wf.value_and_grad(loss)(weights, x)
            wf.realize([value, gradients])
            del value, gradients
        assert runtime("cpu").allocator.stats().live_bytes == baseline
    finally:
        gc.enable()


def test_a_tensor_that_was_compiled_does_not_keep_what_it_was_made_of() -> None:
    x = ones(300, 300)
    wf.realize(x)
    for _ in range(3):  # the later ones are compiled
        before = runtime("cpu").allocator.stats().live_blocks
        start = x * 2
        wf.realize(start)
        y = wf.sin(start) + 1
        wf.realize(y)
        del start
        assert runtime("cpu").allocator.stats().live_blocks == before + 1
        del y
        assert runtime("cpu").allocator.stats().live_blocks == before


def test_a_second_call_allocates_its_outputs_and_nothing_else() -> None:
    step = wf.compile(lambda x: (wf.tanh(wf.cumsum(x, axis=0) @ x), wf.cos(x)))
    x = ones(200, 200)
    step(x)
    before = runtime("cpu").allocator.stats()
    results = step(x)
    after = runtime("cpu").allocator.stats()
    assert after.live_blocks - before.live_blocks == len(results)
    # The arena was there for a moment, and it was the one of the first call.
    assert after.allocations - before.allocations == len(results) + 1
    assert after.cache_hits - before.cache_hits == len(results) + 1


BATCHES = {
    "chain": lambda x: wf.tanh(x * 2 + 1),
    "softmax": softmax,
    "mean of rows": lambda x: wf.mean(x, axis=1),
    "sum of columns": lambda x: wf.sum(x, axis=0),
    "transposed": lambda x: wf.matrix_transpose(x) * 2,
    "network": lambda x: wf.sum(wf.tanh(x @ ones(24, 32)) @ ones(32, 10), axis=-1),
}


@pytest.mark.parametrize("function", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("general", [False, True], ids=["found out", "told"])
def test_a_hundred_batch_sizes_need_three_compilations(
    monkeypatch: pytest.MonkeyPatch, function: Any, general: bool
) -> None:
    monkeypatch.setattr(build_executable._stored, "recall", lambda origin: None)
    # From 40 on: a size that equals another one of the program costs a compilation of its own.
    compiled = wf.compile(function, dynamic_dims={"x": 0} if general else None)
    before = STORE.compilations
    for size in range(40, 140):
        compiled(ones(size, 24))
    assert STORE.compilations - before <= (1 if general else 3)
    assert compiled.stats.native_compilations == STORE.compilations - before
    assert compiled.stats.traces == 100


def test_long_products_of_a_first_program_have_kernels_for_their_very_sizes() -> None:
    def function(x: Any, y: Any, z: Any) -> Any:
        return x @ y, x @ z, x[:5] @ y

    trace = wf.trace(function, ones(61, 127), ones(127, 47), ones(127, 53))
    shared, own = (
        [len(step.request.parameters) for step in Native(trace, own=flag).steps]
        for flag in (False, True)
    )
    assert sum(map(bool, shared)) >= 2, "only the first one of a form has its own"
    assert list(map(bool, own)) == [False, False, True], "short ones share theirs"


def test_few_rows_have_blocks_as_high_whatever_came_before() -> None:
    def product(rows: int, columns: int, general: bool = False) -> Any:
        trace = wf.trace(lambda x, y: x @ y, ones(rows, 331), ones(331, columns))
        (call,) = Native(trace, general=general).steps
        return call.request

    product(1, 401)
    for rows in (2, 3, 5, 9):
        for columns, general in ((401, False), (409, False), (401, True)):
            found = product(rows, columns, general)
            assert rows not in found.parameters
            assert found.compiled.kernels[0].notes["contract"].rows == rows
    assert 17 in product(17, 401).parameters


def test_parts_of_complex_numbers_are_no_parameters() -> None:
    trace = wf.trace(lambda x: x * x + wf.exp(x), wf.asarray(np.ones(3001, np.complex64)))
    (call,) = Native(trace, general=True).steps
    assert call.request.parameters == (3001,)


@pytest.mark.parametrize(("length", "shares"), [(2, True), (1000, False)])
def test_a_product_in_a_long_loop_has_a_kernel_for_its_very_sizes(
    length: int, shares: bool
) -> None:
    def network(w: Any, h: Any) -> Any:
        return wf.scan(lambda h, _: (wf.sin(h @ w + length), None), h, None, length=length)[0]

    found = []
    for size in (51, 53, 57):
        trace = wf.trace(network, ones(size, size), ones(1, size))
        (loop,) = (step for step in Native(trace, own=True).steps if isinstance(step, ScanLoop))
        (call,) = (each for each in loop.body if "matmul" in each.name)
        found.append(bool(call.request.parameters))
    assert found == [False, shares, shares]


@pytest.mark.parametrize(("rows", "columns"), [(128, 512), (512, 128), (128, 128)])
def test_long_products_have_tasks_for_all_threads(rows: int, columns: int) -> None:
    trace = wf.trace(lambda x, y: x.T @ y, ones(2048, rows), ones(2048, columns))
    call = Native(trace, own=True).steps[-1]
    assert isinstance(call, Call) and call.request.tasks(call.number) >= 8


@pytest.mark.slow
def test_results_do_not_depend_on_kernels_being_general() -> None:
    rng = np.random.default_rng(0)
    for function in BATCHES.values():
        narrow, general = wf.compile(function), wf.compile(function, dynamic_dims=0)
        for size in (1, 2, 24, 77):
            x = wf.tensor(rng.standard_normal((size, 24)).astype(np.float32))
            assert narrow(x).numpy().tobytes() == general(x).numpy().tobytes()


SHAPES = """
import gc, os
import numpy as np
import weft as wf
from weft.compiler.kernels import STORE

def run(sizes):
    for size in sizes:
        compiled(wf.tensor(np.zeros(size, np.float32)))
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

compiled = wf.compile(lambda x: wf.tanh(x * 2) + 1)
settled = run(range(200, 1000))
print(run(range(1000, 2500)) - settled, STORE.compilations, compiled.stats.evictions)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from /proc")
def test_thousands_of_shapes_need_no_more_memory_than_hundreds() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHAPES], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert not done.stderr
    grown, compilations, evictions = map(int, done.stdout.split())
    assert grown < 8 << 20
    assert compilations <= 2
    assert evictions > 2000
