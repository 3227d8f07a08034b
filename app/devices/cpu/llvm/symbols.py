"""Names in compiled code of what lies elsewhere.

LLVM calls functions of its own runtime library where a processor has no instruction, such as `__truncdfhf2` for the
half of a float64. That library is not in this process, and nobody says so: the call would go to address 0 and end the
process.
Source of the format: the ELF specification, of 64 bits and little-endian.
"""

import struct

_MAGIC = b"\x7fELF\x02\x01"
_SYMBOL_TABLE = 2
_SYMBOL = struct.Struct("<IBBHQQ")


def undefined(code: bytes) -> list[str]:
    """The symbols that an object file needs and does not define. None of other systems' formats are known."""
    if not code.startswith(_MAGIC):
        return []
    (sections,) = struct.unpack_from("<Q", code, 0x28)
    size, count = struct.unpack_from("<HH", code, 0x3A)
    names = []
    for section in range(sections, sections + size * count, size):
        (kind,) = struct.unpack_from("<I", code, section + 4)
        if kind == _SYMBOL_TABLE:
            begin, length, link = struct.unpack_from("<QQI", code, section + 0x18)
            (texts,) = struct.unpack_from("<Q", code, sections + size * link + 0x18)
            for name, _, _, place, _, _ in _SYMBOL.iter_unpack(code[begin : begin + length]):
                if name and not place:
                    names.append(code[texts + name : code.index(b"\0", texts + name)].decode())
    return names
