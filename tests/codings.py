"""Content codings as clients know them."""

import gzip
import sys
import zlib
from collections.abc import Callable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["COMPRESS", "plain", "zstd"]

_CHECKED: dict[int, int] = {zstd.CompressionParameter.checksum_flag: 1}

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": lambda data: zstd.compress(data, options=_CHECKED),
}


def plain(coding: str, data: bytes) -> bytes:
    return zstd.decompress(data) if coding == "zstd" else zlib.decompress(data, zlib.MAX_WBITS + 32)
