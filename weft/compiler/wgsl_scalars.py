"""Scalar instructions in WGSL, each with the meaning it has on every other target.

WGSL lets a compiler assume that there is no NaN, rearrange sums and products, and round `fma`
twice. So NaN is told by its bits, what only `fma` can give, the error of a product, is found
without it, and each result of float arithmetic passes through `exact`: its bits meet a zero that
only the running shader knows, so nothing can be moved across. Helpers spell what the language
leaves open: shifts past the width, division by zero, casts out of range.
"""

from __future__ import annotations

import numpy as np

from weft.compiler.loops import BOOL, INDEX, Value, literal
from weft.core.common.types import DType
from weft.errors import UnsupportedDTypeError, UnsupportedError

TYPES = {
    "bool": "bool",
    "int32": "i32",
    "uint32": "u32",
    "float32": "f32",
    "float16": "f16",
    "int64": "i32",  # indices and positions alone, see `wgsl_positions`
}
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_BITS = {"bit_and": "&", "bit_or": "|", "bit_xor": "^"}
_COMPARED = {"less": "<", "less_equal": "<=", "equal": "==", "not_equal": "!="}
_CALLED = ("sqrt", "floor", "ceil", "trunc", "round", "abs")
_FEWEST = -(1 << 31)
PAIR = "vec2<i32>"  # an int64 in memory

HELPERS = {
    "exact": "fn exact(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }",
    "truth": "fn truth(x: bool) -> bool { return (u32(x) ^ zero) != 0u; }",
    "float_of": "fn float_of(bits: u32) -> f32 { return bitcast<f32>(bits); }",
    "is_nan": (
        "fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }"
    ),
    "max_f32": """fn max_f32(x: f32, y: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (is_nan(y)) { return y; }
  if (x == y) { return bitcast<f32>(bitcast<u32>(x) & bitcast<u32>(y)); }
  return select(y, x, x > y);
}""",
    "min_f32": """fn min_f32(x: f32, y: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (is_nan(y)) { return y; }
  if (x == y) { return bitcast<f32>(bitcast<u32>(x) | bitcast<u32>(y)); }
  return select(y, x, x < y);
}""",
    "floordiv_i32": """fn floordiv_i32(x: i32, y: i32) -> i32 {
  if (y == 0) { return 0; }
  if (y == -1) { return 0 - x; }
  let q = x / y;
  let r = x - q * y;
  return select(q, q - 1, r != 0 && ((r < 0) != (y < 0)));
}""",
    "floordiv_u32": """fn floordiv_u32(x: u32, y: u32) -> u32 {
  if (y == 0u) { return 0u; }
  return x / y;
}""",
    "rem_i32": """fn rem_i32(x: i32, y: i32) -> i32 {
  if (y == 0 || y == -1) { return 0; }
  return x - (x / y) * y;
}""",
    "rem_u32": """fn rem_u32(x: u32, y: u32) -> u32 {
  if (y == 0u) { return 0u; }
  return x % y;
}""",
    "shift_left_i32": """fn shift_left_i32(x: i32, y: i32) -> i32 {
  return select(0, x << (u32(y) & 31u), y >= 0 && y < 32);
}""",
    "shift_left_u32": """fn shift_left_u32(x: u32, y: u32) -> u32 {
  return select(0u, x << (y & 31u), y < 32u);
}""",
    "shift_right_i32": """fn shift_right_i32(x: i32, y: i32) -> i32 {
  return x >> select(31u, u32(y) & 31u, y >= 0 && y < 32);
}""",
    "shift_right_u32": """fn shift_right_u32(x: u32, y: u32) -> u32 {
  return select(0u, x >> (y & 31u), y < 32u);
}""",
    "held": """fn held(x: vec2<i32>) -> i32 {
  if (x.y != (x.x >> 31u)) { return select(-1073741824, 1073741824, x.y >= 0); }
  return clamp(x.x, -1073741824, 1073741824);
}""",
    "lost": """fn lost(x: f32, y: f32) -> f32 {
  let a = bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
  let b = bitcast<f32>(bitcast<u32>(y) & 0xfffff000u);
  let c = exact(x - a);
  let d = exact(y - b);
  let first = exact(exact(a * b) - exact(x * y));
  let second = exact(exact(first + exact(a * d)) + exact(c * b));
  return exact(second + exact(c * d));
}""",
    "to_i32": """fn to_i32(x: f32) -> i32 {
  if (is_nan(x)) { return 0; }
  if (x >= 2147483648.0f) { return 2147483647; }
  if (x <= -2147483648.0f) { return -2147483647 - 1; }
  return i32(x);
}""",
    "to_u32": """fn to_u32(x: f32) -> u32 {
  if (is_nan(x) || x <= 0.0f) { return 0u; }
  if (x >= 4294967296.0f) { return 4294967295u; }
  return u32(x);
}""",
}
_NEEDS = {name: "is_nan" for name in ("max_f32", "min_f32", "to_i32", "to_u32")} | {"lost": "exact"}


def type_of(dtype: DType) -> str:
    """The type of a value; dtypes that WGSL does not have are refused."""
    found = TYPES.get(dtype.name)
    if found is None:
        raise UnsupportedDTypeError(f"webgpu: {dtype}: shaders have no such type")
    return found


def stored_type(dtype: DType) -> str:
    """The type of an element in memory: a bool is a word there, and an int64 two."""
    if dtype == INDEX:
        return PAIR
    return "u32" if dtype == BOOL else type_of(dtype)


