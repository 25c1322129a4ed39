"""Collectives give slices of a named `vmap` axis what they give devices along a mesh axis."""

import numpy as np
import pytest

import weft as wf
from weft import P
from weft.errors import ArgumentError, ShapeError, ShardingError

LINE = wf.DeviceMesh("line", (3,), ("i",))
X = wf.asarray(np.random.default_rng(0).normal(size=(3, 6, 3)))
W = wf.asarray(np.random.default_rng(1).normal(size=(3, 3)))

FORMS = {
    "all_gather": lambda x: wf.all_gather(x, "i"),
    "all_gather_axis": lambda x: wf.all_gather(x, ("i",), axis=-1),
    "all_reduce": lambda x: wf.all_reduce(x, "i"),
    "all_reduce_max": lambda x: wf.all_reduce(x, "i", "max"),
    "all_reduce_prod": lambda x: wf.all_reduce(x, "i", "prod"),
    "reduce_scatter": lambda x: wf.reduce_scatter(x, "i"),
    "reduce_scatter_axis": lambda x: wf.reduce_scatter(x, "i", axis=1),
    "all_to_all": lambda x: wf.all_to_all(x, "i", axis=0, split=1),
    "all_to_all_back": lambda x: wf.all_to_all(x, "i", axis=1, split=0),
    "ppermute": lambda x: wf.ppermute(x, "i", [(0, 1), (1, 2), (2, 0)]),
    "ppermute_some": lambda x: wf.ppermute(x, "i", [(0, 2)]),
    "broadcast": lambda x: wf.broadcast(x, "i", 1),
    "in_a_loop": lambda x: wf.scan(
        lambda c, _: (wf.ppermute(wf.sin(c), "i", [(0, 1), (1, 2), (2, 0)]), None), x, length=2
    )[0],
    "in_a_branch": lambda x: wf.cond(
        wf.axis_size("i") > 2, lambda v: wf.all_gather(v, "i"), lambda v: wf.concat([v] * 3), x
    ),
}


def _of_slices(form):
    return wf.vmap(form, axis_name="i")


def _of_devices(form):
    return wf.shard_map(lambda x: form(x[0])[None], LINE, P("i"), P("i"), manual=True)


@pytest.mark.parametrize("wrap", [lambda f: f, wf.compile], ids=["plain", "compiled"])
@pytest.mark.parametrize("name", FORMS)
def test_slices_get_what_devices_get(name, wrap) -> None:
    got, wanted = wrap(_of_slices(FORMS[name]))(X), _of_devices(FORMS[name])(X)
    np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", FORMS)
def test_derivatives_of_slices_are_those_of_devices(name) -> None:
    def loss(over):
        def of(x):
            y = over(lambda v: wf.sin(FORMS[name](wf.sin(v))))(x)
            return (y * wf.arange(y.size, dtype="float64").reshape(y.shape)).sum()

        return of

    for mode in (wf.grad, lambda f: lambda x: wf.jvp(wf.grad(f), (x,), (wf.cos(x),))[1]):
        got, wanted = mode(loss(_of_slices))(X), mode(loss(_of_devices))(X)
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", FORMS)
def test_collectives_over_slices_map_over_another_axis(name) -> None:
    rows = wf.stack([X, wf.cos(X)])
    form = _of_slices(FORMS[name])
    wanted = wf.stack([form(rows[0]), form(rows[1])])
    np.testing.assert_allclose(wf.vmap(form)(rows).numpy(), wanted.numpy(), rtol=1e-12)


def test_what_is_gathered_over_two_axes_is_in_their_order() -> None:
    for names in (("i", "j"), ("j", "i")):
        twice = wf.vmap(
            wf.vmap(lambda v, n=names: wf.all_gather(v[None], n), axis_name="j"), axis_name="i"
        )
        wanted = W.numpy() if names == ("i", "j") else W.numpy().T
        np.testing.assert_array_equal(twice(W).numpy()[1, 2], wanted.ravel())
    parts = wf.vmap(
        wf.vmap(lambda v: wf.reduce_scatter(v, ("i", "j")), axis_name="j"), axis_name="i"
    )(wf.ones((3, 3, 9)) * wf.arange(9.0))
    np.testing.assert_array_equal(parts.numpy().ravel(), 9 * np.arange(9.0))


def test_slices_and_devices_share_one_collective() -> None:
    def body(x):  # of 2 slices, each with a piece of 3 devices
        return wf.vmap(lambda v: wf.all_gather(v, ("j", "i")), axis_name="j")(x)

    x = wf.arange(6.0).reshape(2, 3)
    gathered = wf.shard_map(body, LINE, P(None, "i"), P(None), manual=True)(x)
    assert gathered.tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]] * 2


def test_mistakes_with_slices_are_those_with_devices() -> None:
    def raises(kind, match, form):
        with pytest.raises(kind, match=match):
            _of_slices(form)(X)

    raises(ShapeError, "cannot be cut into 3 equal", lambda x: wf.reduce_scatter(x[:4], "i"))
    raises(ShardingError, "`split`, the axis cut", lambda x: wf.all_to_all(x, "i"))
    raises(ArgumentError, "no permutation of 3", lambda x: wf.ppermute(x, "i", [(0, 1), (2, 1)]))
    raises(ArgumentError, "root", lambda x: wf.broadcast(x, "i", 3))
