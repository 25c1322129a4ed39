"""Compiled programs beside numpy, jax (jit) and torch: kernels, loops, first calls, cost of a call.

Each row has a goal: how many times faster than the best peer (or the one that is named), or how
long at most. `--threads` holds every library to that many; torch runs eagerly unless
`--torch-compile` asks for the better of both, which needs a C++ compiler and minutes. Products of
matrices and steps of training are in `heavy.py`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import harness

OPTIONS = (
    harness.options_of(__doc__)
    if __name__ == "__main__"
    else argparse.Namespace(quick=True, threads=2, torch_compile=False)
)
harness.hold(OPTIONS.threads)

import compiler_steps as steps  # noqa: E402  what stands above must come first
import numpy as np  # noqa: E402
import peers  # noqa: E402
from harness import Row, Workload  # noqa: E402
from peers import (  # noqa: E402
    against_jax,
    functions,
    gelu,
    gradients,
    jitted,
    libraries,
    normal,
    torched,
)

import weft as wf  # noqa: E402

RNG = np.random.default_rng(0)


def large(full: int, quick: int) -> int:
    """A size, or a smaller one with `--quick`."""
    return quick if OPTIONS.quick else full


# -- elementwise, and along rows ---------------------------------------------------------------


def fused(xp: Any, a: Any, b: Any, c: Any) -> Any:
    """One pass over memory, if it is fused."""
    return xp.tanh(a * b + c).sum()


def softmax(xp: Any, x: Any) -> Any:
    """Softmax of rows, by the library's own function where it has one."""
    if xp is np:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)
    return functions(xp).softmax(x, -1)


def layer_norm(xp: Any, x: Any, w: Any, b: Any) -> Any:
    """Layer norm over the last axis, by the library's own function where it has one."""
    if xp is wf:
        return wf.layer_norm(x, x.shape[-1:], w, b)
    if xp.__name__ == "torch":
        return xp.nn.functional.layer_norm(x, x.shape[-1:], w, b)
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / xp.sqrt(variance + 1e-5) * w + b


def elementwise() -> Iterator[Row]:
    """tanh(a·b + c).sum(), softmax, layer norm, gelu."""
    n, m = large(10_000_000, 1_000_000), large(4096, 1024)
    rows = (large(8192, 2048), 1024)
    three = normal(n), normal(n), normal(n)
    name = f"tanh(a·b+c).sum() {n // 1_000_000}M"
    yield Row(f"{name}, plain", lambda: libraries(fused, three, plain=True), 3.0, peer="numpy")
    yield Row(f"{name}, compiled", lambda: libraries(fused, three), 1.2)
    yield Row(f"{name}, gradient", lambda: gradients(fused, three), 2.0)
    yield Row(f"softmax {m}²", lambda: libraries(softmax, (normal(m, m),)), 2.0)
    norm = normal(*rows), normal(1024), normal(1024)
    shape = f"{rows[0]}×{rows[1]}"
    yield Row(f"layer norm {shape}", lambda: libraries(layer_norm, norm), 1.5)
    target = normal(*rows)

    def weighted(xp: Any, x: Any, w: Any, b: Any, t: Any) -> Any:
        return (layer_norm(xp, x, w, b) * t).sum()

    yield Row(f"layer norm {shape}, gradient", lambda: gradients(weighted, (*norm, target)), 1.5)
    flat = normal(large(4_000_000, 1_000_000))
    for how, goal in ((True, 1.2), (False, 1.0)):
        made = partial(libraries, lambda xp, x, how=how: gelu(xp, x, how), (flat,))
        yield Row(f"gelu {'tanh' if how else 'erf'} {flat.size // 1_000_000}M", made, goal)


# -- reductions and movement -------------------------------------------------------------------


def scatter_add(xp: Any, ids: Any, x: Any, words: int) -> Any:
    """Rows of x added up by id."""
    if xp is np:
        out = np.zeros((words, x.shape[1]), x.dtype)
        np.add.at(out, ids, x)
        return out
    if xp is wf:
        return wf.index_update(wf.zeros((words, x.shape[1])), (ids,), x, "add")
    if xp.__name__ == "torch":
        return xp.zeros((words, x.shape[1])).index_add_(0, ids, x)
    return xp.zeros((words, x.shape[1]), x.dtype).at[ids].add(x)


