"""The first few of an order in rows: those found so far are kept in order, and most elements are only compared with the
last one of them."""

BLOCK = 32
"""Elements that are compared at once."""

MOST = 64
"""How many are kept at most: each that is found moves half of them on."""


def source(type_: str, index: str, *, is_unsigned: bool, is_decreasing: bool) -> str:
    """The module whose function `kernel` takes a frame, of 8 bytes each: the addresses of rows, of the results and of
    their indices; the first row and the one after the last; how many elements a row has, and how many are wanted.

    Elements are of LLVM's `type_`, at most 32 bits, indices of type `index`.
    """
    size = {"half": 2, "float": 4}.get(type_) or int(type_[1:]) // 8
    return f"""{_key(type_, 1, is_unsigned, is_decreasing)}
{_key(type_, BLOCK, is_unsigned, is_decreasing)}
declare i{BLOCK} @llvm.cttz.i{BLOCK}(i{BLOCK}, i1)

define internal void @insert(ptr %kept, i64 %free, i32 %key, i64 %number) {{
entry:
  %wide = sext i32 %key to i64
  %high = shl i64 %wide, 32
  %own = or i64 %high, %number
  br label %look
look:
  %at = phi i64 [%free, %entry], [%before, %move]
  %is_first = icmp eq i64 %at, 0
  br i1 %is_first, label %put, label %compare
compare:
  %before = sub i64 %at, 1
  %place = getelementptr i64, ptr %kept, i64 %before
  %value = load i64, ptr %place
  %is_behind = icmp sgt i64 %value, %own
  br i1 %is_behind, label %move, label %put
move:
  %next = getelementptr i64, ptr %kept, i64 %at
  store i64 %value, ptr %next
  br label %look
put:
  %target = getelementptr i64, ptr %kept, i64 %at
  store i64 %own, ptr %target
  ret void
}}

define internal i32 @offered(ptr %row, ptr %kept, i64 %last, i32 %worst, i64 %number) {{
entry:
  %place = getelementptr {type_}, ptr %row, i64 %number
  %x = load {type_}, ptr %place, align 1
  %key = call i32 @key1({type_} %x)
  %is_better = icmp slt i32 %key, %worst
  br i1 %is_better, label %take, label %out
take:
  call void @insert(ptr %kept, i64 %last, i32 %key, i64 %number)
  %end = getelementptr i64, ptr %kept, i64 %last
  %behind = load i64, ptr %end
  %high = ashr i64 %behind, 32
  %now = trunc i64 %high to i32
  br label %out
out:
  %made = phi i32 [%worst, %entry], [%now, %take]
  ret i32 %made
}}

define void @kernel(ptr noalias readonly %frame) {{
entry:
  %kept = alloca i64, i64 {MOST}, align 64
{_loads()}
  %last = sub i64 %count, 1
  %end = getelementptr i64, ptr %kept, i64 %last
  br label %rows
rows:
  %number = phi i64 [%first, %entry], [%number.next, %done]
  %row.at = mul i64 %number, %size
  %row = getelementptr {type_}, ptr %elements, i64 %row.at
  br label %fill
fill:
  %f = phi i64 [0, %rows], [%f.next, %fill]
  %f.place = getelementptr {type_}, ptr %row, i64 %f
  %f.x = load {type_}, ptr %f.place, align 1
  %f.key = call i32 @key1({type_} %f.x)
  call void @insert(ptr %kept, i64 %f, i32 %f.key, i64 %f)
  %f.next = add i64 %f, 1
  %f.more = icmp ult i64 %f.next, %count
  br i1 %f.more, label %fill, label %filled
filled:
  %behind = load i64, ptr %end
  %behind.high = ashr i64 %behind, 32
  %worst.first = trunc i64 %behind.high to i32
  br label %blocks
blocks:
  %b = phi i64 [%count, %filled], [%b.next, %block.done]
  %worst = phi i32 [%worst.first, %filled], [%worst.block, %block.done]
  %b.next = add i64 %b, {BLOCK}
  %is_whole = icmp ule i64 %b.next, %size
  br i1 %is_whole, label %block, label %tail
block:
  %b.place = getelementptr {type_}, ptr %row, i64 %b
  %b.x = load <{BLOCK} x {type_}>, ptr %b.place, align 1
  %b.keys = call <{BLOCK} x i32> @key{BLOCK}(<{BLOCK} x {type_}> %b.x)
  %b.one = insertelement <{BLOCK} x i32> poison, i32 %worst, i64 0
  %b.worst = shufflevector <{BLOCK} x i32> %b.one, <{BLOCK} x i32> poison, <{BLOCK} x i32> zeroinitializer
  %b.better = icmp slt <{BLOCK} x i32> %b.keys, %b.worst
  %b.bits = bitcast <{BLOCK} x i1> %b.better to i{BLOCK}
  %b.none = icmp eq i{BLOCK} %b.bits, 0
  br i1 %b.none, label %block.done, label %some
some:
  %bits = phi i{BLOCK} [%b.bits, %block], [%bits.next, %some]
  %worst.now = phi i32 [%worst, %block], [%worst.some, %some]
  %zeros = call i{BLOCK} @llvm.cttz.i{BLOCK}(i{BLOCK} %bits, i1 true)
  %zeros.wide = zext i{BLOCK} %zeros to i64
  %found = add i64 %b, %zeros.wide
  %worst.some = call i32 @offered(ptr %row, ptr %kept, i64 %last, i32 %worst.now, i64 %found)
  %bits.less = sub i{BLOCK} %bits, 1
  %bits.next = and i{BLOCK} %bits, %bits.less
  %bits.more = icmp ne i{BLOCK} %bits.next, 0
  br i1 %bits.more, label %some, label %block.done
block.done:
  %worst.block = phi i32 [%worst, %block], [%worst.some, %some]
  br label %blocks
tail:
  %t = phi i64 [%b, %blocks], [%t.next, %tail.on]
  %worst.tail = phi i32 [%worst, %blocks], [%worst.next, %tail.on]
  %t.more = icmp ult i64 %t, %size
  br i1 %t.more, label %tail.on, label %write
tail.on:
  %worst.next = call i32 @offered(ptr %row, ptr %kept, i64 %last, i32 %worst.tail, i64 %t)
  %t.next = add i64 %t, 1
  br label %tail
write:
  %made.at = mul i64 %number, %count
  br label %result
result:
  %r = phi i64 [0, %write], [%r.next, %result]
  %r.kept = getelementptr i64, ptr %kept, i64 %r
  %r.own = load i64, ptr %r.kept
  %r.number = and i64 %r.own, 4294967295
  %r.place = getelementptr i{8 * size}, ptr %row, i64 %r.number
  %r.value = load i{8 * size}, ptr %r.place, align 1
  %r.at = add i64 %made.at, %r
  %r.target = getelementptr i{8 * size}, ptr %values, i64 %r.at
  store i{8 * size} %r.value, ptr %r.target, align 1
  %r.index.place = getelementptr {index}, ptr %indices, i64 %r.at
  {"%r.index = trunc i64 %r.number to i32" if index == "i32" else "%r.index = add i64 %r.number, 0"}
  store {index} %r.index, ptr %r.index.place, align 1
  %r.next = add i64 %r, 1
  %r.more = icmp ult i64 %r.next, %count
  br i1 %r.more, label %result, label %done
done:
  %number.next = add i64 %number, 1
  %more = icmp ult i64 %number.next, %after
  br i1 %more, label %rows, label %out
out:
  ret void
}}"""


