"""The plain layers: linear maps, tables, dropout, and chains of layers."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from itertools import pairwise
from typing import Any

import weft as wf
from weft.core.common.parameters import (
    as_choice,
    as_flag,
    as_function,
    as_integer,
    as_integers,
    as_real,
    shown,
)
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.nn.init import Initializer, constant, normal
from weft.nn.inputs import features_last, given_to, keys_of, sizes, uniform_within
from weft.nn.module import Module, modules, static


class Linear(Module):
    """x · weightᵀ + bias over the last axis; the weight is (outputs, inputs), as in torch."""

    weight: wf.Tensor
    bias: wf.Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        key: wf.Tensor,
        init: Initializer | None = None,
        dtype: Any = None,
    ) -> None:
        inputs, outputs = sizes("Linear", in_features=in_features, out_features=out_features)
        drawn = uniform_within(inputs**-0.5)
        first, second = keys_of(key, 2)
        self.weight = (init or drawn)(first, (outputs, inputs), dtype)
        self.bias = drawn(second, (outputs,), dtype) if as_flag("Linear", "bias", bias) else None

    @property
    def in_features(self) -> int:
        """How many features an input has."""
        return self.weight.shape[-1]

    @property
    def out_features(self) -> int:
        """How many features a result has."""
        return self.weight.shape[-2]

    def __call__(self, x: Any) -> wf.Tensor:
        """Map (…, inputs) to (…, outputs)."""
        return affine(features_last(self, "x", x, self.in_features), self.weight, self.bias)

    def rows(self, start: int, stop: int) -> Linear:
        """The layer that gives only the outputs from `start` to `stop`."""
        bias = None if self.bias is None else self.bias[start:stop]
        return self.replace(weight=self.weight[start:stop], bias=bias)


def affine(x: Any, weight: Any, bias: Any = None) -> wf.Tensor:
    """x · weightᵀ + bias, without checks."""
    product: wf.Tensor = x @ wf.matrix_transpose(weight)
    return product if bias is None else product + bias


class Embedding(Module):
    """A table of vectors, looked up by integers.

    The row `padding_idx` stands for nothing: it begins as zeros, and lookups do not train it.
    """

    weight: wf.Tensor
    padding_idx: int | None = static()

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        key: wf.Tensor,
        init: Initializer | None = None,
        dtype: Any = None,
    ) -> None:
        shape = sizes("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.weight, self.padding_idx = (init or normal())(key, shape, dtype), None
        if padding_idx is not None:
            rows = shape[0]
            self.padding_idx = as_integer("Embedding", "padding_idx", padding_idx, -rows, rows - 1)
            self.padding_idx %= rows
            self.weight = wf.index_update(self.weight, self.padding_idx, 0, "set")

    def __call__(self, ids: Any) -> wf.Tensor:
        """The rows that `ids` name: shape (*ids.shape, embedding_dim)."""
        places = given_to(self, ids)
        if not wf.isdtype(places.dtype, "integral"):
            raise DTypeError(
                f"Embedding: ids: expected integers, got {places.dtype} of shape {places.shape}"
                "\nhint: wf.astype(ids, wf.int32)"
            )
        found = wf.embedding(self.weight, places)
        if self.padding_idx is None:
            return found
        filled = wf.expand_dims(wf.astype(places, wf.int64) == self.padding_idx, -1)
        return wf.where(filled, wf.stop_gradient(found), found)

    def logits(self, x: Any) -> wf.Tensor:
        """The scores of all rows for vectors (…, embedding_dim): a head that shares the table."""
        return affine(features_last(self, "x", x, self.weight.shape[-1]), self.weight)


class EmbeddingBag(Module):
    """A table of vectors, of which each bag of integers gives the mean, sum or maximum.

    The row `padding_idx` stands for nothing: it begins as zeros, and no bag counts it.

    >>> bag = EmbeddingBag(9, 4, key=wf.random.key(0))
    >>> bag([[0, 1], [2, 2], [5, 8]]).shape
    (3, 4)
    """

    weight: wf.Tensor
    mode: str = static()
    include_last_offset: bool = static()
    padding_idx: int | None = static()

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        key: wf.Tensor,
        init: Initializer | None = None,
        dtype: Any = None,
    ) -> None:
        kind = "EmbeddingBag"
        shape = sizes(kind, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.weight = (init or normal())(key, shape, dtype)
        self.mode = as_choice(kind, "mode", mode, ("sum", "mean", "max"))
        self.include_last_offset = as_flag(kind, "include_last_offset", include_last_offset)
        self.padding_idx = None
        if padding_idx is not None:
            rows = shape[0]
            self.padding_idx = as_integer(kind, "padding_idx", padding_idx, -rows, rows - 1) % rows
            self.weight = wf.index_update(self.weight, self.padding_idx, 0, "set")

    def __call__(self, ids: Any, offsets: Any = None, per_sample_weights: Any = None) -> wf.Tensor:
        """The vectors of bags: rows of `ids`, or parts of one row that begin at `offsets`."""
        return wf.embedding_bag(
            self.weight,
            ids,
            offsets,
            self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )


class Identity(Module):
    """The input, unchanged."""

    def __call__(self, x: Any) -> Any:
        """`x`."""
        return x


class Apply(Module):
    """A function as a layer, so that it can stand among modules.

    >>> Apply(wf.relu)(wf.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    function: Callable[..., Any] = static()

    def __call__(self, x: Any) -> Any:
        """The function's value."""
        return self.function(x)


class Flatten(Module):
    """All axes from `start_dim` to `end_dim` as one: by default all but the first."""

    start_dim: int = static()
    end_dim: int = static()

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = as_integer("Flatten", "start_dim", start_dim)
        self.end_dim = as_integer("Flatten", "end_dim", end_dim)

    def __call__(self, x: Any) -> wf.Tensor:
        """`x` with fewer axes."""
        return wf.flatten(given_to(self, x), self.start_dim, self.end_dim)


class PReLU(Module):
    """x where it is positive, a learned slope times x elsewhere: one slope, or one a feature."""

    weight: wf.Tensor

    def __init__(self, num_parameters: int = 1, init: float = 0.25, dtype: Any = None) -> None:
        shape = sizes("PReLU", num_parameters=num_parameters)
        self.weight = constant(as_real("PReLU", "init", init))(None, shape, dtype)

    def __call__(self, x: Any) -> wf.Tensor:
        """`x` (N, C, …), with the negative numbers scaled."""
        return wf.prelu(given_to(self, x), self.weight)


class Dropout(Module):
    """Set elements to 0 with probability `rate`, scale the others up; nothing at inference.

    With `whole_features` the features of (N, C, …) are dropped whole, as by torch's `Dropout2d`.
    """

    rate: float
    inference: bool
    whole_features: bool

    def __init__(
        self, rate: float = 0.5, inference: bool = False, whole_features: bool = False
    ) -> None:
        self.rate = as_real("Dropout", "rate", rate, 0, 1)
        self.inference = as_flag("Dropout", "inference", inference)
        self.whole_features = as_flag("Dropout", "whole_features", whole_features)
        if self.rate == 1:
            raise ArgumentError("Dropout: rate must be below 1, got 1.0")

    @property
    def active(self) -> bool:
        """Whether a call needs a key."""
        return self.rate > 0 and not self.inference

    def __call__(self, x: Any, *, key: Any = None) -> wf.Tensor:
        """`x` with elements dropped by `key`."""
        tensor = given_to(self, x, key)
        if self.whole_features and tensor.ndim < 2:
            raise ShapeError(f"Dropout: x: expected shape (N, C, …), got {tensor.shape}")
        if not self.active:
            return tensor
        key = self.checked(key)
        if not self.whole_features:
            return wf.dropout(tensor, self.rate, key)
        shape = (*tensor.shape[:2], *(1,) * (tensor.ndim - 2))
        kept = wf.ones(shape, dtype=tensor.dtype, device=tensor.device)
        made: wf.Tensor = tensor * wf.dropout(kept, self.rate, key)
        return made

    def checked(self, key: Any) -> Any:
        """The key, which must be given where elements are dropped."""
        if key is None:
            raise ArgumentError(
                f"Dropout: key: expected a key to drop {self.rate:.0%} of x by, got None"
                "\nhint: pass key=wf.random.key(...), or nn.inference(model) to drop nothing"
            )
        return key


class Sequential(Module):
    """Layers one after the other; functions may stand among them.

    A call's `key` is split among the layers that take one. `advance` also gives the chain with
    whatever layers such as `BatchNorm` learned from the call.
    """

    layers: tuple[Any, ...]

    def __init__(self, *layers: Any) -> None:
        for number, layer in enumerate(layers):
            if not callable(layer):
                several = isinstance(layer, list | tuple)
                hint = (
                    "\nhint: layers are separate arguments, Sequential(*layers)" if several else ""
                )
                raise ArgumentError(
                    f"Sequential: layer {number}: {shown(layer)} cannot be called{hint}"
                )
        self.layers = tuple(x if isinstance(x, Module) else Apply(x) for x in layers)

    def __call__(self, x: Any, *, key: Any = None) -> Any:
        """The result of the last layer."""
        for layer, own in zip(self.layers, self._keys(key), strict=True):
            x = layer(x, key=own) if takes_key(layer) else layer(x)
        return x

    def advance(self, x: Any, *, key: Any = None) -> tuple[Any, Sequential]:
        """The result in training, and the chain with what its layers learned from `x`."""
        learned = []
        for number, (layer, own) in enumerate(zip(self.layers, self._keys(key), strict=True)):
            if hasattr(layer, "advance"):
                has_key = "key" in signature(layer.advance).parameters
                x, layer = layer.advance(x, key=own) if has_key else layer.advance(x)
            else:
                _check_learns_nothing(number, layer)
                x = layer(x, key=own) if takes_key(layer) else layer(x)
            learned.append(layer)
        return x, self.replace(layers=tuple(learned))

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, place: Any) -> Any:
        found = self.layers[place]
        return self.replace(layers=found) if isinstance(place, slice) else found

    def _keys(self, key: Any) -> list[Any]:
        count = len(self.layers)
        return [None] * count if key is None or not count else keys_of(key, count)

    def state_name(self, name: str) -> str:
        """Layers are called by their numbers alone."""
        return name.removeprefix("layers.")


