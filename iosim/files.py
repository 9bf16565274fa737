"""Files appear whole or not at all: written beside their place, then moved there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from iosim.errors import InputError


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write `content` to `path`; on any failure, an interrupt included, what was there before stays as it was.

    Raises:
        InputError: the place cannot be written.
    """
    target = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    if target.is_dir():
        raise InputError(f"--out '{path}' is a directory; a file name is needed")
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise InputError(f"--out '{path}' cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(f"--out '{path}' cannot be written: {error.strerror}") from None
        raise
