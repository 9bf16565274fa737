"""The compiled engine as a library: found, compiled again where its sources have changed, and opened."""

from __future__ import annotations

import ctypes as ct
import os
from functools import cache
from pathlib import Path

from iosim.base.errors import InputError
from iosim.readers.replay import build
from iosim.readers.replay.layout import LAYOUT


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
    sizes = (ct.c_int32 * len(LAYOUT.structures))()
    opened.iosim_sizes(sizes)
    if list(sizes) != [ct.sizeof(one) for one in LAYOUT.structures.values()]:
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
