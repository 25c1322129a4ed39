"""Calls of public functions that are legal, found by trying operands of a few kinds everywhere.

A call is tried on arrays of the default device; one that answers there must answer on any other.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft as wf
from weft.errors import WeftError

MOST = 400  # calls that are tried for one function
REFUSALS = (WeftError, TypeError, ValueError, IndexError, KeyError, AttributeError)


@dataclass(frozen=True)
class Held:
    """An array that a call gets as a tensor."""

    array: Any

    def on(self, device: str) -> wf.Tensor:
        return wf.tensor(self.array, device=device)


_SPD = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]], np.float32)
VECTOR = Held(np.array([0.2, 0.5, 0.9], np.float32))
MATRIX = Held(_SPD)
PLACES = Held(np.array([0, 2, 1]))
MASK = Held(np.array([True, False, True]))
GRID = Held(np.ones((3, 3), np.int64))
IMAGE = Held(np.linspace(0.1, 0.9, 96, dtype=np.float32).reshape(2, 3, 4, 4))
NUMBER = Held(np.array(0.7, np.float32))
COMPLEX = Held(np.array([1 + 2j, 0.5, -1j], np.complex64))
BYTES = Held(np.array([1, 2, 3], np.uint8))
KEY = Held(np.array([0, 7], np.uint32))
SEVERAL = [VECTOR, Held(np.array([0.1, 0.4, 0.3], np.float32))]

TENSORS = (VECTOR, MATRIX, PLACES, MASK, IMAGE, NUMBER, COMPLEX, BYTES, GRID, SEVERAL)
BESIDE = (2, 0.5, [0.5, 0.25, 0.75], [0, 2, 1], [True, False, True], np.ones(3, np.float32))
FEW = (VECTOR, PLACES, MASK, MATRIX, 1, 0.5, [0.5, 0.25, 0.75], [0, 2, 1])
OPTIONS = (*BESIDE, VECTOR, PLACES, MASK, MATRIX, (0.1, 0.9), 1, True, 3)


@dataclass(frozen=True)
class Call:
    """Arguments of a function, among them some that become tensors."""

    args: tuple[Any, ...]
    keywords: dict[str, Any]
    through: Callable[..., Any] | None = None  # what is called instead of the function itself

    def run(self, function: Callable[..., Any], device: str) -> Any:
        return self.of(function)(*(held.on(device) for held in self.held()))

    def held(self) -> list[Held]:
        """What becomes a tensor, in order."""
        return [x for x in _flat((self.args, self.keywords)) if isinstance(x, Held)]

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The call as a function of its tensors alone."""

        def called(*tensors: Any) -> Any:
            rest = iter(tensors)
            args, keywords = _mapped((self.args, self.keywords), lambda _: next(rest))
            return (self.through or function)(*args, **keywords)

        return called


def _mapped(value: Any, change: Callable[[Held], Any]) -> Any:
    if isinstance(value, Held):
        return change(value)
    if isinstance(value, dict):
        return {name: _mapped(each, change) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_mapped(each, change) for each in value])
    return value


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if type(value) in (list, tuple):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def legal_calls(function: Callable[..., Any]) -> list[Call]:
    """Calls of a function that answer on the default device."""
    found: list[Call] = []
    for call in itertools.islice(_guesses(function), MOST):
        if _answers(function, call):
            found.append(call)
    for call in found[:2]:
        found += [more for more in _with_options(function, call) if _answers(function, more)]
    return found


def _answers(function: Callable[..., Any], call: Call) -> bool:
    try:
        call.run(function, "cpu:0")
    except REFUSALS:
        return False
    return True


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def _guesses(function: Callable[..., Any]) -> Iterator[Call]:
    given = _parameters(function)
    needed = [p for p in given if p.default is p.empty and p.kind not in (p.VAR_KEYWORD,)]
    several = any(p.kind is p.VAR_POSITIONAL for p in needed)
    names = [p.name for p in needed if p.kind is not p.KEYWORD_ONLY]
    first: tuple[Any, ...] = (KEY,) if names[:1] == ["key"] else ()
    counts = (1, 2) if several else (len(names) - len(first),)
    if first and counts == (0,):
        yield Call(first, {})
    for count in counts:
        pool = (*TENSORS, *BESIDE) if count < 3 else FEW
        for args in itertools.product(pool, repeat=count):
            if (count and any(isinstance(x, Held) for x in _flat(args))) or first:
                yield Call((*first, *args), {})


def _with_options(function: Callable[..., Any], call: Call) -> Iterator[Call]:
    for parameter in _parameters(function):
        takes = parameter.kind is not parameter.VAR_KEYWORD
        if takes and parameter.default is not parameter.empty and parameter.name != "device":
            for value in OPTIONS:
                yield Call(call.args, {parameter.name: value})


def _call(*args: Any, **keywords: Any) -> list[Call]:
    return [Call(args, keywords)]


