"""Check ops and functions: laws, derivatives, loop forms.

| file | what lives in it |
|---|---|
| `loops` | a naive interpreter of kernels |
| `samples` | operands for the examples of an op |
| `gradients` | `check_grads` |
"""

from weft.testing.gradients import GradientMismatch, check_grads

__all__ = ["GradientMismatch", "check_grads"]