def transposed(xp: Any, x: Any) -> Any:
    """A transpose in memory."""
    if xp.__name__ == "torch":
        return x.T.contiguous()
    return np.ascontiguousarray(x.T) if xp is np else x.T


def gathered(xp: Any, x: Any, ids: Any) -> Any:
    """Rows of x by id."""
    return x[ids] if xp.__name__ == "torch" else xp.take(x, ids, axis=0)


def memory() -> Iterator[Row]:
    """Sums, argmax, cumsum, gather, scatter, transpose, random numbers."""
    n = large(8192, 2048)
    x = normal(n, n)
    for axis in (0, 1):
        yield Row(
            f"sum of {n}² over axis {axis}",
            lambda axis=axis: libraries(lambda xp, x: x.sum(axis), (x,)),  # type: ignore[misc]
            1.0,
        )
    yield Row(f"argmax of {n}²", lambda: libraries(lambda xp, x: x.argmax(1), (x,)), 1.5)
    yield Row(f"cumsum of {n}²", lambda: libraries(lambda xp, x: xp.cumsum(x, 1), (x,)), 1.5)
    yield Row(f"transpose of {n}²", lambda: libraries(transposed, (x,)), 1.5)
    words, count = large(50_000, 10_000), large(32_768, 8_192)
    table = normal(words, 512)
    ids = RNG.integers(0, words, count)
    yield Row(f"gather {words // 1000}k×512", lambda: libraries(gathered, (table, ids)), 1.0)
    updates = normal(count, 512)
    yield Row(
        f"scatter-add {words // 1000}k×512",
        lambda: libraries(lambda xp, i, x: scatter_add(xp, i, x, words), (ids, updates)),
        1.0,
    )
    draws = large(10_000_000, 1_000_000)
    yield Row(f"random normal {draws // 1_000_000}M", lambda: random_normal(draws), 1.0)


def random_normal(count: int) -> Workload:
    """Normal numbers by each library's own generator."""
    draw = wf.compile(lambda key: wf.random.normal(key, (count,)))
    key = wf.random.key(0)
    made: Workload = {"weft": lambda: draw(key)}
    generator = np.random.default_rng(0)
    if harness.available("numpy"):
        made["numpy"] = lambda: generator.standard_normal(count, np.float32)
    if harness.available("jax"):
        import jax

        made["jax"] = jitted(
            lambda _: lambda k: jax.random.normal(k, (count,)), (jax.random.key(0),)
        )
    if harness.available("torch"):
        made["torch"] = torched(lambda torch: torch.randn(count), ())
    return made


# -- loops and second derivatives --------------------------------------------------------------


def quartic(x: Any) -> Any:
    """A function with a full Hessian."""
    return (x * x).sum() ** 2 + (x**3).sum()


def lorenz(xp: Any, scan: Any, count: int) -> Callable[[Any], Any]:
    """The end of a path of `count` Runge-Kutta steps."""

    def slope(p: Any) -> Any:
        x, y, z = p[0], p[1], p[2]
        return xp.stack([10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z])

    def step(p: Any, _: Any) -> Any:
        h = 0.01
        a = slope(p)
        b = slope(p + 0.5 * h * a)
        c = slope(p + 0.5 * h * b)
        d = slope(p + h * c)
        return p + h / 6.0 * (a + 2.0 * b + 2.0 * c + d), None

    return lambda p: scan(step, p, None, length=count)[0].sum()


def network(xp: Any, scan: Any) -> Callable[..., Any]:
    """A recurrent network's last state, added up."""
    return lambda w, h, xs: scan(lambda h, x: (xp.tanh(h @ w + x), None), h, xs)[0].sum()


