"""Repeat a computation: `while_loop`, `fori_loop`, `scan`, `map`, `associative_scan`.

The functions given are traced once on shapes; what they carry from step to step keeps its
structure, shapes and dtypes. Where they draw random numbers without a key, the loop counts its
turns, and the number of the turn makes each turn's keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.autograd.tape import Tape
from weft.core.common import dtypes
from weft.core.common.handler import current
from weft.core.common.parameters import as_flag, as_function, as_integer
from weft.core.common.slots import public
from weft.core.common.trees import (
    tree_flatten,
    tree_leaves,
    tree_paths,
    tree_structure,
    tree_unflatten,
)
from weft.core.tensor.convert import PYTHON_SCALARS, scalar, to_tensor
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import Recorder
from weft.errors import ArgumentError, ShapeError, TreeError
from weft.ops.axes import normalize_axis
from weft.ops.control.loop_ops import perform_scan, perform_while
from weft.ops.control.subgraphs import (
    LoopRecorder,
    Place,
    Recording,
    as_operands,
    close,
    counted,
    grouped,
    mismatch,
    places,
    rows,
    weak,
)
from weft.ops.elementwise.comparison import less
from weft.ops.families import as_tensors, cast
from weft.ops.view.join import concat, stack
from weft.ops.view.reshape import reshape
from weft.ops.view.slice import flip, slice_axes


class Carry:
    """The state of a loop: a tree of tensors whose types every step must keep."""

    def __init__(self, op: str, init: Any, beside: Sequence[Any] = ()) -> None:
        self.op = op
        self.leaves, self.structure = tree_flatten(init)
        self.tensors = as_operands(op, self.leaves, beside)
        self.paths = tree_paths(init)

    def record(
        self, name: str, function: Callable[..., Any], rest: Sequence[Place], ends: int = 0
    ) -> Recording:
        """Record the body, with Python numbers in `init` given the dtype that the body gives them.

        The body returns the carry first; `ends` says how the rest is nested: 0, the carry is all;
        1, a pair of carry and something else.
        """
        while True:
            inside = (*places(self.tensors), *rest)
            recording = Recording(self.op, function, inside, LoopRecorder)
            recording.name = name
            found = recording.structure.child(0) if ends else recording.structure
            if found != self.structure:
                raise TreeError(
                    f"{self.op}: {name} returns a carry of structure {found}, init has"
                    f" {self.structure}"
                )
            if not self._adapt(recording):
                return recording

    def _adapt(self, recording: Recording) -> bool:
        """Compare types; whether a Python number in `init` had to change its dtype."""
        changed = False
        for i, (leaf, tensor, path) in enumerate(
            zip(self.leaves, self.tensors, self.paths, strict=True)
        ):
            kind = recording.settle(i, tensor.dtype)
            if kind == tensor.type:
                continue
            number = type(leaf) in PYTHON_SCALARS and kind.shape == ()
            if not number or weak(leaf, kind.dtype) != kind.dtype or tensor.dtype == kind.dtype:
                given = [("init", tensor.type), (recording.name, kind)]
                raise mismatch(f"{self.op}: carry{path}", given)
            self.tensors[i] = scalar(leaf, kind.dtype, tensor.device, self.op)
            changed = True
        return changed

    def build(self, leaves: Sequence[Tensor]) -> Any:
        """The carry as the user's tree."""
        return tree_unflatten(self.structure, leaves)


@public
def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init: Any) -> Any:
    """Repeat `state = body_fun(state)`, from `init`, while `cond_fun(state)` holds.

    Forward mode and `vmap` work (rows may end at different steps); reverse mode needs `scan`, or
    `fori_loop` with Python integers as bounds.

    >>> while_loop(lambda n: n < 100, lambda n: n * 3, 1).item()
    243
    """
    carry, start, captures, functions = _recorded(cond_fun, body_fun, init)
    return _run(carry, start, captures, functions)


def _run(carry: Carry, start: Sequence[Tensor], captures: Any, functions: Any) -> Any:
    """The last state of a loop as it was recorded."""
    results = perform_while(captures, functions, (), (*start, *carry.tensors))
    return carry.build(results[len(start) :])


