"""What a communicator promises: collectives of NumPy arrays between processes.

Every rank of a group calls the same collectives in the same order. A rank that comes with another
one, or does not come at all, is named in an error on every rank that waits for it. After such an
error a communicator is of no further use; `shrink` makes a new one of the ranks that are left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from weft.core.common.types import Array, DType, Shape, TensorType

Members: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Reducer:
    """`all_reduce` of arrays of one type, for who does it again and again."""

    run: Callable[[Array, Array | None], Array]
    """Takes the array and, if there is one, the memory of the result."""
    record: int = 0
    """Where native code finds all it needs to do this without Python; 0 if it cannot be done so."""
    abandon: Callable[[int], None] | None = None
    """Takes the address of a result whose sum native code began and nobody will end."""


class Exposed(Protocol):
    """Arrays of every member, for all members to read."""

    def places(self) -> list[list[int]]:
        """For each array, the address of each member's; a rank writes to its own, then meets."""

    def meet(self) -> None:
        """Return when every member has written its arrays; they can be read until the next time."""


class Communicator(ABC):
    """A numbered set of processes. `members` are the ranks that take part, in an agreed order.

    Arrays may be of any dtype of weft and in any memory order; results are row-major arrays, new
    ones unless `out` is given.
    """

    rank: int
    """The number of this process."""
    size: int
    """How many processes there are."""
    timeout: float
    """Seconds after which a collective raises and names the ranks that have not come."""
    origin: Callable[[], str] | None = None
    """Gives the line that a mismatch shows for this rank; by default where user code called."""

    @abstractmethod
    def all_gather(self, array: Array, members: Members, shapes: Shapes = ()) -> list[Array]:
        """The arrays of all members, by position; dtype and number of axes must agree.

        Members who say which `shapes` all arrays have must agree on those, too.
        """

    @abstractmethod
    def all_reduce(
        self, array: Array, kind: str, members: Members, out: Array | None = None
    ) -> Array:
        """The fold ((a0 ∘ a1) ∘ a2)… in the order of members: the same bits on each of them.

        `kind` is `sum`, `prod`, `max` or `min`. Each step rounds to the array's dtype. The result
        is in `out` if that is given: a row-major array of the same shape and dtype, other memory.
        """

    @abstractmethod
    def reducer(
        self, kind_of_array: TensorType, kind: str, members: Members, parts: Sequence[Shape] = ()
    ) -> Reducer:
        """`all_reduce` of arrays of one type; members must agree on the parts it is made of."""

    def exposes(self, types: Sequence[TensorType], members: Members) -> bool:
        """Whether members can read such arrays of each other where they lie."""
        return False

    def exposure(self, types: Sequence[TensorType], members: Members) -> Exposed:
        """Memory for arrays of these types that all members read; they ask for it together."""
        raise AssertionError("nothing is exposed here")

    @abstractmethod
    def reduce_scatter(
        self, array: Array, kind: str, axis: int, members: Members, out: Array | None = None
    ) -> Array:
        """This rank's piece of what `all_reduce` gives, cut along `axis`.

        Pieces are as even as can be: of n entries among p members, the first n % p have one more.
        """

    @abstractmethod
    def all_to_all(
        self, pieces: Sequence[Array], members: Members, shapes: Shapes = ()
    ) -> list[Array]:
        """Give piece j to members[j]; the result has one piece from each of them, by position.

        `shapes` are those that the pieces for this rank must have, if it says so.
        """

    @abstractmethod
    def exchange(
        self,
        sends: Sequence[tuple[int, Array]],
        receives: Sequence[tuple[int, Shape, DType]],
    ) -> list[Array]:
        """Send arrays to ranks, and receive the arrays that were announced, in that order.

        Two ranks that share several arrays send and receive them in the same order. Both ends
        take part at the same time: an exchange returns when its partners have come.
        """

    @abstractmethod
    def broadcast(self, array: Array | None, root: int, members: Members) -> Array:
        """The array of rank `root` on every member; the others pass None."""

    @abstractmethod
    def barrier(self, members: Members | None = None) -> None:
        """Return when all members (all ranks, if none are named) have come here."""

    @abstractmethod
    def check(self, signature: str) -> None:
        """Raise unless every rank presents the same text."""

    @abstractmethod
    def shrink(self) -> Communicator:
        """A new communicator of the ranks that are alive, renumbered in their old order.

        Every one of them must call this, and none may use the old communicator again.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave: ranks that wait for this one are told so."""
