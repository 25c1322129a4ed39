"""Programs on disk: the same bits without compiling, and a miss whenever anything is different."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.compiler import build_executable, program_key, stored
from weft.compiler.kernels import STORE
from weft.config import settings
from weft.errors import WeftError
from weft.runtime.cpu import code_cache, jit

pytestmark = pytest.mark.skipif(not jit.available(), reason="no machine code here")
ROOT = Path(__file__).parents[2]
X = np.linspace(-2, 2, 600, dtype=np.float32).reshape(20, 30)
MORE = wf.tensor(np.arange(30, dtype=np.float32))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Programs of this test alone; nothing is known in memory."""
    code_cache.package_fingerprint()
    path = tmp_path / "code"
    monkeypatch.setattr(settings, "cache_dir", str(path))
    forget(monkeypatch)
    yield path
    code_cache._made.clear()


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process would not have."""
    code_cache._made.clear()
    code_cache._linked.clear()
    for name in ("_versions", "_made"):
        monkeypatch.setattr(STORE, name, type(getattr(STORE, name))())


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("something was compiled")


PROGRAMS = {
    "kernels": lambda x: wf.sum(wf.tanh(x * 2) @ wf.matrix_transpose(x), axis=0),
    "gradient": lambda x: wf.grad(lambda x: (wf.softmax(x, -1) * x).sum())(x),
    "scan": lambda x: wf.scan(lambda c, r: (wf.tanh(c + r), c * 2), x[0], x),
    "scan backwards": lambda x: wf.scan(lambda c, r: (c * r, c.sum()), x[0], x, reverse=True),
    "while": lambda x: wf.while_loop(lambda c: wf.sum(c) < 1e3, lambda c: c * c + 1, x),
    "cond": lambda x: wf.cond(x.sum() > 0, lambda x: x * 2, lambda x: wf.exp(x) - 1, x),
    "host call": lambda x: wf.linalg.svdvals(x @ wf.matrix_transpose(x)) * 2,
    "host call in a loop": lambda x: wf.scan(
        lambda c, r: (c + wf.sort(r), wf.linalg.norm(r)), x[0], x
    ),
    "constants": lambda x: x * wf.tensor(X[::-1].copy()) + wf.arange(30),
    "captured": lambda x: x * MORE + 1,
    "random": lambda x: wf.normal(x.shape) * x,
    "passed through": lambda x: (x, x * 2, wf.zeros((3,))),
    "nothing to do": lambda x: x,
    "empty": lambda x: x[:0] + 1,
    "small": lambda x: x[0, :3] * 2 + 1,
}


def arrays_of(tree: Any) -> list[Any]:
    return [leaf.host().tobytes() for leaf in wf.tree_leaves(tree)]


def run(function: Any, **options: Any) -> tuple[list[Any], Any]:
    wf.random.seed(3)
    compiled = wf.compile(function, **options)
    found = arrays_of(compiled(wf.tensor(X.copy())))
    return found + arrays_of(compiled(wf.tensor(X.copy() + 1))), compiled


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_from_the_disk_gives_the_same_bits_and_nothing_is_lowered(
    folder, monkeypatch, name
):
    first, before = run(PROGRAMS[name])
    assert before.stats.from_disk == 0
    forget(monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(build_executable, "_native", None)
        second, after = run(PROGRAMS[name])
    assert second == first
    assert after.stats.from_disk == after.stats.compilations == 1
    for each in ("kernels", "regions", "bytes_planned", "nodes_after", "folded", "dead"):
        assert getattr(after.stats, each) == getattr(before.stats, each)
    assert after.stats.milliseconds["lower"] == after.stats.milliseconds["compile"] == 0
    x = wf.tensor(X)
    assert str(after.lower(x)) == str(before.lower(x))


def test_calls_of_python_functions_run_the_function_that_is_there_now(folder, monkeypatch):
    def make(factor):
        def times(array):
            return array * factor

        def function(x):
            kind = wf.TensorType(x.shape, x.dtype)
            return wf.tanh(wf.call_custom_kernel(times, x * 2, result_type=kind)) + 1

        return function

    run(make(2))
    forget(monkeypatch)
    found, compiled = run(make(np.float32(3)))
    assert compiled.stats.from_disk == 1
    expected = wf.compile(lambda x: wf.tanh(x * 2 * 3) + 1)(wf.tensor(X))
    assert found[0] == expected.host().tobytes()


def test_two_functions_that_become_one_are_another_program(folder, monkeypatch):
    def make(one, other):
        def function(x):
            kind = wf.TensorType(x.shape, x.dtype)
            a = wf.call_custom_kernel(one, x + 0, result_type=kind)
            return a, wf.call_custom_kernel(other, x * 1, result_type=kind)

        return function

    plus, minus = lambda a: a + 1, lambda a: a - 1
    run(make(plus, minus))
    forget(monkeypatch)
    found, _ = run(make(plus, plus))
    assert found[0] == found[1] == (X + 1).tobytes()


def test_donated_memory_is_used_again_as_before(folder, monkeypatch):
    function = lambda x: wf.tanh(x) * 2  # noqa: E731
    for from_disk in (0, 1):
        compiled = wf.compile(function, donate_argnums=0)
        x = wf.tensor(np.ones((300, 300), np.float32))
        address = x.data().ctypes.data
        made = compiled(x)
        assert compiled.stats.from_disk == from_disk
        assert made.data().ctypes.data == address
        forget(monkeypatch)
    plain = wf.compile(function)
    plain(wf.tensor(np.ones((300, 300), np.float32)))
    assert plain.stats.from_disk == 0  # without donation it is another program


def test_mistakes_in_data_are_told_with_the_line_of_this_process(folder, monkeypatch):
    def pick(x, i):
        return wf.sin(x)[i] * 2  # here it is picked

    messages = []
    for _ in range(2):
        compiled = wf.compile(pick)
        with pytest.raises(WeftError) as caught:
            compiled(wf.tensor(X), wf.tensor(np.array([50])))
        messages.append(f"{caught.value} {getattr(caught.value, '__notes__', '')}")
        forget(monkeypatch)
    assert compiled.stats.from_disk == 1 and messages[0] == messages[1]


def test_what_runs_is_explained_and_watched_as_if_it_were_compiled_here(folder, monkeypatch):
    x = wf.tensor(X)
    before = wf.compile(PROGRAMS["kernels"])
    first = before(x), before.explain(x)
    forget(monkeypatch)
    after = wf.compile(PROGRAMS["kernels"])
    with wf.profile() as profile:
        assert arrays_of(after(x)) == arrays_of(first[0])
    assert after.stats.from_disk == 1
    assert any(event.kind == "kernel" for event in profile.events)
    assert after.explain(x).splitlines()[0] == first[1].splitlines()[0]


def key(function: Any, *arrays: Any, donated: tuple[bool, ...] = (), general: bool = False) -> Any:
    trace = wf.compile(function).trace(*map(wf.tensor, arrays))
    return program_key.program_key(trace, donated, general)[0]


def test_the_name_changes_with_everything_that_decides_the_program(monkeypatch):
    functions = [
        lambda x: x * 2.0,
        lambda x: x * 3.0,
        lambda x: x + 0.0,
        lambda x: x - 0.0,
        lambda x: x.sum(0),
        lambda x: x.sum(1),
        lambda x: x * x.sum(0),
        lambda x: x.sum(0) * x,
        lambda x: (x, x.sum()),
        lambda x: (x.sum(), x),
        lambda x: x * wf.tensor(X[:1].copy()),
        lambda x: x * wf.tensor(X[1:2].copy()),
        lambda x: wf.scan(lambda c, r: (c + r, c), x[0], x),
        lambda x: wf.scan(lambda c, r: (c - r, c), x[0], x),
        lambda x: wf.scan(lambda c, r: (c - r, c), x[0], x, reverse=True),
    ]
    keys = [key(each, X) for each in functions]
    first = functions[0]
    keys += [key(first, X[:3]), key(first, X.astype(np.float64)), key(first, X, donated=(True,))]
    keys += [key(first, X, general=True)]
    with jit.using_target(jit.host_target().baseline()):
        keys.append(key(first, X))
    with monkeypatch.context() as other:
        other.setattr(program_key.pool, "cores", 7 * program_key.pool.cores)
        keys.append(key(first, X))
    monkeypatch.setattr(program_key, "package_fingerprint", lambda: "other sources")
    keys.append(key(first, X))
    assert None not in keys and len(set(keys)) == len(keys)
    assert key(lambda x: x * 2.0, X) == keys[-1]


def test_graphs_of_ops_that_are_not_of_weft_have_no_name():
    trace = wf.compile(lambda x: x * 2).trace(wf.tensor(X))
    (node,) = trace.nodes
    outside = type("Outside", (type(node.op),), {"__module__": "elsewhere"})
    node.op = outside.__new__(outside)
    assert program_key.program_key(trace, (), False)[0] is None


def test_large_constants_are_not_hashed(monkeypatch):
    monkeypatch.setattr(program_key, "MOST_CONSTANT_BYTES", 1000)
    assert key(lambda x: x * wf.tensor(X[:1].copy()), X) is not None
    assert key(lambda x: x * wf.tensor(X.copy()), X) is None


@pytest.mark.slow
def test_every_flipped_bit_is_a_miss_and_a_lost_module_too(folder, monkeypatch):
    first, _ = run(PROGRAMS["kernels"])
    entries = {path: path.read_bytes() for path in folder.glob("*.code")}
    for path, data in entries.items():
        for place in range(0, len(data), max(len(data) // 7, 1)):
            changed = bytearray(data)
            changed[place] ^= 1 << place % 8
            path.write_bytes(changed)
            forget(monkeypatch)
            second, _ = run(PROGRAMS["kernels"])
            assert second == first
            path.write_bytes(data)
        path.unlink()
        forget(monkeypatch)
        assert run(PROGRAMS["kernels"])[0] == first
        forget(monkeypatch)
        assert run(PROGRAMS["kernels"])[1].stats.from_disk == 1


def test_another_fingerprint_is_a_miss(folder, monkeypatch):
    run(PROGRAMS["kernels"])
    forget(monkeypatch)
    monkeypatch.setattr(program_key, "package_fingerprint", lambda: "other sources")
    assert run(PROGRAMS["kernels"])[1].stats.from_disk == 0


def test_nothing_is_hashed_where_nothing_is_kept(folder, monkeypatch):
    monkeypatch.setattr(settings, "cache_bytes", 0)
    monkeypatch.setattr(stored, "program_key", refuse)
    assert run(PROGRAMS["kernels"])[1].stats.from_disk == 0
    assert not folder.exists()


def test_a_program_in_which_a_python_function_has_vanished_is_not_kept(folder, monkeypatch):
    def function(x):
        kind = wf.TensorType(x.shape, x.dtype)
        return wf.tanh(wf.call_custom_kernel(lambda a: a + 1, x, result_type=kind))

    def with_another(*arguments):
        key, opaque = program_key.program_key(*arguments)
        return key, {**opaque, None: None}

    monkeypatch.setattr(stored, "program_key", with_another)
    run(function)
    forget(monkeypatch)
    assert run(function)[1].stats.from_disk == 0


SCRIPT = """
import json, sys
import numpy as np
import weft as wf
x = wf.tensor(np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30))
w = wf.tensor(np.ones((30, 8), np.float32))
def loss(w, x):
    return (wf.softmax(wf.tanh(x @ w), -1) ** 2).sum()
f = wf.compile(lambda w, x: wf.tree_map(lambda p, g: p - g, w, wf.grad(loss)(w, x)))
y = f(w, x)
late = [m for m in ("fuse", "lower", "native", "rewrite") if f"weft.compiler.{m}" in sys.modules]
print(json.dumps([y.host().tobytes().hex(), f.stats.from_disk, late]))
"""


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env={**os.environ, "WEFT_CACHE_DIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and not err, err
    return json.loads(out)


@pytest.mark.slow
def test_a_second_process_does_not_even_import_the_compiler(tmp_path):
    first = finished(start(tmp_path / "code"))
    second = finished(start(tmp_path / "code"))
    assert first[0] == second[0]
    assert first[1] == 0 and second[1:] == [1, []]


@pytest.mark.slow
def test_eight_processes_share_programs(tmp_path):
    results = [finished(each) for each in [start(tmp_path / "code") for _ in range(8)]]
    again = finished(start(tmp_path / "code"))
    assert all(each[0] == again[0] for each in results) and again[1] == 1
