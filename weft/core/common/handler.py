"""The interpreter stack. An op is an effect; the innermost handler gives it meaning.

`perform` hands an op to the innermost handler; a handler's rules run in the handler outside it. At
the bottom stands whatever the layer above installed with `install_bottom`: it runs or records the
op. The stack is context-local: threads start clean, asyncio tasks inherit it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, TypeAlias

Perform: TypeAlias = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

_current: ContextVar[Handler | None] = ContextVar("weft_handler", default=None)
current: Callable[[], Handler | None] = _current.get
_bottom: list[Perform] = []


class Handler(ABC):
    """Give meaning to ops while installed: `with Grad() as handler: …`.

    `outer` is the handler that was current when this one was made. A handler owns the tensors it
    wraps; what it keeps for each is that tensor's payload.
    """

    label: str = ""  # what users call the transform; the class's name if empty
    ambient: bool = False  # handles ops on its tensors even when it is not installed
    transparent: bool = False  # owns no tensors: assignments inside are assignments outside
    differentiates: bool = False  # its tensors carry derivatives, which reading them would lose
    constant: bool = False  # results made inside carry no derivative
    hides_axis: bool = False  # whether a payload has one leading axis more than the tensor shows
    draws_apart: bool = True  # whether random numbers differ along such an axis

    def __init__(self) -> None:
        self.outer = current()

    @abstractmethod
    def handle(self, op: Any, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Give `op` its meaning here; the result is one tensor or a tuple of them."""

    @property
    def title(self) -> str:
        """What messages call the transform."""
        return self.label or type(self).__name__.lower()

    def outside(self, op: Any, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Perform `op` in the handler outside this one."""
        if self.outer is None:
            made = op.directly(*args)
            if made is not None:
                return made
        with installed(self.outer):
            return perform(op, args, params)

    def turn(self) -> Any:
        """The number of the turn, a tensor, if what happens inside is recorded for every turn."""
        return None

    def primal(self, payload: Any) -> Any:
        """The tensor of the handler outside that stands behind `payload`, or None."""
        return None

    def read(self, payload: Any) -> Any:
        """The tensor outside whose value is this one's, or an error that says why there is none."""
        return self.primal(payload)

    def is_realized(self, payload: Any) -> bool:
        """Whether the value behind `payload` has been computed already."""
        return False

    def values(self, payload: Any) -> tuple[Any, ...]:
        """The tensors outside every handler whose data make up this one's value, if there are."""
        outside = self.primal(payload)
        if outside is None:
            return ()
        impl = outside._impl
        found: tuple[Any, ...] = impl.owner.values(impl.payload) if impl.owner else (outside,)
        return found

    def __enter__(self) -> Handler:
        entered = False
        try:
            _current.set(self)
            entered = True
        finally:
            if not entered:  # an interrupt came right after: no block has begun that would end
                _current.set(self.outer)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _current.set(self.outer)


class Blocks(ABC):
    """Opens blocks, each with a handler of its own: in each other, in threads, in generators.

    Those of generators end in any order, so a handler may stand under others when its block ends.
    """

    def __init__(self) -> None:
        self._open: set[Handler] = set()

    @abstractmethod
    def handler(self) -> Handler:
        """The handler of a new block."""

    def __enter__(self) -> None:
        made = self.handler()
        self._open.add(made)
        made.__enter__()

    def __exit__(self, *raised: Any) -> None:
        above, found = None, _current.get()
        while found is not None and found not in self._open:
            above, found = found, found.outer
        if found is None:  # a generator has gone to another thread
            return
        self._open.discard(found)
        if above is None:
            _current.set(found.outer)
        else:
            above.outer = found.outer


class installed:
    """Run a block under `handler` (or under none): how a rule runs in the handler outside."""

    __slots__ = ("_handler", "_token")

    def __init__(self, handler: Handler | None) -> None:
        self._handler = handler

    def __enter__(self) -> None:
        self._token: Token[Handler | None] = _current.set(self._handler)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def is_running(handler: Handler | None) -> bool:
    """Whether `handler` is on the stack here, so that its tensors may be used."""
    found = _current.get()
    while found is not None and found is not handler:
        found = found.outer
    return found is handler


def loses_derivative(owner: Handler | None) -> bool:
    """Whether a derivative is wanted here of the tensors of `owner`, which numbers do not carry."""
    if owner is None or not owner.differentiates:
        return False
    handler = _current.get()
    return not (handler is not None and handler.constant)


def install_bottom(perform: Perform) -> None:
    """Say what an op means when no handler is installed."""
    _bottom[:] = [perform]


def perform(op: Any, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """Perform the effect: hand `op` to the innermost handler, or to the bottom."""
    handler = _current.get()
    if handler is None:
        return _bottom[0](op, args, params)
    return handler.handle(op, args, params)
