"""Run the user's own Python or NumPy function as an op: `call_custom_kernel`.

The function is a parameter of one op. Under `vmap` the op gets leading axes: the function handles
them itself (`vectorized`) or is called once for each row. Its derivatives are functions on tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.common import dtypes
from weft.core.common.context import current_device
from weft.core.common.factors import Factors
from weft.core.common.handler import installed
from weft.core.common.parameters import as_flag, as_function, shown
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.trees import (
    PyTreeDef,
    tree_flatten,
    tree_leaves,
    tree_paths,
    tree_structure,
    tree_unflatten,
)
from weft.core.common.types import Array, Shape, TensorType
from weft.core.tensor.convert import PYTHON_SCALARS, to_array
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.tracing import is_type
from weft.errors import (
    ArgumentError,
    ConversionError,
    DTypeError,
    MissingRuleError,
    ShapeError,
    TreeError,
    WeftError,
)
from weft.ops.base import Cost, Operation, Tangents, call_multiple
from weft.ops.control.subgraphs import as_operands, repeat, weak
from weft.ops.creation import zeros_like


@dataclass(frozen=True)
class Kernel:
    """A user's function with everything the op must know about it."""

    function: Callable[..., Any]
    name: str
    inputs: PyTreeDef
    outputs: PyTreeDef
    types: tuple[TensorType, ...]
    vjp: Callable[..., Any] | None
    jvp: Callable[..., Any] | None
    vectorized: bool

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def run(self, arrays: tuple[Array, ...], lead: Shape = ()) -> tuple[Array, ...]:
        """Call the function on read-only arrays and check what it returns."""
        shown = [_read_only(a) for a in arrays]
        with installed(None):  # weft's own ops in the function mean what they mean outside
            result = self.function(*tree_unflatten(self.inputs, shown))
        leaves, structure = tree_flatten(result)
        if structure != self.outputs:
            raise TreeError(f"{self.name}: returned {structure}, result_type says {self.outputs}")
        paths = tree_paths(result)
        triples = zip(leaves, self.types, paths, strict=True)
        return tuple(self._checked(x, kind, path, lead) for x, kind, path in triples)

    def _checked(self, value: Any, kind: TensorType, path: str, lead: Shape) -> Array:
        """A copy of one result, which the function may go on to change, of exactly its type."""
        where = f"{self.name}: result{path}"
        if type(value) in PYTHON_SCALARS and weak(value, kind.dtype) == kind.dtype:
            value = to_array(value, kind.dtype, where)
        elif type(value) in PYTHON_SCALARS:
            name = dtypes.name_of(kind.dtype)
            raise DTypeError(f"{where}: result_type says {name}, got {value!r}")
        if not isinstance(value, np.ndarray | np.generic):
            raise ConversionError(
                f"{where}: expected a NumPy array of {kind}, got {type(value).__name__}"
            )
        if value.dtype != kind.dtype:
            raise DTypeError(
                f"{where}: result_type says {dtypes.name_of(kind.dtype)}, got {value.dtype}"
            )
        if value.shape != lead + kind.shape:
            axes = f" after the batch axes {lead}" if lead else ""
            raise ShapeError(
                f"{where}: result_type says shape {kind.shape}{axes}, got {value.shape}"
            )
        return np.array(value, order="C")


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


