"""How threads wait for one another in compiled code: assembly that the modules of threads have in common.

A thread waits until a word is at least so much. It looks for a while, mostly SPIN_NS, about as long as it takes to wake
a thread, and then sleeps in a lot, which is the pthread objects for it and how many sleep there. Who changes the word
then wakes it. Words are of 64 bits.
"""

import platform
import time

from app.devices.cpu.llvm.compiler import Compiler

SPIN_NS = 50_000
"""How long threads look for what is about to come before they sleep: about what it takes to wake one."""

LOT_WORDS = 40
_MUTEX, _CONDITION = 8, 24
"""Words of a lot, of which the first one counts who sleeps there; pthread's objects get 128 bytes each."""

_PAUSES = {"x86_64": ("llvm.x86.sse2.pause", "", ""), "aarch64": ("llvm.aarch64.hint", "i32", "i32 1")}
"""What tells a processor that it waits."""


def lot(compiler: Compiler, address: int) -> None:
    """Make these LOT_WORDS a lot, in which nobody sleeps."""
    compiler.function(_LOT)(address)


def source() -> str:
    """`now` gives nanoseconds, `await` waits until a word is at least so much, and gives it, and `wake` wakes who
    sleeps in a lot. Who waits looks for so many nanoseconds before it sleeps, or if that is 0 and it was woken for
    nothing, for SPIN_NS."""
    name, types, given = _PAUSES.get(platform.machine().replace("arm64", "aarch64"), ("llvm.donothing", "", ""))
    return f"""
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @clock_gettime(i32, ptr)
declare void @{name}({types})

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

define internal i64 @await(ptr %word, i64 %least, ptr %lot, i64 %looks) {{
entry:
  %spins = icmp ne i64 %looks, 0
  %longest = select i1 %spins, i64 %looks, i64 {SPIN_NS}
  %mutex = getelementptr i64, ptr %lot, i64 {_MUTEX}
  %condition = getelementptr i64, ptr %lot, i64 {_CONDITION}
  %first = load atomic i64, ptr %word seq_cst, align 8
  %is.there = icmp uge i64 %first, %least
  br i1 %is.there, label %end, label %enter
enter:
  br i1 %spins, label %begin, label %sleep
begin:
  %begun = call i64 @now()
  br label %spin
spin:
  call void @{name}({given})
  %seen = load atomic i64, ptr %word seq_cst, align 8
  %soon = icmp uge i64 %seen, %least
  br i1 %soon, label %end, label %look
look:
  %now = call i64 @now()
  %since = sub i64 %now, %begun
  %early = icmp slt i64 %since, %longest
  br i1 %early, label %spin, label %sleep
sleep:
  call i32 @pthread_mutex_lock(ptr %mutex)
  atomicrmw add ptr %lot, i64 1 seq_cst
  %last = load atomic i64, ptr %word seq_cst, align 8
  %came = icmp uge i64 %last, %least
  br i1 %came, label %rise, label %wait
wait:
  call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %rise
rise:
  atomicrmw sub ptr %lot, i64 1 seq_cst
  call i32 @pthread_mutex_unlock(ptr %mutex)
  %found = load atomic i64, ptr %word seq_cst, align 8
  %is.it = icmp uge i64 %found, %least
  br i1 %is.it, label %end, label %begin
end:
  %value = phi i64 [%first, %entry], [%seen, %spin], [%found, %rise]
  ret i64 %value
}}

define internal void @wake(ptr %lot) {{
entry:
  %sleepers = load atomic i64, ptr %lot seq_cst, align 8
  %some = icmp ne i64 %sleepers, 0
  br i1 %some, label %call, label %end
call:
  %mutex = getelementptr i64, ptr %lot, i64 {_MUTEX}
  %condition = getelementptr i64, ptr %lot, i64 {_CONDITION}
  call i32 @pthread_mutex_lock(ptr %mutex)
  call i32 @pthread_cond_broadcast(ptr %condition)
  call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %end
end:
  ret void
}}
"""


_LOT = f"""declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_cond_init(ptr, ptr)
define void @kernel(ptr %lot) {{
  %mutex = getelementptr i64, ptr %lot, i64 {_MUTEX}
  %condition = getelementptr i64, ptr %lot, i64 {_CONDITION}
  call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  call i32 @pthread_cond_init(ptr %condition, ptr null)
  store i64 0, ptr %lot
  ret void
}}
"""
