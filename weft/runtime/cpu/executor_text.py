"""The executor as LLVM IR: one native routine that walks the instructions of a program.

All that a run knows is in its *frame*: the next instruction, registers, the table of pointers. So
the routine can return at any instruction (to call Python, to start the pool, to let signals be
handled) and go on later. Each instruction has a handler, which returns 0 to go on.
"""

from __future__ import annotations

from weft.runtime.cpu.executor_layout import HANDLERS, expanded
from weft.runtime.cpu.handle_text import handle_text
from weft.runtime.cpu.instruction_text import INSTRUCTIONS
from weft.runtime.cpu.pool_text import pool_text

_RUN = """
declare ptr @memmove(ptr, ptr, i64)

define i64 @start(ptr %frame) {
entry:
  call void @close(ptr %frame)
  %code = field ptr CODE
  %table = field ptr TABLE
  %arguments = field ptr ARGUMENTS
  %given = getelementptr i64, ptr %arguments, i64 $THREADS
  %threads = load i64, ptr %given
  field THREADS = i64 %threads
  field CHUNK = i64 0
  field STATUS = i64 0
  field CANCEL = i64 0
  %count = load i64, ptr %code
  %sources = getelementptr i64, ptr %code, i64 1
  br label %bind
bind:
  %i = phi i64 [ 0, %entry ], [ %i1, %bind ]
  %pair = getelementptr [2 x i64], ptr %sources, i64 %i
  %offset.at = getelementptr i64, ptr %pair, i64 1
  %source = load i64, ptr %pair
  %offset = load i64, ptr %offset.at
  %base.at = getelementptr i64, ptr %arguments, i64 %source
  %base = load i64, ptr %base.at
  %address = add i64 %base, %offset
  %entry.at = getelementptr i64, ptr %table, i64 %i
  store i64 %address, ptr %entry.at
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %count
  br i1 %more, label %bind, label %bound
bound:
  %ip = getelementptr [2 x i64], ptr %sources, i64 %count
  field IP = ptr %ip
  %r = tail call i64 @resume(ptr %frame)
  ret i64 %r
}

; The caller's arguments are NumPy arrays: take the addresses of their data, if all are packed.
define i64 @start_arrays(ptr %frame) {
entry:
  %count = field i64 GIVEN
  %arguments = field ptr ARGUMENTS
  %first = getelementptr i64, ptr %arguments, i64 $FIXED_ARGUMENTS
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i1, %take ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %look, label %run
look:
  %place = getelementptr ptr, ptr %first, i64 %i
  %array = load ptr, ptr %place
  %flags.at = getelementptr i8, ptr %array, i64 $ARRAY_FLAGS
  %flags = load i32, ptr %flags.at
  %packed = trunc i32 %flags to i1
  br i1 %packed, label %take, label %refuse
take:
  %data.at = getelementptr i8, ptr %array, i64 $ARRAY_DATA
  %data = load ptr, ptr %data.at
  store ptr %data, ptr %place
  %i1 = add i64 %i, 1
  br label %head
run:
  %r = tail call i64 @start(ptr %frame)
  ret i64 %r
refuse:
  ret i64 $REASON_REFUSED
}

; The same as a function of Python's: `self` is the array that the frame lies in. Python's lock is
; held throughout, so that nobody else can use the frame, and a pause would be for nothing.
define ptr @call(ptr %self, ptr %given, i64 %number) {
entry:
  %frame.at = getelementptr i8, ptr %self, i64 $ARRAY_DATA
  %frame = load ptr, ptr %frame.at
  %count = field i64 GIVEN
  %arguments = field ptr ARGUMENTS
  %first = getelementptr i64, ptr %arguments, i64 $FIXED_ARGUMENTS
  %bytes = mul i64 %count, 8
  %fits = icmp eq i64 %number, %count
  br i1 %fits, label %run, label %out
run:
  %moved = call ptr @memmove(ptr %first, ptr %given, i64 %bytes)
  %started = call i64 @start_arrays(ptr %frame)
  br label %look
look:
  %code = phi i64 [ %started, %run ], [ %resumed, %again ]
  %paused = icmp eq i64 %code, $REASON_PAUSED
  br i1 %paused, label %again, label %out
again:
  %resumed = call i64 @resume(ptr %frame)
  br label %look
out:
  %result = phi i64 [ $REASON_REFUSED, %entry ], [ %code, %look ]
  %make = field ptr NUMBER
  %object = call ptr %make(i64 %result)
  ret ptr %object
}

define i64 @resume(ptr %frame) {
entry:
  %now = call i64 @ticks()
  %budget = field i64 BUDGET
  %deadline = add i64 %now, %budget
  field DEADLINE = i64 %deadline
  br label %step
step:
  %ip = field ptr IP
  %opcode = operand 0
  %length = operand 1
  %next = getelementptr i64, ptr %ip, i64 %length
  field IP = ptr %next
  %handler.at = getelementptr ptr, ptr @handlers, i64 %opcode
  %handler = load ptr, ptr %handler.at
  %code = call i64 %handler(ptr %frame, ptr %ip)
  %on = icmp eq i64 %code, 0
  br i1 %on, label %step, label %out
out:
  %reason = sub i64 %code, 1
  ret i64 %reason
}

define internal i64 @poll(ptr %frame) {
entry:
  %cancel.at = getelementptr i8, ptr %frame, i64 $FRAME_CANCEL
  %cancel = load atomic i64, ptr %cancel.at monotonic, align 8
  %cancelled = icmp ne i64 %cancel, 0
  br i1 %cancelled, label %stop, label %look
stop:
  ret i64 $CANCELLED
look:
  %now = call i64 @ticks()
  %deadline = field i64 DEADLINE
  %late = icmp sgt i64 %now, %deadline
  %code = select i1 %late, i64 $PAUSED, i64 0
  ret i64 %code
}

define internal i64 @after(ptr %frame) {
entry:
  %status = field i64 STATUS
  %failed = icmp ne i64 %status, 0
  br i1 %failed, label %fail, label %fine
fail:
  ret i64 $FAILED
fine:
  %code = tail call i64 @poll(ptr %frame)
  ret i64 %code
}
"""

