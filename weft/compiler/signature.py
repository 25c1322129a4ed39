"""What a call of a compiled function looks like: which arguments are static, and the cache key.

Two calls with equal signatures run the same executable. `differences` says in words why two
signatures are not equal.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np

from weft.core.common.context import current_device, default_float
from weft.core.common.device import Device
from weft.core.common.frozen import Exact
from weft.core.common.handler import Handler, current
from weft.core.common.parameters import as_integers, as_sequence, shown
from weft.core.common.trees import PyTreeDef, tree_flatten, tree_paths, tree_unflatten
from weft.core.common.types import DType, TensorType
from weft.core.tensor.convert import PYTHON_SCALARS, to_tensor
from weft.core.tensor.number import Number
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, ConversionError

Place: TypeAlias = "int | str"  # an argument: its position, or its keyword


@dataclass(frozen=True)
class Leaf:
    """One leaf of the arguments: a tensor's type, or the Python type of a number."""

    kind: Any
    device: Device
    spec: Any = None


@dataclass(frozen=True)
class Signature:
    """The cache key of a call."""

    structure: PyTreeDef  # of (positional, keywords), static arguments left out
    leaves: tuple[Leaf, ...]
    statics: tuple[tuple[Place, Exact], ...]
    dtype: DType
    device: Device
    axes: tuple[tuple[str, int], ...]  # named axes of the maps around the call