def _loads() -> str:
    """What the frame has."""
    kinds = {"elements": "ptr", "values": "ptr", "indices": "ptr"}
    lines = []
    for place, name in enumerate(("elements", "values", "indices", "first", "after", "size", "count")):
        lines.append(f"  %{name}.place = getelementptr i64, ptr %frame, i64 {place}")
        lines.append(f"  %{name} = load {kinds.get(name, 'i64')}, ptr %{name}.place")
    return "\n".join(lines)


def _key(type_: str, width: int, is_unsigned: bool, is_decreasing: bool) -> str:
    """A function of so many elements, of their keys: of two the one with the smaller key comes first. Both zeros have
    one, and all NaN have one beyond infinity."""

    def of(kind: str) -> str:
        return kind if width == 1 else f"<{width} x {kind}>"

    def constant(kind: str, value: str) -> str:
        return value if width == 1 else f"<{', '.join([f'{kind} {value}'] * width)}>"

    lines = []
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
    elif type_ == "i32":
        lines.append(f"%order = xor {of('i32')} %x, {constant('i32', str(-(1 << 31) if is_unsigned else 0))}")
    else:
        lines.append(f"%order = {'z' if is_unsigned else 's'}ext {of(type_)} %x to {of('i32')}")
    lines.append(f"%key = xor {of('i32')} %order, {constant('i32', '-1' if is_decreasing else '0')}")
    head = f"define internal {of('i32')} @key{width}({of(type_)} %x) alwaysinline {{"
    return "\n".join([head, *[f"  {line}" for line in lines], f"  ret {of('i32')} %key", "}"])
