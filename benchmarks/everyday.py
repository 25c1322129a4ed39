"""What programs do all the time, beside NumPy and JAX: short rows, dots, joins, complex numbers.

    python benchmarks/everyday.py --threads 1

One function serves all libraries; weft and JAX compile it. No row is heavy. Each has been many
times slower than it had to be somewhere, so they are looked at together.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import harness
from harness import Row, Workload

OPTIONS = harness.options_of(__doc__) if __name__ == "__main__" else None
harness.hold(OPTIONS.threads if OPTIONS else 1)

import numpy as np  # noqa: E402  what stands above must come first

import weft as wf  # noqa: E402

RNG = np.random.default_rng(0)
MILLION = 1 << 20


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def whole(most: int, *shape: int, dtype: Any = np.int32) -> Any:
    return RNG.integers(0, most, shape).astype(dtype)


def side_by_side(
    function: Callable[..., Any],
    arrays: Callable[[], tuple[Any, ...]],
    before: Callable[[], tuple[Any, ...]] | None = None,
) -> Workload:
    """One function in every library: its first operand is the library.

    What it is called with `before`, if anything, is of other sizes: weft's code serves them all.
    """
    given = arrays()
    compiled, tensors = wf.compile(partial(function, wf)), [wf.tensor(a) for a in given]
    if before is not None:
        compiled(*map(wf.tensor, before()))
    made: Workload = {"weft": lambda: compiled(*tensors).data()}
    if harness.available("numpy") and not of_loops(function):
        made["numpy"] = lambda: function(np, *given)
    if harness.available("jax"):
        jax = importlib.import_module("jax")
        jitted = jax.jit(partial(function, jax.numpy))
        placed = [jax.numpy.asarray(a) for a in given]
        made["jax"] = lambda: jitted(*placed).block_until_ready()
    return made


def of_loops(function: Callable[..., Any]) -> bool:
    """Whether a function needs `scan` or `grad`, which NumPy does not have."""
    return getattr(function, "func", function) in (filled, filled_gradient, looked_up)


def distances(xp: Any, x: Any, y: Any) -> Any:
    """Of all points to all others."""
    return xp.sum((x[:, None] - y[None]) ** 2, axis=-1)


def short_rows() -> Iterator[tuple[str, Callable[..., Any], Callable[[], tuple[Any, ...]]]]:
    """Reductions of a few elements each."""
    thirds = MILLION // 3
    yield "sum of rows of 3", lambda xp, x: xp.sum(x, axis=-1), lambda: (normal(thirds, 3),)
    yield "max of rows of 5", lambda xp, x: xp.max(x, axis=-1), lambda: (normal(200_000, 5),)
    yield (
        "argmax of rows of 10",
        lambda xp, x: xp.argmax(x, axis=-1),
        lambda: (normal(100_000, 10),),
    )
    yield "unit vectors of 3", unit_vectors, lambda: (normal(thirds, 3),)
    yield "softmax of rows of 4", softmax, lambda: (normal(MILLION // 4, 4),)
    yield "logsumexp of rows of 10", log_sum, lambda: (normal(MILLION // 10, 10),)
    yield "cross products of 200000", lambda xp, x, y: xp.cross(x, y), lambda: pair(200_000, 3)
    yield "matrices of quaternions", rotations, lambda: (normal(100_000, 4),)
    yield "outer products of 3", outer, lambda: pair(MILLION // 9, 3)
    yield "mean of points", lambda xp, x: xp.mean(x, axis=0), lambda: (normal(thirds, 3),)
    yield "distances of 1024 points", distances, lambda: (normal(1024, 3), normal(1024, 3))
    yield "nearest of 100 points", nearest, lambda: (normal(10_000, 3), normal(100, 3))
    yield "one of 20 labels", among, lambda: (whole(100, 65_536), whole(100, 20))


def unit_vectors(xp: Any, x: Any) -> Any:
    return x / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))


def softmax(xp: Any, x: Any) -> Any:
    powers = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return powers / xp.sum(powers, axis=-1, keepdims=True)


def log_sum(xp: Any, x: Any) -> Any:
    return xp.log(xp.sum(xp.exp(x - xp.max(x, axis=-1, keepdims=True)), axis=-1))


def outer(xp: Any, x: Any, y: Any) -> Any:
    return x[:, :, None] * y[:, None]


def rotations(xp: Any, q: Any) -> Any:
    """Nine elements of a matrix for each of them."""
    w, x, y, z = (q[:, k] for k in range(4))
    elements = (
        *(1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        *(2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        *(2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return xp.stack(elements, axis=-1).reshape(-1, 3, 3)


def rotary(xp: Any, x: Any, c: Any, s: Any) -> Any:
    """Halves of rows, turned by angles."""
    a, b = xp.split(x, 2, axis=-1)
    return xp.concatenate([a * c - b * s, a * s + b * c], axis=-1)


def diffused(xp: Any, x: Any) -> Any:
    """A step of diffusion; nothing leaves at the edges."""
    wide = xp.pad(x, 1, mode="edge")
    around = wide[2:, 1:-1] + wide[:-2, 1:-1] + wide[1:-1, 2:] + wide[1:-1, :-2]
    return x + 0.2 * (around - 4 * x)


def overlaps(xp: Any, a: Any, b: Any) -> Any:
    """Of all boxes (left, top, right, bottom) with all others."""
    first = xp.maximum(a[:, None, :2], b[None, :, :2])
    last = xp.minimum(a[:, None, 2:], b[None, :, 2:])
    size = xp.maximum(last - first, 0)
    return size[..., 0] * size[..., 1]


def nearest(xp: Any, x: Any, y: Any) -> Any:
    return xp.argmin(distances(xp, x, y), axis=-1)


def among(xp: Any, x: Any, labels: Any) -> Any:
    return xp.any(x[:, None] == labels, axis=-1)


def products() -> Iterator[tuple[str, Callable[..., Any], Callable[[], tuple[Any, ...]]]]:
    """Sums of products that are no large matrices."""
    yield "dot of two vectors, 1M", lambda xp, x, y: xp.dot(x, y), lambda: pair(MILLION)
    yield "dots of 1024 rows of 1024", dots, lambda: pair(1024, 1024)
    yield "dots of 16384 rows of 64", dots, lambda: pair(16_384, 64)
    down = lambda xp, x, y: xp.einsum("ib,ib->b", x, y)  # noqa: E731
    yield "dots of 1024 columns", down, lambda: pair(1024, 1024)
    matmul = lambda xp, x, y: x @ y  # noqa: E731
    yield "100000×3 by 3×64", matmul, lambda: (normal(100_000, 3), normal(3, 64))
    yield "100000×3 by 3×3", matmul, lambda: (normal(100_000, 3), normal(3, 3))
    yield "33333 of 3×3 by 3×3", matmul, lambda: (normal(33_333, 3, 3), normal(33_333, 3, 3))


def dots(xp: Any, x: Any, y: Any) -> Any:
    return xp.einsum("bi,bi->b", x, y)


def pair(*shape: int) -> tuple[Any, Any]:
    return normal(*shape), normal(*shape)


def others() -> Iterator[tuple[str, Callable[..., Any], Callable[[], tuple[Any, ...]]]]:
    """Joins, whole numbers, columns."""
    join = lambda xp, *parts: xp.concatenate(parts)  # noqa: E731
    yield "join of 2 pieces", join, lambda: tuple(normal(MILLION // 2) for _ in range(2))
    yield "join of 100 pieces", join, lambda: tuple(normal(MILLION // 100) for _ in range(100))
    yield "x // 7, int32", lambda xp, x: x // 7, lambda: (whole(1000, MILLION),)
    yield "x % 10, int32", lambda xp, x: x % 10, lambda: (whole(1000, MILLION),)
    yield "x ** 3, int32", lambda xp, x: x**3, lambda: (whole(1000, MILLION),)
    few = lambda xp, x, y: xp.isin(x, y)  # noqa: E731
    yield "isin 8 numbers", few, lambda: (whole(1000, MILLION), whole(1000, 8))
    angles = lambda: (normal(4, 8, 512, 64), normal(512, 32), normal(512, 32))  # noqa: E731
    yield "rotary embedding 4×8×512×64", rotary, angles
    yield "diffusion 1000×1000", diffused, lambda: (normal(1000, 1000),)
    yield "overlaps of 1000×800 boxes", overlaps, lambda: (normal(1000, 4), normal(800, 4))
    columns = lambda: (normal(1000, 1000),)  # noqa: E731
    yield "argmax of 1000 columns", lambda xp, x: xp.argmax(x, axis=0), columns
    yield "how many are positive", lambda xp, x: xp.sum(x > 0), columns
    yield "mean of 1000 columns", lambda xp, x: xp.mean(x, axis=0), columns
    yield "variance of 1000 columns", lambda xp, x: xp.var(x, axis=0), columns
    between = lambda xp, x: xp.sum(x, axis=(0, 2))  # noqa: E731
    yield "sum of 1000×100×20 over 0 and 2", between, lambda: (normal(1000, 100, 20),)
    yield "images normalized by channel", normalized, lambda: (normal(32, 64, 28, 28),)
    beside = lambda xp, x, y: xp.concatenate((x, y), axis=1)  # noqa: E731
    yield "rows of 100 joined to rows of 100", beside, lambda: pair(10_000, 100)
    interp = lambda xp, x, at, y: xp.interp(x, at, y)  # noqa: E731
    yield "interp among 1000 points", interp, lambda: (normal(100_000), *curve(1000))


def normalized(xp: Any, x: Any) -> Any:
    """Images less their means, by their deviations."""
    axes = (0, 2, 3)
    mean, variance = (f(x, axis=axes, keepdims=True) for f in (xp.mean, xp.var))
    return (x - mean) / xp.sqrt(variance + 1e-5)


def curve(points: int) -> tuple[Any, Any]:
    return np.sort(normal(points)), normal(points)


def systems() -> Iterator[tuple[str, Callable[..., Any], Callable[[], tuple[Any, ...]]]]:
    """Many small matrices."""
    matrices = lambda n: normal(10_000, n, n) + 4 * np.eye(n, dtype=np.float32)  # noqa: E731
    solve = lambda xp, a, b: xp.linalg.solve(a, b)  # noqa: E731
    for n in (2, 3, 4):
        given = lambda n=n: (matrices(n), normal(10_000, n, 1))  # noqa: E731
        yield f"10000 systems {n}×{n}", solve, given
    yield "inverses of 10000 3×3", lambda xp, a: xp.linalg.inv(a), lambda: (matrices(3),)
    yield "determinants of 10000 3×3", lambda xp, a: xp.linalg.det(a), lambda: (matrices(3),)


def complex_numbers() -> Iterator[tuple[str, Callable[..., Any], Callable[[], tuple[Any, ...]]]]:
    """Of two float32 each."""
    count = 300_000
    one, two = lambda: (points(count),), lambda: (points(count), points(count))
    yield "z conj(z), complex64", lambda xp, z: z * xp.conj(z), one
    yield "|z|², complex64", lambda xp, z: xp.abs(z) ** 2, one
    yield "z w + 2 z, complex64", lambda xp, z, w: z * w + 2 * z, two
    yield "exp(i t), complex64", lambda xp, t: xp.exp(1j * t), lambda: (normal(count),)
    yield "sum of z w, complex64", lambda xp, z, w: xp.sum(z * w), two
    yield "z inside the unit circle", into_circle, one


def points(count: int) -> Any:
    return (normal(count) + 1j * normal(count)).astype(np.complex64)


def into_circle(xp: Any, z: Any) -> Any:
    return xp.where(xp.abs(z) < 1, z, z / xp.abs(z))


def loops() -> Iterator[tuple[str, Callable[..., Any], Callable[[], tuple[Any, ...]]]]:
    """That change an element of a million in each of 200 turns; NumPy has none."""
    given = lambda: (normal(MILLION), normal(200))  # noqa: E731
    yield "200 elements of 1M set by a loop", partial(filled, follows=False), given
    yield "200 elements of 1M, each from the one before", partial(filled, follows=True), given
    yield "its gradient", filled_gradient, given
    yield (
        "gradient of 200 rows of 16384×64 looked up by a loop",
        looked_up,
        lambda: (
            normal(16384, 64),
            whole(16384, 200, dtype=np.int64),
        ),
    )


def new_sizes() -> Iterator[tuple[str, Callable[..., Any], Callable[[int], tuple[Any, ...]], int]]:
    """Programs that have met other sizes before: their arrays for a size, and the new one."""
    batch = lambda n: (normal(n, 1000), normal(1000, 1000))  # noqa: E731
    yield "4 rows by 1000×1000, after another", lambda xp, x, y: x @ y, batch, 4
    yield "dots of 1000 rows of 64, after others", dots, lambda n: pair(n, 64), 1000
    yield "outer products of 3, after others", outer, lambda n: pair(n, 3), 100_000


def transforms_of(xp: Any) -> Any:
    """The namespace that has `scan` and `grad` for arrays of a library."""
    if xp is wf:
        return wf.scan, wf.grad
    jax = importlib.import_module("jax")
    return jax.lax.scan, jax.grad


def filled(xp: Any, table: Any, values: Any, follows: bool) -> Any:
    scan, _ = transforms_of(xp)

    def step(table: Any, turn: Any) -> Any:
        i, value = turn
        return table.at[i + 1].set(value * 2 + table[i] if follows else value), None

    return scan(step, table, (xp.arange(values.shape[0]), values))[0]


def filled_gradient(xp: Any, table: Any, values: Any) -> Any:
    _, grad = transforms_of(xp)
    return grad(lambda values: xp.sum(filled(xp, table, values, follows=True) ** 2))(values)


def looked_up(xp: Any, table: Any, places: Any) -> Any:
    scan, grad = transforms_of(xp)

    def loss(table: Any) -> Any:
        total = xp.zeros(table.shape[1], dtype=table.dtype)
        return xp.sum(scan(lambda c, i: (xp.tanh(c + table[i]), None), total, places)[0])

    return grad(loss)(table)


def rows() -> Iterator[Row]:
    """All of them; the goal is to be no slower than the best peer."""
    for group in (short_rows, products, others, systems, complex_numbers, loops):
        for name, function, arrays in group():
            yield Row(name, partial(side_by_side, function, arrays), 1.0)
    for name, function, sized, size in new_sizes():
        given, before = partial(sized, size), partial(sized, size - 1)
        yield Row(name, partial(side_by_side, function, given, before), 1.0)


def main() -> None:
    """Print the table, and write it where `--json` says."""
    assert OPTIONS is not None
    print(harness.machine())
    harness.keep(OPTIONS.json, rows=harness.run(rows(), OPTIONS))


if __name__ == "__main__":
    main()
