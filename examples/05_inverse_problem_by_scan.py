"""An inverse problem: find how well a rod conducts heat from what three thermometers saw.

You learn that `scan` is a loop the compiler runs natively and that derivatives go through: the
simulation of a partial differential equation is one differentiable function of its unknowns.
"""

import weft as wf

POINTS, STEPS = 24, 2000
DX, DT = 1.0 / POINTS, 4e-4


def simulate(k, heat):
    """Heat in a rod, u_t = (k u_x)_x, by small explicit steps; the temperatures at three places."""
    between = 0.5 * (k[1:] + k[:-1])

    def step(u, source):
        flux = between * (u[1:] - u[:-1]) / DX
        u = u + DT / DX * (wf.pad(flux, (0, 1)) - wf.pad(flux, (1, 0)))
        u = u.at[0].add(source * DT)
        return u, u[::8]

    start = wf.zeros(POINTS, dtype=wf.float64)
    return wf.scan(step, start, heat)[1]


def conductivity(theta):
    """A rod that changes smoothly from one conductivity to another at some place."""
    x = wf.linspace(0.0, 1.0, POINTS, dtype=wf.float64)
    left, right, place = theta
    return left + (right - left) * wf.sigmoid((x - place) / 0.1)


heat = 100 * (1 + wf.sin(wf.linspace(0.0, 12.0, STEPS, dtype=wf.float64)))
truth = wf.asarray([0.9, 0.1, 0.6], dtype=wf.float64)
seen = simulate(conductivity(truth), heat)


def residuals(theta):
    return (simulate(conductivity(theta), heat) - seen).reshape(-1)


@wf.compile
def fit_step(theta, damping):
    """One step of Levenberg–Marquardt: the Jacobian is three columns, so forward mode it is."""
    r, jacobian = residuals(theta), wf.jacfwd(residuals)(theta)
    normal = jacobian.T @ jacobian
    step = wf.linalg.solve(normal + damping * wf.diag(wf.diag(normal)), -(jacobian.T @ r))
    moved = theta + step
    return moved, wf.sum(r**2), wf.sum(residuals(moved) ** 2)


theta, damping = wf.asarray([0.6, 0.3, 0.4], dtype=wf.float64), 1e-3
for number in range(40):
    moved, before, after = fit_step(theta, damping)
    better = after.item() < before.item()
    theta, damping = (moved, damping / 5) if better else (theta, damping * 10)
    if number % 3 == 0:
        print(f"step {number:2d}: error {before.item():.3e}, {wf.round(theta, 4).tolist()}")
    if after.item() < 1e-20:
        break
print(f"found {theta.tolist()}, true {truth.tolist()}")
assert wf.allclose(theta, truth, atol=1e-5)

# Reverse mode through the loop agrees: the gradient of the error is 2 Jᵀ r.
other = theta + 0.05
gradient = wf.grad(lambda t: wf.sum(residuals(t) ** 2))(other)
assert wf.allclose(gradient, 2 * wf.jacfwd(residuals)(other).T @ residuals(other), rtol=1e-8)
