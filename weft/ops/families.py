"""Families of ops: what unary, binary, axis, reducing and shape-changing ops have in common.

Operands meet here: Python numbers take the dtype of the tensors beside them, dtypes are promoted by
explicit casts, and shapes are broadcast by explicit ops, before any handler sees the op.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from weft.config import settings
from weft.core.common import dtypes
from weft.core.common.context import current_device, default_float
from weft.core.common.events import watchers
from weft.core.common.factors import Factors
from weft.core.common.frozen import freeze
from weft.core.common.handler import current
from weft.core.common.slots import FUNCTIONS, OPS
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.core.tensor.convert import PYTHON_SCALARS, device_of, is_double, scalar, to_tensor
from weft.core.tensor.number import Number, python_type, weak_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import DTypeError, ShapeError
from weft.ops.base import Example, Linear, Operation, Tangents, call
from weft.ops.exact import calls_functions
from weft.ops.ready import CALLS, Pairs, filled, look, made, most_at_once, remember, told
from weft.runtime.cpu.client import quietly, thread

_WEAK = (*PYTHON_SCALARS, Number)
_NARROW_FROM = 1 << 14  # elements of narrow floats from which a call runs on a kernel
_exact: dict[Any, bool] = {}  # by op, dtypes and parameters: there are few

DOMAINS: dict[str, tuple[DType, ...]] = {
    "any": dtypes.ALL_DTYPES,
    "numeric": (*dtypes.INTEGERS, *dtypes.FLOATING, *dtypes.COMPLEX),
    "real": (*dtypes.INTEGERS, *dtypes.FLOATING),
    "ordered": (dtypes.bool_, *dtypes.INTEGERS, *dtypes.FLOATING),
    "inexact": (*dtypes.FLOATING, *dtypes.COMPLEX),
    "floating": dtypes.FLOATING,
    "complex": dtypes.COMPLEX,
    "bits": (dtypes.bool_, *dtypes.INTEGERS),
    "integer": dtypes.INTEGERS,
    "boolean": (dtypes.bool_,),
}
_NUMERIC = ("numeric", "real", "inexact", "floating")
_DOMAIN_SETS = {name: frozenset(members) for name, members in DOMAINS.items()}


class ElementwiseOperation(Operation):
    """All operands and the result have one shape: every factor is a batch factor."""

    domain: ClassVar[str] = "numeric"  # dtypes the op has a meaning for
    result: ClassVar[str] = "same"  # dtype of the result: same, bool, or real (of a complex)
    kernel_from = 1 << 19  # threads share the work of so many; two such calls are compiled as one
    light = True

    def __init__(self) -> None:
        super().__init__()
        FUNCTIONS[self.name] = self

    def index(self, *types: TensorType, **params: Any) -> Factors:
        return Factors.parse(", ".join(["..."] * len(types)) + " -> ...", [t.rank for t in types])

    def dtype(self, *found: DType, **params: Any) -> DType:
        if self.result == "bool":
            return dtypes.bool_
        return dtypes.real_of(found[-1]) if self.result == "real" else found[-1]

    def eval(self, *args: Any, **params: Any) -> Any:
        return self.ufunc(*args)

    def is_exact(self, *found: DType, **params: Any) -> bool:
        key = (self, found, freeze(params)) if params else (self, found)
        known = _exact.get(key)
        if known is None:
            floats = all(map(dtypes.is_inexact, found))
            known = _exact[key] = not (floats and calls_functions(self, found, params))
        return known

    def is_large(self, *operands: Any, **params: Any) -> bool:
        # NumPy converts narrow floats element by element, there and back.
        narrow = any([dtypes.is_narrow(x.dtype) for x in operands])
        least = min(self.kernel_from, _NARROW_FROM) if narrow else self.kernel_from
        return max([x.size for x in operands], default=0) >= least

    def compute_dtype(self, dtype: DType) -> DType:
        """The dtype the op computes in: integers become floats where only floats make sense."""
        if dtype in _DOMAIN_SETS[self.domain]:
            return dtype
        if self.domain in _NUMERIC and dtypes.is_bool(dtype):
            raise DTypeError(f"{self}: bool is not a number\nhint: cast with x.astype(…) first")
        if self.domain in ("inexact", "floating") and not dtypes.is_complex(dtype):
            return default_float()
        raise DTypeError(
            f"{self}: no meaning for {dtypes.name_of(dtype)} (takes"
            f" {', '.join(map(dtypes.name_of, DOMAINS[self.domain]))})"
        )


class UnaryOperation(ElementwiseOperation):
    """One operand. `derivative` gives f'(x) from x and y = f(x); both modes follow."""

    direct: ClassVar[str] = ""  # NumPy's letters of the dtypes on which `ufunc` alone is the op

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        takes_floats = dtypes.float32 in _DOMAIN_SETS[cls.domain] and cls.result != "bool"
        cls.direct = "fd" if takes_floats else ""

    def __call__(self, x: Any, /) -> Tensor:
        if type(x) is Tensor and current() is None:
            found = self.directly(x)
            if found is not None:
                return found
        if type(x) is Tensor and x._impl.dtype.char in self.direct:
            return call(self, (x,), {})
        tensor = to_tensor(x, op=self.name)
        return call(self, (cast(tensor, self.compute_dtype(tensor.dtype)),), {})

    def directly(self, x: Tensor) -> Tensor | None:
        impl = x._impl
        data, shape, dtype = impl.data, impl.shape, impl.dtype
        if type(data) is not np.ndarray:
            return None
        key = (self, shape, dtype)
        found = CALLS.get(key)
        if found is None:
            found = remember(key, look(self, (shape,), dtype))
        kernel, kind, size = found
        if size > most_at_once(self):
            return None
        if kernel is not None:
            array = kernel(data)
            return None if array is None else made(array, kind, impl.device)
        if watchers:
            return made(told(self, dtype, kind, data), kind, impl.device)
        if size > settings.small_elements:
            return made(filled(self.ufunc, kind, impl.device, data), kind, impl.device)
        try:
            return made(thread.run(self.ufunc, data), kind, impl.device)
        except (AttributeError, RuntimeError):  # this thread's first kernel, or one in another
            return made(quietly()(self.ufunc, data), kind, impl.device)

    def derivative(self, x: Tensor, y: Tensor) -> Tensor:
        """f'(x), given x and y = f(x)."""
        raise self.missing("vjp")

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        if self.linear is not Linear.NO:
            return super().jvp(primals, tangents, out, **params)
        return tangents[0] * self.derivative(primals[0], out)

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        return (ct * self.derivative(primals[0], out),)

    def has(self, rule: str) -> bool:
        if rule in ("vjp", "jvp") and type(self).derivative is UnaryOperation.derivative:
            given = getattr(type(self), rule) is not getattr(UnaryOperation, rule)
            return given or (rule == "jvp" and self.linear is not Linear.NO)
        return super().has(rule)


