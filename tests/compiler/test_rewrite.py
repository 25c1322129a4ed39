"""Rewriting a trace: fewer calls, the same bits — and rules that only the reals have stay away."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.random_programs import make_program
from weft.compiler.algebra import ALGEBRA, REDUCTIONS, holds
from weft.compiler.calls import SMALL_BYTES
from weft.compiler.movement import MOVEMENT
from weft.compiler.rewrite import rewrite
from weft.core.common import dtypes
from weft.core.common.slots import OPS
from weft.ops.base import call

REALS = (*dtypes.INTEGERS, *dtypes.FLOATING)
SIGNED_REALS = (*dtypes.SIGNED, *dtypes.FLOATING)
NUMBERS = (*REALS, *dtypes.COMPLEX)
BITS = (dtypes.bool_, *dtypes.INTEGERS)


def edge_values(dtype) -> np.ndarray:
    """The values that break rules: signed zeros, infinities, NaN, the smallest and the largest."""
    if dtypes.is_bool(dtype):
        return np.array([False, True])
    if dtypes.is_integer(dtype):
        limits = np.iinfo(dtype)
        found = [limits.min, limits.min + 1, 0, 1, 2, 3, 7, limits.max - 1, limits.max]
        return np.concatenate([np.array(found + [-1] * (limits.min < 0), dtype), any_bits(dtype)])
    if dtypes.is_complex(dtype):
        parts = edge_values(dtypes.real_of(dtype))[:8]
        return np.array([complex(a, b) for a in parts for b in parts]).astype(dtype)
    plain = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -1.5, 2.5, 3.0, -7.0, 100.0, 448.0]
    with np.errstate(all="ignore"):
        smallest = np.array([1e-7, 1e-45, 5e-324, -1e-40, 6e4, 3e38, 1e308]).astype(dtype)
    return np.concatenate([np.array(plain).astype(dtype), smallest, any_bits(dtype)])


def any_bits(dtype) -> np.ndarray:
    return np.frombuffer(np.random.default_rng(5).bytes(40 * dtype.itemsize), dtype)


def bits(array) -> bytes:
    """All bits, but one NaN for all NaNs."""
    array = np.array(array)
    if dtypes.is_complex(array.dtype):
        return bits(array.real) + bits(array.imag)
    if dtypes.is_floating(array.dtype):
        array[np.isnan(array.astype(np.float64))] = np.nan
    return array.tobytes()


def run(trace, arrays):
    return trace.run([*arrays, *(tensor.data() for tensor in trace.captures)])


def checked(function, *arrays):
    """Trace, rewrite, compare bit by bit; the new trace and the counts."""
    trace = wf.trace(function, *map(wf.tensor, arrays))
    made, counts = rewrite(trace)
    given = len(trace.inputs) - len(trace.captures)
    assert made.inputs[:given] == trace.inputs[:given]
    assert len(made.inputs) == given + len(made.captures)
    assert made.output_types == trace.output_types
    for found, expected in zip(run(made, arrays), run(trace, arrays), strict=True):
        assert found.shape == expected.shape and found.dtype == expected.dtype
        assert bits(found) == bits(expected), (found, expected)
    again, nothing = rewrite(made)
    assert again is made and nothing == type(nothing)(), nothing
    return made, counts


def names(trace) -> list[str]:
    return [node.op.name for node in trace.nodes]


def op(name, **params):
    """A call of an op as it is, past the functions that leave out what does nothing."""
    return lambda *args: call(OPS[name], args, params)


WIDE = (wf.float32, wf.float64)
NO_PADDING = {"low": (0,), "high": (0,), "interior": (0,)}
RULES = [
    ("x * 1", lambda x: x * 1, REALS, []),
    ("1 * x", lambda x: 1 * x, REALS, []),
    ("x * ones", lambda x: x * wf.ones_like(x), REALS, []),
    ("x / 1", lambda x: x / 1, dtypes.FLOATING, []),
    ("x / 4", lambda x: x / 4, (wf.float32, wf.float64), ["multiply"]),
    ("x / -0.5", lambda x: x / -0.5, (wf.float32, wf.float64), ["multiply"]),
    ("x - 0", lambda x: x - 0, NUMBERS, []),
    ("x + (-0.0)", lambda x: x + -0.0, dtypes.FLOATING, []),
    ("x + 0", lambda x: x + 0, dtypes.INTEGERS, []),
    ("x + (-0.0-0.0j)", lambda x: x + complex(-0.0, -0.0), dtypes.COMPLEX, []),
    ("x * 0", lambda x: x * 0, dtypes.INTEGERS, ["broadcast_to"]),
    ("x - x", lambda x: x - x, dtypes.INTEGERS, ["broadcast_to"]),
    ("x + (-y)", lambda x: x + -x[::-1], NUMBERS, ["slice", "subtract"]),
    ("(-y) + x", lambda x: -x[::-1] + x, NUMBERS, ["slice", "subtract"]),
    ("x - (-y)", lambda x: x - -x[::-1], NUMBERS, ["slice", "add"]),
    ("(-x) * (-y)", lambda x: -x * -x[::-1], REALS, ["slice", "multiply"]),
    ("-(-x)", lambda x: wf.negative(-x), NUMBERS, []),
    ("+x", lambda x: wf.positive(x), NUMBERS, []),
    ("x // 1", lambda x: x // 1, dtypes.INTEGERS, []),
    ("x % 1", lambda x: x % 1, dtypes.INTEGERS, ["broadcast_to"]),
    ("fmod(x, 1)", lambda x: wf.fmod(x, 1), dtypes.INTEGERS, ["broadcast_to"]),
    ("x ** 1", lambda x: wf.pow(x, wf.ones_like(x)), dtypes.INTEGERS, []),
    ("x ** 2", lambda x: wf.pow(x, wf.full_like(x, 2)), dtypes.INTEGERS, ["square"]),
    ("x ** 3", lambda x: wf.pow(x, wf.full_like(x, 3)), dtypes.INTEGERS, ["square", "multiply"]),
    ("x ** 8", lambda x: wf.pow(x, wf.full_like(x, 8)), dtypes.INTEGERS, ["square"] * 3),
    ("x ** 13", lambda x: x**13, dtypes.INTEGERS, [*["square"] * 3, *["multiply"] * 2]),
    ("~~x", lambda x: ~~x, BITS, []),
    ("x & x", lambda x: x & x, BITS, []),
    ("x | x", lambda x: x | x, BITS, []),
    ("x ^ x", lambda x: x ^ x, BITS, ["broadcast_to"]),
    ("x & 0", lambda x: x & 0, dtypes.INTEGERS, ["broadcast_to"]),
    ("x & ~0", lambda x: x & ~wf.zeros_like(x), BITS, []),
    ("x | 0", lambda x: x | 0, dtypes.INTEGERS, []),
    ("x | ~0", lambda x: x | ~wf.zeros_like(x), BITS, ["broadcast_to"]),
    ("0 ^ x", lambda x: 0 ^ x, dtypes.INTEGERS, []),
    ("x & True", lambda x: x & True, (dtypes.bool_,), []),
    ("x << 0", lambda x: x << 0, dtypes.INTEGERS, []),
    ("x >> 0", lambda x: x >> 0, dtypes.INTEGERS, []),
    ("max(x, x)", lambda x: wf.maximum(x, x), REALS, []),
    ("min(x, x)", lambda x: wf.minimum(x, x), REALS, []),
    ("||x||", lambda x: abs(abs(x)), NUMBERS, ["abs"]),
    ("|-x|", lambda x: abs(-x), SIGNED_REALS, ["abs"]),
    ("floor(ceil(x))", lambda x: wf.floor(wf.ceil(x)), dtypes.FLOATING, ["ceil"]),
    ("round(trunc(x))", lambda x: wf.round(wf.trunc(x)), dtypes.FLOATING, ["trunc"]),
    ("round(round(x))", lambda x: wf.round(wf.round(x)), dtypes.COMPLEX, ["round"]),
    ("conj(conj(x))", lambda x: wf.conj(wf.conj(x)), dtypes.COMPLEX, []),
    (
        "real(complex(x, y))",
        lambda x: wf.real(wf.complex(x, x[::-1])),
        (wf.float32, wf.float64),
        [],
    ),
    (
        "imag(complex(x, y))",
        lambda x: wf.imag(wf.complex(x, x[::-1])),
        (wf.float32, wf.float64),
        ["slice"],
    ),
    ("where(True, x, y)", lambda x: wf.where(True, x, x[::-1]), NUMBERS, []),
    ("where(False, x, y)", lambda x: wf.where(False, x, x[::-1]), NUMBERS, ["slice"]),
    ("where(m, x, x)", lambda x: wf.where(x == x, x, x), NUMBERS, []),
    ("copy(copy(x))", lambda x: wf.copy(wf.copy(x)), dtypes.ALL_DTYPES, []),
    ("stop_gradient", lambda x: op("stop_gradient")(x), dtypes.ALL_DTYPES, []),
    ("checkpoint_name", lambda x: wf.checkpoint_name(x, "x"), dtypes.ALL_DTYPES, []),
    ("kept", lambda x: op("kept")(x, x), dtypes.ALL_DTYPES, []),
    ("cast to the same", lambda x: op("cast", dtype=x.dtype)(x), dtypes.ALL_DTYPES, []),
    ("double and back", lambda x: x.astype("float64").astype(x.dtype), dtypes.FLOATING, []),
    ("narrow_ahead", lambda x: op("narrow_ahead", dtype=wf.float16)(x), WIDE, ["cast", "cast"]),
    (
        "narrow_exp",
        lambda x: op("narrow_exp", dtype=wf.bfloat16, scale=0.5)(x, x),
        (wf.float32,),
        ["short_power", "short_exp2", "cast", "cast"],
    ),
    ("reshape twice", lambda x: x.reshape((1, -1)).reshape((-1, 1, 1)), REALS, ["reshape"]),
    ("reshape and back", lambda x: x.reshape((1, -1)).reshape((-1,)), REALS, []),
    ("reverse twice", lambda x: x[::-1][::-1], REALS, []),
    ("flip twice", lambda x: wf.flip(wf.flip(x)), REALS, []),
    ("concat of one", lambda x: wf.concat([x]), REALS, []),
    ("concat with nothing", lambda x: wf.concat([x, x[:0]]), REALS, []),
    (
        "pad by nothing",
        lambda x: op("pad", **NO_PADDING)(x, wf.zeros((), dtype=x.dtype)),
        REALS,
        [],
    ),
]


@pytest.mark.parametrize(
    ("function", "found", "left"), [r[1:] for r in RULES], ids=[r[0] for r in RULES]
)
def test_a_rule_leaves_the_same_bits_and_fewer_calls(function, found, left):
    for dtype in found:
        made, counts = checked(function, edge_values(dtype))
        assert names(made) == left, dtype
        assert counts.simplified + counts.folded > 0


def test_every_rule_is_tested():
    exercised = " ".join(r[0] for r in RULES)
    moves, powers = ("permute", "broadcast_to", "slice"), ("exp", "short_exp2", "short_power")
    tested_elsewhere = {*moves, *powers, *REDUCTIONS}
    copies = dict.fromkeys(("narrow_back", "undifferentiable", "probe"), "copy")
    alike = {**copies, "fmax": "max", "fmin": "min"}
    spelled = {
        "add": "+",
        "subtract": "-",
        "multiply": "*",
        "divide": "/",
        "floor_divide": "//",
        "remainder": "%",
        "pow": "**",
        "negative": "-(-",
        "positive": "+x",
        "abs": "||",
        "maximum": "max",
        "minimum": "min",
        "bitwise_and": "&",
        "bitwise_or": "|",
        "bitwise_xor": "^",
        "bitwise_invert": "~~",
        "bitwise_left_shift": "<<",
        "bitwise_right_shift": ">>",
    }
    for name in (*ALGEBRA, *MOVEMENT):
        text = {**spelled, **alike}.get(name, name)
        assert name in tested_elsewhere or text in exercised, name


FORBIDDEN = [
    ("x + 0.0", lambda x: x + 0.0, (*dtypes.FLOATING, *dtypes.COMPLEX), ["add"]),
    ("x - (-0.0)", lambda x: x - -0.0, (*dtypes.FLOATING, *dtypes.COMPLEX), ["subtract"]),
    ("x + (-0.0+0.0j)", lambda x: x + complex(-0.0, 0.0), dtypes.COMPLEX, ["add"]),
    ("x * 0.0", lambda x: x * 0.0, (*dtypes.FLOATING, *dtypes.COMPLEX), ["multiply"]),
    ("x * 1 complex", lambda x: x * 1, dtypes.COMPLEX, ["multiply"]),
    ("x / 1 complex", lambda x: x / 1, dtypes.COMPLEX, ["divide"]),
    ("x - x", lambda x: x - x, (*dtypes.FLOATING, *dtypes.COMPLEX), ["subtract"]),
    ("0 - x", lambda x: 0.0 - x, dtypes.FLOATING, ["subtract"]),
    ("x / 3", lambda x: x / 3, dtypes.FLOATING, ["divide"]),
    ("x / 2**127", lambda x: x / 2.0**127, (wf.float32,), ["divide"]),
    ("x / 0", lambda x: x / 0.0, dtypes.FLOATING, ["divide"]),
    ("x / inf", lambda x: x / float("inf"), (wf.float32,), ["divide"]),
    ("x ** 2.0", lambda x: wf.pow(x, wf.full_like(x, 2.0)), (wf.float32,), ["broadcast_to", "pow"]),
    ("x // 1.0", lambda x: x // 1.0, dtypes.FLOATING, ["floor_divide"]),
    ("x % 1.0", lambda x: x % 1.0, dtypes.FLOATING, ["remainder"]),
    ("|-x| unsigned", lambda x: abs(-x), dtypes.UNSIGNED, ["negative", "abs"]),
    ("max(x, y)", lambda x: wf.maximum(x, x[::-1]), REALS, ["slice", "maximum"]),
    ("floor(round(x))", lambda x: wf.floor(x) + 0.0, dtypes.FLOATING, ["floor", "add"]),
    ("exp(log(x))", lambda x: wf.exp(wf.log(x)), (wf.float32,), ["log", "exp"]),
    ("(x + y) - y", lambda x: (x + 1) - 1, (wf.float32,), ["add", "subtract"]),
    (
        "narrow and back",
        lambda x: x.astype("float32").astype("float64"),
        (wf.float64,),
        ["cast"] * 2,
    ),
    ("signed low byte", lambda x: x.astype("int8").astype("int32"), (wf.uint8,), ["cast"] * 2),
    ("saturate", lambda x: x.astype("float64").astype("int8"), (wf.int32,), ["cast"] * 2),
    ("int64 as float", lambda x: x.astype("float64").astype("int64"), (wf.int64,), ["cast"] * 2),
    ("int32 as float32", lambda x: x.astype("float32").astype("int32"), (wf.int32,), ["cast"] * 2),
    ("whole", lambda x: x.astype("int64").astype("float64"), (wf.float64,), ["cast"] * 2),
]


@pytest.mark.parametrize(
    ("function", "found", "left"), [r[1:] for r in FORBIDDEN], ids=[r[0] for r in FORBIDDEN]
)
def test_what_holds_in_the_reals_only_is_not_done(function, found, left):
    for dtype in found:
        made, _ = checked(function, edge_values(dtype))
        assert names(made) == left, dtype


@pytest.mark.parametrize("between", dtypes.ALL_DTYPES, ids=dtypes.name_of)
def test_two_casts_become_one_only_where_no_bit_changes(between):
    joined = 0
    for first in dtypes.ALL_DTYPES:
        for last in dtypes.ALL_DTYPES:

            def twice(x, last=last):
                return op("cast", dtype=last)(op("cast", dtype=between)(x))

            made, _ = checked(twice, edge_values(first))
            joined += len(made.nodes) < 2
    assert joined > 0


def test_holds_is_about_every_value():
    for wide in dtypes.ALL_DTYPES:
        for narrow in dtypes.ALL_DTYPES:
            values = edge_values(narrow)
            with np.errstate(all="ignore"):
                there = OPS["cast"].eval(values, dtype=wide)
                back = OPS["cast"].eval(there, dtype=narrow)
            if holds(wide, narrow):
                assert bits(back) == bits(values), (wide, narrow)
    assert not holds(dtypes.float64, dtypes.int64) and not holds(dtypes.int64, dtypes.uint64)
    assert not holds(dtypes.float16, dtypes.bfloat16) and not holds(dtypes.bfloat16, dtypes.float16)


# -- movement


def test_permutations_meet_also_when_they_name_different_axes():
    x = np.arange(24.0).reshape(2, 3, 4)
    for first in ((0, 2, 1), (1, 0, 2), (2, 0, 1), (2, 1, 0)):
        for second in ((0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 1, 0)):
            made, _ = checked(
                lambda x, a=first, b=second: wf.permute_dims(wf.permute_dims(x, a), b), x
            )
            plain = tuple(np.arange(3)[list(first)][list(second)]) == (0, 1, 2)
            assert names(made) == [] if plain else names(made) == ["permute"]


def test_slices_of_slices_are_slices():
    x = np.arange(7 * 9.0).reshape(7, 9)
    keys = [
        (slice(1, 6, 2), slice(None, None, -1)),
        (slice(None, None, -2), slice(2, 8)),
        (slice(0, 3), slice(None)),
        (slice(3, 3), slice(1, None)),
        (slice(None), slice(0, 1)),
        (slice(-1, None), slice(None, None, 3)),
    ]
    for first in keys:
        for second in keys:
            made, _ = checked(lambda x, a=first, b=second: x[a][b], x)
            assert len(made.nodes) <= 1
            checked(lambda x, a=first, b=second: x[a][b[0]], x)
            checked(lambda x, a=first, b=second: x[a[0]][:, b[1]], x)


def test_broadcasts_and_flips_meet():
    x = np.arange(3.0).reshape(3, 1)
    made, _ = checked(lambda x: wf.broadcast_to(wf.broadcast_to(x, (3, 4)), (2, 3, 4)), x)
    assert names(made) == ["broadcast_to"]
    made, _ = checked(lambda x: wf.flip(wf.flip(x, axis=0), axis=(0, 1)), np.ones((3, 4)))
    assert names(made) == ["flip"] and made.nodes[0].params["axes"] == (-1,)
    assert names(checked(lambda x: wf.flip(x, axis=1), x)[0]) == []  # one element


def test_reshapes_of_nothing_meet():
    made, _ = checked(lambda x: x.reshape((3, 0)).reshape((0, 5)), np.ones((0, 3)))
    assert names(made) == ["reshape"]


def test_a_result_that_is_wider_than_what_is_kept_is_stretched():
    x = np.array([1.0, -0.0, np.nan])
    for function in (
        lambda x: x * wf.ones((2, 3), dtype="float64"),
        lambda x: wf.where(wf.zeros((2, 3), dtype="bool"), 0.0, x),
        lambda x: x - wf.zeros((2, 3), dtype="float64"),
    ):
        assert names(checked(function, x)[0]) == ["broadcast_to"]


# -- equal calls


def test_equal_calls_are_one_whatever_the_order_of_what_commutes():
    def function(x, y):
        return (x + y) * (y + x), (x * y) + (y * x), wf.maximum(x, y) - wf.maximum(y, x)

    made, counts = checked(function, edge_values(wf.float32), edge_values(wf.float32)[::-1].copy())
    assert counts.shared == 2
    assert names(made).count("add") == 2 and names(made).count("maximum") == 2


def test_equal_constants_are_one_and_zeros_of_two_signs_are_two():
    def function(x):
        return x * 2.0, x[::-1] * 2.0, wf.atan2(x, wf.asarray(0.0)), wf.atan2(x, wf.asarray(-0.0))

    trace = wf.trace(function, wf.ones(3))
    made, _ = checked(function, edge_values(wf.float32))
    assert len(trace.captures) == 4 and len(made.captures) == 3


def test_calls_are_shared_after_their_operands_became_equal():
    made, counts = checked(lambda x: wf.sin(x * 1) + wf.sin(x - 0), edge_values(wf.float64))
    assert names(made) == ["sin", "add"] and (counts.simplified, counts.shared) == (2, 1)


# -- constants


def test_calls_on_constants_are_done_once():
    made, counts = checked(lambda x: x * wf.exp(wf.asarray([1.0, 2.0]) * 3), np.ones(2, np.float32))
    assert names(made) == ["multiply"] and counts.folded == 2 and len(made.captures) == 1


def test_a_repeated_number_stays_a_number():
    def function(x):
        return x + (wf.full((1000, 1000), 3.0) * 2 + 1)

    made, counts = checked(function, np.ones((1000, 1000), np.float32))
    assert names(made) == ["broadcast_to", "add"] and counts.folded == 2
    assert [tensor.item() for tensor in made.captures] == [7.0]


def test_large_results_are_not_made_while_compiling():
    wide = SMALL_BYTES // 4 + 1

    def function(x):
        return x + wf.exp(wf.broadcast_to(wf.asarray([1.0]), (wide,)))

    made, counts = checked(function, np.ones(wide, np.float32))
    assert "exp" in names(made) and counts.folded == 0
    big = wf.asarray(np.ones(wide, np.float32), copy=True)
    made, counts = checked(lambda x: x + wf.exp(big), np.ones(wide, np.float32))
    assert names(made) == ["add"] and counts.folded == 1  # no larger than what it was made from


def test_a_constant_call_that_fails_is_left_for_the_run():
    def function(x):
        return x + wf.linalg.cholesky(-wf.eye(2))

    made, _ = rewrite(wf.trace(function, wf.ones((2, 2))))
    assert "cholesky" in names(made)


def test_memory_that_others_can_change_is_no_constant():
    mine = np.array([1.0, 1.0])
    shared = wf.from_numpy(mine)
    made, _ = rewrite(wf.trace(lambda x: x * shared, wf.asarray([2.0, 3.0], dtype="float64")))
    assert names(made) == ["multiply"]


def test_several_results_are_constants_together():
    made, counts = checked(
        lambda x: (x, *wf.linalg.eigh(wf.asarray([[2.0, 1.0], [1.0, 2.0]]))), np.ones(1)
    )
    assert names(made) == [] and counts.folded >= 1 and len(made.captures) == 2


# -- what is kept


def test_dead_calls_are_counted_and_gone():
    made, counts = checked(lambda x: wf.where(True, x, wf.sin(wf.cos(x))), edge_values(wf.float64))
    assert names(made) == [] and (counts.dead, counts.simplified) == (2, 1)


def test_effects_stay_in_order_and_happen_every_time():
    seen = []

    def note(tag):
        def kernel(x):
            seen.append((tag, float(x.sum())))
            return x

        return kernel

    first, second = note("first"), note("second")

    def function(x):
        for kernel in (first, second, first):
            wf.call_custom_kernel(kernel, x * 1, result_type=((2,), "float64"), pure=False)
        return x - 0

    trace = wf.trace(function, wf.ones(2, dtype="float64"))
    made, _ = rewrite(trace)
    assert len(made.effects) == 3 and names(made) == ["custom_kernel_with_effects"] * 3
    run(made, [np.array([1.0, 2.0])])
    assert seen == [("first", 3.0), ("second", 3.0), ("first", 3.0)]


def test_calls_keep_the_lines_they_were_written_in():
    def function(x):
        y = wf.sin(x * 1)
        return wf.cos(y)

    trace = wf.trace(function, wf.ones(2))
    made, _ = rewrite(trace)
    positions = {node.op.name: node.position for node in trace.nodes}
    assert [(n.op.name, n.position) for n in made.nodes] == [
        (name, positions[name]) for name in ("sin", "cos")
    ]
    assert None not in positions.values()


def test_a_trace_with_nothing_to_do_is_returned_as_it_is():
    trace = wf.trace(lambda x: wf.sin(x) + x, wf.ones(2))
    made, counts = rewrite(trace)
    assert made is trace and counts == type(counts)()


def test_every_call_is_counted_once():
    def function(x):
        y = wf.sin(x * 1) + wf.sin(x) + wf.exp(wf.ones(3)) * wf.where(True, x, wf.tanh(x))
        return wf.negative(-y)

    trace = wf.trace(function, wf.ones(3))
    made, counts = checked(function, np.ones(3, np.float32))
    gone = counts.dead + counts.shared + counts.folded + counts.simplified
    assert len(trace.nodes) == len(made.nodes) + gone


# -- loops and branches


def test_bodies_are_rewritten_with_the_constants_they_are_given():
    def function(x):
        def step(carry, row):
            return carry * 1 + row * 2 - 0, wf.sin(carry) + wf.sin(carry * 1)

        return wf.scan(step, wf.zeros_like(x[0]), x)

    made, counts = checked(function, np.arange(12.0).reshape(3, 4))
    (scan,) = [node for node in made.nodes if node.op.name == "scan"]
    assert names(scan.params["body"]) == ["multiply", "add", "sin", "add"]
    assert counts.simplified >= 3 and counts.shared >= 1


def test_what_changes_from_step_to_step_is_no_constant():
    def function(x):
        return wf.fori_loop(0, 3, lambda i, c: (c[0] * c[1], c[1] + 1), (x, wf.asarray(1.0)))

    checked(function, np.array([2.0, 3.0], np.float32))


def test_a_branch_that_a_constant_chooses_replaces_the_choice():
    def function(x):
        return wf.switch(1, [wf.sin, lambda v: wf.cos(v) * 1 + x, wf.tan], x), wf.cos(x)

    made, counts = checked(function, edge_values(wf.float32))
    assert names(made) == ["cos", "add"] and counts.simplified == 1
    for index in (-5, 0, 7):
        checked(lambda x, i=index: wf.switch(i, [wf.sin, wf.cos, wf.tan], x), np.ones(3))


def test_loops_with_effects_are_left_to_happen():
    seen = []

    def kernel(x):
        seen.append(float(x))
        return x

    def function(x):
        def step(c, _):
            made = wf.call_custom_kernel(kernel, c * 1, result_type=((), "float64"), pure=False)
            return made + 1, None

        return wf.scan(step, x, None, length=3)[0]

    trace = wf.trace(function, wf.asarray(0.0, dtype="float64"))
    made, _ = rewrite(trace)
    seen.clear()
    run(made, [np.array(5.0)])
    assert seen == [5.0, 6.0, 7.0]


def test_recomputed_functions_are_rewritten_inside_and_kept_apart():
    def function(x):
        inner = wf.checkpoint(lambda v: wf.sin(v * 1) * v)
        return wf.sum(inner(x) * inner(x - 0))

    made, _ = checked(wf.grad(function), np.linspace(-1, 1, 5))
    for node in made.nodes:
        if node.op.name == "checkpoint":
            assert names(node.params["trace"]) == ["sin", "multiply"]


# -- random programs


def random_traces(seed):
    rng = np.random.default_rng(seed)
    program = make_program(rng, length=8)
    tensors = [wf.asarray(a) for a in program.inputs]
    yield program, wf.trace(program, *tensors)

    def total(*args):
        return sum(wf.sum(wf.real(x)) for x in program(*args))

    yield program, wf.trace(wf.grad(total), *tensors)
    stacked = [wf.stack([x, x * 2]) for x in tensors]
    yield program, wf.trace(wf.vmap(program), *stacked)


@pytest.mark.parametrize("seeds", [range(k, k + 4) for k in range(0, 60, 4)], ids=str)
def test_random_programs_give_the_same_bits(seeds):
    removed = 0
    for seed in seeds:
        for program, trace in random_traces(seed):
            try:
                arrays = [
                    np.asarray(np.random.default_rng(seed).uniform(-2, 2, kind.shape), kind.dtype)
                    for kind in trace.input_types[: len(trace.inputs) - len(trace.captures)]
                ]
                made, _ = rewrite(trace)
                removed += len(trace.nodes) - len(made.nodes)
                for found, expected in zip(run(made, arrays), run(trace, arrays), strict=True):
                    assert found.shape == expected.shape and found.dtype == expected.dtype
                    assert bits(found) == bits(expected)
            except Exception as error:
                error.add_note(f"seed {seed}\n{program}\n{trace}")
                raise
    assert removed > 0


@pytest.mark.slow
def test_long_chains_need_no_recursion():
    def function(x):
        for _ in range(3000):
            x = -(wf.sin(x) * 1)
        return x

    made, _ = checked(function, np.ones(2))
    assert len(made.nodes) == 6000
