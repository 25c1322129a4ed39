"""Other libraries accept tensors and give tensors: SciPy, scikit-learn, einops, jaxtyping.

SciPy and scikit-learn run in a process of their own: SciPy decides when it is loaded whether it
takes other arrays than NumPy's.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import einops
import einops.array_api
import jaxtyping
import numpy as np
import pytest

import weft as wf
from tests.neighbour_calls import SCIPY, SCORES, SKLEARN

ROOT = Path(__file__).parent.parent


def run(*arguments: str, **variables: str) -> str:
    """What Python prints in a process of its own."""
    finished = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def answers():
    return json.loads(run("-m", "tests.neighbour_calls", SCIPY_ARRAY_API="1"))


@pytest.mark.parametrize("name", SCIPY)
def test_a_scipy_function_of_tensors_gives_a_tensor_with_the_right_values(name, answers):
    assert answers[name] == ["Tensor", True]


@pytest.mark.slow
@pytest.mark.parametrize("name", SKLEARN)
def test_scikit_learn_fits_tensors_and_gives_tensors_with_the_right_values(name, answers):
    assert answers[name] == ["Tensor", True]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCORES)
def test_a_scikit_learn_score_of_tensors_is_a_number_with_the_right_value(name, answers):
    assert answers[name] == ["float", True]


EINOPS = {
    "rearrange": lambda e, x: e.rearrange(x, "a (b c) -> c a b", b=2),
    "reduce": lambda e, x: e.reduce(x, "a (b c) -> a b", "mean", c=3),
    "maximum": lambda e, x: e.reduce(x, "a b -> b", "max"),
    "repeat": lambda e, x: e.repeat(x, "a b -> a r b", r=3),
}


@pytest.mark.parametrize("library", [einops, einops.array_api], ids=["einops", "array_api"])
@pytest.mark.parametrize("name", EINOPS)
def test_einops_rearranges_tensors(name, library):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    found = EINOPS[name](library, wf.asarray(array))
    assert type(found) is wf.Tensor
    np.testing.assert_array_equal(found.numpy(), EINOPS[name](einops, array))


def test_einops_multiplies_packs_and_stacks_tensors():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = wf.asarray(array)
    found = einops.einsum(x, x, "a b, c b -> a c")
    np.testing.assert_array_equal(found.numpy(), array @ array.T)
    packed, shapes = einops.pack([x, x[0]], "* b")
    assert packed.shape == (3, 3)
    assert [part.shape for part in einops.unpack(packed, shapes, "* b")] == [(2, 3), (3,)]
    assert einops.rearrange([x, x], "n a b -> (n a) b").shape == (4, 3)
    assert einops.parse_shape(x, "a b") == {"a": 2, "b": 3}
    assert type(einops.asnumpy(x)) is np.ndarray


def test_einops_is_differentiable_and_batchable():
    x = wf.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))

    def total(x):
        return wf.sum(einops.rearrange(x, "a b -> b a") * wf.asarray([1.0, 2.0]))

    assert wf.grad(total)(x).tolist() == [[1.0] * 3, [2.0] * 3]
    sums = wf.vmap(lambda row: einops.reduce(row, "a -> ", "sum"))(x)
    assert sums.tolist() == [3.0, 12.0]


def test_diff_takes_its_count_by_position_as_numpy_does():
    assert wf.diff(wf.asarray([1, 4, 9, 16]), 2).tolist() == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["import einops, weft as wf", "import weft as wf, einops"])
def test_einops_knows_tensors_whichever_library_loads_first(order):
    program = f"{order}\nprint(einops.rearrange(wf.ones((2, 3)), 'a b -> b a').shape)"
    assert run("-c", program).strip() == "(3, 2)"


def test_weft_loads_none_of_its_neighbours():
    names = ("einops", "sklearn", "jaxtyping", "torch", "jax")
    program = f"import sys, weft\nprint([n for n in {names} if n in sys.modules])"
    assert run("-c", program).strip() == "[]"


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (jaxtyping.Float, wf.float32),
        (jaxtyping.Float32, wf.float32),
        (jaxtyping.Float64, wf.float64),
        (jaxtyping.BFloat16, wf.bfloat16),
        (jaxtyping.Int, wf.int64),
        (jaxtyping.UInt8, wf.uint8),
        (jaxtyping.Bool, wf.bool),
        (jaxtyping.Complex, wf.complex64),
        (jaxtyping.Inexact, wf.complex128),
        (jaxtyping.Num, wf.int8),
        (jaxtyping.Shaped, wf.bool),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_jaxtyping_annotations_check_dtype_and_shape(kind, dtype):
    annotation = kind[wf.Tensor, "rows 3"]
    assert isinstance(wf.zeros((2, 3), dtype=dtype), annotation)
    assert not isinstance(wf.zeros((2, 4), dtype=dtype), annotation)
    assert not isinstance(wf.zeros(3, dtype=dtype), annotation)
    assert not isinstance(np.zeros((2, 3)), annotation)


def test_jaxtyping_binds_axes_between_arguments():
    @jaxtyping.jaxtyped(typechecker=None)
    def fits(x: object, y: object) -> bool:
        left = isinstance(x, jaxtyping.Float[wf.Tensor, "a b"])
        return left and isinstance(y, jaxtyping.Float[wf.Tensor, "b"])

    assert fits(wf.zeros((2, 3)), wf.zeros(3))
    assert not fits(wf.zeros((2, 3)), wf.zeros(2))
    assert not isinstance(wf.zeros((2, 3), dtype=wf.int8), jaxtyping.Float[wf.Tensor, "a b"])
