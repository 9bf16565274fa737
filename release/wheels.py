"""Makes the source distribution and a wheel for every platform, on one machine and without the network, and checks the
compiled engine in each.

    python -m pip install -e ".[release]"
    python release/wheels.py [--out dist] [PLATFORM ...]

An engine is read as its platform's loader reads it: format, machine, oldest system, the libraries it needs, the
functions it exports. Nothing of it is run.
"""

from __future__ import annotations

import argparse
import os
import re
import struct
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from hatchling import build as hatchling

sys.path.append(str(Path(__file__).resolve().parent))

from hatch_build import TARGETS, load_build

ROOT = Path(__file__).resolve().parents[1]
ENGINE = "iosim/readers/replay/_engine.so"
FUNCTIONS = frozenset(
    f"iosim_{name}"
    for name in ("replay", "replay_recorded", "place", "access", "sample", "page_places", "sizes")
)
ELF, MACH_O, PE = "ELF", "Mach-O", "PE"
MACHINES = {
    (ELF, 62): "x86_64",
    (ELF, 183): "aarch64",
    (MACH_O, 0x1000007): "x86_64",
    (MACH_O, 0x100000C): "arm64",
    (PE, 0x8664): "amd64",
}
PLATFORMS = {
    "manylinux": (ELF, r"lib(c|m)\.so\.6"),
    "musllinux": (ELF, r"libc\.so"),
    "macosx": (MACH_O, r"/usr/lib/libSystem\.B\.dylib"),
    "win": (PE, r"KERNEL32\.dll|api-ms-win-crt-[\w-]+\.dll"),
}
"""First word of a platform's tag -> format, and the libraries that every such system has."""


@dataclass(frozen=True)
class Library:
    """What a shared library says of itself."""

    format: str
    machine: str
    system: tuple[int, int] | None
    """Oldest system that loads it, major and minor: of the GNU C library, or of macOS."""
    needs: frozenset[str]
    """Libraries that are loaded with it."""
    exports: frozenset[str]
    signed: bool = False
    """Whether there is a code signature, without which Apple's own processors run nothing."""


def read(data: bytes) -> Library:
    """A shared library of 64 bits. Raises ValueError: it is none, or is cut off."""
    for magic, reader in ((b"\x7fELF\x02\x01", _elf), (b"\xcf\xfa\xed\xfe", _mach_o), (b"MZ", _pe)):
        if data.startswith(magic):
            try:
                return reader(data)
            except (struct.error, IndexError, KeyError) as error:
                raise ValueError(f"no whole library: {error!r}") from None
    raise ValueError(f"no library of 64 bits: it begins with {data[:6].hex()}")


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("ascii")


