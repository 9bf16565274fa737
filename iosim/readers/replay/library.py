"""The compiled engine as a library: found, compiled again where its sources have changed, and opened; its structures,
read from the C header that defines them (shared.h).

They stand in the header alone: nothing here knows a field's name. The header's grammar is small, and what is not of it
is refused.
"""

from __future__ import annotations

import ctypes as ct
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from iosim.base.errors import InputError
from iosim.readers.replay import build

HEADER = Path(__file__).with_name("shared.h")
INTEGERS: dict[str, type[Any]] = {
    "int32_t": ct.c_int32,
    "int64_t": ct.c_int64,
    "uint8_t": ct.c_uint8,
    "uint16_t": ct.c_uint16,
    "uint32_t": ct.c_uint32,
}
_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_CONSTANT = re.compile(r"^#define (\w+) \(?(-?\d+)\)?$", re.M)
_ENUM = re.compile(r"enum \{([^}]*)\};")
_STRUCTURE = re.compile(r"typedef struct \{([^}]*)\} (\w+);")
_PREPROCESSOR = re.compile(r"^#.*$", re.M)
_DECLARATION = re.compile(r"(?:const )?(\w+) (.+)", re.S)
_FIELD = re.compile(r"(\*?)(\w+)(?:\[([\w+ ]+)\])?")


class Layout:
    """Attributes:
    structures: by name, in the header's order.
    constants: integers by name, of macros and enums.
    """

    def __init__(self, text: str, pointer: Any = ct.c_void_p) -> None:
        """Read the text of a header, for a machine of such pointers. Raises ValueError: it holds what is not understood
        here."""
        # Comments out, then constants, enums and structures by their patterns; what is then left over
        # is refused, so that no field is misread in silence.
        plain = "\n".join(line.rstrip() for line in _COMMENT.sub("", text).splitlines())
        self.constants = {name: int(value) for name, value in _CONSTANT.findall(plain)}
        for body in _ENUM.findall(plain):
            for entry in body.split(","):
                name, _, value = entry.partition("=")
                self.constants[name.strip()] = int(value)
        self.structures: dict[str, type[ct.Structure]] = {}
        self._pointer = pointer
        for body, name in _STRUCTURE.findall(plain):
            declarations = (" ".join(line.split()) for line in body.split(";") if line.strip())
            fields = [field for declaration in declarations for field in self._fields(declaration)]
            self.structures[name] = type(name, (ct.Structure,), {"_fields_": fields})
        rest = _PREPROCESSOR.sub("", _STRUCTURE.sub("", _ENUM.sub("", plain)))
        if rest.strip():
            raise ValueError(f"not understood: {' '.join(rest.split())}")

    def _fields(self, declaration: str) -> list[tuple[str, Any]]:
        """Names and types of `int32_t a, *b, c[N + 1]`."""
        whole = _DECLARATION.fullmatch(declaration)
        if whole is None:
            raise ValueError(f"not understood: {declaration}")
        kind: Any = INTEGERS.get(whole[1]) or self.structures.get(whole[1])
        fields = []
        for part in whole[2].split(","):
            field = _FIELD.fullmatch(part.strip())
            if field is None or (kind is None and not field[1]):
                raise ValueError(f"not understood: {declaration}")
            kind_of_field = self._pointer if field[1] else kind
            fields.append(
                (field[2], kind_of_field * self._length(field[3]) if field[3] else kind_of_field)
            )
        return fields

    def _length(self, text: str) -> int:
        terms = [term.strip() for term in text.split("+")]
        return sum(int(term) if term.isdigit() else self.constants[term] for term in terms)


LAYOUT = Layout(HEADER.read_text(encoding="utf-8"))


class EngineMissing(InputError):
    """There is no engine to replay with."""


def library() -> ct.CDLL:
    """The compiled engine. Raises EngineMissing: there is none of this version, and none could be compiled."""
    opened = _open()
    if isinstance(opened, str):
        raise EngineMissing(f"`method` replay: {opened}")
    return opened


def why_missing() -> str | None:
    """Why there is no engine, in a few words; None where there is one."""
    opened = _open()
    return opened if isinstance(opened, str) else None


@cache
def _open() -> ct.CDLL | str:
    named = os.environ.get("IOSIM_ENGINE")
    path = Path(named) if named else build.ENGINE
    # A named engine is used as it is or refused; the package's own is compiled anew where stale.
    if not build.is_current(path):
        if named:
            return f"{path} is no engine of this version of iosim; unset IOSIM_ENGINE"
        try:
            build.compile_engine(path)
        except build.BuildError as error:
            return f"the compiled engine is missing ({error}); reinstall iosim where there is a C compiler or a network"
    try:
        opened = ct.CDLL(str(path))
        _declare(opened)
    except (OSError, AttributeError):
        return f"{path} cannot be used on this machine; reinstall iosim"
    # The engine says how large its structures are: a compiler that pads otherwise is caught here.
    sizes = (ct.c_int32 * len(LAYOUT.structures))()
    opened.iosim_sizes(sizes)
    if list(sizes) != [ct.sizeof(structure) for structure in LAYOUT.structures.values()]:
        return f"{path} lays its structures out otherwise; reinstall iosim"
    return opened


def _declare(opened: ct.CDLL) -> None:
    pointer = ct.c_void_p
    opened.iosim_replay.restype = ct.c_int64
    opened.iosim_replay.argtypes = [pointer, pointer, pointer, ct.c_int64, *[pointer] * 4]
    opened.iosim_place.argtypes = [pointer, pointer, ct.c_int64, ct.c_int64, ct.c_int32]
    opened.iosim_access.argtypes = [pointer, pointer, ct.c_int64, *[pointer] * 3]
    opened.iosim_replay_recorded.argtypes = [*[pointer] * 5, ct.c_int32, ct.c_int32, pointer]
    opened.iosim_sample.restype = ct.c_int64
    opened.iosim_sample.argtypes = [pointer, pointer, ct.c_int64, ct.c_int64, *[pointer] * 3]
    opened.iosim_page_places.argtypes = [pointer, *[ct.c_int64] * 3, ct.c_int32, pointer]
    opened.iosim_sizes.argtypes = [pointer]
