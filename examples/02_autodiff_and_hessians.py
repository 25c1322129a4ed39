"""Derivatives of plain functions: gradients, products with Jacobians and Hessians, in any nesting.

You learn `grad`, `value_and_grad`, `jvp`, `vjp`, `jacrev`, `hessian` and `hvp`, and use them to run
Newton's method on the Rosenbrock function: twenty steps, where gradient descent takes thousands.
"""

import weft as wf


def rosenbrock(x):
    """A curved valley whose lowest point is at (1, 1, …)."""
    return wf.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


point = wf.asarray([-1.2, 1.0, 0.8], dtype=wf.float64)
direction = wf.asarray([1.0, -2.0, 0.5], dtype=wf.float64)

# Reverse mode gives all partial derivatives at once, forward mode one directional derivative.
value, gradient = wf.value_and_grad(rosenbrock)(point)
_, slope = wf.jvp(rosenbrock, (point,), (direction,))
assert wf.allclose(slope, gradient @ direction)

# A Hessian is forward over reverse; its product with a vector never forms the matrix.
curvature = wf.hessian(rosenbrock)(point)
assert wf.allclose(curvature, curvature.T)
product = wf.hvp(rosenbrock, (point,), (direction,))
assert wf.allclose(product, curvature @ direction)


# Jacobians of several results, checked against the definition of vjp.
def polar(x):
    """Length and angle of a point in the plane."""
    return wf.stack([wf.hypot(x[0], x[1]), wf.atan2(x[1], x[0])])


jacobian = wf.jacrev(polar)(point[:2])
_, pull = wf.vjp(polar, point[:2])
assert wf.allclose(pull(wf.asarray([0.0, 1.0], dtype=wf.float64))[0], jacobian[1])

# Derivatives nest: the fifth derivative of sin is cos.
derivative = wf.sin
for _ in range(5):
    derivative = wf.grad(derivative)
assert abs(derivative(0.3).item() - wf.cos(0.3).item()) < 1e-6


@wf.compile
def newton_step(x):
    """One step of Newton's method: solve H d = -g."""
    return x - wf.linalg.solve(wf.hessian(rosenbrock)(x), wf.grad(rosenbrock)(x))


x, steps = point, 0
while wf.linalg.vector_norm(wf.grad(rosenbrock)(x)).item() > 1e-10:
    x, steps = newton_step(x), steps + 1
    print(f"step {steps}: f = {rosenbrock(x).item():.3e} at {[round(v, 6) for v in x.tolist()]}")
assert steps < 30 and wf.allclose(x, wf.ones(3, dtype=wf.float64))
