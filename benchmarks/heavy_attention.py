"""Attention beside torch: forward, gradients, per-example gradients, and a language model's step.

`ROWS` lists what is measured, each with its goal: how many times faster than the best peer. Run it
alone with `--threads 1` or `2`; `--rows` picks rows by a part of their names. Libraries take turns,
and the ratio is the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, choices=(1, 2), default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--rows", default="", help="run the rows whose names hold this text")
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


if __name__ == "__main__":  # threads are set before libraries are imported
    OPTIONS = _options()
    for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "WEFT_THREADS"):
        os.environ[_name] = str(OPTIONS.threads)

import compiler_steps as steps  # noqa: E402  what stands above must come first
import harness  # noqa: E402
import numpy as np  # noqa: E402

import weft as wf  # noqa: E402

Workload: TypeAlias = dict[str, Callable[[], Any]]
SMALL, LARGE = (16, 4, 128, 32), (4, 8, 2048, 64)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    build: Callable[[], Workload]
    faster: float  # than the best peer, at least
    peer: str = ""  # the one that counts; all if empty


def arrays(shape: tuple[int, ...], count: int) -> list[Any]:
    """Random float32 numbers."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, np.float32) for _ in range(count)]


def forward(shape: tuple[int, ...], causal: bool) -> Workload:
    """Attention alone."""
    given = arrays(shape, 3)
    tensors = [wf.tensor(x) for x in given]
    run = wf.compile(lambda q, k, v: wf.scaled_dot_product_attention(q, k, v, is_causal=causal))
    found: Workload = {"weft": lambda: run(*tensors).data()}
    if harness.available("torch"):
        import torch

        theirs = [torch.tensor(x) for x in given]
        attend = torch.nn.functional.scaled_dot_product_attention
        found["torch"] = lambda: attend(*theirs, is_causal=causal)
    return found


def gradient(shape: tuple[int, ...], causal: bool) -> Workload:
    """Attention and the gradients of queries, keys and values."""
    given = arrays(shape, 4)
    tensors = [wf.tensor(x) for x in given]

    def loss(q: Any, k: Any, v: Any, g: Any) -> Any:
        return (wf.scaled_dot_product_attention(q, k, v, is_causal=causal) * g).sum()

    run = wf.compile(wf.grad(loss, argnums=(0, 1, 2)))
    found: Workload = {"weft": lambda: [x.data() for x in run(*tensors)]}
    if harness.available("torch"):
        import torch

        *inputs, g = (torch.tensor(x) for x in given)
        inputs = [x.requires_grad_() for x in inputs]
        attend = torch.nn.functional.scaled_dot_product_attention
        found["torch"] = lambda: torch.autograd.grad(attend(*inputs, is_causal=causal), inputs, g)
    return found


