"""Check ops and functions: laws, derivatives, loop forms.

| file | what lives in it |
|---|---|
| `loops` | a naive interpreter of the loop forms of ops |
| `ir` | `run_kernel`: a plain interpreter of the compiler's kernels |
| `instructions` | what each scalar instruction means, in NumPy |
| `tiles` | how tiles multiply, in NumPy |
| `samples` | operands for the examples of an op |
| `gradients` | `check_grads` |
| `gpu_programs` | programs that every GPU backend must run |
| `emulated_gpu` | a GPU that this processor plays |
| `loop_programs` | programs whose loops are kept as text |
"""

from weft.testing.gradients import GradientMismatch, check_grads

__all__ = ["GradientMismatch", "check_grads"]
