"""Every exception weft raises on purpose: one class per kind of mistake.

A message reads `op: where: what is wrong (values)` and, where the fix is not obvious, a line that
starts with `hint:`. Each class is also the builtin exception a NumPy user would catch.
"""

from __future__ import annotations


class WeftError(Exception):
    """Base class: catch this to catch everything weft raises on purpose."""


class ShapeError(WeftError, ValueError):
    """Operand shapes do not fit the op, or each other."""


class AxisError(WeftError, ValueError, IndexError):
    """An axis is out of range, repeated, or not what the op expects."""


class ArgumentError(WeftError, ValueError):
    """A parameter has a value the op cannot use."""


class DTypeError(WeftError, TypeError):
    """An op was given a dtype it has no meaning for, or dtypes that do not mix."""


class UnsupportedDTypeError(DTypeError):
    """A dtype weft, or this backend, does not have."""


class CastError(WeftError, OverflowError):
    """A value does not fit the dtype it was to be stored in."""


class IndexingError(WeftError, IndexError):
    """An index is out of range, has too many entries, or is of a wrong kind."""


class ConversionError(WeftError, TypeError, ValueError):
    """A Python object cannot become a tensor (ragged lists, strings, arbitrary objects)."""


class NotContiguousError(WeftError, ValueError):
    """A zero-copy view was asked for, and memory order does not allow it."""


class DeviceError(WeftError, ValueError):
    """A device does not exist, or cannot do what was asked."""


class DeviceMismatchError(DeviceError):
    """Operands live on different devices; weft never copies between them in silence."""


class BackendError(WeftError, ImportError):
    """A backend is absent or cannot be loaded."""


class OutOfMemoryError(WeftError, MemoryError):
    """Memory could not be had; the message lists what is alive."""


class InteropError(WeftError, BufferError):
    """Memory cannot be exchanged with another library as asked."""


class MissingRuleError(WeftError, NotImplementedError):
    """A transform met an op that does not define the rule it needs."""


class UnsupportedError(WeftError, NotImplementedError):
    """The op has no kernel for this backend or this kind of operand."""


class LeakedTensorError(WeftError, RuntimeError):
    """A tensor made inside a transform was used after the transform ended."""


class DonatedTensorError(WeftError, RuntimeError):
    """A tensor was used after it had been donated to a compiled function."""


class FormatError(WeftError, ValueError):
    """A file is not what its reader expects: cut off, changed, or of another kind."""


class StorageError(WeftError, OSError):
    """A file could not be written or read: no space, no permission, nothing there."""


class ConcretizationError(WeftError, TypeError):
    """A value was read where only shapes are known (vmap, compile, eval_shape)."""


class MutationError(WeftError, RuntimeError):
    """A tensor may not be assigned to here."""


class DifferentiationError(WeftError, TypeError):
    """A function or argument cannot be differentiated as asked."""


class TreeError(WeftError, ValueError):
    """Two trees that should have one structure differ."""


class ShardingError(WeftError, ValueError):
    """A spec does not fit the mesh or the tensor."""


class ConfigError(WeftError, ValueError):
    """A setting does not exist or has an illegal value."""


class NotFiniteError(WeftError, FloatingPointError):
    """A NaN appeared while `debug_nans` was watching."""


class CompilationError(WeftError, RuntimeError):
    """LLVM refused a kernel: a mistake of weft, not of its user."""


class CancelledError(WeftError, RuntimeError):
    """A program was stopped from another thread before it was done."""


class CommunicationError(WeftError, RuntimeError):
    """Ranks could not do a collective together; `ranks` are those it is about."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class RankMismatchError(CommunicationError):
    """Ranks came to different collectives, or with shapes or dtypes that do not fit."""


class RankTimeoutError(CommunicationError, TimeoutError):
    """Ranks did not come to a collective in time."""


class RankFailedError(CommunicationError, ConnectionError):
    """Ranks have died, or left, and a collective waits for them."""
