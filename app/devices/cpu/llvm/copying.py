"""Memory copied by a team's threads. One of them moves some 10 GB/s, and they together what the memory does."""

import ctypes

from app.devices.cpu.llvm.compiler import Function
from app.devices.cpu.llvm.team import Team
from app.devices.cpu.llvm.team_source import TASK_WORDS, loaded

WORTH = 1 << 17
"""Bytes that are worth a thread which is awake."""

WAKING = 1 << 20
"""Bytes to be copied, altogether, that are worth waking threads."""

_LEAST, _PAGE = 1 << 15, 1 << 12
"""Bytes that a thread takes at a time, and of which these are a multiple."""

_NEXT, _TARGET, _FROM, _SIZE, _BLOCK, _WORDS = range(TASK_WORDS, TASK_WORDS + 6)

_SOURCE = f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)

define void @kernel(ptr %task) {{
entry:
  %next = getelementptr i64, ptr %task, i64 {_NEXT}
{loaded("target", "task", _TARGET, "ptr")}
{loaded("from", "task", _FROM, "ptr")}
{loaded("size", "task", _SIZE)}
{loaded("block", "task", _BLOCK)}
  br label %turn
turn:
  %start = atomicrmw add ptr %next, i64 %block monotonic
  %some = icmp slt i64 %start, %size
  br i1 %some, label %copy, label %end
copy:
  %left = sub i64 %size, %start
  %bytes = call i64 @llvm.umin.i64(i64 %left, i64 %block)
  %to = getelementptr i8, ptr %target, i64 %start
  %of = getelementptr i8, ptr %from, i64 %start
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %of, i64 %bytes, i1 false)
  br label %turn
end:
  ret void
}}
"""


class Copying:
    """Copies on this thread and, if there is a team, on as many of it as the bytes are worth. Safe to use from several
    threads."""

    def __init__(self, team: Team | None) -> None:
        self._team = team
        self._function: Function | None = None

    def copy(self, target: int, source: int, size: int, of: int) -> None:
        """Copy `size` bytes, `of` so many that are about to be, from one address to another that is apart from it.
        Other threads run meanwhile."""
        team = self._team
        helpers = min(team.most - 1, size // WORTH) if team else 0
        if team is None or helpers == 0:
            ctypes.memmove(target, source, size)
            return
        function = self._function = self._function or team.compiler.function(_SOURCE)
        block = max(size // (2 * helpers + 2) // _PAGE * _PAGE, _LEAST)
        task = (ctypes.c_int64 * _WORDS)(function.address, *[0] * TASK_WORDS, target, source, size, block)
        team.sharing(function, task, helpers, wakes=of >= WAKING)(ctypes.addressof(task))
