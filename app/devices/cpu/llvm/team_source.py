"""What a team's threads run, in assembly: how they wait for tasks, do them and end. `team.py` says what is shared.

A helper that sleeps is woken on another processor than that of who wakes it, which does the same task meanwhile. Left
to itself the system may well put both on one: to a guest of KVM, which most machines in a cloud are, a processor that
sleeps looks as if its host had taken it away, so that it is not among those that are idle. The two then take turns for
milliseconds, until the load is balanced.
"""

import os

from app.devices.cpu.llvm import waiting
from app.devices.cpu.llvm.waiting import SPIN_NS

_BURST, TEAM, WANTED, WAKES, TASK_WORDS = 1, 2, 3, 4, 5
"""What a task begins with: the address of the function that takes its address, whether there is a burst, the address of
the team, how many helpers are wanted, and whether those that sleep are woken."""

BURST_NS = 120_000
"""How soon after the one before a task comes in a burst, and how long helpers look for the next one meanwhile. Python
between two dispatches takes 10 us, and 60 if what they move has taken its place in the cache."""

HELPER_WORDS, LOT, THREAD, SHUNNED = 64, 8, 48, 49
"""Words of a helper, which is in cache lines of its own: the first one is its mail; then where it sleeps, the system's
number of its thread, and the processor, counted from 1, that it was last woken from, where it does not run."""

BUSY, LAST_NS, HELPERS, PROCESSORS = 0, 8, 16, 24
"""Words of the team, in the place of a helper. The last ones are a bit for each of the processors that it may use."""

PROCESSOR_WORDS = 16
"""As many as glibc's cpu_set_t has."""

_WORKING, _DONE, _ENDS = 1, 2, 3
"""What else than 0 and addresses is in the mail."""


def loaded(name: str, pointer: str, word: int, type_: str = "i64") -> str:
    """Lines that give a name to what is in a word, counted from a pointer."""
    return f"  %{name}.in = getelementptr i64, ptr %{pointer}, i64 {word}\n  %{name} = load {type_}, ptr %{name}.in"