def _check_learns_nothing(number: int, layer: Module) -> None:
    """Refuse a layer without `advance` around one that learns from calls: it would not."""
    inner = next((each for each in modules(layer) if hasattr(each, "advance")), None)
    if inner is not None:
        kind, held = type(layer).__name__, type(inner).__name__
        raise ArgumentError(
            f"Sequential: advance: layer {number}: {kind} has no advance, so that its {held} would"
            f" not learn from the call\nhint: write {kind}.advance(x), which calls that of {held}"
            f" and gives the result and the new {kind}"
        )


def takes_key(layer: Any) -> bool:
    """Whether calling a layer may draw random numbers."""
    found = signature(type(layer).__call__).parameters.get("key")
    return found is not None and found.kind is Parameter.KEYWORD_ONLY


class MLP(Module):
    """Linear layers with an activation between them, and dropout behind each activation."""

    layers: tuple[Linear, ...]
    dropout: Dropout
    activation: Callable[[Any], wf.Tensor] = static()
    final_activation: Callable[[Any], wf.Tensor] | None = static()

    def __init__(
        self,
        in_features: int,
        hidden: int | tuple[int, ...],
        out_features: int,
        *,
        key: wf.Tensor,
        activation: Callable[[Any], wf.Tensor] = wf.relu,
        final_activation: Callable[[Any], wf.Tensor] | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        init: Initializer | None = None,
        dtype: Any = None,
    ) -> None:
        inner = as_integers("MLP", "hidden", hidden, 1)
        widths = (in_features, *inner, out_features)
        keys = keys_of(key, len(widths) - 1)
        self.layers = tuple(
            Linear(m, n, bias, key=own, init=init, dtype=dtype)
            for (m, n), own in zip(pairwise(widths), keys, strict=True)
        )
        self.dropout = Dropout(dropout)
        self.activation = as_function("MLP", "activation", activation)
        self.final_activation = final_activation
        if final_activation is not None:
            as_function("MLP", "final_activation", final_activation)

    def __call__(self, x: Any, *, key: Any = None) -> wf.Tensor:
        """Map (…, in_features) to (…, out_features)."""
        x = features_last(self, "x", x, self.layers[0].in_features)
        for number, layer in enumerate(self.layers[:-1]):
            own = None if key is None else wf.random.fold_in(key, number)
            x = self.dropout(self.activation(layer(x)), key=own)
        x = self.layers[-1](x)
        return x if self.final_activation is None else self.final_activation(x)
