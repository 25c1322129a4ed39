"""Functions of floats, written once in scalar instructions: the same numbers on every backend.

| file | what lives in it |
|---|---|
| `expand` | from the name of a function to its instructions |
| `number`, `split` | scalars with operators; sums of two floats where one is too short |
| `coefficients` | the fitted polynomials, made by `tools/fit_functions.py` |
| `exponential`, `logarithm`, `power` | exponentials, logarithms, powers and roots |
| `trigonometric`, `hyperbolic` | circular and hyperbolic functions and their inverses |
| `complex_plane` | functions of complex numbers, on their parts |
| `error`, `gamma` | error functions; the logarithm of gamma, and its derivative |
| `bits` | signs, neighbours and exponents |
| `fused` | products and sums of arrays that are rounded once |
| `numpy_scalars` | the instructions on NumPy arrays: the reference for every backend's bits |
"""

from weft.ops.functions.expand import expand
from weft.ops.functions.numpy_scalars import NumpyScalars

__all__ = ["NumpyScalars", "expand"]
