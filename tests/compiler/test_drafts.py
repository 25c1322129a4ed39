"""Drafts of code: the same bits from the first call on, and nobody keeps them for long."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import assert_same, interpreted
from tests.compiler.test_same_bits import Case, check, op_cases
from weft.compiler import kernels
from weft.compiler.kernels import STORE
from weft.compiler.native import Native, drafts_pay
from weft.compiler.rewrite import rewrite
from weft.config import settings
from weft.core.common import dtypes
from weft.core.graph.trace import Trace
from weft.runtime.cpu import code_ahead, code_cache, jit

pytestmark = pytest.mark.skipif(not jit.available(), reason="no machine code here")
ROOT = Path(__file__).parents[2]
X = np.linspace(-2, 2, 30_000, dtype=np.float32).reshape(100, 300)


def forget() -> None:
    """What a new process would not have."""
    code_cache._made.clear()
    code_cache._linked.clear()
    STORE._versions.clear()
    STORE._made.clear()


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(settings, "cache_dir", str(tmp_path / "code"))
    monkeypatch.setattr(settings, "drafts", 1)
    forget()
    yield
    settle()
    forget()


def settle() -> None:
    """Wait until other threads have made what they were asked for."""
    for threads in code_ahead._patient:
        threads.shutdown()
    code_ahead._patient.clear()


def normal(x: Any) -> Any:
    """Layer norm: a reduction, arithmetic, another reduction."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return wf.tanh(centred / wf.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5))


def words(program: Any) -> list[int]:
    """The addresses of the kernels that a program calls."""
    return [int(program.encoded.code[word]) for word in program.encoded.kernels]


def drafted(trace: Trace, arrays: Any) -> tuple[Any, ...]:
    """What drafts of a trace's kernels compute."""
    made = Native(rewrite(trace)[0], drafts=True)
    assert all(each.drafted or each.code for each in made.code)
    return made.run(arrays[: len(trace.inputs) - len(trace.captures)])


def has_drafts(case: Case) -> bool:
    trace = wf.trace(lambda *x: wf.tree_leaves(case.function(*x)), *map(wf.asarray, case.arrays))
    return bool(trace.nodes) and drafts_pay(rewrite(trace)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype",
    [dtypes.float32, dtypes.bfloat16, dtypes.int32],
    ids=dtypes.name_of,
)
def test_drafts_of_every_op_give_the_same_bits(dtype: Any) -> None:
    cases = [case for case in op_cases(dtype) if has_drafts(case)]
    assert len(cases) > 150
    check(cases, drafted)


@pytest.mark.slow
def test_code_takes_the_place_of_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_ahead, "_MEANWHILE", 2.0)  # a first call may take long
    f = wf.compile(normal)
    first = f(wf.tensor(X)).host()
    executable = next(iter(f._cache.values()))[0].executable
    before = words(executable.program)
    settle()
    after = words(executable.program)
    assert set(before).isdisjoint(after)
    assert {c.addresses for c in executable.code} != {c.drafted for c in executable.code}
    assert all(set(each.addresses) <= set(after) for each in executable.code)
    again = f(wf.tensor(X)).host()
    assert first.tobytes() == again.tobytes()
    trace = wf.trace(normal, wf.tensor(X))
    assert_same([first], interpreted(trace, [X]))


def test_runs_under_way_go_on_while_drafts_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    x = wf.tensor(X)
    expected = interpreted(wf.trace(normal, x), [X])[0].tobytes()
    monkeypatch.setattr(code_ahead, "_MEANWHILE", 0.2)
    f = wf.compile(normal)
    found = {f(x).host().tobytes()}
    executable = next(iter(f._cache.values()))[0].executable
    drafts, deadline = words(executable.program), time.monotonic() + 30
    while words(executable.program) == drafts and time.monotonic() < deadline:
        found.add(f(x).host().tobytes())
    assert words(executable.program) != drafts
    assert found | {f(x).host().tobytes()} == {expected}


def test_programs_share_drafts_and_each_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_ahead, "_MEANWHILE", 2.0)  # the second must not find it on disk
    f, g = wf.compile(normal), wf.compile(lambda x: normal(x))
    results = [each(wf.tensor(X)).host().tobytes() for each in (f, g)]
    settle()
    made = [next(iter(each._cache.values()))[0].executable for each in (f, g)]
    kernels = {word for each in made for word in words(each.program)}
    assert kernels == {a for each in made for c in each.code for a in c.addresses}
    assert results[0] == results[1]


@pytest.mark.slow
def test_an_interrupt_of_who_waits_leaves_drafts_what_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(code_ahead, "_MEANWHILE", 2.0)  # until then there are drafts alone
    monkeypatch.setattr(kernels, "has_help", lambda: False)  # all in one module
    x = wf.tensor(X)
    both = rewrite(wf.trace(lambda x: (wf.sum(x, axis=0), wf.sum(wf.exp(x), axis=-1)), x))[0]
    second = rewrite(wf.trace(lambda x: wf.sum(wf.exp(x), axis=-1), x))[0]
    hasty = Native(both, drafts=True)
    expected = [a.copy() for a in hasty.run([X])]
    hasty.settle()
    with monkeypatch.context() as broken:
        broken.setattr(kernels, "finish", interrupt)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                Native(second)
    settle()
    assert_same(hasty.run([X]), expected)
    assert_same(Native(second).run([X]), expected[1:])


def interrupt(*args: Any, **keywords: Any) -> Any:
    raise KeyboardInterrupt


