import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft as wf

POINTS = np.array([-1.0, 2.0, 0.0, 3.0])
CHOICES = np.array([1, -2, 1, 9])
SHARED = np.array([0.5, 1.5])


def root(library, x, shared):
    """A root where there is one; slopes of the other branch are NaN elsewhere."""
    lax = wf if library is wf else jax.lax
    return lax.cond(
        x > shared[0], lambda v: library.sqrt(v - shared[0]), lambda v: v * v * shared[1], x
    )


def choice(library, x, shared):
    """One of three functions by the place of `x`, with indices out of range."""
    lax = wf if library is wf else jax.lax
    index = library.asarray(CHOICES)[library.argmin(library.abs(library.asarray(POINTS) - x))]
    branches = [library.sqrt, lambda v: v * v * shared[0], library.log]
    return lax.switch(index, branches, x)


@pytest.mark.parametrize("function", [root, choice])
def test_slopes_of_branches_that_no_row_takes_stay_out_of_a_mapped_choice(function) -> None:
    def total(library, transforms):
        mapped = transforms.vmap(lambda v, w: function(library, v, w), in_axes=(0, None))
        return lambda x, w: mapped(x, w).sum()

    with jax.enable_x64(True):
        expected = jax.grad(total(jnp, jax), argnums=(0, 1))(POINTS, SHARED)
    gradient = wf.grad(total(wf, wf), argnums=(0, 1))
    tensors = wf.asarray(POINTS), wf.asarray(SHARED)
    for run in (gradient, wf.compile(gradient)):
        for found, right in zip(run(*tensors), expected, strict=True):
            np.testing.assert_allclose(found.numpy(), right, rtol=1e-12)


def test_the_only_branch_of_a_mapped_choice_is_taken_by_every_row() -> None:
    def total(x):
        return wf.vmap(lambda v, i: wf.switch(i, [wf.sin], v))(x, wf.asarray(CHOICES)).sum()

    x = wf.asarray(POINTS)
    assert wf.grad(total)(x).tolist() == wf.cos(x).tolist()


def test_a_matrix_that_all_rows_of_a_mapped_choice_share_is_not_repeated() -> None:
    def choose(x, w):
        return wf.cond(x.sum() > 0, lambda v: v @ w, lambda v: v * 2, x)

    made = wf.trace(wf.vmap(choose, in_axes=(0, None)), wf.ones((5, 3)), wf.ones((3, 3)))
    assert (5, 3, 3) not in [kind.shape for node in made.nodes for kind in node.types]


def test_a_branch_that_is_not_taken_may_assign_out_of_range():
    x, place = wf.arange(3.0), wf.tensor(7)

    def assign(v):
        v[place] = 9.0
        return v

    for update in (assign, lambda v: v.at[place].set(9.0), lambda v: x.at[place].add(v[0])):
        found = wf.cond(place < 3, update, lambda v: v * 2, x)
        assert found.tolist() == [0.0, 2.0, 4.0]
        with pytest.raises(wf.errors.IndexingError, match="index 7 is out of range"):
            wf.cond(place < 9, update, lambda v: v * 2, x).numpy()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint64"])
def test_the_largest_index_of_a_dtype_chooses_the_last_branch(dtype):
    index = wf.asarray(np.array([0, 1, np.iinfo(dtype).max], dtype))
    choose = lambda i: wf.switch(i, [lambda: 1, lambda: 2])  # noqa: E731
    assert choose(index[2]).item() == 2
    assert wf.vmap(choose)(index).tolist() == [1, 2, 2]
    assert wf.compile(choose)(index[2]).item() == 2