_STEPS = """
define internal void @invoke(ptr %frame, ptr %table, ptr %step, i64 %begin, i64 %end,
    i64 %thread) {
entry:
  %profile = field ptr PROFILE
  %address = word KERNEL %step
  %kernel = inttoptr i64 %address to ptr
  %slots.offset = word SLOTS %step
  %slots = getelementptr i8, ptr %step, i64 %slots.offset
  %parameters.offset = word PARAMETERS %step
  %parameters = getelementptr i8, ptr %step, i64 %parameters.offset
  %off = icmp eq ptr %profile, null
  br i1 %off, label %quick, label %timed
quick:
  call void %kernel(ptr %table, ptr %slots, ptr %parameters, i64 %begin, i64 %end)
  ret void
timed:
  %t0 = call i64 @ticks()
  call void %kernel(ptr %table, ptr %slots, ptr %parameters, i64 %begin, i64 %end)
  %t1 = call i64 @ticks()
  %number = word NUMBER %step
  %count = atomicrmw add ptr %profile, i64 1 monotonic
  %mask.at = getelementptr i64, ptr %profile, i64 1
  %mask = load i64, ptr %mask.at
  %place = and i64 %count, %mask
  %ring = getelementptr i64, ptr %profile, i64 $PROFILE_HEADER
  %record = getelementptr [$PROFILE_WORDS x i64], ptr %ring, i64 %place
  store i64 %t0, ptr %record
  %end.at = getelementptr i64, ptr %record, i64 1
  store i64 %t1, ptr %end.at
  %thread.at = getelementptr i64, ptr %record, i64 2
  store i64 %thread, ptr %thread.at
  %step.at = getelementptr i64, ptr %record, i64 3
  store i64 %number, ptr %step.at
  ret void
}

; Kernels one after the other, as long as none fails; the clock is not looked at if they are brief.
define internal i64 @do_serial(ptr %frame, ptr %ip) {
entry:
  %table = field ptr TABLE
  %count = operand 2
  %steps = getelementptr i64, ptr %ip, i64 $REGION_WORDS
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %step = getelementptr [$STEP_WORDS x i64], ptr %steps, i64 %i
  %tasks = word TASKS %step
  call void @invoke(ptr %frame, ptr %table, ptr %step, i64 0, i64 %tasks, i64 0)
  %status = field i64 STATUS
  %failed = icmp ne i64 %status, 0
  %i1 = add i64 %i, 1
  %done = icmp uge i64 %i1, %count
  %stop = or i1 %failed, %done
  br i1 %stop, label %out, label %loop
out:
  %brief = operand 3
  %early = icmp ne i64 %brief, 0
  %none = select i1 %failed, i64 $FAILED, i64 0
  br i1 %early, label %leave, label %look
leave:
  ret i64 %none
look:
  %code = call i64 @after(ptr %frame)
  ret i64 %code
}

; The next chunk of a region for a thread, or -1: one of its range if there is a pool.
define internal i64 @take(ptr %frame, ptr %ip, i64 %thread, ptr %pool) {
entry:
  %chunk.at = getelementptr i8, ptr %frame, i64 $FRAME_CHUNK
  %number = atomicrmw add ptr %chunk.at, i64 1 monotonic
  %chunks = operand 3
  %some = icmp ult i64 %number, %chunks
  br i1 %some, label %which, label %none
none:
  ret i64 -1
which:
  %alone = icmp eq ptr %pool, null
  br i1 %alone, label %in.order, label %of.range
in.order:
  ret i64 %number
of.range:
  %chunk = call i64 @claim(ptr %pool, i64 %thread)
  ret i64 %chunk
}

; Take chunks of a region until none is left; the caller, thread 0, also looks at the clock.
define internal i64 @share(ptr %frame, ptr %ip, i64 %thread, ptr %pool) {
entry:
  %opcode = operand 0
  %panels = icmp eq i64 %opcode, $PANELS
  br i1 %panels, label %other, label %region
other:
  %code.panels = call i64 @share_panels(ptr %frame, ptr %ip, i64 %thread, ptr %pool)
  ret i64 %code.panels
region:
  %table = field ptr TABLE
  %steps = getelementptr i64, ptr %ip, i64 $REGION_WORDS
  %caller = icmp eq i64 %thread, 0
  br label %take
take:
  %from = phi ptr [ %steps, %region ], [ %step, %ran ], [ %step, %looked ]
  %chunk = call i64 @take(ptr %frame, ptr %ip, i64 %thread, ptr %pool)
  %some = icmp sge i64 %chunk, 0
  br i1 %some, label %begin, label %out
begin:
  %begun = word FIRST %from
  %before = icmp ult i64 %chunk, %begun
  %near = select i1 %before, ptr %steps, ptr %from
  br label %find
find:
  %step = phi ptr [ %near, %begin ], [ %following, %further ]
  %last = word LAST %step
  %here = icmp ult i64 %chunk, %last
  br i1 %here, label %run, label %further
further:
  %following = getelementptr [$STEP_WORDS x i64], ptr %step, i64 1
  br label %find
run:
  %first = word FIRST %step
  %grain = word GRAIN %step
  %tasks = word TASKS %step
  %which = sub i64 %chunk, %first
  %task = mul i64 %which, %grain
  %full = add i64 %task, %grain
  %over = icmp ugt i64 %full, %tasks
  %end = select i1 %over, i64 %tasks, i64 %full
  call void @invoke(ptr %frame, ptr %table, ptr %step, i64 %task, i64 %end, i64 %thread)
  br i1 %caller, label %looked, label %ran
ran:
  br label %take
looked:
  %code = call i64 @poll(ptr %frame)
  %on = icmp eq i64 %code, 0
  br i1 %on, label %take, label %stop
stop:
  ret i64 %code
out:
  ret i64 0
}

; Work together on a region. It stays open while Python handles signals: others work on.
define internal i64 @do_parallel(ptr %frame, ptr %ip) {
entry:
  %pool = field ptr POOL
  %busy.at = getelementptr i8, ptr %pool, i64 $POOL_BUSY
  %opened = field i64 OPENED
  %fresh = icmp eq i64 %opened, 0
  br i1 %fresh, label %begin, label %again
again:
  %held = load atomic i32, ptr %busy.at monotonic, align 4
  %lost = icmp eq i32 %held, 0
  br i1 %lost, label %orphan, label %on
orphan:
  ; A child of the process that opened it: what others took of it is not done here.
  ret i64 $CANCELLED
begin:
  %chunks = operand 3
  %threads = field i64 THREADS
  %done = field i64 CHUNK
  %helpers = sub i64 %threads, 1
  %left = sub i64 %chunks, %done
  %useful = sub i64 %left, 1
  %scarce = icmp slt i64 %useful, %helpers
  %wanted = select i1 %scarce, i64 %useful, i64 %helpers
  %any = icmp sgt i64 %wanted, 0
  br i1 %any, label %look, label %on
look:
  %workers.at = getelementptr i8, ptr %pool, i64 $POOL_WORKERS
  %workers = load atomic i32, ptr %workers.at monotonic, align 4
  %present = sext i32 %workers to i64
  %short = icmp slt i64 %present, %helpers
  br i1 %short, label %ask, label %claim
ask:
  field IP = ptr %ip
  ret i64 $NEED_POOL
claim:
  ; Only one region at a time has the pool; another caller's region runs on its own thread.
  %pair = cmpxchg ptr %busy.at, i32 0, i32 1 acq_rel monotonic
  %mine = extractvalue { i32, i1 } %pair, 1
  br i1 %mine, label %together, label %on
together:
  %limit = trunc i64 %wanted to i32
  %sharing = add i64 %wanted, 1
  call void @deal(ptr %pool, i64 %done, i64 %chunks, i64 %sharing)
  field OPENED = i64 1
  call void @open(ptr %pool, ptr %frame, ptr %ip, i32 %limit)
  br label %on
on:
  %open = field i64 OPENED
  %alone = icmp eq i64 %open, 0
  %others = select i1 %alone, ptr null, ptr %pool
  %code = call i64 @share(ptr %frame, ptr %ip, i64 0, ptr %others)
  %paused = icmp eq i64 %code, $PAUSED
  br i1 %paused, label %pause, label %finish
pause:
  field IP = ptr %ip
  ret i64 $PAUSED
finish:
  call void @end(ptr %frame, ptr %ip)
  field CHUNK = i64 0
  %result = call i64 @after(ptr %frame)
  ret i64 %result
}

; End what a run has left open at its next instruction: nobody goes on with it.
define void @close(ptr %frame) {
  %ip = field ptr IP
  call void @end(ptr %frame, ptr %ip)
  ret void
}

; End a region, if it is open: nobody takes more of it, and what was taken is waited for.
define internal void @end(ptr %frame, ptr %ip) {
entry:
  %opened = field i64 OPENED
  %none = icmp eq i64 %opened, 0
  br i1 %none, label %out, label %end
end:
  field OPENED = i64 0
  %pool = field ptr POOL
  %busy.at = getelementptr i8, ptr %pool, i64 $POOL_BUSY
  %held = load atomic i32, ptr %busy.at monotonic, align 4
  %lost = icmp eq i32 %held, 0
  br i1 %lost, label %out, label %wait
wait:
  %chunks = operand 3
  %chunk.at = getelementptr i8, ptr %frame, i64 $FRAME_CHUNK
  %dealt = atomicrmw xchg ptr %chunk.at, i64 %chunks monotonic
  call void @shut(ptr %pool)
  store atomic i32 0, ptr %busy.at release, align 4
  br label %out
out:
  ret void
}
"""


