"""Derivatives of your own, under every transform: `custom_vjp` and `custom_jvp`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from inspect import signature
from itertools import zip_longest
from typing import Any

from weft.core.autograd.tape import fit
from weft.core.common import dtypes
from weft.core.common.device import Device
from weft.core.common.handler import is_running
from weft.core.common.parameters import as_function, as_integers
from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.trees import tree_flatten, tree_leaves, tree_unflatten
from weft.core.common.types import TensorType
from weft.core.graph.trace import Trace
from weft.core.tensor.convert import PYTHON_SCALARS, scalar, to_tensor
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import (
    ArgumentError,
    DifferentiationError,
    DTypeError,
    MissingRuleError,
    ShapeError,
    TreeError,
)
from weft.ops.base import Tangents, Tensors, call_multiple
from weft.ops.control.graph_call import (
    GraphCall,
    batched_trace,
    capture,
    inexact_places,
    is_data,
    scattered,
)
from weft.ops.control.subgraphs import mismatch, weak
from weft.ops.creation import zeros_like
from weft.ops.families import cast
from weft.ops.random.redrawn import Redrawn, redrawing
from weft.ops.random.state import threaded
from weft.transforms.vjp import linear_transpose


def _axes(hidden: Any, operands: Tensors) -> tuple[int | None, ...]:
    """Which operands a batched rule maps over.

    Constants that batching made come last: they are not mapped, and the rule inside, which knows
    nothing of them, gets its own operands alone.
    """
    mapped = tuple(0 if h else None for h in hidden)
    return (*mapped, *(None,) * (len(operands) - len(mapped)))


def _check_known(name: str, moving: Sequence[bool], own: int) -> None:
    """Refuse to derive by what a function uses besides its `own` operands: rules do not know it."""
    if any(moving[own:]):
        raise DifferentiationError(
            f"{name}: the function uses a tensor of an enclosing transform that is not among"
            " its arguments, so the rule cannot give its derivative"
            "\nhint: pass it as an argument"
        )


class CustomJvpCall(GraphCall):
    """Calls a trace; `rule(primals, tangents)` gives the tangents of its results.

    The rule knows the `own` operands in front.
    """

    given = ("rule",)
    selective = True

    def jvp(self, primals: Any, tangents: Any, out: Any, *, trace: Any, rule: Any, own: int) -> Any:
        _check_known("custom_jvp", [t is not None for t in tangents], own)
        pairs = zip(primals, tangents, strict=True)
        return rule(primals, tuple(zeros_like(p) if t is None else t for p, t in pairs))

    def vjp(
        self, primals: Any, out: Any, ct: Any, *, trace: Any, rule: Any, own: int, needed: Any = ()
    ) -> Tangents:
        _check_known("custom_jvp", needed, own)
        places = inexact_places(primals)
        zeros = [zeros_like(x) for x in primals]

        def push(*moved: Tensor) -> Any:
            tangents = list(zeros)
            for place, tangent in zip(places, moved, strict=True):
                tangents[place] = tangent
            return rule(primals, tuple(tangents))

        pulled = linear_transpose(push, *(primals[i] for i in places))(tuple(ct))
        return scattered(pulled, places, len(primals))

    def batch(
        self, size: int, args: Any, hidden: Any, /, *, trace: Any, rule: Any, own: int
    ) -> Any:
        mapped, operands = batched_trace(trace, args, hidden, size)
        axes, count = _axes(hidden, operands), len(args)

        def of_own(primals: Tensors, tangents: Tensors) -> Any:
            return rule(primals[:count], tangents[:count])

        params = {
            "trace": mapped,
            "rule": FUNCTIONS["vmap_again"](of_own, (axes, axes), 0, size),
            "own": own,
        }
        results = call_multiple(self, operands, params)
        return results, (True,) * len(results)


class CustomVjpCall(GraphCall):
    """Calls a trace; `ahead` gives (results, saved) and `back(saved, ct)` the cotangents.

    The rules know the `own` operands in front.
    """

    given = ("ahead", "back")
    selective = True

    def forward(self, args: Any, *, ahead: Any, own: int, needed: Any = (), **params: Any) -> Any:
        _check_known("custom_vjp", needed, own)
        return ahead(*args)

    def pull(self, primals: Any, saved: Any, ct: Any, *, back: Any, **params: Any) -> Any:
        return back(saved, tuple(ct), primals)

    def vjp(
        self,
        primals: Any,
        out: Any,
        ct: Any,
        *,
        ahead: Any,
        back: Any,
        own: int,
        needed: Any = (),
        **params: Any,
    ) -> Any:
        _check_known("custom_vjp", needed, own)
        return back(ahead(*primals)[1], tuple(ct), primals)

    def jvp(
        self, primals: Any, tangents: Any, out: Any, *, ahead: Any, back: Any, own: int, **_: Any
    ) -> Any:
        """The transpose of `back`, which is the transpose of the derivative."""
        _check_known("custom_vjp", [t is not None for t in tangents], own)
        _, saved = ahead(*primals)
        places = [i for i, t in enumerate(tangents) if t is not None]
        moving = inexact_places(out)  # integers and bools carry no derivative

        def pull(*ct: Tensor) -> Any:
            full = zip(out, scattered(ct, moving, len(out)), strict=True)
            found = back(saved, tuple(zeros_like(y) if c is None else c for y, c in full), primals)
            pairs = ((found[i], primals[i]) for i in places)
            return tuple(zeros_like(p) if c is None else fit(c, p) for c, p in pairs)

        transposed = linear_transpose(pull, *(out[i] for i in moving))
        moved = transposed(tuple(tangents[i] for i in places))
        return scattered(moved, moving, len(out))

    def batch(
        self, size: int, args: Any, hidden: Any, /, *, trace: Any, ahead: Any, back: Any, own: int
    ) -> Any:
        mapped, operands = batched_trace(trace, args, hidden, size)
        axes, count, again = _axes(hidden, operands), len(args), FUNCTIONS["vmap_again"]

        def of_own(*tensors: Tensor) -> Any:
            return ahead(*tensors[:count])

        def filled(saved: Any, ct: Tensors, primals: Tensors) -> Any:
            found = back(saved, ct, primals[:count])
            pairs = zip_longest(primals, found)
            return tuple(zeros_like(p) if f is None else f for p, f in pairs)

        batched = again(filled, (0, 0, axes), 0, size)

        def fitted(saved: Any, ct: Tensors, primals: Tensors) -> Any:
            # An operand that is not mapped gets one cotangent for each slice: their sum is due
            # here, since an outer map would put its own axis before this one.
            return tuple(map(fit, batched(saved, ct, primals), primals))

        rules = {"ahead": again(of_own, axes, 0, size), "back": fitted}
        results = call_multiple(self, operands, {"trace": mapped, **rules, "own": own})
        return results, (True,) * len(results)


class CustomJvpCallWithEffects(CustomJvpCall):
    """The same for a function that does something besides computing: it runs at the call."""

    pure = False


class CustomVjpCallWithEffects(CustomVjpCall):
    """The same for a function that does something besides computing: it runs at the call."""

    pure = False


custom_jvp_op, custom_vjp_op = CustomJvpCall(), CustomVjpCall()
custom_jvp_with_effects_op = CustomJvpCallWithEffects()
custom_vjp_with_effects_op = CustomVjpCallWithEffects()


class _Leaves:
    """The leaves of a tree: tensors, and constants, such as numbers, that have no derivative."""

    def __init__(self, tree: Any) -> None:
        self.leaves, self.structure = tree_flatten(tree)
        self.places = [i for i, x in enumerate(self.leaves) if is_data(x)]

    @property
    def own(self) -> int:
        """How many of them are tensors."""
        return len(self.places)

    def tree(self, tensors: Sequence[Any] | None = None, constants: Sequence[Any] = ()) -> Any:
        """The tree, with other tensors in their places if they are given, and other constants."""
        full = list(constants or self.leaves)
        if tensors is not None:
            for place, tensor in zip(self.places, tensors, strict=True):
                full[place] = tensor
        return tree_unflatten(self.structure, full)


class Custom:
    """A function with rules of its own; common part of `custom_jvp` and `custom_vjp`."""

    def __init__(self, function: Callable[..., Any], nondiff_argnums: Sequence[int] = ()) -> None:
        self.function = as_function(type(self).__name__, "function", function)
        self.nondiff = as_integers(type(self).__name__, "nondiff_argnums", nondiff_argnums, low=0)
        self._has_defaults = _has_defaults(function)
        wrapper: Any = self
        update_wrapper(wrapper, function)

    def _positional(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments in order: rules take no keywords, and may need the others' values later."""
        if not (keywords or self._has_defaults):
            return tuple(map(_handle, args))
        bound = signature(self.function).bind(*args, **keywords)
        if bound.kwargs:
            raise ArgumentError(
                f"{type(self).__name__}: rules take positional arguments only, got keyword"
                f" {', '.join(bound.kwargs)}\nhint: make it positional"
            )
        bound.apply_defaults()
        return tuple(map(_handle, bound.args))

    def _split(self, args: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        if any(i >= len(args) for i in self.nondiff):
            raise DifferentiationError(
                f"{type(self).__name__}: nondiff_argnums {self.nondiff} for {len(args)} arguments"
            )
        fixed = [args[i] for i in self.nondiff]
        return fixed, [x for i, x in enumerate(args) if i not in self.nondiff]

    def _check_alive(self, args: tuple[Any, ...]) -> None:
        """Refuse to run a rule on tensors of a transform that has ended."""
        for i in self.nondiff:
            for x in tree_leaves(args[i]):
                owner = x.owner if isinstance(x, Tensor) else None
                if owner is not None and not (owner.ambient or is_running(owner)):
                    raise DifferentiationError(
                        f"{type(self).__name__}: argument {i} is in nondiff_argnums, and holds a"
                        f" tensor ({x.type}) of an enclosing {owner.title}, which rules cannot use"
                        "\nhint: take it out of nondiff_argnums, and give None as its cotangent"
                    )

    def _of_rest(self, args: tuple[Any, ...]) -> Callable[..., Any]:
        def run(*rest: Any) -> Any:
            remaining = iter(rest)
            full = [args[i] if i in self.nondiff else next(remaining) for i in range(len(args))]
            return self.function(*full)

        run.__name__ = getattr(self.function, "__name__", "function")
        return run

    def _captured(self, args: tuple[Any, ...], rest: _Leaves) -> Any:
        """The function of what can be differentiated, its operands, its result's structure.

        Beside these, where among the operands the keys are that it drew.
        """
        name, draws = type(self).__name__, Redrawn()
        with threaded(draws):
            found = capture(self._of_rest(args), rest.tree(), {}, label=name)
        _check_known(name, [_derives(x) for x in found[1]], rest.own)
        return *found, draws.places(found[1])


class custom_jvp(Custom):
    """A function whose derivative you give: `f.defjvp(rule)`, rule(primals, tangents).

    The rule returns (result, tangent of the result) and must be linear in the tangents; reverse
    mode is its transpose. Arguments that are numbers stay numbers, whose tangents are 0.

    >>> @custom_jvp
    ... def f(x):
    ...     return x * x
    >>> @f.defjvp
    ... def rule(primals, tangents):
    ...     return f(*primals), 10 * tangents[0]
    >>> FUNCTIONS["grad"](f)(3.0).item()
    10.0
    """

    rule: Callable[..., Any] | None = None

    def defjvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Give the rule; works as a decorator."""
        self.rule = as_function("defjvp", "rule", rule)
        return rule

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if self.rule is None:
            raise MissingRuleError(
                "custom_jvp: no rule was given\nhint: decorate one with f.defjvp"
            )
        args = self._positional(args, keywords)
        given, others = self._split(args)
        rest = _Leaves(tuple(others))
        trace, operands, shape, drawn = self._captured(args, rest)
        rule, still = self.rule, (0,) * len(rest.leaves)  # constants do not move

        def flat_rule(primals: Tensors, tangents: Tensors) -> Any:
            points = rest.tree(_handles(primals[: rest.own]))
            moves = rest.tree(_handles(tangents[: rest.own]), still)
            self._check_alive(args)
            with redrawing(drawn, primals):
                out, tangent = _pair("custom_jvp: the rule", rule(*given, points, moves))
            if not shape == tree_flatten(out)[1] == tree_flatten(tangent)[1]:
                raise TreeError(
                    "custom_jvp: the rule's result and tangent must have the structure of the"
                    f" function's result {shape}"
                )
            results = _results("custom_jvp: the rule", tree_leaves(out), trace)
            pairs = zip(tree_leaves(tangent), results, strict=True)
            return tuple(_alike("custom_jvp: a tangent", t, y) for t, y in pairs)

        if not operands:  # a constant, which no derivative can ask for
            return tree_unflatten(shape, trace.replay())
        op = custom_jvp_with_effects_op if trace.effects else custom_jvp_op
        made = call_multiple(op, operands, {"trace": trace, "rule": flat_rule, "own": rest.own})
        return tree_unflatten(shape, made)


class custom_vjp(Custom):
    """A function whose reverse mode you give: `f.defvjp(forward, backward)`.

    `forward(*args)` returns (result, saved); `backward(saved, cotangent)` returns one cotangent for
    each argument (None for zero). Forward mode is the transpose of `backward`. Numbers and text
    stay what they are, as arguments and saved; what is given for their cotangents is left out.

    >>> @custom_vjp
    ... def f(x):
    ...     return x * x
    >>> f.defvjp(lambda x: (f(x), x), lambda x, ct: (10 * ct,))
    >>> FUNCTIONS["grad"](f)(3.0).item()
    10.0
    """

    rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Give the pair of rules."""
        as_function("defvjp", "forward", forward)
        self.rules = (forward, as_function("defvjp", "backward", backward))

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if self.rules is None:
            raise MissingRuleError("custom_vjp: no rules were given\nhint: call f.defvjp(fwd, bwd)")
        args = self._positional(args, keywords)
        given, others = self._split(args)
        rest = _Leaves(tuple(others))
        trace, operands, shape, drawn = self._captured(args, rest)
        if not operands:  # a constant, which no derivative can ask for
            return tree_unflatten(shape, trace.replay())
        ahead, back = self._flat_rules(args, given, rest, shape, trace, drawn)
        op = custom_vjp_with_effects_op if trace.effects else custom_vjp_op
        rules = {"ahead": ahead, "back": back, "own": rest.own}
        made = call_multiple(op, operands, {"trace": trace, **rules})
        return tree_unflatten(shape, made)

    def _flat_rules(
        self, args: Any, given: Any, rest: _Leaves, shape: Any, trace: Trace, drawn: Any
    ) -> Any:
        assert self.rules is not None
        forward, backward = self.rules
        residuals: list[_Leaves] = []

        def ahead(*tensors: Tensor) -> Any:
            remaining = iter(rest.tree(_handles(tensors[: rest.own])))
            full = [args[i] if i in self.nondiff else next(remaining) for i in range(len(args))]
            self._check_alive(args)
            with redrawing(drawn, tensors):
                out, saved = _pair("custom_vjp: forward", forward(*full))
            if tree_flatten(out)[1] != shape:
                raise TreeError(
                    "custom_vjp: forward's result must have the structure of the function's"
                    f" result {shape}"
                )
            residuals[:] = [residual := _Leaves(saved)]
            # As they are now, to be used later.
            kept = _handles(tuple(to_tensor(residual.leaves[i]) for i in residual.places))
            return _results("custom_vjp: forward", tree_leaves(out), trace), tuple(kept)

        def back(saved: Any, ct: Tensors, primals: Tensors) -> Any:
            residual = residuals[0].tree(_handles(saved))
            found = backward(*given, residual, tree_unflatten(shape, _handles(ct)))
            if not isinstance(found, tuple | list):
                raise TreeError(
                    "custom_vjp: backward must return a tuple of cotangents,"
                    f" got {type(found).__name__}"
                )
            parts = _per_leaf(tuple(found), rest.tree(primals[: rest.own]))
            return (*parts, *(None,) * (len(primals) - rest.own))

        return ahead, back


def _has_defaults(function: Callable[..., Any]) -> bool:
    """Whether positional arguments may be left out; unknown of functions that are not Python's."""
    try:
        known = signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(x.default is not x.empty and x.kind is not x.KEYWORD_ONLY for x in known)


def _handle(x: Any) -> Any:
    """An argument; a tensor as it is now, whatever its handle is assigned later."""
    return alias(x) if isinstance(x, Tensor) and is_data(x) else x


def _derives(x: Tensor) -> bool:
    """Whether a tensor carries a derivative here, of whichever enclosing transform."""
    seen: Any = x if dtypes.is_inexact(x.dtype) else None
    while seen is not None and seen.owner is not None:
        if seen.owner.differentiates:
            return True
        seen = seen.owner.primal(seen._impl.payload)
    return False


def _handles(tensors: Tensors) -> list[Tensor]:
    """Handles for a rule, which may assign to them: others need the values as they are."""
    return [alias(x) for x in tensors]


def _per_leaf(cotangents: tuple[Any, ...], arguments: tuple[Any, ...]) -> list[Tensor | None]:
    """One cotangent for each tensor among the arguments; None is zero for all of an argument."""
    if len(cotangents) != len(arguments):
        raise TreeError(
            f"custom_vjp: backward returned {len(cotangents)} cotangents"
            f" for {len(arguments)} arguments"
        )
    found: list[Tensor | None] = []
    for ct, argument in zip(cotangents, arguments, strict=True):
        leaves, structure = tree_flatten(argument)
        if ct is None:
            found += [None for x in leaves if is_data(x)]
            continue
        given, other = tree_flatten(ct)
        if other != structure:
            raise TreeError(f"custom_vjp: a cotangent {other} for an argument {structure}")
        pairs = zip(given, leaves, strict=True)
        found += [_alike("custom_vjp: a cotangent", c, x) for c, x in pairs if is_data(x)]
    return found


def _pair(what: str, value: Any) -> Any:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TreeError(f"{what} must return a pair, got {type(value).__name__}")
    return value


def _results(what: str, values: Sequence[Any], trace: Trace) -> Tensors:
    """What a rule gives as the results of its function, which have to be of the same types."""
    kinds = zip(values, trace.output_types, trace.output_devices, strict=True)
    return tuple(_result(what, value, kind, device) for value, kind, device in kinds)


def _result(what: str, value: Any, kind: TensorType, device: Device) -> Tensor:
    if type(value) in PYTHON_SCALARS and weak(value, kind.dtype) == kind.dtype:
        value = scalar(value, kind.dtype, device, what)
    found = to_tensor(value, like=device)
    if found.type != kind:
        raise mismatch(f"{what}: a result", [("the rule", found.type), ("the function", kind)])
    return found


def _alike(what: str, value: Any, model: Tensor) -> Tensor:
    """A derivative as a tensor of the type of what it belongs to."""
    if not dtypes.is_inexact(model.dtype):
        return zeros_like(model)  # integers and bools carry no derivative
    tensor = to_tensor(value, like=model.device)
    if tensor.shape != model.shape:
        raise ShapeError(f"{what} has shape {tensor.shape}, what it belongs to {model.shape}")
    if isinstance(value, Tensor) and tensor.dtype != model.dtype:
        raise DTypeError(
            f"{what} has dtype {tensor.dtype}, what it belongs to {model.dtype}"
            "\nhint: cast it with astype"
        )
    return cast(tensor, model.dtype)


public(custom_jvp)
public(custom_vjp)