class Scalars:
    """Writes instructions as expressions; `helpers` are the functions they call."""

    def __init__(self) -> None:
        self.helpers: dict[str, None] = {}

    def call(self, name: str, *args: str) -> str:
        """A call of a helper, which the module then has."""
        needed = _NEEDS.get(name)
        if needed:
            self.helpers[needed] = None
        self.helpers[name] = None
        return f"{name}({', '.join(args)})"

    def constant(self, x: Value) -> str:
        """A literal; numbers that WGSL cannot write are made of their bits."""
        number, kind = literal(x), type_of(x.dtype)
        if kind == "bool":
            return "true" if number else "false"
        if kind == "i32":
            if not _FEWEST <= int(number) < -_FEWEST:
                raise UnsupportedError(f"webgpu: {int(number)}: an index beyond 32 bits")
            return "(-2147483647 - 1)" if int(number) == _FEWEST else f"{int(number)}i"
        if kind == "u32":
            return f"{int(number)}u"
        normal = np.isfinite(number) and abs(number) >= np.finfo(x.dtype).smallest_normal
        if normal or (number == 0 and not np.signbit(number)):
            return f"{float(number):.9e}{'h' if kind == 'f16' else 'f'}"
        wide = int(np.asarray(number).astype(np.float32).view(np.uint32))
        found = self.call("float_of", f"0x{wide:08x}u")
        return f"f16({found})" if kind == "f16" else found

    def instruction(self, x: Value, args: list[str]) -> str:
        """One instruction of the loop IR on operands that are names."""
        source = x.args[0].dtype
        if x.op == "select":
            return f"select({args[2]}, {args[1]}, {args[0]})"
        if x.op == "cast":
            return self._cast(args[0], source, x.dtype)
        if x.op == "bitcast":
            return f"bitcast<{type_of(x.dtype)}>({args[0]})"
        if source == BOOL:
            return self._boolean(x.op, args)
        if x.op in _COMPARED:
            return self._compared(x, args)
        if x.op == "neg":
            return f"-{args[0]}" if source.kind == "f" else f"{type_of(source)}(0) - {args[0]}"
        if x.op == "fma" and _is_error_of_product(x):
            return self.call("lost", args[0], args[1])
        if source.kind == "f":
            return self._floating(x.op, args, source)
        return self._integer(x, args, type_of(source))

    def _compared(self, x: Value, args: list[str]) -> str:
        if x.args[0].dtype.kind == "f" and x.args[0] is x.args[1]:
            nan = self.call("is_nan", f"f32({args[0]})")
            return nan if x.op == "not_equal" else f"!{nan}"
        text = f"{args[0]} {_COMPARED[x.op]} {args[1]}"
        return self.call("truth", text) if x.args[0].dtype.kind == "f" else text

    def _floating(self, op: str, args: list[str], dtype: DType) -> str:
        if op in _INFIX:
            text = f"{args[0]} {_INFIX[op]} {args[1]}"
            return self.call("exact", text) if dtype.name == "float32" else text
        if op in _CALLED:
            return f"{op}({', '.join(args)})"
        if op == "fma":
            text = f"fma({', '.join(args)})"
            return self.call("exact", text) if dtype.name == "float32" else text
        if op in ("min", "max"):
            wide = self.call(f"{op}_f32", *(f"f32({a})" for a in args))
            return f"f16({wide})" if dtype.name == "float16" else wide
        raise UnsupportedError(f"webgpu: {op}: no exact instruction for {dtype}")

    def _integer(self, x: Value, args: list[str], kind: str) -> str:
        op = x.op
        if op in ("add", "sub", "mul"):
            return f"{args[0]} {_INFIX[op]} {args[1]}"
        if op in _BITS:
            return f"{args[0]} {_BITS[op]} {args[1]}"
        if op == "bit_not":
            return f"~{args[0]}"
        if op in ("min", "max", "abs"):
            return f"{op}({', '.join(args)})"
        if op in ("shift_left", "shift_right") and x.args[1].op == "const":
            count = int(literal(x.args[1]))
            if 0 <= count < 32:
                return f"{args[0]} {'<<' if op == 'shift_left' else '>>'} {count}u"
        if f"{op}_{kind}" in HELPERS:
            return self.call(f"{op}_{kind}", *args)
        return args[0]  # floor and its kin leave integers as they are

    def _boolean(self, op: str, args: list[str]) -> str:
        if op in ("bit_and", "mul", "min"):
            return f"{args[0]} && {args[1]}"
        if op in ("bit_or", "add", "max"):
            return f"{args[0]} || {args[1]}"
        if op in ("bit_xor", "not_equal"):
            return f"{args[0]} != {args[1]}"
        if op == "equal":
            return f"{args[0]} == {args[1]}"
        if op == "less":
            return f"!{args[0]} && {args[1]}"
        if op == "less_equal":
            return f"!{args[0]} || {args[1]}"
        return f"!{args[0]}" if op == "bit_not" else args[0]

    def _cast(self, x: str, source: DType, target: DType) -> str:
        have, want = type_of(source), type_of(target)
        if have == want:
            return x
        if want == "bool":
            size = f"(bitcast<u32>(f32({x})) & 0x7fffffffu)" if have[0] == "f" else x
            return f"{size} != 0"
        if have[0] == "f" and want[0] in "iu":
            return self.call(f"to_{want}", f"f32({x})")
        return f"{want}({x})"


def _is_error_of_product(x: Value) -> bool:
    """Whether an `fma` takes the rounded product of its factors from the exact one."""
    *factors, term = x.args
    product = term.args[0] if term.op == "neg" else term
    return term.op == "neg" and product.op == "mul" and list(product.args) == factors
