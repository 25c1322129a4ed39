"""What goes wrong while compiling or running is told, and leaves everything usable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler import build_executable, eager, kernels, tier
from weft.compiler.emit_cpu import emit
from weft.compiler.kernels import STORE, KernelStore
from weft.compiler.native import Native
from weft.compiler.passes import sink
from weft.compiler.rewrite import rewrite
from weft.config import settings
from weft.core.graph.graph import GRAPH
from weft.errors import CompilationError, IndexingError, OutOfMemoryError, WeftError
from weft.runtime.cpu import jit
from weft.testing.loop_programs import lowered

ROOT = Path(__file__).parents[2]
VALUES = np.linspace(-2, 2, 60, dtype=np.float32).reshape(6, 10)


def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel has been made, no graph been seen, no program kept."""
    monkeypatch.setattr(build_executable._stored, "recall", lambda origin: None)
    monkeypatch.setattr(tier, "_seen", type(tier._seen)())
    monkeypatch.setattr(tier, "_compiled", type(tier._compiled)())
    monkeypatch.setattr(eager, "_prepared", type(eager._prepared)())
    for name in ("_versions", "_made"):
        monkeypatch.setattr(STORE, name, type(getattr(STORE, name))())


# -- mistakes in data ------------------------------------------------------------------------------


def picked(x, i):
    return wf.sin(x)[i] * 2  # here it is picked


@pytest.mark.parametrize("bad", [6, 100, -7])
def test_a_position_out_of_range_names_the_line_and_leaves_the_function_usable(bad: int) -> None:
    compiled = wf.compile(picked)
    good = wf.tensor([0, 5, -6])
    expected = compiled(wf.tensor(VALUES), good).numpy()
    for _ in range(2):
        with pytest.raises(IndexingError) as caught:
            compiled(wf.tensor(VALUES), wf.tensor([0, bad, 1]))
        assert str(bad) in str(caught.value)
        assert "here it is picked" in "".join(traceback.format_exception(caught.value))
        np.testing.assert_array_equal(compiled(wf.tensor(VALUES), good).numpy(), expected)


@pytest.mark.parametrize("how", ["add", "set", "min", "max", "multiply"])
@pytest.mark.parametrize("dtype", [wf.float32, wf.bfloat16], ids=str)
def test_an_update_out_of_range_is_told(how: str, dtype: Any) -> None:
    def update(x, i):
        return getattr(x.at[i], how)(x[0])  # here it is updated

    x = wf.tensor(VALUES).astype(dtype)
    compiled = wf.compile(update)
    expected = compiled(x, wf.tensor([1, 1])).numpy()
    for function in (compiled, update):
        with pytest.raises(IndexingError, match="60"):
            function(x, wf.tensor([1, 60])).numpy()
    np.testing.assert_array_equal(compiled(x, wf.tensor([1, 1])).numpy(), expected)
    np.testing.assert_array_equal(update(x, wf.tensor([1, 1])).numpy(), expected)


def test_a_position_out_of_range_inside_a_loop_is_told() -> None:
    def f(x, i):
        return wf.fori_loop(0, 3, lambda k, c: c + x[i + k], wf.zeros(10))

    compiled = wf.compile(f)
    compiled(wf.tensor(VALUES), wf.tensor(2))
    with pytest.raises(IndexingError):
        compiled(wf.tensor(VALUES), wf.tensor(5))
    expected = VALUES[1:4].sum(0)
    np.testing.assert_allclose(compiled(wf.tensor(VALUES), wf.tensor(1)).numpy(), expected, 1e-5)


def test_an_error_of_a_host_function_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def singular(x):
        return wf.linalg.inv(x * 2) + 1  # the matrix to blame

    compiled = wf.compile(singular)
    good = compiled(wf.eye(3)).numpy()
    with pytest.raises(WeftError) as caught:
        compiled(wf.zeros((3, 3)))
    assert "the matrix to blame" in "".join(traceback.format_exception(caught.value))
    np.testing.assert_array_equal(compiled(wf.eye(3)).numpy(), good)


# -- failures while compiling ----------------------------------------------------------------------


class Refusal(RuntimeError):
    """What LLVM raises."""


def refuse(*args: Any, **keywords: Any) -> Any:
    raise Refusal("LLVM ERROR: cannot select")


