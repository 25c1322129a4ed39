"""Complex numbers in kernels: the bits of single calls, and what NumPy makes of special values."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import (
    assert_same,
    compiled,
    interpreted,
    is_same,
    lowered_kernels,
    native,
)
from tests.compiler.native_kernels import run
from weft.compiler.pipeline import schedule
from weft.compiler.verify import verify
from weft.config import settings
from weft.core.graph.trace import Trace
from weft.testing.ir import run_kernel

COMPLEX = ("complex64", "complex128")
SPECIAL = (0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan)
LENGTHS = (0, 1, 7, 1000, 40_001)

UNARY = {
    "negative": np.negative,
    "conj": np.conj,
    "real": np.real,
    "imag": np.imag,
    "abs": np.abs,
    "angle": np.angle,
    "square": np.square,
    "reciprocal": np.reciprocal,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "round": np.rint,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
}
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "equal": np.equal,
    "not_equal": np.not_equal,
}
PROGRAMS = {
    "a * conj(a)": lambda a, b: a * wf.conj(a),
    "abs(a) ** 2": lambda a, b: wf.abs(a) ** 2,
    "a * b + 2 * a": lambda a, b: a * b + 2 * a,
    "turned": lambda a, b: wf.exp(1j * wf.real(a)) * b,
    "swapped": lambda a, b: wf.complex(wf.imag(a), wf.real(a)) - b,
    "unit": lambda a, b: wf.where(wf.abs(a) < 1, a, a / wf.abs(a)),
    "quotient": lambda a, b: (a - b) / (a + b),
    "logarithm": lambda a, b: wf.log(a) - wf.sqrt(b),
    "narrowed": lambda a, b: wf.astype(wf.astype(a, "complex128") * b, "complex64"),
    "is equal": lambda a, b: (a == b) | wf.isnan(a) | wf.isfinite(b),
    "sum": lambda a, b: wf.sum(a * b),
    "mean": lambda a, b: a - wf.mean(b),
    "sign": lambda a, b: wf.sign(a) * wf.reciprocal(b),
    "joined": lambda a, b: wf.concat([a, b[::-1], a * b])[::2],
    "stacked": lambda a, b: wf.stack([a, wf.conj(b), a * b], axis=-1),
    "padded": lambda a, b: wf.pad(a * b, ((2, 1),), constant_values=1 - 2j),
    "rolled": lambda a, b: wf.roll(a, 1) * b,
}


def numbers(count: int, dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    made = rng.standard_normal(count) + 1j * rng.standard_normal(count)
    return made.astype(dtype)


def specials(dtype: str) -> np.ndarray:
    """Every pair of special parts, and of large and small ones."""
    limits = np.finfo(dtype)
    each = [*SPECIAL, float(limits.max), float(limits.tiny), float(limits.smallest_subnormal)]
    made = np.empty((len(each), len(each)), dtype)
    made.real, made.imag = np.array(each)[:, None], np.array(each)
    return made.reshape(-1)


def same_numbers(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    """NaN, infinities and zeros where they should be, with their signs; the rest nearly."""
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    if found.dtype.kind == "b":
        np.testing.assert_array_equal(found, wanted)
        return
    pairs = [(found, wanted)]
    if found.dtype.kind == "c":
        pairs = [(found.real, wanted.real), (found.imag, wanted.imag)]
    size = np.abs(wanted)
    for mine, theirs in pairs:
        np.testing.assert_array_equal(np.isnan(mine), np.isnan(theirs))
        exact = ~np.isnan(theirs) & ((theirs == 0) | np.isinf(theirs))
        np.testing.assert_array_equal(np.signbit(mine[exact]), np.signbit(theirs[exact]))
        infinite = np.isinf(theirs)
        np.testing.assert_array_equal(mine[infinite], theirs[infinite])
        rest = np.isfinite(theirs)
        near = np.maximum(np.where(np.isfinite(size), size, 0), np.abs(theirs))[rest]
        slack = tolerance * near + 2 * float(np.finfo(found.dtype).smallest_subnormal)
        assert (np.abs(mine[rest] - theirs[rest]) <= slack).all()


def traced(function: object, *arrays: np.ndarray) -> Trace:
    return wf.trace(function, *map(wf.tensor, arrays))


def by_parts(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A product each of whose steps is rounded, which NumPy may fuse."""
    made = np.empty(x.shape, x.dtype)
    made.real = x.real * y.real - x.imag * y.imag
    made.imag = x.real * y.imag + x.imag * y.real
    return made


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", UNARY)
def test_special_values_of_one_number_are_those_of_numpy(name, dtype):
    x = specials(dtype)
    found = wf.compile(getattr(wf, name))(wf.tensor(x)).numpy()
    with np.errstate(all="ignore"):
        wanted = by_parts(x, x) if name == "square" else UNARY[name](x)
    undecided = np.zeros(x.shape, bool)
    if name == "exp":  # C99 leaves the signs of zeros open
        undecided = np.isneginf(x.real) & ~np.isfinite(x.imag)
        assert (found[undecided] == 0).all()
    same_numbers(found[~undecided], wanted[~undecided], 8 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", BINARY)
def test_special_values_of_two_numbers_are_those_of_numpy(name, dtype):
    x = specials(dtype)
    x, y = np.repeat(x, x.size), np.tile(x, x.size)
    found = wf.compile(getattr(wf, name))(wf.tensor(x), wf.tensor(y)).numpy()
    with np.errstate(all="ignore"):
        wanted = by_parts(x, y) if name == "multiply" else BINARY[name](x, y)
    same_numbers(found, wanted, 0.0)


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", PROGRAMS)
def test_compiled_programs_have_the_bits_of_single_calls(name, dtype):
    for count in LENGTHS:
        x, y = numbers(count, dtype), numbers(count, dtype, 1)
        x[: min(count, 100)] = specials(dtype)[: min(count, 100)]
        made = traced(PROGRAMS[name], x, y)
        wanted = interpreted(made, (x, y))
        program = native(made)
        assert not program.hosts, "a call of Python is left"
        for threads in (1, 2, 4):
            assert_same(program.run((x, y), threads), wanted, f"{name} of {count}")


@pytest.mark.parametrize("dtype", COMPLEX)
def test_numbers_that_do_not_lie_side_by_side_have_the_same_bits(dtype):
    whole = numbers(60 * 40, dtype).reshape(60, 40)
    function = wf.compile(lambda a, b: wf.abs(a * b) + wf.real(a / b))
    for view in (whole[::2], whole[::-1, ::3], whole.T, whole[5:6, ::-2], whole[:0]):
        other = np.ascontiguousarray(view)[::-1]
        packed = [np.ascontiguousarray(x) for x in (view, other)]
        wanted = function(*map(wf.tensor, packed)).numpy()
        assert is_same(function(wf.asarray(view), wf.asarray(other)).numpy(), wanted)
        one_by_one = wf.abs(wf.asarray(view) * wf.asarray(other))
        one_by_one = one_by_one + wf.real(wf.asarray(view) / wf.asarray(other))
        assert is_same(one_by_one.numpy(), wanted)


@pytest.mark.parametrize("dtype", COMPLEX)
def test_reductions_and_broadcasts_have_the_bits_of_single_calls(dtype):
    x, y = numbers(77 * 65, dtype).reshape(77, 65), numbers(65, dtype, 1)
    programs = (
        lambda a, b: wf.sum(a * b, axis=1),
        lambda a, b: wf.sum(a * b, axis=0) * b,
        lambda a, b: a / wf.sum(a, axis=1, keepdims=True),
        lambda a, b: (a - wf.mean(a, axis=-1, keepdims=True)).T * 2,
        lambda a, b: wf.conj(a.T) @ (a * b),
        lambda a, b: wf.conj(a @ wf.stack([b, b * b], axis=-1)),
        lambda a, b: wf.where(wf.arange(65) < 3, 0, a) @ b,
        lambda a, b: wf.sum(wf.exp(wf.sum(a, axis=1, keepdims=True) * 0.01) * a, axis=1),
    )
    for number, program in enumerate(programs):
        made = traced(program, x, y)
        wanted = interpreted(made, (x, y))
        assert not native(made).hosts
        assert_same(compiled(made, (x, y), 2), wanted, f"program {number}")


def test_the_parts_of_a_result_may_lie_where_those_of_an_operand_lay():
    x = numbers(5000, "complex64")
    turned = wf.compile(lambda a: wf.complex(wf.imag(a), wf.real(a)), donate_argnums=0)
    found = turned(wf.tensor(x.copy())).numpy()
    assert is_same(found, (x.imag + 1j * x.real).astype("complex64"))


@pytest.mark.parametrize("dtype", COMPLEX)
def test_exponentials_are_finite_where_a_factor_is_not(dtype):
    angle = np.nextafter(np.finfo(dtype).dtype.type(np.pi / 2), 0)
    large = {"complex64": 95.0, "complex128": 740.0}[dtype]
    x = np.array([large + 1j * float(angle), complex(np.inf, -0.0), complex(0.0, -0.0)], dtype)
    found = wf.exp(wf.tensor(x)).numpy()
    wanted = np.exp(x[:1].astype(np.clongdouble)).real
    np.testing.assert_allclose(found[:1].real, wanted.astype(found.real.dtype), rtol=1e-5)
    assert np.isposinf(found[1].real) and np.signbit(found[1:].imag).all()


@pytest.mark.parametrize("name", ["exp", "log", "sqrt"])
def test_functions_are_right_to_a_few_digits_of_their_size(name):
    rng = np.random.default_rng(0)
    angles, steps = rng.uniform(-np.pi, np.pi, 20_000), 10.0 ** rng.uniform(-8, 0, 20_000)
    near = (1 + steps * np.exp(1j * angles), (1 + steps) * np.exp(1j * angles))
    far = (10.0 ** rng.uniform(-37, 1.5, 20_000) * np.exp(1j * angles),)
    for drawn in (*near, *far):
        x = drawn.astype("complex64")
        found, wanted = getattr(wf, name)(wf.tensor(x)).numpy(), UNARY[name](x.astype(complex))
        digits = np.spacing(np.abs(wanted).astype(np.float32))
        assert (np.abs(found - wanted) <= 4 * digits).all()


def test_kernels_run_between_transforms():
    x, h = numbers(4099, "complex64"), numbers(4099, "complex64", 1)  # a prime
    made = traced(lambda a, b: wf.abs(wf.fft.ifft(wf.fft.fft(a) * b)) ** 2, x, h)
    program = native(made)
    assert [node.name for node in program.hosts] == ["fft", "ifft"]
    assert_same(program.run((x, h), 1), interpreted(made, (x, h)))


@pytest.mark.parametrize("dtype", COMPLEX)
def test_transforms_of_compiled_functions_agree_with_interpreted_ones(dtype):
    x, y = (wf.tensor(numbers(33, dtype, seed)) for seed in (0, 1))

    def loss(a, b):
        return wf.sum(wf.abs(a * wf.conj(b) + wf.exp(1j * wf.real(a)) / b) ** 2)

    def slope(a, b):
        return wf.jvp(loss, (a, b), (b, a))[1]

    each = wf.vmap(lambda a, b: a / b + wf.sqrt(a))
    for function in (wf.grad(loss), slope, each, wf.vmap(wf.grad(lambda a, b: wf.abs(a * b)))):
        wanted, found = function(x, y).numpy(), wf.compile(function)(x, y).numpy()
        assert is_same(found, wanted)


def test_kernels_of_complex_numbers_run_in_lanes():
    x = wf.tensor(numbers(10_000, "complex64"))
    for function in (lambda a: a * wf.conj(a), lambda a: wf.sum(a * a), wf.abs):
        assert "vector" in wf.compile(function).explain(x, loops=True)


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("name", ["a * b + 2 * a", "quotient", "sum", "rolled", "stacked"])
def test_vectors_of_every_width_have_the_same_bits(name, vector_bytes):
    given = numbers(301, "complex64"), numbers(301, "complex64", 1)
    for kernel in lowered_kernels(PROGRAMS[name], *given):
        arrays = [
            numbers(1000, "complex64", number).view(np.float32)
            for number in range(len(kernel.buffers))
        ]
        wanted = run_kernel(kernel, arrays)
        made = schedule(kernel, vector_bytes=vector_bytes, threads_wanted=False)
        assert len(made) == 1 and len(made[0].buffers) == len(kernel.buffers)
        found = [array.copy() for array in arrays]
        run(verify(made[0]), *found)
        for mine, other, theirs in zip(found, run_kernel(made[0], arrays), wanted, strict=True):
            assert is_same(mine, theirs) and is_same(other, theirs)


@pytest.mark.slow
def test_no_access_leaves_memory(monkeypatch):
    monkeypatch.setattr(settings, "check_bounds", 1)
    x, y = numbers(1001, "complex64"), numbers(1001, "complex64", 1)
    for name, function in PROGRAMS.items():
        made = traced(function, x, y)
        assert_same(compiled(made, (x, y)), interpreted(made, (x, y)), name)


def test_factors_of_parts_that_lie_anywhere():
    rng = np.random.default_rng(3)
    t, x, y = (rng.standard_normal((k, 20, 20)).astype(np.float32) for k in (2, 1, 1))
    w = (x + 1j * y)[0]
    for function in (
        lambda xp, join, t, w: join(t[0], t[1]) @ w,
        lambda xp, join, t, w: w @ join(t[1], t[1].T),
        lambda xp, join, t, w: join(t[1], t[0]) @ xp.conj(w).T,
        lambda xp, join, t, w: join(t[0, ::2], t[0, 1::2]) @ w,
    ):
        wanted = function(np, lambda x, y: x + 1j * y, t, w)
        product = wf.compile(partial(function, wf, wf.complex))
        found = product(wf.tensor(t), wf.tensor(w)).numpy()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
