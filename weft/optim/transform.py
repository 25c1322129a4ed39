"""Gradient transformations: pairs of functions that chain.

`init(params)` gives a state, `update(gradients, state, params)` gives updates and the next state;
`apply` adds updates to parameters. States are trees of tensors: they go through `wf.compile`, are
saved like parameters, and hold the count of steps that schedules read.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import signature
from operator import call
from typing import Any, ParamSpec, TypeAlias, TypeVar

import weft as wf
from weft.core.common import dtypes
from weft.core.common.parameters import as_real, shown
from weft.core.common.trees import (
    prefix_leaves,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_structure,
    tree_unflatten,
)
from weft.core.tensor.convert import device_of
from weft.errors import ArgumentError, DTypeError, ShapeError, TreeError
from weft.nn.names import buffer_places, chosen

P = ParamSpec("P")
T = TypeVar("T")
Setting: TypeAlias = "float | wf.Tensor"
Update: TypeAlias = Callable[..., tuple[Any, Any]]


@dataclass(frozen=True)
class Transform:
    """A step from gradients to updates: `init(params)`, `update(gradients, state, params)`."""

    init: Callable[[Any], Any]
    update: Update
    recipe: partial[Transform] | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the call that made it, where that is known."""
        if self.recipe is None:
            return Transform, (self.init, self.update)
        return call, (self.recipe,)


def remade(maker: Callable[P, Transform]) -> Callable[P, Transform]:
    """Decorate a function: the transformations it makes can be pickled if its arguments can."""

    @wraps(maker)
    def makes(*args: P.args, **keywords: P.kwargs) -> Transform:
        made = maker(*args, **keywords)
        return Transform(made.init, made.update, partial(makes, *args, **keywords))

    return makes


@remade
def chain(*transforms: Transform) -> Transform:
    """Transformations one after the other; the state is a tuple of theirs."""
    for number, each in enumerate(transforms):
        as_transform("chain", f"transform {number}", each)

    def init(params: Any) -> Any:
        return tuple(each.init(params) for each in transforms)

    def update(gradients: Any, state: Any, params: Any = None, **more: Any) -> tuple[Any, Any]:
        _check_more("chain", more)
        if not isinstance(state, tuple) or len(state) != len(transforms):
            raise TreeError(
                f"chain: state: expected a tuple of {len(transforms)} states, got {shown(state)}"
                "\nhint: state = transform.init(params)"
            )
        following = []
        for each, own in zip(transforms, state, strict=True):
            gradients, new = each.update(gradients, own, params)
            following.append(new)
        return gradients, tuple(following)

    return Transform(init, update)


def as_transform(op: str, name: str, value: Any) -> Transform:
    """A transformation, not the function that makes one."""
    if not isinstance(value, Transform):
        raise ArgumentError(
            f"{op}: {name}: expected a Transform, got {shown(value)}"
            "\nhint: call it first, such as optim.clip_by_global_norm(1.0)"
        )
    return value


def with_state(op: str, kind: type, like: str = "") -> Callable[[Update], Update]:
    """Decorate an update: its state is of a kind, and gradients have the shapes of a part of it."""

    def decorated(update: Update) -> Update:
        takes = signature(update).parameters

        def checked(gradients: Any, state: Any, params: Any = None, **more: Any) -> tuple[Any, Any]:
            _check_more(op, more, takes)
            if not isinstance(state, kind):
                raise TreeError(
                    f"{op}: state: expected {kind.__name__}, got {shown(state)}"
                    "\nhint: it is another transformation's; state = transform.init(params)"
                )
            if like:
                check_shapes(op, gradients, getattr(state, like))
            return update(gradients, state, params, **more)

        return checked

    return decorated


def _check_more(op: str, given: Iterable[str], takes: Container[str] = ()) -> None:
    for name in given:
        if name not in takes:
            raise ArgumentError(
                f"{op}: update takes no {name!r}"
                "\nhint: reduce_on_plateau, which takes 'value', goes around all others"
            )


def check_shapes(op: str, gradients: Any, kept: Any) -> None:
    """Refuse gradients of other shapes than the parameters, or what is kept for them, have."""
    with alike(op, "gradients are not in the places of parameters"):
        tree_map(partial(_check_shape, op), gradients, kept)


