"""Code made for one kind of call: `make_enter` takes arguments apart, `make_leave` builds results.

The code checks, leaf by leaf, that a call is of the kind it was made for, and collects the arrays;
on anything else it gives None and the general path decides. Its text holds names of ours alone:
whatever comes from the user (keys, shapes, classes) is bound to such a name.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType, NoneType
from typing import Any
from weakref import ref

import numpy as np
import optree

from weft.compiler.capture import Capture, Program
from weft.compiler.donation import give
from weft.compiler.signature import Call, Leaf
from weft.compiler.variables import CONTAINERS, Step, Variable, Way, is_alike, shape_of
from weft.core.common.context import current_device, default_float
from weft.core.common.device import CPU
from weft.core.common.frozen import Exact
from weft.core.common.lazy import LazyModule
from weft.core.common.source import user_position
from weft.core.common.trees import NAMESPACE, PyTreeDef, tree_unflatten
from weft.core.graph.trace import Trace
from weft.core.tensor.impl import WORTH_A_LINE
from weft.core.tensor.sharing import is_shared, own
from weft.core.tensor.tensor import Tensor
from weft.ops.random.state import generator

_handles = LazyModule("weft.runtime.cpu.handles")

Enter = Callable[[tuple[Any, ...], dict[str, Any]], "list[Any] | None"]
Leave = Callable[[Sequence[Any]], Any]

_MOST_LEAVES = 2_000  # beyond that, general code is no slower than a function of this length
_PLAIN = (int, str, bool, type(None))  # static values that `==` compares exactly
_DISPLAYED = ("LEAF", "NONE", "TUPLE", "LIST", "DICT", "NAMEDTUPLE")


class _Unwritable(Exception):
    """A tree that only optree can take apart."""


class _Text:
    """A function as it is written: lines, and what its names stand for."""

    def __init__(self, head: str) -> None:
        self.lines = [head]
        self.names: dict[str, Any] = {
            "Tensor": Tensor,
            "array": np.array,
            "ndarray": np.ndarray,
            "is_shared": is_shared,
            "own": own,
            "line": user_position,
            "dict_get": dict.get,
        }
        self._bound: dict[int, str] = {}
        self._count = 0
        self.places: dict[Any, str] = {}  # what was read of variables, by the way to it

    def name(self, value: Any) -> str:
        """A name for a value that the code refers to."""
        if id(value) not in self._bound:
            made = self._bound[id(value)] = f"c{len(self._bound)}"
            self.names[made] = value
        return self._bound[id(value)]

    def fresh(self, letter: str = "v") -> str:
        """A new local name."""
        self._count += 1
        return f"{letter}{self._count}"

    def add(self, line: str, depth: int = 1) -> None:
        """One line, indented."""
        self.lines.append("    " * depth + line)

    def refuse_if(self, condition: str, depth: int = 1) -> None:
        """Leave the call to the general path if `condition` holds."""
        self.add(f"if {condition}: return None", depth)

    def function(self, name: str) -> Any:
        """The function that the lines define."""
        code = builtins.compile("\n".join(self.lines), f"{__file__}:{name}", "exec")
        exec(code, self.names)
        return self.names[name]


def make_enter(
    call: Call,
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    program: Program,
    kept: frozenset[int],
    donations: Sequence[tuple[int, str]],
    lasting: frozenset[int] = frozenset(),
) -> Enter | None:
    """The function that gives a call's arrays, or None if it differs from `call`.

    Memory of the `kept` inputs may become part of a result; `donations` are leaves, with names.
    Of `lasting` inputs the executable keeps what it makes: arrays it knows must have their values.
    """
    if len(call.leaves) > _MOST_LEAVES:
        return None
    text = _Text("def enter(args, keywords):")
    try:
        values = _write_arguments(text, call, *arguments)
    except _Unwritable:
        return None
    arrays = []
    rows = zip(values, call.signature.leaves, program.limits, strict=True)
    for position, (value, leaf, limits) in enumerate(rows):
        if isinstance(leaf.kind, type):
            arrays.append(_write_number(text, value, leaf.kind, limits))
        else:
            from_numpy = leaf.device is CPU
            watched = position in lasting
            arrays.append(_write_tensor(text, value, leaf, position in kept, from_numpy, watched))
    first = len(values) + 2 * len(program.slots)
    held = []
    for position, capture in enumerate(program.captures, first):
        handle = _write_capture(text, capture)
        leaf = Leaf(capture.type, capture.device, capture.spec)
        watched = position in lasting
        held.append(_write_tensor(text, handle, leaf, position in kept, False, watched))
    sources = [_write_source(text, slot) for slot in program.slots]
    drawn: list[list[str]] = []
    for slot, source in zip(program.slots, sources, strict=True):
        if slot.shares is None:
            drawn.append(_write_draws(text, source, slot.drawn))
        else:
            drawn.append(drawn[slot.shares])
        arrays += drawn[-1]
    text.add(f"found = [{', '.join((*arrays, *held))}]")
    if donations:
        # What is given away must be held by nobody else: these names would count.
        for i, _ in donations:
            text.add(f"i{arrays[i][1:]} = {arrays[i]} = None")
        rows_text = "".join(f"({i}, {values[i]}, {text.name(label)}), " for i, label in donations)
        text.add(f"{text.name(give)}(found, ({rows_text}))")
    text.add("return found")
    made: Enter = text.function("enter")
    return made


def _write_arguments(
    text: _Text, call: Call, args: tuple[Any, ...], keywords: dict[str, Any]
) -> list[str]:
    """Check everything but the leaves; the names of the leaves."""
    text.refuse_if(f"len(args) != {len(args)} or len(keywords) != {len(keywords)}")
    for function, value in (
        (default_float, call.signature.dtype),
        (current_device, call.signature.device),
    ):
        text.refuse_if(f"{text.name(function)}() is not {text.name(value)}")
    names = [text.fresh() for _ in args]
    if names:
        text.add(f"{', '.join(names)}, = args")
    order = sorted(keywords)
    named = [text.fresh() for _ in order]
    _write_lookups(text, "keywords", order, named)
    leaves: list[str] = []
    places = (*enumerate(args), *((key, keywords[key]) for key in order))
    for name, (place, value) in zip((*names, *named), places, strict=True):
        if place in call.statics:
            _write_static(text, name, value)
        else:
            _write_tree(text, name, value, leaves)
    return leaves


def _write_lookups(text: _Text, container: str, keys: Sequence[Any], names: list[str]) -> None:
    if keys:
        text.add("try:")
        for key, name in zip(keys, names, strict=True):
            text.add(f"{name} = {container}[{text.name(key)}]", 2)
        text.add("except KeyError: return None")


def _write_static(text: _Text, name: str, value: Any) -> None:
    held = text.name(value)
    if type(value) in _PLAIN:
        text.refuse_if(f"type({name}) is not {text.name(type(value))} or {name} != {held}")
    elif type(value) in (tuple, float):
        exact, maker = text.name(Exact(value)), text.name(Exact)
        text.refuse_if(f"{name} is not {held} and {maker}({name}) != {exact}")
    else:
        text.refuse_if(f"{name} is not {held}")


def _write_tree(text: _Text, name: str, value: Any, leaves: list[str]) -> None:
    """Take one value apart; the names of its leaves are added to `leaves`."""
    kind = type(value)
    if value is None:
        text.refuse_if(f"{name} is not None")
        return
    if optree.tree_is_leaf(value, namespace=NAMESPACE):
        leaves.append(name)
        return
    is_dict = kind is dict
    children: Sequence[Any]
    if is_dict:
        order = sorted(value) if _sortable(value) else _refused()
        children = [value[key] for key in order]
    elif issubclass(kind, tuple) or kind is list:
        children = list(value)
    else:
        entry = optree.register_pytree_node.get(kind, namespace=NAMESPACE)
        if entry is None:
            _refused()
        assert entry is not None
        text.refuse_if(f"type({name}) is not {text.name(kind)}")
        found, constant = entry.flatten_func(value)[:2]
        children = list(found)
        opened = text.fresh()
        text.add(f"{opened} = {text.name(entry.flatten_func)}({name})")
        text.refuse_if(f"{opened}[1] != {text.name(constant)}")
        text.add(f"{opened} = tuple({opened}[0])")
        name = opened
    names = [text.fresh() for _ in children]
    kind_check = f"type({name}) is not {text.name(kind)} or "
    own = name.startswith("v") and (is_dict or issubclass(kind, tuple) or kind is list)
    text.refuse_if(f"{kind_check if own else ''}len({name}) != {len(children)}")
    if is_dict:
        _write_lookups(text, name, order, names)
    elif names:
        text.add(f"{', '.join(names)}, = {name}")
    for child_name, child in zip(names, children, strict=True):
        _write_tree(text, child_name, child, leaves)


def _refused() -> Any:
    raise _Unwritable


def _sortable(keys: dict[Any, Any]) -> bool:
    """Whether optree orders these keys as `sorted` does: all of one type."""
    return len(set(map(type, keys))) < 2 and all(isinstance(k, str | int) for k in keys)


def _write_tensor(
    text: _Text, name: str, leaf: Leaf, kept: bool, from_numpy: bool, watched: bool
) -> str:
    """Check one tensor (or NumPy array) and get its data.

    `kept` data may become part of a result, so it must not be memory that others write to; where
    data is `watched`, that is a new array each time, which nobody has seen.
    """
    data = text.fresh("d")
    impl = f"i{data[1:]}"
    shape, dtype = text.name(leaf.kind.shape), text.name(leaf.kind.dtype)
    spec = "is not None" if leaf.spec is None else f"!= {text.name(leaf.spec)}"
    text.add(f"if type({name}) is Tensor:")
    text.add(f"{impl} = {name}._impl", 2)
    text.refuse_if(
        f"{impl}.shape != {shape} or {impl}.dtype is not {dtype} or {impl}.owner is not None"
        f" or {impl}.device is not {text.name(leaf.device)} or {impl}.spec {spec}",
        2,
    )
    text.add(f"{data} = {impl}.data", 2)
    text.add(f"if {data} is None: {data} = {impl}.realize()", 2)
    if kept:
        text.add(f"if {impl}.shared or is_shared({data}): {data} = own({data})", 2)
    elif watched:
        text.add(f"if {impl}.shared: {data} = {data}.view()", 2)
    if from_numpy:
        text.add(f"elif type({name}) is ndarray:")
        text.refuse_if(f"{name}.shape != {shape} or {name}.dtype is not {dtype}", 2)
        seen = f"{name}.view()" if watched else name
        text.add(f"{data} = array({name})" if kept else f"{data} = {seen}", 2)
    text.add("else: return None")
    return data


def _write_number(text: _Text, name: str, kind: type, limits: tuple[int, int] | None) -> str:
    data = text.fresh("d")
    inside = "" if limits is None else f" or not {limits[0]} <= {name} <= {limits[1]}"
    text.refuse_if(f"type({name}) is not {text.name(kind)}{inside}")
    text.add(f"{data} = array({name})")
    return data


def _write_capture(text: _Text, capture: Capture) -> str:
    """Read a captured tensor where the function would find it."""
    if not capture.variables:
        return text.name(capture.handle)
    first, *others = (_write_variable(text, each) for each in capture.variables)
    for other in others:
        text.refuse_if(f"{other} is not {first}")
    return first


def _write_variable(text: _Text, variable: Variable) -> str:
    """Read a place; what lies around several of them is read once."""
    found = text.places.get(variable.root)
    if found is None:
        found = text.places[variable.root] = _write_root(text, variable)
    for count, step in enumerate(variable.steps, 1):
        place = variable.root, variable.steps[:count]
        if place not in text.places:
            text.places[place] = _write_step(text, found, step)
        found = text.places[place]
    return found


def _write_step(text: _Text, holder: str, step: Step) -> str:
    """Read what something holds; what holds it has to be of the same shape."""
    found, key = text.fresh(), text.name(step.key)
    mark = holder, step.kind
    if mark not in text.places:
        text.places[mark] = holder
        text.refuse_if(f"type({holder}) is not {text.name(step.kind)}")
        _write_shape(text, holder, step)
    taken = f"{found} = {step.way.value.format(holder=holder, key=key)}"
    if step.way in (Way.ITEM, Way.CELL):
        text.add(f"try: {taken}")
        text.add("except (IndexError, ValueError): return None")
    else:
        text.add(taken)
    return found


def _write_shape(text: _Text, holder: str, step: Step) -> None:
    """Check what `shape_of` says of a holder."""
    if step.same is None:
        return
    if issubclass(step.kind, CONTAINERS):
        text.refuse_if(f"len({holder}) != {step.same}")
    elif step.kind is FunctionType:
        text.refuse_if(f"{holder}.__code__ is not {text.name(step.same)}")
    elif step.kind is MethodType:
        text.refuse_if(f"{holder}.__func__ is not {text.name(step.same)}")
    elif step.kind.__setattr__ is object.__setattr__:  # others do not change
        same = f"{text.name(is_alike)}({text.name(shape_of)}({holder}), {text.name(step.same)})"
        text.refuse_if(f"not {same}")
    else:
        last = text.name(_Last(step.same))
        text.refuse_if(f"{holder} is not {last}.object() and not {last}.takes({holder})")


class _Last:
    """The object that was found at a place last; another one must have the same structure."""

    def __init__(self, structure: Any) -> None:
        self.structure = structure
        self.object: Callable[[], Any] = NoneType

    def takes(self, other: Any) -> bool:
        """Whether another object will do, which is then remembered while others have it."""
        if not is_alike(shape_of(other), self.structure):
            return False
        try:
            self.object = ref(other)
        except TypeError:  # an object with slots
            self.object = NoneType
        return True


def _write_root(text: _Text, variable: Variable) -> str:
    if variable.namespace is None and variable.cell is None:
        return text.name(variable.object)
    name = text.fresh()
    if variable.namespace is not None:
        held = text.name(variable.namespace)
        text.add(f"{name} = {held}.get({text.name(variable.name)})")
        return name
    text.add(f"try: {name} = {text.name(variable.cell)}.cell_contents")
    text.add("except ValueError: return None")
    return name


def _write_source(text: _Text, slot: Any) -> str:
    """The name of a generator, whose state is where it is wanted, or on the host."""
    source, place = text.fresh(), text.fresh()
    found = f"{text.name(generator)}()" if slot.source is None else text.name(slot.source)
    text.add(f"{source} = {found}")
    text.add(f"{place} = {source}.get_device()")
    text.refuse_if(f"{place}.kind != 'cpu' and {place} is not {text.name(slot.device)}")
    return source


def _write_draws(text: _Text, source: str, drawn: int) -> list[str]:
    """Take keys from a generator; the names of its base key's data and of the first count."""
    taken, key, count = text.fresh(), text.fresh("d"), text.fresh("d")
    text.add(f"{taken} = {source}.reserve({drawn})")
    text.refuse_if(f"{taken} is None")
    text.add(f"{key} = {taken}[0].data()")
    text.add(f"{count} = array({taken}[1], {text.name(np.dtype(np.uint32))})")
    return [key, count]