def exhaust(*args: Any, **keywords: Any) -> Any:
    raise MemoryError


@pytest.mark.parametrize(
    ("failing", "kind"), [(refuse, CompilationError), (exhaust, OutOfMemoryError)]
)
def test_a_failed_compilation_is_told_and_the_next_one_works(
    monkeypatch: pytest.MonkeyPatch, failing: Any, kind: Any
) -> None:
    fresh(monkeypatch)
    compiled = wf.compile(lambda x: wf.cumsum(x * 3.25, axis=0) - 17)
    x = wf.tensor(VALUES)
    with monkeypatch.context() as broken:
        broken.setattr(kernels, "finish", failing)
        for _ in range(2):
            with pytest.raises(kind):
                compiled(x)
    np.testing.assert_allclose(compiled(x).numpy(), (VALUES * 3.25).cumsum(0) - 17, rtol=1e-5)


def test_an_interrupt_between_two_kernels_of_a_product_leaves_nothing_half_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fresh(monkeypatch)
    monkeypatch.setattr(kernels, "has_help", lambda: True)  # each kernel is a module
    compiled, written, real = wf.compile(lambda x: x @ x.T), [], kernels.emit
    x = wf.ones((601, 600))

    def emit(*args: Any) -> str:
        written.append(1)
        if len(written) == 2:
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(kernels, "emit", emit)
        compiled(x)
    assert compiled(x)[600, 600].item() == 600.0


def test_a_failed_compilation_of_a_recorded_graph_is_told_and_the_next_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fresh(monkeypatch)
    monkeypatch.setattr(settings, "small_elements", 0)
    monkeypatch.setattr(settings, "compile_after", 0)
    y = wf.tensor(VALUES) * 1.75 + 3
    with monkeypatch.context() as broken:
        broken.setattr(kernels, "finish", refuse)
        with pytest.raises(CompilationError, match="cannot select"):
            y.numpy()
        assert not GRAPH._runs
    np.testing.assert_allclose(y.numpy(), VALUES * 1.75 + 3, rtol=1e-6)


def test_text_that_llvm_refuses_is_an_error_and_not_the_end() -> None:
    with pytest.raises(RuntimeError, match="LLVM"):
        jit.compile_text("define nonsense", jit.host_target())
    assert jit.compile_text("define void @f() { ret void }", jit.host_target())


# -- other machines --------------------------------------------------------------------------------


def program(x):
    y = wf.tanh(x * 2) @ wf.matrix_transpose(x)
    return y, wf.sum(wf.exp(x), axis=0), wf.sort(x, axis=-1)


def test_a_processor_with_nothing_special_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = wf.tensor(VALUES)
    expected = [y.numpy() for y in wf.compile(program)(x)]
    fresh(monkeypatch)
    with jit.using_target(jit.host_target().baseline()):
        found = [y.numpy() for y in wf.compile(program)(x)]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("features", ["", "+avx2,+fma,+f16c", "+avx512f,+avx512vl,+avx512dq"])
def test_code_for_other_processors_needs_nothing_outside_itself(features: str) -> None:
    target = jit.Target("x86_64-unknown-linux-gnu", "x86-64", features)
    for name in ("chain", "chain_narrow", "chain_whole", "softmax", "product", "argmax", "sum_all"):
        with jit.using_target(target):
            made = [k for kernel in lowered(name) for k in KernelStore.scheduled(kernel)]
        unique = [replace(k, name=f"kernel{i}") for i, k in enumerate(made)]
        code = jit.emit_assembly(emit(unique, target), target.triple, target.cpu, target.features)
        jumps = [line.split() for line in code.splitlines() if "\tcall" in line or "\tjmp" in line]
        outside = {words[1] for words in jumps if not words[1].startswith((".", "*"))}
        assert not outside, f"{name}: {outside}"
        assert ("ymm" in code or "zmm" in code) <= bool(features), name


