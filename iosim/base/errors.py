"""The one exception that a user's mistake raises; everything else that escapes is a defect of iosim. And which known
names a misspelt one may stand for, and which names iosim does not model (scope.toml, docs/scope.md).

A message marks what a caller gave by its name in Python, in backticks: "`page_size` 48: not supported". Python's users
read the name; the command line, which alone knows options, puts the option in its place. Alike are names a slip or two
apart, a name and its beginning, and names of which one has all the words of the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

FEW_NAMES = 12
"""So many accepted names are listed beside the nearest of them."""
MARKED = re.compile(r"`([a-z][a-z0-9_]*)(?:=([^`]*))?`")


class InputError(ValueError):
    """Bad input. The message is one line that names the field, the value and what would be accepted. A marked name may
    have its value with it where an option may stand for both: "`latent_kv=True`" is --latent-kv."""

    def __init__(self, message: str) -> None:
        super().__init__(
            spelled(message, lambda name, value: name if value is None else f"{name}={value}")
        )
        self.marked = message


def spelled(message: str, spell: Callable[[str, str | None], str]) -> str:
    """A message with its marked names, and the values that stand with them, as `spell` writes them."""
    return MARKED.sub(lambda match: spell(match[1], match[2]), message)


@contextmanager
def refusing(**options: str) -> Iterator[None]:
    """Refusals of a part of what was asked for name the values of the whole."""
    try:
        yield
    except InputError as error:
        text = error.marked
        for name, value in options.items():
            text = re.sub(rf"(`{name}` '?)[^' :]+", rf"\g<1>{value}", text)
        raise type(error)(text) from None


class Terminated(BaseException):
    """The process was asked to end (SIGTERM): what it has begun is cleared away, as after Ctrl-C."""


class EngineWarning(UserWarning):
    """No replay engine is there, and what it would have found is estimated."""


def unknown_name(
    subject: str, value: str, known: Iterable[str], listed: Iterable[str] = ()
) -> InputError:
    """An `InputError` for a name that is not in `known`: names that are like it, and all of them (those in `listed`
    where it holds any) where they are few or none is like it; or why iosim has none of that name."""
    names = list(dict.fromkeys(known))
    if len(names) > FEW_NAMES:
        names.sort()
    kind = subject.strip("`")
    beyond, near = out_of_scope(kind, value), alike(value, names)
    if beyond:
        # A known name that a topic's words fit as well is nearer than the topic: what was added is no longer out.
        near = [name for name in near if out_of_scope(kind, name)]
    meant = f"{beyond};" if beyond else ""
    if near:
        meant = f"did you mean {', '.join(near)}?"
    accepted = (
        f"accepted: {', '.join(listed or names)}" if len(names) <= FEW_NAMES or not near else ""
    )
    return InputError(
        f"{subject} '{value}' is not known; {' '.join(filter(None, (meant, accepted)))}"
    )


class TooLargeError(InputError):
    """A replay that would take more memory than iosim allows itself; other methods may do."""


MOST_SLIPS = 3
LETTERS_A_SLIP = 3
SHORTEST_BEGINNING = 3


def alike(value: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Known names that are like `value`, the likest first; empty where none is."""
    letters, words = _plain(value), _words(value)
    ranked: list[tuple[float, str]] = []
    for name in dict.fromkeys(known):
        other = _plain(name)
        # A slip in three letters, three at most: `fa2` may be `fa3`, but not `ck`. A name that begins so counts as half a
        # slip nearer; one that has all the words, in any order, comes after those that are a slip away.
        slips = min(MOST_SLIPS, max(1, len(letters) // LETTERS_A_SLIP))
        away = _slips(letters, other, slips)
        begins = len(letters) >= SHORTEST_BEGINNING and other.startswith(letters)
        if away <= slips:
            ranked.append((away - begins / 2 if away else -1, name))
        elif begins or (words and _words(name) and (words < _words(name) or _words(name) < words)):
            ranked.append((MOST_SLIPS + 1, name))
    ranked.sort(key=lambda pair: pair[0])
    same = [name for away, name in ranked if away < 0]  # but for case and punctuation
    return (same or [name for _, name in ranked])[:count] if letters else []


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def _words(name: str) -> set[str]:
    return {word for word in re.split(r"[\W_]+", name.lower()) if len(word) >= SHORTEST_BEGINNING}


def _slips(a: str, b: str, limit: int) -> int:
    """Letters to put in, leave out, replace or swap with their neighbour to make `b` of `a`; `limit` + 1 for more."""
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    # Damerau's distance by rows of its table (optimal string alignment): `row` has what the first letters of `a` are
    # away from all beginnings of `b`, `before` the row above it, for two neighbours that change places.
    before, row = [0] * (len(b) + 1), list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        further = [i]
        for j, other in enumerate(b, 1):
            cost = min(row[j] + 1, further[j - 1] + 1, row[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                cost = min(cost, before[j - 2] + 1)
            further.append(cost)
        # Distances never shrink from row to row: beyond the limit everywhere, they stay so.
        if min(further) > limit:
            return limit + 1
        before, row = row, further
    return row[-1]


PAGE = "docs/scope.md"
PATTERNS = Path(__file__).with_name("scope.toml")


@cache
def topics() -> list[dict[str, str]]:
    """What is out of scope: a `title` each, patterns of the names that ask for it, by kind, and what to ask `instead`."""
    import tomllib  # a name that is known needs no reason

    patterns: list[dict[str, str]] = tomllib.loads(PATTERNS.read_text(encoding="utf-8"))["topic"]
    return patterns


def out_of_scope(kind: str, name: str) -> str:
    """A clause on why iosim has no `name` of a "GPU", "kernel", "dtype" or "option"; empty where that is not known."""
    plain = re.sub(r"[\W_]", "", name.lower())
    for topic in topics():
        if kind in topic and re.fullmatch(topic[kind], plain):
            title = topic["title"]
            title = title if title[1].isupper() else title[0].lower() + title[1:]
            instead = f": {topic['instead']}" if "instead" in topic else ""
            return f"out of scope: {title} ({PAGE}){instead}"
    return ""