class CustomKernel(Operation):
    """Run a user's function on arrays; `lead` are batch axes that every operand has in front."""

    multiple = True
    leaf = False
    widen = False
    reasons = {
        "notation": "what the function does along each axis is its own affair",
        "kernel": "is Python code of the user's",
        "examples": "needs a function of the user's",
    }

    def index(self, *types: Any, **params: Any) -> Factors:
        raise self.missing("notation")

    def infer(
        self, *types: TensorType, kernel: Kernel, lead: Shape, **params: Any
    ) -> tuple[TensorType, ...]:
        return tuple(TensorType(lead + kind.shape, kind.dtype) for kind in kernel.types)

    def eval(self, *arrays: Array, kernel: Kernel, lead: Shape, **params: Any) -> tuple[Array, ...]:
        if kernel.vectorized or not lead:
            return kernel.run(arrays, lead)
        results = tuple(np.empty(lead + kind.shape, kind.dtype) for kind in kernel.types)
        for place in np.ndindex(*lead):
            row = kernel.run(tuple(a[(*place, ...)] for a in arrays))
            for result, value in zip(results, row, strict=True):
                result[place] = value
        return results

    def batch(
        self, size: int, args: Any, hidden: Any, *, kernel: Kernel, lead: Shape, **params: Any
    ) -> Any:
        operands = tuple(x if h else repeat(x, size) for x, h in zip(args, hidden, strict=True))
        results = call_multiple(self, operands, {"kernel": kernel, "lead": (size, *lead), **params})
        return results, (True,) * len(results)

    def jvp(
        self, primals: Any, tangents: Any, out: Any, *, kernel: Kernel, lead: Shape, **params: Any
    ) -> Any:
        push = kernel.jvp
        if push is None:
            raise _no_rule(kernel, "jvp")
        moving = [dtypes.is_inexact(p.dtype) for p in primals]
        pairs = zip(primals, tangents, moving, strict=True)
        given = tuple(zeros_like(p) if t is None else t for p, t, m in pairs if m)
        count = len(primals)

        def rule(*tensors: Tensor) -> list[Any]:
            rest = iter(tensors[count + len(out) :])
            moves = [next(rest) if m else None for m in moving]
            points, steps = kernel.inputs, kernel.inputs
            result = push(
                tree_unflatten(points, tensors[:count]),
                tree_unflatten(steps, moves),
                tree_unflatten(kernel.outputs, tensors[count : count + len(out)]),
            )
            return _leaves(kernel, "jvp", "result_type", kernel.outputs, result)

        return tuple(_over(rule, lead)(*primals, *out, *given))

    def vjp(
        self, primals: Any, out: Any, ct: Any, *, kernel: Kernel, lead: Shape, **params: Any
    ) -> Tangents:
        pull = kernel.vjp
        if pull is None:
            raise _no_rule(kernel, "vjp")
        count, results = len(primals), len(out)

        def rule(*tensors: Tensor) -> list[Any]:
            found = pull(
                tree_unflatten(kernel.inputs, tensors[:count]),
                tree_unflatten(kernel.outputs, tensors[count : count + results]),
                tree_unflatten(kernel.outputs, tensors[count + results :]),
            )
            return _leaves(kernel, "vjp", "the arguments", kernel.inputs, found)

        parts = _over(rule, lead)(*primals, *out, *ct)
        for position, (part, primal) in enumerate(zip(parts, primals, strict=True)):
            if part is not None and part.type != primal.type:
                raise ShapeError(
                    f"{kernel.name}: vjp: argument leaf {position}: cotangent {part.type} for"
                    f" {primal.type}"
                )
        return tuple(parts)

    def cost(self, *types: TensorType, **params: Any) -> Cost:
        made = self.infer(*types, **params)
        moved = (*types, *made)
        return Cost(sum(t.size for t in moved), sum(t.nbytes for t in moved))


class CustomKernelWithEffects(CustomKernel):
    """The same for a function that does more than compute: it runs at the call, and every time."""

    pure = False


custom_kernel_op, custom_kernel_with_effects_op = CustomKernel(), CustomKernelWithEffects()


def _over(rule: Callable[..., list[Any]], lead: Shape) -> Callable[..., list[Any]]:
    """The rule for operands that all have `lead` axes in front."""
    for _ in lead:
        rule = FUNCTIONS["vmap"](rule)
    return rule


def _leaves(kernel: Kernel, rule: str, like: str, structure: PyTreeDef, found: Any) -> list[Any]:
    """What a user's rule returned, leaf by leaf; None where a leaf or a whole part is zero."""

    def is_none(x: Any) -> bool:
        return x is None

    wrong = TreeError(f"{kernel.name}: {rule} returned a tree that does not match {like}")
    if not structure.num_leaves:
        return []
    try:
        marks = tree_unflatten(structure, range(structure.num_leaves))
        parts, prefix = tree_flatten(found, is_leaf=is_none)
        ranges = prefix.flatten_up_to(marks)
    except ValueError:
        raise wrong from None
    leaves: list[Any] = []
    for part, covered in zip(parts, ranges, strict=True):
        if part is not None and not isinstance(covered, int):
            raise wrong
        leaves += [part] * len(tree_leaves(covered))
    return leaves


