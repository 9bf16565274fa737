"""The words of a mask: which go together, what they are held as, and the patterns of blocks, by their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from iosim.base.errors import InputError
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks.blocks import BlockMask
from iosim.problem.masks.words import (
    blocks_from_dict,
    blocks_to_dict,
    butterfly,
    mask_text,
    said_offset,
    strided,
    window_first,
    window_global,
)


def kept(mask: BlockMask) -> set[tuple[int, int]]:
    return {*zip(mask.rows.tolist(), mask.indices.tolist(), strict=True)}


def by_definition(n: int, keeps: Callable[[int, int], bool]) -> set[tuple[int, int]]:
    return {(i, j) for i in range(n) for j in range(n) if keeps(i, j)}


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & n - 1 == 0


@pytest.mark.parametrize("n", [1, 2, 3, 6, 8, 9])
@pytest.mark.parametrize("largest", [None, 1, 2, 3, 4])
def test_a_butterfly_keeps_partners_at_strides_of_powers_of_two(
    n: int, largest: int | None
) -> None:
    most = n if largest is None else largest
    expected = by_definition(n, lambda i, j: i == j or (is_power_of_two(i ^ j) and i ^ j <= most))
    assert kept(butterfly(n * 16 - 5, 16, largest)) == expected


@pytest.mark.parametrize("n", [1, 2, 4, 5, 9, 10])
@pytest.mark.parametrize("stride", [None, 1, 3, 20])
def test_strided_keeps_the_last_and_every_stride_th(n: int, stride: int | None) -> None:
    step = math.ceil(math.sqrt(n)) if stride is None else stride
    expected = by_definition(n, lambda i, j: j <= i and (i - j < step or (i - j) % step == 0))
    assert kept(strided(n * 16, 16, stride)) == expected


@pytest.mark.parametrize(
    ("window", "first"), [(0, 16), (1, 1), (16, 17), (17, 40), (200, 1), (33, 200)]
)
def test_windows_with_first_tokens(window: int, first: int) -> None:
    """Blocks of 16 tokens, kept whole where a pair of them is: a window reaches into the next block with its first."""
    n, reach, columns = 7, math.ceil(window / 16), math.ceil(first / 16)
    assert kept(window_global(n * 16, 16, window, first)) == by_definition(
        n, lambda i, j: abs(i - j) <= reach or j < columns or i < columns
    )
    assert kept(window_first(n * 16, 16, window, first)) == by_definition(
        n, lambda i, j: j <= i and (i - j <= reach or j < columns)
    )


def problem(**words: Any) -> AttentionProblem:
    return AttentionProblem(**{"heads": 2, "seq_q": 256, "head_dim": 64} | words)


@pytest.mark.parametrize(
    ("words", "mask", "window", "right"),
    [
        ({"mask": "causal"}, "causal", None, None),
        ({"mask": "causal", "window": 9}, "window", 9, None),
        ({"mask": "window", "window": 9}, "window", 9, None),
        ({"mask": "window", "window": 9, "window_right": 0}, "window", 9, None),
        ({"mask": "window", "window": 9, "window_right": 4}, "window", 9, 4),
        ({"mask": "window", "window_right": 0}, "causal", None, None),
        ({"mask": "window", "window_right": 4}, "window", None, 4),
        ({"mask": "window", "window": 9, "window_right": -1}, "window", 9, -1),
        ({"mask": "none"}, "none", None, None),
    ],
)
def test_windows_are_held_in_one_way(
    words: dict[str, Any], mask: str, window: int | None, right: int | None
) -> None:
    p = problem(**words)
    assert (p.mask, p.window, p.window_right) == (mask, window, right)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ({"mask": "window"}, "window.* missing"),
        ({"mask": "window", "window_right": -1}, "window_right.* -1 "),
        ({"mask": "none", "window": 9}, "window.* 9 .*none"),
        ({"mask": "none", "window_right": 9}, "window_right.* 9 .*none"),
        ({"mask": "butterfly", "window": 9}, "window.* 9 .*butterfly"),
        ({"mask": "window+first"}, r"window.* missing.*window\+first"),
        ({"mask": "causal", "mask_block": 16}, "mask_block.* 16x16 .*causal"),
        ({"mask": "window+first", "window": 9, "mask_stride": 2}, "mask_stride.* 2 "),
        ({"mask": "butterfly", "global_tokens": 2}, "global_tokens.* 2 .*butterfly"),
        ({"mask": "butterfly", "mask_block": (16, 32)}, "mask_block.* 16x32 .*butterfly"),
        ({"mask": "butterfly", "seq_k": 512}, "256.* 512"),
        ({"mask": "blocks"}, "mask_file.*mask_blocks"),
        ({"seq_lens_k": (3,)}, "seq_lens_k.*seq_lens"),
        ({"seq_q": 1, "seq_lens": (3, 4), "seq_lens_k": (5,)}, "2 .* 1"),
        ({"seq_q": 6, "seq_lens": (3, 4)}, "seq_q.* 6 .* 7"),
        ({"seq_q": 1, "seq_lens": (3, 4), "batch": 2}, "batch.* 2 .* 1"),
        ({"seq_q": 1, "seq_lens": (3, 4), "key_padding": True}, "key_padding"),
        ({"seq_q": 1, "seq_lens": (3, 4), "mask": "butterfly"}, "butterfly"),
    ],
)
def test_words_that_do_not_go_together(words: dict[str, Any], names: str) -> None:
    with pytest.raises(InputError, match=names):
        problem(**words)


def test_blocks_and_first_tokens_have_usual_sizes() -> None:
    assert problem(mask="butterfly").mask_block == (128, 128)
    first = problem(mask="window+first", window=9)
    assert (first.mask_block, first.global_tokens) == ((128, 128), 128)
    small = problem(mask="window+global", window=9, mask_block=32)
    assert (small.mask_block, small.global_tokens) == ((32, 32), 32)
    assert (
        problem(mask="window+global", window=9, mask_block=32, global_tokens=5).global_tokens == 5
    )


def test_packed_sequences_say_their_lengths() -> None:
    p = problem(seq_q=1, seq_lens=(3, 4), seq_lens_k=(5, 7), mask="causal")
    assert (p.seq_q, p.seq_k, p.batch) == (7, 12, 1)
    assert problem(seq_q=7, seq_lens=(3, 4)).seq_k == 7


@pytest.mark.parametrize(
    ("words", "offset"),
    [
        ({"mask": "causal", "seq_k": 300}, 44),
        ({"mask": "causal"}, 0),
        ({"mask": "causal", "seq_k": 300, "offset": 3}, 3),
        ({"mask": "window", "window": 2, "seq_k": 300}, 44),
        ({"mask": "none", "seq_k": 300}, None),
        ({"seq_q": 1, "mask": "causal", "seq_lens": (3, 4), "seq_lens_k": (5, 7)}, None),
    ],
)
def test_the_key_that_faces_the_first_query(words: dict[str, Any], offset: int | None) -> None:
    assert said_offset(problem(**words)) == offset


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"mask": "causal"}, "causal"),
        ({"mask": "window", "window": 2000}, "window"),
        ({"mask": "window", "window": 2000, "window_right": 3}, "window (2,000 back, 3 ahead)"),
        ({"mask": "window", "window_right": 3}, "window (all keys back, 3 ahead)"),
        ({"mask": "window", "window": 3, "window_right": -1}, "window (3 back, all keys ahead)"),
        (
            {"seq_q": 1, "mask": "causal", "seq_lens": (3, 4)},
            "causal, packed: 2 sequences of 3 to 4 tokens",
        ),
        (
            {"seq_q": 1, "seq_lens": (4, 4), "seq_lens_k": (5, 7)},
            "none, packed: 2 sequences of 4 tokens and 5 to 7 keys",
        ),
        # two blocks of 128 a side: both keep themselves and their partner
        ({"mask": "butterfly"}, "butterfly (4 of 4 blocks of 128x128 kept, 1 of all)"),
        (
            {"mask": "strided", "mask_block": 64, "mask_stride": 1},
            "strided (10 of 16 blocks of 64x64 kept, 0.625 of all)",
        ),
    ],
)
def test_masks_in_words(words: dict[str, Any], text: str) -> None:
    p = problem(**words)
    assert mask_text(p, p.pair_mask) == text


def test_blocks_as_json() -> None:
    values = {"block": [16, 32], "rows": [0, 1, 1], "cols": [0, 0, 1]}
    mask = blocks_from_dict(values, 20, 40)
    assert (mask.block_q, mask.block_k, kept(mask)) == (16, 32, {(0, 0), (1, 0), (1, 1)})
    assert blocks_to_dict(mask) == values
    whole = values | {"full": [True, False, True]}
    assert blocks_to_dict(blocks_from_dict(whole, 20, 40)) == whole


@pytest.mark.parametrize(
    "other",
    [
        {"rows": [0, 2, 1]}, {"rows": [0, -1, 1]}, {"cols": [0, 2, 0]}, {"cols": [0, -1, 0]}, {"rows": [0, 1]},
        {"full": [True]}, {"rows": [[0], [1], [1]], "cols": [[0], [0], [1]]}, {"block": None}, {"rows": ["x", 1, 1]},
    ],
)  # fmt: skip
def test_what_names_no_blocks_is_refused(other: dict[str, Any]) -> None:
    values = {"block": [16, 32], "rows": [0, 1, 1], "cols": [0, 0, 1]}
    with pytest.raises(InputError):
        blocks_from_dict(values | other, 20, 40)
    assert np.array_equal(blocks_from_dict(values, 20, 40).rows, [0, 1, 1])
