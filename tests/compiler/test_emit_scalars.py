"""Every scalar instruction and function gives, compiled, the bits that NumPy gives."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest

from tests.compiler.native_kernels import (
    EVERY,
    FLOATS,
    INTEGERS,
    LANES,
    NARROW,
    Compiled,
    elementwise,
    i,
    in_pieces,
    kernel_of,
    operands,
    pairs,
    run,
    same_bits,
    samples,
    text_of,
)
from weft.compiler.build import Builder
from weft.compiler.emit_cpu import emit
from weft.compiler.loops import (
    BINARY,
    BOOL,
    COMPARISONS,
    UNARY,
    Assign,
    Local,
    Loop,
    Store,
    const,
    get,
    integer,
    load,
    value,
)
from weft.ops.functions.numpy_scalars import NumpyScalars
from weft.runtime.cpu import jit
from weft.testing.instructions import fma

NAMED = pytest.mark.parametrize("dtype", EVERY, ids=str)
BITWISE = {"bit_and", "bit_or", "bit_xor", "bit_not", "shift_left", "shift_right"}
EITHER = pytest.mark.parametrize("native", [None, frozenset()], ids=["native", "spelled"])
builder = Builder()
FLOAT = np.dtype(np.float32)


def allowed(op, dtype):
    """Whether the dtype has the instruction."""
    if dtype == BOOL:
        return op in {*COMPARISONS, "bit_and", "bit_or", "bit_xor", "bit_not", "min", "max"}
    if dtype.kind in "iu":
        return op not in ("div", "sqrt")
    return op not in BITWISE


def expected(op, x, y):
    """An instruction by NumPy, in the dtype's own arithmetic, or in float32 for narrow floats."""
    arity = (x,) if op in UNARY else (x, y)
    wide = x.dtype in NARROW and op not in ("neg", "abs")
    args = [a.astype(FLOAT) for a in arity] if wide else arity
    with np.errstate(all="ignore"):
        found = getattr(NumpyScalars, op)(*args)
        return found.astype(x.dtype) if wide and op not in COMPARISONS else found


@EITHER
@NAMED
def test_every_instruction_gives_the_bits_of_numpy_in_any_number_of_lanes(dtype, native):
    if native is not None and dtype not in FLOATS:
        return  # only floats have instructions that some processors lack
    ops = [op for op in sorted(UNARY | BINARY | COMPARISONS) if allowed(op, dtype)]
    x, y = pairs(dtype)
    a, b = load(0, i, dtype), load(1, i, dtype)
    made = [
        value(op, (a,) if op in UNARY else (a, b), BOOL if op in COMPARISONS else dtype)
        for op in ops
    ]
    body = tuple(Store(n + 2, i, m) for n, m in enumerate(made))
    dtypes = [dtype, dtype, *(m.dtype for m in made)]
    kernels = [
        kernel_of(dtypes, in_pieces(body, len(x), lanes), name=f"lanes{lanes}") for lanes in LANES
    ]
    compiled = Compiled(kernels, native)
    for lanes in LANES:
        results = [np.zeros(len(x), m.dtype) for m in made]
        compiled(f"lanes{lanes}", [x, y, *results])
        for op, found in zip(ops, results, strict=True):
            assert same_bits(found, expected(op, x, y)), (op, lanes)


