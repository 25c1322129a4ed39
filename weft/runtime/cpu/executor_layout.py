"""What the executor and those who write programs for it agree on: frames, instructions, steps.

An instruction is a row of 64-bit words: number, length, operands; a jump counts words from its own
beginning. `expanded` gives the executor's LLVM IR four shorthands for reading all this.
"""

from __future__ import annotations

import itertools
import re
from string import Template

from weft.runtime.cpu.pool_text import OPEN, POOL

FRAME = {  # what a run is, by byte offset
    "IP": 0,  # the next instruction
    "CODE": 8,  # the program: where each table entry comes from, then instructions
    "TABLE": 16,
    "ARGUMENTS": 24,  # where table entries come from: zero, frame, scratch, threads, the caller's
    "POOL": 32,
    "PROFILE": 40,  # null, or a ring of records
    "BUDGET": 48,  # ticks after which a run returns to let Python handle signals
    "DEADLINE": 56,
    "CHUNK": 64,  # the next chunk of a parallel region; alone in its cache line
    "STATUS": 128,  # code and detail: what kernels report
    "CANCEL": 144,
    "HOST": 152,  # the number of the Python function to call
    "THREADS": 160,
    "GIVEN": 168,  # how many arguments are the caller's
    "WORKERS": 176,  # that have begun to run panels, the caller included
    "NUMBER": 184,  # what makes a number of Python's, for frames that Python calls itself
    "DOORS": 192,  # for each Python function, null or the record by which it is done natively
    "OPENED": 200,  # whether a region of this run is open to the pool
    "REGISTERS": 208,
}
ZERO, SELF, SCRATCH, THREADS, FIXED_ARGUMENTS = range(5)

# Why the executor returned.
RETURNS = ("DONE", "HOST", "PAUSED", "NEED_POOL", "CANCELLED", "FAILED", "REFUSED")
DONE, HOST, PAUSED, NEED_POOL, CANCELLED, FAILED, REFUSED = range(7)

# Where a NumPy array keeps the address of its data, and its flags, of which 1 is C_CONTIGUOUS.
ARRAY = {"DATA": object.__basicsize__, "FLAGS": object.__basicsize__ + 48}

INTEGERS = {  # what a register can be read from: its type in LLVM, and how it becomes 64 bits wide
    **{"bool": ("i8", "zext"), "int8": ("i8", "sext"), "uint8": ("i8", "zext")},
    **{"int16": ("i16", "sext"), "uint16": ("i16", "zext"), "int32": ("i32", "sext")},
    **{"uint32": ("i32", "zext"), "int64": ("i64", ""), "uint64": ("i64", "")},
}

HANDLERS = (
    *(
        "end",
        "serial",
        "parallel",
        "panels",
        "host",
        "jump",
        "back",
        "next",
        "unless_less",
        "unless",
    ),
    *("choose", "set", "put", "swap", "advance", "copy"),
    *(f"read_{dtype}" for dtype in INTEGERS),
)
OPCODES = {name: number for number, name in enumerate(HANDLERS)}

REGION_WORDS = 4  # number, length, steps, chunks; then the steps, each of these words:
STEP = ("KERNEL", "SLOTS", "PARAMETERS", "TASKS", "GRAIN", "FIRST", "LAST", "NUMBER")

# Panels begin like a region; then the slot of the scratch memory, bytes and number of its parts,
# panels in a batch, private slots and where they are described (byte offset); then the steps, whose
# tasks are those of a batch, whose grain is that of a panel.
PANEL_WORDS = REGION_WORDS + 7
PRIVATE = ("SLOT", "OFFSET", "BATCH", "PANEL")  # where it lies; bytes of a batch and of a panel

PROFILE_HEADER = 2  # records so far, capacity - 1
PROFILE_WORDS = 4  # start, end, thread, step

_NUMBERS = {
    **{name: number + 1 for number, name in enumerate(RETURNS)},  # inside, 0 means: go on
    **{"REGION_WORDS": REGION_WORDS, "STEP_WORDS": len(STEP), "OPEN": OPEN, "THREADS": THREADS},
    **{"PANEL_WORDS": PANEL_WORDS, "PRIVATE_WORDS": len(PRIVATE), "PANELS": OPCODES["panels"]},
    **{"PROFILE_HEADER": PROFILE_HEADER, "PROFILE_WORDS": PROFILE_WORDS},
    **{f"FRAME_{name}": offset for name, offset in FRAME.items()},
    **{f"ARRAY_{name}": offset for name, offset in ARRAY.items()},
    **{"FIXED_ARGUMENTS": FIXED_ARGUMENTS, "REASON_REFUSED": REFUSED, "REASON_PAUSED": PAUSED},
    **{f"POOL_{name}": offset for name, offset in POOL.items()},
    **{f"STEP_{name}": number for number, name in enumerate(STEP)},
}

_SHORTHANDS = (
    (  # a field of the frame
        r"(%[\w.]+) = field (\w+) (\w+)",
        r"""\1.at = getelementptr i8, ptr %frame, i64 $FRAME_\3
  \1 = load \2, ptr \1.at""",
    ),
    (
        r"field (\w+) = (\w+) ([%\w.]+)",
        r"""%set.# = getelementptr i8, ptr %frame, i64 $FRAME_\1
  store \2 \3, ptr %set.#""",
    ),
    (  # a word of the instruction
        r"(%[\w.]+) = operand (\d+)",
        r"""\1.at = getelementptr i64, ptr %ip, i64 \2
  \1 = load i64, ptr \1.at""",
    ),
    (  # where the register is that an operand names
        r"(%[\w.]+) = register (\d+)",
        r"""\1.operand = getelementptr i64, ptr %ip, i64 \2
  \1.number = load i64, ptr \1.operand
  \1.registers = getelementptr i8, ptr %frame, i64 $FRAME_REGISTERS
  \1 = getelementptr i64, ptr \1.registers, i64 \1.number""",
    ),
    (  # the pointer in the table that an operand names; `.entry` is its place
        r"(%[\w.]+) = entry (\d+)",
        r"""\1.operand = getelementptr i64, ptr %ip, i64 \2
  \1.slot = load i64, ptr \1.operand
  \1.table.at = getelementptr i8, ptr %frame, i64 $FRAME_TABLE
  \1.table = load ptr, ptr \1.table.at
  \1.entry = getelementptr ptr, ptr \1.table, i64 \1.slot
  \1 = load ptr, ptr \1.entry""",
    ),
    (  # a word of a step
        r"(%[\w.]+) = word (\w+) (%\w+)",
        r"""\1.at = getelementptr i64, ptr \3, i64 $STEP_\2
  \1 = load i64, ptr \1.at""",
    ),
)


def expanded(text: str) -> str:
    """LLVM IR from text with shorthands (`field`, `operand`, `register`, `entry`, `word`)."""
    numbers = itertools.count()  # `#` is a fresh one: a field may be set twice in a function
    for pattern, lines in _SHORTHANDS:

        def written(found: re.Match[str], lines: str = lines) -> str:
            return found.expand(lines).replace("#", str(next(numbers)))

        text = re.sub(pattern, written, text)
    return Template(text).substitute(_NUMBERS)
