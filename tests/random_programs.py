"""A generator of random programs over public functions, and transforms to wrap them in.

A program is a list of steps; each takes values made before. Steps are chosen while they are run, so
that shapes fit and values stay of moderate size. A program prints as the code it stands for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import weft as wf

LARGEST = 50.0  # values beyond this would drown finite differences
MOST_ELEMENTS = 64
Draw = Callable[[np.random.Generator, Any], tuple[str, Callable[..., Any]] | None]


@dataclass
class Step:
    text: str
    function: Callable[..., Any]
    operands: tuple[int, ...]


@dataclass
class Program:
    """A function of a few tensors; `outputs` are the places of the values it returns."""

    inputs: list[Any]
    steps: list[Step] = field(default_factory=list)
    outputs: tuple[int, ...] = ()

    def __call__(self, *tensors: Any) -> tuple[Any, ...]:
        values = [wf.asarray(t) for t in tensors]
        for step in self.steps:
            values.append(step.function(*(values[i] for i in step.operands)))
        return tuple(values[i] for i in self.outputs)

    def __str__(self) -> str:
        rows = [f"v{i} = input of shape {a.shape}" for i, a in enumerate(self.inputs)]
        for number, step in enumerate(self.steps, len(self.inputs)):
            names = ", ".join(f"v{i}" for i in step.operands)
            rows.append(f"v{number} = {step.text}  # of {names}")
        return "\n".join([*rows, f"return {', '.join(f'v{i}' for i in self.outputs)}"])


def some_axis(rng: np.random.Generator, rank: int) -> int:
    return int(rng.integers(-rank, rank))


def plain(text: str, function: Callable[..., Any]) -> Draw:
    return lambda rng, x: (text, function)


def with_axis(name: str, function: Callable[..., Any] | None = None, least: int = 1) -> Draw:
    """A step that takes one axis; the operand must have at least `least` along it."""
    run = function or getattr(wf, name)

    def draw(rng: np.random.Generator, x: Any) -> Any:
        if not x.ndim:
            return None
        axis = some_axis(rng, x.ndim)
        if x.shape[axis] < least:
            return None
        return f"{name}(x, axis={axis})", lambda x: run(x, axis=axis)

    return draw


def reduction(name: str) -> Draw:
    run = getattr(wf, name)

    def draw(rng: np.random.Generator, x: Any) -> Any:
        if not x.size:
            return None
        keep = bool(rng.integers(2))
        count = int(rng.integers(0, x.ndim + 1))
        axes = tuple(int(a) for a in rng.permutation(x.ndim)[:count]) or None
        return f"{name}(x, axis={axes}, keepdims={keep})", lambda x: run(
            x, axis=axes, keepdims=keep
        )

    return draw


def reshaped(rng: np.random.Generator, x: Any) -> Any:
    shape = [int(n) for n in rng.permutation(x.shape)] if x.ndim else []
    if len(shape) > 1 and rng.integers(2):
        shape = [shape[0] * shape[1], *shape[2:]]
    else:
        shape.insert(int(rng.integers(0, len(shape) + 1)), 1)
    return f"reshape(x, {tuple(shape)})", lambda x: wf.reshape(x, tuple(shape))


def permuted(rng: np.random.Generator, x: Any) -> Any:
    axes = tuple(int(a) for a in rng.permutation(x.ndim))
    return f"permute_dims(x, {axes})", lambda x: wf.permute_dims(x, axes)


def broadcasted(rng: np.random.Generator, x: Any) -> Any:
    shape = (2, *(3 if n == 1 else n for n in x.shape))
    return f"broadcast_to(x, {shape})", lambda x: wf.broadcast_to(x, shape)


def sliced(rng: np.random.Generator, x: Any) -> Any:
    if not x.ndim:
        return None
    index: list[Any] = []
    for n in x.shape:
        kind = rng.integers(4)
        if kind == 0 and n:
            index.append(int(rng.integers(-n, n)))
        elif kind == 1:
            index.append(slice(None, None, -1))
        elif kind == 2 and n > 1:
            index.append(slice(int(rng.integers(0, n)), None, int(rng.integers(1, 3))))
        else:
            index.append(slice(None))
    if rng.integers(3) == 0:
        index.insert(int(rng.integers(0, len(index) + 1)), None)
    key = tuple(index)
    return f"x[{key}]", lambda x: x[key]


def gathered(rng: np.random.Generator, x: Any) -> Any:
    if not x.ndim or not x.shape[0]:
        return None
    picks = rng.integers(0, x.shape[0], 3)
    return f"x[{picks.tolist()}]", lambda x: x[wf.asarray(picks)]


def taken(rng: np.random.Generator, x: Any) -> Any:
    if not x.ndim:
        return None
    axis = some_axis(rng, x.ndim)
    if not x.shape[axis]:
        return None
    picks = rng.integers(0, x.shape[axis], 2)
    text = f"take(x, {picks.tolist()}, axis={axis})"
    return text, lambda x: wf.take(x, wf.asarray(picks), axis=axis)


def updated(rng: np.random.Generator, x: Any) -> Any:
    if not x.ndim or not x.shape[0]:
        return None
    picks = rng.integers(0, x.shape[0], 3)
    kind = str(rng.choice(["add", "set", "multiply", "max"]))
    text = f"x.at[{picks.tolist()}].{kind}(sin(x[0]))"
    return text, lambda x: getattr(x.at[wf.asarray(picks)], kind)(wf.sin(x[0]))


def assigned(rng: np.random.Generator, x: Any) -> Any:
    if not x.ndim or not x.shape[0]:
        return None

    def run(x: Any) -> Any:
        y = x * 1.0
        y[0] = wf.cos(y[-1])
        y += x
        return y

    return "y = x * 1; y[0] = cos(y[-1]); y += x", run


def squared_matrix(rng: np.random.Generator, x: Any) -> Any:
    if x.ndim < 2:
        return None
    return "x @ x.mT / 4", lambda x: x @ wf.matrix_transpose(x) / 4


def summed_pairs(rng: np.random.Generator, x: Any) -> Any:
    if not x.ndim:
        return None
    return "einsum('...i,...i->...', x, sin(x))", lambda x: wf.einsum(
        "...i,...i->...", x, wf.sin(x)
    )


def scanned(rng: np.random.Generator, x: Any) -> Any:
    if not x.ndim or not x.shape[0]:
        return None
    reverse = bool(rng.integers(2))

    def run(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            return wf.sin(carry + row), carry * row

        last, rows = wf.scan(step, wf.zeros_like(x[0]), x, reverse=reverse)
        return rows + last

    return f"scan over x, reverse={reverse}", run


def looped(rng: np.random.Generator, x: Any) -> Any:
    return "fori_loop(0, 3, sin(c) * x, x)", lambda x: wf.fori_loop(
        0, 3, lambda i, c: wf.sin(c) * x, x
    )


def branched(rng: np.random.Generator, x: Any) -> Any:
    return "cond(sum(x) > 0, sin, cos, x)", lambda x: wf.cond(
        wf.sum(x) > 0, lambda v: wf.sin(v) * 2, lambda v: wf.cos(v) + x, x
    )


def switched(rng: np.random.Generator, x: Any) -> Any:
    place = int(rng.integers(3))
    return f"switch({place}, [sin, cos, tanh], x)", lambda x: wf.switch(
        place, [wf.sin, wf.cos, wf.tanh], x
    )


UNARY: list[Draw] = [
    *(
        plain(f"{name}(x)", getattr(wf, name))
        for name in "sin cos tanh atan sigmoid softplus relu abs negative silu gelu erf elu"
        " asinh expit log_sigmoid softsign square positive".split()
    ),
    plain("exp(-x * x)", lambda x: wf.exp(-x * x)),
    plain("log1p(x * x)", lambda x: wf.log1p(x * x)),
    plain("sqrt(1 + x * x)", lambda x: wf.sqrt(1 + x * x)),
    plain("1 / (2 + sin(x))", lambda x: 1 / (2 + wf.sin(x))),
    plain("(x * x + 1) ** -0.5", lambda x: (x * x + 1) ** -0.5),
    plain("where(x > 0, x, sin(x))", lambda x: wf.where(x > 0, x, wf.sin(x))),
    plain("clip(x, -0.7, 0.8)", lambda x: wf.clip(x, -0.7, 0.8)),
    plain("ravel(x)", lambda x: wf.ravel(x)),
    plain("sum of outer(x, cos(x))", lambda x: wf.outer(wf.ravel(x), wf.cos(wf.ravel(x)))),
    plain("stop_gradient(x) + x", lambda x: wf.stop_gradient(x) * 0 + x),
    *map(reduction, "sum mean max min prod var logsumexp".split()),
    *map(with_axis, "cumsum cumprod cummax softmax log_softmax sort flip logcumsumexp".split()),
    with_axis("diff", least=2),
    with_axis("median", lambda x, axis: wf.median(x, axis=axis)),
    with_axis("roll by 1", lambda x, axis: wf.roll(x, 1, axis=axis)),
    with_axis("repeat 2", lambda x, axis: wf.repeat(x, 2, axis=axis)),
    with_axis("concat with itself", lambda x, axis: wf.concat([x, wf.sin(x)], axis=axis)),
    with_axis("stack with itself", lambda x, axis: wf.stack([x, wf.cos(x)], axis=axis)),
    with_axis("expand_dims", lambda x, axis: wf.expand_dims(x, axis=axis)),
    with_axis("top 1", lambda x, axis: wf.top_k(x, 1, axis=axis)[0]),
    with_axis(
        "take_along argsort",
        lambda x, axis: wf.take_along_axis(x * x, wf.argsort(x, axis=axis), axis=axis),
    ),
    with_axis("pad", lambda x, axis: wf.pad(x, [(1, 0)] * x.ndim)),
    reshaped,
    permuted,
    broadcasted,
    sliced,
    sliced,
    gathered,
    taken,
    updated,
    assigned,
    squared_matrix,
    summed_pairs,
    scanned,
    looped,
    branched,
    switched,
]
BINARY = {
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x * y": lambda x, y: x * y,
    "x / (2 + cos(y))": lambda x, y: x / (2 + wf.cos(y)),
    "maximum(x, y)": wf.maximum,
    "minimum(x, y)": wf.minimum,
    "logaddexp(x, y)": wf.logaddexp,
    "where(x > y, x, y * y)": lambda x, y: wf.where(x > y, x, y * y),
    "lerp(x, y, 0.3)": lambda x, y: wf.lerp(x, y, 0.3),
    "x @ y": lambda x, y: x @ y,
    "tensordot(x, y, 1)": lambda x, y: wf.tensordot(x, y, axes=1),
}
COUNT = len(UNARY) + len(BINARY)


def fits(name: str, x: Any, y: Any) -> bool:
    if "@" in name or "tensordot" in name:
        return bool(x.ndim == y.ndim == 2 and x.shape[1] == y.shape[0])
    pairs = zip(x.shape[::-1], y.shape[::-1], strict=False)
    return all(m == n or 1 in (m, n) for m, n in pairs)


def drawn_shape(
    rng: np.random.Generator, least: int, longest: int, elements: int
) -> tuple[int, ...]:
    shape = [int(n) for n in rng.integers(least, longest + 1, rng.integers(0, 4))]
    while math.prod(shape) > elements:
        shape[shape.index(max(shape))] //= 2
    return tuple(shape)


def make_program(
    rng: np.random.Generator,
    length: int = 6,
    longest: int = 3,
    elements: int = MOST_ELEMENTS,
    unary: Sequence[Draw] = (),
) -> Program:
    """A program of one or two inputs whose values are finite and moderate.

    One in six has complex inputs, one in six inputs that may be empty. Axes of inputs are up to
    `longest`, results up to `elements`; `unary` are steps to draw from, besides the usual ones.
    """
    kind = int(rng.integers(6))
    shapes = [
        drawn_shape(rng, int(kind != 0), longest, elements) for _ in range(rng.integers(1, 3))
    ]
    program = Program([rng.uniform(-2, 2, shape) for shape in shapes])
    if kind == 1:
        program.inputs = [a + 1j * rng.uniform(-1, 1, a.shape) for a in program.inputs]
    values = [wf.asarray(a) for a in program.inputs]
    steps = [*UNARY, *unary]
    for _ in range(100):
        step = draw_step(rng, values, steps)
        made = None if step is None else attempt(step, values, elements)
        if made is not None:
            program.steps.append(step)
            values.append(made)
        if len(program.steps) == length:
            break
    program.outputs = (len(values) - 1, int(rng.integers(0, len(values))))
    return program


def attempt(step: Step, values: list[Any], elements: int) -> Any:
    """The step's result if it can be part of a program."""
    operands = [values[i] for i in step.operands]
    try:
        made = step.function(*operands)
        array = made.numpy()
    except wf.errors.DTypeError:
        if all(x.dtype == wf.float64 for x in operands):
            raise
        return None  # complex numbers have no order
    if made.size > elements or not (np.abs(array) < LARGEST).all():
        return None
    return made


def draw_step(rng: np.random.Generator, values: list[Any], unary: list[Draw]) -> Step | None:
    recent = len(values) - 1 - min(int(rng.geometric(0.5)) - 1, len(values) - 1)
    x = values[recent]
    if rng.integers(4):
        drawn = unary[int(rng.integers(len(unary)))](rng, x)
        return None if drawn is None else Step(*drawn, (recent,))
    other = int(rng.integers(len(values)))
    name = list(BINARY)[int(rng.integers(len(BINARY)))]
    if not fits(name, x, values[other]):
        return None
    return Step(name, BINARY[name], (recent, other))