@EITHER
@pytest.mark.parametrize("source", EVERY, ids=str)
def test_every_cast_gives_the_bits_of_numpy_in_any_number_of_lanes(source, native):
    x = samples(source)
    if source.kind == "f":
        more = np.random.default_rng(0).normal(size=300) * 10.0 ** np.arange(-20, 10).repeat(10)
        halfway = 1 + 2.0**-11 + 2.0 ** np.arange(-40, -20)  # just past the middle of two halves
        with np.errstate(all="ignore"):
            x = np.concatenate([x, more.astype(source), halfway.astype(source)])
    a = load(0, i, source)
    body = tuple(Store(n + 1, i, builder.cast(a, d)) for n, d in enumerate(EVERY))
    for lanes in (1, 8):
        results = [np.zeros(len(x), d) for d in EVERY]
        kernel = kernel_of([source, *EVERY], in_pieces(body, len(x), lanes))
        run(kernel, x, *results, native=native)
        for target, found in zip(EVERY, results, strict=True):
            with np.errstate(all="ignore"):
                wide = x.astype(FLOAT) if source in NARROW else x
                wanted = x if source == target else NumpyScalars.cast(wide, target)
            assert same_bits(found, wanted), (source, target, lanes)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bits_are_read_as_integers_and_back(dtype):
    x = samples(dtype)
    bits = np.dtype(f"i{dtype.itemsize}")
    for first, second in ((dtype, bits), (bits, dtype)):
        given, found = x.view(first), np.zeros(len(x), second)
        made = builder.bitcast(load(1, i, first), second)
        run(elementwise(made, [first], len(x), 4, "kernel"), found, given)
        assert np.array_equal(found.view(bits), x.view(bits))


@NAMED
def test_select_takes_each_lane_from_its_side(dtype):
    x, y = pairs(dtype)
    condition = np.arange(len(x)) % 3 == 0
    c, a, b = operands(BOOL, dtype, dtype)
    for lanes in (1, 8):
        found = np.zeros(len(x), dtype)
        made = builder.select(c, a, b)
        run(
            elementwise(made, [BOOL, dtype, dtype], len(x), lanes, "kernel"), found, condition, x, y
        )
        assert same_bits(found, np.where(condition, x, y))


@NAMED
def test_literals_keep_their_bits(dtype):
    x = samples(dtype)
    body = [Store(0, integer(n), const(number, dtype)) for n, number in enumerate(x)]
    found = np.zeros_like(x)
    run(kernel_of([dtype], body), found)
    assert found.tobytes() == x.tobytes()


@pytest.mark.parametrize("op", ["shift_left", "shift_right", "floordiv", "rem"])
def test_literal_counts_and_divisors_mean_what_others_mean(op):
    for dtype in INTEGERS:
        x = samples(dtype)
        given = load(0, i, dtype)
        made = [builder._binary(op, given, const(number, dtype)) for number in x]
        body = tuple(Store(n + 1, i, m) for n, m in enumerate(made))
        results = [np.zeros_like(x) for _ in x]
        run(kernel_of([dtype] * (len(x) + 1), in_pieces(body, len(x), 4)), x, *results)
        for number, found in zip(x, results, strict=True):
            assert np.array_equal(found, expected(op, x, np.full_like(x, number))), (dtype, number)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_vectors_of_integers_are_divided_without_rounding_across_a_whole_number(dtype):
    rng, limits = np.random.default_rng(2), np.iinfo(dtype)
    numbers = rng.integers(limits.min, limits.max, (3, 20_000), dtype, endpoint=True)
    x, y, k = numbers >> rng.integers(0, limits.bits, numbers.shape).astype(dtype)
    with np.errstate(all="ignore"):
        x[:15_000] = (y * k + rng.integers(-1, 2, len(y)).astype(dtype))[:15_000]
    y[0], x[0], y[1:3], x[1:3] = 0, limits.max, (1, limits.max), (limits.max, limits.min)
    a, b = operands(dtype, dtype)
    made = [builder.floordiv(a, b), builder.rem(a, b)]
    body = tuple(Store(n, i, m) for n, m in zip((0, 3), made, strict=True))
    kernel = kernel_of([dtype] * 4, in_pieces(body, len(x), 16))
    found = np.zeros((2, len(x)), dtype)
    run(kernel, found[0], x, y, found[1])
    for op, each in zip(("floordiv", "rem"), found, strict=True):
        assert np.array_equal(each, expected(op, x, y)), op


def test_no_lane_of_a_vector_of_integers_is_divided_alone():
    for dtype in INTEGERS:
        a, b = operands(dtype, dtype)
        kernel = elementwise(builder.floordiv(a, b), [dtype, dtype], 64, 16, "kernel")
        assert not re.search(r" [su]div <", text_of([kernel], frozenset({"wholes"}))), dtype
        alone = re.search(r" [su]div <", text_of([kernel], frozenset()))
        assert bool(alone) == (dtype.itemsize == 8), dtype


