"""The loop that goes through a table of compiled functions, on as many threads as come: a task of a team.

A table has HEAD_WORDS of 8 bytes: those of every task, the address of the first stage to go through, the address after
the last one, and a lot for threads that wait at the end of a stage. A stage takes STAGE_WORDS: how many calls it is,
how many of these are taken, how many are done, and the address of the calls; and a call the address of a function and
that of its frame. The calls of a stage are taken one by one by any of the threads, and no thread goes on to the next
stage before all of them are done. A thread that comes late goes through what is done already without doing anything.
"""

from functools import lru_cache

from app.devices.cpu.llvm import waiting
from app.devices.cpu.llvm.team_source import TASK_WORDS, loaded
from app.devices.cpu.llvm.text import Text
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


MOVE_WORDS, SOURCES = 3, 4
"""The frame of `binds` has the address of a table, that of moves and how many these are, how many stages there are and,
from its word SOURCES on, addresses. A move is a word of the table, which of them it is, and how many bytes on.
"""


@lru_cache(1)
def binds() -> str:
    """The module whose function `kernel` makes a table ready for a dispatch: nobody has taken anything of it."""
    text = Text(0)
    frame = text.frame(("table", "moves", "count", "stages"), 2)

    def word(pointer: str, number: str) -> str:
        return text.let(f"load i64, ptr {text.at(pointer, number, 'i64')}")

    with text.loop("0", frame["count"], "1", note="", may_be_none=True) as each:
        move = text.at(frame["moves"], text.mul(each.index, str(MOVE_WORDS)), "i64")
        target, source, offset = (word(move, str(number)) for number in range(MOVE_WORDS))
        moved = text.add(word(text.at("%frame", str(SOURCES), "i64"), source), offset)
        text.do(f"store i64 {moved}, ptr {text.at(frame['table'], target, 'i64')}")
    with text.loop("0", frame["stages"], "1", note="", may_be_none=True) as stage:
        first = text.add(text.mul(stage.index, str(STAGE_WORDS)), str(HEAD_WORDS + 1))
        taken = text.at(frame["table"], first, "i64")
        for place in (taken, text.at(taken, "1", "i64")):
            text.do(f"store i64 0, ptr {place}")
    return text.module()
