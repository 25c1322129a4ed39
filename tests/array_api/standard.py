"""The names and signatures of the Python array API standard 2025.12, as text.

Each line is a signature; `read` turns it into an `inspect.Signature`. Array operators have the
signatures that Python gives them.
"""

import inspect
from collections.abc import Callable
from typing import Any

_SAME = {
    "(x, /)": """
        abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag
        isfinite isinf isnan log log10 log1p log2 logical_not negative positive real reciprocal
        round sign signbit sin sinh sqrt square tan tanh trunc nonzero matrix_transpose
        unique_all unique_counts unique_inverse unique_values
    """,
    "(x1, x2, /)": """
        add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign
        divide equal floor_divide greater greater_equal hypot less less_equal logaddexp logical_and
        logical_or logical_xor maximum minimum multiply nextafter not_equal pow remainder subtract
        matmul
    """,
    "(x, /, *, axis=None, keepdims=False)": "all any max min mean argmax argmin count_nonzero",
    "(x, /, *, axis=None, dtype=None, keepdims=False)": "sum prod",
    "(x, /, *, axis=None, correction=0.0, keepdims=False)": "std var",
    "(x, /, *, axis=None, dtype=None, include_initial=False)": "cumulative_sum cumulative_prod",
    "(x, /, *, axis=-1, descending=False, stable=True)": "sort argsort",
    "(shape, *, dtype=None, device=None)": "empty ones zeros",
    "(x, /, *, dtype=None, device=None)": "empty_like ones_like zeros_like",
    "(x, /, *, k=0)": "tril triu",
    "(type, /)": "finfo iinfo",
}

_NAMESPACE = """
    __array_namespace_info__()
    arange(start, /, stop=None, step=1, *, dtype=None, device=None)
    asarray(obj, /, *, dtype=None, device=None, copy=None)
    astype(x, dtype, /, *, copy=True, device=None)
    broadcast_arrays(*arrays)
    broadcast_shapes(*shapes)
    broadcast_to(x, /, shape)
    can_cast(from_, to, /)
    clip(x, /, min=None, max=None)
    concat(arrays, /, *, axis=0)
    diff(x, /, *, axis=-1, n=1, prepend=None, append=None)
    expand_dims(x, /, axis)
    eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None)
    flip(x, /, *, axis=None)
    from_dlpack(x, /, *, device=None, copy=None)
    full(shape, fill_value, *, dtype=None, device=None)
    full_like(x, /, fill_value, *, dtype=None, device=None)
    isdtype(dtype, kind)
    isin(x1, x2, /, *, invert=False)
    linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True)
    meshgrid(*arrays, indexing='xy')
    moveaxis(x, source, destination, /)
    permute_dims(x, /, axes)
    repeat(x, repeats, /, *, axis=None)
    reshape(x, /, shape, *, copy=None)
    result_type(*arrays_and_dtypes)
    roll(x, /, shift, *, axis=None)
    searchsorted(x1, x2, /, *, side='left', sorter=None)
    squeeze(x, /, axis)
    stack(arrays, /, *, axis=0)
    take(x, indices, /, *, axis=None)
    take_along_axis(x, indices, /, *, axis=-1)
    tensordot(x1, x2, /, *, axes=2)
    tile(x, repetitions, /)
    unstack(x, /, *, axis=0)
    vecdot(x1, x2, /, *, axis=-1)
    where(condition, x1, x2, /)
"""

_LINALG = """
    cholesky(x, /, *, upper=False)
    cross(x1, x2, /, *, axis=-1)
    det(x, /)
    diagonal(x, /, *, offset=0)
    eig(x, /)
    eigh(x, /)
    eigvals(x, /)
    eigvalsh(x, /)
    inv(x, /)
    matmul(x1, x2, /)
    matrix_norm(x, /, *, keepdims=False, ord='fro')
    matrix_power(x, n, /)
    matrix_rank(x, /, *, rtol=None)
    matrix_transpose(x, /)
    outer(x1, x2, /)
    pinv(x, /, *, rtol=None)
    qr(x, /, *, mode='reduced')
    slogdet(x, /)
    solve(x1, x2, /)
    svd(x, /, *, full_matrices=True)
    svdvals(x, /)
    tensordot(x1, x2, /, *, axes=2)
    trace(x, /, *, offset=0, dtype=None)
    vecdot(x1, x2, /, *, axis=-1)
    vector_norm(x, /, *, axis=None, keepdims=False, ord=2)
"""

_FFT_SAME = {
    "(x, /, *, n=None, axis=-1, norm='backward')": "fft ifft rfft irfft hfft ihfft",
    "(x, /, *, s=None, axes=None, norm='backward')": "fftn ifftn rfftn irfftn",
    "(n, /, *, d=1.0, dtype=None, device=None)": "fftfreq rfftfreq",
    "(x, /, *, axes=None)": "fftshift ifftshift",
}

_METHODS = """
    __array_namespace__(self, /, *, api_version=None)
    __dlpack__(self, /, *, stream=None, max_version=None, dl_device=None, copy=None)
    __dlpack_device__(self, /)
    __getitem__(self, key, /)
    __setitem__(self, key, value, /)
    to_device(self, device, /, *, stream=None)
"""
UNARY_METHODS = """
    __abs__ __neg__ __pos__ __invert__ __bool__ __int__ __float__ __complex__ __index__
""".split()
BINARY_METHODS = """
    __add__ __sub__ __mul__ __truediv__ __floordiv__ __mod__ __pow__ __matmul__ __and__ __or__
    __xor__ __lshift__ __rshift__ __lt__ __le__ __gt__ __ge__ __eq__ __ne__
    __radd__ __rsub__ __rmul__ __rtruediv__ __rfloordiv__ __rmod__ __rpow__ __rmatmul__ __rand__
    __ror__ __rxor__ __rlshift__ __rrshift__
    __iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __imatmul__ __iand__
    __ior__ __ixor__ __ilshift__ __irshift__
""".split()

ATTRIBUTES = "dtype device mT ndim shape size T".split()
CONSTANTS = "e inf nan newaxis pi".split()
DTYPES = """
    bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128
""".split()


def read(signature: str) -> inspect.Signature:
    """The signature that a text such as `(x, /, *, axis=None)` stands for."""
    function: Callable[..., Any] = eval(f"lambda {signature[1:-1]}: None")
    return inspect.signature(function)


def _one_by_one(text: str) -> dict[str, inspect.Signature]:
    named = (line.strip().partition("(") for line in filter(str.strip, text.splitlines()))
    return {name: read(bracket + rest) for name, bracket, rest in named}


def _all_alike(groups: dict[str, str]) -> dict[str, inspect.Signature]:
    return {name: read(text) for text, names in groups.items() for name in names.split()}


NAMESPACE = {**_all_alike(_SAME), **_one_by_one(_NAMESPACE)}
LINALG = _one_by_one(_LINALG)
FFT = _all_alike(_FFT_SAME)
METHODS = {
    **_one_by_one(_METHODS),
    **dict.fromkeys(UNARY_METHODS, read("(self, /)")),
    **dict.fromkeys(BINARY_METHODS, read("(self, other, /)")),
}
