"""Numbers in matrices around a layer's mixer and MLP: what gates its norms, mixes the copies of its residual stream, or
looks n-grams up, each by the keys of the classes that build it (A.X-K2, Qwen4-Exp)."""

from __future__ import annotations

from iosim.integrations.models.reading import Reading


def around_layer(read: Reading, width: int, place: int, *, sparse: bool) -> int:
    """Numbers around one layer; `sparse` has experts behind its attention."""
    # A norm's gate goes down to a rank and up again: before attention, and before experts.
    numbers = 2 * width * read.number("gated_norm_rank") * (2 if sparse else 1)
    copies, rank = read.number("hc_count"), read.number("hc_lowrank")
    if copies and rank:  # before attention and before the MLP, each with weights of what comes back
        numbers += 2 * (2 * rank + copies) * copies * width
    if place + 1 in _looked_up(read):
        columns = read.number("ple_embed_dim")
        numbers += columns * (copies + 1) * width + _ngram_rows(read) * (columns // _tables(read))
    return numbers


def behind_layers(read: Reading, width: int) -> int:
    """Numbers behind the last layer: what makes one stream of its copies."""
    return 2 * read.number("hc_lowrank") * read.number("hc_count") * width


def _looked_up(read: Reading) -> list[int]:
    """Layers, from 1, that look n-grams up."""
    places = read.get("ple_layer_ids")
    return places if isinstance(places, list) else []


def _tables(read: Reading) -> int:
    """Tables of n-grams of a layer: some for each length from 2."""
    return max(1, (read.number("ngram_size") - 1) * read.number("heads_per_ngram"))


def _ngram_rows(read: Reading) -> int:
    """Rows of those tables: each has a prime number, next to the one that is said."""
    return _tables(read) * read.number("ngram_vocab_size_base")
