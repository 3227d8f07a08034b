"""Bytes cleared, and copied."""

from functools import lru_cache

from app.devices.cpu.llvm.text import Text


@lru_cache(1)
def zeros() -> str:
    """The module whose function `kernel` clears bytes: its frame has their address and how many they are."""
    text = Text(0)
    frame = text.frame(("bytes", "count"), 1)
    text.declare("void", "llvm.memset.p0.i64", "ptr a, i8 b, i64 c, i1 d")
    text.do(f"call void @llvm.memset.p0.i64(ptr {frame['bytes']}, i8 0, i64 {frame['count']}, i1 false)")
    return text.module()


@lru_cache(1)
def copies() -> str:
    """The module whose function `kernel` copies bytes: its frame has the addresses of them and of their copies, and how
    many they are."""
    text = Text(0)
    frame = text.frame(("bytes", "copies", "count"), 2)
    copy(text, frame["copies"], frame["bytes"], frame["count"])
    return text.module()


def copy(text: Text, to: str, start: str, count: str) -> None:
    """So many bytes, which lie apart from their copies."""
    text.declare("void", "llvm.memcpy.p0.p0.i64", "ptr a, ptr b, i64 c, i1 d")
    text.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {start}, i64 {count}, i1 false)")
