"""What hypothesis draws for the array API tests: NumPy arrays, shapes, axes, and how to compare."""

from typing import Any

import array_api_strict
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_draws

import weft as wf

array_api_strict.set_array_api_strict_flags(api_version="2025.12")

BOOL = ("bool",)
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
FLOATS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
REAL = INTEGERS + FLOATS
INEXACT = FLOATS + COMPLEX
NUMERIC = REAL + COMPLEX
ALL = BOOL + NUMERIC

_FLOAT_VALUES = st.integers(-24, 24).map(lambda n: n / 4)


def _elements(dtype: np.dtype, positive: bool) -> st.SearchStrategy[Any]:
    floats = _FLOAT_VALUES.map(lambda v: abs(v) + 0.25) if positive else _FLOAT_VALUES
    match dtype.kind:
        case "b":
            return st.booleans()
        case "i":
            return st.integers(1 if positive else -9, 9)
        case "u":
            return st.integers(1 if positive else 0, 9)
        case "c":
            return st.builds(complex, floats, floats)
    return floats


def shapes(min_dims: int = 0, max_dims: int = 3, min_side: int = 0, max_side: int = 4) -> Any:
    """Shapes of small arrays; with sides of 0 unless told otherwise."""
    return numpy_draws.array_shapes(
        min_dims=min_dims, max_dims=max_dims, min_side=min_side, max_side=max_side
    )


@st.composite
def arrays(draw: Any, names: Any, shape: Any = None, *, positive: bool = False) -> np.ndarray:
    """An array of one of the named dtypes and of a shape, or of a strategy of shapes."""
    dtype = np.dtype(draw(st.sampled_from(names)))
    if shape is None:
        shape = shapes()
    sides = draw(shape) if isinstance(shape, st.SearchStrategy) else shape
    elements = _elements(dtype, positive)
    return draw(numpy_draws.arrays(dtype, sides, elements=elements, fill=st.nothing()))


@st.composite
def partners(draw: Any, names: Any, number: int = 2, **options: Any) -> list[np.ndarray]:
    """Arrays whose dtypes promote by the standard's table and whose shapes broadcast."""
    found = draw(
        numpy_draws.mutually_broadcastable_shapes(num_shapes=number, max_dims=3, max_side=4)
    )
    first = draw(st.sampled_from(names))
    dtypes = [first]
    for _ in range(number - 1):
        dtypes.append(draw(st.sampled_from([n for n in names if all(mix(n, d) for d in dtypes)])))
    return [
        draw(arrays((name,), shape, **options))
        for name, shape in zip(dtypes, found.input_shapes, strict=True)
    ]


def mix(first: str, second: str) -> bool:
    """Whether the standard defines a promotion for two dtypes."""
    try:
        array_api_strict.result_type(
            getattr(array_api_strict, first), getattr(array_api_strict, second)
        )
    except TypeError:
        return False
    return True


@st.composite
def axes(draw: Any, rank: int, *, none: bool = True, several: bool = True) -> Any:
    """None, one axis, or a tuple of different axes."""
    choices = [st.none()] if none else []
    if rank:
        choices.append(st.integers(-rank, rank - 1))
    if several:
        choices.append(
            st.lists(st.integers(0, rank - 1), unique=True).map(tuple) if rank else st.just(())
        )
    return draw(st.one_of(choices))


def _convert(value: Any, namespace: Any) -> Any:
    """NumPy arrays and dtypes inside arguments, as arrays and dtypes of a namespace."""
    if isinstance(value, np.ndarray):
        return namespace.asarray(value, copy=True)
    if isinstance(value, np.dtype):
        return getattr(namespace, value.name)
    if type(value) in (list, tuple):
        return type(value)(_convert(part, namespace) for part in value)
    return value


def results(name: str, args: Any, keywords: dict[str, Any], part: str = "") -> tuple[Any, Any]:
    """What weft and what array_api_strict answer to one call."""
    answers = []
    for root in (wf, array_api_strict):
        function = getattr(getattr(root, part) if part else root, name)
        given = {key: _convert(value, root) for key, value in keywords.items()}
        answers.append(function(*(_convert(a, root) for a in args), **given))
    return answers[0], answers[1]


def assert_same(found: Any, expected: Any, *, values: bool = True) -> None:
    """Equal container types and fields, dtypes, shapes and (nearly) values."""
    if isinstance(expected, tuple | list):
        container = tuple if isinstance(expected, tuple) else list
        assert isinstance(found, container)
        assert getattr(found, "_fields", None) == getattr(expected, "_fields", None)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, values=values)
        return
    if not hasattr(expected, "shape"):
        assert type(found) is type(expected)
        assert found == expected
        return
    assert type(found) is wf.Tensor
    array = np.asarray(expected)
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    if values:
        assert_close(found.numpy(), array)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal integers; floats up to a few units in the last place of their largest neighbour."""
    if expected.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected)
        return
    precision = np.finfo(expected.dtype).eps
    finite = np.abs(expected[np.isfinite(expected)])
    scale = float(finite.max(initial=1.0))
    np.testing.assert_allclose(found, expected, rtol=64 * precision, atol=64 * precision * scale)
