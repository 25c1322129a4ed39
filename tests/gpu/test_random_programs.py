"""Random programs give on a GPU what the CPU gives: values and gradients, eager and compiled."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.gpu.comparison import agree
from tests.random_programs import make_program

pytestmark = pytest.mark.slow  # every program has kernels of its own

FIXED, FRESH = range(1000, 1014), 4


def results(function, arrays, device):
    with wf.default_device(device):
        leaves = wf.tree_leaves(function(*(wf.tensor(a, device=device) for a in arrays)))
        return [np.asarray(leaf.host()) for leaf in leaves]


def total(program):
    def function(*tensors):
        made = [wf.sum(wf.abs(x) if x.dtype.kind == "c" else x) for x in program(*tensors)]
        return wf.sum(wf.stack([x.astype("float64") for x in made]))

    return function


def check(seed: int, device: str) -> None:
    program = make_program(np.random.default_rng(seed))
    try:
        for function in (program, wf.grad(total(program)), wf.compile(wf.grad(total(program)))):
            found, expected = (results(function, program.inputs, d) for d in (device, "cpu"))
            assert agree(found, expected, device)
    except Exception as error:
        error.add_note(f"seed {seed}, program:\n{program}")
        raise


@pytest.mark.parametrize("seed", FIXED)
def test_random_programs_give_the_results_of_the_cpu(seed, device) -> None:
    check(seed, device)


def test_fresh_random_programs_give_the_bits_of_the_cpu(fresh_seed) -> None:
    for seed in range(fresh_seed, fresh_seed + FRESH):
        check(seed, "cuda")  # how far a shader's roundings carry depends on the program
