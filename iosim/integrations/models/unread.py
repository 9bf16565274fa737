"""What was not read of a config, and must be said before any number: a type that is not known, and keys that name
layers, blocks, a pattern, a mixer or a kind of attention (`spellings.toml` has the words)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from iosim.base.schema import one_line
from iosim.integrations.models.causal import headless, is_crossed, letters
from iosim.integrations.models.patterns import PATTERNS
from iosim.integrations.models.reading import FAMILIES, SIZES, SPELLINGS, Reading, class_defaults

BOUNDS = ("window", "chunk")
SAME = 4
"""Letters that a class's name has in common with its type's."""
DRAFT = re.compile(r"(eagle|medusa|mtp|nextn|dflash|draft)[0-9]*(model|forcausallm)?$")
"""Ends of classes that guess tokens for another model."""
SWITCHED = ("swa", "sliding")
"""Words of keys that switch windows off where they are false."""
MOST = 4
"""Keys that are named; the others are counted."""


def caveats_of(
    read: Reading, *, nested: bool, causal: bool, outside: Sequence[str] = ()
) -> list[str]:
    """What is not known of a config, a clause each; `outside` are keys beside its text that nothing read."""
    clauses = []
    if not read.said_type and not nested:
        seen = "a decoder" if causal else "an encoder"
        clauses.append(f"no model_type, read by its keys alone as {seen}")
    if read.said_type and not is_known(read):
        clauses.append(
            f"model_type {one_line(read.said_type, 40)} is not known here, read by its keys alone"
        )
    strange = None if nested else built_otherwise(read)
    if strange is not None:
        clauses.append(
            f"architectures {one_line(strange, 40)} is no class of {one_line(read.said_type, 40)} that is "
            "known here, read by its keys alone"
        )
    if causal and is_crossed(read):
        clauses.append("its layers attend to an encoder's output, too, which is not counted")
    silent = None if nested or not causal else headless(read)
    if silent is not None:
        clauses.append(
            f"{one_line(silent, 40)} writes no tokens; counted as if its table were a head"
        )
    unread_keys = [*unread(read), *outside]
    if unread_keys:
        more = f" and {len(unread_keys) - MOST} more" if len(unread_keys) > MOST else ""
        clauses.append(
            f"not read: {', '.join(one_line(key, 40) for key in unread_keys[:MOST])}{more}"
        )
    return clauses


def built_otherwise(read: Reading) -> str | None:
    """The class that a config of one of transformers' types is built by, where it is none of that type: a draft of
    another model (EAGLE), or a model of its own that took a type's name (OmniGen, Chronos 2)."""
    known, built = class_defaults(), read.config.get("architectures")
    if isinstance(built, str):
        built = [built]
    if not isinstance(built, list) or not any(
        read.said_type in known[some] for some in ("types", "whole")
    ):
        return None
    # Classes begin as their type does; some types have another's.
    begins = FAMILIES["built"].get(read.said_type, letters(read.said_type)[:SAME])
    for name in (name for name in built if isinstance(name, str)):
        spelt = letters(name)
        if not spelt.startswith(begins) or DRAFT.search(spelt):
            return name
    return None


def outside_keys(config: Mapping[str, Any], name: str) -> list[str]:
    """Keys beside a model's text that name its layers and that nothing reads, of models whose classes are not known."""
    outer = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    read = Reading(outer, name)
    if read.said_type in class_defaults()["whole"]:
        return []
    return list(unread(read))


def is_known(read: Reading) -> bool:
    """True where a model_type is one whose classes' keys are known."""
    known = class_defaults()
    remote = FAMILIES["remote"]
    lists = (
        known["types"],
        known["whole"],
        remote["decoders"],
        remote["encoders"],
        FAMILIES["without"]["types"],
    )
    return any(
        type_name in some
        for some in lists
        for type_name in (read.type, read.said_type, read.said_type.lower())
    )


def unread(read: Reading) -> Iterator[str]:
    """Keys that name layers or a kind of attention, say something, and were not looked up."""
    naming = SPELLINGS["naming"]
    looked_up = {
        row["key"].partition(".")[0]
        for group in ("mixer", "feed", "shared")
        for row in PATTERNS[group]
    }
    looked_up |= {row[key] for row in PATTERNS["mixer"] for key in ("offset",) if key in row}
    # Windows and chunks are sizes that a model without such layers has not been asked for.
    bounds = [name for size in BOUNDS for name in SIZES[size]]
    sizes = {size: names for size, names in SIZES.items() if size not in BOUNDS}
    looked_up |= {name.partition(".")[0] for names in sizes.values() for name in names}
    names = [name for group in SIZES.values() for name in group]
    names += [row["key"] for group in ("mixer", "feed", "shared") for row in PATTERNS[group]]
    tables = {name.partition(".")[0] for name in names if "." in name}
    for key, value in read.config.items():
        if key in tables and _says(value) and not isinstance(value, bool | Mapping):
            yield key  # a table of sizes that is none
            continue
        low = key.lower()
        switched_off = value is False and any(word in low for word in SWITCHED)
        if key in read.seen or key in naming["known"] or not (_says(value) or switched_off):
            continue
        if key in looked_up and not isinstance(value, list | dict):
            continue
        words = naming["words"] + (naming["sized"] if _counts(value) else [])
        silent = any(word in low for word in naming["silent"]) and not any(
            word in low for word in naming["always"]
        )
        named = any(word in low for word in words) and not silent
        if (named or key in bounds) and read.defaults.get(key) != value:
            yield key


def _says(value: Any) -> bool:
    """True where a value may change which layers there are or what they see."""
    if isinstance(value, bool):
        return value
    if isinstance(value, list | dict | str):
        return bool(value)
    return value is not None and value != 0


def _counts(value: Any) -> bool:
    """True where a value may say how many experts there are, or how wide."""
    return isinstance(value, Mapping) or (type(value) is int and value > 1)


def is_part(config: Mapping[str, Any]) -> bool:
    """True where a file is a vision tower's own: it has sizes of layers and sees images."""
    return any(key in config for key in ("image_size", "patch_size", "vt_hidden_size"))
