"""Random programs under random stacks of transforms, against loops, differences and themselves."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

import weft as wf
from tests.random_programs import COUNT, Program, make_program
from weft.config import settings

FIXED = range(240)
FRESH = 60


def run_all(check, seeds) -> None:
    for seed in seeds:
        rng = np.random.default_rng(seed)
        program = make_program(rng)
        try:
            check(program, rng)
        except Exception as error:
            error.add_note(f"seed {seed}, program:\n{program}")
            raise


def numbers(tree):
    return [np.asarray(x) for x in wf.tree_leaves(tree)]


def same_bits(found, expected) -> None:
    for a, b in zip(numbers(found), numbers(expected), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


def close(found, expected, tolerance=1e-9) -> None:
    for a, b in zip(numbers(found), numbers(expected), strict=True):
        assert a.shape == b.shape
        scale = max(1.0, float(np.abs(b).max(initial=0.0)))
        np.testing.assert_allclose(a / scale, b / scale, rtol=tolerance, atol=tolerance)


def directions(tree, rng):
    made = [rng.uniform(-1, 1, x.shape) for x in tree]
    return tuple(
        wf.asarray(m + 1j * rng.uniform(-1, 1, m.shape) if x.dtype == wf.complex128 else m)
        for x, m in zip(tree, made, strict=True)
    )


def pairing(left, right) -> float:
    """The real bilinear pairing of two trees."""
    return sum(float(np.real((a * b).sum())) for a, b in zip(numbers(left), numbers(right)))


def points(program):
    return tuple(map(wf.asarray, program.inputs))


@contextmanager
def recording_everything():
    before = settings.small_elements
    settings.small_elements = 0
    try:
        yield
    finally:
        settings.small_elements = before


def check_tiers(program: Program, rng) -> None:
    """Recorded and run later, traced and replayed, or run at once: the same bits."""
    expected = program(*points(program))
    gradient = wf.grad(total_of(program))(*points(program))
    with recording_everything():
        same_bits(program(*(wf.tensor(a) for a in program.inputs)), expected)
        same_bits(wf.grad(total_of(program))(*map(wf.tensor, program.inputs)), gradient)
    trace = wf.trace(program, *points(program))
    same_bits(trace.replay(*points(program)), expected)
    arrays = [*map(np.asarray, program.inputs), *(x.numpy() for x in trace.captures)]
    same_bits(trace.run(arrays), expected)
    for dtype in (wf.float32, wf.bfloat16):
        if program.inputs[0].dtype.kind == "f":
            rounded = [x.astype(dtype) for x in points(program)]
            narrow = program(*rounded)
            with recording_everything():
                same_bits(program(*(wf.tensor(x.numpy()) for x in rounded)), narrow)
            assert {y.dtype for y in narrow} == {dtype}


def total_of(program):
    return lambda *xs: sum((wf.sum(wf.real(wf.sin(y))) for y in program(*xs)), wf.tensor(0.0))


def check_derivatives(program: Program, rng) -> None:
    """Forward mode is the difference quotient; reverse mode is its transpose."""
    x = points(program)
    move = directions(x, rng)
    out, pushed = wf.jvp(program, x, move)
    close(out, program(*x), 0.0)
    step = 1e-6
    up, down = (
        program(*(a + s * step * t for a, t in zip(x, move, strict=True))) for s in (1.0, -1.0)
    )
    close(pushed, [(u - d) / (2 * step) for u, d in zip(up, down, strict=True)], 2e-5)
    value, pullback = wf.vjp(program, *x)
    close(value, out, 0.0)
    ct = directions(out, rng)
    assert pairing(pullback(ct), move) == pytest.approx(pairing(ct, pushed), rel=1e-9, abs=1e-9)


def check_map(program: Program, rng) -> None:
    """A map over random axes, some arguments left out, is a loop."""
    size = int(rng.integers(0, 4))
    mapped = [bool(rng.integers(3)) for _ in program.inputs]
    mapped[0] = mapped[0] or not any(mapped)
    axes = [int(rng.integers(-a.ndim - 1, a.ndim + 1)) for a in program.inputs]
    rows = [
        [a * (1 - 0.3 * i) if m else a for a, m in zip(program.inputs, mapped, strict=True)]
        for i in range(max(size, 1))
    ]
    stacked = [
        np.stack([row[k] for row in rows], axis=axes[k])[
            (slice(None),) * (axes[k] % (a.ndim + 1)) + (slice(0, size),)
        ]
        if mapped[k]
        else a
        for k, a in enumerate(program.inputs)
    ]
    expected = [program(*map(wf.asarray, row)) for row in rows]
    out_axes = tuple(int(rng.integers(-y.ndim - 1, y.ndim + 1)) for y in expected[0])
    in_axes = tuple(axis if m else None for axis, m in zip(axes, mapped, strict=True))
    found = wf.vmap(program, in_axes=in_axes, out_axes=out_axes)(*map(wf.asarray, stacked))
    for slot, y in enumerate(found):
        if size:
            want = np.stack([row[slot].numpy() for row in expected], axis=out_axes[slot])
            close([y], [wf.asarray(want)], 1e-12)
        else:
            assert y.shape[out_axes[slot]] == 0
            assert y.size == 0


def own_vjp(f):
    wrapped = wf.custom_vjp(f)
    wrapped.defvjp(lambda *x: (f(*x), x), lambda x, ct: wf.vjp(f, *x)[1](ct))
    return wrapped


def own_jvp(f):
    wrapped = wf.custom_jvp(f)
    wrapped.defjvp(lambda x, t: wf.jvp(f, x, t))
    return wrapped


def in_scan(f):
    return lambda *x: tuple(y[0] for y in wf.scan(lambda c, _: (c, f(*x)), 0.0, length=1)[1])


def in_cond(f):
    return lambda *x: wf.cond(wf.real(wf.sum(x[0])) > -1e9, f, lambda *x: tree_zeros(f(*x)), *x)


def tree_zeros(tree):
    return wf.tree_map(wf.zeros_like, tree)


def in_trace(f):
    return lambda *x: wf.trace(f, *x).replay(*x)


def in_map(f):
    def run(*x):
        made = wf.vmap(f, in_axes=-1, out_axes=-1)(*(wf.expand_dims(v, -1) for v in x))
        return tuple(wf.squeeze(y, axis=-1) for y in made)

    return run


def pushed(f, rng):
    moves: list = []

    def run(*x):
        if not moves:
            moves.extend(directions(x, rng))
        return wf.jvp(f, x, tuple(moves))[1]

    return run


def pulled(f, rng):
    cts: list = []

    def run(*x):
        out, pullback = wf.vjp(f, *x)
        if not cts:
            cts.extend(directions(out, rng))
        return pullback(tuple(cts))

    return run


def mapped(f, which):
    """A map over two rows of the arguments, all but the one at `which` where there are several."""

    def run(*x):
        axes = tuple(None if i == which and len(x) > 1 else 0 for i in range(len(x)))
        rows = (v if a is None else wf.stack([v, v * 0.5]) for v, a in zip(x, axes, strict=True))
        return wf.vmap(f, in_axes=axes, out_axes=-1)(*rows)

    return run


def mapped_by_loop(f, which):
    def run(*x):
        half = (v if i == which and len(x) > 1 else v * 0.5 for i, v in enumerate(x))
        rows = [f(*x), f(*half)]
        return tuple(wf.stack(column, axis=-1) for column in zip(*rows, strict=True))

    return run


SAME = {
    "checkpoint": wf.checkpoint,
    "custom_vjp": own_vjp,
    "custom_jvp": own_jvp,
    "scan": in_scan,
    "cond": in_cond,
    "trace": in_trace,
    "vmap of one": in_map,
    "debug": lambda f: wf.debug(f, sink=[]),
}


def check_stack(program: Program, rng) -> None:
    """Wrappers that change nothing may stand anywhere among derivatives and maps."""
    changing = list(rng.permutation(["jvp", "vjp", "map", "map"])[: int(rng.integers(1, 4))])
    stack = [*changing, *rng.choice(list(SAME), int(rng.integers(1, 4)))]
    stack = [str(name) for name in rng.permutation(stack)]
    seed = int(rng.integers(2**31))
    wrapped, bare = program, program
    for number, name in enumerate(stack):
        if name in SAME:
            wrapped = SAME[name](wrapped)
        elif name == "map":
            which = int(rng.integers(3))
            wrapped, bare = mapped(wrapped, which), mapped_by_loop(bare, which)
        else:
            transform = {"jvp": pushed, "vjp": pulled}[name]
            wrapped = transform(wrapped, np.random.default_rng(seed + number))
            bare = transform(bare, np.random.default_rng(seed + number))
    try:
        close(wrapped(*points(program)), bare(*points(program)), 1e-8)
    except Exception as error:
        error.add_note(f"stack, innermost first: {stack}")
        raise


CHECKS = [check_tiers, check_derivatives, check_map, check_stack]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.slow
def test_random_programs_keep_the_laws(check) -> None:
    run_all(check, FIXED)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.slow
def test_fresh_random_programs_keep_the_laws(check, fresh_seed) -> None:
    run_all(check, [fresh_seed + i for i in range(FRESH)])


@pytest.mark.slow
def test_programs_are_drawn_from_many_functions() -> None:
    assert COUNT >= 60
    texts = {
        step.text.partition("(")[0]
        for seed in FIXED
        for step in make_program(np.random.default_rng(seed)).steps
    }
    assert len(texts) >= 50
