import ml_dtypes
import numpy as np
import pytest

import weft as wf
from tests.torch_oracle import agrees, draw, torch
from weft.errors import ArgumentError, DTypeError, ShapeError

F = torch.nn.functional
GRID = np.concatenate([np.linspace(-8, 8, 41) + 0.013, [-100.0, 100.0, 30.0, -30.0]])
SAME = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "gelu": F.gelu,
    "silu": F.silu,
    "swish": F.silu,
    "softplus": lambda x: F.softplus(x, threshold=1000),
    "mish": F.mish,
    "softsign": F.softsign,
    "hardtanh": F.hardtanh,
    "hard_sigmoid": F.hardsigmoid,
    "hard_swish": F.hardswish,
    "tanhshrink": F.tanhshrink,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
}
KINKS = {
    "relu": ([0.0], [0.0]),
    "relu6": ([0.0, 6.0], [0.0, 0.0]),
    "leaky_relu": ([0.0], [0.01]),
    "hardtanh": ([-1.0, 1.0], [0.0, 0.0]),
    "hardshrink": ([0.5], [0.0]),
    "softplus": ([0.0], [0.5]),
    "silu": ([0.0], [0.5]),
    "elu": ([0.0], [1.0]),
    "softsign": ([0.0], [1.0]),
}


@pytest.mark.parametrize("name", SAME)
def test_activation_is_torchs_with_its_gradient(name):
    # torch's hardsigmoid multiplies by a float32 of 1/6 on the way back.
    agrees(getattr(wf, name), SAME[name], GRID, tolerance=1e-7 if name == "hard_sigmoid" else 1e-10)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda x: wf.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh")),
        (lambda x: wf.leaky_relu(x, 0.3), lambda x: F.leaky_relu(x, 0.3)),
        (lambda x: wf.elu(x, 2.0), lambda x: F.elu(x, 2.0)),
        (lambda x: wf.celu(x, 2.0), lambda x: F.celu(x, 2.0)),
        (lambda x: wf.softplus(x, 3.0), lambda x: F.softplus(x, 3.0, threshold=1000)),
        (lambda x: wf.hardtanh(x, -2.0, 0.5), lambda x: F.hardtanh(x, -2.0, 0.5)),
        (lambda x: wf.softshrink(x, 1.5), lambda x: F.softshrink(x, 1.5)),
        (lambda x: wf.hardshrink(x, 1.5), lambda x: F.hardshrink(x, 1.5)),
        (lambda x: wf.threshold(x, 0.7, -3.0), lambda x: F.threshold(x, 0.7, -3.0)),
    ],
)
def test_parameters_mean_what_they_mean_in_torch(ours, theirs):
    agrees(ours, theirs, GRID, tolerance=1e-10)


@pytest.mark.parametrize("name", KINKS)
def test_the_slope_at_a_kink_is_that_of_the_flat_side(name):
    points, slopes = KINKS[name]
    _, pullback = wf.vjp(getattr(wf, name), np.array(points))
    (got,) = pullback(np.ones(len(points)))
    np.testing.assert_allclose(got.numpy(), slopes)


@pytest.mark.parametrize("name", SAME)
def test_nan_stays_nan_and_infinity_gives_the_limit(name):
    got = getattr(wf, name)(np.array([np.nan, np.inf])).numpy()
    want = SAME[name](torch.tensor([np.nan, np.inf], dtype=torch.float64)).numpy()
    assert np.isnan(got[0])
    if name not in ("gelu", "softsign", "tanhshrink"):
        np.testing.assert_array_equal(got[1], want[1])


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16], ids=str)
def test_activation_keeps_the_dtype_of_floats(name, dtype):
    got = getattr(wf, name)(np.array([-1.0, 0.0, 2.0]).astype(dtype))
    assert got.dtype == np.dtype(dtype)
    want = SAME[name](torch.tensor([-1.0, 0.0, 2.0])).numpy()
    error = 0.02 if np.dtype(dtype).itemsize == 2 else 1e-6
    np.testing.assert_allclose(got.numpy().astype(float), want, atol=error)


def test_integers_become_floats_except_in_relu():
    x = np.array([-2, 0, 3], np.int32)
    assert wf.relu(x).dtype == np.int32
    np.testing.assert_array_equal(wf.relu(x).numpy(), [0, 0, 3])
    assert wf.elu(x).dtype == np.float32
    assert wf.relu(np.zeros((0, 3))).shape == (0, 3)


def test_hard_swish_has_the_slopes_of_its_lines_at_infinity():
    _, pullback = wf.vjp(wf.hard_swish, np.array([np.inf, -np.inf]))
    assert pullback(np.ones(2))[0].tolist() == [1, 0]


def test_relu_is_a_method_and_maps():
    x = wf.asarray(np.array([[-1.0, 2.0]]))
    np.testing.assert_array_equal(x.relu().numpy(), [[0.0, 2.0]])
    np.testing.assert_array_equal(wf.vmap(wf.gelu)(x).numpy(), wf.gelu(x).numpy())


@pytest.mark.parametrize(("form", "digits"), [("none", 2e-2), ("tanh", 2e-3)])
def test_gelu_keeps_digits_where_it_vanishes_and_then_is_zero(form, digits):
    x = np.linspace(-4.5, -2, 1000, dtype=np.float32)
    want = F.gelu(torch.tensor(x.astype(float)), approximate=form).numpy()
    np.testing.assert_allclose(wf.gelu(x, form).numpy(), want, rtol=digits)
    far = wf.gelu(np.array([-6, -1e3, -1e38, 0.0, -0.0], np.float32), form).numpy()
    np.testing.assert_array_equal(far, np.zeros(5))
    assert np.signbit(far).tolist() == [True, True, True, False, True]
    large = np.array([6, 1e3, 3e38, np.inf], np.float32)
    np.testing.assert_array_equal(wf.gelu(large, form).numpy(), large)


def test_prelu_is_torchs_with_one_slope_or_one_for_each_feature():
    x = draw(2, 3, 4)
    agrees(wf.prelu, F.prelu, x, np.array([0.2]))
    agrees(wf.prelu, F.prelu, x, np.array([0.2, -0.1, 0.5]))
    agrees(wf.prelu, F.prelu, draw(4, 3), np.array([0.2, -0.1, 0.5]))


def test_gated_units_are_torchs():
    agrees(wf.glu, F.glu, draw(3, 6))
    agrees(lambda x: wf.glu(x, 0), lambda x: F.glu(x, 0), draw(4, 3))
    agrees(wf.swiglu, lambda x: F.silu(x[..., :3]) * x[..., 3:], draw(2, 6))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: wf.glu(np.ones(3)), ShapeError, "glu: axis 0 of shape .* has no two halves"),
        (
            lambda: wf.gelu(1.0, "erf"),
            ArgumentError,
            "gelu: approximate must be one of 'none', 'tanh'",
        ),
        (lambda: wf.hardtanh(1.0, 2, 1), ArgumentError, "hardtanh: low 2.0 is not below high 1.0"),
        (lambda: wf.celu(1.0, 0), ArgumentError, "celu: alpha must not be 0"),
        (lambda: wf.softplus(1.0, 0), ArgumentError, "softplus: beta must not be 0"),
        (lambda: wf.prelu(np.ones((2, 3)), np.ones(2)), ShapeError, "expected 1 or 3 slopes"),
        (lambda: wf.elu(1j), DTypeError, "elu: takes real numbers, got complex"),
        (lambda: wf.elu(True), DTypeError, "elu: takes real numbers, got bool"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
