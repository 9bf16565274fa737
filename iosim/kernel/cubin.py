"""What a compiled kernel takes, read from its machine code: registers, stack frame, and the loads and
stores of spilled registers in its loop. A cubin is an ELF file; no tool of CUDA is needed.

    report = read_cubin(Path("kernel.cubin").read_bytes())["flash_fwd"]
    report.registers, report.frame_bytes, report.loop.stored_bytes

Attributes of `.nv.info` and opcodes are those that NVIDIA's nvdisasm prints (CUDA Binary Utilities); instructions are
16 bytes each from cc 7.0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from iosim.base.errors import InputError
from iosim.base.records import dataclass

FORMAT_SIZED = 4
REGISTER_COUNT, FRAME_SIZE = 0x2F, 0x11
"""Attributes of `.nv.info`: each holds a symbol's number and a value."""
INSTRUCTION_BYTES = 16
LOAD_LOCAL, STORE_LOCAL, BRANCH, EXPONENTIAL = 0x983, 0x387, 0x947, 0x308
"""The low twelve bits of LDL, STL, BRA and MUFU."""
WIDTHS = {4: 4, 5: 8, 6: 16}
"""Bytes of an access by its three bits of width: .32, .64, .128."""
SPLIT_OFFSET_CC = 90
"""From here on a branch's offset has its low eight bits apart."""
SYMBOL_TABLE, NO_BITS = 2, 8


@dataclass(frozen=True)
class LocalAccesses:
    """Loads and stores of local memory that a thread makes: how many, and their bytes."""

    loads: int = 0
    stores: int = 0
    loaded_bytes: int = 0
    stored_bytes: int = 0


@dataclass(frozen=True)
class CubinReport:
    """One kernel of a cubin. `loop` are the spills of its key loop in one step, `outside` those before and after."""

    name: str
    cc: int
    registers: int
    frame_bytes: int
    loop: LocalAccesses
    outside: LocalAccesses


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    data: bytes
    link: int


def read_cubin(data: bytes) -> dict[str, CubinReport]:
    """The kernels of a cubin, by name. Raises InputError: this is no cubin of a GPU from cc 7.0."""
    try:
        return dict(_reports(data))
    except (struct.error, ValueError, IndexError, KeyError) as error:
        raise InputError(f"the compiled kernel is no cubin that can be read: {error}") from None


def _reports(data: bytes) -> Iterator[tuple[str, CubinReport]]:
    if data[:4] != b"\x7fELF":
        raise ValueError("it does not begin as an ELF file")
    sections = _sections(data)
    by_name = {s.name: s for s in sections}
    names = _symbols(sections)
    registers = _attributes(by_name[".nv.info"].data, REGISTER_COUNT, names)
    frames = _attributes(by_name[".nv.info"].data, FRAME_SIZE, names)
    cc = _capability(data)
    for name, count in registers.items():
        code = by_name.get(f".text.{name}")
        if code is None:
            continue
        loop, outside = _accesses(code.data, cc)
        yield name, CubinReport(name, cc, count, frames.get(name, 0), loop, outside)


def _sections(data: bytes) -> list[_Section]:
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQII", data, start + n * size) for n in range(count)]
    strings = headers[names][4]
    return [
        _Section(_string(data, strings + h[0]), h[1], b"" if h[1] == NO_BITS else data[h[4] : h[4] + h[5]], h[6])
        for h in headers
    ]


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _symbols(sections: list[_Section]) -> list[str]:
    table = next(s for s in sections if s.kind == SYMBOL_TABLE)
    strings = sections[table.link].data
    return [_string(strings, struct.unpack_from("<I", table.data, at)[0]) for at in range(0, len(table.data), 24)]


def _attributes(info: bytes, wanted: int, names: list[str]) -> dict[str, int]:
    found, at = {}, 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if form == FORMAT_SIZED:
            if attribute == wanted:
                symbol, value = struct.unpack_from("<II", info, at + 4)
                found[names[symbol]] = value
            at += size
        at += 4
    return found


def _capability(data: bytes) -> int:
    """The architecture in the ELF header's flags: the low byte, or the second where the low one is none."""
    (flags,) = struct.unpack_from("<I", data, 48)
    low, second = int(flags & 0xFF), int(flags >> 8 & 0xFF)
    return low if low >= 50 else second


def _accesses(code: bytes, cc: int) -> tuple[LocalAccesses, LocalAccesses]:
    """(a step of the key loop, everything else). The key loop is the innermost one with exponentials; of several, the
    longest."""
    words = [struct.unpack_from("<QQ", code, at) for at in range(0, len(code), INSTRUCTION_BYTES)]
    loops = [(_target(low, n, cc), n) for n, (low, _) in enumerate(words) if low & 0xFFF == BRANCH]
    loops = [(first, last) for first, last in loops if 0 <= first < last]
    inner = [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    hot = [(first, last) for first, last in inner if _count(words, first, last, EXPONENTIAL)]
    first, last = max(hot, key=lambda pair: pair[1] - pair[0], default=(0, -1))
    inside = range(first, last + 1)
    return _local(words[first : last + 1]), _local([w for n, w in enumerate(words) if n not in inside])


def _count(words: list[tuple[int, int]], first: int, last: int, opcode: int) -> int:
    return sum(low & 0xFFF == opcode for low, _ in words[first : last + 1])


def _target(low: int, index: int, cc: int) -> int:
    offset = low >> 34
    offset -= (offset >> 29) << 30
    if cc >= SPLIT_OFFSET_CC:
        offset = (offset << 8) + (low >> 16 & 0xFF)
    return int(index + 1 + offset * 4 // INSTRUCTION_BYTES)


def _local(words: list[tuple[int, int]]) -> LocalAccesses:
    sizes: Mapping[int, list[int]] = {LOAD_LOCAL: [], STORE_LOCAL: []}
    for low, high in words:
        if low & 0xFFF in sizes:
            sizes[low & 0xFFF].append(WIDTHS.get(high >> 9 & 7, 4))
    loads, stores = sizes[LOAD_LOCAL], sizes[STORE_LOCAL]
    return LocalAccesses(len(loads), len(stores), sum(loads), sum(stores))
