"""Turn LLVM IR text into machine code, and machine code into addresses.

`compile_text` gives object code, which may be kept on disk; `load_object` maps it into this
process. LLVM comes from llvmlite, which is imported when code is first compiled. Threads compile at
the same time, each with a target machine; every module has a context of its own, so nothing grows.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.core.common.lazy import LazyModule
from weft.core.common.locks import lock_for
from weft.errors import UnsupportedError
from weft.runtime.cpu.room import room_for

if TYPE_CHECKING:
    from weft.runtime.cpu.code_image import Image

_llvm = LazyModule("llvmlite.binding")
_calls = LazyModule("weft.runtime.cpu.llvm_calls")
_image = LazyModule("weft.runtime.cpu.code_image")
_processor = LazyModule("weft.runtime.cpu.processor")
_lock = lock_for(sys.modules[__name__], "_lock")
_names = itertools.count()

# Locals become registers. The emitter writes each value once, where it belongs, and loops are
# scheduled in the loop IR, so that further passes cost compile time and give nothing.
_PASSES = ("sroa",)
_HWCAP, _BYTE_PRODUCTS = 16, 1 << 20  # of Linux: the word of features, and one of them
_ARCH_PRCTL, _REQUEST_STATE, _TILE_STATE = 158, 0x1023, 18  # the call of Linux on x86-64
_NEWEST_KNOWN = 22  # the LLVM whose options were last looked at
_MOST_TARGETS = 8
_machines: dict[tuple[Target, bool], list[Any]] = {}  # that nobody uses now
_forced: ContextVar[Target | None] = ContextVar("weft_target", default=None)


@dataclass(frozen=True, slots=True)
class Target:
    """A processor that code is made for; code for other features may not run there."""

    triple: str
    cpu: str
    features: str  # as LLVM writes them: "+neon,-sve"

    @property
    def vector_bytes(self) -> int:
        """Bytes of the widest vector register."""
        if self.has("avx512f"):
            return 64
        return 32 if self.has("avx") else 16

    @property
    def architecture(self) -> str:
        """The family of the instruction set, such as `aarch64` or `x86_64`."""
        return self.triple.split("-")[0]

    def has(self, feature: str) -> bool:
        """Whether the features name this one as present."""
        return f"+{feature}" in self.features.split(",")

    def without(self, prefix: str) -> Target:
        """The same processor, less every feature that starts with `prefix`: a test of old ones."""
        features = self.features.split(",") if self.features else []
        kept = [f"-{f[1:]}" if f[1:].startswith(prefix) else f for f in features]
        return replace(self, features=",".join(kept))

    def baseline(self) -> Target:
        """What every processor of this family can run."""
        cpu = "x86-64" if self.architecture == "x86_64" else "generic"
        return Target(self.triple, cpu, "")


class Linked:
    """Object code that LLVM has linked; addresses are valid while this is alive."""

    def __init__(self, engine: Any, library: Any) -> None:
        self._engine = engine  # outlives the library
        self._library = library
        self._held: list[Any] = []  # what a lookup returns holds the code in memory

    def address(self, name: str) -> int:
        """Where the function `name` begins."""
        try:
            with _lock:
                found = self._engine.lookup(self._library.name, name)
                self._held.append(found)
                return int(found[name])
        except RuntimeError as error:
            raise KeyError(f"jit: {name}: not found in this object code ({error})") from error


Loaded: TypeAlias = "Image | Linked"


def available() -> bool:
    """Whether machine code can be made and run here."""
    try:
        host_target()
        if not _image.can_map():
            _engine()
    except UnsupportedError:
        return False
    return True


@functools.cache
def host_target() -> Target:
    """The processor this runs on, with all it can do."""
    known = _processor.recall_processor()
    if known is None:
        _initialize()
        features = ",".join([_llvm.get_host_cpu_features().flatten(), *_unnamed_features()])
        known = _llvm.get_process_triple(), _llvm.get_host_cpu_name(), features
        _processor.keep_processor(known)
    found = Target(*known)
    if found.has("amx-tile") and not _are_tiles_granted():
        return found.without("amx")
    return found


def _unnamed_features() -> list[str]:
    """What Linux says of an ARM processor, and LLVM does not ask for: products of bytes."""
    if sys.platform != "linux" or platform.machine() != "aarch64":
        return []
    ask = ctypes.CDLL(None).getauxval
    ask.restype, ask.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return ["+dotprod"] if ask(_HWCAP) & _BYTE_PRODUCTS else []


def _are_tiles_granted() -> bool:
    """Ask Linux for the registers of AMX, for all threads of this process."""
    if sys.platform != "linux":
        return False
    ask = ctypes.CDLL(None).syscall
    ask.restype, ask.argtypes = ctypes.c_long, [ctypes.c_long] * 3
    return bool(ask(_ARCH_PRCTL, _REQUEST_STATE, _TILE_STATE) == 0)


def chosen_target() -> Target:
    """The processor that kernels are made for: this one, unless `using_target` says otherwise."""
    return _forced.get() or host_target()


@contextmanager
def using_target(target: Target) -> Iterator[None]:
    """Inside, kernels are made for `target`, which this processor must be able to run."""
    token = _forced.set(target)
    try:
        yield
    finally:
        _forced.reset(token)


def compile_text(text: str, target: Target, draft: bool = False) -> bytes:
    """The object code of a module in LLVM IR; a `draft` is made in a third of the time.

    Both give the same bits. Where loops are long vectors of arithmetic a draft takes half as long
    again to run, and elsewhere several times.
    """
    _initialize()
    library = _calls.calls()
    with room_for(text):
        if library is None:
            return bytes(_compiled(text, target, "emit_object", draft))
        with tuned(None if draft else target), _machine(target, draft) as machine:
            return bytes(library.object_code(text, machine))


def emit_assembly(text: str, triple: str, cpu: str = "", features: str = "") -> str:
    """A module in LLVM IR as assembly for any processor LLVM knows; for reading and for tests."""
    _initialize_all()
    return str(_compiled(text, Target(triple, cpu, features), "emit_assembly"))


def load_object(code: bytes) -> Loaded:
    """Map object code made for this processor into the process."""
    image: Image | None = _image.mapped(code)
    if image is not None:
        return image
    with _lock:
        engine = _engine()
        library = _llvm.JITLibraryBuilder().add_object_img(code)
        return Linked(engine, library.link(engine, f"weft{next(_names)}"))


def _compiled(text: str, target: Target, how: str, draft: bool = False) -> Any:
    """What a machine of llvmlite makes of a module, one at a time."""
    with _lock, tuned(None if draft else target), _machine(target, draft) as machine:
        context = _llvm.create_context()
        module = _llvm.parse_assembly(text, context)
        try:
            module.verify()
            if "alloca" in text:
                _optimize(module, machine)
            return getattr(machine, how)(module)
        finally:
            module.close()
            context.close()


class _Tuning:
    """Keeps LLVM from what costs more than it gains, while anything is compiled.

    Its search for better addresses takes up to half its time; to prepare the blocks once more,
    when the emitter has put each value where it belongs, takes a twentieth and changes nothing.
    Constants moved out of loops fill the registers of a long polynomial, where instructions of
    x86 take them from memory for nothing. On ARM, where vectors are short and many, counting the
    registers in use takes a quarter of the time and makes slower code, and to ask of any two places
    whether they are one takes a tenth and changes nothing. Options are those of the
    whole process: who comes first sets them, who leaves last sets them back, and who wants others
    waits until nobody is left. To set one takes as long as a few instructions take to compile, so
    who is about to compile many modules can have them stay. Drafts skip all that these are about,
    and have no target here.
    """

    def __init__(self) -> None:
        # Its own `with` keeps it when an interrupt comes just then; a condition's does not.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._inside: list[int] = []  # threads
        self._options: dict[str, bool] = {}
        self._stays = False

    @contextmanager
    def __call__(self, target: Target | None) -> Iterator[None]:
        thread = threading.get_ident()
        with self._lock:
            options = self._options if target is None else self._options_for(target)
            self._changed.wait_for(lambda: self._options == options or self._is_free())
            if self._is_free() and self._options != options:
                self._set(options)
            self._inside.append(thread)
        try:
            yield
        finally:
            with self._lock:
                self._inside.remove(thread)
                if not self._inside:
                    self.stay(self._stays)
                    self._changed.notify_all()

    def stay(self, stays: bool) -> None:
        """Whether options are left as they are when nothing is compiled."""
        with self._lock:
            self._stays = stays
            if not stays and not self._inside:
                self._set({})

    def _is_free(self) -> bool:
        """Whether no other thread compiles."""
        return all(thread == threading.get_ident() for thread in self._inside)

    @staticmethod
    def _options_for(target: Target) -> dict[str, bool]:
        if _llvm.llvm_version_info[0] > _NEWEST_KNOWN:  # an unknown option would end the process
            return {}
        options = {"disable-lsr": True}
        if target.architecture in ("x86_64", "aarch64"):
            options["disable-cgp"] = True
        if target.architecture == "x86_64":
            options["disable-machine-licm"] = True
        elif target.architecture == "aarch64":
            options["misched-regpressure"] = False
            options["aarch64-use-aa"] = False
            options["aarch64-enable-atomic-cfg-tidy"] = False
            options["aarch64-enable-loop-data-prefetch"] = False
        return options

    def _set(self, options: dict[str, bool]) -> None:
        library = _calls.calls()
        wanted = {name: not here for name, here in self._options.items()} | options
        for name, here in wanted.items():
            text = f"-{name}={here}".lower()
            if library is None:
                _llvm.set_option("", text)
            else:
                library.set_option(text)
        self._options = options

    def before_fork(self) -> None:
        """Wait until no other thread compiles: a child would wait forever for what LLVM locks."""
        self._lock.acquire()
        self._changed.wait_for(self._is_free)

    def after_fork(self) -> None:
        """Let compilations begin again."""
        self._lock.release()


tuned = _Tuning()


def _optimize(module: Any, machine: Any) -> None:
    builder = _llvm.create_pass_builder(machine, _llvm.create_pipeline_tuning_options(1))
    passes = _llvm.create_new_module_pass_manager()
    for name in _PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, builder)


@contextmanager
def _machine(target: Target, draft: bool = False) -> Iterator[Any]:
    """A machine that makes code for `target`, which nobody else uses inside."""
    free = _machines.setdefault((target, draft), [])
    try:
        machine = free.pop()
    except IndexError:
        machine = _new_machine(target, draft)
    try:
        yield machine
    finally:
        if len(_machines) <= _MOST_TARGETS:
            free.append(machine)
        else:
            _machines.clear()


def _new_machine(target: Target, draft: bool = False) -> Any:
    # Position independent, so that one object needs nothing outside its own pages.
    family = _llvm.Target.from_triple(target.triple)
    return family.create_target_machine(
        cpu=target.cpu,
        features=target.features,
        opt=0 if draft else 2,
        reloc="pic",
        codemodel="small",
    )


@functools.cache
def _initialize() -> None:
    try:
        _llvm.load()
    except (ImportError, OSError) as error:
        raise UnsupportedError(
            f"jit: llvmlite cannot be loaded ({error})\nhint: pip install llvmlite"
        ) from error
    with _lock:
        _llvm.initialize_native_target()
        _llvm.initialize_native_asmprinter()


@functools.cache
def _initialize_all() -> None:
    _initialize()
    with _lock:
        _llvm.initialize_all_targets()
        _llvm.initialize_all_asmprinters()


@functools.cache
def _engine() -> Any:
    _initialize()
    with _lock:
        try:
            _llvm.check_jit_execution()
            return _llvm.create_lljit_compiler(_new_machine(host_target()), use_jit_link=True)
        except (OSError, RuntimeError) as error:
            raise UnsupportedError(
                f"jit: this system refuses memory for machine code ({error})\n"
                "hint: its security settings must allow executable memory"
            ) from error


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=tuned.before_fork,
        after_in_parent=tuned.after_fork,
        after_in_child=tuned.after_fork,
    )