def test_without_llvm_everything_runs_on_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    x = wf.tensor(VALUES)
    expected = [y.numpy() for y in wf.compile(program)(x)]
    fresh(monkeypatch)
    monkeypatch.setattr(jit, "available", lambda: False)
    made = STORE.compilations
    found = [y.numpy() for y in wf.compile(program)(x)]
    eagerly = [y.numpy() for y in program(x)]
    monkeypatch.setattr(settings, "small_elements", 0)
    monkeypatch.setattr(settings, "compile_after", 0)
    recorded = [y.numpy() for y in program(wf.tensor(VALUES))]
    assert STORE.compilations == made
    for others in (found, eagerly, recorded):
        for a, b in zip(others, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# -- the cache on disk and other processes ---------------------------------------------------------

SCRIPT = """
import json, sys
import numpy as np
import weft as wf
from weft.runtime.cpu.code_cache import code_cache
x = wf.tensor(np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30))
y = wf.compile(lambda x: wf.sum(wf.tanh(x * 2) @ wf.matrix_transpose(x), axis=0))(x)
c = code_cache().counters
print(json.dumps([y.tolist(), c.hits, c.loaded, c.misses, c.stored, c.rejected]))
"""


def start(folder: Path, script: str = SCRIPT) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "WEFT_CACHE_DIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[list[Any], str]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out), err


@pytest.mark.slow
def test_a_second_process_finds_everything_on_disk(tmp_path: Path) -> None:
    first, _ = finished(start(tmp_path / "code"))
    second, err = finished(start(tmp_path / "code"))
    assert first[0] == second[0]
    assert first[3] > 0 and first[2] == 0
    assert second[3] == 0 and second[2] == first[3]
    assert err == ""


@pytest.mark.slow
def test_eight_processes_share_the_cache(tmp_path: Path) -> None:
    running = [start(tmp_path / "code") for _ in range(8)]
    results = [finished(process) for process in running]
    assert all(found[0] == results[0][0][0] and not err for found, err in results)
    assert all(found[5] == 0 for found, _ in results)
    again, _ = finished(start(tmp_path / "code"))
    assert again[3] == 0


@pytest.mark.slow
def test_a_damaged_folder_is_a_miss_and_a_foreign_one_is_announced(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    first, _ = finished(start(folder))
    entries = list(folder.glob("*.code"))
    for path in entries:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    damaged, _ = finished(start(folder))
    assert damaged[0] == first[0]
    assert damaged[5] == len(entries) and damaged[3] == first[3]
    folder.chmod(0o777)
    open_to_all, err = finished(start(folder))
    assert open_to_all[0] == first[0] and open_to_all[4] == 0
    assert "other users may write to it" in err
    file = tmp_path / "file"
    file.write_text("not a folder")
    no_folder, err = finished(start(file))
    assert no_folder[0] == first[0]
    assert "compiled code is not kept on disk" in err


LOOP = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
import numpy as np
import weft as wf
def endless(x):
    return wf.while_loop(lambda c: wf.sum(c) < 1e30, lambda c: wf.sin(c) * 0.5, x)
f = wf.compile(lambda x: x * 2 + 1)
g = wf.compile(endless)
x = wf.tensor(np.ones((64, 64), np.float32))
g.lower(x)
print("ready", flush=True)
try:
    g(x)
except KeyboardInterrupt:
    print("stopped", flush=True)
print(float(f(x)[0, 0]), flush=True)
"""


@pytest.mark.slow
def test_ctrl_c_stops_a_native_loop_and_the_process_goes_on(tmp_path: Path) -> None:
    process = start(Path(os.environ["WEFT_CACHE_DIR"]), LOOP)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(1.0)
    assert process.poll() is None, "the loop has ended by itself"
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out == "stopped\n3.0\n", err
    assert time.monotonic() - begin < 20


def test_arrays_of_a_kernel_for_all_sizes_fit_a_stack():
    def weights(x):
        made = wf.softmax(wf.swapaxes(x, -1, -2), -1)
        return made, wf.max(made, -1, keepdims=True)

    given = np.random.default_rng(0).normal(size=(3, 94, 94))
    program = Native(rewrite(wf.trace(weights, wf.tensor(given)))[0], general=True)
    for step in program.steps:
        for kernel in step.request.compiled.kernels:
            held = sum(x.length * x.lanes * x.dtype.itemsize for x in kernel.locals)
            assert held <= sink.ROOM, kernel.name
    for found, expected in zip(program.run([given]), weights(wf.tensor(given)), strict=True):
        assert np.array_equal(found, expected.numpy())