@pytest.mark.parametrize("dtype", FLOATS[2:], ids=str)
def test_float_remainders_and_quotients_are_exact_far_apart(dtype):
    rng = np.random.default_rng(1)
    with np.errstate(all="ignore"):
        x = (rng.normal(size=3000) * 2.0 ** rng.integers(-1070, 1020, 3000)).astype(dtype)
        y = (rng.normal(size=3000) * 2.0 ** rng.integers(-1070, 1020, 3000)).astype(dtype)
        y[:1000] = (x[:1000] / rng.integers(1, 50, 1000)).astype(dtype)
        x[1000:2000] = (y[1000:2000] * rng.normal(size=1000) * 50).astype(dtype)
    a, b = operands(dtype, dtype)
    for op in ("rem", "floordiv"):
        found = np.zeros_like(x)
        made = getattr(builder, op)(a, b)
        run(elementwise(made, [dtype, dtype], len(x), 4, "kernel"), found, x, y)
        assert same_bits(found, expected(op, x, y)), op


@pytest.mark.parametrize("dtype", FLOATS[2:], ids=str)
def test_float_remainders_of_vectors_are_exact_where_quotients_are_short(dtype):
    rng, most = np.random.default_rng(1), 2.0 ** (24 if dtype.itemsize == 4 else 53)
    y = (rng.normal(size=4000) * 2.0 ** rng.integers(-140, 60, 4000)).astype(dtype)
    k = rng.integers(0, 2 ** rng.integers(1, 25, 4000)).astype(dtype)
    x = k * y
    x[:1000] = np.nextafter(x[:1000], dtype.type(0))
    x[1000:2000] = np.nextafter(x[1000:2000], dtype.type(np.inf))
    ends = np.array([most - 1, most, most + 2, 1, 5, -6, 0, -0.0, np.inf, np.nan], dtype)
    x = np.append(x, ends.repeat(16 * len(ends)))  # vectors of one pair, so that no lane decides
    y = np.append(y, np.tile(ends.repeat(16), len(ends)))  # for another
    found = np.zeros_like(x)
    made = builder.rem(*operands(dtype, dtype))
    run(elementwise(made, [dtype, dtype], len(x), 16, "kernel"), found, x, y)
    assert same_bits(found, expected("rem", x, y))


