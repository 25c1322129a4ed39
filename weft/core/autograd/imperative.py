"""The imperative front end: `requires_grad`, `backward(loss)`, `.grad`, hooks.

It is the same tape as `grad`'s, kept open: a tensor that requires a gradient is owned by one
ambient tape, and the bottom of the handler stack hands ops on its tensors to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary, ref

from weft.core.autograd.tape import Tape, TapeNode, pull_back
from weft.core.common import dtypes
from weft.core.common.handler import current
from weft.core.common.slots import FUNCTIONS, public
from weft.core.tensor.tensor import Tensor
from weft.errors import DifferentiationError, MutationError

Hook = Callable[[Tensor], Tensor | None]


class AmbientTape(Tape):
    """A tape that is always there; ops on its tensors reach it from the bottom of the stack."""

    ambient = True
    transparent = True

    def __init__(self) -> None:
        self.outer = None
        self.leaves: WeakKeyDictionary[TapeNode, ref[Tensor]] = WeakKeyDictionary()

    def attach(self, tensor: Tensor) -> None:
        """Make `tensor` a leaf: its uses are recorded from now on."""
        watched = self.watch(Tensor(tensor._impl))
        tensor._impl = watched._impl
        self.leaves[watched._impl.payload[0]] = ref(tensor)


AMBIENT = AmbientTape()


class GradStore(Mapping[int, Tensor]):
    """Gradients by tensor id; `store[x]` takes the tensor as well."""

    def __init__(self, found: dict[int, Tensor]) -> None:
        self._found = found

    def __getitem__(self, key: int | Tensor) -> Tensor:
        number = key.id if isinstance(key, Tensor) else key
        if number not in self._found:
            raise KeyError(f"no gradient for tensor {number}")
        return self._found[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        rows = ", ".join(f"{number}: {x.type}" for number, x in self._found.items())
        return f"GradStore({{{rows}}})"


@public
def requires_grad(tensor: Tensor, flag: bool = True) -> Tensor:
    """Ask for gradients with respect to this tensor (or stop asking); returns the tensor."""
    if not flag:
        if tensor._impl.owner is AMBIENT:
            tensor._impl = AMBIENT.open(tensor)._impl
        tensor._wants_grad = False
        return tensor
    if not dtypes.is_inexact(tensor.dtype):
        raise DifferentiationError(
            f"requires_grad: {tensor.type} has no derivative\nhint: only floats and complex do"
        )
    if tensor._impl.owner is not AMBIENT:
        AMBIENT.attach(tensor)
    tensor._wants_grad = True
    return tensor


@public
def renew_leaf(tensor: Tensor, value: Tensor, op: str) -> None:
    """Assign to a tensor that requires a gradient: inside `no_grad` it is a leaf again."""
    handler = current()
    while handler is not None and not handler.constant:
        handler = handler.outer
    if handler is None:
        raise MutationError(
            f"{op}: the tensor requires a gradient, so it cannot be assigned to here"
            "\nhint: update it inside `with wf.no_grad():`"
        )
    tensor._impl = AMBIENT.open(value)._impl
    AMBIENT.attach(tensor)


@public
def backward(loss: Tensor, gradient: Any = None) -> GradStore:
    """Gradients of `loss` for every live tensor that requires one; added to their `.grad` too.

    A loss with axes needs the `gradient` that flows into it.
    """
    if loss._impl.owner is not AMBIENT:
        raise DifferentiationError(
            "backward: nothing this tensor depends on requires a gradient"
            "\nhint: call requires_grad(x) before computing with x"
        )
    if gradient is None:
        if loss.shape != ():
            raise DifferentiationError(
                f"backward: the loss has shape {loss.shape}, not ()"
                "\nhint: sum it, or give gradient="
            )
        gradient = FUNCTIONS["ones_like"](AMBIENT.open(loss))
    leaves = [(node, handle()) for node, handle in AMBIENT.leaves.items()]
    alive = [(node, tensor) for node, tensor in leaves if tensor is not None]
    start = FUNCTIONS["asarray"](gradient)
    found = pull_back([AMBIENT.node(loss)], [start], [(node, 0) for node, _ in alive])
    store: dict[int, Tensor] = {}
    for (_, tensor), ct in zip(alive, found, strict=True):
        if ct is not None:
            store[tensor.id] = _deliver(tensor, ct)
    return GradStore(store)


def _deliver(tensor: Tensor, ct: Tensor) -> Tensor:
    for hook in getattr(tensor, "_hooks", ()):
        replaced = hook(ct)
        ct = ct if replaced is None else replaced
    before = tensor.grad
    tensor.grad = ct if before is None else before + ct
    return ct


@public
def register_hook(tensor: Tensor, hook: Hook) -> Callable[[], None]:
    """Call `hook(gradient)` when a gradient reaches `tensor`; what it returns replaces it.

    Returns a function that removes the hook.
    """
    hooks = [*getattr(tensor, "_hooks", ()), hook]
    tensor._hooks = hooks

    def remove() -> None:
        tensor._hooks = [h for h in tensor._hooks if h is not hook]

    return remove


__all__ = [
    "GradStore",
    "backward",
    "register_hook",
    "requires_grad",
]
