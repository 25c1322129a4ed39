"""LLVM IR as lines of text: names, types, constants and the simplest instructions.

`Writer` collects the lines of a module; `Code` writes instructions on values of some number of
lanes, so that what is written for a scalar is written for a vector too.
"""

from __future__ import annotations

import struct
import sys
from typing import Any

import numpy as np

from weft.compiler.loops import BOOL
from weft.core.common import dtypes
from weft.core.common.types import DType
from weft.errors import UnsupportedDTypeError

# Narrow floats are their bits: how they are converted depends on what the target has.
TYPES: dict[DType, str] = {
    BOOL: "i1",
    **{np.dtype(f"{sign}{size}"): f"i{8 * size}" for sign in "iu" for size in (1, 2, 4, 8)},
    dtypes.float8_e4m3: "i8",
    dtypes.float8_e5m2: "i8",
    dtypes.float16: "i16",
    dtypes.bfloat16: "i16",
    dtypes.float32: "float",
    dtypes.float64: "double",
}
NARROW = frozenset(dtypes.NARROW)
SUFFIX = {"float": "f32", "double": "f64", "half": "f16"}


def type_of(dtype: DType) -> str:
    """The LLVM type of one element in a register."""
    found = TYPES.get(dtype)
    if found is None:
        raise UnsupportedDTypeError(f"kernel: no scalar instructions for {dtype}")
    return found


def stored_type(dtype: DType) -> str:
    """The LLVM type of one element in memory: a bool takes a byte."""
    return "i8" if dtype == BOOL else type_of(dtype)


def vector(name: str, lanes: int) -> str:
    """The type of `lanes` elements."""
    return name if lanes == 1 else f"<{lanes} x {name}>"


def constant(data: bytes, dtype: DType) -> str:
    """A scalar of these bytes as LLVM writes it, bit for bit."""
    if dtype == BOOL:
        return "true" if any(data) else "false"
    signed = dtype.kind == "i" or dtype in NARROW
    bits = int.from_bytes(data, sys.byteorder, signed=signed)
    if signed or dtype.kind == "u":
        return str(bits)
    return float_constant(bits) if dtype.itemsize == 4 else f"0x{bits:016X}"


def float_constant(bits: int) -> str:
    """A float by its bits; LLVM writes it as the double of the same value."""
    if bits & 0x7F800000 == 0x7F800000:  # inf and NaN: no arithmetic, which would quieten a NaN
        wide = (bits >> 31) << 63 | 0x7FF << 52 | (bits & 0x7FFFFF) << 29
    else:
        (number,) = struct.unpack("<f", struct.pack("<I", bits))
        (wide,) = struct.unpack("<Q", struct.pack("<d", number))
    return f"0x{wide:016X}"


def number(x: float, name: str) -> str:
    """A Python number as a literal of an LLVM type, into which it fits exactly."""
    if name not in ("float", "double"):
        return str(int(x))
    return f"0x{int(np.float64(x).view(np.uint64)):016X}"


def known_integer(text: str) -> int | None:
    """The integer that a literal is in every lane; None of anything else."""
    if text.startswith("splat"):
        text = text[:-1].rpartition(" ")[2]
    return int(text) if text[-1].isdigit() and text[0] in "-0123456789" else None


