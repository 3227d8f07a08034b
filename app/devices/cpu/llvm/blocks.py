"""The loop that takes blocks of a nest until there are no more: the assembly of a job, of which `jobs.py` says what it
has."""

from app.devices.cpu.llvm.team_source import TASK_WORDS, loaded

FUNCTION, THREAD, NEXT, LAST, FRAME, DIMENSIONS, ARRAYS, STEP, SIZE, SCRATCH, TABLES = range(
    TASK_WORDS, TASK_WORDS + 11
)
"""Words of a job."""


def source() -> str:
    """The module whose function `kernel` takes the address of a job."""
    return f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)

define void @kernel(ptr %job) {{
entry:
{loaded("function.address", "job", FUNCTION)}
  %function = inttoptr i64 %function.address to ptr
{loaded("last", "job", LAST)}
{loaded("words", "job", FRAME)}
{loaded("dimensions", "job", DIMENSIONS)}
{loaded("arrays", "job", ARRAYS)}
{loaded("step", "job", STEP)}
{loaded("size", "job", SIZE)}
{loaded("scratch", "job", SCRATCH)}
  %next.at = getelementptr i64, ptr %job, i64 {NEXT}
  %thread.at = getelementptr i64, ptr %job, i64 {THREAD}
  %thread = atomicrmw add ptr %thread.at, i64 1 monotonic
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
"""
