"""Arguments and results of compiled functions: numbers, statics, trees, and tensors given away."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft as wf
from weft.errors import (
    ArgumentError,
    CastError,
    ConcretizationError,
    ConversionError,
    DonatedTensorError,
)

Pair = namedtuple("Pair", "left right")


@pytest.fixture
def x():
    return wf.tensor([1.0, 2.0, 3.0, 4.0])


@wf.register_dataclass
@dataclasses.dataclass
class Layer:
    weight: object
    bias: object
    size: int = dataclasses.field(default=1, metadata={"static": True})


def test_a_changing_number_compiles_nothing_anew_and_stays_weak():
    compiled = wf.compile(lambda a, rate: a * rate)
    for dtype in ("float32", "bfloat16", "float64", "int32"):
        a = wf.ones(3, dtype=dtype)
        for rate in (0.1, 0.7, 1e-3):
            expected = a * rate
            found = compiled(a, rate)
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found.numpy(), expected.numpy())
    assert compiled.stats.traces == 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "float16"])
def test_arithmetic_of_numbers_has_pythons_precision(dtype):
    def f(a, rate, step):
        scale = (1 - 0.9**step) / (1 - rate * 2) + -rate // 3 - abs(-rate) % 2
        return a * scale + rate / step, wf.maximum(a, rate), wf.where(a > rate, rate, a)

    a = wf.linspace(0, 1, 7).astype(dtype)
    compiled = wf.compile(f)
    for found, expected in zip(compiled(a, 0.3, 5), f(a, 0.3, 5), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_a_number_alone_has_the_dtype_asarray_gives_it():
    compiled = wf.compile(lambda a, b, c: (a, wf.sqrt(b), wf.asarray(c), wf.full((2,), b)))
    kinds = [y.dtype.name for y in compiled(1, 2.0, 3j)]
    assert kinds == ["int64", "float32", "complex64", "float32"]
    exact = wf.compile(lambda b: wf.full((), b, dtype="float64"))
    assert exact(0.1).item() == 0.1


def test_an_integer_past_the_dtype_it_meets_is_refused_at_every_call():
    compiled = wf.compile(lambda a, n: a + n)
    a = wf.zeros(2, dtype="int8")
    assert compiled(a, 3).tolist() == [3, 3]
    with pytest.raises(CastError, match="argument n: 300"):
        compiled(a, 300)
    with pytest.raises(CastError, match="argument n"):
        wf.compile(lambda n: wf.asarray(n))(2**70)


def test_static_arguments_are_values(x):
    compiled = wf.compile(
        lambda a, n, flag=False: a.reshape(n) if flag else a * n[0], static_argnums=(1, 2)
    )
    assert compiled(x, (2, 2), True).shape == (2, 2)
    assert compiled(x, (2, 2)).tolist() == [2, 4, 6, 8]
    assert compiled(x, (2, 2), flag=True).shape == (2, 2)
    zero = wf.compile(lambda a, z: a * z, static_argnums=1)
    assert np.signbit(zero(x, -0.0).numpy()).all() != np.signbit(zero(x, 0.0).numpy()).all()


@dataclasses.dataclass(frozen=True)
class Options:
    scale: Any


class Named(NamedTuple):
    scale: Any


class Scaled(wf.nn.Module):
    options: Any


@wf.register_dataclass
@dataclasses.dataclass
class Held:
    scale: Any = dataclasses.field(metadata={"static": True})


class Registered:
    def __init__(self, scale):
        self.scale = scale


wf.register_tree(Registered, lambda r: ((), r.scale), lambda scale, _: Registered(scale))


@pytest.mark.parametrize(
    ("make", "static"),
    [
        (Options, True),
        (Named, True),
        (lambda n: (Options(Named(n)),), True),
        (lambda n: frozenset([n]), True),
        (Held, False),
        (Registered, False),
        (lambda n: Scaled(Options(n)), False),
    ],
)
def test_numbers_inside_static_values_are_told_apart_by_type_and_sign(make, static):
    def scale_of(value):
        while not isinstance(value, int | float):
            inner = vars(value).values() if hasattr(value, "__dict__") else value
            value = next(iter(inner))
        return value

    x = wf.tensor([1, -2])
    compiled = wf.compile(lambda a, s: a * scale_of(s), static_argnums=1 if static else ())
    for scale in (1, 1.0, 0.0, -0.0, 0, 1, 1.0):
        found, expected = compiled(x, make(scale)).numpy(), (x * scale).numpy()
        assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes()), scale
    assert compiled.stats.traces == 5


def test_reasons_show_static_values_as_they_were_given(x):
    compiled = wf.compile(lambda a, s: a * s[0], static_argnums=1)
    compiled(x, (0.5, "a"))
    compiled(x, (2, "a"))
    assert compiled.why_recompiled() == ["static argument s: (0.5, 'a') -> (2, 'a')"]


def test_mistakes_name_the_argument(x):
    with pytest.raises(ArgumentError, match="static argument n cannot be hashed"):
        wf.compile(lambda a, n: a, static_argnames="n")(x, [1])
    with pytest.raises(ArgumentError, match="static argument n is an array"):
        wf.compile(lambda a, n: a, static_argnames="n")(x, x)
    with pytest.raises(ConversionError, match=r"argument mode\['k'\]: expected tensors.*'fast'"):
        wf.compile(lambda a, mode: a)(x, {"k": "fast"})
    with pytest.raises(ConversionError, match=r"compile: named: result\[1\]: expected tensors"):
        wf.compile(lambda a: (a, "text"), name="named")(x)
    with pytest.raises(ArgumentError, match="no parameter is called 'm'"):
        wf.compile(lambda n: n, static_argnames="m")
    with pytest.raises(ArgumentError, match="static_argnums -3"):
        wf.compile(lambda n: n, static_argnums=-3)
    with pytest.raises(ArgumentError, match="cannot be donated"):
        wf.compile(lambda n: n, static_argnums=0, donate_argnames="n")
    with pytest.raises(ArgumentError, match="cache_size"):
        wf.compile(lambda n: n, cache_size=0)
    with pytest.raises(ArgumentError, match="dynamic_dims"):
        wf.compile(lambda n: n, dynamic_dims={"n": "first"})


@pytest.mark.parametrize(
    "read",
    [bool, float, int, lambda a: a.item(), lambda a: a.numpy(), lambda a: a.tolist(), np.asarray],
)
def test_reading_a_value_names_the_function_the_line_and_a_way_out(read, x):
    def careless(a):
        read(a.sum())
        return a

    with pytest.raises(ConcretizationError) as caught:
        wf.compile(careless)(x)
    message = str(caught.value)
    assert "compile: careless" in message
    assert "test_compile_arguments.py" in message
    assert "hint:" in message


def test_reading_a_number_suggests_a_static_argument(x):
    with pytest.raises(ConcretizationError, match="static_argnames"):
        wf.compile(lambda a, n: wf.zeros(n))(x, 3)
    with pytest.raises(ConcretizationError, match="static_argnames"):
        wf.compile(lambda a, flag: a if flag else -a)(x, True)


def test_python_may_look_at_shapes(x):
    compiled = wf.compile(lambda a: a if a.shape[0] > 2 else -a)
    assert compiled(x).tolist() == x.tolist()
    assert compiled(x[:1]).tolist() == [-1]


def test_trees_go_in_and_come_out(x):
    def f(tree, *, extra=None):
        found = wf.tree_leaves(tree)
        return {
            "sum": sum(found[1:], found[0]),
            "z": Pair(found[0], [None, (found[-1],)]),
            "a": extra,
        }

    compiled = wf.compile(f)
    trees = [
        (x, [x, x]),
        {"b": x, "a": (x + 1,)},
        Pair(x, x),
        Layer(x, x + 1, 3),
        OrderedDict(q=x, p=x),
        defaultdict(list, k=x),
        {1: x, 0: -x},
        {"mixed": x, 3: x},
        [],
    ]
    for tree in trees[:-1]:
        for _ in range(2):
            found, expected = compiled(tree, extra=x), f(tree, extra=x)
            assert wf.tree_structure(found) == wf.tree_structure(expected)
            assert list(found) == list(expected)
            for a, b in zip(wf.tree_leaves(found), wf.tree_leaves(expected), strict=True):
                assert a.tolist() == b.tolist()
    assert compiled.stats.traces == len(trees) - 1
    assert wf.compile(lambda t: wf.ones(2))(trees[-1]).tolist() == [1, 1]


def test_a_static_field_of_a_dataclass_is_part_of_the_structure(x):
    compiled = wf.compile(lambda layer: layer.weight * layer.size)
    assert compiled(Layer(x, None, 2)).tolist() == [2, 4, 6, 8]
    assert compiled(Layer(x, None, 3)).tolist() == [3, 6, 9, 12]
    assert compiled(Layer(x, None, 2)).tolist() == [2, 4, 6, 8]
    assert compiled.stats.traces == 2


def test_decorators_methods_defaults_and_names(x):
    @wf.compile
    def doubled(a, factor=2):
        """Doubles."""
        return a * factor

    @wf.compile(static_argnums=1, name="other")
    def powered(a, n):
        return a**n

    class Model:
        size = 3

        @wf.compile(static_argnums=0)
        def scaled(self, a):
            return a * self.size

    assert doubled.__name__ == "doubled" and doubled.__doc__ == "Doubles."
    assert doubled(x).tolist() == [2, 4, 6, 8]
    assert doubled(x, factor=3).tolist() == doubled(factor=3, a=x).tolist() == [3, 6, 9, 12]
    assert powered(x, 2).tolist() == [1, 4, 9, 16]
    assert repr(powered) == "<compiled other>"
    assert Model().scaled(x).tolist() == [3, 6, 9, 12]


def test_numpy_arrays_and_scalars_are_tensors_of_their_dtype(x):
    compiled = wf.compile(lambda a, b: a * b)
    assert compiled(np.ones(2, np.float32), np.float64(2)).dtype == wf.float64
    assert compiled(np.ones(2, np.float32), np.float64(3)).tolist() == [3, 3]
    assert compiled.stats.traces == 1


def test_results_do_not_share_memory_that_others_write_to():
    array = np.ones(4, np.float32)
    compiled = wf.compile(lambda a: (a, a.reshape((2, 2)), a + 1))
    for _ in range(2):
        same, shaped, _ = compiled(array)
        array[:] += 1
        assert same.tolist() == (array - 1).tolist()
        assert shaped.tolist() == (array - 1).reshape(2, 2).tolist()
    shared = wf.asarray(array)
    kept = compiled(shared)[0]
    array[:] = 7
    assert kept.tolist() == [3, 3, 3, 3]


def test_a_result_that_is_an_argument_is_another_handle(x):
    compiled = wf.compile(lambda a: (a, a))
    first, second = compiled(x)
    first[0] = 9.0
    assert x.tolist() == second.tolist() == [1, 2, 3, 4]


def test_pending_arguments_run_first():
    big = wf.ones((300, 300)) * 2
    pending = big + 1
    assert wf.compile(lambda a: a.sum())(pending).item() == 3 * 300 * 300


def test_a_donated_tensor_is_gone_and_says_where(x):
    compiled = wf.compile(lambda state, a: (state + a, a), donate_argnums=0)
    for _ in range(3):
        state = wf.ones(4)
        new, _ = compiled(state, x)
        assert new.tolist() == [2, 3, 4, 5]
        for use in (
            lambda s: s.tolist(),
            lambda s: s + 1,
            lambda s: wf.grad(lambda a: (a * s).sum())(x),
            lambda s: compiled(s, x),
        ):
            with pytest.raises(
                DonatedTensorError, match=r"state was donated.*test_compile_arguments\.py"
            ):
                use(state)
    assert x.tolist() == [1, 2, 3, 4]


def test_donation_spares_what_others_see(x):
    seen = []
    compiled = wf.compile(lambda state: state + 1, donate_argnums=0)
    compiled(wf.ones(4))
    run = compiled._ready.run

    def overwriting(arrays):
        result = run(arrays)
        arrays[0][...] = -1
        seen.append(1)
        return result

    compiled._ready.run = overwriting
    first = wf.ones(4)
    other = wf.reshape(first, (4,))
    compiled(first)
    assert other.tolist() == [1, 1, 1, 1]
    base = wf.ones((2, 4))
    view = base[0]
    compiled(view)
    assert base.tolist() == [[1] * 4] * 2
    array = np.ones(4, np.float32)
    compiled(array)
    compiled(wf.asarray(array))
    assert array.tolist() == [1, 1, 1, 1]
    assert len(seen) == 4


@pytest.mark.parametrize(
    "same", [lambda a: a, lambda a: wf.negative(-a), lambda a: wf.concat([a[:0], a])], ids=range(3)
)
@pytest.mark.parametrize("size", [4, 5000])
def test_a_donated_argument_that_is_returned_is_not_written_over(same, size):
    compiled = wf.compile(lambda a: (wf.exp(a), same(a)), donate_argnums=0)
    given = wf.arange(size, dtype=wf.float64) / size
    expected = given.tolist()
    _, found = compiled(given)
    assert found.tolist() == expected


@pytest.mark.parametrize("size", [4, 100_000])
def test_an_argument_donated_twice_spares_a_result_of_the_same_memory(size):
    copies = wf.compile(lambda a: (a * 3, a * 3))
    compiled = wf.compile(lambda a, b, c: (a + 1, b, c * 2), donate_argnums=(0, 1, 2))
    for _ in range(2):
        given, other = copies(wf.arange(size))
        more, _, twice = compiled(given, wf.ones(2), given)
        expected = 3 * np.arange(size)
        assert other.tolist() == expected.tolist()
        assert more.tolist() == (expected + 1).tolist()
        assert twice.tolist() == (expected * 2).tolist()


@pytest.mark.parametrize("size", [4, 100_000])
def test_memory_that_nobody_else_sees_is_really_given(size):
    compiled = wf.compile(lambda state: state + 1, donate_argnums=0)
    state = compiled(wf.ones(size))
    run, given = compiled._ready.run, []
    compiled._ready.run = lambda arrays: given.append(arrays[0].ctypes.data) or run(arrays)
    for gather in (False, True):
        place = state.data().ctypes.data
        with wf.no_grad() if gather else contextlib.nullcontext():
            state = compiled(state)
        assert given.pop() == place
