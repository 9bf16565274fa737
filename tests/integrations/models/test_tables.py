"""Numbers of the tables of a model beside those of its tokens, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iosim.integrations.models.weights import _tables

WIDTH, ROWS = 128, 1000


def read(facts: tuple[str, ...] = (), **numbers: int) -> Any:
    """What a config.json says of tables."""
    return SimpleNamespace(
        number=lambda *keys: next((numbers[key] for key in keys if key in numbers), 0),
        size_of=numbers.get,
        size=numbers.get,
        get=numbers.get,
        facts=facts,
        defaults={},
    )


@pytest.mark.parametrize(
    ("config", "numbers"),
    [
        (read(), 0),
        # of each of 4 layers a table of as many rows as there are tokens, and a projection
        (read(hidden_size_per_layer_input=16), 16 * 4 * (ROWS + WIDTH)),
        (
            read(hidden_size_per_layer_input=16, vocab_size_per_layer_input=300),
            16 * 4 * (300 + WIDTH),
        ),
        (read(altup_num_inputs=4), 2 * 3 * WIDTH**2),
        (read(altup_num_inputs=1), 0),
        (read(("learned",), positions=512), 512 * WIDTH),
        (read(positions=512), 0),
        (read(ngram_vocab_size_ratio=3), 3 * ROWS * WIDTH),
        # a table of half the columns, and the matrix that widens them
        (read(embedding_size=64), ROWS * (64 - WIDTH) + 64 * WIDTH),
        (read(embedding_size=128), 0),
        (read(embedding_size=256), 0),
        (read(word_embed_proj_dim=64), ROWS * (64 - WIDTH) + 2 * 64 * WIDTH),
    ],
)
def test_tables_by_what_is_said_of_them(config: Any, numbers: int) -> None:
    entries: Any = [SimpleNamespace(layer=SimpleNamespace(place=place)) for place in (0, 1, 3)]
    assert _tables(config, WIDTH, ROWS, entries, tied=True) == numbers


def test_a_head_of_other_columns_counts_where_it_is_not_tied() -> None:
    entries: Any = [SimpleNamespace(layer=SimpleNamespace(place=0))]
    config = read(embedding_size=64, output_embedding_size=96)
    table = ROWS * (64 - WIDTH) + 64 * WIDTH
    head = ROWS * (96 - WIDTH) + 96 * WIDTH
    assert _tables(config, WIDTH, ROWS, entries, tied=True) == table
    assert _tables(config, WIDTH, ROWS, entries, tied=False) == table + head