def factors(dtype):
    """Three operands of all sizes: sums that cancel, overflow, are denormal, or are special."""
    rng = np.random.default_rng(6)
    end = np.finfo(dtype).maxexp
    spread = rng.integers(0, 1 << 8 * dtype.itemsize, (3, 1000), np.uint64)
    usual = rng.normal(size=(3, 1000)).astype(dtype)
    exact = usual.copy()
    usual[2] = -(usual[0] * usual[1])  # what is left is the rounding of the product
    low = np.ldexp(exact, rng.integers(-20, 20, (3, 1000))).astype(dtype)
    low[:2], low[2] = np.ldexp(low[:2], -(end // 2)), np.ldexp(low[2], -end)
    special = np.array([0, -0.0, 1, -1.5, np.inf, -np.inf, np.nan, 2.0 ** (end - 1)], dtype)
    corners = np.array(np.meshgrid(special, special, special)).reshape(3, -1)
    parts = [spread.astype(f"u{dtype.itemsize}").view(dtype), usual, exact, low, corners]
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


@EITHER
@pytest.mark.parametrize("dtype", [FLOAT, np.dtype(np.float64)], ids=str)
def test_fma_rounds_once(dtype, native):
    with np.errstate(all="ignore"):
        x, y, z = factors(dtype)
        exact = fma(x, y, z)
        assert same_bits(NumpyScalars.fma(x, y, z), exact)
    made = builder.fma(*operands(dtype, dtype, dtype))
    for lanes in (1, 4):
        found = np.zeros_like(x)
        run(elementwise(made, [dtype] * 3, len(x), lanes, "kernel"), found, x, y, z, native=native)
        assert same_bits(found, exact)


@EITHER
@pytest.mark.parametrize("dtype", [FLOAT, np.dtype(np.float64)], ids=str)
def test_the_negative_of_a_sum_of_products_has_the_other_sign_of_zero(dtype, native):
    x, y = np.array([[0.0, -0.0, 1.5, -1.5, 2.0], [1.0, 1.0, 2.0, 2.0, -1.0]], dtype)
    z = -(x * y)
    given = operands(dtype, dtype, dtype)
    for made in (
        builder.neg(builder.fma(*given)),
        builder.mul(builder.fma(*given), const(-1, dtype)),
    ):
        for lanes in (1, 4):
            found = np.ones_like(x)
            kernel = elementwise(made, [dtype] * 3, len(x), lanes, "kernel")
            run(kernel, found, x, y, z, native=native)
            assert same_bits(found, -fma(x, y, z))


FUNCTIONS = (
    "exp exp2 expm1 sigmoid log log2 log10 log1p log_sigmoid sin cos tan asin acos atan sinh cosh "
    "tanh asinh acosh atanh sqrt rsqrt cbrt erf erfc erfinv lgamma digamma"
).split()
OF_TWO = "logaddexp logaddexp2 atan2 pow hypot copysign nextafter".split()


def arguments(dtype, seed):
    """Numbers of all sizes, those where functions have limits, and the special ones."""
    rng = np.random.default_rng(seed)
    spread = rng.normal(size=120) * 10.0 ** rng.integers(-30, 30, 120)
    near = np.concatenate(
        [rng.uniform(-1, 1, 60), rng.uniform(-100, 100, 60), np.arange(-8, 9) / 2]
    )
    with np.errstate(all="ignore"):
        return np.concatenate([samples(dtype), spread.astype(dtype), near.astype(dtype)])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_function_gives_the_bits_of_the_numpy_reference(dtype):
    x, y = arguments(dtype, 0), np.random.default_rng(5).permutation(arguments(dtype, 1))
    a, b = operands(dtype, dtype)
    names = FUNCTIONS if dtype in NARROW else [*FUNCTIONS, *OF_TWO]
    calls = {name: (a, b) if name in OF_TWO else (a,) for name in names}
    kernels = [
        elementwise(builder.call(name, *args), [dtype, dtype], len(x), 8, name)
        for name, args in calls.items()
    ]
    compiled = Compiled(kernels)
    for name, args in calls.items():
        found = np.zeros_like(x)
        compiled(name, [found, x, y])
        wanted = NumpyScalars.call(name, *(x, y)[: len(args)])
        assert same_bits(found, np.asarray(wanted, dtype)), name


TRIPLE = "x86_64-unknown-linux-gnu"
PROCESSORS = {
    "baseline": jit.Target(TRIPLE, "x86-64", ""),
    "avx2": jit.Target(TRIPLE, "x86-64-v3", "+avx,+avx2,+sse4.1,+f16c,+fma"),
    "avx512": jit.Target(
        TRIPLE, "x86-64-v4", "+avx,+avx2,+avx512f,+avx512dq,+avx512vl,+sse4.1,+f16c,+fma"
    ),
    "graviton": jit.Target("aarch64-unknown-linux-gnu", "neoverse-v1", "+neon,+fp-armv8"),
}


def everything(lanes):
    """Kernels with every instruction, cast and function of every dtype."""
    for dtype in EVERY:
        ops = [op for op in sorted(UNARY | BINARY | COMPARISONS) if allowed(op, dtype)]
        a, b = load(0, i, dtype), load(1, i, dtype)
        made = [
            value(op, (a,) if op in UNARY else (a, b), BOOL if op in COMPARISONS else dtype)
            for op in ops
        ]
        made += [builder.cast(a, target) for target in EVERY if target != dtype]
        if dtype.itemsize >= 4 and dtype.kind == "f":
            made.append(builder.fma(a, b, a))
            made += [builder.call(name, a) for name in ("exp", "log", "sin", "tanh", "cbrt")]
        body = tuple(Store(n + 2, i, m) for n, m in enumerate(made))
        dtypes = [dtype, dtype, *(m.dtype for m in made)]
        yield kernel_of(dtypes, in_pieces(body, 100, lanes), name=f"all_{dtype}")


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSORS)
def test_no_instruction_calls_a_library_on_any_processor(name):
    target = PROCESSORS[name]
    text = emit(list(everything(target.vector_bytes // 4)), target)
    assembly = jit.emit_assembly(text, target.triple, target.cpu, target.features)
    called = set(re.findall(r"^\s+(?:callq?|bl|jmp|b)\s+([A-Za-z_]\S*)", assembly, re.MULTILINE))
    assert {re.sub(r"(\.\d+)?(@.*)?$", "", symbol) for symbol in called} <= {
        "weft.remainder.float",
        "weft.remainder.double",
        "weft.fma.double",
    }
    assert ("zmm" in assembly) == (name == "avx512")
    assert ("ymm" in assembly) == (name in ("avx2", "avx512"))


@pytest.mark.parametrize(("name", "is_read"), [("avx2", False), ("graviton", True)])
def test_a_literal_addend_is_read_where_the_sum_would_overwrite_it(name, is_read):
    x, y = operands(FLOAT, FLOAT)
    made = builder.fma(builder.fma(x, y, const(0.5, FLOAT)), x, y)
    target = PROCESSORS[name]
    text = emit([elementwise(made, [FLOAT, FLOAT], 64, 16, "kernel")], target)
    assembly = jit.emit_assembly(text, target.triple, target.cpu, target.features)
    assert text.count("load volatile") == is_read
    assert not is_read or not re.search(r"\smovi?\s+v", assembly)


@pytest.mark.parametrize(("dtype", "lanes"), [(FLOAT, 16), (FLOAT, 4), (np.dtype("d"), 8)])
def test_the_larger_of_two_vectors_is_one_instruction_and_a_question_for_nan(dtype, lanes):
    x, y = operands(dtype, dtype)
    target = PROCESSORS["avx512"]
    for made, ranges in ((builder.max(x, y), 1), (builder.max(x, const(0.5, dtype)), 0)):
        text = emit([elementwise(made, [dtype, dtype], 4 * lanes, lanes, "kernel")], target)
        assembly = jit.emit_assembly(text, target.triple, target.cpu, target.features)
        assert len(re.findall(r"\bvrangep[sd]\b", assembly)) == ranges
        assert "uno" in text or not ranges


@pytest.mark.parametrize("processor", ["avx2", "avx512", "graviton"])
def test_a_mask_becomes_floats_without_a_conversion(processor):
    x, y = operands(FLOAT, FLOAT)
    made, target = builder.add(builder.cast(builder.less(x, y), FLOAT), x), PROCESSORS[processor]
    text = emit([elementwise(made, [FLOAT, FLOAT], 64, 16, "kernel")], target)
    assembly = jit.emit_assembly(text, target.triple, target.cpu, target.features)
    assert not re.search(r"cvt", assembly)


@pytest.mark.parametrize(("dtype", "lanes"), [(FLOAT, 32), (FLOAT, 4), (np.dtype("d"), 8)])
@pytest.mark.parametrize("name", ["exp", "exp2"])
def test_an_exponential_is_scaled_by_one_instruction_of_avx_512(name, dtype, lanes):
    (x,) = operands(dtype)
    for processor in ("avx512", "avx2"):
        target = PROCESSORS[processor]
        text = emit([elementwise(builder.call(name, x), [dtype], 64, lanes, "kernel")], target)
        assembly = jit.emit_assembly(text, target.triple, target.cpu, target.features)
        vectors = max(lanes * dtype.itemsize // 64, 1) if processor == "avx512" else 0
        assert len(re.findall(r"\bvscalefp[sd]\b", assembly)) == vectors
        assert ("vpsll" in assembly) == (not vectors)


@pytest.mark.parametrize("dtype", [FLOAT, np.dtype("d")], ids=str)
@pytest.mark.parametrize("name", ["exp", "exp2"])
def test_exponentials_at_the_smallest_numbers_and_below_have_the_bits_of_the_reference(name, dtype):
    last = -np.finfo(dtype).minexp + np.finfo(dtype).nmant
    far = [0.0, -0.0, np.nan, np.inf, -np.inf, -1e9, -3e38, *(-last * np.array([1, 1.4, 1.7, 2]))]
    x = np.concatenate([np.linspace(-2 * last, -0.5 * last, 1021), np.repeat(far, 17)])
    x = np.random.default_rng(1).permutation(x).astype(dtype)
    (a,), wanted = operands(dtype), NumpyScalars.call(name, x)
    for lanes in (1, 8, 16, 32):
        kernel = elementwise(builder.call(name, a), [dtype], len(x), lanes, "kernel")
        found = np.zeros_like(x)
        Compiled([kernel])("kernel", [found, x])
        assert same_bits(found, wanted), lanes


def test_products_that_only_look_like_exponentials_are_taken():
    x, y = operands(FLOAT, FLOAT)
    about_one, any_number = builder.fma(x, x, const(1.0, FLOAT)), builder.fma(x, x, x)
    whole, word = np.dtype("i4"), builder.bitcast(y, np.dtype("i4"))
    usual = (22, -(1 << 23), 23)
    others = ((22, -(1 << 23), 24), (22, -(1 << 22), 23), (21, -(1 << 23), 23))
    cases = [(about_one, usual, True), (any_number, usual, False)]
    for factor, (shift, mask, other), taken in [*cases, *((about_one, o, False) for o in others)]:
        half = builder.bit_and(builder.shift_left(word, const(shift, whole)), const(mask, whole))
        rest = builder.sub(builder.shift_left(word, const(other, whole)), half)
        first, second = (builder.bitcast(a, FLOAT) for a in (half, rest))
        made = builder.mul(builder.mul(factor, first), second)
        text = emit([elementwise(made, [FLOAT, FLOAT], 64, 16, "kernel")], PROCESSORS["avx512"])
        assert ("scalef" in text) == taken


@pytest.mark.parametrize(("dtype", "lanes"), [(FLOAT, 16), (np.dtype("d"), 8)])
@pytest.mark.parametrize("how", ["max", "min"])
def test_the_lanes_of_an_extreme_meet_in_whole_registers(how, dtype, lanes):
    target, held = PROCESSORS["avx512"], Local("held", dtype, lanes)
    met = value("across", (get(0, dtype),), dtype, how)
    read = Loop(i, integer(0), integer(lanes), (Assign(0, load(0, i, dtype)),), "vector", lanes)
    body = (read, Store(1, integer(0), met))
    text = emit([kernel_of([dtype, dtype], body, (held,))], target)
    assembly = jit.emit_assembly(text, target.triple, target.cpu, target.features)
    assert len(re.findall(r"\bvrangep[sd]\b", assembly)) == lanes.bit_length() - 1
    assert not re.search(rf"\bv{how}[sp][sd]\b", assembly)


def test_object_code_needs_no_symbol_from_outside():
    code = jit.compile_text(emit(list(everything(8)), jit.host_target()), jit.host_target())
    assert undefined_symbols(code) == []


def undefined_symbols(code):
    """Names an ELF object of 64 bits uses and does not define."""
    (sections,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", code, sections + size * n) for n in range(count)]
    found = []
    for header in headers:
        if header[1] == 2:  # a symbol table; its strings lie in the section it links to
            strings = headers[header[6]][4]
            for at in range(header[4] + 24, header[4] + header[5], 24):
                name, _, _, section = struct.unpack_from("<IBBH", code, at)
                if section == 0:
                    start = strings + name
                    found.append(code[start : code.index(b"\0", start)].decode())
    return found
