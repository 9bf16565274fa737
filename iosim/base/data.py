"""Finds the data that iosim ships: hardware profiles, CUDA sources, the recorded measurements that commands read; and
where iosim may keep files of its own between runs: the user's directories, others that are named, or nowhere.

In a wheel the shipped data lie in `iosim/_data/`; in a checkout (editable install) they lie beside the package.
"""

from __future__ import annotations

import os
from pathlib import Path

from iosim.base.errors import InputError

_PACKAGE = Path(__file__).resolve().parent.parent


def import_path() -> str:
    """The directory from which this iosim is imported, for processes that it starts."""
    return str(_PACKAGE.parent)


def data_dir(name: str) -> Path:
    """The directory of shipped data called `name` (`hardware_profiles`, `kernels`)."""
    for candidate in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise InputError(f"the data directory '{name}' is missing from this installation of iosim")


CACHE = "IOSIM_CACHE"
"""The environment variable that names a directory in place of the user's, or says `OFF`."""
OFF = ("off", "0", "no", "false")


def cache_dir() -> Path | None:
    """The directory of iosim's cache, which need not exist; None where it is switched off or there is no home. It is
    $IOSIM_CACHE, else $XDG_CACHE_HOME/iosim, else ~/.cache/iosim."""
    off = os.environ.get(CACHE, "").strip().lower() in OFF
    return None if off else _of_user(CACHE, "XDG_CACHE_HOME", ".cache", "iosim")


PROFILES = "IOSIM_PROFILES"
"""The variable that names the directory of a user's own profiles."""


def profiles_dir() -> Path | None:
    """The directory of the user's own hardware profiles, which need not exist; None where there is no home. It is
    $IOSIM_PROFILES, else $XDG_DATA_HOME/iosim/profiles, else ~/.local/share/iosim/profiles."""
    return _of_user(PROFILES, "XDG_DATA_HOME", ".local/share", "iosim/profiles")


def _of_user(variable: str, base: str, home_folder: str, place: str) -> Path | None:
    """The directory that a variable names, else the `place` in that of another, or in the home's usual one. A relative
    base is ignored, as the XDG specification asks."""
    if named := os.environ.get(variable, "").strip():
        return Path(named).expanduser().absolute()
    if os.path.isabs(home := os.environ.get(base, "")):
        return Path(home, place)
    try:
        return Path.home() / home_folder / place
    except RuntimeError:
        return None
