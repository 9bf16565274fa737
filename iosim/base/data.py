"""Finds the data that iosim ships: hardware profiles, CUDA sources, the recorded measurements that commands read.

In a wheel they lie in `iosim/_data/`; in a checkout (editable install) they lie beside the package.
"""

from __future__ import annotations

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
