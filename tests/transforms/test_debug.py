"""debug and debug_nans, at every position of a composition."""

from __future__ import annotations

import pytest

import weft as wf
from weft.errors import NotFiniteError


def f(x):
    return wf.sum(wf.sin(x) * x)


X = wf.arange(3.0)


@pytest.mark.promise("S1.17")
def test_debug_prints_each_op_with_types_statistics_and_line(capsys) -> None:
    wf.debug(f)(X)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("(")[0] for line in lines] == ["sin", "multiply", "reduce_sum"]
    for word in (
        "float32[3]",
        "mean=",
        "std=",
        "min=",
        "max=",
        "nan=0",
        "bytes=12",
        "test_debug.py",
    ):
        assert word in lines[0]


@pytest.mark.parametrize(
    ("compose", "phases"),
    [
        (lambda sink: wf.debug(wf.grad(f), sink=sink), {"forward"}),
        (lambda sink: wf.grad(wf.debug(f, sink=sink)), {"forward", "backward"}),
        (lambda sink: wf.vmap(wf.grad(wf.debug(f, sink=sink))), {"forward", "backward"}),
        (lambda sink: wf.debug(wf.vmap(wf.grad(f)), sink=sink), {"forward"}),
        (
            lambda sink: wf.grad(lambda x: wf.vmap(wf.debug(f, sink=sink))(x).sum()),
            {"forward", "backward"},
        ),
    ],
)
def test_debug_reports_also_the_backward_pass(compose, phases) -> None:
    reports = []
    x = wf.ones((2, 3)) if "vmap" in compose.__code__.co_names else X
    result = compose(reports)(x)
    assert {r.phase for r in reports} == phases
    assert {"sin", "multiply"} <= {r.op for r in reports}
    assert all(r.statistics is not None for r in reports)
    assert wf.isfinite(result).all()


@pytest.mark.promise("S1.15")
def test_debug_changes_nothing() -> None:
    plain, watched = wf.grad(f)(X), wf.grad(wf.debug(f, sink=[]))(X)
    assert plain.tolist() == watched.tolist()


@pytest.mark.promise("S1.16")
def test_a_handler_passes_on_what_it_does_not_care_about() -> None:
    y = wf.ones(3)
    got = wf.vmap(lambda x: wf.grad(lambda z: (z * y).sum())(y) + x)(wf.arange(2.0))
    assert got.tolist() == [[1.0] * 3, [2.0] * 3]


def test_debug_nans_names_op_and_line_in_the_forward_pass() -> None:
    with pytest.raises(NotFiniteError, match=r"log: 1 of 2 .*test_debug.py:\d+"), wf.debug_nans():
        wf.log(wf.tensor([-1.0, 1.0]))


def test_debug_nans_puts_a_backward_nan_down_to_its_forward_line() -> None:
    def g(x):
        return wf.sum(wf.sqrt(x) * 0.0)  # the derivative at 0 is 0 * inf

    where = r"test_debug.py:\d+: return wf.sum\(wf.sqrt"
    with pytest.raises(NotFiniteError, match=where), wf.debug_nans():
        wf.grad(g)(wf.tensor([0.0, 1.0]))


def test_debug_nans_looks_into_mapped_functions() -> None:
    with pytest.raises(NotFiniteError, match=r"log: 1 of 2 .*test_debug.py"), wf.debug_nans():
        wf.vmap(lambda x: wf.log(x))(wf.tensor([1.0, -1.0]))


def chosen(x):
    whole = lambda x: wf.cond(x > 9, lambda x: wf.log(x - 9), lambda x: 2 * x, x)  # noqa: E731
    root = lambda x: wf.sqrt(x) * x  # noqa: E731
    return wf.switch(wf.asarray(x, dtype="int32"), [lambda x: x, root, whole], x)


@pytest.mark.parametrize(
    "mapped",
    [
        lambda f: wf.vmap(f),
        lambda f: wf.vmap(wf.grad(f)),
        lambda f: wf.grad(lambda x: wf.vmap(f)(x).sum()),
        lambda f: wf.compile(wf.hessian(lambda x: wf.vmap(f)(x).sum())),
        lambda f: lambda x: wf.vmap(wf.vmap(f))(wf.stack([x, x + 1])),
    ],
)
def test_debug_nans_sees_of_a_mapped_choice_what_is_taken(mapped) -> None:
    x = wf.tensor([-3.0, 0.0, 1.0, 2.0])
    want = mapped(chosen)(x)
    with wf.debug_nans():
        assert mapped(chosen)(x).tolist() == want.tolist()


def test_debug_nans_finds_a_nan_in_a_row_that_takes_a_branch() -> None:
    x = wf.tensor([-3.0, 0.0, 1.0, 2.0])
    f = lambda x: wf.cond(x > 1, lambda x: wf.sqrt(x - 2), lambda x: wf.log(x - 9), x)  # noqa: E731
    with pytest.raises(NotFiniteError, match=r"where: 3 of 4 .*test_debug.py"), wf.debug_nans():
        wf.vmap(f)(x)
    safe = lambda x: wf.cond(x > 1, lambda x: wf.sqrt(x - 2) * 0, lambda x: x, x)  # noqa: E731
    with pytest.raises(NotFiniteError, match=r"where: 1 of 4 .*: safe ="), wf.debug_nans():
        wf.grad(lambda x: wf.vmap(safe)(x).sum())(x)


def test_debug_nans_lets_finite_programs_pass_and_ends_with_its_block() -> None:
    with wf.debug_nans():
        assert wf.grad(f)(X).shape == (3,)
    assert wf.isnan(wf.log(wf.tensor(-1.0))).item()


def test_debug_nans_decorates_functions():
    @wf.debug_nans()
    def root(x):
        return wf.sqrt(x)

    for _ in range(2):
        with pytest.raises(NotFiniteError, match="sqrt"):
            root(wf.asarray([-1.0]))
    assert wf.isnan(wf.sqrt(wf.asarray([-1.0]))).item()
