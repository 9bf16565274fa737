"""Files appear whole or not at all: written beside their place, then moved there. What is read must be a file."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from iosim.base.errors import InputError


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write `content` to `path`; on any failure, an interrupt included, what was there before stays as it was."""
    with written_whole(path) as file:
        file.write(
            content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
        )


def is_made_by(path: str | Path, command: str) -> bool:
    """True where a page may be written over what is at `path`: nothing, an empty file, or a page of the same command
    such as "iosim report", as its head says, or in Markdown the command line that makes it again."""
    place = Path(path)
    if not place.is_file() or not place.stat().st_size:
        return True
    text = place.read_text(encoding="utf-8", errors="replace")
    return (
        f"\n{command}" if place.suffix == ".md" else f'<meta name="generator" content="{command}">'
    ) in text


def require_file(path: str | Path, where: str) -> None:
    """Refuse a pipe or a device, which may never end; a place that holds nothing is left to who opens it. Raises
    InputError: `where` begins the message. Raises OSError: the place cannot be looked at."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(f"{where} is a pipe or a device; accepted: a file")


def read_object(path: str | Path, where: str, accepted: str, max_bytes: int) -> dict[str, Any]:
    """The JSON object in a file of up to `max_bytes`. Raises InputError: there is none; `where` begins the message."""
    return json_object(read_text(path, where, accepted, max_bytes), where, accepted)


def read_text(path: str | Path, where: str, accepted: str, max_bytes: int) -> str:
    """The text in a file of up to `max_bytes` bytes. Raises InputError: there is none; `where` begins the message."""
    try:
        if os.path.isdir(path):
            raise InputError(f"{where} cannot be read: it is a directory; accepted: {accepted}")
        require_file(path, where)
        with open(path, "rb") as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise InputError(
                f"{where} is too large: more than {max_bytes:,} bytes; accepted: {accepted}"
            )
        return data.decode("utf-8-sig")
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(
            f"{where} cannot be read: it does not exist; accepted: {accepted}"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{where} is not UTF-8 text; accepted: {accepted}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{where} cannot be read: {why}; accepted: {accepted}") from None


def json_object(text: str, where: str, accepted: str) -> dict[str, Any]:
    """The object that a JSON text holds. Raises InputError: there is none; `where` begins the message."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise InputError(f"{where} is nested too deeply; accepted: {accepted}") from None
    except ValueError as error:
        raise InputError(
            f"{where} is no JSON: {' '.join(str(error).split())}; accepted: {accepted}"
        ) from None
    if not isinstance(value, dict):
        raise InputError(f"{where} holds no JSON object; accepted: {accepted}")
    return value


@contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `target` once all is written."""
    import tempfile  # nothing is written by most commands

    handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        # mkstemp makes files for their owner alone: a new file gets what `open` would have given it, one that is replaced
        # keeps its mode. The umask can be read by setting it alone.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(
            temporary, stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~umask
        )
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def written_whole(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write piece by piece, which stands at `path` once all is written; on a failure nothing changes there.
    Raises InputError: the place cannot be written."""
    if not str(path):
        raise InputError("`path` '' is no file name; a file name is needed")
    if "\0" in str(path):
        raise InputError(
            f"`path` {str(path)!r} cannot be written: embedded null byte; a file name is needed"
        )
    try:
        target = Path(os.path.realpath(path))
        mode = target.stat().st_mode if os.path.lexists(target) else stat.S_IFREG
        if stat.S_ISDIR(mode):
            raise InputError(f"`path` '{path}' is a directory; a file name is needed")
        with _replacing(target) if stat.S_ISREG(mode) else target.open("wb") as file:
            yield file
    except OSError as error:
        hint = "a file in a directory that exists and can be written is needed"
        raise InputError(f"'{path}' cannot be written: {error.strerror}; {hint}") from None


def write_together(contents: Mapping[Path, str]) -> None:
    """Write every file beside its place, then move them all; one that cannot be written leaves all as they were."""
    with ExitStack() as files:
        for path, content in contents.items():
            file = files.enter_context(written_whole(path))
            file.write(content.encode("utf-8", "backslashreplace"))
            file.flush()  # a full disk is told before anything is moved
