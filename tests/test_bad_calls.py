"""Every public function answers bad arguments with an error of ours that says what is legal."""

from __future__ import annotations

import time

import numpy as np
import pytest

import weft as wf
from tests import fuzz_bad_calls as fuzz
from weft import P
from weft.core.common import parameters
from weft.errors import (
    ArgumentError,
    AxisError,
    ConversionError,
    DifferentiationError,
    DTypeError,
    OutOfMemoryError,
    ShapeError,
    ShardingError,
    TreeError,
    WeftError,
)
from weft.ops.communication.named import checked_pairs

X = wf.tensor(np.arange(6.0, dtype=np.float32).reshape(2, 3))
NAN = float("nan")


@pytest.mark.promise("S0.4")
@pytest.mark.slow
def test_thousands_of_bad_calls_raise_only_errors_of_ours() -> None:
    assert fuzz.hammer(20_240_601, 3000) == []


@pytest.mark.slow
def test_fresh_bad_calls_raise_only_errors_of_ours(fresh_seed: int) -> None:
    assert fuzz.hammer(fresh_seed, 300) == []


def test_the_calls_reach_every_public_function() -> None:
    reached = {target.name for target in fuzz.targets()}
    for prefix, module in (("wf", wf), ("wf.linalg", wf.linalg), ("wf.random", wf.random)):
        for name in getattr(module, "__all__", dir(module)):
            if name[0] != "_" and callable(getattr(module, name)) and name not in fuzz.SKIPPED:
                assert f"{prefix}.{name}" in reached


def _target(function) -> fuzz.Target:
    return fuzz.Target("wf.test", function, ())


def _raiser(error: BaseException):
    def function() -> None:
        raise error

    return function


@pytest.mark.parametrize("error", [ValueError("x"), AssertionError(), WeftError(""), KeyError(1)])
def test_what_is_no_error_of_ours_is_reported(error: Exception) -> None:
    assert fuzz.complaint(_target(_raiser(error)), [], {}, [])


def test_a_wrong_number_of_arguments_is_pythons_to_report() -> None:
    assert not fuzz.complaint(_target(wf.sin), [1.0, 2.0, 3.0], {}, [])
    assert fuzz.complaint(_target(lambda: "a" + 1), [], {}, [])


def test_a_warning_and_a_hang_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Warning" in fuzz.complaint(_target(lambda: np.float32(1) / np.float32(0)), [], {}, [])
    monkeypatch.setattr(fuzz, "SECONDS", 0.05)
    assert "TooSlow" in fuzz.complaint(_target(lambda: time.sleep(3)), [], {}, [])


