"""The bit generator is Threefry-2x32 with 20 rounds: a function of key and position."""

import jax
import numpy as np
import pytest

import weft as wf
from weft.ops.base import call
from weft.ops.random.bits import _Words, fold_in_op, midpoint, random_bits_op, threefry

# Known answers published with the Random123 library: counter, key, result.
KNOWN = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


def words(*values):
    return tuple(np.array([v], np.uint32) for v in values)


def draw(key, **params):
    return call(random_bits_op, (wf.asarray(key),), params).numpy()


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_the_cipher_gives_the_published_answers(counter, key, result):
    x, y = threefry(_Words, words(*key), words(*counter))
    assert (int(x[0]), int(y[0])) == result


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1])
@pytest.mark.slow
def test_bits_and_derived_keys_are_those_of_jax(seed):
    mine, theirs = wf.random.key(seed), jax.random.key(seed)
    assert mine.tolist() == jax.random.key_data(theirs).tolist()
    for dtype in ("uint8", "uint16", "uint32"):
        want = np.asarray(jax.random.bits(theirs, (5, 7), dtype))
        assert np.array_equal(wf.random.bits(mine, (5, 7), dtype).numpy(), want)
    keys = np.asarray(jax.random.key_data(jax.random.split(theirs, 5)))
    assert np.array_equal(wf.random.split(mine, 5).numpy(), keys)
    folded = np.asarray(jax.random.key_data(jax.random.fold_in(theirs, 77)))
    assert np.array_equal(wf.random.fold_in(mine, 77).numpy(), folded)


def test_sixty_four_bits_are_those_of_jax():
    with jax.enable_x64(True):
        want = np.asarray(jax.random.bits(jax.random.key(5), (4, 3), "uint64"))
    assert np.array_equal(wf.random.bits(wf.random.key(5), (4, 3), "uint64").numpy(), want)


def test_fewer_bits_are_the_top_bits():
    key = np.array([3, 4], np.uint32)
    whole = draw(key, shape=(100,), bits=32)
    assert np.array_equal(draw(key, shape=(100,), bits=24), whole >> 8)
    block = draw(key, shape=(100,), bits=64)
    assert np.array_equal(draw(key, shape=(100,), bits=53), block >> 11)
    first = draw(key, shape=(100,), bits=32, word="first")
    second = draw(key, shape=(100,), bits=32, word="second")
    assert np.array_equal(first, block >> 32)
    assert np.array_equal(second, block & 0xFFFFFFFF)
    assert np.array_equal(whole, first ^ second)


def test_a_window_has_the_numbers_of_the_whole():
    key = np.array([3, 4], np.uint32)
    whole = draw(key, shape=(6, 5, 4), bits=32)
    part = draw(key, shape=(2, 3, 4), bits=32, within=((3, 1, 0), (6, 5, 4)))
    assert np.array_equal(part, whole[3:5, 1:4])


@pytest.mark.parametrize("size", [2**14 - 1, 2**14, 2**14 + 1, 40_000])
def test_large_draws_do_not_depend_on_how_they_are_cut(size):
    key = np.array([9, 9], np.uint32)
    flat = draw(key, shape=(size,), bits=32)
    tail = draw(key, shape=(3,), bits=32, within=((size - 3,), (size,)))
    assert np.array_equal(flat[-3:], tail)
    keys = np.array([[9, 9], [1, 2]], np.uint32)
    assert np.array_equal(draw(keys, shape=(size,), bits=32)[0], flat)


def test_positions_beyond_32_bits_use_the_high_counter_word():
    key = np.array([1, 2], np.uint32)
    (found,) = draw(key, shape=(1,), bits=64, within=((2**32 + 5,), (2**33,)))
    x, y = threefry(_Words, words(1, 2), words(1, 5))
    assert int(found) == int(x[0]) << 32 | int(y[0])


def test_empty_and_scalar_draws_have_their_shape():
    key = np.array([1, 2], np.uint32)
    assert draw(key, shape=(0, 3), bits=32).shape == (0, 3)
    assert draw(key, shape=(), bits=32).shape == ()
    assert fold_in_op.eval(key, np.zeros((0,), np.uint32)).shape == (0, 2)


BITS = {"float32": (32, 31, 24), "float64": (64, 63, 53)}  # digits that a float lacks, or has


@pytest.mark.parametrize("dtype", list(BITS))
def test_middles_are_those_of_the_sum_and_the_product_and_stay_below_the_length(dtype):
    kind = np.dtype(dtype)
    words, rng = np.dtype(f"u{kind.itemsize}"), np.random.default_rng(0)
    for bits, length in [(n, 1.0) for n in BITS[dtype]] + [(BITS[dtype][-1] - 1, np.pi)]:
        last = (1 << bits) - 1
        ends = np.array([0, 1, 2, last // 2, last - 1, last], words)
        x = np.concatenate([rng.integers(0, last, 5000, words), ends])
        middle = (x.astype(kind) + kind.type(0.5)) * kind.type(length * 2.0**-bits)
        wanted = np.minimum(middle, np.nextafter(kind.type(length), kind.type(0)))
        params = {"bits": bits, "length": length, "dtype": kind}
        found = wf.compile(lambda x, given=params: call(midpoint, (x,), given))(wf.tensor(x))
        assert found.numpy().tobytes() == wanted.tobytes()
        assert midpoint.eval(x, **params).tobytes() == wanted.tobytes()
        assert wanted.min() > 0


def test_a_middle_whose_sum_and_product_are_both_rounded_is_refused():
    with pytest.raises(AssertionError):
        midpoint.eval(np.zeros(1, np.uint32), bits=32, length=np.pi, dtype=np.dtype("float32"))
