"""Operations: each one definition, from which every rule follows.

| file | what lives in it |
|---|---|
| `base`, `families`, `axes` | what an op is, what kinds of ops share, axis parameters |
| `dispatch` | the bottom of the handler stack: run or record; `realize` |
| `ready` | small calls that come again: how each runs |
| `often`, `naming` | composed functions that come often, compiled; whom errors speak of |
| `scalars`, `exact` | the scalar instructions of kernels; whose results have no choice |
| `functions/` | exp, sin, erf… in scalar instructions, for every backend |
| `elementwise/` | functions of each element: arithmetic, order, bits, elementary, special |
| `packing` | bits in bytes |
| `reduction`, `statistics`, `quantiles`, `norms` | over axes: sums, spread, order |
| `exponential_sums` | over axes: sums of exponentials, and what is divided by them |
| `sorting`, `order`, `search`, `distinct` | order along axes, running values, positions, sets |
| `histograms` | how often numbers are there, points in bins |
| `curves` | interpolation, slopes, areas, windows |
| `contraction`, `einsum` | matrix products and what is spelled with them |
| `matrices`, `few`, `linalg`, `decompositions`, `fft` | matrices, Fourier transforms |
| `systems` | equations solved, and factors that are kept for more of them |
| `creation`, `ranges`, `diagonals` | make tensors |
| `placement` | copies, and moves between devices |
| `foreign` | tensors over memory of a GPU that belongs to another library |
| `facts` | what is known without values: axes, sizes, kinds |
| `view/`, `manipulation`, `multi_output`, `padding` | move elements, cut and join |
| `gather`, `indexing`, `index_update`, `selection` | read and write at positions |
| `dynamic` | parts that begin where values say |
| `nn/` | convolution, pooling, activations, normalisation, losses, resampling |
| `random/` | bits, keys and distributions |
| `control/` | branches, loops, captured functions, the user's own kernels |
| `communication/` | tensors over meshes: layouts, and what moves between devices |
| `named_axis` | values over a mapped axis |
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
