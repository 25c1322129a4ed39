"""What runs together, and what does not because it would be slower."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import arrays_of, assert_same, compiled, interpreted
from weft.compiler.native import Native
from weft.compiler.rebuild import values_of
from weft.compiler.steps import Call
from weft.errors import IndexingError


def steps_of(function, *arrays):
    tensors = [wf.tensor(a) for a in arrays]
    return Native(wf.trace(function, *tensors)).steps


def test_a_short_epilogue_runs_with_its_matrix_product():
    a = np.ones((64, 64), np.float32)
    assert len(steps_of(lambda x, y, z: wf.maximum(x @ y + z, 0.0), a, a, a[0])) == 1


@pytest.mark.parametrize("function", [wf.tanh, wf.exp, wf.gelu])
def test_a_long_epilogue_leaves_the_registers_to_the_product(function):
    a = np.ones((64, 64), np.float32)
    assert len(steps_of(lambda x, y: function(x @ y), a, a)) == 2


def test_random_numbers_of_one_key_are_computed_in_one_kernel():
    key = wf.random.key(0).data()
    assert len(steps_of(lambda k: wf.random.normal(k, (1000,)), key)) == 1


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_places_of_extremes_are_counted_in_32_bits(name):
    (call,) = steps_of(lambda x: getattr(x, name)(1), np.ones((64, 100), np.float32))
    (kernel,) = call.request.compiled.kernels
    assert next(x.dtype for x in kernel.locals if x.dtype.kind == "i") == np.int32
    assert call.written[0].kind.dtype == np.int64


def sizes_written(function, *arrays):
    return [kind.size for step in steps_of(function, *arrays) for kind in kinds_written(step)]


def kinds_written(step):
    return [memory.kind for memory in step.written]


@pytest.mark.parametrize("shape", [(300, 40), (40, 6, 50)])
def test_the_variance_of_columns_writes_nothing_as_large_as_its_operand(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    axes = tuple(k for k in range(len(shape)) if k != 1)
    sizes = sizes_written(lambda x: wf.var(x, axis=axes), x)
    assert max(sizes) * 8 <= x.size
    found = wf.compile(lambda x: wf.var(x, axis=axes))(wf.tensor(x)).numpy()
    assert np.allclose(found, x.astype(np.float64).var(axes), rtol=1e-5)


def test_what_is_made_of_a_reduction_is_made_once_and_not_for_every_element():
    x = np.ones((300, 40), np.float32)
    *_, last = steps_of(lambda x: x - wf.mean(x, axis=0), x)
    (kernel,) = last.request.compiled.kernels
    assert not any(v.op == "div" for v in values_of(kernel.body))
    *_, last = steps_of(lambda x: wf.mean(x, axis=0) - wf.ones(40), x)
    (kernel,) = last.request.compiled.kernels
    assert any(v.op == "div" for v in values_of(kernel.body))


def test_what_multiplies_matrices_reads_a_normalized_factor_from_memory():
    x, y = np.ones((64, 64), np.float32), np.ones((64, 64), np.float32)
    *_, last = steps_of(lambda x, y: (x - wf.mean(x, axis=0)) @ y, x, y)
    kernels = last.request.compiled.kernels
    assert not any(v.op == "sub" and v.dtype == x.dtype for k in kernels for v in values_of(k.body))


PLACES = np.random.default_rng(0).standard_normal((30, 70)).astype(np.float32)
PLACES[:, 0] = -9.0  # never the greatest


def _after_the_greatest(x, step):
    return wf.take_along_axis(x, wf.argmax(x, axis=-1, keepdims=True) + step, axis=-1)


@pytest.mark.parametrize("repeated", [1, 70])
def test_positions_that_a_reduction_makes_are_checked(repeated):
    def compiled_with(step):
        return wf.compile(lambda x: x[:, :repeated] * 2 + _after_the_greatest(x, step))(x)

    x = wf.tensor(PLACES)
    with pytest.raises(IndexingError, match="out of range for an axis of size 70"):
        compiled_with(69).numpy()
    want = PLACES[np.arange(30), PLACES.argmax(-1) - 71][:, None] + PLACES[:, :repeated] * 2
    assert compiled_with(-71).tolist() == want.tolist()


def test_a_check_of_positions_is_no_longer_where_rows_are():
    steps = steps_of(lambda x: wf.nanmedian(x, axis=-1), np.ones((8, 2015), np.float32))
    checks = [s for s in steps if "check" in s.request.compiled.kernels[0].notes["name"]]
    kernels = [kernel for step in checks for kernel in step.request.compiled.kernels]
    assert kernels and all(len(list(values_of(kernel.body))) < 200 for kernel in kernels)


def test_interpolation_searches_each_place_once():
    given = (np.ones(100, np.float32), np.arange(9, dtype=np.float32), np.ones(9, np.float32))
    assert len(steps_of(wf.interp, *given)) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(7, 40), (4,), (3, 70, 5)])
def test_a_result_is_not_written_over_what_a_sum_beside_it_reads(shape, dtype):
    x, y = np.random.default_rng(0).standard_normal((2, *shape)).astype(dtype)

    def function(x, y):
        running, factor = wf.cumsum(x, axis=-1), wf.exp(y)
        return wf.sum(factor * running, axis=-1), factor + 1

    trace = wf.trace(function, wf.tensor(x), wf.tensor(y))
    arrays = arrays_of(trace, (x, y))
    assert_same(compiled(trace, arrays), interpreted(trace, arrays))


EPILOGUES = {
    "sum": lambda p, x: p + x,
    "product": lambda p, x: (p + 1) * x - x,
    "choice": lambda p, x: wf.where(x > 0, p, x),
}


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1),
        (3, 5, 7),
        (14, 64, 33),
        (70, 300, 70),
        (2, 1000, 3),
        (5, 4096, 90),
        (257, 64, 520),
    ],
    ids=str,
)
def test_a_product_is_written_over_what_its_epilogue_reads(sizes, dtype, name):
    rows, depth, columns = sizes
    shapes = (2, rows, depth), (2, depth, columns), (2, rows, columns)
    random = np.random.default_rng(sum(sizes))
    given = [(3 * random.standard_normal(shape)).astype(dtype) for shape in shapes]

    def function(a, b, z):
        return EPILOGUES[name](a @ b, wf.cumsum(z, axis=-1))  # which is a kernel of its own

    trace = wf.trace(function, *map(wf.tensor, given))
    pairs = [p for step in Native(trace).steps if isinstance(step, Call) for p in step.in_place]
    assert pairs or rows == columns == 1
    assert_same(compiled(trace, given), interpreted(trace, given))


def test_a_product_is_not_written_over_its_factors():
    def function(a, z):
        x = wf.cumsum(z, axis=-1)
        return x @ a + x, a @ x + x

    given = np.random.default_rng(0).standard_normal((2, 40, 40))
    trace = wf.trace(function, *map(wf.tensor, given))
    products = [s for s in Native(trace).steps if isinstance(s, Call) and "matmul" in s.name]
    assert len(products) == 2 and not any(call.in_place for call in products)
    assert_same(compiled(trace, given), interpreted(trace, given))


CHOICES = {
    "plain": lambda x: wf.max(x) > 0.5,
    "opened": lambda x: wf.broadcast_to(wf.max(x) > 0.5, (5, 16)),
}


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("depth", [1, 3, 8])
def test_a_condition_that_a_product_looks_at_is_written_for_it(name, depth):
    def chosen(x, w, v):
        return wf.where(CHOICES[name](x), x * 0.5, x) + (x @ w) @ v

    shapes = ((3, 5, 16), (16, depth), (depth, 16))
    given = [np.random.default_rng(2).normal(size=s).astype(np.float32) for s in shapes]
    trace = wf.trace(chosen, *map(wf.tensor, given))
    assert_same(compiled(trace, given), interpreted(trace, given))


def order_of_effects(function):
    """The names under which a compiled function, given `noted`, calls the host."""
    seen = []

    def noted(name, x):
        def note(value):
            seen.append(name)
            return value

        return wf.callback(note, (x.shape, "float64"), x)

    wf.compile(lambda x: function(noted, x))(wf.tensor(np.ones(1 << 12)))
    return seen


def test_effects_stay_in_order_though_a_kernel_would_have_the_later_one_first():
    def function(noted, x):
        y = wf.sin(x) * 2
        noted("first", y)
        return y + noted("second", x)

    assert order_of_effects(function) == ["first", "second"]


def test_effects_stay_in_order_though_what_they_read_is_changed():
    def function(noted, x):
        changed = x.at[x.argmax()].set(3.0)
        noted("changed", changed)
        noted("as it was", x)
        return changed

    assert order_of_effects(function) == ["changed", "as it was"]


def test_a_host_call_without_results_reads_what_is_changed():
    seen = []

    def function(x):
        wf.callback(lambda value: seen.append(value.sum()) or (), (), x)
        return x.at[x.argmax()].set(3.0)

    wf.compile(function)(wf.tensor(np.ones(1 << 12)))
    assert seen == [1 << 12]
