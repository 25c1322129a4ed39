import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ops import einsum as module

CASES = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ba,cb", (2, 3), (4, 2)),
    ("i,j->ij", (2,), (3,)),
    ("i,i->", (3,), (3,)),
    ("i,j->", (3,), (2,)),
    ("ij->ji", (2, 3)),
    ("ij->", (2, 3)),
    ("ij->j", (2, 3)),
    ("ii", (3, 3)),
    ("ii->i", (3, 3)),
    ("iij->ij", (3, 3, 2)),
    ("iji->ji", (3, 2, 3)),
    ("iaii->ai", (2, 3, 2, 2)),
    ("iii->", (2, 2, 2)),
    ("ijij->ij", (2, 3, 2, 3)),
    ("...ij,...jk->...ik", (5, 2, 3), (3, 4)),
    ("...ij,...jk", (5, 1, 2, 3), (6, 3, 4)),
    ("i...,i...->...", (3, 2, 4), (3, 4)),
    ("...,...", (2, 3), (3,)),
    ("...i->...", (2, 3, 4)),
    ("...ii->...i", (2, 3, 3)),
    ("b i j , b j k -> b i k", (2, 3, 4), (2, 4, 5)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("ijk,jil->kl", (2, 3, 4), (3, 2, 5)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("ij,ij,ij->i", (2, 3), (2, 3), (2, 3)),
    ("ij,kj,lj->ikl", (2, 3), (4, 3), (5, 3)),
    ("a,ab,abc->abc", (2,), (2, 3), (2, 3, 4)),
    ("ea,fb,abcd,gc,hd->efgh", (2, 3), (2, 3), (3, 3, 3, 3), (2, 3), (2, 3)),
    ("ab,bc,cd,de,ef,fg,gh->ah", *[(2, 2)] * 7),
    (",i->i", (), (3,)),
    ("->", ()),
    ("ij,jk->ik", (2, 0), (0, 4)),
    ("ij,jk->ik", (0, 3), (3, 4)),
    ("Ab,bA->A", (2, 3), (3, 2)),
]


def draw(shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}")
def test_einsum_is_numpys_and_its_gradient_that_of_a_multilinear_map(case):
    text, *shapes = case
    arrays = [draw(shape, seed) for seed, shape in enumerate(shapes)]
    got, pullback = wf.vjp(lambda *xs: wf.einsum(text, *xs), *arrays)
    np.testing.assert_allclose(got.numpy(), np.einsum(text, *arrays), rtol=1e-10, atol=1e-12)
    ct = np.cos(np.arange(got.size, dtype=float)).reshape(got.shape)
    for place, gradient in enumerate(pullback(ct)):
        direction = draw(shapes[place], 9)
        moved = np.einsum(text, *arrays[:place], direction, *arrays[place + 1 :])
        assert np.sum(gradient.numpy() * direction) == pytest.approx(np.sum(ct * moved), rel=1e-9)


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64", "float16", "float32", "complex128"])
def test_einsum_keeps_the_dtype(dtype):
    a, b = (np.arange(6).reshape(s).astype(dtype) for s in ((2, 3), (3, 2)))
    for text, operands in (("ij,jk->ik", (a, b)), ("ij->i", (a,)), ("ij,ij->ij", (a, a))):
        got = wf.einsum(text, *operands)
        assert got.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(got.numpy(), np.einsum(text, *operands))


def test_operands_may_alternate_with_lists_of_labels():
    a, b = draw((2, 3)), draw((3, 4), 1)
    np.testing.assert_allclose(wf.einsum(a, [0, 1], b, [1, 2]).numpy(), a @ b)
    np.testing.assert_allclose(wf.einsum(a, [0, 1], b, [1, 2], [2, 0]).numpy(), (a @ b).T)
    x = draw((5, 3, 3))
    got = wf.einsum(x, [Ellipsis, 1, 1], [Ellipsis])
    np.testing.assert_allclose(got.numpy(), np.trace(x, axis1=1, axis2=2))


def test_axes_of_size_one_stretch():
    for text, left, right in (
        ("ij,jk->ik", (2, 1), (3, 4)),
        ("ij,ij->ij", (2, 1), (1, 3)),
        ("ij,jk->ik", (2, 1), (1, 4)),
    ):
        a, b = draw(left), draw(right, 1)
        np.testing.assert_allclose(wf.einsum(text, a, b).numpy(), np.einsum(text, a, b))


def test_einsum_maps_and_differentiates_twice():
    a, b = draw((4, 2, 3)), draw((3, 2), 1)
    mapped = wf.vmap(lambda x: wf.einsum("ij,ji->", x, b))(a)
    np.testing.assert_allclose(mapped.numpy(), np.einsum("nij,ji->n", a, b))
    square = wf.grad(lambda x: wf.sum(wf.grad(lambda y: wf.einsum("i,i,i->", y, y, y))(x)))
    np.testing.assert_allclose(square(np.arange(3.0)).numpy(), 6 * np.arange(3.0))


def test_the_best_order_of_a_chain_is_found():
    sizes = dict(zip("abcd", (1000, 2, 1000, 2), strict=True))
    terms = [frozenset("ab"), frozenset("bc"), frozenset("cd")]
    for order in (module._optimal, module._greedy):
        assert order(terms, frozenset("ad"), sizes)[0] == (1, 2)


def test_the_path_is_the_order_of_the_products_and_numpy_reads_it():
    a, b, c = draw((9, 2), 0), draw((2, 9), 1), draw((9, 2), 2)
    path, costs = wf.einsum_path("ij,jk,kl->il", a, b, c)
    assert path == ["einsum_path", (1, 2), (0, 1)]
    assert costs == "72 products instead of 648\njk,kl->jl: 36\nij,jl->il: 36"
    want = np.einsum("ij,jk,kl->il", a, b, c, optimize=path)
    np.testing.assert_allclose(wf.einsum("ij,jk,kl->il", a, b, c, optimize=path).numpy(), want)
    assert wf.einsum_path("ii", draw((3, 3), 0))[0] == np.einsum_path("ii", draw((3, 3), 0))[0]
    path, costs = wf.einsum_path("...i,ij,m", draw((4, 2), 0), b, draw((3,), 1))
    assert path == ["einsum_path", (0, 1), (0, 1)] and "...i,ij->...j: 72" in costs
    with pytest.raises(ArgumentError, match="einsum_path: 2 terms for 1 operands"):
        wf.einsum_path("ij,jk", a)


@given(st.data())
def test_random_expressions_are_numpys(data):
    letters = string.ascii_lowercase[:5]
    sizes = {letter: data.draw(st.integers(1, 3)) for letter in letters}
    terms = data.draw(st.lists(st.text(letters, max_size=4), min_size=1, max_size=4))
    used = sorted(set("".join(terms)))
    kept = data.draw(st.lists(st.sampled_from(used), unique=True)) if used else []
    text = ",".join(terms) + "->" + "".join(kept)
    arrays = [draw([sizes[n] for n in term], k) for k, term in enumerate(terms)]
    got = wf.einsum(text, *arrays).numpy()
    np.testing.assert_allclose(got, np.einsum(text, *arrays), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("text", "shapes", "error", "message"),
    [
        ("ij,jk", [(2, 3)], ArgumentError, "2 terms for 1 operands"),
        ("ij", [(2, 3, 4)], ShapeError, "operand 0: 2 labels for shape"),
        ("ijk...", [(2, 3)], ShapeError, "operand 0: 3 labels and ... for shape"),
        ("ij,jk", [(2, 3), (4, 5)], ShapeError, "operand 1: label 'j' is 4 here but 3 before"),
        ("ii", [(2, 3)], ShapeError, "label 'i' is 3 on axis 1 but 2 on axis 0"),
        ("ij->k", [(2, 3)], ArgumentError, "label 'k' of the result is in no operand"),
        ("ij->ii", [(2, 3)], ArgumentError, "label 'i' is twice in the result"),
        ("i1", [(2, 3)], ArgumentError, "'1' is no label"),
        ("...i->i", [(2, 3)], ArgumentError, "the result needs ..."),
    ],
)
def test_mistakes_are_named(text, shapes, error, message):
    with pytest.raises(error, match=f"einsum: .*{message}"):
        wf.einsum(text, *(np.ones(shape) for shape in shapes))


def test_bool_is_not_a_number():
    with pytest.raises(DTypeError, match="einsum: bool is not a number"):
        wf.einsum("i,i", np.ones(2, bool), np.ones(2, bool))
