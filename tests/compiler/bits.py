"""Results by two ways through weft, compared bit by bit; programs drawn for the compiler.

Interpreted: each call of a trace by the CPU client, one after another. Compiled: the trace
simplified, fused and run as one native program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import weft as wf
from tests.random_programs import Draw, Program, make_program, some_axis
from weft.compiler.executable import Interpreted
from weft.compiler.fuse import Fusion
from weft.compiler.loops import Kernel
from weft.compiler.native import Native
from weft.compiler.rewrite import rewrite
from weft.compiler.scatter import lower
from weft.core.graph.node import OutputRefs
from weft.core.graph.trace import Trace

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -5e-324, 1.0, -1.5, 3e38, 65504.0, 1e-7]


def plain_bits(array: Any) -> Any:
    """An array as integers, every NaN as one."""
    array = np.ascontiguousarray(array)
    if array.dtype.kind == "c":
        array = array.reshape(-1).view(f"f{array.dtype.itemsize // 2}")
    if array.dtype.kind in "biu":
        return array
    return np.where(np.isnan(array), array.dtype.type(0), array).view(
        f"u{array.dtype.itemsize}"
    ), np.isnan(array)


def is_same(found: Any, expected: Any) -> bool:
    """Whether two arrays have one type and the same bits, NaN payloads aside."""
    a, b = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(np.array_equal(plain_bits(a), plain_bits(b)))


def assert_same(found: Sequence[Any], expected: Sequence[Any], what: str = "") -> None:
    """Fail at the first result that differs, with a few of its elements."""
    assert len(found) == len(expected), what
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        if not is_same(a, b):
            raise AssertionError(f"result {number} {what}: {difference(a, b)}")


def difference(a: Any, b: Any) -> str:
    """Where two arrays differ first."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype}{a.shape} instead of {b.dtype}{b.shape}"
    places = [i for i in np.ndindex(a.shape) if not is_same(a[i], b[i])]
    rows = [f"{i}: {a[i]!r} instead of {b[i]!r}" for i in places[:3]]
    return f"{a.dtype}{a.shape} differs in {len(places)} elements: {'; '.join(rows)}"


def lowered_kernels(function: Callable[..., Any], *given: Any) -> list[Kernel]:
    """The kernels that lowering makes of a function."""
    trace = wf.trace(function, *map(wf.tensor, given))
    fusion = Fusion(trace.nodes, trace.outputs)
    return [low.kernel for group in fusion.groups for low in lower(fusion, group, {})]


def arrays_of(trace: Trace, tensors: Sequence[Any]) -> list[Any]:
    """The data of a trace's inputs and captured tensors."""
    return [np.asarray(x) for x in (*tensors, *trace.captures)]


