"""Read and write at computed positions: the primitives under indexing, take and embedding.

The operand's core is `indexed` axes that positions address, then `rest` axes taken whole. Positions
are integers of shape `… picks… k`, one row of k numbers for each pick. Modes say what a position
out of range means: `raise` (negative ones count from the end), `clip` or `wrap`. Any other word
says what positions are to the user, such as `embedding: ids`: errors begin with it, and negative
positions are out of range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any, ClassVar

import numpy as np

from weft.core.autograd.tape import Addend
from weft.core.common import dtypes
from weft.core.common.factors import Factors
from weft.core.common.parameters import as_choice
from weft.core.common.slots import FUNCTIONS
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.core.tensor.tensor import Tensor
from weft.errors import IndexingError
from weft.ops.base import Cost, Example, Linear, Operation, Tangents, call
from weft.ops.exact import orders_zeros
from weft.ops.families import broadcast_shape, cast

OUT_OF_RANGE = "index {index} is out of range for an axis of size {size}"
FEW = 16  # times fewer elements are picked than there are: their cotangents are added in place
_SHORT = 4  # elements of slices that NumPy copies no faster than one by one
_EXAMPLES = (
    Example({"indexed": 1, "rest": 0, "picks": 1, "mode": "wrap"}, ((4,), (6, 1), (6,))),
    Example({"indexed": 1, "rest": 1, "picks": 2, "mode": "clip"}, ((4, 3), (2, 3, 1), (2, 3, 3))),
    Example({"indexed": 2, "rest": 0, "picks": 1, "mode": "raise"}, ((4, 5), (6, 2), (6,))),
)


def _names(letter: str, count: int) -> str:
    return " ".join(f"{letter}{k}" for k in range(count))


def flat_positions(
    op: str, indices: Array, sizes: Shape, mode: str, fault: str = OUT_OF_RANGE
) -> Array:
    """Row-major positions in the indexed axes, made legal as `mode` says."""
    flat: Array = np.zeros(indices.shape[:-1], np.int64)
    who = op if mode in ("raise", "clip", "wrap") else mode
    for k, size in enumerate(sizes):
        i = indices[..., k].astype(np.int64, copy=False)
        if not size and i.size:
            raise IndexingError(f"{who}: index {int(i.flat[0])} into an axis of size 0")
        if mode == "wrap":
            i = i % max(size, 1)
        elif mode == "clip":
            i = i.clip(0, max(size - 1, 0))
        else:
            legal = (i >= (-size if mode == "raise" else 0)) & (i < size)
            if not legal.all():
                bad = int(i[~legal].flat[0])
                text = fault.format(index=bad, size=size, last=size - 1)
                raise IndexingError(f"{who}: {text}")
            i = np.where(i < 0, i + size, i)
        flat = flat * size + i if k else i
    return flat


class Gather(Operation):
    """Pick slices of x at positions."""

    fault: ClassVar[str] = OUT_OF_RANGE  # what is wrong with a position out of range
    linear = Linear.JOINTLY
    constants = (1,)
    kernel_from = 1 << 16  # positions
    work = 0
    widen = False
    examples = _EXAMPLES
    sample = "fif"

    def is_large(self, x: Any, indices: Any, *, rest: int, **params: Any) -> bool:
        short = prod(x.shape[len(x.shape) - rest :]) <= _SHORT
        return bool(short and indices.size >= self.kernel_from)

    def index(
        self, x: TensorType, indices: TensorType, *, indexed: int, rest: int, picks: int, mode: str
    ) -> Factors:
        s, r, n = _names("s", indexed), _names("r", rest), _names("n", picks)
        text = f"... {s} {r}, ... {n} k -> ... {n} {r}"
        return Factors.parse(text, (x.rank, indices.rank), whole=f"{s} k")

    def eval(
        self, x: Array, indices: Array, *, indexed: int, rest: int, picks: int, mode: str
    ) -> Array:
        cut = x.ndim - indexed - rest
        lead_x, sizes, slices = (
            x.shape[:cut],
            x.shape[cut : cut + indexed],
            x.shape[cut + indexed :],
        )
        lead_i = indices.shape[: indices.ndim - picks - 1]
        flat = flat_positions(self.name, indices, sizes, mode, self.fault)
        table = x.reshape(lead_x + (prod(sizes),) + slices)
        if not lead_i or not lead_x:
            taken: Array = np.take(table, flat, axis=cut)
            return taken
        lead = broadcast_shape(self.name, lead_x, lead_i)
        points, count = flat.shape[len(lead_i) :], prod(lead)
        core = table.shape[cut:]
        table = np.broadcast_to(table, lead + core).reshape((count, *core))
        rows = np.broadcast_to(flat, lead + points).reshape((count, prod(points)))
        found: Array = table[np.arange(count)[:, None], rows]
        return found.reshape(lead + points + slices)

    def at(
        self,
        s: Any,
        index: Any,
        read: Any,
        x: TensorType,
        indices: TensorType,
        *,
        indexed: int,
        rest: int,
        picks: int,
        mode: str,
    ) -> Any:
        cut = len(index) - rest
        lead = tuple(index[: cut - picks])
        sizes = x.shape[len(x.shape) - indexed - rest : len(x.shape) - rest]
        source = tuple(
            bounded(s, read(1, (*index[:cut], k)), size, mode) for k, size in enumerate(sizes)
        )
        return read(0, (*lead, *source, *index[cut:]))

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Any:
        x, indices = primals
        lead = ct.shape[: ct.ndim - params["picks"] - params["rest"]]
        core = x.shape[x.ndim - params["indexed"] - params["rest"] :]

        def onto(total: Tensor | None) -> Tensor:
            if total is not None and total.sharding.mesh is None:
                return call(scatter_add_op, (total, indices, ct), params)
            zeros = FUNCTIONS["zeros"](lead + core, dtype=ct.dtype, device=ct.device)
            found: Tensor = call(scatter_add_op, (zeros, indices, ct), params)
            return found if total is None else total + found  # whose layout need not change

        few = prod(lead + core) >= FEW * ct.size
        return Addend(lead + core, onto) if few else onto(None), None


def checked_mode(op: str, mode: str, modes: tuple[str, ...] = ("raise", "clip", "wrap")) -> str:
    """`mode` itself, or an error that lists the modes there are."""
    as_choice(op, "mode", mode, modes)
    return mode


def checks_positions(params: Mapping[str, Any], sizes: Shape) -> bool:
    """Whether a position may be an error: in an axis of size 0 there is none that is legal."""
    return params["mode"] not in ("clip", "wrap") or 0 in sizes


def bounded(s: Any, i: Any, size: int, mode: str) -> Any:
    """A position made legal, in scalar instructions."""
    i = s.cast(i, np.int64)
    if mode == "wrap":
        return s.rem(s.add(s.rem(i, size), size), size)
    if mode == "clip":
        return s.min(s.max(i, 0), size - 1)
    if mode != "raise":
        return i
    return s.select(s.less(i, 0), s.add(i, size), i)


class Scatter(Operation):
    """Combine updates into x at positions; updates that meet are combined in order."""

    constants = (1,)
    kernel_from = 1 << 14
    widen = False
    examples = _EXAMPLES
    sample = "fif"
    apply: ClassVar[Any] = None  # a NumPy ufunc; None assigns

    def is_exact(self, *found: DType, **params: Any) -> bool:
        chooses = self.combine in ("min", "max") and dtypes.is_floating(found[0])
        return not chooses or orders_zeros(found[0])

    def index(
        self,
        x: TensorType,
        indices: TensorType,
        updates: TensorType,
        *,
        indexed: int,
        rest: int,
        picks: int,
        mode: str,
    ) -> Factors:
        s, r, n = _names("s", indexed), _names("r", rest), _names("n", picks)
        text = f"... {s} {r}, ... {n} k, ... {n} {r} -> ... {s} {r}"
        whole = f"{s} k {n}"
        return Factors.parse(text, (x.rank, indices.rank, updates.rank), whole=whole)

    def eval(
        self,
        x: Array,
        indices: Array,
        updates: Array,
        *,
        indexed: int,
        rest: int,
        picks: int,
        mode: str,
    ) -> Array:
        core = x.shape[x.ndim - indexed - rest :]
        sizes, slices = core[:indexed], core[indexed:]
        flat = flat_positions(self.name, indices, sizes, mode)
        points = flat.shape[flat.ndim - picks :]
        lead = broadcast_shape(
            self.name,
            x.shape[: x.ndim - len(core)],
            flat.shape[: flat.ndim - picks],
            updates.shape[: updates.ndim - picks - rest],
        )
        out = np.array(np.broadcast_to(x, lead + core), order="C", copy=True)
        values = np.broadcast_to(updates, lead + points + slices)
        if flat.ndim == picks:  # the same places in every batch: whole rows move at once
            table = out.reshape((*lead, prod(sizes), *slices))
            values = values.reshape((*lead, flat.size, *slices))
            axis = len(lead)
            self._write(np.moveaxis(table, axis, 0), flat.ravel(), np.moveaxis(values, axis, 0))
            return out
        count = prod(lead)
        rows = np.broadcast_to(flat, lead + points).reshape((count, prod(points)))
        rows = rows + prod(sizes) * np.arange(count)[:, None]
        table = out.reshape((count * prod(sizes), *slices))
        self._write(table, rows.ravel(), values.reshape((rows.size, *slices)))
        return out

    def cost(self, *types: TensorType, **params: Any) -> Cost:
        return replace(super().cost(*types, **params), flops=types[2].size)

    def _write(self, table: Array, rows: Array, values: Array) -> None:
        if self.apply is None:
            table[rows] = values
        else:
            self.apply.at(table, rows, values)

    def into(
        self,
        s: Any,
        index: Any,
        read: Any,
        x: TensorType,
        indices: TensorType,
        updates: TensorType,
        *,
        indexed: int,
        rest: int,
        picks: int,
        mode: str,
    ) -> Any:
        cut = len(index) - rest
        sizes = x.shape[len(x.shape) - indexed - rest : len(x.shape) - rest]
        target = tuple(
            bounded(s, read(1, (*index[:cut], k)), size, mode) for k, size in enumerate(sizes)
        )
        return (*index[: cut - picks], *target, *index[cut:]), read(2, index)


class ScatterAdd(Scatter):
    """Add updates to x at positions."""

    linear = Linear.JOINTLY
    apply = np.add
    base = 0

    def sharding_rule(self, *types: Any, **params: Any) -> Factors:
        rule = self.index(*types, **params)
        picks = _names("n", params["picks"]).split()
        return replace(rule, whole=rule.whole - set(picks))  # each device adds its own updates

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return ct, None, pick(ct, primals[1], params)


class ScatterSet(Scatter):
    """Replace elements of x at positions; of updates that meet, the last one stays."""

    linear = Linear.JOINTLY
    combine = "last"

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        x, indices, updates = primals
        core = updates.shape[updates.ndim - params["picks"] - params["rest"] :]
        hole = FUNCTIONS["zeros"](core, dtype=ct.dtype, device=ct.device)
        found = pick(ct, indices, params)
        if prod(core[: params["picks"]]) > 1:
            found = FUNCTIONS["where"](self._wins(x, indices, core, params), found, 0)
        return call(self, (ct, indices, hole), params), None, found

    def _wins(self, x: Tensor, indices: Tensor, core: Shape, params: Any) -> Tensor:
        """Which updates are the last at their position."""
        cut, rest = x.ndim - params["indexed"] - params["rest"], params["rest"]
        points = core[: params["picks"]]
        number = FUNCTIONS["reshape"](FUNCTIONS["arange"](prod(points), device=x.device), points)
        full = x.shape[cut : x.ndim - rest]
        empty = FUNCTIONS["zeros"](full, dtype=number.dtype, device=x.device)
        alone = {**params, "rest": 0}
        last = pick(call(self, (empty, indices, number), alone), indices, alone)
        wins: Tensor = FUNCTIONS["reshape"](last == number, (*last.shape, *(1,) * rest))
        return wins


class ScatterExtremum(Scatter):
    """Base of scatter_max and scatter_min: elements that tie share the derivative."""

    def _shares(self, primals: Any, out: Any, params: Any) -> tuple[Tensor, Tensor]:
        x, indices, updates = primals
        mine = cast(x == out, x.dtype)
        theirs = cast(updates == pick(out, indices, params), x.dtype)
        count = call(scatter_add_op, (mine, indices, theirs), params)
        return mine / count, theirs / pick(count, indices, params)

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        mine, theirs = self._shares(primals, out, params)
        zeros = FUNCTIONS["zeros_like"]
        x, _, updates = (
            zeros(p) if t is None else t for p, t in zip(primals, tangents, strict=True)
        )
        return call(scatter_add_op, (x * mine, primals[1], updates * theirs), params)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        mine, theirs = self._shares(primals, out, params)
        return ct * mine, None, pick(ct, primals[1], params) * theirs


class ScatterMax(ScatterExtremum):
    """The larger of x and the updates at positions."""

    combine = "max"
    apply = np.maximum


class ScatterMin(ScatterExtremum):
    """The smaller of x and the updates at positions."""

    combine = "min"
    apply = np.minimum


class ScatterMul(Scatter):
    """Multiply x by updates at positions."""

    combine = "mul"
    apply = np.multiply

    def _others(self, primals: Any, out: Any, params: dict[str, Any]) -> Tensor:
        """For each update, the product of x and all other updates at its position.

        It is the whole product divided by the update. Zeros are taken out one by one instead: two
        of them, since where there are more, first and second derivatives are 0.
        """
        x, indices, updates = primals
        where = FUNCTIONS["where"]
        quotient = pick(out, indices, params) / where(updates == 0, 1, updates)
        result: Tensor = where(updates == 0, 0, quotient)
        taken: Any = 1
        for _ in range(2):
            first = self._first_zeros(x, indices, updates, params)
            zeros = call(
                scatter_add_op,
                (FUNCTIONS["zeros_like"](x), indices, where(first, updates, 0)),
                params,
            )
            updates = where(first, 1, updates)
            left = pick(call(self, (x, indices, updates), params), indices, params)
            result = where(first, taken * left, result)
            taken = taken * pick(zeros, indices, params)
        return result

    def _first_zeros(self, x: Tensor, indices: Tensor, updates: Tensor, params: Any) -> Tensor:
        """Which updates are the first zeros at their positions."""
        rest = params["rest"]
        points = updates.shape[updates.ndim - params["picks"] - rest : updates.ndim - rest]
        count = prod(points)
        number = FUNCTIONS["arange"](count, device=x.device)
        number = FUNCTIONS["reshape"](number, (*points, *(1,) * rest))
        none = FUNCTIONS["full_like"](x, count, dtype=number.dtype)
        found = FUNCTIONS["where"](updates == 0, number, count)
        least = call(scatter_min_op, (none, indices, found), params)
        is_first: Tensor = pick(least, indices, params) == number
        return is_first

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        _, indices, updates = primals
        dx, _, du = tangents
        total = None
        if dx is not None:
            total = call(self, (dx, indices, updates), params)
        if du is not None:
            part = self._others(primals, out, params) * du
            zeros = FUNCTIONS["zeros_like"](out)
            term = call(scatter_add_op, (zeros, indices, part), params)
            total = term if total is None else total + term
        return total

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        _, indices, updates = primals
        scaled = pick(ct, indices, params) * self._others(primals, out, params)
        return call(self, (ct, indices, updates), params), None, scaled


gather_op = Gather()
scatter_set_op, scatter_add_op, scatter_mul_op = ScatterSet(), ScatterAdd(), ScatterMul()
scatter_max_op, scatter_min_op = ScatterMax(), ScatterMin()
SCATTERS = {
    "set": scatter_set_op,
    "add": scatter_add_op,
    "mul": scatter_mul_op,
    "max": scatter_max_op,
    "min": scatter_min_op,
}


def pick(x: Tensor, indices: Tensor, params: dict[str, Any]) -> Tensor:
    """Gather with a scatter's parameters."""
    return call(gather_op, (x, indices), params)


def gathered(x: Tensor, indices: Tensor, indexed: int, rest: int, mode: str) -> Tensor:
    """Gather on logical tensors: all axes of `indices` but the last are picks."""
    params = {"indexed": indexed, "rest": rest, "picks": indices.ndim - 1, "mode": mode}
    return call(gather_op, (x, indices), params)


__all__ = ["DType", "Gather", "Scatter", "gathered", "pick"]
