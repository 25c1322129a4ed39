"""`Module`: a frozen dataclass that is a tree of tensors.

Fields that hold tensors, modules or containers of them are children of the tree; all other values
belong to its structure. Which is which is decided once, when a module is made, so that a module
whose leaves `tree_map` replaced keeps its structure. Nothing changes in place: `replace` gives a
changed copy, and whatever a layer learns from a call it returns.
"""

from __future__ import annotations

import dataclasses
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator
from inspect import Signature, signature
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

import numpy as np
import optree

from weft.core.common.context import current_device, default_device
from weft.core.common.frozen import Exact
from weft.core.common.parameters import shown
from weft.core.common.peers import METHODS
from weft.core.common.trees import NAMESPACE, tree_leaves, tree_map
from weft.core.common.types import TensorType
from weft.core.tensor.convert import device_of
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, MutationError, TreeError
from weft.nn.show import module_text

_LAYOUT = "_layout"
_ARRAYS = (Tensor, np.ndarray, TensorType)


def static(**options: Any) -> Any:
    """Declare a field whose value belongs to the structure of a module: it must be hashable.

    Numbers, strings, functions and tuples of them are static without a declaration.
    """
    return dataclasses.field(metadata={"static": True}, **options)


def buffer(**options: Any) -> Any:
    """Declare a field of tensors that no optimiser changes, such as running statistics."""
    return dataclasses.field(metadata={"buffer": True}, **options)


class Layout:
    """Which fields of a module are children, and the values of the others.

    It is the constant part of the module's node in a tree; two are equal if code that was made for
    one serves the other (so `1` and `True`, or `0.0` and `-0.0`, differ).
    """

    __slots__ = ("_hash", "_key", "blank", "children", "constants", "take")

    def __init__(self, children: tuple[str, ...], constants: tuple[tuple[str, Any], ...]) -> None:
        self.children = children
        self.constants = constants
        self._key = (children, tuple((name, Exact(value)) for name, value in constants))
        self._hash = hash(self._key)
        self.blank = {**dict(constants), _LAYOUT: self}  # a module's attributes, without children
        self.take = _taker(children)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Layout) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> Any:
        return Layout, (self.children, self.constants)

    def __repr__(self) -> str:
        return ", ".join(f"{name}={shown(value)}" for name, value in self.constants)


