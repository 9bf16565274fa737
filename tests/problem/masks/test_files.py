"""Lists of blocks as files and as a problem's words: what survives writing and reading, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executor.reference import dense_blocks

import iosim.problem.masks.blocks
from iosim import InputError, predict
from iosim.catalog.algorithms import plan
from iosim.kernel.kernel import Kernel, Tile
from iosim.problem.attention import AttentionProblem
from iosim.problem.masks import BlockMask, butterfly, strided, window_global
from iosim.problem.masks.files import load_block_mask, save_block_mask
from iosim.problem.masks.mask import IntervalMask

# Files.


def test_masks_survive_a_file(tmp_path: Path) -> None:
    mask = BlockMask.covering(IntervalMask(40, 0, 0), 100, 100, 16, 8)
    save_block_mask(str(tmp_path / "m.npz"), mask)
    assert load_block_mask(str(tmp_path / "m.npz"), 100, 100) == mask
    np.save(tmp_path / "m.npy", dense_blocks(mask))
    plain = load_block_mask(str(tmp_path / "m.npy"), 100, 100, (16, 8))
    assert plain == replace(mask, full=None)
    np.savez(tmp_path / "n.npz", mask=dense_blocks(mask).astype(np.uint8), BLOCK_SIZE=[16, 8])
    assert load_block_mask(str(tmp_path / "n.npz"), 100, 100) == plain


@pytest.mark.slow
def test_a_mask_from_flex_attention(tmp_path: Path) -> None:
    """The arrays of torch's own BlockMask, made from a window, are the blocks that a window covers."""
    flex = pytest.importorskip(
        "torch.nn.attention.flex_attention", reason="torch, which makes the mask, is missing"
    )
    block_mask = flex.create_block_mask(
        lambda b, h, q, k: (q >= k) & (q - k <= 300), None, None, 1000, 1000, device="cpu"
    )
    names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    np.savez(
        tmp_path / "b.npz",
        BLOCK_SIZE=block_mask.BLOCK_SIZE,
        **{n: getattr(block_mask, n).numpy() for n in names},
    )
    loaded = load_block_mask(str(tmp_path / "b.npz"), 1000, 1000)
    covering = BlockMask.covering(IntervalMask(300, 0, 0), 1000, 1000, 128, 128)
    assert np.array_equal(dense_blocks(loaded), dense_blocks(covering))
    assert loaded.full is not None
    assert covering.full is not None
    inner = loaded.rows < 7  # torch calls a ragged last block partial
    assert np.array_equal(loaded.full[inner], covering.full[inner])


def _arrays(**changes: Any) -> dict[str, Any]:
    whole = {
        "kv_num_blocks": np.array([1, 2]),
        "kv_indices": np.array([[0, 1], [0, 1]]),
        "BLOCK_SIZE": 8,
    }
    return {k: v for k, v in (whole | changes).items() if v is not None}


BAD_FILES = [
    (_arrays(kv_num_blocks=None), "has no kv_num_blocks"),
    (_arrays(BLOCK_SIZE=None), "does not say its block size"),
    (_arrays(BLOCK_SIZE=0), "BLOCK_SIZE .0. is no block size"),
    (_arrays(BLOCK_SIZE=4), r"kv_indices is 2x2, 16 queries and 16 keys in blocks of 4x4 are 4x4"),
    (_arrays(kv_num_blocks=np.array([1, 3])), "kv_num_blocks has 3 blocks in a row of 2"),
    (_arrays(kv_num_blocks=np.array([-1, 1])), "kv_num_blocks has 1 blocks in a row of 2"),
    (_arrays(kv_num_blocks=np.array([1.0, 2.0])), "kv_num_blocks has dtype float64"),
    (_arrays(kv_indices=np.array([[0, 1], [0, 2]])), "names block 2; accepted: 0 to 1"),
    (_arrays(kv_indices=np.array([[0, 1], [1, 1]])), "names 1 blocks twice"),
    (
        _arrays(
            kv_indices=np.zeros((1, 2, 2, 2), dtype=int),
            kv_num_blocks=np.ones((1, 2, 2), dtype=int),
        ),
        "kv_num_blocks has shape 1x2x2; accepted: one mask for all heads",
    ),
    ({"other": np.zeros(3)}, "holds other; accepted: mask, or kv_num_blocks and kv_indices"),
    ({"mask": np.ones((2, 3), dtype=bool), "BLOCK_SIZE": 8}, "mask is 2x3, 16 queries"),
    ({"mask": np.ones((2, 2)), "BLOCK_SIZE": 8}, "mask has dtype float64"),
    ({"mask": np.full((2, 2), 2), "BLOCK_SIZE": 8}, "mask has dtype int64; accepted: booleans"),
]


