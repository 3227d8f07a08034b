"""The first elements of an order in sequences. Those found so far are kept in order, and most elements are only
compared with the last one of them; those that come before it are put together until there are as many as are kept, or
all that may come, and then sorted and merged with these."""

from functools import lru_cache

from app.devices.cpu.llvm import sorting
from app.devices.cpu.llvm.text import METADATA, ROLLED
from app.devices.cpu.llvm.types import bytes_of

LANES = (32, 8, 1)
"""Elements that are compared at once, of one sequence or of so many side by side. There are functions for each."""

LEAST = 4
"""Elements that are put together at least: to sort one takes as long as that."""

FIELDS = (
    *("elements", "values", "indices", "memory", "look", "watch"),
    *("first", "after", "tiles", "size", "inner", "count", "room", "reach"),
)
"""What the frame has, 8 bytes each: addresses; of tiles of sequences the first one and the one after the last, and how
many lie side by side; how many elements a sequence has, how far they are apart, and how many are wanted; how many are
put together before they are sorted, and how many entries of memory a sequence has."""

_ADDRESSES = 6


def reach(type_: str, count: int, room: int) -> int:
    """Entries of memory that a sequence has, of which `count` are kept and so many put together, each time with one
    behind them."""
    return max(sorting.whole(type_, count), count + sorting.whole(type_, room)) + 1


def memory_bytes(type_: str, together: int, count: int, room: int) -> int:
    """Of a call's own for so many sequences, and to sort and merge those of one. A run is read as if it was a whole
    one."""
    each = reach(type_, count, room)
    shared = max(sorting.whole(type_, count), sorting.whole(type_, room) + count, each) + 1 + sorting.run(type_)
    return sorting.entry_bytes(type_) * (together * each + shared)


