"""Compiled functions in files: saved without code, loaded elsewhere, never trusted."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import subprocess
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import weft as wf
from weft.compiler import export
from weft.errors import (
    ArgumentError,
    DifferentiationError,
    FormatError,
    StorageError,
    UnsupportedError,
)

Pair = namedtuple("Pair", "left right")


@pytest.fixture
def x():
    return wf.tensor([0.5, 1.5, -2.0])


def rewritten(path, change):
    """Change the header of a file and make its digest right again."""
    content = path.read_bytes()
    start = len(export._MAGIC) + export._DIGEST
    body = content[start:]
    (length,) = struct.unpack_from("<Q", body)
    header = json.loads(body[8 : 8 + length])
    change(header)
    encoded = json.dumps(header).encode()
    body = struct.pack("<Q", len(encoded)) + encoded + body[8 + length :]
    path.write_bytes(export._MAGIC + hashlib.sha256(body).digest() + body)


@pytest.mark.slow
def test_a_saved_function_runs_in_another_process_without_its_source(x, tmp_path):
    weight = wf.tensor(np.arange(9, dtype=np.float32).reshape(3, 3))

    def f(params, rate, *, shift):
        y = wf.tanh(params["w"] @ weight) * rate + shift
        steps = wf.scan(lambda c, r: (c * 2 + r, c), y, wf.stack([y, y]))
        return {"y": y, "all": (steps[1], [None, steps[0].astype("bfloat16")])}

    compiled = wf.compile(f)
    path = tmp_path / "f.weft"
    compiled.export(path, {"w": x}, 0.5, shift=x)
    expected = f({"w": x}, 0.25, shift=x + 1)
    code = f"""
import weft as wf
f = wf.load_compiled({str(path)!r})
x = wf.tensor([0.5, 1.5, -2.0])
for _ in range(2):
    found = f({{"w": x}}, 0.25, shift=x + 1)
print([leaf.tolist() for leaf in wf.tree_leaves(found)], list(found), found["all"][1][1].dtype)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    told = [leaf.tolist() for leaf in wf.tree_leaves(expected)]
    assert done.stdout.strip() == f"{told} {list(expected)} bfloat16", done.stderr


PROGRAMS = {
    "cond": lambda x: wf.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, x),
    "while_loop": lambda x: wf.while_loop(lambda c: c.sum() < 10, lambda c: c + 1.5, x),
    "fft": lambda x: wf.fft.fft(x),
    "indexing": lambda x: x[wf.tensor([0, 2])] + wf.arange(2) * x[::2],
    "grad": lambda x: wf.grad(lambda a: (wf.exp(a) / (1 + a * a)).sum())(x),
    "checkpoint": lambda x: wf.grad(lambda a: wf.checkpoint(lambda b: wf.sin(b) * b)(a).sum())(x),
    "constants": lambda x: x * float("inf") + wf.tensor([1j, 2, 3]).real + np.float32(2),
    "sort": lambda x: wf.sort(x),
    "empty": lambda x: wf.zeros((0, 3)) + x,
    "linalg": lambda x: wf.linalg.inv(wf.eye(3) * 3 + wf.outer(x, x)),
    "dropout": lambda x: wf.where(wf.uniform((3,)) > 0.5, x, 0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_the_same_after_loading(name, x, tmp_path):
    compiled = wf.compile(PROGRAMS[name])
    compiled.export(tmp_path / "f", x)
    loaded = wf.load_compiled(tmp_path / "f")
    wf.random.seed(1)
    expected = [compiled(x * n).numpy() for n in (1, 2)]
    wf.random.seed(1)
    for n, y in zip((1, 2), expected, strict=True):
        np.testing.assert_array_equal(loaded(x * n).numpy(), y)


def test_a_loaded_function_works_in_transforms(x, tmp_path):
    wf.compile(lambda a: (wf.sin(a) * a).sum(), name="named").export(tmp_path / "f", x)
    loaded = wf.load_compiled(tmp_path / "f")
    expected = wf.grad(lambda a: (wf.sin(a) * a).sum())(x)
    np.testing.assert_allclose(wf.grad(loaded)(x).numpy(), expected.numpy())
    assert wf.vmap(loaded)(wf.stack([x, x])).shape == (2,)
    assert wf.compile(loaded)(x).item() == loaded(x).item()
    assert repr(loaded) == "<loaded named>"


def test_a_loaded_function_says_what_it_was_made_for(x, tmp_path):
    wf.compile(lambda a, n: a * n, static_argnums=1).export(tmp_path / "f", x, 3)
    loaded = wf.load_compiled(tmp_path / "f")
    assert loaded(x).tolist() == [1.5, 4.5, -6.0]
    with pytest.raises(ArgumentError, match="axis 0 was 3, now 2"):
        loaded(x[:2])
    with pytest.raises(ArgumentError, match="structure"):
        loaded(x, x)


def test_what_a_file_cannot_hold_is_refused_by_name(x, tmp_path):
    own = wf.random.Generator(3)
    cases = [
        (lambda a: wf.callback(np.cumsum, ((3,), "float32"), a), "custom_kernel.*parameter kernel"),
        (lambda a: a + own.normal((3,)), "generator of its own"),
        (lambda a: Pair(a, a), "Pair"),
    ]
    for function, message in cases:
        with pytest.raises(UnsupportedError, match=message):
            wf.compile(function).export(tmp_path / "f", x)
    assert not list(tmp_path.iterdir())


def test_functions_with_derivatives_of_their_own_run_from_files(x, tmp_path):
    @wf.custom_vjp
    def back(a):
        return a * 2

    back.defvjp(lambda a: (back(a), a), lambda a, ct: (10 * ct,))

    @wf.custom_jvp
    def ahead(a):
        return back(a) + 1

    ahead.defjvp(lambda primals, tangents: (ahead(*primals), 7 * tangents[0]))

    def total(a):
        return (back(a) * ahead(a)).sum()

    wf.compile(total).export(tmp_path / "f", x)
    wf.compile(wf.grad(total)).export(tmp_path / "g", x)
    loaded, gradient = wf.load_compiled(tmp_path / "f"), wf.load_compiled(tmp_path / "g")
    assert loaded(x).item() == total(x).item()
    assert wf.vmap(loaded)(wf.stack([x, x])).tolist() == [total(x).item()] * 2
    assert gradient(x).tolist() == wf.grad(total)(x).tolist()
    for derivative in (wf.grad(loaded), lambda a: wf.jvp(loaded, (a,), (a,))):
        with pytest.raises(DifferentiationError, match=r"a rule in Python.*does not hold"):
            derivative(x)


def test_a_path_that_cannot_be_written_is_told(x, tmp_path):
    compiled = wf.compile(lambda a: a + 1)
    for path, error, message in [
        (tmp_path / "absent" / "f", StorageError, "No such file"),
        (tmp_path, ArgumentError, "is a folder"),
        (3, ArgumentError, "path: expected the name of a file"),
        ("a\0b", ArgumentError, "path: expected the name of a file"),
    ]:
        with pytest.raises(error, match=f"export: .*{message}"):
            compiled.export(path, x)
    with pytest.raises(ArgumentError, match="load_compiled: path: expected"):
        wf.load_compiled("a\0b")
    assert not list(tmp_path.iterdir())


def test_threads_that_write_one_file_leave_a_whole_one(x, tmp_path):
    compiled = wf.compile(lambda a: a + 1)
    compiled.export(tmp_path / "f", x)

    def turn(_):
        compiled.export(tmp_path / "f", x)
        return wf.load_compiled(tmp_path / "f")(x).tolist()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(turn, range(100))) == [(x + 1).tolist()] * 100
    assert [each.name for each in tmp_path.iterdir()] == ["f"]


