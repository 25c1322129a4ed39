"""Linear algebra of matrices of a few rows, in scalar instructions.

Choices between numbers stand where others branch, and every product, difference, quotient and root
is rounded once, so a kernel and NumPy compute the same bits. What comes beside a result says where
there is none: of a matrix that is singular, or not positive definite.
"""

from __future__ import annotations

from typing import Any, TypeAlias

MOST = 4  # rows of a matrix, where an op names no other number
TOGETHER = 32  # elements of right sides that are solved for together; of more, one by one

Matrix: TypeAlias = list[list[Any]]
Found: TypeAlias = tuple[Matrix, Any]


def solved(s: Any, a: Matrix, b: Matrix) -> Found:
    """X with A X = B, and whether A is singular."""
    size = len(a)
    rows, _ = eliminated(s, [[*left, *right] for left, right in zip(a, b, strict=True)])
    upper, right = [row[:size] for row in rows], [row[size:] for row in rows]
    found, _ = substituted(s, upper, right, lower=False, unit_diagonal=False)
    return found, is_zero(s, [upper[k][k] for k in range(size)])


def inverse(s: Any, a: Matrix) -> Found:
    """A⁻¹, and whether A is singular."""
    one, zero = (s.const(number, a[0][0].dtype) for number in (1, 0))
    identity = [[one if i == j else zero for j in range(len(a))] for i in range(len(a))]
    return solved(s, a, identity)


def determinant(s: Any, a: Matrix) -> Any:
    """The product of all pivots, whose sign changes with every exchange of rows."""
    rows, swaps = eliminated(s, a)
    found = rows[0][0]
    for k in range(1, len(a)):
        found = s.mul(found, rows[k][k])
    for swapped in swaps:
        found = s.select(swapped, s.neg(found), found)
    return found


def eliminated(s: Any, rows: Matrix) -> tuple[Matrix, list[Any]]:
    """Rows without what lies below the diagonal, and which exchanges of rows that took.

    The row with the largest element of a column comes first, as in LAPACK. If that one is 0, so are
    all below it, and nothing is subtracted.
    """
    rows, swaps = [list(row) for row in rows], []
    for k in range(len(rows)):
        for i in range(k + 1, len(rows)):
            better = s.less(s.abs(rows[k][k]), s.abs(rows[i][k]))
            pairs = list(zip(rows[k], rows[i], strict=True))
            rows[k] = [s.select(better, y, x) for x, y in pairs]
            rows[i] = [s.select(better, x, y) for x, y in pairs]
            swaps.append(better)
        zero, one = (s.const(number, rows[k][k].dtype) for number in (0, 1))
        pivot = s.select(s.equal(rows[k][k], zero), one, rows[k][k])
        for i in range(k + 1, len(rows)):
            times = s.div(rows[i][k], pivot)
            for j in range(k + 1, len(rows[i])):
                rows[i][j] = s.sub(rows[i][j], s.mul(times, rows[k][j]))
    return rows, swaps


def substituted(s: Any, a: Matrix, b: Matrix, *, lower: bool, unit_diagonal: bool) -> Found:
    """X with A X = B for a triangular A, and whether A is singular."""
    size = len(a)
    found: Matrix = [[] for _ in a]
    for i in range(size) if lower else reversed(range(size)):
        before = range(i) if lower else range(i + 1, size)
        for column, total in enumerate(b[i]):
            for j in before:
                total = s.sub(total, s.mul(a[i][j], found[j][column]))
            found[i].append(total if unit_diagonal else s.div(total, a[i][i]))
    return found, None if unit_diagonal else is_zero(s, [a[k][k] for k in range(size)])


def factor(s: Any, a: Matrix) -> Found:
    """The lower triangular L with L Lᵀ = (A + Aᵀ)/2, and whether that is not positive definite."""
    size, dtype = len(a), a[0][0].dtype
    zero, half = s.const(0, dtype), s.const(0.5, dtype)
    found = [[zero] * size for _ in a]
    unfit = None
    for j in range(size):
        for i in range(j, size):
            total = s.mul(s.add(a[i][j], a[j][i]), half)
            for k in range(j):
                total = s.sub(total, s.mul(found[i][k], found[j][k]))
            if i > j:
                found[i][j] = s.div(total, found[j][j])
                continue
            here = s.bit_or(s.less(total, zero), s.equal(total, zero))  # NaN is neither
            unfit = here if unfit is None else s.bit_or(unfit, here)
            found[j][j] = s.sqrt(total)
    return found, unfit


def cofactors(s: Any, a: Matrix) -> Matrix:
    """The adjugate: the determinants of what is left without a row and a column, transposed."""
    size = len(a)
    if size == 1:
        return [[s.const(1, a[0][0].dtype)]]

    def cofactor(i: int, j: int) -> Any:
        found = _determinant(s, _without(a, i, j))
        return s.neg(found) if (i + j) % 2 else found

    return [[cofactor(j, i) for j in range(size)] for i in range(size)]


def _without(a: Matrix, row: int, column: int) -> Matrix:
    rows = [x for i, x in enumerate(a) if i != row]
    return [[x for j, x in enumerate(each) if j != column] for each in rows]


def _determinant(s: Any, a: Matrix) -> Any:
    """The determinant by the elements of the first row; it needs no division."""
    total = None
    for j, x in enumerate(a[0]):
        term = s.mul(x, _determinant(s, _without(a, 0, j))) if len(a) > 1 else x
        if total is None:
            total = term
        else:
            total = s.sub(total, term) if j % 2 else s.add(total, term)
    return total


def is_zero(s: Any, numbers: list[Any]) -> Any:
    """Whether one of these is 0."""
    found = None
    for x in numbers:
        here = s.equal(x, s.const(0, x.dtype))
        found = here if found is None else s.bit_or(found, here)
    return found
