"""Machine code: compiled once, loaded anywhere, and refused with a reason where it cannot be."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import textwrap
import threading

import pytest

from weft.core.common.lazy import LazyModule
from weft.errors import UnsupportedError
from weft.runtime.cpu import code_image, jit

ADD = """
define i64 @plus(i64 %x, i64 %y) nounwind {
  %sum = add i64 %x, %y
  ret i64 %sum
}
define i64 @minus(i64 %x, i64 %y) nounwind {
  %rest = sub i64 %x, %y
  ret i64 %rest
}
"""
SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_compiled_functions_are_found_by_name_and_run():
    loaded = jit.load_object(jit.compile_text(ADD, jit.host_target()))
    assert SIGNATURE(loaded.address("plus"))(40, 2) == 42
    assert SIGNATURE(loaded.address("minus"))(40, 2) == 38
    assert loaded.address("plus") == loaded.address("plus")


def test_a_name_that_is_not_there_is_an_error():
    loaded = jit.load_object(jit.compile_text(ADD, jit.host_target()))
    with pytest.raises(KeyError, match="times"):
        loaded.address("times")


def test_equal_names_in_different_objects_do_not_meet():
    other = ADD.replace("add i64 %x", "mul i64 %x")
    first = jit.load_object(jit.compile_text(ADD, jit.host_target()))
    second = jit.load_object(jit.compile_text(other, jit.host_target()))
    assert SIGNATURE(first.address("plus"))(3, 4) == 7
    assert SIGNATURE(second.address("plus"))(3, 4) == 12


def test_code_is_the_same_every_time():
    first = jit.compile_text(ADD, jit.host_target())
    assert jit.compile_text(ADD, jit.host_target()) == first


def test_threads_compile_and_load_at_the_same_time():
    found = []

    def work(number: int) -> None:
        text = ADD.replace("%x, %y", f"%x, {number}")
        loaded = jit.load_object(jit.compile_text(text, jit.host_target()))
        found.append(SIGNATURE(loaded.address("plus"))(100, 0) == 100 + number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 8


def test_what_is_no_longer_used_is_unloaded():
    code = jit.compile_text(ADD, jit.host_target())
    before = len(mappings())
    for _ in range(50):
        jit.load_object(code).address("plus")
    gc.collect()
    assert len(mappings()) < before + 10


def mappings() -> list[str]:
    with open("/proc/self/maps") as lines:
        return list(lines)


def test_text_that_is_not_llvm_is_an_error_that_shows_where():
    with pytest.raises(RuntimeError, match="parsing error"):
        jit.compile_text("define nonsense", jit.host_target())


def test_features_can_be_taken_away():
    target = jit.Target("x86_64-unknown-linux-gnu", "x86-64-v4", "+avx,+avx2,+avx512f,+avx512vl")
    assert target.vector_bytes == 64
    assert target.without("avx512").vector_bytes == 32
    assert target.without("avx").vector_bytes == 16
    assert target.without("avx512").features == "+avx,+avx2,-avx512f,-avx512vl"
    assert target.baseline() == jit.Target(target.triple, "x86-64", "")
    assert target.baseline().vector_bytes == 16
    assert target.architecture == "x86_64"


def test_code_for_the_baseline_runs_here_too():
    target = jit.host_target().baseline()
    loaded = jit.load_object(jit.compile_text(ADD, target))
    assert SIGNATURE(loaded.address("plus"))(1, 2) == 3


@pytest.mark.parametrize("triple", ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"])
def test_assembly_is_written_for_other_processors(triple):
    assert "plus:" in jit.emit_assembly(ADD, triple)


def test_importing_weft_does_not_import_llvmlite():
    done = run("""
        import sys
        import weft
        from weft.compiler import emit_cpu
        assert not any(name.startswith("llvmlite") for name in sys.modules)
    """)
    assert done.returncode == 0, done.stderr


def test_code_still_loaded_at_the_end_does_no_harm():
    done = run(f"""
        from weft.runtime.cpu import jit
        loaded = jit.load_object(jit.compile_text({ADD!r}, jit.host_target()))
        print(loaded.address("plus") > 0)
    """)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_missing_llvmlite_is_reported_and_refused():
    done = run("""
        import sys
        sys.modules["llvmlite"] = None
        from weft.errors import UnsupportedError
        from weft.runtime.cpu import jit
        assert not jit.available()
        try:
            jit.compile_text("", jit.Target("aarch64-unknown-linux-gnu", "", ""))
        except UnsupportedError as error:
            print(error)
    """)
    assert done.returncode == 0, done.stderr
    assert "jit: llvmlite cannot be loaded" in done.stdout
    assert "hint: pip install llvmlite" in done.stdout


def test_refused_executable_memory_is_reported(monkeypatch):
    class Refusing(LazyModule):
        def check_jit_execution(self) -> None:
            raise OSError(13, "cannot allocate executable memory")

    jit._initialize()  # it would load the module, and its functions with it
    monkeypatch.setattr(jit, "_llvm", Refusing("llvmlite.binding"))
    monkeypatch.setattr(code_image, "can_map", lambda: False)
    monkeypatch.setattr(jit, "_image", code_image)
    jit._engine.cache_clear()
    try:
        assert not jit.available()
        with pytest.raises(UnsupportedError, match="refuses memory for machine code"):
            jit.load_object(b"")
    finally:
        monkeypatch.undo()
        jit._engine.cache_clear()
    assert jit.available()
