"""Layers whose weight is made of other tensors at each call, with torch's names.

`SpectralNorm` and `WeightNorm` stand around a layer that has a `weight`; state dicts of torch's
`parametrizations.spectral_norm` and `parametrizations.weight_norm` fit.
"""

from __future__ import annotations

from typing import Any, ClassVar

import weft as wf
from weft.core.common.parameters import as_integer, as_real, shown
from weft.core.common.types import Shape
from weft.errors import ArgumentError
from weft.nn.convolution import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from weft.nn.inputs import keys_of
from weft.nn.module import Module, buffer, static

_FIRST_STEPS = 15  # of the power method, from random vectors


def _weighted(kind: str, layer: Any) -> Any:
    """A layer with a weight of at least two axes."""
    weight = getattr(layer, "weight", None)
    if not isinstance(layer, Module) or weight is None or len(weight.shape) < 2:
        raise ArgumentError(
            f"{kind}: layer: expected a layer with a matrix or more as its weight,"
            f" got {shown(layer)}"
        )
    return layer


class _Remade(Module):
    """A layer whose weight is made of what it holds; `_names` are those of its tensors in torch."""

    layer: Any
    _names: ClassVar[dict[str, str]]

    @property
    def weight(self) -> wf.Tensor:
        """The weight that the layer is called with."""
        raise NotImplementedError

    def __call__(self, x: Any) -> wf.Tensor:
        """What the layer makes of `x` with that weight."""
        made: wf.Tensor = self.merged()(x)
        return made

    def merged(self) -> Any:
        """The plain layer that gives the same."""
        return self.layer.replace(weight=self.weight)

    def state_name(self, name: str) -> str:
        """Called as by torch's parametrisations."""
        other = self._names.get(name)
        return name.removeprefix("layer.") if other is None else f"parametrizations.weight.{other}"


class SpectralNorm(_Remade):
    """A layer whose weight is divided by its largest singular value, so that it stretches nothing.

    The value is estimated by the power method: `y, layer = layer.advance(x)` takes its steps and
    gives the layer with the vectors found, a call uses those there are. They are buffers.

    >>> layer = SpectralNorm(wf.nn.Linear(3, 3, key=wf.random.key(0)), key=wf.random.key(1))
    >>> _, layer = layer.advance(wf.ones(3))
    """

    _names = {"layer.weight": "original", "u": "0._u", "v": "0._v"}
    u: wf.Tensor = buffer()
    v: wf.Tensor = buffer()
    n_power_iterations: int = static()
    eps: float = static()

    def __init__(
        self, layer: Any, n_power_iterations: int = 1, eps: float = 1e-12, *, key: wf.Tensor
    ) -> None:
        self.layer = _weighted("SpectralNorm", layer)
        self.n_power_iterations = as_integer(
            "SpectralNorm", "n_power_iterations", n_power_iterations, 1
        )
        self.eps = as_real("SpectralNorm", "eps", eps, 0)
        matrix = self._matrix()
        rows, columns = (
            wf.random.normal(own, (n,), matrix.dtype)
            for own, n in zip(keys_of(key, 2), matrix.shape, strict=True)
        )
        self.u, self.v = self._searched(rows, columns, _FIRST_STEPS)

    @property
    def weight(self) -> wf.Tensor:
        """The weight, divided by its largest singular value."""
        u, v = wf.stop_gradient(self.u), wf.stop_gradient(self.v)
        largest: Any = wf.vecdot(u, self._matrix() @ v)
        made: wf.Tensor = self.layer.weight / largest
        return made

    def advance(self, x: Any) -> tuple[wf.Tensor, SpectralNorm]:
        """The result after more steps of the power method, and the layer that took them."""
        u, v = self._searched(self.u, self.v, self.n_power_iterations)
        moved = self.replace(u=u, v=v)
        return moved(x), moved

    def _matrix(self) -> Any:
        """The weight with a row for each output."""
        weight = self.layer.weight
        if isinstance(self.layer, ConvTranspose1d | ConvTranspose2d | ConvTranspose3d):
            weight = wf.swapaxes(weight, 0, 1)
        return wf.reshape(weight, (weight.shape[0], -1))

    def _searched(self, u: Any, v: Any, steps: int) -> tuple[wf.Tensor, wf.Tensor]:
        matrix = wf.stop_gradient(self._matrix())
        for _ in range(steps):
            u = wf.normalize(matrix @ v, axis=0, eps=self.eps)
            v = wf.normalize(u @ matrix, axis=0, eps=self.eps)
        return u, v


class WeightNorm(_Remade):
    """A layer whose weight is a direction times a length, for each row along the first axis.

    `magnitude` holds the lengths; the layer inside holds the directions, of any length.
    """

    _names = {"layer.weight": "original1", "magnitude": "original0"}
    magnitude: wf.Tensor

    def __init__(self, layer: Any) -> None:
        self.layer = _weighted("WeightNorm", layer)
        self.magnitude = self._lengths()

    @property
    def weight(self) -> wf.Tensor:
        """Lengths times directions."""
        made: wf.Tensor = self.layer.weight * (self.magnitude / self._lengths())
        return made

    def _lengths(self) -> Any:
        weight = self.layer.weight
        axes: Shape = tuple(range(1, weight.ndim))
        return wf.linalg.vector_norm(weight, axis=axes, keepdims=True)
