"""`Operation`: a stateless singleton that carries every rule of one tensor operation.

An op is one definition. Its notation gives shape, batching, sharding, cost and loop nest; its NumPy
`eval` is the meaning; `body` (one point of the loop nest) or `at` (where a result element comes
from) gives kernels; `vjp` and `jvp` close it. What can be derived is derived here.

Law: leading axes are batch, `op(x)[i] == op(x[i])`; axis parameters count from the right; an
operand may lack leading axes that others have. So one batching rule serves every op.
"""

from __future__ import annotations

import re
from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, ClassVar, TypeAlias, cast

from weft.core.common.factors import Factors
from weft.core.common.handler import current, perform
from weft.core.common.slots import FUNCTIONS, OPS
from weft.core.common.types import Array, DType, Shape, TensorType
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import MissingRuleError, ShapeError, WeftError

Tensors: TypeAlias = tuple[Tensor, ...]
Tangents: TypeAlias = "tuple[Tensor | None, ...]"
Types: TypeAlias = "TensorType | tuple[TensorType, ...]"


class Linear(Enum):
    """In what sense an op is linear in its operands (constants aside); gives jvp and transfer."""

    NO = auto()
    JOINTLY = auto()  # f(x+x', y+y') = f(x, y) + f(x', y'): add, sum, transpose
    EACH = auto()  # linear in each operand, the others held fixed: multiply, matmul


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call costs: arithmetic operations, and bytes read and written."""

    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Example:
    """A call for the law tests: parameters, the operands' core shapes, and what they hold.

    Letters: f any float, p positive, u inside (-1, 1), q inside (0, 1), g greater than 1, o rising,
    c complex, i a small position, n an integer, b bool, k a random key, m a well-conditioned
    matrix, s a symmetric positive definite one, l a lower one.
    """

    params: dict[str, Any]
    shapes: tuple[Shape, ...] = ()
    sample: str = ""


class _OperationType(ABCMeta):
    """Abstract methods without virtual subclasses, the search for which takes milliseconds."""

    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__


class Operation(metaclass=_OperationType):
    """One operation. Subclass, give the rules, instantiate once."""

    factors: ClassVar[str] = ""
    linear: ClassVar[Linear] = Linear.NO
    constants: ClassVar[tuple[int, ...]] = ()  # operands that carry no derivative: indices, masks
    stops: ClassVar[bool] = False  # whether results are constants to every differentiation
    whole: ClassVar[str] = ""  # factors that one device must hold entirely
    work: ClassVar[int] = 1  # arithmetic operations at one point of the loop nest
    combine: ClassVar[str] = "add"  # how points are reduced over contracted factors
    base: ClassVar[int | None] = None  # the operand that what is contracted is added to
    view: ClassVar[bool] = False  # on data the result is a view: no element is touched
    pure: ClassVar[bool] = True  # equal calls give equal results and may be shared or dropped
    again: ClassVar[bool] = False  # what a call does besides computing may happen once more
    follows: ClassVar[int | None] = None  # the operand that says where the result is
    moves: ClassVar[bool] = False  # the result is where `device` says, wherever the operand is
    multiple: ClassVar[bool] = False  # results are a tuple, even when there is one
    ufunc: ClassVar[Any] = None  # a NumPy ufunc that is the whole meaning and can write into `out`
    home: ClassVar[Any] = None  # the ambient handler that alone gives the op its meaning
    bare: ClassVar[bool] = False  # `eval` copies, widens and checks, and takes `out=`, memory
    leaf: ClassVar[bool] = True  # `eval` runs no other op and no user code
    selective: ClassVar[bool] = False  # `vjp` takes `needed`: which operands want a cotangent
    sparse: ClassVar[bool] = False  # `vjp` takes None for the cotangent of a result nobody used
    kernel_from: ClassVar[int] = (
        0  # elements from which a single call runs the op's kernel; 0: never
    )
    light: ClassVar[bool] = False  # goes over its operands once, see `most_at_once`
    heavy: ClassVar[bool] = False  # an element takes NumPy longer than to pack it for the kernel
    widen: ClassVar[bool] = True  # narrow floats are computed in float32 and rounded once
    given: ClassVar[tuple[str, ...]] = ()  # parameters that are a user's rules for derivatives
    reasons: ClassVar[dict[str, str]] = {}  # rules this op cannot have, each with the reason
    examples: ClassVar[tuple[Example, ...]] = ()  # calls the law tests make; () is one plain call
    sample: ClassVar[str] = ""  # what operands of examples are drawn from, a letter each

    saves: ClassVar[bool] = False  # has `forward`
    breaks_law: ClassVar[bool] = False  # has `batch`
    writes: ClassVar[bool] = False  # has `write`

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.saves = cls.forward is not Operation.forward
        cls.breaks_law = cls.batch is not Operation.batch
        cls.writes = cls.write is not Operation.write

    def __init__(self) -> None:
        self.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()
        self.__name__ = self.name
        self.__doc__ = type(self).__doc__
        if OPS.setdefault(self.name, self) is not self:
            raise TypeError(f"op {self.name!r} is defined twice")

    def __call__(self, *args: Any, **params: Any) -> Any:
        return call(self, tuple(to_tensor(x, beside=args, op=self.name) for x in args), params)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str | tuple[Any, ...]:
        return _lookup, (self.name,)

    # -- rules an op gives -----------------------------------------------------------------

    @abstractmethod
    def eval(self, *args: Any, **params: Any) -> Any:
        """NumPy reference: what the op means. Also the first tier's kernel."""

    def write(self, out: Array, *args: Any, **params: Any) -> None:
        """`eval` into memory that is there already; only worth giving for large results."""
        raise self.missing("write")

    def body(self, s: Any, *args: Any, **params: Any) -> Any:
        """One point of the loop nest, on scalars; `s` builds the target's instructions."""
        raise self.missing("body")

    def at(self, s: Any, index: Any, read: Any, *types: Any, **params: Any) -> Any:
        """The result's element at `index`; `read(operand, index)` loads one scalar."""
        raise self.missing("at")

    def into(self, s: Any, index: Any, read: Any, *types: Any, **params: Any) -> Any:
        """Where the update at `index` goes and its value; updates meet by `combine`."""
        raise self.missing("into")

    def vjp(self, *args: Any, **params: Any) -> Tangents:
        """`vjp(primals, out, ct)`: pull the cotangent back to each operand; `None` is zero.

        A contribution may have leading axes its operand lacks; whoever calls the rule sums them.
        """
        raise self.missing("vjp")

    def forward(self, *args: Any, **params: Any) -> Any:
        """`forward(primals)`: only for ops that save something for `pull`: (result, saved)."""
        raise self.missing("forward")

    def pull(self, *args: Any, **params: Any) -> Tangents:
        """`pull(primals, saved, ct)`: the `vjp` of an op with `forward`, from what that saved."""
        raise self.missing("pull")

    def batch(self, *args: Any, **params: Any) -> Any:
        """`batch(size, args, hidden)`: only for ops that break the law; (results, mapped).

        `mapped` says for each result whether its leading axis is batch.
        Operands marked in `hidden` have one leading axis more than the op expects.
        """
        raise self.missing("batch")

    # -- rules that are derived ------------------------------------------------------------

    def repeated(self, types: Any, params: dict[str, Any]) -> Callable[..., Any]:
        """`eval` of calls that come again and again on small arrays, as a function of these."""
        return partial(self.eval, **params)

    def prepared(self, types: Any, params: dict[str, Any]) -> Any:
        """`f(*arrays, out=…)` for a call that comes again and again; only for `bare` ops."""
        return partial(self.eval, **params)

    def native(self, types: Any, params: dict[str, Any]) -> Any:
        """What does a call without Python, if anything does (a `Reducer`); only for `bare` ops."""
        return None

    def index(self, *types: Any, **params: Any) -> Factors:
        """The op's factors for operands of these types."""
        return Factors.parse(self.factors, [len(t.shape) for t in types], whole=self.whole)

    def dtype(self, *dtypes: Any, **params: Any) -> Any:
        """Dtype of the result (or of each result)."""
        return dtypes[0]

    def infer(self, *types: Any, **params: Any) -> Types:
        """Shape and dtype of the result, or an error that names this op."""
        try:
            shapes = self.index(*types, **params).result_shapes([t.shape for t in types])
        except ShapeError as error:
            raise ShapeError(f"{self}: {error}") from None
        dtypes = self.dtype(*(t.dtype for t in types), **params)
        if isinstance(dtypes, tuple):
            return tuple(map(TensorType, shapes, dtypes))
        return TensorType(shapes[0], dtypes)

    def jvp(self, *args: Any, **params: Any) -> Any:
        """`jvp(primals, tangents, out)`: push tangents forward (`None` is 0); derived if linear."""
        primals, tangents = args[:2]
        if self.linear is Linear.NO:
            raise self.missing("jvp")
        if self.linear is Linear.JOINTLY:
            zeros = FUNCTIONS["zeros_like"]
            moved = (
                p if i in self.constants else (zeros(p) if t is None else t)
                for i, (p, t) in enumerate(zip(primals, tangents, strict=True))
            )
            return call(self, tuple(moved), params)
        total = None
        for i, t in enumerate(tangents):
            if t is not None:
                term = call(self, (*primals[:i], t, *primals[i + 1 :]), params)
                total = term if total is None else total + term
        return total

    def directly(self, *args: Any) -> Tensor | None:
        """The result where one kernel on small data is all there is to do, else None."""
        return None

    def is_exact(self, *dtypes: Any, **params: Any) -> bool:
        """Whether the reference gives the only bits there can be, on operands of these dtypes."""
        return True

    def is_large(self, *operands: Any, **params: Any) -> bool:
        """Whether a single call on these arrays, or types, runs the op's kernel, exact or not."""
        return 0 < self.kernel_from <= max([x.size for x in operands], default=0)

    def places(self, **params: Any) -> tuple[Any, ...] | None:
        """The devices of the results, where calls inside decide; operands may be anywhere then."""
        return None

    def is_view(self, array: Any, **params: Any) -> bool:
        """Whether the result on this data shares its memory."""
        return self.view

    def sharding_rule(self, *types: Any, **params: Any) -> Factors:
        """Einsum-like factors for propagation; `whole` ones are never split."""
        return self.index(*types, **params)

    def _transform_shard_kwargs(self, shard: Any, **params: Any) -> dict[str, Any]:
        """Parameters for one shard; ops whose parameters name global positions override it."""
        return params

    def cost(self, *types: Any, **params: Any) -> Cost:
        """Arithmetic and memory traffic of one call."""
        results = self.infer(*types, **params)
        made = (results,) if isinstance(results, TensorType) else results
        points = self.index(*types, **params).points([t.shape for t in types])
        return Cost(self.work * points, sum(t.nbytes for t in (*types, *made)))

    def missing(self, rule: str) -> WeftError:
        """The error for a rule this op does not have, with the declared reason if there is one."""
        reason = self.reasons.get(rule, "")
        hint = "\nhint: wf.stop_gradient(x) keeps derivatives out" if rule in ("vjp", "jvp") else ""
        return MissingRuleError(f"{self}: no {rule} rule{': ' + reason if reason else ''}{hint}")

    def has(self, rule: str) -> bool:
        """Whether the op gives (or derives) this rule."""
        if rule == "jvp" and self.linear is not Linear.NO:
            return True
        return getattr(type(self), rule) is not getattr(Operation, rule)


def call(op: Operation, args: Tensors, params: dict[str, Any]) -> Tensor:
    """Perform `op` on tensors that fit it already; results remember the scope they were made in."""
    made = perform(op, args, params)
    scope = current()
    if scope is not None:
        if isinstance(made, tuple):
            for tensor in made:
                tensor._scope = scope
        else:
            made._scope = scope
    result: Tensor = made
    return result


# The same function, typed for ops that give several results.
call_multiple = cast("Callable[[Operation, Tensors, dict[str, Any]], tuple[Tensor, ...]]", call)


def _lookup(name: str) -> Operation:
    op: Operation = OPS[name]
    return op


__all__ = [
    "Array",
    "Cost",
    "DType",
    "Example",
    "Factors",
    "Linear",
    "Operation",
    "Tangents",
    "Tensor",
    "TensorType",
    "Tensors",
    "call",
    "call_multiple",
]
