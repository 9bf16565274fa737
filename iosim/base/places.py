"""Where iosim may keep files of its own between runs: the user's cache directory, another that is named, or nowhere."""

from __future__ import annotations

import os
from pathlib import Path

CACHE = "IOSIM_CACHE"
"""The environment variable that names a directory in place of the user's, or says `OFF`."""
OFF = ("off", "0", "no", "false")


def cache_dir() -> Path | None:
    """The directory of iosim's cache, which need not exist; None where it is switched off or there is no home.

    It is $IOSIM_CACHE, else $XDG_CACHE_HOME/iosim, else ~/.cache/iosim. A relative XDG_CACHE_HOME is ignored, as the
    XDG specification asks.
    """
    named = os.environ.get(CACHE, "").strip()
    if named:
        return None if named.lower() in OFF else Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base and os.path.isabs(base):
        return Path(base, "iosim")
    try:
        return Path.home() / ".cache" / "iosim"
    except RuntimeError:
        return None


PROFILES = "IOSIM_PROFILES"
"""The variable that names the directory of a user's own profiles."""


def profiles_dir() -> Path | None:
    """The directory of the user's own hardware profiles, which need not exist; None where there is no home.

    It is $IOSIM_PROFILES, else $XDG_DATA_HOME/iosim/profiles, else ~/.local/share/iosim/profiles.
    """
    named = os.environ.get(PROFILES, "").strip()
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_DATA_HOME", "")
    if base and os.path.isabs(base):
        return Path(base, "iosim", "profiles")
    try:
        return Path.home() / ".local" / "share" / "iosim" / "profiles"
    except RuntimeError:
        return None
