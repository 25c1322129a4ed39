"""Calls that a compiled program makes in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.errors import ArgumentError
from weft.runtime.cpu.client import CpuClient

SIZE = 34  # whose prime factor 17 no kernel of a transform has
MATRIX = (np.arange(SIZE**2).reshape(SIZE, SIZE) % 7 + 30 * np.eye(SIZE)).astype(np.float32)
CALLS: dict[str, Any] = {
    "rfft": lambda x: wf.fft.rfft(x),
    "fft": lambda x: wf.fft.fft2(x * (1 + 2j)),
    "eigvalsh": lambda x: wf.linalg.eigvalsh(x + x.T),
    "qr": lambda x: wf.linalg.qr(x)[1],
    "inv": lambda x: wf.linalg.inv(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_call_comes_to_is_found_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = wf.compile(CALLS[name])
    expected = CALLS[name](wf.tensor(MATRIX)).numpy()
    compiled(wf.tensor(MATRIX)).numpy()
    x = wf.tensor(MATRIX.copy())

    def execute(*args: Any) -> None:
        raise AssertionError("the client was asked again")

    monkeypatch.setattr(CpuClient, "execute", execute)
    np.testing.assert_array_equal(compiled(x).numpy(), expected)


def test_results_that_are_kept_stay_as_they_are_when_the_call_comes_again() -> None:
    compiled = wf.compile(CALLS["rfft"])
    rows = [MATRIX + k for k in range(6)]
    kept = [compiled(wf.tensor(row)) for row in rows]
    for row, result in zip(rows, kept, strict=True):
        np.testing.assert_array_equal(result.numpy(), wf.fft.rfft(wf.tensor(row)).numpy())


def test_a_call_inside_a_loop_reads_what_the_loop_has_written() -> None:
    def turns(x: wf.Tensor) -> wf.Tensor:
        return wf.scan(lambda c, _: (wf.fft.irfft(wf.fft.rfft(c) * 2), None), x, None, length=5)[0]

    result = wf.compile(turns)(wf.tensor(MATRIX)).numpy()
    np.testing.assert_allclose(result, MATRIX * 32, rtol=1e-5, atol=1e-3)


def test_what_goes_wrong_names_the_line_of_the_call() -> None:
    compiled = wf.compile(CALLS["inv"])
    compiled(wf.tensor(MATRIX)).numpy()
    with pytest.raises(ArgumentError, match="singular") as caught:
        compiled(wf.zeros((SIZE, SIZE))).numpy()
    assert any("test_host.py" in note for note in caught.value.__notes__)


def test_a_profile_tells_of_calls_in_python() -> None:
    compiled = wf.compile(CALLS["eigvalsh"])
    compiled(wf.tensor(MATRIX)).numpy()
    with wf.profile() as profile:
        compiled(wf.tensor(MATRIX)).numpy()
    assert "eigvalsh" in str(profile)
