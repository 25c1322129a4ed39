"""Index notation: shapes follow from it, and reshape finds common factors where there are any."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.common.factors import Factors, reshape_factors
from weft.errors import ShapeError

SHAPES = st.lists(st.integers(0, 6), max_size=4).map(tuple)


@st.composite
def reshapes(draw):
    """A shape, and another one with as many elements."""
    old = draw(SHAPES)
    rest, new = prod(old), []
    while rest > 1 and len(new) < 4:
        size = draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
        new.append(size)
        rest //= size
    return old, (*new, rest) if prod(new) != prod(old) else tuple(new)


@given(reshapes())
def test_reshape_notation_gives_the_new_shape(shapes) -> None:
    old, new = shapes
    text, extents, whole = reshape_factors(old, new)
    factors = Factors.parse(text, (len(old),), extents, whole)
    assert factors.result_shapes((old,)) == (new,)


@given(reshapes())
def test_factors_that_are_not_whole_stand_on_both_sides(shapes) -> None:
    old, new = shapes
    text, extents, whole = reshape_factors(old, new)
    factors = Factors.parse(text, (len(old),), extents, whole)
    left = [n for axis in factors.inputs[0] for n in axis if n not in factors.whole]
    right = [n for axis in factors.outputs[0] for n in axis if n not in factors.whole]
    assert left == right


def test_operands_may_lack_leading_axes() -> None:
    factors = Factors.parse("... m k, ... k n -> ... m n", (4, 2))
    assert str(factors) == "b0 b1 m k, k n -> b0 b1 m n"
    assert factors.leads == (2, 0)
    assert factors.contracted == ("k",)
    assert factors.points(((2, 3, 4, 5), (5, 6))) == 2 * 3 * 4 * 5 * 6


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ("m k, k n -> m n", ((2, 3), (4, 5)), "operand 1, axis 0: factor 'k' is 4 here but 3"),
        ("... m k, k -> ... m", ((3,), (3,)), "operand 0: expected at least 2 axes"),
        ("(a b) -> a b", ((6,),), "does not determine"),
    ],
)
def test_shapes_that_do_not_fit_name_operand_axis_and_factor(text, shapes, message) -> None:
    with pytest.raises(ShapeError) as caught:
        Factors.parse(text, [len(s) for s in shapes]).result_shapes(shapes)
    assert message in str(caught.value)
