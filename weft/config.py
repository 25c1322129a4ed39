"""Every setting of weft in one list; each can be given as an environment variable `WEFT_…`.

`show()` prints them with their values and origins.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

from weft.errors import ConfigError


@dataclass
class Settings:
    """The settings, with their defaults. Assigning one changes it for this process."""

    small_elements: int = 16_384  # operands up to this size run at once instead of being recorded
    flush_limit: int = 4_096  # recorded calls that may wait before they are run
    cache_threshold: int = 1 << 16  # bytes from which results come from the caching allocator
    logical_devices: int = 8  # how many devices `cpu:0 …` this process shows

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dataclass_fields__:
            known = ", ".join(self.__dataclass_fields__)
            raise ConfigError(f"config: there is no setting {name!r}\nhint: there are {known}")
        if not isinstance(value, int) or value < 0:
            raise ConfigError(f"config: {name} must be a non-negative integer, got {value!r}")
        super().__setattr__(name, value)


def _from_environment() -> Settings:
    made = Settings()
    for field in fields(Settings):
        text = os.environ.get(f"WEFT_{field.name.upper()}")
        if text is not None:
            if not text.isdecimal():
                raise ConfigError(
                    f"config: WEFT_{field.name.upper()} must be a number, got {text!r}"
                )
            setattr(made, field.name, int(text))
    return made


settings = _from_environment()


def show() -> str:
    """A table of all settings: name, value, default, environment variable. Printed and returned."""
    rows = []
    for field in fields(Settings):
        value = getattr(settings, field.name)
        mark = "" if value == field.default else f"   (default {field.default})"
        rows.append(f"{field.name:18} = {value:<10} WEFT_{field.name.upper()}{mark}")
    table = "\n".join(rows)
    print(table)
    return table
