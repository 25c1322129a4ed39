"""One GPU: weft beside torch on the same device, with kernels that are waited for.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --rows matmul --json out.json

float32 means float32: torch may not use TF32 here, as weft does not. Where there is no GPU the
processor plays one (`--quick` is meant for that), and torch is left out.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import harness

OPTIONS = (
    harness.options_of(__doc__)
    if __name__ == "__main__"
    else argparse.Namespace(quick=True, threads=2, torch_compile=False)
)

import compiler_steps as steps  # noqa: E402  what stands above must come first
import gpu_blocks  # noqa: E402
import numpy as np  # noqa: E402
from harness import Row, Workload  # noqa: E402
from peers import gelu  # noqa: E402

import weft as wf  # noqa: E402
from weft.core.common.dtypes import bfloat16, float16, float32, float64  # noqa: E402
from weft.runtime.cuda import driver  # noqa: E402
from weft.testing.emulated_gpu import use_emulated_gpu  # noqa: E402

DEVICE = "cuda"
HERE = driver.is_available()  # a GPU, not one that the processor plays
Function = Callable[..., Any]


def size(full: int) -> int:
    """A size, or an eighth of it with `--quick`."""
    return max(full // 8, 4) if OPTIONS.quick else full


def normal(*shape: int) -> Any:
    """Numbers around 0, as float32."""
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def waits(function: Callable[[], Any]) -> Callable[[], Any]:
    """The function, whose results are there when it returns."""
    client = wf.client(DEVICE)

    def run() -> None:
        function()
        client.synchronize()

    return run


def beside(function: Function, given: tuple[Any, ...], torched: Function | None = None) -> Workload:
    """A function of arrays: compiled by weft, as it is by torch, or as `torched` has it."""
    tensors = wf.tree_map(lambda a: wf.tensor(a, device=DEVICE), given)
    compiled = wf.compile(function)
    compiled(*tensors)
    made = {"weft": waits(lambda: compiled(*tensors))}
    if HERE and harness.available("torch"):
        made["torch"] = in_torch(torched or function, given)
    return made


def in_torch(function: Function, given: tuple[Any, ...]) -> Callable[[], Any]:
    """The function of torch's tensors on the GPU."""
    torch = importlib.import_module("torch")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False

    def there(array: Any) -> Any:
        if array.dtype == bfloat16:
            return torch.from_numpy(array.astype(np.float32)).bfloat16().cuda()
        return torch.from_numpy(np.array(array)).cuda()

    tensors = wf.tree_map(there, given)

    def run() -> None:
        function(*tensors)
        torch.cuda.synchronize()

    return run


def torch_named(name: str, *more: Any, **keywords: Any) -> Function:
    """A function of torch, by its place there."""

    def run(*tensors: Any) -> Any:
        found: Any = importlib.import_module("torch")
        for part in name.split("."):
            found = getattr(found, part)
        return found(*tensors, *more, **keywords)

    return run


def memory() -> Iterator[Row]:
    """What moves memory."""
    many, side = size(1 << 26), size(8192)
    yield Row("tanh(a·b + c), 64M", lambda: beside(
        lambda a, b, c: wf.tanh(a * b + c), (normal(many),) * 3,
        lambda a, b, c: (a * b + c).tanh(),
    ))  # fmt: skip
    yield Row("gelu, 64M", lambda: beside(
        wf.gelu, (normal(many),), torch_named("nn.functional.gelu")
    ))  # fmt: skip
    yield Row("sum, 64M", lambda: beside(wf.sum, (normal(many),), torch_named("sum")))
    yield Row("softmax 8192²", lambda: beside(
        wf.softmax, (normal(side, side),), torch_named("softmax", -1)
    ))  # fmt: skip
    yield Row("layer norm 8192²", lambda: beside(
        lambda x: wf.layer_norm(x, (side,)), (normal(side, side),),
        torch_named("nn.functional.layer_norm", (side,)),
    ))  # fmt: skip
    yield Row("column sums 8192²", lambda: beside(
        lambda x: wf.sum(x, axis=0), (normal(side, side),), torch_named("sum", 0)
    ))  # fmt: skip
    yield Row("transpose 8192²", lambda: beside(
        lambda x: x.T + 1.0, (normal(side, side),), lambda x: x.T.contiguous() + 1.0
    ))  # fmt: skip
    places = np.random.default_rng(0).integers(0, size(8192), size(16384))
    yield Row("embedding 16384×256", lambda: beside(
        lambda w, i: wf.take(w, i, axis=0), (normal(size(8192), 256), places), lambda w, i: w[i]
    ))  # fmt: skip
    yield Row("its gradient", lambda: beside(
        lambda w, i, g: wf.zeros_like(w).at[i].add(g),
        (normal(size(8192), 256), places, normal(size(16384), 256)),
        lambda w, i, g: w.new_zeros(w.shape).index_add_(0, i, g),
    ))  # fmt: skip
    yield Row("sort 1M", lambda: beside(wf.sort, (normal(size(1 << 20)),), torch_named("sort")))


