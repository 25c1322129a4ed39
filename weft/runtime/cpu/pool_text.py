"""The thread pool as LLVM IR: how workers wait, and how a parallel region is opened and closed.

A caller opens the *gate*, works itself, shuts the gate and waits for the workers that are inside.
Workers that are late find it shut: a region never waits for a thread to wake up. The chunks of a
region are dealt out in ranges, one for each thread, which takes those of others when it is through
with its own: so what a thread reads is mostly what it has written before. What differs
between systems and processors is four small functions: `sleep`, `wake`, `pause` and `ticks`.
"""

from __future__ import annotations

from string import Template

MOST_RANGES = 64
_LINE = 64  # bytes of a cache line
POOL = {  # byte offsets; what different threads write has cache lines of its own
    "GENERATION": 0,  # i32: counts regions opened; idle workers wait for it to change
    "GATE": 64,  # i32: workers inside, plus OPEN while they may enter
    "WAITING": 68,  # i32: whether the caller sleeps until the gate is empty
    "BUSY": 128,  # i32: whether a caller holds the pool
    "SLEEPERS": 192,  # i32: workers asleep, or about to be
    "FRAME": 256,  # ptr: the run that the region belongs to
    "REGION": 264,  # ptr: its instruction
    "LIMIT": 272,  # i32: workers that may enter
    "COUNT": 280,  # i64: ranges
    "WORKERS": 320,  # i32: workers there are
    "STOP": 324,  # i32: whether they are to leave
    "SPIN": 328,  # i64: ticks to wait awake before going to sleep
    "RANGES": 384,  # i64, i64: the next chunk of a range and where it ends, in a line of its own
}
POOL_BYTES = POOL["RANGES"] + MOST_RANGES * _LINE
OPEN = 1 << 16

_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}  # number of the system call
_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # private to this process

_SLEEP_ON_FUTEX = Template("""
declare i64 @syscall(i64, ...)
define internal void @sleep(ptr %word, i32 %seen) {
  %r = call i64 (i64, ...) @syscall(i64 $CALL, ptr %word, i64 $WAIT, i32 %seen, ptr null, ptr null,
                                    i64 0)
  ret void
}
define internal void @wake(ptr %word, i32 %count) {
  %r = call i64 (i64, ...) @syscall(i64 $CALL, ptr %word, i64 $WAKE, i32 %count, ptr null, ptr null,
                                    i64 0)
  ret void
}
""")

# Elsewhere a sleeper looks again after a short while, and needs no waking.
_SLEEP_A_WHILE = """
declare i32 @usleep(i32)
define internal void @sleep(ptr %word, i32 %seen) {
  %r = call i32 @usleep(i32 50)
  ret void
}
define internal void @wake(ptr %word, i32 %count) {
  ret void
}
"""
_SLEEP_ON_WINDOWS = _SLEEP_A_WHILE.replace("i32 @usleep", "void @Sleep").replace(
    "%r = call void @Sleep(i32 50)", "call void @Sleep(i32 1)"
)

_X86_64 = """
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
define internal void @pause() {
  call void @llvm.x86.sse2.pause()
  ret void
}
define i64 @ticks() {
  %t = call i64 @llvm.readcyclecounter()
  ret i64 %t
}
define i64 @tick_rate() {
  ret i64 0
}
"""

# `isb` holds a core for a dozen nanoseconds; the hint `yield` does nothing on most cores.
_AARCH64 = """
declare void @llvm.aarch64.isb(i32)
declare i64 @llvm.read_volatile_register.i64(metadata)
define internal void @pause() {
  call void @llvm.aarch64.isb(i32 15)
  ret void
}
define i64 @ticks() {
  %t = call i64 @llvm.read_volatile_register.i64(metadata !0)
  ret i64 %t
}
define i64 @tick_rate() {
  %t = call i64 @llvm.read_volatile_register.i64(metadata !1)
  ret i64 %t
}
!0 = !{!"cntvct_el0"}
!1 = !{!"cntfrq_el0"}
"""

_OTHER = """
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()
define internal void @pause() {
  %r = call i32 @sched_yield()
  ret void
}
define i64 @ticks() {
  %time = alloca [2 x i64]
  %r = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %rest.at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.at
  %whole = mul i64 %seconds, 1000000000
  %t = add i64 %whole, %rest
  ret i64 %t
}
define i64 @tick_rate() {
  ret i64 1000000000
}
"""

