"""Linear systems solved by iterations, which need no matrix, only what it does to a vector.

A solution is differentiated by its equation, not through the iterations: derivatives are solutions
of systems with the same matrix, to any order, however many steps they took.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

from weft.core.common import dtypes
from weft.core.common.parameters import as_function, as_integer, as_real
from weft.core.common.trees import tree_flatten, tree_unflatten
from weft.core.tensor.convert import device_of, to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import DTypeError, ShapeError, TreeError
from weft.ops import reduction
from weft.ops.base import call
from weft.ops.contraction import matmul, vdot
from weft.ops.control.graph_call import capture
from weft.ops.control.loops import fori_loop, while_loop
from weft.ops.creation import zeros, zeros_like
from weft.ops.elementwise.arithmetic import divide, where
from weft.ops.elementwise.bitwise import logical_and
from weft.ops.elementwise.comparison import equal, greater, less, less_equal, maximum
from weft.ops.elementwise.complex_parts import conj, real
from weft.ops.elementwise.elementary import sqrt
from weft.ops.elementwise.rounding import frexp, ldexp
from weft.ops.families import cast
from weft.ops.index_update import index_set
from weft.ops.linalg import pinv_op
from weft.ops.norms import inexact
from weft.ops.systems import promoted
from weft.ops.view.join import concat, stack
from weft.ops.view.reshape import expand_dims, reshape
from weft.ops.view.slice import narrow
from weft.ops.view.transpose import matrix_transpose
from weft.transforms.custom import custom_vjp
from weft.transforms.vjp import vjp

Vectors = tuple[Any, ...]
Linear = Callable[[Vectors], Vectors]
Applied = Callable[[Vectors, Vectors], Vectors]  # of what a linear map holds, and of a vector
Run = Callable[[Linear, Linear, Vectors, Vectors, Any], Any]


class CGResult(NamedTuple):
    """A solution, and 0 if it is as good as asked for, or else the steps it took, 1 at least."""

    x: Any
    info: Tensor


class GMRESResult(NamedTuple):
    """A solution, and 0 if it is as good as asked for, or else the rounds it took, 1 at least."""

    x: Any
    info: Tensor


class Map(NamedTuple):
    """A linear function of tensors, with what it captured as operands of their own."""

    function: Applied
    captured: Vectors


def cg(
    a: Any,
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    maxiter: int | None = None,
    M: Any = None,
) -> CGResult:
    """The x with `a` x = `b` by conjugate gradients, for a symmetric (Hermitian) positive `a`.

    `a` is a matrix or a linear function; `b` is a tensor or a tree of them, such as a gradient. The
    steps, `maxiter` at most (10 for each number sought), begin at `x0` and end when the residual is
    shorter than `tol` of `b`, or `atol`. `M`, also a matrix or a function, is close to the inverse.
    Derivatives by `b` and by all that `a` is made of solve the same system again.

    >>> x, info = cg([[4.0, 1.0], [1.0, 3.0]], [6.0, 7.0])
    >>> [round(value, 4) for value in x.tolist()], info.item()
    ([1.0, 2.0], 0)
    """
    tol, atol, most = _limits("cg", tol, atol, maxiter)

    def run(apply: Linear, nearly: Linear, b: Vectors, start: Vectors, atol: Any) -> Any:
        return _iterated(apply, nearly, b, start, (tol, atol, _most(most, b)))

    return CGResult(*_solved("cg", (a, b, x0, M), run, atol, _conjugated))


def gmres(
    a: Any,
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    restart: int = 20,
    maxiter: int | None = None,
    M: Any = None,
) -> GMRESResult:
    """The x with `a` x = `b` by generalized minimal residuals, for any `a` that has an inverse.

    As `cg`; but after every `restart` steps, which are kept, it begins again at what it has found,
    `maxiter` times at most (10 for each number sought); `info` counts these rounds. `M` is applied
    before `a`. Derivatives solve the transposed system.

    >>> x, info = gmres([[1.0, 2.0], [0.0, 4.0]], [5.0, 8.0])
    >>> [round(value, 4) for value in x.tolist()], info.item()
    ([1.0, 2.0], 0)
    """
    tol, atol, most = _limits("gmres", tol, atol, maxiter)
    restart = as_integer("gmres", "restart", restart, 1)

    def run(apply: Linear, nearly: Linear, b: Vectors, start: Vectors, atol: Any) -> Any:
        steps = min(restart, max(_count(b), 1))
        return _minimized(apply, nearly, b, start, (tol, atol, _most(most, b), steps))

    return GMRESResult(*_solved("gmres", (a, b, x0, M), run, atol, _transposed))


def _limits(op: str, tol: Any, atol: Any, maxiter: Any) -> tuple[float, float, int | None]:
    tol, atol = (as_real(op, n, v, 0, decides=True) for n, v in (("tol", tol), ("atol", atol)))
    return tol, atol, None if maxiter is None else as_integer(op, "maxiter", maxiter, 0)


def _count(b: Vectors) -> int:
    return sum(x.size for x in b)


def _most(given: int | None, b: Vectors) -> int:
    return 10 * _count(b) if given is None else given


def _solved(
    op: str, given: tuple[Any, Any, Any, Any], run: Run, atol: float, turn: Callable[..., Applied]
) -> tuple[Any, Tensor]:
    """What `run` finds for a, b, x0 and M as users give them; `turn` transposes linear maps."""
    a, b, x0, near = given
    if not callable(a):
        a, b = promoted(op, a, b)
    leaves, structure = tree_flatten(b)
    right = tuple(inexact(op, leaf) for leaf in leaves)
    start = _start(f"{op}: x0", x0, right, structure)
    maps = [_linear(op, n, f, right, structure) for n, f in (("a", a), ("M", near))]
    solution = _by_equation(maps[0].function, maps[1].function, run, atol, turn)
    x, info = solution(maps[0].captured, maps[1].captured, right, start)
    return tree_unflatten(structure, list(x)), info


def _by_equation(
    function: Applied, near: Applied, run: Run, atol: float, turn: Callable[..., Applied]
) -> Any:
    """What solves with a linear map; its derivative solves with the transposed one."""

    @custom_vjp
    def solution(held: Vectors, other: Vectors, b: Vectors, start: Vectors) -> Any:
        def apply(v: Vectors) -> Vectors:
            return function(held, v)

        def solve(b: Vectors, start: Vectors, atol: Any) -> Any:
            return run(apply, lambda v: near(other, v), b, start, atol)

        return _in_scale(solve, apply, b, start, atol)

    def forward(held: Vectors, other: Vectors, b: Vectors, start: Vectors) -> Any:
        x, info = solution(held, other, b, start)
        return (x, info), (held, other, x)

    def backward(saved: Any, ct: Any) -> Any:
        held, other, x = saved
        turned = _by_equation(turn(function), turn(near), run, atol, turn)
        by_b, _ = turned(held, other, ct[0], zeros_like_each(ct[0]))
        if not held:
            return (), None, by_b, None
        _, pull = vjp(lambda held: function(held, x), held)
        return pull(tuple(-y for y in by_b))[0], None, by_b, None

    solution.defvjp(forward, backward)
    return solution


def _conjugated(function: Applied) -> Applied:
    """The transpose of a Hermitian map, which is its conjugate."""

    def turned(held: Vectors, v: Vectors) -> Vectors:
        return tuple(conj(x) for x in function(held, tuple(conj(x) for x in v)))

    return turned


def _transposed(function: Applied) -> Applied:
    def turned(held: Vectors, v: Vectors) -> Vectors:
        _, pull = vjp(lambda u: function(held, u), v)
        found: Vectors = pull(v)[0]
        return found

    return turned


def _minimized(
    apply: Linear,
    nearly: Linear,
    b: Vectors,
    start: Vectors,
    limits: tuple[float, Any, int, int],
) -> Any:
    """GMRES from `start`; gives the solution and `info`."""
    tol, atol, most, steps = limits
    enough = maximum(tol**2 * _dot(b, b), atol**2)

    def residual(x: Vectors) -> Vectors:
        return tuple(u - v for u, v in zip(b, apply(x), strict=True))

    def proceeds(state: Any) -> Any:
        _, r, count = state
        return logical_and(greater(_dot(r, r), enough), less(count, most))

    def round_of_steps(state: Any) -> Any:
        x, r, count = state
        change = nearly(_best_change(lambda v: apply(nearly(v)), r, steps))
        x = tuple(u + v for u, v in zip(x, change, strict=True))
        return x, residual(x), count + 1

    x, r, count = while_loop(proceeds, round_of_steps, (start, residual(start), _no_steps(b)))
    return x, where(less_equal(_dot(r, r), enough), 0, maximum(count, 1))


def _best_change(apply: Linear, r: Vectors, steps: int) -> Vectors:
    """Of all combinations of r, A r, …, Aᵏ⁻¹ r the one that A takes nearest to r (Arnoldi)."""
    flat = concat([reshape(x, (-1,)) for x in r])

    def leaves(v: Tensor) -> Vectors:
        parts, first = [], 0
        for x in r:
            parts.append(cast(reshape(narrow(v, 0, first, x.size), x.shape), x.dtype))
            first += x.size
        return tuple(parts)

    def step(k: Any, state: Any) -> Any:
        basis, table = state
        moved = apply(leaves(basis[k]))
        w = cast(concat([reshape(x, (-1,)) for x in moved]), flat.dtype)
        before = zeros((steps + 1,), dtype=flat.dtype, device=flat.device)
        for _ in range(2):  # a second time for what rounding left
            share = matmul(conj(basis), w)
            w, before = w - matmul(share, basis), before + share
        size = _length(w)
        # What rounding alone has left is no direction: the space is all there is.
        size = where(size > 10 * dtypes.finfo(size.dtype).eps * _length(before), size, 0)
        unit = w / cast(where(equal(size, 0), inf, size), w.dtype)
        column = index_set(before, k + 1, cast(size, w.dtype))
        return index_set(basis, k + 1, unit), index_set(table, k, column)

    size = _length(flat)
    first = flat / cast(where(equal(size, 0), 1, size), flat.dtype)
    gap = zeros((steps, *flat.shape), dtype=flat.dtype, device=flat.device)
    table = zeros((steps, steps + 1), dtype=flat.dtype, device=flat.device)
    state = (concat([expand_dims(first, 0), gap]), table)
    basis, table = fori_loop(0, steps, step, state)
    rtol = 10 * float(dtypes.finfo(size.dtype).eps)
    best = call(pinv_op, (matrix_transpose(table),), {"rtol": rtol})[:, 0] * cast(size, flat.dtype)
    return leaves(matmul(best, basis[:steps]))


def _in_scale(
    solve: Callable[[Vectors, Vectors, Any], Any],
    apply: Linear,
    b: Vectors,
    start: Vectors,
    atol: float,
) -> Any:
    """Solve for numbers of about 1, over a power of two: no square overflows or vanishes."""
    r = tuple(u - v for u, v in zip(b, apply(start), strict=True))
    sizes = [cast(reduction.max(abs(x)), dtypes.float64) for x in (*b, *r) if x.size]
    none = zeros((), dtype=dtypes.float64, device=device_of(*b))
    size = reduction.max(stack(sizes)) if sizes else none
    fits = logical_and(greater(size, 0), less(size, inf))
    _, exponent = frexp(where(fits, size, 1.0))

    def times(v: Vectors, power: Tensor) -> Vectors:
        for part in (power // 2, power - power // 2):  # the whole may be past all numbers
            v = tuple(x * cast(ldexp(1.0, part), real(x).dtype) for x in v)
        return v

    x, info = solve(times(b, -exponent), times(start, -exponent), ldexp(atol, -exponent))
    return times(x, exponent), info


def _length(x: Tensor) -> Any:
    return sqrt(real(vdot(x, x)))


def zeros_like_each(tensors: Vectors) -> Vectors:
    """Zeros of the types of some tensors."""
    return tuple(zeros_like(x) for x in tensors)


def _start(name: str, x0: Any, right: Vectors, structure: Any) -> Vectors:
    """Where a search begins: zeros if nothing is given; beside one tensor, lists are one too."""
    if x0 is None:
        return zeros_like_each(right)
    if structure.is_leaf():
        x0 = to_tensor(x0, beside=right, op=name)
    return _like(name, x0, right, structure)


def _like(name: str, tree: Any, right: Vectors, structure: Any) -> Vectors:
    """The leaves of a tree that must be of the shapes of `b`."""
    leaves, found = tree_flatten(tree)
    if found != structure:
        raise TreeError(f"{name}: structure {found}, b has {structure}")
    tensors = tuple(to_tensor(leaf, beside=right, op=name) for leaf in leaves)
    shapes = [x.shape for x in tensors], [x.shape for x in right]
    if shapes[0] != shapes[1]:
        raise ShapeError(f"{name}: shapes {shapes[0]}, b has {shapes[1]}")
    for x, y in zip(tensors, right, strict=True):
        if dtypes.promote(x.dtype, y.dtype, op=name) != y.dtype:
            raise DTypeError(f"{name}: {x.dtype}, but b is {y.dtype}\nhint: cast b first")
    return tuple(cast(x, y.dtype) for x, y in zip(tensors, right, strict=True))


def _linear(op: str, operand: str, given: Any, right: Vectors, structure: Any) -> Map:
    """A matrix or function as a map from leaves to leaves; None leaves all as it is."""
    name = f"{op}: {operand}"
    if given is None:
        return Map(lambda held, v: v, ())
    if not callable(given):
        matrix = inexact(name, given, *right)
        if len(right) != 1 or matrix.shape != (right[0].shape[:1] * 2 or None):
            shapes = ", ".join(str(x.shape) for x in right)
            raise ShapeError(
                f"{name}: expected a square matrix that fits b, got {matrix.shape} and {shapes}"
                f"\nhint: map {op} over batches with wf.vmap"
            )
        return Map(lambda held, v: _like(name, [matmul(held[0], v[0])], v, _ONE), (matrix,))
    as_function(op, name, given)
    trace, operands, shape = capture(
        lambda v: given(v),
        (tree_unflatten(structure, list(right)),),
        {},
        constants=False,
        label=op,
    )

    def function(held: Vectors, v: Vectors) -> Vectors:
        return _like(name, tree_unflatten(shape, list(trace.replay(*v, *held))), v, structure)

    return Map(function, tuple(operands[len(right) :]))


_ONE = tree_flatten([0])[1]


def _dot(x: Vectors, y: Vectors) -> Any:
    """The real part of the scalar product, over all leaves."""
    zero = zeros((), device=device_of(*x))
    return sum((real(vdot(a, b)) for a, b in zip(x, y, strict=True)), zero)


def _no_steps(beside: Vectors) -> Tensor:
    """The number of steps before any was taken."""
    return zeros((), dtype=dtypes.int64, device=device_of(*beside))


def _along(x: Vectors, step: Any, y: Vectors) -> Vectors:
    return tuple(a + cast(step, a.dtype) * b for a, b in zip(x, y, strict=True))


def _iterated(
    apply: Linear,
    nearly: Linear,
    b: Vectors,
    start: Vectors,
    limits: tuple[float, Any, int],
) -> Any:
    """Conjugate gradients from `start`; gives the solution and `info`."""
    tol, atol, most = limits
    enough = maximum(tol**2 * _dot(b, b), atol**2)

    def proceeds(state: Any) -> Any:
        _, r, _, _, count = state
        return logical_and(greater(_dot(r, r), enough), less(count, most))

    def step(state: Any) -> Any:
        x, r, p, gamma, count = state
        moved = apply(p)
        bend = _dot(p, moved)
        # Rounding can end in p = 0 above the limit: a step of length 0 then, not NaN.
        alpha = divide(gamma, where(equal(bend, 0), 1, bend))
        x, r = _along(x, alpha, p), _along(r, -alpha, moved)
        z = nearly(r)
        new = _dot(r, z)
        p = _along(z, divide(new, where(equal(gamma, 0), 1, gamma)), p)
        return x, r, p, new, count + 1

    r = tuple(x - y for x, y in zip(b, apply(start), strict=True))
    z = nearly(r)
    x, r, _, _, count = while_loop(proceeds, step, (start, r, z, _dot(r, z), _no_steps(b)))
    return x, where(less_equal(_dot(r, r), enough), 0, maximum(count, 1))


__all__ = [
    "CGResult",
    "GMRESResult",
    "cg",
    "gmres",
]