def _through(function: Callable[..., Any], *args: Any) -> list[Call]:
    return [Call(args, {}, function)]


def _ones(*shape: int) -> Held:
    return Held(np.linspace(0.1, 0.9, int(np.prod(shape)), dtype=np.float32).reshape(shape))


def _total(x: Any) -> Any:
    return wf.sum(wf.multiply(wf.sin(x), [0.5, 0.25, 0.75]))


WORDS = Held(np.array([3, 5], np.uint32))
MASK_OF_ONE = Held(np.array(True))
_LOWER = Held(np.linalg.cholesky(_SPD).astype(np.float32))
CALLS: dict[str, list[Call]] = {
    "affine_grid": _call(_ones(1, 2, 3), (1, 1, 4, 4)),
    "apply_along_axis": _call(lambda row: 0.5, 0, MATRIX),
    "apply_over_axes": _call(lambda x, axis: wf.sum(x, axis), MATRIX, (0, 1)),
    "associative_scan": _call(lambda x, y: x * y + 1, VECTOR),
    "astype": _call(PLACES, "float32"),
    "batch_norm": [
        *_call(IMAGE, [0.1, 0.2, 0.3], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [0.0, 0.1, 0.2]),
        *_call(IMAGE, [0.1, 0.2, 0.3], [1.0, 2.0, 3.0], training=True),
    ],
    "bessel_i": _call(VECTOR, order=1, scaled=False),
    "bessel_j": _call(VECTOR, order=1),
    "cast": _call(VECTOR, dtype=np.dtype("float64")),
    "checkpoint_name": _call(MATRIX, "name"),
    "cond": [
        *_call(True, lambda x: x * 2, lambda x: x + 1, VECTOR),
        *_call(MASK_OF_ONE, lambda x: x * 2, lambda x: x + 1, 0.5),
        *_through(lambda x: wf.cond(True, lambda: x * 2, lambda: 0.5), NUMBER),
        *_through(lambda x: wf.cond(True, lambda: 0.5, lambda: x * 2), NUMBER),
    ],
    "conv1d": _call(_ones(1, 2, 5), _ones(3, 2, 2), [0.1, 0.2, 0.3]),
    "conv3d": _call(_ones(1, 2, 3, 3, 3), _ones(1, 2, 2, 2, 2), [0.1]),
    "conv_transpose1d": _call(_ones(1, 2, 5), _ones(2, 3, 2), [0.1, 0.2, 0.3]),
    "conv_transpose2d": _call(_ones(1, 2, 4, 4), _ones(2, 1, 2, 2), [0.1], stride=2),
    "conv_transpose3d": _call(_ones(1, 2, 3, 3, 3), _ones(2, 1, 2, 2, 2), [0.1]),
    "ctc_loss": [
        *_call(_ones(4, 1, 3), [[1, 2]]),
        *_call(_ones(4, 1, 3), [[1, 2]], [4], [2]),
    ],
    "dropout": _call(MATRIX, 0.3, KEY),
    "dynamic_slice": [
        *_call(VECTOR, [1], (2,)),
        *_call(VECTOR, [Held(np.array(1))], (2,)),
        *_call(MATRIX, [Held(np.array(1)), 0], (2, 2)),
    ],
    "dynamic_update_slice": _call(VECTOR, [9.0, 8.0], [Held(np.array(1))]),
    "einsum": _call("ij,j->i", MATRIX, [0.5, 0.25, 0.75]),
    "embedding_bag": [
        *_call(MATRIX, GRID, padding_idx=2),
        *_call(MATRIX, [0, 2, 1], [0, 2], "max"),
        *_call(MATRIX, PLACES, [0, 1], "sum", per_sample_weights=[0.5, 0.25, 0.75]),
    ],
    "fori_loop": [
        *_call(0, 3, lambda i, x: x * i + 0.5, VECTOR),
        *_call(0, Held(np.array(3)), lambda i, x: x * i + 0.5, VECTOR),
    ],
    "full": _call((3,), NUMBER),
    "gather": _call(MATRIX, 1, [[0], [1], [2]]),
    "grad": _through(lambda x: wf.grad(_total)(x), VECTOR),
    "grid_sample": _call(_ones(1, 1, 4, 4), [[[[0.1, 0.2], [0.3, -0.4]]]]),
    "group_norm": _call(IMAGE, 1, [1.0, 2.0, 3.0], [0.0, 0.1, 0.2]),
    "gumbel_softmax": [*_call(MATRIX, KEY), *_call(MATRIX, KEY, hard=True)],
    "hessian": _through(lambda x: wf.hessian(_total)(x), VECTOR),
    "hvp": _through(lambda x: wf.hvp(_total, (x,), (np.ones(3),)), VECTOR),
    "index_update": _call(VECTOR, [0, 2], [0.5, 0.25], "add"),
    "interpolate": _call(IMAGE, (6, 5)),
    "jacfwd": _through(lambda x: wf.jacfwd(wf.sin)(x), VECTOR),
    "jacrev": _through(lambda x: wf.jacrev(wf.sin)(x), VECTOR),
    "jvp": _through(lambda x: wf.jvp(wf.sin, (x,), (np.ones(3),)), VECTOR),
    "layer_norm": _call(MATRIX, 3, [1.0, 2.0, 3.0], [0.0, 0.1, 0.2]),
    "linear_transpose": _through(lambda x: wf.linear_transpose(lambda y: 3 * y, x)(x), VECTOR),
    "linearize": _through(lambda x: wf.linearize(wf.sin, x)[1](x), VECTOR),
    "map": _call(lambda x: x * 2 + 1, VECTOR),
    "max_pool2d": [*_call(IMAGE, 2), *_call(IMAGE, 3, 2, 1, return_indices=True)],
    "max_unpool1d": [
        *_call(_ones(1, 2), [[0, 3]], 2),
        *_call([[0.5, 1.5]], Held(np.array([[0, 3]])), 2),
    ],
    "max_unpool2d": _call(_ones(1, 1, 2), [[[0, 3]]], 2),
    "max_unpool3d": _call(_ones(1, 1, 1, 2), [[[[0, 3]]]], 2),
    "midpoint": _call(
        Held(np.array([3, 5], np.uint32)), bits=32, length=2**32, dtype=np.dtype("float32")
    ),
    "narrow": _call(MATRIX, 0, 1, 2),
    "permute_dims": _call(MATRIX, (1, 0)),
    "piecewise": [
        *_call(VECTOR, [[True, False, True]], [wf.sin, 7.0]),
        *_call([0.5, 0.25, 0.75], [MASK], [lambda x: x * 2, 7.0]),
    ],
    "pixel_shuffle": _call(_ones(1, 4, 2, 2), 2),
    "ravel_multi_index": [*_call((PLACES, PLACES), (3, 3)), *_call((PLACES, [0, 1, 2]), (3, 3))],
    "rms_norm": _call(MATRIX, 3, [1.0, 2.0, 3.0]),
    "scan": [
        *_call(lambda c, x: (c + x, c * x), 0.0, VECTOR),
        *_call(lambda c, x: (c + x, 1.5), 0.5, VECTOR),
    ],
    "scatter": _call(MATRIX, 1, [[0], [1], [2]], [[1.0], [2.0], [3.0]]),
    "scatter_add": _call(MATRIX, 1, [[0], [1], [2]], 2.0),
    "switch": _call(1, [lambda x: x, lambda x: x * 2], VECTOR),
    "narrow_ahead": _call(VECTOR, dtype=np.dtype("float32")),
    "narrow_exp": _call(VECTOR, VECTOR, scale=0.5, dtype=np.dtype("float32")),
    "short_exp2": _call(VECTOR),
    "short_power": _call(VECTOR, VECTOR, scale=0.5),
    "narrow_back": _call(VECTOR, dtype=np.dtype("float32")),
    "undifferentiable": _call(VECTOR, function="f", operand=0),
    "unflatten": _call(MATRIX, 1, (3, 1)),
    "value_and_grad": _through(lambda x: wf.value_and_grad(_total)(x), VECTOR),
    "vectorize": _through(lambda x: wf.vectorize(lambda a, b: a * b)(x, [1.0, 2.0, 3.0]), VECTOR),
    "vjp": _through(lambda x: wf.vjp(wf.sin, x)[1](np.ones(3)), VECTOR),
    "vmap": [
        *_through(lambda x: wf.vmap(lambda a, b: a * b)(x, np.ones(3)), VECTOR),
        *_through(lambda x: wf.vmap(lambda a: 0.5)(x), VECTOR),
    ],
    "while_loop": _call(lambda s: s[1] < 3, lambda s: (s[0] * 2, s[1] + 1), (VECTOR, 0)),
    "linalg.cg": [*_call(MATRIX, VECTOR), *_call(MATRIX, [0.5, 1.0, 2.0], x0=[1.0, 2.0, 3.0])],
    "linalg.gmres": [*_call(MATRIX, VECTOR), *_call(_SPD, VECTOR, x0=[1.0, 2.0, 3.0])],
    "linalg.cho_solve": _call((_LOWER, True), [1.0, 2.0, 3.0]),
    "linalg.lu_solve": _through(
        lambda a: wf.linalg.lu_solve(wf.linalg.lu_factor(a), [1.0, 2.0, 3.0]), MATRIX
    ),
    "random.multinomial": _call(KEY, 5, [0.2, 0.3, 0.5]),
    "random.randint": _call(KEY, (3,), 0, 5),
    "random.wishart": _call(KEY, 5.0, [[1.0, 0.0], [0.0, 1.0]]),
    "fold": _call(_ones(1, 4, 4), (3, 3), 2),
}
