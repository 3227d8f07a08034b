"""Entries sorted, and merged with those that a sequence begins with: functions of LLVM's assembly. An entry is a key,
and below it an element's place in its sequence, so that no two are equal."""

from collections.abc import Sequence

from app.devices.cpu.llvm.text import ROLLED
from app.devices.cpu.llvm.types import bytes_of

RUN_BYTES = 64
"""Of entries that are sorted by counting for each one those that come before it: few comparisons, of vectors mostly."""

LOOKING = 1 << 16
"""From so many elements on it is asked before each merging of all whether to go on."""


def whole(type_: str, count: int) -> int:
    """How many entries it takes to sort so many: they are made runs of one length, as many as a power of two."""
    levels = ((count - 1) // run(type_)).bit_length() if count else 0
    return -(-count // (1 << levels)) << levels


def key_type(type_: str) -> str:
    """Of the keys of elements of LLVM's `type_`, of at most 32 bits or integers of 64."""
    return "i64" if type_ == "i64" else "i32"


def entry_bytes(type_: str) -> int:
    """Of an entry: a key, and below it the element's place in its sequence, so that no two are equal."""
    return 2 * bytes_of(key_type(type_))


def run(type_: str) -> int:
    return RUN_BYTES // entry_bytes(type_)


_SORTING = """declare i64 @llvm.ctlz.i64(i64, i1)
declare i{run} @llvm.ctpop.i{run}(i{run})
declare {entry} @llvm.smin.{entry}({entry}, {entry})
declare {entry} @llvm.smax.{entry}({entry}, {entry})
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; So many entries, from one of two places to either, which is returned; behind them is one that comes last.
define internal ptr @sorted(ptr %frame, ptr %from, ptr %other, i64 %count) noinline {{
entry:
  %before = sub i64 %count, 1
  %runs.before = udiv i64 %before, {run}
  %free = call i64 @llvm.ctlz.i64(i64 %runs.before, i1 false)
  %levels = sub i64 64, %free
  %runs = shl i64 1, %levels
  %runs.less = sub i64 %runs, 1
  %rounded = add i64 %count, %runs.less
  %length = lshr i64 %rounded, %levels
  %whole = shl i64 %length, %levels
  %length.short = trunc i64 %length to i32
  %length.bit = shl i32 1, %length.short
  %length.bits = sub i32 %length.bit, 1
  %mask = trunc i32 %length.bits to i{run}
  br label %pads
pads:
  %p = phi i64 [%count, %entry], [%p.next, %pad]
  %p.more = icmp ult i64 %p, %whole
  br i1 %p.more, label %pad, label %run
pad:
  ; It comes after all elements, and no two are equal.
  %p.wide = {pad}
  %p.own = sub {entry} {nothing}, %p.wide
  %p.place = getelementptr {entry}, ptr %from, i64 %p
  store {entry} %p.own, ptr %p.place
  %p.next = add i64 %p, 1
  br label %pads
run:
  %r = phi i64 [0, %pads], [%r.next, %run.done]
  %r.from = getelementptr {entry}, ptr %from, i64 %r
  %r.to = getelementptr {entry}, ptr %other, i64 %r
  %r.all = load <{run} x {entry}>, ptr %r.from, align {bytes}
  br label %rank
rank:
  %k = phi i64 [0, %run], [%k.next, %rank]
  %k.place = getelementptr {entry}, ptr %r.from, i64 %k
  %k.own = load {entry}, ptr %k.place
  %k.one = insertelement <{run} x {entry}> poison, {entry} %k.own, i64 0
  %k.each = shufflevector <{run} x {entry}> %k.one, <{run} x {entry}> poison, <{run} x i32> zeroinitializer
  %k.less = icmp slt <{run} x {entry}> %r.all, %k.each
  %k.bits = bitcast <{run} x i1> %k.less to i{run}
  %k.some = and i{run} %k.bits, %mask
  %k.count = call i{run} @llvm.ctpop.i{run}(i{run} %k.some)
  %k.rank = zext i{run} %k.count to i64
  %k.target = getelementptr {entry}, ptr %r.to, i64 %k.rank
  store {entry} %k.own, ptr %k.target
  %k.next = add i64 %k, 1
  %k.more = icmp ult i64 %k.next, %length
  br i1 %k.more, label %rank, label %run.done{rolled}
run.done:
  %r.next = add i64 %r, %length
  %r.more = icmp ult i64 %r.next, %whole
  br i1 %r.more, label %run, label %level{rolled}
level:
  %read = phi ptr [%other, %run.done], [%write, %level.done]
  %write = phi ptr [%from, %run.done], [%read, %level.done]
  %half = phi i64 [%length, %run.done], [%both, %level.done]
  %l.more = icmp ult i64 %half, %whole
  br i1 %l.more, label %ask, label %out
ask:
  %is_long = icmp ugt i64 %whole, {looking}
  br i1 %is_long, label %look, label %merges
look:
  %look.place = getelementptr i64, ptr %frame, i64 {at_look}
  %look.function = load ptr, ptr %look.place
  %watch.place = getelementptr i64, ptr %frame, i64 {at_watch}
  %watch = load ptr, ptr %watch.place
  %stops = call i32 %look.function(ptr %watch)
  %is_off = icmp ne i32 %stops, 0
  br i1 %is_off, label %out, label %merges
merges:
  %both = shl i64 %half, 1
  br label %two
two:
  %t = phi i64 [0, %merges], [%t.next, %two.done]
  %t.mid = add i64 %t, %half
  %t.next = add i64 %t, %both
  %t.end = sub i64 %t.next, 1
  %t.mid.end = sub i64 %t.mid, 1
  %low.start = getelementptr {entry}, ptr %read, i64 %t
  %high.start = getelementptr {entry}, ptr %read, i64 %t.mid
  %low.end = getelementptr {entry}, ptr %read, i64 %t.mid.end
  %high.end = getelementptr {entry}, ptr %read, i64 %t.end
  %to.start = getelementptr {entry}, ptr %write, i64 %t
  %to.end = getelementptr {entry}, ptr %write, i64 %t.end
  br label %merge
merge:
  ; From both ends, half of all each, so that neither goes beyond what there is.
  %m = phi i64 [0, %two], [%m.next, %merge]
  %a = phi i64 [0, %two], [%a.next, %merge]
  %c = phi i64 [0, %two], [%c.next, %merge]
  %b = sub i64 %m, %a
  %a.place = getelementptr {entry}, ptr %low.start, i64 %a
  %b.place = getelementptr {entry}, ptr %high.start, i64 %b
  %a.own = load {entry}, ptr %a.place
  %b.own = load {entry}, ptr %b.place
  %a.first = icmp slt {entry} %a.own, %b.own
  %first = call {entry} @llvm.smin.{entry}({entry} %a.own, {entry} %b.own)
  %first.place = getelementptr {entry}, ptr %to.start, i64 %m
  store {entry} %first, ptr %first.place
  %a.step = zext i1 %a.first to i64
  %a.next = add i64 %a, %a.step
  %d = sub i64 %m, %c
  %c.back = sub i64 0, %c
  %d.back = sub i64 0, %d
  %c.place = getelementptr {entry}, ptr %low.end, i64 %c.back
  %d.place = getelementptr {entry}, ptr %high.end, i64 %d.back
  %c.own = load {entry}, ptr %c.place
  %d.own = load {entry}, ptr %d.place
  %c.last = icmp sgt {entry} %c.own, %d.own
  %last = call {entry} @llvm.smax.{entry}({entry} %c.own, {entry} %d.own)
  %m.back = sub i64 0, %m
  %last.place = getelementptr {entry}, ptr %to.end, i64 %m.back
  store {entry} %last, ptr %last.place
  %c.step = zext i1 %c.last to i64
  %c.next = add i64 %c, %c.step
  %m.next = add i64 %m, 1
  %m.more = icmp ult i64 %m.next, %half
  br i1 %m.more, label %merge, label %two.done{rolled}
two.done:
  %t.more = icmp ult i64 %t.next, %whole
  br i1 %t.more, label %two, label %level.done{rolled}
level.done:
  br label %level
out:
  %behind = getelementptr {entry}, ptr %read, i64 %whole
  store {entry} {nothing}, ptr %behind
  ret ptr %read
}}

define internal void @note(ptr %kept, i64 %count, ptr %worst) alwaysinline {{
  %last = sub i64 %count, 1
  %place = getelementptr {entry}, ptr %kept, i64 %last
  %own = load {entry}, ptr %place
  %high = ashr {entry} %own, {half}
  %key = trunc {entry} %high to {key}
  store {key} %key, ptr %worst
  ret void
}}

; Those that a sequence begins with, in order.
define internal void @keep_first(ptr %frame, ptr %kept, ptr %shared, ptr %worst) noinline {{
entry:
  %count.place = getelementptr i64, ptr %frame, i64 {at_count}
  %count = load i64, ptr %count.place
  %found = call ptr @sorted(ptr %frame, ptr %kept, ptr %shared, i64 %count)
  %is_there = icmp eq ptr %found, %kept
  br i1 %is_there, label %out, label %copy
copy:
  %bytes = mul i64 %count, {bytes}
  call void @llvm.memcpy.p0.p0.i64(ptr align {bytes} %kept, ptr align {bytes} %found, i64 %bytes, i1 false)
  br label %out
out:
  call void @note(ptr %kept, i64 %count, ptr %worst)
  ret void
}}

; As many as before, of these and of those that were put together.
define internal void @keep_new(ptr %frame, ptr %kept, ptr %shared, ptr %worst, ptr %new) noinline {{
entry:
  %count.place = getelementptr i64, ptr %frame, i64 {at_count}
  %count = load i64, ptr %count.place
  %number = load i64, ptr %new
  %from = getelementptr {entry}, ptr %kept, i64 %count
  %found = call ptr @sorted(ptr %frame, ptr %from, ptr %shared, i64 %number)
  %reach.place = getelementptr i64, ptr %frame, i64 {at_reach}
  %reach = load i64, ptr %reach.place
  %past = sub i64 %reach, %count
  %made = getelementptr {entry}, ptr %shared, i64 %past
  br label %merge
merge:
  %m = phi i64 [0, %entry], [%m.next, %merge]
  %a = phi i64 [0, %entry], [%a.next, %merge]
  %b = sub i64 %m, %a
  %a.place = getelementptr {entry}, ptr %kept, i64 %a
  %b.place = getelementptr {entry}, ptr %found, i64 %b
  %a.own = load {entry}, ptr %a.place
  %b.own = load {entry}, ptr %b.place
  %a.first = icmp slt {entry} %a.own, %b.own
  %first = call {entry} @llvm.smin.{entry}({entry} %a.own, {entry} %b.own)
  %place = getelementptr {entry}, ptr %made, i64 %m
  store {entry} %first, ptr %place
  %a.step = zext i1 %a.first to i64
  %a.next = add i64 %a, %a.step
  %m.next = add i64 %m, 1
  %m.more = icmp ult i64 %m.next, %count
  br i1 %m.more, label %merge, label %copy{rolled}
copy:
  %bytes = mul i64 %count, {bytes}
  call void @llvm.memcpy.p0.p0.i64(ptr align {bytes} %kept, ptr align {bytes} %made, i64 %bytes, i1 false)
  call void @note(ptr %kept, i64 %count, ptr %worst)
  store i64 0, ptr %new
  ret void
}}
"""


def functions(type_: str, fields: Sequence[str]) -> str:
    """Functions of entries of elements of LLVM's `type_`: `sorted`; `keep_first` and `keep_new`, which put in order
    what a sequence has and tell the last key that is kept. Of the frame's `fields`, 8 bytes each, they read the count
    of those that are kept, the reach of a sequence's memory, and whom to ask whether to go on."""
    key = key_type(type_)
    half = 8 * bytes_of(key)
    entry = f"i{2 * half}"
    nothing = (1 << 2 * half - 1) - 1
    sizes = {"half": half, "bytes": half // 4, "run": run(type_), "looking": LOOKING}
    sizes |= {f"at_{name}": fields.index(name) for name in ("look", "watch", "count", "reach")}
    return _SORTING.format(
        rolled=ROLLED, key=key, entry=entry, pad=resized("%p", "i64", entry), nothing=nothing, **sizes
    )


def resized(value: str, given: str, wanted: str) -> str:
    """The instruction that makes an integer, without a sign, one of another type."""
    bits = int(given[1:]), int(wanted[1:])
    if bits[0] == bits[1]:
        return f"or {given} {value}, 0"
    return f"{'zext' if bits[0] < bits[1] else 'trunc'} {given} {value} to {wanted}"
