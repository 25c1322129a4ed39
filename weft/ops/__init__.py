"""Operations: each one definition, from which every rule follows.

| file | what lives in it |
|---|---|
| `base`, `families`, `axes` | what an op is, what kinds of ops share, axis parameters |
| `dispatch` | the bottom of the handler stack: run or record; `realize` |
| `scalars` | the scalar instructions of kernels |
| `arithmetic`, `comparison`, `bitwise`, `rounding` | each element: numbers, order, bits |
| `elementary`, `activation`, `complex_parts` | functions of each element |
| `special_functions`, `gamma_functions` | special functions of each element |
| `reduction`, `statistics`, `norms`, `order`, `search` | over axes: sums, spread, order, sets |
| `contraction`, `einsum`, `convolution`, `pooling` | products and sliding windows |
| `linalg`, `decompositions`, `fft` | matrices and Fourier transforms |
| `normalization`, `loss`, `resample` | composites for models and images |
| `creation`, `ranges`, `diagonals` | make tensors |
| `view/`, `manipulation`, `multi_output`, `padding` | move elements, cut and join |
| `gather`, `indexing`, `index_update`, `selection` | read and write at positions |
| `branches`, `loops`, `loop_ops`, `control_flow`, `graph_call` | ops that hold subgraphs |
| `custom_op`, `named_axis` | the user's own kernels; values over a mapped axis |
| `random_bits`, `random_state`, `random_draws` | bits, keys and the global generator |
| `random_transforms`, `random_gamma`, `random_discrete`, `random_counts` | distributions |
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