def test_a_file_that_is_cut_or_changed_is_refused(x, tmp_path):
    path = tmp_path / "f"
    wf.compile(lambda a: a * wf.tensor([1.0, 2.0, 3.0])).export(path, x)
    content = path.read_bytes()
    source = random.Random(5)
    for _ in range(200):
        changed = bytearray(content)
        if source.random() < 0.3:
            del changed[source.randrange(len(changed)) :]
        else:
            changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(FormatError):
            wf.load_compiled(path)


def _mutated(value, source):
    """A JSON value with one thing changed somewhere inside."""
    if isinstance(value, dict) and value and source.random() < 0.8:
        key = source.choice(sorted(value))
        return {**value, key: _mutated(value[key], source)}
    if isinstance(value, list) and value and source.random() < 0.8:
        place = source.randrange(len(value))
        if source.random() < 0.2:
            return value[:place] + value[place + 1 :]
        return value[:place] + [_mutated(value[place], source)] + value[place + 1 :]
    return source.choice(
        [None, -1, 0, 1, 7, 2**40, 10**30, 1.5, "", "sin", "cpu:0", [], {}, True, [0]]
    )


def test_a_forged_header_gives_an_error_of_ours_or_a_function(x, tmp_path):
    original = tmp_path / "original"
    wf.compile(PROGRAMS["while_loop"]).export(original, x)
    source = random.Random(7)
    refused = 0
    for _ in range(400):
        path = tmp_path / "f"
        path.write_bytes(original.read_bytes())

        def change(header):
            found = _mutated(header, source)
            header.clear()
            header.update(found if isinstance(found, dict) else {})

        rewritten(path, change)
        try:
            wf.load_compiled(path)
        except FormatError:
            refused += 1
    assert refused > 200


def test_an_op_that_does_not_exist_is_named(x, tmp_path):
    path = tmp_path / "f"
    wf.compile(lambda a: wf.sin(a)).export(path, x)
    rewritten(path, lambda header: header["trace"]["nodes"][0].update(op="os.system"))
    with pytest.raises(FormatError, match=r"no op 'os\.system'"):
        wf.load_compiled(path)
    path.write_bytes(b"something else")
    with pytest.raises(FormatError, match="holds no compiled function"):
        wf.load_compiled(path)