def _no_rule(kernel: Kernel, rule: str) -> WeftError:
    return MissingRuleError(
        f"{kernel.name}: no {rule} rule: call_custom_kernel was given no {rule}"
        f"\nhint: pass {rule}=…, or keep derivatives out with wf.stop_gradient(x)"
    )


@public
def call_custom_kernel(
    kernel: Callable[..., Any],
    *args: Any,
    result_type: Any,
    vjp: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    vectorized: bool = False,
    pure: bool = True,
    name: str | None = None,
) -> Any:
    """Run `kernel` on the NumPy arrays of `args`, as an op that works in every transform.

    `result_type` is a shape and a dtype, or a tree of such pairs: what the kernel returns is
    checked against it and copied. Under `vmap` a `vectorized` kernel gets arrays with the batch
    axes in front and returns such; another is called once for each row.

    Derivatives are functions on trees of tensors: `vjp(primals, result, cotangent)` gives a
    cotangent for each argument, `jvp(primals, tangents, result)` the tangent of the result; None
    is zero. A kernel with `pure=False` runs at the call, in order, and every time; of a pure one,
    equal calls may be one, and calls whose result nobody reads none.

    For an op with notation, kernels and costs of its own, derive from `weft.ops.Operation`
    and instantiate the class once.

    >>> call_custom_kernel(np.sort, np.ones(2), result_type=((2,), "float64")).tolist()
    [1.0, 1.0]
    """
    as_function("call_custom_kernel", "kernel", kernel)
    for rule, given in (("vjp", vjp), ("jvp", jvp)):
        if given is not None:
            as_function("call_custom_kernel", rule, given)
    if not isinstance(name, str | None):
        raise ArgumentError(f"call_custom_kernel: name must be a string, got {shown(name)}")
    label: str = name or getattr(kernel, "__name__", None) or type(kernel).__name__
    types, outputs = _result_types(label, result_type)
    leaves, inputs = tree_flatten(args)
    tensors = as_operands(label, leaves)
    record = Kernel(
        kernel, label, inputs, outputs, types, vjp, jvp, as_flag(label, "vectorized", vectorized)
    )
    try:
        hash(record)
    except TypeError as error:
        raise ArgumentError(
            f"call_custom_kernel: {label} and its rules must be hashable ({error})"
            "\nhint: pass a plain function or a method"
        ) from None
    params: dict[str, Any] = {"kernel": record, "lead": ()}
    if not tensors:
        params["device"] = current_device()
    op = custom_kernel_op if as_flag(label, "pure", pure) else custom_kernel_with_effects_op
    return tree_unflatten(outputs, call_multiple(op, tuple(tensors), params))


def _result_types(label: str, tree: Any) -> tuple[tuple[TensorType, ...], PyTreeDef]:
    """The leaves of `result_type`, which are types, tensors, or pairs (shape, dtype)."""

    def is_leaf(x: Any) -> bool:
        return is_type(x) or _is_pair(x)

    leaves, _ = tree_flatten(tree, is_leaf=is_leaf)
    structure = tree_structure(tree, is_leaf=is_leaf)
    kinds = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            kinds.append(leaf.type)
        elif is_type(leaf) or _is_pair(leaf):
            shape, dtype = leaf
            kinds.append(TensorType(tuple(shape), dtypes.as_dtype(dtype, op=label)))
        else:
            raise ArgumentError(
                f"{label}: result_type must hold types, got {type(leaf).__name__}"
                "\nhint: write TensorType(shape, dtype), or give a tensor of that type"
            )
    return tuple(kinds), structure


def _is_pair(x: Any) -> bool:
    """Whether `x` is a shape and a dtype."""
    if not isinstance(x, tuple) or len(x) != 2 or not isinstance(x[0], tuple):
        return False
    named = isinstance(x[1], str | np.dtype | type)
    return named and all(isinstance(size, int) for size in x[0])


__all__ = ["call_custom_kernel"]
