"""Compiled programs beside numpy, jax (jit) and torch: kernels, loops, first calls, cost of a call.

Each row has a goal: how many times faster than the best peer (or the one that is named), or how
long at most. `--threads` holds every library to that many; torch runs eagerly unless
`--torch-compile` asks for the better of both, which needs a C++ compiler and minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, choices=(1, 2), default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--only", default=None, help="run one library alone")
    parser.add_argument("--rows", default="", help="run the rows whose names hold this text")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, fewer rounds")
    parser.add_argument("--torch-compile", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


def _hold(threads: int) -> None:
    """Make every library use this many threads; to be done before they are imported."""
    for name in ("OMP", "OPENBLAS", "MKL", "WEFT"):
        variable = "WEFT_THREADS" if name == "WEFT" else f"{name}_NUM_THREADS"
        os.environ[variable] = str(threads)
    if threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        os.environ["NPROC"] = "1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


OPTIONS = _options() if __name__ == "__main__" else argparse.Namespace(quick=True, threads=2)
_hold(OPTIONS.threads)

import compiler_steps as steps  # noqa: E402  what stands above must come first
import harness  # noqa: E402
import numpy as np  # noqa: E402

import weft as wf  # noqa: E402

Workload: TypeAlias = dict[str, Callable[[], Any]]
RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    build: Callable[[], Workload]
    faster: float = 0.0  # than the best peer, at least
    most_us: float = 0.0  # microseconds, at most
    peer: str = ""  # the one that counts; all if empty
    steps: int = 1  # that a call takes; figures are for one


def normal(*shape: int) -> Any:
    """Random float32 numbers."""
    return RNG.standard_normal(shape, np.float32)


def large(full: int, quick: int) -> int:
    """A size, or a smaller one with `--quick`."""
    return quick if OPTIONS.quick else full


def libraries(
    program: Callable[..., Any], arrays: tuple[Any, ...], *, numpy: Any = True, plain: bool = False
) -> Workload:
    """A program of (namespace, *arrays) in every library; `numpy` may be a program of its own."""
    tensors = [wf.tensor(a) for a in arrays]
    if plain:
        made: Workload = {"weft": lambda: program(wf, *tensors).data()}
    else:
        compiled = wf.compile(lambda *xs: program(wf, *xs))
        made = {"weft": lambda: compiled(*tensors)}
    if numpy and harness.available("numpy"):
        own = numpy if callable(numpy) else program
        made["numpy"] = lambda: own(np, *arrays)
    if harness.available("jax"):
        made["jax"] = _jitted(lambda jnp: lambda *xs: program(jnp, *xs), arrays)
    if harness.available("torch"):
        made["torch"] = _torch(program, arrays)
    return made


def _jitted(make: Callable[[Any], Callable[..., Any]], arguments: Any) -> Callable[[], Any]:
    """A jitted function of jax on these arguments."""
    import jax
    import jax.numpy as jnp

    given = jax.tree_util.tree_map(jnp.asarray, arguments)
    compiled = jax.jit(make(jnp))
    return lambda: jax.block_until_ready(compiled(*given))


def _torch(program: Callable[..., Any], arrays: Any) -> Callable[[], Any]:
    """A torch program; with `--torch-compile`, the faster of eager and compiled."""
    import torch

    torch.set_num_threads(OPTIONS.threads)
    given = [torch.from_numpy(np.asarray(a)) for a in arrays]
    eager = lambda: program(torch, *given)  # noqa: E731
    if not getattr(OPTIONS, "torch_compile", False):
        return eager
    compiled = torch.compile(lambda *xs: program(torch, *xs))
    both = [eager, lambda: compiled(*given)]
    return min(both, key=lambda f: harness.once(f, 0.1))


def gradients(program: Callable[..., Any], arrays: tuple[Any, ...]) -> Workload:
    """The gradient of a scalar program with respect to all its arguments."""
    everything = tuple(range(len(arrays)))
    tensors = [wf.tensor(a) for a in arrays]
    compiled = wf.compile(wf.grad(lambda *xs: program(wf, *xs), argnums=everything))
    made: Workload = {"weft": lambda: compiled(*tensors)}
    if harness.available("jax"):
        import jax

        made["jax"] = _jitted(
            lambda jnp: jax.grad(lambda *xs: program(jnp, *xs), argnums=everything), arrays
        )
    if harness.available("torch"):

        def slopes(torch: Any, *xs: Any) -> Any:
            leaves = [x.detach().requires_grad_() for x in xs]
            return torch.autograd.grad(program(torch, *leaves), leaves)

        made["torch"] = _torch(slopes, arrays)
    return made


# -- elementwise, and along rows ---------------------------------------------------------------


def fused(xp: Any, a: Any, b: Any, c: Any) -> Any:
    """One pass over memory, if it is fused."""
    return xp.tanh(a * b + c).sum()


def softmax(xp: Any, x: Any) -> Any:
    """Softmax of rows, by the library's own function where it has one."""
    if xp is np:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)
    return _functions(xp).softmax(x, -1)


