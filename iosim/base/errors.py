"""The one exception that a user's mistake raises; everything else that escapes is a defect of iosim."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Bad input. The message is one line that names the option, the value and what would be accepted."""


class EngineWarning(UserWarning):
    """No replay engine is there, and what it would have found is estimated."""


def unknown_name(what: str, value: str, known: Iterable[str]) -> InputError:
    """An `InputError` for a name that is not in `known`, with the nearest known names first."""
    names = sorted(known)
    near = get_close_matches(value.lower(), names, n=3, cutoff=0.5)
    if near:
        return InputError(f"{what} '{value}' is not known; did you mean {', '.join(near)}?")
    return InputError(f"{what} '{value}' is not known; accepted: {', '.join(names)}")


class TooLargeError(InputError):
    """A replay that would take more memory than iosim allows itself; other methods may do."""
