"""The kernels of this process: each form is scheduled, emitted and compiled once, and shared.

`Request`s are collected while a graph is lowered; whenever there are a few new kernels, they are
compiled as a module in the background, or taken from the disk. `ready` waits for all.
Kernels of one form whose sizes differ become one with parameters.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, TypeAlias

from weft.compiler.choice import USUAL, Choice
from weft.compiler.choices import choice_of, for_threads
from weft.compiler.emit_cpu import emit, native_to
from weft.compiler.lift import Form, Versions, form_of, lift
from weft.compiler.loops import PIECE, Kernel, Loop, Reduce, Statement, Value, integer_of, walk
from weft.compiler.passes.contract import contract, plain
from weft.compiler.passes.contract_blocks import forced_path
from weft.compiler.passes.contract_match import (
    depth_of,
    few_sizes,
    is_batched,
    is_shallow,
    without_batches_of_one,
)
from weft.compiler.passes.contract_pairs import contract_long_dot, is_long_dot
from weft.compiler.passes.contract_parted import contract_parted, is_parted
from weft.compiler.passes.contract_shared import Packing, contract_shared, packing_of
from weft.compiler.passes.convolve import convolve, is_worth
from weft.compiler.passes.tiles import in_tiles
from weft.compiler.pipeline import one_by_one, passes, schedule
from weft.compiler.polynomial import known, subtract
from weft.compiler.statistics import Clock
from weft.config import settings
from weft.core.common.locks import lock_for
from weft.errors import CompilationError, OutOfMemoryError, WeftError
from weft.runtime.cpu.code_ahead import Job, begin, finish, has_help, is_idle
from weft.runtime.cpu.code_cache import link
from weft.runtime.cpu.jit import Loaded, Target, chosen_target, load_object
from weft.runtime.cpu.room import ask_for_room

BATCH = 4  # kernels in a module: few share what a module costs, several can be compiled apart
ALONE = 8  # the same for a single thread, which has nobody to share them with
_FIRST = (1, 1, 2)  # kernels in the first modules of a graph: LLVM has something to do early
LONG = 100_000  # products of numbers that are worth a kernel for their very sizes
OFTEN = 8  # times of a loop for which it pays to pack what it reads beforehand
MOST_KERNELS = 4096  # that are kept though no program uses them


@dataclass(eq=False)
class Compiled:
    """One form's kernel, scheduled: usually one function, two where a reduction was split."""

    kernels: tuple[Kernel, ...]
    target: Target
    choice: Choice = USUAL
    checks: bool = False  # whether it looks where it reads and writes
    drafts: bool = False  # whether a draft of its code is used until the code is there
    jobs: tuple[Job, ...] = ()  # what makes the code of each kernel, once it was begun
    code: tuple[Loaded, ...] = ()  # of each kernel; one module may hold several
    modules: tuple[str, ...] = ()  # the keys under which the code is kept
    addresses: tuple[int, ...] = ()  # in the code, or in its draft
    draft: tuple[Loaded, ...] = ()  # of each kernel: somebody may be running it

    @property
    def functions(self) -> int:
        """How many functions each run calls; one more may pack what lasts."""
        return len(self.kernels) - ("kept" in self.kernels[-1].notes)

    @property
    def is_product(self) -> bool:
        """Whether it is a product of matrices, whose code is long: a module of its own."""
        return any("contract" in kernel.notes for kernel in self.kernels)

    @property
    def drafted(self) -> tuple[int, ...]:
        """The addresses in the draft, if there is one."""
        return self._addresses_in(self.draft) if self.draft else ()

    def is_drafted(self, kernel: Kernel) -> bool:
        """Whether a draft is made of one of its kernels: of all but what multiplies matrices."""
        return self.drafts and ("contract" not in kernel.notes or bool(kernel.notes.get("packs")))

    def link(self, jobs: tuple[Job, ...]) -> None:
        """Take the code that these jobs have made; what has only drafts can be linked again."""
        if self.code or not jobs:  # another program was first, or nothing could be made
            return
        self.modules = tuple(job.key for job in jobs)
        if all(job.code is not None for job in jobs):
            code = tuple(link(job.key, job.code) for job in jobs if job.code is not None)
            self.addresses = self._addresses_in(code)
            self.code = code  # at last: who sees it does not ask for the rest
            return
        drafts = {job: load_object(job.draft or b"") for job in jobs if job.code is None}
        self.draft = tuple(
            drafts[job] if job.code is None else link(job.key, job.code) for job in jobs
        )
        self.addresses = self.drafted
        self.jobs = jobs

    def _addresses_in(self, code: tuple[Loaded, ...]) -> tuple[int, ...]:
        places = zip(self.kernels, code, strict=True)
        return tuple(loaded.address(kernel.name) for kernel, loaded in places)