def layer_norm(xp: Any, x: Any, w: Any, b: Any) -> Any:
    """Layer norm over the last axis, by the library's own function where it has one."""
    if xp is wf:
        return wf.layer_norm(x, x.shape[-1:], w, b)
    if xp.__name__ == "torch":
        return xp.nn.functional.layer_norm(x, x.shape[-1:], w, b)
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / xp.sqrt(variance + 1e-5) * w + b


def gelu(xp: Any, x: Any, approximate: bool) -> Any:
    """gelu by the tanh formula or by erf."""
    if xp is np:
        import scipy.special

        inner = 0.7978845608 * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1 + (np.tanh(inner) if approximate else scipy.special.erf(x * 0.5**0.5)))
    if xp.__name__ == "jax.numpy":
        return _functions(xp).gelu(x, approximate)
    return _functions(xp).gelu(x, approximate="tanh" if approximate else "none")


def _functions(xp: Any) -> Any:
    if xp.__name__ == "jax.numpy":
        import jax

        return jax.nn
    return xp if xp is wf else xp.nn.functional


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
        yield Row(
            f"gelu {'tanh' if how else 'erf'} {flat.size // 1_000_000}M",
            lambda how=how: libraries(lambda xp, x: gelu(xp, x, how), (flat,)),  # type: ignore[misc]
            goal,
        )


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

        made["jax"] = _jitted(
            lambda _: lambda k: jax.random.normal(k, (count,)), (jax.random.key(0),)
        )
    if harness.available("torch"):
        made["torch"] = _torch(lambda torch: torch.randn(count), ())
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


def against_jax(make: Callable[..., Any], arguments: tuple[Any, ...], change: str) -> Workload:
    """A function of (namespace, scan), or a derivative of it, in weft and jax."""
    function = make(wf, wf.scan)
    compiled = wf.compile(getattr(wf, change)(function) if change else function)
    tensors = [wf.tensor(a) for a in arguments]
    made: Workload = {"weft": lambda: compiled(*tensors)}
    if harness.available("jax"):
        import jax

        def changed(jnp: Any) -> Any:
            other = make(jnp, jax.lax.scan)
            return getattr(jax, change)(other) if change else other

        made["jax"] = _jitted(changed, arguments)
    return made


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


def training() -> Iterator[Row]:
    """Whole steps of training."""
    for name, step, arguments in (
        ("MLP 784-512-512-10 step", steps.mlp_step, steps.mlp_data()),
        ("GPT step, 4 layers of 128", steps.gpt_step, steps.gpt_arguments()),
    ):
        yield Row(name, lambda s=step, a=arguments: trained(s, a), 1.0)  # type: ignore[misc]


def trained(make: Any, arguments: tuple[Any, ...]) -> Workload:
    """A step of training in weft and jax."""
    step = wf.compile(make(wf, wf.value_and_grad))
    tensors = wf.tree_map(wf.tensor, list(arguments))
    made: Workload = {"weft": lambda: step(*tensors)}
    if harness.available("jax"):
        import jax

        made["jax"] = _jitted(lambda jnp: make(jnp, jax.value_and_grad), arguments)
    return made


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
        made["jax"] = _jitted(lambda _: lambda t: {k: v + 1.0 for k, v in t.items()}, (tree,))
    return made