BAD = [
    (lambda: X.sum(axis=X), DTypeError, "sum: axis must be an integer, got Tensor of shape"),
    (lambda: X.sum(axis=True), DTypeError, "sum: axis must be an integer, got True"),
    (lambda: X.sum(axis="0"), DTypeError, "sum: axis must be an integer, got '0'"),
    (lambda: X.sum(keepdims="no"), DTypeError, "sum: keepdims must be True or False, got 'no'"),
    (lambda: X.expand_dims(wf.tensor(1.5)), DTypeError, "expand_dims: axis must be an integer"),
    (lambda: wf.unsqueeze(X, ""), DTypeError, "axis must be an integer, got ''"),
    (lambda: wf.arange(NAN), ArgumentError, "arange"),
    (lambda: wf.arange(np.ones(3)), DTypeError, "arange: expected a real number, got ndarray"),
    (lambda: wf.linspace(0, 1, -1), ArgumentError, "linspace: num must be at least 0, got -1"),
    (lambda: wf.linspace(0, 1, 2**45), OutOfMemoryError, "linspace"),
    (lambda: wf.linspace([[1], [2, 3]], 1), WeftError, "linspace: start: .*ragged"),
    (lambda: wf.linspace(0, 1, 3, axis=4), AxisError, "linspace: axis 4"),
    (lambda: wf.geomspace("a", 1), DTypeError, "geomspace: expected a number, got 'a'"),
    (lambda: wf.geomspace(1, 10**400), ArgumentError, "geomspace: an integer of 1329 bits"),
    (lambda: wf.round(X, 400), ArgumentError, "decimals must be from -308 to 308, got 400"),
    (lambda: wf.round(X, 1.0), DTypeError, "round: decimals must be an integer, got 1.0"),
    (lambda: wf.repeat(X, -1), ArgumentError, "repeat: repeats must be at least 0, got -1"),
    (lambda: wf.repeat(X, 2**62), OutOfMemoryError, "repeat"),
    (lambda: wf.vander(wf.ones(3), 2**62), OutOfMemoryError, "vander"),
    (lambda: wf.one_hot(wf.arange(3), ()), DTypeError, "one_hot: num_classes must be an integer"),
    (lambda: wf.one_hot(wf.arange(3), -1), ArgumentError, "num_classes must be at least 0, got -1"),
    (lambda: wf.histogram(X, 0), ArgumentError, "histogram: bins must be at least 1, got 0"),
    (lambda: wf.histogram(X, 3, (0, NAN)), ArgumentError, "histogram: range must be finite"),
    (lambda: wf.histogram(X, 3, (1,)), ArgumentError, r"range must be \(low, high\), got \(1,\)"),
    (lambda: wf.segment_sum(X, [0, 1], "x"), DTypeError, "segment_sum: num_segments must be"),
    (lambda: wf.argsort(X, axis=np.ones(2)), DTypeError, "argsort: axis must be an integer"),
    (lambda: wf.argsort(X, descending=None), DTypeError, "descending must be True or False"),
    (lambda: wf.unique(X, size=-1), ArgumentError, "unique: size must be at least 0, got -1"),
    (lambda: wf.unique(X, size=2**45), OutOfMemoryError, "unique"),
    (lambda: wf.celu(X, 0), ArgumentError, "celu: alpha must not be 0"),
    (lambda: wf.celu(X, "a"), DTypeError, "celu: alpha must be a number or a tensor, got 'a'"),
    (lambda: wf.local_response_norm(wf.ones((1, 2, 2)), 1.5), DTypeError, "size must be"),
    (lambda: wf.gelu(X, "exact"), ArgumentError, "approximate must be one of 'none', 'tanh'"),
    (lambda: wf.mse_loss(X, X, reduction=X), ArgumentError, "reduction must be one of"),
    (lambda: wf.diff(X, -1), ArgumentError, "diff: n must be at least 0, got -1"),
    (lambda: wf.split(X, 2**40), ArgumentError, "number of parts must be from 1 to"),
    (lambda: wf.pad(X, "wide"), DTypeError, "pad: pad_width must be an integer, got 'wide'"),
    (lambda: wf.pad(X, 2**45), OutOfMemoryError, "pad"),
    (lambda: wf.zeros((2**62, 0)), OutOfMemoryError, "zeros"),
    (lambda: wf.concat(3), DTypeError, "concat: arrays must be a sequence, got 3"),
    (lambda: wf.fft.fft(X, n=2**62), OutOfMemoryError, "fft"),
    (lambda: wf.fft.fft(X, norm=X), ArgumentError, "fft: norm must be one of 'backward'"),
    (lambda: wf.fft.fftfreq(4, d=NAN), ArgumentError, "fftfreq: d must be finite, got nan"),
    (lambda: wf.linalg.qr(X, mode=3), ArgumentError, "qr: mode must be one of 'reduced'"),
    (lambda: wf.random.randint(wf.random.key(0), (2,), 0.5, 2), DTypeError, "randint: minval must"),
    (lambda: wf.grad(3), ArgumentError, "grad: function must be a function, got 3"),
    (lambda: wf.vmap(3), ArgumentError, "vmap: function must be a function, got 3"),
    (lambda: wf.scan(None, X, X), ArgumentError, "scan: f must be a function, got None"),
    (lambda: wf.while_loop(1, fuzz.first, X), ArgumentError, "cond_fun must be a function, got 1"),
    (lambda: wf.fori_loop(0, 1, "f", X), ArgumentError, "body_fun must be a function, got 'f'"),
    (lambda: wf.fori_loop(0, 10**400, fuzz.first, X), ArgumentError, "fori_loop: upper must be"),
    (lambda: wf.linspace(-1, 5, 3, dtype="uint8"), WeftError, "linspace: Python int -1"),
    (lambda: wf.print(X), ArgumentError, "print: template must be a string"),
    (lambda: wf.backward(3), WeftError, "backward: expected a tensor, got 3"),
    (lambda: wf.default_device("nowhere"), WeftError, "nowhere"),
    (lambda: wf.register_tree(3, list, list), TreeError, "register_tree: 3 is no class"),
    (lambda: wf.register_tree(type(X), 1, list), ArgumentError, "flatten must be a function"),
    (lambda: wf.DeviceMesh("m", 2.5, ("x",)), DTypeError, "mesh: shape must be an integer"),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "error", "text"), BAD, ids=map(str, range(len(BAD))))