class BinaryOperation(Pairs, ElementwiseOperation):
    """Two operands, promoted and broadcast to each other."""

    direct: ClassVar[str] = ""  # NumPy's letters of the dtypes on which `ufunc` alone is right

    def __call__(self, x1: Any, x2: Any, /) -> Tensor:
        if current() is None:
            found = None
            if type(x1) is not Tensor:
                if type(x2) is Tensor:
                    found = self._with_number(x2, x1, True)
            elif type(x2) is Tensor:
                found = self.directly(x1, x2)
            else:
                found = self._with_number(x1, x2, False)
            if found is not None:
                return found
        return call(self, coerce(self, x1, x2), {})

    def _with_number(self, x: Tensor, number: Any, is_first: bool) -> Tensor | None:
        """A small float tensor and a Python number: NumPy's weak scalars are ours."""
        impl = x._impl
        data, dtype = impl.data, impl.dtype
        if type(data) is not np.ndarray or type(number) not in (float, int):
            return None
        shapes = ((), impl.shape) if is_first else (impl.shape, ())
        key = (self, *shapes, dtype)
        found = CALLS.get(key)
        if found is None:
            found = remember(key, look(self, shapes, dtype))
        kernel, kind, size = found
        if kernel is not None or size > most_at_once(self) or dtype.kind != "f":
            return None
        operands = (number, data) if is_first else (data, number)
        try:
            if watchers:
                return made(told(self, dtype, kind, *operands), kind, impl.device)
            if size > settings.small_elements:
                return made(filled(self.ufunc, kind, impl.device, *operands), kind, impl.device)
            return made(quietly()(self.ufunc, *operands), kind, impl.device)
        except OverflowError:  # an integer past every float: the full path says so
            return None

    def derivatives(self, x: Tensor, y: Tensor, out: Tensor) -> tuple[Any, Any]:
        """(∂f/∂x, ∂f/∂y); `None` where the derivative is zero everywhere."""
        raise self.missing("vjp")

    def jvp(self, primals: Any, tangents: Any, out: Any, **params: Any) -> Any:
        if self.linear is not Linear.NO:
            return super().jvp(primals, tangents, out, **params)
        total = None
        x, y = primals
        for slope, t in zip(self.derivatives(x, y, out), tangents, strict=True):
            if t is not None and slope is not None:
                total = t * slope if total is None else total + t * slope
        return total

    def vjp(self, primals: Any, out: Any, ct: Any, **params: Any) -> Tangents:
        slopes = self.derivatives(primals[0], primals[1], out)
        return tuple(None if slope is None else ct * slope for slope in slopes)

    def has(self, rule: str) -> bool:
        if rule in ("vjp", "jvp") and type(self).derivatives is BinaryOperation.derivatives:
            given = getattr(type(self), rule) is not getattr(BinaryOperation, rule)
            return given or (rule == "jvp" and self.linear is not Linear.NO)
        return super().has(rule)