@contextmanager
def alike(op: str, what: str) -> Iterator[None]:
    """Say what two trees are, and whose, where they differ."""
    try:
        yield
    except TreeError as error:
        raise TreeError(
            f"{op}: {what} ({str(error).removeprefix('tree_map: ').removesuffix('.')})"
            "\nhint: init, update and apply take one and the same part of a model"
        ) from None


def _check_leaf(found: Any) -> None:
    if not hasattr(found, "shape"):
        raise TreeError(f"a tensor meets {shown(found)}")


def _check_shape(op: str, gradient: Any, kept: Any) -> None:
    _check_leaf(kept)
    if widened(gradient).shape != kept.shape:
        raise ShapeError(
            f"{op}: a gradient of shape {gradient.shape} for a parameter of shape {kept.shape}"
        )


@remade
def stateless(function: Callable[[Any, Any], Any]) -> Transform:
    """A transformation `function(gradients, params) -> updates` that remembers nothing."""

    def update(gradients: Any, state: Any, params: Any = None, **more: Any) -> tuple[Any, Any]:
        _check_more("update", more)
        if params is not None:
            check_shapes("update", gradients, params)
        return function(gradients, params), state

    return Transform(lambda params: (), update)


def apply(params: T, updates: Any) -> T:
    """Parameters with updates added, in the parameters' own dtypes; buffers stay as they are."""
    structure = tree_structure(params)
    flags = tree_unflatten(structure, buffer_places(structure))
    with alike("apply", "updates are not in the places of parameters"):
        moved: T = tree_map(_moved, params, updates, flags)
    return moved


def _moved(parameter: Any, update: Any, is_buffer: bool) -> Any:
    wide = widened(parameter)
    if is_buffer:
        return parameter
    if not dtypes.is_floating(wide.dtype):
        is_complex = dtypes.is_complex(wide.dtype)
        hint = "train real and imaginary parts" if is_complex else "nn.partition leaves it out"
        raise DTypeError(
            f"apply: a parameter of dtype {dtypes.name_of(wide.dtype)} takes no steps\nhint: {hint}"
        )
    _check_leaf(update)
    if update.shape != wide.shape:
        raise ShapeError(
            f"apply: an update of shape {update.shape} for a parameter of shape {wide.shape}"
        )
    return wf.astype(wide + update, parameter.dtype)


def widened(x: Any) -> Any:
    """A tensor in the dtype that steps are taken in: narrow floats become float32."""
    if not hasattr(x, "dtype"):
        raise DTypeError(f"optim: expected tensors, got {shown(x)}\nhint: wf.asarray makes one")
    return wf.astype(x, wf.float32) if dtypes.is_narrow(x.dtype) else x


def zeros_for(params: Any) -> Any:
    """Zeros that lie as the parameters do, in the dtype that steps are taken in."""
    return tree_map(_zeros, params)


def _zeros(like: Any) -> Any:
    made = wf.zeros_like(widened(like))
    spec = like.sharding if isinstance(like, wf.Tensor) else None
    return made if spec is None or spec.mesh is None else wf.shard(made, spec.mesh, spec)


def by_dtype(tree: Any, function: Callable[[Any], T]) -> dict[Any, T]:
    """What a function makes of each dtype that the tensors of a tree have."""
    return {kind: function(kind) for kind in dict.fromkeys(x.dtype for x in tree_leaves(tree))}


def first_count(params: Any) -> wf.Tensor:
    """The count of steps before any was taken, where the parameters are."""
    return wf.zeros((), dtype=wf.int32, device=place_of(params))


def place_of(tree: Any) -> Any:
    """The device of the first tensor of a tree; None, which is the default one, without any."""
    return device_of(*tree_leaves(tree))


def needed(op: str, params: Any) -> Any:
    """The parameters, which this transformation cannot do without."""
    if params is None:
        raise ArgumentError(
            f"{op}: update: params are needed\nhint: update(gradients, state, params)"
        )
    return params


