"""Object code is mapped without LLVM where it is understood, and left to LLVM where it is not."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from weft.runtime.cpu import code_image, jit

pytestmark = pytest.mark.skipif(
    not jit.available() or not code_image.can_map(), reason="LLVM links here"
)

TEXT = """
declare ptr @memmove(ptr, ptr, i64)
@table = internal constant [2 x ptr] [ptr @twice, ptr @thrice]
@words = internal constant [3 x i64] [i64 11, i64 22, i64 33]
define internal i64 @twice(i64 %x) noinline nounwind {
  %y = mul i64 %x, 2
  ret i64 %y
}
define internal i64 @thrice(i64 %x) noinline nounwind {
  %y = mul i64 %x, 3
  ret i64 %y
}
define i64 @calls(i64 %which, i64 %x) nounwind {
  %place = getelementptr ptr, ptr @table, i64 %which
  %function = load ptr, ptr %place
  %y = call i64 %function(i64 %x)
  %z = call i64 @twice(i64 %y)
  ret i64 %z
}
define i64 @reads(i64 %which, i64 %x) nounwind {
  %place = getelementptr i64, ptr @words, i64 %which
  %y = load i64, ptr %place
  ret i64 %y
}
define i64 @moves(i64 %target, i64 %source) nounwind {
  %to = inttoptr i64 %target to ptr
  %from = inttoptr i64 %source to ptr
  %done = call ptr @memmove(ptr %to, ptr %from, i64 16)
  ret i64 1
}
define i64 @mixes(i64 %x, i64 %y) nounwind {
  %some = fadd <4 x float> zeroinitializer, <float 1.5, float -2.25, float 3.125, float 0.5>
  %one = insertelement <4 x float> %some, float 8.0, i32 0
  %n = sitofp i64 %x to float
  %two = insertelement <4 x float> %one, float %n, i32 1
  %sum = fmul <4 x float> %two, <float 0.25, float 0.75, float 1.125, float 1.75>
  %a = extractelement <4 x float> %sum, i32 1
  %b = extractelement <4 x float> %sum, i32 3
  %c = fadd float %a, %b
  %d = fmul float %c, 1000.0
  %r = fptosi float %d to i64
  ret i64 %r
}
"""
SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def linked_by_llvm(code: bytes) -> jit.Linked:
    library = jit._llvm.JITLibraryBuilder().add_object_img(code)
    return jit.Linked(jit._engine(), library.link(jit._engine(), "by_llvm"))


def test_calls_constants_and_tables_are_those_that_llvm_links() -> None:
    code = jit.compile_text(TEXT, jit.host_target())
    image = code_image.mapped(code)
    assert image is not None
    other = linked_by_llvm(code)
    for name in ("calls", "reads", "mixes"):
        mine, theirs = (SIGNATURE(each.address(name)) for each in (image, other))
        for which in (0, 1):
            assert mine(which, 7) == theirs(which, 7), name
    assert SIGNATURE(image.address("calls"))(1, 7) == 42


def test_functions_of_the_c_library_are_called() -> None:
    image = code_image.mapped(jit.compile_text(TEXT, jit.host_target()))
    assert image is not None
    source, target = (ctypes.c_int64 * 2)(5, 6), (ctypes.c_int64 * 2)()
    SIGNATURE(image.address("moves"))(ctypes.addressof(target), ctypes.addressof(source))
    assert list(target) == [5, 6]


def test_a_name_that_is_not_there_is_an_error() -> None:
    image = code_image.mapped(jit.compile_text(TEXT, jit.host_target()))
    assert image is not None
    with pytest.raises(KeyError, match="jit: nowhere: not found"):
        image.address("nowhere")


@pytest.mark.parametrize(
    "text",
    [
        "@count = global i64 7\ndefine i64 @f(i64 %x, i64 %y) {\n"
        "  %n = load i64, ptr @count\n  %m = add i64 %n, 1\n  store i64 %m, ptr @count\n"
        "  ret i64 %m\n}",
        "declare i64 @weft_is_nowhere(i64)\ndefine i64 @f(i64 %x, i64 %y) {\n"
        "  %n = call i64 @weft_is_nowhere(i64 %x)\n  ret i64 %n\n}",
    ],
    ids=["memory that is written", "a function that nobody has"],
)
def test_what_is_not_understood_is_left_to_llvm(text: str) -> None:
    assert code_image.mapped(jit.compile_text(text, jit.host_target())) is None


def test_memory_that_is_written_is_linked_by_llvm() -> None:
    text = (
        "@count = global i64 7\ndefine i64 @f(i64 %x, i64 %y) {\n"
        "  %n = load i64, ptr @count\n  ret i64 %n\n}"
    )
    assert (
        SIGNATURE(jit.load_object(jit.compile_text(text, jit.host_target())).address("f"))(0, 0)
        == 7
    )


@pytest.mark.parametrize("code", [b"", b"\x7fELF\x02\x01", b"MZ" + bytes(100), bytes(4096)])
def test_what_is_no_object_is_not_mapped(code: bytes) -> None:
    assert code_image.mapped(code) is None


def test_a_cut_object_is_not_mapped_or_has_all_it_names() -> None:
    code = jit.compile_text(TEXT, jit.host_target())
    for length in range(0, len(code) - 1, 97):
        assert code_image.mapped(code[:length]) is None


PROGRAM = """
import sys
import weft as wf
f = wf.compile(lambda x: wf.tanh(x * 2.0 + 1.0).sum())
print(float(f(wf.arange(10.0))), "llvmlite.binding" in sys.modules)
"""


@pytest.mark.slow
def test_a_program_on_disk_runs_without_llvm(tmp_path: Path) -> None:
    variables = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path / "code")}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    first, second = (
        subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert first.split()[1] == "True"
    assert second.split() == [first.split()[0], "False"]