def interpreted(trace: Trace, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Each call by itself."""
    return Interpreted(trace).run(arrays[: len(trace.inputs) - len(trace.captures)])


def native(trace: Trace, general: bool = False) -> Native:
    """The whole as one program."""
    simple, _ = rewrite(trace)
    return Native(simple, general=general)


def compiled(trace: Trace, arrays: Sequence[Any], threads: int = 0) -> tuple[Any, ...]:
    """The results of the whole as one program."""
    return native(trace).run(arrays[: len(trace.inputs) - len(trace.captures)], threads)


def unfused(trace: Trace, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Every call as a kernel of its own, those included whose bits the reference fixes."""

    def step(node: OutputRefs, given: tuple[Any, ...]) -> tuple[Any, ...]:
        inputs = tuple(OutputRefs.leaf(None, s.types[slot], s.device) for s, slot in node.inputs)
        refs = tuple((x, 0) for x in inputs)
        alone = OutputRefs(node.op, refs, node.params, node.types, node.device, node.position)
        outputs = tuple((alone, slot) for slot in range(len(node.types)))
        made = Native(Trace(inputs, outputs, name=node.name))
        return made.run(given)

    return trace.walk(arrays, step)


def together(programs: Sequence[Callable[..., Any]], counts: Sequence[int]) -> Callable[..., Any]:
    """Several functions as one, which takes all their arguments: one compilation for many."""

    def run(*tensors: Any) -> list[Any]:
        remaining = iter(tensors)
        return [
            program(*[next(remaining) for _ in range(count)])
            for program, count in zip(programs, counts, strict=True)
        ]

    return run


def spiced(array: Any, rng: np.random.Generator) -> Any:
    """The array with some elements replaced by special values."""
    if array.dtype.kind in "biu" or array.dtype.kind == "c":
        return array
    with np.errstate(all="ignore"):
        picks = rng.choice(np.array(SPECIAL), array.shape).astype(array.dtype)
    return np.where(rng.random(array.shape) < 0.3, picks, array)


# -- steps for the compiler: dtypes that meet, positions, reductions of several kinds ------------


def real(text: str, function: Callable[..., Any]) -> Draw:
    """A step that only real numbers take."""
    return lambda rng, x: None if x.dtype == wf.complex128 else (text, function)


def real_axis(text: str, function: Callable[..., Any]) -> Draw:
    """A step along one axis that has elements."""

    def draw(rng: np.random.Generator, x: Any) -> Any:
        if not x.ndim or x.dtype == wf.complex128:
            return None
        axis = some_axis(rng, x.ndim)
        return (f"{text}, axis={axis}", lambda x: function(x, axis)) if x.shape[axis] else None

    return draw


def whole(x: Any, dtype: Any) -> Any:
    return wf.astype(x * 8, dtype)


def back(y: Any, x: Any) -> Any:
    return wf.astype(y, x.dtype) * 0.25


MIXED: list[Draw] = [
    real("int32(8x) // 3", lambda x: back(whole(x, wf.int32) // 3, x)),
    real("int64(8x) % 5", lambda x: back(whole(x, wf.int64) % 5, x)),
    real("int8(8x) << 2 >> 1", lambda x: back(whole(x, wf.int8) << 2 >> 1, x)),
    real("int16(8x) & 12 ^ 5", lambda x: back(whole(x, wf.int16) & 12 ^ 5, x)),
    real("uint8(abs 8x) * 3", lambda x: back(whole(abs(x), wf.uint8) * 3, x)),
    real("bfloat16 and back", lambda x: wf.astype(wf.astype(x, wf.bfloat16), x.dtype)),
    real("float16 and back", lambda x: wf.astype(wf.sin(wf.astype(x, wf.float16)), x.dtype)),
    real("float64 and back", lambda x: wf.astype(wf.exp(-abs(wf.astype(x, wf.float64))), x.dtype)),
    real("(x > 0) | (x < -1)", lambda x: back((x > 0) | (x < -1), x)),
    real("sign(x) * floor(3x) + ceil(x)", lambda x: wf.sign(x) * wf.floor(3 * x) + wf.ceil(x)),
    real("round(3x) - trunc(2x)", lambda x: wf.round(3 * x) - wf.trunc(2 * x)),
    real("x % 0.75", lambda x: x % 0.75),
    real("x // 0.3", lambda x: wf.floor_divide(x, 0.3)),
    real("x * mean over all", lambda x: x * wf.mean(x) if x.size else x),
    real("norm", lambda x: x / (1 + wf.sqrt(wf.sum(x * x)))),
    real_axis("argmax", lambda x, axis: back(wf.argmax(x, axis=axis), x)),
    real_axis("argmin", lambda x, axis: back(wf.argmin(x, axis=axis, keepdims=True), x)),
    real_axis("any(x > 1)", lambda x, axis: back(wf.any(x > 1, axis=axis), x)),
    real_axis("all(x < 1)", lambda x, axis: back(wf.all(x < 1, axis=axis), x)),
    real_axis("sum of int32", lambda x, axis: back(wf.sum(whole(x, wf.int32), axis=axis), x) / 8),
    real_axis(
        "layer norm",
        lambda x, axis: (
            (x - wf.mean(x, axis=axis, keepdims=True))
            / wf.sqrt(wf.var(x, axis=axis, keepdims=True) + 0.1)
        ),
    ),
    real_axis("x - max", lambda x, axis: x - wf.max(x, axis=axis, keepdims=True)),
    real_axis(
        "take argmax",
        lambda x, axis: wf.take_along_axis(x, wf.argmax(x, axis=axis, keepdims=True), axis=axis),
    ),
    real_axis("flip times x", lambda x, axis: wf.flip(x, axis=axis) * x),
    real_axis("sum of squares", lambda x, axis: wf.sum(x * x, axis=axis) / 8),
    real_axis("cumsum of sin", lambda x, axis: wf.cumsum(wf.sin(x), axis=axis) / 4),
]
DTYPES = (wf.float64, wf.float32, wf.bfloat16, wf.float16)
SHAPES = ((3, 64), (7, 300), (40, 4000), (300, 4000))  # longest axis, largest result


def draw_program(seed: int) -> tuple[Program, list[Any]]:
    """A program for this seed and arrays to call it with; every fourth seed has special values."""
    rng = np.random.default_rng(seed)
    longest, elements = SHAPES[seed % len(SHAPES)]
    program = make_program(rng, int(rng.integers(3, 12)), longest, elements, MIXED)
    arrays = program.inputs
    if arrays[0].dtype.kind != "c":
        dtype = DTYPES[int(rng.integers(len(DTYPES)))]
        arrays = [np.asarray(a).astype(dtype) for a in arrays]
    if rng.integers(4) == 0:
        arrays = [spiced(a, rng) for a in arrays]
    return program, [np.asarray(a) for a in arrays]
