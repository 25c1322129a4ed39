"""The sanctioned way to load a heavy module late: it is imported when it is first used."""

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
        module = LazyModule.load(self)  # the module may have a `load` of its own
        self.__dict__.update(module.__dict__)
        return getattr(module, attribute)


class LazyAttribute:
    """A class attribute that is another module's, which is loaded when the attribute is first read.

    >>> class Root:
    ...     function = LazyAttribute("math", "sqrt")
    >>> Root.function(4.0)
    2.0
    """

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name
        self._value: Any = None

    def __get__(self, instance: object, owner: type) -> Any:
        if self._value is None:
            self._value = getattr(importlib.import_module(self._module), self._name)
        return self._value