@dataclass(frozen=True)
class Request:
    """A kernel for certain sizes: what is compiled, and the parameters it is called with."""

    compiled: Compiled
    parameters: tuple[int, ...]
    form: Any = None  # what was asked for, as choices know it

    def tasks(self, number: int) -> int:
        """How many iterations the parallel loop of one of the functions has."""
        return evaluate(self.compiled.kernels[number].notes["tasks"], self.parameters)


Cut: TypeAlias = tuple[int, int]  # points of the depth and rows of a task of a product


class KernelStore:
    """All kernels, by form; the least recently used go first."""

    def __init__(self) -> None:
        self._lock = lock_for(self, "_lock")
        self._versions: OrderedDict[Any, Versions] = OrderedDict()
        self._made: OrderedDict[Any, Compiled] = OrderedDict()
        self._next: list[Compiled] = []  # what will be compiled as one module
        self._waiting: list[Compiled] = []  # products that nobody has begun to compile
        self._begun = 0  # modules of the graph that is being put together
        self.compilations = 0

    def request(
        self,
        kernel: Kernel,
        clock: Clock,
        general: bool = False,
        cut: Cut | None = None,
        *,
        own: bool = False,
        lasting: frozenset[int] = frozenset(),
        times: int = 1,
        drafts: bool = False,
    ) -> Request:
        """The compiled kernel for this one, made ready by `ready`; a general one for all sizes.

        It runs so many `times` in a row. With `own` a long product, or one that runs in a long
        loop, has a kernel for its very sizes, whatever came before. With a
        `cut` a product is one kernel, whose tasks take so many points of the depth and so many rows
        each, see `contract`; 0 is as many as suits it. Values of the buffers `lasting` last from
        run to run: factors made of them may be packed by a kernel that runs once, small ones too in
        a loop that runs often. With `drafts` a draft of its code is made first.
        """
        kernel = without_batches_of_one(kernel)
        form = form_of(kernel)
        how = self._how(kernel, cut, lasting, times)
        pieces, parted = how[0], how[3]
        form = replace(form, key=(form.key, *how))
        with self._lock:
            lifted = frozenset[int]()  # none if the schedule follows from the sizes
            if not (parted or is_worth(kernel) or (pieces not in (0, PIECE) and not general)):
                lifted = self._lifted(kernel, form, general, own, times)
            fixed = tuple(n for i, n in enumerate(form.literals) if i not in lifted)
            asked = (form.key, form.literals)
            choice = choice_of(asked)
            cut_for = for_threads(choice)
            ways = (cut_for, forced_path(), settings.check_bounds)
            key = (form.key, lifted, fixed, chosen_target(), ways)
            lifting, parameters = lift(kernel, form, lifted)
            found = self._made.get(key)
            if found is None:
                with clock("lower"):
                    kernels = self.scheduled(lifting, cut_for, *how)
                found = self._new(iter(kernels), choice, drafts, clock)
                self._made[key] = found
                if len(self._made) > MOST_KERNELS:
                    self._made.popitem(last=False)
                self._put_down(found, clock, is_certain=cut is None)
            else:
                self._made.move_to_end(key)
            return Request(found, parameters, asked)

    def _lifted(
        self, kernel: Kernel, form: Form, general: bool, own: bool, times: int
    ) -> frozenset[int]:
        """Which of the sizes of a kernel are parameters; few rows of a long product stay."""
        lifted, products = frozenset(range(len(form.literals))), products_of(kernel.body)
        if not general:
            lifted = self._versions_of(form).choose(form.literals)
            if own and times * products >= LONG:
                return frozenset()
        few = few_sizes(kernel) if lifted and products >= LONG else ()
        return lifted - {i for i, size in enumerate(form.literals) if size in few}

    @staticmethod
    def _how(
        kernel: Kernel, cut: Cut | None, lasting: frozenset[int], times: int
    ) -> tuple[int, int, Packing | None, bool, bool, bool]:
        """What `scheduled` is told of a kernel beside its choice."""
        (pieces, tall), width = cut or (0, 0), chosen_target().vector_bytes
        shallow = cut is None and not forced_path() and is_shallow(kernel)
        packing = None
        if not pieces and not shallow:
            packing = packing_of(kernel, width, lasting, cut is not None, times >= OFTEN)
        alone = cut is None and packing is None
        parted = alone and (is_parted(kernel) or is_long_dot(kernel, width))
        return pieces, tall, packing, parted, shallow, alone and is_batched(kernel)

    @staticmethod
    def scheduled(
        kernel: Kernel,
        choice: Choice = USUAL,
        pieces: int = 0,
        tall: int = 0,
        packing: Packing | None = None,
        parted: bool = False,
        shallow: bool = False,
        goes_on: bool = False,
    ) -> Iterable[Kernel]:
        """The kernels to run, one after another, for a lowered one; made when asked for.

        Those that are `tall`, and no products, have a task for each row. Batches that go on, which
        they do not in panels, lie in memory one after another.
        """
        if kernel.parallel is not None:  # lowering has said how it runs
            notes = {**kernel.notes, "tasks": kernel.parallel.stop}
            return (replace(kernel, notes=notes),)
        target = chosen_target()
        registers = registers_of(target)
        if is_worth(kernel):
            found = convolve(kernel, target.vector_bytes, registers, choice)
            if found is not None:
                return found
        native, width = native_to(target), target.vector_bytes
        tiled = in_tiles(kernel, native, width, choice, pieces=pieces, tall=tall, packing=packing)
        if tiled:
            return tiled
        if parted:
            if is_long_dot(kernel, width):
                first, last = contract_long_dot(kernel, width, registers, choice)
            else:
                first, last = contract_parted(kernel, width, registers, choice, native)
            return (first, *schedule(last, vector_bytes=width))
        if packing is not None:
            return contract_shared(kernel, width, registers, choice, packing, native, tall=tall)
        # Plain loops are as good for few products of each result, and for what is no product.
        if not shallow:
            made = partial(contract, kernel, width, registers, choice, native)
            product = made(pieces=pieces, tall=tall, goes_on=goes_on)
            if product is not kernel:
                return (product,)
        steps = passes(target.vector_bytes * choice.step, True)
        if tall:
            steps = [step for step in steps if step[0] != "short"]
        is_written = shallow and depth_of(kernel) > 1
        return one_by_one(kernel if is_written else plain(kernel), steps)

    def _new(
        self, kernels: Iterator[Kernel], choice: Choice, drafts: bool, clock: Clock
    ) -> Compiled:
        """A form; the first ones of a graph are compiled as their kernels come."""
        found = Compiled((), chosen_target(), choice, settings.check_bounds > 0, drafts)
        while True:
            with clock("lower"):
                kernel = next(kernels, None)
            if kernel is None:
                return found
            found.kernels += (kernel,)
            if self._wanted() == 1 and not found.is_product:
                with clock("emit"):
                    _write([found])

    def _wanted(self) -> int:
        """How many forms the next module has."""
        if not has_help():
            return ALONE
        return (*_FIRST, BATCH)[min(self._begun, len(_FIRST))]

    def begin(self, requests: Sequence[Request], clock: Clock) -> None:
        """Have products of a graph compiled, now that it is known how each of them is cut.

        While others have nothing to do, the kernels of each are modules of their own.
        """
        if not has_help():
            return
        with self._lock, clock("emit"):
            for each in dict.fromkeys(r.compiled for r in requests):
                if each.is_product and not each.code and not each.jobs:
                    _write([each], apart=is_idle())
            self._waiting = [each for each in self._waiting if not each.jobs]

    def _put_down(self, new: Compiled, clock: Clock, is_certain: bool) -> None:
        """Remember a new kernel; enough of them are begun to be compiled.

        A product that is cut may be cut otherwise when all of the graph is known, and waits until
        then; others wait until there is nothing else to compile.
        """
        if new.is_product and not new.jobs and is_certain:
            self._waiting.append(new)
        if self._waiting and is_idle():
            with clock("emit"):
                _write([self._waiting.pop(0)])
        if new.jobs:
            self._begun += 1
            return
        if new.is_product:
            return
        self._next.append(new)
        if (self._next[0].target, self._next[0].checks) != (new.target, new.checks):
            self._next = [new]
        if len(self._next) >= self._wanted():
            with clock("emit"):
                _write(self._next)
            self._next = []
            self._begun += 1

    def _versions_of(self, form: Form) -> Versions:
        found = self._versions.setdefault(form.key, Versions())
        self._versions.move_to_end(form.key)
        if len(self._versions) > MOST_KERNELS:
            self._versions.popitem(last=False)
        return found

    def ready(self, requests: Sequence[Request], clock: Clock, drafts: bool = False) -> int:
        """Compile what has no code yet, or not even a draft; gives the number of new functions."""
        with self._lock:
            asked = dict.fromkeys(r.compiled for r in requests)
            new = [each for each in asked if not (each.addresses if drafts else each.code)]
            if not new:
                return 0
            self.compilations += 1
            self._next, self._begun = [], 0
            left = sorted((c for c in new if not c.jobs), key=lambda c: c.is_product)
            with clock("emit"):
                batch = BATCH if has_help() else ALONE
                for _, alike in itertools.groupby(left, lambda c: c.is_product):
                    for several in _in_batches(list(alike), batch):
                        _write(several)
            begun = {each: each.jobs for each in new}
            jobs = list({job: None for each in new for job in each.jobs})
            try:
                with clock("compile"), _told(len(new)):
                    finish(jobs, drafts=drafts)
            finally:
                for each in new:  # what an interrupt left is somebody's yet, under its names
                    if all(job.is_done for job in each.jobs):
                        each.jobs = ()
            with clock("link"):
                for each, made in begun.items():
                    each.link(made)
            return sum(len(c.kernels) for c in new)


