"""Generators that hand out keys, and the errors of `wf.random`."""

import copy
import pickle
import threading

import numpy as np
import pytest

import weft as wf
from weft import errors, random

KEY = random.key(20240607)


@pytest.mark.promise("S2.22")
def test_a_seed_repeats_the_global_generator():
    random.seed(5)
    first = [wf.uniform((3,)).tolist(), wf.randn(2).tolist(), wf.gaussian((2,), 1.0, 2.0).tolist()]
    random.seed(5)
    again = [wf.uniform((3,)).tolist(), wf.randn(2).tolist(), wf.normal((2,), 1.0, 2.0).tolist()]
    assert first == again
    assert wf.rand(3).tolist() != wf.rand(3).tolist()


def test_the_global_generator_draws_by_folding_a_counter_into_its_key():
    random.seed(9)
    for count in range(3):
        assert random.next_key().tolist() == random.fold_in(random.key(9), count).tolist()


def test_a_state_brings_the_generator_back():
    random.seed(1)
    wf.rand(3)
    state = random.get_state()
    after = wf.rand(4).tolist()
    random.set_state(state)
    assert wf.rand(4).tolist() == after
    own = random.Generator(3)
    own.set_state(state)
    assert own.uniform((4,)).tolist() == after


def test_a_generator_goes_on_after_its_last_number():
    own = random.Generator(3)
    own.set_state(wf.concat([random.key(3), wf.asarray(np.array([2**32 - 2], np.uint32))]))
    keys = [tuple(own.next_key().tolist()) for _ in range(3)]
    next_base = random.fold_in(random.key(3), 2**32 - 1)
    assert keys[0] == tuple(random.fold_in(random.key(3), 2**32 - 2).tolist())
    assert keys[1:] == [tuple(random.fold_in(next_base, i).tolist()) for i in range(2)]


def test_using_a_generator_is_local_to_the_block():
    random.seed(2)
    before = random.get_state().tolist()
    with random.using(random.Generator(4)) as own:
        inside = wf.rand(2).tolist()
        assert random.generator() is own
    assert random.get_state().tolist() == before
    assert inside == random.Generator(4).uniform((2,)).tolist()


