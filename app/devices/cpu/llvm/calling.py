"""The way from Python into a compiled loop over whole buffers, itself compiled.

What Python does for it by itself takes longer than to compute a thousand elements: to ask each buffer whether it is
long enough and where it is, to copy a frame and to set addresses in it, and a foreign call. So it is one function in
machine code that Python calls like one of its own.
Source of the conventions: Python's C API, its stable part (`METH_FASTCALL`, `Py_buffer`).
"""

import ctypes
from array import array
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from app.devices.layout import ENDS
from app.memory.buffers import Buffer

UNREAD = -1
"""The place of a buffer that no loop reads."""

NO_BOUNDS = array("q")
"""Of no buffers: the frame is complete."""

_OTHER = "there are not as many bounds as buffers"

_TYPE_ERROR, _VALUE_ERROR, _NONE = range(3)
"""Places in the tuple that is the function's self. Their addresses in its code would make that another one in each
process, which none finds on the disk."""

_FASTCALL, _WRITABLE = 0x80, 1
_VIEW_WORDS = 10
"""What a `Py_buffer` has; the first is the address, the third how many bytes there are."""

_ON_STACK = 64
"""Views. A graph may have a thousand times as many inputs, and a thread no room for that."""


class CallOver(Protocol):
    """Calls the function at an address with a copy of a `frame`, in which the addresses of `buffers` are set.

    `bounds` has for each buffer its place in the frame (or UNREAD), then for each how many bytes it has at least. The
    last buffer is written. Meanwhile other threads have the interpreter, however short it takes: where one that writes
    the log had to ask for it, small inferences took a seventh longer. Raises ValueError of a buffer that is too short,
    BufferError of an output that is read-only.
    """

    def __call__(self, function: int, bounds: "array[int]", frame: "array[int]", /, *buffers: Buffer) -> None: ...


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def call_over(compile_: Callable[[str, Mapping[str, Any]], list[Any]]) -> CallOver:
    """That. Takes some 15 ms."""
    (function,) = compile_(_source(), {"call_over": ctypes.CFUNCTYPE(None)})
    definition = _MethodDef(b"call_over", function.address, _FASTCALL, None)
    object_, address = ctypes.py_object, ctypes.c_void_p
    new: Any = ctypes.PYFUNCTYPE(object_, address, object_, address)(("PyCFunction_NewEx", ctypes.pythonapi))
    own = TypeError, ValueError, None, function, definition  # of which the last ones only live on
    made: CallOver = new(ctypes.addressof(definition), own, None)
    return made