@lru_cache(32)
def source(type_: str, index: str, lanes: int, *, by_rows: bool, is_unsigned: bool, is_decreasing: bool) -> str:
    """The module whose function `kernel` takes a frame.

    Elements are of LLVM's `type_`, integers or floats of at most 32 bits, indices of type `index`. Sequences that lie
    one behind the other, `by_rows`, have at least so many elements, `lanes`; else as many lie side by side, as a tile.
    """
    key = sorting.key_type(type_)
    half = 8 * bytes_of(key)
    entry = f"i{2 * half}"
    together = 1 if by_rows else lanes
    item = f"i{8 * bytes_of(type_)}"
    return f"""{_key(type_, 1, is_unsigned, is_decreasing)}
{_key(type_, lanes, is_unsigned, is_decreasing) if lanes > 1 else ""}
{sorting.functions(type_, FIELDS)}
declare i{lanes} @llvm.cttz.i{lanes}(i{lanes}, i1)

define void @kernel(ptr noalias readonly %frame) {{
entry:
  %worsts = alloca [{together} x {key}], align 64
  %news = alloca [{together} x i64], align 64
  %block = alloca [{lanes} x {key}], align 64
{_loads(*FIELDS)}
  %held = mul i64 %reach, {together}
  %shared = getelementptr {entry}, ptr %memory, i64 %held
  %each = mul i64 %size, %inner
  %each.made = mul i64 %count, %inner
  %column.last = sub i64 %inner, {together}
  %block.last = sub i64 %size, {lanes if by_rows else 1}
  br label %tile
tile:
  %number = phi i64 [%first, %entry], [%number.next, %done]
  %outer = udiv i64 %number, %tiles
  %tile.in = urem i64 %number, %tiles
  %column.own = mul i64 %tile.in, {together}
  %column = call i64 @llvm.umin.i64(i64 %column.own, i64 %column.last)
  %start.outer = mul i64 %outer, %each
  %start = add i64 %start.outer, %column
  %row = getelementptr {type_}, ptr %elements, i64 %start
  %made.outer = mul i64 %outer, %each.made
  %made = add i64 %made.outer, %column
  br label %fill
fill:
  %f = phi i64 [0, %tile], [%f.next, %fill.done]
  %f.offset = mul i64 %f, %inner
  %f.row = getelementptr {type_}, ptr %row, i64 %f.offset
  br label %fill.one
fill.one:
  %fl = phi i64 [0, %fill], [%fl.next, %fill.one]
  %f.place = getelementptr {type_}, ptr %f.row, i64 %fl
  %f.x = load {type_}, ptr %f.place, align 1
  %f.key = call {key} @key1({type_} %f.x)
  %f.own = call {entry} @entry({key} %f.key, i64 %f)
  %f.lane = mul i64 %fl, %reach
  %f.at = add i64 %f.lane, %f
  %f.target = getelementptr {entry}, ptr %memory, i64 %f.at
  store {entry} %f.own, ptr %f.target
  %fl.next = add i64 %fl, 1
  %fl.more = icmp ult i64 %fl.next, {together}
  br i1 %fl.more, label %fill.one, label %fill.done{ROLLED}
fill.done:
  %f.next = add i64 %f, 1
  %f.more = icmp ult i64 %f.next, %count
  br i1 %f.more, label %fill, label %order{ROLLED}
order:
  %o = phi i64 [0, %fill.done], [%o.next, %order]
  %o.lane = mul i64 %o, %reach
  %o.kept = getelementptr {entry}, ptr %memory, i64 %o.lane
  %o.worst = getelementptr {key}, ptr %worsts, i64 %o
  %o.new = getelementptr i64, ptr %news, i64 %o
  call void @keep_first(ptr %frame, ptr %o.kept, ptr %shared, ptr %o.worst)
  store i64 0, ptr %o.new
  %o.next = add i64 %o, 1
  %o.more = icmp ult i64 %o.next, {together}
  br i1 %o.more, label %order, label %blocks{ROLLED}
blocks:
  %b = phi i64 [%count, %order], [%b.next, %block.done]
  %b.more = icmp ult i64 %b, %size
  br i1 %b.more, label %read, label %rest
read:
  %b.begin = call i64 @llvm.umin.i64(i64 %b, i64 %block.last)
  %b.offset = mul i64 %b.begin, %inner
  %b.place = getelementptr {type_}, ptr %row, i64 %b.offset
{_block(type_, key, lanes, by_rows)}
  %b.next = add i64 %b, {lanes if by_rows else 1}
  %b.none = icmp eq i{lanes} %b.bits, 0
  br i1 %b.none, label %block.done, label %some
some:
  store {_of(key, lanes)} %b.keys, ptr %block
  br label %one
one:
  %bits = phi i{lanes} [%b.bits, %some], [%bits.next, %one.done]
  %zeros = call i{lanes} @llvm.cttz.i{lanes}(i{lanes} %bits, i1 true)
  %lane = zext i{lanes} %zeros to i64
  %s = {"add i64 0, 0" if by_rows else "add i64 %lane, 0"}
  %s.number = {"add i64 %b.begin, %lane" if by_rows else "add i64 %b, 0"}
  %s.key.place = getelementptr {key}, ptr %block, i64 %lane
  %s.key = load {key}, ptr %s.key.place
  %s.worst.place = getelementptr {key}, ptr %worsts, i64 %s
  %s.worst = load {key}, ptr %s.worst.place
  %s.better = icmp slt {key} %s.key, %s.worst
  br i1 %s.better, label %take, label %one.done
take:
  %s.lane = mul i64 %s, %reach
  %s.kept = getelementptr {entry}, ptr %memory, i64 %s.lane
  %s.new.place = getelementptr i64, ptr %news, i64 %s
  %s.new = load i64, ptr %s.new.place
  %s.at = add i64 %count, %s.new
  %s.target = getelementptr {entry}, ptr %s.kept, i64 %s.at
  %s.own = call {entry} @entry({key} %s.key, i64 %s.number)
  store {entry} %s.own, ptr %s.target
  %s.now = add i64 %s.new, 1
  store i64 %s.now, ptr %s.new.place
  %s.full = icmp eq i64 %s.now, %room
  br i1 %s.full, label %full, label %one.done
full:
  call void @keep_new(ptr %frame, ptr %s.kept, ptr %shared, ptr %s.worst.place, ptr %s.new.place)
  br label %one.done
one.done:
  %bits.less = sub i{lanes} %bits, 1
  %bits.next = and i{lanes} %bits, %bits.less
  %bits.more = icmp ne i{lanes} %bits.next, 0
  br i1 %bits.more, label %one, label %block.done{ROLLED}
block.done:
  br label %blocks
rest:
  %e = phi i64 [0, %blocks], [%e.next, %rest.done]
  %e.new.place = getelementptr i64, ptr %news, i64 %e
  %e.new = load i64, ptr %e.new.place
  %e.none = icmp eq i64 %e.new, 0
  br i1 %e.none, label %rest.done, label %rest.some
rest.some:
  %e.lane = mul i64 %e, %reach
  %e.kept = getelementptr {entry}, ptr %memory, i64 %e.lane
  %e.worst = getelementptr {key}, ptr %worsts, i64 %e
  call void @keep_new(ptr %frame, ptr %e.kept, ptr %shared, ptr %e.worst, ptr %e.new.place)
  br label %rest.done
rest.done:
  %e.next = add i64 %e, 1
  %e.more = icmp ult i64 %e.next, {together}
  br i1 %e.more, label %rest, label %result{ROLLED}
result:
  %r = phi i64 [0, %rest.done], [%r.next, %result.done]
  %r.offset = mul i64 %r, %inner
  %r.made = add i64 %made, %r.offset
  br label %result.one
result.one:
  %rl = phi i64 [0, %result], [%rl.next, %result.one]
  %r.lane = mul i64 %rl, %reach
  %r.entry = add i64 %r.lane, %r
  %r.kept = getelementptr {entry}, ptr %memory, i64 %r.entry
  %r.own = load {entry}, ptr %r.kept
  %r.low = and {entry} %r.own, {(1 << half) - 1}
  %r.number = {sorting.resized("%r.low", entry, "i64")}
  %r.from = mul i64 %r.number, %inner
  %r.column = add i64 %r.from, %rl
  %r.place = getelementptr {item}, ptr %row, i64 %r.column
  %r.value = load {item}, ptr %r.place, align 1
  %r.at = add i64 %r.made, %rl
  %r.target = getelementptr {item}, ptr %values, i64 %r.at
  store {item} %r.value, ptr %r.target, align 1
  %r.index.place = getelementptr {index}, ptr %indices, i64 %r.at
  %r.index = {sorting.resized("%r.number", "i64", index)}
  store {index} %r.index, ptr %r.index.place, align 1
  %rl.next = add i64 %rl, 1
  %rl.more = icmp ult i64 %rl.next, {together}
  br i1 %rl.more, label %result.one, label %result.done{ROLLED}
result.done:
  %r.next = add i64 %r, 1
  %r.more = icmp ult i64 %r.next, %count
  br i1 %r.more, label %result, label %done{ROLLED}
done:
  %number.next = add i64 %number, 1
  %more = icmp ult i64 %number.next, %after
  br i1 %more, label %tile, label %out{ROLLED}
out:
  ret void
}}
{METADATA}"""


