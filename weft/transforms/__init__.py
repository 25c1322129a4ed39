"""Transforms: functions that give functions another meaning. Each is a handler, one file each.

| file | what lives in it |
|---|---|
| `vjp` | reverse mode: `vjp`, `grad`, `value_and_grad`, `linear_transpose` |
| `jvp` | forward mode: `jvp`, `linearize` |
| `jacobian` | `jacfwd`, `jacrev`, `hessian`, `hvp` |
| `vmap` | vectorisation: `vmap` |
| `along` | functions of numbers or vectors: `vectorize`, `apply_along_axis`, `apply_over_axes` |
| `iterative` | linear systems by iterations: `wf.linalg.cg` |
| `compile` | trace once, run many times: `compile`, `jit` |
| `shard_map` | run over the devices of a mesh: `shard_map` |
| `pipeline` | stages on a mesh axis: `gpipe`, `one_forward_one_backward` |
| `checkpoint` | recompute instead of storing |
| `checkpoint_policies` | what is stored all the same: `wf.checkpoint_policies` |
| `custom` | derivatives of one's own: `custom_vjp`, `custom_jvp` |
| `stop` | `stop_gradient`, `no_grad` |
| `debug` | `debug`, `debug_nans` |
| `profile` | `profile`: what ran, when, how fast |
| `usage` | its events added up, as a table |
| `timeline` | its events as a trace that Perfetto opens |
| `tune` | `tune`: other ways to run heavy kernels, measured |
| `planning/` | `plan` and the sharding solver: placement and cost on a mesh, from shapes |
| `visualize` | `visualize`, `visualize_sharding` |
| `pictures/` | how they draw |
| `callback` | host functions, `print`, `breakpoint` inside transformed code |
"""

from weft.compiler.export import LoadedFunction, load_compiled
from weft.compiler.function import CompiledFunction
from weft.compiler.statistics import CompilationStats
from weft.transforms import checkpoint_policies
from weft.transforms.along import apply_along_axis, apply_over_axes, vectorize
from weft.transforms.callback import break_here, callback, print_values
from weft.transforms.checkpoint import checkpoint, checkpoint_name, remat
from weft.transforms.compile import compile, jit
from weft.transforms.custom import custom_jvp, custom_vjp
from weft.transforms.debug import debug, debug_nans
from weft.transforms.jacobian import hessian, hvp, jacfwd, jacrev
from weft.transforms.jvp import jvp, linearize
from weft.transforms.pipeline import gpipe, one_forward_one_backward
from weft.transforms.profile import profile
from weft.transforms.shard_map import shard_map
from weft.transforms.stop import detach, no_grad, stop_gradient
from weft.transforms.visualize import visualize, visualize_sharding
from weft.transforms.vjp import grad, linear_transpose, value_and_grad, vjp
from weft.transforms.vmap import AxisSpec, vmap, with_batch_dims

print = print_values
breakpoint = break_here

__all__ = [
    "AxisSpec",
    "CompilationStats",
    "CompiledFunction",
    "LoadedFunction",
    "apply_along_axis",
    "apply_over_axes",
    "breakpoint",
    "callback",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "compile",
    "custom_jvp",
    "custom_vjp",
    "debug",
    "debug_nans",
    "detach",
    "gpipe",
    "grad",
    "hessian",
    "hvp",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "linear_transpose",
    "linearize",
    "load_compiled",
    "no_grad",
    "one_forward_one_backward",
    "print",
    "profile",
    "remat",
    "shard_map",
    "stop_gradient",
    "value_and_grad",
    "vectorize",
    "visualize",
    "visualize_sharding",
    "vjp",
    "vmap",
    "with_batch_dims",
]
