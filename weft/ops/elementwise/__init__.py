"""Functions of each element.

| file | what lives in it |
|---|---|
| `arithmetic` | Python's operators, powers, remainders, casts, choice |
| `comparison` | comparisons, extrema of two operands, closeness |
| `bitwise` | bits of integers, and truth values |
| `rounding` | rounding, signs, the parts of a float |
| `elementary` | exponentials, logarithms, roots, trigonometry |
| `complex_parts` | complex numbers and their parts; NaN and infinity |
| `special_functions` | error functions, logarithms that meet zeros, Bessel functions |
| `gamma_functions` | gamma, beta, polygamma, zeta, incomplete integrals |
| `gamma_slope` | how the incomplete gamma function changes with its shape, as numbers |
"""
