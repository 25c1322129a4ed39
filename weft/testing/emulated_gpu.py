"""A GPU that this processor plays: kernels for blocks and threads run here, block by block.

`use_emulated_gpu()` makes it `cuda:0`, so that tests run the whole backend where no GPU is.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from weft.compiler.emit_cpu import emit
from weft.compiler.loops import Assign, Kernel, Loop, Statement, Value, get
from weft.compiler.passes.spell import spell
from weft.compiler.rebuild import Statements, substitute, with_body
from weft.compiler.squares import spelled
from weft.compiler.verify import verify
from weft.core.common.types import Array
from weft.errors import DeviceError, OutOfMemoryError
from weft.runtime import registry
from weft.runtime.cpu import jit
from weft.runtime.cpu.code_cache import cached
from weft.runtime.cuda import driver
from weft.runtime.gpu.interface import Driver, GpuMemory

_SIGNATURE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)
_ALIGNED = 256


class EmulatedGpu(Driver):
    """What `driver.Gpu` is, in memory of the host."""

    kind = "cuda"
    name = "emulated"
    dlpack = 2
    lends = True
    capability = (9, 0)
    shared = 227 * 1024
    chains = True

    def __init__(self, number: int, nbytes: int = 1 << 32) -> None:
        super().__init__(number)
        self.nbytes = nbytes
        self.launches = self.chained = 0
        self.synchronized = 0
        self._held: dict[int, Array] = {}
        self._lent: dict[object, tuple[int, int]] = {}  # by others: addresses and lengths
        self._code: list[Any] = []

    def enter(self) -> None:
        """There is one device."""

    def allocate(self, nbytes: int) -> GpuMemory:
        """Memory that nothing was written to: all bytes are set, so that reading them shows."""
        if self._live + nbytes > self.nbytes:
            raise OutOfMemoryError(f"cuda: {nbytes} bytes are not free on {self.name}")
        held = np.full(nbytes + _ALIGNED, 0xA5, np.uint8)
        address = -(-held.ctypes.data // _ALIGNED) * _ALIGNED
        self._held[address] = held
        with self._lock:
            self.counted(nbytes)
        return GpuMemory(address, nbytes, self._free)

    def _free(self, address: int, nbytes: int) -> None:
        self._held.pop(address).fill(0xA5)
        with self._lock:
            self.discounted(nbytes)

    def borrow(self, address: int, nbytes: int, owner: object) -> GpuMemory:
        """Memory of others, that may be read and written while weft holds it."""
        key = object()
        self._lent[key] = (address, nbytes)

        def let_go(*_: int) -> None:
            nonlocal owner
            self.synchronize()
            del self._lent[key]
            owner = None

        return GpuMemory(address, nbytes, let_go)

    def write(self, address: int, array: Array) -> None:
        """Copy a contiguous array to an address."""
        self._check(address, array.nbytes)
        ctypes.memmove(address, array.ctypes.data, array.nbytes)

    def read(self, address: int, array: Array) -> None:
        """Copy what lies at an address into a contiguous array."""
        self._check(address, array.nbytes)
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy bytes from one address to another."""
        self._check(target, nbytes)
        self._check(source, nbytes)
        ctypes.memmove(target, source, nbytes)

    def clear(self, address: int, nbytes: int) -> None:
        """Make bytes zero."""
        self._check(address, nbytes)
        ctypes.memset(address, 0, nbytes)

    def _check(self, address: int, nbytes: int) -> None:
        """Raise unless bytes lie in memory that somebody holds."""
        for first, held in self._held.items():
            if first <= address and address + nbytes <= first + held.nbytes - _ALIGNED:
                return
        for first, length in self._lent.values():
            if first <= address and address + nbytes <= first + length:
                return
        raise DeviceError(f"emulated: {nbytes} bytes at {address:#x} belong to nobody")

    def compiled(self, kernels: Sequence[Kernel], key: str, write: Callable[..., str]) -> list[Any]:
        """The functions of these kernels, whose threads run one after another."""
        for kernel in kernels:
            verify(kernel, scheduled=True)
        target = jit.host_target()
        text = emit([_serial(kernel) for kernel in kernels], target)

        def made() -> bytes:
            write(kernels, self.capability)  # PTX can be made of them
            return jit.compile_text(text, target, draft=True)  # most kernels run once

        code = jit.load_object(cached(f"emulated {text}", target, made))
        self._code.append(code)
        return [_SIGNATURE(code.address(kernel.name)) for kernel in kernels]

    def prepare(
        self, function: Any, blocks: int, threads: int, table: Any, slots: Sequence[int]
    ) -> Callable[[], int]:
        """What runs a kernel on the addresses that are then in these slots of a table."""
        places = np.array(slots, np.int32)
        nothing = np.zeros(1, np.int64)

        def addresses() -> list[int]:
            return [table[slot] for slot in slots]

        def start() -> int:
            self.launches += 1
            for slot in slots:
                if table[slot] % 16:
                    raise DeviceError(f"emulated: an operand at {table[slot]:#x} is not aligned")
            function(ctypes.addressof(table), places.ctypes.data, nothing.ctypes.data, 0, 1)
            return 0

        start.addresses = addresses  # type: ignore[attr-defined]
        return start

    def chain(
        self, starts: Sequence[Callable[[], int]], waits: Sequence[Sequence[int]]
    ) -> Callable[[], int]:
        """What runs kernels on the addresses they have now and no others, the last ones first.

        Those that wait for others wait for them and for no others.
        """
        before = [start.addresses() for start in starts]  # type: ignore[attr-defined]
        order = _latest_first(waits)

        def run() -> int:
            assert before == [start.addresses() for start in starts]  # type: ignore[attr-defined]
            self.chained += 1
            return max(starts[number]() for number in order)

        return run

    def refuse(self, code: int) -> None:
        """Nothing fails."""

    def synchronize(self) -> None:
        """All is done when it is asked for."""
        self.synchronized += 1


