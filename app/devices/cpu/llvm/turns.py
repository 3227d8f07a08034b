"""Frames by turns: what a job calls for loops whose pieces have a frame each, over one or more items of a batch.

The turn of number t is for item t / pieces, and takes the frame of piece t % pieces. Its first words are addresses:
what the item has of the first array, the second and the third as they are, what it has of the fourth, and scratch.
"""

WORDS = (
    *("count", "first", "function", "pieces", "words", "item_bytes", "result_bytes", "frames"),
    *("elements", "weights", "bias", "results", "scratch"),
)
"""What the frame of the loop has: how many turns, the first one, the function that each calls, how many pieces an item
is, how many words the frame of each, by how many bytes items are apart in the first and in the fourth array, where the
frames lie, one after the other, and the addresses for all of them."""


def source() -> str:
    """The module whose function `kernel` takes the address of WORDS."""
    loads = "\n".join(
        f"  %{name}.at = getelementptr i64, ptr %frame, i64 {place}\n  %{name} = load i64, ptr %{name}.at"
        for place, name in enumerate(WORDS)
    )
    stores = "\n".join(
        f"  %own.{place} = getelementptr i64, ptr %own, i64 {place}\n  store i64 %{name}, ptr %own.{place}"
        for place, name in enumerate(("item.elements", "weights", "bias", "item.results", "scratch"))
    )
    return f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @kernel(ptr %frame) {{
entry:
{loads}
  %called = inttoptr i64 %function to ptr
  %all = inttoptr i64 %frames to ptr
  %bytes = mul i64 %words, 8
  %own = alloca i64, i64 %words
  br label %each
each:
  %number = phi i64 [0, %entry], [%number.next, %each]
  %turn = add i64 %first, %number
  %item = udiv i64 %turn, %pieces
  %piece = urem i64 %turn, %pieces
  %before = mul i64 %piece, %words
  %given = getelementptr i64, ptr %all, i64 %before
  call void @llvm.memcpy.p0.p0.i64(ptr %own, ptr %given, i64 %bytes, i1 false)
  %elements.before = mul i64 %item, %item_bytes
  %item.elements = add i64 %elements, %elements.before
  %results.before = mul i64 %item, %result_bytes
  %item.results = add i64 %results, %results.before
{stores}
  call void %called(ptr %own)
  %number.next = add i64 %number, 1
  %more = icmp ult i64 %number.next, %count
  br i1 %more, label %each, label %end
end:
  ret void
}}
"""
