"""Which layers are of which kind, by the keys that say it (`patterns.toml`): a word a layer.

Each row of the table names a key and one of the readers below; no reader knows a key. A value that a reader cannot
make sense of is refused in one line, never passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from iosim.base.errors import InputError
from iosim.base.schema import one_line
from iosim.integrations.models.reading import Reading, at, model_data

PATTERNS = model_data("patterns.toml")
WORDS: Mapping[str, list[str]] = PATTERNS["words"]
SHOWN = 8
"""Words that a refusal names."""
Row = Mapping[str, Any]
Reader = Callable[[Reading, Row, Any, int], list[str] | None]
"""From a row, the value of its key and the number of layers to a word a layer; None where the row is not for such a
value."""


def wrong(read: Reading, row: Row, value: Any, accepted: str) -> InputError:
    """The refusal of a value that its reader cannot make sense of."""
    return read.refused(
        f": {row['key']} {one_line(str(value), 60)} is not read; accepted: {accepted}"
    )


def words(read: Reading, row: Row, value: Any, layers: int) -> list[str] | None:
    """A list of words, one a layer, or again and again."""
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value) or not value:
        raise read.refused(f": {row['key']} is no list of words; accepted: one word a layer")
    return [row.get("words", {}).get(word, word) for word in _full(read, row, value, layers)]


def letters(read: Reading, row: Row, value: Any, layers: int) -> list[str] | None:
    """A string with a letter a layer."""
    if not isinstance(value, str):
        return None
    marks = [letter for letter in value if letter not in "|, "]
    strange = next((letter for letter in marks if letter not in row["words"]), None)
    if strange is not None or not marks:
        raise wrong(read, row, value, f"letters of {' '.join(row['words'])}")
    return [row["words"][letter] for letter in _full(read, row, marks, layers)]


def numbers(read: Reading, row: Row, value: Any, layers: int) -> list[str] | None:
    """A list with a number a layer."""
    if not isinstance(value, list) or not value:
        return None
    texts = [
        str(int(number)) if isinstance(number, bool | int) else str(number) for number in value
    ]
    if row["key"] == "compress_ratios" and any(isinstance(number, bool) for number in value):
        texts = ["true"]
    if any(number not in row["words"] for number in texts):
        raise read.refused(f": {row['key']} holds others; accepted: {', '.join(row['words'])}")
    return [row["words"][number] for number in _full(read, row, texts, layers)]


def places(read: Reading, row: Row, value: Any, layers: int) -> list[str] | None:
    """A list of the layers that are of one kind; all others are of the other."""
    if not isinstance(value, list) or not all(
        isinstance(n, int) and not isinstance(n, bool) for n in value
    ):
        raise wrong(read, row, value, "a list of layers")
    first = row.get("first", 0)
    inside = {n - first for n in value}
    if inside and not 0 <= min(inside) <= max(inside) < layers:
        raise wrong(read, row, value, f"layers {first} to {layers - 1 + first}")
    return [row["inside"] if n in inside else row["outside"] for n in range(layers)]


def listed(read: Reading, row: Row, value: Any, layers: int) -> list[str] | None:
    """A list as a text: "4,5,6"."""
    if isinstance(value, str) and value.strip():
        parts = value.split(",")
        if not all(part.strip().isdecimal() for part in parts):
            raise wrong(read, row, value, "layers with commas between them")
        value = [int(part) for part in parts]
    return places(read, row, value, layers) if isinstance(value, list) else None


def every(read: Reading, row: Row, value: Any, layers: int) -> list[str] | None:
    """The last of each so many layers."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        return None
    return [row["outside"] if (n + 1) % value else row["inside"] for n in range(layers)]