def passed_through(trace: Trace) -> frozenset[int]:
    """Inputs whose memory a result may be: nothing but views lies between them."""
    waiting = [node for node, _ in trace.outputs]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node.op is not None and node.op.leaf and not node.op.view:
            continue
        for source, _ in node.inputs:
            if source not in seen:
                seen.add(source)
                waiting.append(source)
    return frozenset(i for i, node in enumerate(trace.inputs) if node in seen)


def make_leave(trace: Trace, structure: PyTreeDef) -> Leave:
    """The function that makes the result's tree of tensors from arrays."""
    text = _Text("def leave(arrays):")
    tensors = [text.fresh("t") for _ in trace.outputs]
    kinds = [(node.types[slot], node.place(slot)) for node, slot in trace.outputs]
    if tensors:
        text.add(f"{', '.join(tensors)}, = {text.name(_handles.tensor_maker(kinds))}(*arrays)")
    pairs = zip(tensors, kinds, strict=True)
    large = [f"{made}._impl.position" for made, (kind, _) in pairs if kind.nbytes >= WORTH_A_LINE]
    if large:
        text.add(f"{' = '.join(large)} = line(2)")
    if _is_displayed(structure) and len(tensors) <= _MOST_LEAVES:
        sample = tree_unflatten(structure, range(len(tensors)))
        text.add(f"return {_display(text, sample, tensors)}")
    else:
        rebuild, held = text.name(tree_unflatten), text.name(structure)
        text.add(f"return {rebuild}({held}, [{', '.join(tensors)}])")
    made_leave: Leave = text.function("leave")
    return made_leave


def _is_displayed(structure: PyTreeDef) -> bool:
    if structure.kind.name not in _DISPLAYED:
        return False
    return all(map(_is_displayed, structure.children()))


def _display(text: _Text, sample: Any, tensors: list[str]) -> str:
    """An expression for a tree; `sample` has positions as leaves."""
    kind = type(sample)
    if isinstance(sample, int):
        return tensors[sample]
    if sample is None:
        return "None"
    if kind is dict:
        pairs = (f"{text.name(k)}: {_display(text, v, tensors)}" for k, v in sample.items())
        return f"{{{', '.join(pairs)}}}"
    inner = "".join(f"{_display(text, each, tensors)}, " for each in sample)
    if kind is list:
        return f"[{inner}]"
    return f"({inner})" if kind is tuple else f"{text.name(kind)}({inner})"