def loops() -> Iterator[Row]:
    """A Hessian, a Lorenz path and a recurrent network, with gradients."""
    point = normal(100)
    yield Row("Hessian, n = 100", lambda: against_jax(lambda *_: quartic, (point,), "hessian"), 1.0)
    count = large(10_000, 1_000)
    start = np.array([1.0, 1.0, 1.0], np.float32)
    for change in ("", "grad"):
        yield Row(
            f"Lorenz step{' of the gradient' if change else ''}",
            lambda change=change: against_jax(  # type: ignore[misc]
                lambda xp, scan: lorenz(xp, scan, count), (start,), change
            ),
            1.0,
            steps=count,
        )
    arguments = normal(32, 32) / 6, normal(32), normal(1000, 32)
    for change in ("", "grad"):
        yield Row(
            f"RNN(32) step{' of the gradient' if change else ''}",
            lambda change=change: against_jax(network, arguments, change),  # type: ignore[misc]
            1.0,
            steps=1000,
        )


# -- calls -------------------------------------------------------------------------------------


def calls() -> Iterator[Row]:
    """What a call costs beyond its work."""
    four = normal(4)
    yield Row(
        "compiled call, 4 elements", lambda: libraries(lambda xp, x, y: x + y, (four, four)), 0, 8
    )
    tree = {f"p{i}": normal(4) for i in range(100)}
    yield Row("compiled call, 100 leaves", lambda: leaves(tree), 0, 120)


def leaves(tree: dict[str, Any]) -> Workload:
    """A function of a tree of tensors."""
    tensors = wf.tree_map(wf.tensor, tree)
    compiled = wf.compile(lambda t: {k: v + 1.0 for k, v in t.items()})
    made: Workload = {"weft": lambda: compiled(tensors)}
    if harness.available("jax"):
        made["jax"] = jitted(lambda _: lambda t: {k: v + 1.0 for k, v in t.items()}, (tree,))
    return made


STARTS = 3  # processes of which each first call is the median
FIRST = {  # in seconds
    "fused": ("first call, fused kernel", 0.02),
    "mlp": ("first call, MLP step", 0.4),
    "gpt": ("first call, GPT step", 2.0),
    "gpt-warm": ("first call, GPT step, code on disk", 0.3),
}


def in_process(program: str, code: Path, bytecode: Path) -> float:
    """Seconds of a program's first call, with its code and bytecode in these folders."""
    environment = {
        **os.environ,
        "WEFT_CACHE_DIR": str(code),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(bytecode),
    }
    command = [sys.executable, str(Path(steps.__file__)), program]
    ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(ran.stdout)


def first_calls() -> dict[str, Any]:
    """Seconds of first calls, the median of several processes each; the last find code on disk.

    One process runs before them: bytecode is there, as installers leave it.
    """
    found: dict[str, Any] = {}
    wanted = {p: told for p, told in FIRST.items() if OPTIONS.rows in told[0]}
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        if wanted:
            in_process("gpt", folder / "before", folder / "bytecode")
        for program, (name, goal) in wanted.items():
            starts = large(STARTS, 1)
            where = [folder / f"{program}{n}" for n in range(starts)]
            if program == "gpt-warm":
                where = [folder / "before"] * starts
            spent = median(in_process(program, code, folder / "bytecode") for code in where)
            mark = "ok" if spent < goal else "MISS"
            print(f"  {name:36} weft {spent * 1e3:10.1f}   goal < {goal * 1e3:.0f} ms   {mark}")
            found[name] = {"seconds": spent, "goal": goal, "ok": spent < goal}
    return found


def main() -> None:
    """Print the table, and write it where `--json` says."""
    peers.TORCH_COMPILE = OPTIONS.torch_compile
    how = "better of eager and compile" if OPTIONS.torch_compile else "eager"
    print(harness.machine(), f"torch: {how}")
    table = (row for group in (elementwise, memory, loops, calls) for row in group())
    rows = harness.run(table, OPTIONS)
    alone = OPTIONS.only in harness.LIBRARIES and OPTIONS.only != "weft"
    harness.keep(OPTIONS.json, rows=rows, **{"first calls": {} if alone else first_calls()})


if __name__ == "__main__":
    main()
