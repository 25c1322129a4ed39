"""Every way to cut a matrix product gives the bits of every other, for all dtypes and layouts."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.compiler.native import Native
from weft.compiler.passes.contract_blocks import PATHS, using_path
from weft.core.common import dtypes
from weft.errors import ArgumentError
from weft.runtime.cpu.jit import Target, host_target, using_target
from weft.testing.instructions import fma

pytestmark = pytest.mark.slow

DTYPES = [
    *["float32", "float64", "bfloat16", "float16", "float8_e4m3", "float8_e5m2"],
    *["int8", "uint8", "int16", "int32", "int64", "complex64", "complex128"],
]
LAYOUTS = ["plain", "transposed", "stepped", "reversed", "shared"]
SHAPES = [(1, 1, 9), (2, 65, 40), (65, 3, 40), (16, 48, 16), (17, 31, 67), (4, 0, 4), (4, 4, 0)]


def laid_out(x: wf.Tensor, layout: str) -> wf.Tensor:
    """A matrix read from memory in one of several ways; its shape changes with some."""
    if layout == "transposed":
        return wf.permute_dims(x, (1, 0))
    if layout == "stepped":
        return x[1::2, ::3]
    if layout == "reversed":
        return wf.flip(x, axis=1)
    return x[:1] + wf.zeros_like(x) if layout == "shared" else x


def stored(rows: int, columns: int, layout: str, dtype: Any, seed: int) -> Any:
    """Memory for which `laid_out` gives a matrix of this size."""
    shape = {"transposed": (columns, rows), "stepped": (2 * rows + 1, 3 * columns)}.get(
        layout, (rows, columns)
    )
    random = np.random.default_rng(seed)
    made = random.standard_normal(shape) * 2
    if dtypes.is_integer(dtype):
        made = random.integers(0, 200, shape)
    elif dtypes.is_complex(dtype):
        made = made + 1j * random.standard_normal(shape)
    return made.astype(np.float32).astype(dtype) if dtypes.is_narrow(dtype) else made.astype(dtype)


def run(case: tuple[Any, ...], path: str, general: bool, threads: int = 1) -> Any:
    """The product of a case by one path."""
    (rows, columns, depth), dtype, left, right = case
    dtype = dtypes.as_dtype(dtype, op="test")
    a, b = stored(rows, depth, left, dtype, 1), stored(depth, columns, right, dtype, 2)

    def product(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        return laid_out(x, left) @ laid_out(y, right)

    trace = wf.trace(product, wf.asarray(a), wf.asarray(b))
    if not path:
        return Native(trace, general=general).run([a, b], threads)[0]
    with using_path(path):
        return Native(trace, general=general).run([a, b], threads)[0]


def reference(case: tuple[Any, ...]) -> tuple[Any, Any]:
    """The product that NumPy finds in the widest dtype, and what a sum of magnitudes is."""
    (rows, columns, depth), dtype, left, right = case
    dtype = dtypes.as_dtype(dtype, op="test")
    factors = []
    for x, layout in (
        (stored(rows, depth, left, dtype, 1), left),
        (stored(depth, columns, right, dtype, 2), right),
    ):
        found = laid_out(wf.asarray(x), layout).numpy()
        wide = dtype if dtypes.is_integer(dtype) else np.result_type(np.float64, found.real.dtype)
        factors.append(
            found if dtypes.is_complex(dtype) or wide == dtype else found.astype(np.float64)
        )
    return factors[0] @ factors[1], np.abs(factors[0]) @ np.abs(factors[1])


def check(case: tuple[Any, ...], general: bool, paths: tuple[str, ...] = PATHS) -> None:
    found = {path: run(case, path, general) for path in ("", *paths)}
    for path in paths:
        assert found[path].tobytes() == found[""].tobytes(), (case, path)
    want, size = reference(case)
    dtype = found[""].dtype
    if dtypes.is_integer(dtype):
        assert np.array_equal(found[""], want.astype(dtype)), case
        return
    got = found[""].astype(np.complex128 if dtypes.is_complex(dtype) else np.float64)
    real = dtype if not dtypes.is_complex(dtype) else np.empty(0, dtype).real.dtype
    spacing = float(wf.finfo(real).eps)
    inside = np.abs(want) < float(wf.finfo(real).max)  # beyond lies infinity, or NaN
    error = np.abs(got - want)[inside]
    room = (4 * spacing * np.abs(want) + 4e-6 * size)[inside]
    assert np.all(error <= room + float(wf.finfo(real).smallest_normal)), case


@settings(max_examples=40, deadline=None)
@given(
    size=st.tuples(*[st.integers(0, 70)] * 3),
    layouts=st.sampled_from([("plain", "plain"), ("transposed", "stepped"), ("stepped", "plain")]),
)
def test_one_kernel_for_all_sizes_gives_the_same_bits_on_every_path(
    size: tuple[int, int, int], layouts: tuple[str, str]
) -> None:
    check((size, "float32", *layouts), general=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_has_the_same_bits_on_every_path(dtype: str) -> None:
    random = np.random.default_rng(len(dtype))
    for size in [(1, 70, 33), (70, 1, 33), *random.integers(0, 71, (6, 3)).tolist()]:
        check((tuple(size), dtype, "plain", "transposed"), general=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_for_one_size_give_the_same_bits_on_every_path(shape: tuple[int, ...]) -> None:
    check((shape, "float32", "plain", "plain"), general=False)
    check((shape, "float32", "plain", "transposed"), general=False)


@pytest.mark.parametrize("general", [False, True], ids=["one size", "all sizes"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "complex64", "int16"])
def test_long_sums_are_cut_into_the_same_pieces_on_every_path(dtype: str, general: bool) -> None:
    for size in [(1, 40, 257), (3, 33, 511), (40, 1, 700), (17, 35, 530), (5, 4, 768)]:
        check((size, dtype, "plain", "transposed"), general)
        check((size, dtype, "plain", "plain"), general, ("packed", "pieces", "scalar"))


@pytest.mark.parametrize("shape", [(2, 3, 255), (3, 2, 256), (2, 2, 257), (1, 3, 600), (3, 1, 513)])
def test_a_product_adds_up_chains_of_256_products(shape: tuple[int, int, int]) -> None:
    rows, columns, depth = shape
    a, b = (
        stored(*size, "plain", np.dtype("float32"), k)
        for k, size in enumerate([(rows, depth), (depth, columns)])
    )
    want = np.zeros((rows, columns), np.float32)
    for i, j in np.ndindex(want.shape):
        sums = []
        for start in range(0, depth, 256):
            total = np.float32(0)
            for k in range(start, min(start + 256, depth)):
                total = fma(a[i, k], b[k, j], total)
            sums.append(total)
        for total in sums[1:]:
            sums[0] = sums[0] + total
        want[i, j] = sums[0]
    assert (wf.asarray(a) @ wf.asarray(b)).numpy().tobytes() == want.tobytes()


@pytest.mark.parametrize("draw", ["standard_normal", "random"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_sums_are_as_exact_as_those_of_other_libraries(dtype: str, draw: str) -> None:
    random = np.random.default_rng(7)
    most = 1.3 if host_target().vector_bytes == 32 else 1.1  # theirs then add up shorter pieces
    for depth in (256, 1000, 4096):
        a, b = (getattr(random, draw)(n).astype(dtype) for n in ((64, depth), (depth, 64)))
        wide = np.longdouble
        exact = a.astype(wide) @ b.astype(wide)
        ours, theirs = (
            float(np.sqrt(np.mean(np.square(found - exact, dtype=wide))))
            for found in ((wf.asarray(a) @ wf.asarray(b)).numpy(), a @ b)
        )
        assert ours <= most * theirs, (depth, ours, theirs)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_factors_are_read_however_they_lie(layout: str) -> None:
    for dtype in ("float32", "complex64"):
        check(((9, 21, 18), dtype, layout, "plain"), False, ("packed", "turned"))
        check(((9, 21, 18), dtype, "plain", layout), False, ("packed", "direct"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "float8_e4m3"])
def test_the_number_of_threads_never_shows(dtype: str) -> None:
    case = ((150, 170, 90), dtype, "plain", "plain")
    one = run(case, "", False, 1)
    for threads in (2, 4):
        assert run(case, "", False, threads).tobytes() == one.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_calls_one_by_one_have_the_bits_of_compiled_ones(dtype: str) -> None:
    case = ((13, 14, 50), dtype, "plain", "plain")
    made = dtypes.as_dtype(dtype, op="test")
    a, b = stored(13, 50, "plain", made, 1), stored(50, 14, "plain", made, 2)
    assert (wf.asarray(a) @ wf.asarray(b)).numpy().tobytes() == run(case, "", False).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_every_dtype_are_kernels_of_weft(dtype: str) -> None:
    made = dtypes.as_dtype(dtype, op="test")
    given = [wf.asarray(stored(8, 8, "plain", made, seed)) for seed in (1, 2)]
    native = Native(wf.trace(lambda x, y: wf.permute_dims(x, (1, 0)) @ y, *given))
    assert not native.hosts


def test_a_path_that_is_none_is_refused() -> None:
    with pytest.raises(ArgumentError, match="there is no path 'fast'"), using_path("fast"):
        pass


SHORT = [("int8", "int8"), ("int16", "int16"), ("uint8", "int8")]


@pytest.mark.parametrize("without", ["", "amx", "amx avx512vnni", "amx avx512", "amx avx"])
@pytest.mark.parametrize("dtypes_of_factors", SHORT, ids="·".join)
def test_short_integers_are_summed_in_int32_by_the_word_or_one_by_one(
    dtypes_of_factors: tuple[str, str], without: str
) -> None:
    def product(x: wf.Tensor, y: wf.Tensor) -> wf.Tensor:
        return x.astype("int32") @ y.astype("int32")

    target = functools.reduce(Target.without, without.split(), host_target())
    random = np.random.default_rng(0)
    for rows, columns, depth in [(9, 13, 64), (17, 30, 67), (3, 5, 2), (4, 6, 0)]:
        limits = [np.iinfo(d) for d in dtypes_of_factors]
        a, b = (
            random.integers(limit.min, limit.max + 1, shape).astype(limit.dtype)
            for limit, shape in zip(limits, ((rows, depth), (depth, columns)), strict=True)
        )
        a[:1], b[:, :1] = limits[0].min, limits[1].min  # what a pair of products is largest for
        trace = wf.trace(product, wf.asarray(a), wf.asarray(b))
        want = a.astype(np.int32) @ b.astype(np.int32)
        for path, general in itertools.product(PATHS, (False, True)):
            with using_path(path), using_target(target):
                (found,) = Native(trace, general=general).run([a, b], 1)
            assert np.array_equal(found, want), (path, general)
