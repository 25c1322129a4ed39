"""The text of errors: op, place, what is wrong, values, and a hint where the fix is not obvious."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft import errors
from weft.core.common.keywords import WORDS
from weft.core.common.peers import ATTRIBUTES, METHODS, NAMES
from weft.core.common.slots import FUNCTIONS
from weft.ops.naming import named

CASES = {
    "matmul": (
        lambda: wf.ones((4, 2)) @ wf.ones((3, 5)),
        errors.ShapeError,
        "matmul: operand 1, axis 0: factor 'k' is 3 here but 2 before (shapes (4, 2), (3, 5))",
    ),
    "shape in parts": (
        lambda: wf.zeros(3, 4),
        errors.UnsupportedDTypeError,
        "dtype: expected a dtype, a scalar type or a string, got int (4)"
        "\nhint: several sizes are one argument, a tuple such as (3, 4)",
    ),
    "result with more": (
        lambda: wf.grad(lambda x: (wf.sum(x), x))(wf.ones(2)),
        errors.DifferentiationError,
        "grad: expected a scalar result, got tuple\nhint: has_aux=True: (value, more)",
    ),
    "loop of another structure": (
        lambda: wf.fori_loop(0, 3, lambda i, s: (s, s), 0.0),
        errors.TreeError,
        "fori_loop: body_fun returns a state of structure PyTreeSpec((*, *)), init has",
    ),
    "classes that are no integers": (
        lambda: wf.cross_entropy(wf.ones((2, 3)), wf.tensor([0.0, 1.0])),
        errors.ShapeError,
        "cross_entropy: target (2,) for logits (2, 3)"
        "\nhint: classes are integers, these are float32: use astype",
    ),
    "layers in a list": (
        lambda: wf.nn.Sequential([1, 2]),
        errors.ArgumentError,
        "Sequential: layer 0: [1, 2] cannot be called"
        "\nhint: layers are separate arguments, Sequential(*layers)",
    ),
    "broadcast": (
        lambda: wf.ones((2, 3)) + wf.ones((2, 4)),
        errors.ShapeError,
        "add: operand 1, axis -1: size 4 does not broadcast with 3 (shapes (2, 3), (2, 4))",
    ),
    "axis": (
        lambda: wf.sum(wf.ones((2, 3)), axis=2),
        errors.AxisError,
        "sum: axis 2 is out of range for 2 axes",
    ),
    "repeated axis": (
        lambda: wf.sum(wf.ones((2, 3)), axis=(0, -2)),
        errors.AxisError,
        "sum: an axis is given twice ((0, -2))",
    ),
    "reshape": (
        lambda: wf.ones(6).reshape(4, 2),
        errors.ShapeError,
        "reshape: 6 elements of shape (6,) do not fit shape (4, 2)",
    ),
    "index": (
        lambda: wf.ones((2, 3))[:, 5],
        errors.IndexingError,
        "getitem: index 5 is out of range for axis 1 of size 3",
    ),
    "too many indices": (
        lambda: wf.ones(3)[0, 0],
        errors.IndexingError,
        "getitem: 2 indices for a tensor with 1 axes (3,)",
    ),
    "device": (
        lambda: wf.ones(2) + wf.ones(2, device="cpu:1"),
        errors.DeviceMismatchError,
        "add: operand 1 is on cpu:1, operand 0 on cpu:0",
    ),
    "truth": (
        lambda: bool(wf.ones(3) > 0),
        errors.ConversionError,
        "bool: the truth of a tensor with 3 elements (shape (3,)) is ambiguous",
    ),
    "grad": (
        lambda: wf.grad(lambda x: x)(wf.ones(2)),
        errors.DifferentiationError,
        "grad: expected a scalar result, got float32[2]\nhint: sum it, or use wf.vjp or wf.jacrev",
    ),
    "concat": (
        lambda: wf.concat([wf.ones((2, 3)), wf.ones((3, 3))], axis=1),
        errors.ShapeError,
        "concat: operand 1, axis 0: size 3 here but 2 before (joining along axis 1)",
    ),
    "empty max": (
        lambda: wf.max(wf.ones((2, 0)), axis=1),
        errors.ShapeError,
        "max: axis 1 is empty and has no maximum (shape (2, 0))",
    ),
    "bool arithmetic": (
        lambda: wf.tensor([True]) + wf.tensor([True]),
        errors.DTypeError,
        "add: bool is not a number\nhint: cast with x.astype(…) first",
    ),
    "view": (
        lambda: wf.ones((2, 3)).T.view(6),
        errors.NotContiguousError,
        "",
    ),
    "where": (
        lambda: wf.where(wf.ones(2), 1.0, 2.0),
        errors.DTypeError,
        "where: the condition must be bool, got float32",
    ),
    "scalar overflow": (
        lambda: wf.tensor([1], dtype=wf.int8) + 300,
        errors.CastError,
        "",
    ),
    "assignment": (
        lambda: wf.ones(3).__setitem__(0, "x"),
        errors.ConversionError,
        "",
    ),
    "item": (
        lambda: wf.ones(3).item(),
        errors.ConversionError,
        "item: the tensor has 3 elements (shape (3,)), not one\n"
        "hint: index it first, or use tolist()",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_message_names_op_place_and_values(name: str) -> None:
    call, kind, text = CASES[name]
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, errors.WeftError)
    assert str(caught.value).startswith(text)
    assert wf.ones(2).sum().item() == 2.0  # the next call works


@pytest.mark.parametrize("transform", [wf.compile, lambda f: lambda x: wf.eval_shape(f, x)])
def test_a_mask_without_values_is_told_what_to_write(transform) -> None:
    with pytest.raises(errors.ConcretizationError, match=r"hint: .*wf.nonzero\(mask, size="):
        transform(lambda x: x[x > 0])(wf.ones(2))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: wf.repeat(x, x), "wf.repeat(x, repeats, total_repeat_length=…)"),
        (wf.bincount, "wf.bincount(x, length=…)"),
        (wf.unique, "wf.unique(x, size=…)"),
        (lambda x: wf.segment_sum(x, x), "segment_sum(…, num_segments=…)"),
    ],
)
def test_a_size_made_of_values_says_what_to_give_instead(function, text) -> None:
    for call in (wf.compile(function), lambda x: wf.vmap(function)(x[None])):
        with pytest.raises(errors.ConcretizationError) as caught:
            call(wf.tensor([1, 2, 3]))
        assert str(caught.value).endswith(text) and str(caught.value).count("hint: ") == 1


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda: wf.cat, "module 'weft' has no attribute 'cat'\nhint: wf.concat"),
        (
            lambda: wf.random.PRNGKey,
            "'weft.random' has no attribute 'PRNGKey'\nhint: wf.random.key",
        ),
        (lambda: wf.nn.ReLU(), "module 'weft.nn' has no attribute 'ReLU'\nhint: wf.nn.relu,"),
        (lambda: wf.nn.one_hot, "'weft.nn' has no attribute 'one_hot'\nhint: wf.one_hot"),
        (lambda: wf.optim.Adam(1e-3), "'weft.optim' has no attribute 'Adam'\nhint: wf.optim.adam"),
        (lambda: wf.optim.multi_transform, "hint: wf.optim.split(mask, chosen, others)"),
        (lambda: wf.nn.TransformerEncoder, "hint: a list of wf.nn.TransformerEncoderLayer"),
        (lambda: wf.nn.init.xavier_uniform_, "hint: wf.nn.init.glorot_uniform()(key, shape)"),
        (
            lambda: wf.nn.losses.nll_loss,
            "nn.losses' has no attribute 'nll_loss'\nhint: wf.nll_loss",
        ),
        (lambda: wf.optim.schedules.linear_schedule, "hint: wf.optim.schedules.linear"),
        (lambda: wf.data.DataLoader, "hint: wf.data.Loader(data, batch_size, key=key)"),
        (lambda: wf.checkpoints.load_checkpoint, "hint: wf.checkpoints.load(path, like=model)"),
        (
            lambda: wf.nn.Flatten().eval(),
            "'Flatten' object has no attribute 'eval'\nhint: wf.nn.",
        ),
        (lambda: wf.nn.Flatten().other, "'Flatten' object has no attribute 'other'"),
        (lambda: wf.filter_jit, "hint: wf.compile"),
        (lambda: wf.norm, "hint: wf.linalg.norm"),
        (lambda: wf.linalg.matrix_exp, "'matrix_exp'\nhint: wf.linalg.expm"),
        (lambda: wf.fft.fftconvolve, "module 'weft.fft' has no attribute 'fftconvolve'"),
        (lambda: wf.ones(2).einsum, 'hint: wf.einsum("ij->ji", x)'),
        (lambda: wf.ones(2).clamp(0), "'Tensor' object has no attribute 'clamp'\nhint: x.clip("),
        (lambda: wf.ones(2).clone(), "'Tensor' object has no attribute 'clone'\nhint: x.copy()"),
        (lambda: wf.ones(2).masked_fill, "hint: wf.masked_fill(x, …)"),
        (lambda: wf.ones(2).exp_(), "hint: x = wf.exp(x, …)"),
    ],
)
def test_a_peers_name_is_told_ours(ask, text) -> None:
    with pytest.raises(AttributeError, match=re.escape(text)):
        ask()


@pytest.mark.parametrize("hint", [*NAMES.values(), *ATTRIBUTES.values(), *METHODS.values()])
def test_a_hint_names_what_there_is(hint: str) -> None:
    for path in re.findall(r"\bwf\.([\w.]*\w)", hint):
        operator.attrgetter(path)(wf)
    for path in re.findall(r"\bx\.(\w+)", hint):
        assert hasattr(wf.ones((2, 2)), path)


def test_no_hint_is_given_for_what_is_there() -> None:
    assert not [name for name in ATTRIBUTES if hasattr(wf.Tensor, name)]
    assert not [name for name in NAMES if hasattr(wf, name) and hasattr(wf.random, name)]


@pytest.mark.parametrize(
    ("ask", "hint"),
    [
        (lambda x: wf.sum(x, dim=0), "dim is called axis here"),
        (lambda x: x.sum(dim=0), "dim is called axis here"),
        (lambda x: x.softmax(dim=-1), "dim is called axis here"),
        (lambda x: wf.concat([x, x], dim=0), "dim is called axis here"),
        (lambda x: wf.median(x, dim=0), "dim is called axis here"),
        (lambda x: wf.flip(x, dims=0), "dims is called axis here"),
        (lambda x: wf.permute_dims(x, dims=(1, 0)), "dims is called axes here"),
        (lambda x: wf.fft.fft(x, dim=0), "dim is called axis here"),
        (lambda x: wf.fft.fftn(x, dim=0), "dim is called axes here"),
        (lambda x: wf.linalg.vector_norm(x, dim=0), "dim is called axis here"),
        (lambda x: wf.mean(x, 0, keepdim=True), "keepdim is called keepdims here"),
        (lambda x: x.var(0, unbiased=False), "unbiased is called correction here"),
        (lambda x: wf.quantile(x, 0.5, interpolation="lower"), "interpolation is called method he"),
        (lambda x: wf.sum(input=x), "input has no name here: sum(x, …)"),
        (lambda x: wf.concat(tensors=[x]), "tensors has no name here: concat("),
        (lambda x: wf.cumsum(a=x), "a has no name here: cumsum(x, …)"),
        (lambda x: wf.amax(x, out=x), "results have memory of their own: leave out= away"),
    ],
)
def test_a_peers_word_for_a_parameter_is_told_ours(ask, hint) -> None:
    with pytest.raises(TypeError, match=re.escape(f"\nhint: {hint}")):
        ask(wf.ones((2, 2)))


def test_no_word_is_told_that_the_function_lacks_or_that_was_not_the_mistake() -> None:
    with pytest.raises(TypeError) as lacking:
        wf.argmax(wf.ones(2), unbiased=True)
    with pytest.raises(errors.DTypeError) as other:
        wf.sum(wf.ones(2), axis="rows", keepdims=True)
    assert "hint" not in str(lacking.value)
    assert "called" not in str(other.value)


@pytest.mark.parametrize(("word", "ours"), WORDS.items())
def test_a_word_that_is_told_is_that_of_some_function(word, ours) -> None:
    asked = [set(inspect.signature(f).parameters) for f in FUNCTIONS.values() if callable(f)]
    for name in ours:
        assert any(name in given for given in asked), name
    assert any(word not in given and set(ours) & given for given in asked)


def test_a_mistake_in_a_threads_first_call_is_reported_in_our_words() -> None:
    with ThreadPoolExecutor(1) as pool:
        failed = pool.submit(lambda: wf.ones((2, 3)) + wf.ones((2, 4)))
        assert isinstance(failed.exception(), errors.ShapeError)


@pytest.mark.promise("S0.4")
def test_mistakes_are_reported_at_the_call_not_at_the_read() -> None:
    big = wf.ones((1000, 1000))
    with pytest.raises(errors.ShapeError):
        big @ wf.ones((3, 3))
    mixed = big + wf.ones((1000, 1000), dtype=wf.float64)
    assert mixed.dtype == wf.float64
    assert (big + wf.ones(1000)).shape == (1000, 1000)
    with pytest.raises(TypeError):
        np.sin(big)  # NumPy may not lose a gradient in silence


X, Y = wf.ones((3, 4)), wf.ones((2, 5))
CALLED: dict[str, Callable[[], Any]] = {
    "put": lambda: wf.put(wf.ones(3), [9], 1.0),
    "index_update": lambda: wf.index_update(X, 9, 1.0, "add"),
    "segment_sum": lambda: wf.segment_sum(wf.ones(3), [0, 1, 9], 3),
    "take": lambda: wf.take(X, [99]).numpy(),
    "index_select": lambda: wf.index_select(X, 0, [99]).numpy(),
    "mean": lambda: wf.mean(X, axis=9),
    "std": lambda: wf.std(X, axis=9),
    "var": lambda: wf.var(X, axis=9),
    "nansum": lambda: wf.nansum(X, axis=9),
    "nanmax": lambda: wf.nanmax(X, axis=9),
    "percentile": lambda: wf.percentile(X, 50, axis=9),
    "clip": lambda: wf.clip(X, Y),
    "isclose": lambda: wf.isclose(X, Y),
    "allclose": lambda: wf.allclose(X, Y),
    "vstack": lambda: wf.vstack([X, Y]),
    "hstack": lambda: wf.hstack([X, Y]),
    "append": lambda: wf.append(X, Y, axis=0),
    "trapezoid": lambda: wf.trapezoid(X, Y),
    "cov": lambda: wf.cov(X, Y),
    "cosine_similarity": lambda: wf.cosine_similarity(X, Y),
    "lerp": lambda: wf.lerp(X, Y, 0.5),
    "ptp": lambda: wf.ptp(X, axis=9),
}


@pytest.mark.parametrize("name", CALLED)
def test_an_error_names_the_function_that_was_called(name: str) -> None:
    with pytest.raises(errors.WeftError, match=rf"^{name}: "):
        CALLED[name]()


def test_an_error_of_a_transform_names_the_transform() -> None:
    with pytest.raises(errors.ConcretizationError, match=r"^compile: "):
        wf.compile(named(lambda x: float(wf.mean(x))))(X)
