"""Small sums between ranks of one host as LLVM IR: one call is a whole all-reduce.

A *record* of words describes one kind of sum. `add_up` writes this rank's block to each peer, posts
it, waits a bounded time for theirs, compares their headers with its own and adds up in the order of
members. Whatever takes longer or goes wrong it leaves to Python, which calls it again once all
blocks are there: a sum that was posted is known by the address of its result. Asked again, it gives
the same answer.
"""

from __future__ import annotations

from string import Template

# Words of a record; then for each peer the places of its four blocks: to it, from it, by parity.
RECORD = (
    *("ROUTINE", "OPEN", "LOCK", "POSTED", "HEAD", "HEAD_BYTES", "BYTES", "FOLD", "COUNT"),
    *("POSITION", "TABLE", "BLOCKS"),
)
PLACE = {name: number for number, name in enumerate(RECORD)}
BLOCKS_OF_PEER = 4

# What `add_up` answers. After the last two the sum is still posted, and the lock taken.
DONE, REFUSED, WAITING, DIVERGED = range(4)

_ELEMENTS = {  # how elements of a dtype are added, and how many at a time
    **{"float32": ("float", "fadd", 4), "float64": ("double", "fadd", 2)},
    **{f"{sign}int8": ("i8", "add", 16) for sign in ("", "u")},
    **{f"{sign}int16": ("i16", "add", 8) for sign in ("", "u")},
    **{f"{sign}int32": ("i32", "add", 4) for sign in ("", "u")},
    **{f"{sign}int64": ("i64", "add", 2) for sign in ("", "u")},
}

_FOLD = """
define void @fold_{name}(ptr %a, ptr %b, ptr %out, i64 %count) {{
entry:
  %whole = and i64 %count, -{lanes}
  br label %wide
wide:
  %i = phi i64 [ 0, %entry ], [ %i1, %wide.body ]
  %some = icmp slt i64 %i, %whole
  br i1 %some, label %wide.body, label %narrow
wide.body:
  %pa = getelementptr {kind}, ptr %a, i64 %i
  %pb = getelementptr {kind}, ptr %b, i64 %i
  %po = getelementptr {kind}, ptr %out, i64 %i
  %va = load <{lanes} x {kind}>, ptr %pa, align {bytes}
  %vb = load <{lanes} x {kind}>, ptr %pb, align {bytes}
  %vo = {add} <{lanes} x {kind}> %va, %vb
  store <{lanes} x {kind}> %vo, ptr %po, align {bytes}
  %i1 = add i64 %i, {lanes}
  br label %wide
narrow:
  %j = phi i64 [ %whole, %wide ], [ %j1, %narrow.body ]
  %more = icmp slt i64 %j, %count
  br i1 %more, label %narrow.body, label %done
narrow.body:
  %qa = getelementptr {kind}, ptr %a, i64 %j
  %qb = getelementptr {kind}, ptr %b, i64 %j
  %qo = getelementptr {kind}, ptr %out, i64 %j
  %sa = load {kind}, ptr %qa
  %sb = load {kind}, ptr %qb
  %so = {add} {kind} %sa, %sb
  store {kind} %so, ptr %qo
  %j1 = add i64 %j, 1
  br label %narrow
done:
  ret void
}}
"""