def _elf(data: bytes) -> Library:
    """By its sections: dynamic symbols (type 11), whose strings name versions, and dynamic entries (6)."""
    (machine,) = struct.unpack_from("<H", data, 18)
    (sections_at,), (count,) = (
        struct.unpack_from("<Q", data, 40),
        struct.unpack_from("<H", data, 60),
    )
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, sections_at + 64 * n) for n in range(count)]
    exports = set()
    needs = set()
    versions = [(0, 0)]
    for _, kind, _, _, at, size, link, *_ in headers:
        names = headers[link][4]
        if kind == 11:
            for symbol in range(at, at + size, 24):
                name, _, _, section = struct.unpack_from("<IBBH", data, symbol)
                exports |= {_text(data, names + name)} if section else set()
            strings = data[names : names + headers[link][5]]
            versions += [(int(a), int(b)) for a, b in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", strings)]
        if kind == 6:
            entries = struct.iter_unpack("<qQ", data[at : at + size])
            needs |= {_text(data, names + value) for tag, value in entries if tag == 1}
    return Library(ELF, MACHINES[ELF, machine], max(versions), frozenset(needs), frozenset(exports))


def _mach_o(data: bytes) -> Library:
    """By its load commands: symbols (2), libraries (0xc), code signature (0x1d), system (0x32)."""
    machine, _, _, count = struct.unpack_from("<4I", data, 4)
    exports, needs, system, signed, at = set(), set(), None, False, 32
    for _ in range(count):
        command, size = struct.unpack_from("<2I", data, at)
        if command == 2:
            symbols, number, strings = struct.unpack_from("<3I", data, at + 8)
            for symbol in range(symbols, symbols + 16 * number, 16):
                name, kind = struct.unpack_from("<IB", data, symbol)
                exports |= (
                    {_text(data, strings + name).removeprefix("_")}
                    if kind & 0x0F == 0x0F
                    else set()
                )
        elif command == 0xC:
            needs.add(_text(data, at + struct.unpack_from("<I", data, at + 8)[0]))
        elif command == 0x32:
            (oldest,) = struct.unpack_from("<I", data, at + 12)
            system = oldest >> 16, oldest >> 8 & 0xFF
        signed |= command == 0x1D
        at += size
    return Library(
        MACH_O, MACHINES[MACH_O, machine], system, frozenset(needs), frozenset(exports), signed
    )


def _pe(data: bytes) -> Library:
    """By its data directories: exports (the first) and imports."""
    (header,) = struct.unpack_from("<I", data, 60)
    if data[header : header + 4] != b"PE\0\0":
        raise ValueError("no library for Windows: it has no PE header")
    machine, count = struct.unpack_from("<2H", data, header + 4)
    (optional,) = struct.unpack_from("<H", data, header + 20)
    sections = [
        struct.unpack_from("<4I", data, header + 24 + optional + 40 * n + 8) for n in range(count)
    ]

    def where(address: int) -> int:
        """Place in the file of an address in memory."""
        for _, begin, size, at in sections:
            if begin <= address < begin + size:
                return at + address - begin
        raise IndexError(address)

    exported, _, imported, _ = struct.unpack_from("<4I", data, header + 24 + 112)
    (number,), (names,) = (struct.unpack_from("<I", data, where(exported) + at) for at in (24, 32))
    named = struct.unpack_from(f"<{number}I", data, where(names))
    needs, at = set(), where(imported)
    while library := struct.unpack_from("<5I", data, at)[3]:
        needs.add(_text(data, where(library)))
        at += 20
    exports = frozenset(_text(data, where(name)) for name in named)
    return Library(PE, MACHINES[PE, machine], None, frozenset(needs), exports)


def misfits(platform: str, library: Library) -> list[str]:
    """Why a library cannot be in a wheel for `platform`, a tag without its Python; empty where it can."""
    word, *version = re.findall(r"^[a-z]+|(?<=_)\d+(?=_)", platform)
    form, system = PLATFORMS[word]
    faults = []
    if library.format != form:
        faults.append(f"it is {library.format}, not {form}")
    if not platform.endswith(f"_{library.machine}"):
        faults.append(f"it is for {library.machine}")
    oldest = tuple(map(int, version[:2]))
    newest = library.system or (0, 0)
    if word != "win" and newest > (oldest if word != "musllinux" else (0, 0)):
        faults.append(f"it needs version {newest[0]}.{newest[1]} of the system")
    faults += [
        f"it needs {name}" for name in sorted(library.needs) if not re.fullmatch(system, name)
    ]
    if not library.needs:
        faults.append("it needs no library, so it has a C library of its own")
    faults += [f"it does not export {name}" for name in sorted(FUNCTIONS - library.exports)]
    if platform.endswith("_arm64") and not library.signed:
        faults.append("it has no code signature")
    return faults


def check(wheel: Path) -> Library:
    """The engine in a wheel. Raises ValueError: it is not of these sources, or does not fit the wheel's tag."""
    platform = wheel.stem.split("-")[-1]
    with zipfile.ZipFile(wheel) as archive:
        if archive.namelist().count(ENGINE) != 1:
            raise ValueError(f"{wheel.name} has no engine")
        data = archive.read(ENGINE)
    if load_build(str(ROOT)).mark() not in data:
        raise ValueError(f"{wheel.name}: its engine is of other sources")
    library = read(data)
    if faults := misfits(platform, library):
        raise ValueError(f"{wheel.name}: the engine does not fit: {'; '.join(faults)}")
    return library


def make(platform: str, out: Path) -> Path:
    """A platform's wheel, in the folder `out`. Raises RuntimeError: its engine was not compiled."""
    os.environ["IOSIM_WHEEL"] = platform
    return out / hatchling.build_wheel(str(out))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make a wheel for every platform, and check each.")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder (default: dist)")
    parser.add_argument(
        "platforms", nargs="*", metavar="PLATFORM", help=f"of {', '.join(TARGETS)} (default: all)"
    )
    args = parser.parse_args(arguments)
    if unknown := sorted({*args.platforms} - {*TARGETS}):
        parser.error(f"no platform: {', '.join(unknown)}; accepted: {', '.join(TARGETS)}")
    try:
        out = args.out.absolute()
        os.chdir(ROOT)
        print(hatchling.build_sdist(str(out)))
        for platform in args.platforms or TARGETS:
            wheel = make(platform, out)
            library = check(wheel)
            system = (
                "" if library.system in (None, (0, 0)) else "{}.{} or later".format(*library.system)
            )
            print(
                f"{wheel.name}  {wheel.stat().st_size:,} bytes  {library.format} {library.machine} {system}".rstrip()
            )
    except (RuntimeError, ValueError) as error:
        print(f"release/wheels.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
