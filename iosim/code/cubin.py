"""What a compiled kernel takes, read from its file: registers, stack frame, shared memory, threads, and its code. A
cubin is an ELF file; no tool of CUDA is needed.

    report = read_cubin(Path("kernel.cubin").read_bytes())["flash_fwd"]
    report.registers, report.frame_bytes

Attributes of `.nv.info` are those that NVIDIA's cuobjdump prints (CUDA Binary Utilities).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from iosim.base.errors import InputError
from iosim.base.records import dataclass

ELF_MAGIC = b"\x7fELF"
FORMAT_SIZED = 4
REGISTER_COUNT, FRAME_SIZE = 0x2F, 0x11
"""Attributes of `.nv.info`: each holds a symbol's number and a value."""
MAX_THREADS, REQUIRED_THREADS = 0x05, 0x10
"""Attributes of a kernel's own `.nv.info`: three sides of a CTA."""
SYMBOL_TABLE, NO_BITS = 2, 8
CUDA_MACHINE = 190
"""ELF's number of NVIDIA's GPUs."""
FLAGS_AT, ABI_AT, MACHINE_AT = 48, 8, 18
NEW_ABI = 8
"""From this version of the file's ABI (CUDA 13) the compute capability lies one byte up in its flags."""
PTX_SECTION = ".nv_debug_ptx_txt"
RESERVED_SHARED_CC, RESERVED_SHARED_BYTES = 90, 1024
"""From cc 9.0 on a kernel's section of shared memory holds what the driver reserves as well."""


@dataclass(frozen=True)
class CubinReport:
    """What one kernel takes, and its machine code."""

    registers: int
    """Registers a thread."""
    frame_bytes: int
    """Bytes of a thread's stack frame."""
    cc: int = 0
    """Compute capability as one number, such as 90."""
    shared_memory_bytes: int = 0
    """Bytes of shared memory that are declared in the code; those given at launch come on top."""
    threads: int | None = None
    """Threads of a CTA, where the code states them or the most that it is compiled for."""
    code: bytes = b""
    """Its instructions, 16 bytes each."""


@dataclass(frozen=True)
class Section:
    """A section of an ELF file."""

    name: str
    kind: int
    data: bytes
    link: int
    size: int


def is_cubin(data: bytes) -> bool:
    """True for an ELF file of NVIDIA's GPUs."""
    if data[:4] != ELF_MAGIC or len(data) < FLAGS_AT + 4:
        return False
    (machine,) = struct.unpack_from("<H", data, MACHINE_AT)
    return int(machine) == CUDA_MACHINE


def read_cubin(data: bytes) -> dict[str, CubinReport]:
    """The kernels of a cubin, by name. Raises InputError: this is no cubin."""
    try:
        return dict(_reports(data))
    except (struct.error, ValueError, IndexError, KeyError) as error:
        raise InputError(f"the compiled kernel is no cubin that can be read: {error}") from None


def compute_capability(data: bytes) -> int:
    """For which GPUs an ELF file was compiled, as one number such as 90."""
    (flags,) = struct.unpack_from("<I", data, FLAGS_AT)
    return int(flags >> 8 & 0xFF) if data[ABI_AT] >= NEW_ABI else int(flags & 0xFF)


def _reports(data: bytes) -> Iterator[tuple[str, CubinReport]]:
    if data[:4] != ELF_MAGIC:
        raise ValueError("it does not begin as an ELF file")
    sections, cc = read_sections(data), compute_capability(data)
    by_name, names = {s.name: s for s in sections}, _symbols(sections)
    if (info := by_name.get(".nv.info")) is None:
        return  # a file that links others and has no kernel
    # Facts of all kernels stand in .nv.info, by symbol; those of one in a section of its own.
    registers, frames = (
        _attributes(info.data, attribute, names) for attribute in (REGISTER_COUNT, FRAME_SIZE)
    )
    for name, count in registers.items():
        text = by_name.get(f".text.{name}")
        if text is None:
            continue
        own_info = by_name.get(f".nv.info.{name}")
        shared = by_name.get(f".nv.shared.{name}")
        # From compute capability 9.0 on the section holds what the driver reserves as well.
        declared = shared.size if shared else 0
        if declared and cc >= RESERVED_SHARED_CC:
            declared -= RESERVED_SHARED_BYTES
        threads = _cta_threads(own_info.data) if own_info else None
        yield name, CubinReport(count, frames.get(name, 0), cc, declared, threads, text.data)


def read_sections(data: bytes) -> list[Section]:
    """The sections of an ELF file."""
    # ELF-64's header: at 40 where section headers begin, at 58 their size, their number and which of
    # them holds the names.
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQII", data, start + n * size) for n in range(count)]
    strings = headers[names][4]
    return [
        Section(
            _string(data, strings + h[0]),
            h[1],
            b"" if h[1] == NO_BITS else data[h[4] : h[4] + h[5]],
            h[6],
            h[5],
        )
        for h in headers
    ]


def embedded_text(data: bytes) -> str:
    """The PTX that a cubin carries where it was compiled with -lineinfo; empty elsewhere. Its lines are those that
    nvdisasm gives beside instructions."""
    text = next((s.data for s in read_sections(data) if s.name == PTX_SECTION), b"")
    return text.replace(b"\0", b"\n").decode("utf-8", errors="replace")


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _symbols(sections: list[Section]) -> list[str]:
    table = next(s for s in sections if s.kind == SYMBOL_TABLE)
    strings = sections[table.link].data
    return [
        _string(strings, struct.unpack_from("<I", table.data, at)[0])
        for at in range(0, len(table.data), 24)
    ]


def _sized(info: bytes) -> Iterator[tuple[int, int]]:
    """(attribute, where its values begin) of every attribute that states its size."""
    at = 0
    while at + 4 <= len(info):
        # Attributes are two bytes of form and kind with two of value, or of the value's size, which follows.
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if form == FORMAT_SIZED:
            yield attribute, at + 4
            at += size
        at += 4


def _attributes(info: bytes, wanted: int, names: list[str]) -> dict[str, int]:
    values = {}
    for attribute, at in _sized(info):
        if attribute == wanted:
            symbol, value = struct.unpack_from("<II", info, at)
            values[names[symbol]] = value
    return values


def _cta_threads(info: bytes) -> int | None:
    """Threads of a CTA as a kernel's attributes have them: those that it requires, or the most."""
    sides = {
        a: struct.unpack_from("<III", info, at)
        for a, at in _sized(info)
        if a in (MAX_THREADS, REQUIRED_THREADS)
    }
    for attribute in (REQUIRED_THREADS, MAX_THREADS):
        if attribute in sides:
            x, y, z = sides[attribute]
            return int(x * y * z)
    return None
