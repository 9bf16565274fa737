"""The one exception that a user's mistake raises; everything else that escapes is a defect of iosim.

A message marks what a caller gave by its name in Python, in backticks: "`page_size` 48: not supported". Python's users
read the name; the command line, which alone knows options, puts the option in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from iosim.base.names import alike, out_of_scope

FEW_NAMES = 12
"""So many accepted names are listed beside the nearest of them."""
MARKED = re.compile(r"`([a-z][a-z0-9_]*)(?:=([^`]*))?`")


class InputError(ValueError):
    """Bad input. The message is one line that names the field, the value and what would be accepted. A marked name may
    have its value with it where an option may stand for both: "`latent_kv=True`" is --latent-kv."""

    def __init__(self, message: str) -> None:
        super().__init__(spelled(message, lambda name, value: name if value is None else f"{name}={value}"))
        self.marked = message


def spelled(message: str, spell: Callable[[str, str | None], str]) -> str:
    """A message with its marked names, and the values that stand with them, as `spell` writes them."""
    return MARKED.sub(lambda match: spell(match[1], match[2]), message)


@contextmanager
def refusing(**asked: str) -> Iterator[None]:
    """Refusals of a part of what was asked for name the values of the whole."""
    try:
        yield
    except InputError as error:
        text = error.marked
        for name, value in asked.items():
            text = re.sub(rf"(`{name}` '?)[^' :]+", rf"\g<1>{value}", text)
        raise type(error)(text) from None


class EngineWarning(UserWarning):
    """No replay engine is there, and what it would have found is estimated."""


def unknown_name(what: str, value: str, known: Iterable[str], shown: Iterable[str] = ()) -> InputError:
    """An `InputError` for a name that is not in `known`: those that are like it, and all (those in `shown`, where there
    are some) where they are few or none is like it; or why iosim has none of that name."""
    names = list(dict.fromkeys(known))
    if len(names) > FEW_NAMES:
        names.sort()
    beyond = out_of_scope(what.strip("`"), value)
    near = [] if beyond else alike(value, names)
    meant = f"did you mean {', '.join(near)}?" if near else f"{beyond};" if beyond else ""
    accepted = f"accepted: {', '.join(shown or names)}" if len(names) <= FEW_NAMES or not near else ""
    return InputError(f"{what} '{value}' is not known; {' '.join(filter(None, (meant, accepted)))}")


class TooLargeError(InputError):
    """A replay that would take more memory than iosim allows itself; other methods may do."""
