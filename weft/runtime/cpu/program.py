"""A compiled graph as a program: instructions in memory that one native call walks.

A run has a *frame*, which holds all of its state; frames are used again, so a run allocates
nothing, and any number of threads may run one program at once. Where a program calls Python, the
native routine returns, and is entered again afterwards. It also returns every 50 ms, since only
then can Python act on signals: Ctrl-C ends a run between two chunks of work. Meanwhile other
threads go on with a parallel region, so whoever does not resume a run must close it.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from weft.config import settings
from weft.core.common.locks import lock_for
from weft.errors import ArgumentError, CancelledError
from weft.runtime.cpu.builtin import NUMBER_OF, has_builtins
from weft.runtime.cpu.executor import executor
from weft.runtime.cpu.executor_layout import (
    ARRAY,
    CANCELLED,
    DONE,
    FAILED,
    FIXED_ARGUMENTS,
    FRAME,
    HOST,
    NEED_POOL,
    REFUSED,
    SCRATCH,
    SELF,
    THREADS,
)
from weft.runtime.cpu.pool import pool
from weft.runtime.cpu.profile import Profile

Words: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

_PAUSE_NS = 50_000_000
_MANY = 8  # arrays from which copying a row of addresses is faster than packing each
_LINE = 64
_WORD = 8
_PLACE = {name: offset // _WORD for name, offset in FRAME.items()}
_PROFILE = _PLACE["PROFILE"]
_DETAIL = _PLACE["STATUS"] + 1


class Avoidable(ABC):
    """A Python function that native code may be able to do without."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, *addresses: int) -> None:
        """Do it, from the beginning or from where native code had to stop."""

    @abstractmethod
    def use(self, door: Words) -> None:
        """Take a word of the program: a record's address in it says how native code does this."""

    @abstractmethod
    def abandon(self, *addresses: int) -> None:
        """A run with these addresses has failed: nobody will end what native code began."""


class HostCall(NamedTuple):
    """A Python function that a program calls with the addresses in some slots."""

    function: Callable[..., Any]
    slots: tuple[int, ...]
    results: tuple[int, ...] = ()  # slots for the addresses that it returns


class Encoded(NamedTuple):
    """What `ProgramBuilder.build` has written down."""

    code: Words
    slots: int  # entries of the table
    registers: int
    arguments: int  # pointers that the caller gives with each run
    scratch_bytes: int
    hosts: tuple[HostCall, ...]
    names: tuple[str, ...]  # of the steps
    chunks: tuple[int, ...]  # of the steps: in how many calls each one's kernel runs
    kernels: tuple[int, ...]  # words of the code that are addresses of kernels
    constants: tuple[int, ...]  # words that are addresses of constants
    is_brief: bool  # a few small kernels, on one thread
    failure: Callable[[int, int], BaseException]  # the error for a status that a kernel reported
    keep_alive: Any  # what owns the kernels' code and the constants