@dataclass(frozen=True, eq=False)
class Call:
    """A call taken apart."""

    signature: Signature
    leaves: list[Any]
    statics: dict[Place, Any]
    count: int  # of positional arguments

    def build(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other leaves."""
        positional, keywords = tree_unflatten(self.signature.structure, leaves)
        following = iter(positional)
        args = tuple(
            self.statics[i] if i in self.statics else next(following) for i in range(self.count)
        )
        named = {name: value for name, value in self.statics.items() if isinstance(name, str)}
        return args, {**keywords, **named}


def in_objects(structure: PyTreeDef) -> list[bool]:
    """For each leaf of a tree, whether it belongs to an object of a class, such as a module."""
    found: list[bool] = []
    waiting = [(structure, False)]
    while waiting:
        each, inside = waiting.pop()
        if each.kind.name == "LEAF":
            found.append(inside)
        inside = inside or each.kind.name == "CUSTOM"
        waiting += [(child, inside) for child in reversed(each.children())]
    return found


class Parameters:
    """The parameters of the user's function, and which of them are static or donated."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        numbers: dict[str, Any],
        names: dict[str, Any],
    ) -> None:
        self.name = name
        try:
            found = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # a builtin says nothing of its parameters
            found = ()  # type: ignore[assignment]
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.positional = [p.name for p in found if p.kind in kinds]
        self._open = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in found) or not found
        self._known = {p.name for p in found}
        self.static = self._places("static", numbers["static"], names["static"])
        self.donated = self._places("donate", numbers["donate"], names["donate"])
        both = self.static & self.donated
        if both:
            what = ", ".join(sorted(map(str, both)))
            raise ArgumentError(f"compile: {name}: static arguments cannot be donated ({what})")

    def _places(self, what: str, numbers: Any, names: Any) -> frozenset[Place]:
        """Positions and names, each also in its other form."""
        count = len(self.positional)
        places: set[Place] = set()
        for number in as_integers("compile", f"{what}_argnums", numbers):
            if number < -count or (number < 0 and not count):
                raise ArgumentError(
                    f"compile: {self.name}: {what}_argnums {number} for {count} parameters"
                )
            place = number + count if number < 0 else number
            places.add(place)
            if place < count:
                places.add(self.positional[place])
        given = (
            (names,)
            if isinstance(names, str)
            else as_sequence("compile", f"{what}_argnames", names)
        )
        for each in given:
            if not isinstance(each, str) or not (each in self._known or self._open):
                raise ArgumentError(
                    f"compile: {self.name}: {what}_argnames: no parameter is called {shown(each)}"
                )
            places.add(each)
            if each in self.positional:
                places.add(self.positional.index(each))
        return frozenset(places)

    def label(self, place: Place) -> str:
        """How messages call an argument."""
        if isinstance(place, int) and place < len(self.positional):
            return self.positional[place]
        return str(place)

    def call(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Call:
        """Take a call apart; errors name the argument."""
        statics: dict[Place, Any] = {}
        frozen: list[tuple[Place, Exact]] = []
        for place, value in (*enumerate(args), *sorted(keywords.items())):
            if place in self.static:
                statics[place] = value
                frozen.append((place, self._frozen(place, value)))
        rest = tuple(x for i, x in enumerate(args) if i not in statics)
        named = {name: x for name, x in keywords.items() if name not in statics}
        leaves, structure = tree_flatten((rest, named))
        device = next((x.device for x in leaves if isinstance(x, Tensor)), current_device())
        kinds = []
        for position, x in enumerate(leaves):
            kind, leaves[position] = self._leaf(x, device, position, (args, keywords))
            kinds.append(kind)
        signature = Signature(
            structure, tuple(kinds), tuple(frozen), default_float(), current_device(), _axes()
        )
        return Call(signature, leaves, statics, len(args))

    def _frozen(self, place: Place, value: Any) -> Exact:
        if isinstance(value, Tensor | np.ndarray):
            raise ArgumentError(
                f"compile: {self.name}: static argument {self.label(place)} is an array: its values"
                " would have to be compiled in\nhint: leave it out of static_argnums"
            )
        try:
            hash(value)
        except TypeError:
            raise ArgumentError(
                f"compile: {self.name}: static argument {self.label(place)} cannot be hashed"
                f" ({shown(value)})\nhint: pass a tuple, a string or a frozen dataclass"
            ) from None
        return Exact(value)

    def _leaf(self, x: Any, device: Device, position: int, whole: Any) -> tuple[Leaf, Any]:
        """The kind of a leaf, and the leaf as a tensor or a number."""
        if type(x) is Number:
            return Leaf(x.python, x.device), x
        if isinstance(x, Tensor):
            return Leaf(x.type, x.device, x._impl.spec), x
        if type(x) in PYTHON_SCALARS:
            return Leaf(type(x), device), x
        known = isinstance(x, np.ndarray | np.generic)
        if not (known or hasattr(x, "__dlpack__") or hasattr(x, "__array__")):
            path = self.paths(*whole)[position]
            raise ConversionError(
                f"compile: {self.name}: argument {path}: expected tensors and numbers,"
                f" got {shown(x)}\nhint: static_argnames={path.partition('[')[0]!r} compiles for"
                " each value of it"
            )
        tensor = to_tensor(x, like=device, op="compile")
        return Leaf(tensor.type, tensor.device), tensor

    def paths(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> list[str]:
        """A name for each leaf, such as `params['w'][0]`."""
        found: list[str] = []
        places: list[tuple[int | str, Any]] = [*enumerate(args), *sorted(keywords.items())]
        for place, value in places:
            if place not in self.static:
                found += [self.label(place) + path for path in tree_paths(value)]
        return found

    def donations(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[bool, ...]:
        """For each leaf whether its memory is given away."""
        found: list[bool] = []
        for place, value in (*enumerate(args), *sorted(keywords.items())):
            if place not in self.static:
                found += [place in self.donated] * len(tree_paths(value))
        return tuple(found)


def _axes() -> tuple[tuple[str, int], ...]:
    found = []
    handler: Handler | None = current()
    while handler is not None:
        level: Any = handler
        if handler.hides_axis and level.axis_name is not None:
            found.append((level.axis_name, level.size))
        handler = handler.outer
    return tuple(found)


def differences(
    old: Signature, new: Signature, before: Sequence[str], after: Sequence[str], label: Any
) -> list[str]:
    """Why `new` is not `old`, in words; `before` and `after` name their leaves."""
    reasons = []
    statics, given = dict(old.statics), dict(new.statics)
    for place in dict.fromkeys((*statics, *given)):
        if statics.get(place) != given.get(place):
            was, now = _value(statics.get(place)), _value(given.get(place))
            reasons.append(f"static argument {label(place)}: {was} -> {now}")
    if old.structure != new.structure:
        gone = [path for path in before if path not in after]
        come = [path for path in after if path not in before]
        told = [f"{path} is new" for path in come] + [f"{path} is gone" for path in gone]
        kinds = f"was {old.structure}, now {new.structure}"
        reasons.append(f"structure: {', '.join(told) if told else kinds}")
    else:
        for path, was_leaf, now_leaf in zip(after, old.leaves, new.leaves, strict=True):
            reasons += [f"argument {path}: {each}" for each in _changes(was_leaf, now_leaf)]
    for what, before_, after_ in (
        ("default dtype", old.dtype, new.dtype),
        ("default device", old.device, new.device),
        ("mapped axes around the call", old.axes, new.axes),
    ):
        if before_ != after_:
            reasons.append(f"{what}: was {before_}, now {after_}")
    return reasons


def _value(frozen: Exact | None) -> str:
    """A static value; None stands for an argument left out."""
    return "not given" if frozen is None else shown(frozen.value)


def _changes(was: Leaf, now: Leaf) -> list[str]:
    if was == now:
        return []
    if isinstance(was.kind, type) or isinstance(now.kind, type):
        if was.kind != now.kind:
            return [f"was {_kind(was.kind)}, now {_kind(now.kind)}"]
        return [f"device was {was.device}, now {now.device}"]
    found = []
    if len(was.kind.shape) != len(now.kind.shape):
        found.append(f"shape was {was.kind.shape}, now {now.kind.shape}")
    else:
        sizes = zip_longest(was.kind.shape, now.kind.shape)
        found += [f"axis {i} was {a}, now {b}" for i, (a, b) in enumerate(sizes) if a != b]
    for what, before, after in (
        ("dtype", was.kind.dtype, now.kind.dtype),
        ("device", was.device, now.device),
        ("sharding", was.spec, now.spec),
    ):
        if before != after:
            found.append(f"{what} was {before}, now {after}")
    return found


def _kind(kind: Any) -> str:
    return f"a Python {kind.__name__}" if isinstance(kind, type) else str(kind)


__all__ = ["Call", "Leaf", "Parameters", "Signature", "TensorType", "differences"]
