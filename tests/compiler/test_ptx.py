"""PTX: golden files, rounding by itself, and the bits of the CPU where a GPU is here."""

from __future__ import annotations

import re

import numpy as np
import pytest

import weft as wf
from tests.compiler.gpu_results import different, on_cpu
from tools import golden
from weft.compiler.emit_ptx import emit, emit_ptx, gpu_target
from weft.compiler.pipeline_gpu import CUDA
from weft.core.tensor.tracing import trace
from weft.errors import BackendError, UnsupportedError
from weft.runtime.cuda import driver
from weft.testing.gpu_programs import PROGRAMS, planned

CAPABILITIES = [(7, 0), (8, 0), (9, 0)]


def ptx_of(name: str, capability=(9, 0)) -> str:
    return emit_ptx(planned(PROGRAMS[name].trace(), CUDA).kernels, gpu_target(capability))


def test_a_few_elements_of_something_large_are_set_by_one_kernel():
    x = wf.zeros((1 << 12,), dtype="float32")
    program = planned(trace(lambda x: x.at[3:9].set(x[0]), x), CUDA)
    assert len(program.kernels) == 1


def written_by_llvm() -> str:
    return golden.files_of("ptx")[0].read_text().splitlines()[0]


@pytest.mark.skipif(
    written_by_llvm() != f"// LLVM {golden.LLVM}",
    reason="the golden files were written by another version of LLVM",
)
def test_ptx_is_what_the_golden_files_say():
    lines = golden.differences("ptx")
    assert not lines, "\n".join([*lines[:40], "hint: python tools/golden.py --update ptx"])


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_operation_is_rounded_by_itself(name, capability):
    text = ptx_of(name, capability)
    contractible = r"\b(add|sub|mul)\.f(32|64)|\bfma\.(?!rn)|\b(div|sqrt)\.(approx|full)|\.ftz"
    assert not re.findall(contractible, text)
    asked = emit(planned(PROGRAMS[name].trace(), CUDA).kernels, gpu_target(capability))
    lanes = re.findall(r"= call .*@llvm\.fma\.(?:v(\d+))?f\d+", asked)
    assert text.count("fma.rn") <= sum(int(count or 1) for count in lanes)  # none but those


def test_elements_move_in_vectors_of_16_bytes():
    text = ptx_of("chain")
    assert text.count("ld.global.v4") == 3 and text.count("st.global.v4") == 1
    assert "ld.global.b32" not in text
    assert "ld.global.b32" in ptx_of("chain_tail")  # the elements that no vector takes


def test_an_index_that_is_no_multiple_of_a_vector_is_read_one_by_one():
    x = wf.asarray(np.ones(1025, np.float32))
    kernels = planned(trace(lambda x: x[1:] * x[:-1], x), CUDA).kernels
    text = emit_ptx(kernels, gpu_target())
    assert text.count("ld.global.v4") == 1 and text.count("ld.global.b32") == 4


def test_threads_wait_for_each_other_between_the_stages_of_a_row():
    text = ptx_of("softmax")
    assert text.count("bar.sync") == 4 and ".shared" in text


def test_calls_without_kernels_for_a_gpu_say_so_by_name():
    x = wf.asarray(np.ones((4, 4), np.float32))
    (call,) = planned(trace(lambda x: wf.linalg.inv(x), x), CUDA).steps
    assert call.why == "inv: no kernel for a GPU" and not call.alone


def test_gpus_before_volta_are_refused():
    with pytest.raises(UnsupportedError, match=r"6\.1: 7\.0 is the oldest"):
        gpu_target((6, 1))


@pytest.mark.skipif(driver.is_available(), reason="a GPU is here")
def test_a_missing_driver_is_said_so():
    with pytest.raises(BackendError, match="cuda: "):
        wf.client("cuda")


@pytest.mark.skipif(not driver.is_available(), reason="no NVIDIA GPU and driver on this machine")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_gpu_gives_the_bits_of_the_cpu(name):
    program = PROGRAMS[name]
    arrays, made = program.arrays(), program.trace()
    there = wf.client("cuda").executable(made).run(arrays)
    for found, expected in zip(there, on_cpu(made, arrays), strict=True):
        assert different(found.to_host(), expected) == 0
