"""Reductions over axes that others lie between: over the last ones first, with the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.compiler.test_rewrite import bits, names, op
from weft.compiler.algebra import MANY, REDUCTIONS
from weft.compiler.native import Native
from weft.compiler.rewrite import rewrite
from weft.core.common import dtypes

SEPARATE = [((70, 6, 50), (0, 2)), ((20, 3, 30, 20), (0, 2, 3)), ((6, 60, 5, 10), (1, 3))]


def over(name, shape, axes):
    """A reduction over axes, and arrays of that shape for it."""
    kind = bool if name in ("reduce_any", "reduce_all") else np.float32
    x = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    params = {"axes": tuple(axis - len(shape) for axis in axes)}
    return op(name, **params), x > 1 if kind is bool else x


@pytest.mark.parametrize(("shape", "axes"), SEPARATE)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_what_is_reduced_over_separate_axes_is_reduced_over_the_last_ones_first(name, shape, axes):
    function, x = over(name, shape, axes)
    trace = wf.trace(function, wf.tensor(x))
    made, _ = rewrite(trace)
    assert names(made) == [name, name]
    assert made.output_types == trace.output_types
    first, second = (Native(each, general=True).run((x,)) for each in (trace, made))
    assert bits(first[0]) == bits(second[0])
    assert rewrite(made)[0] is made


@pytest.mark.parametrize(
    ("shape", "axes", "dtype"),
    [
        ((70, 6, 50), (1, 2), np.float32),  # side by side
        ((70, 6, 50), (0, 1), np.float32),  # the last one stays
        ((70, 6, 50), (0, 1, 2), np.float32),
        ((7, 6, 50), (0, 2), np.float32),  # few elements
        ((70, 6, 50), (0, 2), dtypes.bfloat16),  # sums would be rounded twice
    ],
)
def test_other_reductions_stay_as_they_are(shape, axes, dtype):
    function, x = over("reduce_sum", shape, axes)
    assert x.size >= MANY or shape[0] == 7
    trace = wf.trace(function, wf.tensor(x.astype(dtype)))
    assert rewrite(trace)[0] is trace


@pytest.mark.parametrize(("shape", "axes"), SEPARATE)
def test_complex_numbers_are_reduced_to_the_same_bits_in_every_tier(shape, axes):
    parts = np.random.default_rng(7).standard_normal((2, *shape))
    x = wf.tensor(parts[0] + 1j * parts[1])
    for reduction in (wf.sum, wf.prod, wf.any):
        function = lambda x, reduce=reduction: reduce(x, axis=axes)  # noqa: E731
        assert bits(wf.compile(function)(x).host()) == bits(function(x).host())
