"""The communicator of a process that is alone: every collective gives back what was put in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.config import settings
from weft.core.common.dtypes import as_dtype
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.errors import ArgumentError, AxisError, RankMismatchError
from weft.runtime.communicator.fold import fold_function
from weft.runtime.communicator.interface import Communicator, Members, Reducer, Shapes


def row_major(array: Array, op: str, out: Array | None = None) -> Array:
    """The same values in a new array, or in `out`; a dtype that weft does not have is an error."""
    as_dtype(array.dtype, op=op)
    if out is None:
        return np.array(array, order="C", copy=True)
    out[...] = array
    return out


class LocalCommunicator(Communicator):
    """One process, rank 0."""

    def __init__(self) -> None:
        self.rank = 0
        self.size = 1
        self.timeout = float(settings.rank_timeout)

    def all_gather(self, array: Array, members: Members, shapes: Shapes = ()) -> list[Array]:
        _check_alone(members, "all_gather")
        return [row_major(array, "all_gather")]

    def all_reduce(
        self, array: Array, kind: str, members: Members, out: Array | None = None
    ) -> Array:
        _check_alone(members, "all_reduce")
        fold_function(kind, "all_reduce")
        return row_major(array, "all_reduce", out)

    def reducer(
        self, kind_of_array: TensorType, kind: str, members: Members, parts: Sequence[Shape] = ()
    ) -> Reducer:
        return Reducer(lambda array, out: self.all_reduce(array, kind, members, out))

    def reduce_scatter(
        self, array: Array, kind: str, axis: int, members: Members, out: Array | None = None
    ) -> Array:
        _check_alone(members, "reduce_scatter")
        fold_function(kind, "reduce_scatter")
        check_axis(axis, array.ndim)
        return row_major(array, "reduce_scatter", out)

    def all_to_all(
        self, pieces: Sequence[Array], members: Members, shapes: Shapes = ()
    ) -> list[Array]:
        _check_alone(members, "all_to_all")
        if len(pieces) != 1:
            raise ArgumentError(f"all_to_all: {len(pieces)} pieces for 1 member")
        return [row_major(piece, "all_to_all") for piece in pieces]

    def exchange(
        self,
        sends: Sequence[tuple[int, Array]],
        receives: Sequence[tuple[int, Shape, DType]],
    ) -> list[Array]:
        for rank in [send[0] for send in sends] + [receive[0] for receive in receives]:
            if rank != 0:
                raise ArgumentError(f"exchange: there is no rank {rank} (1 rank)")
        check_own_messages([array for _, array in sends], [r[1:] for r in receives], 0)
        return [row_major(array, "exchange") for _, array in sends]

    def broadcast(self, array: Array | None, root: int, members: Members) -> Array:
        _check_alone(members, "broadcast")
        if root != 0:
            raise ArgumentError(f"broadcast: there is no rank {root} (1 rank)")
        if array is None:
            raise ArgumentError("broadcast: the root must give an array, got None")
        return row_major(array, "broadcast")

    def barrier(self, members: Members | None = None) -> None:
        if members is not None:
            _check_alone(members, "barrier")

    def check(self, signature: str) -> None:
        pass

    def shrink(self) -> Communicator:
        return LocalCommunicator()

    def close(self) -> None:
        pass


def check_axis(axis: int, rank: int) -> None:
    """Raise unless `reduce_scatter` can cut along this axis."""
    if not 0 <= axis < rank:
        raise AxisError(f"reduce_scatter: axis {axis} is not one of the array's {rank} axes")


def check_own_messages(
    sent: Sequence[Array], expected: Sequence[tuple[Shape, DType]], rank: int
) -> None:
    """Raise unless what a rank sends to itself is what it expects from itself."""
    given = [(array.shape, array.dtype) for array in sent]
    wanted = [(tuple(shape), np.dtype(dtype)) for shape, dtype in expected]
    if given != wanted:
        raise RankMismatchError(
            f"exchange: rank {rank} sends itself {given}, but expects {wanted}", (rank,)
        )


def _check_alone(members: Members, op: str) -> None:
    if tuple(members) != (0,):
        raise ArgumentError(f"{op}: members {members} of 1 rank; there is only rank 0")
