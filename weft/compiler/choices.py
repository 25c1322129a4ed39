"""What tuning has chosen for the kernels of this machine: kept with the compiled code.

One entry of the folder of compiled code holds all choices for a processor and a number of threads,
so a process reads it once, and other sources of the compiler find none.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, replace
from typing import TypeAlias

from weft.compiler.choice import Choice
from weft.compiler.rates import rates
from weft.config import settings
from weft.core.common.locks import lock_for
from weft.runtime.cpu.code_cache import code_cache, compiler_fingerprint
from weft.runtime.cpu.jit import chosen_target
from weft.runtime.cpu.pool import pool

Form: TypeAlias = Hashable  # a kernel: its form, and the sizes it is asked for

_tried: ContextVar[tuple[Mapping[Form, Choice], Choice | None] | None] = ContextVar(
    "weft_choices", default=None
)
MANY = 4  # threads, beyond which products are cut into more tiles,
EACH = 2  # so many for each of them
_known: dict[tuple[str, str], dict[str, Choice]] = {}  # by folder and entry
_lock = lock_for(sys.modules[__name__], "_lock")


@contextmanager
def trying(choices: Mapping[Form, Choice], others: Choice | None = None) -> Iterator[None]:
    """Inside, kernels are made by these choices; all that are not there by `others`, if given."""
    token = _tried.set((choices, others))
    try:
        yield
    finally:
        _tried.reset(token)


def choice_of(form: Form) -> Choice:
    """The choice for a kernel: what was found best here, or what the model takes."""
    tried = _tried.get()
    if tried is not None:
        choices, others = tried
        found = choices.get(form, others)
        if found is not None:
            return found
    kept = _kept()
    found = kept.get(_name(form)) if kept else None
    return rates().choice if found is None else found


def for_threads(choice: Choice) -> Choice:
    """The same choice with tiles enough for all threads, where they are many."""
    threads = settings.threads or pool.cores
    return choice if choice.tasks or threads <= MANY else replace(choice, tasks=EACH * threads)


def keep(choices: Mapping[Form, Choice]) -> bool:
    """Use these choices from now on, here and in later processes; says if they reach the disk."""
    folder, key = code_cache().folder, _key()
    with _lock:
        # Another process may have written meanwhile; what it found about other kernels stays.
        found = {**_known.get((folder.path, key), {}), **_read(key)}
        found |= {_name(form): choice for form, choice in choices.items()}
        _known[folder.path, key] = found
        stored = folder.counters.stored
        text = json.dumps({name: asdict(choice) for name, choice in found.items()})
        folder.write(key, text.encode())
        return folder.counters.stored > stored


def _kept() -> dict[str, Choice]:
    place = code_cache().folder.path, _key()
    with _lock:
        found = _known.get(place)
        if found is None:
            found = _known[place] = _read(place[1])
        return found


def _read(key: str) -> dict[str, Choice]:
    entry = code_cache().folder.read(key)
    if entry is None:
        return {}
    return {name: Choice(**fields) for name, fields in json.loads(entry).items()}


def _key() -> str:
    target = chosen_target()
    threads = settings.threads or pool.cores
    parts = (target.triple, target.cpu, target.features, compiler_fingerprint(), threads)
    return hashlib.sha256(repr(("choices", *parts)).encode()).hexdigest()


def _name(form: Form) -> str:
    return hashlib.sha256(repr(form).encode()).hexdigest()
