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
from weft.core.common.locks import lock_for
from weft.core.common.parameters import as_flag, as_function, shown
from weft.core.common.slots import FUNCTIONS, public
from weft.core.tensor.tensor import Tensor
from weft.core.tensor.views import alias
from weft.errors import ConversionError, DifferentiationError, MutationError, ShapeError

Hook = Callable[[Tensor], Tensor | None]


class AmbientTape(Tape):
    """A tape that is always there; ops on its tensors reach it from the bottom of the stack."""

    ambient = True
    transparent = True

    def __init__(self) -> None:
        self.outer = None
        self.lock = lock_for(self, "lock")  # threads share this tape
        self.leaves: WeakKeyDictionary[TapeNode, list[tuple[int, ref[Tensor]]]]
        self.leaves = WeakKeyDictionary()

    def attach(self, tensor: Tensor) -> None:
        """Make `tensor` a leaf: its uses are recorded from now on."""
        watched = self.watch(Tensor(tensor._impl))
        tensor._impl = watched._impl
        self.listen(tensor)

    def listen(self, tensor: Tensor) -> None:
        """Deliver what arrives at the place of `tensor`, a leaf or not."""
        node, slot = tensor._impl.payload
        with self.lock:
            self.leaves.setdefault(node, []).append((slot, ref(tensor)))

    def listeners(self) -> list[tuple[tuple[TapeNode, int], Tensor]]:
        """The places where gradients are wanted, with the live tensors that want them."""
        with self.lock:
            every = [
                (n, slot, handle()) for n, known in self.leaves.items() for slot, handle in known
            ]
        return [((n, slot), x) for n, slot, x in every if x is not None and x.requires_grad]


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
    _check_tensor("requires_grad", tensor)
    if not as_flag("requires_grad", "flag", flag):
        if tensor._impl.owner is AMBIENT:
            tensor._impl = AMBIENT.open(tensor)._impl
        tensor._wants_grad = False
        return tensor
    if not dtypes.is_inexact(tensor.dtype):
        raise DifferentiationError(
            f"requires_grad: {tensor.type} has no derivative\nhint: only floats and complex do"
        )
    owner = tensor._impl.owner
    if owner is None or (owner.ambient and owner is not AMBIENT):
        AMBIENT.attach(tensor)
    elif owner is not AMBIENT:
        raise DifferentiationError(
            "requires_grad: the tensor belongs to a transform that is running"
            "\nhint: use wf.grad inside transforms; requires_grad is for tensors outside"
        )
    elif not tensor.requires_grad:
        AMBIENT.listen(tensor)
    tensor._wants_grad = True
    return tensor


def _check_tensor(op: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise ConversionError(
            f"{op}: expected a tensor, got {shown(value)}\nhint: make one with wf.tensor"
        )


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
    _check_tensor("backward", loss)
    if loss._impl.owner is not AMBIENT:
        raise _nothing_to_find(loss)
    if gradient is None:
        if loss.shape != ():
            raise DifferentiationError(
                f"backward: the loss has shape {loss.shape}, not ()"
                "\nhint: sum it, or give gradient="
            )
        gradient = FUNCTIONS["ones_like"](AMBIENT.open(loss))
    start = FUNCTIONS["asarray"](gradient, dtype=loss.dtype)
    if start.shape != loss.shape:
        raise ShapeError(f"backward: gradient of shape {start.shape} for a loss of {loss.shape}")
    wanted = AMBIENT.listeners()
    found = pull_back([AMBIENT.node(loss)], [start], [place for place, _ in wanted])
    store: dict[int, Tensor] = {}
    for (_, tensor), ct in zip(wanted, found, strict=True):
        if ct is not None:
            store[tensor.id] = _deliver(tensor, ct)
    if not store:
        raise _nothing_to_find(loss)
    return GradStore(store)


def _nothing_to_find(loss: Tensor) -> DifferentiationError:
    if loss._impl.owner not in (None, AMBIENT):
        return DifferentiationError(
            "backward: the tensor belongs to a transform that is running"
            "\nhint: call backward outside of it, or use wf.grad inside"
        )
    return DifferentiationError(
        "backward: nothing this tensor depends on requires a gradient"
        "\nhint: call requires_grad(x) before computing with x, and compute outside `no_grad`"
    )


def _deliver(tensor: Tensor, ct: Tensor) -> Tensor:
    ct = alias(ct)  # the gradient of another tensor may be the same value
    for hook in getattr(tensor, "_hooks", ()):
        replaced = hook(ct)
        ct = ct if replaced is None else replaced
    with AMBIENT.lock:
        before = tensor.grad
        tensor.grad = ct if before is None else before + ct
    return ct


@public
def register_hook(tensor: Tensor, hook: Hook) -> Callable[[], None]:
    """Call `hook(gradient)` when a gradient reaches `tensor`; what it returns replaces it.

    Returns a function that removes the hook.
    """
    _check_tensor("register_hook", tensor)
    as_function("register_hook", "hook", hook)
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
