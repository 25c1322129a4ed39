"""Sorting and selection as kernels: the bits of the references, for every size and thread count."""

import numpy as np
import pytest

import weft as wf
from weft.compiler.emit_cpu import emit
from weft.compiler.native import Native
from weft.compiler.order import bucket, network, parts, shared, split
from weft.compiler.order.lower import lower_order
from weft.compiler.order.network import LONGEST
from weft.compiler.order.rows import SAMPLED, SHORT
from weft.compiler.order.shared import SHARED
from weft.compiler.steps import Memory
from weft.compiler.verify import verify
from weft.config import settings
from weft.core.common import dtypes
from weft.core.common.types import TensorType
from weft.core.graph.node import OutputRefs
from weft.core.tensor.tracing import trace
from weft.ops.sorting import argsort_op, sort_op, top_positions_op
from weft.runtime.cpu.jit import Target, chosen_target, emit_assembly, using_target
from weft.testing.ir import run_kernel

pytestmark = pytest.mark.slow

NAMES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
FEW = ["int8", "float16", "float32", "int64"]


def drawn(name, shape, seed=0, few=False):
    """Numbers with everything an order may stumble on; `few` makes most of them equal."""
    rng = np.random.default_rng(seed)
    dtype = dtypes.as_dtype(name)
    size = int(np.prod(shape))
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = (max(limits.min, -2), 3) if few else (limits.min, limits.max)
        found = rng.integers(low, high, size, dtype=dtype, endpoint=True)
    elif dtype.kind == "b":
        found = rng.random(size) < 0.5
    else:
        found = rng.standard_normal(size) * (1 if few else 100)
        found = (np.round(found) if few else found).astype(dtype)
        special = np.array([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf]).astype(dtype)
        if size:
            places = rng.integers(0, size, max(size // 5, 1))
            found[places] = rng.choice(special, places.size)
    return found.reshape(shape)


def native(op, x, **params):
    """A call compiled alone."""
    return Native(trace(lambda t: op(t, **params), wf.asarray(x)), (False,))


def same_bits(ours, theirs):
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    assert np.ascontiguousarray(ours).tobytes() == np.ascontiguousarray(theirs).tobytes()


def check(op, x, threads=2, **params):
    made = native(op, x, **params)
    assert not made.hosts, "a call of Python is left"
    (ours,) = made.run([x], threads)
    same_bits(ours, op.eval(x, **params))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2, 17, SHORT, SHORT + 1, 1000, 3001])
def test_rows_of_every_dtype_are_sorted_as_the_reference_does(name, size):
    x = drawn(name, (5, size), size)
    check(sort_op, x, descending=False)
    check(argsort_op, x, descending=False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("rows", "size"), [(33, 2), (50, 16), (70, 17), (100, 100), (9, 2000), (17, LONGEST)]
)
def test_many_short_rows_of_every_dtype_are_sorted_as_the_reference_does(name, rows, size):
    x = drawn(name, (rows, size), size)
    check(sort_op, x, descending=False)
    check(argsort_op, x, descending=True)
    check(top_positions_op, x, k=2, largest=True)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("size", [3, 70, 2000])
def test_rows_sorted_downward_keep_equal_elements_in_order_and_nan_last(name, size):
    x = drawn(name, (4, size), size, few=True)
    check(sort_op, x, descending=True)
    check(argsort_op, x, descending=True)


@pytest.mark.parametrize("name", ["uint8", "int16", "bfloat16", "float32", "float64", "int64"])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_that_share_a_row_change_nothing(name, threads):
    for few in (False, True):
        x = drawn(name, (1, SHARED + 12_345), few, few)
        check(sort_op, x, threads, descending=few)
        check(argsort_op, x, threads, descending=few)
        check(top_positions_op, x, threads, k=100, largest=few)


@pytest.fixture(params=["narrow", "wide"])
def parting(monkeypatch, request):
    """Long rows are parted, as they are where vectors are wide; be they so, or only said to be."""
    fits = lambda order: len(order.record) == 1 and order.width >= 32  # noqa: E731
    monkeypatch.setattr(shared, "parts", fits)
    if request.param == "wide":
        monkeypatch.setattr(Target, "vector_bytes", property(lambda target: 64))
        monkeypatch.setattr(network, "compares_numbers", lambda: True)


