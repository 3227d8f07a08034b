"""The loop that goes through a table of compiled functions, on as many threads as come.

The table has 8 bytes for each of: the address of the first stage to go through, the address after the last one. A stage
takes STAGE_WORDS: how many calls it is, how many of these are taken, how many are done, and the address of the calls;
and a call the address of a function and that of its frame. The calls of a stage are taken one by one by any of the
threads, and no thread goes on to the next stage before all of them are done. A thread that comes late goes through what
is done already without doing anything.
"""

import platform

STAGE_WORDS = 8
"""Of 8 bytes: a cache line, so that threads that count one stage do not disturb those that read another."""

SPINS = 1 << 8
"""How often a thread that waits for others looks before it lets the system run somebody else."""

_PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
"""What tells a processor that it waits."""


def source() -> str:
    """The module whose function `kernel` takes the address of a table."""
    declaration, pause = _PAUSES.get(platform.machine(), ("", ""))
    return f"""{declaration}
declare i32 @sched_yield()
define void @kernel(ptr %table) {{
entry:
  %first = load i64, ptr %table
  %end_place = getelementptr i64, ptr %table, i64 1
  %end = load i64, ptr %end_place
  br label %stages
stages:
  %at = phi i64 [%first, %entry], [%following, %finished]
  %more = icmp ult i64 %at, %end
  br i1 %more, label %enter, label %out
enter:
  %stage = inttoptr i64 %at to ptr
  %taken_place = getelementptr i64, ptr %stage, i64 1
  %done_place = getelementptr i64, ptr %stage, i64 2
  %calls_place = getelementptr i64, ptr %stage, i64 3
  %count = load i64, ptr %stage
  %calls = load ptr, ptr %calls_place
  br label %look
look:
  %taken = load atomic i64, ptr %taken_place monotonic, align 8
  %left = icmp ult i64 %taken, %count
  br i1 %left, label %take, label %wait
take:
  %turn = atomicrmw add ptr %taken_place, i64 1 acq_rel
  %mine = icmp ult i64 %turn, %count
  br i1 %mine, label %run, label %wait
run:
  %word = mul i64 %turn, 2
  %call = getelementptr i64, ptr %calls, i64 %word
  %frame_place = getelementptr i64, ptr %call, i64 1
  %function = load ptr, ptr %call
  %frame = load ptr, ptr %frame_place
  call void %function(ptr %frame)
  %counted = atomicrmw add ptr %done_place, i64 1 acq_rel
  br label %look
wait:
  %spins = phi i64 [0, %look], [0, %take], [%spun, %spin], [%spun, %yield]
  %done = load atomic i64, ptr %done_place acquire, align 8
  %all = icmp uge i64 %done, %count
  br i1 %all, label %finished, label %spin
spin:
  {pause}
  %spun = add i64 %spins, 1
  %low = and i64 %spun, {SPINS - 1}
  %long = icmp eq i64 %low, 0
  br i1 %long, label %yield, label %wait
yield:
  %yielded = call i32 @sched_yield()
  br label %wait
finished:
  %following = add i64 %at, {8 * STAGE_WORDS}
  br label %stages
out:
  ret void
}}
"""


CLEARS = """declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define void @kernel(ptr %frame) {
  %size_place = getelementptr i64, ptr %frame, i64 1
  %address = load ptr, ptr %frame
  %size = load i64, ptr %size_place
  call void @llvm.memset.p0.i64(ptr %address, i8 0, i64 %size, i1 false)
  ret void
}
"""
"""The module whose function `kernel` sets memory to 0: its frame is an address and a number of bytes."""
