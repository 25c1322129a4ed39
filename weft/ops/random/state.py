"""Keys and generators: where random numbers come from.

A key is a tensor of two 32-bit words; a draw is a function of (key, position) alone, so equal keys
give equal draws. `split` and `fold_in` make new keys of a key. A `Generator` hands out fresh keys
by counting; the global one starts from seed 0, so a program repeats itself until it chooses a seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import ContextVar, Token
from math import prod
from operator import index as as_int
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import Layers, current_device
from weft.core.common.device import Device, as_device
from weft.core.common.handler import Handler, current, installed
from weft.core.common.locks import lock_for
from weft.core.common.types import Shape
from weft.core.tensor.convert import to_tensor, wrap
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, MutationError, ShapeError
from weft.ops import families
from weft.ops.base import call
from weft.ops.creation import arange, shape_tuple
from weft.ops.placement import to_device
from weft.ops.random.bits import fold_in_op
from weft.ops.view.join import concat, stack

_WORD = 1 << 32
_HINT = "\nhint: wf.random.key(seed) makes a key of an integer"


def key(seed: Any, *, device: Any = None) -> Tensor:
    """A key made of an integer: a uint32 tensor of shape (2,), the same for equal seeds.

    Seeds from -2⁶³ to 2⁶⁴ - 1 are taken modulo 2⁶⁴; a tensor seed must be an integer without axes.
    """
    if isinstance(seed, Tensor):
        return _key_of_tensor(seed)
    place = current_device() if device is None else as_device(device)
    try:
        number = as_int(seed)
    except TypeError:
        raise DTypeError(f"key: the seed must be an integer, got {seed!r:.60}") from None
    if not -(1 << 63) <= number < 1 << 64:
        raise ArgumentError(f"key: the seed must fit 64 bits, got {number}")
    return wrap(np.array(divmod(number % (1 << 64), _WORD), np.uint32), place)


def _key_of_tensor(seed: Tensor) -> Tensor:
    if not dtypes.is_integer(seed.dtype) or seed.shape != ():
        raise DTypeError(
            f"key: the seed must be an integer without axes, got {seed.type}"
            "\nhint: wf.vmap(wf.random.key)(seeds) makes several keys"
        )
    wide = families.cast(families.cast(seed, dtypes.int64), dtypes.uint64)
    if seed.dtype == dtypes.uint64:
        wide = seed
    low = families.cast(wide, dtypes.uint32)
    return stack([families.cast(wide >> 32, dtypes.uint32), low])


def as_key(op: str, value: Any) -> Tensor:
    """`value` itself if it is a key; otherwise an error that says how to get one."""
    if not isinstance(value, Tensor | np.ndarray):
        raise DTypeError(f"{op}: expected a key, got {type(value).__name__} {value!r:.40}{_HINT}")
    found = to_tensor(value, op=op)
    if found.dtype != dtypes.uint32:
        name = dtypes.name_of(found.dtype)
        raise DTypeError(f"{op}: a key is uint32 of shape (2,), got {name} {found.shape}{_HINT}")
    if found.shape != (2,):
        many = found.ndim > 1 and found.shape[-1] == 2
        hint = "\nhint: wf.vmap maps a function over several keys" if many else _HINT
        raise ShapeError(f"{op}: a key has shape (2,), got {found.shape}{hint}")
    return found


def split(key: Any, num: int | Shape = 2) -> Tensor:
    """`num` independent keys, shape (num, 2); the old key should not be used again.

    Row i is `fold_in(key, i)`. A tuple for `num` gives that many leading axes.
    """
    found = as_key("split", key)
    sizes = shape_tuple("split", num)
    if prod(sizes) > _WORD:
        raise ArgumentError(f"split: a key has 2³² descendants, {prod(sizes)} were asked for")
    numbers = arange(prod(sizes), dtype=dtypes.uint32, device=found.device)
    return derive(found, numbers.reshape(sizes))


def fold_in(key: Any, data: Any) -> Tensor:
    """A new key for each number: deterministic, and independent of the keys of other numbers.

    `data` is an integer from 0 to 2³² - 1, or an integer tensor (modulo 2³²), whose axes lead.
    """
    found = as_key("fold_in", key)
    if type(data) is int and not 0 <= data < _WORD:
        raise ArgumentError(f"fold_in: data must be from 0 to 2³² - 1, got {data}")
    numbers = to_tensor(data, like=found.device, op="fold_in")
    if not dtypes.is_integer(numbers.dtype):
        name = dtypes.name_of(numbers.dtype)
        raise DTypeError(f"fold_in: data must be integers, got {name}")
    return derive(found, families.cast(numbers, dtypes.uint32))


def derive(key: Tensor, numbers: Tensor) -> Tensor:
    """`fold_in` on tensors that fit."""
    result: Tensor = call(fold_in_op, (key, numbers), {})
    return result


def streams(key: Tensor, count: int) -> list[Tensor]:
    """`count` independent keys for the parts of one draw."""
    made = split(key, count)
    return [made[i] for i in range(count)]


class Threads(ABC):
    """Keeps the states of generators as values while a function is traced: each run draws anew."""

    def __init__(self) -> None:
        self.drawn: dict[Generator, int] = {}  # how many keys were taken

    @abstractmethod
    def key(self, source: Generator, number: int, device: Device | None = None) -> Tensor:
        """The key that is draw `number` of `source` here, where draws are wanted or on a device."""

    @abstractmethod
    def state_at(
        self, source: Generator, number: int, device: Device | None = None
    ) -> tuple[Tensor, Tensor]:
        """The state of `source` after so many draws here, a key and a count."""

    def reserve(
        self, source: Generator, number: int, device: Device | None = None
    ) -> tuple[Tensor, Tensor]:
        """What `reserve_tensors` of `source` gives here."""
        first = self.drawn.get(source, 0)
        self.drawn[source] = first + number
        return self.state_at(source, first, device)

    def draw(self, source: Generator, device: Device | None = None) -> Tensor:
        """The next key of `source`."""
        first = self.drawn.get(source, 0)
        self.drawn[source] = first + 1
        return self.key(source, first, device)

    def state(self, source: Generator) -> Tensor:
        """What `get_state` of `source` gives here."""
        base, count = self.reserve(source, 0)
        return concat([base, count.reshape((1,))])


_threading: ContextVar[Threads | None] = ContextVar("weft_threading", default=None)


def threads_here() -> Threads | None:
    """Who keeps the states of the generators here that were made outside."""
    return _threading.get()


class threaded:
    """Inside, the generators that were made outside are kept by `threads`."""

    def __init__(self, threads: Threads | None) -> None:
        self._kept = threads

    def __enter__(self) -> None:
        self._token: Token[Threads | None] = _threading.set(self._kept)

    def __exit__(self, *_: object) -> None:
        _threading.reset(self._token)


class Generator:
    """A source of random numbers: every distribution of `wf.random` as a method, without the key.

    Each draw takes a fresh key, `next_key()`; key number n is `fold_in(key, n)`. Inside `vmap`
    every slice gets a key of its own, inside loops every turn, unless the generator is made there.
    Threads may share a generator.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Tensor]: ...

    def __init__(self, seed: Any = 0) -> None:
        self._lock = lock_for(self, "_lock")
        self.home = _threading.get()  # a generator made while a function is traced stays inside
        inside = current()
        self._made_in = None if inside is None else ref(inside)
        self.seed(seed)

    def keeper(self) -> Threads | None:
        """Who keeps this generator's state while a function that draws from it is traced."""
        threads = _threading.get()
        return None if threads is self.home else threads

    def _check_may_set(self, op: str) -> None:
        if self.keeper() is not None:
            raise MutationError(
                f"{op}: the generator cannot be set while a function that draws from it is traced"
                "\nhint: seed it before the call, or draw with keys: wf.random.key(seed)"
            )

    def seed(self, seed: Any) -> None:
        """Start again from a seed, or from a key given as a tensor."""
        self._check_may_set("seed")
        is_key = isinstance(seed, Tensor) and seed.shape == (2,)
        start = as_key("seed", seed) if is_key else key(seed)
        with self._lock:
            self._key, self._count = start, 0

    def next_key(self, device: Device | None = None) -> Tensor:
        """A key that this generator has not given before, where its state is or on a device."""
        threads = self.keeper()
        if threads is not None:
            return threads.draw(self, device)
        with self._lock:
            if self._count == _WORD - 1:  # the last descendant becomes the parent of the next ones
                self._key, self._count = fold_in(self._key, _WORD - 1), 0
            base, count = self._key, self._count
            self._count += 1
        moved = base if device is None else to_device(base, device)  # before maps and traces see it
        return own_key(fold_in(moved, count), self)

    def was_made_in(self, handler: Handler) -> bool:
        """Whether that handler was the innermost one where this generator was made."""
        return self._made_in is not None and self._made_in() is handler

    def get_device(self) -> Device:
        """Where this generator's keys are."""
        return self._key.device

    def reserve(self, number: int) -> tuple[Tensor, int] | None:
        """Take `number` keys at once: the base and the first count, None if the base would change.

        They are `fold_in(base, count)`, `fold_in(base, count + 1)` and so on.
        """
        with self._lock:
            base, count = self._key, self._count
            if count + number >= _WORD:
                return None
            self._count += number
        return base, count

    def reserve_tensors(
        self, number: int, device: Device | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """The same with the count as a tensor, also while a function is traced."""
        threads = self.keeper()
        if threads is not None:
            return threads.reserve(self, number, device)
        taken = self.reserve(number)
        if taken is None:
            return None
        return taken[0], wrap(np.array(taken[1], np.uint32), self.get_device())

    def get_state(self) -> Tensor:
        """All there is to know, as a uint32 tensor of shape (3,): the key and the count."""
        threads = self.keeper()
        if threads is not None:
            return threads.state(self)
        with self._lock:
            base, count = self._key, self._count
        return concat([base, wrap(np.array([count], np.uint32), base.device)])

    def set_state(self, state: Any) -> None:
        """Go on from where `get_state` was called."""
        self._check_may_set("set_state")
        found = to_tensor(state, op="set_state")
        if found.shape != (3,) or found.dtype != dtypes.uint32:
            raise ShapeError(
                f"set_state: a state is uint32 of shape (3,), got {found.type}"
                "\nhint: pass what get_state() returned"
            )
        count = int(found.host()[2])
        with self._lock:
            self._key, self._count = found[:2], count

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.get_state(),)


