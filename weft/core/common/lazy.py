"""The one sanctioned way to load a heavy module late: it is imported at its first attribute."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """Stands for module `name` and imports it when an attribute is first read.

    >>> LazyModule("math").sqrt(4.0)
    2.0
    """

    def load(self) -> ModuleType:
        """The module itself."""
        return importlib.import_module(self.__name__)

    def __getattr__(self, attribute: str) -> Any:
        module = self.load()
        self.__dict__.update(module.__dict__)
        return getattr(module, attribute)
