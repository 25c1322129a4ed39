"""Low-rank adapters: train two small matrices beside each frozen weight, then merge them.

model = nn.lora(model, rank=8, key=key)
trained, frozen = nn.partition(model, nn.is_lora)
...
model = nn.merge_lora(nn.combine(trained, frozen))
"""

from __future__ import annotations

from math import prod
from typing import Any

import weft as wf
from weft.core.common.parameters import as_real, as_sequence
from weft.core.common.trees import tree_flatten, tree_unflatten
from weft.errors import ArgumentError
from weft.nn.basic import Linear
from weft.nn.init import he_uniform
from weft.nn.inputs import features_last, sizes
from weft.nn.module import Module, map_modules
from weft.nn.names import Entry, entries, matches


class LoRALinear(Module):
    """A linear layer with an adapter: base(x) + scale · lora_b (lora_a x)."""

    base: Linear
    lora_a: wf.Tensor
    lora_b: wf.Tensor
    scale: float

    @property
    def in_features(self) -> int:
        """How many features an input has."""
        return self.base.in_features

    @property
    def out_features(self) -> int:
        """How many features a result has."""
        return self.base.out_features

    @property
    def weight(self) -> wf.Tensor:
        """The weight with the adapter added."""
        product: Any = self.lora_b @ self.lora_a
        made: wf.Tensor = self.base.weight + self.scale * product
        return made

    @property
    def bias(self) -> wf.Tensor | None:
        """The bias of the layer below."""
        return self.base.bias

    def __call__(self, x: Any) -> wf.Tensor:
        """Map (…, inputs) to (…, outputs)."""
        tensor: Any = features_last(self, "x", x, self.in_features)
        inner: Any = tensor @ wf.matrix_transpose(self.lora_a)
        made: wf.Tensor = (
            self.base(tensor) + (inner @ wf.matrix_transpose(self.lora_b)) * self.scale
        )
        return made

    def rows(self, start: int, stop: int) -> LoRALinear:
        """The layer that gives only the outputs from `start` to `stop`."""
        return self.replace(base=self.base.rows(start, stop), lora_b=self.lora_b[start:stop])

    def merged(self) -> Linear:
        """The plain layer that gives the same."""
        return self.base.replace(weight=self.weight)


def _is_linear(value: Any) -> bool:
    return isinstance(value, Linear | LoRALinear)


def lora(
    module: Any,
    rank: int,
    *,
    key: wf.Tensor,
    targets: str | tuple[str, ...] = "*",
    alpha: float | None = None,
) -> Any:
    """The model with an adapter at each linear layer whose name fits `targets`.

    The adapters start at zero, so the model gives what it gave. Their product is scaled by
    alpha / rank; `alpha` is `rank` by default. `nn.is_lora` chooses the adapters' tensors.
    """
    (inner,) = sizes("lora", rank=rank)
    scale = 1.0 if alpha is None else as_real("lora", "alpha", alpha) / inner
    patterns = (targets,) if isinstance(targets, str) else as_sequence("lora", "targets", targets)
    leaves, structure = tree_flatten(module, _is_linear)
    found = entries(module, _is_linear)
    chosen = [
        isinstance(leaf, Linear) and matches(entry.name, patterns)
        for leaf, entry in zip(leaves, found, strict=True)
    ]
    if not any(chosen):
        names = ", ".join(e.name for e in found if isinstance(e.value, Linear)) or "none"
        raise ArgumentError(
            f"lora: no linear layer fits the targets {patterns}\nhint: linear layers are: {names}"
        )
    made = [
        _adapted(leaf, inner, scale, wf.random.fold_in(key, number)) if hit else leaf
        for number, (leaf, hit) in enumerate(zip(leaves, chosen, strict=True))
    ]
    return tree_unflatten(structure, made)


def _adapted(layer: Linear, rank: int, scale: float, key: wf.Tensor) -> LoRALinear:
    """A layer, or a stack of layers along leading axes, with an adapter for each."""
    dtype, lead = layer.weight.dtype, layer.weight.shape[:-2]
    drawn = he_uniform(1.0)(key, (prod(lead) * rank, layer.in_features), dtype)
    return LoRALinear(
        layer,
        wf.reshape(drawn, (*lead, rank, layer.in_features)),
        wf.zeros((*lead, layer.out_features, rank), dtype=dtype, device=layer.weight.device),
        scale,
    )


def merge_lora(module: Any) -> Any:
    """The model with every adapter added to its weight: plain linear layers again."""
    return map_modules(lambda m: m.merged() if isinstance(m, LoRALinear) else m, module)


def is_lora(entry: Entry) -> bool:
    """Whether a leaf belongs to an adapter; for `nn.partition`."""
    return entry.name.rpartition(".")[2] in ("lora_a", "lora_b")