_POOL_TEXT = Template("""
define void @worker(ptr %pool, i64 %thread) {
entry:
  %gate.at = getelementptr i8, ptr %pool, i64 $GATE
  %waiting.at = getelementptr i8, ptr %pool, i64 $WAITING
  %sleepers.at = getelementptr i8, ptr %pool, i64 $SLEEPERS
  %frame.at = getelementptr i8, ptr %pool, i64 $FRAME
  %region.at = getelementptr i8, ptr %pool, i64 $REGION
  %limit.at = getelementptr i8, ptr %pool, i64 $LIMIT
  %stop.at = getelementptr i8, ptr %pool, i64 $STOP
  %spin.at = getelementptr i8, ptr %pool, i64 $SPIN
  %first = load atomic i32, ptr %pool acquire, align 4
  br label %idle
idle:
  %seen = phi i32 [ %first, %entry ], [ %now.seen, %left ]
  %stop = load atomic i32, ptr %stop.at seq_cst, align 4
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %out, label %begin.spin
begin.spin:
  %patience = load atomic i64, ptr %spin.at monotonic, align 8
  %since = call i64 @ticks()
  br label %spin
spin:
  %spin.generation = load atomic i32, ptr %pool acquire, align 4
  %spin.opened = icmp ne i32 %spin.generation, %seen
  br i1 %spin.opened, label %called, label %spin.more
spin.more:
  call void @pause()
  %now = call i64 @ticks()
  %waited = sub i64 %now, %since
  %patient = icmp slt i64 %waited, %patience
  br i1 %patient, label %spin, label %doze
doze:
  %o1 = atomicrmw add ptr %sleepers.at, i32 1 seq_cst
  call void @sleep(ptr %pool, i32 %seen)
  %o2 = atomicrmw sub ptr %sleepers.at, i32 1 seq_cst
  %doze.generation = load atomic i32, ptr %pool acquire, align 4
  %doze.opened = icmp ne i32 %doze.generation, %seen
  br i1 %doze.opened, label %woken, label %doze
woken:
  ; Who was woken wakes two more, while there is room: the caller need not pay for all.
  %others = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %some = icmp sgt i32 %others, 0
  %gate.now = load atomic i32, ptr %gate.at monotonic, align 4
  %limit.now = load atomic i32, ptr %limit.at monotonic, align 4
  %full = add i32 %limit.now, $OPEN
  %with.me = add i32 %gate.now, 1
  %still = icmp uge i32 %gate.now, $OPEN
  %more.room = icmp ult i32 %with.me, %full
  %worth = and i1 %still, %more.room
  %spread = and i1 %some, %worth
  br i1 %spread, label %wake.others, label %called
wake.others:
  call void @wake(ptr %pool, i32 2)
  br label %called
called:
  %now.seen = load atomic i32, ptr %pool acquire, align 4
  %stop2 = load atomic i32, ptr %stop.at seq_cst, align 4
  %stopped2 = icmp ne i32 %stop2, 0
  br i1 %stopped2, label %out, label %enter
enter:
  %before = atomicrmw add ptr %gate.at, i32 1 seq_cst
  %inside = and i32 %before, 65535
  %limit = load atomic i32, ptr %limit.at monotonic, align 4
  %room = icmp ult i32 %inside, %limit
  %open = icmp uge i32 %before, $OPEN
  %may = and i1 %room, %open
  br i1 %may, label %work, label %leave
work:
  %frame = load ptr, ptr %frame.at
  %region = load ptr, ptr %region.at
  %r = call i64 @share(ptr %frame, ptr %region, i64 %thread, ptr %pool)
  br label %leave
leave:
  %o3 = atomicrmw sub ptr %gate.at, i32 1 seq_cst
  %waiting = load atomic i32, ptr %waiting.at seq_cst, align 4
  %is.waiting = icmp ne i32 %waiting, 0
  br i1 %is.waiting, label %tell, label %left
tell:
  call void @wake(ptr %gate.at, i32 1)
  br label %left
left:
  br label %idle
out:
  ret void
}

define void @stop(ptr %pool) {
  %stop.at = getelementptr i8, ptr %pool, i64 $STOP
  store atomic i32 1, ptr %stop.at seq_cst, align 4
  %old = atomicrmw add ptr %pool, i32 1 seq_cst
  call void @wake(ptr %pool, i32 2147483647)
  ret void
}

; Deal out the chunks from `first` on to so many threads.
define internal void @deal(ptr %pool, i64 %first, i64 %last, i64 %threads) {
entry:
  %count.at = getelementptr i8, ptr %pool, i64 $COUNT
  %many = icmp ugt i64 %threads, $MOST
  %count = select i1 %many, i64 $MOST, i64 %threads
  store i64 %count, ptr %count.at
  %ranges = getelementptr i8, ptr %pool, i64 $RANGES
  %chunks = sub i64 %last, %first
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %from = phi i64 [ %first, %entry ], [ %to, %loop ]
  %i1 = add i64 %i, 1
  %share = mul i64 %chunks, %i1
  %part = udiv i64 %share, %count
  %to = add i64 %first, %part
  %next.at = getelementptr [$LINE x i8], ptr %ranges, i64 %i
  %end.at = getelementptr i64, ptr %next.at, i64 1
  store i64 %from, ptr %next.at
  store i64 %to, ptr %end.at
  %more = icmp ult i64 %i1, %count
  br i1 %more, label %loop, label %out
out:
  ret void
}

; A chunk for a thread, of its own range while there is one; to be called once for each chunk.
define internal i64 @claim(ptr %pool, i64 %thread) {
entry:
  %count.at = getelementptr i8, ptr %pool, i64 $COUNT
  %count = load i64, ptr %count.at
  %ranges = getelementptr i8, ptr %pool, i64 $RANGES
  %own = urem i64 %thread, %count
  br label %look
look:
  %i = phi i64 [ %own, %entry ], [ %following, %further ]
  %next.at = getelementptr [$LINE x i8], ptr %ranges, i64 %i
  %end.at = getelementptr i64, ptr %next.at, i64 1
  %end = load i64, ptr %end.at
  %next = load atomic i64, ptr %next.at monotonic, align 8
  %left = icmp ult i64 %next, %end
  br i1 %left, label %try, label %further
try:
  %chunk = atomicrmw add ptr %next.at, i64 1 monotonic
  %some = icmp ult i64 %chunk, %end
  br i1 %some, label %out, label %further
further:
  %i1 = add i64 %i, 1
  %past = icmp eq i64 %i1, %count
  %following = select i1 %past, i64 0, i64 %i1
  br label %look
out:
  ret i64 %chunk
}

define internal void @open(ptr %pool, ptr %frame, ptr %region, i32 %limit) {
entry:
  %gate.at = getelementptr i8, ptr %pool, i64 $GATE
  %sleepers.at = getelementptr i8, ptr %pool, i64 $SLEEPERS
  %frame.at = getelementptr i8, ptr %pool, i64 $FRAME
  %region.at = getelementptr i8, ptr %pool, i64 $REGION
  %limit.at = getelementptr i8, ptr %pool, i64 $LIMIT
  store ptr %frame, ptr %frame.at
  store ptr %region, ptr %region.at
  store atomic i32 %limit, ptr %limit.at monotonic, align 4
  %o1 = atomicrmw or ptr %gate.at, i32 $OPEN seq_cst
  %o2 = atomicrmw add ptr %pool, i32 1 seq_cst
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %some = icmp sgt i32 %sleepers, 0
  br i1 %some, label %rouse, label %out
rouse:
  %two = icmp ult i32 %limit, 2
  %count = select i1 %two, i32 %limit, i32 2
  call void @wake(ptr %pool, i32 %count)
  br label %out
out:
  ret void
}

define internal void @shut(ptr %pool) {
entry:
  %gate.at = getelementptr i8, ptr %pool, i64 $GATE
  %waiting.at = getelementptr i8, ptr %pool, i64 $WAITING
  %spin.at = getelementptr i8, ptr %pool, i64 $SPIN
  %o1 = atomicrmw and ptr %gate.at, i32 65535 seq_cst
  %patience = load atomic i64, ptr %spin.at monotonic, align 8
  %since = call i64 @ticks()
  br label %spin
spin:
  %inside = load atomic i32, ptr %gate.at acquire, align 4
  %empty = icmp eq i32 %inside, 0
  br i1 %empty, label %out, label %spin.more
spin.more:
  call void @pause()
  %now = call i64 @ticks()
  %waited = sub i64 %now, %since
  %patient = icmp slt i64 %waited, %patience
  br i1 %patient, label %spin, label %doze
doze:
  store atomic i32 1, ptr %waiting.at seq_cst, align 4
  %left = load atomic i32, ptr %gate.at seq_cst, align 4
  %none = icmp eq i32 %left, 0
  br i1 %none, label %awake, label %nap
nap:
  call void @sleep(ptr %gate.at, i32 %left)
  br label %doze
awake:
  store atomic i32 0, ptr %waiting.at seq_cst, align 4
  br label %out
out:
  ret void
}
""")


def pool_text(triple: str) -> str:
    """The pool for one system and processor; it calls `share`, which is the executor's."""
    architecture, *system = triple.split("-")
    return _machine_text(architecture) + _waiting_text(architecture, system) + _body()


def _machine_text(architecture: str) -> str:
    if architecture == "x86_64":
        return _X86_64
    return _AARCH64 if architecture in ("aarch64", "arm64") else _OTHER


def _waiting_text(architecture: str, system: list[str]) -> str:
    if "linux" in system and architecture in _FUTEX:
        return _SLEEP_ON_FUTEX.substitute(
            CALL=_FUTEX[architecture], WAIT=_FUTEX_WAIT, WAKE=_FUTEX_WAKE
        )
    return _SLEEP_ON_WINDOWS if "windows" in system else _SLEEP_A_WHILE


def _body() -> str:
    return _POOL_TEXT.substitute(POOL, OPEN=OPEN, MOST=MOST_RANGES, LINE=_LINE)
