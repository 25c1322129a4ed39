"""See what happens: `debug` reports every op, `debug_nans` stops at the first NaN.

Both are handlers and may stand anywhere in a composition. `debug` also reports the cotangents of a
backward pass that runs after it has ended, by leaving a probe behind each op.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ContextDecorator
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.handler import Blocks, Handler, installed, perform
from weft.core.common.parameters import as_function
from weft.core.common.slots import public
from weft.core.common.source import Position, describe, keep_positions, user_position
from weft.core.common.types import Array, TensorType
from weft.core.tensor.tensor import Tensor
from weft.errors import NotFiniteError
from weft.ops.base import Linear, Operation, Tangents, call
from weft.ops.communication.mesh import MESH

Sink = Callable[["Report"], Any]


@dataclass(frozen=True, slots=True)
class Report:
    """One op as `debug` saw it. Statistics are None where only shapes are known."""

    op: str
    phase: str  # forward or backward
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    params: dict[str, Any]
    position: Position | None
    statistics: dict[str, float] | None

    def __str__(self) -> str:
        operands = ", ".join(map(str, self.operands))
        results = ", ".join(map(str, self.results))
        params = "".join(f", {k}={v!r:.40}" for k, v in self.params.items())
        numbers = "".join(f" {k}={v:.4g}" for k, v in (self.statistics or {}).items())
        mark = "" if self.phase == "forward" else f"[{self.phase}] "
        where = describe(self.position)
        return f"{mark}{self.op}({operands}{params}) -> {results}{numbers}  # {where}"


def peek(x: Tensor) -> Array | None:
    """The numbers behind a tensor, hidden batch axes included; None where there are none yet."""
    while (owner := x._impl.owner) is not None and owner is not MESH:
        outside = owner.primal(x._impl.payload)
        if outside is None:
            return None
        x = outside
    return x.host() if owner is None or MESH.holds(x._impl.payload) else None


def statistics(x: Tensor) -> dict[str, float] | None:
    """Mean, deviation, range, NaN count and bytes of a tensor's numbers."""
    array = peek(x)
    if array is None:
        return None
    numbers: dict[str, float] = {"bytes": float(array.nbytes)}
    if array.size and not dtypes.is_complex(array.dtype):
        wide = array.astype(np.float64)
        missing = np.isnan(wide)
        numbers["nan"] = float(missing.sum())
        if not missing.all():
            kept = wide[~missing]
            with np.errstate(all="ignore"):
                spread = float(kept.std())
            numbers |= {"mean": float(kept.mean()), "std": spread}
            numbers |= {"min": float(kept.min()), "max": float(kept.max())}
    return numbers


class Debug(Handler):
    """Reports each op after it was performed outside."""

    transparent = True

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self.sink = sink

    def handle(self, op: Any, args: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
        position = user_position(2)
        with installed(self.outer):
            result = perform(op, args, params)
            outs = result if isinstance(result, tuple) else (result,)
            types = tuple(a.type for a in args), tuple(o.type for o in outs)
            found = statistics(outs[0])
            self.sink(Report(op.name, "forward", *types, params, position, found))
            probed = tuple(self._probe(op, x, position) for x in outs)
        return probed if isinstance(result, tuple) else probed[0]

    def _probe(self, op: Any, x: Tensor, position: Position | None) -> Tensor:
        if self.outer is None or x.owner is None or not dtypes.is_inexact(x.dtype):
            return x  # nobody outside could ask for a derivative
        tag = Tag(op.name, position, self.sink)
        return call(probe_op, (x,), {"tag": tag})


@dataclass(frozen=True, eq=False)
class Tag:
    """What a probe knows: whose result it watches, and whom to tell."""

    op: str
    position: Position | None
    sink: Sink

    def tell(self, ct: Tensor) -> None:
        """Report a cotangent that arrives at this op."""
        report = Report(
            self.op, "backward", (ct.type,), (ct.type,), {}, self.position, statistics(ct)
        )
        self.sink(report)


class Probe(Operation):
    """The same value; reports the cotangent that flows back through it."""

    factors = "... -> ..."
    linear = Linear.JOINTLY
    work = 0
    widen = False
    view = True
    reasons = {"examples": "takes a tag, which is made at the call"}

    def eval(self, x: Array, *, tag: Tag) -> Array:
        return x

    def body(self, s: Any, x: Any, *, tag: Tag) -> Any:
        return x

    def vjp(self, primals: Any, out: Any, ct: Any, *, tag: Tag) -> Tangents:
        tag.tell(ct)
        return (ct,)


probe_op = Probe()


@public
def debug(
    function: Callable[..., Any] | None = None, *, sink: Sink | list[Any] | None = None
) -> Callable[..., Any]:
    """The same function, printing each op with its arguments, statistics and the user's line.

    `sink` collects instead: a list that gets a `Report` for each op, or a function called with it.
    """
    if function is None:
        return lambda f: debug(f, sink=sink)
    as_function("debug", "function", function)
    tell: Sink = sink.append if isinstance(sink, list) else print if sink is None else sink
    as_function("debug", "sink", tell)

    @wraps(function)
    def watched(*args: Any, **keywords: Any) -> Any:
        with Debug(tell):
            return function(*args, **keywords)

    return watched


class DebugNans(Handler):
    """Raises as soon as an op gives a NaN."""

    transparent = True

    def handle(self, op: Any, args: tuple[Tensor, ...], params: dict[str, Any]) -> Any:
        position = user_position(2)
        with installed(self.outer):
            result = perform(op, args, params)
            for x in result if isinstance(result, tuple) else (result,):
                self._check(op, args, x, position)
        return result

    def _check(self, op: Any, args: Any, x: Tensor, position: Position | None) -> None:
        if not dtypes.is_inexact(x.dtype) or (position is not None and position.spare):
            return
        owner = x._impl.owner
        parts = (x,) if owner is None else owner.values(x._impl.payload)
        arrays = [part.host() for part in parts]
        count = sum(int(np.isnan(array).sum()) for array in arrays)
        if count:
            size = sum(array.size for array in arrays)
            operands = ", ".join(str(a.type) for a in args)
            raise NotFiniteError(
                f"{op}: {count} of {size} elements are NaN (operands {operands})"
                f" at {describe(position)}"
            )


class NanBlocks(Blocks, ContextDecorator):
    """Blocks that stop at the first NaN; a decorator, too."""

    def handler(self) -> Handler:
        return DebugNans()

    def __enter__(self) -> None:
        keep_positions(1)
        super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        keep_positions(-1)


@public
def debug_nans() -> NanBlocks:
    """`with debug_nans():` — raise `NotFiniteError` at the first NaN, naming op and line.

    It looks into backward passes and mapped functions that run inside the block; a backward op is
    put down to the line of its forward op. Where a choice is mapped over, each branch is looked at
    in the rows that take it: a `where` finds what an op has made there.
    """
    return NanBlocks()
