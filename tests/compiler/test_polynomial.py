"""Indices as polynomials: what is known of them without knowing their variables."""

from __future__ import annotations

import gc

import pytest

from weft.compiler.loops import _values, integer, parameter, value, variable
from weft.compiler.polynomial import (
    RECENT,
    add,
    divide,
    is_multiple,
    known,
    larger,
    multiply,
    polynomial,
    smaller,
    whole,
)

i, n = variable("i"), parameter(0)


@pytest.mark.parametrize(
    ("index", "by", "multiple"),
    [
        (integer(64), 16, True),
        (integer(63), 16, False),
        (multiply(i, 32), 16, True),
        (add(multiply(i, 32), 8), 16, False),
        (smaller(add(multiply(i, -32), 160), 64), 16, True),
        (smaller(add(multiply(i, -32), 150), 64), 16, False),
        (larger(multiply(i, 48), 16), 16, True),
        (add(smaller(multiply(i, 16), 32), 16), 16, True),
        (n, 16, False),
        (multiply(n, 16), 16, True),
        (divide(n, 16), 16, False),
    ],
)
def test_multiples_are_known_whatever_the_variables_are(index, by, multiple):
    assert is_multiple(index, by) == multiple
    assert (whole(index, by) is index) == multiple


def test_the_whole_part_of_any_other_index_is_computed():
    assert whole(n, 16) is multiply(divide(n, 16), 16)
    assert known(whole(integer(63), 16)) == 48


def test_an_index_remembers_its_terms():
    index = add(multiply(i, 3), n)
    assert polynomial(index) is polynomial(index) == {(i,): 3, (n,): 1}


def test_a_value_that_nobody_holds_is_forgotten():
    index = add(multiply(variable("short_lived"), 3), 5)
    polynomial(index)
    key = (index.op, index.args, index.dtype, index.data)
    assert _values[key]() is index is value(*key)
    del index
    for k in range(RECENT):  # sums and products that nobody asked for again
        add(n, k)
        multiply(n, k)
    gc.collect()
    assert key not in _values
