"""One program in weft, numpy, jax (jit) and torch: what a row of a table is built from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import harness
import numpy as np
from harness import Workload

import weft as wf

RNG = np.random.default_rng(0)
TORCH_COMPILE = False  # whether torch counts as the better of eager and compiled


def normal(*shape: int) -> Any:
    """Random float32 numbers."""
    return RNG.standard_normal(shape, np.float32)


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
        made["jax"] = jitted(lambda jnp: lambda *xs: program(jnp, *xs), arrays)
    if harness.available("torch"):
        made["torch"] = torched(program, arrays)
    return made


def jitted(make: Callable[[Any], Callable[..., Any]], arguments: Any) -> Callable[[], Any]:
    """A jitted function of jax on these arguments."""
    import jax
    import jax.numpy as jnp

    given = jax.tree_util.tree_map(jnp.asarray, arguments)
    compiled = jax.jit(make(jnp))
    return lambda: jax.block_until_ready(compiled(*given))


def torched(program: Callable[..., Any], arrays: Any) -> Callable[[], Any]:
    """A torch program; with `--torch-compile`, the faster of eager and compiled."""
    import torch

    torch.set_num_threads(harness.held())
    given = [torch.from_numpy(np.asarray(a)) for a in arrays]
    eager = lambda: program(torch, *given)  # noqa: E731
    if not TORCH_COMPILE:
        return eager
    torch._dynamo.reset()  # it compiles one function a few times only, and this is one of many
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

        made["jax"] = jitted(
            lambda jnp: jax.grad(lambda *xs: program(jnp, *xs), argnums=everything), arrays
        )
    if harness.available("torch"):

        def slopes(torch: Any, *xs: Any) -> Any:
            leaves = [x.detach().requires_grad_() for x in xs]
            return torch.autograd.grad(program(torch, *leaves), leaves)

        made["torch"] = torched(slopes, arrays)
    return made


def gelu(xp: Any, x: Any, approximate: bool) -> Any:
    """gelu by the tanh formula or by erf."""
    if xp is np:
        import scipy.special

        inner = 0.7978845608 * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1 + (np.tanh(inner) if approximate else scipy.special.erf(x * 0.5**0.5)))
    if xp.__name__ == "jax.numpy":
        return functions(xp).gelu(x, approximate)
    return functions(xp).gelu(x, approximate="tanh" if approximate else "none")


def functions(xp: Any) -> Any:
    if xp.__name__ == "jax.numpy":
        import jax

        return jax.nn
    return xp if xp is wf else xp.nn.functional


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

        made["jax"] = jitted(changed, arguments)
    return made
