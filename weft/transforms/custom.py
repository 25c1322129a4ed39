"""Derivatives of your own, under every transform: `custom_vjp` and `custom_jvp`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

from weft.core.common.slots import FUNCTIONS, public
from weft.core.common.trees import tree_flatten, tree_leaves, tree_map, tree_unflatten
from weft.core.tensor.convert import to_tensor
from weft.core.tensor.tensor import Tensor
from weft.errors import DifferentiationError, MissingRuleError, TreeError
from weft.ops.base import Tangents, Tensors, call
from weft.ops.control.graph_call import GraphCall, batched_trace, capture, inexact_places, scattered
from weft.ops.creation import zeros_like
from weft.transforms.vjp import linear_transpose


class CustomJvpCall(GraphCall):
    """Calls a trace; `rule(primals, tangents)` gives the tangents of its results."""

    def jvp(self, primals: Any, tangents: Any, out: Any, *, trace: Any, rule: Any) -> Any:
        pairs = zip(primals, tangents, strict=True)
        return rule(primals, tuple(zeros_like(p) if t is None else t for p, t in pairs))

    def vjp(self, primals: Any, out: Any, ct: Any, *, trace: Any, rule: Any) -> Tangents:
        places = inexact_places(primals)
        zeros = [zeros_like(x) for x in primals]

        def push(*moved: Tensor) -> Any:
            tangents = list(zeros)
            for place, tangent in zip(places, moved, strict=True):
                tangents[place] = tangent
            return rule(primals, tuple(tangents))

        pulled = linear_transpose(push, *(primals[i] for i in places))(tuple(ct))
        return scattered(pulled, places, len(primals))

    def batch(self, size: int, args: Any, hidden: Any, /, *, trace: Any, rule: Any) -> Any:
        axes = tuple(0 if h else None for h in hidden)
        mapped = FUNCTIONS["vmap"](rule, in_axes=(axes, axes), axis_size=size)

        params = {"trace": batched_trace(trace, args, hidden, size), "rule": mapped}
        results = call(self, args, params)
        return results, (True,) * len(results)


class CustomVjpCall(GraphCall):
    """Calls a trace; `ahead` gives (results, saved) and `back(saved, ct)` the cotangents."""

    def forward(self, args: Any, *, trace: Any, ahead: Any, back: Any) -> Any:
        return ahead(*args)

    def pull(self, primals: Any, saved: Any, ct: Any, *, trace: Any, ahead: Any, back: Any) -> Any:
        return back(saved, tuple(ct), primals)

    def vjp(self, primals: Any, out: Any, ct: Any, *, trace: Any, ahead: Any, back: Any) -> Any:
        return back(ahead(*primals)[1], tuple(ct), primals)

    def jvp(
        self, primals: Any, tangents: Any, out: Any, *, trace: Any, ahead: Any, back: Any
    ) -> Any:
        """The transpose of `back`, which is the transpose of the derivative."""
        _, saved = ahead(*primals)
        places = [i for i, t in enumerate(tangents) if t is not None]

        def pull(*ct: Tensor) -> Any:
            found = back(saved, ct, primals)
            return tuple(zeros_like(primals[i]) if found[i] is None else found[i] for i in places)

        transposed = linear_transpose(pull, *out)
        return tuple(transposed(tuple(tangents[i] for i in places)))

    def batch(
        self, size: int, args: Any, hidden: Any, /, *, trace: Any, ahead: Any, back: Any
    ) -> Any:
        axes = tuple(0 if h else None for h in hidden)
        vmap = FUNCTIONS["vmap"]

        def batched_ahead(*tensors: Tensor) -> Any:
            return vmap(ahead, in_axes=axes, axis_size=size)(*tensors)

        def batched_back(saved: Any, ct: Tensors, primals: Tensors) -> Any:
            def filled(saved: Any, ct: Tensors, primals: Tensors) -> Any:
                found = back(saved, ct, primals)
                pairs = zip(primals, found, strict=True)
                return tuple(zeros_like(p) if f is None else f for p, f in pairs)

            return vmap(filled, in_axes=(0, 0, axes), axis_size=size)(saved, ct, primals)

        mapped = batched_trace(trace, args, hidden, size)
        results = call(self, args, {"trace": mapped, "ahead": batched_ahead, "back": batched_back})
        return results, (True,) * len(results)


custom_jvp_op, custom_vjp_op = CustomJvpCall(), CustomVjpCall()


class Custom:
    """A function with rules of its own; common part of `custom_jvp` and `custom_vjp`."""

    def __init__(self, function: Callable[..., Any], nondiff_argnums: Sequence[int] = ()) -> None:
        self.function = function
        self.nondiff = tuple(nondiff_argnums)
        wrapper: Any = self
        update_wrapper(wrapper, function)

    def _split(self, args: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
        fixed = [args[i] for i in self.nondiff]
        return fixed, [x for i, x in enumerate(args) if i not in self.nondiff]

    def _of_rest(self, args: tuple[Any, ...]) -> Callable[..., Any]:
        def run(*rest: Any) -> Any:
            remaining = iter(rest)
            full = [args[i] if i in self.nondiff else next(remaining) for i in range(len(args))]
            return self.function(*full)

        run.__name__ = getattr(self.function, "__name__", "function")
        return run

    def _no_captures(self, trace: Any, name: str) -> None:
        if any(x.owner is not None for x in trace.captures):
            raise DifferentiationError(
                f"{name}: the function uses a tensor of an enclosing transform that is not among"
                " its arguments, so the rule cannot give its derivative"
                "\nhint: pass it as an argument"
            )


class custom_jvp(Custom):
    """A function whose derivative you give: `f.defjvp(rule)`, rule(primals, tangents).

    The rule returns (result, tangent of the result) and must be linear in the tangents; reverse
    mode is its transpose.

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
        self.rule = rule
        return rule

    def __call__(self, *args: Any) -> Any:
        if self.rule is None:
            raise MissingRuleError(
                "custom_jvp: no rule was given\nhint: decorate one with f.defjvp"
            )
        given, rest = self._split(args)
        trace, operands, shape = capture(
            self._of_rest(args), tuple(rest), {}, constants=False, label="custom_jvp"
        )
        self._no_captures(trace, "custom_jvp")
        leaves, structure = tree_flatten(tuple(rest))
        rule = self.rule

        def flat_rule(primals: Tensors, tangents: Tensors) -> Any:
            points = tree_unflatten(structure, primals[: len(leaves)])
            moves = tree_unflatten(structure, tangents[: len(leaves)])
            out, tangent = rule(*given, points, moves)
            if tree_flatten(out)[1] != tree_flatten(tangent)[1]:
                raise TreeError("custom_jvp: the rule's result and tangent differ in structure")
            return tuple(tree_leaves(tree_map(to_tensor, tangent)))

        made = call(custom_jvp_op, operands, {"trace": trace, "rule": flat_rule})
        return tree_unflatten(shape, made)


