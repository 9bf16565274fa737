"""Both sides of what a file of a block mask may hold: sizes, shapes, numbers of blocks, and what PyTorch's masks lack."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from executor.reference import dense_blocks

from iosim.base.errors import InputError
from iosim.problem.masks import BlockMask, files
from iosim.problem.masks.files import is_flex_mask, load_block_mask, of_flex_mask

SEQ = 32
"""Tokens: four blocks of eight a side."""
COUNT, INDICES = [1, 2, 1, 0], [[0, 0, 0, 0], [0, 3, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0]]
KEPT = [(0, 0), (1, 0), (1, 3), (2, 2)]
"""Blocks (queries, keys) that they keep: what stands behind a row's count is of no block."""


def pairs(mask: BlockMask) -> list[tuple[int, int]]:
    rows, columns = np.nonzero(dense_blocks(mask))
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def written(folder: Path, **arrays: Any) -> str:
    path = folder / "mask.npz"
    np.savez(path, **arrays)
    return str(path)


def test_lists_of_blocks(tmp_path: Path) -> None:
    path = written(tmp_path, kv_num_blocks=COUNT, kv_indices=INDICES, BLOCK_SIZE=8)
    assert pairs(load_block_mask(path, SEQ, SEQ)) == KEPT
    assert pairs(load_block_mask(path, SEQ, SEQ, (8, 8))) == KEPT
    with pytest.raises(InputError, match="its blocks are 8x8, mask_block says 8x4"):
        load_block_mask(path, SEQ, SEQ, (8, 4))


@pytest.mark.parametrize("block", [1, [1], [1, 1], [32, 1], np.array([2, 4], dtype=np.uint8)])
def test_block_sizes(block: Any, tmp_path: Path) -> None:
    height, width = (SEQ // int(side) for side in np.broadcast_to(block, 2))
    path = written(tmp_path, mask=np.ones((height, width), dtype=bool), BLOCK_SIZE=block)
    assert len(pairs(load_block_mask(path, SEQ, SEQ))) == height * width


@pytest.mark.parametrize("block", [0, [8, 0], [8.0, 8.0], [8, 8, 8], [[8, 8]], [[8], [8]], []])
def test_what_is_no_block_size(block: Any, tmp_path: Path) -> None:
    path = written(tmp_path, mask=np.ones((4, 4), dtype=bool), BLOCK_SIZE=block)
    with pytest.raises(InputError, match=r"is no block size; accepted: one or two whole numbers"):
        load_block_mask(path, SEQ, SEQ)


@pytest.mark.parametrize(
    ("count", "indices", "reason"),
    [
        (COUNT[:3], INDICES, "kv_num_blocks is 3x4, "),
        (COUNT, INDICES[:3], "kv_indices is 3x4, "),
        (COUNT[:3], INDICES[:3], "kv_indices is 3x4, "),
        ([5, 0, 0, 0], INDICES, "kv_num_blocks has 5 blocks in a row of 4"),
        ([-1, 0, 0, 0], INDICES, "kv_num_blocks has 0 blocks in a row of 4"),
        ([1, 0, 0, 0], [[4, 0, 0, 0]] * 4, "kv_indices names block 4; accepted: 0 to 3"),
        ([1, 0, 0, 0], [[-1, 0, 0, 0]] * 4, "kv_indices names block -1; accepted: 0 to 3"),
    ],
)
def test_lists_that_do_not_fit(
    count: list[int], indices: list[list[int]], reason: str, tmp_path: Path
) -> None:
    path = written(tmp_path, kv_num_blocks=count, kv_indices=indices, BLOCK_SIZE=8)
    with pytest.raises(InputError, match=reason):
        load_block_mask(path, SEQ, SEQ)


def test_a_column_of_one_block_and_lists_that_are_narrow(tmp_path: Path) -> None:
    """Every row keeps the same block, and a list may be as narrow as its longest row."""
    path = written(tmp_path, kv_num_blocks=[1] * 4, kv_indices=[[3]] * 4, BLOCK_SIZE=8)
    assert pairs(load_block_mask(path, SEQ, SEQ)) == [(row, 3) for row in range(4)]


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_file_is_read_up_to_its_limit(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, mask = tmp_path / f"mask{suffix}", np.ones((4, 4), dtype=bool)
    np.savez(path, mask=mask) if suffix == ".npz" else np.save(path, mask)
    size = path.stat().st_size
    monkeypatch.setattr(files, "MAX_BYTES", size)
    assert len(pairs(load_block_mask(str(path), SEQ, SEQ, (8, 8)))) == 16
    monkeypatch.setattr(files, "MAX_BYTES", size - 1)
    with pytest.raises(InputError, match="is not read \\(arrays of more than 0 MiB\\)"):
        load_block_mask(str(path), SEQ, SEQ, (8, 8))


def test_an_archive_is_measured_by_what_it_unpacks_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mask.npz"
    np.savez_compressed(path, mask=np.zeros((512, 512), dtype=bool), more=np.zeros(1 << 20))
    unpacked = 128 + 512 * 512  # a header of 128 bytes, and a byte a block; `more` is not unpacked
    monkeypatch.setattr(files, "MAX_BYTES", unpacked)
    assert pairs(load_block_mask(str(path), 512, 512, (1, 1))) == []
    monkeypatch.setattr(files, "MAX_BYTES", unpacked - 1)
    with pytest.raises(InputError, match="arrays of more than"):
        load_block_mask(str(path), 512, 512, (1, 1))


def with_header(version: tuple[int, int], shape: str, data: bytes) -> bytes:
    """A .npy file by hand: the magic, a version, a header of 118 characters and what follows it."""
    text = f"{{'descr': '|b1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    size = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + size + text.encode() + data


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        # 10 + 118 bytes of header and none behind it: an array of 128 elements is as large as the file.
        (with_header((1, 0), "(128,)", b""), None),
        (with_header((1, 0), "(129,)", b""), "an array of 129 elements in 128 bytes"),
        (with_header((2, 0), "(4, 4)", b"\1" * 16), ""),
        (with_header((3, 0), "(4, 4)", b"\1" * 16), "version \\(3, 0\\) of NumPy's format"),
    ],
    ids=["as large as the file", "larger", "of version 2", "of version 3"],
)
def test_headers(content: bytes, reason: str | None, tmp_path: Path) -> None:
    path = tmp_path / "mask.npy"
    path.write_bytes(content)
    if reason == "":
        assert len(pairs(load_block_mask(str(path), SEQ, SEQ, (8, 8)))) == 16
        return
    with pytest.raises(InputError) as error:
        load_block_mask(str(path), SEQ, SEQ, (8, 8))
    assert ("an array of" in str(error.value)) is (reason is not None and "129" in reason)
    if reason:
        error.match(reason)


