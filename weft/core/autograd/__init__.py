"""Reverse-mode differentiation: the tape and the walk back.

| file | what lives in it |
|---|---|
| `tape` | `Tape`, the handler that records; `pull_back`, the walk |
| `imperative` | `requires_grad`, `backward`, `.grad`: the same tape kept open |
"""

from weft.core.autograd.tape import Addend, Tape, TapeNode, pull_back

__all__ = ["Addend", "Tape", "TapeNode", "pull_back"]