def mask_for(op: str, mask: Any, params: Any) -> Any:
    """A tree of bools as the parameters are, from any way to say which of them are meant.

    A mask is a tree of bools, of which one may stand for all parameters below it, a function of
    the parameters that gives such a tree, a pattern of names or several, or None: everywhere.
    What it says where the parameters hold None is left out.
    """
    if mask is None:
        return tree_map(lambda p: True, params)
    if _is_patterns(mask):
        return tree_unflatten(tree_structure(params), chosen(op, mask, params))
    found = mask(params) if callable(mask) and not _is_tree_of_bools(mask) else mask
    if not _is_tree_of_bools(found):
        raise ArgumentError(
            f"{op}: mask: expected a tree of True and False, a function that gives one, or names"
            "\nhint: mask=optim.matrices leaves out biases and scales"
        )
    flags = prefix_leaves(f"{op}: mask", found, params, lambda entry: isinstance(entry, bool))
    return tree_unflatten(tree_structure(params), flags)


def _is_patterns(mask: Any) -> bool:
    several = isinstance(mask, tuple | list) and len(mask) > 0
    return isinstance(mask, str) or (several and all(isinstance(each, str) for each in mask))


def _is_tree_of_bools(tree: Any) -> bool:
    return all(isinstance(leaf, bool) for leaf in tree_leaves(tree))


def matrices(params: Any) -> Any:
    """A mask: True for tensors of two axes or more, so not for biases and scales."""
    return tree_map(lambda p: p.ndim >= 2, params)


def trained(tree: Any) -> list[Any]:
    """The leaves of a tree that `apply` changes: all but the buffers of modules."""
    leaves, structure = tree_flatten(tree)
    rows = zip(leaves, buffer_places(structure), strict=True)
    return [leaf for leaf, is_buffer in rows if not is_buffer]


def global_norm(tree: Any) -> wf.Tensor:
    """The square root of the sum of all squares in a tree."""
    squares = [wf.sum(wf.square(_size(widened(x)))) for x in tree_leaves(tree)]
    # Joined, the sums wait for nothing but their own tensors, and run beside each other.
    return wf.sqrt(wf.sum(stacked(squares))) if squares else wf.zeros(())


def stacked(numbers: Sequence[Any]) -> wf.Tensor:
    """Numbers in one tensor, where the first of them is."""
    return wf.stack([beside(x, numbers[0]) for x in numbers])


def beside(number: Any, tensor: Any) -> Any:
    """A number of a state (or several) where a tensor is: parameters may be on several devices."""
    if isinstance(number, tuple):
        return tuple(beside(each, tensor) for each in number)
    if not (isinstance(number, wf.Tensor) and isinstance(tensor, wf.Tensor)):
        return number
    mesh = tensor.sharding.mesh
    near = number.device is tensor.device or (mesh is not None and number.device in mesh.devices)
    return number if near or number.sharding.mesh is not None else wf.to(number, tensor.device)


def as_setting(
    op: str, name: str, value: Any, low: float | None = None, high: float | None = None
) -> Any:
    """A number of a transformation: Python's, or a tensor with no axes, which stays one.

    So it may be mapped, given to a compiled step and differentiated; limits are for numbers.
    """
    if not isinstance(value, wf.Tensor):
        return as_real(op, name, value, low, high)
    if value.shape != () or not dtypes.is_floating(value.dtype):
        raise ArgumentError(f"{op}: {name}: expected a number, got {shown(value)}")
    return value


def is_zero(setting: Any) -> bool:
    """Whether a setting is known to be 0, so that what it weighs can be left out."""
    return not isinstance(setting, wf.Tensor) and setting == 0


def settled(setting: Any, tensor: Any) -> Any:
    """A setting as it meets a tensor: on its device, in its dtype."""
    if not isinstance(setting, wf.Tensor):
        return setting
    return wf.astype(beside(setting, tensor), tensor.dtype)


def blended(decay: Any, old: Any, new: Any) -> Any:
    """A running mean after a step that keeps the part `decay` of it."""
    kept = settled(decay, old)
    return kept * old + (1 - kept) * new


def _size(x: Any) -> Any:
    return wf.abs(x) if dtypes.is_complex(x.dtype) else x
