"""Check ops and functions: laws, derivatives, loop forms.

| file | what lives in it |
|---|---|
| `loops` | a naive interpreter of kernels |
| `samples` | operands for the examples of an op |
"""