MARKS = {True: "ok", False: "MISS", None: "no peer"}
FIRST = {  # in seconds
    "fused": ("first call, fused kernel", 0.02),
    "mlp": ("first call, MLP step", 0.4),
    "gpt": ("first call, GPT step", 2.0),
    "gpt-warm": ("first call, GPT step, code on disk", 0.3),
}


def first_calls() -> dict[str, Any]:
    """Seconds of first calls, each in a process of its own; the last finds its code on disk."""
    found: dict[str, Any] = {}
    script = str(Path(steps.__file__))
    with tempfile.TemporaryDirectory() as folder:
        for program, (name, goal) in FIRST.items():
            where = "gpt" if program == "gpt-warm" else program
            environment = {
                **os.environ,
                "WEFT_CACHE_DIR": str(Path(folder) / where),
                "PYTHONDONTWRITEBYTECODE": "",
                "PYTHONPYCACHEPREFIX": str(Path(folder) / "bytecode"),
            }
            if OPTIONS.rows not in name:
                continue
            ran = subprocess.run(
                [sys.executable, script, program],
                env=environment,
                check=True,
                capture_output=True,
                text=True,
            )
            spent = float(ran.stdout)
            mark = "ok" if spent < goal else "MISS"
            print(f"  {name:36} weft {spent * 1e3:10.1f}   goal < {goal * 1e3:.0f} ms   {mark}")
            found[name] = {"seconds": spent, "goal": goal, "ok": spent < goal}
    return found


def timed(row: Row) -> dict[str, Any]:
    """Run one row, print it, and give what was found."""
    workload = row.build()
    if OPTIONS.only:
        workload = {OPTIONS.only: workload[OPTIONS.only]} if OPTIONS.only in workload else {}
    if not workload:
        return {}
    rounds = 3 if OPTIONS.quick else OPTIONS.rounds
    times = harness.measure(workload, rounds, OPTIONS.seconds)
    medians = {name: statistics.median(found) / row.steps for name, found in times.items()}
    peers = [row.peer] if row.peer else [name for name in times if name != "weft"]
    ratios = {
        peer: statistics.median(p / w for p, w in zip(times[peer], times["weft"], strict=True))
        for peer in peers
        if peer in times and "weft" in times
    }
    best = min(ratios.values(), default=float("nan"))
    if row.most_us:
        ok = medians.get("weft", 0.0) * 1e6 <= row.most_us
        goal = f"goal ≤ {row.most_us:.0f} µs"
    else:
        ok = best >= row.faster if ratios else None
        goal = f"goal ≥ {row.faster:.1f}"
    scale, unit = (1e6, "µs") if max(medians.values()) < 1e-3 else (1e3, "ms")
    listed = "  ".join(f"{name} {value * scale:8.2f}" for name, value in medians.items())
    print(
        f"  {row.name:36} {listed} {unit}   ratio {best:.2f}   {goal}   {MARKS[ok]}",
        flush=True,
    )
    milliseconds = {name: value * 1e3 for name, value in medians.items()}
    return {"milliseconds": milliseconds, "ratios": ratios, "goal": goal, "ok": ok}


def main() -> None:
    """Print the table, and write it where `--json` says."""
    machine = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": OPTIONS.threads,
        "python": platform.python_version(),
    }
    print(
        machine, "torch: better of eager and compile" if OPTIONS.torch_compile else "torch: eager"
    )
    rows: dict[str, Any] = {}
    for group in (elementwise, memory, loops, training, calls):
        for row in group():
            if OPTIONS.rows in row.name:
                rows[row.name] = timed(row)
    first = first_calls() if OPTIONS.only in (None, "weft") else {}
    if OPTIONS.json:
        OPTIONS.json.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"machine": machine, "rows": rows, "first calls": first}, indent=1)
        OPTIONS.json.write_text(text)


if __name__ == "__main__":
    main()
