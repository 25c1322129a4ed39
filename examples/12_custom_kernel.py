"""Your own kernels: any NumPy function as an op with derivatives, or an op of your own, compiled.

You learn `call_custom_kernel`, here for isotonic regression (a sequential algorithm with a simple
derivative), and how one class makes an op that fuses, differentiates, maps and shards.
"""

from typing import Any

import numpy as np

import weft as wf
from weft.ops.families import UnaryOperation


def pool_adjacent_violators(y: np.ndarray) -> np.ndarray:
    """The nearest sequence that never falls: neighbours that fall are averaged, again and again."""
    means: list[float] = []
    counts: list[int] = []
    for value in y:
        means.append(value)
        counts.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            count = counts[-2] + counts[-1]
            mean = (means[-2] * counts[-2] + means[-1] * counts[-1]) / count
            means[-2:], counts[-2:] = [mean], [count]
    return np.repeat(means, counts).astype(y.dtype)


def isotonic_vjp(primals, result, cotangent):
    """The derivative averages over each block of equal results; blocks come from a comparison."""
    same = wf.astype(result[:, None] == result[None, :], cotangent.dtype)
    return ((same / wf.sum(same, axis=1, keepdims=True)) @ cotangent,)


def isotonic(y):
    return wf.call_custom_kernel(pool_adjacent_violators, y, result_type=y, vjp=isotonic_vjp)


y = wf.asarray([1.0, 3.0, 2.0, 4.0, 3.5, 3.0, 5.0], dtype=wf.float64)
print(f"isotonic: {[round(v, 3) for v in isotonic(y).tolist()]}")
assert wf.all(wf.diff(isotonic(y)) >= 0).item()

# It is an op like any other: differentiated, mapped, compiled.
weights = wf.arange(7, dtype=wf.float64)
gradient = wf.grad(lambda y: wf.sum(weights * isotonic(y)))(y)
step = 1e-6
ahead, behind = (
    [(weights @ isotonic(y.at[i].add(sign * step))).item() for i in range(7)] for sign in (1, -1)
)
assert np.allclose(gradient.numpy(), (np.array(ahead) - behind) / (2 * step), atol=1e-6)
rows = wf.stack([y, y[::-1], 0 * y])
assert wf.all(wf.vmap(isotonic)(rows)[1] == isotonic(y[::-1])).item()
assert wf.all(wf.compile(isotonic)(y) == isotonic(y)).item()

# A call that is given no derivative says so, instead of giving zeros.
try:
    wf.grad(lambda y: wf.call_custom_kernel(pool_adjacent_violators, y, result_type=y).sum())(y)
except wf.errors.MissingRuleError as error:
    print(f"\na mistake:\n{error}\n")
else:
    raise AssertionError("a kernel without a vjp must refuse to be differentiated")


class Bump(UnaryOperation):
    """1 / (1 + x²), elementwise: its meaning in NumPy, one point of its loop, its derivative."""

    domain = "inexact"

    def eval(self, x: Any) -> Any:
        return 1 / (1 + x * x)

    def body(self, s: Any, x: Any) -> Any:
        one = s.const(1.0, x.dtype)
        return s.div(one, s.add(one, s.mul(x, x)))

    def derivative(self, x: wf.Tensor, y: wf.Tensor) -> Any:
        return -2.0 * x * y * y


bump = Bump()
x = wf.linspace(-2.0, 2.0, 1001, dtype=wf.float64)
fused = wf.compile(lambda x: wf.sum(wf.exp(bump(x)) * x))
fused.explain(x)
assert abs(fused(x).item() - np.sum(np.exp(1 / (1 + x.numpy() ** 2)) * x.numpy())) < 1e-9
assert wf.allclose(wf.vmap(wf.grad(bump))(x), -2 * x / (1 + x**2) ** 2)
assert wf.allclose(wf.hessian(bump)(1.0), 0.5)
