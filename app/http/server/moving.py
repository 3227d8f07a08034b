"""Compiled code that moves bytes between memory and a socket, for threads, without Python in between.

Each of Python's system calls gives the interpreter's lock away and waits for it again, some hundred times for 4 MiB:
with several threads at it they wait for the lock, and so does the event loop.
"""

import ctypes
import select
import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from app.codecs.codec import Piece
from app.memory.addresses import address_of
from app.memory.buffers import Buffer

Compile: TypeAlias = Callable[[str, Mapping[str, Any]], list[Any]]
"""LLVM: makes of a module's source the functions that are named, each of a type of ctypes'."""

PROBE = 1 << 16
"""Bytes of a large body that the event loop reads at once. If so many were there, more are coming."""

PAUSE_SECONDS = 0.005
"""In which a client must send or take PROBE bytes, or it pauses."""

ROUNDS = 64
"""How often bytes are moved before Python looks whether to go on."""

_WOKEN = 1 << 18
"""Bytes that wake a thread which waits for more of a body, unless fewer are left."""

_MORE = getattr(socket, "MSG_MORE", 0)  # of Linux


class Moving:
    """Moves until all is moved, the other side pauses or is gone, or ROUNDS are over. Safe to use from several threads,
    each with a socket of its own, which they have by its descriptor, and which never blocks."""

    def __init__(self, compile_: Compile) -> None:
        """Takes some 20 ms."""
        size, number, address = ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p
        self._receive: Any
        self._send: Any
        self._receive, self._send = compile_(
            _source(),
            {
                "receive": ctypes.CFUNCTYPE(size, number, address, size),
                "send_": ctypes.CFUNCTYPE(size, number, address, size, number),
            },
        )

    def receive(self, connected: int, buffer: Buffer) -> int:
        """How many bytes have come to the beginning of `buffer`."""
        count: int = self._receive(connected, address_of(buffer), len(buffer))
        return count

    def send(self, connected: int, piece: Piece, *, more: bool) -> int:
        """How many bytes of `piece` were taken. If there are `more` to come, the system may wait for these."""
        if not piece:
            return 0  # what is empty has no address
        count: int = self._send(connected, address_of(memoryview(piece)), len(piece), _MORE if more else 0)
        return count


def _source() -> str:
    wake = "%woken = call i32 @wake_by(i32 %socket, i64 %left, i32 %set)"
    receive = _rounds(wake, select.POLLIN, "@recv(i32 %socket, ptr %at, i64 %left, i32 0)")
    send = _rounds("%woken = add i32 0, 1", select.POLLOUT, "@send(i32 %socket, ptr %at, i64 %left, i32 %more)")
    return f"""
declare i32 @poll(ptr, i64, i32)
declare i64 @recv(i32, ptr, i64, i32)
declare i64 @send(i32, ptr, i64, i32)
declare i32 @setsockopt(i32, i32, i32, ptr, i32)
declare i32 @llvm.smin.i32(i32, i32)
declare i64 @llvm.smin.i64(i64, i64)

; To be woken by no fewer than `wanted` bytes, if `set` are what it is set to.
define internal i32 @wake_by(i32 %socket, i64 %wanted, i32 %set) {{
entry:
  %at = alloca i32
  %most = call i64 @llvm.smin.i64(i64 %wanted, i64 {_WOKEN})
  %least = trunc i64 %most to i32
  %same = icmp eq i32 %least, %set
  br i1 %same, label %end, label %change
change:
  store i32 %least, ptr %at
  call i32 @setsockopt(i32 %socket, i32 {int(socket.SOL_SOCKET)}, i32 {int(socket.SO_RCVLOWAT)}, ptr %at, i32 4)
  br label %end
end:
  ret i32 %least
}}

define i64 @receive(i32 %socket, ptr %memory, i64 %size) {{
{receive}
end:
  %count = phi i64 [%done, %round], [%done, %moves], [%now, %moved]
  %last = call i32 @wake_by(i32 %socket, i64 1, i32 0)
  ret i64 %count
}}

define i64 @send_(i32 %socket, ptr %memory, i64 %size, i32 %more) {{
{send}
end:
  %count = phi i64 [%done, %round], [%done, %moves], [%now, %moved]
  ret i64 %count
}}
"""


def _rounds(before: str, event: int, call: str) -> str:
    """Wait for the other side, then move what can be; from `entry` to `end`, where it goes from `round`, `moves` and
    `moved`."""
    return f"""entry:
  %asked = alloca {{i32, i16, i16}}
  br label %round
round:
  %done = phi i64 [0, %entry], [%now, %moved.on]
  %number = phi i32 [0, %entry], [%number.next, %moved.on]
  %set = phi i32 [1, %entry], [%woken, %moved.on]
  %left = sub i64 %size, %done
  %some = icmp sgt i64 %left, 0
  %early = icmp slt i32 %number, {ROUNDS}
  %goes = and i1 %some, %early
  br i1 %goes, label %waits, label %end
waits:
  {before}
  store {{i32, i16, i16}} {{i32 0, i16 {event}, i16 0}}, ptr %asked
  store i32 %socket, ptr %asked
  %ready = call i32 @poll(ptr %asked, i64 1, i32 {round(1000 * PAUSE_SECONDS)})
  br label %moves
moves:
  %at = getelementptr i8, ptr %memory, i64 %done
  %bytes = call i64 {call}
  %gone = icmp slt i64 %bytes, 1
  br i1 %gone, label %end, label %moved
moved:
  %now = add i64 %done, %bytes
  %number.next = add i32 %number, 1
  %paused = icmp eq i32 %ready, 0
  %few = icmp slt i64 %bytes, {PROBE}
  %slow = and i1 %paused, %few
  br i1 %slow, label %end, label %moved.on
moved.on:
  br label %round"""
