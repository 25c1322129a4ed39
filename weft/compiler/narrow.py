"""Products of bfloat16: which of them are summed as instructions sum, and the same ones widened.

A processor that multiplies tiles, or pairs, adds products in an order of its own. There every
product of bfloat16 goes that way, whatever its shape, so that its bits do not depend on how it is
computed. Tiles are faster than pairs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.compiler.emit_cpu import native_to
from weft.compiler.emit_tiles import feature_of
from weft.compiler.emit_words import PAIRS
from weft.compiler.loops import Kernel, Part, Reduce, Statement, every, value
from weft.compiler.rebuild import Statements, with_body
from weft.core.common.dtypes import bfloat16
from weft.core.common.types import DType
from weft.runtime.cpu.jit import chosen_target

_FLOAT = np.dtype(np.float32)
_COMBINES = ("dot", "pairs")


def narrow_combine(dtype: DType) -> str:
    """How products of this dtype are combined on the processor at hand; empty if widened.

    That is `dot` for tiles, and else `pairs`.
    """
    native = native_to(chosen_target()) if dtype == bfloat16 else frozenset()
    return "dot" if feature_of(dtype) in native else "pairs" if PAIRS in native else ""


def has_narrow_product(kernel: Kernel) -> bool:
    """Whether a kernel has a `dot` or `pairs` of bfloat16."""
    return any(isinstance(s, Reduce) and _is_narrow(s) for s in every(kernel.body))


def widened(kernel: Kernel) -> Kernel:
    """The kernel whose factors are cast to float32 before they are multiplied."""
    return replace(kernel, body=_widened(kernel.body)) if has_narrow_product(kernel) else kernel


def _is_narrow(reduce: Reduce) -> bool:
    return any(p.combine in _COMBINES and p.values[0].dtype == bfloat16 for p in reduce.parts)


def _widened(statements: Statements) -> Statements:
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Reduce) and _is_narrow(statement):
            parts = tuple(
                Part(p.targets, "dot", tuple(value("cast", (x,), _FLOAT) for x in p.values))
                for p in statement.parts
            )
            statement = replace(statement, parts=parts)
        inner = statement.body
        made.append(with_body(statement, _widened(inner)) if inner else statement)
    return tuple(made)