class custom_vjp(Custom):
    """A function whose reverse mode you give: `f.defvjp(forward, backward)`.

    `forward(*args)` returns (result, saved); `backward(saved, cotangent)` returns one cotangent for
    each argument (None for zero). Forward mode is the transpose of `backward`.

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
        self.rules = (forward, backward)

    def __call__(self, *args: Any) -> Any:
        if self.rules is None:
            raise MissingRuleError("custom_vjp: no rules were given\nhint: call f.defvjp(fwd, bwd)")
        given, rest = self._split(args)
        trace, operands, shape = capture(
            self._of_rest(args), tuple(rest), {}, constants=False, label="custom_vjp"
        )
        self._no_captures(trace, "custom_vjp")
        leaves, structure = tree_flatten(tuple(rest))
        ahead, back = self._flat_rules(args, given, structure, len(leaves), shape)
        made = call(custom_vjp_op, operands, {"trace": trace, "ahead": ahead, "back": back})
        return tree_unflatten(shape, made)

    def _flat_rules(self, args: Any, given: Any, structure: Any, count: int, shape: Any) -> Any:
        assert self.rules is not None
        forward, backward = self.rules
        residual_structure: list[Any] = []

        def ahead(*tensors: Tensor) -> Any:
            remaining = iter(tree_unflatten(structure, tensors[:count]))
            full = [args[i] if i in self.nondiff else next(remaining) for i in range(len(args))]
            out, saved = forward(*full)
            leaves, residual = tree_flatten(saved)
            residual_structure[:] = [residual]
            return tuple(tree_leaves(tree_map(to_tensor, out))), tuple(map(to_tensor, leaves))

        def back(saved: Any, ct: Tensors, primals: Tensors) -> Any:
            residual = tree_unflatten(residual_structure[0], saved)
            found = backward(*given, residual, tree_unflatten(shape, ct))
            if not isinstance(found, tuple | list):
                raise TreeError(
                    "custom_vjp: backward must return a tuple of cotangents,"
                    f" got {type(found).__name__}"
                )
            parts = _per_leaf(tuple(found), tree_unflatten(structure, primals[:count]))
            return (*parts, *(None,) * (len(primals) - count))

        return ahead, back


def _per_leaf(cotangents: tuple[Any, ...], arguments: tuple[Any, ...]) -> list[Tensor | None]:
    """One cotangent for each leaf of the arguments; None for an argument is zero for its leaves."""
    if len(cotangents) != len(arguments):
        raise TreeError(
            f"custom_vjp: backward returned {len(cotangents)} cotangents"
            f" for {len(arguments)} arguments"
        )
    found: list[Tensor | None] = []
    for ct, argument in zip(cotangents, arguments, strict=True):
        leaves = tree_leaves(argument)
        found += [None] * len(leaves) if ct is None else [to_tensor(x) for x in tree_leaves(ct)]
    return found


public(custom_jvp)
public(custom_vjp)
