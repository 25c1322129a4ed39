"""Linear algebra of matrices of a few rows: kernels, the same bits in every tier, and mistakes."""

import numpy as np
import pytest

import weft as wf
from tests.compiler.bits import compiled
from weft import linalg
from weft.compiler.point import kind_of
from weft.errors import ArgumentError
from weft.ops.few import MOST, TOGETHER
from weft.ops.linalg import Cholesky, Inv, Solve, TriangularSolve

SIZES = range(1, MOST + 1)
FLOATS = [np.float32, np.float64]


def matrices(n, dtype, batch=(), seed=0):
    return np.random.default_rng([n, seed]).normal(size=(*batch, n, n)).astype(dtype)


def definite(n, dtype, batch=()):
    a = matrices(n, np.float64, batch)
    return (a @ a.swapaxes(-1, -2) + np.eye(n)).astype(dtype)


def triangular(**options):
    return lambda a, b: linalg.solve_triangular(a, b, **options)


def turned(a):
    return a.swapaxes(-1, -2)


# (function, its counterpart in NumPy, what makes the operands beside the matrix)
CASES = {
    "solve": (linalg.solve, np.linalg.solve, True),
    "inv": (linalg.inv, np.linalg.inv, False),
    "det": (linalg.det, np.linalg.det, False),
    "cholesky": (linalg.cholesky, np.linalg.cholesky, False),
    "lower": (triangular(lower=True), lambda a, b: np.linalg.solve(np.tril(a), b), True),
    "upper": (triangular(lower=False), lambda a, b: np.linalg.solve(np.triu(a), b), True),
    "transposed": (
        triangular(lower=True, transpose=True),
        lambda a, b: np.linalg.solve(turned(np.tril(a)), b),
        True,
    ),
}


def operands(name, n, dtype, batch, columns=2):
    a = definite(n, dtype, batch)
    if not CASES[name][2]:
        return (a,)
    return a, np.random.default_rng(n).normal(size=(*batch, n, columns)).astype(dtype)


LARGEST = {  # matrices that still have a kernel
    "solve": Solve.most,
    "inv": Inv.most,
    "det": MOST,
    "cholesky": Cholesky.most,
    "lower": TriangularSolve.most,
    "upper": TriangularSolve.most,
    "transposed": TriangularSolve.most,
}
EACH = [(name, n) for name, most in LARGEST.items() for n in sorted({*SIZES, most})]


def by_reference(function, given):
    """What NumPy's instructions make of the operands of a function that is one call."""
    (node,) = wf.trace(function, *map(wf.tensor, given)).nodes
    assert kind_of(node) == "few"
    return node.op.eval(*given, **node.params)


def close(found, wanted, dtype):
    atol = 200 * np.finfo(dtype).eps * max(1.0, np.abs(wanted).max(initial=0))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("batch", [(), (1,), (7,), (3, 5), (0,)])
@pytest.mark.parametrize(("name", "n"), EACH)
def test_a_kernel_and_its_reference_give_the_same_bits(name, n, batch, dtype):
    function, reference, _ = CASES[name]
    given = operands(name, n, dtype, batch)
    tensors = [wf.tensor(x) for x in given]
    found = wf.compile(function)(*tensors).numpy()
    assert found.dtype == dtype
    assert found.tobytes() == function(*tensors).numpy().tobytes()
    assert found.tobytes() == by_reference(function, given).tobytes()
    close(found, reference(*(x.astype(np.float64) for x in given)), dtype)


def host_calls(function, *args):
    text = function.explain(*args)
    return int(text.split("host calls ")[1].split()[0])


@pytest.mark.parametrize(("name", "n"), EACH)
def test_few_rows_are_a_kernel(name, n):
    given = [wf.tensor(x) for x in operands(name, n, np.float32, (5,))]
    assert host_calls(wf.compile(CASES[name][0]), *given) == 0


@pytest.mark.parametrize("name", CASES)
def test_more_rows_are_lapack(name):
    given = [wf.tensor(x) for x in operands(name, LARGEST[name] + 1, np.float64, ())]
    assert host_calls(wf.compile(CASES[name][0]), *given) == 1


SOLVERS = ["solve", "lower", "upper", "transposed"]