class Program:
    """A sequence of kernels with loops and branches, run by one native call.

    `ProgramBuilder` makes it. A run takes the addresses of this call's buffers.
    """

    def __init__(self, encoded: Encoded) -> None:
        self.encoded = encoded
        self._idle: list[Frame] = []
        self._frames: list[Frame] = []
        self._doors: Words = np.zeros(len(encoded.hosts) + 1, np.int64)
        # Memory that a function gives is the program's, not a frame's: runs take turns.
        gives = any(call.results for call in encoded.hosts)
        self._alone = lock_for(self, "_alone", threading.Lock) if gives else None
        self._avoidable: list[tuple[Avoidable, tuple[int, ...]]] = []
        for number, call in enumerate(encoded.hosts):
            if isinstance(call.function, Avoidable):
                call.function.use(self._doors[number : number + 1])
                self._avoidable.append((call.function, call.slots))

    def run(
        self, pointers: Sequence[int], threads: int = 0, profile: Profile | None = None
    ) -> None:
        """Run once, with at most `threads` threads; 0 is what the settings say."""
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = Frame(self.encoded, self._doors)
            self._frames.append(frame)
        try:
            try:
                frame.give(threads or settings.threads or pool.cores, *pointers)
            except struct.error as error:
                raise ArgumentError(
                    f"program: run: takes {self.encoded.arguments} addresses, got {pointers!r}"
                ) from error
            if profile is not None:
                frame.words[_PROFILE] = profile.address
            code = frame.start()
            if code != DONE:
                self._go_on(frame, code)
        except BaseException:  # an interrupt as well: native code may have begun something
            frame.close()  # at once: no other interrupt can come before it
            self._abandon(frame)
            raise
        finally:
            if profile is not None:
                frame.words[_PROFILE] = 0
            self._idle.append(frame)

    def run_arrays(self, arrays: Sequence[Any], threads: int = 0) -> bool:
        """Run once on NumPy arrays; False, and nothing is done, if one is not packed row by row.

        To be used only where `knows_arrays()`.
        """
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = Frame(self.encoded, self._doors)
            self._frames.append(frame)
        try:
            frame.give_arrays(threads or settings.threads or pool.cores, arrays)
            code = frame.start_arrays()
            if code == REFUSED:
                return False
            if code != DONE:
                self._go_on(frame, code)
        except BaseException:  # an interrupt as well: native code may have begun something
            frame.close()  # at once: no other interrupt can come before it
            self._abandon(frame)
            raise
        finally:
            self._idle.append(frame)
        return True

    def as_function(self) -> Callable[..., int] | None:
        """A function that runs a brief program on the arrays it is given, and says how it ended.

        It costs a tenth of `run_arrays`. Whatever it says but `DONE`, nothing is known of the
        results: `run_arrays` tells. None where the program is long, or this Python unknown.
        """
        if not (self.encoded.is_brief and knows_arrays() and has_builtins()):
            return None
        return Frame(self.encoded, self._doors).as_function(self.encoded)

    def replace(self, addresses: Mapping[int, int]) -> None:
        """Use other kernels that do the same, from their next call; runs may be under way."""
        code = self.encoded.code
        for word in self.encoded.kernels:
            code[word] = addresses.get(int(code[word]), code[word])

    def cancel(self) -> None:
        """Stop the runs that other threads are in: they raise `CancelledError`."""
        for frame in self._frames:
            frame.words[_PLACE["CANCEL"]] = 1

    def profile(self, capacity: int = 1 << 14) -> Profile:
        """Room for the timings of the last `capacity` kernel calls, to be given to `run`."""
        return Profile(self.encoded.names, capacity)

    def _abandon(self, frame: Frame) -> None:
        for function, slots in self._avoidable:
            function.abandon(*[frame.words[frame.table + slot] for slot in slots])

    def _go_on(self, frame: Frame, code: int) -> None:
        if self._alone is None:
            self._walk(frame, code)
            return
        with self._alone:  # its first instruction was a call of Python
            self._walk(frame, code)

    def _walk(self, frame: Frame, code: int) -> None:
        words, table, hosts, number = frame.words, frame.table, self.encoded.hosts, _PLACE["HOST"]
        while code != DONE:
            if code == HOST:
                call = hosts[words[number]]
                found = call.function(*[words[table + slot] for slot in call.slots])
                if call.results:
                    for slot, address in zip(call.results, found, strict=True):
                        words[table + slot] = address
            elif code == NEED_POOL:
                words[_PLACE["THREADS"]] = pool.grow(words[_PLACE["THREADS"]])
            elif code == CANCELLED:
                raise CancelledError(
                    "program: run: cancelled by another thread, or begun before a fork"
                )
            elif code == FAILED:
                raise self.encoded.failure(words[_PLACE["STATUS"]], words[_DETAIL])
            # Else it has paused, and Python handles signals here.
            code = frame.resume()


class _FrameMemory(np.ndarray[tuple[int], np.dtype[np.int64]]):
    """What a frame lies in; it keeps alive what the frame refers to."""

    encoded: Encoded


