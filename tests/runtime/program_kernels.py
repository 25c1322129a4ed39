"""Tiny kernels with the ABI of compiled ones, for tests of programs and of the pool."""

from __future__ import annotations

import functools

import numpy as np

from weft.runtime.cpu.jit import Loaded, compile_text, host_target, load_object
from weft.runtime.cpu.program_builder import Step

MULTIPLIER = 6364136223846793005
INDEX = np.dtype(np.int64)
LARGE = 1e9  # a cost that makes a region parallel


def array(*values: int) -> np.ndarray:
    """Integers as kernels take them."""
    return np.array(values, INDEX)


def kernel_text(name: str, buffers: int, parameters: int, body: str) -> str:
    """A kernel that does `body` for each task `%i`; `%b0 …` are buffers, `%p0 …` parameters."""
    loads = [
        f"""  %s{k}.at = getelementptr i32, ptr %slots, i64 {k}
  %s{k} = load i32, ptr %s{k}.at
  %t{k} = getelementptr ptr, ptr %table, i32 %s{k}
  %b{k} = load ptr, ptr %t{k}
"""
        for k in range(buffers)
    ] + [
        f"""  %p{k}.at = getelementptr i64, ptr %parameters, i64 {k}
  %p{k} = load i64, ptr %p{k}.at
"""
        for k in range(parameters)
    ]
    return f"""
define void @{name}(ptr %table, ptr %slots, ptr %parameters, i64 %begin, i64 %end) {{
entry:
{"".join(loads)}  %any = icmp slt i64 %begin, %end
  br i1 %any, label %loop, label %out
loop:
  %i = phi i64 [ %begin, %entry ], [ %i1, %next ]
{body}
  br label %next
next:
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %end
  br i1 %more, label %loop, label %out
out:
  ret void
}}
"""


TEXT = "".join(
    [
        # b0[i] = b0[i] * MULTIPLIER + p0 + i: a task done twice, or not at all, shows.
        kernel_text(
            "mix",
            1,
            1,
            f"""
  %x.at = getelementptr i64, ptr %b0, i64 %i
  %x = load i64, ptr %x.at
  %y = mul i64 %x, {MULTIPLIER}
  %z = add i64 %y, %p0
  %w = add i64 %z, %i
  store i64 %w, ptr %x.at""",
        ),
        # b2[i] = b0[i] * 31 + b1[i]
        kernel_text(
            "fold",
            3,
            0,
            """
  %x.at = getelementptr i64, ptr %b0, i64 %i
  %x = load i64, ptr %x.at
  %y.at = getelementptr i64, ptr %b1, i64 %i
  %y = load i64, ptr %y.at
  %m = mul i64 %x, 31
  %z = add i64 %m, %y
  %z.at = getelementptr i64, ptr %b2, i64 %i
  store i64 %z, ptr %z.at""",
        ),
        # b1[0] = b0[0] < p0, as a byte
        kernel_text(
            "less",
            2,
            1,
            """
  %x = load i64, ptr %b0
  %c = icmp slt i64 %x, %p0
  %byte = zext i1 %c to i8
  store i8 %byte, ptr %b1""",
        ),
        # b0[0] += p0
        kernel_text(
            "add",
            1,
            1,
            """
  %x = load i64, ptr %b0
  %y = add i64 %x, %p0
  store i64 %y, ptr %b0""",
        ),
        # status = b0[0], p0, at task p1
        kernel_text(
            "fail",
            1,
            2,
            """
  %here = icmp eq i64 %i, %p1
  br i1 %here, label %report, label %next
report:
  %code = load i64, ptr %b0
  %status = load ptr, ptr %table
  store i64 %code, ptr %status
  %detail = getelementptr i64, ptr %status, i64 1
  store i64 %p0, ptr %detail""",
        ),
        # b0[i] = 1, then wait for b0[1 - i] to be 1, p0 turns at most; b1[i] = whether it was
        kernel_text(
            "meet",
            2,
            1,
            """
  %mine = getelementptr i64, ptr %b0, i64 %i
  %partner = sub i64 1, %i
  %other = getelementptr i64, ptr %b0, i64 %partner
  store atomic i64 1, ptr %mine seq_cst, align 8
  br label %turn
turn:
  %n = phi i64 [ 0, %loop ], [ %n1, %turn ]
  %there = load atomic i64, ptr %other seq_cst, align 8
  %n1 = add i64 %n, 1
  %alone = icmp eq i64 %there, 0
  %patient = icmp slt i64 %n1, %p0
  %again = and i1 %alone, %patient
  br i1 %again, label %turn, label %met
met:
  %result = getelementptr i64, ptr %b1, i64 %i
  store i64 %there, ptr %result""",
        ),
        # b0[i] = 1, after p0 turns of the wheel
        kernel_text(
            "spin",
            1,
            1,
            """
  br label %turn
turn:
  %n = phi i64 [ 0, %loop ], [ %n1, %turn ]
  %x.at = getelementptr i64, ptr %b0, i64 %i
  store volatile i64 1, ptr %x.at
  %n1 = add i64 %n, 1
  %again = icmp slt i64 %n1, %p0
  br i1 %again, label %turn, label %done
done:""",
        ),
    ]
)


@functools.cache
def loaded() -> Loaded:
    return load_object(compile_text(TEXT, host_target()))


def step(name: str, slots=(), parameters=(), tasks=1, cost_ns=0.0, grain=0) -> Step:
    return Step(
        kernel_address=loaded().address(name),
        slots=tuple(slots),
        parameters=tuple(parameters),
        tasks=tasks,
        cost_ns=cost_ns,
        name=name,
        grain=grain,
    )


def pointers(*arrays: np.ndarray) -> list[int]:
    return [array.ctypes.data for array in arrays]


def mixed(x: np.ndarray, parameter: int) -> np.ndarray:
    """What `mix` makes of an array."""
    with np.errstate(over="ignore"):
        return x * np.int64(MULTIPLIER) + np.int64(parameter) + np.arange(x.size)
