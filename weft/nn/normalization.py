"""Normalisation layers, with torch's names and defaults.

`BatchNorm` keeps nothing to itself: a call uses the running statistics, `advance` uses the batch's
own and gives the layer with moved running statistics beside the result.
"""

from __future__ import annotations

from typing import Any, ClassVar

import weft as wf
from weft.core.common.parameters import as_flag, as_integers, as_real
from weft.errors import ShapeError
from weft.nn.inputs import divided, features_second, given_to, sizes
from weft.nn.module import Module, buffer, static


def _ends_with(layer: Any, x: Any, shape: tuple[int, ...]) -> wf.Tensor:
    kind = type(layer).__name__
    tensor = given_to(layer, x)
    if tensor.shape[tensor.ndim - len(shape) :] != shape or tensor.ndim < len(shape):
        wanted = ", ".join(map(str, shape))
        raise ShapeError(
            f"{kind}: x: expected shape (…, {wanted}), got {tensor.shape}"
            "\nhint: it normalises the last axes, which must have the shape it was made for"
        )
    return tensor


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last axes, then scale and shift."""

    weight: wf.Tensor | None
    bias: wf.Tensor | None
    normalized_shape: tuple[int, ...] = static()
    eps: float = static()

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        self.normalized_shape = as_integers("LayerNorm", "normalized_shape", normalized_shape, 1)
        self.eps = as_real("LayerNorm", "eps", eps, 0)
        affine = as_flag("LayerNorm", "elementwise_affine", elementwise_affine)
        shifted = affine and as_flag("LayerNorm", "bias", bias)
        self.weight = wf.ones(self.normalized_shape, dtype=dtype) if affine else None
        self.bias = wf.zeros(self.normalized_shape, dtype=dtype) if shifted else None

    def __call__(self, x: Any) -> wf.Tensor:
        """`x` (…, *normalized_shape), normalised."""
        tensor = _ends_with(self, x, self.normalized_shape)
        return wf.layer_norm(tensor, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Divide by the root mean square over the last axes, then scale.

    `eps` is the dtype's own by default.
    """

    weight: wf.Tensor | None
    normalized_shape: tuple[int, ...] = static()
    eps: float | None = static()

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float | None = None,
        elementwise_affine: bool = True,
        dtype: Any = None,
    ) -> None:
        self.normalized_shape = as_integers("RMSNorm", "normalized_shape", normalized_shape, 1)
        self.eps = None if eps is None else as_real("RMSNorm", "eps", eps, 0)
        affine = as_flag("RMSNorm", "elementwise_affine", elementwise_affine)
        self.weight = wf.ones(self.normalized_shape, dtype=dtype) if affine else None

    def __call__(self, x: Any) -> wf.Tensor:
        """`x` (…, *normalized_shape), normalised."""
        tensor = _ends_with(self, x, self.normalized_shape)
        return wf.rms_norm(tensor, self.normalized_shape, self.weight, self.eps)


class GroupNorm(Module):
    """Normalise each group of features of (N, C, …) on its own, then scale and shift features."""

    weight: wf.Tensor | None
    bias: wf.Tensor | None
    num_groups: int = static()
    num_channels: int = static()
    eps: float = static()

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        dtype: Any = None,
    ) -> None:
        groups, channels = sizes("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        divided("GroupNorm", "num_channels", channels, "num_groups", groups)
        self.num_groups, self.num_channels = groups, channels
        self.eps = as_real("GroupNorm", "eps", eps, 0)
        has_affine = as_flag("GroupNorm", "affine", affine)
        self.weight = wf.ones(channels, dtype=dtype) if has_affine else None
        self.bias = wf.zeros(channels, dtype=dtype) if has_affine else None

    def __call__(self, x: Any) -> wf.Tensor:
        """`x` (N, C, …), normalised."""
        tensor = features_second(self, x, self.num_channels)
        return wf.group_norm(tensor, self.num_groups, self.weight, self.bias, self.eps)


class InstanceNorm(Module):
    """Normalise each feature of each example of (N, C, space…) on its own."""

    weight: wf.Tensor | None
    bias: wf.Tensor | None
    num_features: int = static()
    eps: float = static()

    def __init__(
        self, num_features: int, eps: float = 1e-5, affine: bool = False, dtype: Any = None
    ) -> None:
        (self.num_features,) = sizes("InstanceNorm", num_features=num_features)
        self.eps = as_real("InstanceNorm", "eps", eps, 0)
        has_affine = as_flag("InstanceNorm", "affine", affine)
        self.weight = wf.ones(self.num_features, dtype=dtype) if has_affine else None
        self.bias = wf.zeros(self.num_features, dtype=dtype) if has_affine else None

    def __call__(self, x: Any) -> wf.Tensor:
        """`x` (N, C, space…), normalised."""
        tensor = features_second(self, x, self.num_features, 3)
        return wf.instance_norm(tensor, self.weight, self.bias, self.eps)


class BatchNorm(Module):
    """Normalise each feature of (N, C, …) over the batch, then scale and shift.

    A call is inference, by the running statistics. In training,

        y, norm = norm.advance(x)

    normalises by the batch's own statistics and gives the layer whose running statistics moved
    toward them by `momentum`. Running statistics are buffers: `nn.partition` leaves them out of the
    parameters.
    """

    weight: wf.Tensor | None
    bias: wf.Tensor | None
    running_mean: wf.Tensor = buffer()
    running_var: wf.Tensor = buffer()
    num_features: int = static()
    eps: float = static()
    momentum: float = static()

    ignored_names: ClassVar[tuple[str, ...]] = ("num_batches_tracked",)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        dtype: Any = None,
    ) -> None:
        (features,) = sizes("BatchNorm", num_features=num_features)
        self.num_features = features
        self.eps = as_real("BatchNorm", "eps", eps, 0)
        self.momentum = as_real("BatchNorm", "momentum", momentum, 0, 1)
        has_affine = as_flag("BatchNorm", "affine", affine)
        self.weight = wf.ones(features, dtype=dtype) if has_affine else None
        self.bias = wf.zeros(features, dtype=dtype) if has_affine else None
        self.running_mean = wf.zeros(features, dtype=dtype)
        self.running_var = wf.ones(features, dtype=dtype)

    def __call__(self, x: Any) -> wf.Tensor:
        """`x` (N, C, …) normalised by the running statistics."""
        return self._normalized(x, training=False)[0]

    def advance(self, x: Any) -> tuple[wf.Tensor, BatchNorm]:
        """`x` (N, C, …) normalised by its own statistics, and the layer that has seen it."""
        made, mean, var = self._normalized(x, training=True)
        return made, self.replace(running_mean=mean, running_var=var)

    def _normalized(self, x: Any, training: bool) -> tuple[wf.Tensor, Any, Any]:
        return wf.batch_norm(
            features_second(self, x, self.num_features),
            wf.stop_gradient(self.running_mean),
            wf.stop_gradient(self.running_var),
            self.weight,
            self.bias,
            training=training,
            momentum=self.momentum,
            eps=self.eps,
        )