@pytest.mark.parametrize(("arrays", "message"), BAD_FILES)
def test_bad_files_are_refused_in_one_line(
    arrays: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=message) as error:
        AttentionProblem(seq_q=16, mask="blocks", mask_file=str(path))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"", "is not read"),
        (b"PK\x03\x04 no zip", "is not read"),
        (b"\x93NUMPY\x01\x00nonsense", "is not read"),
        (b"hello", "is not read"),
    ],
)
def test_files_that_hold_no_mask(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.npy"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_block_mask(str(path), 16, 16, (8, 8))


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="is not read"):
        load_block_mask(str(tmp_path / "m.npy"), 16, 16, (8, 8))


def test_block_size_beside_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", mask=np.ones((2, 2), dtype=bool), BLOCK_SIZE=8)
    with pytest.raises(
        InputError, match="its blocks are 8x8, mask_block says 16x16; accepted: the same size"
    ):
        load_block_mask(str(tmp_path / "m.npz"), 16, 16, (16, 16))


# The problem's words.

BAD_WORDS: list[tuple[dict[str, Any], str]] = [
    ({"mask": "butterfly", "mask_block": 0}, "mask_block 0 is out of range"),
    ({"mask": "butterfly", "mask_block": (8, 16)}, "mask_block 8x16 with mask 'butterfly' is not square"),
    ({"mask": "butterfly", "mask_block": 1.5}, "mask_block 1.5 is no pair"),
    ({"mask": "butterfly", "mask_block": (1, 2, 3)}, "mask_block .* is no pair"),
    ({"mask": "butterfly", "mask_stride": -1}, "mask_stride -1 is out of range"),
    ({"mask": "butterfly", "seq_k": 5}, "mask 'butterfly' with seq_q 64 and seq_k 5: the pattern is square"),
    ({"mask": "butterfly", "window": 4}, "window 4 contradicts mask 'butterfly'"),
    ({"mask": "butterfly", "offset": 4}, "offset 4 contradicts mask 'butterfly'"),
    ({"mask": "causal", "mask_block": 8}, "mask_block 8x8 contradicts mask 'causal'"),
    ({"mask": "strided", "global_tokens": 8}, "global_tokens 8 contradicts mask 'strided'"),
    ({"mask": "window+global"}, "window is missing"),
    ({"mask": "window+global", "window": 5, "mask_stride": 2}, "mask_stride 2 contradicts mask 'window.global'"),
    ({"mask": "window+global", "window": 5, "global_tokens": -2}, "global_tokens -2 is out of range"),
    ({"mask": "blocks"}, "mask 'blocks' needs its blocks"),
    ({"mask": "blocks", "mask_file": "a", "mask_blocks": butterfly(64, 8)}, "mask 'blocks' needs its blocks"),
    ({"mask": "blocks", "mask_blocks": 3}, "mask_blocks of type int"),
    ({"mask": "blocks", "mask_blocks": butterfly(32, 8)}, "mask_blocks is for 32 queries and 32 keys"),
    ({"mask": "blocks", "mask_blocks": butterfly(64, 8), "mask_block": 16}, "mask_block 16x16 contradicts mask_blocks"),
    ({"mask": "none", "mask_file": "a.npy"}, "mask_file a.npy contradicts mask 'none'"),
    ({"mask": "blocks", "mask_blocks": {"block": 8}}, "mask_blocks cannot be read"),
    ({"mask": "blocks", "mask_blocks": {"block": 8, "rows": [9], "cols": [0]}}, "mask_blocks names blocks outside 8x8"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "message"), BAD_WORDS)
def test_words_that_contradict_each_other(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AttentionProblem(**({"seq_q": 64} | values))


def test_too_many_blocks_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iosim.problem.masks.blocks, "MAX_BLOCKS", 1000)
    with pytest.raises(InputError, match=r"mask: 4,096 kept blocks; accepted: up to 1,000"):
        window_global(64, 1, 64, 0)


@pytest.mark.parametrize(
    "values",
    [
        {"mask": "butterfly", "mask_block": 8, "mask_stride": 2},
        {"mask": "strided", "mask_block": 4},
        {"mask": "window+global", "window": 9, "mask_block": 4},
        {"mask": "blocks", "mask_blocks": strided(64, 8)},
        {"mask": "blocks", "mask_blocks": BlockMask.covering(IntervalMask(9, 0, 0), 64, 64, 4, 8)},
    ],
)
def test_a_problem_survives_its_dictionary(values: dict[str, Any]) -> None:
    problem = AttentionProblem(seq_q=64, **values)
    again = AttentionProblem.from_dict(json.loads(json.dumps(problem.to_dict())))
    assert again == problem
    assert hash(again) == hash(problem)
    assert again.pair_mask == problem.pair_mask


def test_kernels_without_lists_refuse_them() -> None:
    problem = AttentionProblem(seq_q=512, mask="butterfly")
    with pytest.raises(
        InputError, match=r"^mask=butterfly: kernel fa2 does not take it; accepted by: .*flex"
    ):
        predict(problem, "fa2", "h200-sxm")
    with pytest.raises(InputError, match="algorithm minimal"):
        plan(problem.with_(dtype="fp32"), Kernel("mine", "minimal", Tile(32, 32)))
