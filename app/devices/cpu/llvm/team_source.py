"""What a team's threads run, in assembly: how they wait for tasks, do them and end. `team.py` says what is shared."""

from app.devices.cpu.llvm import waiting
from app.devices.cpu.llvm.waiting import SPIN_NS

TASK_WORDS = 2
"""What a task begins with: the address of the function that takes its address, and whether there is a burst."""

_BURST = 1

HELPER_WORDS, LOT = 64, 8
"""Words of a helper, which is in cache lines of its own, and where in them it sleeps. The first one is its mail."""

BUSY, LAST_NS, HELPERS = 0, 8, 16
"""Words of the team, in the place of a helper."""

_WORKING, _DONE, _ENDS = 1, 2, 3
"""What else than 0 and addresses is in the mail."""


def team_source() -> str:
    """`run` does a task with others, `help` is what a helper does, `stop` ends those that do nothing."""
    return f"""{waiting.source()}
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

define internal void @rouse(ptr %helper) {{
  %lot = getelementptr i64, ptr %helper, i64 {LOT}
  call void @wake(ptr %lot)
  ret void
}}

define void @run(ptr %team, ptr %task, i64 %wanted, i64 %wakes) {{
entry:
  %begun = call i64 @now()
  %finished.at = getelementptr i64, ptr %team, i64 {LAST_NS}
  %finished = load atomic i64, ptr %finished.at monotonic, align 8
  %since = sub i64 %begun, %finished
  %burst = icmp slt i64 %since, {SPIN_NS}
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
  call void @rouse(ptr %helper)
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
  %done = call i64 @await(ptr %theirs, i64 {_DONE}, ptr %their.lot, i1 true)
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
  %spins = phi i1 [false, %entry], [true, %open], [%is.burst, %do]
  %letter = call i64 @await(ptr %helper, i64 {_ENDS}, ptr %lot, i1 %spins)
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
  call void @rouse(ptr %helper)
  %h.next = add i64 %h, 1
  %more = icmp slt i64 %h.next, %helpers
  br i1 %more, label %each, label %end
end:
  ret void
}}
"""