class LogicalAxisOperation(Operation):
    """An op with axis parameters; they are negative, counted from the right, so batch leads."""


class ReduceOperation(LogicalAxisOperation):
    """Reduces `axes` (negative, ascending) away."""

    examples = (Example({"axes": (-1,)}), Example({"axes": (-2,)}), Example({"axes": (-2, -1)}))
    light = True

    def index(self, x: TensorType, *, axes: tuple[int, ...], **params: Any) -> Factors:
        depth = -min(axes, default=0)
        names = [f"r{k}" if -k in axes else f"i{k}" for k in range(depth, 0, -1)]
        kept = [n for n in names if n[0] == "i"]
        text = f"... {' '.join(names)} -> ... {' '.join(kept)}"
        return Factors.parse(text, (x.rank,), whole=self.whole)

    def body(self, s: Any, x: Any, **params: Any) -> Any:
        return x

    def is_exact(self, *found: DType, **params: Any) -> bool:
        return not dtypes.is_inexact(found[0])  # the order of floats matters, zeros' signs too


class LogicalShapeOperation(LogicalAxisOperation):
    """Moves elements without computing: its result is described by `at`, an index map."""

    linear = Linear.JOINTLY
    work = 0
    widen = False

    @abstractmethod
    def at(self, s: Any, index: Any, read: Any, *types: Any, **params: Any) -> Any: ...


class CollectiveOperation(Operation):
    """Moves or combines pieces between the devices of a mesh; the value stays what it is."""

    linear = Linear.JOINTLY
    work = 0
    widen = False
    factors = "... -> ..."
    reasons: ClassVar[dict[str, str]] = {
        "kernel": "moves pieces between devices",
        "examples": "needs a mesh",
    }

    def eval(self, *args: Any, **params: Any) -> Any:
        return args[0]

    @abstractmethod
    def communicate(self, *args: Any, **params: Any) -> Any:
        """The result for operands that are shards, or tensors of one device."""

    def layout_of(self, *specs: Any, **params: Any) -> Any:
        """The layout of the result, if those of the operands decide it."""
        return None


def cast(x: Tensor, dtype: DType, op: str = "astype") -> Tensor:
    """`x` itself, or an explicit cast of it; an imaginary part must find room."""
    if type(x) is Number:
        return x.weakly(dtype)
    if x.dtype == dtype:
        return x
    if dtypes.is_complex(x.dtype) and not (dtypes.is_complex(dtype) or dtypes.is_bool(dtype)):
        raise DTypeError(
            f"{op}: {dtypes.name_of(dtype)} has no room for an imaginary part\n"
            "hint: take wf.real(x) or wf.abs(x) first"
        )
    return call(OPS["cast"], (x,), {"dtype": dtype})


def fitting(op: str, tensor: Tensor, value: Any) -> Tensor:
    """A number, array or tensor in `tensor`'s dtype; an error where that would lose something."""
    _, found = as_tensors(op, tensor, value)
    if dtypes.promote(tensor.dtype, found.dtype, op=op) != tensor.dtype:
        raise DTypeError(
            f"{op}: a value of dtype {dtypes.name_of(found.dtype)} does not fit a tensor of"
            f" {dtypes.name_of(tensor.dtype)}\nhint: cast one of them with astype"
        )
    return cast(found, tensor.dtype)


