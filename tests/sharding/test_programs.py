"""Random programs on random layouts give what they give on one device, transforms included."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.random_programs import make_program
from tests.sharding.exact_programs import make_exact, run_steps
from tests.sharding.layouts import MESHES, close, laid_out, random_spec, same

FIXED = range(150)
FRESH = 20
EXACT = range(150)
NARROW = {"float32": 1e-4, "complex64": 1e-4, "bfloat16": 0.1}


def spread(rng, arrays):
    """The arrays over one mesh, each in a layout of its own; now and then one on one device."""
    mesh = MESHES[int(rng.integers(len(MESHES)))]
    specs = [random_spec(rng, mesh, a.ndim) for a in arrays]
    if len(specs) > 1 and not rng.integers(4):
        specs[0] = None
    return [laid_out(a, mesh, spec) for a, spec in zip(arrays, specs, strict=True)]


def described(tensors) -> str:
    return ", ".join(f"{x.shape} as {x.sharding} on {x.sharding.mesh}" for x in tensors)


def total_of(program):
    def total(*tensors):
        outputs = [wf.sum(wf.sin(y)) for y in program(*tensors)]
        return sum(wf.real(y) if y.dtype == wf.complex128 else y for y in outputs)

    return total


def gradients(program, tensors):
    return wf.grad(total_of(program), argnums=tuple(range(len(tensors))))(*tensors)


def pushed(program, tensors):
    return wf.jvp(program, tuple(tensors), tuple(wf.cos(x) for x in tensors))


def mapped(program, tensors):
    return wf.vmap(program)(*(wf.stack([x, wf.sin(x)]) for x in tensors))


def compiled(program, tensors):
    return wf.compile(program)(*tensors)


def gradients_of_mapped(program, tensors):
    stacked = [wf.stack([x, wf.sin(x), x / 2]) for x in tensors]
    return wf.vmap(wf.grad(total_of(program)))(*stacked)


def recomputed(program, tensors):
    return wf.grad(wf.checkpoint(total_of(program)))(*tensors)


TRANSFORMS = (gradients, pushed, mapped, compiled, gradients_of_mapped, recomputed)


def check(seed: int, transform=None) -> None:
    rng = np.random.default_rng(seed)
    program = make_program(rng, longest=int(rng.choice([3, 5])))
    dense = [wf.asarray(a) for a in program.inputs]
    tensors = spread(rng, program.inputs)
    run = transform or (lambda program, tensors: program(*tensors))
    try:
        close(run(program, tensors), run(program, dense), 1e-10)
    except Exception as error:
        error.add_note(f"seed {seed}, inputs {described(tensors)}, program:\n{program}")
        raise


@pytest.mark.slow
@pytest.mark.promise("S0.5")
def test_random_programs_give_what_they_give_on_one_device() -> None:
    for seed in FIXED:
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: t.__name__)
@pytest.mark.promise("S3.24")
def test_transformed_random_programs_give_what_they_give_on_one_device(transform) -> None:
    first = 1000 * (1 + TRANSFORMS.index(transform))
    for seed in range(first, first + (12 if transform is compiled else 30)):
        check(seed, transform)


def test_fresh_random_programs_give_what_they_give_on_one_device(fresh_seed) -> None:
    for number in range(FRESH):
        check(fresh_seed + number, (None, *TRANSFORMS)[number % 7])


class Moves:
    """Steps that lay a value out anew, on a mesh that is chosen when the program runs."""

    mesh: wf.DeviceMesh | None = None

    def draw(self, rng, x):
        seed = int(rng.integers(2**30))
        return f"laid out anew by {seed}", lambda x: self.move(x, np.random.default_rng(seed)) * 1.0

    def move(self, x, rng):
        if self.mesh is None:
            return x
        choice = int(rng.integers(4))
        if choice < 2:
            return (wf.all_gather, wf.all_reduce)[choice](x)
        return x.shard(self.mesh, random_spec(rng, self.mesh, x.ndim))


@pytest.mark.slow
@pytest.mark.parametrize("transform", [None, *TRANSFORMS], ids=lambda t: t.__name__ if t else "run")
def test_programs_may_lay_values_out_anew_under_any_transform(transform) -> None:
    run = transform or (lambda program, tensors: program(*tensors))
    for seed in range(7000, 7015):
        rng, moves = np.random.default_rng(seed), Moves()
        program = make_program(rng, unary=[moves.draw] * 25)
        dense = [wf.asarray(a) for a in program.inputs]
        expected = run(program, dense)
        moves.mesh = MESHES[seed % len(MESHES)]
        tensors = [laid_out(a, moves.mesh, random_spec(rng, moves.mesh, a.ndim)) for a in dense]
        try:
            close(run(program, tensors), expected, 1e-10)
        except Exception as error:
            error.add_note(f"seed {seed}, inputs {described(tensors)}, program:\n{program}")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("dtype", NARROW)
def test_random_programs_in_narrow_types_stay_close(dtype) -> None:
    for seed in range(9000, 9040):
        rng = np.random.default_rng(seed)
        program = make_program(rng, length=4)
        if np.iscomplexobj(program.inputs[0]) != (dtype == "complex64"):
            continue
        arrays = [wf.asarray(a).astype(getattr(wf, dtype)) for a in program.inputs]
        tensors = spread(rng, arrays)
        found, expected = program(*tensors), program(*arrays)
        try:
            close(found, expected, NARROW[dtype])
        except AssertionError as error:
            error.add_note(f"seed {seed}, inputs {described(tensors)}, program:\n{program}")
            raise


def check_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs, steps = make_exact(rng)
    expected = run_steps([wf.asarray(a) for a in inputs], steps)
    tensors = spread(rng, inputs)
    try:
        same(run_steps(tensors, steps), expected)
    except Exception as error:
        rows = "\n".join(f"{text} of {operands}" for text, _, operands in steps)
        error.add_note(f"seed {seed}, inputs {described(tensors)}, program:\n{rows}")
        raise


def test_programs_over_integers_and_truth_values_give_the_same_bits() -> None:
    for seed in EXACT:
        check_exact(seed)


def test_fresh_programs_over_integers_give_the_same_bits(fresh_seed) -> None:
    for number in range(FRESH):
        check_exact(fresh_seed + number)