class Frame:
    """The state of one run: registers, table of pointers, scratch memory."""

    __slots__ = (
        "_count",
        "_row",
        "_threads",
        "close",
        "give",
        "give_arrays",
        "memory",
        "resume",
        "start",
        "start_arrays",
        "table",
        "words",
    )
    give_arrays: Callable[[int, Sequence[Any]], None]

    def __init__(self, encoded: Encoded, doors: Words) -> None:
        arguments = _PLACE["REGISTERS"] + encoded.registers
        self.table = arguments + FIXED_ARGUMENTS + encoded.arguments
        scratch = -(-(self.table + encoded.slots) * _WORD // _LINE) * _LINE
        self.memory = aligned_words((scratch + encoded.scratch_bytes) // _WORD + 1)
        address: int = self.memory.ctypes.data
        native = executor()
        self.words = self.memory.data
        contents = {
            _PLACE["CODE"]: encoded.code.ctypes.data,
            _PLACE["TABLE"]: address + self.table * _WORD,
            _PLACE["ARGUMENTS"]: address + arguments * _WORD,
            _PLACE["POOL"]: pool.address,
            _PLACE["GIVEN"]: encoded.arguments,
            _PLACE["DOORS"]: doors.ctypes.data,
            _PLACE["BUDGET"]: int(_PAUSE_NS * native.tick_rate),
            arguments + SELF: address,
            arguments + SCRATCH: address + scratch,
        }
        for place, value in contents.items():
            self.words[place] = value
        # What changes from run to run lies in a row: how many threads, then the addresses.
        row = struct.Struct(f"{1 + encoded.arguments}n")  # of 64-bit words, n is packed fastest
        self.give = partial(row.pack_into, self.words, (arguments + THREADS) * _WORD)
        self._threads = arguments + THREADS
        self._row = address + (arguments + THREADS + 1) * _WORD
        self._count = encoded.arguments
        many = encoded.arguments >= _MANY and knows_tuples()
        self.give_arrays = self._copy_addresses if many else self._pack_addresses
        self.start: Callable[[], int] = partial(native.start, address)
        self.start_arrays: Callable[[], int] = partial(native.start_arrays, address)
        self.resume: Callable[[], int] = partial(native.resume, address)
        self.close: Callable[[], None] = partial(native.close, address)

    def as_function(self, encoded: Encoded) -> Callable[..., int]:
        """What runs this frame, which is used for nothing else, on the arrays it is given."""
        self.words[self._threads] = 1
        self.words[_PLACE["NUMBER"]] = NUMBER_OF
        memory = self.memory.view(_FrameMemory)
        memory.encoded = encoded
        return executor().call(memory)

    def _pack_addresses(self, threads: int, arrays: Sequence[Any]) -> None:
        self.give(threads, *map(id, arrays))

    def _copy_addresses(self, threads: int, arrays: Sequence[Any]) -> None:
        """The same for many arrays: a tuple of them has their addresses in a row."""
        held = tuple(arrays)
        assert len(held) == self._count
        self.words[self._threads] = threads
        ctypes.memmove(self._row, id(held) + tuple.__basicsize__, self._count * _WORD)


@functools.cache
def knows_tuples() -> bool:
    """Whether Python's tuples lie in memory as `Frame` reads them."""
    sample = tuple(object() for _ in range(3))
    found = (ctypes.c_int64 * 3).from_address(id(sample) + tuple.__basicsize__)
    return tuple.__itemsize__ == _WORD and [*found] == [*map(id, sample)]


@functools.cache
def knows_arrays() -> bool:
    """Whether NumPy's arrays lie in memory as the executor reads them."""
    packed = np.empty((2, 2))
    for array in (packed, packed.T, packed[:, :1]):
        data = ctypes.c_int64.from_address(id(array) + ARRAY["DATA"]).value
        flags = ctypes.c_int32.from_address(id(array) + ARRAY["FLAGS"]).value
        if data != array.ctypes.data or flags & 1 != array.flags.c_contiguous:
            return False
    return True


def address_of(array: Any) -> int:
    """Where the data of a NumPy array begin."""
    if knows_arrays():  # asking NumPy takes ten times as long
        return int(ctypes.c_int64.from_address(id(array) + ARRAY["DATA"]).value)
    return int(array.ctypes.data)


def aligned_words(count: int) -> Words:
    """Zeros that begin on a cache line."""
    memory = np.zeros(count + _LINE // _WORD, np.int64)
    start = -memory.ctypes.data % _LINE // _WORD
    return memory[start : start + count]