def _recorded(
    cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init: Any
) -> tuple[Carry, tuple[Tensor, ...], Any, Any]:
    """The state of a loop, where its turns begin, what its functions find outside, and these."""
    as_function("while_loop", "cond_fun", cond_fun)
    as_function("while_loop", "body_fun", body_fun)
    carry = Carry("while_loop", init)
    if not carry.tensors:
        raise ArgumentError("while_loop: init holds no tensors, so the loop could never end")
    name = _name(body_fun, "body_fun")
    body = carry.record(name, lambda *state: body_fun(carry.build(state)), ())
    condition = Recording(
        "while_loop",
        lambda *state: cond_fun(carry.build(state)),
        places(carry.tensors),
        LoopRecorder,
    )
    condition.name = _name(cond_fun, "cond_fun")
    if condition.structure != tree_structure(0):
        raise TreeError(
            f"while_loop: {condition.name} must return one bool, not {condition.structure}"
        )
    kind = condition.settle(0, dtypes.bool_)
    if kind.shape != () or not dtypes.is_bool(kind.dtype):
        raise ShapeError(
            f"while_loop: {condition.name} must return one bool, got {kind}"
            "\nhint: compare, and reduce with wf.all or wf.any"
        )
    start = counted(body, condition)
    return carry, start, *close(condition, body)


@public
def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init: Any, *, unroll: Any = 1
) -> Any:
    """Repeat `state = body_fun(i, state)` for i from `lower` up to but without `upper`.

    With Python integers as bounds the loop can be differentiated in reverse mode. So it can with
    tensors inside `grad`, or if anything it uses requires a gradient, unless it is being compiled:
    how many steps it keeps has to be known.

    >>> fori_loop(0, 4, lambda i, total: total + i, 0).item()
    6
    """
    as_function("fori_loop", "body_fun", body_fun)
    if isinstance(lower, Tensor) or isinstance(upper, Tensor):
        lower, upper = _read_for_reverse((lower, upper), tree_leaves(init))
    if all(isinstance(bound, int | np.integer) for bound in (lower, upper)):
        for name, bound in (("lower", lower), ("upper", upper)):
            as_integer("fori_loop", name, bound, -(2**63), 2**63 - 1)
        count = max(0, int(upper) - int(lower))

        def step(state: Any, _: None) -> Any:
            i, inner = state
            return (i + 1, _kept(body_fun(i, inner), init)), None

        start = int(lower) if isinstance(lower, int) else lower
        (_, result), _ = _scan("fori_loop", step, (start, init), None, count, False, unroll)
        return result
    for name, bound in (("lower", lower), ("upper", upper)):
        kind = to_tensor(bound, op="fori_loop").type
        if kind.shape != () or not dtypes.is_integer(kind.dtype):
            raise ArgumentError(f"fori_loop: {name} must be one integer, got {kind}")
    first, last = as_tensors("fori_loop", lower, upper)
    dtype = dtypes.promote(first.dtype, last.dtype, op="fori_loop")
    state = (cast(first, dtype), cast(last, dtype), init)
    carry, start, captures, functions = _recorded(
        lambda s: less(s[0], s[1]),
        lambda s: (s[0] + 1, s[1], _kept(body_fun(s[0], s[2]), init)),
        state,
    )
    bounds = (lower, upper)
    known = _read_for_reverse(bounds, captures)
    if known is not bounds:
        return fori_loop(*known, body_fun, init, unroll=unroll)
    return _run(carry, start, captures, functions)[2]


def _kept(made: Any, init: Any) -> Any:
    """What `body_fun` of a `fori_loop` gave, which must have the structure of `init`."""
    found, expected = tree_structure(made), tree_structure(init)
    if found != expected:
        raise TreeError(
            f"fori_loop: body_fun returns a state of structure {found}, init has {expected}"
        )
    return made


