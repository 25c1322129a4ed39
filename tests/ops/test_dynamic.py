"""Parts that begin where values say, against JAX, which moves parts that do not fit."""

from __future__ import annotations

from itertools import product
from typing import Any

import jax
import numpy as np
import pytest

import weft as wf
from weft.errors import IndexingError

SHAPE = (6, 5, 4)
X = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
SIZES = [(2, 3, 4), (6, 1, 2), (1, 5, 1), (0, 2, 1)]
STARTS = [(0, 0, 0), (1, 2, 3), (-1, -5, -4), (9, -9, 1), (4, 0, 0), (-7, 1, 8)]
KNOWN = list(product((False, True), repeat=3))


def fits(starts: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    firsts = [s + n if s < 0 else s for s, n in zip(starts, SHAPE, strict=True)]
    triples = zip(firsts, sizes, SHAPE, strict=True)
    return all(first >= 0 and first + size <= n for first, size, n in triples)


def given(starts: tuple[int, ...], known: tuple[bool, ...]) -> list[Any]:
    pairs = zip(starts, known, strict=True)
    return [s if k else wf.tensor(s, dtype="int32") for s, k in pairs]


@pytest.mark.parametrize("starts", STARTS)
@pytest.mark.parametrize("sizes", SIZES)
def test_parts_are_those_of_jax(starts, sizes):
    expected = np.asarray(jax.lax.dynamic_slice(X, starts, sizes))
    update = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
    changed = np.asarray(jax.lax.dynamic_update_slice(X, update, starts))
    for known in KNOWN:
        where = given(starts, known)
        found = wf.dynamic_slice(wf.tensor(X), where, sizes, mode="clip")
        assert np.array_equal(found.numpy(), expected)
        found = wf.dynamic_update_slice(wf.tensor(X), wf.tensor(update), where, mode="clip")
        assert np.array_equal(found.numpy(), changed)
    compiled = wf.compile(lambda x, s: wf.dynamic_slice(x, s, sizes, mode="clip"))
    assert np.array_equal(compiled(X, wf.tensor(starts)).numpy(), expected)


@pytest.mark.parametrize("starts", STARTS)
@pytest.mark.parametrize("sizes", [s for s in SIZES if 0 not in s])
def test_what_does_not_fit_raises(starts, sizes):
    def cut(x, s):
        return wf.dynamic_slice(x, s, sizes)

    compiled = wf.compile(cut)
    for known in KNOWN:
        where = given(starts, known)
        for function in (cut, compiled) if True not in known else (cut,):
            if fits(starts, sizes):
                expected = np.asarray(jax.lax.dynamic_slice(X, starts, sizes))
                assert np.array_equal(function(X, where).numpy(), expected)
            else:
                with pytest.raises(wf.errors.WeftError):
                    function(X, where).numpy()


def test_a_part_is_a_copy():
    x = wf.tensor(X)
    part = wf.dynamic_slice(x, (0, 0, 0), SHAPE)
    part[0] = 0.0
    assert np.array_equal(x.numpy(), X)


@pytest.mark.slow
def test_transforms_compose_with_parts():
    def f(x, i):
        part = wf.dynamic_slice(x, [i, 0, i], (3, 5, 2))
        return (wf.dynamic_update_slice(x, part**2, [i + 1, 0, 0]) ** 2).sum()

    def g(x, i):
        part = jax.lax.dynamic_slice(x, [i, 0, i], (3, 5, 2))
        return (jax.lax.dynamic_update_slice(x, part**2, [i + 1, 0, 0]) ** 2).sum()

    places = np.array([0, 2, 1])
    mapped = wf.vmap(wf.grad(f), in_axes=(None, 0))
    expected = np.asarray(jax.vmap(jax.grad(g), in_axes=(None, 0))(X, places))
    for function in (mapped, wf.compile(mapped)):
        assert np.allclose(function(X, places).numpy(), expected, rtol=1e-5, atol=1e-5)
    _, slope = wf.jvp(lambda x: f(x, wf.tensor(1)), (wf.tensor(X),), (wf.tensor(X),))
    _, other = jax.jvp(lambda x: g(x, 1), (X,), (X,))
    assert np.allclose(slope.numpy(), other, rtol=1e-4)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: wf.dynamic_slice(x, (0, 0), (1, 1)), "part of 2 axes"),
        (lambda x: wf.dynamic_slice(x, (0, 0), (1, 1, 1)), "2 starts"),
        (lambda x: wf.dynamic_slice(x, (0, 0, 0), (7, 1, 1)), "axis 0: a part of 7 exceeds"),
        (lambda x: wf.dynamic_slice(x, (5, 0, 0), (2, 1, 1)), "axis 0: 2 elements from 5"),
        (lambda x: wf.dynamic_slice(x, (0, 0.5, 0), (1, 1, 1)), "starts"),
        (lambda x: wf.dynamic_slice(x, [0, wf.ones(2), 0], (1, 1, 1)), "axis 1: expected one"),
        (lambda x: wf.dynamic_slice(x, (0, 0, 0), (1, 1, 1), mode="wrap"), "mode"),
        (lambda x: wf.dynamic_update_slice(x, wf.ones(3), (0, 0, 0)), "part of 1 axes"),
    ],
)
def test_bad_parts_are_named(call, said):
    with pytest.raises(wf.errors.WeftError, match=said):
        call(wf.tensor(X))


def test_slices_that_must_be_read_say_what_to_use_instead():
    with pytest.raises(wf.errors.ConcretizationError, match="dynamic_slice and"):
        wf.compile(lambda x, i: x[i : i + 2])(wf.tensor(X), wf.tensor(1))


def test_a_start_that_is_there_is_told_as_it_was_given():
    for function in (
        lambda i: wf.dynamic_slice(wf.arange(5), [i], (2,)),
        lambda i: wf.dynamic_update_slice(wf.arange(5), wf.arange(2), [i]),
    ):
        with pytest.raises(IndexingError, match="axis 0: 2 elements from 7 exceed its size 5"):
            function(wf.tensor(7))
        assert function(wf.tensor(-2)).tolist() == function(-2).tolist()
        said = r"^dynamic_.*slice: axis 0: a part from 7 on does not fit: the last .* is 3"
        with pytest.raises(IndexingError, match=said):
            wf.compile(function)(wf.tensor(7))
        with pytest.raises(IndexingError, match="a part from 7 on"):
            wf.vmap(function)(wf.tensor([7])).numpy()


def test_a_start_before_the_first_place_of_an_empty_part_is_told_in_compiled_functions_too():
    function = wf.compile(lambda i: wf.dynamic_slice(wf.arange(5), [i], (0,)))
    assert function(wf.tensor(-5)).shape == function(wf.tensor(5)).shape == (0,)
    for start in (-6, 6):
        with pytest.raises(IndexingError, match="axis 0: a part from"):
            function(wf.tensor(start))
