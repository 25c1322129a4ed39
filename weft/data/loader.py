"""`Loader`: batches for training.

The order of rows is a function of the key and the epoch, never of how many processes share the
work; a batch is the same set of rows on every layout. Threads prepare batches ahead. The position
counts batches that were handed out, so a saved position goes on with the next one.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from inspect import signature
from typing import Any, Final, Self

import numpy as np

from weft.core.common.context import current_device
from weft.core.common.parameters import as_flag, as_function, as_integer, shown
from weft.core.common.trees import tree_leaves, tree_map
from weft.core.common.types import Array
from weft.core.tensor.convert import checked, wrap
from weft.core.tensor.tensor import Tensor
from weft.data.source import Source, as_source
from weft.errors import ArgumentError
from weft.ops.random.discrete import permutation
from weft.ops.random.state import as_key, fold_in, next_key
from weft.ops.random.state import key as make_key

_FIELDS: Final = ("epoch", "batch", "rows", "batch_size", "shuffle", "key_high", "key_low")


class Loader:
    """Batches of `data`: arrays, tuples or dicts of arrays, or anything with length and items.

    `for batch in loader` goes through the rest of an epoch and then stops; the next loop is the
    next epoch. Batches are tensors in the structure of the data: those of tensors are on the device
    of these, others on the default device. `transform` is called with each batch as NumPy arrays,
    in the thread that prepares `prefetch` batches ahead (0: no thread); what it returns is where
    the batch was, or on the default device if that was on several. One that takes `rng` is given a
    NumPy generator, whose numbers depend on the key, the epoch, the batch and the part of it alone:
    what is drawn is drawn again after a restore. Several `workers` prepare as many batches at once,
    which helps where items wait for a disk or are decoded: they are threads, so items and
    `transform` must bear that. The batches are the same, in the same order; `prefetch` is 2 for
    each worker if it is not given. `collate` makes a batch of a list of a dataset's items where
    these do not stack, such as texts that are padded to the longest of a batch.

    With `shard=(index, count)` every process makes the same loader and gets its part of each batch:
    `batch_size` counts the rows of all parts. `state()` is the position, `restore(state)` goes
    there.

    >>> loader = Loader(np.arange(6), 4, shuffle=False)
    >>> [batch.tolist() for batch in loader]
    [[0, 1, 2, 3], [4, 5]]
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        *,
        shuffle: bool = True,
        key: Any = None,
        drop_last: bool = False,
        prefetch: int | None = None,
        workers: int = 1,
        transform: Callable[..., Any] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        for name, function in (("transform", transform), ("collate", collate)):
            if function is not None:
                as_function("Loader", name, function)
        self._source = as_source(data, collate)
        self.batch_size = as_integer("Loader", "batch_size", batch_size, low=1)
        self._shuffle = as_flag("Loader", "shuffle", shuffle)
        self._draws = transform is not None and _takes_rng(transform)
        self._key = _as_words(key) if self._shuffle or self._draws else (0, 0)
        self._drop_last = as_flag("Loader", "drop_last", drop_last)
        self._workers = as_integer("Loader", "workers", workers, low=1)
        ahead = 2 * self._workers if prefetch is None else prefetch
        self._prefetch = as_integer("Loader", "prefetch", ahead, low=0)
        self._transform = transform
        self._shard = _as_shard(shard)
        self._check_sizes()
        self._epoch = self._batch = 0
        self._running: weakref.ref[Batches] | None = None

    def _check_sizes(self) -> None:
        rows, size, count = self._source.length, self.batch_size, self._shard[1]
        if size % count:
            raise ArgumentError(f"Loader: batch_size {size} is not divisible by {count} shards")
        if not self._drop_last and rows % size % count:
            raise ArgumentError(
                f"Loader: the last batch has {rows % size} rows, not divisible by {count} shards"
                "\nhint: drop_last=True leaves it out"
            )
        if self._prefetch < self._workers - 1:
            raise ArgumentError(
                f"Loader: prefetch {self._prefetch} leaves some of {self._workers} workers idle"
                f"\nhint: leave prefetch out, or ask for {self._workers} or more"
            )
        if len(self) == 0:
            raise ArgumentError(f"Loader: {rows} rows make no batch of {size}")

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        rows, size = self._source.length, self.batch_size
        return rows // size if self._drop_last else -(-rows // size)

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next batch belongs to."""
        return self._epoch

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left of this epoch; a loop that runs already ends."""
        self.close()
        running = Batches(self)
        self._running = weakref.ref(running)  # its threads end when the loop forgets it
        return running

    def forever(self) -> Iterator[Any]:
        """Batches without end, one epoch after the other."""
        while True:
            yield from self

    def state(self) -> dict[str, int]:
        """The position after the last batch that was handed out: a dict of integers."""
        values = (
            self._epoch,
            self._batch,
            self._source.length,
            self.batch_size,
            int(self._shuffle),
            *self._key,
        )
        return dict(zip(_FIELDS, values, strict=True))

    def restore(self, state: Any) -> Self:
        """Go to a position that `state()` gave: the batches that follow are those that did then.

        The layout (`shard`) may be another one; the data and the batch size may not.
        """
        if not isinstance(state, Mapping) or set(state) != set(_FIELDS):
            raise ArgumentError(
                f"restore: expected what state() returned, got {shown(state)}"
                f"\nhint: a state has {', '.join(_FIELDS)}"
            )
        found = {name: as_integer("restore", name, state[name], low=0) for name in _FIELDS}
        mine = self.state()
        for name in ("rows", "batch_size", "shuffle"):
            if found[name] != mine[name]:
                raise ArgumentError(
                    f"restore: {name} was {found[name]} when the state was taken, here it is"
                    f" {mine[name]}"
                )
        as_integer("restore", "batch", found["batch"], 0, len(self) - 1)
        for name in ("epoch", "key_high", "key_low"):
            as_integer("restore", name, found[name], 0, 2**32 - 1)
        self.close()
        self._epoch, self._batch = found["epoch"], found["batch"]
        self._key = found["key_high"], found["key_low"]
        return self

    def close(self) -> None:
        """End a loop that is running, and its threads."""
        running = None if self._running is None else self._running()
        self._running = None
        if running is not None:
            running.close()

    def order(self) -> Array:
        """The rows of this epoch in the order in which batches take them."""
        if not self._shuffle:
            return np.arange(self._source.length)
        words = wrap(np.array(self._key, np.uint32), current_device())
        return permutation(fold_in(words, self._epoch), self._source.length).numpy()

    def position(self) -> int:
        """How many batches of this epoch were handed out."""
        return self._batch

    def advance(self, batch: int) -> None:
        """Count a batch as handed out; after the last one comes the next epoch."""
        self._batch = batch + 1
        if self._batch >= len(self):
            self._epoch, self._batch = self._epoch + 1, 0

    def maker(self) -> Callable[[int], Any]:
        """A function from a batch's number to the batch; it does not hold on to the loader."""
        device = current_device()
        source, transform, order = self._source, self._transform, self.order()
        size, (index, count) = self.batch_size, self._shard
        seed, draws = (*self._key, self._epoch), self._draws

        def make(batch: int) -> Any:
            whole = order[batch * size : (batch + 1) * size]
            part, change = len(whole) // count, transform
            if change is not None and draws:
                change = partial(change, rng=np.random.default_rng((*seed, batch, index)))
            return _made(source, whole[index * part : (index + 1) * part], change, device)

        return make