def _read_for_reverse(bounds: tuple[Any, Any], used: Sequence[Any]) -> tuple[Any, Any]:
    """Bounds as plain integers, where reverse mode watches the loop and their values are there."""
    given = [to_tensor(bound, op="fori_loop") for bound in bounds]
    if any(x.owner is not None or x.shape != () or not dtypes.is_integer(x.dtype) for x in given):
        return bounds
    owners = [x.owner for x in used if isinstance(x, Tensor)]
    handler = current()
    while handler is not None:
        owners.append(handler)
        handler = handler.outer
    if any(isinstance(x, Recorder) for x in owners) or not any(isinstance(x, Tape) for x in owners):
        return bounds
    first, last = as_tensors("fori_loop", *bounds)
    number = dtypes.promote(first.dtype, last.dtype, op="fori_loop").type
    return number(first), number(last)


@public
def scan(
    f: Callable[[Any, Any], Any],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    """Thread a carry through `carry, y = f(carry, x)` for each x along the leading axis of `xs`.

    Gives the last carry and the stacked ys. `xs` is a tree of tensors, or None with a `length`;
    `reverse` goes from the last to the first (ys keep the places of their xs). `unroll` is a hint
    to the compiler. Reverse mode keeps the state of each step, and products of matrices that are
    not much larger; with `checkpoint(f)` it keeps states alone.

    >>> total, sums = scan(lambda c, x: (c + x, c + x), 0.0, to_tensor([1.0, 2.0, 3.0]))
    >>> total.item(), sums.tolist()
    (6.0, [1.0, 3.0, 6.0])
    """
    return _scan("scan", f, init, xs, length, reverse, unroll)


def _scan(
    op: str,
    f: Callable[..., Any],
    init: Any,
    xs: Any,
    length: Any,
    reverse: bool,
    unroll: Any,
) -> tuple[Any, Any]:
    as_function(op, "f", f)
    leaves, structure = tree_flatten(xs)
    carry = Carry(op, init, leaves)
    sequences = as_operands(op, leaves, carry.leaves)
    steps = _length(op, sequences, tree_paths(xs), length)
    if isinstance(unroll, bool):
        unroll = max(1, steps) if unroll else 1
    if not isinstance(unroll, int) or unroll < 1:
        raise ArgumentError(f"{op}: unroll must be a positive integer or a bool, got {unroll!r}")
    name = _name(f, "f")

    def step(*tensors: Tensor) -> Any:
        count = len(carry.leaves)
        state, x = carry.build(tensors[:count]), tree_unflatten(structure, tensors[count:])
        result = f(state, x)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TreeError(
                f"{op}: {name} must return a pair (carry, y), got {type(result).__name__}"
            )
        return result

    body = carry.record(name, step, rows(sequences), ends=1)
    for position in range(len(carry.leaves), len(body.outputs)):
        body.settle(position, None)
    start = counted(body)
    captures, functions = close(body)
    params = {"length": steps, "reverse": as_flag(op, "reverse", reverse), "unroll": unroll}
    results = perform_scan(captures, functions, (), (*start, *carry.tensors), sequences, params)
    _, last, ys = grouped(results, (len(start), len(carry.leaves)))
    return carry.build(last), tree_unflatten(body.structure.child(1), ys)


def _length(op: str, xs: Sequence[Tensor], paths: Sequence[str], given: Any) -> int:
    sizes = {} if given is None else {"length": as_integer(op, "length", given, low=0)}
    for x, path in zip(xs, paths, strict=True):
        if x.ndim == 0:
            raise ShapeError(f"{op}: xs{path} has no axis to go along ({x.type})")
        sizes[f"xs{path}"] = x.shape[0]
    if not sizes:
        raise ArgumentError(f"{op}: xs holds no tensors, so length must be given")
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ShapeError(f"{op}: leading axes differ in size ({told})")
    return next(iter(sizes.values()))


def _name(function: Any, default: str) -> str:
    name: str = getattr(function, "__name__", default)
    return default if name == "<lambda>" else name


@public
def map(f: Callable[[Any], Any], xs: Any) -> Any:
    """Apply `f` to each element along the leading axis of `xs`, one after the other, and stack.

    `vmap` does it at once; this needs only the memory of one element at a time.

    >>> map(lambda x: x * x, to_tensor([1.0, 2.0, 3.0])).tolist()
    [1.0, 4.0, 9.0]
    """
    as_function("map", "f", f)
    return _scan("map", lambda _, x: ((), f(x)), (), xs, None, False, 1)[1]


@public
def associative_scan(
    fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0
) -> Any:
    """All prefixes of `elems` along an axis, combined by an associative `fn`, in log-many steps.

    `fn(left, right)` combines whole slices at once: it must treat places along `axis` alike. With
    `reverse` it starts at the end, and `left` is the part that lies nearer to the end.

    >>> associative_scan(lambda x, y: x + y, to_tensor([1.0, 2.0, 3.0, 4.0])).tolist()
    [1.0, 3.0, 6.0, 10.0]
    """
    as_function("associative_scan", "fn", fn)
    leaves, structure = tree_flatten(elems)
    tensors = as_operands("associative_scan", leaves)
    if not tensors:
        raise ArgumentError("associative_scan: elems holds no tensors")
    backward = as_flag("associative_scan", "reverse", reverse)
    axes = [normalize_axis("associative_scan", axis, t.ndim) for t in tensors]
    sizes = {t.shape[a] for t, a in zip(tensors, axes, strict=True)}
    if len(sizes) > 1:
        raise ShapeError(f"associative_scan: sizes along the axis differ ({sorted(sizes)})")
    turned = [flip(t, axis=a) for t, a in zip(tensors, axes, strict=True)] if backward else tensors

    def combine(left: Sequence[Tensor], right: Sequence[Tensor]) -> list[Tensor]:
        result = fn(tree_unflatten(structure, left), tree_unflatten(structure, right))
        found, shape = tree_flatten(result)
        if shape != structure:
            raise TreeError(f"associative_scan: fn returns {shape}, elems is {structure}")
        made = as_operands("associative_scan", found)
        for x, y, path in zip(left, made, tree_paths(elems), strict=True):
            if x.type != y.type:
                raise mismatch(
                    f"associative_scan: {path or 'elems'}", [("in", x.type), ("out", y.type)]
                )
        return made

    prefixes = _prefixes(combine, turned, axes)
    if backward:
        prefixes = [flip(t, axis=a) for t, a in zip(prefixes, axes, strict=True)]
    return tree_unflatten(structure, prefixes)


def _prefixes(
    combine: Callable[..., list[Tensor]], elems: Sequence[Tensor], axes: Sequence[int]
) -> list[Tensor]:
    """Combine neighbours, take the prefixes of those, and fill in every other place."""
    size = elems[0].shape[axes[0]]
    if size < 2:
        return list(elems)

    def cut(tensors: Sequence[Tensor], start: int, stop: int, step: int) -> list[Tensor]:
        return [_every(t, a, start, stop, step) for t, a in zip(tensors, axes, strict=True)]

    pairs = combine(cut(elems, 0, size - 1, 2), cut(elems, 1, size, 2))
    odd = _prefixes(combine, pairs, axes)
    even = cut(elems, 0, 1, 1)
    if size > 2:
        filled = combine(cut(odd, 0, (size - 1) // 2, 1), cut(elems, 2, size, 2))
        even = [concat((x, y), axis=a) for x, y, a in zip(even, filled, axes, strict=True)]
    return [_woven(x, y, a) for x, y, a in zip(even, odd, axes, strict=True)]


def _every(x: Tensor, axis: int, start: int, stop: int, step: int) -> Tensor:
    rest = x.shape[axis + 1 :]
    zeros, ones = (0,) * len(rest), (1,) * len(rest)
    length = len(range(start, stop, step))
    return slice_axes(x, (start, *zeros), (length, *rest), (step, *ones))


def _woven(even: Tensor, odd: Tensor, axis: int) -> Tensor:
    """Places 0, 2, 4 … from `even` and 1, 3, 5 … from `odd`, which may have one element less."""
    count = odd.shape[axis]
    pairs = stack((_every(even, axis, 0, count, 1), odd), axis=axis + 1)
    woven = reshape(pairs, (*odd.shape[:axis], 2 * count, *odd.shape[axis + 1 :]))
    if even.shape[axis] == count:
        return woven
    return concat((woven, _every(even, axis, count, count + 1, 1)), axis=axis)


__all__ = ["associative_scan", "fori_loop", "map", "scan", "while_loop"]