def team_source() -> str:
    """`run` does a task with others, `help` is what a helper does, `stop` ends those that do nothing."""
    return f"""{waiting.source()}{_APART if hasattr(os, "sched_setaffinity") else _ANYWHERE}
define internal ptr @helper(ptr %team, i64 %number) alwaysinline {{
  %after = add i64 %number, 1
  %offset = mul i64 %after, {HELPER_WORDS}
  %at = getelementptr i64, ptr %team, i64 %offset
  ret ptr %at
}}

define internal void @do(ptr %task) {{
  %function = load ptr, ptr %task
  call void %function(ptr %task)
  ret void
}}

define internal void @rouse(ptr %team, ptr %helper) {{
entry:
  %lot = getelementptr i64, ptr %helper, i64 {LOT}
  %sleepers = load atomic i64, ptr %lot seq_cst, align 8
  %sleeps = icmp ne i64 %sleepers, 0
  br i1 %sleeps, label %apart, label %end
apart:
  call void @part(ptr %team, ptr %helper)
  call void @wake(ptr %lot)
  br label %end
end:
  ret void
}}

define void @run(ptr %task) {{
entry:
{loaded("team", "task", TEAM, "ptr")}
{loaded("wanted", "task", WANTED)}
{loaded("wakes", "task", WAKES)}
  %begun = call i64 @now()
  %finished.at = getelementptr i64, ptr %team, i64 {LAST_NS}
  %finished = load atomic i64, ptr %finished.at monotonic, align 8
  %since = sub i64 %begun, %finished
  %burst = icmp slt i64 %since, {BURST_NS}
  %burst.word = zext i1 %burst to i64
  %burst.at = getelementptr i64, ptr %task, i64 {_BURST}
  store i64 %burst.word, ptr %burst.at
  %helpers.at = getelementptr i64, ptr %team, i64 {HELPERS}
  %helpers = load i64, ptr %helpers.at
  %letter = ptrtoint ptr %task to i64
  %busy.at = getelementptr i64, ptr %team, i64 {BUSY}
  %busy = atomicrmw add ptr %busy.at, i64 1 seq_cst
  %free = sub i64 %helpers, %busy
  %few = icmp slt i64 %free, %wanted
  %most = select i1 %few, i64 %free, i64 %wanted
  %must = icmp ne i64 %wakes, 0
  %worth = or i1 %burst, %must
  %asked = select i1 %worth, i64 %most, i64 0
  br label %ask
ask:
  %h = phi i64 [0, %entry], [%h.next, %asked.one]
  %mask = phi i64 [0, %entry], [%mask.next, %asked.one]
  %got = phi i64 [0, %entry], [%got.next, %asked.one]
  %more = icmp slt i64 %got, %asked
  %exists = icmp slt i64 %h, %helpers
  %goes = and i1 %more, %exists
  br i1 %goes, label %offer, label %own
offer:
  %helper = call ptr @helper(ptr %team, i64 %h)
  %pair = cmpxchg ptr %helper, i64 0, i64 %letter seq_cst seq_cst
  %taken = extractvalue {{i64, i1}} %pair, 1
  br i1 %taken, label %offered, label %asked.one
offered:
  call void @rouse(ptr %team, ptr %helper)
  br label %asked.one
asked.one:
  %one = phi i64 [0, %offer], [1, %offered]
  %bit = shl i64 %one, %h
  %mask.next = or i64 %mask, %bit
  %got.next = add i64 %got, %one
  %h.next = add i64 %h, 1
  br label %ask
own:
  %others = atomicrmw add ptr %busy.at, i64 %got seq_cst
  call void @do(ptr %task)
  br label %collect
collect:
  %c = phi i64 [0, %own], [%c.next, %collected]
  %c.more = icmp slt i64 %c, %h
  br i1 %c.more, label %look, label %end
look:
  %shifted = lshr i64 %mask, %c
  %is.ours = trunc i64 %shifted to i1
  br i1 %is.ours, label %take.back, label %collected
take.back:
  %theirs = call ptr @helper(ptr %team, i64 %c)
  %back = cmpxchg ptr %theirs, i64 %letter, i64 0 seq_cst seq_cst
  %was.back = extractvalue {{i64, i1}} %back, 1
  br i1 %was.back, label %collected, label %finishing
finishing:
  %their.lot = getelementptr i64, ptr %theirs, i64 {LOT}
  %done = call i64 @await(ptr %theirs, i64 {_DONE}, ptr %their.lot, i64 {SPIN_NS})
  store atomic i64 0, ptr %theirs seq_cst, align 8
  br label %collected
collected:
  %c.next = add i64 %c, 1
  br label %collect
end:
  %all = add i64 %got, 1
  %before = atomicrmw sub ptr %busy.at, i64 %all seq_cst
  %ended = call i64 @now()
  store atomic i64 %ended, ptr %finished.at monotonic, align 8
  ret void
}}

define void @help(ptr %team, i64 %number) {{
entry:
  %helper = call ptr @helper(ptr %team, i64 %number)
  %lot = getelementptr i64, ptr %helper, i64 {LOT}
  br label %wait
wait:
  %looks = phi i64 [0, %entry], [{SPIN_NS}, %open], [%after, %do]
  %letter = call i64 @await(ptr %helper, i64 {_ENDS}, ptr %lot, i64 %looks)
  %ends = icmp eq i64 %letter, {_ENDS}
  br i1 %ends, label %end, label %open
open:
  %pair = cmpxchg ptr %helper, i64 %letter, i64 {_WORKING} seq_cst seq_cst
  %taken = extractvalue {{i64, i1}} %pair, 1
  br i1 %taken, label %do, label %wait
do:
  %task = inttoptr i64 %letter to ptr
  %burst.at = getelementptr i64, ptr %task, i64 {_BURST}
  %burst = load i64, ptr %burst.at
  %is.burst = icmp ne i64 %burst, 0
  %after = select i1 %is.burst, i64 {BURST_NS}, i64 0
  call void @do(ptr %task)
  store atomic i64 {_DONE}, ptr %helper seq_cst, align 8
  call void @wake(ptr %lot)
  br label %wait
end:
  ret void
}}

define void @stop(ptr %team, i64 %helpers) {{
entry:
  br label %each
each:
  %h = phi i64 [0, %entry], [%h.next, %each]
  %helper = call ptr @helper(ptr %team, i64 %h)
  %pair = cmpxchg ptr %helper, i64 0, i64 {_ENDS} seq_cst seq_cst
  call void @rouse(ptr %team, ptr %helper)
  %h.next = add i64 %h, 1
  %more = icmp slt i64 %h.next, %helpers
  br i1 %more, label %each, label %end
end:
  ret void
}}
"""


_ANYWHERE = """
define internal void @part(ptr %team, ptr %helper) {
  ret void
}
"""

_APART = f"""
declare i32 @sched_getcpu()
declare i32 @sched_setaffinity(i32, i64, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal void @part(ptr %team, ptr %helper) {{
entry:
  %here = call i32 @sched_getcpu()
  %known = icmp ult i32 %here, {64 * PROCESSOR_WORDS}
  br i1 %known, label %compare, label %end
compare:
  %processor = zext i32 %here to i64
  %counted = add i64 %processor, 1
  %shunned = getelementptr i64, ptr %helper, i64 {SHUNNED}
  %before = load i64, ptr %shunned
  %same = icmp eq i64 %before, %counted
  br i1 %same, label %end, label %move
move:
  store i64 %counted, ptr %shunned
  %mask = alloca [{PROCESSOR_WORDS} x i64]
  %processors = getelementptr i64, ptr %team, i64 {PROCESSORS}
  call void @llvm.memcpy.p0.p0.i64(ptr %mask, ptr %processors, i64 {8 * PROCESSOR_WORDS}, i1 false)
  %number = lshr i64 %processor, 6
  %word = getelementptr i64, ptr %mask, i64 %number
  %place = and i64 %processor, 63
  %bit = shl i64 1, %place
  %others = xor i64 %bit, -1
  %all = load i64, ptr %word
  %rest = and i64 %all, %others
  store i64 %rest, ptr %word
  %thread.at = getelementptr i64, ptr %helper, i64 {THREAD}
  %thread = load i64, ptr %thread.at
  %id = trunc i64 %thread to i32
  %moved = call i32 @sched_setaffinity(i32 %id, i64 {8 * PROCESSOR_WORDS}, ptr %mask)
  br label %end
end:
  ret void
}}
"""
"""Keep a helper that sleeps off the processor that this runs on. What the system refuses, since there is no other, is
no matter."""
