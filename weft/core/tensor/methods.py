"""Methods of tensors: the everyday functions, spelled `x.sum()`; looked up by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.core.common.peers import hint_for_attribute
from weft.core.common.slots import FUNCTIONS
from weft.errors import ArgumentError


def _method(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        return FUNCTIONS[name](self, *args, **keywords)

    return _named(method, name)


def _reduction(name: str) -> Callable[..., Any]:
    """A method that NumPy's function of the same name calls with `out=None`: `np.sum(x)`."""

    def method(self: Any, *args: Any, out: None = None, **keywords: Any) -> Any:
        if out is not None:
            raise ArgumentError(
                f"{name}: out: results have memory of their own\nhint: leave it out"
            )
        return FUNCTIONS[name](self, *args, **keywords)

    return _named(method, name)


def _named(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    method.__name__ = name
    method.__qualname__ = f"Tensor.{name}"
    place = "wf.linalg" if name == "norm" else "wf"
    method.__doc__ = f"Method form of `{place}.{name}(x, …)`."
    return method


class Methods:
    """Functions whose first argument is the tensor itself."""

    __slots__ = ()

    if not TYPE_CHECKING:  # checkers know which attributes there are

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
                f"{hint_for_attribute(name)}",
                name=name,
                obj=self,
            )

    @property
    def T(self) -> Any:
        """The transpose of a matrix."""
        return FUNCTIONS["matrix_transpose_of_2d"](self)

    @property
    def mT(self) -> Any:
        """The last two axes swapped."""
        return FUNCTIONS["matrix_transpose"](self)

    @property
    def real(self) -> Any:
        """The real part."""
        return FUNCTIONS["real"](self)

    @property
    def imag(self) -> Any:
        """The imaginary part."""
        return FUNCTIONS["imag"](self)

    def conjugate(self) -> Any:
        """The complex conjugate; a real tensor is its own: see `wf.conj`."""
        return FUNCTIONS["conj"](self)

    @property
    def at(self) -> Any:
        """Functional updates: `x.at[i].set(v)`, `.add`, `.multiply`, `.min`, `.max`, `.get`."""
        return FUNCTIONS["updater"](self)

    def reshape(self, *shape: Any) -> Any:
        """The same elements in another shape: `x.reshape(2, -1)` or `x.reshape((2, -1))`."""
        return FUNCTIONS["reshape"](self, _spread(shape))

    def view(self, *shape: Any) -> Any:
        """Reshape without copying, or raise `NotContiguousError`."""
        return FUNCTIONS["view"](self, _spread(shape))

    def permute(self, *axes: Any) -> Any:
        """Reorder the axes: `x.permute(2, 0, 1)`."""
        return FUNCTIONS["permute_dims"](self, _spread(axes))

    def transpose(self, *axes: Any) -> Any:
        """Swap two axes (`x.transpose(0, 1)`), reorder all, or reverse them (`x.transpose()`)."""
        return FUNCTIONS["transpose"](self, *axes)

    def trace(self, offset: int = 0) -> Any:
        """The sum of the diagonal of the last two axes."""
        return FUNCTIONS["matrix_trace"](self, offset=offset)

    def backward(self, gradient: Any = None) -> Any:
        """Gradients for every tensor that requires one: see `wf.backward`."""
        return FUNCTIONS["backward"](self, gradient)

    def register_hook(self, hook: Callable[[Any], Any]) -> Callable[[], None]:
        """Call `hook` with this tensor's gradient: see `wf.register_hook`."""
        result: Callable[[], None] = FUNCTIONS["register_hook"](self, hook)
        return result

    def expand(self, *shape: Any) -> Any:
        """Broadcast to a shape without copying."""
        return FUNCTIONS["broadcast_to"](self, _spread(shape))


def _spread(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 and isinstance(values[0], tuple | list) else values


_NAMES = """
    abs argmax argmin argpartition argsort astype broadcast_to ceil chunk clip conj contiguous copy
    copy_of cos cosh cummax cummin cumprod cumsum detach diagonal dot exp expand_dims flatten flip
    floor gather isfinite isinf isnan log log1p log2 log10 logsumexp median moveaxis narrow nonzero
    norm permute_dims pow ravel relu repeat reshard roll round rsqrt scatter searchsorted shard
    sigmoid sign sin sinh softmax sort split sqrt square squeeze swapaxes take take_along_axis tan
    tanh tile to top_k tril triu trunc unbind unflatten unsqueeze
"""
for _name in _NAMES.split():
    setattr(Methods, _name, _method(_name))
for _name in ("all", "any", "max", "mean", "min", "prod", "std", "sum", "var"):
    setattr(Methods, _name, _reduction(_name))
