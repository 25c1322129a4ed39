"""Write docs/ops.md: what every op of the registry is, and where it runs.

    python tools/op_table.py

Nothing is listed by hand. Rules are what the op's class has; backends are found by making the
kernels of the op's own examples in float32 and int32; reasons are those the op or the error gives.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.compiler.emit_ptx import emit, gpu_target
from weft.compiler.emit_wgsl import emit_wgsl
from weft.compiler.fuse import Fusion
from weft.compiler.gpu_program import plan
from weft.compiler.gpu_steps import Call
from weft.compiler.loops import Kernel
from weft.compiler.pipeline_gpu import CUDA, WEBGPU
from weft.compiler.rewrite import rewrite
from weft.core.common.slots import OPS
from weft.core.graph.trace import Trace
from weft.core.tensor.tracing import trace
from weft.ops.base import Linear, Operation, call
from weft.testing.samples import calls, operands

PAGE = Path(__file__).resolve().parent.parent / "docs" / "ops.md"
FAMILIES = {  # where an op's class is defined, as a heading
    "elementwise": "Of each element",
    "view": "Shapes and views",
    "nn": "Parts of models",
    "random": "Random numbers",
    "control": "Functions inside",
    "communication": "Over a mesh",
    "transforms": "Transforms",
}
HEAD = """# Ops

Written by `python tools/op_table.py` from the registry; do not edit. Transforms see these {count}
primitives; the functions of the API reference are made of them.

- *notation*: the axes of operands and results; `...` are batch axes, a letter missing on the right
  is summed (or reduced) over. For ops whose notation depends on parameters, that of an example.
- *vjp*, *jvp*: reverse and forward mode; `linear` is the op itself, applied to tangents.
- *batch*: `law` is the one rule of all ops (leading axes are batch), `own` a rule of its own.
- *splits*: the factors that may be split over a mesh; what is not listed stays whole on a device.
- *cpu*: every op runs interpreted. `kernel` means that compiled programs have it in a fused kernel,
  `host` that they call its reference, `inside` that they run the calls it holds.
- *ptx*, *wgsl*: whether float32 and int32 examples become kernels for NVIDIA GPUs and for WebGPU;
  others run on the host, or step by step where they hold calls.

"""


def family(op: Operation) -> str:
    """The heading an op stands under."""
    parts = type(op).__module__.split(".")
    for part in parts:
        if part in FAMILIES:
            return FAMILIES[part]
    return {"linalg": "Linear algebra", "decompositions": "Linear algebra", "fft": "Fourier"}.get(
        parts[-1], "Reductions, order, indices and others"
    )


def narrowed(array: Any) -> Any:
    """Operands as a GPU likes them: 32 bits wide."""
    narrow = {"float64": "float32", "int64": "int32", "complex128": "complex64"}
    return array.astype(narrow.get(array.dtype.name, array.dtype))


def example_of(op: Operation) -> Trace | None:
    """The op's first example as a graph, or None where it can have none."""
    if not calls(op):
        return None
    example = calls(op)[0]
    arrays = map(narrowed, operands(op, example, np.random.default_rng(0)))
    tensors = tuple(wf.traced(wf.asarray(a)) for a in arrays)
    return trace(lambda *args: call(op, args, example.params), *tensors)


def notation(op: Operation) -> str:
    """The op's notation, with the batch axes of families that say it in code."""
    if op.factors:
        return op.factors
    for example in calls(op)[:1]:
        arrays = operands(op, example, np.random.default_rng(0))
        types = [wf.asarray(narrowed(a)).type for a in arrays]
        return re.sub(r"\bb\d+( b\d+)*\b", "...", str(op.index(*types, **example.params)))
    return "–"


def splits(op: Operation) -> str:
    """The factors of an example that may be split over a mesh."""
    for example in calls(op)[:1]:
        arrays = operands(op, example, np.random.default_rng(0), (2,))
        types = [wf.asarray(narrowed(a)).type for a in arrays]
        rule = op.sharding_rule(*types, **example.params)
        free = [name for name in rule.names if name not in rule.whole]
        if not rule.whole:
            return "all"
        return " ".join(dict.fromkeys(re.sub(r"^b\d+$", "batch", name) for name in free)) or "–"
    return "–"


def derivative(op: Operation, rule: str) -> str:
    """Whether there is the rule, and whether linearity gives it."""
    if rule in op.reasons or not (op.has(rule) or (rule == "vjp" and op.saves)):
        return "–"
    linear = rule == "jvp" and op.linear is not Linear.NO
    return "linear" if linear and type(op).jvp is Operation.jvp else "yes"


def cpu(op: Operation, found: Trace | None) -> str:
    """How compiled programs on a CPU run the op."""
    if found is None:
        return "kernel" if op.has("body") else "host" if op.leaf else "inside"
    kinds = {group.kind for group in Fusion(found.nodes, found.outputs).groups}
    return "host" if "host" in kinds else "kernel"


def gpu(found: Trace) -> tuple[str, ...]:
    """`yes`, or what keeps an example from being a kernel in PTX and in WGSL."""
    simple, _ = rewrite(found)
    return tuple(
        next((step.why for step in program.steps if isinstance(step, Call)), "yes")
        for program in (plan(simple, CUDA, in_ptx), plan(simple, WEBGPU, in_wgsl))
    )


def in_ptx(kernel: Kernel) -> Kernel:
    """The kernel, if it can be written in PTX."""
    emit([kernel], gpu_target())
    return kernel


def in_wgsl(kernel: Kernel) -> Kernel:
    """The kernel, if it can be written in WGSL."""
    emit_wgsl(kernel)
    return kernel


def row(op: Operation) -> tuple[list[str], str]:
    """One line of the table, and why something is missing."""
    found = example_of(op)
    reasons = {rule: op.reasons[rule] for rule in ("vjp", "jvp") if rule in op.reasons}
    if len(reasons) == 2 and len(set(reasons.values())) == 1:
        reasons = {"vjp, jvp": reasons["vjp"]}
    host = cpu(op, found)
    if host != "kernel" and "kernel" in op.reasons:
        reasons["kernel"] = op.reasons["kernel"]
    elif host == "host":
        reasons["kernel"] = "no instructions for these dtypes yet"
    on_gpu = ("–", "–") if found is None else gpu(found)
    for name, result in zip(("ptx", "wgsl"), on_gpu, strict=True):
        if result not in ("yes", "–") and host == "kernel":
            reasons[name] = result.removeprefix(f"{op}: ")
    cells = [
        f"`{op}`",
        f"`{notation(op)}`",
        derivative(op, "vjp"),
        derivative(op, "jvp"),
        "own" if op.breaks_law else "law",
        splits(op),
        host,
        *("yes" if result == "yes" else "–" for result in on_gpu),
    ]
    return cells, "; ".join(f"{rule}: {reason}" for rule, reason in reasons.items())


def page() -> str:
    """The whole page."""
    groups: dict[str, list[Operation]] = {}
    for op in OPS.values():
        if type(op).__module__.startswith("weft."):
            groups.setdefault(family(op), []).append(op)
    text = [HEAD.format(count=sum(map(len, groups.values())))]
    for heading in sorted(groups):
        text.append(f"## {heading}\n\n")
        text.append("| op | notation | vjp | jvp | batch | splits | cpu | ptx | wgsl | why not |\n")
        text.append("|---" * 10 + "|\n")
        for op in sorted(groups[heading], key=str):
            cells, why = row(op)
            text.append("| " + " | ".join([*cells, why.replace("|", "\\|")]) + " |\n")
        text.append("\n")
    return "".join(text).rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