def _source() -> str:
    view, least = f"[{_VIEW_WORDS} x i64]", 3
    return f"""
declare i32 @PyObject_GetBuffer(ptr, ptr, i32)
declare void @PyBuffer_Release(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare void @PyErr_SetString(ptr, ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare void @Py_IncRef(ptr)
declare ptr @PyMem_RawMalloc(i64)
declare void @PyMem_RawFree(ptr)
declare ptr @PyErr_NoMemory()
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

@ends = private constant [{len(ENDS) + 1} x i8] c"{ENDS}\\00"
@other = private constant [{len(_OTHER) + 1} x i8] c"{_OTHER}\\00"

define ptr @call_over(ptr %self, ptr %arguments, i64 %count) {{
entry:
  %few = icmp slt i64 %count, {least}
  br i1 %few, label %wrong, label %begin
begin:
  %is.many = icmp ugt i64 %count, {_ON_STACK}
  br i1 %is.many, label %on.heap, label %on.stack
on.stack:
  %own = alloca {view}, i64 {_ON_STACK}
  br label %room
on.heap:
  %bytes = mul i64 %count, {8 * _VIEW_WORDS}
  %taken = call ptr @PyMem_RawMalloc(i64 %bytes)
  %is.full = icmp eq ptr %taken, null
  br i1 %is.full, label %full, label %room
full:
  %null = call ptr @PyErr_NoMemory()
  ret ptr null
room:
  %views = phi ptr [%own, %on.stack], [%taken, %on.heap]
  %heap = phi ptr [null, %on.stack], [%taken, %on.heap]
  %number = load ptr, ptr %arguments
  %address = call i64 @PyLong_AsLongLong(ptr %number)
  %last = sub i64 %count, 1
  %is.none = icmp slt i64 %address, 1
  br i1 %is.none, label %release, label %viewing
viewing:  ; of the bounds, the frame and the buffers
  %viewed = phi i64 [1, %room], [%viewed.next, %viewing.on]
  %argument = getelementptr ptr, ptr %arguments, i64 %viewed
  %object = load ptr, ptr %argument
  %view = getelementptr {view}, ptr %views, i64 %viewed
  %written = icmp eq i64 %viewed, %last
  %flags = select i1 %written, i32 {_WRITABLE}, i32 0
  %refused = call i32 @PyObject_GetBuffer(ptr %object, ptr %view, i32 %flags)
  %is.refused = icmp ne i32 %refused, 0
  br i1 %is.refused, label %release, label %viewing.on
viewing.on:
  %viewed.next = add i64 %viewed, 1
  %more.views = icmp slt i64 %viewed.next, %count
  br i1 %more.views, label %viewing, label %viewed.all
viewed.all:
  %bounds.at = getelementptr {view}, ptr %views, i64 1
  %bounds = load ptr, ptr %bounds.at
  %bounds.size.at = getelementptr {view}, ptr %views, i64 1, i64 2
  %bounds.size = load i64, ptr %bounds.size.at
  %buffers = sub i64 %count, {least}
  %both = shl i64 %buffers, 1
  %bounds.bytes = shl i64 %both, 3
  %is.other = icmp ne i64 %bounds.size, %bounds.bytes
  br i1 %is.other, label %release.wrong, label %copy
copy:
  %numbers.at = getelementptr {view}, ptr %views, i64 2
  %numbers = load ptr, ptr %numbers.at
  %size.at = getelementptr {view}, ptr %views, i64 2, i64 2
  %size = load i64, ptr %size.at
  %words = lshr i64 %size, 3
  %frame = alloca i64, i64 %words
  call void @llvm.memcpy.p0.p0.i64(ptr %frame, ptr %numbers, i64 %size, i1 false)
  br label %next
next:
  %buffer = phi i64 [0, %copy], [%buffer.next, %set.on]
  %some.buffers = icmp slt i64 %buffer, %buffers
  br i1 %some.buffers, label %set, label %call
set:
  %its = add i64 %buffer, {least}
  %its.size.at = getelementptr {view}, ptr %views, i64 %its, i64 2
  %its.size = load i64, ptr %its.size.at
  %reach.word = add i64 %buffer, %buffers
  %reach.at = getelementptr i64, ptr %bounds, i64 %reach.word
  %reach = load i64, ptr %reach.at
  %short = icmp slt i64 %its.size, %reach
  br i1 %short, label %release.short, label %set.place
set.place:
  %place.at = getelementptr i64, ptr %bounds, i64 %buffer
  %place = load i64, ptr %place.at
  %is.read = icmp ult i64 %place, %words
  br i1 %is.read, label %set.address, label %set.on
set.address:
  %its.at = getelementptr {view}, ptr %views, i64 %its
  %its.address = load i64, ptr %its.at
  %word = getelementptr i64, ptr %frame, i64 %place
  store i64 %its.address, ptr %word
  br label %set.on
set.on:
  %buffer.next = add i64 %buffer, 1
  br label %next
call:
  %function = inttoptr i64 %address to ptr
  %state = call ptr @PyEval_SaveThread()
  call void %function(ptr %frame)
  call void @PyEval_RestoreThread(ptr %state)
  %none = call ptr @PyTuple_GetItem(ptr %self, i64 {_NONE})
  br label %release
release.wrong:
  %wrong.type = call ptr @PyTuple_GetItem(ptr %self, i64 {_TYPE_ERROR})
  call void @PyErr_SetString(ptr %wrong.type, ptr @other)
  br label %release
release.short:
  %short.type = call ptr @PyTuple_GetItem(ptr %self, i64 {_VALUE_ERROR})
  call void @PyErr_SetString(ptr %short.type, ptr @ends)
  br label %release
release:
  %end = phi i64 [1, %room], [%viewed, %viewing], [%count, %release.wrong], [%count, %release.short],
                 [%count, %call]
  %result = phi ptr [null, %room], [null, %viewing], [null, %release.wrong], [null, %release.short],
                    [%none, %call]
  br label %release.one
release.one:
  %held = phi i64 [1, %release], [%held.next, %release.next]
  %some = icmp slt i64 %held, %end
  br i1 %some, label %release.next, label %done
release.next:
  %held.view = getelementptr {view}, ptr %views, i64 %held
  call void @PyBuffer_Release(ptr %held.view)
  %held.next = add i64 %held, 1
  br label %release.one
done:
  call void @PyMem_RawFree(ptr %heap)
  call void @Py_IncRef(ptr %result)  ; which may be null
  ret ptr %result
wrong:
  %few.type = call ptr @PyTuple_GetItem(ptr %self, i64 {_TYPE_ERROR})
  call void @PyErr_SetString(ptr %few.type, ptr @other)
  ret ptr null
}}
"""
