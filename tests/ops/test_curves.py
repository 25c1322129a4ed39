"""Curves and polynomials agree with NumPy, differentiate, map and compile."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.testing import check_grads

RNG = np.random.default_rng(0)
X = np.sort(RNG.normal(size=9))
Y = RNG.normal(size=(4, 9))
HOLES = np.where(RNG.random((4, 5)) < 0.4, np.nan, RNG.normal(size=(4, 5)))
HOLES[2] = np.nan
ANGLES = np.cumsum(RNG.normal(size=(3, 20)) * 2, axis=1) % (2 * np.pi)

CASES = {
    "interp": lambda xp: xp.interp(PLACES, X, Y[0]),
    "interp beyond its ends": lambda xp: xp.interp(PLACES, X, Y[0], left=-7.0, right=8.0),
    "interp at its points": lambda xp: xp.interp(X, X, Y[0], right=8.0),
    "interp around": lambda xp: xp.interp(PLACES, X[::-1] * 3, Y[0], period=2.5),
    "interp of complex values": lambda xp: xp.interp(PLACES, X, Y[0] + 1j * Y[1]),
    "interp beside infinities": lambda xp: xp.interp(
        np.arange(-1, 5, 0.5), np.arange(5.0), np.array([1.0, np.inf, np.inf, np.nan, 2.0])
    ),
    "interp of one point": lambda xp: xp.interp(X, X[:1], Y[0, :1]),
    "gradient": lambda xp: xp.gradient(Y),
    "gradient of distance": lambda xp: xp.gradient(Y, 0.5, axis=1),
    "gradient at places": lambda xp: xp.gradient(Y, X, axis=-1),
    "gradient of second order": lambda xp: xp.gradient(Y, 2.0, X, edge_order=2),
    "gradient of two": lambda xp: xp.gradient(Y[:, :2], axis=1),
    "trapezoid": lambda xp: xp.trapezoid(Y),
    "trapezoid at places": lambda xp: xp.trapezoid(Y, X),
    "trapezoid along 0": lambda xp: xp.trapezoid(Y, X[:4], axis=0),
    "trapezoid of distance": lambda xp: xp.trapezoid(Y, dx=0.1, axis=0),
    "trapezoid of nothing": lambda xp: xp.trapezoid(Y[:, :0]),
    "unwrap": lambda xp: xp.unwrap(ANGLES),
    "unwrap along 0": lambda xp: xp.unwrap(ANGLES, axis=0, discont=4.0),
    "unwrap of degrees": lambda xp: xp.unwrap(np.array([0, 90, 350, 10, 180]), period=360),
    "unwrap by an odd integer": lambda xp: xp.unwrap(np.array([0, 2, 4, 6, 0, 3, 0]), period=5),
    "unwrap of half a turn": lambda xp: xp.unwrap(np.array([0.0, np.pi, 0.0, -np.pi])),
    "ediff1d": lambda xp: xp.ediff1d(Y, to_begin=9.0, to_end=[1.0, 2.0]),
    "nancumsum": lambda xp: xp.nancumsum(HOLES, axis=1),
    "nancumprod": lambda xp: xp.nancumprod(HOLES),
    "nanargmax": lambda xp: xp.nanargmax(HOLES[:2], axis=1),
    "nanargmin": lambda xp: xp.nanargmin(HOLES[:2]),
    "nanargmax of integers": lambda xp: xp.nanargmax(np.arange(6).reshape(2, 3) % 4, axis=1),
    "piecewise": lambda xp: xp.piecewise(
        Y[0], [Y[0] < -0.5, Y[0] > 0.5], [lambda v: v * v, 3.0, lambda v: -v]
    ),
    "piecewise of one mask": lambda xp: xp.piecewise(Y[0], Y[0] > 0, [5.0, 6.0]),
    "piecewise without a last": lambda xp: xp.piecewise(Y[0], [Y[0] > 0], [lambda v: v + 1]),
    "cross": lambda xp: xp.cross(Y[:, :3], Y[:, 3:6]),
    "hanning": lambda xp: xp.hanning(7),
    "hamming": lambda xp: xp.hamming(8),
    "blackman": lambda xp: xp.blackman(9),
    "bartlett": lambda xp: xp.bartlett(6),
    "kaiser": lambda xp: xp.kaiser(10, 8.6),
    "window of one": lambda xp: xp.kaiser(1, 3.0),
    "window of none": lambda xp: xp.hanning(0),
    "polyval": lambda xp: xp.polyval(Y[0, :4], X),
    "polyadd": lambda xp: xp.polyadd(Y[0, :4], Y[1, :2]),
    "polysub": lambda xp: xp.polysub(Y[0, :2], Y[1, :4]),
    "polymul": lambda xp: xp.polymul(Y[0, :4], Y[1, :3]),
    "polyder": lambda xp: xp.polyder(Y[0, :5], 2),
    "polyder to nothing": lambda xp: xp.polyder(Y[0, :2], 3),
    "polyint": lambda xp: xp.polyint(Y[0, :3], 2, k=[1.0, 2.0]),
    "polyfit": lambda xp: xp.polyfit(X, Y[0], 3),
    "polyfit of columns": lambda xp: xp.polyfit(X, Y.T, 2, w=np.arange(1.0, 10.0)),
    "poly": lambda xp: xp.poly([1.0, 2.0, -3.0]),
}
PLACES = np.array([[-9.0, 0.1, np.nan], [0.5, 9.0, -0.3]])


@pytest.fixture(autouse=True)
def wide():
    with wf.default_dtype("float64"):
        yield


@pytest.mark.parametrize("name", CASES)
def test_it_is_numpys(name):
    found, wanted = CASES[name](wf), CASES[name](np)
    for mine, theirs in zip(*(x if isinstance(x, list | tuple) else [x] for x in (found, wanted))):
        assert mine.shape == np.shape(theirs)
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("wide", [0, 1, 2])
def test_interp_is_as_exact_as_its_widest_operand(wide):
    operands = [PLACES, X, Y[0]]
    mixed = [x.astype(np.float64 if i == wide else np.float32) for i, x in enumerate(operands)]
    found = wf.interp(*(wf.asarray(x) for x in mixed))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found.numpy(), np.interp(*mixed), rtol=1e-12, atol=1e-12)


def test_interp_rounds_neither_integers_nor_numbers_beside_float64():
    values = np.array([0.0, 2.0**25])
    with wf.default_dtype("float32"):
        for x in (np.array([2**24 + 1]), 0.1, [0.1, 3.0]):
            made = wf.interp(x, np.array([0, 2**25]), values)
            assert made.tolist() == np.interp(x, [0, 2**25], values).tolist()
        assert wf.interp(0.5, wf.arange(2), wf.arange(2, dtype="bfloat16")).dtype == wf.bfloat16


def test_slopes_and_areas_do_not_round_integers_beside_float64():
    one = 2**24 + 1
    with wf.default_dtype("float32"):
        assert wf.gradient(np.array([0, one]), np.array([0.0, 1.0])).tolist() == [one, one]
        assert wf.gradient(np.array([0.0, 1.0]), np.array([0, one])).tolist() == [1 / one, 1 / one]
        assert wf.trapezoid(np.array([one, one]), np.array([0.0, 1.0])).item() == one
        assert wf.trapezoid(np.array([one, one]), dx=np.float64(1)).item() == one
        assert wf.trapezoid(np.array([1.0, 1.0]), np.array([0, one])).item() == one


def test_roots_are_where_the_polynomial_is_0():
    found = wf.roots([2.0, -3.0, 1.0, 5.0])
    assert np.abs(wf.polyval([2.0, -3.0, 1.0, 5.0], found).numpy()).max() < 1e-12
    assert wf.roots([3.0]).shape == wf.roots([0.0, 0.0]).shape == wf.roots([]).shape == (0,)
    for p in ([0, 0, 1, -3, 2], np.array([0.0, 2.0, -3.0, 0.0])):
        np.testing.assert_allclose(np.sort(wf.roots(p).numpy().real), np.sort(np.roots(p)), 1e-5)
    with pytest.raises(ArgumentError, match="roots: no convergence"):
        wf.roots(wf.tensor([0.0, 1.0, 2.0])).tolist()


def test_a_row_of_nothing_has_no_largest_place():
    assert wf.nanargmax(HOLES, axis=1).tolist()[2] == -1
    assert wf.nanargmin(HOLES, axis=1, keepdims=True).shape == (4, 1)
    assert wf.nanargmax([np.nan, -np.inf, -np.inf]).item() == 1  # NumPy says 0, which is NaN


@pytest.mark.parametrize(
    "function",
    [
        lambda x: wf.interp(x, X, Y[0]),
        lambda x: wf.gradient(x, edge_order=2),
        lambda x: wf.trapezoid(x, X),
        lambda x: wf.polyval(Y[0, :4], x),
        lambda x: wf.polyfit(X, x, 2),
        lambda x: wf.nancumsum(x),
        lambda x: wf.piecewise(x, [x > 0], [wf.sin, wf.exp]),
    ],
)
def test_it_differentiates_maps_and_compiles(function):
    x = wf.asarray(RNG.normal(size=9))
    check_grads(function, (x,))
    rows = wf.stack([x, 2 * x])
    mapped = wf.compile(wf.vmap(function))(rows)
    np.testing.assert_allclose(mapped[1].numpy(), function(rows[1]).numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: wf.interp(0.5, [1.0, 2.0], [1.0]), ShapeError, "interp: xp and fp"),
        (lambda: wf.interp(0.5, [], []), ShapeError, "no point"),
        (lambda: wf.interp(0.5, [1.0], [1.0], period=0), ArgumentError, "period must not be 0"),
        (lambda: wf.gradient(Y, 1.0, 2.0, 3.0), ArgumentError, "got 3"),
        (lambda: wf.gradient(Y[:, :1]), ShapeError, "axis 1: 2 elements are needed"),
        (lambda: wf.gradient(Y, edge_order=3), ArgumentError, "edge_order must be from 1 to 2"),
        (lambda: wf.gradient(Y, X, axis=0), ShapeError, "cannot have spacings"),
        (lambda: wf.polyfit(X, Y, 2), ShapeError, "polyfit: x is one axis"),
        (lambda: wf.polyval(Y, 1.0), ShapeError, "coefficients lie along one axis"),
        (lambda: wf.polyint([1.0], 3, k=[1.0, 2.0]), ArgumentError, "expected 1 or 3"),
        (lambda: wf.piecewise(X, [X > 0], []), ArgumentError, "1 conditions for 0 functions"),
        (lambda: wf.piecewise([1], [[True]], [5, 6.5]), DTypeError, "a value of dtype float"),
        (lambda: wf.hanning(-1), ArgumentError, "hanning: size"),
    ],
)
def test_a_mistake_is_told(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("period", [slice(None), "7", None, True, [7]])
def test_the_period_of_angles_is_a_number(period):
    with pytest.raises(wf.errors.DTypeError, match="unwrap: period"):
        wf.unwrap([0.0, 5.0], period=period)
    assert wf.unwrap(np.array([0, 6, 1]), period=np.int64(7)).dtype == np.int64
    assert wf.unwrap(np.array([0, 6, 1], "int16"), period=7).dtype == np.int16