def _in_batches(forms: Sequence[Compiled], size: int) -> Iterator[Sequence[Compiled]]:
    """So many forms at a time."""
    return (forms[i : i + size] for i in range(0, len(forms), size))


@contextmanager
def memory_told(doing: str) -> Iterator[None]:
    """Inside, memory that runs out while `doing` something is an error of ours."""
    try:
        ask_for_room()
        yield
    except WeftError:
        raise
    except (MemoryError, SystemError) as error:
        # Some functions of Python fail for want of memory without a word, which is a SystemError.
        raise OutOfMemoryError(
            f"compile: memory ran out while {doing}"
            "\nhint: compile smaller functions, or free tensors first"
        ) from error


@contextmanager
def _told(count: int) -> Iterator[None]:
    """Inside, what stops a compilation becomes an error of ours; nothing half made is kept."""
    try:
        with memory_told(f"{count} kernels were compiled"):
            yield
    except WeftError:
        raise
    except RuntimeError as error:
        raise CompilationError(
            f"compile: LLVM refused one of {count} kernels: {error}"
            "\nhint: this is a mistake of weft; WEFT_COMPILE_AFTER and plain calls avoid it"
        ) from error


def _write(batch: Sequence[Compiled], apart: bool = True) -> None:
    """Have kernels compiled: several forms in one module, a single form's each in its own.

    With many modules, or one thread, a form's need not be `apart`. What is drafted is a module of
    its own. Names are by position, so that the same graph finds its code on disk again.
    """
    names = (f"kernel{number}" for number in itertools.count())
    for each in batch:
        each.kernels = tuple(replace(k, name=next(names)) for k in each.kernels)
    target, checks = batch[0].target, batch[0].checks
    assert all(each.checks == checks for each in batch)
    if len(batch) == 1 and (batch[0].jobs or (apart and has_help())):
        (form,) = batch
        begun = form.jobs
        for kernel in form.kernels[len(begun) :]:
            text = emit([kernel], target, checks)
            begun += (begin(text, target, drafts=form.is_drafted(kernel)),)
        form.jobs = begun  # all or nothing, if an interrupt comes in between
        return
    jobs: dict[bool, Job] = {}
    for drafts in (False, True):
        alike = [k for each in batch for k in each.kernels if each.is_drafted(k) == drafts]
        if alike:
            jobs[drafts] = begin(emit(alike, target, checks), target, drafts=drafts)
    for each in batch:
        each.jobs = tuple(jobs[each.is_drafted(k)] for k in each.kernels)