class Tensor:
    """As much of a tensor as is read of one."""

    def __init__(self, values: Any, device: str = "cpu") -> None:
        self.values, self.device = values, device

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Any:
        return np.array(self.values)


def flex_mask(**fields: Any) -> Any:
    lists = {"kv_num_blocks": Tensor([[COUNT]]), "kv_indices": Tensor([[INDICES]])}
    return SimpleNamespace(**{"BLOCK_SIZE": (8, 8), **lists, **fields})


def test_a_mask_of_flex_attention_without_pytorch() -> None:
    assert is_flex_mask(flex_mask())
    assert pairs(of_flex_mask(flex_mask(), SEQ, SEQ)) == KEPT
    assert pairs(of_flex_mask(flex_mask(full_kv_indices=None), SEQ, SEQ)) == KEPT
    assert pairs(of_flex_mask(flex_mask(seq_lengths=(SEQ, SEQ)), SEQ, SEQ)) == KEPT
    with pytest.raises(InputError, match="it is for 32 queries and 64 keys"):
        of_flex_mask(flex_mask(seq_lengths=(SEQ, 2 * SEQ)), SEQ, SEQ)
    with pytest.raises(InputError, match="kv_indices is on the meta device and has no values"):
        of_flex_mask(flex_mask(kv_indices=Tensor([[INDICES]], "meta")), SEQ, SEQ)


@pytest.mark.parametrize("lacking", ["BLOCK_SIZE", "kv_num_blocks", "kv_indices"])
def test_what_lacks_a_field_of_it_is_none(lacking: str) -> None:
    mask = flex_mask()
    delattr(mask, lacking)
    assert not is_flex_mask(mask)


def test_a_mask_equals_no_other_thing() -> None:
    mask = of_flex_mask(flex_mask(), SEQ, SEQ)
    assert mask == of_flex_mask(flex_mask(), SEQ, SEQ)
    assert mask != of_flex_mask(flex_mask(kv_num_blocks=Tensor([[[1, 1, 1, 0]]])), SEQ, SEQ)
    assert mask != KEPT
