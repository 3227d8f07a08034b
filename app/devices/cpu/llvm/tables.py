"""The loop that goes through a table of compiled functions, on as many threads as come: a task of a team.

A table has HEAD_WORDS of 8 bytes: those of every task, the address of the first stage to go through, the address after
the last one, and a lot for threads that wait at the end of a stage. A stage takes STAGE_WORDS: how many calls it is,
how many of these are taken, how many are done, and the address of the calls; and a call the address of a function and
that of its frame. The calls of a stage are taken one by one by any of the threads, and no thread goes on to the next
stage before all of them are done. A thread that comes late goes through what is done already without doing anything.
"""

from app.devices.cpu.llvm import waiting
from app.devices.cpu.llvm.team_source import TASK_WORDS, loaded
from app.devices.cpu.llvm.waiting import LOT_WORDS

STAGE_WORDS = 8
"""A cache line, so that threads that count one stage do not disturb those that read another."""

FIRST, END, LOT = TASK_WORDS, TASK_WORDS + 1, STAGE_WORDS
HEAD_WORDS = LOT + LOT_WORDS
"""Whole cache lines, and where in them is what."""


def source() -> str:
    """The module whose function `kernel` takes the address of a table."""
    return f"""{waiting.source()}
define void @kernel(ptr %table) {{
entry:
  %lot = getelementptr i64, ptr %table, i64 {LOT}
{loaded("first", "table", FIRST)}
{loaded("end", "table", END)}
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
  %counted = atomicrmw add ptr %done_place, i64 1 seq_cst
  %done = add i64 %counted, 1
  %last = icmp eq i64 %done, %count
  br i1 %last, label %tell, label %look
tell:
  call void @wake(ptr %lot)
  br label %finished
wait:
  %all = call i64 @await(ptr %done_place, i64 %count, ptr %lot, i64 {waiting.SPIN_NS})
  br label %finished
finished:
  %following = add i64 %at, {8 * STAGE_WORDS}
  br label %stages
out:
  ret void
}}
"""


MOVE_WORDS = 3
_TABLE, _MOVES, _COUNT, _STAGES, SOURCES = range(5)
"""Words of the frame of BINDS: the address of a table, that of moves and how many these are, how many stages there are,
and from SOURCES on addresses. A move is a word of the table, which of these addresses it is, and how many bytes on."""

BINDS = f"""define void @kernel(ptr %frame) {{
entry:
{loaded("table", "frame", _TABLE, "ptr")}
{loaded("moves", "frame", _MOVES, "ptr")}
{loaded("count", "frame", _COUNT)}
{loaded("stages", "frame", _STAGES)}
  %sources = getelementptr i64, ptr %frame, i64 {SOURCES}
  br label %next_move
next_move:
  %m = phi i64 [0, %entry], [%m_next, %move]
  %more_moves = icmp ult i64 %m, %count
  br i1 %more_moves, label %move, label %next_stage
move:
  %move_place = getelementptr [{MOVE_WORDS} x i64], ptr %moves, i64 %m
{loaded("word", "move_place", 0)}
{loaded("source", "move_place", 1)}
{loaded("offset", "move_place", 2)}
  %address_place = getelementptr i64, ptr %sources, i64 %source
  %address = load i64, ptr %address_place
  %moved = add i64 %address, %offset
  %target = getelementptr i64, ptr %table, i64 %word
  store i64 %moved, ptr %target
  %m_next = add i64 %m, 1
  br label %next_move
next_stage:
  %s = phi i64 [0, %next_move], [%s_next, %stage]
  %more_stages = icmp ult i64 %s, %stages
  br i1 %more_stages, label %stage, label %end
stage:
  %after = mul i64 %s, {STAGE_WORDS}
  %taken_word = add i64 %after, {HEAD_WORDS + 1}
  %taken_place = getelementptr i64, ptr %table, i64 %taken_word
  %done_place = getelementptr i64, ptr %taken_place, i64 1
  store i64 0, ptr %taken_place
  store i64 0, ptr %done_place
  %s_next = add i64 %s, 1
  br label %next_stage
end:
  ret void
}}
"""
"""The module whose function `kernel` makes a table ready for a dispatch: nobody has taken anything of it."""

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
