"""What other libraries need to know of weft before they accept its tensors.

Most find all they need in the array API. einops looks for a backend class instead; it gets one as
soon as it is loaded, before or after weft, and weft never loads it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from weft.core.common import dtypes
from weft.core.common.slots import FUNCTIONS
from weft.core.tensor.tensor import Tensor

_EINOPS_BACKENDS = "einops._backends"
# einops finds backends among the subclasses of its own, which Python holds by weak references.
_backends: list[type[Any]] = []


def _register(module: ModuleType) -> None:
    """Give einops a backend for tensors."""
    methods = {
        "framework_name": "weft",
        "is_appropriate_type": lambda self, x: isinstance(x, Tensor),
        "is_float_type": lambda self, x: dtypes.is_inexact(x.dtype),
        "from_numpy": lambda self, x: FUNCTIONS["asarray"](x),
        "to_numpy": lambda self, x: x.numpy(),
        "arange": lambda self, start, stop: FUNCTIONS["arange"](start, stop),
        "transpose": lambda self, x, axes: FUNCTIONS["permute_dims"](x, axes),
        "stack_on_zeroth_dimension": lambda self, tensors: FUNCTIONS["stack"](tensors),
        "add_axis": lambda self, x, position: FUNCTIONS["expand_dims"](x, position),
        "tile": lambda self, x, repeats: FUNCTIONS["tile"](x, repeats),
        "concat": lambda self, tensors, axis: FUNCTIONS["concat"](tensors, axis=axis),
        "einsum": lambda self, pattern, *x: FUNCTIONS["einsum"](pattern, *x),
    }
    _backends.append(type("WeftBackend", (module.AbstractBackend,), methods))


class _Watch:
    """Finds nothing of its own; has `_register` called right after einops has been loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _EINOPS_BACKENDS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            _register(module)

        setattr(spec.loader, "exec_module", execute_and_register)  # noqa: B010
        return spec


if _EINOPS_BACKENDS in sys.modules:
    _register(sys.modules[_EINOPS_BACKENDS])
else:
    sys.meta_path.insert(0, _Watch())
