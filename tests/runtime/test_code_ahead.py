"""Modules are compiled while others are written; who waits gets every one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from weft.runtime.cpu import code_ahead
from weft.runtime.cpu.code_ahead import begin, finish
from weft.runtime.cpu.jit import compile_text, host_target, load_object


def text(number: int) -> str:
    return f"define i64 @f() {{\n  ret i64 {number}\n}}\n"


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(code_ahead, "cores", lambda: 2)
    monkeypatch.setattr(code_ahead, "cached", lambda text, target, make: make())
    monkeypatch.setattr(code_ahead, "cached_many", lambda texts, target, make: make(texts))
    yield


def test_every_module_comes_back_in_order() -> None:
    target = host_target()
    jobs = [begin(text(n), target) for n in range(5)]
    found = finish(jobs)
    assert found == [compile_text(text(n), target) for n in range(5)]
    assert all(load_object(code).address("f") for code in found)
    assert finish(jobs[2:3]) == found[2:3]


def test_what_was_not_begun_is_compiled_by_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    held, here = threading.Event(), []
    monkeypatch.setattr(code_ahead, "compile_text", lambda text, target: held.wait(60) and b"there")

    def compile_many(texts: list[str], target: object) -> list[bytes]:
        here.append(len(texts))
        held.set()
        return [b"here" for _ in texts]

    monkeypatch.setattr(code_ahead, "compile_many", compile_many)
    first = begin(text(0), host_target())
    while not first.code.running():
        pass
    jobs = [first, *(begin(text(n), host_target()) for n in range(1, 4))]
    assert finish(jobs) == [b"there", b"here", b"here", b"here"]
    assert here == [3]


def test_on_one_core_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_ahead, "cores", lambda: 1)
    job = begin(text(7), host_target())
    assert job.code is None
    assert finish([job]) == [compile_text(text(7), host_target())]


def test_an_error_reaches_who_waits() -> None:
    with pytest.raises(RuntimeError, match="expected"):
        finish([begin("this is no module", host_target())])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_compiles_what_its_parent_had_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_ahead, "compile_many", lambda texts, target: [b"here" for _ in texts])
    job = begin(text(8), host_target())
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert finish([job]) == [b"here"]