def test_threads_never_get_the_same_key():
    own = random.Generator(0)
    found = []

    def work():
        found.extend(tuple(own.next_key().tolist()) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 200


def test_slices_of_a_map_draw_numbers_of_their_own():
    random.seed(3)
    drawn = wf.vmap(lambda x: x * 0 + wf.randn())(wf.zeros((50,))).tolist()
    assert len(set(drawn)) == 50
    nested = wf.vmap(lambda x: wf.vmap(lambda y: x * y + wf.rand())(wf.zeros((3,))))(wf.zeros((4,)))
    assert len(set(nested.numpy().ravel().tolist())) == 12


JACOBIANS = {
    "jacfwd": wf.jacfwd,
    "jacrev": wf.jacrev,
    "hessian": lambda f: wf.hessian(lambda x: wf.sum(x * f(x)) / 2),
    "forward twice": lambda f: wf.jacfwd(wf.jacfwd(lambda x: wf.sum(x * f(x)) / 2)),
}


@pytest.mark.parametrize("name", JACOBIANS)
def test_a_jacobian_is_that_of_one_draw(name):
    def scaled(x):
        return x * wf.rand(3)

    random.seed(2)
    factors = wf.rand(3).tolist()
    for transform in (JACOBIANS[name](scaled), wf.compile(JACOBIANS[name](scaled))):
        random.seed(2)
        np.testing.assert_array_equal(transform(wf.ones(3)).numpy(), np.diag(np.float32(factors)))
    random.seed(2)
    each = wf.vmap(JACOBIANS[name](scaled))(wf.ones((4, 3))).numpy()
    assert len(set(each[each != 0].tolist())) == 12  # slices draw numbers of their own


def test_what_comes_beside_a_jacobian_may_have_been_drawn():
    random.seed(2)
    slopes, drawn = wf.jacfwd(lambda x: (x * (r := wf.rand(3)), r), has_aux=True)(wf.ones(3))
    assert slopes.numpy().diagonal().tolist() == drawn.tolist()


def _rows(step, turns=4):
    """What `step` gives in each turn of a loop, for each kind of loop."""
    put = lambda i, rows: rows.at[i].set(step())  # noqa: E731
    rows = wf.zeros((turns, *step().shape))
    state = (0, rows)
    return {
        "scan": lambda: wf.scan(lambda c, _: (c, step()), 0.0, wf.ones(turns))[1],
        "map": lambda: wf.map(lambda _: step(), wf.ones(turns)),
        "fori_loop": lambda: wf.fori_loop(0, turns, put, rows),
        "fori_loop to a tensor": lambda: wf.fori_loop(0, wf.tensor(turns), put, rows),
        "while_loop": lambda: wf.while_loop(
            lambda s: s[0] < turns, lambda s: (s[0] + 1, put(*s)), state
        )[1],
    }


@pytest.mark.parametrize("loop", list(_rows(lambda: wf.zeros(()))))
@pytest.mark.parametrize("draw", [wf.rand, lambda: wf.vmap(lambda _: wf.randn())(wf.zeros(3))])
def test_turns_of_a_loop_draw_numbers_of_their_own(loop, draw):
    run = _rows(draw)[loop]
    random.seed(4)
    drawn = run()
    assert len(set(drawn.numpy().ravel().tolist())) == drawn.size
    random.seed(4)
    assert wf.compile(run)().tolist() == drawn.tolist()
    nested = wf.map(lambda _: wf.vmap(lambda _: run())(wf.zeros(2)), wf.zeros(3))
    assert len(set(nested.numpy().ravel().tolist())) == nested.size == 6 * drawn.size


@pytest.mark.parametrize("loop", list(_rows(lambda: wf.zeros(()))))
def test_a_function_that_draws_in_a_loop_is_traced_once(loop):
    calls = []

    def step():
        calls.append(1)
        return wf.rand()

    run = _rows(step)[loop]
    calls.clear()
    run()
    assert len(calls) == 1


def test_a_condition_draws_in_each_turn():
    random.seed(5)
    counts = [
        wf.while_loop(lambda n: (wf.rand() < 0.8) & (n < 90), lambda n: n + 1, 0).item()
        for _ in range(8)
    ]
    assert len(set(counts)) > 2 and max(counts) < 90


def test_a_function_that_draws_in_a_loop_is_differentiated_at_what_it_drew():
    def walk(x):
        return wf.scan(lambda c, v: (wf.sin(c + v * wf.rand()), c), 0.0, x)[0]

    def slopes(transform):
        random.seed(6)
        return transform(wf.ones(3)).tolist()

    expected = slopes(wf.grad(walk))
    assert slopes(wf.grad(wf.checkpoint(walk))) == expected
    assert slopes(wf.compile(wf.grad(walk))) == expected
    np.testing.assert_allclose(slopes(wf.jacfwd(walk)), expected, rtol=1e-6)


@pytest.mark.parametrize("loop", list(_rows(lambda: wf.zeros(()))))
@pytest.mark.parametrize("mapped", [wf.vmap, lambda f: lambda x: wf.map(f, x)])
def test_a_compiled_function_draws_in_a_map_what_it_draws_uncompiled(loop, mapped):
    run = _rows(wf.rand)[loop]

    def drawn(f):
        random.seed(7)
        return mapped(lambda x: f() + x)(wf.zeros(2)).tolist()

    assert drawn(wf.compile(run)) == drawn(run)


def test_a_generator_made_inside_starts_from_its_seed_in_each_turn_and_slice():
    first = random.Generator(3).uniform().item()
    for name, run in _rows(lambda: random.Generator(3).uniform()).items():
        assert run().tolist() == [first] * 4, name
    for transform in (lambda f: f, wf.compile):
        mapped = wf.vmap(transform(lambda _: random.Generator(3).uniform()))
        assert mapped(wf.zeros(4)).tolist() == [first] * 4
    nested = wf.map(lambda _: _rows(random.Generator(3).uniform)["map"](), wf.zeros(2))
    assert nested[0].tolist() == nested[1].tolist()
    assert len(set(nested[0].tolist())) == 4


def test_convenience_functions_take_dtype_and_device():
    assert wf.uniform((2,), -1.0, 1.0, dtype="float64", device="cpu").dtype == np.float64
    assert wf.randn(2, 3, dtype="float16").dtype == np.float16
    with wf.default_dtype("float64"):
        assert wf.rand(2).dtype == np.float64


MISTAKES = [
    (
        lambda: random.normal(3),
        errors.DTypeError,
        r"normal: expected a key, got int 3\nhint: wf.random.key",
    ),
    (lambda: random.normal(wf.zeros((2,))), errors.DTypeError, "a key is uint32 of shape"),
    (lambda: random.normal(random.split(KEY)), errors.ShapeError, r"hint: wf.vmap maps a function"),
    (lambda: random.normal(random.bits(KEY, (3,))), errors.ShapeError, r"shape \(2,\), got \(3,\)"),
    (lambda: random.key(1.5), errors.DTypeError, "key: the seed must be an integer"),
    (lambda: random.key(2**64), errors.ArgumentError, "fit 64 bits"),
    (lambda: random.fold_in(KEY, -1), errors.ArgumentError, "fold_in: data must be from 0"),
    (lambda: random.fold_in(KEY, 1.0), errors.DTypeError, "fold_in: data must be integers"),
    (lambda: random.split(KEY, -1), errors.ShapeError, "split: a size is negative"),
    (lambda: random.set_state([1, 2]), errors.ShapeError, "get_state"),
    (
        lambda: random.bits(KEY, (2,), "int32"),
        errors.DTypeError,
        "bits: the dtype must be an unsigned",
    ),
    (
        lambda: random.uniform(KEY, (2,), "int32"),
        errors.DTypeError,
        "uniform: draws are real floats",
    ),
    (
        lambda: random.uniform(KEY, (2,), None, 1.0, 1.0),
        errors.ArgumentError,
        "minval must be below",
    ),
    (lambda: random.uniform(KEY, (-2,)), errors.ShapeError, "uniform: a size is negative"),
    (
        lambda: random.normal(KEY, (2,), None, 0.0, -1.0),
        errors.ArgumentError,
        "std must be non-negative",
    ),
    (
        lambda: random.randint(KEY, (2,), 3, 3),
        errors.ArgumentError,
        "randint: minval must be below",
    ),
    (lambda: random.randint(KEY, (2,), 0, 300, "uint8"), errors.CastError, "does not fit uint8"),
    (lambda: random.randint(KEY, (2,), 0, 3, "float32"), errors.DTypeError, "must be an integer"),
    (
        lambda: random.randint(KEY, (2,), 0.5, 3),
        errors.DTypeError,
        "m..val must be an integer",
    ),
    (
        lambda: random.bernoulli(KEY, 1.5),
        errors.ArgumentError,
        r"bernoulli: p must be in \[0, 1\], got 1.5",
    ),
    (lambda: random.bernoulli(KEY, np.nan), errors.ArgumentError, "bernoulli: p must be in"),
    (
        lambda: random.binomial(KEY, -1, 0.5),
        errors.ArgumentError,
        "binomial: n must be a whole number",
    ),
    (
        lambda: random.binomial(KEY, 2.5, 0.5),
        errors.ArgumentError,
        "binomial: n must be a whole number",
    ),
    (lambda: random.poisson(KEY, -1.0), errors.ArgumentError, "poisson: lam must be non-negative"),
    (lambda: random.poisson(KEY, wf.asarray([1.0, -2.0])), errors.ArgumentError, "got -2.0"),
    (lambda: random.geometric(KEY, 0.0), errors.ArgumentError, r"geometric: p must be in \(0, 1\]"),
    (lambda: random.gamma(KEY, 0.0), errors.ArgumentError, "gamma: a must be positive"),
    (lambda: random.gamma(KEY, 1j), errors.DTypeError, "gamma: parameters are real"),
    (lambda: random.gamma(KEY, [1.0, 2.0], (3,)), errors.ShapeError, "gamma: .*broadcast"),
    (lambda: random.dirichlet(KEY, 1.0), errors.ShapeError, "dirichlet: alpha needs a last axis"),
    (lambda: random.multinomial(KEY, 3, [0.5, 0.1]), errors.ArgumentError, "sum to 1, got 0.6"),
    (lambda: random.categorical(KEY, wf.zeros((2, 0))), errors.ShapeError, "no categories"),
    (lambda: random.multivariate_normal(KEY, [0.0], np.eye(2)), errors.ShapeError, "mean is"),
    (
        lambda: random.wishart(KEY, 1.0, np.eye(3)),
        errors.ArgumentError,
        "df must be above n - 1 = 2",
    ),
    (lambda: random.permutation(KEY, wf.zeros((3,)), axis=1), errors.AxisError, "out of range"),
    (lambda: random.permutation(KEY, -1), errors.ArgumentError, "must be at least 0"),
    (
        lambda: random.choice(KEY, 3, (4,), replace=False),
        errors.ArgumentError,
        "without repetition",
    ),
    (lambda: random.choice(KEY, 0, (1,)), errors.ArgumentError, "1 elements of 0"),
    (
        lambda: random.choice(KEY, 3, (1,), p=[0.5, 0.5]),
        errors.ShapeError,
        r"p must have shape \(3,\)",
    ),
    (
        lambda: random.choice(KEY, 2, (2,), False, [1.0, 0.0]),
        errors.ArgumentError,
        "1 positive entries",
    ),
    (lambda: random.rademacher(KEY, (2,), "uint8"), errors.DTypeError, "uint8 has no -1"),
]


@pytest.mark.parametrize(("call", "kind", "text"), MISTAKES)
def test_a_mistake_is_named(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_of_a_generator_goes_on_alone_from_where_it_was(copied):
    source = random.Generator(5)
    source.next_key()
    other = copied(source)
    assert other.normal((3,)).tolist() == source.normal((3,)).tolist()
    source.next_key()
    assert other.next_key().tolist() != source.next_key().tolist()