@pytest.mark.parametrize("batch", [(), (3,), (2, 1)])
@pytest.mark.parametrize("name", SOLVERS)
def test_right_sides_of_any_number_have_the_bits_of_each_alone(name, batch):
    function, reference, _ = CASES[name]
    for n, columns in ((3, TOGETHER // 3), (3, TOGETHER // 3 + 1), (LARGEST[name], 37)):
        a, b = operands(name, n, np.float32, batch, columns)
        tensors = wf.tensor(a), wf.tensor(b)
        solved = wf.compile(function)
        found = solved(*tensors).numpy()
        assert host_calls(solved, *tensors) == 0
        assert found.tobytes() == by_reference(function, (a, b)).tobytes()
        alone = [function(a, b[..., k : k + 1]).numpy() for k in range(columns)]
        assert found.tobytes() == np.concatenate(alone, -1).tobytes()
        close(found, reference(a.astype(np.float64), b.astype(np.float64)), np.float32)


def test_batches_of_matrices_and_of_right_sides_meet_as_in_numpy():
    a, b = definite(3, np.float64, (4, 1)), np.random.default_rng(0).normal(size=(5, 3, 40))
    for function, reference in (CASES[name][:2] for name in SOLVERS):
        close(wf.compile(function)(wf.tensor(a), wf.tensor(b)).numpy(), reference(a, b), np.float64)


def test_a_singular_matrix_beside_many_right_sides_is_an_error():
    solved = wf.compile(linalg.solve)
    with pytest.raises(ArgumentError, match="solve: a matrix is singular"):
        solved(wf.zeros((2, 3, 3)), wf.ones((2, 3, 50))).numpy()
    assert np.array_equal(solved(wf.eye(3), wf.ones((3, 50))).numpy(), np.ones((3, 50)))


def test_complex_numbers_are_lapack():
    assert host_calls(wf.compile(linalg.inv), wf.tensor(np.eye(2, dtype=complex))) == 1


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", SIZES)
def test_rows_are_exchanged_for_the_largest_pivot(n, dtype):
    rng = np.random.default_rng(n)
    a = rng.normal(size=(40, n, n)).astype(dtype)
    a[:, 0, 0] *= dtype(1e-12)
    b = rng.normal(size=(40, n, 1)).astype(dtype)
    found = linalg.solve(a, b).numpy().astype(np.float64)
    rest = np.abs(a.astype(np.float64) @ found - b).max((-2, -1))
    size = np.abs(a).astype(np.float64).sum(-1).max(-1) * np.abs(found).max((-2, -1))
    assert (rest <= 8 * n * np.finfo(dtype).eps * (size + 1)).all()


def test_a_zero_on_the_diagonal_is_no_mistake():
    a = np.array([[0.0, 2.0], [3.0, 0.0]])
    np.testing.assert_array_equal(linalg.solve(a, np.array([4.0, 6.0])).numpy(), [2.0, 2.0])
    assert float(linalg.det(a)) == -6.0


@pytest.mark.parametrize("n", SIZES)
def test_the_determinant_of_a_singular_matrix_is_zero(n):
    a = matrices(n, np.float64, (6,))
    a[:, -1] = 2 * a[:, 0] if n > 1 else 0
    a[:, 0, 0] = 0 if n == 1 else a[:, 0, 0]
    np.testing.assert_allclose(wf.compile(linalg.det)(wf.tensor(a)).numpy(), 0, atol=1e-14)
    assert float(linalg.det(np.zeros((n, n)))) == 0.0


NO_RESULT = {
    "solve": (lambda a: linalg.solve(a, np.ones((2, 1))), "solve: a matrix is singular"),
    "inv": (linalg.inv, "inv: a matrix is singular"),
    "cholesky": (linalg.cholesky, "cholesky: a matrix is not positive definite"),
    "triangular": (
        lambda a: linalg.solve_triangular(a, np.ones((2, 1)), lower=True),
        "diagonal element 1 is 0",
    ),
}


@pytest.mark.parametrize("tier", ["one by one", "alone", "small", "batch"])
@pytest.mark.parametrize("name", NO_RESULT)
def test_a_matrix_without_a_result_is_an_error_and_the_next_one_is_not(name, tier):
    function, message = NO_RESULT[name]
    bad, good = np.array([[1.0, 0.0], [0.0, 0.0]]), np.eye(2)
    if tier == "batch":
        bad = np.stack([good] * 50 + [bad] + [good] * 3)
    call = {
        "one by one": function,
        "small": wf.compile(lambda a: function(a * 2) + 1),
    }.get(tier, wf.compile(function))
    for _ in range(2):
        with pytest.raises(ArgumentError, match=message):
            call(wf.tensor(bad)).numpy()
        assert np.isfinite(call(wf.tensor(good)).numpy()).all()


def test_a_singular_step_of_a_scan_is_an_error():
    def run(matrices):
        def step(x, a):
            x = linalg.solve(a, x)
            return x, x

        return wf.scan(step, wf.ones((2,), dtype=wf.float64), matrices)

    steps = np.stack([np.eye(2)] * 5)
    solved = wf.compile(run)
    assert np.array_equal(solved(wf.tensor(steps))[0].numpy(), [1.0, 1.0])
    steps[3] = 0
    with pytest.raises(ArgumentError, match="solve: a matrix is singular"):
        solved(wf.tensor(steps))


def test_the_steps_of_a_filter_of_small_matrices_are_one_loop_of_the_same_bits():
    rng = np.random.default_rng(0)
    move, see = np.eye(4) + np.diag([0.1] * 3, 1), rng.normal(size=(2, 4))

    def run(move, see, given):
        def step(state, y):
            x, spread = state
            x, spread = move @ x, move @ spread @ move.T + 0.1 * wf.eye(4, dtype=wf.float64)
            seen = see @ spread @ see.T + wf.eye(2, dtype=wf.float64)
            gain = linalg.solve(seen, see @ spread).T
            x, spread = x + gain @ (y - see @ x), spread - gain @ see @ spread
            return (x, spread), x

        start = wf.zeros((4,), dtype=wf.float64), wf.eye(4, dtype=wf.float64)
        return wf.scan(step, start, given)[1]

    args = [wf.tensor(x) for x in (move, see, rng.normal(size=(20, 2)))]
    filtered = wf.compile(run)
    assert filtered(*args).numpy().tobytes() == run(*args).numpy().tobytes()
    text = filtered.explain(*args)
    assert "kernels 3," in text and "host calls 0" in text  # two of them make the start
    assert "    scan: " in text


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", ["solve", "inv", "det", "cholesky"])
def test_derivatives_of_few_rows(name, n):
    function = CASES[name][0]
    given = [wf.tensor(x) for x in operands(name, n, np.float64, (3,))]

    def total(*args):
        return (function(*args) ** 2).sum()

    found = wf.compile(wf.grad(total))(*given).numpy()
    push = np.random.default_rng(1).normal(size=given[0].shape)
    ahead, behind = (float(total(given[0] + step * push, *given[1:])) for step in (1e-6, -1e-6))
    slope = (found * push).sum()
    assert abs((ahead - behind) / 2e-6 - slope) <= 1e-5 * max(1.0, abs(slope))


@pytest.mark.parametrize("name", CASES)
def test_a_batch_is_the_same_for_any_number_of_threads_as_in_numpy(name):
    function, _, _ = CASES[name]
    given = operands(name, 3, np.float32, (20_000,))
    trace, wanted = wf.trace(function, *map(wf.tensor, given)), by_reference(function, given)
    for threads in (1, 2, 4):
        assert compiled(trace, given, threads)[0].tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", SOLVERS)
def test_right_sides_are_the_same_for_any_number_of_threads_as_in_numpy(name):
    function, _, _ = CASES[name]
    given = operands(name, 7, np.float32, (2,), columns=10_007)
    trace, wanted = wf.trace(function, *map(wf.tensor, given)), by_reference(function, given)
    for threads in (1, 2, 4):
        assert compiled(trace, given, threads)[0].tobytes() == wanted.tobytes()


def test_operands_that_are_views_are_read_where_they_lie():
    a, b = definite(3, np.float64, (4, 6)), matrices(3, np.float64, (6,))
    function = wf.compile(lambda a, b: linalg.solve(a[::-1, 1:4, ::-1].mT, b[None, 2:5]))
    found = function(wf.tensor(a), wf.tensor(b)).numpy()
    close(found, np.linalg.solve(turned(a[::-1, 1:4, ::-1]), b[None, 2:5]), np.float64)


def test_operands_are_looked_at_before_a_result_lies_where_they_did():
    here = wf.tensor([[True, False], [False, False]])
    first = wf.compile(
        lambda a: wf.where(here, linalg.cholesky(a)[0, 0], a[0, 0]), donate_argnums=(0,)
    )
    with pytest.raises(ArgumentError, match="not positive definite"):
        first(wf.tensor(np.array([[4.0, 0.0], [0.0, -1.0]])))
    assert first(wf.tensor(np.array([[4.0, 0.0], [0.0, 1.0]]))).numpy().tolist() == [[2, 4], [4, 4]]
