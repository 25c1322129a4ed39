"""Slices of what was changed read what was there before, or the change; products are turned."""

from __future__ import annotations

import random

import numpy as np
import pytest

import weft as wf
from tests.compiler.test_rewrite import checked, names
from weft.compiler import movement
from weft.compiler.rewrite import rewrite


def test_slices_beside_an_update_read_what_was_there_before_it():
    x = np.arange(40.0).reshape(8, 5)
    beside, _ = checked(lambda x: wf.sin(x.at[2].set(0.0).at[3:5].set(1.0)[5:7]), x)
    assert "slice_update" not in names(beside)
    inside, _ = checked(lambda x, y: wf.sin(x.at[2:7, 1:4].set(y)[3:5, 2]), x, x[:5, :3].copy())
    assert "slice_update" not in names(inside)
    across, _ = checked(lambda x: wf.sin(x.at[2:4].set(0.0)[3:5]), x)
    assert "slice_update" in names(across)


def test_slices_of_updates_in_each_row_are_of_fewer_rows_too():
    def changed(row):
        return row.at[1:4].set(row[:3] * 2)

    made, _ = checked(
        lambda x: wf.sin(wf.vmap(changed)(x)[1:3, 2:4]), np.arange(40.0).reshape(8, 5)
    )
    assert "slice_update" not in names(made)


@pytest.mark.parametrize("seed", range(40))
def test_random_slices_and_updates_have_the_same_bits(seed):
    draw = random.Random(seed)
    shape = draw.choice([(7,), (5, 4), (3, 4, 5)])

    def some(size):
        first = draw.randrange(size)
        last = draw.randrange(first, size + 1)
        step = draw.choice([1, 1, 1, 2])
        backward = slice(last - 1 if last else None, None, -1)
        ways = (first, slice(None), slice(first, last, step), slice(first, last), backward)
        return draw.choice(ways)

    count = draw.randint(2, 8)
    places = [tuple(map(some, shape[: draw.randint(1, len(shape))])) for _ in range(count)]
    writes = [draw.random() < 0.6 for _ in places]
    numbers = [draw.random() < 0.3 for _ in places]

    def function(x):
        c, found = x, []
        for place, writes_here, number in zip(places, writes, numbers, strict=True):
            if writes_here:
                c = c.at[place].set(0.5 if number else wf.sin(x[place]) * (1 + len(found)))
            else:
                found.append(c[place] * 2)
        return (*found, c)

    checked(function, np.random.default_rng(seed).normal(size=shape))


def keys_slope(q, k, g):
    """The gradient by keys of scores: what is wanted lies along the features of queries."""
    return wf.vjp(lambda k: q @ k.mT, k)[1](g)


FACTORS = [np.sin(np.arange(n)).reshape(shape) for n, shape in ((48, (2, 6, 4)), (40, (2, 5, 4)))]
SCORES = np.cos(np.arange(60.0)).reshape(2, 6, 5)


def test_a_product_that_is_wanted_transposed_is_computed_so():
    made, _ = checked(keys_slope, *FACTORS, SCORES)
    assert names(made) == ["permute", "matmul"]
    (product,) = (node for node in made.nodes if node.op.name == "matmul")
    assert product.types[0].shape == (2, 5, 4)


def test_a_product_of_the_leading_axis_is_computed_in_the_order_that_is_wanted():
    heads = np.sin(np.arange(96.0)).reshape(2, 4, 3, 4)  # positions before heads

    def slope(q, k, g):
        q, moved = wf.moveaxis(q, 1, 2), wf.moveaxis(k, 1, 2)
        return wf.moveaxis(keys_slope(q, moved, g), 2, 1)

    made, _ = checked(slope, heads, heads[::-1].copy(), np.ones((2, 3, 4, 4)))
    (product,) = (node for node in made.nodes if node.op.name == "matmul")
    (last,) = made.outputs
    assert product.types[0].shape == (2, 3, 4, 4) and last[0].params["axes"][-1] == -1


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, g: (q.mT @ g, (q.mT @ g).mT),  # somebody reads it as it is
        lambda q, k, g: (q @ k.mT).mT,  # rows lie along the depth
        lambda q, k, g: (q[0].mT @ g).mT,  # one factor for all batches
    ],
)
def test_other_products_are_not_turned(function):
    made, _ = checked(function, *FACTORS, SCORES)
    products = [node for node in made.nodes if node.op.name == "matmul"]
    assert len(products) == 1
    assert any(node.op.name == "permute" and node.inputs[0][0] in products for node in made.nodes)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "complex64"])
def test_products_have_the_bits_of_those_that_are_not_turned(dtype):
    rng = np.random.default_rng(1)
    q, k, g = (
        (9 * rng.standard_normal(shape)) for shape in ((3, 70, 20), (3, 60, 20), (3, 70, 60))
    )
    if dtype == "complex64":
        q, k, g = q + 1j * q[::-1], k - 1j * k, g * (1 + 2j)
    given = [wf.tensor(x.astype(dtype)) for x in (q, k, g)]
    function = lambda q, k, g: (q.mT @ g).mT + k  # noqa: E731
    assert wf.compile(function)(*given).numpy().tobytes() == function(*given).numpy().tobytes()
    made, _ = rewrite(wf.trace(function, *given))
    (product,) = (node for node in made.nodes if node.op.name == "matmul")
    assert (product.types[0].shape == (3, 60, 20)) is (dtype != "complex64")


def test_large_factors_are_read_along_their_columns(monkeypatch):
    monkeypatch.setattr(movement, "MOST_TURNED", 29)
    made, _ = checked(keys_slope, *FACTORS, SCORES)
    assert names(made) == ["permute", "matmul", "permute"]