def period(read: Reading, row: Row, value: Any, layers: int) -> list[str] | None:
    """One of each so many layers, the first where no offset is said."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        return None
    offset = read.number(row["offset"]) if "offset" in row else 0
    return [row["inside"] if n % value == offset % value else row["outside"] for n in range(layers)]


def first(read: Reading, row: Row, value: Any, layers: int) -> list[str] | None:
    """The first so many layers."""
    if isinstance(value, list) and value:  # ERNIE 4.5 VL has a number for text and one for images
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    if value < 0:  # ERNIE 4.5 counts its last layer with experts from the end
        return first(read, row, layers + value, layers) if "more" in row else None
    count = value + row.get("more", 0)
    return [row["inside"] if n < count else row["outside"] for n in range(layers)]


def last(read: Reading, row: Row, value: Any, layers: int) -> list[str] | None:
    """The last so many layers."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return [row["inside"] if n >= layers - value else row["outside"] for n in range(layers)]


def sources(read: Reading, row: Row, value: Any, layers: int) -> list[str] | None:
    """A list of the layer that each takes something from, itself or one before."""
    if not isinstance(value, list) or not all(isinstance(n, int) for n in value):
        raise wrong(read, row, value, "a layer a layer")
    return [
        row["inside"] if n != source else row["outside"]
        for n, source in enumerate(_full(read, row, value, layers))
    ]


def groups(read: Reading, row: Row, value: Any, layers: int) -> list[str] | None:
    """Lists of layers, the others of which take something from the first."""
    if not isinstance(value, list) or not all(isinstance(some, list) and some for some in value):
        raise wrong(read, row, value, "lists of layers")
    later = {n for some in value for n in some[1:]}
    return [row["inside"] if n in later else row["outside"] for n in range(layers)]


def indexed(read: Reading, row: Row, value: Any, layers: int) -> list[str] | None:
    """The first few layers, and then the last of each so many, pick tokens; all others use what those picked."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        return None
    skipped = read.get("index_skip_topk_offset")
    # The first layers pick by themselves, and so does each layer that ends a round after them.
    offset = skipped if isinstance(skipped, int) else 2
    return [
        row["inside"] if max(n - offset + 1, 0) % value else row["outside"] for n in range(layers)
    ]


def spread(read: Reading, row: Row, value: Any, layers: int) -> list[str] | None:
    """GPT-Neo's words with how often each list of them stands there."""
    try:
        spelled_out = [word for some, times in value for _ in range(times) for word in some]
    except (TypeError, ValueError):
        raise read.refused(f": {row['key']} is no list of [words, times]") from None
    return words(read, row, spelled_out, layers)


def blocks(read: Reading, row: Row, value: Any, layers: int) -> list[str] | None:
    """Nemotron-NAS: a table a layer, whose attention may be left out, or be a matrix."""
    if not isinstance(value, list) or not all(isinstance(block, Mapping) for block in value):
        raise wrong(read, row, value, "a table a layer")
    block_words = [
        "full_attention" if _attends(block.get("attention")) else "skipped" for block in value
    ]
    return _full(read, row, block_words, layers)


def _attends(attention: Any) -> bool:
    table_of_attention = attention if isinstance(attention, Mapping) else {}
    return not (table_of_attention.get("no_op") or table_of_attention.get("replace_with_linear"))


def zamba(read: Reading, row: Row, value: Any, layers: int) -> list[str] | None:
    """Zamba's class: its first two hybrid layers stand where no period would put them."""
    offset = read.number("attn_layer_offset")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        return None
    # The two hybrid layers that its class puts first are no multiples of the period.
    head = ["mamba", "mamba", "hybrid"]
    return head[:layers] + [
        "hybrid" if n % value == offset else "mamba" for n in range(len(head), layers)
    ]