def _loads(*fields: str) -> str:
    """What the frame has."""
    lines = []
    for place, name in enumerate(fields):
        lines.append(f"  %{name}.place = getelementptr i64, ptr %frame, i64 {place}")
        lines.append(f"  %{name} = load {'ptr' if place < _ADDRESSES else 'i64'}, ptr %{name}.place")
    return "\n".join(lines)


def _block(type_: str, key: str, lanes: int, by_rows: bool) -> str:
    """The keys of a block, and which of them come before the last that is kept. The last block of a row begins where
    it still is a whole one: those that were in the one before are left out."""
    lines = [
        f"%b.x = load {_of(type_, lanes)}, ptr %b.place, align 1",
        f"%b.keys = call {_of(key, lanes)} @key{lanes}({_of(type_, lanes)} %b.x)",
    ]
    if lanes == 1 or not by_rows:
        lines.append(f"%b.worst = load {_of(key, lanes)}, ptr %worsts")
    else:
        lines += [
            f"%b.last = load {key}, ptr %worsts",
            f"%b.one = insertelement {_of(key, lanes)} poison, {key} %b.last, i64 0",
            f"%b.worst = shufflevector {_of(key, lanes)} %b.one, {_of(key, lanes)} poison,"
            f" {_of('i32', lanes)} zeroinitializer",
        ]
    lines.append(f"%b.better = icmp slt {_of(key, lanes)} %b.keys, %b.worst")
    lines.append(f"%b.all = bitcast {_of('i1', lanes)} %b.better to i{lanes}")
    if by_rows:
        lines += [
            "%b.again = sub i64 %b, %b.begin",
            f"%b.again.short = trunc i64 %b.again to i{lanes}",
            f"%b.fresh = shl i{lanes} -1, %b.again.short",
            f"%b.bits = and i{lanes} %b.all, %b.fresh",
        ]
    else:
        lines.append(f"%b.bits = or i{lanes} %b.all, 0")
    return "\n".join(f"  {line}" for line in lines)


def _of(kind: str, width: int) -> str:
    """So many of a type."""
    return kind if width == 1 else f"<{width} x {kind}>"


def _key(type_: str, width: int, is_unsigned: bool, is_decreasing: bool) -> str:
    """A function of so many elements, of their keys: of two the one with the smaller key comes first. Both zeros have
    one, and all NaN have one beyond infinity."""

    def of(kind: str) -> str:
        return _of(kind, width)

    def constant(kind: str, value: str) -> str:
        return value if width == 1 else f"<{', '.join([f'{kind} {value}'] * width)}>"

    key, lines = sorting.key_type(type_), []
    if type_ in ("half", "float"):
        x = "%x"
        if type_ == "half":
            lines.append(f"%wide = fpext {of(type_)} %x to {of('float')}")
            x = "%wide"
        lines += [
            f"%number = fadd {of('float')} {x}, {constant('float', '0.0')}",
            f"%is_nan = fcmp uno {of('float')} {x}, {x}",
            f"%some = bitcast {of('float')} %number to {of('i32')}",
            f"%bits = select {of('i1')} %is_nan, {of('i32')} {constant('i32', '2143289344')}, {of('i32')} %some",
            f"%sign = ashr {of('i32')} %bits, {constant('i32', '31')}",
            f"%others = and {of('i32')} %sign, {constant('i32', str(0x7FFFFFFF))}",
            f"%order = xor {of('i32')} %bits, %others",
        ]
    elif type_ == key:
        least = str(-(1 << 8 * bytes_of(key) - 1) if is_unsigned else 0)
        lines.append(f"%order = xor {of(key)} %x, {constant(key, least)}")
    else:
        lines.append(f"%order = {'z' if is_unsigned else 's'}ext {of(type_)} %x to {of('i32')}")
    lines.append(f"%key = xor {of(key)} %order, {constant(key, '-1' if is_decreasing else '0')}")
    head = f"define internal {of(key)} @key{width}({of(type_)} %x) alwaysinline {{"
    return "\n".join([head, *[f"  {line}" for line in lines], f"  ret {of(key)} %key", "}"])
