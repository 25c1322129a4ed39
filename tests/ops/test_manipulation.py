"""Rearranging, cutting, picking and placing: values against NumPy, derivatives, batches, errors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.errors import (
    ArgumentError,
    AxisError,
    DTypeError,
    IndexingError,
    ShapeError,
    WeftError,
)

A = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
M = np.arange(12, dtype=np.float32).reshape(3, 4)
V = np.array([3.0, 1.0, 2.0], np.float32)

CASES = {
    "append": (lambda m, x: m.append(x, x, axis=1), A),
    "append flat": (lambda m, x: m.append(x, x), A),
    "atleast_1d": (lambda m, x: m.atleast_1d(x[0]), V),
    "atleast_2d": (lambda m, x: m.atleast_2d(x), V),
    "atleast_3d": (lambda m, x: m.atleast_3d(x), M),
    "atleast_3d of a vector": (lambda m, x: m.atleast_3d(x), V),
    "block": (lambda m, x: m.block([[x, x[:, :1]], [x[:1], x[:1, :1]]]), M),
    "block of vectors": (lambda m, x: m.block([x, x, 1.0]), V),
    "column_stack": (lambda m, x: m.column_stack([x, x]), V),
    "concatenate": (lambda m, x: m.concatenate([x, x], axis=-1), A),
    "concatenate flat": (lambda m, x: m.concatenate([x, x], axis=None), A),
    "delete": (lambda m, x: m.delete(x, 1, axis=1), M),
    "delete several": (lambda m, x: m.delete(x, [0, -1], axis=1), M),
    "delete slice": (lambda m, x: m.delete(x, slice(None, None, 2)), M),
    "diag": (lambda m, x: m.diag(x, 1), M),
    "diag of a vector": (lambda m, x: m.diag(x, -2), V),
    "diagflat": (lambda m, x: m.diagflat(x, 1), M),
    "diagonal": (lambda m, x: m.diagonal(x, 1, 0, 2), A),
    "diagonal outside": (lambda m, x: m.diagonal(x, 9), M),
    "diagonal below": (lambda m, x: m.diagonal(x, -1, -1, 1), A),
    "dstack": (lambda m, x: m.dstack([x, x]), M),
    "fliplr": (lambda m, x: m.fliplr(x), M),
    "flipud": (lambda m, x: m.flipud(x), M),
    "hstack": (lambda m, x: m.hstack([x, x]), M),
    "hstack of vectors": (lambda m, x: m.hstack([x, x]), V),
    "insert": (lambda m, x: m.insert(x, 1, 7.0, axis=1), M),
    "insert rows": (lambda m, x: m.insert(x, 1, x[:2], axis=0), M),
    "insert several": (lambda m, x: m.insert(x, [0, 2, 2], x[:3]), V),
    "insert columns": (lambda m, x: m.insert(x, [1, 3], x[:, :2], axis=1), M),
    "insert by scalar": (lambda m, x: m.insert(x, 1, x[:, 0], axis=1), M),
    "kron": (lambda m, x: m.kron(x, x[0]), M),
    "kron of matrices": (lambda m, x: m.kron(x, x[:2]), M),
    "pad": (lambda m, x: m.pad(x, ((1, 2), (0, 3))), M),
    "pad values": (lambda m, x: m.pad(x, 2, constant_values=((1, 2), (3, 4))), M),
    "pad pair": (lambda m, x: m.pad(x, (1, 2), constant_values=(5, 6)), M),
    "pad edge": (lambda m, x: m.pad(x, 2, mode="edge"), M),
    "pad with ends": (lambda m, x: m.pad(x, (2, 4), "linear_ramp", end_values=(0.5, -2)), M),
    "pad with means": (lambda m, x: m.pad(x, ((1, 2), (0, 3)), "mean"), M),
    "pad with medians": (lambda m, x: m.pad(x, 2, "median", stat_length=3), M),
    "pad with the largest": (lambda m, x: m.pad(x, (3, 0), "maximum", stat_length=(1, 2)), M),
    "pad with the least": (lambda m, x: m.pad(x, 1, "minimum", stat_length=99), M),
    "pad reflect": (lambda m, x: m.pad(x, (5, 3), mode="reflect"), M),
    "pad symmetric": (lambda m, x: m.pad(x, (4, 1), mode="symmetric"), M),
    "pad wrap": (lambda m, x: m.pad(x, ((7, 2), (0, 1)), mode="wrap"), M),
    "repeat": (lambda m, x: m.repeat(x, 3, axis=1), A),
    "repeat flat": (lambda m, x: m.repeat(x, 2), M),
    "resize": (lambda m, x: m.resize(x, (5, 3)), M),
    "resize smaller": (lambda m, x: m.resize(x, (2,)), M),
    "roll": (lambda m, x: m.roll(x, 5, axis=1), M),
    "roll flat": (lambda m, x: m.roll(x, -2), M),
    "roll axes": (lambda m, x: m.roll(x, (1, -1), axis=(0, 2)), A),
    "rollaxis": (lambda m, x: m.rollaxis(x, 2, 1), A),
    "rot90": (lambda m, x: m.rot90(x, 1), M),
    "rot270": (lambda m, x: m.rot90(x, -1, (1, 2)), A),
    "rot180": (lambda m, x: m.rot90(x, 2, (2, 0)), A),
    "tile": (lambda m, x: m.tile(x, (2, 3)), A),
    "tile more": (lambda m, x: m.tile(x, (2, 1, 3)), V),
    "tril": (lambda m, x: m.tril(x, k=1), A),
    "triu": (lambda m, x: m.triu(x, k=-1), A),
    "vander": (lambda m, x: m.vander(x, 4), V),
    "vander of small integers": (lambda m, x: m.vander(x, 4), np.array([100, -128, 3], "int8")),
    "vander rising": (lambda m, x: m.vander(x, increasing=True), V),
    "vstack": (lambda m, x: m.vstack([x, x]), V),
    "stack": (lambda m, x: m.stack([x, x], axis=1), M),
    "take": (lambda m, x: m.take(x, np.array([[0, -1], [2, 2]]), axis=1), A),
    "take flat": (lambda m, x: m.take(x, np.array([5, 0])), M),
    "select": (lambda m, x: m.select([x > 2, x > 1], [x * 2, -x], default=9.0), V),
    "choose": (lambda m, x: m.choose(np.array([0, 1, 0]), [x, x * 10]), V),
    "compress": (lambda m, x: m.compress(np.array([True, False, True]), x, axis=1), A),
    "extract": (lambda m, x: m.extract(np.asarray(M % 2 == 0), x), M),
}


@pytest.mark.parametrize("name", CASES)
def test_values_agree_with_numpy(name):
    function, array = CASES[name]
    got, want = function(wf, wf.tensor(array)), function(np, array)
    assert got.shape == want.shape
    np.testing.assert_allclose(got.numpy(), want)


@pytest.mark.parametrize("name", CASES)
def test_derivatives_and_batches_agree_with_finite_differences(name):
    function, array = CASES[name]
    weights = None

    def loss(x):
        nonlocal weights
        y = function(wf, x)
        weights = wf.cos(wf.arange(y.size, dtype="float64")).reshape(y.shape)
        return (y * y * weights).sum()

    x = array.astype(np.float64) + 0.25
    t = np.sin(np.arange(x.size) + 1.0).reshape(x.shape)
    step = 1e-6
    slope = (loss(wf.tensor(x + step * t)).item() - loss(wf.tensor(x - step * t)).item()) / 2 / step
    gradient = wf.grad(loss)(wf.tensor(x)).numpy()
    np.testing.assert_allclose((gradient * t).sum(), slope, rtol=1e-5, atol=1e-5)
    batch = np.stack([x, x + 1.0])
    try:
        mapped = wf.vmap(lambda row: function(wf, row))(batch)
    except WeftError as error:
        assert name == "extract", error
    else:
        rows = [function(wf, wf.tensor(row)).numpy() for row in batch]
        np.testing.assert_allclose(mapped.numpy(), np.stack(rows))


SPLITS = [
    ("split", 2, 0),
    ("split", [1, 1], 1),
    ("split", [-1, 7], 2),
    ("array_split", 3, 2),
    ("array_split", 5, 1),
    ("hsplit", 3, None),
    ("vsplit", 2, None),
    ("dsplit", [1], None),
]


@pytest.mark.promise("S2.25")
@pytest.mark.parametrize(("name", "sections", "axis"), SPLITS)
def test_splitting_agrees_with_numpy_and_gives_views(name, sections, axis):
    keywords = {} if axis is None else {"axis": axis}
    x = wf.tensor(A)
    got = getattr(wf, name)(x, sections, **keywords)
    want = getattr(np, name)(A, sections, **keywords)
    assert len(got) == len(want)
    for part, expected in zip(got, want, strict=True):
        np.testing.assert_array_equal(part.numpy(), expected)
        assert part.storage == x.storage


@pytest.mark.promise("S2.25")
def test_chunks_and_slices():
    x = wf.tensor(A)
    assert [c.shape for c in wf.chunk(x, 3, axis=2)] == [(2, 3, 2), (2, 3, 2)]
    assert [c.shape for c in x.chunk(3)] == [(1, 3, 4), (1, 3, 4)]
    for parts in (wf.unbind(x, 1), wf.unstack(x, axis=-2)):
        np.testing.assert_array_equal(wf.stack(parts, axis=1).numpy(), A)
        assert all(p.storage == x.storage for p in parts)
    gradient = wf.grad(lambda t: (wf.unbind(t)[1] * wf.split(t, 2)[0][0]).sum())(x)
    np.testing.assert_array_equal(gradient.numpy(), A[::-1])


@given(st.lists(st.integers(0, 3), min_size=3, max_size=3), st.booleans())
def test_repeat_takes_a_count_for_each_position(counts, as_tensor):
    given_counts = wf.tensor(counts) if as_tensor else counts
    got = wf.repeat(wf.tensor(A), given_counts, axis=1)
    np.testing.assert_array_equal(got.numpy(), np.repeat(A, counts, axis=1))


@pytest.mark.parametrize("counts", [[1, 2, 0], [0, 0, 0], [4, 0, 3], 2])
@pytest.mark.parametrize("length", [0, 3, 7])
def test_repeat_of_a_known_length_is_traced(counts, length):
    want = np.repeat(np.arange(3), counts)[:length]
    want = np.concatenate([want, np.full(length - len(want), 2)])
    given = wf.tensor(A)  # (2, 3)

    def run(x, counts):
        return wf.repeat(x, repeats=counts, axis=1, total_repeat_length=length)

    for call in (run, wf.compile(run)):
        assert call(given, wf.tensor(counts)).tolist() == A[:, want].tolist()
    rows = wf.vmap(run, in_axes=(None, 0))(given, wf.tensor([counts, counts]))
    assert rows[1].tolist() == A[:, want].tolist()


@pytest.mark.parametrize(
    ("x", "counts", "text"),
    [
        (np.ones(3), [1, 2], r"repeats \(2,\) for axis 0 of size 3"),
        (np.ones(3), [1.0, 2.0, 3.0], "must be integers, got float32"),
        (np.ones(0), 2, "no element of axis 0 fills a length of 4"),
    ],
)
def test_repeat_of_a_known_length_refuses(x, counts, text):
    with pytest.raises(WeftError, match=text):
        wf.repeat(x, counts, total_repeat_length=4)


def test_take_modes():
    x = wf.tensor(V)
    assert wf.take(x, [0, 5], mode="clip").tolist() == [3, 2]
    assert wf.take(x, [-1, 5], mode="wrap").tolist() == [2, 2]
    assert wf.take(x, [-1, 5], mode="fill", fill_value=9.0).tolist() == [2, 9]
    assert np.isnan(wf.take(x, [7], mode="fill").item())
    with pytest.raises(IndexingError, match="index 5 is out of range for an axis of size 3"):
        wf.take(x, [0, 5]).numpy()
    with pytest.raises(ArgumentError, match="mode must be one of"):
        wf.take(x, [0], mode="nearest")
    assert wf.take(wf.tensor(M), [], axis=0).shape == (0, 4)


@pytest.mark.promise("S2.18")
def test_gather_and_scatter_work_along_an_axis():
    x = wf.tensor(M)
    index = np.array([[0, 2, 1], [2, 2, 0]])
    want = np.take_along_axis(M[:, :3], index, 0)
    np.testing.assert_array_equal(wf.gather(x, 0, index).numpy(), want)
    np.testing.assert_array_equal(x.gather(1, [[0], [1], [3]]).numpy(), [[0], [5], [11]])
    source = np.ones((2, 3), np.float32)
    added = M.copy()
    np.add.at(added, (index, np.arange(3)), source)
    np.testing.assert_array_equal(wf.scatter(x, 0, index, source, "add").numpy(), added)
    np.testing.assert_array_equal(wf.scatter_add(x, 0, index, source).numpy(), added)
    put = M.copy()
    put[index, np.arange(3)] = -1
    np.testing.assert_array_equal(x.scatter(0, index, -1.0).numpy(), put)
    with pytest.raises(ShapeError, match="axis 1: the index has size 5"):
        wf.gather(x, 0, np.zeros((1, 5), int))
    with pytest.raises(ArgumentError, match="reduce must be"):
        wf.scatter(x, 0, index, source, "mean")


@pytest.mark.parametrize("reduce", [None, "add", "mul", "min", "max"])
def test_scatter_is_differentiable_with_repeated_positions_and_zeros(reduce):
    index = np.array([[0, 0, 2]])
    x, source = np.array([[1.0, 2.0, 0.0, 4.0]]), np.array([[3.0, 0.0, 5.0]])

    def loss(a, b):
        y = wf.scatter(a, 1, index, b, reduce)
        return (y * wf.asarray([[1.0, 2.0, 3.0, 4.0]], dtype="float64")).sum()

    for argument, array in enumerate((x, source)):
        gradient = wf.grad(loss, argument)(wf.tensor(x), wf.tensor(source)).numpy()
        for place in np.ndindex(array.shape):
            moved = [x.copy(), source.copy()]
            moved[argument][place] += 1e-6
            up = loss(*map(wf.tensor, moved)).item()
            moved[argument][place] -= 2e-6
            down = loss(*map(wf.tensor, moved)).item()
            np.testing.assert_allclose(gradient[place], (up - down) / 2e-6, atol=1e-6)


def test_put_along_axis_undoes_take_along_axis():
    order = np.argsort(-M, axis=1)
    values = np.take_along_axis(M, order, 1)
    got = wf.put_along_axis(wf.zeros((3, 4)), order, values, axis=1)
    np.testing.assert_array_equal(got.numpy(), M)


def test_segments():
    data = wf.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    ids = [0, 2, 0]
    assert wf.segment_sum(data, ids, 4).tolist() == [[6, 8], [0, 0], [3, 4], [0, 0]]
    assert wf.segment_prod(data, ids).tolist() == [[5, 12], [1, 1], [3, 4]]
    assert wf.segment_max(data, ids).tolist() == [[5, 6], [-np.inf] * 2, [3, 4]]
    assert wf.segment_min(wf.tensor([4, 2]), [1, 1], 2).tolist() == [2**63 - 1, 2]
    gradient = wf.grad(lambda d: (wf.segment_max(d, ids, 3)[0]).sum())(data)
    assert gradient.tolist() == [[0, 0], [0, 0], [1, 1]]
    for bad in ([0, 4, 0], [0, -1, 0]):
        with pytest.raises(IndexingError):
            wf.segment_sum(data, bad, 4).numpy()


def test_embedding_picks_rows_and_its_gradient_adds_up():
    table = wf.tensor(M)
    ids = np.array([[0, 2], [2, 2]])
    np.testing.assert_array_equal(wf.embedding(table, ids).numpy(), M[ids])
    for ids_of in (wf.embedding, wf.compile(wf.embedding)):
        with pytest.raises(IndexingError, match=r"^embedding: ids: index -1 is out of range"):
            ids_of(table, wf.tensor([0, -1])).numpy()
    gradient = wf.grad(lambda t: wf.embedding(t, ids).sum())(table)
    assert gradient.tolist() == [[1] * 4, [0] * 4, [3] * 4]


def test_masked_fill_and_index_select():
    x = wf.tensor(M)
    assert wf.masked_fill(x, x > 5, -1.0).numpy().max() == 5
    np.testing.assert_array_equal(wf.index_select(x, 1, [3, 0]).numpy(), M[:, [3, 0]])
    with pytest.raises(DTypeError, match="the mask must be bool"):
        wf.masked_fill(x, x, 0.0)


def test_flat_and_multi_positions_undo_each_other():
    flat = np.array([[0, 5], [23, 7]])
    parts = wf.unravel_index(flat, (2, 3, 4))
    for got, want in zip(parts, np.unravel_index(flat, (2, 3, 4)), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    np.testing.assert_array_equal(wf.ravel_multi_index(parts, (2, 3, 4)).numpy(), flat)
    assert wf.ravel_multi_index(([5], [-1]), (3, 4), mode="clip").tolist() == [8]
    assert wf.ravel_multi_index(([5], [-1]), (3, 4), mode="wrap").tolist() == [11]
    with pytest.raises(IndexingError, match="position 24 is out of range"):
        wf.unravel_index(24, (2, 3, 4))
    recorded = wf.arange(20_000) + 5  # not computed yet
    with pytest.raises(IndexingError, match="position 20000 is out of range"):
        wf.unravel_index(recorded, (100, 200))
    with pytest.raises(IndexingError, match="position 20000 is out of range"):
        wf.ravel_multi_index((recorded,), (20_000,))


def test_flat_positions_count_from_either_end_and_past_any_memory():
    flat = np.array([0, 5, 23, 7])
    parts = wf.unravel_index(flat, (2, 3, 4), order="F")
    for got, want in zip(parts, np.unravel_index(flat, (2, 3, 4), order="F"), strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
    assert wf.ravel_multi_index(parts, (2, 3, 4), order="F").tolist() == flat.tolist()
    places, modes = ([5, 1], [-1, 9]), ("clip", "wrap")
    want = np.ravel_multi_index(places, (3, 4), mode=modes)
    for each in (modes, list(modes)):
        assert wf.ravel_multi_index(places, (3, 4), each).tolist() == want.tolist()
    large = (2**31, 2**31)
    assert [part.item() for part in wf.unravel_index(2**61 + 7, large)] == [2**30, 7]
    assert wf.ravel_multi_index((2**30, 7), large).item() == 2**61 + 7
    for call in (wf.unravel_index, wf.ravel_multi_index):
        with pytest.raises(ShapeError, match="has more positions than int64 counts"):
            call((1, 1), (2**32, 2**31))
    for mode in ("clip", "wrap"):
        with pytest.raises(IndexingError, match="ravel_multi_index: an axis of size 0"):
            wf.ravel_multi_index(([1], [1]), (2, 0), mode)
        assert wf.ravel_multi_index(([], []), (2, 0), mode).shape == (0,)
    with pytest.raises(ShapeError, match="ravel_multi_index: 1 modes for 2 axes"):
        wf.ravel_multi_index((1, 1), (2, 2), ("clip",))
    with pytest.raises(ArgumentError, match="unravel_index: order must be one of 'C', 'F'"):
        wf.unravel_index(1, (2, 2), "A")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_positions_and_counts_may_be_of_any_integer_dtype(dtype):
    x, places = np.arange(126), np.array([126] * 6)
    made = wf.insert(x, wf.asarray(places.astype(dtype)), 7)
    np.testing.assert_array_equal(made.numpy(), np.insert(x, places, 7))
    made = wf.insert(np.arange(300), wf.tensor([3, 0], dtype=dtype), 7)
    np.testing.assert_array_equal(made.numpy(), np.insert(np.arange(300), [3, 0], 7))
    counts = wf.tensor([0, 2, 1], dtype=dtype)
    assert wf.repeat([5, 6, 7], counts).tolist() == [6, 6, 7]
    assert wf.repeat([5, 6, 7], counts, total_repeat_length=4).tolist() == [6, 6, 7, 7]
    with pytest.raises(IndexingError, match="insert: index 127 is out of bounds for size 126"):
        wf.insert(x, wf.tensor([127], dtype=dtype), 7)


def test_inserted_values_are_never_cast_down_in_silence():
    assert wf.insert(wf.ones(2), 0, 3).tolist() == [3.0, 1.0, 1.0]
    assert wf.insert(wf.arange(2), [], []).tolist() == [0, 1]
    for x, value in ((wf.arange(2), 3.5), (wf.ones(2), np.float64([0.1])), (wf.ones(2), 1j)):
        with pytest.raises(DTypeError, match="insert: a value of dtype"):
            wf.insert(x, 0, value)


def test_positions_of_triangles_and_diagonals():
    for name in ("tril_indices", "triu_indices"):
        for got, want in zip(getattr(wf, name)(4, 1, 5), getattr(np, name)(4, 1, 5), strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
    assert [i.tolist() for i in wf.diag_indices(3)] == [[0, 1, 2]] * 2


def test_matrix_trace_sums_a_diagonal():
    np.testing.assert_array_equal(wf.matrix_trace(wf.tensor(A), 1).numpy(), np.trace(A, 1))


def test_a_diagonal_is_a_view():
    x = wf.tensor(M)
    assert wf.diagonal(x).storage == x.storage
    assert wf.diagonal(x).strides == (5,)


def test_sliding_windows_show_every_place():
    want = np.lib.stride_tricks.sliding_window_view(M, 3, axis=1)
    np.testing.assert_array_equal(wf.sliding_window_view(wf.tensor(M), 3, axis=1).numpy(), want)
    np.testing.assert_array_equal(wf.unfold(wf.tensor(M), 0, 2, 1).numpy().shape, (2, 4, 2))
    np.testing.assert_array_equal(wf.unfold(wf.tensor(M), 1, 2, 2).numpy(), M.reshape(3, 2, 2))


ERRORS = [
    (lambda: wf.split(wf.ones(5), 2), ShapeError, "has no 2 equal parts"),
    (lambda: wf.split(wf.ones(5), 0), ArgumentError, "number of parts must be from 1"),
    (lambda: wf.vsplit(wf.ones(5), 1), AxisError, "needs at least 2 axes"),
    (
        lambda: wf.concat([wf.ones((2, 3)), wf.ones((2, 4))]),
        ShapeError,
        "operand 1, axis 1",
    ),
    (lambda: wf.concat([]), ArgumentError, "needs at least one tensor"),
    (lambda: wf.stack([wf.ones(2), wf.ones(3)]), ShapeError, "operand 1 has shape"),
    (lambda: wf.repeat(wf.ones(3), -1), ArgumentError, "repeats must be at least 0"),
    (lambda: wf.repeat(wf.ones(3), [1, 2]), ShapeError, "repeat: repeats"),
    (lambda: wf.pad(wf.ones(3), -1), ArgumentError, "a width is negative"),
    (lambda: wf.pad(wf.ones(3), 1, mode="means"), ArgumentError, "mode must be one of"),
    (lambda: wf.pad(wf.ones((2, 0)), 1, mode="mean"), ShapeError, "axis 1 is empty"),
    (lambda: wf.pad(wf.ones(3), 1, "maximum", stat_length=0), ArgumentError, "stat_length must"),
    (lambda: wf.pad(wf.ones(0), 1, mode="edge"), ShapeError, "axis 0 is empty"),
    (lambda: wf.pad(wf.ones(3, dtype="int32"), 1, constant_values=0.5), DTypeError, "does not fit"),
    (lambda: wf.pad(wf.ones((2, 2)), ((1, 1), (1, 1), (1, 1))), ShapeError, "does not fit 2 axes"),
    (lambda: wf.block([[wf.ones(1)], wf.ones(1)]), ArgumentError, "different depths"),
    (lambda: wf.delete(wf.ones(3), 7), IndexingError, "delete"),
    (
        lambda: wf.roll(wf.ones((2, 2)), (1, 2, 3), axis=(0, 1)),
        ArgumentError,
        "3 shifts",
    ),
    (lambda: wf.take(wf.ones(3), [0.5]), DTypeError, "positions must be integers"),
    (lambda: wf.tril(wf.ones(3)), ShapeError, "needs at least 2 axes"),
    (lambda: wf.select([], []), ArgumentError, "select"),
]


@pytest.mark.parametrize(("call", "kind", "text"), ERRORS)
def test_mistakes_are_named(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint64", "float16", "bfloat16", "float8_e4m3", "float64", "complex64"],
)
def test_moves_keep_every_dtype(dtype):
    x = wf.asarray([[1, 0, 1], [0, 1, 1]]).astype(dtype)
    raw = x.numpy()
    for name, got, want in (
        ("pad", wf.pad(x, 1), np.pad(raw, 1)),
        ("tile", wf.tile(x, (2,)), np.tile(raw, (2,))),
        ("roll", wf.roll(x, 1), np.roll(raw, 1)),
        ("tril", wf.tril(x), np.tril(raw)),
        ("take", wf.take(x, [1, 0], axis=1), np.take(raw, [1, 0], axis=1)),
        ("diag", wf.diag(x[0]), np.diag(raw[0])),
    ):
        assert got.dtype == x.dtype, name
        np.testing.assert_array_equal(got.numpy().view(np.uint8), want.view(np.uint8), err_msg=name)


def test_a_tree_becomes_a_vector_and_comes_back():
    tree = {"a": wf.tensor([[1.0, 2.0]]), "b": (wf.tensor(3, dtype="int32"), np.float64(4.0))}
    vector, restore = wf.tree_ravel(tree)
    assert vector.tolist() == [1, 2, 3, 4] and vector.dtype == np.float64
    back = restore(vector * 2)
    assert back["a"].tolist() == [[2, 4]] and back["a"].dtype == np.float32
    assert back["b"][0].item() == 6 and back["b"][0].dtype == np.int32
    model = wf.nn.MLP(2, (3,), 1, key=wf.random.key(0))
    flat, rebuild = wf.tree_ravel(model)
    curvature = wf.hessian(lambda v: wf.sum(rebuild(v)(wf.ones(2)) ** 2))(flat)
    assert curvature.shape == (flat.size, flat.size)
    assert wf.tree_ravel(())[0].shape == (0,)
    with pytest.raises(ShapeError, match=r"tree_ravel: restore: expected a vector of 4 elements"):
        restore(vector[:3])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float32"])
@pytest.mark.parametrize("mode", ["linear_ramp", "maximum", "mean", "median", "minimum"])
def test_new_elements_of_any_dtype_are_numpys(mode, dtype):
    x = np.array([[7, 0, 3, 90], [1, 8, 8, 0], [5, 1, 2, 9]]).astype(dtype)
    expected, found = np.pad(x, ((2, 1), (0, 3)), mode), wf.pad(x, ((2, 1), (0, 3)), mode)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


def test_roll_takes_several_shifts_of_which_some_are_computed() -> None:
    x = wf.tensor(A)
    cases = [((2, -1), (0, 2)), ((2, -1), None), ((1, 1), 1), ((3,), (0, 1)), ((-1,), None)]
    for shift, axis in cases:
        want = np.roll(A, shift, axis)
        found = wf.compile(lambda *s, axis=axis: wf.roll(x, s, axis))(*map(wf.tensor, shift))
        np.testing.assert_array_equal(found.numpy(), want)
        found = wf.compile(lambda s, axis=axis, more=shift[1:]: wf.roll(x, [s, *more], axis))
        np.testing.assert_array_equal(found(wf.tensor(shift[0])).numpy(), want)
    turned = wf.vmap(lambda v, i, j: wf.roll(v, (i, j), (0, 1)))
    found = turned(x, wf.tensor([1, 2]), wf.tensor([0, -1]))
    np.testing.assert_array_equal(found[1].numpy(), np.roll(A[1], (2, -1), (0, 1)))
    empty = wf.compile(lambda v, s: wf.roll(v, s, 0))
    assert empty(wf.ones((0, 3)), wf.tensor(1)).shape == (0, 3)
    assert empty(wf.ones(3), wf.zeros(0, dtype="int64")).tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(ArgumentError, match="roll: 3 shifts for 2 axes"):
        wf.compile(lambda s: wf.roll(x, (s, s, s), (0, 1)))(wf.tensor(1))


def test_roll_takes_shifts_that_are_computed() -> None:
    x = wf.tensor(A)
    cases = [(3, 1), (-1, None), ([1, -2], (0, 2)), ([4], (0, 1))]
    for shift, axis in cases:
        want = np.roll(A, shift, axis)
        found = wf.compile(lambda s, axis=axis: wf.roll(x, s, axis))(wf.asarray(shift))
        np.testing.assert_array_equal(found.numpy(), want)
    rows = wf.vmap(lambda r, s: wf.roll(r, s))(wf.tensor(M), wf.tensor([1, 2, -1]))
    np.testing.assert_array_equal(rows[2].numpy(), np.roll(M[2], -1))
    slope = wf.grad(lambda v: (wf.vmap(wf.roll)(v, wf.tensor([1, 2, 3])) * wf.tensor(M)).sum())
    np.testing.assert_array_equal(slope(wf.tensor(M))[1].numpy(), np.roll(M[1], -2))
    with pytest.raises(DTypeError, match="roll: shift must be integers"):
        wf.compile(lambda s: wf.roll(x, s))(wf.tensor(1.5))


@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
@pytest.mark.parametrize("widths", [(1, 2), (0, 3), (4, 4), (11, 9), ((2, 0), (7, 25))])
def test_odd_mirrors_are_numpys(mode, widths):
    x = np.random.default_rng(4).normal(size=(4, 5))
    for each in (x, x.astype(np.float32), (10 * x).astype(np.int32), x[:1], x[:, :1]):
        found, want = (m.pad(each, widths, mode, reflect_type="odd") for m in (wf, np))
        atol = 0 if each.dtype == np.int32 else 100 * np.finfo(each.dtype).eps
        np.testing.assert_allclose(found.numpy(), want, rtol=0, atol=atol)


def test_odd_mirrors_keep_what_is_inside_and_are_differentiated():
    x = np.array([np.inf, 1.0, -0.0, 4.0])
    assert wf.pad(x, 9, "reflect", reflect_type="odd").numpy()[9:13].tobytes() == x.tobytes()
    slope = wf.grad(lambda x: wf.pad(x, (2, 0), "reflect", reflect_type="odd")[:2].sum())
    assert slope(wf.tensor([1.0, 2.0, 3.0])).tolist() == [4.0, -1.0, -1.0]
    with pytest.raises(ArgumentError, match="reflect_type='odd' is for 'reflect' and 'symmetric'"):
        wf.pad(x, 1, "edge", reflect_type="odd")