def test_who_wants_the_code_itself_waits_for_it() -> None:
    trace = rewrite(wf.trace(normal, wf.tensor(X)))[0]
    hasty = Native(trace, drafts=True)
    assert all(each.drafted and not each.code for each in hasty.code)
    patient = Native(trace)
    assert all(each.code for each in patient.code) and not patient.counts.from_disk
    assert set(words(hasty.program)).isdisjoint(words(patient.program))
    assert_same(hasty.run([X]), patient.run([X]))


def test_products_of_matrices_are_never_drafted() -> None:
    x = np.ones((64, 64), np.float32)
    trace = rewrite(wf.trace(lambda x: normal(x @ x).sum(), wf.tensor(x)))[0]
    made = Native(trace, drafts=True)
    products = [each for each in made.code if each.is_product]
    assert products and all(each.code and not each.drafted for each in products)
    assert any(each.drafted for each in made.code)
    assert_same(made.run([x]), Native(trace).run([x]))


def test_what_packs_a_factor_is_drafted_and_the_product_is_not() -> None:
    x = np.linspace(-1, 1, 512 * 512, dtype=np.float32).reshape(512, 512)
    trace = rewrite(wf.trace(lambda x: x @ x, wf.tensor(x)))[0]
    made = Native(trace, drafts=True)
    (product,) = made.code
    packs, sums = product.kernels
    assert product.is_drafted(packs) and not product.is_drafted(sums)
    first = [np.array(y) for y in made.run([x])]
    made.settle()
    settle()
    drafted, code = product.drafted, product.addresses
    assert drafted[0] != code[0] and drafted[1] == code[1]
    assert code[0] in words(made.program) and drafted[0] not in words(made.program)
    assert_same(first, made.run([x]))
    assert_same(first, interpreted(trace, [x]))


def test_recorded_graphs_begin_with_drafts() -> None:
    x = wf.tensor(X.repeat(40, axis=0))
    found = normal(x).host()
    settle()
    assert found.tobytes() == normal(x).host().tobytes()


def test_drafts_are_for_arithmetic_on_not_too_much_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def pays(function: Any, *shapes: tuple[int, ...]) -> bool:
        types = [wf.zeros(shape) for shape in shapes]
        return drafts_pay(wf.trace(function, *types))

    assert pays(lambda x: wf.tanh(x).sum(), (1000, 1000))
    assert not pays(lambda x: wf.tanh(x).sum(), (1 << 12, 1 << 12))
    assert pays(lambda x, y: wf.tanh(x @ y), (40, 50), (50, 60))
    assert not pays(lambda x, y: wf.conv2d(x, y), (1, 3, 9, 9), (4, 3, 3, 3))
    assert not pays(lambda x: wf.sort(x), (100,))
    assert not pays(lambda x: wf.scan(lambda c, r: (c + r, c), x[0], x), (100, 4))
    monkeypatch.setattr(settings, "drafts", 0)
    assert not pays(lambda x: wf.tanh(x).sum(), (1000, 1000))


def test_drafts_stay_where_the_code_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    own = code_ahead.compile_text

    def compile_text(text: str, target: Any, draft: bool = False) -> bytes:
        if not draft:
            raise MemoryError
        return own(text, target, draft)

    with monkeypatch.context() as inside:
        inside.setattr(code_ahead, "compile_text", compile_text)
        f = wf.compile(normal)
        first = f(wf.tensor(X)).host()
        settle()
        assert f(wf.tensor(X)).host().tobytes() == first.tobytes()
    wf.compile(lambda x: normal(x))(wf.tensor(X)).host()
    settle()
    assert f(wf.tensor(X)).host().tobytes() == first.tobytes()


STARTS = """
import numpy as np
import weft as wf
f = wf.compile(lambda x: wf.tanh(x * 2).sum())
print(float(f(wf.tensor(np.linspace(0, 1, 5000, dtype=np.float32)))), f.stats.from_disk)
"""


@pytest.mark.slow
def test_a_process_that_ends_at_once_leaves_its_code_to_the_next(tmp_path: Path) -> None:
    def run() -> list[str]:
        settings = {"WEFT_CACHE_DIR": str(tmp_path / "shared"), "WEFT_DRAFTS": "1"}
        command = [sys.executable, "-c", STARTS]
        return subprocess.run(
            command,
            env={**os.environ, **settings},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()

    (first, new), (second, known) = run(), run()
    assert first == second
    assert (new, known) == ("0", "1")


FORKS = """
import os
import numpy as np
import weft as wf

x = wf.tensor(np.linspace(0, 1, 5000, dtype=np.float32))
f = wf.compile(lambda x: wf.tanh(x * 2).sum())
first = float(f(x))
child = os.fork()
same = all(float(f(x)) == first for _ in range(50))
new = float(wf.compile(lambda x: wf.exp(x * 2).sum())(x))
if not child:
    os._exit(0 if same and new > 0 else 1)
assert same and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_goes_on_with_the_drafts_of_its_parent(tmp_path: Path) -> None:
    settings = {"WEFT_CACHE_DIR": str(tmp_path / "forks"), "WEFT_DRAFTS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    environment = {**os.environ, **settings}
    subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=120)


def test_what_two_threads_link_at_once_is_linked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Code:
        """What could be unmapped while somebody runs it."""

    def load_object(code: bytes) -> Code:
        time.sleep(0.02)
        return Code()

    monkeypatch.setattr(code_cache, "load_object", load_object)
    seen: list[Any] = []
    threads = [
        threading.Thread(target=lambda: seen.append(code_cache.link("key", b"code")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4 and len({*map(id, seen)}) == 1
