"""Every setting of weft in one list; each can be given as an environment variable `WEFT_…`.

`show()` prints them with their values and origins.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from weft.errors import ConfigError

_PREFIX = "WEFT_"
_OTHERS = frozenset({"WEFT_TEST_SEED"})  # variables of this name that are no settings


def _setting(default: int | str, meaning: str, least: int = 0, most: int = sys.maxsize) -> Any:
    return field(default=default, metadata={"meaning": meaning, "least": least, "most": most})


@dataclass
class Settings:
    """The settings, with their defaults. Assigning one changes it for this process."""

    small_elements: int = _setting(16_384, "results up to this size run at the call, unrecorded")
    flush_limit: int = _setting(4_096, "recorded calls that may wait before they are run", 1)
    flush_bytes: int = _setting(1 << 30, "bytes that waiting calls may keep alive before they run")
    cache_threshold: int = _setting(1 << 16, "bytes from which results come from weft's allocator")
    compile_after: int = _setting(1, "runs of a recorded graph before it is compiled")
    often_ms: int = _setting(30, "milliseconds of small calls of a kind, then compiled; 0: never")
    compile_elements: int = _setting(1 << 20, "results from which a graph is compiled at once")
    drafts: int = _setting(1, "0 waits for the best code of small graphs, too, when first called")
    logical_devices: int = _setting(8, "how many devices cpu:0 … this process shows", 1, 2**16)
    threads: int = _setting(0, "threads that compiled programs use; 0 is one for each core")
    cache_dir: str = _setting("", "folder of compiled code; empty is weft in the user's cache")
    cache_bytes: int = _setting(1 << 30, "bytes of compiled code kept on disk; 0 keeps none")
    kept_bytes: int = _setting(1 << 32, "bytes of packed weights that a compiled program may keep")
    calibrate: int = _setting(1, "0 compiles by fixed costs, whatever this machine can do")
    check_bounds: int = _setting(0, "1 makes kernels check where they read and write: slow")
    rank_timeout: int = _setting(600, "seconds a collective waits for the other processes", 1)
    shared_memory: int = _setting(1, "0 sends messages between processes of one host, too")

    def __setattr__(self, name: str, value: Any) -> None:
        known = self.__dataclass_fields__
        if name not in known:
            raise ConfigError(
                f"config: there is no setting {name!r}\nhint: there are {', '.join(known)}"
            )
        least = known[name].metadata["least"]
        if type(known[name].default) is str:
            if type(value) is not str or "\0" in value:
                raise ConfigError(f"config: {name} must be a text without NUL, got {value!r}")
        elif type(value) is not int or value < least:
            raise ConfigError(
                f"config: {name} must be an integer of at least {least}, got {value!r}"
            )
        elif value > (most := known[name].metadata["most"]):
            raise ConfigError(f"config: {name} must be at most {most}, got {value!r}")
        super().__setattr__(name, value)


def from_environment(environment: Mapping[str, str]) -> Settings:
    """The settings as these environment variables give them; a bad value is an error."""
    made = Settings()
    for each in fields(Settings):
        variable = _PREFIX + each.name.upper()
        text = environment.get(variable)
        if text is None:
            continue
        if type(each.default) is str:
            setattr(made, each.name, text)
        elif text.isascii() and text.isdecimal():
            setattr(made, each.name, int(text))
        else:
            raise ConfigError(f"config: {variable} must be a whole number, got {text!r}")
    return made


settings = from_environment(os.environ)


def show() -> str:
    """A table of all settings: name, value, variable, meaning. Printed and returned."""
    rows = []
    for each in fields(Settings):
        value = getattr(settings, each.name)
        mark = "" if value == each.default else f" (default {each.default})"
        variable = _PREFIX + each.name.upper()
        rows.append(f"{each.name:16} = {value:<11} {variable:22} {each.metadata['meaning']}{mark}")
    known = {_PREFIX + each.name.upper() for each in fields(Settings)} | _OTHERS
    for variable in sorted(v for v in os.environ if v.startswith(_PREFIX) and v not in known):
        rows.append(f"{variable} is set, but is no setting of weft")
    table = "\n".join(rows)
    print(table)
    return table
