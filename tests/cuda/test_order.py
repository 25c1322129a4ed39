"""Rows are ordered on a GPU as on the CPU, bit for bit, by kernels that stay there."""

from __future__ import annotations

import numpy as np
import pytest

import weft as wf
from tests.compiler.test_order import NAMES, drawn
from weft.compiler.gpu_steps import Call
from weft.core.tensor.tracing import trace
from weft.runtime.registry import client

pytestmark = pytest.mark.slow  # long sorts take long to compile

SHAPES = [(1,), (2,), (4, 3), (3, 31), (2, 32), (300, 7), (3, 1000)]


def asked(size):
    """The ways to ask for an order of rows of this size."""
    k = min(size, 5)
    return [
        wf.sort,
        lambda x: wf.sort(x, descending=True),
        wf.argsort,
        lambda x: wf.argsort(x, descending=True),
        lambda x: wf.top_k(x, k),
        lambda x: wf.top_k(x, k, largest=False),
    ]


def results(function, x, device):
    with wf.default_device(device):
        return [t.host() for t in wf.tree_leaves(function(wf.asarray(x, device=device)))]


def check(function, x):
    found, expected = (results(function, x, device) for device in ("cuda", "cpu"))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_every_size_have_the_bits_of_the_cpu(shape):
    for function in asked(shape[-1]):
        check(function, drawn("float32", shape, shape[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_every_dtype_have_the_bits_of_the_cpu(name):
    for function in asked(33):
        check(function, drawn(name, (5, 33), 33))
    for function in asked(5000)[::2]:
        check(function, drawn(name, (2, 5000), 5000))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "bfloat16", "float32", "int64"])
def test_long_rows_of_equal_elements_keep_their_order(name):
    x = drawn(name, (2, 20_011), 1, few=True)
    for function in (*asked(5), lambda x: wf.top_k(x, 9000)):
        check(function, x)


def test_rows_of_one_number_stay_as_they_are():
    for number in (0.0, -0.0, np.nan, np.inf, -np.inf):
        for function in asked(5000):
            check(function, np.full((2, 5000), number, np.float32))


def test_functions_made_of_orders_have_the_bits_of_the_cpu():
    x = drawn("float32", (20, 257), 3, few=True)
    finite = np.nan_to_num(x, nan=3.0, posinf=4.0, neginf=-4.0)
    edges = np.sort(finite[0])
    for function in (
        lambda x: wf.median(x, axis=0),
        lambda x: wf.quantile(x, 0.3, axis=1),
        lambda x: wf.unique(x),
        lambda x: wf.searchsorted(wf.asarray(edges, device=x.device), x),
        lambda x: wf.sort(x, axis=0),
        wf.grad(lambda x: wf.sum(wf.sort(x) ** 2)),
        wf.compile(lambda x: wf.argsort(x * 2, axis=0) + 1),
    ):
        check(function, finite)


def test_no_row_is_ordered_on_the_host():
    x = wf.asarray(np.zeros((3, 5000), np.float32))
    for function in asked(5000):
        made = client("cuda").executable(trace(function, x))
        calls = [step.node.name for step in made.program.steps if isinstance(step, Call)]
        assert not calls and "kernel k0_" in made.explain()


def test_nothing_to_order_is_no_kernel():
    for shape in ((0,), (3, 0), (0, 4)):
        check(wf.sort, np.zeros(shape, np.float32))
    check(lambda x: wf.top_k(x, 0), np.zeros((2, 4), np.float32))