def broadcast(x: Tensor, shape: Shape) -> Tensor:
    """`x` itself, or an explicit broadcast of it."""
    if x.shape == shape:
        return x
    return call(OPS["broadcast_to"], (x,), {"rank": x.ndim, "shape": shape})


def coerce(op: ElementwiseOperation, *args: Any) -> tuple[Tensor, ...]:
    """Operands as tensors of one dtype whose shapes fit: missing leading axes may stay missing."""
    if len(args) == 2 and type(args[0]) is Tensor and type(args[1]) is Tensor:
        a, b = args[0]._impl, args[1]._impl
        if a.dtype is b.dtype and a.shape == b.shape and a.dtype in _DOMAIN_SETS[op.domain]:
            return args
    tensors = as_tensors(op.name, *args)
    dtype = tensors[0]._impl.dtype
    if dtype in _DOMAIN_SETS[op.domain] and all([t._impl.dtype is dtype for t in tensors]):
        return align(op.name, tensors)
    dtype = op.compute_dtype(dtypes.promote_all(*(t.dtype for t in tensors), op=op.name))
    return align(op.name, tuple(cast(t, dtype) for t in tensors))


def as_tensors(op: str, *args: Any, beside: tuple[Any, ...] = ()) -> tuple[Tensor, ...]:
    """Operands as tensors; a Python number takes its dtype from the tensors among them.

    All are where the first tensor is, among them or else `beside` them.
    """
    for x in args:
        if type(x) is not Tensor or x._impl.dtype is not args[0]._impl.dtype:
            break
    else:
        return args
    if len(args) == 2 and type(args[0]) is Tensor and type(args[1]) in PYTHON_SCALARS:
        x, number = args
        dtype = dtypes.weak_dtype(type(number), x.dtype, default_float())
        return x, scalar(number, dtype, x.device, op)
    strong = [x for x in args if type(x) not in _WEAK]
    if not strong:
        return tuple(to_tensor(x, beside=beside, op=op) for x in args)
    device = device_of(*strong, *beside) or current_device()
    listed = any(isinstance(x, list | tuple) for x in strong)
    wide = tuple(filter(is_double, (*strong, *beside)))[:1] if listed else ()
    found = {id(x): to_tensor(x, like=device, beside=wide, op=op) for x in strong}
    dtype = dtypes.promote_all(*(t.dtype for t in found.values()), op=op)
    for x in args:
        if type(x) in _WEAK:
            dtype = dtypes.weak_dtype(python_type(x), dtype, default_float())
    return tuple(
        found[id(x)] if id(x) in found else weak_tensor(x, dtype, device, op) for x in args
    )


def align(op: str, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Make size-1 axes explicit copies; an operand that only lacks leading axes stays as it is."""
    shapes = [t._impl.shape for t in tensors]
    if len({()}.union(shapes)) <= 2:  # one shape, beside numbers perhaps
        return tensors
    full = broadcast_shape(op, *shapes)
    fitted = []
    for tensor, shape in zip(tensors, shapes, strict=True):
        own = full[len(full) - len(shape) :]
        fitted.append(tensor if own == shape else broadcast(tensor, own))
    return tuple(fitted)


def broadcast_shape(op: str, *shapes: Shape) -> Shape:
    """The common shape, or a `ShapeError` naming operand and axis."""
    rank = max(map(len, shapes))
    full = [1] * rank
    for operand, shape in enumerate(shapes):
        for axis, size in enumerate(shape, rank - len(shape)):
            if full[axis] == 1:
                full[axis] = size
            elif size not in (1, full[axis]):
                raise ShapeError(
                    f"{op}: operand {operand}, axis {axis - rank}: size {size} does not broadcast"
                    f" with {full[axis]} (shapes {', '.join(map(str, shapes))})"
                )
    return tuple(full)


__all__ = [
    "Array",
    "BinaryOperation",
    "CollectiveOperation",
    "ElementwiseOperation",
    "LogicalAxisOperation",
    "LogicalShapeOperation",
    "ReduceOperation",
    "UnaryOperation",
    "align",
    "as_tensors",
    "broadcast",
    "broadcast_shape",
    "cast",
    "coerce",
    "fitting",
]
