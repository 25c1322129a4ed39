"""The executor's instructions as LLVM IR: control flow, registers and the table of pointers.

Regions of steps are in `executor_text`. Every loop goes back through `poll`, if only now and then,
so that it can be cancelled and lets Python handle signals.
"""

from __future__ import annotations

from weft.runtime.cpu.executor_layout import INTEGERS

_CONTROL = """
define internal i64 @do_end(ptr %frame, ptr %ip) {
  ret i64 $DONE
}

; A call of Python, unless its door says how it is done without: the record there begins with a
; routine that takes the record, the first and the last of the addresses, and answers 0 when done.
; Profiles want to see such calls, so that with one they go through Python.
define internal i64 @do_host(ptr %frame, ptr %ip) {
entry:
  %number = operand 2
  %doors = field ptr DOORS
  %door.at = getelementptr ptr, ptr %doors, i64 %number
  %record = load ptr, ptr %door.at
  %profile = field ptr PROFILE
  %shut = icmp eq ptr %record, null
  %watched = icmp ne ptr %profile, null
  %python = or i1 %shut, %watched
  br i1 %python, label %leave, label %try
try:
  %routine = load ptr, ptr %record
  %source = entry 3
  %target = entry 4
  %answer = call i64 %routine(ptr %record, ptr %source, ptr %target)
  %done = icmp eq i64 %answer, 0
  br i1 %done, label %on, label %leave
on:
  %code = call i64 @poll(ptr %frame)
  ret i64 %code
leave:
  field HOST = i64 %number
  ret i64 $HOST
}

define internal void @go(ptr %frame, ptr %ip, i64 %distance) {
  %target = getelementptr i64, ptr %ip, i64 %distance
  field IP = ptr %target
  ret void
}

define internal i64 @do_jump(ptr %frame, ptr %ip) {
  %distance = operand 2
  call void @go(ptr %frame, ptr %ip, i64 %distance)
  ret i64 0
}

define internal i64 @do_back(ptr %frame, ptr %ip) {
  %distance = operand 2
  call void @go(ptr %frame, ptr %ip, i64 %distance)
  %code = call i64 @poll(ptr %frame)
  ret i64 %code
}

define internal i64 @do_next(ptr %frame, ptr %ip) {
entry:
  %counter.at = register 2
  %limit.at = register 3
  %counter = load i64, ptr %counter.at
  %limit = load i64, ptr %limit.at
  %following = add i64 %counter, 1
  store i64 %following, ptr %counter.at
  %more = icmp slt i64 %following, %limit
  br i1 %more, label %again, label %out
again:
  %distance = operand 4
  call void @go(ptr %frame, ptr %ip, i64 %distance)
  %mask = operand 5
  %rest = and i64 %following, %mask
  %due = icmp eq i64 %rest, 0
  br i1 %due, label %look, label %out
look:
  %code = call i64 @poll(ptr %frame)
  ret i64 %code
out:
  ret i64 0
}

define internal i64 @do_unless_less(ptr %frame, ptr %ip) {
entry:
  %a.at = register 2
  %b.at = register 3
  %a = load i64, ptr %a.at
  %b = load i64, ptr %b.at
  %less = icmp slt i64 %a, %b
  br i1 %less, label %out, label %leave
leave:
  %distance = operand 4
  call void @go(ptr %frame, ptr %ip, i64 %distance)
  br label %out
out:
  ret i64 0
}

define internal i64 @do_unless(ptr %frame, ptr %ip) {
entry:
  %place = entry 2
  %byte = load i8, ptr %place
  %holds = icmp ne i8 %byte, 0
  br i1 %holds, label %out, label %leave
leave:
  %distance = operand 3
  call void @go(ptr %frame, ptr %ip, i64 %distance)
  br label %out
out:
  ret i64 0
}

define internal i64 @do_choose(ptr %frame, ptr %ip) {
  %index.at = register 2
  %index = load i64, ptr %index.at
  %count = operand 3
  %targets = operand 4
  %last = sub i64 %count, 1
  %low = icmp slt i64 %index, 0
  %high = icmp sgt i64 %index, %last
  %below = select i1 %high, i64 %last, i64 %index
  %clamped = select i1 %low, i64 0, i64 %below
  %place = add i64 %targets, %clamped
  %distance.at = getelementptr i64, ptr %ip, i64 %place
  %distance = load i64, ptr %distance.at
  call void @go(ptr %frame, ptr %ip, i64 %distance)
  ret i64 0
}
"""

_DATA = """
define internal i64 @do_set(ptr %frame, ptr %ip) {
  %register.at = register 2
  %value = operand 3
  store i64 %value, ptr %register.at
  ret i64 0
}

define internal i64 @do_put(ptr %frame, ptr %ip) {
  %register.at = register 2
  %value = load i64, ptr %register.at
  %base = entry 3
  %offset = operand 4
  %place = getelementptr i8, ptr %base, i64 %offset
  store i64 %value, ptr %place
  ret i64 0
}

define internal i64 @do_swap(ptr %frame, ptr %ip) {
  %a = entry 2
  %b = entry 3
  store ptr %b, ptr %a.entry
  store ptr %a, ptr %b.entry
  ret i64 0
}

define internal i64 @do_advance(ptr %frame, ptr %ip) {
  %old = entry 2
  %base = entry 3
  %counter.at = register 4
  %counter = load i64, ptr %counter.at
  %stride = operand 5
  %offset = operand 6
  %distance = mul i64 %counter, %stride
  %total = add i64 %distance, %offset
  %place = getelementptr i8, ptr %base, i64 %total
  store ptr %place, ptr %old.entry
  ret i64 0
}

define internal i64 @do_copy(ptr %frame, ptr %ip) {
entry:
  %target = entry 2
  %source = entry 3
  %bytes = operand 4
  %same = icmp eq ptr %target, %source
  br i1 %same, label %out, label %move
move:
  %r = call ptr @memmove(ptr %target, ptr %source, i64 %bytes)
  br label %out
out:
  ret i64 0
}
"""

_READ = """
define internal i64 @do_read_{dtype}(ptr %frame, ptr %ip) {{
  %register.at = register 2
  %base = entry 3
  %offset = operand 4
  %place = getelementptr i8, ptr %base, i64 %offset
  %narrow = load {kind}, ptr %place
  {widen}
  store i64 %value, ptr %register.at
  ret i64 0
}}
"""


def _read(dtype: str) -> str:
    kind, extension = INTEGERS[dtype]
    widen = f"{extension} {kind} %narrow to i64" if extension else "add i64 %narrow, 0"
    return _READ.format(dtype=dtype, kind=kind, widen=f"%value = {widen}")


INSTRUCTIONS = _CONTROL + _DATA + "".join(map(_read, INTEGERS))