_SUM = Template("""
declare ptr @memmove(ptr, ptr, i64)
declare i32 @memcmp(ptr, ptr, i64)

define i64 @claim(ptr %lock) {
  %pair = cmpxchg ptr %lock, i64 0, i64 1 acquire monotonic
  %mine = extractvalue { i64, i1 } %pair, 1
  %wide = zext i1 %mine to i64
  ret i64 %wide
}

; The place of a block: of peer i, those to it begin at 0, those from it at 2. How many blocks were
; posted to it before says which of the two is next.
define internal ptr @block(ptr %record, i64 %i, i64 %way, i64 %ahead) {
  %table.at = getelementptr ptr, ptr %record, i64 $TABLE
  %table = load ptr, ptr %table.at
  %place = add i64 %i, 2
  %counter.at = getelementptr ptr, ptr %table, i64 %place
  %counter = load ptr, ptr %counter.at
  %posted = load i64, ptr %counter
  %number = add i64 %posted, %ahead
  %parity = and i64 %number, 1
  %begin = mul i64 %i, $BLOCKS_OF_PEER
  %from = add i64 %begin, %way
  %index = add i64 %from, %parity
  %blocks = getelementptr ptr, ptr %record, i64 $BLOCKS
  %at = getelementptr ptr, ptr %blocks, i64 %index
  %block = load ptr, ptr %at
  ret ptr %block
}

define internal i64 @peers(ptr %record) {
  %table.at = getelementptr ptr, ptr %record, i64 $TABLE
  %table = load ptr, ptr %table.at
  %count = load i64, ptr %table
  ret i64 %count
}

define internal void @send(ptr %record, ptr %source) {
entry:
  %head.at = getelementptr ptr, ptr %record, i64 $HEAD
  %head = load ptr, ptr %head.at
  %length.at = getelementptr i64, ptr %record, i64 $HEAD_BYTES
  %length = load i64, ptr %length.at
  %bytes.at = getelementptr i64, ptr %record, i64 $BYTES
  %bytes = load i64, ptr %bytes.at
  %count = call i64 @peers(ptr %record)
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %write ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %write, label %done
write:
  %block = call ptr @block(ptr %record, i64 %i, i64 0, i64 1)
  %r1 = call ptr @memmove(ptr %block, ptr %head, i64 %length)
  %rest = getelementptr i8, ptr %block, i64 %length
  %r2 = call ptr @memmove(ptr %rest, ptr %source, i64 %bytes)
  %i1 = add i64 %i, 1
  br label %next
done:
  %table.at = getelementptr ptr, ptr %record, i64 $TABLE
  %table = load ptr, ptr %table.at
  call void @post(ptr %table)
  ret void
}

define internal i64 @alike(ptr %record) {
entry:
  %head.at = getelementptr ptr, ptr %record, i64 $HEAD
  %head = load ptr, ptr %head.at
  %length.at = getelementptr i64, ptr %record, i64 $HEAD_BYTES
  %length = load i64, ptr %length.at
  %count = call i64 @peers(ptr %record)
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %compare ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %compare, label %same
compare:
  %block = call ptr @block(ptr %record, i64 %i, i64 2, i64 0)
  %order = call i32 @memcmp(ptr %block, ptr %head, i64 %length)
  %i1 = add i64 %i, 1
  %equal = icmp eq i32 %order, 0
  br i1 %equal, label %next, label %other
same:
  ret i64 1
other:
  ret i64 0
}

define internal ptr @term(ptr %record, i64 %k, ptr %source) {
entry:
  %position.at = getelementptr i64, ptr %record, i64 $POSITION
  %position = load i64, ptr %position.at
  %own = icmp eq i64 %k, %position
  br i1 %own, label %mine, label %theirs
mine:
  ret ptr %source
theirs:
  %after = icmp sgt i64 %k, %position
  %shift = sext i1 %after to i64
  %i = add i64 %k, %shift
  %block = call ptr @block(ptr %record, i64 %i, i64 2, i64 0)
  %length.at = getelementptr i64, ptr %record, i64 $HEAD_BYTES
  %length = load i64, ptr %length.at
  %term = getelementptr i8, ptr %block, i64 %length
  ret ptr %term
}

define internal void @fold_terms(ptr %record, ptr %source, ptr %target) {
entry:
  %fold.at = getelementptr ptr, ptr %record, i64 $FOLD
  %fold = load ptr, ptr %fold.at
  %count.at = getelementptr i64, ptr %record, i64 $COUNT
  %count = load i64, ptr %count.at
  %last = call i64 @peers(ptr %record)
  %first = call ptr @term(ptr %record, i64 0, ptr %source)
  br label %next
next:
  %k = phi i64 [ 1, %entry ], [ %k1, %next ]
  %sum = phi ptr [ %first, %entry ], [ %target, %next ]
  %term = call ptr @term(ptr %record, i64 %k, ptr %source)
  call void %fold(ptr %sum, ptr %term, ptr %target, i64 %count)
  %k1 = add i64 %k, 1
  %more = icmp sle i64 %k1, %last
  br i1 %more, label %next, label %done
done:
  ret void
}

define i64 @add_up(ptr %record, ptr %source, ptr %target) {
entry:
  %lock.at = getelementptr ptr, ptr %record, i64 $LOCK
  %lock = load ptr, ptr %lock.at
  %posted.at = getelementptr ptr, ptr %record, i64 $POSTED
  %posted = load atomic ptr, ptr %posted.at monotonic, align 8
  %mine = icmp eq ptr %posted, %target
  br i1 %mine, label %wait, label %begin
begin:
  %open.at = getelementptr ptr, ptr %record, i64 $OPEN
  %open.word = load ptr, ptr %open.at
  %open = load atomic i64, ptr %open.word monotonic, align 8
  %usable = icmp ne i64 %open, 0
  br i1 %usable, label %take, label %refuse
take:
  %taken = call i64 @claim(ptr %lock)
  %free = icmp ne i64 %taken, 0
  br i1 %free, label %send, label %refuse
refuse:
  ret i64 $REFUSED
send:
  call void @send(ptr %record, ptr %source)
  br label %wait
wait:
  %table.at = getelementptr ptr, ptr %record, i64 $TABLE
  %table = load ptr, ptr %table.at
  %arrived = call i64 @arrived(ptr %table)
  %all = icmp ne i64 %arrived, 0
  br i1 %all, label %compare, label %later
later:
  store atomic ptr %target, ptr %posted.at monotonic, align 8
  ret i64 $WAITING
compare:
  %same = call i64 @alike(ptr %record)
  %fine = icmp ne i64 %same, 0
  br i1 %fine, label %fold, label %diverged
diverged:
  store atomic ptr %target, ptr %posted.at monotonic, align 8
  ret i64 $DIVERGED
fold:
  call void @fold_terms(ptr %record, ptr %source, ptr %target)
  store atomic ptr null, ptr %posted.at monotonic, align 8
  store atomic i64 0, ptr %lock release, align 8
  ret i64 $DONE
}
""")


def fold_name(dtype: str) -> str | None:
    """The function that adds arrays of a dtype; None where NumPy has to."""
    return f"fold_{dtype}" if dtype in _ELEMENTS else None


def sum_text() -> str:
    """`claim`, `add_up` and the folds; `post` and `arrived` are those of the signals."""
    numbers = {**PLACE, "BLOCKS_OF_PEER": BLOCKS_OF_PEER}
    answers = {"DONE": DONE, "REFUSED": REFUSED, "WAITING": WAITING, "DIVERGED": DIVERGED}
    folds = [
        _FOLD.format(name=name, kind=kind, add=add, lanes=lanes, bytes=16 // lanes)
        for name, (kind, add, lanes) in _ELEMENTS.items()
    ]
    return _SUM.substitute(numbers | answers) + "".join(folds)
