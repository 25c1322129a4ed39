"""LLVM called past llvmlite's lock gives the same code, from any number of threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from weft.runtime.cpu import jit, llvm_calls

pytestmark = pytest.mark.skipif(not jit.available(), reason="llvmlite is not installed")


def text(number: int, steps: int = 30) -> str:
    rows = ["define <16 x float> @f(<16 x float> %x0) {", "  %p = alloca <16 x float>"]
    for i in range(steps):
        rows.append(f"  %y{i} = fmul <16 x float> %x{i}, splat (float {number}.0)")
        rows.append(f"  store <16 x float> %y{i}, ptr %p")
        rows.append(f"  %x{i + 1} = load <16 x float>, ptr %p")
    return "\n".join([*rows, f"  ret <16 x float> %x{steps}", "}", ""])


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compile by llvmlite's own classes."""

    def compile(text: str) -> bytes:
        with monkeypatch.context() as inside:
            inside.setattr(llvm_calls, "calls", lambda: None)
            return jit.compile_text(text, jit.host_target())

    return compile


def test_this_llvmlite_is_one_whose_functions_are_known() -> None:
    jit.host_target()
    jit._initialize()
    assert llvm_calls.calls() is not None


def test_both_ways_to_compile_give_the_same_code(slow: Any) -> None:
    for each in (text(1), text(2, 0), "define void @f() {\n  ret void\n}\n"):
        assert jit.compile_text(each, jit.host_target()) == slow(each)


@pytest.mark.parametrize("wrong", ["nonsense", "define i32 @f() {\n  ret i64 0\n}\n", "\0"])
def test_both_ways_refuse_the_same_text(slow: Any, wrong: str) -> None:
    told = []
    for compile in (slow, lambda text: jit.compile_text(text, jit.host_target())):
        try:
            told.append(compile(wrong))
        except RuntimeError as error:
            told.append(str(error))
    assert told[0] == told[1]


def test_what_the_verifier_refuses_is_an_error() -> None:
    wrong = "define i64 @f() {\na:\n  br label %b\nb:\n  %y = add i64 %x, 1\n  %x = add i64 1, 1\n"
    with pytest.raises(RuntimeError, match="dominate"):
        jit.compile_text(wrong + "  ret i64 %y\n}\n", jit.host_target())


def test_threads_compile_at_once_and_get_the_same_code(slow: Any) -> None:
    texts = [text(n, 10 + n % 5) for n in range(12)]
    expected = [slow(each) for each in texts]
    found: dict[int, bool] = {}

    def work(number: int) -> None:
        order = texts[number:] + texts[:number]
        made = [jit.compile_text(each, jit.host_target()) for each in order]
        found[number] = made == expected[number:] + expected[:number]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(6), True)
    assert jit.tuned._inside == []


def test_processors_with_other_options_do_not_meet() -> None:
    triples = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]
    expected = {triple: jit.emit_assembly(text(1), triple) for triple in triples}
    code = jit.compile_text(text(1), jit.host_target())
    wrong: list[str] = []

    def work(number: int) -> None:
        for i in range(6):
            triple = triples[(number + i) % 2]
            if jit.emit_assembly(text(1), triple) != expected[triple]:
                wrong.append(triple)
            if jit.compile_text(text(1), jit.host_target()) != code:
                wrong.append("here")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_llvmlite_with_other_functions_is_left_alone() -> None:
    class Other:
        _name, _handle, _lock = "", 0, None

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    class Changed:
        def __init__(self, library: Any) -> None:
            self._library = library

        def __getattr__(self, name: str) -> Any:
            if name == "LLVMPY_VerifyModule":
                return type("Call", (), {"argtypes": [], "restype": None})
            return getattr(self._library, name)

    for library in (Other(), Changed(llvm_calls._ffi.lib)):
        with pytest.raises(AttributeError):
            llvm_calls.Calls(library)
