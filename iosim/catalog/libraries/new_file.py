"""A new kernel file, commented, that says of a kernel all that the catalog says: the predictions are the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from iosim.base.errors import InputError
from iosim.base.schema import toml_text
from iosim.catalog.libraries.catalog_file import (
    FILE,
    KERNEL,
    MEANINGS,
    NAME,
    ROW,
    TABLES,
    Key,
    problems,
)
from iosim.catalog.libraries.loader import OWN_NAMES, entry, entry_names

LEFT_OUT = (*OWN_NAMES, "like", "before")
"""What is another file's own, or has been taken over already."""
PROOF = ("source", "inferred", "assumed")
FIRST = ("schema", "name", "title", "algorithm", "rules", "any_tile", "builds", "example", *PROOF)
COMMENT_COLUMN, LINE = 34, 120


def new_file(base: str, name: str | None = None) -> str:
    """The text of a kernel file like that of `base`, under another name ("my-" and the base's without one). Raises
    InputError: no such kernel, or a name that is none or the catalog's."""
    data = {key: value for key, value in entry(base).items() if key not in LEFT_OUT}
    data["name"] = name if name is not None else f"my-{data['name']}"
    return file_text(data, f"Made of {base}. Change what differs;")


def file_text(data: Mapping[str, Any], origin: str) -> str:
    """The text of a kernel file that says `data`, and first its `origin`. Raises InputError: a name that is none
    or the catalog's."""
    if data["name"] in entry_names():
        raise InputError(
            f"`name` '{data['name']}' is the catalog's; a kernel of your own needs another"
        )
    wrong = problems(data)
    if wrong:
        raise InputError(
            f"`name` '{data['name']}' {wrong[0].reason}; accepted: small letters, digits and -, as {NAME}"
        )
    heading = [
        f"# {origin} `iosim kernels check FILE` says what is wrong, and `--kernel FILE`",
        "# takes it wherever a kernel is taken. Lines that begin with # and a key say what could be stated, too.",
    ]
    lines = [*heading, *_pairs({key: data[key] for key in FIRST if key in data}, FILE)]
    for key, value in data.items():
        if key in FIRST:
            continue
        # Comments stand beside the first row of a list alone.
        rows = value if isinstance(value, list) else [value]
        header = f"[[{key}]]" if isinstance(value, list) else f"[{key}]"
        lines += ["", f"# {TABLES[key].means}"]
        for n, row in enumerate(rows):
            lines += ([""] if n else []) + [
                header,
                *_pairs(row, MEANINGS.get(key, ROW) if n == 0 else {}),
            ]
        if key == "kernel":
            lines += _unsaid(value)
    return "\n".join(lines) + "\n"


def _pairs(values: Mapping[str, Any], keys: Mapping[str, Key]) -> Iterator[str]:
    for key, value in values.items():
        yield from _commented(f"{key} = {toml_text(value)}", keys[key].means if key in keys else "")


def _commented(text: str, meaning: str) -> Iterator[str]:
    """A line with its comment beside it, or above it where both are too long for one line."""
    beside = f"{text:<{COMMENT_COLUMN}}  # {meaning}"
    if meaning and len(beside) > LINE:
        yield f"# {meaning[0].upper()}{meaning[1:]}."
    yield beside if meaning and len(beside) <= LINE else text


def _unsaid(kernel: Mapping[str, Any]) -> Iterator[str]:
    """The keys of [kernel] that the file does not state, each behind a #, with what holds without it."""
    yield "# Not stated:"
    for name, key in KERNEL.items():
        if name not in kernel and name != "options":
            yield from _commented(f"# {name} = {key.unsaid}", key.means)