_PANELS = """
define internal i64 @do_panels(ptr %frame, ptr %ip) {
entry:
  %opened = field i64 OPENED
  %fresh = icmp eq i64 %opened, 0
  br i1 %fresh, label %begin, label %on
begin:
  field WORKERS = i64 1
  br label %on
on:
  %code = call i64 @do_parallel(ptr %frame, ptr %ip)
  ret i64 %code
}

; Take panels until none is left. Each worker has a table of its own, in which the slots of private
; memory point so far before the worker's scratch memory that the rows of a panel lie in it. The
; caller is worker 0, since it says at the end that nothing is left.
define internal i64 @share_panels(ptr %frame, ptr %ip, i64 %thread, ptr %pool) {
entry:
  %caller = icmp eq i64 %thread, 0
  br i1 %caller, label %prepare, label %join
join:
  %taken.at = getelementptr i8, ptr %frame, i64 $FRAME_WORKERS
  %number = atomicrmw add ptr %taken.at, i64 1 monotonic
  %workers = operand 6
  %room = icmp ult i64 %number, %workers
  br i1 %room, label %prepare, label %out
prepare:
  %worker = phi i64 [ 0, %entry ], [ %number, %join ]
  %code = field ptr CODE
  %slots = load i64, ptr %code
  %shared = field ptr TABLE
  %table = alloca ptr, i64 %slots
  %bytes = mul i64 %slots, 8
  %moved = call ptr @memmove(ptr %table, ptr %shared, i64 %bytes)
  %scratch = entry 4
  %part = operand 5
  %before = mul i64 %worker, %part
  %own = getelementptr i8, ptr %scratch, i64 %before
  br label %take
take:
  %chunk = call i64 @take(ptr %frame, ptr %ip, i64 %thread, ptr %pool)
  %some = icmp sge i64 %chunk, 0
  br i1 %some, label %begin, label %out
begin:
  %together = operand 10
  %from = mul i64 %chunk, %together
  %until = add i64 %from, %together
  br label %run
run:
  %panel = phi i64 [ %from, %begin ], [ %panel1, %run ]
  call void @run_panel(ptr %frame, ptr %ip, ptr %table, ptr %own, i64 %panel, i64 %thread)
  %panel1 = add i64 %panel, 1
  %more = icmp ult i64 %panel1, %until
  br i1 %more, label %run, label %ran
ran:
  br i1 %caller, label %look, label %take
look:
  %reason = call i64 @poll(ptr %frame)
  %on = icmp eq i64 %reason, 0
  br i1 %on, label %take, label %stop
stop:
  ret i64 %reason
out:
  ret i64 0
}

define internal void @run_panel(ptr %frame, ptr %ip, ptr %table, ptr %own, i64 %chunk,
    i64 %thread) {
entry:
  %steps = operand 2
  %in.batch = operand 7
  %privates = operand 8
  %described = operand 9
  %batch = udiv i64 %chunk, %in.batch
  %panel = urem i64 %chunk, %in.batch
  %private = getelementptr i8, ptr %ip, i64 %described
  %first = getelementptr i64, ptr %ip, i64 $PANEL_WORDS
  br label %place
place:
  %p = phi i64 [ 0, %entry ], [ %p1, %place ]
  %record = getelementptr [$PRIVATE_WORDS x i64], ptr %private, i64 %p
  %offset.at = getelementptr i64, ptr %record, i64 1
  %batch.at = getelementptr i64, ptr %record, i64 2
  %panel.at = getelementptr i64, ptr %record, i64 3
  %slot = load i64, ptr %record
  %offset = load i64, ptr %offset.at
  %batch.bytes = load i64, ptr %batch.at
  %panel.bytes = load i64, ptr %panel.at
  %batches.before = mul i64 %batch, %batch.bytes
  %panels.before = mul i64 %panel, %panel.bytes
  %rows.before = add i64 %batches.before, %panels.before
  %distance = sub i64 %offset, %rows.before
  %pointer = getelementptr i8, ptr %own, i64 %distance
  %entry.at = getelementptr ptr, ptr %table, i64 %slot
  store ptr %pointer, ptr %entry.at
  %p1 = add i64 %p, 1
  %more.places = icmp ult i64 %p1, %privates
  br i1 %more.places, label %place, label %loop
loop:
  %i = phi i64 [ 0, %place ], [ %i1, %loop ]
  %step = getelementptr [$STEP_WORDS x i64], ptr %first, i64 %i
  %tasks = word TASKS %step
  %grain = word GRAIN %step
  %base = mul i64 %batch, %tasks
  %skipped = mul i64 %panel, %grain
  %full = add i64 %skipped, %grain
  %over = icmp ugt i64 %full, %tasks
  %until = select i1 %over, i64 %tasks, i64 %full
  %begin = add i64 %base, %skipped
  %end = add i64 %base, %until
  call void @invoke(ptr %frame, ptr %table, ptr %step, i64 %begin, i64 %end, i64 %thread)
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %steps
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


def executor_text(triple: str) -> str:
    """The module: `start` … `resume`, `worker`, `stop`, the clock, `arrays`, `tensors`."""
    handlers = ", ".join(f"ptr @do_{name}" for name in HANDLERS)
    table = f"@handlers = internal constant [{len(HANDLERS)} x ptr] [{handlers}]\n"
    run = expanded(_RUN + _STEPS + _PANELS) + expanded(INSTRUCTIONS)
    return pool_text(triple) + table + run + handle_text()