def plamo(read: Reading, row: Row, value: Any, layers: int) -> list[str] | None:
    """PLaMo 2: Mamba in all but the middle of each so many layers."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 2:
        return None
    # The middle of a round attends; a model shorter than that has its attention last.
    half = value // 2
    if layers <= half:
        return ["mamba"] * (layers - 1) + ["full_attention"]
    return ["full_attention" if n % value == half else "mamba" for n in range(layers)]


READERS: Mapping[str, Reader] = {
    rule.__name__: rule
    for rule in (
        words,
        letters,
        numbers,
        places,
        listed,
        every,
        period,
        first,
        last,
        sources,
        groups,
        indexed,
        spread,
        blocks,
        zamba,
        plamo,
    )
}


TAKEN = {
    **dict.fromkeys(("every", "period", "first", "last", "indexed", "zamba"), "a whole number"),
    "plamo": "a whole number of at least 2",
    "numbers": "a number a layer",
    "letters": "a letter a layer",
}
"""Reader -> the values that it takes."""


def _full(read: Reading, row: Row, value: list[Any], layers: int) -> list[Any]:
    """A value a layer of a list that has as many, more, or one round of several."""
    if row.get("cycled"):
        return [value[n % len(value)] for n in range(layers)]
    if len(value) < layers:
        raise read.refused(f" contradicts itself: {len(value)} {row['key']} for {layers} layers")
    return value[:layers]


def rows(read: Reading, group: str) -> list[Row]:
    """The rows of a table whose key the config has, and that are for such models."""
    # A row is meant for some types of models, or for those that have another key beside it.
    matching = []
    for row in PATTERNS[group]:
        value = at(read.config, row["key"])
        if value is None or value == []:
            continue
        fits = not ("types" in row and read.type not in row["types"]) and not (
            "with" in row and not _has(read, row)
        )
        if fits:
            matching.append(row)
    return matching


def _has(read: Reading, row: Row) -> bool:
    key = row["with"]
    return read.flag(key) if key.startswith("use_") else bool(read.get(key))


def mixer_words(read: Reading, layers: int) -> list[str] | None:
    """What each layer mixes its tokens with, by the first key that says it; None where none does. A list of places
    that is empty says nothing."""
    said = told(read, rows(read, "mixer"), layers, one=True)
    return said[0][1] if said else None


def told(
    read: Reading, some: list[Row], layers: int, *, one: bool = False
) -> list[tuple[Row, list[str]]]:
    """(row, a word a layer) of the rows whose keys say something; of the first of them alone where `one` is enough.
    Raises InputError: a value that no reader of its key takes."""
    answers: list[tuple[Row, list[str]]] = []
    strange: dict[str, Row] = {}
    # All keys are looked up, so that each counts as read.
    for row in some:
        value = read.get(row["key"])
        if one and answers:
            continue
        layer_words = READERS[row["reader"]](read, row, value, layers)
        if layer_words is not None:
            answers.append((row, layer_words))
        elif value:  # 0, false and what is empty say that there is nothing of the kind
            strange[row["key"]] = row
    for key, row in strange.items():
        value = at(read.config, key)
        if not _is_taken(read, key, value, layers):
            raise wrong(read, row, value, TAKEN.get(row["reader"], "a list of layers"))
    return answers


def _is_taken(read: Reading, key: str, value: Any, layers: int) -> bool:
    """True where some reader of a key takes a value, if in other models or beside other keys."""
    named = (row for group in ("mixer", "feed", "shared") for row in PATTERNS[group])
    return any(
        READERS[row["reader"]](read, row, value, layers) is not None
        for row in named
        if row["key"] == key
    )


def layer_count(read: Reading) -> int | None:
    """How many layers a list or a text with one entry a layer says there are; None where there is none."""
    for row in rows(read, "mixer"):
        value = read.get(row["key"])
        if row["reader"] in ("words", "letters", "numbers", "blocks") and not row.get("cycled"):
            if isinstance(value, str) and row["reader"] == "letters":
                return sum(letter in row["words"] for letter in value)
            return len(value) if isinstance(value, list) else None
    return None


def meaning(read: Reading, word: str) -> list[str]:
    """The mixers that a layer with a word has. Raises InputError: a word that is not known."""
    family_words = PATTERNS["families"].get(read.type, {})
    if word in family_words:
        return list(family_words[word])
    if word not in WORDS:
        hint = f"accepted: {', '.join(list(WORDS)[:SHOWN])} and {len(WORDS) - SHOWN} others"
        raise read.refused(f": layer type '{one_line(word, 40)}' is not known; {hint}")
    return list(WORDS[word])
