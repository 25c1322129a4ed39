"""Derivatives of derivatives, for every op: adding an op adds its tests here.

The first order is a law (`test_laws`). Here each op's rules are differentiated once more, in every
order of modes, mapped over a batch, and run in narrow dtypes.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import weft as wf
from weft.core.common.slots import OPS
from weft.ops.base import Example, Operation, call
from weft.testing.samples import calls, operands

pytestmark = pytest.mark.slow

STEP = 1e-6
ONCE = {"gammainc": (0,), "gammaincc": (0,)}  # operands with a first derivative, and no second
CASES = [
    pytest.param(op, example, id=f"{op}-{number}")
    for op in OPS.values()
    for number, example in enumerate(calls(op))
    if "jvp" not in op.reasons and "vjp" not in op.reasons
]
each_op = pytest.mark.parametrize(("op", "example"), CASES)


class Problem:
    """An op as a function of the operands that carry derivatives, at a point, with directions."""

    def __init__(self, op: Operation, example: Example, lead: tuple[int, ...] = ()) -> None:
        rng = np.random.default_rng(sum(map(ord, op.name)) + 1)
        self.op, self.params = op, example.params
        self.arrays = operands(op, example, rng, lead)
        fixed = (*op.constants, *ONCE.get(op.name, ()))
        self.places = [
            i for i, a in enumerate(self.arrays) if a.dtype.kind in "fc" and i not in fixed
        ]
        if not self.places:
            pytest.skip("has no operand that carries a derivative")
        self.point = tuple(self.arrays[i] for i in self.places)
        self.moves = [tuple(direction(a, rng) for a in self.point) for _ in range(2)]
        self.ct = tuple(direction(y.numpy(), rng) for y in self(*self.point))

    def __call__(self, *values):
        """The results that carry derivatives."""
        full = list(self.arrays)
        for place, value in zip(self.places, values, strict=True):
            full[place] = value
        made = call(self.op, tuple(map(wf.asarray, full)), self.params)
        made = made if isinstance(made, tuple) else (made,)
        return tuple(y for y in made if y.dtype.kind in "fc" or y.dtype.name == "bfloat16")

    def scalar(self, *values):
        """The results paired with a fixed cotangent."""
        return pair(self.ct, self(*values))

    def shifted(self, move, sign):
        return tuple(a + sign * STEP * t for a, t in zip(self.point, move, strict=True))


def direction(array, rng):
    made = rng.uniform(-1, 1, array.shape)
    if array.dtype.kind == "c":
        made = made + 1j * rng.uniform(-1, 1, array.shape)
    return made.astype(array.dtype)


def pair(left, right):
    """The real bilinear pairing of two tuples of tensors."""
    total = 0.0
    for a, b in zip(left, right, strict=True):
        total = wf.sum(wf.real(wf.asarray(a) * b)) + total
    return total


def pair_arrays(left, right):
    return sum(float(np.real(np.sum(a * b))) for a, b in zip(left, right, strict=True))


def numbers(tensors):
    return [x.numpy() for x in tensors]


def gradient(function, *point):
    return wf.grad(function, argnums=tuple(range(len(point))))(*point)


def close(found, expected, tolerance):
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@each_op
def test_second_derivatives_are_differences_of_first_ones(op: Operation, example: Example) -> None:
    problem = Problem(op, example)
    move, other = problem.moves

    def pulled(*x):
        return wf.vjp(problem, *x)[1](problem.ct)

    def pushed(*x):
        return wf.jvp(problem, x, other)[1]

    _, forward = wf.jvp(pulled, problem.point, move)
    up, down = (numbers(pulled(*problem.shifted(move, sign))) for sign in (1, -1))
    for found, a, b in zip(forward, up, down, strict=True):
        close(found.numpy(), (a - b) / (2 * STEP), 1e-4)

    _, pullback = wf.vjp(pushed, *problem.point)
    back = pair_arrays(numbers(pullback(problem.ct)), move)
    up, down = (
        pair_arrays(problem.ct, numbers(pushed(*problem.shifted(move, sign)))) for sign in (1, -1)
    )
    close(back, (up - down) / (2 * STEP), 1e-4)


@each_op
def test_hessian_products_agree_in_all_four_orders_of_modes(
    op: Operation, example: Example
) -> None:
    problem = Problem(op, example)
    f, x, (v, w) = problem.scalar, problem.point, problem.moves

    def slope(*x):
        return wf.jvp(f, x, v)[1]

    forward_forward = wf.jvp(slope, x, w)[1].item()
    forward_reverse = wf.jvp(lambda *x: gradient(f, *x), x, v)[1]
    reverse_forward = gradient(slope, *x)
    reverse_reverse = gradient(lambda *x: pair(v, gradient(f, *x)), *x)
    for found in (forward_reverse, reverse_forward, reverse_reverse):
        close(pair_arrays(w, numbers(found)), forward_forward, 1e-8)


@each_op
def test_a_map_of_gradients_is_a_loop_of_gradients(op: Operation, example: Example) -> None:
    single, batch = Problem(op, example), Problem(op, example, lead=(3,))
    arrays = batch.arrays

    def gradients(*full):
        def of_places(*values):
            filled = list(full)
            for place, value in zip(single.places, values, strict=True):
                filled[place] = value
            made = call(op, tuple(map(wf.asarray, filled)), example.params)
            made = made if isinstance(made, tuple) else (made,)
            return pair(single.ct, [y for y in made if y.dtype.kind in "fc"])

        return gradient(of_places, *(full[i] for i in single.places))

    rows = [numbers(gradients(*(a[i] for a in arrays))) for i in range(3)]
    for slot, found in enumerate(wf.vmap(gradients)(*arrays)):
        close(found.numpy(), np.stack([row[slot] for row in rows]), 1e-9)


NARROW = {
    "float32": (np.float32, np.complex64, 1e-3),
    "bfloat16": (ml_dtypes.bfloat16, None, 0.1),
    "float16": (np.float16, None, 0.02),
}


@pytest.mark.parametrize("name", NARROW)
@each_op
def test_derivatives_of_narrow_operands_keep_their_dtype_and_are_close(
    op: Operation, example: Example, name: str
) -> None:
    real, complex_, tolerance = NARROW[name]
    problem = Problem(op, example)

    def narrowed(array):
        kind = {"f": real, "c": complex_}.get(array.dtype.kind, array.dtype)
        if kind is None:
            pytest.skip("complex numbers have no narrower dtype")
        return array.astype(kind)

    problem.arrays = [narrowed(a) for a in problem.arrays]
    narrow = tuple(problem.arrays[i] for i in problem.places)
    wide = tuple(a.astype(b.dtype) for a, b in zip(narrow, problem.point, strict=True))
    try:
        out, pullback = wf.vjp(problem, *narrow)
    except wf.errors.DTypeError as error:
        pytest.skip(str(error))
    ct = tuple(c.astype(y.dtype) for c, y in zip(problem.ct, out, strict=True))
    found = pullback(ct)
    moves = tuple(t.astype(a.dtype) for t, a in zip(problem.moves[0], narrow, strict=True))
    for pushed, y in zip(wf.jvp(problem, narrow, moves)[1], out, strict=True):
        assert pushed.dtype == y.dtype
    problem.arrays = [a.astype(np.float64) if a.dtype == real else a for a in problem.arrays]
    expected = wf.vjp(problem, *wide)[1](tuple(c.astype(d.dtype) for c, d in zip(ct, problem.ct)))
    for got, given, want in zip(found, narrow, expected, strict=True):
        assert got.dtype == given.dtype
        scale = max(1.0, float(np.max(np.abs(want.numpy()), initial=0.0)))
        close(got.numpy().astype(want.dtype) / scale, want.numpy() / scale, tolerance)
