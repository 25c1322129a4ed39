"""Operations: each one definition, from which every rule follows.

`base` declares what an op is, `families` what kinds of ops share, `dispatch` what happens to one that
no transform claims, `scalars` the instructions kernels are written in. The other modules define ops:
element by element (`arithmetic`, `elementary`, …), over axes (`reduction`, `order`, `contraction`, …), moving
elements (`view/`, `gather`, `indexing`), with subgraphs (`branches`, `loops`, `graph_call`).
"""

from weft.ops.base import Cost, Example, Linear, Operation
from weft.ops.dispatch import execute_operation
from weft.ops.families import (
    BinaryOperation,
    CollectiveOperation,
    ElementwiseOperation,
    LogicalAxisOperation,
    LogicalShapeOperation,
    ReduceOperation,
    UnaryOperation,
)

__all__ = [
    "BinaryOperation",
    "CollectiveOperation",
    "Cost",
    "ElementwiseOperation",
    "Example",
    "Linear",
    "LogicalAxisOperation",
    "LogicalShapeOperation",
    "Operation",
    "ReduceOperation",
    "UnaryOperation",
    "execute_operation",
]
