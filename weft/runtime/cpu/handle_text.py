"""`arrays` and `tensors` in LLVM IR: functions of Python's that make what a call gives back.

The record of each has numbers and routines first, in the order of `ARRAYS` or `TENSORS`. For every
array there follow its dtype, its rank, and where its sizes are; for every tensor, an object with
all its fields but the array, which are copied.
"""

from __future__ import annotations

from string import Template

from weft.runtime.cpu.executor_layout import ARRAY

_NUMBERS = ("count", "handle_at", "data_at", "end")  # what is no pointer
ARRAYS = ("count", "PyList_New", "PyList_SetItem", "Py_IncRef", "Py_DecRef", "PyArray_Empty")
TENSORS = (
    *("count", "Handle", "handle_at", "Value", "data_at", "end", "PyType_GenericAlloc"),
    *("PyTuple_New", "PyTuple_SetItem", "Py_IncRef", "Py_DecRef", "PyErr_BadInternalCall"),
)

_ARRAYS = """
define ptr @arrays(ptr %self, ptr %given, i64 %number) {
entry:
  $fields
  %result = call ptr %PyList_New(i64 %count)
  %has.result = icmp ne ptr %result, null
  br i1 %has.result, label %head, label %nothing
head:
  %i = phi i64 [ 0, %entry ], [ %i1, %put ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %done
one:
  %row = getelementptr [3 x i64], ptr %rest, i64 %i
  %rank.at = getelementptr i64, ptr %row, i64 1
  %sizes.at = getelementptr i64, ptr %row, i64 2
  %dtype = load ptr, ptr %row
  %rank = load i32, ptr %rank.at
  %sizes = load ptr, ptr %sizes.at
  call void %Py_IncRef(ptr %dtype)
  %array = call ptr %PyArray_Empty(i32 %rank, ptr %sizes, ptr %dtype, i32 0)
  %has.array = icmp ne ptr %array, null
  br i1 %has.array, label %put, label %lacking
put:
  %answer = call i32 %PyList_SetItem(ptr %result, i64 %i, ptr %array)
  %i1 = add i64 %i, 1
  br label %head
done:
  ret ptr %result
lacking:
  call void %Py_DecRef(ptr %result)
  br label %nothing
nothing:
  ret ptr null
}
"""

_TENSORS = """
define ptr @tensors(ptr %self, ptr %given, i64 %number) {
entry:
  $fields
  %fits = icmp eq i64 %number, %count
  br i1 %fits, label %begin, label %mistake
begin:
  %result = call ptr %PyTuple_New(i64 %count)
  %has.result = icmp ne ptr %result, null
  br i1 %has.result, label %head, label %nothing
head:
  %i = phi i64 [ 0, %begin ], [ %i1, %filled ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %done
one:
  %handle = call ptr %PyType_GenericAlloc(ptr %Handle, i64 0)
  %has.handle = icmp ne ptr %handle, null
  br i1 %has.handle, label %put, label %lacking
put:
  %answer = call i32 %PyTuple_SetItem(ptr %result, i64 %i, ptr %handle)
  %value = call ptr %PyType_GenericAlloc(ptr %Value, i64 0)
  %has.value = icmp ne ptr %value, null
  br i1 %has.value, label %fill, label %lacking
fill:
  %value.at = getelementptr i8, ptr %handle, i64 %handle_at
  store ptr %value, ptr %value.at
  %sample.at = getelementptr ptr, ptr %rest, i64 %i
  %sample = load ptr, ptr %sample.at
  br label %field
field:
  %at = phi i64 [ $HEAD, %fill ], [ %at1, %next ]
  %source = getelementptr i8, ptr %sample, i64 %at
  %content = load ptr, ptr %source
  %unset = icmp eq ptr %content, null
  br i1 %unset, label %next, label %copy
copy:
  call void %Py_IncRef(ptr %content)
  %target = getelementptr i8, ptr %value, i64 %at
  store ptr %content, ptr %target
  br label %next
next:
  %at1 = add i64 %at, 8
  %again = icmp ult i64 %at1, %end
  br i1 %again, label %field, label %filled
filled:
  %array.at = getelementptr ptr, ptr %given, i64 %i
  %array = load ptr, ptr %array.at
  call void %Py_IncRef(ptr %array)
  %place = getelementptr i8, ptr %value, i64 %data_at
  store ptr %array, ptr %place
  %i1 = add i64 %i, 1
  br label %head
done:
  ret ptr %result
lacking:
  call void %Py_DecRef(ptr %result)
  br label %nothing
mistake:
  call void %PyErr_BadInternalCall()
  br label %nothing
nothing:
  ret ptr null
}
"""


def handle_text() -> str:
    """The routines; they need nothing else of their module."""
    return _written(_ARRAYS, ARRAYS) + _written(_TENSORS, TENSORS)


def _written(text: str, names: tuple[str, ...]) -> str:
    """The text with what reads the record: a value for each name, then `%rest`."""
    lines = [
        f"%record.at = getelementptr i8, ptr %self, i64 {ARRAY['DATA']}",
        "%record = load ptr, ptr %record.at",
    ]
    for place, name in enumerate(names):
        kind = "i64" if name in _NUMBERS else "ptr"
        lines.append(f"%{name}.read = getelementptr i64, ptr %record, i64 {place}")
        lines.append(f"%{name} = load {kind}, ptr %{name}.read")
    lines.append(f"%rest = getelementptr i64, ptr %record, i64 {len(names)}")
    return Template(text).substitute(fields="\n  ".join(lines), HEAD=object.__basicsize__)