class Writer:
    """The lines of a module as they are written, and what it must declare."""

    def __init__(self) -> None:
        self.lines: list[Any] = []  # text, or a list of lines that is still growing
        self.declarations: dict[str, None] = {}
        self.functions: dict[str, str] = {}
        self.intrinsics: dict[tuple[str, str, int], tuple[str, str]] = {}  # type, and a call begun
        self.block = "entry"
        self._count = 0

    def name(self) -> str:
        """A name not used before."""
        self._count += 1
        return f"%v{self._count}"

    def label(self, kind: str) -> str:
        """A block's name not used before."""
        self._count += 1
        return f"{kind}{self._count}"

    def let(self, instruction: str) -> str:
        """Write an instruction; the name of its result."""
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def do(self, instruction: str) -> None:
        """Write an instruction without a result."""
        self.lines.append(f"  {instruction}")

    def begin(self, label: str) -> None:
        """Start a block."""
        self.lines.append(f"{label}:")
        self.block = label

    def goto(self, label: str) -> None:
        """End the block with a jump."""
        self.lines.append(f"  br label %{label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        """End the block with a choice."""
        self.lines.append(f"  br i1 {condition}, label %{yes}, label %{no}")

    def text(self) -> str:
        """The module."""
        lines: list[str] = []
        _flatten(self.lines, lines)
        return "\n".join([*self.declarations, *self.functions.values(), *lines, ""])


def _flatten(lines: list[Any], found: list[str]) -> None:
    kinds = [*map(type, lines), list]
    start = 0
    while (place := kinds.index(list, start)) < len(lines):
        found += lines[start:place]
        _flatten(lines[place], found)
        start = place + 1
    found += lines[start:]


class Code:
    """Writes instructions on values of `lanes` elements, given and returned as text."""

    __slots__ = ("lanes", "writer")

    def __init__(self, writer: Writer, lanes: int) -> None:
        self.writer = writer
        self.lanes = lanes

    def type(self, name: str) -> str:
        """The type of `lanes` elements of `name`."""
        return name if self.lanes == 1 else f"<{self.lanes} x {name}>"

    def literal(self, text: str, name: str) -> str:
        """A constant in every lane."""
        return text if self.lanes == 1 else f"splat ({name} {text})"

    def number(self, x: float, name: str) -> str:
        """A Python number in every lane."""
        return self.literal(number(x, name), name)

    def op(self, instruction: str, name: str, *args: str) -> str:
        """An instruction whose operands and result are of type `name`."""
        return self.writer.let(f"{instruction} {self.type(name)} {', '.join(args)}")

    def compare(self, predicate: str, name: str, x: str, y: str) -> str:
        """A comparison of floats or integers."""
        family = "fcmp" if name in SUFFIX else "icmp"
        return self.writer.let(f"{family} {predicate} {self.type(name)} {x}, {y}")

    def select(self, condition: str, name: str, x: str, y: str) -> str:
        """`x` in the lanes where the condition holds, else `y`."""
        kind = self.type(name)
        return self.writer.let(f"select {self.type('i1')} {condition}, {kind} {x}, {kind} {y}")

    def convert(self, instruction: str, x: str, source: str, target: str) -> str:
        """A conversion between types."""
        return self.writer.let(f"{instruction} {self.type(source)} {x} to {self.type(target)}")

    def intrinsic(self, base: str, name: str, *args: str, extra: str = "") -> str:
        """A call of an intrinsic whose operands and result are of type `name`."""
        key = (base, name, self.lanes)
        known = self.writer.intrinsics.get(key)
        if known is None:
            kind = self.type(name)
            suffix = ("" if self.lanes == 1 else f"v{self.lanes}") + SUFFIX.get(name, name)
            flags = ", i1" if extra else ""
            kinds = ", ".join([kind] * len(args))
            self.writer.declarations[f"declare {kind} @llvm.{base}.{suffix}({kinds}{flags})"] = None
            known = self.writer.intrinsics[key] = kind, f"call {kind} @llvm.{base}.{suffix}("
        kind, call = known
        operands = f", {kind} ".join(args)
        return self.writer.let(f"{call}{kind} {operands}{extra})")

    def saturate(self, signed: bool, x: str, source: str, target: str) -> str:
        """A float as an integer: truncated, saturated, NaN as 0."""
        base = f"llvm.fpto{'s' if signed else 'u'}i.sat"
        width = "" if self.lanes == 1 else f"v{self.lanes}"
        name = f"@{base}.{width}{target}.{width}{SUFFIX[source]}"
        result, operand = self.type(target), self.type(source)
        self.writer.declarations[f"declare {result} {name}({operand})"] = None
        return self.writer.let(f"call {result} {name}({operand} {x})")

    def each(self, function: str, name: str, *args: str) -> str:
        """A function of scalars of type `name`, called for each lane."""
        let = self.writer.let
        if self.lanes == 1:
            return let(f"call {name} @{function}({', '.join(f'{name} {x}' for x in args)})")
        kind, made = self.type(name), "poison"
        for lane in range(self.lanes):
            scalars = [let(f"extractelement {kind} {x}, i32 {lane}") for x in args]
            found = let(f"call {name} @{function}({', '.join(f'{name} {x}' for x in scalars)})")
            made = let(f"insertelement {kind} {made}, {name} {found}, i32 {lane}")
        return made