def _latest_first(waits: Sequence[Sequence[int]]) -> list[int]:
    """An order in which each comes after those it waits for, and otherwise before the others."""
    left = {number: set(before) for number, before in enumerate(waits)}
    order: list[int] = []
    while left:
        number = max(number for number, before in left.items() if before.isdisjoint(left))
        del left[number]
        order.append(number)
    return order


def _serial(kernel: Kernel) -> Kernel:
    """The kernel whose blocks and threads are plain loops, one turn after another.

    Registers that threads keep are arrays, with an element for each thread.
    """
    threads = kernel.notes["threads"]
    kept = {number for number, local in enumerate(kernel.locals) if local.kept}
    plain = tuple(
        replace(local, shared=False, kept=False, length=threads if local.kept else local.length)
        for local in kernel.locals
    )
    body = tuple(_plain(s, kernel, kept) for s in _spelled(kernel.body, kernel))
    return spell(replace(kernel, body=body, locals=plain))


def _spelled(statements: Statements, kernel: Kernel) -> Statements:
    """Statements with plain loops in the place of what tensor cores do."""
    numbers = itertools.count()

    def plain(statements: Statements) -> Statements:
        made: list[Statement] = []
        for s in statements:
            made += (with_body(s, plain(s.body)),) if s.body else spelled(s, kernel, next(numbers))
        return tuple(made)

    return plain(statements)


def _plain(statement: Statement, kernel: Kernel, kept: set[int]) -> Statement:
    if not statement.body:
        return statement
    made = with_body(statement, tuple(_plain(s, kernel, kept) for s in statement.body))
    if isinstance(made, Loop) and made.kind == "thread" and kept:
        made = with_body(made, _of_thread(made.body, made.variable, kernel, kept))
    if isinstance(made, Loop) and made.kind in ("block", "thread"):
        return replace(made, kind="serial")
    return made


def _of_thread(body: Statements, thread: Value, kernel: Kernel, kept: set[int]) -> Statements:
    """Statements that read and assign the elements of one thread."""
    dtypes = {number: kernel.locals[number].dtype for number in kept}

    def placed(statement: Statement) -> Statement:
        if isinstance(statement, Assign) and statement.local in kept:
            return Assign(statement.local, statement.value, thread)
        inner = statement.body
        return with_body(statement, tuple(map(placed, inner))) if inner else statement

    own = {get(number, dtype): get(number, dtype, thread) for number, dtype in dtypes.items()}
    return tuple(map(placed, substitute(body, own)))


@contextmanager
def use_emulated_gpu(count: int = 1) -> Iterator[list[EmulatedGpu]]:
    """Inside, `cuda:0 …` are emulated."""
    gpus = [EmulatedGpu(number) for number in range(count)]
    before = driver.gpu, driver.device_count
    _forget()
    driver.gpu = lambda number=0: gpus[number]  # type: ignore[assignment]
    driver.device_count = lambda: count
    try:
        yield gpus
    finally:
        driver.gpu, driver.device_count = before
        _forget()


def _forget() -> None:
    registry._runtimes.pop("cuda", None)
    for device in [d for d in registry._clients if d.kind == "cuda"]:
        del registry._clients[device]