def transforms() -> Iterator[Row]:
    """Fourier transforms."""
    for rows, length in ((4096, 1024), (64, 65536), (1, 1 << 22)):
        given = normal(size(rows), length) + 1j * normal(size(rows), length)
        yield Row(
            f"fft {rows}×{length}",
            lambda given=given: beside(wf.fft.fft, (given,), torch_named("fft.fft")),
        )
    image = normal(size(4096), size(4096))
    yield Row("rfft2 4096²", lambda: beside(wf.fft.rfft2, (image,), torch_named("fft.rfft2")))


def products() -> Iterator[Row]:
    """Products of matrices, in float32 if nothing else is said."""
    for rows, depth, columns in (
        (1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192), (4096, 64, 4096),
        (2048, 128, 512), (128, 2048, 512), (16, 4096, 4096),
    ):  # fmt: skip
        given = normal(size(rows), size(depth)), normal(size(depth), size(columns))
        yield Row(
            f"matmul {rows}×{depth}×{columns}",
            lambda given=given: beside(lambda a, b: a @ b, given),
        )
    batched = normal(64, size(256), 64), normal(64, 64, size(256))
    yield Row("matmul 64×(256×64×256)", lambda: beside(lambda a, b: a @ b, batched))
    dense = normal(size(1024), size(1024)), normal(size(1024), size(4096)), normal(size(4096))
    yield Row("matmul + bias + gelu 1024×1024×4096", lambda: beside(
        lambda x, w, b: gelu(wf, x @ w + b, True), dense,
        lambda x, w, b: importlib.import_module("torch").nn.functional.gelu(
            x @ w + b, approximate="tanh"
        ),
    ))  # fmt: skip

    for dtype, rows, depth, columns in (
        (bfloat16, 1024, 1024, 1024), (bfloat16, 4096, 4096, 4096), (bfloat16, 8192, 8192, 8192),
        (bfloat16, 16, 4096, 4096), (float16, 4096, 4096, 4096), (float64, 4096, 4096, 4096),
    ):  # fmt: skip
        pair = normal(size(rows), size(depth)), normal(size(depth), size(columns))
        yield Row(
            f"matmul {rows}×{depth}×{columns} {dtype}",
            lambda pair=pair, dtype=dtype: beside(
                lambda a, b: a @ b, tuple(x.astype(dtype) for x in pair)
            ),
        )


def attention() -> Iterator[Row]:
    """Attention, forward."""
    for batch, heads, length, width, dtype in (
        (16, 4, 128, 32, float32), (4, 8, 2048, 64, float32), (16, 4, 128, 32, bfloat16),
        (4, 8, 2048, 64, bfloat16), (1, 16, 8192, 64, bfloat16),
    ):  # fmt: skip
        given = (normal(batch, heads, size(length), width).astype(dtype),) * 3
        for causal in (False, True):
            name = f"attention b{batch} h{heads} T{length} d{width}{' causal' * causal}"
            name += "" if dtype == float32 else f" {dtype}"
            yield Row(
                name,
                lambda given=given, causal=causal: beside(
                    lambda q, k, v: wf.scaled_dot_product_attention(q, k, v, is_causal=causal),
                    given,
                    torch_named("nn.functional.scaled_dot_product_attention", is_causal=causal),
                ),
            )


def training() -> Iterator[Row]:
    """Whole steps."""

    def gpt() -> Workload:
        made = beside(steps.gpt_step(wf, wf.value_and_grad), steps.gpt_arguments())
        if "torch" in made:
            torch = importlib.import_module("torch")
            own = importlib.import_module("heavy_torch").gpt_step
            step = own(*steps.gpt_arguments(), device=DEVICE)

            def run() -> None:
                step()
                torch.cuda.synchronize()

            made["torch"] = run
        return made

    yield Row("GPT step, 4 layers of 128", gpt)
    for dtype in (float32, bfloat16):
        name = f"loss and gradients, 4 blocks of 768, {dtype}"
        yield Row(name, lambda dtype=dtype: blocks(dtype))


def blocks(dtype: Any) -> Workload:
    """Transformer blocks of usual width, forward and backward."""
    given = gpu_blocks.arguments(dtype, size(gpu_blocks.WIDTH), size(gpu_blocks.LENGTH))
    functions = (wf.layer_norm, wf.scaled_dot_product_attention)
    loss = gpu_blocks.loss_of(*functions, partial(gelu, wf, approximate=True), in_float32)
    return beside(wf.value_and_grad(loss), given, torch_gradients)


def in_float32(x: Any) -> Any:
    """A tensor of weft in float32."""
    return x.astype(float32)


def torch_gradients(layers: Any, x: Any) -> Any:
    """The same in torch."""
    torch = importlib.import_module("torch")
    own = torch.nn.functional
    short = partial(own.gelu, approximate="tanh")
    loss = gpu_blocks.loss_of(
        own.layer_norm, own.scaled_dot_product_attention, short, torch.Tensor.float
    )
    weights = [w.requires_grad_() for p in layers for w in p.values()]
    return torch.autograd.grad(loss(layers, x), weights)


def main() -> None:
    """Print the table, and write it where `--json` says."""
    with nullcontext() if HERE else use_emulated_gpu(), wf.default_device(DEVICE):
        print({**harness.machine(), "gpu": wf.client(DEVICE).gpu.name})
        groups = (memory, transforms, products, attention, training)
        table = (replace(row, faster=1.0) for group in groups for row in group())
        harness.keep(OPTIONS.json, rows=harness.run(table, OPTIONS))


if __name__ == "__main__":
    main()