@pytest.mark.parametrize("name", ["int32", "float32", "uint64", "float64"])
@pytest.mark.parametrize(("rows", "size"), [(1, SHARED), (3, SHARED + 12_345)])
def test_long_rows_that_are_parted_are_those_of_the_reference(parting, name, rows, size):
    for few in (False, True):
        x = drawn(name, (rows, size), size, few)
        check(argsort_op if few else sort_op, x, 2 + few, descending=few)
    check(top_positions_op, x, k=size // 2, largest=True)


@pytest.mark.parametrize("number", [0, -0.0, np.nan, np.inf, -np.inf, 7])
def test_rows_that_are_parted_may_have_one_number_or_be_sorted(parting, number):
    x = np.full((1, SHARED + 1), number, np.float32)
    check(sort_op, x, descending=False)
    check(sort_op, x, descending=True)
    check(argsort_op, x, descending=True)
    x = np.arange(SHARED + 77, dtype=np.uint32)[None] + np.uint32(2**32 - SHARED - 77)
    for each in (x, x[:, ::-1].copy()):
        check(sort_op, each, descending=False)
        check(argsort_op, each, descending=False)


def patterns(size):
    """Rows that pivots may stumble on."""
    rng, n = np.random.default_rng(size), np.arange(size)
    yield np.minimum(n, size - n)
    yield n % 1000
    yield n & 1
    yield np.maximum(rng.standard_normal(size), 0)
    yield np.where(rng.random(size) < 0.999, 0, rng.standard_normal(size))
    yield np.cumsum(rng.standard_normal(size))
    yield np.exp(60 * rng.random(size) - 40)
    unseen = rng.standard_normal(size)  # what the sample sees is all the same
    step = size // split.SAMPLE
    for number in range(split.SAMPLE):
        unseen[number * step : (number + 1) * step : max(step // 3, 1)] = -9
        unseen[number * step + number * 40503 % step] = -9
    yield unseen


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("descending", [False, True])
def test_one_zero_or_nan_in_a_long_row_keeps_its_bits(name, descending):
    x = drawn(name, (1, SHARED + 77), 8)
    x = np.where(np.isfinite(x.astype(float)) & (x != 0), x, 1).astype(x.dtype)
    width = np.dtype(f"u{x.dtype.itemsize}")
    infinity, sign = int(np.array(np.inf, x.dtype).view(width)), 1 << (8 * width.itemsize - 1)
    for bits in (sign, infinity + 1, sign + infinity + 1, sign - 1, 2 * sign - 1):
        for place in (0, 4242, SHARED + 76):
            row = x.copy()
            row.view(width)[0, place] = bits
            with np.errstate(invalid="ignore"):  # NumPy minds NaNs that signal
                check(sort_op, row, descending=descending)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_a_few_special_numbers_are_parted_like_others(parting, name):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, SHARED + 5)).astype(name)
    for number in (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(name).smallest_subnormal):
        x[rng.integers(0, 2, 40), rng.integers(0, SHARED, 40)] = number
    check(sort_op, x, descending=False)
    check(sort_op, x, descending=True)
    check(argsort_op, x, descending=True)


def test_no_digits_are_needed_where_rows_are_alike(parting, monkeypatch):
    monkeypatch.setattr(
        bucket.Bucket, "_by_digits", lambda bucket: ()
    )  # leaves results as they are
    for x in patterns(SHARED + 4321):
        check(sort_op, x.astype(np.float32)[None], descending=False)


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("name", ["float32", "int64"])
def test_rows_that_pivots_stumble_on_are_sorted_all_the_same(parting, name, threads):
    for x in patterns(SHARED + 4321):
        row = (x if name == "float32" else x * 1000).astype(name)[None]
        check(sort_op, row, threads, descending=False)
        check(argsort_op, row, threads, descending=True)


@pytest.mark.parametrize("name", ["float32", "uint64"])
def test_parts_stay_inside_their_memory(parting, monkeypatch, name):
    monkeypatch.setattr(settings, "check_bounds", 1)
    for x in patterns(SHARED + 15):
        row = np.ceil(np.abs(x)).astype(name)[None]
        check(sort_op, row, descending=False)
        check(argsort_op, row, descending=True)


@pytest.mark.parametrize("change", [{"DEEPEST": 2}, {"DEEPEST": 7, "LEAST": 1 << 40}])
@pytest.mark.parametrize("name", ["float32", "uint64"])
def test_parts_that_stay_large_are_sorted_by_digits(parting, monkeypatch, name, change):
    monkeypatch.setattr(settings, "check_bounds", 1)
    for constant, number in change.items():
        monkeypatch.setattr(bucket, constant, number)
    for few in (False, True):
        x = drawn(name, (1 + few, SHARED + 99), 5, few)
        check(sort_op if few else argsort_op, x, descending=few)
        check(top_positions_op, x, k=SHARED // 3, largest=few)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("int32", ("vpcompressd", "vpminud")), ("float64", ("vpcompressq", "vminpd"))],
)
def test_parts_are_made_by_the_instructions_that_wide_vectors_have(name, expected):
    features = "+avx,+avx2,+avx512f,+avx512bw,+avx512dq,+avx512vl,+popcnt"
    wide = Target("x86_64-unknown-linux-gnu", "sapphirerapids", features)
    with using_target(wide):
        kernels = [each.kernel for each in lowered(sort_op, (1, SHARED), name, descending=False)]
        code = emit_assembly(emit(kernels, wide), wide.triple, wide.cpu, wide.features)
    assert all(f"{each}\t%zmm" in code for each in expected) and "popcnt" in code


@pytest.mark.parametrize("name", ["int16", "float16", "float32", "float64", "int32"])
@pytest.mark.parametrize(("rows", "size"), [(33, 2), (70, 17), (9, 2000)])
def test_records_of_short_rows_may_be_compared_as_floats(monkeypatch, name, rows, size):
    monkeypatch.setattr(network, "compares_numbers", lambda: True)
    for few in (False, True):
        x = drawn(name, (rows, size), size, few)
        check(sort_op, x, descending=few)
        check(argsort_op, x, descending=few)
        check(top_positions_op, x, k=2, largest=few)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("size", [5, 70, 1000, SAMPLED + 3, 9000])
def test_the_first_few_of_each_row_are_those_of_the_reference(name, size):
    x = drawn(name, (3, size), size)
    for k in {1, 3, size // 20, size // 2, size} - {0}:
        check(top_positions_op, x, k=k, largest=True)
    check(top_positions_op, x, k=min(4, size), largest=False)


@pytest.mark.parametrize("size", [3, 70, 2500, SHARED])
@pytest.mark.parametrize("number", [0, -0.0, np.nan, 7])
def test_rows_of_one_number_stay_as_they_are(size, number):
    x = np.full((2, size), number, np.float32)
    check(sort_op, x, descending=False)
    check(argsort_op, x, descending=True)
    check(top_positions_op, x, k=2, largest=True)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("size", [40, 5000, SHARED + 1])
def test_sorted_rows_and_rows_the_other_way_round_are_no_special_case(size, turned):
    x = np.arange(size, dtype=np.int64)[None] - size // 3
    x = np.ascontiguousarray(x[:, ::-1]) if turned else x
    check(sort_op, x, descending=False)
    check(argsort_op, x, descending=False)
    check(top_positions_op, x, k=10, largest=True)


def test_zeros_and_nans_keep_their_bits_and_their_order():
    bits = np.array([0x7FC00001, 0, 0x80000000, 0xFFC00002, 0x80000000, 0, 0x3F800000], np.uint32)
    for size in (7, 70, 7000, 70_000):
        x = np.resize(bits, (2, size)).view(np.float32)
        check(sort_op, x, descending=False)
        check(sort_op, x, descending=True)


def test_an_empty_axis_and_no_rows_give_empty_results():
    for shape in ((0,), (3, 0), (0, 5)):
        f = wf.compile(lambda t: (wf.sort(t), wf.argsort(t), wf.top_k(t, 0)[1]))
        ours = f(wf.zeros(shape))
        assert [each.shape for each in ours] == [shape, shape, (*shape[:-1], 0)]


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_any_axis_of_a_tensor_that_lies_anyhow_is_sorted(axis):
    x = drawn("float32", (30, 70, 11))[::-2, :, ::-1].transpose(1, 0, 2)
    f = wf.compile(lambda t: (wf.sort(t, axis=axis), wf.argsort(t, axis=axis, descending=True)))
    ours = f(wf.asarray(x))
    same_bits(ours[0].numpy(), np.sort(x, axis=axis, kind="stable"))
    same_bits(ours[1].numpy(), wf.argsort(wf.asarray(x), axis=axis, descending=True).numpy())


def test_a_compiled_sort_between_other_calls_makes_no_call_of_python():
    def f(x):
        y = wf.sort(x * 2 + 1, axis=0)
        values, places = wf.top_k(y, 3)
        return values.sum(), places, wf.argsort(-y), wf.median(y, axis=-1), wf.quantile(y, 0.3)

    x = wf.asarray(drawn("float32", (90, 40), few=True))
    made = Native(trace(f, x), (False,))
    assert not made.hosts
    for ours, theirs in zip(made.run([x.numpy()]), f(x), strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


def test_searches_sets_and_counts_of_fixed_shape_make_no_call_of_python():
    def f(x, edges):
        rising = wf.sort(edges)
        found = wf.searchsorted(rising, x), wf.isin(x, edges), wf.digitize(x, rising)
        return *found, wf.histogram(x, bins=7)[0], wf.bincount(found[0], length=6)

    x, edges = wf.asarray(drawn("float32", (500,), few=True)), wf.asarray([3.0, -1.0, 0.0, 2.0])
    x = wf.nan_to_num(x, posinf=9.0, neginf=-9.0)
    made = Native(trace(f, x, edges), (False, False))
    assert not made.hosts
    for ours, theirs in zip(made.run([x.numpy(), edges.numpy()]), f(x, edges), strict=True):
        same_bits(ours, theirs.numpy())


def test_derivatives_of_a_sort_go_back_to_where_elements_came_from():
    x = np.random.default_rng(0).permutation(5000).reshape(2, 2500).astype(np.float32)
    weights = np.linspace(-1, 1, 2500, dtype=np.float32)
    f = wf.grad(lambda t: (wf.sort(t) * weights).sum())
    expected = weights[np.argsort(np.argsort(x, axis=-1), axis=-1)]
    np.testing.assert_array_equal(f(wf.asarray(x)).numpy(), expected)
    np.testing.assert_array_equal(wf.compile(f)(wf.asarray(x)).numpy(), expected)


def test_sorting_inside_vmap_and_scan_is_sorting_each_one():
    x = drawn("float32", (6, 9, 80))
    expected = np.sort(x, axis=1)
    mapped = wf.compile(wf.vmap(lambda t: wf.sort(t, axis=0)))
    np.testing.assert_array_equal(mapped(wf.asarray(x)).numpy(), expected)

    def step(carry, row):
        return wf.sort(carry + row), wf.top_k(row, 2)[1]

    run = lambda t: wf.scan(step, wf.zeros((80,)), t)  # noqa: E731
    rows = wf.asarray(np.nan_to_num(x[0], posinf=1.0, neginf=-1.0))
    made = Native(trace(run, rows), (False,))
    assert not made.hosts
    for ours, theirs in zip(made.run([rows.numpy()]), run(rows), strict=True):
        same_bits(ours, theirs.numpy())


def called(op, shape, dtype, **params):
    """A call that is not made."""
    kind = TensorType(shape, np.dtype(dtype))
    leaf = OutputRefs.leaf(None, kind, wf.zeros(()).device)
    return OutputRefs(op, ((leaf, 0),), params, (op.infer(kind, **params),), leaf.device)


def lowered(op, shape, dtype, **params):
    """The kernels of a call."""
    node = called(op, shape, dtype, **params)
    source = Memory(TensorType(shape, np.dtype(dtype)))
    return lower_order(node, source, Memory(node.types[0]))


def interpreted(op, x, **params):
    """A call whose kernels are walked statement by statement, their last tasks first."""
    node = called(op, x.shape, x.dtype, **params)
    source, target = Memory(TensorType(x.shape, x.dtype)), Memory(node.types[0])
    arrays = {source: x.reshape(-1).view(np.uint8), target: np.zeros(target.nbytes, np.uint8)}
    for each in lower_order(node, source, target):
        verify(each.kernel, scheduled=True)
        for m in each.memory:
            start = np.zeros(m.nbytes, np.uint8) if m.data is None else m.data.view(np.uint8)
            arrays.setdefault(m, start)
        pairs = list(zip(each.memory, each.kernel.buffers, strict=True))
        made = run_kernel(each.kernel, [arrays[m].view(b.dtype) for m, b in pairs], backward=True)
        for m, array in zip(each.memory, made, strict=True):
            arrays[m] = array.view(np.uint8)
    return arrays[target].view(node.types[0].dtype).reshape(node.types[0].shape)


@pytest.mark.parametrize(("rows", "size"), [(1, 5), (1, 66), (17, 5)])
@pytest.mark.parametrize("name", ["float32", "int64", "bfloat16"])
def test_kernels_mean_the_same_to_the_interpreter_of_loops(name, rows, size):
    x = drawn(name, (rows, size), 3)
    for op, params in (
        (sort_op, {"descending": True}),
        (argsort_op, {"descending": False}),
        (top_positions_op, {"k": 3, "largest": True}),
    ):
        same_bits(interpreted(op, x, **params), op.eval(x, **params))


@pytest.mark.parametrize("name", ["float32", "int64"])
def test_parts_mean_the_same_to_the_interpreter_of_loops(parting, monkeypatch, name):
    for constant, number in (("PART", 32), ("SAMPLE", 32)):
        for module in (split, bucket, parts):
            if hasattr(module, constant):
                monkeypatch.setattr(module, constant, number)
    monkeypatch.setattr(shared, "SHARED", 100)
    x = drawn(name, (1, 300), 3)
    with using_target(chosen_target().baseline()):
        ours = interpreted(sort_op, x, descending=False)
        places = interpreted(argsort_op, x, descending=True)
    same_bits(ours, np.sort(x, kind="stable"))
    same_bits(places, argsort_op.eval(x, descending=True))
