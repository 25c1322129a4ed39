"""Random programs give the results of the CPU on a WebGPU device, and so do their gradients."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.cuda.test_random_programs import results, total
from tests.random_programs import make_program
from tests.webgpu.test_same_results import near


@pytest.mark.parametrize("seed", range(1000, 1020))
def test_random_programs_give_the_results_of_the_cpu(seed) -> None:
    program = make_program(np.random.default_rng(seed))
    for function in (program, wf.grad(total(program)), wf.compile(wf.grad(total(program)))):
        expected, found = (results(function, program.inputs, d) for d in ("cpu", "webgpu"))
        assert all(near(a, b) for a, b in zip(found, expected, strict=True)), str(program)