def _made(
    source: Source, positions: Array, transform: Callable[..., Any] | None, device: Any
) -> Any:
    rows = source.rows(positions)
    if transform is None:
        return tree_map(lambda x: wrap(x, device) if isinstance(x, np.ndarray) else x, rows)
    held = [x for x in tree_leaves(rows) if isinstance(x, Tensor | np.ndarray)]
    places = {x.device if isinstance(x, Tensor) else device for x in held}
    there = places.pop() if len(places) == 1 else device
    arrays = tree_map(lambda x: x.host() if isinstance(x, Tensor) else x, rows)
    return tree_map(lambda x: _taken(x, there), transform(arrays))


def _taken(leaf: Any, device: Any) -> Any:
    """What a transform gave; arrays are copied, as it may fill the same ones for each batch."""
    if not isinstance(leaf, np.ndarray | np.generic):
        return leaf
    array = checked(np.asanyarray(leaf), "Loader: the result of transform")
    return wrap(np.array(array), device)


def _takes_rng(function: Callable[..., Any]) -> bool:
    try:
        return "rng" in signature(function).parameters
    except (TypeError, ValueError):  # some functions that are not Python's do not say
        return False


def _as_words(key: Any) -> tuple[int, int]:
    """A key as two integers; an integer is a seed, None takes a key of the global generator."""
    if key is None:
        found: Tensor = next_key()
    elif isinstance(key, Tensor | np.ndarray):
        found = as_key("Loader", key)
    else:
        found = make_key(as_integer("Loader", "key", key))
    high, low = found.tolist()
    return high, low


def _as_shard(shard: Any) -> tuple[int, int]:
    if not isinstance(shard, tuple) or len(shard) != 2:
        raise ArgumentError(f"Loader: shard must be (index, count), got {shown(shard)}")
    count = as_integer("Loader", "the count of shard", shard[1], low=1)
    return as_integer("Loader", "the index of shard", shard[0], 0, count - 1), count


class Batches(Iterator[Any]):
    """The rest of one epoch of a loader; threads prepare what comes next."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._next = loader.position()
        self._last = len(loader)
        self._make = loader.maker()
        self._context = copy_context()  # threads see the devices and settings of the caller
        self._pending: deque[Future[Any]] = deque()
        self._executor: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self._closed = False

    def __next__(self) -> Any:
        if self._closed or self._next >= self._last:
            self.close()
            raise StopIteration
        number = self._next
        try:
            batch = self._prepared()
        except StopIteration as error:  # it would end the loop as if the epoch were over
            self.close()
            raise ArgumentError(f"Loader: batch {number}: the data raised StopIteration") from error
        except BaseException as error:
            error.add_note(f"while batch {number} of epoch {self._loader.epoch} was prepared")
            self.close()
            raise
        self._next = number + 1
        self._loader.advance(number)
        if self._next >= self._last:
            self.close()
        return batch

    def _prepared(self) -> Any:
        ahead = self._loader._prefetch
        if not ahead:
            return self._make(self._next)
        if self._process != os.getpid():  # a fork has no threads but the one that forked
            self._process, self._executor = os.getpid(), None
            self._pending.clear()
        if self._executor is None:
            count = self._loader._workers
            self._executor = ThreadPoolExecutor(count, thread_name_prefix="weft-loader")
        while len(self._pending) <= ahead and self._next + len(self._pending) < self._last:
            number = self._next + len(self._pending)
            run = self._context.copy().run  # one that a fork cannot find in use
            self._pending.append(self._executor.submit(run, self._make, number))
        return self._pending.popleft().result()

    def close(self) -> None:
        """Stop preparing batches and wait for the threads to end."""
        self._closed = True
        executor, self._executor = self._executor, None
        self._pending.clear()
        if executor is not None and self._process == os.getpid():
            executor.shutdown(wait=True, cancel_futures=True)

    def __del__(self) -> None:
        executor = getattr(self, "_executor", None)
        if executor is not None and self._process == os.getpid():
            executor.shutdown(wait=False, cancel_futures=True)
