"""What a team's threads run: the assembly of how they wait for jobs, do them and end. `team.py` says what is shared."""

import os
import time

SPIN_NS = 50_000
"""How long threads look for what is about to come before they sleep: about what it takes to wake one."""

NEXT, LAST, FRAME, DIMENSIONS, ARRAYS, STEP, SIZE, SCRATCH, BURST, TABLES = range(1, 11)
"""Words of a job. The first is the address of its function."""

HELPER_WORDS = 64
_MAIL, _ASLEEP, _WAITED_FOR, _MUTEX, _CONDITION = 0, 8, 9, 16, 32
"""Words of a helper, which is in cache lines of its own; pthread's objects get 128 bytes each."""

_BUSY, _LAST_NS, _STOPS, HELPERS = 0, 8, 16, 17
"""Words of the team, in the place of a helper."""

_WORKING, _DONE = 1, 2

_PAUSES = {"x86_64": ("llvm.x86.sse2.pause", "", ""), "aarch64": ("llvm.aarch64.hint", "i32", "i32 1")}


def team_source() -> str:
    """`run` works on a job with others, `help` is what a helper does, `stop` ends it."""
    name, types, given = _PAUSES.get(os.uname().machine.replace("arm64", "aarch64"), ("llvm.donothing", "", ""))
    pause = f"call void @{name}({given})"
    return f"""
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @clock_gettime(i32, ptr)
declare void @{name}({types})
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare ptr @llvm.stacksave.p0()
declare void @llvm.stackrestore.p0(ptr)
declare i64 @llvm.umin.i64(i64, i64)

define internal i64 @now() {{
  %time = alloca [2 x i64]
  call i32 @clock_gettime(i32 {int(time.CLOCK_MONOTONIC)}, ptr %time)
  %seconds = load i64, ptr %time
  %at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %at
  %whole = mul i64 %seconds, 1000000000
  %ns = add i64 %whole, %rest
  ret i64 %ns
}}

define internal ptr @helper(ptr %team, i64 %number) alwaysinline {{
  %after = add i64 %number, 1
  %offset = mul i64 %after, {HELPER_WORDS}
  %at = getelementptr i64, ptr %team, i64 %offset
  ret ptr %at
}}

define internal void @wake(ptr %helper) {{
  %mutex = getelementptr i64, ptr %helper, i64 {_MUTEX}
  %condition = getelementptr i64, ptr %helper, i64 {_CONDITION}
  call i32 @pthread_mutex_lock(ptr %mutex)
  call i32 @pthread_cond_broadcast(ptr %condition)
  call i32 @pthread_mutex_unlock(ptr %mutex)
  ret void
}}

define void @begin(ptr %team, i64 %number) {{
  %helper = call ptr @helper(ptr %team, i64 %number)
  %mutex = getelementptr i64, ptr %helper, i64 {_MUTEX}
  %condition = getelementptr i64, ptr %helper, i64 {_CONDITION}
  call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  call i32 @pthread_cond_init(ptr %condition, ptr null)
  ret void
}}

define internal void @work(ptr %job, i64 %thread) {{
entry:
{_load("function.address", 0)}
  %function = inttoptr i64 %function.address to ptr
{_load("last", LAST)}
{_load("words", FRAME)}
{_load("dimensions", DIMENSIONS)}
{_load("arrays", ARRAYS)}
{_load("step", STEP)}
{_load("size", SIZE)}
{_load("scratch", SCRATCH)}
  %next.at = getelementptr i64, ptr %job, i64 {NEXT}
  %bytes = mul i64 %words, 8
  %template = getelementptr i64, ptr %job, i64 {TABLES}
  %extents = getelementptr i64, ptr %template, i64 %words
  %steps = getelementptr i64, ptr %extents, i64 %dimensions
  %each = add i64 %dimensions, 1
  %of.arrays = mul i64 %arrays, %each
  %scratches = getelementptr i64, ptr %steps, i64 %of.arrays
  %frame = alloca i64, i64 %words
  br label %turn
turn:
  %block = atomicrmw add ptr %next.at, i64 1 monotonic
  %some = icmp slt i64 %block, %last
  br i1 %some, label %take, label %end
take:
  call void @llvm.memcpy.p0.p0.i64(ptr %frame, ptr %template, i64 %bytes, i1 false)
  br label %dimension
dimension:
  %above = phi i64 [%dimensions, %take], [%d, %dimension.end]
  %left = phi i64 [%block, %take], [%rest, %dimension.end]
  %d = sub i64 %above, 1
  %extent.at = getelementptr i64, ptr %extents, i64 %d
  %extent = load i64, ptr %extent.at
  %place = urem i64 %left, %extent
  %rest = udiv i64 %left, %extent
  %innermost = icmp eq i64 %above, %dimensions
  br i1 %innermost, label %cut, label %moves
cut:
  %start = mul i64 %place, %step
  %remaining = sub i64 %size, %start
  %length = call i64 @llvm.umin.i64(i64 %remaining, i64 %step)
  store i64 %length, ptr %frame
  br label %moves
moves:
  br label %move
move:
  %a = phi i64 [0, %moves], [%a.next, %move]
  %row.offset = mul i64 %a, %each
  %row = getelementptr i64, ptr %steps, i64 %row.offset
  %slot = load i64, ptr %row
  %after = add i64 %d, 1
  %stride.at = getelementptr i64, ptr %row, i64 %after
  %stride = load i64, ptr %stride.at
  %distance = mul i64 %place, %stride
  %address.at = getelementptr i64, ptr %frame, i64 %slot
  %address = load i64, ptr %address.at
  %moved = add i64 %address, %distance
  store i64 %moved, ptr %address.at
  %a.next = add i64 %a, 1
  %a.more = icmp slt i64 %a.next, %arrays
  br i1 %a.more, label %move, label %dimension.end
dimension.end:
  %d.more = icmp sgt i64 %d, 0
  br i1 %d.more, label %dimension, label %own
own:
  %s = phi i64 [0, %dimension.end], [%s.next, %own.one]
  %s.more = icmp slt i64 %s, %scratch
  br i1 %s.more, label %own.one, label %call
own.one:
  %pair.offset = mul i64 %s, 2
  %pair = getelementptr i64, ptr %scratches, i64 %pair.offset
  %own.slot = load i64, ptr %pair
  %own.bytes.at = getelementptr i64, ptr %pair, i64 1
  %own.bytes = load i64, ptr %own.bytes.at
  %own.distance = mul i64 %own.bytes, %thread
  %own.at = getelementptr i64, ptr %frame, i64 %own.slot
  %own.base = load i64, ptr %own.at
  %own.moved = add i64 %own.base, %own.distance
  store i64 %own.moved, ptr %own.at
  %s.next = add i64 %s, 1
  br label %own
call:
  call void %function(ptr %frame)
  br label %turn
end:
  ret void
}}

define void @run(ptr %team, ptr %job, i64 %wanted, i64 %wakes) {{
entry:
  %begun = call i64 @now()
  %finished.at = getelementptr i64, ptr %team, i64 {_LAST_NS}
  %finished = load atomic i64, ptr %finished.at monotonic, align 8
  %since = sub i64 %begun, %finished
  %burst = icmp slt i64 %since, {SPIN_NS}
  %burst.word = zext i1 %burst to i64
  %burst.at = getelementptr i64, ptr %job, i64 {BURST}
  store i64 %burst.word, ptr %burst.at
  %helpers.at = getelementptr i64, ptr %team, i64 {HELPERS}
  %helpers = load i64, ptr %helpers.at
  %letter = ptrtoint ptr %job to i64
  %busy.at = getelementptr i64, ptr %team, i64 {_BUSY}
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
  %asleep.at = getelementptr i64, ptr %helper, i64 {_ASLEEP}
  %asleep = load atomic i64, ptr %asleep.at seq_cst, align 8
  %sleeps = icmp ne i64 %asleep, 0
  br i1 %sleeps, label %waking, label %asked.one
waking:
  call void @wake(ptr %helper)
  br label %asked.one
asked.one:
  %one = phi i64 [0, %offer], [1, %offered], [1, %waking]
  %bit = shl i64 %one, %h
  %mask.next = or i64 %mask, %bit
  %got.next = add i64 %got, %one
  %h.next = add i64 %h, 1
  br label %ask
own:
  %others = atomicrmw add ptr %busy.at, i64 %got seq_cst
  call void @work(ptr %job, i64 0)
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
  br i1 %was.back, label %collected, label %await
await:
  call void @await(ptr %theirs)
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

define internal void @await(ptr %helper) {{
entry:
  %waited.at = getelementptr i64, ptr %helper, i64 {_WAITED_FOR}
  %mutex = getelementptr i64, ptr %helper, i64 {_MUTEX}
  %condition = getelementptr i64, ptr %helper, i64 {_CONDITION}
  %begun = call i64 @now()
  br label %spin
spin:
  {pause}
  %mail = load atomic i64, ptr %helper acquire, align 8
  %done = icmp eq i64 %mail, {_DONE}
  br i1 %done, label %end, label %look
look:
  %now = call i64 @now()
  %since = sub i64 %now, %begun
  %early = icmp slt i64 %since, {SPIN_NS}
  br i1 %early, label %spin, label %sleep
sleep:
  call i32 @pthread_mutex_lock(ptr %mutex)
  store atomic i64 1, ptr %waited.at seq_cst, align 8
  br label %check
check:
  %found = load atomic i64, ptr %helper seq_cst, align 8
  %ready = icmp eq i64 %found, {_DONE}
  br i1 %ready, label %awake, label %wait
wait:
  call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %check
awake:
  store atomic i64 0, ptr %waited.at seq_cst, align 8
  call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %end
end:
  ret void
}}

define void @help(ptr %team, i64 %number) {{
entry:
  %helper = call ptr @helper(ptr %team, i64 %number)
  %asleep.at = getelementptr i64, ptr %helper, i64 {_ASLEEP}
  %waited.at = getelementptr i64, ptr %helper, i64 {_WAITED_FOR}
  %mutex = getelementptr i64, ptr %helper, i64 {_MUTEX}
  %condition = getelementptr i64, ptr %helper, i64 {_CONDITION}
  %stops.at = getelementptr i64, ptr %team, i64 {_STOPS}
  %thread = add i64 %number, 1
  br label %sleep
begin:
  %begun = call i64 @now()
  br label %spin
spin:
  {pause}
  %mail = load atomic i64, ptr %helper acquire, align 8
  %is.job = icmp ugt i64 %mail, {_DONE}
  br i1 %is.job, label %open, label %look
look:
  %now = call i64 @now()
  %since = sub i64 %now, %begun
  %early = icmp slt i64 %since, {SPIN_NS}
  br i1 %early, label %spin, label %sleep
sleep:
  call i32 @pthread_mutex_lock(ptr %mutex)
  store atomic i64 1, ptr %asleep.at seq_cst, align 8
  br label %check
check:
  %woken = phi i1 [false, %sleep], [true, %wait]
  %found = load atomic i64, ptr %helper seq_cst, align 8
  %came = icmp ugt i64 %found, {_DONE}
  %stops = load atomic i64, ptr %stops.at seq_cst, align 8
  %ends = icmp ne i64 %stops, 0
  %called = or i1 %came, %ends
  %rises = or i1 %called, %woken
  br i1 %rises, label %awake, label %wait
wait:
  call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %check
awake:
  store atomic i64 0, ptr %asleep.at seq_cst, align 8
  call i32 @pthread_mutex_unlock(ptr %mutex)
  br i1 %came, label %open, label %late
late:
  br i1 %ends, label %end, label %begin
open:
  %letter = phi i64 [%mail, %spin], [%found, %awake]
  %pair = cmpxchg ptr %helper, i64 %letter, i64 {_WORKING} seq_cst seq_cst
  %taken = extractvalue {{i64, i1}} %pair, 1
  br i1 %taken, label %do, label %begin
do:
  %job = inttoptr i64 %letter to ptr
{_load("burst", BURST)}
  call void @work(ptr %job, i64 %thread)
  store atomic i64 {_DONE}, ptr %helper seq_cst, align 8
  %waited = load atomic i64, ptr %waited.at seq_cst, align 8
  %sleeps = icmp ne i64 %waited, 0
  br i1 %sleeps, label %tell, label %done
tell:
  call void @wake(ptr %helper)
  br label %done
done:
  %is.burst = icmp ne i64 %burst, 0
  br i1 %is.burst, label %begin, label %sleep
end:
  ret void
}}

define void @stop(ptr %team, i64 %helpers) {{
entry:
  %stops.at = getelementptr i64, ptr %team, i64 {_STOPS}
  store atomic i64 1, ptr %stops.at seq_cst, align 8
  br label %each
each:
  %h = phi i64 [0, %entry], [%h.next, %each]
  %helper = call ptr @helper(ptr %team, i64 %h)
  call void @wake(ptr %helper)
  %h.next = add i64 %h, 1
  %more = icmp slt i64 %h.next, %helpers
  br i1 %more, label %each, label %end
end:
  ret void
}}
"""


def _load(name: str, word: int) -> str:
    return f"  %{name}.at.word = getelementptr i64, ptr %job, i64 {word}\n  %{name} = load i64, ptr %{name}.at.word"