def test_a_bad_parameter_is_named_with_its_value_and_what_is_legal(attempt, error, text) -> None:
    with pytest.raises(error, match=text):
        attempt()
    assert wf.ones(2).sum().item() == 2


def test_a_reading_of_parameters_keeps_what_is_legal() -> None:
    assert parameters.as_integer("f", "n", wf.tensor(3), 0, 3) == 3
    assert parameters.as_integers("f", "n", np.array([1, 2])) == (1, 2)
    assert parameters.as_real("f", "x", np.float32(0.5)) == 0.5
    assert parameters.as_flag("f", "b", np.bool_(True)) is True
    assert parameters.as_choice("f", "m", None, (None, "a")) is None
    assert parameters.as_sequence("f", "s", range(2)) == (0, 1)
    with pytest.raises(ShapeError):
        wf.zeros((True, 2))


READ = {
    "rate": lambda p: wf.nn.Dropout(p)(wf.ones(4), key=wf.random.key(0)).sum(),
    "eps": lambda p: wf.nn.LayerNorm(4, eps=p)(wf.arange(4.0)).max(),
    "start": lambda p: wf.arange(p, 4.0).sum(),
    "step": lambda p: wf.arange(0.0, 4.0, p).sum(),
    "stop": lambda p: wf.geomspace(1.0, p, 3).sum(),
    "period": lambda p: wf.unwrap([0.5, 3.0], period=p).sum(),
}


@pytest.mark.parametrize("name", READ)
def test_a_number_that_is_read_has_no_derivative_in_silence(name: str) -> None:
    function, number = READ[name], wf.tensor(0.5)
    text = rf"{name} is read as a number.*\n.*stop_gradient\({name}\)"
    with pytest.raises(DifferentiationError, match=text):
        wf.grad(function)(number)
    with pytest.raises(DifferentiationError, match=text):
        wf.jvp(function, (number,), (number,))
    with pytest.raises(DifferentiationError, match=text):
        function(wf.tensor(0.5, requires_grad=True))
    assert wf.grad(lambda p: function(wf.stop_gradient(p)) * p)(number) == function(0.5)
    with wf.no_grad():
        assert function(wf.tensor(0.5, requires_grad=True)) == function(0.5)


@pytest.mark.parametrize("value", [NAN, float("inf"), -float("inf")])
def test_a_limit_refuses_nan_and_finite_refuses_infinity(value: float) -> None:
    with pytest.raises(ArgumentError, match="f: x must be"):
        parameters.as_finite("f", "x", value)
    with pytest.raises(ArgumentError, match="from 0 to 1"):
        parameters.as_real("f", "x", value, 0, 1)


def test_a_number_that_only_decides_may_be_differentiated() -> None:
    def total(x):
        inverse = wf.linalg.pinv(wf.eye(2), rtol=x)
        angles = wf.unwrap([0.5, 9.0], discont=x)
        return wf.sum(inverse) + wf.sum(angles) + wf.sum(wf.arange(0.0, x))

    assert wf.grad(total)(0.5).item() == 0


def test_rounding_to_more_digits_than_a_dtype_has_changes_nothing() -> None:
    huge = wf.tensor([1.5, -3e38, float("inf"), NAN])
    np.testing.assert_array_equal(wf.round(huge, 50).numpy(), huge.numpy())


NOT_PAIRS = "ppermute: expected pairs"


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: wf.trapezoid(wf.ones(3), dx={}), ConversionError, "trapezoid"),
        (lambda: wf.gradient(wf.ones(3), edge_order=wf.ones(2)), DTypeError, "edge_order"),
        (
            lambda: wf.piecewise(0.0, [wf.ones((2, 3)) > 0], [1.0, wf.ones((3, 3))]),
            ShapeError,
            "stretch",
        ),
        (
            lambda: wf.with_sharding_constraint(wf.ones(3), P("x"), mesh=np.ones(2)),
            ShardingError,
            "expected a DeviceMesh",
        ),
        (lambda: checked_pairs("ppermute", "abc", 2), ArgumentError, NOT_PAIRS),
        (lambda: checked_pairs("ppermute", [(0, 1.5)], 2), ArgumentError, NOT_PAIRS),
    ],
)
def test_calls_that_once_raised_what_is_not_ours(call, error, said):
    with pytest.raises(error, match=said):
        call()