def products_of(statements: Sequence[Statement]) -> int:
    """How many products of matrices' elements these take, where their sizes are known."""
    total = 0
    for statement in statements:
        if isinstance(statement, Loop):
            extent = known(subtract(statement.stop, statement.start))
            total += (extent or 0) * products_of(statement.body)
        elif isinstance(statement, Reduce) and statement.parts[0].combine in ("dot", "pairs"):
            total += prod(known(extent) or 0 for _, extent in statement.axes)
    return total


def registers_of(target: Target) -> int:
    """Vector registers of a processor."""
    return 16 if target.architecture == "x86_64" and target.vector_bytes < 64 else 32


STORE = KernelStore()


def evaluate(
    x: Value, parameters: Sequence[int], variables: Mapping[Value, int] | None = None
) -> int:
    """An index of literals, parameters and these variables as a number."""
    found: dict[Value, int] = dict(variables or {})
    for v in walk(x):
        if v.args:
            found[v] = _ARITHMETIC[v.op](*[found[a] for a in v.args])
        elif v.op == "const":
            found[v] = integer_of(v)
        elif v.op == "parameter":
            found[v] = parameters[v.data]
    return found[x]


_ARITHMETIC: dict[str, Any] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "floordiv": lambda x, y: x // y,
    "rem": lambda x, y: x % y,
    "min": min,
    "max": max,
    "neg": lambda x: -x,
}