def per_example() -> Workload:
    """The gradient of a projection's weights for each of 16 sequences that attend to themselves."""
    shape = (16, 128, 64)
    (x,), (w,) = arrays(shape, 1), arrays((64, 192), 1)
    w *= 0.1

    def loss(w: Any, x: Any, split: Any, attend: Any) -> Any:
        q, k, v = split(x @ w)
        return (attend(q, k, v, is_causal=True) ** 2).sum()

    def split(x: Any) -> Any:
        return x[:, :64], x[:, 64:128], x[:, 128:]

    mine = partial(loss, split=split, attend=wf.scaled_dot_product_attention)
    run = wf.compile(wf.vmap(wf.grad(mine), in_axes=(None, 0)))
    ours = wf.tensor(w), wf.tensor(x)
    found: Workload = {"weft": lambda: run(*ours).data()}
    if harness.available("torch"):
        import torch

        attend = torch.nn.functional.scaled_dot_product_attention
        single = partial(loss, split=split, attend=attend)
        slopes = torch.func.vmap(torch.func.grad(single), in_dims=(None, 0))
        theirs = torch.tensor(w), torch.tensor(x)
        found["torch"] = lambda: slopes(*theirs)
    if harness.available("jax"):
        import jax

        def attend_by_hand(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
            scores = q @ k.T * q.shape[-1] ** -0.5
            seen = jax.numpy.tril(jax.numpy.ones(scores.shape, bool)) | (not is_causal)
            return jax.nn.softmax(jax.numpy.where(seen, scores, -jax.numpy.inf), axis=-1) @ v

        one = partial(loss, split=split, attend=attend_by_hand)
        jitted = jax.jit(jax.vmap(jax.grad(one), in_axes=(None, 0)))
        placed = jax.numpy.asarray(w), jax.numpy.asarray(x)
        found["jax"] = lambda: jitted(*placed).block_until_ready()
    return found


def language_model() -> Workload:
    """One step of AdamW on a small language model."""
    given = [wf.tree_map(wf.tensor, part) for part in steps.gpt_arguments()]
    run = wf.compile(steps.gpt_step(wf, wf.value_and_grad))
    found: Workload = {"weft": lambda: run(*given)[0].data()}
    if harness.available("torch"):
        found["torch"] = _torch_step()
    if harness.available("jax"):
        import jax

        jitted = jax.jit(steps.gpt_step(jax.numpy, jax.value_and_grad))
        placed = [jax.tree.map(jax.numpy.asarray, part) for part in steps.gpt_arguments()]
        found["jax"] = lambda: jitted(*placed)[0].block_until_ready()
    return found


def _torch_step() -> Callable[[], Any]:
    """The same model with what torch is best at: fused attention, losses, and its AdamW."""
    import torch
    from torch.nn import functional

    parameters, words, following = steps.gpt_data()
    held = {name: torch.tensor(x, requires_grad=True) for name, x in parameters.items()}
    wanted, labels = torch.tensor(words).long(), torch.tensor(following).long()
    betas, decay = (steps.BETA1, steps.BETA2), steps.DECAY
    optimizer = torch.optim.AdamW(
        held.values(), lr=steps.RATE, betas=betas, weight_decay=decay, fused=True
    )

    def normal(x: Any, scale: Any) -> Any:
        return functional.layer_norm(x, (steps.WIDTH,), scale)

    def step() -> Any:
        x = functional.embedding(wanted, held["words"]) + held["places"]
        for layer in range(steps.LAYERS):
            mixed = normal(x, held[f"norm1_{layer}"]) @ held[f"attend_{layer}"]
            heads = mixed.view(steps.BATCH, steps.LENGTH, 3, steps.HEADS, -1)
            q, k, v = (heads[:, :, i].transpose(1, 2) for i in range(3))
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            out = out.transpose(1, 2).reshape(steps.BATCH, steps.LENGTH, steps.WIDTH)
            x = x + out @ held[f"project_{layer}"]
            wide = normal(x, held[f"norm2_{layer}"]) @ held[f"widen_{layer}"]
            x = x + functional.gelu(wide, approximate="tanh") @ held[f"narrow_{layer}"]
        logits = normal(x, held["norm"]) @ held["words"].T
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    return step


def _named(shape: tuple[int, ...]) -> str:
    return "b{} h{} T{} d{}".format(*shape)


ROWS = [
    *(
        Row(f"{what} {_named(shape)}{' causal' * causal}", partial(build, shape, causal), 1.3)
        for shape in (SMALL, LARGE)
        for what, build in (("attention", forward), ("attention gradient", gradient))
        for causal in (False, True)
    ),
    Row("attention per-example gradients", per_example, 1.3),
    Row("language model step", language_model, 1.4, "torch"),
    Row("language model step beside jax", language_model, 4.0, "jax"),
]
WORKLOADS = {row.name: row.build for row in ROWS}


def main() -> None:
    """Print one line for each row."""
    if harness.available("torch"):
        import torch

        torch.set_num_threads(OPTIONS.threads)
    results = {}
    for row in ROWS:
        if OPTIONS.rows not in row.name:
            continue
        times = harness.measure(row.build(), OPTIONS.rounds, OPTIONS.seconds)
        peers = [row.peer] if row.peer else [name for name in times if name != "weft"]
        ratios = {
            peer: statistics.median(t / w for t, w in zip(times[peer], times["weft"], strict=True))
            for peer in peers
            if peer in times
        }
        best = min(ratios.values(), default=float("nan"))
        each = "  ".join(f"{n} {statistics.median(t) * 1e3:9.2f}" for n, t in times.items())
        print(f"{row.name:45} ms: {each}  ratio {best:5.2f} goal {row.faster}", flush=True)
        results[row.name] = {"ratio": best, "goal": row.faster, "seconds": times}
    if OPTIONS.json:
        OPTIONS.json.write_text(json.dumps({"threads": OPTIONS.threads, "rows": results}))


if __name__ == "__main__":
    main()
