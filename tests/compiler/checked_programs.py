"""Programs drawn at random, compiled with kernels that check every access, beside their references.

`python tests/compiler/checked_programs.py COUNT` runs so many of each kind, from 10 on also a few
large ones, and prints how many ran. It must be started with WEFT_CHECK_BOUNDS=1. Kernels are
compiled for the sizes at hand and for all sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

import weft as wf
from weft.compiler.executable import Interpreted
from weft.compiler.native import Native
from weft.config import settings
from weft.core.common.dtypes import bfloat16

DTYPES = ["float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64", "uint64"]
SIZES = st.integers(0, 70)
RAN: dict[str, int] = {}


def array(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    """Small numbers of a dtype."""
    rng = np.random.default_rng(seed)
    return rng.integers(-4, 5, shape).astype(dtype)


def laid_out(data: st.DataObject, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of this shape as it may come: packed, transposed, spread out, or backwards."""
    how = data.draw(st.sampled_from(["packed", "turned", "spread", "backwards", "shifted"]))
    if how == "turned":
        return array(shape[::-1], dtype).transpose()
    if how == "spread":
        return array(tuple(3 * n for n in shape), dtype)[tuple(slice(1, None, 3) for _ in shape)]
    if how == "backwards":
        return array(shape, dtype)[tuple(slice(None, None, -1) for _ in shape)]
    if how == "shifted":
        flat = array((int(np.prod(shape)) + 1,), dtype)
        return flat[1:].reshape(shape)
    return array(shape, dtype)


def check(kind: str, function: Callable[..., Any], *arrays: Any, strided: bool = False) -> None:
    """The compiled program gives the bits of its reference, and stays inside its memory."""
    trace = wf.trace(function, *map(wf.tensor, arrays))
    steps = {}
    if strided:
        steps = {
            (node, 0): tuple(s // a.itemsize for s in a.strides)
            for node, a in zip(trace.inputs, arrays, strict=False)
            if not a.flags.c_contiguous
        }
    for general in (False, True):
        got = Native(trace, general=general, strides=steps).run(arrays)
        want = Interpreted(trace).run(arrays)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    RAN[kind] = RAN.get(kind, 0) + 1


@hypothesis.given(st.data())
def products(data: st.DataObject) -> None:
    """Matrix products of any sizes, dtypes and layouts, with or without an epilogue."""
    m, k, n = (data.draw(SIZES) for _ in range(3))
    dtype = data.draw(st.sampled_from([*DTYPES, bfloat16, "complex64", "complex128"]))
    x, y = laid_out(data, (m, k), dtype), laid_out(data, (k, n), dtype)
    plain = data.draw(st.booleans())
    check("products", lambda x, y: x @ y if plain else (x @ y + 1) * 2, x, y, strided=True)


@hypothesis.given(st.data())
def batches(data: st.DataObject) -> None:
    """Batched products, vectors times matrices, and factors that are shared."""
    b, m, k, n = (data.draw(st.integers(0, 9)), *(data.draw(st.integers(0, 40)) for _ in range(3)))
    left = data.draw(st.sampled_from([(b, m, k), (m, k), (k,), (1, m, k)]))
    right = data.draw(st.sampled_from([(b, k, n), (k, n), (k,)]))
    dtype = data.draw(st.sampled_from(["float32", "int32", "complex64"]))
    check("batches", lambda x, y: x @ y, array(left, dtype), array(right, dtype))


@hypothesis.given(st.data())
def reductions(data: st.DataObject) -> None:
    """Sums, extremes and places of extremes along any axes."""
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    dtype = data.draw(st.sampled_from(DTYPES))
    op = data.draw(st.sampled_from([wf.sum, wf.max, wf.min, wf.argmax, wf.prod, wf.cumsum]))
    check("reductions", lambda x: op(x, axis=axis), laid_out(data, shape, dtype), strided=True)


@hypothesis.given(st.data())
def gathers(data: st.DataObject) -> None:
    """Rows by number, windows, flips and rows that are added up by number."""
    rows, width, count = (data.draw(st.integers(1, 40)) for _ in range(3))
    x = array((rows, width), data.draw(st.sampled_from(["float32", "int16", "float64"])))
    ids = np.random.default_rng(rows).integers(-rows, rows, count)
    first, step = data.draw(st.integers(0, rows - 1)), data.draw(st.sampled_from([-3, -1, 1, 2]))
    check("gathers", lambda x, i: wf.take(x, i, axis=0) * 2, x, ids)
    check("gathers", lambda x: wf.flip(x)[first::step].T + 1, x)
    check("gathers", lambda x, i: wf.index_update(x, (i,), x[:1] * 2, "add"), x, ids)


@hypothesis.given(st.data())
def scans(data: st.DataObject) -> None:
    """Loops over rows, forwards and backwards."""
    length, width = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 60))
    reverse = data.draw(st.booleans())

    def run(h: Any, xs: Any) -> Any:
        return wf.scan(lambda h, x: (h * 2 + x, wf.flip(h) - x), h, xs, reverse=reverse)

    check("scans", run, array((width,), np.float32), array((length, width), np.float32))


@hypothesis.given(st.data())
def others(data: st.DataObject) -> None:
    """Softmax, joined and padded tensors, convolutions, sorted rows."""
    m, n = data.draw(st.integers(1, 33)), data.draw(st.integers(1, 33))
    x = array((m, n), np.float32)
    check("others", lambda x: wf.softmax(x, -1) @ x.T, x)
    check("others", lambda x: wf.concatenate([x[:, 1:], x, x[:, :1]], axis=1) * 2, x)
    check("others", lambda x: wf.sort(x, axis=-1), x)
    image, kernel = array((1, 2, m, n), np.float32), array((3, 2, min(m, 3), min(n, 2)), np.float32)
    check("others", lambda x, w: wf.conv2d(x, w), image, kernel)


def large() -> None:
    """What only large sizes meet: panels of rows, pieces of the depth, threads that share rows."""
    q = array((1, 8, 1024, 64), np.float32) / 64
    check("large", lambda q: wf.softmax(q @ wf.swapaxes(q, -1, -2), -1) @ q, q)
    x = array((300, 1100), np.float32)
    check("large", lambda x: wf.tanh(x @ x.T) @ x, x)
    check("large", lambda x: wf.sort(x.reshape(-1)), x)
    check("large", lambda x: x.sum(), x)


def main(count: int) -> None:
    """Run so many programs of each kind."""
    assert settings.check_bounds == 1
    options = hypothesis.settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    for kind in (products, batches, reductions, gathers, scans, others):
        options(kind)()
    if count >= 10:
        large()
    print(RAN)


if __name__ == "__main__":
    main(int(sys.argv[1]))
