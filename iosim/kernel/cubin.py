"""What a compiled kernel takes, read from its file: registers and stack frame. A cubin is an ELF file; no tool of CUDA
is needed.

    report = read_cubin(Path("kernel.cubin").read_bytes())["flash_fwd"]
    report.registers, report.frame_bytes

Attributes of `.nv.info` are those that NVIDIA's cuobjdump prints (CUDA Binary Utilities).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from iosim.base.errors import InputError
from iosim.base.records import dataclass

FORMAT_SIZED = 4
REGISTER_COUNT, FRAME_SIZE = 0x2F, 0x11
"""Attributes of `.nv.info`: each holds a symbol's number and a value."""
SYMBOL_TABLE, NO_BITS = 2, 8


@dataclass(frozen=True)
class CubinReport:
    """Of one kernel: registers and bytes of the stack frame, a thread."""

    registers: int
    frame_bytes: int


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    data: bytes
    link: int


def read_cubin(data: bytes) -> dict[str, CubinReport]:
    """The kernels of a cubin, by name. Raises InputError: this is no cubin."""
    try:
        return dict(_reports(data))
    except (struct.error, ValueError, IndexError, KeyError) as error:
        raise InputError(f"the compiled kernel is no cubin that can be read: {error}") from None


def _reports(data: bytes) -> Iterator[tuple[str, CubinReport]]:
    if data[:4] != b"\x7fELF":
        raise ValueError("it does not begin as an ELF file")
    sections = _sections(data)
    by_name, names = {s.name: s for s in sections}, _symbols(sections)
    registers, frames = (
        _attributes(by_name[".nv.info"].data, attribute, names) for attribute in (REGISTER_COUNT, FRAME_SIZE)
    )
    for name, count in registers.items():
        if f".text.{name}" in by_name:
            yield name, CubinReport(count, frames.get(name, 0))


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