def _restore(state: Tensor) -> Generator:
    """A generator that goes on from a state: what pickles and copies are."""
    made = Generator()
    made.set_state(state)
    return made


def own_key(base: Tensor, source: Generator, until: Handler | None = None) -> Tensor:
    """A key for each slice of the maps and each turn of the loops around us: numbers are folded in.

    Handlers from `until` outwards do not count, nor do those inside of which `source` is made anew.
    """
    numbers: list[Tensor] = []
    handler: Handler | None = current()
    while not (handler is None or handler is until or source.was_made_in(handler)):
        turn = handler.turn()
        if turn is not None:
            numbers.append(to_device(turn, base.device))
        if handler.hides_axis and handler.draws_apart:
            mapped = cast(Any, handler)
            with installed(handler.outer):
                slices = arange(mapped.size, dtype=dtypes.uint32, device=base.device)
                numbers.append(mapped.hide(slices))
        handler = handler.outer
    for number in reversed(numbers):  # what is outside of a compiled function cannot come last
        base = derive(base, number)
    return base


_global = Generator()
_chosen: Layers[Generator] = Layers("weft_generator", _global)


def generator() -> Generator:
    """The generator that functions without a key draw from here."""
    return _chosen.get()


class using:
    """`with using(generator):` — functions without a key draw from it; context-local."""

    def __init__(self, source: Generator) -> None:
        self._source = source

    def __enter__(self) -> Generator:
        _chosen.begin(self, self._source)
        return self._source

    def __exit__(self, *_: object) -> None:
        _chosen.end(self)


def seed(seed: Any) -> None:
    """Start the global generator again from a seed. It starts from seed 0 when weft is imported."""
    generator().seed(seed)


def next_key(device: Device | None = None) -> Tensor:
    """A fresh key from the global generator, where its state is or on a device."""
    return generator().next_key(device)


def get_state() -> Tensor:
    """The global generator's state, a uint32 tensor of shape (3,)."""
    return generator().get_state()


def set_state(state: Any) -> None:
    """Put the global generator back to a state that `get_state` returned."""
    generator().set_state(state)
