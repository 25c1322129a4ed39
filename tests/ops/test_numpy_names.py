"""Functions that are in NumPy under the same name: values, dtypes, transforms and mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.errors import (
    ArgumentError,
    AxisError,
    ConcretizationError,
    ConversionError,
    DTypeError,
    IndexingError,
    ShapeError,
    UnsupportedDTypeError,
)

RNG = np.random.default_rng(5)
V = np.array([0.0, -1.5, 2.5, 0.0, 3.0], np.float32)
M = RNG.standard_normal((3, 4)).astype(np.float32)
A = RNG.standard_normal((2, 3, 4)).astype(np.float32)
C = np.array([1 + 2j, 3, 0, -1j], np.complex64)
I = np.array([[-3, 0, 2], [7, 1, 0]], np.int32)  # noqa: E741
BITS = RNG.integers(0, 2, (3, 11)).astype(bool)
BYTES = RNG.integers(0, 256, (3, 5)).astype(np.uint8)
ROW = M[0].astype(np.float64)  # in float32 NumPy leaves rounding errors before a remainder
MASK = np.array([[1, 0, 1, 1], [0, 0, 1, 0], [1, 1, 0, 0]], bool)

# Functions of a module and an array, whose result (tensors, or several) NumPy gives too.
CASES: dict[str, tuple[Any, Any]] = {
    "around": (lambda xp, x: xp.around(x, 1), M),
    "fabs": (lambda xp, x: xp.fabs(x), M),
    "fabs of nothing": (lambda xp, x: xp.fabs(x[:0]), M),
    "isreal": (lambda xp, x: xp.isreal(x), C),
    "isreal of reals": (lambda xp, x: xp.isreal(x), I),
    "isreal of bools": (lambda xp, x: xp.isreal(x), MASK),
    "iscomplex": (lambda xp, x: xp.iscomplex(x), C),
    "iscomplex of reals": (lambda xp, x: xp.iscomplex(x), M),
    "ascontiguousarray": (lambda xp, x: xp.ascontiguousarray(x.T, "float64"), M),
    "ascontiguousarray of a number": (lambda xp, x: xp.ascontiguousarray(x[0, 0]), M),
    "asanyarray": (lambda xp, x: xp.asanyarray(x, "float64"), M),
    "ix_": (lambda xp, x: x[xp.ix_([0, 2], [3, 1, 1])], M),
    "ix_ of masks": (lambda xp, x: x[xp.ix_([True, False, True], [-1])], M),
    "ix_ of nothing": (lambda xp, x: x[xp.ix_([], [1, 2])], M),
    "diag_indices_from": (lambda xp, x: x[xp.diag_indices_from(x[:, :3])], M),
    "tril_indices_from": (lambda xp, x: xp.tril_indices_from(x, 1), M),
    "triu_indices_from": (lambda xp, x: xp.triu_indices_from(x, k=-1), M),
    "triu_indices_from empty": (lambda xp, x: xp.triu_indices_from(x[:0]), M),
    "packbits": (lambda xp, x: xp.packbits(x), BITS),
    "packbits of integers": (lambda xp, x: xp.packbits(x, 1), I),
    "packbits rows": (lambda xp, x: xp.packbits(x, -2, "little"), BITS),
    "packbits columns": (lambda xp, x: xp.packbits(x, axis=1), BITS),
    "packbits of a number": (lambda xp, x: xp.packbits(x[0, 0]), BITS),
    "packbits of nothing": (lambda xp, x: xp.packbits(x[:, :0], 1), BITS),
    "unpackbits": (lambda xp, x: xp.unpackbits(x), BYTES),
    "unpackbits rows": (lambda xp, x: xp.unpackbits(x, 0, bitorder="little"), BYTES),
    "unpackbits count": (lambda xp, x: xp.unpackbits(x, -1, 11), BYTES),
    "unpackbits without the last": (lambda xp, x: xp.unpackbits(x, 1, -3), BYTES),
    "unpackbits more": (lambda xp, x: xp.unpackbits(x, count=130), BYTES),
    "unpackbits none": (lambda xp, x: xp.unpackbits(x[:0], 1), BYTES),
    "trim_zeros": (lambda xp, x: xp.trim_zeros(x), V),
    "trim_zeros front": (lambda xp, x: xp.trim_zeros(x, "F"), V),
    "trim_zeros back": (lambda xp, x: xp.trim_zeros(x[::-1], "b"), V),
    "trim_zeros everything": (lambda xp, x: xp.trim_zeros(x * 0, "f"), V),
    "trim_zeros of a matrix": (lambda xp, x: xp.trim_zeros(x), np.pad(M, ((1, 2), (3, 0)))),
    "trim_zeros axis": (lambda xp, x: xp.trim_zeros(x, "fb", -1), np.pad(M, 2)),
    "polydiv": (lambda xp, x: xp.polydiv(x, x[1:3]), ROW),
    "polydiv without remainder": (lambda xp, x: xp.polydiv(x * 2, x), ROW),
    "polydiv by a number": (lambda xp, x: xp.polydiv(x, 2.0), ROW),
    "polydiv by more": (lambda xp, x: xp.polydiv(x[:2], x), ROW),
    "polydiv complex": (lambda xp, x: xp.polydiv(x, x[:2]), C),
    "apply_along_axis": (lambda xp, x: xp.apply_along_axis(lambda r: r[::-1] * 2, 1, x), A),
    "apply_along_axis of sums": (lambda xp, x: xp.apply_along_axis(lambda r: r.sum(), -3, x), A),
    "apply_along_axis to matrices": (lambda xp, x: xp.apply_along_axis(xp.diag, 1, x), A),
    "apply_along_axis of a vector": (lambda xp, x: xp.apply_along_axis(xp.cumsum, 0, x), V),
    "apply_along_axis with more": (lambda xp, x: xp.apply_along_axis(xp.roll, 0, x, 1), A),
    "apply_over_axes": (lambda xp, x: xp.apply_over_axes(xp.sum, x, (0, -1)), A),
    "apply_over_axes one": (lambda xp, x: xp.apply_over_axes(xp.cumsum, x, 1), A),
    "apply_over_axes none": (lambda xp, x: xp.apply_over_axes(xp.sum, x, []), A),
    "tensorinv": (lambda xp, x: xp.linalg.tensorinv(x.reshape(2, 3, 6)), RNG.random((6, 6))),
    "tensorinv by one": (lambda xp, x: xp.linalg.tensorinv(x.reshape(6, 3, 2), 1), np.eye(6)),
    "tensorsolve": (
        lambda xp, x: xp.linalg.tensorsolve(x.reshape(2, 3, 3, 2), x[0].reshape(2, 3)),
        RNG.random((6, 6)),
    ),
    "tensorsolve axes": (
        lambda xp, x: xp.linalg.tensorsolve(x.reshape(2, 6, 3), x[0].reshape(2, 3), (1,)),
        RNG.random((6, 6)),
    ),
    "fromiter": (lambda xp, x: xp.fromiter((v * v for v in x.tolist()), "float32"), V),
    "fromiter count": (lambda xp, x: xp.fromiter(iter(x.tolist()), "float64", 2), V),
    "fromiter of nothing": (lambda xp, x: xp.fromiter([], "int8"), V),
    "histogramdd": (lambda xp, x: xp.histogramdd(x, 3)[0], RNG.random((40, 3))),
    "histogramdd of one": (lambda xp, x: xp.histogramdd(x, 3, density=True)[0], RNG.random(40)),
    "histogramdd of a list": (
        lambda xp, x: xp.histogramdd([x[:, 0], x[:, 1]], (2, [0.2, 0.5, 0.9]), None, True)[0],
        RNG.random((40, 2)),
    ),
    "histogramdd weighted": (
        lambda xp, x: xp.histogramdd(
            x[:, :2], (2, 4), ((0.1, 0.8), None), weights=x[:, 2], density=True
        )[0],
        RNG.random((40, 3)),
    ),
    "histogramdd of nothing": (lambda xp, x: xp.histogramdd(x, 2)[0], np.zeros((0, 2))),
    "histogram2d density": (
        lambda xp, x: xp.histogram2d(x[:, 0], x[:, 1], 3, None, True, x[:, 2])[0],
        RNG.random((40, 3)),
    ),
    "var": (lambda xp, x: xp.var(x, 1, ddof=1), M),
    "std": (lambda xp, x: xp.std(x, 0, ddof=1, dtype="float64"), M),
    "nanvar": (lambda xp, x: xp.nanvar(x, 1, ddof=1), M),
    "nanstd": (lambda xp, x: xp.nanstd(x, ddof=2), M),
    "cov": (lambda xp, x: xp.cov(x, bias=True), M),
    "where a condition holds": (lambda xp, x: xp.where(x > 0), M),
    "sort of a kind": (lambda xp, x: xp.sort(x, 0, kind="mergesort"), M),
    "sort of everything": (lambda xp, x: xp.sort(x, axis=None), A),
    "argsort of a kind": (lambda xp, x: xp.argsort(x, kind="stable"), I),
    "argsort of everything": (lambda xp, x: xp.argsort(x, None), A),
    "einsum optimized": (lambda xp, x: xp.einsum("ij,kj->ik", x, x, optimize="greedy"), M),
    "transpose by name": (lambda xp, x: xp.transpose(x, axes=(2, 0, 1)), A),
    "angle in degrees": (lambda xp, x: xp.angle(x, deg=True), C),
    "meshgrid sparse": (lambda xp, x: xp.meshgrid(x, x[:2], sparse=True), V),
    "meshgrid sparse ij": (lambda xp, x: xp.meshgrid(x, x[:2], sparse=True, indexing="ij"), V),
    "mgrid": (lambda xp, x: xp.mgrid[-1:3, 0:1:4j], V),
    "mgrid of integers": (lambda xp, x: xp.mgrid[:3, 1:6:2, 2:0:-1], V),
    "mgrid of one": (lambda xp, x: xp.mgrid[0:1:0.25], V),
    "ogrid": (lambda xp, x: xp.ogrid[0:2, 0:1:3j], V),
    "ogrid of one": (lambda xp, x: xp.ogrid[1:4], V),
    "cov ddof": (lambda xp, x: xp.cov(x, ddof=2, bias=True), M),
    "linspace step": (lambda xp, x: xp.linspace(2, 5, 4, False, True), V),
    "linspace steps": (lambda xp, x: xp.linspace(x, [1, 2, 3, 4], 3, retstep=True, axis=-1), M),
    "linspace no step": (lambda xp, x: xp.linspace(0, 1, 1, retstep=True), V),
    "linspace of a tensor, no step": (lambda xp, x: xp.linspace(x[1], 1, 1, retstep=True), V),
    "linspace step of integers": (lambda xp, x: xp.linspace(0, 5, 3, True, True, int, 0), V),
    "average returned": (lambda xp, x: xp.average(x, 0, returned=True), M),
    "average of all returned": (lambda xp, x: xp.average(x, returned=True), I),
    "average weights returned": (
        lambda xp, x: xp.average(x, 1, abs(x), True, keepdims=True),
        M,
    ),
    "average weights of an axis returned": (
        lambda xp, x: xp.average(x, 1, [1.0, 2.0, 0.5, 3.0], returned=True),
        M,
    ),
    "clip": (lambda xp, x: xp.clip(x, a_min=-0.5, a_max=[0.1, 0.2, 0.3, 0.4]), M),
    "clip none": (lambda xp, x: xp.clip(x, a_min=None, a_max=0.5), M),
    "r_": (lambda xp, x: xp.r_[0:3, 7, x, 0:1:3j, [4, 5], 5:0:-2], V),
    "r_ of matrices": (lambda xp, x: xp.r_[x, [[1, 2, 3, 4]]], M),
    "r_ of one": (lambda xp, x: xp.r_[3], V),
    "r_ of integers": (lambda xp, x: xp.r_[1:3, x[0], 4], I),
    "c_": (lambda xp, x: xp.c_[x, 0:5, [1.0, 2, 3, 4, 5]], V),
    "c_ of matrices": (lambda xp, x: xp.c_[x, x[:, 0]], M),
    "c_ of more axes": (lambda xp, x: xp.c_[x, x[..., :1]], A),
    "c_ of numbers": (lambda xp, x: xp.c_[3, 4], V),
    "s_": (lambda xp, x: x[xp.s_[1:, ..., ::2]], M),
    "s_ of one": (lambda xp, x: x[xp.s_[1]], M),
}


def check_same(found: Any, want: Any) -> None:
    if isinstance(want, tuple | list):
        assert len(found) == len(want)
        for one, other in zip(found, want, strict=True):
            check_same(one, other)
        return
    assert found.shape == np.shape(want)
    np.testing.assert_allclose(found.numpy(), want, 2e-4, 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_values_agree_with_numpy(name: str) -> None:
    function, array = CASES[name]
    check_same(function(wf, wf.tensor(array)), function(np, array))


KEPT_DTYPES = [
    "ascontiguousarray",
    "isreal of bools",
    "iscomplex of reals",
    "fabs",
    "packbits",
    "unpackbits",
    "trim_zeros",
    "fromiter",
    "fromiter of nothing",
    "apply_along_axis",
    "mgrid of integers",
    "r_ of integers",
]


@pytest.mark.parametrize("name", KEPT_DTYPES)
def test_dtypes_are_numpys(name: str) -> None:
    function, array = CASES[name]
    assert function(wf, wf.tensor(array)).dtype == function(np, array).dtype


@pytest.mark.parametrize(
    "name",
    [
        "packbits columns",
        "unpackbits count",
        "apply_along_axis to matrices",
        "histogramdd",
        "tensorsolve",
        "apply_over_axes",
        "isreal",
        "fabs",
        "linspace steps",
        "average weights returned",
        "r_",
        "c_ of matrices",
    ],
)
def test_compiled_and_mapped_results_are_the_plain_ones(name: str) -> None:
    function, array = CASES[name]
    want = function(np, array)
    check_same(wf.compile(lambda x: function(wf, x))(wf.tensor(array)), want)
    mapped = wf.vmap(lambda x: function(wf, x))(wf.stack([wf.tensor(array)] * 2))
    check_same(wf.tree_map(lambda t: t[1], mapped), want)


UPDATES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "put": ("put", ([0, -1, 5], [7.0, 8.0]), {}),
    "put one": ("put", (2, 9.0), {}),
    "put matrix": ("put", ([[0, 1], [2, 11]], [[1.0, 2.0], [3.0, 4.0]]), {}),
    "put clipped": ("put", ([0, -4, 99], [7.0, 8.0, 9.0]), {"mode": "clip"}),
    "put wrapped": ("put", ([0, -4, 99], [7.0, 8.0, 9.0]), {"mode": "wrap"}),
    "put again": ("put", ([3, 3, 3], [7.0, 8.0, 9.0]), {}),
    "put nowhere": ("put", ([], [7.0]), {}),
    "put nothing": ("put", ([1], []), {}),
    "place": ("place", (MASK, [7.0, 8.0]), {}),
    "place one": ("place", (MASK.astype(np.int8) * 3, 5.0), {}),
    "place many": ("place", (MASK.ravel(), np.arange(30, dtype=np.float32)), {}),
    "putmask": ("putmask", (MASK, [7.0, 8.0, 9.0, 10.0, 11.0]), {}),
    "putmask whole": ("putmask", (MASK, -M), {}),
    "putmask nothing": ("putmask", (MASK, []), {}),
    "fill_diagonal": ("fill_diagonal", (5.0,), {}),
    "fill_diagonal values": ("fill_diagonal", ([[1.0], [2.0]],), {"wrap": True}),
    "fill_diagonal nothing": ("fill_diagonal", ([],), {}),
}


@pytest.mark.parametrize("name", UPDATES)
def test_updates_give_what_numpy_leaves_behind(name: str) -> None:
    function, args, keywords = UPDATES[name]
    x, want = wf.tensor(M), M.copy()
    getattr(np, function)(want, *args, **keywords)
    found = getattr(wf, function)(x, *args, **keywords, inplace=False)
    np.testing.assert_array_equal(found.numpy(), want)
    np.testing.assert_array_equal(x.numpy(), M)
    found[0, 0] = 99.0  # the result is a tensor of its own
    np.testing.assert_array_equal(x.numpy(), M)
    view = x[1:]
    assert getattr(wf, function)(x, *args, **keywords) is x
    np.testing.assert_array_equal(x.numpy(), want)
    np.testing.assert_array_equal(view.numpy(), want[1:])


@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (2, 2, 2), (1, 1), (0, 3), (3, 0), (0, 0, 0)])
@pytest.mark.parametrize("wrap", [False, True])
def test_diagonals_of_every_shape_are_filled(shape: tuple[int, ...], wrap: bool) -> None:
    want = np.zeros(shape, np.int32)
    np.fill_diagonal(want, [4, 5], wrap)
    found = wf.fill_diagonal(wf.zeros(shape, "int32"), [4, 5], wrap)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found.numpy(), want)


@pytest.mark.parametrize("name", ["put", "place", "putmask", "fill_diagonal values"])
def test_updates_have_derivatives_compile_and_map(name: str) -> None:
    function, args, keywords = UPDATES[name]
    values = wf.asarray(args[-1], "float32")

    def changed(x: wf.Tensor, new: wf.Tensor) -> wf.Tensor:
        return getattr(wf, function)(x, *args[:-1], new, **keywords)

    def loss(x: wf.Tensor, new: wf.Tensor) -> wf.Tensor:
        return (changed(x, new) * weights).sum()

    x = wf.tensor(M)
    weights = wf.arange(12, dtype="float32").reshape((3, 4))
    to_x, to_new = wf.grad(loss, (0, 1))(x, values)
    is_kept = changed(wf.zeros_like(x), wf.ones_like(values)).numpy() == 0
    np.testing.assert_array_equal(to_x.numpy(), np.where(is_kept, weights.numpy(), 0))
    np.testing.assert_allclose(to_new.numpy().sum(), weights.numpy()[~is_kept].sum())
    want = changed(x, values).numpy()
    np.testing.assert_array_equal(wf.compile(changed)(x, values).numpy(), want)
    mapped = wf.vmap(changed)(wf.stack([x, x]), wf.stack([values * 2, values]))
    np.testing.assert_array_equal(mapped[1].numpy(), want)


@pytest.mark.parametrize("name", ["apply_along_axis", "apply_over_axes", "polydiv", "trim_zeros"])
def test_derivatives_flow_through(name: str) -> None:
    function, array = CASES[name]

    def loss(x: wf.Tensor) -> wf.Tensor:
        found = function(wf, x)
        return sum((wf.sin(part).sum() for part in found), wf.zeros(()))

    x = array.astype(np.float64)
    t = np.where(x == 0, 0, np.cos(np.arange(x.size)).reshape(x.shape))
    ahead, back = (loss(wf.tensor(x + step * t)).item() for step in (1e-6, -1e-6))
    gradient = wf.grad(loss)(wf.tensor(x)).numpy()
    np.testing.assert_allclose((gradient * t).sum(), (ahead - back) / 2e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["put", "place", "putmask", "fill_diagonal"])
def test_updates_of_split_tensors_are_those_of_whole_ones(name: str) -> None:
    function, args, keywords = UPDATES[name]
    mesh = wf.DeviceMesh("line", (2,), ("i",))
    whole = wf.tensor(M)
    split = wf.shard(whole, mesh, wf.P(None, "i"))
    found, want = (getattr(wf, function)(x, *args, **keywords) for x in (split, whole))
    np.testing.assert_array_equal(found.numpy(), want.numpy())


def test_bits_go_into_bytes_and_back() -> None:
    for order in ("big", "little"):
        packed = wf.packbits(BITS, 1, order)
        assert packed.dtype == np.uint8
        np.testing.assert_array_equal(wf.unpackbits(packed, 1, 11, order).numpy(), BITS)


def test_the_edges_of_a_grid_are_numpys() -> None:
    points = RNG.random((30, 2))
    _, edges = wf.histogramdd(points, [2, [0.0, 0.3, 1.0]], [(0.25, 0.75), None])
    _, want = np.histogramdd(points, [2, [0.0, 0.3, 1.0]], [(0.25, 0.75), None])
    check_same(edges, want)


def test_shapes_are_known_without_values() -> None:
    for x in (A, M[:0], 3.0, [[1, 2], [3, 4]], 1j, True):
        for name in ("ndim", "shape", "size", "isrealobj", "iscomplexobj"):
            assert getattr(wf, name)(x) == getattr(np, name)(x), (name, x)
    assert [wf.size(A, axis) for axis in (0, -1, (0, 2))] == [2, 4, 8]
    traced = wf.compile(lambda x: x * wf.size(x, 1) + wf.ndim(x))
    assert traced(wf.ones((2, 3))).tolist() == [[5.0] * 3] * 2
    assert wf.iscomplexobj(wf.tensor(C)) and not wf.isrealobj(wf.tensor(C))


def test_what_a_scalar_is() -> None:
    for value in (1, 2.5, 1j, True, np.float32(2), "text", None, [1], np.ones(()), (1,)):
        assert wf.isscalar(value) is np.isscalar(value)
    assert wf.isscalar(wf.tensor(1.0)) is False
    numbers = wf.compile(lambda x, n: x + wf.isscalar(n) + 10.0 * wf.isscalar(x))
    assert numbers(wf.zeros(()), 3.0).item() == 1  # a number is one where it is not known yet, too


def test_equal_after_broadcasting() -> None:
    pairs: list[Any] = [
        ([1, 2], [[1, 2], [1, 2]]),
        ([1, 2], [[1, 2], [1, 3]]),
        ([1, 2], [1, 2, 3]),
        ([], [1]),
        (1, [1, 1]),
        (np.nan, np.nan),
    ]
    for one, other in pairs:
        assert bool(wf.array_equiv(one, other)) is bool(np.array_equiv(one, other))


def test_a_map_of_nothing_has_an_inverse() -> None:
    assert wf.linalg.tensorinv(wf.ones((0, 3, 0)), 1).shape == (3, 0, 0)


def test_dtypes_meet_as_tensors_of_them_do() -> None:
    for one in ("int8", "uint16", "float16", "float32", "complex64"):
        for other in ("int32", "float64", "complex64"):
            met = wf.zeros(1, one) * wf.zeros(1, other)
            assert wf.promote_types(one, other) == met.dtype
    assert wf.promote_types(wf.bfloat16, wf.float16) == wf.float32
    assert wf.promote_types(bool, "int8") == wf.int8


def test_kinds_of_dtypes_are_numpys_classes() -> None:
    kinds = (np.generic, np.number, np.integer, np.floating, np.inexact, np.signedinteger)
    own = (np.complexfloating, np.float32, "int64", np.dtype("uint8"), np.bool_, bool)
    for dtype in (wf.bool_, wf.int64, wf.uint8, wf.float16, wf.float32, wf.complex64):
        for kind in (*kinds, *own):
            assert wf.issubdtype(dtype, kind) is np.issubdtype(dtype, kind), (dtype, kind)
    for dtype in (wf.bfloat16, wf.float8_e4m3, "bfloat16"):
        found = [kind for kind in kinds if wf.issubdtype(dtype, kind)]
        assert found == [np.generic, np.number, np.floating, np.inexact]
        assert wf.issubdtype(dtype, dtype) and not wf.issubdtype(dtype, wf.float16)
    assert wf.issubdtype(np.floating, np.inexact) and not wf.issubdtype(np.inexact, np.floating)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "complex64", "bool"])
def test_every_dtype_has_bytes_and_a_conjugate(dtype: str) -> None:
    x = wf.tensor(np.array([[1, 0, 2], [3, 1, 0]])).astype(dtype)
    assert x.T.tobytes() == np.ascontiguousarray(x.host().T).tobytes()
    back = wf.frombuffer(x.tobytes(), dtype).reshape((2, 3))
    np.testing.assert_array_equal(back.host(), x.host())
    np.testing.assert_array_equal(x.conjugate().host(), x.host().conj())
    assert wf.trim_zeros(x[0]).shape == (3,) and wf.trim_zeros(x[1]).shape == (2,)


def test_a_conjugate_turns_the_sign_of_the_imaginary_part() -> None:
    np.testing.assert_array_equal(wf.tensor(C).conjugate().numpy(), C.conjugate())


def test_memory_that_is_in_order_is_not_copied() -> None:
    x = wf.tensor(M)
    assert wf.asanyarray(x) is x
    assert wf.ascontiguousarray(x).storage == x.storage
    assert wf.ascontiguousarray(x.T).layout.is_contiguous


def test_integers_become_the_default_float() -> None:
    assert wf.fabs([-2, 3]).dtype == np.float32
    assert wf.polydiv([4, 2], [2])[0].dtype == np.float32


def test_a_remainder_that_is_not_trimmed_can_be_compiled() -> None:
    quotient, rest = wf.compile(lambda u, v: wf.polydiv(u, v, trim=False))(M[0], M[1, :3])
    check_same((quotient, rest), np.polydiv(ROW, M[1, :3].astype(np.float64)))
    assert wf.polydiv([2.0, 4.0, 2.0], [1.0, 1.0, 0.0], trim=False)[1].shape == (2,)
    assert wf.polydiv([2.0, 4.0, 2.0], [1.0, 2.0, 1.0])[1].tolist() == [0.0]


def test_what_reads_values_says_so_where_there_are_none() -> None:
    with pytest.raises(ConcretizationError):
        wf.compile(wf.trim_zeros)(V)
    with pytest.raises(ConcretizationError):
        wf.vmap(wf.polydiv)(M, M[:, :2])


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: wf.around(M, "x"), DTypeError, "round: decimals"),
    (lambda: wf.fabs(C), DTypeError, "fabs: takes real numbers"),
    (lambda: wf.ndim([[1], [2, 3]]), ConversionError, "ndim"),
    (lambda: wf.size(M, 2), AxisError, "size: axis 2 is out of range for 2 axes"),
    (lambda: wf.size(M, (0, 0)), AxisError, "given twice"),
    (lambda: wf.ix_([[1]]), ShapeError, "ix_: operand 0: needs one axis"),
    (lambda: wf.ix_([0], [1.5]), DTypeError, "ix_: operand 1: positions must be integers"),
    (lambda: wf.apply_along_axis(3, 0, M), ArgumentError, "func1d must be a function"),
    (lambda: wf.apply_along_axis(wf.sum, 2, M), AxisError, "apply_along_axis: axis 2"),
    (lambda: wf.apply_along_axis(lambda r: None, 0, M), ArgumentError, "must give a tensor"),
    (lambda: wf.apply_along_axis(wf.sum, 0, 1.0), AxisError, "apply_along_axis"),
    (lambda: wf.apply_over_axes(lambda x, i: x[0, 0], A, 0), ShapeError, "2 axes is expected"),
    (lambda: wf.apply_over_axes(wf.sum, A, 3), AxisError, "apply_over_axes: axis 3"),
    (lambda: wf.diag_indices_from(M), ShapeError, "all axes must have one size"),
    (lambda: wf.diag_indices_from(V), ShapeError, "needs at least 2 axes"),
    (lambda: wf.tril_indices_from(A), ShapeError, "tril_indices_from: needs two axes"),
    (lambda: wf.triu_indices_from(V), ShapeError, "triu_indices_from: needs two axes"),
    (lambda: wf.fill_diagonal(V, 0.0), ShapeError, "fill_diagonal: needs at least 2 axes"),
    (lambda: wf.fill_diagonal(A, 0.0), ShapeError, "all axes must have one size"),
    (lambda: wf.fill_diagonal(A[:, :2, :2], 0.0, "x"), DTypeError, "wrap must be True or False"),
    (lambda: wf.fill_diagonal(I, 0.5), DTypeError, "fill_diagonal: a value of dtype float32"),
    (lambda: wf.packbits(M), DTypeError, "packbits: takes integers and bools, got float32"),
    (lambda: wf.packbits(BITS, 2), AxisError, "packbits: axis 2"),
    (lambda: wf.packbits(BITS, 0, "middle"), ArgumentError, "bitorder must be one of"),
    (lambda: wf.unpackbits(I), DTypeError, "unpackbits: takes uint8, got int32"),
    (lambda: wf.unpackbits(BYTES, 0, -25), ArgumentError, "count must be at least -24"),
    (lambda: wf.histogramdd(M, (2, 2)), ArgumentError, "bins for 2 axes, points have 4"),
    (lambda: wf.histogramdd(A), ShapeError, "histogramdd: a row for each point"),
    (lambda: wf.histogramdd(M, 2, [(0, 1)]), ArgumentError, "range must have 4 ranges"),
    (lambda: wf.histogramdd(M, 2, weights=[1.0]), ShapeError, "weights .* for 3 points"),
    (lambda: wf.promote_types("int64", "uint64"), DTypeError, "promote_types: no integer dtype"),
    (lambda: wf.promote_types("int64", "text"), UnsupportedDTypeError, "promote_types"),
    (lambda: wf.issubdtype("float32", "text"), UnsupportedDTypeError, "issubdtype"),
    (lambda: wf.trim_zeros(V, "x"), ArgumentError, "trim must be one of"),
    (lambda: wf.trim_zeros(V, axis=1), AxisError, "trim_zeros: axis 1"),
    (lambda: wf.polydiv([], [1.0]), ShapeError, "polydiv: no coefficients"),
    (lambda: wf.polydiv(M, [1.0]), ShapeError, "coefficients lie along one axis"),
    (lambda: wf.put(M, [0.5], 1.0), DTypeError, "put: positions must be integers"),
    (lambda: wf.put(M, [12], 1.0).numpy(), IndexingError, "12 is out of range"),
    (lambda: wf.put(M, [1], 1.0), ArgumentError, "put: changes a tensor, got"),
    (lambda: wf.put(M, [1], 1.0, "nearest"), ArgumentError, "mode must be one of"),
    (lambda: wf.put(I, [1], 1.5), DTypeError, "put: a value of dtype"),
    (lambda: wf.place(M, MASK[:2], 1.0), ShapeError, "place: a mask of shape"),
    (lambda: wf.place(M, MASK, []), ArgumentError, "there is no value to place"),
    (lambda: wf.putmask(M, MASK[0], 1.0), ShapeError, "putmask: a mask of shape"),
    (lambda: wf.fromiter(3, "int8"), ConversionError, "fromiter: expected an iterable, got int"),
    (lambda: wf.fromiter([1], "int8", 2), ArgumentError, "2 numbers are asked for, 1 are there"),
    (lambda: wf.fromiter([[1]], "int8"), ShapeError, "an item has shape"),
    (lambda: wf.fromiter("ab", "int8"), ConversionError, "asarray"),
    (lambda: wf.mgrid[0:2, :], ArgumentError, "mgrid: axis 1: expected a slice with an end"),
    (lambda: wf.ogrid[3], ArgumentError, "ogrid: axis 0: expected a slice"),
    (lambda: wf.r_[1, 2:], ArgumentError, "r_: operand 1: expected a slice with an end"),
    (lambda: wf.c_["-1", M], ArgumentError, "(?s)c_: operand 0: text such as '-1'.*hint: wf.con"),
    (lambda: wf.r_[()], ArgumentError, "r_: there is nothing to join"),
    (lambda: wf.r_[M, 1], ShapeError, "concat"),
    (lambda: wf.linspace(0, 1, retstep=2), DTypeError, "retstep must be True or False"),
    (lambda: wf.average(M, returned=2), DTypeError, "returned must be True or False"),
    (lambda: wf.clip(M, 0, a_min=0), ArgumentError, "min and a_min mean the same"),
    (lambda: wf.clip(M, a_max=0, max=1), ArgumentError, "max and a_max mean the same"),
    (lambda: wf.where(MASK, M, M, size=3), ArgumentError, "where: size=3"),
    (lambda: wf.sort(M, kind="bubble"), ArgumentError, "sort: kind must be one of"),
    (lambda: wf.transpose(M, 1, 0, axes=(0, 1)), ArgumentError, "axes are given twice"),
    (lambda: wf.std(M, correction=1, ddof=1), ArgumentError, "correction=1 and ddof=1"),
    (lambda: wf.trace(wf.tensor(M)), ArgumentError, r"trace: captures .*\n.*wf\.linalg\.trace"),
    (lambda: wf.linalg.tensorinv(M, 0), ArgumentError, "ind must be at least 1"),
    (lambda: wf.linalg.tensorinv(M, 1), ShapeError, r"tensorinv: axes \(3,\) and \(4,\)"),
    (lambda: wf.linalg.tensorinv(M), ShapeError, "tensorinv: axes"),
    (lambda: wf.linalg.tensorsolve(np.eye(4), V), ShapeError, "tensorsolve: shapes do not fit"),
    (lambda: wf.linalg.tensorsolve(M, V), ShapeError, "tensorsolve: axes"),
    (lambda: wf.linalg.tensorsolve(M, V, (2,)), AxisError, "tensorsolve: axis 2"),
]


@pytest.mark.parametrize(("call", "kind", "text"), ERRORS)
def test_mistakes_are_named(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()