def _taker(names: tuple[str, ...]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """The function that takes the named values out of a dict, as a tuple."""
    if len(names) > 1:
        return itemgetter(*names)
    return (lambda values: (values[names[0]],)) if names else lambda values: ()


@dataclass_transform(eq_default=False, field_specifiers=(static, buffer, dataclasses.field))
class ModuleType(ABCMeta):
    """Makes each subclass of `Module` a dataclass and a node of trees, and closes its instances."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> Any:
        made: Any = super().__new__(cls, name, bases, namespace, **options)
        written = "__init__" in namespace
        inherited = any(getattr(base, "_written", False) for base in bases)
        made._written = written or inherited
        dataclasses.dataclass(eq=False, repr=False, init=not made._written)(made)
        made._declared = {field.name: field.metadata for field in dataclasses.fields(made)}
        optree.register_pytree_node(
            made,
            _flatten,
            _rebuilder(made),
            path_entry_type=optree.GetAttrEntry,
            namespace=NAMESPACE,
        )
        return made

    @property
    def __signature__(cls) -> Signature:
        """What `help` shows for a module: the parameters of its `__init__`."""
        found = signature(cls.__init__)  # type: ignore[misc]
        return found.replace(parameters=list(found.parameters.values())[1:])

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        """Make a module: fields may be assigned until `__init__` returns.

        All it makes is where its key is.
        """
        blank: Any = object.__new__
        made = blank(cls)
        with default_device(device_of(keywords.get("key")) or current_device()):
            made.__init__(*args, **keywords)
        declared: dict[str, Any] = cls._declared  # type: ignore[attr-defined]
        absent = [name for name in declared if not hasattr(made, name)]
        if absent:
            raise ArgumentError(
                f"{cls.__name__}: __init__ leaves fields without a value ({', '.join(absent)})"
            )
        for name in made._declared:  # a default lies in the class until the instance has it, too
            made.__dict__.setdefault(name, getattr(made, name))
        _close(made, [name for name in made._declared if _is_child(made, name)])
        return made


def _close(module: Any, children: list[str]) -> None:
    """Fix what is a child and what is constant; nothing is assigned from here on."""
    names = module._declared
    constants = tuple((name, getattr(module, name)) for name in names if name not in children)
    module.__dict__[_LAYOUT] = Layout(tuple(children), constants)


def _is_child(module: Any, name: str) -> bool:
    """Whether a field holds tensors or modules; an error for what can be no static value either."""
    value, where = getattr(module, name), f"{type(module).__name__}: field {name!r}"
    leaves = tree_leaves(value, is_leaf=lambda x: isinstance(x, Module))
    arrays = [x for x in leaves if isinstance(x, (*_ARRAYS, Module))]
    if module._declared[name].get("static"):
        if arrays:
            raise TreeError(
                f"{where}: is static, but holds {shown(arrays[0])}"
                "\nhint: tensors and modules are children: declare the field without nn.static()"
            )
        _check_hashable(where, value)
        return False
    if arrays and len(arrays) < len(leaves):
        other = next(x for x in leaves if not isinstance(x, (*_ARRAYS, Module)))
        raise TreeError(
            f"{where}: holds {shown(other)} beside tensors or modules"
            "\nhint: give it a field of its own, or wrap a function in nn.Apply"
        )
    if arrays or (not leaves and type(value) in (list, dict)):
        return True
    if any(hasattr(leaf, "__dlpack__") for leaf in leaves):
        raise TreeError(f"{where}: holds another library's array\nhint: wf.asarray takes it over")
    _check_hashable(where, value)
    return False


def _check_hashable(where: str, value: Any) -> None:
    """Refuse a static value that cannot be hashed, or that hides tensors from the tree."""
    if isinstance(getattr(value, "__self__", None), Module):
        raise TreeError(
            f"{where}: a method of {type(value.__self__).__name__} would hide its tensors"
            "\nhint: hold the module itself, and call the method where it is used"
        )
    try:
        hash(value)
    except TypeError:
        raise TreeError(
            f"{where}: {shown(value)} holds no tensors, so it is static and must be hashable"
            "\nhint: a tuple instead of a list, or a frozen dataclass instead of a dict"
        ) from None


def _flatten(module: Any) -> tuple[tuple[Any, ...], Layout, tuple[str, ...]]:
    values = module.__dict__
    layout: Layout = values[_LAYOUT]
    return layout.take(values), layout, layout.children


def _rebuilder(cls: type) -> Callable[[Any, Iterable[Any]], Any]:
    blank: Any = object.__new__

    def rebuild(layout: Any, children: Iterable[Any]) -> Any:
        made = blank(cls)
        values = made.__dict__
        values.update(layout.blank)
        values.update(zip(layout.children, children, strict=True))
        return made

    return rebuild


class Module(metaclass=ModuleType):
    """Base class of layers and models: write fields and `__call__`, and every transform takes it.

    >>> class Scale(Module):
    ...     factor: Tensor
    ...     power: int = 1
    ...
    ...     def __call__(self, x):
    ...         return x * self.factor**self.power
    >>> tree_map(lambda t: t.shape, Scale(np.ones(3)))
    Scale(factor=(3,), power=1)
    """

    # Names that other libraries' state dicts have beside the tensors, and the module does without.
    ignored_names: ClassVar[tuple[str, ...]] = ()
    _declared: ClassVar[dict[str, Any]]
    _written: ClassVar[bool] = False

    def __setattr__(self, name: str, value: Any) -> None:
        kind = type(self).__name__
        if _LAYOUT in self.__dict__:
            raise MutationError(
                f"{kind}: field {name!r}: a module does not change"
                f"\nhint: module.replace({name}=...) gives a changed copy"
            )
        if name not in self._declared:
            raise ArgumentError(
                f"{kind}: {name!r} is no field of the module"
                f"\nhint: declare it in the class: `{name}: wf.Tensor`"
            )
        object.__setattr__(self, name, value)

    if not TYPE_CHECKING:  # checkers know which fields there are

        def __getattr__(self, name: str) -> Any:
            if name not in METHODS:
                return object.__getattribute__(self, name)  # tells what a property lacks, too
            told = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(f"{told}\nhint: {METHODS[name]}")

    def __delattr__(self, name: str) -> None:
        raise MutationError(f"{type(self).__name__}: field {name!r}: a module does not change")

    def __repr__(self) -> str:
        return module_text(
            type(self).__name__, {name: getattr(self, name) for name in self._declared}
        )

    def replace(self, **changes: Any) -> Self:
        """A copy with other values in the named fields."""
        unknown = [name for name in changes if name not in self._declared]
        if unknown:
            raise ArgumentError(
                f"{type(self).__name__}: replace: no field is called {', '.join(unknown)}"
                f"\nhint: its fields are {', '.join(self._declared)}"
            )
        layout: Layout = self.__dict__[_LAYOUT]
        made = object.__new__(type(self))
        made.__dict__.update({name: self.__dict__[name] for name in self._declared} | changes)
        _close(
            made,
            [
                name
                for name in self._declared
                if (_is_child(made, name) if name in changes else name in layout.children)
            ],
        )
        return made

    def state_name(self, name: str) -> str:
        """What `state_dict` calls the tensor that lies at `name` below this module."""
        return name


def children(module: Module) -> dict[str, Any]:
    """The fields of a module that are part of the tree, by name."""
    found, layout, _ = _flatten(module)
    return dict(zip(layout.children, found, strict=True))


def is_module(value: Any) -> bool:
    """Whether a value is a `Module`."""
    return isinstance(value, Module)


def map_modules(function: Callable[[Module], Any], tree: Any) -> Any:
    """Replace each module of a tree, innermost first, by what `function` makes of it."""

    def visit(node: Any) -> Any:
        if not isinstance(node, Module):
            return node
        children, layout, _ = _flatten(node)
        inner = [tree_map(visit, child, is_leaf=is_module) for child in children]
        if any(new is not old for new, old in zip(inner, children, strict=True)):
            node = _rebuilder(type(node))(layout, inner)
        return function(node)

    return tree_map(visit, tree, is_leaf=is_module)


def modules(tree: Any) -> Iterator[Module]:
    """All modules of a tree, each before those it holds."""
    for node in tree_leaves(tree, is_leaf=is_module):
        if isinstance(node, Module):
            yield node
            yield from modules(_flatten(node)[0])
